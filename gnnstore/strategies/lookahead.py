"""Sizes a loader that samples and plans ahead, by the misses of batches planned beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnstore._core import release_memory
from gnnstore.caching.policies.base import CachePolicy, Planner
from gnnstore.caching.policies.registry import POLICIES
from gnnstore.caching.policies.settings import PlannedSettings
from gnnstore.caching.scores import most_needed
from gnnstore.caching.trace import TraceBuilder
from gnnstore.pipeline.lookahead.session import FixedNodes, slot_layout, warms_up
from gnnstore.pipeline.margins import MANY_BATCHES
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.strategies.sizes.lookahead import LookaheadSizer, Misses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gnnstore.caching.trace import Trace
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.graph.topology import Topology
    from gnnstore.pipeline.lookahead.presample import Presampled, Presampler
    from gnnstore.planning.traits import StrategyTraits
    from gnnstore.strategies.sizes.placement import Placement

# Sampling and planning these takes about 1.5 s for batches of 136,000 nodes: less than a tenth
# of an epoch that they make faster. Small ones are done at once.
_PROFILE_BATCHES = 128
# Fewer do not tell how often rows are needed again.
_LEAST_TOLD = 16


def size_superbatches(
    placed: Callable[[int], Placement],
    structure: Topology,
    presampler: Presampler,
    *,
    strategy: StrategyTraits,
    settings: PlannedSettings,
    specs: Sequence[AttributeSpec],
    num_threads: int,
    staging_bytes: int = 0,
    may_use_fewer: bool = False,
    disk_bytes: int = 0,
    fixed: FixedNodes | None = None,
) -> Placement:
    """Decide how many batches are planned at a time, and how many rows are cached.

    Parameters
    ----------
    placed : callable
        Returns the placement by a planned strategy, with so many more bytes of memory.
    specs : sequence of AttributeSpec
        The node attributes that are read from disk; their rows are cached together.
    num_threads, may_use_fewer, staging_bytes, disk_bytes
        See `LookaheadSizer`.
    fixed : FixedNodes, optional
        What the cache holds always; by default the policy decides.

    Raises
    ------
    BudgetError
        If two batches, a plan of two, a cache of a given size, or packed rows do not fit.
    """
    placement = placed(0)
    spare_bytes = placement.spare_bytes
    read = {path for path, mode in placement.modes.items() if mode == "disk"}

    def sample(num_threads: int, **options: Any) -> Presampled:
        found = presampler.run(structure, num_threads, spare_bytes=spare_bytes, **options)
        release_memory()  # the samples' buffers: nothing gives them back before the first batch
        return found

    def misses(num_threads: int, num_batches: int) -> MeasuredMisses:
        return MeasuredMisses(
            structure,
            presampler,
            policy=POLICIES[strategy.policy],
            packs=strategy.packs,
            num_batches=max(1, min(_PROFILE_BATCHES, presampler.epoch_batches, num_batches)),
            num_threads=num_threads,
            spare_bytes=spare_bytes,
            fixed=fixed,
        )

    sampling = num_threads
    if staging_bytes:
        sampling = max(1, min(num_threads, placement.staging_bytes // staging_bytes))
    found = LookaheadSizer(
        placed=placed,
        seen=sample(sampling),
        see_many=lambda: sample(1, num_batches=MANY_BATCHES),
        misses=misses,
        strategy=strategy,
        settings=settings,
        num_rows=structure.csc.num_nodes,
        row_bytes=sum(spec.num_bytes // max(1, spec.num_rows) for spec in specs),
        epoch_batches=presampler.epoch_batches,
        num_threads=num_threads,
        may_use_fewer=may_use_fewer,
        staging_bytes=staging_bytes,
        reads_neighbors=structure.is_read,
        reads_more=bool(read - {spec.path for spec in specs}),
        disk_bytes=disk_bytes,
    ).choose()
    return found.placement.with_superbatch(found.size)


class MeasuredMisses:
    """Misses of batches that are sampled beforehand, and planned."""

    def __init__(
        self,
        structure: Topology,
        presampler: Presampler,
        *,
        policy: CachePolicy,
        packs: bool,
        num_batches: int,
        num_threads: int,
        spare_bytes: int | None,
        fixed: FixedNodes | None,
    ) -> None:
        self._structure = structure
        self._presampler = presampler
        self._policy, self._packs = policy, packs
        self.num_batches = num_batches
        self._num_threads = num_threads
        self._spare_bytes = spare_bytes
        self._fixed = fixed
        self._trace: Trace | None = None

    @property
    def compares(self) -> bool:
        """Whether the sample tells how many batches are worth planning together."""
        # What is always cached does not depend on how many batches are planned.
        return self._fixed is None and self.num_batches >= _LEAST_TOLD

    def first(self, size: SuperbatchSize) -> Misses:
        """Return the misses from where a loader begins."""
        return self._plan(size, size.num_batches)

    def later(self, size: SuperbatchSize) -> float:
        """Return the rows that are missed in mid-run: from a cache of what most of it needs."""
        return self._plan(size, self.num_batches).num_missed

    def _plan(self, size: SuperbatchSize, num_filled_for: int) -> Misses:
        """Plan from a cache that is filled for so many batches, if it would be filled."""
        trace = self._sampled()
        planner = self._planner(size, num_filled_for)
        misses = changes = most = 0
        for first in range(0, trace.num_batches, size.num_batches):
            plan = planner.plan(_part(trace, first, first + size.num_batches))
            misses += plan.num_misses
            changes += len(plan.change_positions)
            most = max(most, int(plan.misses.max(initial=0)))
        return Misses(misses, changes, trace.num_accesses, most, -(-misses // self.num_batches))

    def _planner(self, size: SuperbatchSize, num_filled_for: int) -> Planner:
        num_slots, num_nodes = size.num_slots, self._structure.csc.num_nodes
        if self._fixed is not None:
            planner: Planner = self._fixed.planner(num_slots)
            planner.restart(slot_layout(self._fixed.of(num_slots), num_slots))
            return planner
        planner = self._policy.planner(num_slots)
        if warms_up(self._policy, size, num_nodes, packs=self._packs):
            first = _part(self._sampled(), 0, num_filled_for)
            planner.restart(slot_layout(most_needed(first, num_nodes, num_slots), num_slots))
        return planner

    def _sampled(self) -> Trace:
        if self._trace is None:
            builder = TraceBuilder(self.num_batches, self._structure.csc.num_nodes)
            # Without a bound, batches that are sampled together from disk would take 1 GB.
            spare = None if self._spare_bytes is None else self._spare_bytes // 2
            self._presampler.run(
                self._structure, self._num_threads, spare_bytes=spare, trace=builder
            )
            self._trace = builder.build()
            release_memory()
        return self._trace


def _part(trace: Trace, first: int, last: int) -> Trace:
    """Return some batches of a trace, as views."""
    offsets = trace.offsets[first : last + 1]
    ids = trace.ids[offsets[0] : offsets[-1]]
    return type(trace)(ids, np.ascontiguousarray(offsets - offsets[0]))
