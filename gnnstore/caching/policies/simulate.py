"""Caches to choose from, run over one trace: what each would have had to read from disk.

All of them work as a loader does, batch by batch: the hits of a batch are the rows that were
cached before it, and its rows may enter after it. "degree" and "frequency" are filled once, with
the rows of the highest scores (see `gnnstore.caching.scores`); "lru" and "sieve" learn while they
run, as online caches do; "belady" knows the trace, and no cache misses less. All but the first two
start empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.policies.registry import POLICIES
from gnnstore.caching.scores import SCORES, Score, select_nodes
from gnnstore.caching.trace import Trace


def policies() -> tuple[str, ...]:
    """Return the names of the caches that can be compared."""
    return (*SCORES, *POLICIES.names)


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """Hits and misses of one cache while S batches of n rows in all were assembled."""

    policy: str
    # bool [n]: whether the row was in the cache before its batch, beside the trace's ids.
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
    values = scores[cast(Score, policy)]
    nodes = select_nodes(values, num_slots)
    is_hit = _core.find_slots(*_core.index_nodes(nodes, len(values)), trace.ids) >= 0
    run_of = PolicyRun(policy, is_hit, np.zeros(trace.num_batches, np.int64), nodes)
    run_of.misses[:] = [len(run_of.missed_rows(trace, i)) for i in range(trace.num_batches)]
    return run_of


def distinct_rows(trace: Trace) -> int:
    """Return the rows that batches need, counted once for each batch: misses without a cache."""
    return sum(len(np.unique(trace.batch(i))) for i in range(trace.num_batches))
