"""The nodes and edges of an input by type, and what writes them all as a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.buffer import (
    check_edge_index,
    check_integers,
    columns_of_edges,
    edge_pairs,
    some_targets,
    warn_of_stray_ids,
)
from gnnstore.converters.edges.ordered import EdgePlaces
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import (
    ArraySource,
    MemoryArray,
    RowTaker,
    check_rows,
    row_bytes,
)
from gnnstore.converters.inputs.times import settle_units
from gnnstore.converters.typed.graph_writer import HeteroGraphWriter, check_node_type
from gnnstore.converters.typed.names import NodeNames
from gnnstore.converters.typed.reverse import reverse_types, reverse_widths
from gnnstore.converters.writer.estimates import EdgeTable, Workload, inspect_inputs
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions, check_features
from gnnstore.converters.writer.orders import check_names
from gnnstore.errors import InputError
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE, EdgeType
from gnnstore.progress import Progress

_PIECE_EDGES = _PIECE_NODES = 2**18
_TEXT_ENDINGS = (".csv", ".csv.gz", ".tsv", ".txt", ".txt.gz")

Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]


@dataclass
class NodeInput:
    """The nodes of a type."""

    count: int
    attributes: dict[str, ArraySource] = field(default_factory=dict)  # [count, ...]
    splits: dict[str, ArraySource | npt.NDArray[Any]] = field(default_factory=dict)
    original_ids: npt.NDArray[np.int64] | None = None
    names: NodeNames | None = None  # which number the nodes, before the edges are read
    memory_bytes: int = 0  # what stays in memory while edges are sorted

    @property
    def known_count(self) -> int | None:
        """The number of nodes; None if names have to be read first."""
        return self.count if self.names is None else None


@dataclass
class EdgeInput:
    """The edges of a type."""

    pairs: Callable[[], Iterable[Pair]]  # yields sources and targets from the first edge on
    label: str  # the input's name, for messages
    num_edges: int | None = None  # None: unknown
    attributes: dict[str, ArraySource] = field(default_factory=dict)  # [num_edges, ...]
    memory_bytes: int = 0  # what reading the pairs takes
    array: ArraySource | None = None  # [2, E], if the edges lie like this
    # Whether sources, and targets, are blocks of one column of names, in place of numbers.
    has_names: tuple[bool, bool] = (False, False)
    # Numbers of nodes of both types, of a matrix, whose rows and columns are the nodes in order.
    shape: tuple[int, int] | None = None
    place_of: Callable[[int], tuple[str, int]] | None = None  # as `ArraySource.place_of`
    # Where edges come sorted by target, then source, and are written as they are read.
    places: EdgePlaces | None = None

    def __iter__(self) -> Iterator[Pair]:
        """Yield sources and targets from the first edge on."""
        return iter(self.pairs())

    def in_order(self, edges: EdgeInput) -> EdgeInput:
        """Return these edges as sorted by target, then source; `edges` has them unnumbered."""
        place_of = self.place_of or (lambda row: (self.label, row))
        return replace(self, places=EdgePlaces(edges.pairs, place_of))

    @property
    def reading_bytes(self) -> int:
        """The memory that reading the pairs and the attributes takes."""
        return self.memory_bytes + sum(own.memory_bytes for own in self.attributes.values())

    @classmethod
    def of_array(
        cls,
        source: ArraySource,
        attributes: dict[str, ArraySource] | None = None,
        *,
        by_row: bool = False,
    ) -> EdgeInput:
        """Return the edges of an array [2, E], or [E, 2] if that is its shape."""
        by_row |= len(source.shape) == 2 and source.shape[1] == 2 and source.shape[0] != 2
        if not by_row:
            check_edge_index(source)
        check_integers(source)
        return cls(
            lambda: edge_pairs(source, by_row=by_row),
            source.label,
            source.shape[0 if by_row else 1],
            attributes or {},
            array=None if by_row else source,
        )

    @classmethod
    def of_ends(
        cls,
        sources: ArraySource,
        targets: ArraySource,
        attributes: dict[str, ArraySource] | None = None,
    ) -> EdgeInput:
        """Return the edges of two arrays [E]."""
        for end in (sources, targets):
            check_integers(end)
            if end.shape != sources.shape[:1]:
                raise InputError(
                    f"{end.label}: has shape {list(end.shape)}, expected [E] as source"
                )

        def pairs() -> Iterator[Pair]:
            taker = RowTaker(targets)
            for ids in sources.rows(_PIECE_EDGES):
                yield ids, taker.take(len(ids))
            taker.check_end(sources.shape[0])

        memory = sources.memory_bytes + targets.memory_bytes
        own = attributes or {}
        return cls(pairs, sources.label, sources.shape[0], own, memory, place_of=sources.place_of)

    @classmethod
    def of_columns(
        cls,
        indptr: ArraySource,
        indices: ArraySource,
        layout: str,
        attributes: dict[str, ArraySource] | None = None,
    ) -> EdgeInput:
        """Return edges by node, of `indptr` [N + 1] and `indices` [E]; "csc" is by target."""
        for source, expected in ((indptr, "[N + 1]"), (indices, "[E]")):
            check_integers(source)
            if len(source.shape) != 1 or (source is indptr and not source.shape[0]):
                raise InputError(
                    f"{source.label}: has shape {list(source.shape)}, expected {expected}"
                )

        def pairs() -> Iterator[Pair]:
            taker = RowTaker(indices)
            for node, pointers in _pointers(indptr, indices.shape[0]):
                for _, nodes in columns_of_edges(node, pointers, _PIECE_EDGES):
                    ends = taker.take(len(nodes))
                    yield (ends, nodes) if layout == "csc" else (nodes, ends)
            taker.check_end(indices.shape[0])

        memory = indptr.memory_bytes + indices.memory_bytes
        return cls(pairs, indices.label, indices.shape[0], attributes or {}, memory)


def _pointers(indptr: ArraySource, num_edges: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield (v, pointers of nodes v, v + 1, ... and the one behind), checked."""

    def refusal(position: int, pointer: int) -> InputError:
        return InputError(
            f"{indptr.label}: is {pointer} at position {position}; pointers begin with 0, never "
            f"fall, and end with the {num_edges} entries of indices"
        )

    position = latest = 0
    for piece in indptr.rows(_PIECE_NODES):
        pointers = np.concatenate(([latest], piece.astype(np.int64)))
        is_wrong = (np.diff(pointers) < 0) | (pointers[1:] > num_edges)
        is_wrong[0] |= not position and pointers[1] != 0
        if is_wrong.any():
            place = int(np.argmax(is_wrong))
            raise refusal(position + place, int(pointers[place + 1]))
        latest = int(pointers[-1])
        # The first pointer of all is where node 0 begins.
        yield (position - 1, pointers) if position else (0, pointers[1:])
        position += len(piece)
    if latest != num_edges:
        raise refusal(position - 1, latest)


def largest_ids(edges: Mapping[EdgeType, EdgeInput], node_type: str) -> int:
    """Return the largest id of a node type at the ends of all edges; -1 if there is none."""
    largest, num_ends = -1, 0
    for (source, _, target), own in edges.items():
        if node_type not in (source, target):
            continue
        for sources, targets in own.pairs():
            for name, ids in ((source, sources), (target, targets)):
                if name == node_type and len(ids):
                    largest, num_ends = max(largest, int(ids.max())), num_ends + len(ids)
    warn_of_stray_ids(largest + 1, num_ends, f"nodes of type {node_type!r}")
    return largest


def write_graph(
    output: PathLike,
    nodes: Mapping[str, NodeInput],
    edges: Mapping[EdgeType, EdgeInput],
    *,
    kind: str,
    source: Mapping[str, Any],
    options: ConvertOptions | None,
    progress: Progress | None,
    edge_ids: bool = True,
    write_splits: Callable[[GraphWriter], None] | None = None,
) -> Path:
    """Write nodes and edges as a store, types in their order.

    If there is one type of each, with the name of types in a store of one type, `write_splits` is
    called behind the last edge.
    """
    options = options or ConvertOptions()
    for edge_type, own in edges.items():
        for name in edge_type[::2]:
            check_node_type(name, nodes, f"{own.label}: edges of type {edge_type}: ")
    is_typed = list(nodes) != [NODE_TYPE] or list(edges) != [EDGE_TYPE]
    for name, node in nodes.items():
        for attribute in node.attributes.values():
            what = f"nodes of type {name!r}" if is_typed else "nodes"
            check_rows(attribute, node.count, what)
    of_nodes, of_edges = (
        {name: own.attributes for name, own in some.items()} for some in (nodes, edges)
    )
    check_features(options, {name: own.attributes for name, own in nodes.items()})
    check_names(options.time_attr, options.weight_attr, of_nodes, of_edges)
    settle_units({**of_nodes, **of_edges}, options.time_attr, options.time_units)
    how: dict[str, Any] = {
        "kind": kind,
        "source": source,
        "options": options,
        "progress": progress,
        "edge_ids": edge_ids,
        "workload": workload_of(nodes, edges, options if is_typed else None),
    }

    def close_names() -> None:
        for node in nodes.values():
            if node.names is not None:
                node.names.numbering.close()

    if is_typed:
        counts = {name: own.known_count for name, own in nodes.items()}
        with HeteroGraphWriter(output, counts, **how) as writer:
            name_bytes = 0
            for name, node in nodes.items():
                if node.names is not None:
                    node.names.number(writer, name, taken_bytes=name_bytes)
                    name_bytes += node.names.numbering.memory_bytes
                writer.reserve_memory(node.memory_bytes)
                _write_nodes(writer, node, name)
            for edge_type, own in edges.items():
                writer.reserve_memory(own.reading_bytes)
                writer.read_edges(
                    edge_type,
                    own.pairs(),
                    own.num_edges,
                    own.attributes,
                    where=own.label,
                    places=own.places,
                )
                writer.reserve_memory(-own.reading_bytes)
            close_names()
            return writer.commit()
    edge, node = edges[EDGE_TYPE], nodes[NODE_TYPE]
    with GraphWriter(output, num_nodes=node.known_count, **how) as one:
        one.reserve_memory(node.memory_bytes + edge.reading_bytes)
        if node.names is not None:
            node.names.number(one)
        one.read_edges(
            edge,
            edge.num_edges,
            edge.attributes,
            where=edge.label,
            some_targets=None if edge.array is None else some_targets(edge.array),
            places=edge.places,
        )
        if write_splits is not None:
            write_splits(one)
        one.finish_edges()
        close_names()
        _write_nodes(one, node)
        return one.commit()


def _write_nodes(writer: Any, node: NodeInput, *of: str) -> None:
    """Write the nodes of a type, whose name is `of` where there are several."""
    for split, ids in node.splits.items():
        where = None if isinstance(ids, np.ndarray) else ids.label
        writer.set_split(*of, split, ids, where=where)
    for name, values in node.attributes.items():
        writer.set_node_attribute(*of, name, values)
    if node.original_ids is not None:
        writer.set_original_ids(*of, node.original_ids)


def workload_of(
    nodes: Mapping[str, NodeInput],
    edges: Mapping[EdgeType, EdgeInput],
    options: ConvertOptions | None = None,
) -> Workload:
    """Return the work of writing nodes and edges; where these have types, by options.

    Raises
    ------
    UsageError
        If reverse types are wanted of types that are not there.
    """
    attributes = {
        (of, name): own for of, node in nodes.items() for name, own in node.attributes.items()
    }
    sources = {key: own for key, own in attributes.items() if own.shape}
    work = Workload(
        num_nodes=sum(node.count for node in nodes.values()),
        num_edges=sum(own.num_edges or 0 for own in edges.values()),
        edge_row_bytes=min(
            (sum(map(row_bytes, own.attributes.values())) for own in edges.values()), default=0
        ),
        is_exact=all(own.num_edges is not None for own in edges.values()),
        are_sorted=all(own.places is not None for own in edges.values()),
    )
    labels = [*(own.label for own in edges.values()), *(own.label for own in sources.values())]
    texts = inspect_inputs(Path(label) for label in labels if label.endswith(_TEXT_ENDINGS))
    work.text_bytes = texts.text_bytes
    if not work.is_exact:
        work.num_edges += texts.num_edges
    for (node_type, name), source in sources.items():
        work.add_nodes(source, name, node_type)
    for node in nodes.values():
        if node.original_ids is not None:
            work.add_map(MemoryArray("ids", node.original_ids))
    is_only = len(nodes) == 1
    work.edge_types = tuple(
        EdgeTable(
            max(nodes[edge_type[2]].count, work.num_nodes if is_only else 0),
            work.num_edges if own.num_edges is None else own.num_edges,
            tuple(map(row_bytes, own.attributes.values())),
        )
        for edge_type, own in edges.items()
    )
    if options is not None:
        work.node_counts = {name: node.count for name, node in nodes.items()}
        by_type = dict(zip(edges, work.edge_types, strict=True))
        for forward in reverse_types(options.reverse, tuple(edges)):
            own = by_type[forward]
            widths = reverse_widths(own.attribute_bytes, own.num_edges, options.edge_ids)
            count = nodes[forward[0]].count
            work.edge_types += (EdgeTable(count, own.num_edges, widths),)
    return work
