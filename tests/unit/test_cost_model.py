"""What an epoch is predicted to take: misses against real caches, times against plain sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.caching.belady import BELADY, BeladyPlanner
from gnnstore.caching.plan import Trace
from gnnstore.caching.reuse import ReuseCurve, reuse_distances
from gnnstore.caching.scores import filled_up, most_needed, select_nodes
from gnnstore.disk.profile import tune_reads
from gnnstore.formats.arrays.pages import PageGeometry, ShardLayout
from gnnstore.strategies.prediction import (
    EdgePass,
    EpochCosts,
    HardwareRates,
    Prediction,
    Resources,
)
from gnnstore.strategies.registry import auto
from gnnstore.strategies.superbatch_memory import MissModel
from gnnstore.strategies.workload import (
    ReadTotals,
    SampledTrace,
    SpatialSampling,
    TableReads,
    Workload,
)
from tests.support.disks import usual_profile
from tests.support.effort import choose, examples
from tests.support.twins.caches import run_lru

NUM_ROWS, ROW_BYTES = 20_000, 512
ALL = auto()


def skewed_batches(num_batches: int, num_rows: int = NUM_ROWS, size: int = 600) -> list[Any]:
    """Draw distinct rows of each batch, a few of them far more often than most."""
    draws = np.random.default_rng(5)
    weights = 1 / (np.arange(num_rows) + 20.0)
    weights = draws.permutation(weights / weights.sum())
    return [
        np.sort(draws.choice(num_rows, size, replace=False, p=weights)) for _ in range(num_batches)
    ]


@pytest.fixture(scope="module")
def batches() -> list[Any]:
    return skewed_batches(120)


def reads(**tuning: Any) -> TableReads:
    geometry = PageGeometry(ROW_BYTES, 4096)
    layout = ShardLayout(geometry, NUM_ROWS, NUM_ROWS, 1)
    return TableReads((layout,), (512,), replace(tune_reads(None), **tuning))


def workload_of(
    batches: list[Any],
    spatial: SpatialSampling | None = None,
    epoch_batches: int = 0,
    **tuning: Any,
) -> Workload:
    spatial = spatial or SpatialSampling(6, 0)
    trace = SampledTrace(len(batches), NUM_ROWS, spatial)
    for i, batch in enumerate(batches):
        trace.put(i, batch)
    return Workload.learn(
        trace.build(),
        spatial,
        reads(**tuning),
        num_rows=NUM_ROWS,
        epoch_batches=epoch_batches or len(batches),
        batch_bytes=600 * ROW_BYTES,
        ids_bytes=10_000,
        kept_bytes=10_000,
        seconds_sampling=0.01,
        kept_share=trace.kept_share,
    )


def planned_misses(
    batches: list[Any], num_slots: int, superbatch: int, *, first_epoch: int = 0
) -> int:
    """Return what a loader misses: its cache is filled by the first superbatch.

    Those of the first `first_epoch` batches are not counted.
    """
    planner, misses = BeladyPlanner(num_slots), 0
    for first in range(0, len(batches), superbatch):
        if first == first_epoch:
            misses = 0
        trace = Trace.of(batches[first : first + superbatch])
        if first == 0:
            nodes = most_needed(trace, NUM_ROWS, num_slots)
            slots = np.full(num_slots, -1, np.int64)
            slots[: len(nodes)] = nodes
            planner.restart(slots)
        misses += planner.plan(trace).num_misses
    return misses


# --- misses -------------------------------------------------------------------------------------


def test_a_cache_of_all_that_is_needed_misses_nothing(batches: list[Any]) -> None:
    work = workload_of(batches)
    assert work.misses(BELADY, NUM_ROWS, len(batches)) == 0
    curve = work.rows
    distinct = len(np.unique(np.concatenate(batches)))
    assert curve.distinct_rows(len(batches)) == pytest.approx(distinct, rel=0.02)
    empty = curve.belady_misses(NUM_ROWS, len(batches), initial="nothing")
    assert empty == pytest.approx(distinct, rel=0.02)
    assert work.misses(BELADY, 0, len(batches)) == pytest.approx(600 * len(batches))


@pytest.mark.parametrize("num_slots", [1000, *choose([], [200, 4000])])
def test_later_epochs_need_other_rows(batches: list[Any], num_slots: int) -> None:
    """What the epoch before has left is not what this one needs most."""
    work = workload_of(batches[:60])
    true = planned_misses(batches, num_slots, 60, first_epoch=60)
    assert true > planned_misses(batches[:60], num_slots, 60)
    assert work.misses(BELADY, num_slots, 60) == pytest.approx(true, rel=0.12)


@pytest.mark.parametrize("superbatch", [2, 4])
def test_superbatches_of_few_batches(batches: list[Any], superbatch: int) -> None:
    """A large cache keeps what most batches need, as one of these rows alone does."""
    work = workload_of(batches[:60])
    true = planned_misses(batches, 4000, superbatch, first_epoch=60)
    found = work.misses(BELADY, 4000, superbatch)
    assert found == pytest.approx(true, rel=0.2)


@pytest.mark.parametrize("num_slots", [1000, *choose([], [200, 4000])])
def test_static_misses_are_those_of_a_cache_by_other_batches(
    batches: list[Any], num_slots: int
) -> None:
    counted, measured = batches[:60], batches[60:]
    counts = np.bincount(np.concatenate(counted), minlength=NUM_ROWS)
    cached = np.zeros(NUM_ROWS, np.bool_)
    cached[select_nodes(counts.astype(np.uint8), num_slots)] = True
    misses = sum(int((~cached[batch]).sum()) for batch in measured) / len(measured)
    found = workload_of(counted).frequency.misses(num_slots)
    assert found == pytest.approx(misses, rel=0.06)


def test_a_cache_by_degree(batches: list[Any]) -> None:
    degrees = np.bincount(np.concatenate(batches), minlength=NUM_ROWS).astype(np.uint32)
    work = workload_of(batches).with_degrees(degrees)
    assert work.degree is not None
    cached = np.zeros(NUM_ROWS, np.bool_)
    cached[np.argsort(-degrees.astype(np.int64), kind="stable")[:1000]] = True
    misses = sum(int((~cached[batch]).sum()) for batch in batches) / len(batches)
    assert work.degree.misses(1000) == pytest.approx(misses, rel=0.05)
    assert work.degree.misses(NUM_ROWS) == 0
    least = work.misses(BELADY, 1000, len(batches))
    assert work.static_reads(1000, by_degree=True).reads > least * 0.5


@pytest.mark.parametrize("num_slots", [1000, 9000])
def test_a_cache_by_frequency_is_filled_up_by_degree(batches: list[Any], num_slots: int) -> None:
    counted, measured = batches[:20], batches[20:]
    degrees = np.bincount(np.concatenate(batches), minlength=NUM_ROWS).astype(np.uint32)
    counts = np.bincount(np.concatenate(counted), minlength=NUM_ROWS).astype(np.uint8)
    filled = counts
    if np.count_nonzero(counts) < num_slots:
        filled = filled_up(counts, degrees.copy)
    cached = np.zeros(NUM_ROWS, np.bool_)
    cached[select_nodes(filled, num_slots)] = True
    misses = sum(int((~cached[batch]).sum()) for batch in measured) / len(measured)
    work = workload_of(counted)
    before, work = work.static_reads(num_slots), work.with_degrees(degrees)
    assert work.filled_up is not None
    assert work.filled_up.misses(num_slots) == pytest.approx(misses, rel=0.1)
    assert (work.static_reads(num_slots).reads < before.reads) == (num_slots == 9000)


@pytest.mark.parametrize("num_slots", [1000, *choose([], [4000])])
def test_lru_misses_are_those_of_such_a_cache(batches: list[Any], num_slots: int) -> None:
    work = workload_of(batches)
    misses = run_lru([batch.tolist() for batch in batches], num_slots)[1]
    later = sum(misses[60:]) / 60
    assert work.rows.lru_misses(num_slots, len(batches)) == pytest.approx(later, rel=0.1)
    found = work.rows.lru_misses(num_slots, 120) * 120 + work.rows.lru_first_misses(num_slots, 120)
    assert found == pytest.approx(sum(misses), rel=0.1)


@pytest.mark.parametrize("share_bits", [*choose([], [1]), 2])
def test_some_blocks_tell_what_all_tell(batches: list[Any], share_bits: int) -> None:
    work = workload_of(batches)
    thinned = workload_of(batches, SpatialSampling(3, share_bits))
    assert thinned.batch_rows == pytest.approx(work.batch_rows, rel=0.15)
    for num_slots in (1000, 4000):
        found = thinned.misses(BELADY, num_slots, 120)
        assert found == pytest.approx(work.misses(BELADY, num_slots, 120), rel=0.2)


@given(st.lists(st.sets(st.integers(0, 30), max_size=12), min_size=1, max_size=10), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_curves_of_any_sample(batches: list[set[int]], data: st.DataObject) -> None:
    trace = Trace.of([np.array(sorted(batch), np.int64) for batch in batches])
    distances = np.concatenate(list(reuse_distances(trace, 31)))
    seen: dict[int, int] = {}
    expected = []
    for i, batch in enumerate(batches):
        expected += [i - seen[row] if row in seen else 0 for row in sorted(batch)]
        seen |= dict.fromkeys(batch, i)
    assert distances.tolist() == expected
    curve = ReuseCurve.of_trace(trace, 31)
    num_batches = data.draw(st.integers(1, 30))
    assert (np.diff(curve.reaching(num_batches)) <= 1e-9).all()
    misses = [
        curve.belady_misses(slots, num_batches, initial="nothing") for slots in (0, 5, 20, 40)
    ]
    assert misses == sorted(misses, reverse=True)
    assert all(0 <= m <= curve.batch_rows * num_batches + 1e-6 for m in misses)
    assert curve.lru_misses(0, num_batches) <= curve.batch_rows
    assert curve.belady_misses(5, num_batches, initial="last") <= curve.belady_misses(
        5, num_batches, initial="nothing"
    )


# --- reads --------------------------------------------------------------------------------------


def test_reads_without_a_cache_are_those_of_the_batches(batches: list[Any]) -> None:
    found = workload_of(batches).direct_reads()
    totals = ReadTotals()
    for batch in batches:
        totals += reads().count(batch)
    assert found.reads == pytest.approx(totals.reads, rel=0.03)
    assert found.num_bytes == pytest.approx(totals.num_bytes, rel=0.03)


@pytest.mark.parametrize("num_slots", [20, NUM_ROWS // 2, NUM_ROWS])
def test_warming_up_takes_one_pass_at_most(batches: list[Any], num_slots: int) -> None:
    """Many rows are read with what lies between them, and not one by one."""
    work, disk = workload_of(batches, gap_bytes=0), machine()
    found = EpochCosts(work, disk).warming_up(num_slots)
    apart = disk.random_seconds(ReadTotals(num_slots, num_slots * ROW_BYTES))
    one_pass = NUM_ROWS * ROW_BYTES / disk.disk.sequential_read_bytes_per_second
    assert found == pytest.approx(min(apart, one_pass))
    assert (found == apart) == (num_slots == 20)


def test_a_cache_begins_empty_where_rows_are_packed(batches: list[Any]) -> None:
    """Disk is needed for the rows that enter it, too, as a planner shows."""
    model, size = MissModel(workload_of(batches), BELADY), len(batches)
    planned = BeladyPlanner(4000).plan(Trace.of(batches)).num_misses
    assert model.misses(4000, size, initial="nothing") == pytest.approx(planned, rel=0.05)
    assert model.misses(4000, size) < 0.95 * planned


@pytest.mark.parametrize("num_slots", [1000, *choose([], [3000])])
def test_pinned_rows_are_never_missed(batches: list[Any], num_slots: int) -> None:
    """The others share the slots that are left, as a planner of these shows."""
    model, size = MissModel(workload_of(batches), BELADY), len(batches)
    pins = model.pins(num_slots // 2)
    assert pins is not None
    nodes = most_needed(Trace.of(batches), NUM_ROWS, pins.num_rows)
    others = [np.setdiff1d(batch, nodes) for batch in batches]
    share = sum(map(len, others)) / sum(map(len, batches))
    assert pins.planned_share == pytest.approx(share, rel=0.1)
    planned = planned_misses(others, num_slots - pins.num_rows, size)
    found = model.misses(num_slots, size, num_pinned=pins.num_rows)
    assert found == pytest.approx(planned, rel=0.1)
    assert found > 0.98 * model.misses(num_slots, size), "no plan is better than that of all rows"


def test_uses_of_the_kept_blocks_count_for_all(batches: list[Any]) -> None:
    """Whether the rows that most batches need are among those of the sample is chance."""
    expected = workload_of(batches).misses(BELADY, 1000, 120)
    for bits in (1, 2):
        spatial = SpatialSampling(6, bits)
        trace = SampledTrace(len(batches), NUM_ROWS, spatial)
        for i, batch in enumerate(batches):
            trace.put(i, batch)
        kept = sum(int(spatial.keeps(batch).sum()) for batch in batches)
        assert trace.kept_share == kept / sum(map(len, batches))
        part = workload_of(batches, spatial)
        assert part.batch_rows == pytest.approx(600, rel=1e-9)
        assert part.misses(BELADY, 1000, 120) == pytest.approx(expected, rel=0.1)


def pass_reads(work: Workload, num_slots: int, superbatch: int) -> ReadTotals:
    return work.pass_reads(work.misses(BELADY, num_slots, superbatch), superbatch)


def test_what_packing_scans(batches: list[Any]) -> None:
    work = workload_of(batches)
    assert pass_reads(work, NUM_ROWS, 120) == ReadTotals()
    few, many = (pass_reads(work, n, 120).num_bytes for n in (8000, 100))
    assert 0 < few < many <= NUM_ROWS * ROW_BYTES
    longer = workload_of(batches[:30], epoch_batches=1000)
    scanned = pass_reads(longer, 100, 1000)
    assert scanned.num_bytes == pytest.approx(NUM_ROWS * ROW_BYTES, rel=0.05)
    assert scanned.reads < NUM_ROWS / 100


# --- times --------------------------------------------------------------------------------------


def machine(
    *, reads_a_second: float = 100_000, bytes_a_second: float = 1e9, **fields: Any
) -> HardwareRates:
    profile = usual_profile(
        "/",
        engine="io_uring",
        sequential_read_bytes_per_second=bytes_a_second,
        sequential_write_bytes_per_second=bytes_a_second,
        random_reads_per_second={
            4096: {1: reads_a_second / 10, 128: reads_a_second},
            65536: {1: reads_a_second / 20, 128: reads_a_second / 5},
        },
    )
    return HardwareRates(profile, 1e10, **{"num_threads": 2, "num_cores": 2, **fields})


def predict(
    strategy: Any, workload: Workload, machine: HardwareRates, resources: Resources
) -> Prediction:
    found: Prediction = strategy.predict_with(workload, machine, resources)
    return found


def forecast(name: str, *of: Any) -> Prediction:
    return predict(ALL.by_choice[name], *of)


def test_stages_at_the_same_time_take_as_long_as_the_longest(batches: list[Any]) -> None:
    work = workload_of(batches)
    slow = forecast("direct", work, machine(reads_a_second=1000), Resources(0))
    assert slow.seconds == slow.stages["reading rows"]
    assert slow.bottleneck == "reading rows"
    assert slow.seconds == slow.reads.seconds_on(machine(reads_a_second=1000).disk)
    fast = forecast("direct", work, machine(reads_a_second=10**8), Resources(0))
    assert fast.seconds == pytest.approx(fast.stages["sampling"] + fast.stages["assembling"])
    assert fast.stages["sampling"] == pytest.approx(0.01 * 120)
    assert fast.bottleneck == "sampling"


def test_one_superbatch_is_followed_while_the_next_is_made(batches: list[Any]) -> None:
    work = workload_of(batches)
    whole = forecast("belady", work, machine(), Resources(0, 1000, superbatch=120))
    stages = whole.stages
    making = stages["sampling"] + stages["planning"]
    assert whole.seconds == pytest.approx(making + stages["assembling"])  # by the processors
    assert whole.seconds_once == pytest.approx(making + stages["filling"])
    slow = predict(
        ALL.by_choice["belady"],
        work,
        machine(reads_a_second=1000),
        Resources(0, 1000, superbatch=120),
    )
    assert slow.seconds == pytest.approx(slow.stages["reading rows"])  # by the disk
    parts = forecast("belady", work, machine(), Resources(0, 1000, superbatch=12))
    assert parts.reads.reads > whole.reads.reads
    assert parts.seconds_once < whole.seconds_once


@pytest.mark.parametrize("name", ["belady", "packed"])
def test_passes_over_tables_of_edges_count(batches: list[Any], name: str) -> None:
    """For each superbatch the tables, and for each batch what is written and read back."""
    work, slow = workload_of(batches), machine(reads_a_second=1000)
    has = Resources(0, 1000, superbatch=30)
    plain, more = (
        predict(ALL.by_choice[name], work, slow, replace(has, edges=edges))
        for edges in (EdgePass(), EdgePass(10**9, 5e6))
    )
    assert more.reads == plain.reads
    assert more.written_bytes - plain.written_bytes == 5e6 * 120
    assert more.sequential_bytes - plain.sequential_bytes == 4e9 + 5e6 * 120
    in_order = slow.disk.sequential_seconds(int(4e9 + 5e6 * 120), int(5e6 * 120))
    # By the disk, but for what it did while the processors were busy.
    assert in_order / 2 < more.seconds - plain.seconds <= in_order + 1e-6


def test_the_first_epoch_reads_what_nobody_has_planned(batches: list[Any]) -> None:
    work = workload_of(batches)
    on_disk = machine(reads_a_second=1000)
    planned, with_some = (
        predict(
            ALL.by_choice["packed"],
            work,
            on_disk,
            Resources(0, 1000, superbatch=120, num_unplanned=num_unplanned),
        )
        for num_unplanned in (0, 12)
    )
    assert with_some.seconds == planned.seconds
    reading = on_disk.random_seconds(work.direct_reads()) * 12 / work.epoch_batches
    assert with_some.first_seconds == pytest.approx(planned.first_seconds + reading)


def test_one_pass_packs_the_rows_of_several_epochs(batches: list[Any]) -> None:
    work, on_disk = workload_of(batches), machine(bytes_a_second=1e8)
    one, four = (
        predict(ALL.by_choice["packed"], work, on_disk, Resources(0, 1000, superbatch=120 * n))
        for n in (1, 4)
    )
    scan = pass_reads(work, 1000, 120).num_bytes
    assert one.sequential_bytes - four.sequential_bytes == pytest.approx(0.75 * scan, rel=0.1)
    assert four.seconds < one.seconds
    # Superbatches become longer as training goes on: the first is an epoch, as ever.
    assert four.first_seconds == pytest.approx(one.first_seconds)


def test_one_superbatch_is_made_and_then_followed(batches: list[Any]) -> None:
    """Where disk has no room for two."""
    work = workload_of(batches)
    alone: dict[str, Any] = {"overlaps": False}
    whole = predict(
        ALL.by_choice["belady"], work, machine(), Resources(0, 1000, superbatch=120, **alone)
    )
    stages = whole.stages
    following = max(stages["reading rows"], stages["assembling"])
    assert whole.seconds == pytest.approx(stages["sampling"] + stages["planning"] + following)
    # With several, the next is sampled meanwhile.
    parts = predict(
        ALL.by_choice["belady"], work, machine(), Resources(0, 1000, superbatch=12, **alone)
    )
    assert parts.seconds < parts.stages["sampling"] + parts.stages["reading rows"]
    assert parts.reads.reads > whole.reads.reads


def test_packing_trades_reads_for_bytes(batches: list[Any]) -> None:
    work, has = workload_of(batches), Resources(0, 500, superbatch=120)
    slow_reads = machine(reads_a_second=2000)
    packed, belady = (forecast(c, work, slow_reads, has) for c in ("packed", "belady"))
    assert packed.cost < belady.cost
    misses = work.misses(BELADY, 500, 120)
    assert packed.written_bytes == pytest.approx(misses * ROW_BYTES, rel=0.01)
    scanned = pass_reads(work, 500, 120)
    in_order = scanned.num_bytes + misses * ROW_BYTES
    assert packed.sequential_bytes == pytest.approx(in_order, rel=0.01)
    assert packed.reads == ReadTotals()
    gaps = scanned.reads * slow_reads.disk.seconds_per_read
    assert packed.stages["packing"] == pytest.approx(gaps + in_order / 1e9)
    slow_bytes = machine(bytes_a_second=1e6)
    packed, belady = (forecast(c, work, slow_bytes, has) for c in ("packed", "belady"))
    assert belady.cost < packed.cost


def test_what_waits_on_disk_is_written_and_read(batches: list[Any]) -> None:
    work = workload_of(batches)
    held, spilled = (
        predict(
            ALL.by_choice["belady"],
            work,
            machine(),
            Resources(0, 500, superbatch=120, keeps_in_memory=kept),
        )
        for kept in (True, False)
    )
    assert held.written_bytes == 0
    assert spilled.written_bytes == spilled.sequential_bytes == 120 * (10_000 + 16 * 600)
    assert spilled.seconds >= held.seconds


def test_a_mapping_lives_off_the_page_cache(batches: list[Any]) -> None:
    work = workload_of(batches)
    times = [
        predict(
            ALL.by_choice["mmap"], work, machine(), Resources(0, cached_bytes=num_bytes)
        ).seconds
        for num_bytes in (0, NUM_ROWS * ROW_BYTES // 2, NUM_ROWS * ROW_BYTES)
    ]
    assert times[0] > times[1] > times[2]
    none = forecast("mmap", work, machine(), Resources(0))
    assert none.reads.reads == pytest.approx(work.pages.batch_rows * 120, rel=0.01)
    assert none.reads.num_bytes == 4096 * none.reads.reads
    # More threads wait for more pages at once.
    many = forecast("mmap", work, machine(num_faulting=128), Resources(0))
    assert many.seconds < none.seconds


def test_packed_epochs_are_read_in_order(batches: list[Any]) -> None:
    work, has = workload_of(batches), Resources(0, 500, superbatch=120)
    before, packed = (forecast(c, work, machine(), has) for c in ("packed-epochs", "packed"))
    assert before.seconds < packed.seconds
    assert before.seconds_once > packed.seconds_once, "packing comes before training"
    assert before.bottleneck in {"reading packed", "assembling"}


def test_more_slots_never_take_longer(batches: list[Any]) -> None:
    work = workload_of(batches).with_degrees(np.ones(NUM_ROWS, np.uint32))
    for candidate in ALL.candidates:
        times = [
            predict(
                candidate, work, machine(), Resources(0, slots, slots * ROW_BYTES, superbatch=120)
            ).seconds
            for slots in (0, 500, 5000, NUM_ROWS)
        ]
        assert times == sorted(times, reverse=True), candidate
        assert all(seconds > 0 for seconds in times)


def test_sampling_counts_in_every_strategy(batches: list[Any]) -> None:
    work = workload_of(batches)
    slower = replace(work, seconds_sampling=1.0)
    for candidate in (found for found in ALL.candidates if not found.is_offline):
        has = Resources(0, 500, superbatch=120)
        more = predict(candidate, slower, machine(), has).seconds
        assert more > predict(candidate, work, machine(), has).seconds + 100


def test_a_disk_that_is_sampled_from_has_no_time_for_rows(batches: list[Any]) -> None:
    work = replace(workload_of(batches), seconds_sampling=0.5)
    from_disk = replace(work, samples_from_disk=True)
    for name in ("direct", "static-frequency", "belady", "packed"):
        candidate, has = ALL.by_choice[name], Resources(0, 500, superbatch=30)
        found = predict(candidate, from_disk, machine(), has)
        reading = sum(
            found.stages.get(s, 0.0) for s in ("reading rows", "packing", "reading packed")
        )
        assert reading > 0
        least = found.stages["sampling"] + reading
        assert found.seconds >= least or found.seconds == pytest.approx(least), name
        assert predict(candidate, work, machine(), has).seconds < found.seconds, name
        assert predict(candidate, work, machine(), has).stages == found.stages, name
