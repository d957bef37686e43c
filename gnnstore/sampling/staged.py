"""Samples a batch in steps: it asks for the in-neighbours at some positions, and takes them.

The kernel draws a hop's positions in `indices`, looks up those in a neighbour cache, and asks for
the rest. Where they come from, and with which other batches they are fetched, is up to the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.sampling.hetero import TypedNeighborSampler
from gnnstore.sampling.neighbor import BatchRequest, Sample, check_word, sampling_errors

# Positions of whole in-neighbour lists that are requested at once: 8 MB, and as many bytes for
# fetching them, which is little for such a batch and enough to keep a disk busy.
MAX_COLUMN_POSITIONS = 1 << 20

# Returns the elements of `indices` (its dtype, [n]) at some positions (int64 [n]).
Fetch = Callable[[npt.NDArray[np.int64]], npt.NDArray[Any]]


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
    num_nodes: int  # nodes whose lists are cached

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the three arrays occupy."""
        return self.bits.nbytes + self.starts.nbytes + self.neighbors.nbytes


@dataclass(frozen=True)
class NeighborCounts:
    """In-neighbours that batches needed, by their source."""

    cached: int = 0  # from the cache
    fetched: int = 0  # from `fetch`, repeated ones included

    @property
    def hit_rate(self) -> float:
        """The share of cached in-neighbours; 0 if none were needed."""
        total = self.cached + self.fetched
        return self.cached / total if total else 0.0

    def __add__(self, other: NeighborCounts) -> NeighborCounts:
        return NeighborCounts(self.cached + other.cached, self.fetched + other.fetched)


# A column of an edge type, by their numbers: those in the store, and in `COLUMNS`.
Stream = tuple[int, int]


class StagedBatch:
    """A batch that is being sampled. For one thread at a time.

    Call `draw` and `take` alternately until there is nothing to draw; then `result`, once.
    """

    def __init__(
        self,
        sampler: TypedNeighborSampler,
        request: BatchRequest,
        caches: Sequence[CachedNeighbors | None] = (),
        max_column_positions: int = MAX_COLUMN_POSITIONS,
    ) -> None:
        check_word("epoch", request.epoch)
        check_word("batch", request.batch)
        config = sampler.config
        seeds = sampler.seed_arrays(request.seeds, request.times, request.places)
        excluded = sampler.excluded_arrays(request.excluded)
        self._sampler = sampler
        self._num_seeds = sum(len(ids) for ids, *_ in seeds)
        self._num_fetched = 0
        self._largest_draw = self._largest_bytes = 0
        with self._errors():
            self._kernel = _core.StagedBatch(
                sampler.graph,
                seeds,
                seed=config.seed,
                epoch=request.epoch,
                batch=request.batch,
                replace=config.replace,
                disjoint=config.disjoint,
                induced=config.subgraph_type == "induced",
                latest=config.temporal_strategy == "last",
                window=config.time_window or 0,
                index_dtype=sampler.index_dtype,
                caches=[
                    None if cache is None else (cache.bits, cache.starts, cache.neighbors)
                    for cache in caches
                ]
                if caches
                else None,
                max_column_positions=max_column_positions,
                excluded=excluded,
            )

    def draw(self) -> list[tuple[Stream, npt.NDArray[np.int64]]] | None:
        """Return the positions that are needed next by stream, maybe none; None at the end."""
        with self._errors():
            drawn = self._kernel.draw()
        if drawn is None:
            return None
        asked = [((edges, column), positions) for edges, column, positions in drawn]
        num, num_bytes = 0, 0
        for stream, positions in asked:
            # Positions, the keys that they are sorted by, twice, and what is there.
            num_bytes += len(positions) * (3 * 8 + self._sampler.stream_dtype(stream).itemsize)
            num += len(positions)
            self._num_fetched += len(positions) * (stream[1] == 0)
        self._largest_draw = max(self._largest_draw, num)
        self._largest_bytes = max(self._largest_bytes, num_bytes)
        return asked

    def take(self, fetched: list[npt.NDArray[Any]]) -> None:
        """Take the elements that were asked for, in that order."""
        with self._errors():
            self._kernel.take(fetched)

    def result(self) -> Sample:
        """Return the subgraph."""
        return self._sampler.as_sample(self._kernel.result(), self._num_seeds)

    @property
    def counts(self) -> NeighborCounts:
        """In-neighbours that have been needed so far."""
        return NeighborCounts(self._kernel.num_cached, self._num_fetched)

    def waiting_bytes(self, subgraph: Sample) -> int:
        """Return the approximate bytes of the batch while its largest hop was fetched."""
        local_bytes = np.dtype(self._sampler.index_dtype).itemsize  # room for new nodes
        return subgraph.num_bytes + self._largest_bytes + local_bytes * self._largest_draw

    def table_bytes(self, subgraph: Sample) -> int:
        """Return a bound of the bytes that relabelling the batch's largest hop takes."""
        slot_bytes = 16 if self._sampler.config.disjoint else 8
        return 4 * slot_bytes * (subgraph.num_nodes + self._largest_draw)

    def _errors(self) -> AbstractContextManager[None]:
        return sampling_errors(self._sampler.types.label, self._sampler.num_nodes)
