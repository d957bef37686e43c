"""The order in which partitions enter and leave the buffer, and what each state trains.

A *state* is the set of partitions that are in the buffer together. Partitions are divided into
*logical groups*, drawn anew in each epoch, and one state differs from the next by one group
(MariusGNN, sections 5.2 and 5.3). For training on edges every pair of groups must meet in some
state; for training on nodes every group must be in one.

An edge from partition i to partition j lies in *bucket* (i, j), which can be trained in any state
that holds both partitions. The state of each bucket is drawn (section 5.2), to spread work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError, check_choice
from gnnstore.random_words import keyed, permutation, uniform
from gnnstore.units import format_count

Int64Array = npt.NDArray[np.int64]
ORDERS = ("even", "beta")
ASSIGNMENTS = ("random", "greedy")


class Purpose(IntEnum):
    """The purpose of a stream of draws: streams of one seed and epoch are independent.

    The last word of the generator's counter is 2^64 - 1 less this; the number of a batch, which the
    sampler has there, never comes near, and 2^64 - 1 itself is the shuffle's.
    """

    GROUPS = 1
    STATES = 2
    BUCKETS = 3
    NODES = 4
    SEEDS = 5
    PARTS = 6


def draws(seed: int, epoch: int, purpose: Purpose, state: int = 0) -> np.random.Philox:
    """Return the generator of a purpose; use only its raw words."""
    return keyed((seed, epoch), (0, 0, state, 2**64 - 1 - purpose))


def shuffled(values: npt.ArrayLike, generator: np.random.Philox) -> Int64Array:
    """Return values in a drawn order."""
    array = np.asarray(values, np.int64)
    return array[permutation(len(array), generator)]


@dataclass(frozen=True, eq=False)
class Schedule:
    """The states of one epoch."""

    groups: Int64Array  # int64 [l, f]: partitions of each logical group
    states: Int64Array  # int64 [n, c_l]: groups in the buffer in each state

    @property
    def num_partitions(self) -> int:
        """Number of partitions, p."""
        return int(self.groups.size)

    @property
    def group_of(self) -> Int64Array:
        """Logical group of each partition, int64 [p]."""
        found = np.empty(self.num_partitions, np.int64)
        found[self.groups.ravel()] = np.repeat(np.arange(len(self.groups)), self.groups.shape[1])
        return found

    def partitions(self, state: int) -> Int64Array:
        """Return the partitions in the buffer in a state, ascending [c]."""
        return np.sort(self.groups[self.states[state]].ravel())


def two_level(
    num_partitions: int,
    capacity: int,
    num_groups: int,
    *,
    order: str = "even",
    seed: int = 0,
    epoch: int = 0,
) -> Schedule:
    """Return a schedule in which every pair of partitions meets."""
    size = group_size(num_partitions, capacity, num_groups)
    per_state = capacity // size
    if per_state < 2 and num_groups > 1:
        raise UsageError(
            f"capacity={capacity} of {num_partitions} partitions in {num_groups} groups: one group "
            "is in the buffer at a time, so that no two of them meet; give at least "
            f"capacity={2 * size}, or logical={2 * num_partitions // capacity}"
        )
    check_choice("order", order, ORDERS)
    generator = draws(seed, epoch, Purpose.STATES)
    if per_state >= num_groups:
        states = np.arange(num_groups)[None]
    elif order == "beta":
        states = _beta(num_groups, per_state, generator)
    elif per_state == 2:
        names = shuffled(np.arange(num_groups), generator)
        states = names[even_pairs(num_groups)]
    else:
        raise UsageError(
            f"order='even' keeps two groups in the buffer, and capacity={capacity} with "
            f"{format_count(num_groups, 'group')} of {size} keeps {per_state}; give "
            f"logical={2 * num_partitions // capacity}, or order='beta'"
        )
    return Schedule(_drawn_groups(num_partitions, size, seed, epoch), states)


def dispersed(
    num_partitions: int, capacity: int, num_groups: int, *, seed: int = 0, epoch: int = 0
) -> Schedule:
    """Return a schedule in which every partition is read once (section 5.3)."""
    size = group_size(num_partitions, capacity, num_groups)
    generator = draws(seed, epoch, Purpose.STATES)
    order = shuffled(np.arange(num_groups), generator)
    resident = order[: capacity // size].copy()
    states = [resident.copy()]
    for entering in order[capacity // size :]:
        resident[int(generator.random_raw()) * len(resident) >> 64] = entering
        states.append(resident.copy())
    return Schedule(_drawn_groups(num_partitions, size, seed, epoch), np.stack(states))


def sequential(
    num_partitions: int, capacity: int, num_train: int, *, seed: int = 0, epoch: int = 0
) -> Schedule:
    """Return a schedule of one state: partitions of training nodes, and others (section 5.3)."""
    _check_capacity(num_partitions, capacity)
    if num_train > capacity:
        raise UsageError(
            f"capacity={capacity} partitions do not hold the {num_train} of {num_partitions} that "
            f"training nodes lie in; give capacity={num_train} or more, or kind='dispersed'"
        )
    others = shuffled(np.arange(num_train, num_partitions), draws(seed, epoch, Purpose.GROUPS))
    groups = np.concatenate([np.arange(num_train), others])[:, None]
    return Schedule(groups, np.arange(capacity)[None])


def even_pairs(num_groups: int) -> Int64Array:
    """Return all pairs of groups, int64 [l (l - 1) / 2, 2], each sharing a group with the next."""
    num_zigzag = num_groups - num_groups % 2
    if num_zigzag == 0:
        return np.zeros((1, 1), np.int64)
    offsets = np.empty(num_zigzag, np.int64)  # 0, 1, -1, 2, -2, ...
    offsets[0::2] = -np.arange(num_zigzag // 2)
    offsets[1::2] = np.arange(1, num_zigzag // 2 + 1)
    paths = []
    for first in range(num_zigzag // 2):
        path = (first + offsets) % num_zigzag
        if num_groups % 2:
            path = np.concatenate([[num_zigzag], path, [num_zigzag]])
        paths.append(path[::-1] if first % 2 else path)
    return np.concatenate([np.stack([path[:-1], path[1:]], axis=1) for path in paths])


def beta_swaps(num_groups: int, per_state: int) -> int:
    """Return the number of swaps of BETA, and for two groups in the buffer of any order."""
    left = num_groups - per_state
    rounds = left // (per_state - 1)
    return (rounds + 2) * left - (per_state - 1) * rounds * (rounds + 1) // 2


def _beta(num_groups: int, per_state: int, generator: np.random.Philox) -> Int64Array:
    """Return the states of BETA: all but one group stay while the others pass through one slot."""
    order = shuffled(np.arange(num_groups), generator)
    resident, on_disk = order[:per_state], order[per_state:]
    states = [resident.copy()]
    while len(on_disk):
        resident, on_disk = shuffled(resident, generator), shuffled(on_disk, generator)
        for i in range(len(on_disk)):
            on_disk[i], resident[-1] = resident[-1], on_disk[i]
            states.append(resident.copy())
        on_disk = shuffled(on_disk, generator)
        num_new = min(per_state - 1, len(on_disk))
        for i in range(num_new):
            resident[i] = on_disk[i]
            states.append(resident.copy())
        on_disk = on_disk[num_new:]
    return np.stack(states)


def group_size(num_partitions: int, capacity: int, num_groups: int) -> int:
    """Return the partitions in a group, f, after checking that p, c and l divide one another."""
    _check_capacity(num_partitions, capacity)
    if not 1 <= num_groups <= num_partitions or num_partitions % num_groups:
        divisors = [d for d in range(1, num_partitions + 1) if num_partitions % d == 0]
        raise UsageError(
            f"logical={num_groups} does not divide {num_partitions} partitions into groups of one "
            f"size; the nearest that do are {nearest(divisors, num_groups)}"
        )
    size = num_partitions // num_groups
    if capacity % size:
        multiples = range(size, num_partitions + 1, size)
        raise UsageError(
            f"capacity={capacity} is not a multiple of the {size} partitions that each of "
            f"{format_count(num_groups, 'group')} has; the nearest are "
            f"{nearest(multiples, capacity)}"
        )
    return size


def _check_capacity(num_partitions: int, capacity: int) -> None:
    if not 1 <= capacity <= num_partitions:
        raise UsageError(
            f"capacity={capacity}: expected 1 to {num_partitions}, the number of partitions"
        )


def nearest(numbers: Sequence[int], wanted: int) -> str:
    """Return the last of ascending numbers below another, and the first above, for a message."""
    below, above = [n for n in numbers if n < wanted], [n for n in numbers if n > wanted]
    return " and ".join(map(str, below[-1:] + above[:1]))


def _drawn_groups(num_partitions: int, size: int, seed: int, epoch: int) -> Int64Array:
    generator = draws(seed, epoch, Purpose.GROUPS)
    return shuffled(np.arange(num_partitions), generator).reshape(-1, size)


def states_of_buckets(
    schedule: Schedule, *, assignment: str = "random", seed: int = 0, epoch: int = 0
) -> npt.NDArray[np.int32]:
    """Return the state that trains each bucket, int32 [p, p]: by source, then target partition."""
    check_choice("assignment", assignment, ASSIGNMENTS)
    group_of = schedule.group_of
    num_partitions, num_groups = schedule.num_partitions, len(schedule.groups)
    pairs = schedule.states[:, :, None] * num_groups + schedule.states[:, None, :]
    begins, states = _states_with(pairs, num_groups * num_groups)
    generator = draws(seed, epoch, Purpose.BUCKETS)
    found = np.empty((num_partitions, num_partitions), np.int32)
    for source in range(num_partitions):
        pair = group_of[source] * num_groups + group_of
        first, count = begins[pair], begins[pair + 1] - begins[pair]
        if not count.all():
            target = int(np.flatnonzero(count == 0)[0])
            raise UsageError(
                f"partitions {source} and {target} are in the buffer together in no state, so that "
                "edges between them are never trained; use kind='two-level' for edges"
            )
        if assignment == "random":
            first = first + _chosen(generator.random_raw(num_partitions), count)
        found[source] = states[first]
    return found


def states_of_nodes(
    schedule: Schedule, partitions: npt.ArrayLike, *, seed: int = 0, epoch: int = 0
) -> npt.NDArray[np.int32]:
    """Return the state that trains each node, int32 [k]: any that holds its partition."""
    begins, states = _states_with(schedule.states, len(schedule.groups))
    partitions = np.asarray(partitions, np.int64)
    group = schedule.group_of[partitions]
    first, count = begins[group], begins[group + 1] - begins[group]
    if not count.all():
        raise UsageError(
            f"partition {partitions[np.flatnonzero(count == 0)[0]]} holds nodes to train on, and "
            "is in no state of this order; partition the store with training nodes first, or use "
            "kind='dispersed'"
        )
    generator = draws(seed, epoch, Purpose.NODES)
    chosen = first + _chosen(generator.random_raw(len(partitions)), count)
    found: npt.NDArray[np.int32] = states[chosen].astype(np.int32)
    return found


def edge_permutation_bias(states: npt.NDArray[np.int32]) -> float:
    """Return how far an epoch is from a shuffle of all edges: 0 for a shuffle, at most 1.

    After each state, some nodes have been trained on all their edges and others on none; under a
    shuffle all would have been trained on the same share. The bias is the largest difference
    between shares at any time (MariusGNN, section 6).
    """
    num_states = int(states.max()) + 1
    # As sources and as targets.
    ends = np.concatenate([states, states.T], axis=1)
    trained = np.stack([np.bincount(row, minlength=num_states) for row in ends], axis=1)
    differences = np.ptp(np.cumsum(trained, axis=0), axis=1)
    return float(differences.max()) / (2 * len(states))


def _states_with(held: npt.NDArray[Any], num_kinds: int) -> tuple[Int64Array, Int64Array]:
    """Return the begin of each kind's states in a list, int64 [num_kinds + 1], and the list."""
    states = np.repeat(np.arange(len(held)), held[0].size)
    order = np.argsort(held, axis=None, kind="stable")
    begins = np.searchsorted(held.ravel()[order], np.arange(num_kinds + 1))
    return begins.astype(np.int64), states[order]


def _chosen(words: npt.NDArray[np.uint64], count: Int64Array) -> Int64Array:
    """Return a number below each count, from 64 random bits each."""
    return (uniform(words) * count).astype(np.int64)
