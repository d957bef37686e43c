"""Converting edges from Parquet within a budget, in turns with the same edges from `.npy`.

Each conversion is a process of its own, `gnnstore convert table` and `gnnstore convert numpy`, with
`--memory 300MB`, which sorts the edges on disk. Both stores must be equal. The bars: half the speed
of the way from `.npy`, and a peak of memory that is within the budget above the peak of a process
that converts a single edge. With `--edges 100000000`, what is read and written takes 8 GB on the
disk of `--dir`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.harness import parser, report
from gnnstore.units import format_size, parse_size

BAR_SPEED = 0.5
NODES = 2**24
_CHUNK = 2**20
# The peak of this program alone: `wait` reports the peak of the process that forked it, too.
_CHILD = """
import sys, time
from pathlib import Path
from gnnstore.tools.cli import main
status = main(sys.argv[1:])
lines = Path("/proc/self/status").read_text().splitlines()
print(time.process_time(), next(line.split()[1] for line in lines if line.startswith("VmHWM")))
sys.exit(status)
"""


@dataclass(frozen=True)
class Run:
    """One conversion: its seconds, its processor seconds, and its peak of resident memory."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def write_edges(directory: Path, num_edges: int) -> None:
    """Write random edges as a Parquet file and as a directory of `.npy`."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    (directory / "arrays").mkdir()
    np.save(directory / "arrays" / "num_nodes.npy", np.array(NODES))
    path = directory / "arrays" / "edge_index.npy"
    ends = np.lib.format.open_memmap(path, "w+", np.int64, (2, num_edges))
    schema = pa.schema([("source", pa.int64()), ("target", pa.int64())])
    rng = np.random.default_rng(0)
    with parquet.ParquetWriter(directory / "edges.parquet", schema) as writer:
        for begin in range(0, num_edges, _CHUNK):
            chunk = rng.integers(0, NODES, (2, min(_CHUNK, num_edges - begin)))
            ends[:, begin : begin + _CHUNK] = chunk
            writer.write_table(pa.table(list(chunk), schema=schema))
    ends.flush()


def convert(*words: object) -> Run:
    """Run `gnnstore convert` in a process of its own."""
    command = [sys.executable, "-c", _CHILD, "convert", *map(str, words), "--overwrite"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(command)}\n{done.stderr}")
    cpu_seconds, peak_kib = done.stdout.split()[-2:]
    return Run(seconds, float(cpu_seconds), int(peak_kib) * 1024)


def are_equal(one: Path, other: Path) -> bool:
    """Whether two stores have the same arrays, byte by byte."""
    names = [sorted(p.relative_to(s) for p in s.rglob("c*") if p.is_file()) for s in (one, other)]
    if names[0] != names[1]:
        return False
    for name in names[0]:
        with (one / name).open("rb") as first, (other / name).open("rb") as second:
            while block := first.read(_CHUNK):
                if block != second.read(_CHUNK):
                    return False
            if second.read(1):
                return False
    return True


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__)
    options.add_argument("--edges", type=int, default=20_000_000, help="number of edges")
    options.add_argument("--memory", default="300MB", help="budget of each conversion")
    options.add_argument("--dir", type=Path, help="where to write")
    options.add_argument("--turns", type=int, default=1, help="conversions of each kind")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        directory = Path(name)
        write_edges(directory, 1)
        (directory / "edges.parquet").rename(directory / "one.parquet")
        shutil.rmtree(directory / "arrays")
        write_edges(directory, arguments.edges)
        nodes, memory = ("--num-nodes", NODES), ("--memory", arguments.memory)
        table = ("table", directory / "table.gnn", "--edges")
        base = convert(*table, directory / "one.parquet", *nodes, *memory)
        ours, theirs = [], []
        for _ in range(arguments.turns):
            ours.append(convert(*table, directory / "edges.parquet", *nodes, *memory))
            theirs.append(convert("numpy", directory / "arrays", directory / "npy.gnn", *memory))
        equal = are_equal(directory / "table.gnn", directory / "npy.gnn")
    ratio = median(b.seconds for b in theirs) / median(a.seconds for a in ours)
    ratio_cpu = median(b.cpu_seconds for b in theirs) / median(a.cpu_seconds for a in ours)
    peak = max(run.peak_bytes for run in ours)
    within = peak - base.peak_bytes <= parse_size(arguments.memory)
    rows = [
        (
            "edges/s from Parquet",
            f"{arguments.edges / median(r.seconds for r in ours) / 1e6:.2f} M",
        ),
        ("edges/s from .npy", f"{arguments.edges / median(r.seconds for r in theirs) / 1e6:.2f} M"),
        ("speed, as a share of that from .npy", f"{ratio:.2f} (bar {BAR_SPEED})"),
        ("the same in processor time", f"{ratio_cpu:.2f}"),
        ("peak resident, Parquet", format_size(peak)),
        ("peak resident, .npy", format_size(max(run.peak_bytes for run in theirs))),
        ("peak resident, one edge", format_size(base.peak_bytes)),
        ("within the budget", "yes" if within else "NO"),
        ("equal stores", "yes" if equal else "NO"),
    ]
    report(
        f"{arguments.edges} edges, --memory {arguments.memory}",
        rows,
        as_json=arguments.json,
        ratio=ratio,
        ratio_cpu=ratio_cpu,
        peak_bytes=peak,
        base_bytes=base.peak_bytes,
        is_equal=equal,
    )
    if ratio < BAR_SPEED or not within or not equal:
        raise SystemExit("a bar is missed")


if __name__ == "__main__":
    main()
