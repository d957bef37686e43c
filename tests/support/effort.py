"""The number of repetitions in tests: few in `make test`, many in `make long`.

The short form of a loop tries the same as the long one and fails on the same defect; the long one
meets rare interleavings too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

ENVIRONMENT_VARIABLE = "GNNSTORE_LONG_TESTS"
_SHORT_SHARE = 8
_LEAST_EXAMPLES = 10


def is_long() -> bool:
    """Return whether tests run in their long form."""
    return os.environ.get(ENVIRONMENT_VARIABLE, "") not in ("", "0")


def choose(short: T, long: T) -> T:
    """Return the first value in `make test`, the second in `make long`."""
    return long if is_long() else short


def examples(long: int) -> int:
    """Return the number of examples of a property: all of them, or an eighth and at least 10."""
    return choose(min(max(_LEAST_EXAMPLES, long // _SHORT_SHARE), long), long)


def paired(first: Iterable[T], second: Iterable[U], each: int = 2) -> list[tuple[T, U]]:
    """Return pairs to test: in `make test` each of the first with some of the second, in turn.

    All of the second occur; in `make long` it is the product.
    """
    others = list(second)
    count = choose(min(each, len(others)), len(others))
    return [
        (one, others[(number * count + k) % len(others)])
        for number, one in enumerate(first)
        for k in range(count)
    ]
