"""Epochs whose batches share rows on disk, compared with epochs whose batches do not.

First a trace with reuse, which is counted and not read: rows are drawn with a skew, the most
frequent ones being cached. With a disk of 3 and of 5 times the features, segments are searched
(DiskGNN, section 5.1); then the bytes and reads of an epoch, after merging, with shared rows in
MinHash order, in the order of the table, and in a random one (DiskGNN's figures 5, 11 and 13).

Then a graph: epochs of w are packed with each disk (with `--quick`, with parts of what they take
without a limit), and one is read by a loader, in turns with an epoch packed without a limit.

Run `python -m benchmarks.segments --dir DIR`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gnnstore
from benchmarks.harness import Turn, measure, parser, report
from benchmarks.parts.workloads import FANOUTS, SEED, WORKLOADS
from gnnstore.caching.segments import Recurrences, SharedRows, search_segment, segments_of
from gnnstore.disk.profile import load_profile, tune_reads
from gnnstore.formats.packed import PackedReader
from gnnstore.packing.estimate import estimate_packing
from gnnstore.packing.job import EpochPacker
from gnnstore.packing.sampling import PackSettings
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.strategies.workload import ReadTotals, count_extents
from gnnstore.tools.bench.harness import drop_from_cache
from gnnstore.units import format_size, spread

BUDGETS = (3.0, 5.0)
ROW_BYTES = 512
TUNING = tune_reads(None)
RUN_READ_BYTES = 512 << 10
CACHED_SHARE = 0.1
Missed = Sequence[npt.NDArray[Any]]
Order = Callable[[SharedRows], SharedRows]


def draw_missed(num_rows: int, num_batches: int, batch_rows: int) -> Missed:
    """Draw the rows that batches miss: skewed, scattered over the table, the top ones cached."""
    rng = np.random.default_rng(0)
    places = rng.permutation(num_rows).astype(np.int32)
    found = []
    for _ in range(num_batches):
        drawn = (num_rows * rng.random(batch_rows) ** 2).astype(np.int64)
        found.append(np.unique(places[drawn[drawn >= CACHED_SHARE * num_rows]]))
    return found


def at_random(shared: SharedRows) -> SharedRows:
    """Put shared rows in no order at all."""
    ranks = np.random.default_rng(1).permutation(shared.num_rows).astype(np.int32)
    return SharedRows(shared.rows, ranks)


def by_row(shared: SharedRows) -> SharedRows:
    """Put shared rows in the order of the table."""
    return SharedRows(shared.rows, np.arange(shared.num_rows, dtype=np.int32))


ORDERS: dict[str, Order] = {"MinHash": lambda shared: shared, "table": by_row, "random": at_random}


def count_reads(missed: Missed, num_rows: int, segment: int, order: Order) -> tuple[int, int]:
    """Return the reads of an epoch, and their bytes."""
    totals = ReadTotals()
    for part in segments_of(len(missed), segment):
        batches = [missed[i] for i in part]
        shared = order(SharedRows.from_missed(batches, num_rows))
        for rows in batches:
            ranks = np.sort(shared.find(rows))
            own = int(np.searchsorted(ranks, 0)) * ROW_BYTES
            begins = ranks[ranks >= 0].astype(np.int64) * ROW_BYTES
            totals += count_extents(begins, ROW_BYTES, 4096, TUNING)
            totals += ReadTotals(-(-own // RUN_READ_BYTES), own)
    return totals.reads, totals.num_bytes


def _within(recurrences: Recurrences, most: float) -> Callable[[int], bool]:
    return lambda segment: recurrences.stored_rows(segment) <= most


def trace(arguments: argparse.Namespace) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Count what the batches of a trace read with each budget."""
    num_rows = arguments.rows
    missed = draw_missed(num_rows, arguments.batches, arguments.batch_rows)
    recurrences = Recurrences.from_missed(missed, num_rows)
    times = recurrences.num_missed / num_rows
    needed = recurrences.num_missed * ROW_BYTES
    reads, _ = count_reads(missed, num_rows, 1, ORDERS["MinHash"])
    rows = [("trace, without a limit", f"{times:.1f} times the features, {reads:,} reads")]
    numbers: dict[str, Any] = {"unlimited": {"blow_up": times, "reads": reads}}
    for budget in BUDGETS:
        most = budget * num_rows
        segment = search_segment(recurrences, _within(recurrences, most))
        name = f"trace, {budget:.0f} times the features"
        if segment is None:
            rows.append((name, "no segment fits"))
            continue
        found: dict[str, Any] = {}
        for order, put in ORDERS.items():
            reads, num_bytes = count_reads(missed, num_rows, segment, put)
            found[order] = {"reads": reads, "amplification": num_bytes / needed}
            rows.append(
                (
                    f"{name}, {order} order",
                    f"{num_bytes / needed:.2f} bytes read for each needed, {reads:,} reads",
                )
            )
        numbers[f"{budget:.0f}x"] = {"segment": segment, **found}
        rows.append((name, f"segments of {segment} batches"))
    return rows, numbers


def pack_w(
    store: Path, output: Path, disk_bytes: int | None, arguments: argparse.Namespace
) -> Path:
    """Pack epochs of w with some budget of disk; the seeds are the workload's."""
    settings = PackSettings(
        SamplingConfig(FANOUTS, seed=SEED),
        input_nodes=WORKLOADS["w"].seeds(),
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        cache_bytes=arguments.cache_bytes,
        disk_bytes=disk_bytes,
        num_threads=2,
    )
    packer = EpochPacker(gnnstore.open(store), settings)
    try:
        estimate_packing(packer, load_profile(store))
        return packer.pack(output)
    finally:
        packer.close()


def read_epoch(packed: Path) -> tuple[Turn, Any]:
    """Read a packed epoch; counts batches. Return what was read as well."""
    drop_from_cache([packed])
    loader = gnnstore.open_packed(packed).loader(num_threads=2)
    turn = measure(lambda: float(sum(1 for _ in loader)))
    return turn, loader.stats()


def graph(
    arguments: argparse.Namespace, store: Path, directory: Path
) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Pack w with each budget, and read the epochs in turns."""
    features = gnnstore.open(store).schema.node.attributes["x"].num_bytes
    packed = {"no limit": pack_w(store, directory / "all", None, arguments)}
    whole = PackedReader.open(packed["no limit"]).total_bytes / features
    rows: list[tuple[str, str]] = []
    for budget in (0.5 * whole, 0.75 * whole) if arguments.quick else BUDGETS:
        name = f"{budget:.1f} times the features"
        try:
            output = directory / f"{budget:.1f}"
            packed[name] = pack_w(store, output, int(budget * features), arguments)
        except gnnstore.BudgetError as error:
            rows.append((f"w, {name}", str(error)))
    turns: dict[str, list[Turn]] = {name: [] for name in packed}
    stats: dict[str, Any] = {}
    for _ in range(arguments.repeats):
        for name, path in packed.items():
            turn, stats[name] = read_epoch(path)
            turns[name].append(turn)
    numbers = {}
    for name, path in packed.items():
        reader, found = PackedReader.open(path), stats[name]
        ratios = [
            turn.seconds / first.seconds
            for turn, first in zip(turns[name], turns["no limit"], strict=True)
        ]
        numbers[name] = {
            "segment": reader.manifest.segment,
            "blow_up": reader.total_bytes / features,
            "bytes_read": found.bytes_read,
            "reads": found.reads,
            "amplification": found.bytes_read / max(1, found.bytes_useful),
            "seconds": [turn.seconds for turn in turns[name]],
        }
        size = (
            f"{format_size(reader.total_bytes)}, {numbers[name]['blow_up']:.1f} times the "
            f"features, segments of {reader.manifest.segment}"
        )
        epoch = (
            f"{format_size(found.bytes_read)} of rows in {found.reads:,} reads, "
            f"{numbers[name]['amplification']:.2f} read for each needed"
        )
        rows += [(f"w, {name}", size), ("  an epoch", epoch)]
        rows.append(("  time / that without a limit", spread(ratios)))
    return rows, numbers


def main() -> None:
    """Read the options and run."""
    options = parser(__doc__)
    options.add_argument("--dir", type=Path, help="where epochs are written (temporary files)")
    options.add_argument("--cache", type=Path, help="directory that keeps the store")
    options.add_argument("--rows", type=int, default=1 << 20, help="of the trace's table (2^20)")
    options.add_argument("--batches", type=int, default=384, help="of the trace (384)")
    options.add_argument("--batch-rows", type=int, default=40_000, help="drawn for each (40000)")
    options.add_argument("--batch-size", type=int, default=128, help="seeds of a batch of w (128)")
    options.add_argument("--epochs", type=int, default=6, help="of w that are packed (6)")
    options.add_argument("--cache-bytes", type=int, default=6 << 20, help="rows of w (6 MiB)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.rows, arguments.batches = 1 << 17, 96
        arguments.batch_rows, arguments.repeats = 16_000, min(arguments.repeats, 2)
        arguments.epochs = 2
    rows, numbers = trace(arguments)
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-", dir=arguments.dir) as directory:
        store = WORKLOADS["w"].store(arguments.cache or Path(directory))
        more, found = graph(arguments, store, Path(directory))
    report(
        "rows that batches share on disk",
        [*rows, *more],
        as_json=arguments.json,
        trace=numbers,
        graph=found,
    )


if __name__ == "__main__":
    main()
