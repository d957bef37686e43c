"""Copies the node and graph attributes, splits and names of a store into another store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import UsageError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import TextSpec

_TEXTS_AT_ONCE = 2**14


def open_copy(
    graph: StoreInput, output: PathLike, parameters: dict[str, Any], **how: Any
) -> GraphWriter:
    """Return the writer of a store that is made from another, as `how` says."""
    if Path(output).resolve() == graph.reader.path.resolve():
        raise UsageError(f"{output} is the store that is read; choose another place for the result")
    return GraphWriter(
        output,
        **{
            "source": graph.source(**parameters),
            "num_nodes": graph.num_nodes,
            "index_dtype": graph.reader.schema.index_dtype,
            **how,
        },
    )


def copy_nodes(
    writer: GraphWriter,
    graph: StoreInput,
    ordered: Callable[[ArraySource], AbstractContextManager[ArraySource]] = nullcontext,
    places: npt.NDArray[Any] | None = None,
) -> None:
    """Write the attributes and the splits of a store's nodes, perhaps in another order."""
    for name, spec in graph.nodes.attributes.items():
        with ordered(CopiedRows(graph, spec)) as source:
            writer.set_node_attribute(name, source, dtype=spec.dtype, cat_dim=spec.cat_dim)
    for name, spec in graph.nodes.splits.items():
        ids = graph.read(spec)
        writer.set_split(name, ids if places is None else places[ids].astype(np.int64))


def describe_edges(writer: GraphWriter, attributes: Mapping[str, AttributeSpec]) -> None:
    """Tell a writer the types of a store's edge attributes."""
    for name, spec in attributes.items():
        writer.describe_edge_attribute(name, dtype=spec.dtype, cat_dim=spec.cat_dim)


def copy_graph(
    writer: GraphWriter, graph: StoreInput, *, without: frozenset[str] = frozenset()
) -> None:
    """Write the graph-level attributes, except for some arrays, and names of edges' values."""
    schema = graph.reader.schema
    writer.explicit_num_nodes = schema.explicit_num_nodes
    for name, value in schema.graph_attributes.items():
        writer.set_graph_attribute(name, value)
    for name, spec in schema.graph_arrays.items():
        if name not in without:
            writer.set_graph_array(name, graph.read(spec), dtype=spec.dtype)
    for name, text in graph.edges.value_names.items():
        writer.set_value_names(name, [one for some in texts_of(graph, text) for one in some])


class CopiedRows(ArraySource):
    """The rows of a node attribute, K times over."""

    def __init__(
        self,
        graph: StoreInput,
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
    num_texts = text.offsets.num_rows - 1
    for first in range(0, num_texts, _TEXTS_AT_ONCE):
        last = min(first + _TEXTS_AT_ONCE, num_texts)
        offsets = graph.rows(text.offsets, first, last + 1)
        begin = int(offsets[0])
        letters = graph.rows(text.bytes, begin, int(offsets[-1])).tobytes()
        bounds = (offsets - begin).tolist()
        yield [letters[i:j] for i, j in pairwise(bounds)]
