"""A batch that is assembled as a plan says, once its superbatch has been sampled and planned."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy.typing as npt

from gnnstore._core import empty
from gnnstore.features.planned import PlanStep
from gnnstore.features.source import Rows
from gnnstore.pipeline.batch import Sampled, Task, reselected
from gnnstore.threads import Flag

if TYPE_CHECKING:
    from torch_geometric.sampler import SamplerOutput

    from gnnstore.caching.plan import CachePlan
    from gnnstore.features.pinned import PinnedRows
    from gnnstore.features.planned import Lease
    from gnnstore.pipeline.lookahead.packer import PackedBatches
    from gnnstore.pipeline.lookahead.spools import SampledSuperbatch
    from gnnstore.sampling.compact import CompactSample
    from gnnstore.sampling.neighbor import IndexDtype


@dataclass(eq=False)
class PlannedPart:
    """The batches of a superbatch from one on, as they were planned under one lease.

    A lease may be lost to another loader on the same store, and the rest be planned again.
    """

    # None once each batch has taken its share: memory is counted for the plan that is followed and
    # the one that is made, and iterators hold on to what they have yielded last.
    plan: CachePlan | None
    lease: Lease
    begin: int  # the first batch, in the superbatch
    end: int  # the batch after the last that is planned, in the superbatch
    first: int  # the number of the first under the lease
    packed: PackedBatches | None = None  # where rows are that the plan misses; None: in their table
    # The rows that the plan does not know, for they are always cached.
    pinned: PinnedRows | None = None

    def step(self, i: int, ids: npt.NDArray[Any]) -> PlanStep:
        """Return the step of the plan for batch i of the superbatch."""
        k, plan = i - self.begin, self.plan
        if plan is None:
            raise KeyError(f"batch {i} was taken before")
        slots, (positions, entering) = plan.batch_slots(k), plan.batch_changes(k)
        if self.pinned is not None:
            slots, positions = self.pinned.add(ids, slots, positions)
        return PlanStep(ids, slots, positions, entering)

    def number(self, i: int) -> int:
        """Return the number of batch i under the lease."""
        return self.first + i - self.begin

    def gather(self, i: int, step: PlanStep) -> dict[str, Rows]:
        """Return the rows of batch i of the superbatch, by the table's path."""
        missed = None if self.packed is None else self.packed.rows(i - self.begin)
        return self.lease.gather(self.number(i), step, missed)

    def fail(self, i: int, error: BaseException) -> None:
        """Give up a batch that cannot be gathered, or what waits for it would wait for ever."""
        self.lease.fail(self.number(i), error)

    def abandon(self, num_batches: int) -> None:
        """Note that so many batches have their rows, or will not get them from here."""
        if self.packed is not None:
            self.packed.done(num_batches)

    def close(self) -> None:
        """Let go of the plan. Idempotent."""
        plan, self.plan = self.plan, None
        if plan is not None:
            plan.close()


@dataclass(eq=False)
class Superbatch:
    """S batches, sampled and planned."""

    sampled: SampledSuperbatch
    # How batches that are handed out from now on are planned; None: they read all of their rows.
    part: PlannedPart | None
    seconds_planning: float
    bytes_spilled: int
    # Set once all of its batches have their rows, or failed.
    read: Flag = field(default_factory=Flag)

    def __post_init__(self) -> None:
        self._num_waiting = self._num_unread = len(self)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.sampled.notes)

    def pop(self, part: PlannedPart | None, i: int) -> tuple[CompactSample, PlanStep | None]:
        """Return a subgraph and what the plan says of it, and forget both.

        The last one closes what has kept them.
        """
        subgraph = self.sampled.subgraph(i)
        step = None if part is None else part.step(i, subgraph.n_id)
        self.sampled.kept.drop(i)
        with self._lock:
            self._num_waiting -= 1
            is_last = self._num_waiting == 0
        if is_last:
            self.sampled.close()
            for each in (part, self.part):
                if each is not None:
                    each.close()
        return subgraph, step

    def finish(self) -> None:
        """Note that one of its batches has its rows, or failed."""
        with self._lock:
            self._num_unread -= 1
            is_last = self._num_unread == 0
        if is_last:
            self.read.set()


@dataclass(frozen=True, eq=False)
class Portion:
    """The batches of a superbatch that one iteration hands out, from `begin` to `end`."""

    superbatch: Superbatch
    begin: int
    end: int
    # Why the iteration has no more batches after these, although it should.
    error: Exception | None = None

    @classmethod
    def of(cls, superbatch: Superbatch, begin: int, wanted: int) -> Self:
        """Return so many batches from one on, or those that could be sampled."""
        end = min(begin + wanted, len(superbatch))
        error = superbatch.sampled.error if end - begin < wanted else None
        return cls(superbatch, begin, end, error)

    @property
    def share(self) -> float:
        """Share of the superbatch's batches."""
        return (self.end - self.begin) / max(1, len(self.superbatch))


class PlannedTask(Task):
    """A batch that is to be assembled as its superbatch's plan says."""

    stage = "recalling"

    def __init__(
        self, superbatch: Superbatch, part: PlannedPart | None, i: int, index_dtype: IndexDtype
    ) -> None:
        note = superbatch.sampled.notes[i]
        self.key = note.key
        self.seconds_ahead = note.seconds_sampling
        self._labels = note.labels
        self._superbatch = superbatch
        self._part = part
        self._i = i
        self._index_dtype: IndexDtype = index_dtype
        self._step: PlanStep | None = None

    def sample(self) -> Sampled:
        """Return the sample as it was drawn."""
        try:
            compact, self._step = self._superbatch.pop(self._part, self._i)
            return Sampled(compact.expand(self._index_dtype, empty), self._labels)
        except BaseException as error:
            if self._part is not None:
                self._part.fail(self._i, error)
            raise

    def rows(self, output: SamplerOutput) -> Mapping[str, Rows]:
        """Gather the rows that the plan provides for, if there is one."""
        step, self._step = self._step, None
        if step is None or self._part is None:
            return {}
        return reselected(self._part.gather(self._i, step), step.ids, output.node.numpy())

    def finish(self, error: BaseException | None = None) -> None:
        """Give up the place of its packed rows, and its turn if an error came before that."""
        if self._part is not None:
            if error is not None and self._step is not None:
                self._part.fail(self._i, error)
            self._part.abandon(1)
        self._superbatch.finish()
