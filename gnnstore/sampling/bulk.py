"""Bulk sampling: batches advance hop by hop side by side, and fetch each hop together.

Positions of many batches, sorted, lie so close to one another that reading them is nearly a pass
over the file, at the speed of sequential reads; and a hub that many batches need is read once. How
batches are grouped does not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.parallel import Workers
from gnnstore.sampling.staged import Fetch, StagedBatch

# Positions, drawn and joined, the keys that they are sorted by, twice, and the ids.
BYTES_PER_COLUMN_POSITION = 48


def advance_together(batches: Sequence[StagedBatch], fetch: Fetch, num_threads: int = 1) -> None:
    """Sample batches to their ends, each hop of all of them with one fetch.

    Parameters
    ----------
    fetch : callable
        As for `DiskNeighborSampler`; called in this thread.
    num_threads : int
        Threads that draw and number nodes.

    Raises
    ------
    UsageError, InputError, CorruptStoreError
        Of the first batch that fails.
    StorageError
        As `fetch`.
    """
    if num_threads <= 1 or len(batches) == 1:
        _advance(batches, fetch, _run_here)
        return
    with Workers(num_threads) as workers:
        _advance(batches, fetch, workers.run)


_Run = Callable[[Iterable[Callable[[], Any]]], list[Any]]


def _run_here(tasks: Iterable[Callable[[], Any]]) -> list[Any]:
    return [task() for task in tasks]


def _advance(batches: Sequence[StagedBatch], fetch: Fetch, run: _Run) -> None:
    active = list(batches)
    while active:
        drawn = run([staged.draw for staged in active])
        asking = [
            (staged, wanted)
            for staged, wanted in zip(active, drawn, strict=True)
            if wanted is not None
        ]
        del drawn
        active = [staged for staged, _ in asking]
        if not active:
            return
        ends = np.cumsum([len(wanted) for _, wanted in asking], dtype=np.int64)
        positions = _joined([wanted for _, wanted in asking])
        asking.clear()
        parts = np.split(fetch(positions), ends[:-1])
        run([partial(staged.take, part) for staged, part in zip(active, parts, strict=True)])


def _joined(arrays: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Concatenate into recycled memory, which needs no page faults."""
    if len(arrays) == 1:
        return arrays[0]
    size = sum(map(len, arrays))
    joined: npt.NDArray[np.int64] = _core.pool_empty(8 * size).view(np.int64)
    return np.concatenate(arrays, out=joined)
