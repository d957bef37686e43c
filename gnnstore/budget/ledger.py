"""Lists the reservations of a resource, finds the largest sizes within a limit, and refuses.

The bytes of a part grow with a few sizes: bytes in flight, batches that are planned together, slots
of a cache. A part reserves fixed bytes and bytes for each unit of a size, in a phase of the
work; parts of different phases are never there at once. So the peak is the largest of sums that are
linear in the sizes, and with the other sizes given, the largest size follows by division.

There is one ledger for each resource: memory, disk, and the memory of a device.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self, TypeVar

from gnnstore.errors import BudgetError
from gnnstore.units import format_at_least, format_size

# The source of a limit that no option sets.
OF_FREE_MEMORY = "of memory that is available"

E = TypeVar("E", bound=BudgetError)

# The phase of parts that are there all the time.
ALWAYS = ""
# The sizes that reservations grow with.
IN_FLIGHT = "bytes in flight"
PLANNED = "batches planned together"
SLOTS = "slots"
# Parts that are asked for by name.
STAGING, CACHED = "staging for reads", "cached rows"

Sizes = Mapping[str, int]
_NO_SIZES: Sizes = {}

# Parts that a refusal names; and the share of all that is worth a name.
_MOST_SHOWN, _LEAST_SHOWN = 4, 1 / 1000


class Part(NamedTuple):
    """The bytes of a part with some sizes."""

    what: str
    phase: str  # the phase in which they are taken
    num_bytes: int


class Reservation(NamedTuple):
    """The bytes that a part takes; a tuple, since many are made while sizes are compared."""

    what: str  # the part, as a phrase that follows a number of bytes
    fixed: int = 0  # bytes that do not depend on the sizes
    # Bytes for each unit of a size, by the size's name.
    per: Mapping[str, int] = _NO_SIZES
    phase: str = ALWAYS  # the phase in which they are taken; `ALWAYS` by default

    def bytes_of(self, sizes: Sizes) -> int:
        """Return the bytes with some sizes; a size that is not named is 0."""
        found = self.fixed
        for name, each in self.per.items():
            found += each * sizes.get(name, 0)
        return found


@dataclass(frozen=True)
class Wish:
    """A size to be made as large as possible."""

    size: str
    least: int = 0  # the smallest value that suffices
    most: int = 2**62  # the largest value that is useful


@dataclass(frozen=True)
class Ledger:
    """The reservations of one resource, and its limit."""

    limit: int  # bytes that may be taken
    reservations: tuple[Reservation, ...] = ()
    who: str = "this"  # the part of the program that takes the bytes, to begin an error with
    source: str = "of the memory= budget"  # the limit's origin, as a phrase that follows its size
    # The option that raises the limit; empty where there is none, as for a device.
    option: str = "memory="
    # Bytes by which a limit that is too small must grow at least: more than are missing where a
    # part of the increase would go elsewhere.
    raise_by: int = 0
    # Part of the limit that a trial adds, to find what the checks after a refused one need.
    trial_bytes: int = 0

    @cached_property
    def _phases(self) -> list[Reservation]:
        """Sums of the reservations of each phase; cached, since peaks are computed often."""
        sums = {ALWAYS: (0, dict[str, int]())}
        for _, fixed, per, phase in self.reservations:
            so_far, each = sums.get(phase) or (0, {})
            for name, count in per.items():
                each[name] = each.get(name, 0) + count
            sums[phase] = so_far + fixed, each
        always, per_always = sums.pop(ALWAYS)
        found = [Reservation("all parts", always, per_always)]
        for fixed, each in sums.values():
            for name, count in per_always.items():
                each[name] = each.get(name, 0) + count
            found.append(Reservation("all parts", always + fixed, each))
        return found

    def fixed_of(self, *names: str) -> int:
        """Return the fixed bytes of the parts with some names."""
        return sum(own.fixed for own in self.reservations if own.what in names)

    def add(self, *reservations: Reservation) -> Self:
        """Return the ledger with more reservations."""
        return replace(self, reservations=(*self.reservations, *reservations))

    def with_limit(self, limit: int) -> Self:
        """Return the ledger with another limit."""
        return replace(self, limit=limit)

    def peak(self, sizes: Sizes | None = None) -> int:
        """Return the most bytes that are taken at once: the largest sum of a phase."""
        return max(phase.bytes_of(sizes or {}) for phase in self._phases)

    def left(self, sizes: Sizes | None = None) -> int:
        """Return the bytes that are left with some sizes; negative where they do not fit."""
        return self.limit - self.peak(sizes)

    def bytes_each(self, size: str) -> int:
        """Return the bytes by which one more unit of a size raises the peak, at most."""
        return max(phase.per.get(size, 0) for phase in self._phases)

    def largest(self, size: str, sizes: Sizes | None = None, most: int = 2**62) -> int:
        """Return the largest value of a size that fits with the others, at most `most`; or 0."""
        others = {**(sizes or {}), size: 0}
        found = most
        for phase in self._phases:
            if (left := self.limit - phase.bytes_of(others)) < 0:
                return 0
            if each := phase.per.get(size, 0):
                found = min(found, left // each)
        return max(0, found)

    def solve(self, *wishes: Wish) -> dict[str, int]:
        """Return the largest sizes that fit, in the order of the wishes."""
        sizes = {wish.size: wish.least for wish in wishes}
        self.check(sizes)
        for wish in wishes:
            others = {**sizes, wish.size: 0}
            sizes[wish.size] = max(wish.least, self.largest(wish.size, others, wish.most))
        return sizes

    def check(self, sizes: Sizes | None = None, *remedies: str) -> None:
        """Check that some sizes fit."""
        if self.left(sizes) < 0:
            raise self.refusal(sizes, *remedies)

    def parts(self, sizes: Sizes | None = None) -> list[Part]:
        """Return the parts that take bytes with some sizes, the largest first."""
        found: dict[tuple[str, str], int] = {}
        for own in self.reservations:
            key = own.what, own.phase
            found[key] = found.get(key, 0) + own.bytes_of(sizes or {})
        parts = [Part(*key, num_bytes) for key, num_bytes in found.items() if num_bytes]
        return sorted(parts, key=lambda part: -part.num_bytes)

    def refusal(
        self,
        sizes: Sizes | None = None,
        *remedies: str,
        error: Callable[[str], E] = BudgetError,  # type: ignore[assignment]
    ) -> E:
        """Return the error that says why some sizes do not fit, and what to do."""
        missing = max(-self.left(sizes), self.raise_by) + self.trial_bytes
        has = self.limit - self.trial_bytes
        more = [f"raise {self.option} by at least {format_at_least(missing)}"] * bool(self.option)
        some = f"free at least {format_at_least(missing)}, or take a larger machine"
        *first, last = (*more, *remedies) or (some,)
        lines = [
            f"{self.who} does not fit, {_bytes(missing)} too few:",
            f"needs {_exactly(has + missing)}",
            f"has {_exactly(has)} {self.source}",
            self._largest_parts(sizes, has + missing),
            f"to do: {', '.join(first)}, or {last}" if first else f"to do: {last}",
        ]
        found = error("\n- ".join(filter(None, lines)))
        found.missing_bytes, found.needed_bytes = missing, has + missing
        return found

    def _largest_parts(self, sizes: Sizes | None, needed: int) -> str:
        """Return the largest parts of the phase that takes the most, as a line of a refusal."""
        parts = self.parts(sizes)
        shown = [part for part in parts if part.phase in (ALWAYS, largest_phase(parts))]
        named = [
            f"{format_size(part.num_bytes)} of {part.what}"
            for part in shown[:_MOST_SHOWN]
            if part.num_bytes >= needed * _LEAST_SHOWN
        ]
        return f"largest parts: {' + '.join(named)}" if named else ""


def largest_phase(parts: Sequence[Part]) -> str:
    """Return the phase that takes the most by its own parts."""
    phases = sorted({part.phase for part in parts} - {ALWAYS})
    return max(
        phases,
        key=lambda phase: sum(part.num_bytes for part in parts if part.phase == phase),
        default=ALWAYS,
    )


def _exactly(num_bytes: int) -> str:
    """Return bytes to the last one; many of them rounded, too."""
    exact = _bytes(num_bytes)
    return exact if num_bytes < 1000 else f"{exact} ({format_size(num_bytes)})"


def _bytes(num_bytes: int) -> str:
    """Return a number of bytes without commas, which could be pasted as a budget."""
    return f"{num_bytes} byte{'' if num_bytes == 1 else 's'}"


def least_more(missing: Callable[[int], int]) -> int:
    """Return the fewest bytes by which a limit must grow."""
    low, high = -1, 0
    while too_few := missing(high):
        low, high = high, high + too_few
    step = 1
    while high - step > low and not missing(high - step):
        high, step = high - step, 2 * step
    low = max(low, high - step)
    return bisect_left(range(high), True, low + 1, key=lambda more: not missing(more))
