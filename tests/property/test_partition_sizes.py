"""Sizes of a partition buffer: what fits a budget, and what an epoch reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.errors import BudgetError
from gnnstore.formats.partitions import MOST_PARTITIONS
from gnnstore.partitions.orders import dispersed, two_level
from gnnstore.partitions.policy import (
    BufferSizes,
    Contents,
    best_sizes,
    buffer_sizes,
    most_partitions,
    places_bytes,
    sizes_of_partitions,
)
from tests.support.effort import choose, examples
from tests.support.twins.partitions import partitions_loaded

NUM_NODES, ROW_BYTES = 10**9, 10**6

# Reads of the table an epoch by BETA, for 2, 3, 4, 8 and 16 groups in the buffer, as computed from
# the algorithm of Marius by another program: by share of memory.
TABLE_READS = {2: (2.67, 2.12, 1.90, 1.72, 1.62), 4: (5.58, 4.06, 3.55, 2.94, 2.74)}


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(("share", "expected"), TABLE_READS.items())
def test_reads_of_the_table_follow_the_order(
    share: int, expected: tuple[float, ...], *, writes: bool
) -> None:
    contents = Contents(NUM_NODES, ROW_BYTES, 10**12, edges="none", writes=writes)
    # For places of buckets, and rows that fill the last partition of each.
    slack = 40 * MOST_PARTITIONS**2 + MOST_PARTITIONS * ROW_BYTES
    found = buffer_sizes(contents, contents.node_bytes // share + slack, block_bytes=1)
    reads = {s.resident_groups: s.table_reads for s in found if s.order == "beta"}
    assert [reads[r] for r in (2, 3, 4, 8, 16)] == pytest.approx(expected, abs=0.006)
    (even,) = (s for s in found if s.order == "even")
    assert even.table_reads == reads[2]


CONTENTS = st.builds(
    Contents,
    num_nodes=st.integers(10**4, 10**7),
    row_bytes=st.integers(100, 1000),
    num_edges=st.integers(10**4, 10**9),
    position_bytes=st.sampled_from([4, 8]),
    edges=st.sampled_from(["graph", "trained", "none"]),
    writes=st.booleans(),
    num_building=st.integers(1, 8),
    fixed_bytes=st.integers(0, 10**6),
)


@settings(deadline=None, max_examples=examples(50))
@given(CONTENTS, st.integers(10**5, 10**10), st.booleans())
def test_what_is_offered_fits_and_can_be_scheduled(
    contents: Contents, memory: int, for_edges: bool
) -> None:
    block = 1 << 16
    try:
        found = buffer_sizes(contents, memory, block, for_edges=for_edges)
    except BudgetError as error:
        needed = memory + (error.missing_bytes or 0)
        assert buffer_sizes(contents, needed, block, for_edges=for_edges)
        return
    for sizes in found:
        assert sizes.memory_bytes <= memory
        assert sizes.num_partitions <= most_partitions(contents, block)
        if sizes.num_groups > 40:
            continue
        numbers = sizes.num_partitions, sizes.capacity, sizes.num_groups
        schedule = two_level(*numbers, order=sizes.order) if for_edges else dispersed(*numbers)
        assert partitions_loaded(schedule) / sizes.num_partitions == pytest.approx(
            sizes.table_reads
        )
        expected = _bucket_loads(schedule.states.tolist()) / sizes.num_groups**2
        of_edges = sizes.bytes_read - sizes.table_reads * contents.node_bytes
        assert of_edges == pytest.approx(expected * contents.edge_bytes, rel=1e-6, abs=2)
        assert bool(sizes.bytes_written) == contents.writes
    more = buffer_sizes(contents, 2 * memory, block, for_edges=for_edges)
    for order, resident in {(s.order, s.resident_groups) for s in found}:
        least, other = (
            min(s.table_reads for s in some if (s.order, s.resident_groups) == (order, resident))
            for some in (more, found)
        )
        assert least <= other


def _bucket_loads(states: list[list[int]]) -> int:
    """Count the buckets between groups that are read as states follow one another."""
    held: set[tuple[int, int]] = set()
    loads = 0
    for state in states:
        needed = {(i, j) for i in state for j in state}
        loads += len(needed - held)
        held = needed
    return loads


def sizes_of(seconds: int, order: str, groups: int) -> BufferSizes:
    return BufferSizes(4 * groups, 8, groups, order, 1, seconds, 0)


def test_a_budget_that_nothing_fits_names_its_source() -> None:
    contents = Contents(num_nodes=10**6, row_bytes=1000, num_edges=10**8)
    with pytest.raises(BudgetError, match="of the container"):
        buffer_sizes(contents, 1000, 1 << 16, source="of the container")


def test_the_shortest_epoch_is_best_and_of_those_the_least_biased() -> None:
    slow, fast = sizes_of(20, "even", 32), sizes_of(10, "beta", 8)
    rates = {"read_rate": 1.0, "write_rate": 1.0}
    assert best_sizes([slow, fast], **rates) is fast
    alike = sizes_of(10, "even", 16)
    assert alike.bias() != fast.bias()
    assert best_sizes([fast, alike], **rates) is min(fast, alike, key=BufferSizes.bias)


@pytest.mark.parametrize("num_partitions", choose([64], [16, 32, 64, 96]))
@pytest.mark.parametrize("share", [0.15, 0.26, 0.5])
def test_of_sizes_that_read_nearly_as_little_the_fewest_groups_come_first(
    num_partitions: int, share: float
) -> None:
    rows = Contents(14_541, 4 * 65, edges="none", writes=True)
    memory = int(share * rows.node_bytes) + places_bytes(num_partitions)
    found = sizes_of_partitions(rows, memory, num_partitions, order="beta")
    fitting = [sizes for sizes in found if sizes.memory_bytes <= memory]
    assert found[: len(fitting)] == fitting
    if not fitting:
        return
    best, least = fitting[0], min(sizes.bytes_read for sizes in fitting)
    assert best.bytes_read <= 1.1 * least
    assert all(
        sizes.bytes_read > 1.1 * least for sizes in fitting if sizes.num_groups < best.num_groups
    )
    if (num_partitions, share) == (64, 0.26):
        assert (best.resident_groups, best.num_groups) == (6, 32)
