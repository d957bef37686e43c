"""The compact form of sampled subgraphs.

Sampling runs hundreds of batches ahead of training. A compact sample has int32 wherever the ids
fit, and instead of the targets, which ascend, the number of edges into each node: 8 bytes an edge
instead of 24. While it waits, it is shortened to about half of that, as differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE, EdgeType, Schema
from gnnstore.sampling.neighbor import (
    EdgeSample,
    IndexDtype,
    K,
    NodeType,
    Sample,
    Subgraph,
    each_type,
)
from gnnstore.sampling.row_space import RowSpace

Empty: TypeAlias = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]

# The header begins with the numbers of node types, edge types and seeds; then whether trees are
# disjoint, and the length of the hops of a node type, 0 without hops.
_HEADER_INTS = 5


class CompactEdges(NamedTuple):
    """The m edges of one type."""

    sources: npt.NDArray[Any]  # int32 or int64 [m]: row 0 of the edge index
    # int32 or int64 [t]: edges into each of the first t targets; t - 1 is the last that has edges.
    num_incoming: npt.NDArray[Any]
    positions: npt.NDArray[Any]  # int32 or int64 [m]


class Types(NamedTuple):
    """The types of a graph, in the order of its schema; arrays of a sample follow it."""

    nodes: tuple[NodeType, ...] = (NODE_TYPE,)
    edges: tuple[EdgeType, ...] = (EDGE_TYPE,)

    @classmethod
    def from_schema(cls, schema: Schema) -> Self:
        """Return the types of a schema."""
        return cls(
            tuple(each.name for each in schema.node_types),
            tuple(each.type for each in schema.edge_types),
        )

    @property
    def max_arrays(self) -> int:
        """The most arrays that a compact sample consists of."""
        return 1 + 2 * len(self.nodes) + len(CompactEdges._fields) * len(self.edges)


ONE_TYPE = Types()


@dataclass(frozen=True, eq=False)
class CompactSample(Subgraph):
    """The compact form of a batch's subgraph; L hops."""

    edges: Mapping[EdgeType, CompactEdges]
    trees: Mapping[NodeType, npt.NDArray[Any]] | None  # int32 or int64 [n]
    hop_nodes: Mapping[NodeType, tuple[int, ...]] | None  # of length L + 1 and L
    hop_edges: Mapping[EdgeType, tuple[int, ...]] | None
    num_seeds: int

    @classmethod
    def from_sample(cls, subgraph: Sample, ids: np.dtype[Any], positions: np.dtype[Any]) -> Self:
        """Return a subgraph with ids and positions of these types; it may share the memory."""
        return cls(
            nodes={name: nodes.astype(ids) for name, nodes in subgraph.nodes.items()},
            # Local ids and counts are int32: as sampled, a batch of 2^31 edges takes 50 GB.
            edges={
                name: CompactEdges(
                    edges.index[0].astype(np.int32, copy=False),
                    _core.count_targets(edges.index[1]),
                    edges.positions.astype(positions, copy=False),
                )
                for name, edges in subgraph.edges.items()
            },
            trees=each_type(subgraph.trees, lambda tree: tree.astype(np.int32)),
            hop_nodes=each_type(subgraph.hop_nodes, tuple),
            hop_edges=each_type(subgraph.hop_edges, tuple),
            num_seeds=subgraph.num_seeds,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self._arrays())

    def rows(self, space: RowSpace) -> npt.NDArray[Any]:
        """Return the row numbers of the nodes; see `RowSpace.rows`."""
        return self.n_id if len(self.nodes) == 1 else space.rows(self.nodes)

    def expand(self, index_dtype: IndexDtype, empty: Empty = np.empty) -> Sample:
        """Return the subgraph as it was sampled, in new arrays."""
        dtype = np.dtype(index_dtype)

        def widened(array: npt.NDArray[Any], to: npt.DTypeLike) -> npt.NDArray[Any]:
            wide = empty(array.shape, to)
            np.copyto(wide, array)
            return wide

        def expanded(edges: CompactEdges) -> EdgeSample:
            index = empty((2, len(edges.sources)), dtype)
            _core.expand_edges(edges.sources, edges.num_incoming, index)
            return EdgeSample(index, widened(edges.positions, np.int64))

        return Sample(
            nodes={name: widened(array, dtype) for name, array in self.nodes.items()},
            edges={name: expanded(edges) for name, edges in self.edges.items()},
            trees=each_type(self.trees, lambda tree: widened(tree, np.int64)),
            hop_nodes=each_type(self.hop_nodes, list),
            hop_edges=each_type(self.hop_edges, list),
            num_seeds=self.num_seeds,
        )

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return the subgraph as vectors, views, from which `from_arrays` restores it."""
        hop_nodes, hop_edges = self.hop_nodes or {}, self.hop_edges or {}
        length = len(next(iter(hop_nodes.values()), ()))
        header = [len(self.nodes), len(self.edges), self.num_seeds]
        header += [int(self.trees is not None), length]
        for hops in (*hop_nodes.values(), *hop_edges.values()):
            header += hops
        return [np.array(header, np.int64), *self._arrays()]

    def _arrays(self) -> list[npt.NDArray[Any]]:
        edges = [array for each in self.edges.values() for array in each]
        return [*self.nodes.values(), *edges, *(self.trees or {}).values()]

    def shortened(self, *, with_ids: bool = True) -> list[npt.NDArray[Any]]:
        """Return the subgraph as fewer bytes, from which `from_shortened` restores it."""
        header, *arrays = self.arrays()
        return [header, *map(_core.shorten, arrays[0 if with_ids else len(self.nodes) :])]

    @classmethod
    def from_shortened(
        cls,
        arrays: Sequence[npt.NDArray[Any]],
        ids: Sequence[npt.NDArray[Any]] = (),
        types: Types = ONE_TYPE,
    ) -> Self:
        """Return the subgraph that `shortened` has turned into these vectors, and ids if apart."""
        try:
            restored = [*arrays[:1], *ids, *map(_core.restore, arrays[1:])]
        except (TypeError, ValueError) as error:
            raise CorruptStoreError(f"{len(arrays)} arrays are not a subgraph: {error}") from error
        return cls.from_arrays(restored, types)

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]], types: Types = ONE_TYPE) -> Self:
        """Return the subgraph of vectors that `arrays` made; it keeps them."""
        header = [int(number) for number in arrays[0]] if arrays else []
        num_nodes, num_edges, num_seeds, has_trees, length = (*header, *[-1] * _HEADER_INTS)[:5]
        num_hops = num_nodes * length + num_edges * (length - 1) if length else 0
        num_arrays = 1 + num_nodes * (1 + has_trees) + len(CompactEdges._fields) * num_edges
        if (
            (num_nodes, num_edges) != (len(types.nodes), len(types.edges))
            or has_trees not in (0, 1)
            or length < 0
            or (len(header), len(arrays)) != (_HEADER_INTS + num_hops, num_arrays)
        ):
            raise CorruptStoreError(
                f"{len(arrays)} arrays, the first of {len(header)} numbers, are not a subgraph"
            )
        rest, hops = iter(arrays[1:]), iter(header[_HEADER_INTS:])

        def by_hop(names: Sequence[K], count: int) -> dict[K, tuple[int, ...]] | None:
            return {name: tuple(islice(hops, count)) for name in names} if length else None

        return cls(
            nodes={name: next(rest) for name in types.nodes},
            edges={name: CompactEdges(*islice(rest, 3)) for name in types.edges},
            trees={name: next(rest) for name in types.nodes} if has_trees else None,
            hop_nodes=by_hop(types.nodes, length),
            hop_edges=by_hop(types.edges, length - 1),
            num_seeds=num_seeds,
        )
