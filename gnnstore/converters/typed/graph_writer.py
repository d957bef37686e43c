"""Writes nodes and edges of several types, which come in pieces, as a store.

Edges of one type after the other are sorted within the memory budget, as those of a graph of one
type are. Of (s, r, d) the reverse edge type is (d, rev_r, s), with the same ids and attributes.
Narrow attributes are copied: the edges of a list lie in one page, and the number of a row that is
elsewhere would take about as much. Rows of wider ones are shared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.edges.buffer import columns_of_edges
from gnnstore.converters.edges.builder import EdgeBuilder
from gnnstore.converters.edges.columns import CARRIED_IDS, BuiltEdges, EdgeRules
from gnnstore.converters.edges.ordered import EdgePlaces, OrderedChunk, OrderedEdges
from gnnstore.converters.inputs.ids import check_ids
from gnnstore.converters.inputs.source import ArraySource, row_bytes
from gnnstore.converters.writer.adjacency import finished_array, write_adjacency
from gnnstore.converters.writer.base import BaseWriter, Pairs, check_pointers
from gnnstore.converters.writer.node_arrays import NodeArrays, RowSink
from gnnstore.converters.writer.options import refuse_options
from gnnstore.converters.writer.orders import checked_edges
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base.names import edge_directory, encode
from gnnstore.formats.store.schema import EdgeType, EdgeTypeSpec
from gnnstore.formats.store.store import StoreWriter

_PREFIX = "rev_"
_POINTER_BYTES = 2**20
_CHUNK_EDGES = 2**18
_MOST_COPIED_BYTES = 64  # of a row


def check_node_type(name: str, known: Collection[str], where: str = "") -> None:
    """Refuse a node type that is not there."""
    if name not in known:
        raise InputError(
            f"{where}there is no node type {name!r}; there are: "
            f"{', '.join(map(repr, known)) or 'none'}"
        )


def reverse_of(edge_type: EdgeType) -> EdgeType:
    """Return the reverse of an edge type."""
    source, relation, target = edge_type
    return (target, _PREFIX + relation, source)


def reverse_types(wanted: Sequence[str], edge_types: Sequence[EdgeType]) -> list[EdgeType]:
    """Return the edge types that `ConvertOptions.reverse` names; refuse names of none.

    "all" leaves out types whose reverse is there, and types that are the reverse of another.
    """
    there = set(edge_types)
    backward = {reverse_of(edge_type) for edge_type in edge_types}
    found: dict[EdgeType, None] = {}
    for name in wanted:
        if name == "all":
            own = [e for e in edge_types if e not in backward and reverse_of(e) not in there]
        else:
            own = [e for e in edge_types if name in (e[1], "__".join(e))]
            if not own:
                raise UsageError(
                    f"reverse={name!r}: there is no such relation; there are: "
                    f"{', '.join('__'.join(e) for e in edge_types) or 'none'}"
                )
            for edge_type in own:
                if reverse_of(edge_type) in there:
                    raise UsageError(
                        f"reverse={name!r}: the input has edges of type {reverse_of(edge_type)} "
                        "already; leave it out"
                    )
        found.update(dict.fromkeys(own))
    return list(found)


def reverse_widths(widths: Sequence[int], num_edges: int, edge_ids: bool | None) -> tuple[int, ...]:
    """Return the bytes of an edge's attributes that a reverse type stores, and its positions.

    Wide ones are shared, by positions; ids are stored even where the edges have none.
    """
    copied = tuple(width for width in widths if width <= _MOST_COPIED_BYTES)
    num_added = (len(copied) < len(widths)) + (edge_ids is False)
    return copied + num_added * (id_dtype(num_edges).itemsize,)


class ReversedEdges:
    """The edges of a type that lies in a store, from targets to sources."""

    def __init__(self, store: StoreWriter, forward: EdgeTypeSpec) -> None:
        self._store = store
        self._forward = forward
        self._shared = {
            name: spec
            for name, spec in forward.attributes.items()
            if spec.row_bytes > _MOST_COPIED_BYTES
        }
        ids = forward.edge_id
        # The name under which positions come, if attributes are shared and ids are no positions.
        self._position = ""
        if self._shared and ids is not None:
            self._position = "position"
            while self._position in forward.attributes:
                self._position += "_"
        self.id_dtype = id_dtype(forward.num_edges) if ids is None else np.dtype(ids.dtype)

    def chunks(
        self,
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], dict[str, npt.NDArray[Any]]]]:
        """Yield sources, targets and attributes, with the ids as `CARRIED_IDS`."""
        edge = self._forward
        copied = {name: own for name, own in edge.attributes.items() if name not in self._shared}
        for first, columns in self._columns():
            last = first + len(columns)
            rows = {name: self._read(spec, first, last) for name, spec in copied.items()}
            ids = positions = np.arange(first, last)
            if edge.edge_id is not None:
                ids = self._read(edge.edge_id, first, last)
            rows[CARRIED_IDS] = ids.astype(self.id_dtype, copy=False)
            if self._position:
                rows[self._position] = positions.astype(id_dtype(edge.num_edges))
            yield columns, self._read(edge.indices, first, last), rows

    def _read(self, spec: AttributeSpec, first: int, last: int) -> npt.NDArray[Any]:
        return finished_array(self._store, spec).read_slice(first, last)

    def _columns(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yield the first of some edges, and the targets of all; once for no edges."""
        column, latest = 0, np.empty(0, np.int64)
        if not self._forward.num_edges:
            yield 0, latest
        for _, piece in finished_array(self._store, self._forward.indptr).pieces(_POINTER_BYTES):
            pointers = np.concatenate([latest, piece])
            yield from columns_of_edges(column, pointers, _CHUNK_EDGES)
            column, latest = column + len(pointers) - 1, pointers[-1:]

    def sharing(self, written: EdgeTypeSpec) -> EdgeTypeSpec:
        """Return the reverse type as it was written, with the attributes that are shared."""
        if not self._shared:
            return written
        own = dict(written.attributes)
        rows = own.pop(self._position, written.edge_id)
        for name, spec in self._shared.items():
            path = f"{edge_directory(*written.type)}/attrs/{encode(name)}"
            own[name] = replace(spec, path=path)
        return replace(
            written,
            attributes={name: own[name] for name in self._forward.attributes},
            shared={name: spec.path for name, spec in self._shared.items()},
            shared_row=rows,
        )


class HeteroGraphWriter(BaseWriter):
    """Writes a graph of several node and edge types as a store.

    A context manager: without a `commit` there is no store. A conversion that a full disk, an I/O
    error or Ctrl-C interrupts can be resumed, and edge types that are finished are not read again;
    after any other error nothing is left. Not thread-safe.

    Parameters
    ----------
    output : path-like
        The store to be.
    num_nodes : Mapping of str to int or None
        Number of nodes of each type, in the order that the store's node types get; None:
        `set_num_nodes` says it before the edges.
    options : ConvertOptions, optional
        The common options. `feature_dtype` applies to `x` of each node type. Those that are for
        graphs of one type are refused: `undirected`, `add_inverse_edge`, `self_loops`,
        `feature_scale`.
    kind, source, index_dtype, edge_ids, progress
        See `GraphWriter`.

    Raises
    ------
    StoreExistsError, UsageError, NotFoundError, StorageError
        If the output cannot be written; before any work.

    Examples
    --------
    >>> import numpy as np
    >>> from gnnstore.converters import HeteroGraphWriter
    >>> counts = {"paper": 3, "author": 2}
    >>> writes = ("author", "writes", "paper")
    >>> with HeteroGraphWriter("mag.gnn", counts, kind="mine") as writer:  # doctest: +SKIP
    ...     writer.set_node_attribute("paper", "x", np.ones((3, 8), np.float32))
    ...     writer.read_edges(writes, [(np.array([0, 1]), np.array([2, 0]))], where="my edges")
    ...     writer.commit()
    """

    def _check_options(self) -> None:
        refuse_options(
            self.options,
            ("undirected", "add_inverse_edge", "self_loops", "feature_scale"),
            "is for graphs of one node type and one edge type, and this one has several; leave it "
            "out; reverse= adds reverse edges as types of their own",
        )

    def set_num_nodes(self, node_type: str, num_nodes: int) -> None:
        """Set the number of nodes of a type, before its edges and splits are written."""
        check_pointers(self._store, num_nodes)
        self._arrays(node_type).set_num_nodes(num_nodes)

    # ---- edges

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """The edge types that have been read so far, in the order that they get in the store."""
        return tuple(self._edges)

    def reserve_memory(self, num_bytes: int) -> None:
        """Leave memory to the caller: that much less of the budget goes to the edges."""
        self._reserved += num_bytes

    def describe_edge_attribute(
        self,
        edge_type: EdgeType,
        name: str,
        *,
        dtype: str,
        cat_dim: int = 0,
        time_unit: str | None = None,
    ) -> None:
        """Give an edge attribute's element type, where NumPy has none, its row axis, and unit."""
        self._describe(edge_type, name, dtype, cat_dim, time_unit)

    def read_edges(
        self,
        edge_type: EdgeType,
        pairs: Pairs,
        num_edges: int | None = None,
        attributes: Mapping[str, ArraySource] | None = None,
        *,
        where: str,
        places: EdgePlaces | None = None,
    ) -> None:
        """Read, sort and write all edges of a type; nothing is read if that was done before.

        Parameters
        ----------
        edge_type : (str, str, str)
            Source type, relation, target type.
        pairs, num_edges, attributes, where
            See `GraphWriter.read_edges`.
        places : EdgePlaces, optional
            The rows of the input, for messages, where the edges come sorted by target, then
            source, and their number is given: they are written as they are read.

        Raises
        ------
        InputError
            If an end is no node of its type, naming type and edge; if the attributes have not as
            many rows as there are edges; if the type was read already, or names unknown node types.
        NoSpaceError, StorageError, BudgetError
            If the disk or the budget has no room.
        """
        attributes = self._take_units(edge_type, attributes)
        each = sum(map(row_bytes, attributes.values()))
        to_sort = num_edges if places is None else None
        builder = self._begin(edge_type, self._rules, to_sort, where, each)
        if builder is None:
            return
        source, _, target = edge_type
        what = f"edges of type {edge_type}"

        def checked(
            sources: Any, targets: Any, rows: dict[str, npt.NDArray[Any]], first: int
        ) -> OrderedChunk:
            for end, name, ids in (("source", source, sources), ("target", target, targets)):
                of = f"{where}: {what}: id of the {end} ({name!r})"
                check_ids(ids, self._count(name), of, first)
            rows = checked_edges(rows, self._attribute_types[edge_type], self.options, first, what)
            return sources, targets, rows

        if places is not None and num_edges is not None and not builder.has_runs:
            chunks = self._with_rows(pairs, num_edges, attributes, edge_type)
            built = OrderedEdges(
                lambda: starmap(checked, chunks),
                self._rules,
                places,
                num_nodes=self._num_ends(edge_type),
                num_edges=num_edges,
                where=where,
                progress=self.progress,
            )
            self._write_built(edge_type, built)
            return

        def add(*chunk: Any) -> None:
            builder.add(*checked(*chunk), where)

        self._read_pairs(pairs, num_edges, attributes, add, edge_type)
        self._write_edges(edge_type, builder)

    def _begin(
        self,
        edge_type: EdgeType,
        rules: EdgeRules,
        num_edges: int | None,
        where: str,
        each: int = 0,
    ) -> EdgeBuilder | None:
        """Return what collects the edges of a type; None if they were finished before.

        Each has attributes of so many bytes.
        """
        if edge_type in self._edges:
            raise InputError(f"{where}: the edges of type {edge_type} were given already")
        for end in edge_type[::2]:
            check_node_type(end, self._nodes, f"{where}: edges of type {edge_type}: ")
        if edge_type in self._finished:
            self._edges[edge_type], _ = self._finished[edge_type]
            return None
        builder = self._new_builder(rules, self._num_ends(edge_type))
        if num_edges is not None:
            builder.expect(num_edges, row_bytes=each)
        return builder

    def _num_ends(self, edge_type: EdgeType) -> int:
        # Of both ends; columns behind the last target stay empty.
        return max(self._count(end) for end in edge_type[::2])

    def _count(self, node_type: str) -> int:
        return self._nodes[node_type].num_nodes or 0

    def _add_reverse(self, forward: EdgeTypeSpec) -> None:
        """Write the reverse of the edges of a type, which are in the store already."""
        reverse = reverse_of(forward.type)
        self._time_units[reverse] = self._time_units[forward.type]
        # The ids come as an attribute.
        rules = EdgeRules(keep_ids=False)
        builder = self._begin(reverse, rules, forward.num_edges, "reverse=")
        if builder is None:
            return
        for name, spec in forward.attributes.items():
            self.describe_edge_attribute(reverse, name, dtype=spec.dtype, cat_dim=spec.cat_dim)
        edges = ReversedEdges(self._store, forward)
        with self.progress.phase(f"reverse {'__'.join(forward.type)}", unit="edges") as phase:
            for sources, targets, rows in edges.chunks():
                builder.add(sources, targets, rows, f"the reverse of {forward.type}")
                phase.advance(len(sources))
        self._write_edges(reverse, builder, edges)

    def _write_edges(
        self, edge_type: EdgeType, builder: EdgeBuilder, reverse: ReversedEdges | None = None
    ) -> None:
        with self.progress.phase("sort edges", unit="edges"):
            built = builder.finish(self._num_ends(edge_type))
        self._write_built(edge_type, built, reverse)

    def _write_built(
        self, edge_type: EdgeType, built: BuiltEdges, reverse: ReversedEdges | None = None
    ) -> None:
        num_targets = self._count(edge_type[2])
        spec = write_adjacency(
            self._store,
            built,
            self._attribute_types[edge_type],
            self.progress,
            edge_type=edge_type,
            num_targets=num_targets,
            carried_ids=None if reverse is None else reverse.id_dtype,
        )
        if reverse is not None:
            spec = reverse.sharing(spec)
        self._store.journal.record_edges({"num_nodes": num_targets, "spec": asdict(spec)})
        built.close()
        self._edges[edge_type] = spec
        _core.pool_trim()

    # ---- nodes

    def _arrays(self, node_type: str) -> NodeArrays:
        check_node_type(node_type, self._nodes)
        return self._nodes[node_type]

    def node_rows(
        self, node_type: str, name: str, *, num_rows: int, row_shape: tuple[int, ...], dtype: str
    ) -> AbstractContextManager[RowSink]:
        """Write a node attribute row by row; see `GraphWriter.node_rows`."""
        return self._arrays(node_type).rows(
            name, num_rows=num_rows, row_shape=row_shape, dtype=dtype
        )

    def set_node_attribute(
        self,
        node_type: str,
        name: str,
        values: npt.NDArray[Any] | ArraySource,
        *,
        dtype: str | None = None,
        cat_dim: int = 0,
    ) -> None:
        """Write a node attribute; see `GraphWriter.set_node_attribute`."""
        self._arrays(node_type).write(name, values, dtype=dtype, cat_dim=cat_dim)

    def show_num_nodes(self, node_type: str) -> None:
        """Let batches have `num_nodes` of a type; those of types without attributes do anyway."""
        self._arrays(node_type).shows_num_nodes = True

    def set_split(
        self,
        node_type: str,
        name: str,
        values: npt.NDArray[Any] | ArraySource,
        *,
        where: str | None = None,
    ) -> None:
        """Name a set of nodes of a type; see `GraphWriter.set_split`."""
        self._arrays(node_type).set_split(name, values, where)

    def set_original_ids(self, node_type: str, ids: npt.NDArray[np.int64]) -> None:
        """Record the input's own id [N] of every node of a type."""
        self._arrays(node_type).set_original_ids(ids)

    def set_original_names(
        self, node_type: str, names: Iterable[list[bytes]], num_names: int, num_bytes: int
    ) -> None:
        """Record the input's own name of every node of a type."""
        self._arrays(node_type).set_original_names(names, num_names, num_bytes)

    def commit(self) -> Path:
        """Finish the store and return its path.

        Raises
        ------
        InputError, UsageError
            If counts disagree, or an option names what is not there.
        StorageError
            If the operating system refuses.
        """
        for forward in reverse_types(self.options.reverse, tuple(self._edges)):
            self._add_reverse(self._edges[forward])
        for own in self._nodes.values():
            own.shows_num_nodes |= not own.attributes
        return self._commit()
