"""Caches to choose from, run over one trace: the rows that each would read from disk.

All caches work as a loader does, batch by batch: the hits of a batch are the rows that were
cached before it, and its rows may enter after it. "degree" and "frequency" are filled once, with
the rows of the highest scores (see `gnnstore.caching.scores`); "lru" keeps the rows that were used
last, a batch's one by one, in order; "belady" knows the trace, and no cache misses less. All but
the first two start empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.plan import Trace
from gnnstore.caching.policies.registry import POLICIES
from gnnstore.caching.scores import SCORES, Score, select_nodes

# Places of a trace that are searched at a time for rows to evict.
_SEARCHED_PLACES = 2**16


def policies() -> tuple[str, ...]:
    """Return the names of the caches that can be compared."""
    return (*SCORES, "lru", *POLICIES.names)


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """Hits and misses of one cache while S batches of n rows in all were assembled."""

    policy: str
    # bool [n]: whether each row of the trace was in the cache before its batch.
    is_hit: npt.NDArray[np.bool_]
    misses: npt.NDArray[np.int64]  # int64 [S]: distinct rows of each batch that were not
    # int64 [rows]: nodes whose rows are read before the first batch, ascending; none where the
    # cache starts empty.
    filled: npt.NDArray[np.int64]

    @property
    def num_misses(self) -> int:
        """Rows that were read from disk for batches, counted once for each batch."""
        return int(self.misses.sum())

    def missed_rows(self, trace: Trace, i: int) -> npt.NDArray[Any]:
        """Return the distinct rows that are read from disk for batch i, ascending."""
        is_hit = self.is_hit[trace.offsets[i] : trace.offsets[i + 1]]
        return np.unique(trace.batch(i)[~is_hit])


def run_policy(
    policy: str, trace: Trace, num_slots: int, scores: Mapping[Score, npt.NDArray[Any]]
) -> PolicyRun:
    """Run a cache of some policy over a trace."""
    if policy in POLICIES:
        plan = POLICIES[policy].planner(num_slots).plan(trace)
        return PolicyRun(policy, plan.slots >= 0, plan.misses, np.empty(0, np.int64))
    if policy == "lru":
        nodes, is_hit = np.empty(0, np.int64), _lru_hits(trace, num_slots)
    else:
        values = scores[cast(Score, policy)]
        nodes = select_nodes(values, num_slots)
        is_hit = _core.find_slots(*_core.index_nodes(nodes, len(values)), trace.ids) >= 0
    run_of = PolicyRun(policy, is_hit, np.zeros(trace.num_batches, np.int64), nodes)
    run_of.misses[:] = [len(run_of.missed_rows(trace, i)) for i in range(trace.num_batches)]
    return run_of


def _lru_hits(trace: Trace, num_slots: int) -> npt.NDArray[np.bool_]:
    """Return whether each row is one of those that were used last before its batch."""
    last = np.full(int(trace.ids.max(initial=-1)) + 1, -1, np.int32)  # the last use of each row
    is_last = np.zeros(len(trace.ids), np.bool_)
    is_hit = np.empty(len(trace.ids), np.bool_)
    oldest = 0  # cached are the rows whose last use is here or later
    for i in range(trace.num_batches):
        begin, end = trace.offsets[i : i + 2]
        ids = trace.batch(i)
        before = last[ids]
        is_hit[begin:end] = before >= oldest
        is_last[before[before >= 0]] = False
        last[ids] = np.arange(begin, end)  # of a row that is repeated, its last place remains
        is_last[last[ids]] = True
        leaving = np.count_nonzero(is_last[oldest:end]) - num_slots
        while leaving > 0:
            places = np.flatnonzero(is_last[oldest : oldest + _SEARCHED_PLACES])[:leaving]
            leaving -= len(places)
            oldest += _SEARCHED_PLACES if leaving else int(places[-1]) + 1
    return is_hit


def distinct_rows(trace: Trace) -> int:
    """Return the rows that batches need, counted once for each batch: misses without a cache."""
    return sum(len(np.unique(trace.batch(i))) for i in range(trace.num_batches))
