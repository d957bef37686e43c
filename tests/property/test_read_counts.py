"""Reads that are counted are those that are made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnstore.disk.profile import ReadTuning
from gnnstore.formats.arrays.pages import PageGeometry, plan_shards
from gnnstore.strategies.workload import ReadTotals, count_extents, count_reads
from tests.support.disks import usual_profile
from tests.support.twins.reads import plan_reads


@given(
    row_bytes=st.sampled_from([1, 8, 100, 512, 600, 4096, 5000]),
    page_bytes=st.sampled_from([512, 4096]),
    shard_bytes=st.sampled_from([None, 1 << 16]),
    alignment_bytes=st.sampled_from([1, 512, 4096]),
    gap_bytes=st.sampled_from([0, 512, 4096, 1 << 16]),
    max_read_bytes=st.sampled_from([4096, 1 << 14, 1 << 16]),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**16),
)
def test_counts_are_those_of_the_plan(
    *,
    row_bytes: int,
    page_bytes: int,
    shard_bytes: int | None,
    alignment_bytes: int,
    gap_bytes: int,
    max_read_bytes: int,
    share: float,
    seed: int,
) -> None:
    num_rows = 400
    layout = plan_shards(PageGeometry(row_bytes, page_bytes), num_rows, shard_bytes)
    rows = np.flatnonzero(np.random.default_rng(seed).random(num_rows) < share)
    expected = plan_reads(rows, layout, alignment_bytes, gap_bytes, max_read_bytes)
    tuning = ReadTuning(gap_bytes, 1, max_read_bytes, "a test")
    found = count_reads(rows.astype(np.int32), layout, alignment_bytes, tuning)
    assert found == ReadTotals(len(expected), sum(size for _, size in expected))


@pytest.mark.parametrize("row_bytes", [1, 100, 512, 3072, 4096, 5000])
@pytest.mark.parametrize("gap_bytes", [0, 4096, 20_000, 200_000])
def test_rows_without_pages(row_bytes: int, gap_bytes: int) -> None:
    """They may straddle blocks; and a gap as long as a read spares one."""
    size, num_rows = 16_384, 10**7 // row_bytes
    rows = np.unique(np.random.default_rng(row_bytes).integers(0, num_rows, 150))
    covers = [(r * row_bytes // 4096, -(-(r + 1) * row_bytes // 4096)) for r in rows.tolist()]
    extents: list[list[tuple[int, int]]] = []
    for cover in covers:
        if not extents or (cover[0] - extents[-1][-1][1]) * 4096 > gap_bytes:
            extents.append([])
        extents[-1].append(cover)
    reads = [
        min(begin + size, extent[-1][1] * 4096) - begin
        for extent in extents
        for begin in range(extent[0][0] * 4096, extent[-1][1] * 4096, size)
        if any(a * 4096 < begin + size and b * 4096 > begin for a, b in extent)
    ]
    tuning = ReadTuning(gap_bytes, 1, size, "a test")
    found = count_extents(rows * row_bytes, row_bytes, 4096, tuning)
    assert found == ReadTotals(len(reads), sum(reads))
    assert count_extents(rows[:0], row_bytes, 4096, tuning) == ReadTotals()


def test_seconds_of_a_profile() -> None:
    profile = usual_profile(
        "/", random_reads_per_second={4096: {1: 100_000.0}, 65536: {1: 20_000.0}}
    )
    totals = ReadTotals(1000, 1000 * 4096) + ReadTotals()
    assert totals.seconds_on(profile) == pytest.approx(1000 / 100_000)
