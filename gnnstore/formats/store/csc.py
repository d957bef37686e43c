"""The adjacency of a store in compressed sparse column form, in memory or mapped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.formats.store.schema import EDGE_TYPE

if TYPE_CHECKING:
    from gnnstore.formats.arrays.paged_array import PagedArray
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.formats.store.reader import StoreReader
    from gnnstore.formats.store.schema import EdgeTypeSpec

_PIECE_IDS = 1 << 20

TopologyMode = Literal["memory", "mmap", "disk"]


@dataclass(frozen=True)
class Csc:
    """In-neighbours by column: those of node v are `indices[indptr[v]:indptr[v + 1]]`."""

    indptr: npt.NDArray[np.int64]  # int64, shape [num_dst + 1]
    indices: npt.NDArray[Any]  # int32 or int64, shape [E]: source nodes, ascending within a column
    num_src: int  # number of source nodes; indices lie in [0, num_src)
    label: str = "the graph"  # its origin, for messages
    edge_type: tuple[str, str, str] = EDGE_TYPE
    # The stored arrays that the two arrays are views of; none if they are in memory.
    mapped: tuple[PagedArray, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Number of columns: target nodes."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.indices)

    def column_pieces(self) -> Iterator[npt.NDArray[Any]]:
        """Yield `indices` in order, in pieces of a few megabytes."""
        for first in range(0, self.num_edges, _PIECE_IDS):
            yield self.read_slice(first, min(first + _PIECE_IDS, self.num_edges))

    def read_slice(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return consecutive `indices`, for scans."""
        for array in self.mapped:
            if array.spec.name == "indices":
                return array.read_slice(start, stop)
        return self.indices[start:stop]

    @property
    def num_bytes(self) -> int:
        """Bytes of both arrays."""
        return self.indptr.nbytes + self.indices.nbytes


def load_csc(
    reader: StoreReader, edge: EdgeTypeSpec, mode: TopologyMode = "memory", num_threads: int = 1
) -> Csc:
    """Return the adjacency of an edge type."""
    mapped: list[PagedArray] = []

    def get(spec: AttributeSpec) -> npt.NDArray[Any]:
        in_memory = mode == "memory" or (mode == "disk" and spec is edge.indptr)
        return load_column(reader, spec, mapped, None if not in_memory else num_threads)

    indptr, indices = get(edge.indptr), get(edge.indices)
    return Csc(
        indptr=indptr,
        indices=indices,
        num_src=reader.schema.node_of(edge.source).num_nodes,
        label=str(reader.path),
        edge_type=edge.type,
        mapped=tuple(mapped),
    )


def load_column(
    reader: StoreReader, spec: AttributeSpec, mapped: list[PagedArray], num_threads: int | None
) -> npt.NDArray[Any]:
    """Read an array of the topology, by some threads; None maps it, and adds it to `mapped`."""
    array = reader.paged(spec)
    if num_threads is not None:
        return array.load(num_threads)
    mapped.append(array)
    return array.view("random")
