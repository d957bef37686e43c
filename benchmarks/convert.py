"""Converting edges, features and text, each compared in the same run with what limits its speed.

An R-MAT graph (Graph500's parameters, edges in no order) is converted end to end from a binary
`edge_index.npy` in turns: with all available memory, and with a budget of a fraction of what that
conversion takes, so that edges go to the disk and back. In between, a file is written and
synchronised, and read with an empty page cache: the speed of the disk in the same minute. The
bars: 15 million edges a second in memory on two cores, a third of those on disk, and in memory
the bytes of the store at half the speed of writing a file.

`--features` converts float32 features of 128 columns, and copies the same file, in turns: both
read from an empty page cache and end with everything on the disk, so that the ratio is the
cost of converting in addition to moving the bytes. The bar: 0.9 of the copy's speed.

`--text` parses an edge list and a table of decimals, whose files are in the page cache, in turns
with pyarrow's CSV reader (in one thread), and reports the bytes that each takes in a second of a
processor. The bar: 300 MB/s, or pyarrow's speed.

`--large` converts 2^27 nodes and 600 million edges with `--memory 1GB`, in a cgroup of 1.5 GB
that counts the page cache as well (needs root). It takes 25 GB on the disk of `--dir`, and
reports the most memory that was resident. Run `python -m benchmarks.convert --dir DIR`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.harness import parser, report
from benchmarks.parts import text_tables
from benchmarks.parts.conversion import (
    Conversion,
    convert,
    copy_file,
    write_edges,
    write_features,
)
from gnnstore.converters.edges.columns import estimate_peak_bytes
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.inputs.source import num_threads
from gnnstore.tools.bench.harness import drop_from_cache, memory_group
from gnnstore.units import format_size, spread

BAR_MEMORY = 15e6
BAR_DISK = BAR_MEMORY / 3
BAR_FEATURES = 0.9
BAR_WRITING = 0.5
# Share of the memory that building in memory takes: about a dozen sorted runs.
BUDGET_SHARE = 0.15
LARGE_SCALE, LARGE_EDGES = 27, 600_000_000
LARGE_MEMORY, LARGE_LIMIT = 10**9, 1_500_000_000
FEATURE_WIDTH = 128
_BLOCK = 2**23


def disk_rates(directory: Path, num_bytes: int) -> tuple[float, float]:
    """Write a file, synchronise it, and read it from the disk; return bytes a second of both."""
    path = directory / "yardstick"
    block = np.random.default_rng(0).bytes(_BLOCK)
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(0, num_bytes, _BLOCK):
            file.write(block)
        os.fsync(file.fileno())
    written = time.perf_counter()
    drop_from_cache([path])
    middle = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(_BLOCK):
            pass
    end = time.perf_counter()
    size = path.stat().st_size
    path.unlink()
    return size / (written - start), size / (end - middle)


def done(result: Conversion | str) -> Conversion:
    """Return a conversion that succeeded; stop with the reason if it did not."""
    if isinstance(result, str):
        raise SystemExit(f"the conversion failed: {result}")
    return result


def large(directory: Path, *, as_json: bool) -> None:
    """Convert what memory cannot hold by far, in a cgroup that keeps the promise."""
    source = directory / "edges"
    write_edges(source, LARGE_SCALE, LARGE_EDGES, num_threads())
    with memory_group() as group:
        if group is None:
            raise SystemExit("no memory cgroup can be made here (it needs root)")
        group.limit(LARGE_LIMIT)
        drop_from_cache([source])
        found = done(
            convert(source, directory / "large.gnn", memory_bytes=LARGE_MEMORY, group=group)
        )
        peak = group.peak_bytes()
    rate = LARGE_EDGES / found.seconds
    rows = [
        ("edges/s", f"{rate / 1e6:.2f} M"),
        ("seconds (CPU)", f"{found.seconds:.0f} ({found.cpu_seconds:.0f})"),
        ("spilled", format_size(found.spilled_bytes)),
        ("peak resident", format_size(found.peak_bytes)),
        ("peak of the cgroup, page cache included", format_size(peak)),
    ]
    title = f"2^{LARGE_SCALE} nodes, {LARGE_EDGES} edges, --memory 1GB, cgroup of 1.5 GB"
    report(title, rows, as_json=as_json, conversion=asdict(found), cgroup_peak_bytes=peak)


def features(directory: Path, arguments: argparse.Namespace) -> None:
    """Convert features and copy their file in turns."""
    source = directory / "features"
    path = write_features(source, arguments.feature_bytes, FEATURE_WIDTH)
    size = path.stat().st_size
    copies: list[float] = []
    conversions: list[Conversion] = []
    for turn in range(arguments.repeats + 1):
        seconds = 0.0
        # Who goes first changes, as what one leaves to the disk may slow the other.
        for what in ("copy", "convert") if turn % 2 else ("convert", "copy"):
            drop_from_cache([path])
            if what == "copy":
                seconds = copy_file(path, directory / "copy")
                (directory / "copy").unlink()
            else:
                found = done(convert(source, directory / "out.gnn", memory_bytes=None))
                shutil.rmtree(directory / "out.gnn")
        if turn:  # the first one warms up
            copies.append(seconds)
            conversions.append(found)
    copied = [size / seconds for seconds in copies]
    converted = [size / turn.seconds for turn in conversions]
    ratio = median(converted) / median(copied)
    rows = [
        ("copied and synchronised, MB/s", spread((r / 1e6 for r in copied), ".0f")),
        ("converted, MB/s", spread((r / 1e6 for r in converted), ".0f")),
        ("converted / copied, medians", f"{ratio:.2f}"),
        (f"  the bar {BAR_FEATURES} is met", str(ratio >= BAR_FEATURES)),
        ("  turn by turn", spread(b / a for a, b in zip(copied, converted, strict=True))),
        ("CPU seconds of a conversion", spread(turn.cpu_seconds for turn in conversions)),
        ("peak resident", format_size(max(turn.peak_bytes for turn in conversions))),
    ]
    report(
        f"convert {format_size(size)} of features",
        rows,
        as_json=arguments.json,
        copy_seconds=copies,
        conversions=[asdict(turn) for turn in conversions],
        ratio=ratio,
    )


def compare(directory: Path, arguments: argparse.Namespace) -> None:
    """Convert in memory and on disk in turns."""
    scale, num_edges = arguments.scale, arguments.edges
    source = directory / "edges"
    write_edges(source, scale, num_edges, num_threads())
    rules = EdgeRules(undirected=arguments.undirected)
    whole = estimate_peak_bytes(rules, num_edges, 1 << scale, 0)
    budget = max(2**25, int(BUDGET_SHARE * whole))
    memory: list[Conversion] = []
    disk: list[Conversion] = []
    rates: list[tuple[float, float]] = []
    for _ in range(arguments.repeats):
        for results, budget_bytes in ((memory, None), (disk, budget)):
            results.append(
                done(
                    convert(
                        source,
                        directory / "out.gnn",
                        memory_bytes=budget_bytes,
                        undirected=arguments.undirected,
                    )
                )
            )
        rates.append(disk_rates(directory, 16 * num_edges))
    if not all(turn.spilled_bytes for turn in disk):
        raise SystemExit("nothing was spilled: choose more --edges")
    in_memory = [num_edges / turn.seconds for turn in memory]
    on_disk = [num_edges / turn.seconds for turn in disk]
    ratios = [b / a for a, b in zip(in_memory, on_disk, strict=True)]
    # Time that the disk alone would take for writing and reading the runs.
    alone = [
        turn.spilled_bytes / write + turn.spilled_bytes / read
        for turn, (write, read) in zip(disk, rates, strict=True)
    ]
    shares = [seconds / turn.seconds for seconds, turn in zip(alone, disk, strict=True)]
    result = median(turn.result_bytes / turn.seconds for turn in memory)
    writing = result / median(write for write, _ in rates)
    million = 1e-6
    rows = [
        ("in memory, M edges/s", spread(million * rate for rate in in_memory)),
        (f"  the bar {million * BAR_MEMORY:.0f} is met", str(median(in_memory) >= BAR_MEMORY)),
        (f"on disk with {format_size(budget)}, M edges/s", spread(million * r for r in on_disk)),
        (f"  the bar {million * BAR_DISK:.0f} is met", str(median(on_disk) >= BAR_DISK)),
        ("on disk / in memory", spread(ratios)),
        ("spilled", format_size(disk[0].spilled_bytes)),
        ("the disk, MB/s written and synchronised", spread((w / 1e6 for w, _ in rates), ".0f")),
        ("in memory, MB/s of the result", f"{result / 1e6:.0f}"),
        ("  / the disk's writing, medians", f"{writing:.2f}"),
        (f"  the bar {BAR_WRITING} is met", str(writing >= BAR_WRITING)),
        ("the disk, MB/s read", spread((r / 1e6 for _, r in rates), ".0f")),
        ("share of the time that the disk alone would take for the runs", spread(shares)),
        ("peak resident in memory", format_size(max(turn.peak_bytes for turn in memory))),
        ("peak resident on disk", format_size(max(turn.peak_bytes for turn in disk))),
    ]
    report(
        f"convert 2^{scale} nodes, {num_edges} edges{', undirected' * arguments.undirected}",
        rows,
        as_json=arguments.json,
        budget_bytes=budget,
        in_memory=[asdict(turn) for turn in memory],
        on_disk=[asdict(turn) for turn in disk],
        disk_bytes_per_second=rates,
    )


def main() -> None:
    """Run what the command line asks for."""
    options = parser(__doc__)
    options.set_defaults(repeats=3)
    options.add_argument("--scale", type=int, default=24, help="2^scale nodes (24)")
    options.add_argument("--edges", type=int, default=100_000_000, help="edges (100 million)")
    options.add_argument("--undirected", action="store_true", help="add reverse edges")
    options.add_argument("--large", action="store_true", help="600 million edges within 1 GB")
    options.add_argument("--features", action="store_true", help="features against a copy")
    options.add_argument("--text", action="store_true", help="text against pyarrow")
    options.add_argument(
        "--feature-bytes", type=int, default=4 * 10**9, help="size of the features (4 GB)"
    )
    options.add_argument("--dir", type=Path, help="where to work (a temporary directory)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.scale, arguments.edges = 18, 4_000_000
        arguments.feature_bytes = 2 * 10**8
        arguments.repeats = min(arguments.repeats, 2)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        if arguments.large:
            large(Path(directory), as_json=arguments.json)
        elif arguments.text:
            text_tables.compare(Path(directory), arguments)
        elif arguments.features:
            features(Path(directory), arguments)
        else:
            compare(Path(directory), arguments)


if __name__ == "__main__":
    main()
