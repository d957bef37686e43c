"""Packing the rows that batches miss, and reading them back, compared with sequential bandwidth.

A table of rows of 512 bytes, and batches whose missed rows are drawn at random with a skew, so
that some rows are missed by many batches. In each turn: the disk's sequential bandwidth, reading
and writing (large direct blocks, the best of some numbers of threads); the whole superbatch
packed; all runs read back; and some batches packed one by one, each row read by itself
("individual packing" in DiskGNN, section 5.2).

The bars: reading and writing the same bytes sequentially takes at least 0.75 of the time of
packing, which is 7 times as fast as packing one by one (DiskGNN's figure 14 reports 7.3); reading
back runs at 0.85 of the sequential bandwidth, with less than 1.1 bytes read for each byte needed.

The number of times that a byte of a row is copied shows in CPU time: the time of packing, or of
reading back, less the time of reading and writing the same bytes sequentially, in units of one
`memcpy` of the rows.

The table of 4 GiB is written first, to `--dir`: choose a directory on the disk in question.
Run `python -m benchmarks.packing --dir DIR`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.harness import Turn, measure, parser, report
from benchmarks.parts import sequential
from benchmarks.reads import write_table
from gnnstore._core import ReadCounts, empty
from gnnstore.caching.plan import CachePlan, Trace
from gnnstore.disk.engines import open_engine
from gnnstore.features.chunks import PackedSuperbatch
from gnnstore.features.file_rows import FileRows, files_of
from gnnstore.features.pack import pack
from gnnstore.features.source import of_one_type
from gnnstore.formats import PagedArray
from gnnstore.sampling.row_space import RowRange
from gnnstore.tools.bench.harness import drop_from_cache
from gnnstore.units import format_size, parse_size, spread

BAR_PACKING, BAR_ONE_BY_ONE, BAR_READING, BAR_AMPLIFICATION = 0.75, 7.0, 0.85, 1.1
THREADS = (2, 4, 8)


def draw_trace(num_rows: int, num_batches: int, batch_rows: int) -> Trace:
    """Draw distinct rows for each batch: a power of uniform numbers, scattered over the table."""
    rng = np.random.default_rng(0)
    places = rng.permutation(num_rows).astype(np.int32)
    return Trace.of(
        [
            places[np.unique((num_rows * rng.random(batch_rows) ** 2).astype(np.int64))]
            for _ in range(num_batches)
        ]
    )


class Workload:
    """The superbatch to pack, and the operations that are timed."""

    def __init__(self, directory: Path, array: PagedArray, arguments: argparse.Namespace) -> None:
        self.directory = directory
        self.path = array.file_paths[0]
        self.rows = FileRows.open(array, open_engine(self.path, arguments.engine))
        self.trace = draw_trace(array.num_rows, arguments.batches, arguments.rows)
        none, changes = np.empty(0, np.int32), np.zeros(len(self.trace.offsets), np.int64)
        misses = np.diff(self.trace.offsets)
        slots = np.full(self.trace.num_accesses, -1, np.int32)
        self.plan = CachePlan(self.trace.offsets, slots, misses, changes, none, none)
        self.memory_bytes = arguments.memory
        self.num_threads = arguments.threads
        self.num_one_by_one = arguments.one_by_one
        self.packed: PackedSuperbatch | None = None
        self.row_bytes = array.geometry.row_bytes

    def pack(self) -> Turn:
        """Pack the superbatch; counts bytes of packed rows. It is kept for `read_back`."""
        self.close()

        def work() -> float:
            self.packed = pack(
                files_of(of_one_type({"x": self.rows})),
                self.trace,
                self.plan,
                self.directory,
                memory_bytes=self.memory_bytes,
                num_threads=self.num_threads,
            )
            return float(self.packed.num_bytes)

        return measure(work)

    def read_back(self) -> tuple[Turn, float]:
        """Read all runs, two batches at a time; counts bytes, and those read for each needed."""
        packed = self.packed
        assert packed is not None

        def one(i: int) -> object:
            part = RowRange(0, len(self.trace.batch(i)))
            return packed.read(i, "x", part, empty((part.num_rows, self.row_bytes), np.uint8))

        counts = ReadCounts()

        def work() -> float:
            nonlocal counts
            with ThreadPoolExecutor(self.num_threads) as pool:
                for one_counts in pool.map(one, range(packed.num_batches)):
                    counts += one_counts  # type: ignore[operator]
            return float(counts.bytes_read)

        return measure(work), counts.bytes_read / counts.bytes_useful

    def copy(self) -> Turn:
        """Copy bytes in order, beyond what processors cache; counts bytes."""
        source, target = (np.ones(256 << 20, np.uint8) for _ in range(2))

        def work() -> float:
            for _ in range(4):
                np.copyto(target, source)
            return 4.0 * len(target)

        return measure(work)

    def pack_one_by_one(self) -> Turn:
        """Read the rows of some batches row by row, and write them; counts bytes of rows."""
        batches = [self.trace.batch(i) for i in range(self.num_one_by_one)]
        num_bytes = sum(len(ids) for ids in batches) * self.row_bytes
        path = self.directory / "one-by-one"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        path.unlink()

        def one(i: int) -> None:
            out = empty((-(-len(batches[i]) * self.row_bytes // 4096) * 4096,), np.uint8)
            rows = out[: len(batches[i]) * self.row_bytes].reshape(-1, self.row_bytes)
            self.rows.read_rows(batches[i], rows)
            os.pwrite(descriptor, out.data, i << 32)

        def work() -> float:
            with ThreadPoolExecutor(self.num_threads) as pool:
                list(pool.map(one, range(len(batches))))
            return float(num_bytes)

        try:
            return measure(work)
        finally:
            os.close(descriptor)

    def check(self) -> None:
        """Compare a batch that was packed with one that was read."""
        assert self.packed is not None
        ids = self.trace.batch(0)
        found, expected = (np.zeros(len(ids) * self.row_bytes, np.uint8) for _ in range(2))
        self.packed.read(0, "x", RowRange(0, len(ids)), found)
        self.rows.read_rows(ids, expected.reshape(-1, self.row_bytes))
        assert np.array_equal(found, expected), "a packed batch differs"

    def close(self) -> None:
        """Remove what is packed."""
        if self.packed is not None:
            self.packed.close()
        self.packed = None


def best(run: Callable[[int], Turn]) -> int:
    """Return the number of threads with the highest rate of two turns each."""
    rates = dict.fromkeys(THREADS, 0.0)
    for _ in range(2):
        for choice in THREADS:
            rates[choice] = max(rates[choice], run(choice).rate)
    return max(rates, key=rates.__getitem__)


def verdict(is_reached: bool) -> str:
    """Say whether a bar was reached."""
    return "reached" if is_reached else "MISSED"


def run(arguments: argparse.Namespace, directory: Path) -> None:
    """Write the table, let everything work in turns, and print."""
    array = write_table(directory, arguments.table_bytes)
    work = Workload(directory, array, arguments)
    some_bytes = min(arguments.table_bytes, 1 << 30)

    def read(threads: int) -> Turn:
        drop_from_cache([work.path])
        return sequential.read(work.path, some_bytes, threads)

    def write(threads: int) -> Turn:
        return sequential.write(directory / "peer", some_bytes, threads)

    readers, writers = best(read), best(write)
    missed = work.trace.num_accesses * work.row_bytes
    names = "read", "write", "pack", "back", "one by one", "copy"
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    shares: list[float] = []
    ratios: dict[str, list[float]] = {"packing": [], "reading": [], "one by one": []}
    copies: dict[str, list[float]] = {"packing": [], "reading": []}
    amplification = 0.0
    for _ in range(arguments.repeats):
        turns["read"].append(read(readers))
        turns["write"].append(write(writers))
        turns["pack"].append(work.pack())
        assert work.packed is not None
        counts = work.packed.counts
        turn, amplification = work.read_back()
        turns["back"].append(turn)
        turns["one by one"].append(work.pack_one_by_one())
        turns["copy"].append(work.copy())
        reading, writing, packing, back, single, _ = (found[-1].rate for found in turns.values())
        in_order = counts["bytes_read"] / reading + counts["bytes_written"] / writing
        ratios["packing"].append(in_order / turns["pack"][-1].seconds)
        ratios["reading"].append(back / reading)
        ratios["one by one"].append(packing / single)
        moved = counts["bytes_read"] + counts["bytes_written"]
        shares.append(moved / turns["pack"][-1].seconds / 1e9)
        cpu_read, cpu_write, _, cpu_back, _, cpu_copy = (t[-1].cpu_each for t in turns.values())
        cpu_in_order = counts["bytes_read"] * cpu_read + counts["bytes_written"] * cpu_write
        copies["packing"].append(
            (turns["pack"][-1].cpu_seconds - cpu_in_order) / (missed * cpu_copy)
        )
        copies["reading"].append((cpu_back - cpu_read) / cpu_copy)
    work.check()
    work.close()

    def rate(name: str) -> str:
        return f"{spread((turn.rate / 1e9 for turn in turns[name]), '.2f')} GB/s"

    packing, one_by_one, reading = (
        median(ratios[name]) for name in ("packing", "one by one", "reading")
    )
    report(
        f"pack what {arguments.batches} batches miss of a table of {format_size(array.disk_bytes)}",
        [
            ("missed rows", f"{work.trace.num_accesses} of 512 bytes, {format_size(missed)}"),
            (
                "read of the table",
                f"{format_size(counts['bytes_read'])} in {counts['reads']} reads",
            ),
            ("memory", format_size(arguments.memory)),
            (f"in order: read, {readers} threads", rate("read")),
            (f"in order: write, {writers} threads", rate("write")),
            ("packing, read and written", f"{spread(shares)} GB/s"),
            ("  / in order", spread(ratios["packing"])),
            (f"  the bar of {BAR_PACKING}", verdict(packing >= BAR_PACKING)),
            ("  other CPU time, in copies of the rows", spread(copies["packing"])),
            ("packing, rows", rate("pack")),
            ("one by one, rows", rate("one by one")),
            ("  batched / one by one", spread(ratios["one by one"], ".1f")),
            (f"  the bar of {BAR_ONE_BY_ONE:.0f}", verdict(one_by_one >= BAR_ONE_BY_ONE)),
            ("read back", rate("back")),
            ("  / in order", spread(ratios["reading"])),
            (f"  the bar of {BAR_READING}", verdict(reading >= BAR_READING)),
            ("  other CPU time, in copies of the rows", spread(copies["reading"])),
            (
                "  bytes read / needed",
                f"{amplification:.4f}: {verdict(amplification < BAR_AMPLIFICATION)}",
            ),
        ],
        as_json=arguments.json,
        rates={name: [turn.rate for turn in found] for name, found in turns.items()},
        cpu_seconds={name: [turn.cpu_seconds for turn in found] for name, found in turns.items()},
        ratios=ratios,
        copies=copies,
        amplification=amplification,
    )


def main() -> None:
    """Read the options and run."""
    options = parser(__doc__)
    options.add_argument("--dir", type=Path, help="where to write (temporary files)")
    options.add_argument("--table-bytes", type=int, default=4 << 30, help="the table (4 GiB)")
    options.add_argument("--batches", type=int, default=64, help="of the superbatch (64)")
    options.add_argument("--rows", type=int, default=100_000, help="missed by a batch (100000)")
    options.add_argument("--one-by-one", type=int, default=4, help="batches packed so (4)")
    options.add_argument("--threads", type=int, default=2, help="that copy, or read back (2)")
    options.add_argument("--engine", help="what reads: io_uring, pread or mmap")
    options.add_argument(
        "--memory", type=parse_size, default=256 << 20, help="for packing (256 MiB)"
    )
    arguments = options.parse_args()
    if arguments.quick:
        arguments.table_bytes = min(arguments.table_bytes, 256 << 20)
        arguments.rows, arguments.repeats = 10_000, min(arguments.repeats, 3)
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-", dir=arguments.dir) as directory:
        run(arguments, Path(directory))


if __name__ == "__main__":
    main()
