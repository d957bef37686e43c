"""The parts of the budget of a strategy that samples and plans ahead."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gnnstore.budget.ledger import IN_FLIGHT, Ledger, Reservation
from gnnstore.caching.policies.registry import POLICIES
from gnnstore.caching.pools import SlotPools, pooled
from gnnstore.features.packed.chunks import CHUNK_STAGING_BYTES
from gnnstore.features.packed.pack import PackedBatch
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.pipeline.margins import with_margin
from gnnstore.strategies.sizes.costs import Horizon, SuperbatchCosts
from gnnstore.strategies.sizes.prefetch import check_two_batches, prefetch_wish, with_batches
from gnnstore.threads import LONG_READ_BYTES

if TYPE_CHECKING:
    from gnnstore.pipeline.lookahead.presample import Presampled
    from gnnstore.strategies.predict.traits import StrategyTraits
    from gnnstore.strategies.sizes.misses import MissModel
    from gnnstore.strategies.sizes.placement import Placement, Placer
    from gnnstore.strategies.sizes.settings import PlannedSettings

# Without memory= the memory of the model is unknown.
_UNPROMISED_SHARE = 2
# Bytes of a plan for each node of a batch: its slot, and the change that brings it into one.
_STEP_BYTES = 4 + 8
_POSITION_BYTES = 4
# If in-neighbours are on disk, batches that are sampled together read each hop in one pass; with
# more memory there are fewer passes.
_BULK_SHARE = 8
# A batch takes about four times the bytes of its ids while it is sampled, and tables of its nodes.
_BULK_FACTOR, _BULK_LEAST_BYTES = 8, 1 << 16
# The share of a superbatch's batches that come without a plan while the others are made: reading
# all of their rows takes about as long as sampling the others.
_UNPLANNED_SHARE = 64
# The tables are read in order to make a superbatch; and sampling and planning a row takes as long
# as reading this many bytes.
_ROW_WORK_BYTES = 128
# A superbatch is sampled, planned and packed in turn.
_SAMPLING = "sampling"
TOGETHER = "sampling batches together"


@dataclass(frozen=True, eq=False)
class LookaheadFacts:
    """The facts by which the budget of a strategy that plans ahead is divided."""

    placed: Placer
    seen: Presampled
    see_many: Callable[[], Presampled]  # samples more batches than were seen, if needed
    misses: MissModel | None  # None if no rows are read
    strategy: StrategyTraits
    settings: PlannedSettings
    num_rows: int  # rows of the tables that are cached together
    row_bytes: int  # bytes of a node's rows in these tables
    pools: SlotPools | None  # of slots of several widths
    epoch_batches: int
    horizon: Horizon | None  # later epochs whose batches are known
    # Preparing threads; fewer will be started if staging memory is for fewer.
    num_threads: int
    may_use_fewer: bool  # whether one thread may be used if memory is short
    staging_bytes: int  # memory of a thread that reads; 0: nothing is read
    reads_neighbors: bool  # whether in-neighbours are read from disk
    samples_slowly: bool  # whether sampling may wait for a disk
    reads_more: bool  # whether rows of other tables are read one by one
    # Disk for packed rows, and for traces and plans that do not fit in memory.
    disk_bytes: int
    edges_bytes: int = 0  # memory for each planned batch, of rows of edges that are read ahead

    @property
    def packs(self) -> bool:
        """Whether missed rows are packed."""
        return self.strategy.packs and self.row_bytes > 0


@dataclass(frozen=True, eq=False)
class BudgetParts:
    """The parts of a budget for several threads, or thriftily for one."""

    facts: LookaheadFacts
    placement: Placement
    seen: Presampled
    is_thrifty: bool = False

    @property
    def costs(self) -> SuperbatchCosts:
        """The costs of superbatches whose batches miss all of their rows."""
        facts, seen = self.facts, self.seen
        batch_nodes = self.expected(seen.largest_nodes)
        id_bytes = id_dtype(facts.num_rows - 1).itemsize
        packed = None
        if self.packs:
            packed = PackedBatch(batch_nodes, batch_nodes, batch_nodes, id_bytes)
        return SuperbatchCosts(
            num_rows=facts.num_rows,
            row_bytes=facts.row_bytes,
            batch_nodes=batch_nodes,
            id_bytes=id_bytes,
            kept_bytes=self.expected(seen.largest_kept_bytes),
            labels_bytes=self.expected(seen.largest_labels_bytes),
            edges_bytes=facts.edges_bytes,
            packed=packed,
            policy=pooled(POLICIES[facts.strategy.policy], facts.pools),
            pools=facts.pools,
            epoch_batches=facts.epoch_batches,
        )

    def expected(self, largest: int) -> int:
        """Return the size to expect of a batch, from that of the largest one seen."""
        if self.is_thrifty:
            return with_margin(largest, self.seen.margin)
        return min(with_margin(largest), with_margin(largest, min(1.0, self.seen.margin)))

    @property
    def packs(self) -> bool:
        """Whether missed rows are packed."""
        return self.facts.packs

    @property
    def num_threads(self) -> int:
        """Threads that prepare batches."""
        facts = self.facts
        if self._uses_one:
            return 1
        if not facts.staging_bytes:
            return facts.num_threads
        return max(1, min(facts.num_threads, self.placement.staging_bytes // facts.staging_bytes))

    @property
    def sampling_threads(self) -> int:
        """Threads that sample ahead: one more than processors helps only if they wait."""
        if self.facts.samples_slowly:
            return self.num_threads
        return min(self.num_threads, len(os.sched_getaffinity(0)))

    @property
    def _uses_one(self) -> bool:
        return self.is_thrifty and self.facts.may_use_fewer

    @property
    def placed(self) -> Placement:
        """The placement, with staging memory for the threads that there are."""
        placement = self.placement
        if not self.is_thrifty:
            return placement
        if self._uses_one and self.facts.staging_bytes:
            placement = placement.with_staging(self.facts.staging_bytes)
        threads = "one thread, and " if self._uses_one else ""
        return placement.because(f"{threads}no batch that waits, for memory= has no room for more")

    def num_unplanned(self, num_batches: int) -> int:
        """Return the batches that come without a plan while `num_batches` batches are made."""
        facts = self.facts
        work_bytes = num_batches * self.seen.largest_nodes * _ROW_WORK_BYTES
        # If memory is short, there is none for reading rows in two ways.
        if self.is_thrifty or facts.num_rows * facts.row_bytes + work_bytes < LONG_READ_BYTES:
            return 0
        return max(1, num_batches // _UNPLANNED_SHARE)

    def ledger(self, raise_by: int = 0) -> Ledger:
        """Return the memory with batches in flight, and all other memory that is always used."""
        placement = self.placed
        memory = replace(placement.ledger, raise_by=raise_by)
        if not placement.budget_is_promise:
            left = memory.left()
            kept = Reservation("a model and batches in flight", left - left // _UNPROMISED_SHARE)
            return memory.add(kept)
        seen = self.seen
        batch_bytes = self.expected(seen.largest_bytes + _STEP_BYTES * seen.largest_nodes)
        check_two_batches(memory, batch_bytes)
        in_flight = 2 * batch_bytes
        if not self.is_thrifty:
            sample_bytes = self.expected(seen.largest_ids_bytes)
            wish = prefetch_wish(memory.left(), batch_bytes, sample_bytes, self.num_threads)
            in_flight = with_batches(memory).solve(wish)[IN_FLIGHT]
        return memory.add(Reservation("batches in flight", in_flight))

    def sampling(self, held: Ledger) -> list[Reservation]:
        """Return the memory of threads that sample, and of threads that read packed rows."""
        facts, seen, num_threads = self.facts, self.seen, self.num_threads
        found: list[Reservation] = []
        reads_unplanned = self.num_unplanned(facts.epoch_batches) > 0
        if self.placement.budget_is_promise:
            if facts.reads_neighbors:
                # One thread fetches in-neighbours; batches are sampled together, in memory that is
                # counted separately.
                found.append(Reservation("staging for in-neighbours", facts.staging_bytes))
            else:
                # The sampler's result; as much while it is sampled; and as much until it is kept in
                # half the memory.
                ids_bytes = self.sampling_threads * 3 * self.expected(seen.largest_ids_bytes)
                found.append(
                    Reservation("subgraphs as they are sampled", ids_bytes, phase=_SAMPLING)
                )
            if self.packs:
                # Packed rows have their own reader, in place of the other if nothing else is read,
                # not even at first; and a place for each row.
                spared = 0 if facts.reads_more or reads_unplanned else self.placed.staging_bytes
                reading = max(0, num_threads * CHUNK_STAGING_BYTES - spared)
                reading += num_threads * _POSITION_BYTES * self.expected(seen.largest_nodes)
                found.append(Reservation("reading packed rows", reading))
            elif reads_unplanned:
                # A reader keeps its buffers for the next read.
                found.append(
                    Reservation("filling the cache in the background", facts.staging_bytes)
                )
        if facts.reads_neighbors:
            # No more than for all batches of an epoch.
            most = (facts.epoch_batches + num_threads) * (
                _BULK_FACTOR * self.expected(seen.largest_ids_bytes) + _BULK_LEAST_BYTES
            )
            bulk_bytes = min(most, max(0, held.add(*found).left()) // _BULK_SHARE)
            found.append(Reservation(TOGETHER, bulk_bytes, phase=_SAMPLING))
        return found
