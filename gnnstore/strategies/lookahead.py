"""Divides a budget between batches in flight, cached rows and the plans that say which they are.

A few batches tell how large they are. Where missed rows are packed, some more are planned, to tell
how many that will be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gnnstore.caching.policies.base import CachePolicy, Planner
from gnnstore.caching.policies.registry import POLICIES
from gnnstore.caching.policies.settings import PlannedSettings
from gnnstore.caching.scores import most_needed
from gnnstore.caching.trace import TraceBuilder, id_dtype
from gnnstore.disk.buffers import release
from gnnstore.errors import DiskBudgetError
from gnnstore.pipeline.lookahead.session import FixedNodes, fills, in_slots
from gnnstore.sizing.in_flight import MANY_BATCHES, expected_bytes
from gnnstore.sizing.superbatch_costs import SuperbatchCosts, with_measured_changes
from gnnstore.sizing.superbatch_size import SuperbatchSize, choose_size, takes_from_rows
from gnnstore.strategies.superbatch_memory import Division, superbatch_memory
from gnnstore.units import format_at_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gnnstore.caching.trace import Trace
    from gnnstore.formats.store.schema import AttributeSpec
    from gnnstore.graph.topology import Structure
    from gnnstore.pipeline.lookahead.presample import Presampled, Presampler
    from gnnstore.sizing.placement import Placement
    from gnnstore.sizing.traits import StrategyTraits

# Sampling and planning these takes about 1.5 s for batches of 136,000 nodes: less than a tenth
# of an epoch that they make faster. Small ones are done at once.
_PROFILE_BATCHES = 128
# Fewer do not tell how often rows are needed again.
_LEAST_TOLD = 16


def size_superbatches(
    placement: Placement,
    structure: Structure,
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
    placement : Placement
        By a planned strategy.
    specs : sequence of AttributeSpec
        The node attributes that are read from disk; their rows are cached together.
    num_threads : int
        Preparing threads, of which fewer will be started where staging memory is for fewer.
    staging_bytes : int
        Memory of a thread that reads.
    may_use_fewer : bool
        Whether one thread will do where there is no room for more: then the placement has staging
        memory for one.
    disk_bytes : int
        For what is kept on disk: packed rows, and traces and plans that memory is too small for.
    fixed : FixedNodes, optional
        What the cache holds always; by default the policy decides.

    Raises
    ------
    BudgetError
        If two batches, a plan of two, a cache of a given size, or packed rows do not fit.
    """
    if staging_bytes:
        num_threads = max(1, min(num_threads, placement.staging_bytes // staging_bytes))
    packs = strategy.packs and bool(specs)
    seen = presampler.run(structure, num_threads, spare_bytes=placement.spare_bytes)
    release()  # the samples' buffers: nothing gives them back before the first batch

    def sized(division: Division) -> Placement:
        return _sized(
            division,
            structure,
            presampler,
            strategy=strategy,
            settings=settings,
            specs=specs,
            staging_bytes=staging_bytes,
            disk_bytes=disk_bytes,
            fixed=fixed,
        )

    def look_again() -> Presampled:
        found = presampler.run(
            structure, 1, spare_bytes=placement.spare_bytes, num_batches=MANY_BATCHES
        )
        release()
        return found

    return Division(placement, seen, num_threads).first_that_fits(
        sized,
        packs=packs,
        staging_bytes=staging_bytes,
        may_use_fewer=may_use_fewer,
        look_again=look_again,
    )


def _sized(
    division: Division,
    structure: Structure,
    presampler: Presampler,
    *,
    strategy: StrategyTraits,
    settings: PlannedSettings,
    specs: Sequence[AttributeSpec],
    staging_bytes: int,
    disk_bytes: int,
    fixed: FixedNodes | None,
) -> Placement:
    """Divide what a division leaves between rows and plans."""
    csc, placement, seen = structure.csc, division.placement, division.seen
    packs = strategy.packs and bool(specs)
    # Where rows of runs are all that is read, their reader takes the place of the other.
    read = {path for path, mode in placement.modes.items() if mode == "disk"}
    memory = superbatch_memory(
        division,
        structure_staging_bytes=staging_bytes if structure.is_read else None,
        packs=packs,
        spared_bytes=0 if read - {spec.path for spec in specs} else placement.staging_bytes,
    )
    left = memory.num_bytes
    id_bytes = id_dtype(csc.num_nodes).itemsize
    num_batches = presampler.epoch_batches
    batch_nodes = division.expected(seen.largest_nodes)
    costs = SuperbatchCosts(
        num_rows=csc.num_nodes,
        row_bytes=sum(spec.num_bytes // max(1, spec.num_rows) for spec in specs),
        batch_nodes=batch_nodes,
        id_bytes=id_bytes,
        # Kept with four bytes where the sampler gives eight, but for graphs of 2^31 edges.
        kept_bytes=division.expected(seen.largest_ids_bytes),
        packed_rows=batch_nodes if packs else 0,
        policy=POLICIES[strategy.policy],
        strategy=strategy.name,
        epoch_batches=num_batches,
        sampling_bytes=memory.lent_bytes,
    )
    # Half of what batches and rows will take later is for the trace and its plan; threads that
    # sample have the other half.
    plans = replace(costs, packed_rows=0)
    affordable = placement.left_bytes // 2 - plans.planning_bytes(0)
    affordable //= max(1, plans.planning_bytes(1) - plans.planning_bytes(0))
    profile = _Profile(
        structure,
        presampler,
        policy=costs.policy,
        packs=strategy.packs,
        num_batches=max(1, min(_PROFILE_BATCHES, num_batches, affordable)),
        num_threads=division.num_threads,
        spare_bytes=placement.spare_bytes,
        fixed=fixed,
    )
    # Of the rows of a batch few are missed, and few enter the cache. What that leaves of the
    # memory for the worst case caches more, so it is measured before the sizes are compared.
    choose = partial(
        choose_size,
        settings=settings,
        left_bytes=left,
        num_batches=num_batches,
        disk_bytes=disk_bytes,
        memory_for=memory.memory_for,
    )
    size = choose(costs)
    trades_rows = False
    if packs or (size.num_slots and size.plans_in_memory):
        measured = profile.run(size)
        costs = with_measured_changes(costs, measured.changes, measured.accesses)
        # What is always cached does not depend on how many batches are planned.
        trades_rows = fixed is None and measured.misses > 0
        trades_rows = trades_rows and profile.num_batches >= _LEAST_TOLD
        trades_rows = trades_rows and takes_from_rows(size, costs, settings, left)
        if packs:
            mean = division.expected(-(-measured.misses // profile.num_batches))
            costs = replace(
                costs,
                # Misses vary more than nodes do.
                packed_rows=max(1, expected_bytes(measured.most_missed)),
                mean_packed_rows=max(1, mean),
            )

    def packing_cost(size: SuperbatchSize) -> float:
        if costs.disk_bytes(size.num_batches) + _spilled(costs, size) > disk_bytes:
            return math.inf
        # The table is read once for each superbatch; what is packed is written and read.
        scans = profile.num_batches / size.num_batches
        rows = scans * costs.num_rows + 2 * profile.run(size).misses
        return rows * costs.row_bytes

    cost = packing_cost if packs else profile.later_misses if trades_rows else None
    size = choose(costs, cost=cost)
    needed = costs.disk_bytes(size.num_batches) + _spilled(costs, size)
    if packs and (missing := needed - disk_bytes) > 0:
        raise DiskBudgetError(
            f"strategy {strategy.name!r}: the packed rows of superbatches of {size.num_batches} "
            f"batches take up to {disk_bytes + missing} bytes on disk, and {disk_bytes} may be "
            f"used: {missing} bytes too few; raise disk= by at least {format_at_least(missing)}, "
            "name a roomier tmpdir=, or choose strategy='belady'"
        )
    at_once = 1 if size.num_batches >= num_batches else 2
    size = replace(size, overlaps=2 * needed <= at_once * disk_bytes)
    return placement.with_superbatch(
        size.with_sampling(memory.bulk_bytes, memory.besides_bytes, lends=memory.lent_bytes > 0)
    )


def _spilled(costs: SuperbatchCosts, size: SuperbatchSize) -> int:
    """Return what a choice keeps on disk besides packed rows."""
    return 0 if size.plans_in_memory else costs.spilled_disk_bytes(size.num_batches)


@dataclass(frozen=True)
class _Planned:
    """What came of planning the sample.

    Attributes
    ----------
    misses, changes, accesses : int
        Rows that are missed, that enter the cache, and that there are, in all batches.
    most_missed : int
        By one batch.
    """

    misses: int = 0
    changes: int = 0
    accesses: int = 0
    most_missed: int = 0


class _Profile:
    """Batches sampled beforehand, and what caches would have missed of them."""

    def __init__(
        self,
        structure: Structure,
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

    def run(self, size: SuperbatchSize) -> _Planned:
        """Plan the sample in superbatches of some size, from where a loader begins."""
        return self._plan(size, size.num_batches)

    def later_misses(self, size: SuperbatchSize) -> int:
        """Return what is missed of the sample in mid-run: from a cache of what most of it needs."""
        return self._plan(size, self.num_batches).misses

    def _plan(self, size: SuperbatchSize, num_filled_for: int) -> _Planned:
        """Plan from a cache that is filled for so many batches, if it would be filled."""
        trace = self._sampled()
        planner = self._planner(size, num_filled_for)
        misses = changes = most = 0
        for first in range(0, trace.num_batches, size.num_batches):
            plan = planner.plan(_part(trace, first, first + size.num_batches))
            misses += plan.num_misses
            changes += len(plan.change_positions)
            most = max(most, int(plan.misses.max(initial=0)))
        return _Planned(misses, changes, trace.num_accesses, most)

    def _planner(self, size: SuperbatchSize, num_filled_for: int) -> Planner:
        num_slots, num_nodes = size.num_slots, self._structure.csc.num_nodes
        if self._fixed is not None:
            planner: Planner = self._fixed.planner(num_slots)
            planner.restart(in_slots(self._fixed.of(num_slots), num_slots))
            return planner
        planner = self._policy.planner(num_slots)
        if fills(self._policy, size, num_nodes, packs=self._packs):
            first = _part(self._sampled(), 0, num_filled_for)
            planner.restart(in_slots(most_needed(first, num_nodes, num_slots), num_slots))
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
            release()
        return self._trace


def _part(trace: Trace, first: int, last: int) -> Trace:
    """Return some batches of a trace, as views."""
    offsets = trace.offsets[first : last + 1]
    ids = trace.ids[offsets[0] : offsets[-1]]
    return type(trace)(ids, np.ascontiguousarray(offsets - offsets[0]))
