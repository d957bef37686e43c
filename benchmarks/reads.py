"""Reading rows from disk: every engine, compared with the device's own limit in the same run.

Random rows of 512 bytes go through the whole path (a stored array, `FileRows.gather`), one read a
row. They are compared with a raw loop of 4 KiB reads at random offsets by io_uring, at the best of
several queue depths, and with fio where it is installed. The bars are 0.9 of their reads per
second, 0.9 of the bandwidth of large sequential reads, and 5 us of CPU time a read. The engines ask
for a batch's rows in the order in which they lie, which many disks reward.

Reads go around the page cache (O_DIRECT); it is dropped before each turn all the same, since
the engine "mmap" reads through it. The table of 4 GiB is written first, to `--dir`: choose a
directory on the disk in question. Run `python -m benchmarks.reads --dir DIR`.
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import Turn, measure, parser, report
from benchmarks.parts import fio
from gnnstore import _core
from gnnstore.disk.engines import Engine, open_engine, probe_engines
from gnnstore.features.file_rows import FileRows
from gnnstore.formats import AttributeSpec, PagedArray, PagedArrayWriter
from gnnstore.tools.bench.harness import drop_from_cache
from gnnstore.units import format_size, spread

ROW_BYTES, BLOCK_BYTES, LARGE_BYTES = 512, 4096, 1 << 20
BATCH_BLOCKS = 128
RANDOM_DEPTHS, LARGE_DEPTHS = (32, 64, 128, 256, 512), (2, 4, 8, 16, 32)
BAR_RANDOM, BAR_LARGE, BAR_CPU_MICROSECONDS = 0.9, 0.9, 5.0

Works = dict[str, Callable[[], Turn]]


def write_table(directory: Path, num_bytes: int) -> PagedArray:
    """Write rows of 128 float32 in one shard, and leave nothing that is still to be written."""
    num_rows = num_bytes // ROW_BYTES
    spec = AttributeSpec("x", "x", "paged", "float32", (num_rows, ROW_BYTES // 4))
    rng = np.random.default_rng(0)
    (directory / "x").mkdir()
    with PagedArrayWriter(directory / "x", spec, BLOCK_BYTES, 2 * num_bytes) as writer:
        for first in range(0, num_rows, 1 << 17):
            count = min(1 << 17, num_rows - first)
            writer.append(rng.random((count, ROW_BYTES // 4), dtype=np.float32))
    names = [name for name, _, _ in writer.files if name != "zarr.json"]
    return PagedArray(spec, writer.layout, tuple(directory / "x" / name for name in names))


class Table:
    """The table on disk; each method reads a part once and returns what that took."""

    def __init__(self, array: PagedArray, num_reads: int, seconds: float) -> None:
        self.array = array
        self.path = array.file_paths[0]
        self.num_bytes = array.body_bytes[0]
        self.num_reads = num_reads
        # Half a second of a fast disk, in whole batches.
        num_blocks = min(self.num_bytes // LARGE_BYTES, num_reads // 100)
        self.batch_blocks = min(BATCH_BLOCKS, num_blocks)
        self.num_large = num_blocks // self.batch_blocks * self.batch_blocks
        self.seconds = seconds
        self._rng = np.random.default_rng(1)

    def rows(self, engine: Engine) -> Turn:
        """Gather random rows; counts reads."""
        ids = self._rng.integers(0, self.array.num_rows, self.num_reads)
        # Opened in each turn: pages cannot be dropped while they are mapped.
        rows = FileRows.open(self.array, engine)
        return self._turn(lambda: rows.gather(ids).counts.reads)

    def rows_in_order(self, engine: Engine) -> Turn:
        """Gather consecutive rows, batch by batch; counts bytes."""
        first = self._first_block()
        bounds = np.arange(first, first + self.num_large + 1, self.batch_blocks)
        bounds *= LARGE_BYTES // ROW_BYTES
        rows = FileRows.open(self.array, engine)

        def work() -> int:
            return sum(
                rows.gather(np.arange(start, stop)).values.nbytes
                for start, stop in pairwise(bounds)
            )

        return self._turn(work)

    def blocks(self, depth: int, engine: str = "io_uring") -> Turn:
        """Read random blocks, without rows; counts reads."""
        offsets = self._rng.integers(0, self.num_bytes // BLOCK_BYTES, self.num_reads)
        zeros = np.zeros_like(offsets)
        places = np.arange(self.num_reads) * BLOCK_BYTES
        out = _core.pool_empty(self.num_reads * BLOCK_BYTES)
        files = _core.FileSet([self.path], [self.num_bytes])
        reader = _core.Reader(engine, queue_depth=depth)
        reader.describe()  # makes the engine, outside the time
        return self._turn(
            lambda: (
                reader.read_ranges(
                    files, zeros, offsets * BLOCK_BYTES, zeros + BLOCK_BYTES, places, out
                ).reads
            )
        )

    def plain(self, num_threads: int) -> Turn:
        """Read in order with threads that each ask for the next large block; counts bytes."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        first = self._first_block()
        blocks = iter(range(first, first + self.num_large))

        def read(_: int) -> None:
            with mmap.mmap(-1, LARGE_BYTES) as buffer:
                for block in blocks:
                    if os.preadv(descriptor, [buffer], block * LARGE_BYTES) != LARGE_BYTES:
                        raise SystemExit(f"{self.path}: a read came short")

        def work() -> int:
            with ThreadPoolExecutor(num_threads) as pool:
                list(pool.map(read, range(num_threads)))
            return self.num_large * LARGE_BYTES

        try:
            return self._turn(work)
        finally:
            os.close(descriptor)

    def has_ring(self) -> bool:
        """Return whether io_uring can be used here."""
        return any(p.name == "io_uring" and p.is_available for p in probe_engines(self.path))

    def fio(self, pattern: str, block_bytes: int, **options: Any) -> Turn:
        """Run fio on the same file; counts reads."""
        drop_from_cache([self.path])
        return fio.read(
            self.path, pattern, block_bytes=block_bytes, seconds=self.seconds, **options
        )

    def fio_large(self, depth: int) -> Turn:
        """Run fio in order; counts bytes."""
        turn = self.fio("read", LARGE_BYTES, depth=depth)
        return replace(turn, amount=turn.amount * LARGE_BYTES)

    def _first_block(self) -> int:
        """Return where reading in order begins this time."""
        return int(self._rng.integers(0, self.num_bytes // LARGE_BYTES - self.num_large + 1))

    def _turn(self, work: Callable[[], float]) -> Turn:
        drop_from_cache([self.path])
        return measure(work)


def best(run: Callable[[int], Turn], choices: tuple[int, ...]) -> int:
    """Return the choice, such as a queue depth, with the highest rate of two turns each."""
    rates = dict.fromkeys(choices, 0.0)
    for _ in range(2):
        for choice in choices:
            rates[choice] = max(rates[choice], run(choice).rate)
    return max(rates, key=rates.__getitem__)


def peers_at_random(table: Table, engine: str) -> Works:
    """Return what shows the device's limit of random reads, at its best depth."""
    depth = best(partial(table.blocks, engine=engine), RANDOM_DEPTHS)
    works: Works = {f"raw loop, {engine}, {depth} deep": lambda: table.blocks(depth, engine)}
    if fio.is_installed():

        def ring(depth: int) -> Turn:
            return table.fio("randread", BLOCK_BYTES, depth=depth)

        fio_depth = best(ring, RANDOM_DEPTHS)
        works[f"fio, io_uring, {fio_depth} deep"] = lambda: ring(fio_depth)
    return works


def peers_in_order(table: Table) -> Works:
    """Return what shows the device's bandwidth."""
    threads = best(table.plain, LARGE_DEPTHS)
    works: Works = {f"preadv, {threads} threads": lambda: table.plain(threads)}
    if fio.is_installed():
        depth = best(table.fio_large, LARGE_DEPTHS)
        works[f"fio, io_uring, {depth} deep"] = lambda: table.fio_large(depth)
    return works


def compete(works: Works, repeats: int) -> dict[str, list[Turn]]:
    """Run everything once to warm up, then in turns."""
    turns: dict[str, list[Turn]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            result = work()
            if turn > 0:
                turns[name].append(result)
    return turns


def compare(
    turns: dict[str, list[Turn]], peers: Works, bar: float, rate: Callable[[Turn], float], unit: str
) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Return rows for people and numbers for machines.

    The fastest engine, which comes first after the peers, is held to the bars.
    """
    rows: list[tuple[str, str]] = []
    numbers: dict[str, Any] = {}
    held_to_bars = list(turns)[len(peers)]
    for name, found in turns.items():
        cpu = [1e6 * turn.cpu_seconds / turn.amount for turn in found]
        numbers[name] = {"rates": [turn.rate for turn in found]}
        text = f"{spread((rate(turn) for turn in found), '.3g')} {unit}"
        if unit != "GB/s":
            numbers[name]["cpu_microseconds"] = cpu
            text += f"; {median(cpu):.1f} us of CPU a read"
        rows.append((name, text))
        if name in peers:
            continue
        for peer in peers:
            values = [a.rate / b.rate for a, b in zip(found, turns[peer], strict=True)]
            numbers[name][f"ratio to {peer}"] = values
            text = spread(values)
            if name == held_to_bars:
                text += f"; the bar of {bar}: {'reached' if median(values) >= bar else 'MISSED'}"
            rows.append((f"  / {peer}", text))
        if unit != "GB/s" and name == held_to_bars:
            verdict = "reached" if median(cpu) <= BAR_CPU_MICROSECONDS else "MISSED"
            rows.append(("  the bar of CPU time", f"{BAR_CPU_MICROSECONDS:.0f} us: {verdict}"))
    return rows, numbers


def run(arguments: argparse.Namespace, directory: Path) -> None:
    """Write the table to a directory, let everything read it in turns, and print."""
    array = write_table(directory, arguments.table_bytes)
    table = Table(array, arguments.reads, arguments.seconds)
    files = _core.FileSet([table.path], [table.num_bytes])
    rows: list[tuple[str, str]] = [
        ("the table", f"{format_size(table.num_bytes)} in {directory}; {direct_or_why(files)}")
    ]
    engines = {}
    for probe in probe_engines(table.path):
        if probe.is_available:
            engines[probe.name] = open_engine(table.path, probe.name)
        else:
            rows.append((probe.name, probe.detail))
    one_by_one = {
        name: replace(engine, tuning=replace(engine.tuning, gap_bytes=0))
        for name, engine in engines.items()
    }

    peers = peers_at_random(table, "io_uring" if "io_uring" in engines else "pread")
    works = peers | {
        f"gnnstore, {name}": partial(table.rows, engine) for name, engine in one_by_one.items()
    }
    turns = compete(works, arguments.repeats)
    found, at_random = compare(turns, peers, BAR_RANDOM, lambda turn: turn.rate / 1e3, "k reads/s")
    rows += [(f"random reads: rows of {ROW_BYTES} bytes, peers {BLOCK_BYTES}", ""), *found]

    peers = peers_in_order(table)
    works = peers | {
        f"gnnstore, {name}": partial(table.rows_in_order, engine)
        for name, engine in engines.items()
    }
    turns = compete(works, arguments.repeats)
    found, in_order = compare(turns, peers, BAR_LARGE, lambda turn: turn.rate / 1e9, "GB/s")
    rows += [("rows in order, peers 1 MiB", ""), *found]
    report(
        f"read rows of {ROW_BYTES} bytes from disk",
        rows,
        as_json=arguments.json,
        is_direct=files.is_direct,
        tuning={name: asdict(engine.tuning) for name, engine in engines.items()},
        random=at_random,
        in_order=in_order,
    )


def direct_or_why(files: _core.FileSet) -> str:
    """Say how the files are read."""
    if files.is_direct:
        return f"direct reads, aligned to {files.alignment_bytes}"
    return f"reads through the page cache: {files.buffered_because}. These are not the disk's"


def main() -> None:
    """Read the options and run."""
    options = parser(__doc__)
    options.add_argument("--dir", type=Path, help="where to write the table (temporary files)")
    options.add_argument("--table-bytes", type=int, default=4 << 30, help="the table (4 GiB)")
    options.add_argument("--reads", type=int, default=100_000, help="random reads a turn (100000)")
    options.add_argument("--seconds", type=float, default=1.0, help="a turn of fio (1)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.table_bytes = min(arguments.table_bytes, 256 << 20)
        arguments.reads, arguments.repeats = 10_000, min(arguments.repeats, 3)
        arguments.seconds = 0.2
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-", dir=arguments.dir) as directory:
        run(arguments, Path(directory))


if __name__ == "__main__":
    main()
