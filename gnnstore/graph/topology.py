"""The topology of a graph as samplers reach it: in memory, mapped, or read from disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gnnstore._core import ReadCounts
from gnnstore.sampling.disk import DiskNeighborSampler
from gnnstore.sampling.neighbor import NeighborSampler

if TYPE_CHECKING:
    from gnnstore.formats.store.csc import Csc
    from gnnstore.graph.indices import IndexRows
    from gnnstore.graph.neighbor_cache.beside import NeighborCache
    from gnnstore.sampling.neighbor import IndexDtype, SamplingConfig


@dataclass(frozen=True, eq=False)
class Topology:
    """The in-neighbours of all nodes, in memory or with a reader for those on disk."""

    csc: Csc  # if `rows` is set, only length and dtype of its `indices` are used
    rows: IndexRows | None = None
    # In-neighbour lists in memory, which need not be read once they are there.
    neighbors: NeighborCache | None = None

    @property
    def is_read(self) -> bool:
        """Whether in-neighbours are read from disk, so that batches are best sampled together."""
        return self.rows is not None

    @property
    def is_slow(self) -> bool:
        """Whether sampling may have to wait for a disk."""
        return bool(self.csc.mapped)

    @property
    def counts(self) -> ReadCounts:
        """Reads of in-neighbours so far."""
        return ReadCounts() if self.rows is None else self.rows.counts

    def sampler(self, config: SamplingConfig, index_dtype: IndexDtype) -> NeighborSampler:
        """Return a sampler; its batches are the same wherever the topology lies."""
        if self.rows is None:
            return NeighborSampler(self.csc, config, index_dtype=index_dtype)
        neighbors = self.neighbors
        now = None if neighbors is None else lambda: neighbors.current
        return DiskNeighborSampler(self.csc, config, index_dtype, self.rows.fetch, now)
