"""Divides a budget between batches in flight, sampling threads, cached rows and their plans.

A few lengths of superbatches are tried, with rows pinned or packed rows in memory. What is left for
cached rows with each follows by division, and the one that moves the fewest rows is taken. A
prediction is solved as a loader is: it is of the epoch that would run.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gnnstore.budget.ledger import PLANNED, SLOTS, Ledger, least_more
from gnnstore.caching.policies.base import MAX_PLANNED
from gnnstore.caching.policies.registry import POLICIES
from gnnstore.errors import BudgetError, DiskBudgetError
from gnnstore.pipeline.lookahead.producer import warms_up
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.strategies.sizes.costs import KEPT_SHARE, SuperbatchCosts, per_batch
from gnnstore.strategies.sizes.parts import TOGETHER, BudgetParts, LookaheadFacts
from gnnstore.threads import LONG_READ_BYTES

if TYPE_CHECKING:
    from gnnstore.strategies.sizes.placement import Placement

# Lengths of a superbatch that are tried, each half of the one before.
_LENGTHS = 4
# Epochs that a superbatch may have, if their batches are known. With twice as many the tables are
# read half as often; but training may stop before it uses all packed rows, so they must cost less
# than this share of fewer ones.
_EPOCHS, _WORTH_LENGTHENING = (2, 4), 0.9
# The longest plans leave this share of the rest to rows.
_ROWS_SHARE = 1 / 2
# Shares of the slots for pinned rows.
_PINNED_SHARES = (1 / 4, 1 / 2, 3 / 4)
# Planning a row, and writing its plan and reading it back, as a share of reading a row by itself.
_PLANNING = 1 / 200
# With pinned rows, the largest share of a batch's rows that may be left to plan: the index of
# pinned rows takes a little more than a bit for each node of the graph.
_MOST_PLANNED = 0.9
# Shares of the cache that packed rows may take in memory: beyond, it misses too much.
_MOST_OF_ROWS, _SOME_OF_ROWS = 3 / 4, 1 / 4
# A smaller cache misses more: a superbatch that is to be kept whole has room for this many times
# its packed rows.
_MORE_MISSES = 1.25
# Packing rows and reading them by turns takes this many times as long as at once: on F an epoch of
# one superbatch takes 48 s, and 35 in two halves, although that is one more pass.
_BY_TURNS = 1.5
_NO_LIMIT = 2**62

# The usual margin is half a batch, and an eighth of the other batches; it may be as large without.
_MOST_MARGIN = 0.4
# From this many superbatches in an epoch on, waiting for each batch is worth it if superbatches get
# this many times longer.
_MANY, _WORTH_WAITING = 8, 4


@dataclass(frozen=True)
class Solved:
    """The division of a budget."""

    placement: Placement  # with staging memory for `num_threads`
    num_threads: int
    size: SuperbatchSize
    disk_bytes: int  # disk space that superbatches take


def solve(facts: LookaheadFacts) -> Solved:
    """Return the sizes with as many batches in flight as fit; fewer, and one thread, if need be."""
    split = _Split(facts, facts.placed(0), facts.seen)
    if not split.placement.budget_is_promise:
        return split.solve()
    found = None
    try:
        found = split.solve()
    except DiskBudgetError:
        raise  # with less memory, more would be missing
    except BudgetError:
        pass
    # A pass over the table for every few batches is slower than waiting for each batch.
    most = min(facts.epoch_batches, MAX_PLANNED) // _MANY
    is_short = facts.settings.num_batches is None and found is not None and split.packs
    if found is not None and not (is_short and found.size.num_batches < most):
        return found
    seen = facts.see_many()
    if seen.margin <= _MOST_MARGIN:
        split = replace(split, seen=seen, is_thrifty=True)
    if found is None:
        return split.solve(raise_by=least_more(split.missing_bytes))
    with suppress(BudgetError):
        longer = split.solve()
        if longer.size.num_batches >= _WORTH_WAITING * found.size.num_batches:
            return longer
    return found


@dataclass(frozen=True, eq=False)
class _Split(BudgetParts):
    """A budget that is divided."""

    def solve(self, raise_by: int = 0) -> Solved:
        """Divide the budget."""
        facts, memory = self.facts, self.ledger(raise_by)
        sampling = self.sampling(memory)
        memory = memory.add(*sampling)
        # What is refused does not depend on a sample, which may be small where memory is.
        self._size(memory, self.costs, self._counts[0])
        costs, size = self._best(memory)
        disk, on_disk = self._disk(costs, size), costs.on_disk(size.num_batches)
        if self.packs and disk.left(on_disk) < 0:
            remedies = ["name a roomier spill_dir=", "choose strategy='belady'"]
            if size.num_batches > facts.epoch_batches:  # as the user has set
                remedies.insert(0, "lower superbatch=")
            raise disk.refusal(on_disk, *remedies, error=DiskBudgetError)
        needed = disk.peak(on_disk)
        return Solved(
            self.placed,
            self.num_threads,
            replace(
                size,
                reservations=(*sampling, *size.reservations),
                bulk_bytes=sum(r.fixed for r in sampling if r.what == TOGETHER),
                sampling_threads=self.sampling_threads if self.num_threads else None,
                overlaps=self._overlaps(size, needed),
                num_unplanned=self.num_unplanned(min(size.num_batches, facts.epoch_batches)),
            ),
            needed,
        )

    def missing_bytes(self, more: int) -> int:
        """Return about how many bytes are missing with `more` more bytes of memory."""
        try:
            split = replace(self, placement=self.facts.placed(more))
            memory = split.ledger()
            memory = memory.add(*split.sampling(memory))
            split._size(memory, split.costs, split._counts[0])
        except BudgetError as error:
            return error.missing_bytes or max(1, more)
        return 0

    # --- the sizes that are compared ---------------------------------------------------------

    def _best(self, memory: Ledger) -> tuple[SuperbatchCosts, SuperbatchSize]:
        """Return the size that moves the fewest rows, and its costs."""
        least, best = math.inf, None
        for costs, size in self._candidates(memory):
            price = self._price(costs, size)
            if size.num_batches > self.facts.epoch_batches:
                price /= _WORTH_LENGTHENING
            if best is None or price < least:
                least, best = price, (costs, size)
        if best is None:
            return self.costs, self._size(memory, self.costs, self._counts[0])
        return best

    def _candidates(self, memory: Ledger) -> Iterator[tuple[SuperbatchCosts, SuperbatchSize]]:
        """Yield sizes, of equal ones the best first: of the longest superbatches."""
        for length in self._lengths(memory):
            try:
                costs, size = self._sized(memory, self.costs, length)
            except BudgetError:
                continue
            yield costs, size
            if length > self.facts.epoch_batches:
                continue  # rows of several epochs are many, and their passes are few
            for other in (*self._with_pins(size), *self._with_chunks(memory, costs, size)):
                with suppress(BudgetError):
                    yield self._sized(memory, other, length)

    def _lengths(self, memory: Ledger) -> list[int]:
        """Return the numbers of batches to try, the longest first."""
        counts, facts = self._counts, self.facts
        if len(counts) == 1:
            return [counts[0]]
        longest = self._longest(memory, self.costs)
        with suppress(BudgetError):  # with the misses to expect there is room for more
            costs, _ = self._sized(memory, self.costs, longest)
            longest = max(longest, self._longest(memory, costs))
        found = [longest]
        is_long = facts.num_rows * facts.row_bytes >= LONG_READ_BYTES
        if longest == facts.epoch_batches and self._may_last and is_long:
            found = [*(n for n in reversed(self._several)), longest]
        if self.packs:
            found += self._with_room(memory, longest)
        while len(found) < _LENGTHS and found[-1] > counts[0]:
            found.append(max(counts[0], self._even(found[-1] // 2)))
        return sorted(set(found), reverse=True)

    def _with_room(self, memory: Ledger, longest: int) -> list[int]:
        """Return the most batches whose packed rows fit on disk, and in memory, if fewer fit."""
        facts, found = self.facts, []
        with suppress(BudgetError):
            costs, size = self._sized(memory, self.costs, longest)
            disk = self._disk(costs, size)
            for _ in range(_LENGTHS):  # shorter ones miss more
                if (left := disk.left(costs.on_disk(size.num_batches))) >= 0:
                    break
                share = disk.limit / (disk.limit - left)
                shorter = self._even(max(self._counts[0], int(share * size.num_batches)))
                costs, size = self._sized(memory, self.costs, shorter)
                disk = self._disk(costs, size)
            found.append(size.num_batches)
            ledger = memory.add(*size.reservations)
            room = ledger.left(size.sizes)
            if facts.settings.cache_bytes is None:
                room += int(_MOST_OF_ROWS * size.num_slots * ledger.bytes_each(SLOTS))
            kept = int(room / (2 * _MORE_MISSES * max(1, costs.chunks_of(1))))
            found.append(self._even(max(self._counts[0], kept)))
        return [length for length in found if length < longest]

    def _longest(self, memory: Ledger, costs: SuperbatchCosts) -> int:
        """Return the most batches whose plans leave half of the rest to rows, or the fewest."""
        counts, given = self._counts, self.facts.settings.cache_bytes
        # Memory that any plan takes does not show how many batches are worth it.
        ledger = memory.add(*costs.in_memory)
        most = ledger.peak() + int(_ROWS_SHARE * max(0, ledger.left()))
        if given is not None:
            most = ledger.limit - self._slots(ledger, costs, {}) * ledger.bytes_each(SLOTS)

        def takes_too_much(count: int) -> bool:
            try:
                size = self._size(memory, costs, count)
            except BudgetError:
                return True
            with_size = memory.with_limit(most).add(*size.reservations)
            rows_bytes = size.num_planned_slots * with_size.bytes_each(SLOTS)
            kept_bytes = costs.samples.bytes_of(size.sizes) if size.in_memory else 0
            return with_size.left(size.sizes) + rows_bytes + kept_bytes < 0

        # False for the first counts, and true from some count on: files, if there is disk for them,
        # are cheaper from where they begin.
        return self._even(counts[max(0, bisect_left(counts, True, key=takes_too_much) - 1)])

    @property
    def _counts(self) -> range:
        """The numbers of batches, of one epoch at most unless the user set one."""
        facts, given = self.facts, self.facts.settings.num_batches
        most = max(1, min(facts.epoch_batches, MAX_PLANNED))
        if given is not None:
            several = [n for n in self._several if n <= given and self._may_last]
            only = several[-1] if several else min(given, most)
            return range(only, only + 1)
        return range(min(2, most), most + 1)

    @property
    def _may_last(self) -> bool:
        """Whether a superbatch may have several epochs: only with packed rows is it worth it."""
        facts = self.facts
        is_known = facts.horizon is not None and not facts.strategy.is_offline
        return self.packs and is_known and not self.is_thrifty

    @property
    def _several(self) -> list[int]:
        """Batches of several epochs, as many as may be planned at a time."""
        epoch = self.facts.epoch_batches
        return [n for k in _EPOCHS if 1 < (n := k * epoch) <= MAX_PLANNED]

    def _even(self, num_batches: int) -> int:
        """Return the fewest batches that give the same number of packed superbatches an epoch."""
        epoch = self.facts.epoch_batches
        return -(-epoch // -(-epoch // num_batches)) if self.packs else num_batches

    def _with_pins(self, size: SuperbatchSize) -> Iterator[SuperbatchCosts]:
        """Yield costs with pinned rows, if the cache is warmed up and memory is not short."""
        facts, model = self.facts, self.facts.misses
        policy = POLICIES[facts.strategy.policy]
        is_part = 0 < size.num_slots < facts.num_rows and not self.is_thrifty
        if model is None or not is_part or facts.pools is not None:
            return
        if not warms_up(policy, size, facts.num_rows, packs=facts.strategy.packs):
            return
        for share in _PINNED_SHARES:
            pins = model.pins(int(share * size.num_slots))
            if pins is not None and pins.planned_share <= _MOST_PLANNED:
                yield replace(self.costs, pins=pins)

    def _with_chunks(
        self, memory: Ledger, costs: SuperbatchCosts, size: SuperbatchSize
    ) -> Iterator[SuperbatchCosts]:
        """Yield costs with memory for packed rows that are not written, which the cache loses.

        The next superbatch, which is made meanwhile, needs as much. So each such row takes two from
        the cache, and saves one write and one read.
        """
        facts = self.facts
        # Without memory= other uses of memory are unknown; but without disk there is no other place
        # for packed rows.
        may_keep = self.placement.budget_is_promise or not facts.disk_bytes
        if not self.packs or facts.strategy.is_offline or self.is_thrifty or not may_keep:
            return
        ledger = memory.add(*size.reservations)
        free, rows = max(0, ledger.left(size.sizes)), size.num_slots * ledger.bytes_each(SLOTS)
        if facts.settings.cache_bytes is not None:
            rows = 0  # the user has set their number
        whole = math.ceil(_MORE_MISSES * costs.chunks_of(size.num_batches))
        tried = {int(free + _SOME_OF_ROWS * rows) // 2}
        if free // 2 >= costs.chunks_of(1):  # it has no other use
            tried.add(min(free // 2, whole))
        if 2 * whole <= free + _MOST_OF_ROWS * rows:
            tried.add(whole)
        for num_bytes in sorted(tried, reverse=True):
            if num_bytes > 0:
                yield replace(self.costs, chunk_memory_bytes=min(num_bytes, whole))

    # --- the size of a length ----------------------------------------------------------------

    def _sized(
        self, memory: Ledger, costs: SuperbatchCosts, num_batches: int
    ) -> tuple[SuperbatchCosts, SuperbatchSize]:
        """Return a size, and the costs with the rows that it misses."""
        try:
            size = self._size(memory, costs, num_batches)
        except BudgetError:
            # Batches that miss all rows are the worst case, and so many may have no room.
            size = SuperbatchSize(num_batches, costs.num_pinned, True)
        for _ in range(2):
            costs = self._expecting(costs, size)
            size = self._size(memory, costs, num_batches)
        return costs, size

    def _expecting(self, costs: SuperbatchCosts, size: SuperbatchSize) -> SuperbatchCosts:
        """Return the costs with the misses to expect of a size."""
        model = self.facts.misses
        if model is None:
            return costs
        later = self._misses(size)
        first = later
        if self.packs:  # the cache is filled by the first batches
            first = model.misses(size.num_slots, size.num_batches, initial="nothing")
        kept = size.num_planned_slots * -(-self.facts.epoch_batches // size.num_batches)
        return costs.with_misses(first, later, model.accesses, kept, self.expected)

    def _misses(self, size: SuperbatchSize) -> float:
        """Return the rows that an epoch misses, in the middle of a run."""
        model = self.facts.misses
        if model is None:
            return 0.0
        return model.misses(size.num_slots, size.num_batches, num_pinned=size.num_pinned)

    def _price(self, costs: SuperbatchCosts, size: SuperbatchSize) -> float:
        """Return the rows that an epoch reads singly; or moves, of the table and of packed ones."""
        missed, model = self._misses(size), self.facts.misses
        if not self.packs:
            share = 1.0 if costs.pins is None else costs.pins.planned_share
            return missed + (0.0 if model is None else _PLANNING * share * model.accesses)
        disk, on_disk = self._disk(costs, size), costs.on_disk(size.num_batches)
        if disk.left(on_disk) < 0:
            return math.inf
        # The table is read once for each superbatch; packed rows are written and read, except for
        # those in memory.
        scans = self.facts.epoch_batches / size.num_batches
        kept = scans * size.chunk_memory_bytes / costs.row_bytes
        moved = scans * costs.num_rows + 2 * max(0.0, missed - kept)
        return moved if self._overlaps(size, disk.peak(on_disk)) else _BY_TURNS * moved

    def _size(self, memory: Ledger, costs: SuperbatchCosts, num_batches: int) -> SuperbatchSize:
        """Return a superbatch of `num_batches` batches, with the cache that fits next to it."""
        facts = self.facts
        # Before training, what is planned on disk is little next to what is packed.
        disk_bytes = _NO_LIMIT if facts.strategy.is_offline else facts.disk_bytes
        costs, left = costs.of_length(num_batches), memory.left()
        sizes, kept_memory = {PLANNED: num_batches}, memory
        if facts.horizon is not None and num_batches > facts.epoch_batches:
            memory = memory.add(facts.horizon.reserve(facts.epoch_batches))
        in_memory = Ledger(left // KEPT_SHARE, (costs.samples,)).left(sizes) >= 0
        kept = [costs.samples] * in_memory
        ledger, table, packing = memory.add(*costs.in_memory, *kept), 0, costs.packing
        is_large = num_batches * per_batch(costs.in_memory) > left // KEPT_SHARE
        if costs.may_spill and (is_large or ledger.left(sizes) < 0):
            tables = costs.tables(left)
            spilled = memory.add(*costs.spilled(tables[-1]), *kept)
            with_rows = sizes | {SLOTS: self._slots(spilled, costs, sizes)}
            saves = spilled.peak(with_rows) < ledger.peak(with_rows)
            on_disk = Ledger(disk_bytes, tuple(costs.spilled_on_disk(num_batches)))
            if saves and on_disk.left(costs.on_disk(num_batches)) >= 0:
                # With memory that other phases leave free there are fewer passes.
                roomier = ((t, memory.add(*costs.spilled(t), *kept)) for t in tables[:-1])
                found = (each for each in roomier if each[1].left(with_rows) >= 0)
                table, ledger = next(found, (tables[-1], spilled))
                packing = costs.spilled_packing
        sizes[SLOTS] = self._slots(ledger, costs, sizes)
        given = facts.settings.cache_bytes is not None
        ledger.check(sizes, *["lower cache_bytes="] * given, "lower superbatch=")
        return SuperbatchSize(
            num_batches,
            sizes[SLOTS] + costs.num_pinned,
            in_memory,
            reservations=ledger.reservations[len(kept_memory.reservations) :],
            packing_bytes=Ledger(0, tuple(packing)).peak(sizes),
            chunk_memory_bytes=costs.chunk_memory_bytes,
            table_bytes=table,
            num_pinned=costs.num_pinned,
            pools=costs.pools,
        )

    def _slots(self, ledger: Ledger, costs: SuperbatchCosts, sizes: dict[str, int]) -> int:
        """Return the number of rows to cache next to pinned ones; 0 if no table is read."""
        given = self.facts.settings.cache_bytes
        if costs.row_bytes == 0:
            return 0
        most = costs.num_rows - costs.num_pinned
        if given is None:
            return ledger.largest(SLOTS, sizes, most)
        return min(most, max(0, given - costs.pinned_bytes) // ledger.bytes_each(SLOTS))

    # --- disk --------------------------------------------------------------------------------

    def _overlaps(self, size: SuperbatchSize, disk_bytes: int) -> bool:
        """Whether two superbatches fit on disk, given their sizes or that of an epoch's one."""
        at_once = 1 if size.num_batches == self.facts.epoch_batches else 2
        return 2 * disk_bytes <= at_once * self.facts.disk_bytes

    def _disk(self, costs: SuperbatchCosts, size: SuperbatchSize) -> Ledger:
        """Return the disk with the files of superbatches of some size."""
        who = self.placement.ledger.who
        disk = Ledger(self.facts.disk_bytes, (), who, "of disk space", "disk=")
        if self.facts.strategy.is_offline:  # all that is packed is kept, and compared by `pack`
            return disk
        spilled = [] if size.plans_in_memory else costs.spilled_on_disk(size.num_batches)
        return disk.add(*costs.packed_on_disk(size.num_batches), *spilled)
