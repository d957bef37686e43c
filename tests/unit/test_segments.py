"""Which rows of a segment are shared, their order, and the search for a segment's length."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore.caching import segments
from gnnstore.caching.segments import (
    Recurrences,
    SharedRows,
    permutation,
    search_segment,
    segments_of,
)
from gnnstore.disk.profile import tune_reads
from gnnstore.strategies.workload import ReadTotals, count_extents

NUM_ROWS, ROW_BYTES = 4000, 512
TUNING = tune_reads(None)
Missed = list[npt.NDArray[Any]]


def draw(num_batches: int, size: int, seed: int = 0, *, drift: int = 0) -> Missed:
    """Draw what batches miss: a skewed choice, which with `drift` moves from batch to batch."""
    rng = np.random.default_rng(seed)
    places = rng.permutation(NUM_ROWS).astype(np.int32)
    found = []
    for i in range(num_batches):
        drawn = (NUM_ROWS * rng.random(size) ** 2).astype(np.int64) + i * drift
        found.append(np.unique(places[drawn % NUM_ROWS]))
    return found


def reads_of(
    missed: Missed, segment: int, num_rows: int = NUM_ROWS, *, is_ordered: bool = True
) -> tuple[int, int]:
    """Return the reads and the bytes of all batches, as a plan with segments makes them."""
    totals = ReadTotals()
    for part in segments_of(len(missed), segment):
        batches = [missed[i] for i in part]
        shared = SharedRows.from_missed(batches, num_rows)
        if not is_ordered:
            shared = SharedRows(shared.rows, np.arange(shared.num_rows, dtype=np.int32))
        for rows in batches:
            ranks = shared.find(rows)
            begins = np.sort(ranks[ranks >= 0]).astype(np.int64) * ROW_BYTES
            packed = -(-int((ranks < 0).sum()) * ROW_BYTES // 4096) * 4096
            totals += count_extents(begins, ROW_BYTES, 4096, TUNING)
            totals += ReadTotals(int(packed > 0), packed)
    return totals.reads, totals.num_bytes


@pytest.mark.parametrize("range_rows", [64, 1000, 1 << 22])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_shared_rows_and_their_keys(
    monkeypatch: pytest.MonkeyPatch, range_rows: int, dtype: Any
) -> None:
    monkeypatch.setattr(segments, "RANGE_ROWS", range_rows)
    missed = [rows.astype(dtype) for rows in draw(9, 300)]
    shared = SharedRows.from_missed(missed, NUM_ROWS)
    batches: dict[int, list[int]] = {}
    for batch, rows in enumerate(missed):
        for row in rows.tolist():
            batches.setdefault(row, []).append(batch)
    places = [permutation(9, k) for k in range(2)]
    expected = sorted(
        ([min(int(p[b]) for b in of) for p in places], row)
        for row, of in batches.items()
        if len(of) > 1
    )
    assert shared.rows.dtype == dtype
    assert shared.in_order().tolist() == [row for _, row in expected]
    assert shared.rows.tolist() == sorted(row for _, row in expected)
    in_order = shared.in_order().tolist()
    for rows in missed:
        ranks = shared.find(rows)
        assert ranks.dtype == np.int32
        for row, rank in zip(rows.tolist(), ranks.tolist(), strict=True):
            assert in_order[rank] == row if rank >= 0 else len(batches[row]) == 1


@pytest.mark.parametrize("missed", [[], [[]], [[], []], [[3, 5]], [[1, 2], [3]]])
def test_nothing_is_shared(missed: list[list[int]]) -> None:
    shared = SharedRows.from_missed([np.array(rows, np.int32) for rows in missed], 10)
    assert (shared.num_rows, len(shared.in_order())) == (0, 0)
    assert shared.find(np.array([3, 5], np.int32)).tolist() == [-1, -1]


def test_permutations_are_those_of_every_version() -> None:
    assert permutation(8, 0).tolist() == [2, 7, 6, 1, 4, 5, 0, 3]
    assert permutation(8, 1).tolist() == [3, 1, 2, 0, 7, 6, 4, 5]


@pytest.mark.parametrize("range_rows", [100, 1 << 22])
def test_rows_that_segments_of_every_length_store(
    monkeypatch: pytest.MonkeyPatch, range_rows: int
) -> None:
    monkeypatch.setattr(segments, "RANGE_ROWS", range_rows)
    missed = [*draw(11, 200), np.empty(0, np.int32)]
    found = Recurrences.from_missed(missed, NUM_ROWS)
    assert found.num_distinct == len(np.unique(np.concatenate(missed)))
    assert found.num_missed == sum(map(len, missed))
    for segment in range(1, 14):
        expected = sum(
            len(np.unique(np.concatenate([missed[i] for i in part])))
            for part in segments_of(12, segment)
        )
        assert found.stored_rows(segment) == expected, segment


@pytest.mark.parametrize("drift", [0, 40, 400])
@pytest.mark.parametrize("share", [0.95, 0.8, 0.6, 0.5])
def test_the_search_is_near_the_best(drift: int, share: float) -> None:
    """Within 5 % of the bytes that the best length of all reads, tried one by one."""
    missed = draw(16, 400, drift=drift)
    total = sum(map(len, missed))
    recurrences = Recurrences.from_missed(missed, NUM_ROWS)
    found = search_segment(
        recurrences, lambda segment: recurrences.stored_rows(segment) <= share * total
    )
    fitting = {
        segment: reads_of(missed, segment)
        for segment in range(1, 17)
        if sum(
            len(np.unique(np.concatenate([missed[i] for i in part])))
            for part in segments_of(16, segment)
        )
        <= share * total
    }
    if found is None:
        assert fitting == {}
        return
    assert found in fitting
    assert reads_of(missed, found)[1] <= 1.05 * min(num_bytes for _, num_bytes in fitting.values())


def test_rows_in_minhash_order_are_read_with_fewer_reads() -> None:
    rng = np.random.default_rng(0)
    num_rows = 200_000
    places = rng.permutation(num_rows).astype(np.int32)
    missed = [np.unique(places[(num_rows * rng.random(6000) ** 2).astype(int)]) for _ in range(32)]
    for segment in (8, 16, 32):
        ordered, not_ordered = (
            reads_of(missed, segment, num_rows, is_ordered=is_ordered)
            for is_ordered in (True, False)
        )
        assert ordered[0] < 0.9 * not_ordered[0]
        assert ordered[1] < 0.8 * not_ordered[1]
