"""Values as people write them: sizes ("8GB", "512MiB"), times, and names of registered values.

Text is broken into lines between words.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from gnnstore.errors import UsageError, as_whole_number

_SUFFIXES = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "kib": 2**10,
    "m": 10**6,
    "mb": 10**6,
    "mib": 2**20,
    "g": 10**9,
    "gb": 10**9,
    "gib": 2**30,
    "t": 10**12,
    "tb": 10**12,
    "tib": 2**40,
}
_MAX_BYTES = 2**62  # largest size; sums of a few still fit 64 bits
T = TypeVar("T", bound="Named")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
_SHARE = re.compile(r"\s*(\d{1,9}(?:\.\d+)?)\s*%\s*")


def parse_size(size: float | str, *, name: str = "size") -> int:
    """Return a number of bytes from a whole number, or from text such as "8GB" or "512MiB"."""
    if isinstance(size, float) and size.is_integer():  # as 8e9
        size = int(size)
    if (num_bytes := as_whole_number(size)) is not None:
        if num_bytes < 0:
            raise UsageError(f"{name}={size} is negative; give a number of bytes")
        return _checked(num_bytes, name)
    if parse_share(size, name=name) is not None:
        raise UsageError(
            f"{name}={size!r}: a share of a store is for loaders, inference, predict, pack, "
            "partition and bench load; write a size here, such as '8GB' or '512MiB'"
        )
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is None or match[2].lower() not in _SUFFIXES:
        raise UsageError(
            f"{name}={size!r} is not a size; write a number of bytes or a number with a "
            "suffix, such as '8GB' or '512MiB'"
        )
    # Decimal text times an integer: through a float only where the text has a fraction.
    factor = _SUFFIXES[match[2].lower()]
    number = int(match[1]) if "." not in match[1] else float(match[1])
    return _checked(number * factor, name)


def parse_share(share: object, *, name: str) -> float | None:
    """Return a fraction from text such as "10%", and None for what does not end with "%"."""
    if not isinstance(share, str) or not share.rstrip().endswith("%"):
        return None
    if (match := _SHARE.fullmatch(share)) is None:
        raise UsageError(
            f"{name}={share!r} is not a share; write a number and %, such as '10%', or a size, "
            "such as '8GB'"
        )
    return float(match[1]) / 100


def _checked(num_bytes: float, name: str) -> int:
    if num_bytes >= 2**63:
        raise UsageError(f"{name} is more bytes than any machine has, and than 64 bits count")
    return min(int(num_bytes), _MAX_BYTES)


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, such as '1 byte' or '2,000 batches'."""
    if number != 1:
        noun = f"{noun[:-1]}ie" if noun.endswith("y") else noun + "e" * noun.endswith("ch")
        noun += "s"
    return f"{number:,} {noun}"


def format_at_least(num_bytes: int) -> str:
    """Return a size for people, rounded up: a budget of that size suffices."""
    unit = 10 ** max(0, len(str(num_bytes)) - 3)  # of the third digit
    return format_size(-(-num_bytes // unit) * unit)


def format_size(num_bytes: int | float) -> str:
    """Return a size for people, such as '8.6 GB' (powers of 1000, as disks are sold)."""
    value = float(num_bytes)
    for suffix in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} {suffix}" if suffix == "B" else f"{value:.3g} {suffix}"
        value /= 1000
    return f"{value:.3g} TB"


def format_duration(seconds: float) -> str:
    """Return a time for people, such as '45 s', '12 min', '3 h 20 min' or '5 days'."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    if minutes < 2 * 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{round(minutes / (24 * 60))} days"


def wrapped(text: str, width: int) -> str:
    """Return text in lines of at most a width, but for paths and for commands to be copied."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  gnnstore "):
            lines.append(line)
            continue
        indent = " " * (len(line) - len(line.lstrip(" -")))
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)


def spread(values: Iterable[float], form: str = ".2f") -> str:
    """Return the median, and of several values the minimum and maximum; "-" for none."""
    from statistics import median  # noqa: PLC0415 - takes longer to load than --version may

    found = list(values)
    if not found:
        return "-"
    text = format(median(found), form)
    return text if len(found) == 1 else f"{text} [{min(found):{form}}, {max(found):{form}}]"


class Named(Protocol):
    """A value that can be registered."""

    @property
    def name(self) -> str:
        """The name that the value is found by."""


class Registry(Generic[T]):
    """Values of one kind; iterates over them."""

    def __init__(self, values: Iterable[T] = ()) -> None:
        self._values: dict[str, T] = {}
        for value in values:
            self.register(value)

    def register(self, value: T) -> T:
        """Add a value, and return it."""
        if value.name in self._values:
            raise ValueError(f"{value.name!r} is registered already: {self._values[value.name]}")
        self._values[value.name] = value
        return value

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all values."""
        return tuple(self._values)

    def __iter__(self) -> Iterator[T]:
        """Return an iterator over the values."""
        return iter(self._values.values())

    def __contains__(self, name: str) -> bool:
        """Whether there is a value of that name."""
        return isinstance(name, str) and name in self._values

    def __getitem__(self, name: str) -> T:
        """Return the value of that name."""
        return self._values[name]
