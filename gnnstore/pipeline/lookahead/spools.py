"""Superbatches that wait for their plan and their turn.

Their subgraphs, traces and plans lie in memory or in files.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gnnstore.caching.plan import PlanPlace
from gnnstore.caching.trace import Trace, TraceBuilder
from gnnstore.disk.scratch import RunDirectory
from gnnstore.disk.spool import FileSpool, MemorySpool, Spool
from gnnstore.sampling.compact import ONE_TYPE, CompactSample, Types

if TYPE_CHECKING:
    from gnnstore.caching.plan import CachePlan
    from gnnstore.caching.policies.base import Planner, SpillingPlanner
    from gnnstore.features.pinned import PinnedRows
    from gnnstore.sampling.row_space import RowSpace
    from gnnstore.seeds.base import BatchKey, SeedLabels


@dataclass(frozen=True)
class BatchNote:
    """A batch's facts beside its subgraph."""

    key: BatchKey
    labels: SeedLabels
    seconds_sampling: float


class KeptSubgraphs:
    """The subgraphs of a superbatch, shortened. Safe to use from many threads at once."""

    def __init__(self, spool: Spool, ids: FileSpool | None, types: Types = ONE_TYPE) -> None:
        self._spool = spool
        self._ids = ids
        self._types = types

    @property
    def has_ids(self) -> bool:
        """Whether node ids are kept here, and not with the trace."""
        return self._ids is None

    @property
    def num_bytes(self) -> int:
        """Memory that they take."""
        return self._spool.num_bytes

    @property
    def num_disk_bytes(self) -> int:
        """Disk that they take, node ids in a trace not included."""
        return self._spool.num_disk_bytes

    def append(self, i: int, subgraph: CompactSample) -> None:
        """Keep the subgraph of batch i, which has none yet."""
        self._spool.append(i, subgraph.shortened(with_ids=self.has_ids))

    def read(self, i: int) -> CompactSample:
        """Return the subgraph of batch i."""
        ids = () if self._ids is None else self._ids.read(i)
        return CompactSample.from_shortened(self._spool.read(i), ids, self._types)

    def drop(self, i: int) -> None:
        """Let go of the subgraph of batch i, if there is one."""
        self._spool.drop(i)

    def close(self) -> None:
        """Let go of all of them. Idempotent."""
        self._spool.close()


@dataclass(eq=False)
class SampledSuperbatch:
    """S batches that are sampled, but not planned."""

    first: int  # number of the first in its iteration
    kept: KeptSubgraphs
    trace: Trace
    notes: list[BatchNote]
    error: Exception | None  # why there are no more batches after these
    space: RowSpace
    pinned: PinnedRows | None = None  # the rows that were left out of the trace

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.kept.num_bytes + self.trace.num_bytes

    def subgraph(self, i: int) -> CompactSample:
        """Return the subgraph of batch i."""
        return self.kept.read(i)

    def forget_trace(self) -> None:
        """Let go of the trace: once a plan is made of it, or none will be. Idempotent."""
        if self.kept.has_ids:
            self.trace.close()
            self.trace = Trace.of([])

    def close(self) -> None:
        """Let go of samples and trace. Idempotent."""
        self.kept.close()
        self.trace.close()


class Spools:
    """The samples, traces and plans of superbatches, in memory or in files of one directory."""

    def __init__(
        self,
        tmpdir: Path,
        space: RowSpace,
        num_nodes: int,
        num_edges: int,
        *,
        types: Types = ONE_TYPE,
        most_in_memory: int,
        table_bytes: int,
        purpose: str,
    ) -> None:
        self.space, self.num_nodes, self.num_edges = space, num_nodes, num_edges
        self._types = types
        self._tmpdir = tmpdir
        self._most_in_memory = most_in_memory
        self._table_bytes = table_bytes
        self._purpose = purpose
        self._directory: Path | None = None
        self._closing = ExitStack()

    @property
    def directory(self) -> Path:
        """The directory for files, which is removed by `close`."""
        if self._directory is None:
            run = RunDirectory.create(self._tmpdir, purpose=self._purpose)
            self._directory = self._closing.enter_context(run).path
        return self._directory

    def samples(self, name: str, num_batches: int, ids: FileSpool | None = None) -> KeptSubgraphs:
        """Return where the subgraphs of a superbatch wait."""
        if len(self._types.nodes) > 1:  # a trace has rows, and not those of every type
            ids = None
        if num_batches <= self._most_in_memory:
            return KeptSubgraphs(MemorySpool(), ids, self._types)
        path = self.directory / f"batch-{name}"
        spool = FileSpool(path, num_batches, self._types.max_arrays, what="the subgraph")
        self._closing.callback(spool.close)
        return KeptSubgraphs(spool, ids, self._types)

    def trace(self, name: str, num_batches: int) -> TraceBuilder:
        """Return where the trace of some batches goes."""
        if not self._table_bytes:
            return TraceBuilder(num_batches, self.space.num_rows)
        trace = TraceBuilder(num_batches, self.space.num_rows, self.directory / f"trace-{name}")
        self._closing.callback(trace.close)
        return trace

    def trace_again(
        self, sampled: SampledSuperbatch, span: range, pinned: PinnedRows | None, name: str
    ) -> Trace:
        """Return the trace of some batches of a superbatch, from their subgraphs."""
        trace = self.trace(name, len(span))
        for k, i in enumerate(span):
            rows = self.space.rows(sampled.subgraph(i).nodes)
            trace.put(k, rows if pinned is None else pinned.drop(rows))
        return trace.build()

    def plan(self, planner: Planner, trace: Trace, name: str) -> CachePlan:
        """Plan a superbatch, in files if its trace is in one."""
        if trace.file is None:
            return planner.plan(trace)
        place = PlanPlace(self.directory / f"plan-{name}", self._table_bytes)
        plan = cast("SpillingPlanner", planner).plan(trace, place)
        self._closing.callback(plan.close)
        return plan

    def close(self) -> None:
        """Remove the files, and let go of all that waits. Idempotent."""
        self._closing.close()
