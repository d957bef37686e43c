"""Samples from a graph whose in-neighbours lie on disk: `indptr` in memory, and little else.

Draws are keyed and not streamed, so batches are those of `NeighborSampler`, bit for bit, whether
they fetch their in-neighbours alone or together. Alone is for batches that are requested one by
one. Batches that are known ahead advance hop by hop side by side (bulk sampling): their positions,
sorted, lie so close to one another that reading them is nearly a pass over the file, at the speed
of sequential reads; and a hub that many batches need is read once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import UsageError
from gnnstore.formats.store.csc import Csc
from gnnstore.sampling.neighbor import (
    BatchRequest,
    Excluded,
    IndexDtype,
    NeighborSampler,
    Sample,
    SamplingConfig,
)
from gnnstore.sampling.staged import (
    MAX_COLUMN_POSITIONS,
    CachedNeighbors,
    Fetch,
    NeighborCounts,
    StagedBatch,
)
from gnnstore.threads import Workers

# Positions, drawn and joined, the keys that they are sorted by, twice, and the ids.
_BYTES_PER_COLUMN_POSITION = 48

_Run = Callable[[Iterable[Callable[[], Any]]], list[Any]]


class DiskNeighborSampler(NeighborSampler):
    """Samples subgraphs of one graph with one configuration, fetching its in-neighbours.

    Any number of threads may call its methods at once.
    """

    samples_together = True

    def __init__(
        self,
        csc: Csc,
        config: SamplingConfig,
        index_dtype: IndexDtype,
        fetch: Fetch,
        cache: CachedNeighbors | Callable[[], CachedNeighbors | None] | None = None,
    ) -> None:
        super().__init__(csc, config, index_dtype)
        num_words = -(-csc.num_nodes // 64)
        if isinstance(cache, CachedNeighbors) and (
            cache.neighbors.dtype != csc.indices.dtype
            or not len(cache.bits) == len(cache.starts) == num_words
        ):
            raise UsageError(
                f"the neighbour cache does not fit {csc.label}: expected {num_words} words of "
                f"bits and neighbours of {csc.indices.dtype}, found {len(cache.bits)} and "
                f"{cache.neighbors.dtype}; build it from this graph"
            )
        self._cache = cache
        self._fetch = fetch
        self._counts = NeighborCounts()
        self._lock = threading.Lock()

    @property
    def cache(self) -> CachedNeighbors | None:
        """In-neighbours that need not be fetched now."""
        return self._cache() if callable(self._cache) else self._cache

    @property
    def counts(self) -> NeighborCounts:
        """Number of in-neighbours that all batches so far have needed, by source."""
        return self._counts

    def sample(
        self, seeds: npt.ArrayLike, *, epoch: int, batch: int, excluded: Excluded | None = None
    ) -> Sample:
        """Sample the subgraph of some seed nodes; see `NeighborSampler.sample`."""
        self.csc.check_mapped_files()
        staged = self._begin(BatchRequest(seeds, epoch, batch, excluded), MAX_COLUMN_POSITIONS)
        while (positions := staged.draw()) is not None:
            staged.take(self._fetched(positions))
        self._count(staged.counts)
        return staged.result()

    def sample_many(
        self, requests: Iterable[BatchRequest], *, memory_bytes: int, num_threads: int = 1
    ) -> Generator[Sample, None, None]:
        """Sample batches in groups that fetch together, hop by hop."""
        size, each_bytes, table_bytes = 1, 1, 0
        waiting = iter(requests)
        while group := list(islice(waiting, size)):
            self.csc.check_mapped_files()
            pieces = memory_bytes // (len(group) * _BYTES_PER_COLUMN_POSITION)
            pieces = max(1, min(pieces, MAX_COLUMN_POSITIONS))
            batches = [self._begin(request, pieces) for request in group]
            if num_threads <= 1 or len(batches) == 1:
                _advance(batches, self._fetched, _run_here)
            else:
                with Workers(num_threads) as workers:
                    _advance(batches, self._fetched, workers.run)
            subgraphs = deque[Sample]()
            while batches:  # from the end: the buffers for sampling are freed batch by batch
                staged = batches.pop()
                self._count(staged.counts)
                subgraphs.appendleft(staged.result())
                each_bytes = max(each_bytes, staged.waiting_bytes(subgraphs[0]))
                table_bytes = max(table_bytes, staged.table_bytes(subgraphs[0]))
            del staged
            while subgraphs:  # a group is freed before the next one begins
                yield subgraphs.popleft()
            left_bytes = memory_bytes - max(1, num_threads) * table_bytes
            size = max(1, min(2 * size, left_bytes // each_bytes))

    def _begin(self, request: BatchRequest, max_column_positions: int) -> StagedBatch:
        return StagedBatch(
            self.csc,
            self.config,
            self.index_dtype,
            request.seeds,
            epoch=request.epoch,
            batch=request.batch,
            excluded=request.excluded,
            cache=self.cache,
            max_column_positions=max_column_positions,
        )

    def _fetched(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        if len(positions) == 0:
            return np.empty(0, self.csc.indices.dtype)
        return self._fetch(positions)

    def _count(self, counts: NeighborCounts) -> None:
        with self._lock:
            self._counts += counts


def _run_here(tasks: Iterable[Callable[[], Any]]) -> list[Any]:
    return [task() for task in tasks]


def _advance(batches: Sequence[StagedBatch], fetch: Fetch, run: _Run) -> None:
    """Sample batches to their ends, with one fetch in this thread for each hop of all batches."""
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
