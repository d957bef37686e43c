"""The assignment of edges and nodes to the states that train them, and its bias.

An edge from partition i to partition j lies in *bucket* (i, j), which can be trained in any state
that holds both partitions. The state of each bucket is drawn (MariusGNN, section 5.2), to spread
work over states: a bucket is not always trained in the first state that holds it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError, check_choice
from gnnstore.partitions.orders import Purpose, Schedule, draws
from gnnstore.random_words import uniform

Int64Array = npt.NDArray[np.int64]
ASSIGNMENTS = ("random", "greedy")


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
