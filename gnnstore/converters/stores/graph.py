"""A store as the input of a conversion, read in order in pieces of any size, or copied.

Every byte that is read is compared with its checksum, and ids that others are looked up by are
compared with their number: a result would vouch for damage, or be refused by `gnnstore verify`.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.edges.buffer import columns_of_edges
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.writer.base import provenance
from gnnstore.converters.writer.estimates import NodeTable, Workload
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import UsageError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES, id_dtype
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container.reads import CheckedFiles
from gnnstore.formats.store.checks import refuse_carried
from gnnstore.formats.store.schema import (
    NODE_TYPE,
    EdgeTypeSpec,
    NodeTypeSpec,
    StoreManifest,
    TextSpec,
)
from gnnstore.formats.store.store import StoreReader
from gnnstore.formats.store.values import decode_value, encode_value

_LOG = logging.getLogger(__name__)
_BLOCK_COLUMNS = 2**17  # columns with pointers that are read together: 1 MiB
_READ_EDGES = 2**20

_TEXTS_AT_ONCE = 2**16


@dataclass(frozen=True)
class EdgePiece:
    """Consecutive edges of a store."""

    first: int  # position of the first edge in `indices`
    sources: npt.NDArray[np.int64]  # int64, shape [k]: source nodes
    targets: npt.NDArray[np.int64]  # int64, shape [k]: target nodes


@dataclass(frozen=True)
class ColumnBlock:
    """Consecutive columns with a sample of their edges, evenly spaced."""

    first: int  # the first column: a target node
    degrees: npt.NDArray[np.int64]  # int64, shape [c]: in-degrees
    sources: npt.NDArray[np.int64]  # int64, shape [k]: sources of the sampled edges
    targets: npt.NDArray[np.int64]  # int64, shape [k]: targets of the sampled edges
    # float64, shape [k]: number of edges of its column that each sampled edge represents.
    weights: npt.NDArray[np.float64]


class StoreArrays:
    """A store, whose arrays are read in order."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.reader = StoreReader.open(path)
        self._files = CheckedFiles(self.reader)

    def source(self, **parameters: Any) -> dict[str, Any]:
        """Return the description of a store that is made from this one; see `GraphWriter`."""
        return {
            "inputs": [{"path": str(self.reader.path), "size_bytes": self.reader.total_bytes}],
            "store_uuid": self.reader.uuid,
            "parameters": parameters,
        }

    def read(self, spec: AttributeSpec) -> npt.NDArray[Any]:
        """Read any array of the store whole, in its storage type."""
        return self._files.read(spec)

    def rows(self, spec: AttributeSpec, first: int, last: int) -> npt.NDArray[Any]:
        """Read consecutive rows of a paged array of the store."""
        return self._files.paged(spec).read_slice(first, last)


class StoreInput(StoreArrays):
    """A homogeneous store, read in order; `what` reads it, for a message about other stores."""

    def __init__(self, path: str | os.PathLike[str], what: str = "this") -> None:
        super().__init__(path)
        self.reader.schema.refuse_types(self.reader.path, what)
        self.reader.schema.refuse_part(self.reader.path, what)
        self.nodes: NodeTypeSpec = self.reader.schema.node
        self.edges: EdgeTypeSpec = self.reader.schema.edge
        self.num_nodes = self.nodes.num_nodes
        self.num_edges = self.edges.num_edges

    def workload(
        self,
        copies: int = 1,
        edge_factor: float = 1.0,
        *,
        id_bytes: int = 0,
        without: Collection[str] = (),
    ) -> Workload:
        """Return the work of writing nodes that many times, edges too, and an id with each edge."""
        tables = [
            NodeTable(
                copies * own.num_rows,
                math.prod(own.shape[1:]),
                STORAGE_DTYPES[own.dtype].itemsize,
                name,
            )
            for name, own in self.nodes.attributes.items()
            if own.layout == "paged" and name not in without
        ]
        return Workload(
            num_nodes=copies * self.num_nodes,
            num_edges=round(edge_factor * self.num_edges),
            edge_row_bytes=self.edge_row_bytes + id_bytes,
            is_exact=edge_factor == 1,
            node_tables=tuple(tables),
        )

    def check_carried(self, memory_bytes: int | None = None, *, ids: bool = True) -> None:
        """Refuse numbers that a copy would carry over; see `refuse_carried`."""
        limit = memory_ledger("reading the ids of edges", memory_bytes).limit
        refuse_carried(self.reader, limit, ids=ids)

    def split(self, name: str) -> npt.NDArray[Any]:
        """Read the nodes of a split."""
        return self.checked_ids(self.nodes.splits[name], self.read(self.nodes.splits[name]))

    def checked_ids(self, spec: AttributeSpec, ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return ids of nodes that were read from an array, if the store has such nodes."""
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.num_nodes:
            problem = f"has nodes outside [0, {self.num_nodes})"
            raise self.reader.corrupt(problem, spec.path)
        return ids

    @property
    def edge_id_dtype(self) -> np.dtype[Any]:
        """Type of the original ids of edges; those without stored ids have their positions."""
        own = self.edges.ids_in_input
        return id_dtype(self.num_edges) if own is None else np.dtype(own.dtype)

    @property
    def edge_row_bytes(self) -> int:
        """Bytes of the attributes of an edge."""
        return sum(spec.row_bytes for spec in self.edges.attributes.values())

    def edge_ids(self, first: int, last: int) -> npt.NDArray[Any]:
        """Return the original ids of edges first, ..., last - 1 of the store."""
        own = self.edges.ids_in_input
        if own is None:
            return np.arange(first, last, dtype=self.edge_id_dtype)
        return self.rows(own, first, last)

    def edge_rows(self, first: int, last: int) -> dict[str, npt.NDArray[Any]]:
        """Read the attributes of edges first, ..., last - 1 of the store."""
        return {name: self.rows(own, first, last) for name, own in self.edges.attributes.items()}

    def edge_pieces(self, max_edges: int) -> Iterator[EdgePiece]:
        """Yield all edges in the order of the store, at most `max_edges` at a time."""
        latest = -1, -1  # target and source
        for first, indptr in self._pointers(_BLOCK_COLUMNS):
            for begin, targets in columns_of_edges(first, indptr, max_edges):
                sources = self._sources(begin, begin + len(targets))
                same = np.diff(targets, prepend=latest[0]) == 0
                if (same & (np.diff(sources, prepend=latest[1]) < 0)).any():
                    problem = "the sources of a column do not ascend"
                    raise self.reader.corrupt(problem, self.edges.indices.path)
                latest = int(targets[-1]), int(sources[-1])
                yield EdgePiece(begin, sources, targets)

    def column_blocks(self, num_columns: int, max_degree: int) -> Iterator[ColumnBlock]:
        """Yield all columns in blocks of `num_columns`, with at most `max_degree` edges each."""
        # Whole blocks, so that where they begin depends on nothing but their size.
        for first, indptr in self._pointers(max(1, _BLOCK_COLUMNS // num_columns) * num_columns):
            for low in range(0, len(indptr) - 1, num_columns):
                pointers = indptr[low : low + num_columns + 1]
                yield self._column_block(first + low, pointers, max_degree)

    def _column_block(
        self, first: int, indptr: npt.NDArray[np.int64], max_degree: int
    ) -> ColumnBlock:
        degrees = np.diff(indptr)
        counts = np.minimum(degrees, max_degree)
        columns = np.repeat(np.arange(len(degrees)), counts)
        ranks = np.arange(len(columns)) - np.repeat(np.cumsum(counts) - counts, counts)
        places = indptr[columns] + ranks * degrees[columns] // np.maximum(counts, 1)[columns]
        # All edges are read, in order: that costs less than skipping those not sampled.
        sources = np.empty(len(places), np.int64)
        for begin in range(int(indptr[0]), int(indptr[-1]), _READ_EDGES):
            end = min(begin + _READ_EDGES, int(indptr[-1]))
            here = slice(*np.searchsorted(places, (begin, end)))
            sources[here] = self._sources(begin, end)[places[here] - begin]
        weights = (degrees / np.maximum(counts, 1))[columns]
        return ColumnBlock(first, degrees, sources, columns + first, weights)

    def degree_blocks(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the in-degrees of all nodes in order, block by block."""
        for _, indptr in self._pointers(_BLOCK_COLUMNS):
            yield np.diff(indptr)

    def _pointers(self, num_columns: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yield (first column, the pointers of `num_columns` columns and of the one behind)."""
        limit = self.num_edges
        for first in range(0, self.num_nodes, num_columns):
            last = min(first + num_columns, self.num_nodes)
            pointers = self.rows(self.edges.indptr, first, last + 1)
            if (np.diff(pointers) < 0).any() or not 0 <= pointers[0] <= pointers[-1] <= limit:
                problem = f"the pointers of columns do not ascend from 0 to {limit}"
                raise self.reader.corrupt(problem, self.edges.indptr.path)
            yield first, pointers

    def _sources(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        sources = self.rows(self.edges.indices, begin, end)
        return self.checked_ids(self.edges.indices, sources).astype(np.int64)


def open_copy(
    graph: StoreInput, output: PathLike, parameters: dict[str, Any], **how: Any
) -> GraphWriter:
    """Return the writer of a store that is made from another, with the options in `how`."""
    if Path(output).resolve() == graph.reader.path.resolve():
        raise UsageError(f"{output} is the store that is read; choose another place for the result")
    graph.reader.schema.refuse_taken_names(graph.reader.path)  # which no commit would take
    return GraphWriter(
        output,
        **{
            "source": graph.source(**parameters),
            "num_nodes": graph.num_nodes,
            "index_dtype": graph.reader.schema.index_dtype,
            **how,
        },
    )


def is_made(
    graph: StoreInput,
    output: PathLike,
    kind: str,
    parameters: dict[str, Any],
    options: ConvertOptions,
) -> bool:
    """Whether a resumed attempt at several stores had finished one of them."""
    if not options.resume or options.overwrite or not StoreManifest.is_at(Path(output)):
        return False
    made = provenance(kind, graph.source(**parameters), options)
    found = dict(StoreReader.open(output).manifest.provenance)
    return bool(found == json.loads(json.dumps(made)))


def copy_rows(
    writer: GraphWriter,
    graph: StoreInput,
    ordered: Callable[[ArraySource], AbstractContextManager[ArraySource]],
) -> None:
    """Write the attributes of a store's nodes, perhaps in another order or of some nodes."""
    for spec in graph.nodes.attributes.values():
        with ordered(CopiedRows(graph, spec)) as source:
            copy_attribute(writer, graph, spec, source)


def copy_nodes(
    writer: GraphWriter,
    graph: StoreInput,
    ordered: Callable[[ArraySource], AbstractContextManager[ArraySource]] = nullcontext,
    places: npt.NDArray[Any] | None = None,
) -> None:
    """Write the attributes and the splits of a store's nodes, perhaps in another order."""
    copy_rows(writer, graph, ordered)
    for name in graph.nodes.splits:
        ids = graph.split(name)
        writer.set_split(name, ids if places is None else places[ids].astype(np.int64))


def copy_attribute(
    writer: GraphWriter, graph: StoreInput, spec: AttributeSpec, rows: ArraySource
) -> None:
    """Write rows under the description of a store's node attribute, with its scales."""
    if spec.scaled is not None:
        scales = graph.read(spec.scaled.scales)
        writer.set_multiples(spec.name, rows, spec.cat_dim, scales, spec.scaled)
        return
    rows.time_unit = spec.time_unit
    writer.set_node_attribute(spec.name, rows, dtype=spec.dtype, cat_dim=spec.cat_dim)


def describe_edges(writer: GraphWriter, attributes: Mapping[str, AttributeSpec]) -> None:
    """Tell a writer the types of a store's edge attributes."""
    for name, spec in attributes.items():
        writer.describe_edge_attribute(
            name, dtype=spec.dtype, cat_dim=spec.cat_dim, time_unit=spec.time_unit
        )


def copy_graph(
    writer: GraphWriter,
    graph: StoreInput,
    *,
    find_nodes: Callable[[], npt.NDArray[Any]] | None = None,
) -> None:
    """Write the graph-level attributes, and names of edges' values.

    Lists as long as the nodes have entries of the nodes that are found, in their order; edges are
    others or numbered anew, so that lists as long as these are left out.
    """
    schema = graph.reader.schema
    writer.explicit_num_nodes = schema.explicit_num_nodes
    for name, value in schema.graph_attributes.items():
        writer.set_graph_attribute(name, value)
    for name, spec in schema.graph_arrays.items():
        writer.set_graph_array(name, graph.read(spec), dtype=spec.dtype)
    left = list(graph.edges.values)
    for name, value in graph.nodes.values.items():
        items: Any = decode_value(value)
        if len(items) != (writer.num_nodes if find_nodes is None else graph.num_nodes):
            left.append(name)
            continue
        if find_nodes is not None:
            items = [items[i] for i in find_nodes().tolist()]
        writer.set_type_value(NODE_TYPE, name, encode_value(items))
    if left:
        _LOG.warning(
            "%s: lists of texts are left out, whose nodes or edges are others here: %s",
            *(graph.reader.path, ", ".join(left)),
        )
    for name, text in graph.edges.value_names.items():
        writer.set_value_names(name, [one for some in texts_of(graph, text) for one in some])


class CopiedRows(ArraySource):
    """The rows of a node attribute, K times over."""

    def __init__(
        self,
        graph: StoreArrays,
        spec: AttributeSpec,
        num_copies: int = 1,
        change: Callable[[npt.NDArray[Any], int], npt.NDArray[Any]] | None = None,
    ) -> None:
        self.label = f"{graph.reader.path}: {spec.name}"
        self.shape: tuple[int, ...] = (num_copies * spec.num_rows, *spec.shape[1:])
        self.dtype = STORAGE_DTYPES[spec.dtype]
        self._graph = graph
        self._spec = spec
        self._change = change

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from row `start` on, `step` at a time, fewer at the end of a copy."""
        num_rows = self._spec.num_rows
        # Compressed arrays are read whole: they fitted in memory when they were made.
        whole = self._graph.read(self._spec) if self._spec.layout == "cold" else None
        while start < self.shape[0]:
            row = start % num_rows
            last = min(row + step, num_rows)
            rows = whole[row:last] if whole is not None else self._graph.rows(self._spec, row, last)
            yield rows if self._change is None else self._change(rows, start)
            start += last - row


def texts_of(graph: StoreInput, text: TextSpec) -> Iterator[list[bytes]]:
    """Yield the texts of a store in order, in lists."""
    num_texts, num_bytes, begin = text.offsets.num_rows - 1, text.bytes.num_rows, 0
    for first in range(0, num_texts, _TEXTS_AT_ONCE):
        last = min(first + _TEXTS_AT_ONCE, num_texts)
        offsets = graph.rows(text.offsets, first, last + 1)
        end = num_bytes if last == num_texts else min(int(offsets[-1]), num_bytes)
        if (np.diff(offsets) < 0).any() or [offsets[0], offsets[-1]] != [begin, end]:
            problem = f"the offsets of texts do not ascend from 0 to {num_bytes}"
            raise graph.reader.corrupt(problem, text.offsets.path)
        letters = graph.rows(text.bytes, begin, end).tobytes()
        found = [letters[i:j] for i, j in pairwise((offsets - begin).tolist())]
        try:
            b"\n".join(found).decode()
        except UnicodeDecodeError:
            raise graph.reader.corrupt("a text is not UTF-8", text.bytes.path) from None
        begin = end
        yield found
