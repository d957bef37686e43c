"""A batch that is assembled as a plan says, once its superbatch has been sampled and planned."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.disk.buffers import empty
from gnnstore.features.source import Rows
from gnnstore.features.tiers.planned import PlanStep
from gnnstore.pipeline.prepared import PreparedBatch, prepared
from gnnstore.sampling.compact import CompactSubgraph

if TYPE_CHECKING:
    from torch_geometric.sampler import SamplerOutput

    from gnnstore.caching.plan import CachePlan
    from gnnstore.disk.spool import Spool
    from gnnstore.features.tiers.planned import Lease
    from gnnstore.pipeline.lookahead.packer import PackedBatches
    from gnnstore.sampling.neighbor import IndexDtype


@dataclass(frozen=True)
class BatchNote:
    """What is remembered of a batch beside its subgraph."""

    input_id: npt.NDArray[np.int64]
    seconds_sampling: float


@dataclass(eq=False)
class PlannedPart:
    """The batches of a superbatch from one on, as they were planned under one lease.

    A lease may be lost to another loader on the same store, and the rest be planned again.

    Attributes
    ----------
    plan : CachePlan or None
        None once each batch has taken its share: memory is counted for the plan that is followed
        and the one that is made, and iterators hold on to what they have yielded last.
    begin : int
        The first batch, in the superbatch.
    first : int
        Its number under the lease.
    packed : PackedBatches or None
        Where rows are that the plan misses; None: in their table.
    """

    plan: CachePlan | None
    lease: Lease
    begin: int
    first: int
    packed: PackedBatches | None = None

    def step(self, i: int, ids: npt.NDArray[Any]) -> PlanStep:
        """Return what the plan says of batch i of the superbatch."""
        k, plan = i - self.begin, self.plan
        if plan is None:
            raise KeyError(f"batch {i} was taken before")
        return PlanStep(ids, plan.batch_slots(k), *plan.batch_changes(k))

    def number(self, i: int) -> int:
        """Return the number of batch i under the lease."""
        return self.first + i - self.begin

    def gather(self, i: int, step: PlanStep) -> dict[str, Rows]:
        """Return the rows of batch i of the superbatch, by the table's path."""
        if self.packed is None:
            return self.lease.gather(self.number(i), step)
        try:
            return self.lease.gather(self.number(i), step, self.packed.rows(i - self.begin))
        finally:
            self.packed.done()

    def fail(self, i: int, error: BaseException) -> None:
        """Give up a batch that cannot be gathered, or what waits for it would wait for ever."""
        self.lease.fail(self.number(i), error)
        self.give_up(1)

    def give_up(self, num_batches: int) -> None:
        """Note that so many batches will not be gathered as they were planned here."""
        if self.packed is not None:
            self.packed.done(num_batches)

    def close(self) -> None:
        """Let go of the plan. Idempotent."""
        plan, self.plan = self.plan, None
        if plan is not None:
            plan.close()


@dataclass(eq=False)
class Superbatch:
    """S batches, sampled and planned.

    Attributes
    ----------
    part : PlannedPart
        How batches that are handed out from now on are planned.
    error : Exception or None
        Why there are no more batches after these.
    """

    kept: Spool
    part: PlannedPart
    notes: list[BatchNote]
    seconds_planning: float
    bytes_spilled: int
    error: Exception | None

    def __post_init__(self) -> None:
        self._num_waiting = len(self.notes)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.notes)

    def take(self, part: PlannedPart, i: int) -> tuple[CompactSubgraph, PlanStep]:
        """Return a subgraph and what the plan says of it, and forget both.

        The last one closes what has kept them.
        """
        subgraph = CompactSubgraph.from_arrays(self.kept.read(i))
        step = part.step(i, subgraph.n_id)
        self.kept.drop(i)
        with self._lock:
            self._num_waiting -= 1
            is_last = self._num_waiting == 0
        if is_last:
            self.kept.close()
            part.close()
        return subgraph, step


@dataclass(frozen=True, eq=False)
class PlannedBatch:
    """A batch that is to be assembled as its superbatch's plan says."""

    superbatch: Superbatch
    part: PlannedPart
    i: int
    index_dtype: IndexDtype

    def recall(self) -> PreparedBatch:
        """Return the batch as it was sampled, once; joining it gathers its rows by the plan.

        Raises
        ------
        StorageError, CorruptStoreError
            If its subgraph or plan was written to disk and cannot be read back as it was.
        """
        of, part, i = self.superbatch, self.part, self.i
        start = time.perf_counter()
        try:
            compact, step = of.take(part, i)
            subgraph = compact.expand(self.index_dtype, empty)
        except BaseException as error:
            part.fail(i, error)
            raise
        note = of.notes[i]
        seconds = note.seconds_sampling + time.perf_counter() - start

        def rows_of(output: SamplerOutput) -> Mapping[str, Rows]:
            gathered = part.gather(i, step)
            wanted = output.node.numpy()
            if np.array_equal(wanted, step.ids):
                return gathered
            return reselected(gathered, step.ids, wanted)

        return replace(prepared(subgraph, note.input_id, seconds), rows_of=rows_of)


def reselected(
    gathered: Mapping[str, Rows], ids: npt.NDArray[Any], wanted: npt.NDArray[Any]
) -> dict[str, Rows]:
    """Return the rows of other nodes, where `transform_sampler_output` has left or added some.

    Rows that are not among those gathered are left to whoever gathers by id.
    """
    order = np.argsort(ids, kind="stable")
    places = np.minimum(np.searchsorted(ids, wanted, sorter=order), max(0, len(ids) - 1))
    places = order[places] if len(ids) else places
    if len(ids) == 0 or not np.array_equal(ids[places], wanted):
        return {}
    return {path: Rows(rows[places], counts) for path, (rows, counts) in gathered.items()}
