"""Writes nodes and edges of several types, which come in pieces, as a store.

Edges are sorted within the memory budget, one type after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.ordered import EdgePlaces
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.typed.reverse import ReversedEdges, reverse_of, reverse_types
from gnnstore.converters.writer.base import BaseWriter
from gnnstore.converters.writer.edge_writer import EdgeWriter, Pairs, check_pointers
from gnnstore.converters.writer.node_arrays import NodeArrays, RowSink
from gnnstore.converters.writer.options import refuse_options
from gnnstore.errors import InputError, did_you_mean
from gnnstore.formats.store.schema import EdgeType, EdgeTypeSpec


def check_node_type(name: str, known: Collection[str], where: str = "") -> None:
    """Refuse a node type that is not there."""
    if name not in known:
        raise InputError(
            f"{where}there is no node type {name!r}{did_you_mean(name, known)}; there are: "
            f"{', '.join(map(repr, known)) or 'none'}"
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
        `set_num_nodes` sets it before the edges.
    options : ConvertOptions, optional
        The common options. Those that are for graphs of one type are refused: `undirected`,
        `add_inverse_edge`, `self_loops`.
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

    _is_homogeneous = False

    def _check_options(self) -> None:
        refuse_options(
            self.options,
            ("undirected", "add_inverse_edge", "self_loops"),
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
        self._writer_of(edge_type).describe(name, dtype, cat_dim, time_unit)

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
            If an end is not a node of its type, naming type and edge; if the attributes have not as
            many rows as there are edges; if the type was read already, or names unknown node types.
        NoSpaceError, StorageError, BudgetError
            If the disk or the budget has no room.
        """
        writer = self._begin(edge_type, where)
        writer.read(pairs, num_edges, attributes, where=where, places=places)
        self._edges[edge_type] = writer.sort_and_write()

    def _begin(self, edge_type: EdgeType, where: str) -> EdgeWriter:
        """Return what writes the edges of a type, which were not given before."""
        if edge_type in self._edges:
            raise InputError(f"{where}: the edges of type {edge_type} were given already")
        for end in edge_type[::2]:
            check_node_type(end, self._nodes, f"{where}: edges of type {edge_type}: ")
        return self._writer_of(edge_type)

    def _add_reverse(self, forward: EdgeTypeSpec) -> None:
        """Write the reverse of the edges of a type, which are in the store already."""
        reverse = reverse_of(forward.type)
        writer = self._begin(reverse, "reverse=")
        writer.time_units = self._writer_of(forward.type).time_units
        edges = ReversedEdges(self._store, forward)
        writer.rules = EdgeRules(keep_ids=False)  # the ids come as an attribute
        writer.carried_ids = edges.id_dtype
        for name, spec in forward.attributes.items():
            writer.describe(name, spec.dtype, spec.cat_dim, None)
        if not writer.is_finished:
            writer.expect(forward.num_edges)
            with self.progress.phase(f"reverse {'__'.join(forward.type)}", unit="edges") as phase:
                for sources, targets, rows in edges.chunks():
                    writer.builder.add(sources, targets, rows, f"the reverse of {forward.type}")
                    phase.advance(len(sources))
        self._edges[reverse] = writer.sort_and_write(edges.sharing)

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
        """Let batches have `num_nodes` of a type; types without attributes have it anyway."""
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
        for nodes in self._nodes.values():
            nodes.shows_num_nodes |= not nodes.attributes
        return self._commit()
