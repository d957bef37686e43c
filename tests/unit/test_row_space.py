"""Rows of several node types, in one cache and packed in one pass, are those of NumPy indexing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore.budget.ledger import SLOTS
from gnnstore.caching.belady import BELADY, BeladyPlanner
from gnnstore.caching.plan import Trace
from gnnstore.caching.pools import SlotPools, pooled
from gnnstore.disk.engines import open_engine
from gnnstore.errors import UsageError
from gnnstore.features import misses as sorted_misses
from gnnstore.features.file_rows import FileRows, files_of
from gnnstore.features.misses import collect_misses
from gnnstore.features.pack import least_memory, pack, packed_bytes
from gnnstore.features.planned import PlanStep, SlotCache
from gnnstore.features.segments import divide_misses
from gnnstore.features.source import RowSource, TypedRows, ranges_of
from gnnstore.features.static import StaticCache
from gnnstore.sampling.row_space import RowRange, RowSpace
from tests.support.packing import plan_of
from tests.support.twins.caches import belady_plan
from tests.support.twins.reads import write_array

COUNTS = {"paper": 700, "author": 400, "venue": 90}
# Nodes that have no rows on disk, and their type no place in the row space.
NUM_INSTITUTIONS = 20
NUM_SLOTS = 160
NUM_BATCHES = 12
MEMORY_BYTES = 1 << 25
SPACE = RowSpace.from_counts(COUNTS)

Nodes = dict[str, NDArray[Any]]


class Case:
    """Tables of three types: rows of 100 bytes and of 6, of 36, and of 512."""

    def __init__(self, directory: Path) -> None:
        self.rng = np.random.default_rng(0)
        self.directory = directory
        self.rows: dict[str, NDArray[Any]] = {
            "paper/x": self.rng.random((700, 25), dtype=np.float32),
            "author/x": self.rng.random((400, 9), dtype=np.float32),
            "paper/scale": self.rng.random((700, 3)).astype(np.float16),
            "venue/x": self.rng.integers(0, 256, (90, 512), dtype=np.uint8),
        }
        self.tables: dict[str, TypedRows[RowSource]] = {}
        for path, rows in self.rows.items():
            array = write_array(directory / path, rows)
            table = FileRows.open(array, open_engine(array.file_paths[0], "pread"))
            self.tables[path] = TypedRows(table, SPACE.range_of(path.split("/")[0]))
        self.batches = [self.batch(i) for i in range(NUM_BATCHES)]
        self.trace = Trace.of([SPACE.rows(nodes) for nodes in self.batches])

    def batch(self, i: int) -> Nodes:
        """Skewed nodes in any order, some of them repeated; of some types there may be none."""
        sizes = {"paper": 120, "author": 0 if i % 4 == 1 else 60, "venue": 0 if i % 3 == 0 else 25}
        if i == 7:
            sizes = dict.fromkeys(sizes, 0)
        found = {
            name: (COUNTS[name] * self.rng.random(size) ** 2).astype(np.int32)
            for name, size in sizes.items()
        }
        return found | {"institution": np.arange(NUM_INSTITUTIONS, dtype=np.int32)}

    def check(self, i: int, found: dict[str, Any]) -> None:
        """Compare the gathered rows of a batch."""
        assert found.keys() == self.rows.keys()
        for path, rows in self.rows.items():
            nodes = self.batches[i][path.split("/")[0]]
            np.testing.assert_array_equal(found[path].values, rows[nodes])


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_numbers_of_rows(case: Case) -> None:
    assert SPACE.ranges["venue"] == RowRange(1100, 90)
    assert SPACE.num_rows == 1190
    assert SPACE.dtype == np.int32
    assert RowSpace.from_counts({"a": 2**31, "b": 1}).dtype == np.int64
    for i, nodes in enumerate(case.batches):
        rows = case.trace.batch(i)
        assert rows.dtype == np.int32
        assert len(rows) == sum(len(nodes[name]) for name in COUNTS)
        for name, places, found in SPACE.nodes(rows):
            assert places == SPACE.ranges[name].within(rows)
            np.testing.assert_array_equal(found, nodes[name])
        for name, own in SPACE.ranges.items():
            places, found = own.part(np.unique(rows))
            np.testing.assert_array_equal(found, np.unique(nodes[name]))
    only = RowSpace.from_counts({"paper": 700})
    assert only.rows(case.batches[0]) is case.batches[0]["paper"]
    with pytest.raises(UsageError, match="nodes of type 'institution' have no rows on disk"):
        SPACE.range_of("institution")


@pytest.mark.parametrize("has_pinned", [False, True])
@pytest.mark.parametrize("is_warm", [False, True])
def test_planned_slots(case: Case, has_pinned: bool, is_warm: bool) -> None:
    """A slot is as wide as the widest type, whose row it may hold."""
    pinned = np.sort(case.rng.permutation(SPACE.num_rows)[:40]) if has_pinned else None
    cache = SlotCache(case.tables, NUM_SLOTS, pinned, SPACE.num_rows)
    num_planned = cache.num_planned_slots
    assert num_planned == NUM_SLOTS - 40 * has_pinned
    reserved = SlotCache.reserve(512).bytes_of({SLOTS: num_planned})
    if pinned is None:
        assert cache.num_bytes == reserved
    else:
        reserved += SlotCache.pinned_bytes(512, len(pinned), SPACE.num_rows)
        assert cache.num_bytes == reserved - 4 * len(pinned)
    planner, turns, number = BeladyPlanner(num_planned), cache.begin(), 0
    if is_warm or has_pinned:
        others = np.setdiff1d(np.arange(3, SPACE.num_rows, 9), [] if pinned is None else pinned)
        others = others[:num_planned] if is_warm else others[:0]
        counts = cache.warm_up(turns, 0, others)
        # A paper has rows in two tables.
        assert counts.rows_read == sum(
            len(own.part(rows)[1])
            for rows in (others, *([] if pinned is None else [pinned]))
            for _, own in case.tables.values()
        )
        planner.restart(cache.planned_nodes)
        number = 1
    kept = cache.pinned
    unpinned = [ids if kept is None else kept.drop(ids) for ids in map(case.trace.batch, range(12))]
    plan = planner.plan(Trace.of(unpinned))

    def gather(i: int) -> int:
        ids, slots = case.trace.batch(i), plan.batch_slots(i)
        positions, entering = plan.batch_changes(i)
        if kept is not None:
            slots, positions = kept.add(ids, slots, positions)
        found = cache.gather(turns, number + i, PlanStep(ids, slots, positions, entering))
        case.check(i, found)
        return sum(rows.counts.rows_cached for rows in found.values())

    with ThreadPoolExecutor(3) as executor:  # some read what they miss before it is their turn
        assert sum(executor.map(gather, range(NUM_BATCHES))) > 1000
    # Once others have begun anew, there is nothing for a batch of these turns.
    cache.begin()
    ids, none = case.trace.batch(2), np.empty(0, np.int32)
    assert cache.gather(turns, 99, PlanStep(ids, np.zeros_like(ids), none, none)) == {}


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("num_slots", [0, 2, NUM_SLOTS])
def test_slots_in_pools(case: Case, is_warm: bool, num_slots: int) -> None:
    """Each width has slots of its own, which hold what Belady keeps of its rows."""
    widths = {SPACE.range_of("paper"): 106, SPACE.range_of("author"): 36}
    widths[SPACE.range_of("venue")] = 512
    needed = {own: len(own.part(case.trace.batch(2))[1]) for own in widths}
    pools = SlotPools.from_widths(widths, needed, 10_000)
    assert pools is not None
    assert pools.widths == (512, 106, 36)
    cache = SlotCache(case.tables, num_slots, pools=pools)
    assert cache.num_bytes <= SlotCache.reserve(pools.slot_bytes).bytes_of({SLOTS: num_slots})
    policy, turns = pooled(BELADY, pools), cache.begin()
    planner = policy.planner(num_slots)
    if is_warm:
        rows = policy.initial_nodes(case.trace, SPACE.num_rows, num_slots)
        cache.warm_up(turns, 0, rows)
        planner.restart(rows)
        np.testing.assert_array_equal(cache.planned_nodes, rows)
        assert (rows >= 0).all()
    plan, num_missed = planner.plan(case.trace), 0
    for (own,), section in zip(pools.ranges, pools.sections(num_slots), strict=True):
        batches = [ids[own.within(ids)].tolist() for ids in map(case.trace.batch, range(12))]
        held = [-1] * (section.stop - section.start)
        if is_warm:
            held = rows[section].tolist()
        num_missed += sum(belady_plan(batches, held, [int(row >= 0) for row in held]).misses)
    assert plan.num_misses == num_missed

    def gather(i: int) -> None:
        step = PlanStep(case.trace.batch(i), plan.batch_slots(i), *plan.batch_changes(i))
        case.check(i, cache.gather(turns, is_warm + i, step))

    with ThreadPoolExecutor(3) as executor:
        list(executor.map(gather, range(NUM_BATCHES)))
    for (own,), section in zip(pools.ranges, pools.sections(num_slots), strict=True):
        found = cache.planned_nodes[section]
        assert all(own.first <= row < own.first + own.num_rows for row in found[found >= 0])


def test_shares_of_pools() -> None:
    a, b, c = RowRange(0, 100), RowRange(100, 1000), RowRange(1100, 10)
    assert SlotPools.from_widths({a: 64, b: 32, c: 40}, {a: 1, b: 1, c: 1}, 10**6) is None
    # As many slots as rows are needed: 3 wide ones for each narrow one.
    found = SlotPools.from_widths({a: 1000, b: 10}, {a: 30, b: 10}, 50_000)
    assert found is not None
    assert found.shares == (49, 16)
    assert found.slot_bytes == -(-(49 * 1000 + 16 * 10) // 65)
    assert found.sections(64) == [slice(0, 48), slice(48, 64)]
    # No more than there are rows, and the rest for the others; all of both.
    found = SlotPools.from_widths({a: 10, b: 1000}, {a: 90, b: 10}, 50_000)
    assert found is not None
    assert found.ranges == ((b,), (a,))
    assert found.shares == (49, 100)
    found = SlotPools.from_widths({a: 10, b: 1000, c: 30}, {}, 10**7)
    assert found is not None
    assert found.shares == (1000, 10, 100)
    with pytest.raises(ValueError, match="3 pools of slots for 2 classes of widths"):
        SlotPools.divided({a: 10, b: 1000}, (1, 2, 3))


@pytest.mark.parametrize("num_slots", [0, NUM_SLOTS])
@pytest.mark.parametrize("is_spilled", [False, True])
def test_packed_rows(
    case: Case, monkeypatch: pytest.MonkeyPatch, num_slots: int, is_spilled: bool
) -> None:
    """What batches miss comes packed; sorted misses are in memory or, range by range, in files."""
    monkeypatch.setattr(sorted_misses, "STRIDE_ROWS", 16)
    files = files_of(case.tables)
    plan = BeladyPlanner(num_slots).plan(case.trace)
    memory_bytes = MEMORY_BYTES
    if is_spilled:
        memory_bytes = least_memory(files, plan.misses, 4, spills=True)
        assert memory_bytes < least_memory(files, plan.misses, 4)
    cache = SlotCache(case.tables, num_slots)
    turns = cache.begin()
    with pack(
        files,
        case.trace,
        plan,
        case.directory,
        memory_bytes=memory_bytes,
        num_threads=2,
    ) as packed:
        spilled_bytes = 4 * int(plan.misses.sum()) if is_spilled else 0
        written = packed.num_bytes - packed.places.num_disk_bytes
        assert 0 < written <= packed_bytes(files, plan.misses)
        assert packed.places.num_disk_bytes >= spilled_bytes
        for i in range(NUM_BATCHES):
            step = PlanStep(case.trace.batch(i), plan.batch_slots(i), *plan.batch_changes(i))
            found = cache.gather(turns, i, step, packed.rows(i))
            case.check(i, found)
            missed = np.unique(step.ids[step.slots < 0])
            for path, (_, own) in case.tables.items():
                assert found[path].counts.rows_read == len(own.part(missed)[1])


def test_room_for_packed_rows(case: Case) -> None:
    """It is known when misses are known by type; before, all may be of the widest."""
    files = files_of(case.tables)
    slots = np.full(case.trace.num_accesses, -1, np.int32)
    missed = collect_misses(
        case.trace, plan_of(case.trace, slots), ranges_of(files), memory_bytes=MEMORY_BYTES
    )
    exact = packed_bytes(files, missed.counts)
    assert missed.counts.sum(axis=1).tolist() == missed.num_rows.tolist()
    with pack(
        files, case.trace, plan_of(case.trace, slots), case.directory, memory_bytes=MEMORY_BYTES
    ) as packed:
        assert packed.num_bytes == packed.counts["bytes_written"] == exact
    assert packed_bytes(files, missed.num_rows) > exact


@pytest.mark.parametrize("segment", [2, 5, NUM_BATCHES])
def test_rows_that_batches_share(case: Case, segment: int) -> None:
    """What a batch keeps for itself and what it shares are its missed rows, type by type."""
    slots, ranges = np.full(case.trace.num_accesses, -1, np.int32), ranges_of(case.tables)
    missed = collect_misses(
        case.trace, plan_of(case.trace, slots), ranges, memory_bytes=MEMORY_BYTES
    )
    counts = missed.counts.copy()
    divided = divide_misses(missed, segment, row_bytes=1 << 18)  # parts of 16 rows
    parts = divided.missed
    assert ((parts.counts[NUM_BATCHES:] > 0).sum(axis=1) == 1).all()  # each of one type
    assert parts.counts[NUM_BATCHES:].max() == 16
    ordered, begin = {}, 0
    for place in divided.segments:
        for t, num_rows in enumerate(place.num_rows):
            ordered[place.first, t] = divided.ordered[begin : begin + num_rows]
            begin += num_rows
    for i in range(NUM_BATCHES):
        first = next(place.first for place in divided.segments if place.first <= i < place.end)
        found, own_counts = divided.batch(i), parts.counts[i]
        assert (own_counts + divided.shared[i]).tolist() == counts[i].tolist()
        own = parts.rows[parts.begins[i] :][: divided.own[i]]
        ranks = np.split(found.shared_ranks, np.cumsum(divided.shared[i])[:-1])
        rows = [
            *np.split(own, np.cumsum(own_counts)[:-1]),
            *(ordered[first, t][ranks[t]] for t in range(len(ranges))),
        ]
        numbers = np.concatenate(
            [part + of.first for part, of in zip(rows, ranges * 2, strict=True)]
        )
        positions = np.concatenate([found.positions, found.shared_positions])
        ids = case.trace.batch(i)
        assert ids[positions].tolist() == numbers.tolist()
        assert np.sort(numbers).tolist() == np.unique(ids).tolist()


def test_a_static_cache(case: Case) -> None:
    cache = StaticCache(case.tables, SPACE.num_rows)
    held = np.sort(case.rng.permutation(SPACE.num_rows)[:500])
    scores = case.rng.integers(1, 200, len(held)).astype(np.uint8)
    cache.warm_up(held, scores)
    for num_rows in (500, 200, 1, 0):
        cache.shrink(num_rows)
        assert cache.num_rows == num_rows
        kept = held[np.argsort(-scores.astype(int), kind="stable")[:num_rows]]
        num_bytes = 0
        for path, (_, own) in case.tables.items():
            rows = cache.rows(path)
            of_type = kept[(kept >= own.first) & (kept < own.first + own.num_rows)] - own.first
            num_bytes += len(of_type) * rows.row_bytes
            for nodes in (batch[path.split("/")[0]] for batch in case.batches):
                found = rows.gather(nodes)
                np.testing.assert_array_equal(found.values, case.rows[path][nodes])
                assert found.counts.rows_cached == np.isin(nodes, of_type).sum()
            with pytest.raises(IndexError):
                rows.gather(np.array([0, own.num_rows]))
        assert sum(cache.rows(path).cached_bytes for path in case.tables) == num_bytes


def test_rows_that_do_not_fit_the_tables(case: Case) -> None:
    none = np.empty(0, np.int32)
    for rows, message in (
        ([3, 1190], "or are of no table"),
        ([900, 1150, 3], "outside"),
        ([-1], "-1"),
    ):
        step = PlanStep(np.array(rows), np.full(len(rows), -1, np.int32), none, none)
        empty = SlotCache(case.tables, 0)
        with pytest.raises(IndexError, match=message):
            empty.gather(empty.begin(), 0, step)
