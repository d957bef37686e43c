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
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import UsageError
from gnnstore.formats.store.csc import Csc
from gnnstore.sampling.hetero import COLUMNS, Column, SampledTypes, TypedNeighborSampler
from gnnstore.sampling.neighbor import (
    BatchRequest,
    EdgeType,
    IndexDtype,
    Sample,
    SamplingConfig,
)
from gnnstore.sampling.staged import (
    MAX_COLUMN_POSITIONS,
    CachedNeighbors,
    Fetch,
    NeighborCounts,
    StagedBatch,
    Stream,
)
from gnnstore.threads import Workers

# Positions, drawn and joined, the keys that they are sorted by, twice, and the ids.
_BYTES_PER_COLUMN_POSITION = 48

# A cache, or what returns the one that is there by now.
Cache = CachedNeighbors | Callable[[], CachedNeighbors | None]

_Run = Callable[[Iterable[Callable[[], Any]]], list[Any]]


class TypedDiskSampler(TypedNeighborSampler):
    """Samples subgraphs of one graph with one configuration, fetching its in-neighbours.

    Any number of threads may call its methods at once.
    """

    samples_together = True
    on_disk = True

    def __init__(
        self,
        types: SampledTypes,
        config: SamplingConfig,
        index_dtype: IndexDtype,
        fetch: Mapping[tuple[EdgeType, Column], Fetch],
        caches: Mapping[EdgeType, Cache] = MappingProxyType({}),
    ) -> None:
        super().__init__(types, config, index_dtype)
        for of, cache in caches.items():
            if isinstance(cache, CachedNeighbors):
                _check_cache(types.edges[of], cache)
        self._caches = caches
        numbers = {of: number for number, of in enumerate(types.edges)}
        self._fetch = {
            (numbers[of], COLUMNS.index(column)): read for (of, column), read in fetch.items()
        }
        self._counts = NeighborCounts()
        self._lock = threading.Lock()

    @property
    def caches(self) -> list[CachedNeighbors | None]:
        """In-neighbours that need not be fetched now, by edge type."""
        found = (self._caches.get(of) for of in self.types.edges)
        return [cache() if callable(cache) else cache for cache in found]

    @property
    def counts(self) -> NeighborCounts:
        """Number of in-neighbours that all batches so far have needed, by source."""
        return self._counts

    def sample(
        self,
        seeds: Any,
        *,
        epoch: int,
        batch: int,
        excluded: Any = None,
        times: Any = None,
        places: Any = None,
    ) -> Sample:
        """Sample the subgraph of some seed nodes; see `NeighborSampler.sample`."""
        self.types.check_mapped_files()
        request = BatchRequest(seeds, epoch, batch, excluded, times, places)
        staged = self._begin(request, MAX_COLUMN_POSITIONS)
        while (drawn := staged.draw()) is not None:
            staged.take([self._fetched(stream, positions) for stream, positions in drawn])
        self._count(staged.counts)
        return staged.result()

    def sample_many(
        self, requests: Iterable[BatchRequest], *, memory_bytes: int, num_threads: int = 1
    ) -> Generator[Sample, None, None]:
        """Sample batches in groups that fetch together, hop by hop."""
        size, each_bytes, table_bytes = 1, 1, 0
        waiting = iter(requests)
        while group := list(islice(waiting, size)):
            self.types.check_mapped_files()
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
        return StagedBatch(self, request, self.caches, max_column_positions)

    def _fetched(self, stream: Stream, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return self._fetch[stream](positions)

    def _count(self, counts: NeighborCounts) -> None:
        with self._lock:
            self._counts += counts


class DiskNeighborSampler(TypedDiskSampler):
    """The same for a graph of one node type and one edge type."""

    takes_types = False

    def __init__(
        self,
        csc: Csc,
        config: SamplingConfig,
        index_dtype: IndexDtype,
        fetch: Fetch,
        cache: Cache | None = None,
    ) -> None:
        of = csc.edge_type
        types = SampledTypes({of[2]: csc.num_nodes}, {of: csc}, csc.label)
        caches = {} if cache is None else {of: cache}
        super().__init__(types, config, index_dtype, {(of, "indices"): fetch}, caches)
        self.csc = csc


def _check_cache(csc: Csc, cache: CachedNeighbors) -> None:
    num_words = -(-csc.num_nodes // 64)
    if cache.neighbors.dtype != csc.indices.dtype or not (
        len(cache.bits) == len(cache.starts) == num_words
    ):
        raise UsageError(
            f"the neighbour cache does not fit {csc.label}: expected {num_words} words of "
            f"bits and neighbours of {csc.indices.dtype}, found {len(cache.bits)} and "
            f"{cache.neighbors.dtype}; build it from this graph"
        )


def _run_here(tasks: Iterable[Callable[[], Any]]) -> list[Any]:
    return [task() for task in tasks]


def _advance(
    batches: Sequence[StagedBatch],
    fetch: Callable[[Stream, npt.NDArray[np.int64]], npt.NDArray[Any]],
    run: _Run,
) -> None:
    """Sample batches to their ends, with one fetch in this thread for each step and stream."""
    active = list(batches)
    while active:
        drawn = run([staged.draw for staged in active])
        active = [staged for staged, asked in zip(active, drawn, strict=True) if asked is not None]
        asking = [asked for asked in drawn if asked is not None]
        del drawn
        # By stream, the places of its requests among those of each batch, and their positions.
        wanted: dict[Stream, list[tuple[int, int, npt.NDArray[np.int64]]]] = {}
        for batch, asked in enumerate(asking):
            for place, (stream, positions) in enumerate(asked):
                wanted.setdefault(stream, []).append((batch, place, positions))
        parts: list[list[Any]] = [[None] * len(asked) for asked in asking]
        asking.clear()
        for stream in sorted(wanted):
            requests = wanted.pop(stream)
            ends = np.cumsum([len(positions) for *_, positions in requests], dtype=np.int64)
            joined = _joined([positions for *_, positions in requests])
            places = [request[:2] for request in requests]
            requests.clear()
            split = np.split(fetch(stream, joined), ends[:-1])
            for (batch, place), part in zip(places, split, strict=True):
                parts[batch][place] = part
        run([partial(staged.take, part) for staged, part in zip(active, parts, strict=True)])


def _joined(arrays: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Concatenate into recycled memory, which needs no page faults."""
    if len(arrays) == 1:
        return arrays[0]
    size = sum(map(len, arrays))
    joined: npt.NDArray[np.int64] = _core.pool_empty(8 * size).view(np.int64)
    return np.concatenate(arrays, out=joined)
