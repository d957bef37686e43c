"""A store: a sealed directory with the arrays of a graph; how it is opened and written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.errors import CorruptStoreError, InputError
from gnnstore.formats.arrays.paged import PagedArray, SharedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base import names
from gnnstore.formats.base.files import Problem
from gnnstore.formats.container.manifest import KINDS, Kind
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.container.writer import SealedWriter
from gnnstore.formats.store.checks import check_meaning
from gnnstore.formats.store.scales import read_scales
from gnnstore.formats.store.schema import (
    EDGE_TYPE,
    SHARED_ATTRIBUTES,
    WHOLE_IDS,
    EdgeTypeSpec,
    Schema,
    SharedRows,
    StoreManifest,
    TextSpec,
)
from gnnstore.machine import PRIVATE, Machine
from gnnstore.units import format_count


class StoreReader(SealedReader[StoreManifest]):
    """An open, validated store."""

    MANIFEST: ClassVar[type[StoreManifest]] = StoreManifest

    @property
    def schema(self) -> Schema:
        """Node types, edge types, attributes."""
        return self.manifest.schema

    def paged(self, spec: AttributeSpec) -> PagedArray:
        """Return a paged array; a reverse type's attribute may lie with the other type."""
        shared = self._shared.get(spec.path)
        if shared is None:
            return super().paged(spec)
        array, rows = super().paged(shared.array), super().paged(shared.rows)
        return SharedArray(
            spec, array.layout, array.file_paths, array.check_place, array.uuid, rows=rows
        )

    @cached_property
    def _shared(self) -> dict[str, SharedRows]:
        return self.schema.shared_rows()

    def check(self) -> None:
        """Compare the ends of each `indptr` with the number of edges, and read scales."""
        for edge in self.schema.edge_types:
            array = self.paged(edge.indptr)
            ends = [int(array.read_slice(row, row + 1)[0]) for row in (0, array.num_rows - 1)]
            if ends != [0, edge.num_edges]:
                raise CorruptStoreError(
                    f"{self.path}: {edge.indptr.path} runs from {ends[0]} to {ends[1]}, for "
                    f"{format_count(edge.num_edges, 'edge')}; run 'gnnstore verify'",
                    path=self.path / edge.indptr.path,
                )

        self.scales = read_scales(self, self.schema)

    def meaningless(self) -> Iterator[Problem]:
        """Yield numbers that do not make a graph."""
        return check_meaning(self)


STORE = KINDS.register(
    Kind(
        StoreManifest,
        StoreReader.open,
        frozenset({"nodes", "edges", "splits", "edge_splits", "maps", "graph", "values", "scales"}),
    )
)


# Set in each batch, after the attributes.
RESERVED_NAMES = frozenset(
    {
        *("edge_index", "num_nodes", "batch", "num_sampled_nodes", "num_sampled_edges"),
        *("input_id", "batch_size"),
    }
)


class StoreWriter(SealedWriter):
    """Builds a store under a temporary name; `commit` gives it its own."""

    READER: ClassVar[type[StoreReader]] = StoreReader

    def row_dimension(self, array_path: str) -> str | None:
        """Return the type of nodes or "edge" for their attributes; None for other arrays."""
        group, *parts = array_path.split("/")
        if group == "nodes" or (group == "maps" and parts[1:] in (["original_id"], ["whole_id"])):
            return names.decode(parts[0])
        if group == "edge_splits":  # negatives that edges share are in rows of their own
            return "edge" if parts[2] not in ("negative_source", "negative_target") else None
        is_of_edges = group == "edges" and parts[1] not in ("indptr", "value_names")
        return "edge" if is_of_edges else None

    def check_spec(self, spec: AttributeSpec) -> None:
        """Refuse attributes that batches cannot have."""
        super().check_spec(spec)
        group, *parts = spec.path.split("/")
        is_attribute = group == "nodes" or (group == "edges" and "attrs" in parts)
        if is_attribute and spec.name in RESERVED_NAMES:
            raise InputError(
                f"the attribute {spec.name!r} has the name of something that every batch has of "
                "its own, so that no batch would show it; rename it, or leave it out"
            )

    def texts(
        self, directory: str, texts: Iterable[list[bytes]], num_texts: int, num_bytes: int
    ) -> TextSpec:
        """Write texts as their bytes, one after the other, and their offsets."""
        letters, offsets = (
            self.paged(
                f"{directory}/{part}", name=part, row_shape=(), dtype=dtype, num_rows=num_rows
            )
            for part, dtype, num_rows in (
                ("bytes", "uint8", num_bytes),
                ("offsets", "int64", num_texts + 1),
            )
        )
        position = 0
        offsets.append(np.zeros(1, np.int64))
        for some in texts:
            ends = position + np.cumsum(np.fromiter(map(len, some), np.int64, len(some)))
            position = int(ends[-1])
            letters.append(np.frombuffer(b"".join(some), np.uint8))
            offsets.append(ends)
        letters.close()
        offsets.close()
        return TextSpec(letters.spec, offsets.spec)

    def commit(self, schema: Schema, provenance: Mapping[str, Any]) -> Path:
        """Finish every array, write the manifest, and rename the store into place."""
        schema.checked(str(self.path)).refuse_taken_names(self.path)
        features = [SHARED_ATTRIBUTES] if schema.shared_rows() else []
        features += schema.scaled_features
        features += [WHOLE_IDS] if schema.part is not None else []
        return self.seal(
            StoreManifest(
                schema=schema,
                provenance=provenance,
                reader_features=tuple(features),
            )
        )


_PIECE_IDS = 1 << 20

TopologyMode = Literal["memory", "mmap", "disk"]


@dataclass(frozen=True)
class Csc:
    """In-neighbours by column: node v has `indices[indptr[v]:indptr[v + 1]]`."""

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
    reader: StoreReader,
    edge: EdgeTypeSpec,
    mode: TopologyMode = "memory",
    num_threads: int = 1,
    machine: Machine = PRIVATE,
) -> Csc:
    """Return the adjacency of an edge type."""
    mapped: list[PagedArray] = []

    def get(spec: AttributeSpec) -> npt.NDArray[Any]:
        in_memory = mode == "memory" or (mode == "disk" and spec is edge.indptr)
        return load_column(reader, spec, mapped, None if not in_memory else num_threads, machine)

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
    reader: StoreReader,
    spec: AttributeSpec,
    mapped: list[PagedArray],
    num_threads: int | None,
    machine: Machine = PRIVATE,
) -> npt.NDArray[Any]:
    """Read an array of the topology, by some threads; None maps it, and adds it to `mapped`."""
    array = reader.paged(spec)
    if num_threads is not None:
        return array.load(num_threads, machine)
    mapped.append(array)
    return array.view("random")
