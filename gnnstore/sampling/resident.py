"""The graph of the partitions in memory, in ids of its own.

Partitions are numbered by rank: the k-th of those in memory has the ids k * R and following, so
that ids leave no gap and ascend with the ids of the partitioning. Where rows lie does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.store.store import Csc

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Members:
    """The partitions in memory, and the ids of their nodes."""

    partitions: Int64Array  # int64 [c]: ascending
    rows: int  # R, nodes of a partition; the last of the graph may have fewer
    num_nodes: int  # nodes of these partitions

    @classmethod
    def from_partitions(cls, partitions: Int64Array, rows: int, total_nodes: int) -> Members:
        """Return some partitions of a graph of `total_nodes` nodes."""
        ends = np.minimum((partitions + 1) * rows, total_nodes)
        return cls(partitions, rows, int((ends - partitions * rows).sum()))

    def local(self, nodes: npt.NDArray[Any]) -> Int64Array:
        """Return the local ids of nodes [n] of these partitions, given ids in the partitioning."""
        of, row = np.divmod(nodes.astype(np.int64, copy=False), self.rows)
        rank = np.minimum(np.searchsorted(self.partitions, of), len(self.partitions) - 1)
        if (missing := np.flatnonzero(self.partitions[rank] != of)).size:
            raise KeyError(f"partition {of[missing[0]]} is not in memory")
        return rank * self.rows + row

    def nodes(self, local: npt.NDArray[Any]) -> Int64Array:
        """Return the ids in the partitioning of nodes [n] by their ids here."""
        rank, row = np.divmod(local.astype(np.int64, copy=False), self.rows)
        return self.partitions[rank] * self.rows + row

    def bucket_starts(
        self,
        bucket_ptr: Int64Array,
        num_partitions: int,
        wanted: npt.NDArray[np.bool_] | None = None,
    ) -> Int64Array:
        """Return where the bucket of each pair begins in memory, int64 [c * c + 1]."""
        starts = np.zeros(len(self.partitions) ** 2 + 1, np.int64)
        entries = self.bucket_entries(num_partitions)
        sizes = bucket_ptr[entries + 1] - bucket_ptr[entries]
        np.cumsum(sizes if wanted is None else sizes * wanted, out=starts[1:])
        return starts

    def bucket_entries(self, num_partitions: int) -> Int64Array:
        """Return the entry in `bucket_ptr` of each pair, by target and then source [c * c]."""
        pairs = self.partitions[:, None] * num_partitions + self.partitions[None]
        return pairs.ravel()


@dataclass(frozen=True, eq=False)
class Buckets:
    """The edges between the partitions in memory, by pairs of these."""

    starts: Int64Array  # int64 [c * c + 1]: where buckets begin, by target and then source
    source: npt.NDArray[np.int32]  # int32 [E]: rows of sources in their partitions
    target: npt.NDArray[np.int32]  # int32 [E]: rows of targets in their partitions
    position: npt.NDArray[Any]  # int32 or int64 [E]: in the whole graph

    def ends(self, members: Members, places: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the sources and targets of edges at some places [P], by the ids of members."""
        bucket: Int64Array = np.searchsorted(self.starts, places, side="right") - 1
        count, rows = len(members.partitions), members.rows
        sources: Int64Array = bucket % count * rows + self.source[places]
        targets: Int64Array = bucket // count * rows + self.target[places]
        return sources, targets

    @classmethod
    def empty(cls, starts: Int64Array, dtype: np.dtype[Any]) -> Buckets:
        """Return room for edges, from the pool."""
        count = int(starts[-1])
        source, target = (_core.empty((count,), np.dtype(np.int32)) for _ in range(2))
        return cls(starts, source, target, _core.empty((count,), dtype))


@dataclass(frozen=True, eq=False)
class ResidentGraph:
    """The adjacency of the partitions in memory."""

    members: Members
    columns: Csc  # by ids here
    positions: npt.NDArray[Any]  # int32 or int64 [E]: of each edge in the whole graph

    @classmethod
    def build(
        cls, members: Members, buckets: Buckets, *, num_edges: int, num_threads: int, source: str
    ) -> ResidentGraph:
        """Build the columns by counting."""
        try:
            indptr, indices, positions = _core.resident_csc(
                buckets.starts,
                buckets.source,
                buckets.target,
                buckets.position,
                count=len(members.partitions),
                rows=members.rows,
                num_nodes=members.num_nodes,
                num_positions=num_edges,
                num_threads=num_threads,
            )
        except ValueError as error:
            raise CorruptStoreError(
                f"{source}: edges between the partitions {members.partitions.tolist()}: {error}. "
                "They are damaged: run 'gnnstore verify', or partition the store again",
                path=source,
            ) from error
        columns = Csc(indptr, indices, members.num_nodes, source)
        return cls(members, columns, positions)

    def edges_of(self, trained: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Return the places in the columns of the edges of some buckets, ascending."""
        members, csc = self.members, self.columns
        count, rows = len(members.partitions), members.rows
        dtype = id_dtype(csc.num_edges)
        found = [np.empty(0, dtype)]
        for target, wanted in enumerate(trained.reshape(count, count)):
            last = min((target + 1) * rows, members.num_nodes)
            begin, end = csc.indptr[target * rows], csc.indptr[last]
            if wanted.any():
                places = np.flatnonzero(wanted[csc.indices[begin:end] // rows])
                found.append((places + begin).astype(dtype))
        return np.concatenate(found)

    def pass_on(self, members: Members, buckets: Buckets, *, num_threads: int) -> None:
        """Write the edges between partitions that stay to their buckets among other members."""
        before, after = self.members.partitions, members.partitions
        kept = np.where(np.isin(before, after), np.searchsorted(after, before), -1)
        _core.resident_buckets(
            self.columns.indptr,
            self.columns.indices,
            self.positions,
            kept,
            rows=members.rows,
            starts=buckets.starts,
            new_count=len(after),
            source=buckets.source,
            target=buckets.target,
            position=buckets.position,
            num_threads=num_threads,
        )
