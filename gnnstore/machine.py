"""Memory that the processes of one machine share: an array that is loaded whole is there once.

The ranks of a training run would hold a copy of the same arrays each. Here they hold one, which the
first fills for all, and each counts a part of it. The key of an array follows from what it
contains, so that processes with the same content share it, from any program, and others never
meet. How the memory comes from one process to another is in `gnnstore.shared_memory`.
"""

from __future__ import annotations

import io
import logging
import os
import socket
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core, shared_memory
from gnnstore.budget.limits import obtainable_bytes
from gnnstore.errors import BudgetError
from gnnstore.shared_memory import (
    Bytes,
    Handing,
    S,
    Unshared,
    exchange,
    mapped,
    until_unused,
)
from gnnstore.threads import uninterrupted
from gnnstore.units import format_size

_log = logging.getLogger(__name__)

Arrays = Sequence[npt.NDArray[Any]]
MakesArrays = Callable[[], Arrays]

# In front of memory that is read while it is filled: the number of filled rows, and padding so that
# what follows is aligned as any buffer is.
_HEADER_BYTES = 64
# Arrays that lie one behind the other begin at multiples of this.
_ALIGNED_BYTES = 64


@dataclass(eq=False)
class Growing:
    """Memory that is read while it is filled, from its begin on. Thread-safe."""

    array: Bytes
    num_filled: int = 0  # units that are there, as the filler counts them; never falls

    def publish(self, num_filled: int) -> None:
        """Let readers see what has been filled so far; called by the process that fills."""
        self.num_filled = num_filled

    def take_over(self) -> bool:
        """Whether this process fills what is left: it does so already, or who did has ended."""
        return True


class Machine:
    """The place of arrays that are loaded whole: here, memory of this process alone.

    Safe to use from many threads at once. Arrays live for as long as views of them do.
    """

    num_ranks = 1  # processes that each count a share of the arrays
    private_bytes = 0  # of arrays that were to be shared, and could not be

    def share(self, key: str, num_bytes: int, fill: Callable[[Bytes], None]) -> Bytes:  # noqa: ARG002
        """Return memory that a function has filled, in this process or in another one.

        Parameters
        ----------
        key : str
            Names the content: the same key and number of bytes stand for the same bytes.
            It has the identity of the directory that an array lies in, the array's path, and its
            type and shape in memory; of what is chosen from an array, the choice too.
        num_bytes : int
            Size of the memory, perhaps zero.
        fill : callable
            Is called with the memory, writable and of unspecified contents, before this method
            returns: once, in this thread, and only if no other process has filled it or is about
            to. It writes every byte and asks for no memory of the machine itself. Its errors are
            raised here; nothing is kept then.

        Returns
        -------
        ndarray of uint8, shape [num_bytes]
            Filled to the end, aligned for any type. Read-only if it may be shared; callers do not
            write to it in any case.
        """
        array = _core.pool_empty(num_bytes)
        fill(array)
        return array

    def share_values(self, key: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:  # noqa: ARG002
        """Return an array of the same contents, type and shape: here, the array itself.

        For arrays that each process has computed, and may now have in common. A machine that is
        shared does so by `share`, whose `fill` copies; the array itself is then freed.
        """
        return values

    def share_growing(self, key: str, num_bytes: int, fill: Callable[[Growing], None]) -> Growing:  # noqa: ARG002
        """Return memory that is read while it is filled.

        Parameters
        ----------
        key : str
            As in `share`.
        num_bytes : int
            As in `share`.
        fill : callable
            Is called as in `share`, but may keep what it is given: this process fills the memory,
            then or later, in any thread, from its begin on, and calls `publish` as it goes.

        Returns
        -------
        Growing
            Perhaps empty, and filled by another process meanwhile. Readers take what `num_filled`
            does not count from elsewhere. If the other process ends early, the rest is not filled
            until one of them does; see `Growing.take_over`.
        """
        growing = Growing(_core.pool_empty(num_bytes))
        fill(growing)
        return growing

    def choose(self, key: str, dtypes: Sequence[npt.DTypeLike], make: MakesArrays) -> Arrays:  # noqa: ARG002
        """Return the arrays of the first process that was asked, as long as it has them.

        They have one dimension, the given types and any lengths. `make` is called as the `fill` of
        `share` is, and may ask for memory of the machine.
        """
        return tuple(make())

    def agree(self, key: str, make: Callable[[], str]) -> str:  # noqa: ARG002
        """Return the answer of the first living process that was asked."""
        return make()


PRIVATE = Machine()


def share_of(num_bytes: int, num_ranks: int) -> int:
    """Return the part of shared memory that each of its processes counts."""
    return -(-num_bytes // num_ranks)


class _SharedGrowing(Growing):
    """Memory that another process may fill, behind the number of rows that are there."""

    def __init__(self, whole: Bytes, name: bytes = b"", file: io.FileIO | None = None) -> None:
        self._whole, self._name = whole, name
        self._cell = whole[:8].view(np.int64)
        self.array = whole[_HEADER_BYTES:]
        self._number: int | None = None  # of a descriptor, while another process fills it
        if file is not None:
            self._number = os.dup(file.fileno())
            self._close = weakref.finalize(self, os.close, self._number)
            self.array.flags.writeable = False

    @property
    def num_filled(self) -> int:
        """See `Growing`; what it counts can be read."""
        return _core.load_acquire(self._cell)

    @num_filled.setter
    def num_filled(self, value: int) -> None:
        _core.store_release(self._cell, value)

    def take_over(self) -> bool:
        """See `Growing`: the name is free if who filled it has ended, or has it no more."""
        if self._number is None:
            return True
        try:
            if (listener := shared_memory.server.bind(self._name)) is None:
                return False
            with Handing(listener, is_content=True) as closing:
                closing.file = io.FileIO(os.dup(self._number), "r+")
                until_unused(self._whole, listener)
                uninterrupted(closing.hand_on)
        except (Unshared, OSError):  # then another one does, or readers go on without
            return False
        self._close()
        self._number = None
        self.array = self._whole[_HEADER_BYTES:]
        return True


class SharedMachine(Machine):
    """Memory of several processes, each of which counts a share of it."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.num_met = 0  # arrays that another process has filled
        self.filled_bytes = 0  # of arrays that this process has filled, and can hand on
        self.private_bytes = 0  # of arrays that could not be shared
        # For what these take beyond a share, in the budget of the loader that loads; None: no limit
        self.spare_bytes: int | None = None
        self._has_looked = False

    def share(self, key: str, num_bytes: int, fill: Callable[[Bytes], None]) -> Bytes:
        """See `Machine.share`."""
        if num_bytes < shared_memory.LEAST_BYTES:
            return super().share(key, num_bytes, fill)
        try:
            return self._share(
                key,
                lambda listener: self._make(listener, key, lambda: num_bytes, fill),
                lambda _, file: mapped(file, num_bytes),
            )
        except Unshared as reason:
            self._note(key, num_bytes, reason)
        # Not in the handler: the reason's frames may have memory of the same size.
        return super().share(key, num_bytes, fill)

    def share_values(self, key: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See `Machine.share_values`."""
        content = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        found = self.share(key, content.nbytes, partial(np.copyto, src=content))
        return found.view(values.dtype).reshape(values.shape)

    def share_growing(self, key: str, num_bytes: int, fill: Callable[[Growing], None]) -> Growing:
        """See `Machine.share_growing`."""
        if num_bytes < shared_memory.LEAST_BYTES:
            return super().share_growing(key, num_bytes, fill)
        whole_bytes = _HEADER_BYTES + num_bytes

        def make(listener: socket.socket) -> Growing:
            found = _SharedGrowing(self._make(listener, key, lambda: whole_bytes))
            fill(found)
            return found

        def take(name: bytes, file: io.FileIO) -> Growing:
            return _SharedGrowing(mapped(file, whole_bytes, may_write=True), name, file)

        try:
            return self._share(key, make, take)
        except Unshared as reason:
            self._note(key, num_bytes, reason)
        return super().share_growing(key, num_bytes, fill)

    def choose(self, key: str, dtypes: Sequence[npt.DTypeLike], make: MakesArrays) -> Arrays:
        """See `Machine.choose`."""
        return self._choose(key, dtypes, make, is_content=True)

    def _choose(
        self, key: str, dtypes: Sequence[npt.DTypeLike], make: MakesArrays, *, is_content: bool
    ) -> Arrays:
        made: list[npt.NDArray[Any]] = []

        def size() -> int:
            made.extend(make())
            return int(_places(dtypes, list(map(len, made)))[-1].stop)

        def fill(whole: Bytes) -> None:
            whole[: 8 * len(made)].view(np.int64)[:] = list(map(len, made))
            for array, found in zip(made, _arrays_in(whole, dtypes), strict=True):
                found[:] = array

        try:
            whole = self._share(
                key,
                lambda listener: self._make(listener, key, size, fill, is_content=is_content),
                lambda _, file: mapped(file),
                is_content=is_content,
            )
        except Unshared as reason:
            made = made or list(make())
            if (num_bytes := sum(array.nbytes for array in made)) >= shared_memory.LEAST_BYTES:
                self._note(key, num_bytes, reason)
            else:
                _log.warning("ranks of this machine decide by themselves: %s", str(reason))
            return made
        return _arrays_in(whole, dtypes)

    def agree(self, key: str, make: Callable[[], str]) -> str:
        """See `Machine.agree`."""

        def answer() -> Arrays:
            return (np.frombuffer(make().encode(), np.uint8),)

        if key not in _agreed:
            (_agreed[key],) = self._choose(key, (np.uint8,), answer, is_content=False)
        return _agreed[key].tobytes().decode()

    def look_around(self) -> None:
        """Say once, at a first batch, if no other process has taken what is to be shared."""
        if self._has_looked:
            return
        self._has_looked = True
        if self.filled_bytes and not self.num_met and not shared_memory.server.num_handed_on:
            _log.warning(
                "this rank has loaded %s for %d ranks of this machine, and no other has taken a "
                "part of it so far: if they have begun, they are in other network namespaces or "
                "have other options, and each holds a copy of its own beyond its memory=",
                *(format_size(self.filled_bytes), self.num_ranks),
            )

    def _share(
        self,
        key: str,
        make: Callable[[socket.socket], S],
        take: Callable[[bytes, io.FileIO], S],
        *,
        is_content: bool = True,
    ) -> S:
        """Return what this process makes and hands on, if it is the first, or takes."""
        found, is_taken = exchange(key, make, take)
        self.num_met += is_taken and is_content
        return found

    def _make(
        self,
        listener: socket.socket,
        key: str,
        size: Callable[[], int],
        fill: Callable[[Bytes], None] | None = None,
        *,
        is_content: bool = True,
    ) -> Bytes:
        """Return new memory that this process hands on: read-only, or to be filled later."""
        array = shared_memory.make(listener, key, size, fill, is_content=is_content)
        self.filled_bytes += is_content * array.nbytes
        return array if fill is None else _read_only(array)

    def _note(self, key: str, num_bytes: int, reason: Unshared) -> None:
        """Count an array that cannot be shared, before it is loaded, and log it."""
        whole = self.private_bytes + num_bytes
        more = whole - share_of(whole, self.num_ranks)
        problem = None
        if num_bytes > (free := obtainable_bytes()):
            problem = f"{format_size(free)} are available"
        elif self.spare_bytes is not None and more > self.spare_bytes:
            problem = (
                f"arrays that could not be shared take {format_size(more)} more than a rank's "
                f"part, and {format_size(self.spare_bytes)} of memory= are left"
            )
        if problem is not None:
            raise BudgetError(
                f"there is no memory for {key}, {format_size(num_bytes)} that could not be shared "
                f"with other processes of this machine ({reason}): {problem}; mend the reason, "
                "raise memory=, or choose strategy='mmap' or a smaller cache"
            ) from reason
        self.private_bytes = whole
        _log.warning(
            "%s (%s) is not shared with other processes of this machine, and is loaded for this "
            "one alone: %s",
            *(key, format_size(num_bytes), str(reason)),  # without its frames, which have loaders
        )


_agreed: dict[str, npt.NDArray[Any]] = {}  # as long as this process lives


def _read_only(array: Bytes) -> Bytes:
    found = array[:]
    found.flags.writeable = False
    return found


def _places(dtypes: Sequence[npt.DTypeLike], lengths: Sequence[int]) -> list[slice]:
    """Return the places of arrays in memory that begins with their lengths."""
    found, end = [], 8 * len(lengths)
    for dtype, length in zip(dtypes, lengths, strict=True):
        begin = -(-end // _ALIGNED_BYTES) * _ALIGNED_BYTES
        end = begin + length * np.dtype(dtype).itemsize
        found.append(slice(begin, end))
    return found


def _arrays_in(whole: Bytes, dtypes: Sequence[npt.DTypeLike]) -> Arrays:
    lengths = whole[: 8 * len(dtypes)].view(np.int64).tolist()
    return [
        whole[place].view(dtype)
        for dtype, place in zip(dtypes, _places(dtypes, lengths), strict=True)
    ]
