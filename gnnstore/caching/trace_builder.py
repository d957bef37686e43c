"""The trace of batches that are sampled by several threads, in any order."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.caching.policies.belady import Trace
from gnnstore.caching.trace_file import id_dtype

__all__ = ["TraceBuilder", "id_dtype"]


class TraceBuilder:
    """Collects the nodes of a superbatch's batches. `put` is safe to call from many threads.

    Parameters
    ----------
    num_batches : int
        S.
    num_nodes : int
        Of the graph; below 2^31, ids take four bytes.
    """

    def __init__(self, num_batches: int, num_nodes: int) -> None:
        self.num_batches = num_batches
        self.id_dtype = id_dtype(num_nodes)
        self._batches: list[npt.NDArray[Any] | None] = [None] * num_batches

    def put(self, i: int, n_id: npt.NDArray[Any]) -> None:
        """Take the nodes of batch i; copies them where their element type is another."""
        self._batches[i] = n_id.astype(self.id_dtype, copy=False)

    def build(self) -> Trace:
        """Join what was put, up to the first batch that is missing; it is let go of."""
        batches: list[npt.NDArray[Any]] = []
        for batch in self._batches:
            if batch is None:
                break
            batches.append(batch)
        self._batches = []
        offsets = np.zeros(len(batches) + 1, np.int64)
        np.cumsum([len(batch) for batch in batches], out=offsets[1:])
        ids = np.empty(int(offsets[-1]), self.id_dtype)
        batches.reverse()
        for begin, end in pairwise(offsets):
            # Fresh memory is touched here, and as much is given back: never twice the trace.
            ids[begin:end] = batches.pop()
        return Trace(ids, offsets)
