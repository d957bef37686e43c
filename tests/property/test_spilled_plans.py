"""Plans made in files are those made in memory, whatever the table of next uses has room for."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gnnstore import _core
from gnnstore.caching import belady
from gnnstore.caching.belady import BeladyPlanner
from gnnstore.caching.plan import CachePlan, PlanLocation, Trace, TraceBuilder
from tests.support.effort import paired

Batch = npt.NDArray[Any]
ROOM_BYTES = 1 << 24


@contextmanager
def spilled(
    path: Path, batches: list[Batch], num_nodes: int, seed: int, dtype: type | None = None
) -> Iterator[Trace]:
    """Put the batches in some order."""
    file = TraceBuilder(len(batches), num_nodes, path / "trace")
    if dtype is not None:
        file.id_dtype = np.dtype(dtype)
    for i in np.random.default_rng(seed).permutation(len(batches)).tolist():
        file.put(i, batches[i])
    trace = file.build()
    yield trace
    trace.close()


def assert_same(found: CachePlan, expected: CachePlan) -> None:
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert found.misses.tolist() == expected.misses.tolist()
    assert (found.num_batches, found.num_misses) == (expected.num_batches, expected.num_misses)
    for i in range(expected.num_batches):
        assert found.batch_slots(i).tolist() == expected.batch_slots(i).tolist()
        for array, values in zip(found.batch_changes(i), expected.batch_changes(i), strict=True):
            assert array.dtype == np.int32
            assert array.tolist() == values.tolist()


def check(
    parts: list[list[Batch]],
    num_slots: int,
    num_nodes: int,
    num_rounds: int,
    *,
    seed: int = 0,
    dtype: type | None = None,
) -> None:
    """Plan superbatches one after the other in both ways."""
    in_memory, in_files = BeladyPlanner(num_slots), BeladyPlanner(num_slots)
    table_bytes = 4 * -(-num_nodes // num_rounds) if num_rounds else ROOM_BYTES
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        for batches in parts:
            with spilled(path, batches, num_nodes, seed, dtype) as trace:
                expected = in_memory.plan(Trace.of([b.astype(trace.ids.dtype) for b in batches]))
                found = in_files.plan(trace, PlanLocation(path / "plan", table_bytes))
                assert_same(found, expected)
                assert found.num_disk_bytes == expected.slots.nbytes + 8 * len(
                    expected.change_slots
                )
                found.close()
            assert in_files.nodes.tolist() == in_memory.nodes.tolist()
            assert in_files._frequencies.tolist() == in_memory._frequencies.tolist()
        assert not list(path.iterdir())


def batches_of(num_nodes: int) -> st.SearchStrategy[list[Batch]]:
    batch = st.lists(st.integers(0, num_nodes - 1), max_size=9)
    return st.lists(batch.map(lambda rows: np.array(rows, np.int64)), max_size=10)


@given(
    st.lists(batches_of(25), max_size=3),
    st.integers(0, 40),
    st.integers(25, 60),
    st.integers(0, 5),
    st.tuples(st.integers(0, 9), st.sampled_from([np.int32, np.int64])),
)
@example([[]], 3, 30, 1, (0, np.int32))
@example([[]], 3, 30, 0, (0, np.int32))
@example([[np.array([7, 7, 7])]], 1, 30, 2, (0, np.int64))
@example([[np.array([7, 7, 7])]], 1, 30, 0, (0, np.int64))
@example([[np.array([20, 2, 8, 14, 26])]], 3, 30, 5, (0, np.int32))
def test_spilled_plans_equal_those_in_memory(
    parts: list[list[Batch]],
    num_slots: int,
    num_nodes: int,
    num_rounds: int,
    put: tuple[int, type],
) -> None:
    check(parts, num_slots, num_nodes, num_rounds, seed=put[0], dtype=put[1])


@pytest.mark.parametrize("num_rounds", [0, 1, 2, 5])
@pytest.mark.parametrize("num_slots", [0, 1, 40, 300, 999, 5000])
def test_longer_traces(num_slots: int, num_rounds: int) -> None:
    rng = np.random.default_rng(num_slots)
    rows = (1000 * rng.random((3, 40, 120)) ** 3).astype(np.int64)
    check([list(part) for part in rows], num_slots, 1000, num_rounds)


@pytest.mark.parametrize("num_rounds", [0, 1, 3])
# Threads, and with room for one batch in the forward pass, and for two of them.
@pytest.mark.parametrize(
    ("num_slots", "threads"),
    paired(
        [0, 7000, 60_000],
        product([(1, None), (2, None), (4, None), (4, np.int64)], [50_000, 1_700_000]),
        3,
    ),
    ids=str,
)
def test_batches_that_threads_share_out(
    *,
    threads: tuple[tuple[int, type | None], int],
    num_slots: int,
    num_rounds: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (num_threads, dtype), num_nodes = threads
    monkeypatch.setattr(belady, "planning_threads", lambda: num_threads)
    rng = np.random.default_rng(num_slots)
    sizes = rng.integers(0, 40_000, (2, 8))
    sizes[:, 3] = 40_000
    scale = num_nodes // 50_000
    parts = [
        [scale * (50_000 * rng.random(size) ** 2).astype(np.int64) for size in of] for of in sizes
    ]
    check(parts, num_slots, num_nodes, num_rounds, dtype=dtype)


def test_ids_of_more_than_32_bits(tmp_path: Path) -> None:
    """A trace of a graph so large keeps them; its table would be, so it is not planned here."""
    batches = [np.array([2**31 + 5, 7]), np.array([2**33])]
    with spilled(tmp_path, batches, 2**33 + 1, 0) as trace:
        assert trace.ids.dtype == np.int64
        assert [trace.batch(i).tolist() for i in range(2)] == [b.tolist() for b in batches]


def test_more_batches_than_marks() -> None:
    """A batch whose mark in the table was that of another one does not count as repeating it."""
    num_marks = 2**15 - 1
    batches = [np.array([], np.int64)] * (2 * num_marks + 10)
    for i in (0, num_marks - 1, num_marks, num_marks + 1, 2 * num_marks, 2 * num_marks + 1):
        batches[i] = np.array([3, 3, i % 5])
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        offsets = np.zeros(len(batches) + 1, np.int64)
        np.cumsum([len(batch) for batch in batches], out=offsets[1:])
        ids = np.concatenate(batches).astype(np.int32)
        file = _core.SpillFile(path / "ids")
        places = [file.append(batch.astype(np.int32), i) for i, batch in enumerate(batches)]
        begins, crcs = (np.array(values) for values in zip(*places, strict=True))
        states = [(np.full(2, -1), np.zeros(2, np.int32)) for _ in range(2)]
        expected = _core.plan_belady(ids, offsets, *states[0])
        slots, changes = (_core.SpillFile(path / name) for name in ("slots", "changes"))
        misses, *_ = _core.plan_belady_spilled(
            file,
            begins,
            crcs.astype(np.uint32),
            offsets,
            are_wide=False,
            num_nodes=5,
            nodes=states[1][0],
            frequencies=states[1][1],
            table_bytes=20,
            slots=slots,
            changes=changes,
        )
        assert misses.tolist() == expected[1].tolist()
        assert [a.tolist() for a in states[0]] == [a.tolist() for a in states[1]]
        assert states[0][1].max() == 6
        for each in (file, slots, changes):
            each.close()


def test_frequencies_stop_at_their_largest(tmp_path: Path) -> None:
    batches = [np.array([7, 8, 7])] * 3
    planner = BeladyPlanner(3)
    planner.restart(np.array([7, 8, 9]))
    planner._frequencies[:] = [65534, 65535, 70000]
    with spilled(tmp_path, batches, 10, 0) as trace:
        planner.plan(trace, PlanLocation(tmp_path / "plan", 40)).close()
    assert planner.nodes.tolist() == [7, 8, 9]
    assert planner._frequencies.tolist() == [65535] * 3


def test_many_rows_of_one_frequency_stay_in_part() -> None:
    """More than fit one count, and slots for some of them."""
    rng = np.random.default_rng(1)
    batches = [rng.permutation(200_000)[:150_000] for _ in range(2)]
    check([batches, batches[:1]], 120_000, 200_000, num_rounds=2)


@pytest.mark.long("plans of fewer kinds are compared in both")
def test_rows_of_more_kinds_than_are_counted() -> None:
    """Kinds are batches of the last use and frequencies; those that cannot stay are dropped."""
    largest, num_batches, num_slots = 64, 2200, 2100
    assert largest * num_batches > num_slots + 2**17
    # Row (b, f) is needed by f batches, of which b is the last. All fit the cache but few more.
    last, frequency = np.divmod(np.arange(largest * num_batches), largest)
    frequency = np.minimum(frequency + 1, last + 1)
    batches = []
    for i in range(num_batches):  # batches that are not far behind are the last of what it needs
        near = slice(largest * i, largest * (i + largest))
        needed = (last[near] >= i) & (last[near] - frequency[near] < i)
        batches.append(near.start + np.flatnonzero(needed))
    passing = [np.isin(a, b, assume_unique=True).sum() for a, b in itertools.pairwise(batches)]
    slack = num_slots - np.array([*passing, 0])
    staying = []
    for row in np.lexsort((np.arange(len(last)), -last, -frequency)).tolist():
        if slack[last[row] :].min() > 0:
            slack[last[row] :] -= 1
            staying.append(row)
    assert len(staying) == num_slots
    planner = BeladyPlanner(num_slots)
    planner.plan(Trace.of([batch.astype(np.int32) for batch in batches]))
    assert sorted(planner.nodes.tolist()) == sorted(staying)
    assert planner._frequencies.tolist() == frequency[planner.nodes].tolist()
    with tempfile.TemporaryDirectory() as name:
        spilling = BeladyPlanner(num_slots)
        with spilled(Path(name), batches, len(last), 0) as trace:
            spilling.plan(trace, PlanLocation(Path(name) / "plan", 4 * len(last))).close()
    assert spilling.nodes.tolist() == planner.nodes.tolist()
    assert spilling._frequencies.tolist() == planner._frequencies.tolist()
