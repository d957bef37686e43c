"""The rows that the batches of a superbatch need: in memory, or in a file where they are too many.

In a file a trace takes no memory for each row, so that a superbatch may be as long as an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore.disk.spool import FileSpool
from gnnstore.formats.arrays.dtypes import id_dtype


@dataclass(frozen=True, eq=False)
class Trace:
    """The rows that the batches of a superbatch need, one batch behind the other.

    Safe to use from many threads.
    """

    # int32 or int64 [n]: numbers of rows in a row space, type after type in each batch, which may
    # repeat them; in a store of one node type they are node ids.
    ids: npt.NDArray[Any]
    # int64 [S + 1]: batch i needs ``ids[offsets[i]:offsets[i + 1]]``.
    offsets: npt.NDArray[np.int64]
    file: FileSpool | None = None  # holds the ids of a trace in a file, batch by batch
    num_nodes: int = 0  # of the row space, where the ids are in a file

    @classmethod
    def of(cls, batches: list[npt.NDArray[Any]]) -> Self:
        """Join the ids of some batches, int32 or int64 all of them; copies them."""
        ids = np.concatenate(batches) if batches else np.empty(0, np.int64)
        return cls(ids, _offsets([len(batch) for batch in batches]))

    @property
    def num_batches(self) -> int:
        """Number of batches, S."""
        return len(self.offsets) - 1

    @property
    def num_accesses(self) -> int:
        """Rows of all batches, repeated ones included."""
        return len(self.ids) if self.file is None else int(self.offsets[-1])

    @property
    def num_bytes(self) -> int:
        """Memory of the ids."""
        return self.ids.nbytes

    @property
    def num_disk_bytes(self) -> int:
        """Disk that the file takes."""
        return 0 if self.file is None else self.file.num_disk_bytes

    @property
    def read_rows(self) -> int:
        """Rows of the largest batch, if batches are read from a file; else 0."""
        return 0 if self.file is None else int(np.diff(self.offsets).max(initial=0))

    def batch(self, i: int) -> npt.NDArray[Any]:
        """Return the ids of a batch: a view, or a new array of what the file holds."""
        if self.file is not None:
            return self.file.read(i)[0]
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def first(self, num_batches: int) -> Trace:
        """Return the trace of the first batches; views."""
        offsets = self.offsets[: num_batches + 1]
        return replace(self, ids=self.ids[: offsets[-1]], offsets=offsets)

    def close(self) -> None:
        """Remove the file, if there is one. Idempotent."""
        if self.file is not None:
            self.file.close()


class TraceBuilder:
    """Collects the rows that batches need. `put` is safe to call from many threads."""

    def __init__(self, num_batches: int, num_nodes: int, path: Path | None = None) -> None:
        self.num_batches = num_batches
        self.id_dtype = id_dtype(num_nodes - 1)
        self._num_nodes = num_nodes
        # Receives the ids, which it returns as they were put.
        self.file = None if path is None else FileSpool(path, num_batches, what="the trace")
        self._rows: dict[int, npt.NDArray[Any]] = {}  # without a file
        self._sizes = [-1] * num_batches  # -1: the batch is not there

    def put(self, i: int, n_id: npt.NDArray[Any]) -> None:
        """Take the rows of batch i; copies them where their element type is another."""
        rows = n_id.astype(self.id_dtype, copy=False)
        if self.file is None:
            self._rows[i] = rows
        else:
            self.file.append(i, [rows])
        self._sizes[i] = len(rows)

    def build(self) -> Trace:
        """Return the trace up to the first batch that is missing; it takes over the file."""
        sizes = list(takewhile(lambda size: size >= 0, self._sizes))
        offsets = _offsets(sizes)
        if self.file is not None:
            return Trace(np.empty(0, self.id_dtype), offsets, self.file, self._num_nodes)
        ids = np.empty(int(offsets[-1]), self.id_dtype)
        for i, (begin, end) in enumerate(pairwise(offsets)):
            # Fresh memory is touched here, and as much is given back: never twice the trace.
            ids[begin:end] = self._rows.pop(i)
        self._rows.clear()
        return Trace(ids, offsets)

    def close(self) -> None:
        """Let go of what was put, and remove the file, also of a trace. Idempotent."""
        self._rows.clear()
        if self.file is not None:
            self.file.close()


def _offsets(sizes: list[int]) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
