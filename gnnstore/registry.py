"""Values by name, in the order in which they were registered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Named(Protocol):
    """A value that can be registered."""

    @property
    def name(self) -> str:
        """The name that the value is found by."""


T = TypeVar("T", bound=Named)


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

    @contextmanager
    def having(self, *values: T) -> Iterator[None]:
        """Register values until a context ends, which forgets all that was registered in it."""
        before = dict(self._values)
        try:
            for value in values:
                self.register(value)
            yield
        finally:
            self._values = before

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
