"""The memory of arrays that are loaded whole: of this process alone.

What reads a whole array into memory, or fills a cache of rows, takes `machine=PRIVATE` and asks it
for the memory. So processes of one machine can have one copy of such arrays: a machine that they
share has the same methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core

Bytes = npt.NDArray[np.uint8]


@dataclass(eq=False)
class Growing:
    """Memory that is read while it is filled, from its begin on. Thread-safe."""

    array: Bytes
    num_filled: int = 0  # units that are there, as the filler counts them; never falls

    def publish(self, num_filled: int) -> None:
        """Let readers see what has been filled so far; called by the process that fills."""
        self.num_filled = num_filled


class Machine:
    """The place of arrays that are loaded whole: here, memory of this process alone.

    Safe to use from many threads at once. Arrays live for as long as views of them do.
    """

    def share(self, key: str, num_bytes: int, fill: Callable[[Bytes], None]) -> Bytes:  # noqa: ARG002
        """Return memory that a function has filled, in this process or in another one.

        Parameters
        ----------
        key : str
            Names the content: whoever gives the same key and number of bytes wants the same bytes.
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
        shared does so by `share`, whose `fill` copies; the array itself is then let go.
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
            Perhaps empty, and filled by another process meanwhile. If that ends early, the rest is
            never filled: readers take what `num_filled` does not count from elsewhere.
        """
        growing = Growing(_core.pool_empty(num_bytes))
        fill(growing)
        return growing


PRIVATE = Machine()
