"""Writes edges, rows and splits that come in pieces as a store; all converters use it.

Counts that agree, ids in range and splits that name nodes are checked here, in one place for all
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.columns import SortedEdges
from gnnstore.converters.edges.ordered import EdgePlaces, OrderedChunk
from gnnstore.converters.edges.split import SplitEdges, SplitRule
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import ArraySource, as_array, as_source
from gnnstore.converters.writer.adjacency import finished_array
from gnnstore.converters.writer.base import BaseWriter
from gnnstore.converters.writer.edge_splits import (
    Rows,
    copy_array,
    write_edge_split,
    write_negatives,
)
from gnnstore.converters.writer.edge_writer import Pairs, check_pointers
from gnnstore.converters.writer.estimates import Workload
from gnnstore.converters.writer.node_arrays import NodeArrays, RowSink, split_name
from gnnstore.converters.writer.options import ConvertOptions, IndexDtype, refuse_options
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.arrays.spec import AttributeSpec, Scaled
from gnnstore.formats.base import names as store_names
from gnnstore.formats.store.schema import (
    EDGE_TYPE,
    NODE_TYPE,
    EdgeSplitSpec,
    EdgeTypeSpec,
    PartSpec,
    TextSpec,
)
from gnnstore.progress import Progress
from gnnstore.units import format_count

_STEP_BYTES = 2**23  # bytes of pointers that are read at a time


class GraphWriter(BaseWriter):
    """Writes one homogeneous graph as a store.

    A context manager: without a `commit` there is no store. A conversion that a full disk, an I/O
    error or Ctrl-C interrupts can be resumed; after any other error nothing is left. Not
    thread-safe. Data that a store cannot hold, or that disagree with what came before, are an
    `InputError` that names the input and the place.

    Parameters
    ----------
    output : path-like
        The store to be.
    kind : str
        The converter's name, for provenance.
    source : Mapping, optional
        Inputs and parameters, as JSON values, for provenance.
    options : ConvertOptions, optional
        The common options.
    num_nodes : int, optional
        N, if it is known; else `set_num_nodes`, or the largest id of an edge decides.
    index_dtype : "int64" or "int32"
        Type of node ids in batches, unless the options say.
    edge_ids : bool
        Whether edges keep their positions in the input, unless the options say.
    progress : Progress, optional
        Reports how far the work is.

    Raises
    ------
    StoreExistsError, UsageError, NotFoundError, StorageError
        If the output cannot be written; before any work.
    """

    _is_homogeneous = True

    def __init__(
        self,
        output: PathLike,
        *,
        kind: str,
        source: Mapping[str, Any] | None = None,
        options: ConvertOptions | None = None,
        num_nodes: int | None = None,
        index_dtype: IndexDtype = "int64",
        edge_ids: bool = True,
        progress: Progress | None = None,
        workload: Workload | None = None,
    ) -> None:
        self.explicit_num_nodes = False
        self._edge_splits: dict[str, EdgeSplitSpec] = {}
        self._value_names: dict[str, TextSpec] = {}
        self._original_edge_ids: AttributeSpec | None = None
        self._part: PartSpec | None = None
        super().__init__(
            output,
            {NODE_TYPE: num_nodes},
            kind=kind,
            source=source,
            options=options,
            index_dtype=index_dtype,
            edge_ids=edge_ids,
            progress=progress,
            workload=workload,
        )
        self._edge = self._writer_of(EDGE_TYPE)
        self._edge.adds_inverse = self.options.add_inverse_edge

    def _check_options(self) -> None:
        refuse_options(
            self.options,
            ("reverse",),
            "adds types of edges, and this conversion makes a graph without types; leave it out, "
            "or let undirected=True add the reverse of each edge. Files by type are for 'gnnstore "
            "convert typed'",
        )

    @property
    def _node(self) -> NodeArrays:
        return self._nodes[NODE_TYPE]

    @property
    def num_nodes(self) -> int | None:
        """N, as far as it is known."""
        return self._node.num_nodes

    def set_num_nodes(self, num_nodes: int) -> None:
        """Set the number of nodes, before the edges are finished."""
        if self.num_nodes is not None and self.num_nodes != num_nodes:
            raise InputError(
                f"the input states {format_count(self.num_nodes, 'node')} in one place and "
                f"{num_nodes} in another"
            )
        self._edge.builder.buffer.set_num_nodes(num_nodes)
        check_pointers(self._store, num_nodes)
        self._node.set_num_nodes(num_nodes)

    # ---- edges

    @property
    def has_edges(self) -> bool:
        """Whether an interrupted conversion had finished the edges: none need be read."""
        return self._edge.is_finished

    def expect_edges(
        self, num_edges: int, some_targets: Iterable[npt.NDArray[Any]] | None = None
    ) -> None:
        """Announce the number of edges, so that a budget that is too small fails at once.

        With targets from all over the edges these may be sorted while they are added.
        """
        self._edge.expect(num_edges, some_targets)

    def describe_edge_attribute(
        self, name: str, *, dtype: str, cat_dim: int = 0, time_unit: str | None = None
    ) -> None:
        """Give an edge attribute's element type, where NumPy has none, its row axis, and unit."""
        self._edge.describe(name, dtype, cat_dim, time_unit)

    def carry_edge_ids(self, dtype: np.dtype[Any], *, are_renumbered: bool = True) -> None:
        """Take ids of edges from `CARRIED_IDS`.

        For edges that are numbered anew they are the original data's, and batches have positions.
        """
        self._edge.carried_ids, self._edge.are_renumbered = dtype, are_renumbered

    def add_edges(
        self,
        sources: npt.ArrayLike,
        targets: npt.ArrayLike,
        attributes: Mapping[str, npt.ArrayLike] | None = None,
        *,
        where: str = "the edges",
    ) -> None:
        """Add a chunk of edges; they are passed over if `has_edges`.

        Parameters
        ----------
        sources, targets : integers, shape [k]
            Node ids: arrays, tensors or lists.
        attributes : Mapping of str to arrays [k, ...], optional
            Attribute rows; the same names, types and row shapes in every chunk.
        where : str
            The input's name, for messages.
        """
        if not self.has_edges:
            ends = (as_array(sources, f"{where}: sources"), as_array(targets, f"{where}: targets"))
            given = {
                name: as_array(v, f"{where}: {name}") for name, v in (attributes or {}).items()
            }
            self._edge.add(*ends, given, where)

    def write_in_order(
        self,
        read: Callable[[], Iterable[OrderedChunk]],
        num_edges: int,
        places: EdgePlaces,
        *,
        where: str,
    ) -> None:
        """Write edges that come sorted by target, then source; nothing is read if `has_edges`.

        They are written as they are read, unless an interrupted conversion left sorted runs on
        disk. N is known already.

        Parameters
        ----------
        read : callable
            Yields sources, targets and attributes of the next edges, from the first on; called
            twice where self-loops are dropped or added.
        num_edges : int
            Number of edges.
        places : EdgePlaces
            The rows of the input, for messages.
        where : str
            The input's name, for messages.

        Raises
        ------
        InputError
            If an edge precedes the edge in front of it; the message has file, row and pairs.
        """
        self._edge.write_in_order(read, num_edges, places, where=where)

    def read_edges(
        self,
        pairs: Pairs,
        num_edges: int | None,
        attributes: Mapping[str, ArraySource] | None = None,
        *,
        where: str,
        some_targets: Iterable[npt.NDArray[Any]] | None = None,
        add_inverse_edge: bool = False,
        places: EdgePlaces | None = None,
    ) -> None:
        """Add all edges of an input with their attributes; nothing is read if `has_edges`.

        Parameters
        ----------
        pairs : iterable of (ndarray of integers [k], ndarray of integers [k])
            Sources and targets, chunk by chunk.
        num_edges : int, optional
            Number of edges, if known.
        attributes : Mapping of str to ArraySource [E, ...], optional
            A row for each edge.
        where : str
            The input's name, for messages.
        some_targets : iterable of ndarray of integers, optional
            Targets from all over the edges, which may then be sorted while they are read.
        add_inverse_edge : bool
            As the option of this name.
        places : EdgePlaces, optional
            The rows of the input, for messages, where the edges come as in `write_in_order`; the
            pairs can then be iterated over again.
        """
        self._edge.adds_inverse |= add_inverse_edge
        self._edge.read(
            pairs,
            num_edges,
            attributes,
            where=where,
            some_targets=some_targets,
            places=places,
        )

    def finish_edges(self) -> None:
        """Sort and write the edges; needs no call before `commit`."""
        self._edges[EDGE_TYPE] = self._edge.sort_and_write()

    def degrees(self) -> Iterator[npt.NDArray[np.int64]]:
        """Finish the edges, and yield the number of in-neighbours of the next nodes, int64 [k]."""
        self.finish_edges()
        latest = np.empty(0, np.int64)
        pointers = finished_array(self._store, self._edges[EDGE_TYPE].indptr)
        for _, piece in pointers.pieces(_STEP_BYTES):
            latest = np.concatenate([latest[-1:], piece])
            yield np.diff(latest)

    def split_edges(
        self,
        edges: Callable[..., Iterator[SortedEdges]],
        rule: SplitRule,
        id_dtype: np.dtype[Any],
    ) -> None:
        """Write edges that are sorted already, split by a rule; nothing is read if `has_edges`."""
        if self.has_edges:
            return
        with self.progress.phase("split edges", unit="edges"):
            own_ids = id_dtype if self._rules.keep_ids else None
            split = SplitEdges(rule, edges, self.num_nodes or 0, own_ids)

        def with_negatives(spec: EdgeTypeSpec) -> EdgeTypeSpec:
            if not rule.num_negatives:
                return spec
            return write_negatives(
                self._store,
                spec,
                rule,
                is_undirected=split.is_undirected,
                progress=self.progress,
            )

        self._edge.are_renumbered = True
        self._edge.write(split, split_sizes=split.sizes, complete=with_negatives)

    # ---- nodes

    def node_rows(
        self, name: str, *, num_rows: int, row_shape: tuple[int, ...], dtype: str
    ) -> AbstractContextManager[RowSink]:
        """Write a node attribute row by row: the way in for features of any size.

        Parameters
        ----------
        name : str
            "x" is the features. (`feature_scale` needs rows that can be read twice, as
            `set_node_attribute` does.)
        num_rows : int
            N.
        row_shape : tuple of int
            Shape of a row.
        dtype : str
            Element type of the rows that will come.
        """
        return self._node.rows(name, num_rows=num_rows, row_shape=row_shape, dtype=dtype)

    def set_node_attribute(
        self,
        name: str,
        values: npt.ArrayLike | ArraySource,
        *,
        dtype: str | None = None,
        cat_dim: int = 0,
    ) -> None:
        """Write a node attribute: compressed if its rows are single values, else in pages.

        Parameters
        ----------
        values : array, tensor, list or ArraySource, shape [N, ...]
            Rows first, also if `cat_dim` was not 0.
        dtype : str, optional
            Element type, where NumPy has none (bfloat16 as its bits).
        """
        values = as_source(values, f"the node attribute {name!r}")
        self._node.write(name, values, dtype=dtype, cat_dim=cat_dim)

    def set_multiples(
        self,
        name: str,
        rows: ArraySource,
        cat_dim: int,
        scales: npt.NDArray[np.float32],
        scaled: Scaled,
    ) -> None:
        """Write a node attribute whose rows of int8 are multiples of scales, as in a store."""
        self._node.write_multiples(name, rows, cat_dim, scales, scaled)

    def set_split(
        self, name: str, values: npt.ArrayLike | ArraySource, *, where: str | None = None
    ) -> None:
        """Name a set of nodes.

        Parameters
        ----------
        name : str
            "train", "valid" (or "val"), "test", or any other.
        values : array, tensor, list or ArraySource
            Node ids (integers, [k]), in the order to keep, or a mask (bool, [N]).
        where : str, optional
            The input's name, for messages.
        """
        self.reserve_memory(self._node.set_split(name, values, where))

    def set_edge_split(
        self,
        name: str,
        source: Rows | npt.ArrayLike,
        target: Rows | npt.ArrayLike,
        *,
        edge_id: Rows | None = None,
        source_negatives: Rows | None = None,
        target_negatives: Rows | None = None,
        negative_edges: tuple[Rows, Rows] | None = None,
        attributes: Mapping[str, Rows] | None = None,
        where: str | None = None,
    ) -> None:
        """Name a set of edges to predict, which need not be among the edges of the graph.

        Everything is an ndarray or, to be copied piece by piece, an `ArraySource`. N must be
        known. Where there are splits and none is called "train", the edges of the graph are the
        training split.

        Parameters
        ----------
        name : str
            "train", "valid" (or "val"), "test", or any other.
        source, target : integers [L]
            Node ids.
        edge_id : integers [L], optional
            Positions of the edges in the original input.
        source_negatives, target_negatives : integers [L, A], optional
            Nodes that replace the source, or the target, of each edge.
        negative_edges : (integers [K], integers [K]), optional
            Sources and targets of negative edges that all edges share.
        attributes : Mapping of str to rows [L, ...], optional
            Attributes of the edges.
        where : str, optional
            The input's name, for messages.
        """
        name = split_name(name)
        where = where or f"the edge split {name!r}"
        if name in self._edge_splits:
            raise InputError(f"{where}: the edge split {name!r} was given already")
        if self.num_nodes is None:
            raise UsageError(f"{where}: set the number of nodes before the edge splits")
        negative_source, negative_target = negative_edges or (None, None)
        parts = {
            "source": source,
            "target": target,
            "edge_id": edge_id,
            "source_negatives": source_negatives,
            "target_negatives": target_negatives,
            "negative_source": negative_source,
            "negative_target": negative_target,
        }
        with self.progress.phase(f"write edge split {name}"):
            self._edge_splits[name] = write_edge_split(
                self._store,
                name,
                parts,
                attributes or {},
                self._edge.attribute_types,
                num_nodes=self.num_nodes,
                where=where,
            )

    def set_original_ids(self, ids: npt.ArrayLike | ArraySource) -> None:
        """Record the input's own id [N] of every node."""
        self._node.set_original_ids(ids)

    def set_original_names(
        self, names: Iterable[list[bytes]], num_names: int, num_bytes: int
    ) -> None:
        """Record the input's own name of every node, in UTF-8, in lists in the order of nodes."""
        self._node.set_original_names(names, num_names, num_bytes)

    def set_value_names(self, attribute: str, names: Sequence[bytes]) -> None:
        """Record the names, in UTF-8, of the values 0, 1, ... of an integer edge attribute."""
        directory = store_names.value_names_directory(EDGE_TYPE, attribute)
        num_bytes = sum(map(len, names))
        written = self._store.texts(directory, [list(names)], len(names), num_bytes)
        self._value_names[attribute] = written

    def set_original_edge_ids(self, ids: ArraySource) -> None:
        """Record the original data's id [E] of every edge next to the ids that batches have."""
        directory = store_names.edge_directory(*EDGE_TYPE)
        self._original_edge_ids = copy_array(self._store, directory, ids, "original_id")

    def set_part(self, whole_ids: ArraySource, **part: Any) -> None:
        """Record whose part the store is, as in `PartSpec`, and the nodes' ids [N] there."""
        directory, _, name = store_names.whole_id_array(NODE_TYPE).rpartition("/")
        self._part = PartSpec(**part, whole_id=copy_array(self._store, directory, whole_ids, name))

    def commit(self) -> Path:
        """Finish the store and return its path."""
        self.finish_edges()
        edges = self._edges[EDGE_TYPE]
        self._edges[EDGE_TYPE] = replace(
            edges,
            original_id=self._original_edge_ids or edges.original_id,
            splits={**edges.splits, **self._edge_splits},
            value_names=self._value_names,
        )
        return self._commit(explicit_num_nodes=self.explicit_num_nodes, part=self._part)
