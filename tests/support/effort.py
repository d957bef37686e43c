"""The number of repetitions in tests: few in `make test`, many in `make long`.

The short form of a loop tries the same as the long one and fails on the same defect; the long one
meets rare interleavings too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

ENVIRONMENT_VARIABLE = "GNNSTORE_LONG_TESTS"
_SHORT_SHARE = 16
_LEAST_EXAMPLES = 5


def is_long() -> bool:
    """Return whether tests run in their long form."""
    return os.environ.get(ENVIRONMENT_VARIABLE, "") not in ("", "0")


def choose(short: T, long: T) -> T:
    """Return the first value in `make test`, the second in `make long`."""
    return long if is_long() else short


def examples(long: int) -> int:
    """Return the number of examples of a property: all of them, or a sixteenth and at least 5."""
    return choose(min(max(_LEAST_EXAMPLES, long // _SHORT_SHARE), long), long)


def cover(cases: Sequence[Sequence[Hashable]]) -> list[int]:
    """Return the numbers of few cases of a product, in order, with every value of each column.

    Each value occurs once where two columns vary, and twice, beside other values, where more do.
    """
    columns = [set(column) for column in zip(*cases, strict=True)]
    varying = [number for number, values in enumerate(columns) if len(values) > 1]
    if len(varying) < 2:
        return [*range(len(cases))]
    values = [{(number, case[number]) for number in varying} for case in cases]
    left = Counter({value: min(n, 1 + (len(varying) > 2)) for value, n in _count(values).items()})
    pairs = [set(combinations(sorted(one, key=lambda value: value[0]), 2)) for one in values]
    seen: set[object] = set()
    chosen: set[int] = set()
    while +left:
        best = max(
            (number for number in range(len(cases)) if number not in chosen),
            key=lambda number: (
                sum(left[value] > 0 for value in values[number]),
                len(pairs[number] - seen),
            ),
        )
        chosen.add(best)
        left.subtract(values[best])
        seen |= pairs[best]
    return sorted(chosen)


def _count(values: Iterable[Iterable[T]]) -> Counter[T]:
    return Counter(value for one in values for value in one)


def paired(first: Iterable[T], second: Iterable[U], each: int | None = None) -> list[tuple[T, U]]:
    """Return pairs to test: in `make long` all, in `make test` each of the first with a few others.

    The others come in turn, and are as many as it takes for each to occur, unless `each` is given.
    """
    ones, others = list(first), list(second)
    if each is None:
        each = -(-len(others) // max(1, len(ones)))
    count = choose(min(each, len(others)), len(others))
    return [
        (one, others[(number * count + k) % len(others)])
        for number, one in enumerate(ones)
        for k in range(count)
    ]
