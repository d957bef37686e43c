"""The rows that a layer gives, written while it runs on the next block.

Writing takes a processor and the disk: a copy to the page cache, checksums, and waiting for each
finished file. One thread does it, so that rows and the journal's lines keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore.formats import PagedArrayWriter


class RowsBehind:
    """Appends rows to an array in a thread of its own; a context manager.

    Rows of one block are under way at most: those that are given wait for those before.

    Parameters
    ----------
    writer : PagedArrayWriter
        Not to be used by anybody else until the context ends.
    advance : callable
        Called, by whoever calls a method here, with the number of rows that have been appended.

    Attributes
    ----------
    seconds_waiting : float
        That `append` and `finish` have waited for rows before.
    """

    def __init__(self, writer: PagedArrayWriter, advance: Callable[[int], None]) -> None:
        self._writer = writer
        self._advance = advance
        self._thread = ThreadPoolExecutor(1, "gnnstore-writes")
        self._pending: Future[None] | None = None
        self._num_pending = 0
        self.seconds_waiting = 0.0

    def append(self, rows: Tensor) -> None:
        """Take rows over, once those before are written.

        Parameters
        ----------
        rows : Tensor [n, width]
            On the CPU, contiguous. Copied if anybody else can change them.

        Raises
        ------
        StorageError
            If rows before could not be written.
        """
        self.finish()
        own = rows if is_alone(rows) else rows.clone()
        self._num_pending = len(rows)
        self._pending = self._thread.submit(self._writer.append, to_storage(own))

    def finish(self) -> None:
        """Wait until all rows are written.

        Raises
        ------
        StorageError
            If they could not be.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        began = perf_counter()
        pending.result()
        self.seconds_waiting += perf_counter() - began
        self._advance(self._num_pending)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            # Nothing is closed or removed while it is still written to.
            self._thread.shutdown()


def to_storage(rows: Tensor) -> npt.NDArray[Any]:
    """Return rows in the type in which a store keeps them; a view."""
    if rows.dtype == torch.bfloat16:
        return rows.view(torch.int16).numpy().view(np.uint16)
    return rows.numpy()


def is_alone(rows: Tensor) -> bool:
    """Whether nothing but this tensor refers to its memory.

    A layer may give what it keeps and fills anew for the next block, or a part of its input.
    Where torch does not tell, it is assumed.
    """
    return _num_users is not None and _users(rows) == _ALONE


def _users(rows: Tensor) -> int:
    assert _num_users is not None  # noqa: S101 - else nobody asks
    return int(_num_users(rows.untyped_storage()._cdata))


_num_users: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
_ALONE = 0 if _num_users is None else _users(torch.empty(1))
