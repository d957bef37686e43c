"""Samples a batch in steps: it asks for the in-neighbours at some positions, and takes them.

The kernel draws a hop's positions in `indices`, looks up those in a neighbour cache, and asks for
the rest. Where they come from, and with which other batches they are fetched, is up to the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.formats.store.csc import Csc
from gnnstore.sampling.neighbor import (
    Excluded,
    IndexDtype,
    Sample,
    SamplingConfig,
    as_seeds,
    as_subgraph,
    check_word,
    sampling_errors,
)

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


class StagedBatch:
    """A batch that is being sampled. For one thread at a time.

    Call `draw` and `take` alternately until there is nothing to draw; then `result`, once.
    """

    def __init__(
        self,
        csc: Csc,
        config: SamplingConfig,
        index_dtype: IndexDtype,
        seeds: npt.ArrayLike,
        *,
        epoch: int,
        batch: int,
        excluded: Excluded | None = None,
        cache: CachedNeighbors | None = None,
        max_column_positions: int = MAX_COLUMN_POSITIONS,
    ) -> None:
        check_word("epoch", epoch)
        check_word("batch", batch)
        seed_ids = as_seeds(seeds)
        self._csc = csc
        self._config = config
        self._num_seeds = len(seed_ids)
        self._num_fetched = 0
        self._largest_draw = 0
        with self._errors():
            self._kernel = _core.StagedBatch(
                csc.indptr,
                seed_ids,
                config.fanouts,
                num_edges=csc.num_edges,
                indices_dtype=csc.indices.dtype.name,
                seed=config.seed,
                epoch=epoch,
                batch=batch,
                num_src_nodes=csc.num_src,
                replace=config.replace,
                disjoint=config.disjoint,
                induced=config.subgraph_type == "induced",
                index_dtype=index_dtype,
                cache=None if cache is None else (cache.bits, cache.starts, cache.neighbors),
                max_column_positions=max_column_positions,
                excluded=excluded,
            )

    def draw(self) -> npt.NDArray[np.int64] | None:
        """Return the positions in `indices` that are needed next (may be none); None at the end."""
        with self._errors():
            positions = self._kernel.draw()
        if positions is not None:
            self._num_fetched += len(positions)
            self._largest_draw = max(self._largest_draw, len(positions))
        return positions

    def take(self, neighbors: npt.NDArray[Any]) -> None:
        """Take the ids at these positions, in their order: [n], in the dtype of `indices`."""
        with self._errors():
            self._kernel.take(neighbors)

    def result(self) -> Sample:
        """Return the subgraph."""
        arrays = self._kernel.result()
        return as_subgraph(arrays, self._config, self._num_seeds, self._csc.edge_type)

    @property
    def counts(self) -> NeighborCounts:
        """In-neighbours that have been needed so far."""
        return NeighborCounts(self._kernel.num_cached, self._num_fetched)

    def waiting_bytes(self, subgraph: Sample) -> int:
        """Return the approximate bytes of the batch while its largest hop was fetched."""
        # Positions, the keys that they are sorted by, twice, and ids; then room for new nodes.
        drawn_bytes = 3 * 8 + self._csc.indices.itemsize + subgraph.n_id.itemsize
        return subgraph.num_bytes + drawn_bytes * self._largest_draw

    def table_bytes(self, subgraph: Sample) -> int:
        """Return a bound of the bytes that relabelling the batch's largest hop takes."""
        slot_bytes = 16 if self._config.disjoint else 8
        return 4 * slot_bytes * (len(subgraph.n_id) + self._largest_draw)

    def _errors(self) -> AbstractContextManager[None]:
        return sampling_errors(self._csc.label, self._csc.num_nodes)
