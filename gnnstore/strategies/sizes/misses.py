"""Misses of a planned cache by its size: measured for a loader, estimated for a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore._core import release_memory
from gnnstore.caching.plan import Trace, TraceBuilder
from gnnstore.caching.policies.base import CachePolicy, Planner, slot_layout
from gnnstore.caching.reuse import ReuseCurve
from gnnstore.caching.scores import most_needed
from gnnstore.features.planned import PinnedRows
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.pipeline.lookahead.producer import warms_up
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.strategies.predict.workload import Workload
from gnnstore.strategies.sizes.lookahead import Misses
from gnnstore.strategies.sizes.superbatch import Pins

if TYPE_CHECKING:
    from gnnstore.graph.topology import Topology
    from gnnstore.pipeline.lookahead.presample import Presampler

# Fewer batches do not show how often rows are needed again.
_LEAST_TOLD = 16
# Fewer batches do not show how many rows are needed again later than that.
_LEAST_EXTRAPOLATED = 3
# Memory for reuse distances if there is no budget.
_MOST_SCRATCH_BYTES = 1 << 30
# Rows that fewer than one in this many batches needs are not pinned.
_RARELY = 32


class MeasuredMisses:
    """Misses of batches that are sampled beforehand and planned."""

    def __init__(
        self,
        topology: Topology,
        presampler: Presampler,
        *,
        policy: CachePolicy,
        packs: bool,
        num_batches: int,
        num_threads: int,
        spare_bytes: int | None,
    ) -> None:
        self._topology = topology
        self._presampler = presampler
        self._policy, self._packs = policy, packs
        self.num_batches = num_batches
        self._num_threads = num_threads
        self._spare_bytes = spare_bytes
        self._trace: Trace | None = None
        self._planned: dict[tuple[int, ...], Misses] = {}
        self._unpinned: tuple[npt.NDArray[Any], Trace] | None = None

    @property
    def compares(self) -> bool:
        """Whether the sample shows how many batches are worth planning together."""
        return not self._policy.is_fixed and self.num_batches >= _LEAST_TOLD

    def first(self, size: SuperbatchSize) -> Misses:
        """Return the misses of a loader's first batches."""
        return self._plan(size, size.num_batches)

    def later(self, size: SuperbatchSize) -> float:
        """Return the rows missed in the middle of a run, with a cache of the rows it needs most."""
        if self._warms_up(size):
            return self._plan(size, self.num_batches).num_missed
        if size.num_slots >= self._presampler.space.num_rows:
            return 0.0
        first = self.first(size).num_missed
        if self._reuse is None:
            return first
        misses = self._policy.misses(
            self._reuse, size.num_planned_slots, size.num_batches, initial="last"
        )
        return min(first, misses * self.num_batches / size.num_batches)

    def _plan(self, size: SuperbatchSize, num_filled_for: int) -> Misses:
        """Plan from a cache that is filled for `num_filled_for` batches, if it would be filled."""
        trace = self._sampled()
        # The sample is one superbatch if superbatches are as long or longer.
        at_once = max(1, min(size.num_batches, trace.num_batches))
        num_filled_for = min(num_filled_for, trace.num_batches)
        key = (at_once, size.num_slots, size.num_pinned, num_filled_for)
        if key not in self._planned:
            trace = self._without(size.pinned)
            planner = self._planner(size, trace.first(num_filled_for))
            misses = changes = most = 0
            progress = self._presampler.progress.phase(
                "plan batches beforehand", trace.num_batches, "batches"
            )
            with progress as shown:
                for first in range(0, trace.num_batches, at_once):
                    offsets = trace.offsets[first : first + at_once + 1]
                    ids = trace.ids[offsets[0] : offsets[-1]]
                    plan = planner.plan(Trace(ids, offsets - offsets[0]))
                    misses += plan.num_misses
                    changes += len(plan.change_positions)
                    most = max(most, int(plan.misses.max(initial=0)))
                    shown.advance(plan.num_batches)
            mean = -(-misses // self.num_batches)
            self._planned[key] = Misses(misses, changes, trace.num_accesses, most, mean)
        return self._planned[key]

    def pins(self, num_rows: int) -> Pins | None:
        """Return the rows that most batches need, at most `num_rows`."""
        trace, num_nodes = self._sampled(), self._presampler.space.num_rows
        if self._policy.is_fixed or trace.num_batches < _LEAST_TOLD:
            return None
        least = max(2, trace.num_batches // _RARELY)
        nodes = most_needed(trace, num_nodes, num_rows, least=least)
        if len(nodes) == 0:
            return None
        nodes = nodes.astype(id_dtype(num_nodes - 1))
        others = np.diff(self._without(nodes).offsets).max()
        return Pins(len(nodes), float(others / np.diff(trace.offsets).max()), nodes)

    def _without(self, pinned: npt.NDArray[Any] | None) -> Trace:
        """Return the trace without pinned rows."""
        trace = self._sampled()
        if pinned is None:
            return trace
        if self._unpinned is None or self._unpinned[0] is not pinned:
            self._unpinned = None  # there is memory for one
            rows = PinnedRows.of(pinned, self._presampler.space.num_rows, 0)
            batches = [trace.batch(i) for i in range(trace.num_batches)]
            others = batches if rows is None else [rows.drop(ids) for ids in batches]
            self._unpinned = pinned, Trace.of(others)
        return self._unpinned[1]

    def _planner(self, size: SuperbatchSize, first: Trace) -> Planner:
        """Return a planner of a cache in the state that the first batches find."""
        num_slots, num_nodes = size.num_planned_slots, self._presampler.space.num_rows
        planner = self._policy.planner(num_slots)
        if self._warms_up(size):
            nodes = self._policy.initial_nodes(first, num_nodes, num_slots)
            planner.restart(slot_layout(nodes, num_slots))
        return planner

    def _warms_up(self, size: SuperbatchSize) -> bool:
        """Whether a cache is filled before the first batch."""
        return warms_up(self._policy, size, self._presampler.space.num_rows, packs=self._packs)

    @cached_property
    def _reuse(self) -> ReuseCurve | None:
        """How soon rows are needed again; None if the sample or the memory is too small."""
        num_nodes, spare, trace = (
            self._presampler.space.num_rows,
            self._spare_bytes,
            self._sampled(),
        )
        # The other half is for the trace.
        spare = self._spare_bytes
        most = _MOST_SCRATCH_BYTES if spare is None else spare // 2
        if trace.num_batches < _LEAST_EXTRAPOLATED or ReuseCurve.scratch_bytes(num_nodes) > most:
            return None
        return ReuseCurve.of_trace(trace, num_nodes)

    def _sampled(self) -> Trace:
        if self._trace is None:
            builder = TraceBuilder(self.num_batches, self._presampler.space.num_rows)
            # Without a limit, batches that are sampled together from disk would take 1 GB.
            spare = None if self._spare_bytes is None else self._spare_bytes // 2
            self._presampler.run(
                self._topology, self._num_threads, spare_bytes=spare, trace=builder
            )
            self._trace = builder.build()
            release_memory()
        return self._trace


@dataclass(frozen=True)
class EstimatedMisses:
    """Misses of an epoch, from how often a sample needs rows again."""

    workload: Workload
    policy: CachePolicy
    packs: bool  # whether rows are packed, so that a cache begins empty

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return self.workload.epoch_batches

    @property
    def compares(self) -> bool:
        """Whether sizes of superbatches can be compared: always."""
        return True

    def first(self, size: SuperbatchSize) -> Misses:
        """Return the misses of the first epoch."""
        work, misses = self.workload, self.later(size)
        if self.packs:
            sizes = (size.num_slots, size.num_batches)
            misses = work.misses(self.policy, *sizes, initial="nothing")
        accesses = int(work.batch_rows * work.epoch_batches)
        each = int(misses / work.epoch_batches)
        return Misses(misses, int(misses), accesses, each, each)

    def later(self, size: SuperbatchSize) -> float:
        """Return the rows that an epoch misses."""
        return self.workload.misses(self.policy, size.num_slots, size.num_batches)

    def pins(self, num_rows: int) -> Pins | None:
        """Return the number of rows that most batches need, at most `num_rows`, and their share."""
        work = self.workload
        if work.sampled_batches < _LEAST_TOLD:
            return None
        least = max(2, work.sampled_batches // _RARELY)
        num_pinned, uses = work.frequency.highest(num_rows, least)
        if num_pinned == 0:
            return None
        return Pins(num_pinned, max(0.0, 1 - uses / work.batch_rows))

    def packed_bytes(self, size: SuperbatchSize) -> int:
        """Return the disk space of an epoch's records and packed rows, without a cache at first."""
        work = self.workload
        sizes = (size.num_slots, size.num_batches)
        misses = work.misses(self.policy, *sizes, initial="nothing")
        return int(misses * work.row_bytes + work.ids_bytes * work.epoch_batches)
