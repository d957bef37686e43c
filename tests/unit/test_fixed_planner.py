"""A cache of rows that were chosen once, planned and followed; and plans that cannot be made."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore.caching.plan import PlanLocation, Trace
from gnnstore.caching.policies import FixedPlanner
from gnnstore.disk.engines import open_engine
from gnnstore.errors import CorruptStoreError, NoSpaceError, UsageError
from gnnstore.features.file_rows import FileRows, files_of
from gnnstore.features.pack import pack
from gnnstore.features.planned import PlanStep, SlotCache
from gnnstore.features.source import of_one_type
from tests.support.faults import inject
from tests.support.traces import spill_trace
from tests.support.twins.reads import write_array

NUM_NODES = 5000


def some_trace(seed: int, num_batches: int = 6) -> Trace:
    rng = np.random.default_rng(seed)
    return Trace.of([np.unique(rng.integers(0, NUM_NODES, 900)) for _ in range(num_batches)])


@pytest.mark.parametrize("is_filled", [False, True])
@pytest.mark.parametrize("is_spilled", [False, True])
def test_following_it_behind_packed_rows(tmp_path: Path, is_filled: bool, is_spilled: bool) -> None:
    """What a loader does: the rows of some nodes in memory, what batches miss packed."""
    rng = np.random.default_rng(0)
    features = rng.random((NUM_NODES, 25), dtype=np.float32)
    array = write_array(tmp_path / "x", features)
    tables = of_one_type({"x": FileRows.open(array, open_engine(array.file_paths[0]))})
    nodes = np.full(800, -1, np.int64)
    nodes[:700] = np.sort(rng.permutation(NUM_NODES)[:700])
    cache, planner = SlotCache(tables, 800), FixedPlanner(nodes, NUM_NODES)
    turns, number = cache.begin(), 0
    if is_filled:
        cache.warm_up(turns, 0, nodes[:700])
        number = 1
        planner.restart(cache.planned_nodes)
    for seed in range(3):
        trace = some_trace(seed)
        if is_spilled:
            on_disk = spill_trace(trace, NUM_NODES, tmp_path / "trace")
            plan = planner.plan(on_disk, PlanLocation(tmp_path / "plan"))
            packed = pack(files_of(tables), on_disk, plan, tmp_path, memory_bytes=1 << 26)
            on_disk.close()
        else:
            plan = planner.plan(trace)
            packed = pack(files_of(tables), trace, plan, tmp_path, memory_bytes=1 << 26)
        with packed:
            for i in range(trace.num_batches):
                step = PlanStep(trace.batch(i), plan.batch_slots(i), *plan.batch_changes(i))
                found = cache.gather(turns, number, step, packed.rows(i))
                np.testing.assert_array_equal(found["x"].values, features[step.ids])
                assert found["x"].counts.rows_read == plan.misses[i]
                if is_filled:
                    assert len(step.change_slots) == 0
                    cached = np.isin(step.ids, nodes[:700])
                    assert found["x"].counts.rows_cached == cached.sum()
                number += 1
        plan.close()
    # Eighteen batches of 900 out of 5000 need nearly every row once.
    assert np.count_nonzero(cache.planned_nodes >= 0) > (699 if is_filled else 600)
    np.testing.assert_array_equal(cache.planned_nodes, planner.nodes)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([5, 5, 7], "ascend"),
        ([7, 5], "ascend"),
        ([3, NUM_NODES], "outside"),
        ([-1, 3], "ascending order, and -1 behind them"),
        ([3, -1, 4], "ascending order, and -1 behind them"),
    ],
)
def test_nodes_that_are_none(nodes: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FixedPlanner(np.array(nodes), NUM_NODES)


def test_what_cannot_be_planned(tmp_path: Path) -> None:
    nodes: NDArray[np.int64] = np.arange(100)
    planner = FixedPlanner(nodes, NUM_NODES)
    planner.restart(np.where(nodes < 50, nodes, -1))
    wrong = Trace.of([np.arange(60), np.array([3, NUM_NODES + 64])])
    with pytest.raises(UsageError, match="cannot plan batch 1"):
        planner.plan(wrong)
    trace = spill_trace(some_trace(0), NUM_NODES, tmp_path / "trace")
    with (
        inject("pwrite", errno=errno.ENOSPC, skip=3, times=-1) as fault,
        pytest.raises(NoSpaceError, match="no space left"),
    ):
        planner.plan(trace, PlanLocation(tmp_path / "plan"))
    assert fault.count > 0
    trace.close()
    with pytest.raises(UsageError, match="closed"):
        planner.plan(trace, PlanLocation(tmp_path / "plan"))
    # Nothing is left, and nothing is taken for held that did not come.
    assert list(tmp_path.iterdir()) == []
    assert planner.nodes.tolist() == [*range(50), *[-1] * 50]


def test_a_plan_that_was_damaged(tmp_path: Path) -> None:
    trace = spill_trace(some_trace(0), NUM_NODES, tmp_path / "trace")
    planner = FixedPlanner(np.arange(1000), NUM_NODES)
    with (tmp_path / "plan.slots").open("wb") as file:  # of somebody else
        file.write(b"mine")
    with pytest.raises(OSError, match=r"plan\.slots"):
        planner.plan(trace, PlanLocation(tmp_path / "plan"))
    assert (tmp_path / "plan.slots").read_bytes() == b"mine"
    (tmp_path / "plan.slots").unlink()
    plan = planner.plan(trace, PlanLocation(tmp_path / "plan"))
    for name, read in (("slots", plan.batch_slots), ("changes", plan.batch_changes)):
        path = tmp_path / f"plan.{name}"
        begin = 4 * plan.offsets[3] if name == "slots" else 8
        number = 3 if name == "slots" else 0
        with path.open("r+b") as file:
            file.seek(begin)
            byte = file.read(1)[0]
            file.seek(begin)
            file.write(bytes([byte ^ 16]))
        with pytest.raises(CorruptStoreError, match=rf"plan\.{name}.*batch {number}"):
            read(number)
    plan.close()
    trace.close()
