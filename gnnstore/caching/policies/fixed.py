"""Plans of a cache whose rows are chosen once: by degree, or by how often sampling needs them.

DiskGNN keeps such a cache in front of packed rows. Which rows it holds is decided elsewhere (see
`planning.static_cache`); here it is planned like any other, so that it is followed, and its
misses are packed, in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.policies.belady import SuperbatchPlan, Trace, check_num_slots
from gnnstore.caching.stepped_plan import PlannedStep, SteppedPlan
from gnnstore.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gnnstore.caching.spilled_plan import SpilledPlan
    from gnnstore.caching.trace_file import SpilledTrace

__all__ = [
    "SLOT_BYTES",
    "FixedPlanner",
    "index_bytes",
    "spilled_transient_bytes",
    "transient_bytes",
]

# What the planner knows of a slot: its node, and whether its row is there; that again for the
# plan that is made.
SLOT_BYTES = 8 + 2 * 1
_WORD_NODES = 64
_INDEX_WORD_BYTES = 8 + 4
_SEEN_WORD_BYTES = 8
# The slots of each batch before they are joined, an eighth more as they come from the pool, and
# changes as long as the cache is being filled.
_ACCESS_BYTES = 5


def index_bytes(num_nodes: int) -> int:
    """Return what a planner holds all the time, beside `SLOT_BYTES` a slot."""
    return -(-num_nodes // _WORD_NODES) * _INDEX_WORD_BYTES


def transient_bytes(num_nodes: int, num_accesses: int) -> int:
    """Return what making a plan takes beside trace and plan: a bit a node, and the plan in pieces.

    Parameters
    ----------
    num_accesses : int
        Rows of all batches.
    """
    return -(-num_nodes // _WORD_NODES) * _SEEN_WORD_BYTES + _ACCESS_BYTES * num_accesses


def spilled_transient_bytes(num_nodes: int, largest_batch: int) -> int:
    """Return what making a plan in files takes: a bit a node, and a batch.

    Parameters
    ----------
    largest_batch : int
        Rows of the largest batch: its ids of 8 bytes, its slots, and changes, twice.
    """
    words = -(-num_nodes // _WORD_NODES)
    return words * _SEEN_WORD_BYTES + (8 + 4 + 2 * 8) * largest_batch


class FixedPlanner:
    """Plans superbatch after superbatch for a cache that is to hold the rows of some nodes.

    A row has its slot, and stays there for good. Usually the cache is filled beforehand, and
    `restart` tells so: then plans bring no changes. A row that is not there yet enters after the
    first batch that needs it. Not to be used by two threads at once.

    Parameters
    ----------
    nodes : ndarray of int64 [C]
        The node whose row goes to each slot: strictly ascending; then, at the end, -1 for slots
        that stay empty.
    num_nodes : int
        Of the graph.

    Raises
    ------
    UsageError
        If the nodes do not ascend, or are not nodes of the graph.
    """

    def __init__(self, nodes: npt.NDArray[np.int64], num_nodes: int) -> None:
        check_num_slots(len(nodes))
        self._fixed = nodes.astype(np.int64)
        held = self._fixed[: int(np.count_nonzero(self._fixed >= 0))]
        try:
            self._bits, self._ranks = _core.index_nodes(held, num_nodes)
        except (ValueError, IndexError) as error:
            raise UsageError(
                f"a fixed cache has nodes of the graph in ascending order, and -1 behind them: "
                f"{error}"
            ) from error
        self._held = np.zeros(len(nodes), np.uint8)

    @property
    def num_slots(self) -> int:
        """C."""
        return len(self._fixed)

    @property
    def nodes(self) -> npt.NDArray[np.int64]:
        """The row in each slot after the last plan, int64 [C]; -1: none that matters. A copy."""
        return np.where(self._held, self._fixed, -1)

    def plan(self, trace: Trace) -> SuperbatchPlan:
        """Plan the next superbatch.

        Parameters
        ----------
        trace : Trace
            Must not be changed while the plan is used.

        Raises
        ------
        UsageError
            If an id is not a node of the graph.
        """
        held = self._held.copy()
        steps = list(self._steps(trace, held))
        self._held = held
        offsets = np.zeros(trace.num_batches + 1, np.int64)
        np.cumsum([len(step.change_slots) for step in steps], out=offsets[1:])
        none = np.empty(0, np.int32)
        return SuperbatchPlan(
            trace.offsets,
            np.concatenate([none, *(step.slots for step in steps)]),
            np.array([step.misses for step in steps], np.int64),
            offsets,
            np.concatenate([none, *(step.change_positions for step in steps)]),
            np.concatenate([none, *(step.change_slots for step in steps)]),
        )

    def plan_spilled(
        self,
        trace: SpilledTrace,
        path: Path,
        *,
        table_bytes: int = 0,  # noqa: ARG002 - that of planners that look ahead
    ) -> SpilledPlan:
        """Plan the next superbatch in files, in the same way.

        Parameters
        ----------
        trace : SpilledTrace
            Must not be closed meanwhile.
        path : Path
            Without a suffix: `path.slots` and `path.changes` are made, and removed by the plan's
            `close`, or if planning fails.
        table_bytes : int
            Not needed.

        Raises
        ------
        CorruptStoreError
            If the trace's file no longer holds what was written.
        NoSpaceError, StorageError
            If the files cannot be made, read or written.
        UsageError
            If an id is not a node of the graph.
        """
        held = self._held.copy()
        plan = SteppedPlan(trace, path, self._steps(trace, held))
        self._held = held
        return plan

    def _steps(
        self, trace: Trace | SpilledTrace, held: npt.NDArray[np.uint8]
    ) -> Iterator[PlannedStep]:
        """Plan batch after batch; notes in `held` what enters."""
        seen = np.zeros_like(self._bits)
        for i in range(trace.num_batches):
            ids = trace.batch(i)
            slots = np.empty(len(ids), np.int32)
            try:
                planned = _core.plan_fixed(self._bits, self._ranks, held, seen, ids, slots)
            except (ValueError, IndexError) as error:
                raise UsageError(f"cannot plan batch {i} of a superbatch: {error}") from error
            yield PlannedStep(slots, *planned)

    def restart(self, nodes: npt.NDArray[Any]) -> None:
        """Go on from a cache that holds these rows; those in other slots than theirs do not count.

        Parameters
        ----------
        nodes : ndarray of int64 [C]
            The row in each slot; -1: none.

        Raises
        ------
        UsageError
            If there is not one entry per slot.
        """
        if nodes.shape != self._fixed.shape:
            raise UsageError(
                f"expected the rows in {self.num_slots} slots, got an array of shape {nodes.shape}"
            )
        self._held = ((nodes == self._fixed) & (self._fixed >= 0)).astype(np.uint8)

    def clear(self) -> None:
        """Forget the cache, so that the next superbatch finds it empty."""
        self._held.fill(0)
