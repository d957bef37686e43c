"""Stores sampled subgraphs in a third of the memory until they are needed.

Sampling runs hundreds of batches ahead of training. A batch is sampled in the dtypes that the user
gets, int64 as a rule; its compact form has int32 wherever the ids fit, and instead of the targets,
which ascend, the number of edges into each node: 8 bytes an edge instead of 24. While it waits, it
is shortened to about half of that: its numbers are kept as differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, UsageError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.sampling.neighbor import IndexDtype, Sample

Empty: TypeAlias = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]

# The most that `arrays()` returns.
MAX_ARRAYS = 6
# The first of `arrays()` begins with the number of seeds, and two flags: disjoint trees, hops.
_HEADER_INTS = 3


@dataclass(frozen=True, eq=False)
class CompactSample:
    """The compact form of a batch's subgraph; B seeds, n nodes, m edges, L hops."""

    n_id: npt.NDArray[Any]  # int32 or int64, shape [n]
    sources: npt.NDArray[Any]  # int32 or int64, shape [m]: row 0 of the edge index
    # int32 or int64, shape [t]: edges into each of the first t nodes, t - 1 being the last that has
    # any.
    num_incoming: npt.NDArray[Any]
    edge_pos: npt.NDArray[Any]  # int32 or int64, shape [m]
    batch: npt.NDArray[Any] | None  # int32 or int64, shape [n], or None
    num_sampled_nodes: tuple[int, ...] | None  # of length L + 1 and L
    num_sampled_edges: tuple[int, ...] | None  # of length L + 1 and L
    num_seeds: int

    @classmethod
    def of(cls, subgraph: Sample, num_nodes: int, num_edges: int) -> Self:
        """Return a subgraph in its small form, which shares no memory with it."""
        sources, targets = subgraph.edge_index
        if len(targets) and not np.all(targets[1:] >= targets[:-1]):
            raise UsageError("the targets of a subgraph to keep must ascend; sort its edges")
        num_local = len(subgraph.n_id)
        hop_nodes, hop_edges = subgraph.num_sampled_nodes, subgraph.num_sampled_edges
        return cls(
            n_id=_narrowed(subgraph.n_id, num_nodes),
            sources=_narrowed(sources, num_local),
            num_incoming=_narrowed(np.bincount(targets), len(targets) + 1),
            edge_pos=_narrowed(subgraph.edge_pos, num_edges),
            batch=None if subgraph.batch is None else _narrowed(subgraph.batch, num_local),
            num_sampled_nodes=None if hop_nodes is None else tuple(hop_nodes),
            num_sampled_edges=None if hop_edges is None else tuple(hop_edges),
            num_seeds=subgraph.num_seeds,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        arrays = (self.n_id, self.sources, self.num_incoming, self.edge_pos, self.batch)
        return sum(0 if array is None else array.nbytes for array in arrays)

    def expand(self, index_dtype: IndexDtype, empty: Empty = np.empty) -> Sample:
        """Return the subgraph as it was sampled, in new arrays."""
        dtype = np.dtype(index_dtype)
        if max(self.n_id.itemsize, self.sources.itemsize) > dtype.itemsize:
            raise UsageError(
                f"ids of a graph of more than 2^31 nodes do not fit in {dtype}; "
                "use index_dtype='int64'"
            )
        edge_index = empty((2, len(self.sources)), dtype)
        edge_index[0] = self.sources
        edge_index[1] = np.repeat(np.arange(len(self.num_incoming), dtype=dtype), self.num_incoming)

        def widened(array: npt.NDArray[Any], to: npt.DTypeLike) -> npt.NDArray[Any]:
            wide = empty(array.shape, to)
            np.copyto(wide, array)
            return wide

        hop_nodes, hop_edges = self.num_sampled_nodes, self.num_sampled_edges
        return Sample(
            n_id=widened(self.n_id, dtype),
            edge_index=edge_index,
            edge_pos=widened(self.edge_pos, np.int64),
            batch=None if self.batch is None else widened(self.batch, np.int64),
            num_sampled_nodes=None if hop_nodes is None else list(hop_nodes),
            num_sampled_edges=None if hop_edges is None else list(hop_edges),
            num_seeds=self.num_seeds,
        )

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return the subgraph as vectors, views, from which `from_arrays` restores it."""
        has_trees, has_hops = self.batch is not None, self.num_sampled_nodes is not None
        header = [self.num_seeds, int(has_trees), int(has_hops)]
        header += [*(self.num_sampled_nodes or ()), *(self.num_sampled_edges or ())]
        found = [np.array(header, np.int64)]
        found += [self.n_id, self.sources, self.num_incoming, self.edge_pos]
        return found if self.batch is None else [*found, self.batch]

    def shortened(self, *, with_ids: bool = True) -> list[npt.NDArray[Any]]:
        """Return the subgraph as fewer bytes, from which `from_shortened` restores it."""
        header, n_id, *others = self.arrays()
        return [header, *map(_core.shorten, [n_id, *others] if with_ids else others)]

    @classmethod
    def from_shortened(
        cls, arrays: Sequence[npt.NDArray[Any]], n_id: npt.NDArray[Any] | None = None
    ) -> Self:
        """Return the subgraph that `shortened` has turned into these vectors."""
        try:
            restored = [*arrays[:1], *map(_core.restore, arrays[1:])]
        except (TypeError, ValueError) as error:
            raise CorruptStoreError(f"{len(arrays)} arrays are no subgraph: {error}") from error
        return cls.from_arrays(restored if n_id is None else [*restored[:1], n_id, *restored[1:]])

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> Self:
        """Return the subgraph that `arrays` has turned into these vectors; it keeps them."""
        header = [int(number) for number in arrays[0]] if arrays else []
        if len(header) < _HEADER_INTS or len(arrays) != 5 + header[1]:
            raise CorruptStoreError(
                f"{len(arrays)} arrays, the first of {len(header)} numbers, are no subgraph"
            )
        num_seeds, has_trees, has_hops = header[:_HEADER_INTS]
        hops = header[_HEADER_INTS:]
        num_hops = len(hops) // 2
        n_id, sources, num_incoming, edge_pos = arrays[1:5]
        return cls(
            n_id=n_id,
            sources=sources,
            num_incoming=num_incoming,
            edge_pos=edge_pos,
            batch=arrays[5] if has_trees else None,
            num_sampled_nodes=tuple(hops[: num_hops + 1]) if has_hops else None,
            num_sampled_edges=tuple(hops[num_hops + 1 :]) if has_hops else None,
            num_seeds=num_seeds,
        )


def _narrowed(array: npt.NDArray[Any], bound: int) -> npt.NDArray[Any]:
    """Return a copy, as int32 if all numbers below `bound` fit."""
    return array.astype(id_dtype(bound - 1))
