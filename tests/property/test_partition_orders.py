"""Schedules of partitions: the invariants that training by states stands on, and their costs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.errors import UsageError
from gnnstore.partitions.orders import (
    ORDERS,
    Schedule,
    beta_swaps,
    dispersed,
    edge_permutation_bias,
    even_pairs,
    sequential,
    states_of_buckets,
    states_of_nodes,
    two_level,
)
from tests.support.effort import choose, is_long
from tests.support.twins.partitions import partitions_loaded

KEYS = st.tuples(st.integers(0, 2**63), st.integers(0, 2**31))


@st.composite
def sizes(draw: st.DrawFn, least_resident: int) -> tuple[int, int, int]:
    """Partitions, capacity and groups that divide one another."""
    num_groups = draw(st.integers(least_resident, 12))
    per_group = draw(st.integers(1, 3))
    resident = draw(st.integers(least_resident, num_groups))
    return num_groups * per_group, resident * per_group, num_groups


def least_swaps(num_groups: int, per_state: int) -> int:
    """Return the lower bound: a swap makes at most c_l - 1 pairs meet for the first time."""
    pairs = num_groups * (num_groups - 1) // 2 - per_state * (per_state - 1) // 2
    return -(-pairs // (per_state - 1))


def held(schedule: Schedule) -> list[set[int]]:
    return [set(schedule.partitions(i).tolist()) for i in range(len(schedule.states))]


def num_swaps(schedule: Schedule) -> int:
    return len(schedule.states) - 1


def check_states(schedule: Schedule, capacity: int) -> None:
    """Every state holds c partitions, and differs from the next by one group."""
    states = held(schedule)
    size = schedule.groups.shape[1]
    assert all(len(state) == capacity for state in states)
    assert all(len(b - a) == size for a, b in pairwise(states))


@settings(deadline=None)
@given(sizes(2), KEYS, st.sampled_from(ORDERS), st.sampled_from(["random", "greedy"]))
def test_every_bucket_is_trained_once_where_both_its_partitions_are(
    numbers: tuple[int, int, int], key: tuple[int, int], order: str, assignment: str
) -> None:
    num_partitions, capacity, num_groups = numbers
    if order == "even":
        capacity = 2 * num_partitions // num_groups
    seed, epoch = key
    schedule = two_level(num_partitions, capacity, num_groups, order=order, seed=seed, epoch=epoch)
    check_states(schedule, capacity)
    assert np.array_equal(np.sort(schedule.groups.ravel()), np.arange(num_partitions))
    of = states_of_buckets(schedule, assignment=assignment, seed=seed, epoch=epoch)
    states = held(schedule)
    member = np.zeros((len(states), num_partitions), bool)
    for state, partitions in enumerate(states):
        member[state, list(partitions)] = True
    sources, targets = np.indices(of.shape)
    assert (member[of, sources] & member[of, targets]).all()
    if assignment == "greedy":
        together = member[:, :, None] & member[:, None, :]
        assert np.array_equal(of, together.argmax(axis=0))
    resident = capacity * num_groups // num_partitions
    if resident < num_groups:
        assert num_swaps(schedule) == beta_swaps(num_groups, resident)
        assert num_swaps(schedule) >= least_swaps(num_groups, resident)
        if resident == 2:
            assert num_swaps(schedule) == least_swaps(num_groups, 2)
    else:
        assert num_swaps(schedule) == 0
        assert edge_permutation_bias(of) == 0


@settings(deadline=None)
@given(sizes(1), KEYS, st.integers(1, 500))
def test_dispersed_reads_every_partition_once_and_trains_every_node(
    numbers: tuple[int, int, int], key: tuple[int, int], num_nodes: int
) -> None:
    num_partitions, capacity, num_groups = numbers
    seed, epoch = key
    schedule = dispersed(num_partitions, capacity, num_groups, seed=seed, epoch=epoch)
    check_states(schedule, capacity)
    assert partitions_loaded(schedule) == num_partitions
    partitions = np.arange(num_nodes) % num_partitions
    of = states_of_nodes(schedule, partitions, seed=seed, epoch=epoch)
    states = held(schedule)
    assert all(p in states[s] for p, s in zip(partitions.tolist(), of.tolist(), strict=True))


@settings(deadline=None)
@given(st.integers(2, 60), st.data(), KEYS)
def test_sequential_holds_the_training_partitions_and_others(
    num_partitions: int, data: st.DataObject, key: tuple[int, int]
) -> None:
    capacity = data.draw(st.integers(1, num_partitions))
    num_train = data.draw(st.integers(0, capacity))
    schedule = sequential(num_partitions, capacity, num_train, seed=key[0], epoch=key[1])
    check_states(schedule, capacity)
    assert num_swaps(schedule) == 0
    assert set(range(num_train)) <= held(schedule)[0]
    nodes = np.arange(num_train)
    if num_train:
        assert not states_of_nodes(schedule, nodes).any()


def test_schedules_are_functions_of_seed_and_epoch() -> None:
    first = two_level(16, 4, 8, seed=3, epoch=5)
    again = two_level(16, 4, 8, seed=3, epoch=5)
    assert np.array_equal(first.groups, again.groups)
    assert np.array_equal(first.states, again.states)
    buckets = states_of_buckets(first, seed=3, epoch=5)
    assert np.array_equal(buckets, states_of_buckets(again, seed=3, epoch=5))
    for seed, epoch in ((3, 6), (4, 5)):
        other = two_level(16, 4, 8, seed=seed, epoch=epoch)
        assert not np.array_equal(first.groups, other.groups)
        assert not np.array_equal(first.states, other.states)


def test_a_bucket_is_as_likely_in_each_state_that_could_train_it() -> None:
    # Of one schedule, many assignments: chi-square of the buckets inside a group.
    num_epochs = choose(1000, 4000)
    schedule = two_level(4, 2, 4, seed=1)
    states = held(schedule)
    candidates = [s for s, state in enumerate(states) if 0 in state]
    found = [states_of_buckets(schedule, seed=2, epoch=e)[0, 0] for e in range(num_epochs)]
    counts = np.bincount(found, minlength=len(states))
    assert counts.sum() == counts[candidates].sum()
    expected = num_epochs / len(candidates)
    chi_square = ((counts[candidates] - expected) ** 2 / expected).sum()
    assert chi_square < 25  # 0.9999 quantile of 3 degrees of freedom is 21


@pytest.mark.parametrize("num_groups", range(2, 33))
def test_even_pairs_meet_once_and_share_a_group_with_the_next(num_groups: int) -> None:
    pairs = even_pairs(num_groups)
    assert len({frozenset(pair) for pair in pairs.tolist()}) == len(pairs)
    assert len(pairs) == num_groups * (num_groups - 1) // 2
    for a, b in zip(pairs[:-1].tolist(), pairs[1:].tolist(), strict=True):
        assert len(set(a) & set(b)) == 1


def test_swaps_of_beta_follow_the_formula_for_all_sizes() -> None:
    for num_groups in range(3, 65 if is_long() else 25):
        for resident in range(2, num_groups):
            schedule = two_level(num_groups, resident, num_groups, order="beta", seed=num_groups)
            assert num_swaps(schedule) == beta_swaps(num_groups, resident)
            assert num_swaps(schedule) >= least_swaps(num_groups, resident)
            met = np.eye(num_groups, dtype=bool)
            for state in schedule.states:
                met[np.ix_(state, state)] = True
            assert met.all()


@pytest.mark.parametrize(("num_groups", "most"), [(8, 0.50), (16, 0.27), (32, 0.14)])
def test_the_even_order_has_less_bias_than_beta_at_as_many_swaps(
    num_groups: int, most: float
) -> None:
    p = 4 * num_groups

    def bias(order: str, assignment: str, epoch: int) -> float:
        schedule = two_level(p, 8, num_groups, order=order, seed=7, epoch=epoch)
        assert num_swaps(schedule) == beta_swaps(num_groups, 2)
        of = states_of_buckets(schedule, assignment=assignment, seed=7, epoch=epoch)
        return edge_permutation_bias(of)

    even = np.mean([bias("even", "random", epoch) for epoch in range(5)])
    assert even <= most
    assert bias("beta", "greedy", 0) == pytest.approx(1 - 1 / num_groups)


def test_the_bias_is_the_largest_difference_of_shares() -> None:
    # After state 0, partition 0 has 2 of its 4 ends trained, partition 1 none.
    assert edge_permutation_bias(np.array([[0, 1], [1, 1]], np.int32)) == pytest.approx(0.5)
    assert edge_permutation_bias(np.zeros((3, 3), np.int32)) == 0


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((12, 4, 5), "logical=5.*4 and 6"),
        ((12, 5, 6), "capacity=5.*4 and 6"),
        ((12, 13, 6), "capacity=13.*1 to 12"),
        ((12, 0, 6), "capacity=0.*1 to 12"),
        ((12, 2, 6), "capacity=4, or logical=12"),
        ((12, 6, 6), "logical=4, or order='beta'"),
    ],
)
def test_numbers_that_do_not_divide_one_another_are_refused(
    arguments: tuple[int, int, int], names: str
) -> None:
    with pytest.raises(UsageError, match=names):
        two_level(*arguments)


def test_orders_that_do_not_train_everything_are_refused() -> None:
    with pytest.raises(UsageError, match="capacity=5"):
        sequential(16, 4, 5)
    with pytest.raises(UsageError, match="order="):
        two_level(4, 2, 4, order="walecki")
    with pytest.raises(UsageError, match="two-level"):
        states_of_buckets(dispersed(8, 2, 4))
    with pytest.raises(UsageError, match="dispersed"):
        states_of_nodes(sequential(8, 4, 2, seed=1), np.arange(8))
    with pytest.raises(UsageError, match="assignment="):
        states_of_buckets(two_level(4, 2, 4), assignment="first")
