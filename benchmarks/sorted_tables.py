"""Converting a table whose edges are sorted, with `--sorted` and without, in turns.

Each conversion is `gnnstore convert table --memory 300MB`, a process of its own. Both stores must
be equal, and `--sorted` must be faster and take no temporary space. With `--edges 60000000`, the
table, two stores and the runs take 3 GB on the disk of `--dir`.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.harness import parser, report
from benchmarks.tables import NODES, Run, are_equal, convert
from gnnstore.formats.base.files import directory_bytes
from gnnstore.units import format_size

_CHUNK = 2**20
_POLL_SECONDS = 0.02


def write_edges(path: Path, num_edges: int) -> None:
    """Write random edges as Parquet, in ascending order of target, then source."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    schema = pa.schema([("source", pa.int64()), ("target", pa.int64())])
    rng = np.random.default_rng(0)
    num_chunks = -(-num_edges // _CHUNK)
    bounds = np.linspace(0, NODES, num_chunks + 1).astype(np.int64)
    with parquet.ParquetWriter(path, schema) as writer:
        for chunk in range(num_chunks):  # of some targets each
            size = min(_CHUNK, num_edges - chunk * _CHUNK)
            targets = rng.integers(bounds[chunk], bounds[chunk + 1], size)
            keys = np.sort(targets * NODES + rng.integers(0, NODES, size))
            writer.write_table(pa.table([keys % NODES, keys // NODES], schema=schema))


@contextmanager
def peak_bytes_of(directory: Path) -> Iterator[list[int]]:
    """Note the most bytes that a directory has meanwhile, in the list that is yielded."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_SECONDS):
            peak[0] = max(peak[0], directory_bytes(directory))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__)
    options.add_argument("--edges", type=int, default=20_000_000, help="number of edges")
    options.add_argument("--memory", default="300MB", help="budget of each conversion")
    options.add_argument("--dir", type=Path, help="where to write")
    options.add_argument("--turns", type=int, default=1, help="conversions of each kind")
    arguments = options.parse_args()
    num_edges = 2_000_000 if arguments.quick else arguments.edges
    runs: dict[str, list[Run]] = {"--sorted": [], "without": []}
    spilled = dict.fromkeys(runs, 0)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        directory, spill = Path(name), Path(name) / "spill"
        spill.mkdir()
        write_edges(directory / "edges.parquet", num_edges)
        words = ("--edges", directory / "edges.parquet", "--num-nodes", NODES, "--spill-dir", spill)
        for _ in range(arguments.turns):
            for kind, found in runs.items():
                more = ["--sorted"] if kind == "--sorted" else []
                with peak_bytes_of(spill) as peak:
                    store = directory / f"{kind}.gnn"
                    memory = ("--memory", arguments.memory)
                    found.append(convert("table", store, *words, *memory, *more))
                spilled[kind] = max(spilled[kind], peak[0])
        is_equal = are_equal(*(directory / f"{kind}.gnn" for kind in runs))
    seconds = {kind: median(run.seconds for run in found) for kind, found in runs.items()}
    ratio = seconds["--sorted"] / seconds["without"]
    rows = [
        row
        for kind, found in runs.items()
        for row in (
            (f"{kind}: edges/s", f"{num_edges / seconds[kind] / 1e6:.2f} M"),
            (f"{kind}: seconds", f"{seconds[kind]:.1f}"),
            (f"{kind}: processor seconds", f"{median(run.cpu_seconds for run in found):.1f}"),
            (f"{kind}: temporary space", format_size(spilled[kind])),
            (f"{kind}: peak resident", format_size(max(run.peak_bytes for run in found))),
        )
    ]
    rows += [("seconds, sorted / without", f"{ratio:.2f}"), ("equal", "yes" if is_equal else "NO")]
    report(
        f"{num_edges} sorted edges, --memory {arguments.memory}",
        rows,
        as_json=arguments.json,
        ratio=ratio,
        temporary_bytes=spilled,
        is_equal=is_equal,
    )
    if ratio >= 1 or spilled["--sorted"] or not is_equal:
        raise SystemExit("a bar is missed")


if __name__ == "__main__":
    main()
