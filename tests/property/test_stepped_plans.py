"""Plans made batch by batch are those of their twins, in memory and in files alike."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gnnstore.caching.plan import CachePlan, PlanLocation, Trace
from gnnstore.caching.policies import FixedPlanner
from tests.support.effort import examples
from tests.support.traces import spill_trace
from tests.support.twins.caches import TwinPlan, batches_of, plan_fixed


@st.composite
def traces(draw: st.DrawFn, num_nodes: int) -> Trace:
    """Draw a superbatch: batches may be empty, and may repeat ids."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = draw(st.lists(st.integers(0, 60), max_size=10))
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    batches = [(num_nodes * rng.random(size) ** 2).astype(dtype) for size in sizes]
    return Trace.of(batches) if batches else Trace(np.empty(0, dtype), np.zeros(1, np.int64))


def spilled(planner: FixedPlanner, trace: Trace, num_nodes: int, directory: Path) -> CachePlan:
    """Plan in files, and read all of it."""
    built = spill_trace(trace, num_nodes, directory / "trace")
    plan = planner.plan(built, PlanLocation(directory / "plan", 1 << 20))
    built.close()
    whole = in_memory(plan)
    assert sum(path.stat().st_size for path in directory.iterdir()) == plan.num_disk_bytes
    plan.close()
    assert list(directory.iterdir()) == []
    return whole


def in_memory(plan: CachePlan) -> CachePlan:
    count = range(plan.num_batches)
    changes = [plan.batch_changes(i) for i in count]
    none: NDArray[np.int32] = np.empty(0, np.int32)
    return CachePlan(
        plan.offsets,
        np.concatenate([none, *(plan.batch_slots(i) for i in count)]),
        plan.misses,
        np.cumsum([0, *(len(slots) for _, slots in changes)]),
        np.concatenate([none, *(positions for positions, _ in changes)]),
        np.concatenate([none, *(slots for _, slots in changes)]),
    )


def as_lists(plan: CachePlan | TwinPlan) -> list[list[int]]:
    names = ("slots", "misses", "change_offsets", "change_positions", "change_slots")
    return [np.asarray(getattr(plan, name)).tolist() for name in names]


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_a_fixed_cache_is_planned_as_its_twin_says(data: st.DataObject) -> None:
    num_nodes = data.draw(st.integers(1, 300))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    nodes = np.full(data.draw(st.integers(0, 200)), -1, np.int64)
    chosen = np.sort(rng.permutation(num_nodes)[: data.draw(st.integers(0, len(nodes)))])
    nodes[: len(chosen)] = chosen
    planner = FixedPlanner(nodes, num_nodes)
    assert planner.num_slots == len(nodes)
    held: set[int] = set()
    with tempfile.TemporaryDirectory() as name:
        for _ in range(3):
            match data.draw(st.sampled_from(["go on", "clear", "restart"])):
                case "clear":
                    planner.restart(np.full(planner.num_slots, -1))
                    held = set()
                case "restart":
                    # Some of them in their slots, others in other ones, and rows that are not
                    # wanted.
                    found = rng.integers(-1, num_nodes, len(nodes))
                    found = np.where(rng.random(len(nodes)) < 0.5, nodes, found)
                    planner.restart(found)
                    held = set(np.flatnonzero((found == nodes) & (nodes >= 0)).tolist())
            trace = data.draw(traces(num_nodes))
            if data.draw(st.booleans()):
                plan = planner.plan(trace)
            else:
                plan = spilled(planner, trace, num_nodes, Path(name))
            twin = plan_fixed(batches_of(trace.ids, trace.offsets), nodes.tolist(), held)
            assert as_lists(plan) == as_lists(twin)
            assert planner.nodes.tolist() == twin.nodes
            held = {slot for slot, node in enumerate(twin.nodes) if node >= 0}
