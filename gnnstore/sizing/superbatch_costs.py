"""What superbatches take of memory and disk, known to the byte from the size of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gnnstore.caching.policies.base import CachePolicy, SpillingPolicy
from gnnstore.caching.policies.belady import WAITING_BYTES
from gnnstore.caching.policies.registry import BELADY

# The slot of each row, in the plan that is followed and in the one that is made.
_ACCESS_BYTES = 2 * np.dtype(np.int32).itemsize
# A row that enters the cache: its position and slot, in two plans.
_CHANGE_BYTES = 2 * 2 * np.dtype(np.int32).itemsize
# For each slot, which row is in it, beside what the planner knows.
_NODE_BYTES = 8
# Of what is left, for subgraphs in memory, and as much for plans: beyond, they are cheap to write
# to disk and read back (2.8 MB for a batch of 136,000 nodes, in one piece) and rows are not.
KEPT_SHARE = 16
# As much at most for the table in which a plan outside memory finds next uses, but at least this.
_LEAST_TABLE_BYTES = 1 << 20
_TABLE_ENTRY_BYTES = 4
# On disk, for each node of a batch, beside its id: its slot, and the change that it may bring.
_SPILLED_NODE_BYTES = 4 + 8
# What packing takes: windows of the table and buffers that are being written, a buffer for each
# batch, and for each missed row its place, in two superbatches, and its id.
LEAST_PACKING_BYTES = 24 << 20
_PACKING_BATCH_BYTES = 128 << 10
_PACKED_ROW_BYTES = 2 * 4 + 8
# With plans on disk, missed rows are in files too: a batch has a buffer, ids of 4,096 rows, and
# 256 bytes and every 1024th of its rows twice, by which the others are found.
_SPILLED_PACKING_BATCH_BYTES = (64 << 10) + 256
_RANGE_ROWS = 4096
_SAMPLED_ROWS = 1024
# What sorting one batch takes of each row that is missed, beside its id and position: keys of 8
# bytes, twice; and how buffers are rounded up, of which there are four.
_SORTED_ROW_BYTES = 2 * (8 + 1)
_BUFFER_UNIT_BYTES = 2 << 20
# A batch's run of rows begins on a page.
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class SuperbatchCosts:
    """What superbatches of one loader take.

    Attributes
    ----------
    num_rows : int
        Rows of the tables: more slots are of no use.
    row_bytes : int
        Bytes of a row, of all tables that are cached.
    batch_nodes : int
        Nodes of the largest batch.
    id_bytes : int
        Of a node id in a trace.
    kept_bytes : int
        Of a batch's subgraph, from when it is sampled until it is joined with its rows.
    changes_share : float
        Rows of a batch that enter the cache, among all of it.
    packed_rows : int
        Rows of a batch that are packed, at most; 0 where none are.
    mean_packed_rows : int
        Of the batches of a superbatch; 0: as many as at most. With a cache that is empty, the
        first batches miss all of their rows.
    policy : CachePolicy
        Whose planner it is.
    strategy : str
        Name of the loader's strategy, for messages.
    epoch_batches : int
        Batches of an iteration; with a superbatch of so many, there is one at a time.
    sampling_bytes : int
        Memory beside all of this that is free while a superbatch is planned.
    """

    num_rows: int
    row_bytes: int
    batch_nodes: int
    id_bytes: int
    kept_bytes: int
    changes_share: float = 1.0
    packed_rows: int = 0
    mean_packed_rows: int = 0
    policy: CachePolicy = BELADY
    strategy: str = BELADY.name
    epoch_batches: int = 0
    sampling_bytes: int = 0

    def planning_bytes(self, num_batches: int) -> int:
        """Return what traces and plans of two superbatches take: one made, one followed."""
        access_bytes = self.id_bytes + _ACCESS_BYTES
        access_bytes += int(np.ceil(_CHANGE_BYTES * self.changes_share))
        num_accesses = num_batches * self.batch_nodes
        planning = num_accesses * access_bytes
        planning += self.policy.planning_bytes(num_accesses)
        if not self.packed_rows:
            return planning
        per_batch = _PACKING_BATCH_BYTES + _PACKED_ROW_BYTES * self._packed_each
        return planning + LEAST_PACKING_BYTES + num_batches * per_batch

    def spilled_planning_bytes(
        self, num_batches: int, left_bytes: int, cache_bytes: int | None = None
    ) -> int:
        """Return what it takes where traces and plans are on disk, beside `slots_bytes`.

        Parameters
        ----------
        left_bytes : int
            Memory for both.
        cache_bytes : int, optional
            For slots; by default what is left.
        """
        table = self.table_bytes(left_bytes)
        planning = self._spilling.spilled_bytes(
            num_nodes=self.num_rows,
            largest_batch=self.batch_nodes,
            num_batches=num_batches,
            table_bytes=table,
        )
        if self.packed_rows:
            planning += self._spilled_packing_bytes(num_batches)
        # Slots have the table's memory afterwards: as many as there are at least.
        num_slots = self.slots_in(left_bytes - planning, spills=True)
        if cache_bytes is not None:
            num_slots = min(num_slots, self.slots_in(cache_bytes, spills=True))
        waiting = min(table, WAITING_BYTES * num_slots)
        return planning - waiting - min(table - waiting, self.sampling_bytes)

    def table_bytes(self, left_bytes: int) -> int:
        """Return the memory to give to a table of next uses.

        With fewer than 4 bytes a node, a plan takes its trace in several passes: 0.8 ms each for
        a batch of 136,000 nodes, and more where the files have to come from the disk.
        """
        whole = _TABLE_ENTRY_BYTES * max(1, self.num_rows)
        most = max(_LEAST_TABLE_BYTES, left_bytes // KEPT_SHARE, self.sampling_bytes)
        num_passes = -(-whole // most)
        return -(-whole // num_passes)

    def packing_bytes(self, num_batches: int, *, spills: bool = False) -> int:
        """Return the part of `planning_bytes` that packing one superbatch takes.

        Parameters
        ----------
        spills : bool
            Whether plans are made on disk: the part of `spilled_planning_bytes`.
        """
        if spills:
            return self._spilled_packing_bytes(num_batches)
        per_batch = _PACKING_BATCH_BYTES + (_PACKED_ROW_BYTES - 4) * self._packed_each
        return LEAST_PACKING_BYTES + num_batches * per_batch

    def _spilled_packing_bytes(self, num_batches: int) -> int:
        """Return the memory that `pack` is given: none for each missed row."""
        samples = 2 * (self.packed_rows // _SAMPLED_ROWS + 1)
        known = num_batches * samples * self.id_bytes
        per_batch = _SPILLED_PACKING_BATCH_BYTES + _RANGE_ROWS * self.id_bytes
        row_bytes = 4 + self.id_bytes
        sorting = self.packed_rows * (_SORTED_ROW_BYTES + row_bytes)
        sorting += self.batch_nodes * (row_bytes + row_bytes // 8 + 1) + 4 * _BUFFER_UNIT_BYTES
        return known + num_batches * per_batch + max(LEAST_PACKING_BYTES, sorting)

    def disk_bytes(self, num_batches: int) -> int:
        """Return what packed rows take on disk, of two superbatches or all that there are."""
        run = -(-self._packed_each * self.row_bytes // _PAGE_BYTES) * _PAGE_BYTES
        return self._at_once(num_batches) * num_batches * run

    def spilled_disk_bytes(self, num_batches: int) -> int:
        """Return what traces, plans, subgraphs and sorted misses take there, of as many."""
        batch_bytes = (self.id_bytes + _SPILLED_NODE_BYTES) * self.batch_nodes + self.kept_bytes
        batch_bytes += (self.id_bytes + 4) * self._packed_each  # sorted, and their positions
        return self._at_once(num_batches) * num_batches * batch_bytes

    @property
    def _packed_each(self) -> int:
        return self.mean_packed_rows or self.packed_rows

    def _at_once(self, num_batches: int) -> int:
        return 1 if 0 < self.epoch_batches <= num_batches else 2

    def keeping_bytes(self, num_batches: int) -> int:
        """Return what the subgraphs of two superbatches take."""
        return 2 * num_batches * self.kept_bytes

    def slots_in(self, num_bytes: int, *, spills: bool = False) -> int:
        """Return how many rows can be cached; none where no table is read.

        Parameters
        ----------
        spills : bool
            Whether plans are made on disk.
        """
        if self.row_bytes == 0:
            return 0
        return max(0, min(self.num_rows, num_bytes // self._slot_bytes(spills)))

    def slots_bytes(self, num_slots: int, *, spills: bool = False) -> int:
        """Return what cached rows take, and what is known of them."""
        return num_slots * self._slot_bytes(spills)

    def _slot_bytes(self, spills: bool) -> int:
        planner = self._spilling.spilled_slot_bytes if spills else self.policy.slot_bytes
        return self.row_bytes + _NODE_BYTES + planner

    @property
    def may_spill(self) -> bool:
        """Whether traces and plans may be on disk."""
        return isinstance(self.policy, SpillingPolicy)

    @property
    def _spilling(self) -> SpillingPolicy:
        assert isinstance(self.policy, SpillingPolicy)  # noqa: S101 - `may_spill` was asked
        return self.policy


def with_measured_changes(costs: SuperbatchCosts, changes: int, accesses: int) -> SuperbatchCosts:
    """Return the costs where so many of the rows of some batches entered the cache."""
    # A quarter more: a cache that is still being filled takes in more than later.
    share = min(1.0, 1.25 * changes / accesses) if accesses else 1.0
    return replace(costs, changes_share=share)
