"""A superbatch: batches that are sampled, planned and packed together, until each has its rows.

Samples, trace and plan lie in memory or in files, and are freed batch by batch.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from gnnstore.caching.plan import PlanPlace, Trace, TraceBuilder
from gnnstore.disk.scratch import RunDirectory
from gnnstore.disk.spool import FileSpool
from gnnstore.features.planned import PlanStep
from gnnstore.sampling.compact import CompactSample, Types
from gnnstore.threads import Flag

if TYPE_CHECKING:
    import numpy.typing as npt

    from gnnstore.caching.plan import CachePlan
    from gnnstore.caching.policies.base import Planner, SpillingPlanner
    from gnnstore.features.planned import PinnedRows, SlotCache, TurnLock
    from gnnstore.features.source import Rows
    from gnnstore.pipeline.batch import Batch
    from gnnstore.pipeline.lookahead.edge_rows import SuperbatchEdges
    from gnnstore.pipeline.lookahead.packer import PackedBatches
    from gnnstore.sampling.neighbor import Subgraph
    from gnnstore.sampling.row_space import RowSpace


class KeptSamples:
    """The samples of a superbatch, shortened. Safe to use from many threads at once."""

    def __init__(self, types: Types, file: FileSpool | None, ids: FileSpool | None) -> None:
        self._types = types
        self._file = file
        self._in_memory: dict[int, list[npt.NDArray[Any]]] = {}  # without a file
        self._ids = ids  # the trace, if it has their node ids

    @property
    def has_ids(self) -> bool:
        """Whether node ids are kept here, and not with the trace."""
        return self._ids is None

    @property
    def num_bytes(self) -> int:
        """Memory that they take."""
        if self._file is not None:
            return self._file.num_bytes
        return sum(array.nbytes for arrays in [*self._in_memory.values()] for array in arrays)

    @property
    def num_disk_bytes(self) -> int:
        """Disk that they take, node ids in a trace not included."""
        return 0 if self._file is None else self._file.num_disk_bytes

    def append(self, i: int, sample: CompactSample) -> None:
        """Keep the sample of batch i, which has none yet."""
        arrays = sample.shortened(with_ids=self.has_ids)
        if self._file is None:
            self._in_memory[i] = arrays
        else:
            self._file.append(i, arrays)

    def read(self, i: int) -> CompactSample:
        """Return the sample of batch i."""
        ids = () if self._ids is None else self._ids.read(i)
        arrays = self._in_memory[i] if self._file is None else self._file.read(i)
        return CompactSample.from_shortened(arrays, ids, self._types)

    def drop(self, i: int) -> None:
        """Free the sample of batch i, if there is one."""
        if self._file is None:
            self._in_memory.pop(i, None)
        else:
            self._file.drop(i)

    def close(self) -> None:
        """Free all samples. Idempotent."""
        self._in_memory.clear()
        if self._file is not None:
            self._file.close()


@dataclass(eq=False)
class Superbatch:
    """S batches that are sampled; and planned and packed, once they are."""

    first: int  # number of the first in its iteration
    batches: dict[int, Batch]  # those not handed out, which then know the superbatch
    samples: KeptSamples
    trace: Trace
    space: RowSpace
    error: Exception | None  # why there are no more batches after these
    pinned: PinnedRows | None = None  # the rows that were left out of the trace
    # How the batches are planned; None: they read all of their rows. Freed with the last batch:
    # memory is counted for the plan that is followed and the one that is made.
    plan: CachePlan | None = None
    slots: SlotCache | None = None
    turns: TurnLock | None = None
    first_turn: int = 0  # the turn of the first batch
    packed: PackedBatches | None = None  # where rows are that the plan misses; None: in the tables
    # Rows of edges that were read ahead; None: they are in their tables.
    edge_rows: SuperbatchEdges | None = None
    seconds_planning: float = 0.0
    bytes_spilled: int = 0
    bytes_of_edges: int = 0  # read of the tables of edges
    # Set once all of its batches have their rows, or failed.
    read: Flag = field(default_factory=Flag)

    def __post_init__(self) -> None:
        self._num_batches = self._num_waiting = self._num_unread = len(self.batches)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._num_batches

    @property
    def num_bytes(self) -> int:
        """Memory that samples, trace and plan take."""
        plan = 0 if self.plan is None else self.plan.num_bytes
        return self.samples.num_bytes + self.trace.num_bytes + plan

    @property
    def planned(self) -> CachePlan:
        """The plan, of a superbatch that has one."""
        if self.plan is None:
            raise TypeError("the superbatch is not planned")
        return self.plan

    @property
    def id_bytes(self) -> int:
        """Bytes of a row number in the trace: 4 or 8."""
        return self.trace.ids.itemsize

    def recall(self, i: int) -> tuple[CompactSample, PlanStep | None]:
        """Return the sample of batch i and what the plan says of it, and forget both."""
        sample = self.samples.read(i)
        step = None if self.plan is None else self._step(self.plan, i, sample)
        self.samples.drop(i)
        with self._lock:
            self._num_waiting -= 1
            is_last = self._num_waiting == 0
        if is_last:
            self.close()
        return sample, step

    def _step(self, plan: CachePlan, i: int, sample: CompactSample) -> PlanStep:
        rows = sample.rows(self.space)
        slots, (positions, entering) = plan.batch_slots(i), plan.batch_changes(i)
        if self.pinned is not None:
            slots, positions = self.pinned.add(rows, slots, positions)
        return PlanStep(rows, slots, positions, entering)

    def edge_rows_of(self, i: int, sample: Subgraph[Any]) -> dict[str, Rows]:
        """Return the rows of the edges of batch i, by table, if they were read ahead."""
        return {} if self.edge_rows is None else self.edge_rows.rows(i, sample)

    def gather(self, i: int, step: PlanStep) -> dict[str, Rows]:
        """Return the rows of batch i, by table."""
        if self.slots is None or self.turns is None:
            return {}
        missed = None if self.packed is None else self.packed.rows(i)
        return self.slots.gather(self.turns, self.first_turn + i, step, missed)

    def release(self, i: int, error: BaseException | None = None) -> None:
        """Note that batch i has its rows, or failed: then what waits for its turn fails too."""
        if error is not None and self.turns is not None:
            self.turns.fail(self.first_turn + i, error)
        if self.packed is not None:
            self.packed.done()
        with self._lock:
            self._num_unread -= 1
            is_last = self._num_unread == 0
        if is_last:
            self.read.set()
            if self.edge_rows is not None:
                self.edge_rows.close()

    def forget_trace(self) -> None:
        """Free the trace: once a plan is made of it, or none will be. Idempotent."""
        if self.samples.has_ids:
            self.trace.close()
            self.trace = Trace.of([])

    def close(self) -> None:
        """Free samples, trace and plan. Idempotent."""
        self.samples.close()
        self.trace.close()
        plan, self.plan = self.plan, None
        if plan is not None:
            plan.close()


class PlannedPlace(NamedTuple):
    """The place of a batch in its superbatch."""

    superbatch: Superbatch
    i: int
    step: PlanStep | None = None  # known once it has been recalled
    has_rows: bool = False  # so that its turn is over


@dataclass(frozen=True, eq=False)
class EpochSlice:
    """The batches of a superbatch that one iteration hands out, from `begin` to `end`."""

    superbatch: Superbatch
    begin: int
    end: int
    error: Exception | None = None  # why the iteration has no more batches, although it should

    @classmethod
    def of(cls, superbatch: Superbatch, begin: int, wanted: int) -> EpochSlice:
        """Return the wanted batches from one on, or those that could be sampled."""
        end = min(begin + wanted, len(superbatch))
        return cls(superbatch, begin, end, superbatch.error if end - begin < wanted else None)


class SuperbatchFiles:
    """The samples, traces and plans of superbatches, in memory or in files of one directory."""

    def __init__(
        self,
        spill_dir: Path,
        space: RowSpace,
        types: Types,
        *,
        most_in_memory: int,
        table_bytes: int,
        purpose: str,
    ) -> None:
        self.space, self.types = space, types
        self._spill_dir = spill_dir
        self._most_in_memory = most_in_memory
        self._table_bytes = table_bytes
        self._purpose = purpose
        self._directory: Path | None = None
        self._closing = ExitStack()

    @property
    def directory(self) -> Path:
        """The directory for files, which is removed by `close`."""
        if self._directory is None:
            run = RunDirectory.create(self._spill_dir, purpose=self._purpose)
            self._directory = self._closing.enter_context(run).path
        return self._directory

    def samples(self, name: str, num_batches: int, ids: FileSpool | None = None) -> KeptSamples:
        """Return where the samples of a superbatch wait; their node ids may be in its trace."""
        if len(self.types.nodes) > 1:  # a trace has rows, and not those of every type
            ids = None
        if num_batches <= self._most_in_memory:
            return KeptSamples(self.types, None, ids)
        path, most = self.directory / f"batch-{name}", self.types.max_arrays
        file = FileSpool(path, num_batches, most, what="the subgraph")
        self._closing.callback(file.close)
        return KeptSamples(self.types, file, ids)

    def trace(self, name: str, num_batches: int) -> TraceBuilder:
        """Return where the trace of some batches goes."""
        if not self._table_bytes:
            return TraceBuilder(num_batches, self.space.num_rows)
        path = self.directory / f"trace-{name}"
        trace = TraceBuilder(num_batches, self.space.num_rows, path)
        self._closing.callback(trace.close)
        return trace

    def plan(self, planner: Planner, trace: Trace, name: str) -> CachePlan:
        """Plan a superbatch, in files if its trace is in one."""
        if trace.file is None:
            return planner.plan(trace)
        place = PlanPlace(self.directory / f"plan-{name}", self._table_bytes)
        plan = cast("SpillingPlanner", planner).plan(trace, place)
        self._closing.callback(plan.close)
        return plan

    def close(self) -> None:
        """Remove the files, and free all that waits. Idempotent."""
        self._closing.close()
