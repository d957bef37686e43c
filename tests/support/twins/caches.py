"""Caches in plain Python: what the planning kernels must compute, and the fewest misses there are.

A trace is a list of batches; a batch needs the rows of its ids, which may be repeated. Rows
that are cached before a batch are its hits, and rows enter the cache after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_FREQUENCY = 65535

# An end behind every batch: "kept for the next superbatch", or "not used again".
_END = -1


@dataclass
class TwinPlan:
    """The result of `_core.plan_belady`, as lists."""

    slots: list[int]
    misses: list[int]
    change_offsets: list[int] = field(default_factory=lambda: [0])
    change_positions: list[int] = field(default_factory=list)
    change_slots: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    frequencies: list[int] = field(default_factory=list)


def batches_of(ids: NDArray[Any], offsets: NDArray[np.int64]) -> list[list[int]]:
    """Cut the ids [n] of a trace into its batches."""
    return [part.tolist() for part in np.split(ids, offsets[1:-1])] if len(offsets) > 1 else []


def belady_plan(
    batches: Sequence[Sequence[int]], nodes: Sequence[int], frequencies: Sequence[int]
) -> TwinPlan:
    """Plan a cache of ``len(nodes)`` slots by the definition.

    A row can be kept from the batch that brings it (-1: it is in the cache already) to the
    batch that needs it next, if a slot is free for all of that time. Batches choose from the
    last to the first, each the nearest next uses first, and among equals by the last position
    of the row in the batch (its slot, before the first batch). The remaining room goes to rows that
    are not needed again, which stay to the end: those needed by the most batches first, then
    those used last, then by position.

    Nodes and frequencies are those of the cache before the first batch; -1: an empty slot.
    """
    num_batches, num_slots = len(batches), len(nodes)
    # places[-1] is the cache; places[i] are rows of batch i with their last positions.
    places = {i: {row: k for k, row in enumerate(batch)} for i, batch in enumerate(batches)}
    places[-1] = {row: slot for slot, row in enumerate(nodes) if row >= 0}
    counts = dict(zip(nodes, frequencies, strict=True))
    for row in chain.from_iterable(places[i] for i in range(num_batches)):
        counts[row] = counts.get(row, 0) + 1

    def next_use(row: int, i: int) -> int:
        return next((j for j in range(i + 1, num_batches) if row in places[j]), _END)

    used = dict.fromkeys(range(-1, num_batches), 0)  # slots between batch i and the next one
    kept: dict[tuple[int, int], int] = {}  # (batch, row) -> until when

    def keep(i: int, row: int, end: int) -> None:
        gaps = range(i, num_batches if end == _END else end)
        if all(used[gap] < num_slots for gap in gaps):
            kept[i, row] = end
            for gap in gaps:
                used[gap] += 1

    last_uses = []
    for i in range(num_batches - 1, -2, -1):
        rows = sorted((next_use(row, i), place, row) for row, place in places[i].items())
        for end, place, row in rows:
            if end == _END:
                last_uses.append((-min(counts[row], MAX_FREQUENCY), -i, place, row))
            else:
                keep(i, row, end)
    for _, minus_i, _, row in sorted(last_uses):
        keep(-minus_i, row, _END)
    return _assign_slots(batches, places, kept, num_slots, counts)


def _assign_slots(
    batches: Sequence[Sequence[int]],
    places: dict[int, dict[int, int]],
    kept: dict[tuple[int, int], int],
    num_slots: int,
    counts: dict[int, int],
) -> TwinPlan:
    """Give kept rows their slots: those freed last first, at the start the lowest."""
    plan = TwinPlan(slots=[], misses=[])
    slot_of = {row: slot for row, slot in places[-1].items() if (-1, row) in kept}
    free = [slot for slot in reversed(range(num_slots)) if slot not in slot_of.values()]
    for i, batch in enumerate(batches):
        plan.slots += [slot_of.get(row, -1) for row in batch]
        plan.misses.append(sum(row not in slot_of for row in places[i]))
        in_order = sorted(places[i], key=places[i].__getitem__)
        entering = [row for row in in_order if row not in slot_of and (i, row) in kept]
        free += [slot_of.pop(row) for row in in_order if row in slot_of and (i, row) not in kept]
        for row in entering:
            slot_of[row] = free.pop()
            plan.change_positions.append(places[i][row])
            plan.change_slots.append(slot_of[row])
        plan.change_offsets.append(len(plan.change_slots))
    plan.nodes, plan.frequencies = [-1] * num_slots, [0] * num_slots
    for row, slot in slot_of.items():
        plan.nodes[slot] = row
        plan.frequencies[slot] = min(counts[row], MAX_FREQUENCY)
    return plan


def belady_misses(batches: Sequence[Sequence[int]], num_slots: int) -> list[int]:
    """Return the misses of each batch by Belady's rule as it is mostly told.

    After a batch the cache, empty at first, holds the `num_slots` rows, of those that it held
    and those of the batch, that are needed again soonest.
    """
    cached: set[int] = set()
    misses = []
    for i, batch in enumerate(batches):
        misses.append(len(set(batch) - cached))

        def next_use(row: int, i: int = i) -> int:
            return next((j for j in range(i + 1, len(batches)) if row in batches[j]), len(batches))

        cached = set(sorted(cached | set(batch), key=next_use)[:num_slots])
    return misses


def minimum_misses(
    batches: Sequence[Sequence[int]], num_slots: int, cached: Iterable[int] = ()
) -> int:
    """Return the fewest misses of any cache: all of them are tried. For tiny traces.

    Of some ten different rows at most; `cached` are those in the cache at the start.
    """
    best = {frozenset(cached): 0}
    for batch in batches:
        following: dict[frozenset[int], int] = {}
        for cache, misses in best.items():
            total = misses + len(set(batch) - cache)
            rows = sorted(cache | set(batch))
            # A smaller cache is never better than one that holds more besides.
            for choice in combinations(rows, min(num_slots, len(rows))):
                held = frozenset(choice)
                following[held] = min(total, following.get(held, total))
        best = following
    return min(best.values())


def run_lru(batches: Sequence[Sequence[int]], num_slots: int) -> tuple[list[int], list[int]]:
    """Return (is_hit of each access, distinct misses of each batch) of the rows used last.

    After a batch its rows are used one by one, in order.
    """
    cached: OrderedDict[int, None] = OrderedDict()
    is_hit, misses = [], []
    for batch in batches:
        is_hit += [int(row in cached) for row in batch]
        misses.append(len(set(batch) - cached.keys()))
        for row in batch:
            cached[row] = None
            cached.move_to_end(row)
            if len(cached) > num_slots:
                cached.popitem(last=False)
    return is_hit, misses


def plan_fixed(batches: Sequence[Sequence[int]], nodes: Sequence[int], held: set[int]) -> TwinPlan:
    """Plan a cache that is to hold the row of node ``nodes[s]`` in slot s, as soon as it can.

    A node of -1 is a slot that stays empty; `held` are slots whose row is there beforehand.
    """
    slot_of = {row: slot for slot, row in enumerate(nodes) if row >= 0}
    plan, held = TwinPlan(slots=[], misses=[]), set(held)
    for batch in batches:
        plan.slots += [slot_of[row] if slot_of.get(row) in held else -1 for row in batch]
        missed = dict.fromkeys(row for row in batch if slot_of.get(row) not in held)
        plan.misses.append(len(missed))
        for row in missed:
            if row in slot_of:
                plan.change_positions.append(batch.index(row))
                plan.change_slots.append(slot_of[row])
                held.add(slot_of[row])
        plan.change_offsets.append(len(plan.change_slots))
    plan.nodes = [row if slot in held else -1 for slot, row in enumerate(nodes)]
    return plan


def drop_pinned(pinned: Iterable[int], ids: NDArray[Any]) -> NDArray[Any]:
    """Return the ids that are not pinned, in their order."""
    return ids[~np.isin(ids, list(pinned))]


def add_pinned(
    pinned: Sequence[int],
    ids: NDArray[Any],
    slots: NDArray[np.int32],
    positions: NDArray[np.int32],
    first_slot: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Add the slots of pinned rows to the plan of a batch's other rows.

    Pinned rows ascend, from `first_slot` on. `slots` and `positions` are those of the other ids;
    those of all ids are returned.
    """
    is_pinned = np.isin(ids, list(pinned))
    found = np.empty(len(ids), np.int32)
    found[is_pinned] = first_slot + np.searchsorted(np.asarray(pinned, np.int64), ids[is_pinned])
    found[~is_pinned] = slots
    return found, np.flatnonzero(~is_pinned)[positions].astype(np.int32)


def places_of(ids: NDArray[Any], known: NDArray[Any]) -> NDArray[np.int32]:
    """Return the first place of each id among the known ones, -1 for one that is not there."""
    places: dict[int, int] = {}
    for place, each in enumerate(known.tolist()):
        places.setdefault(each, place)
    return np.array([places.get(each, -1) for each in ids.tolist()], np.int32)


def window_order(window: Sequence[frozenset[int]]) -> list[int]:
    """Order a window's batches: after each the one that matches it most, of equal ones the first.

    Two batches match by what they share of the smaller one. The plain order stays if its batches
    share as many rows with the one before them.
    """

    def match(one: int, other: int) -> Fraction:
        smaller = min(len(window[one]), len(window[other]))
        return Fraction(len(window[one] & window[other]), max(1, smaller))

    def kept(order: Sequence[int]) -> int:
        return sum(len(window[i] & window[j]) for i, j in pairwise(order))

    plain, order = [*range(len(window))], [*range(len(window))][:1]
    while left := [i for i in plain if i not in order]:
        order.append(max(left, key=lambda i: (match(order[-1], i), -i)))
    return order if kept(order) > kept(plain) else plain
