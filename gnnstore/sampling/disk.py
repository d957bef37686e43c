"""Samples from a graph whose in-neighbours lie on disk: `indptr` in memory, and little else.

Draws are keyed and not streamed, so batches equal `NeighborSampler`'s, bit for bit, whether
they fetch their in-neighbours alone or together. Alone is for batches that are requested one by
one. Batches that are known ahead advance hop by hop side by side (bulk sampling): their positions,
sorted, lie so close to one another that reading them is nearly a pass over the file, at the speed
of sequential reads; and a hub that many batches need is read once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.formats.store.schema import EdgeType
from gnnstore.formats.store.store import Csc
from gnnstore.sampling.neighbor import (
    BatchRequest,
    IndexDtype,
    NeighborSampler,
    Sample,
    SamplingConfig,
)
from gnnstore.sampling.sampled_graph import COLUMNS, Column, Fetch, SampledTypes
from gnnstore.threads import Workers

# Positions of whole in-neighbour lists that are requested at once: 8 MB, and as many bytes for
# fetching them, which is little for such a batch and enough to keep a disk busy.
MAX_COLUMN_POSITIONS = 1 << 20


@dataclass(frozen=True, eq=False)
class CachedNeighbors:
    """In-neighbour lists of some nodes in memory: 2 bits a node of the graph, and the lists."""

    # uint64 [ceil(N / 64)]: bit v % 64 of element v // 64 is set for each cached node v.
    bits: npt.NDArray[np.uint64]
    # int64 [ceil(N / 64)]: the number of elements of `neighbors` before the lists of the nodes of
    # each element.
    starts: npt.NDArray[np.int64]
    # int32 or int64 [M]: the lists, one behind the other, in the order of the nodes.
    neighbors: npt.NDArray[Any]

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the three arrays occupy."""
        return self.bits.nbytes + self.starts.nbytes + self.neighbors.nbytes


# A column of an edge type, by their numbers: those in the store, and in `COLUMNS`.
Stream = tuple[int, int]


class StagedBatch:
    """A batch that is being sampled in steps. For one thread at a time.

    The kernel draws a hop's positions in `indices`, looks up those in a neighbour cache, and asks
    for the rest. Call `draw` and `take` alternately until there is nothing to draw; then `result`.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        request: BatchRequest,
        caches: Sequence[CachedNeighbors | None] = (),
        max_column_positions: int = MAX_COLUMN_POSITIONS,
    ) -> None:
        seeds, options = sampler.kernel_arguments(request)
        self._sampler = sampler
        self._num_seeds = sum(len(ids) for ids, *_ in seeds)
        self._largest_draw = self._largest_bytes = 0
        arrays = [None if c is None else (c.bits, c.starts, c.neighbors) for c in caches]
        with self._sampler.errors():
            self._kernel = _core.StagedBatch(
                sampler.graph,
                seeds,
                caches=arrays or None,
                max_column_positions=max_column_positions,
                **options,
            )

    def draw(self) -> list[tuple[Stream, npt.NDArray[np.int64]]] | None:
        """Return the positions that are needed next by stream, maybe none; None at the end."""
        with self._sampler.errors():
            drawn = self._kernel.draw()
        if drawn is None:
            return None
        asked, num, num_bytes = [], 0, 0
        for edges, column, positions in drawn:
            types = self._sampler.types
            dtype = types.column(list(types.edges)[edges], COLUMNS[column]).dtype
            # Positions, the keys that they are sorted by, twice, and what is there.
            num_bytes += len(positions) * (3 * 8 + dtype.itemsize)
            num += len(positions)
            asked.append(((edges, column), positions))
        self._largest_draw = max(self._largest_draw, num)
        self._largest_bytes = max(self._largest_bytes, num_bytes)
        return asked

    def take(self, fetched: list[npt.NDArray[Any]]) -> None:
        """Take the elements that were asked for, in that order."""
        with self._sampler.errors():
            self._kernel.take(fetched)

    def result(self) -> Sample:
        """Return the subgraph."""
        return self._sampler.as_sample(self._kernel.result(), self._num_seeds)

    def waiting_bytes(self, subgraph: Sample) -> int:
        """Return the approximate bytes of the batch while its largest hop was fetched."""
        local_bytes = np.dtype(self._sampler.index_dtype).itemsize  # room for new nodes
        return subgraph.num_bytes + self._largest_bytes + local_bytes * self._largest_draw

    def table_bytes(self, subgraph: Sample) -> int:
        """Return a bound of the bytes that relabelling the batch's largest hop takes."""
        slot_bytes = 16 if self._sampler.config.disjoint else 8
        return 4 * slot_bytes * (subgraph.num_nodes + self._largest_draw)


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
        graph: SampledTypes | Csc,
        config: SamplingConfig,
        index_dtype: IndexDtype,
        fetch: Mapping[tuple[EdgeType, Column], Fetch],
        caches: Mapping[EdgeType, CachedNeighbors] = MappingProxyType({}),
    ) -> None:
        super().__init__(graph, config, index_dtype)
        # In-neighbours that need not be fetched, by edge type.
        self.caches = [caches.get(of) for of in self.types.edges]
        numbers = {of: number for number, of in enumerate(self.types.edges)}
        self._fetch = {
            (numbers[of], COLUMNS.index(column)): read for (of, column), read in fetch.items()
        }

    def draw(self, request: BatchRequest) -> Sample:
        """Sample the subgraph of a request."""
        staged = self._begin(request, MAX_COLUMN_POSITIONS)
        while (drawn := staged.draw()) is not None:
            staged.take([self._fetched(stream, positions) for stream, positions in drawn])
        return staged.result()

    def sample_many(
        self, requests: Iterable[BatchRequest], *, memory_bytes: int, num_threads: int = 1
    ) -> Generator[Sample, None, None]:
        """Sample batches in groups that fetch together, hop by hop."""
        size, each_bytes, table_bytes = 1, 1, 0
        waiting = iter(requests)
        while group := list(islice(waiting, size)):
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
        # By stream, the places of its requests among each batch's, and their positions.
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
