"""Writes edges, rows and splits that come in pieces as a store; all converters use it.

Counts that agree, ids in range and splits that name nodes are checked here, in one place for all
inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.buffer import warn_of_stray_ids
from gnnstore.converters.edges.builder import EdgeBuilder
from gnnstore.converters.edges.columns import BuiltEdges, SortedEdges
from gnnstore.converters.edges.ordered import EdgePlaces, OrderedChunk, OrderedEdges
from gnnstore.converters.edges.split import SplitEdges, SplitRule
from gnnstore.converters.inputs.ids import check_ids
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import ArraySource, as_array, as_source, row_bytes
from gnnstore.converters.writer.adjacency import finished_array, write_adjacency
from gnnstore.converters.writer.base import BaseWriter, Pairs, check_pointers
from gnnstore.converters.writer.edge_splits import Rows, write_edge_split, write_negatives
from gnnstore.converters.writer.estimates import Workload
from gnnstore.converters.writer.node_arrays import SCALES, NodeArrays, RowSink, split_name
from gnnstore.converters.writer.options import ConvertOptions, IndexDtype, refuse_options
from gnnstore.converters.writer.orders import checked_edges
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.base import names as store_names
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE, EdgeSplitSpec, TextSpec
from gnnstore.progress import Progress

_STEP_BYTES = 2**23  # of pointers that are read at a time


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
        self._carried: np.dtype[Any] | None = None
        self._edge_splits: dict[str, EdgeSplitSpec] = {}
        self._value_names: dict[str, TextSpec] = {}
        self._adds_inverse = options is not None and options.add_inverse_edge
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

    def _check_options(self) -> None:
        refuse_options(
            self.options,
            ("reverse",),
            "adds types of edges, and this conversion makes a graph without types; leave it out, "
            "or let undirected=True add the reverse of each edge. Files by type are for 'gnnstore "
            "convert typed'",
        )

    @cached_property
    def _builder(self) -> EdgeBuilder:
        return self._new_builder(self._rules, self.num_nodes)

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
                f"the input says {self.num_nodes} nodes in one place and {num_nodes} in another"
            )
        self._builder.buffer.set_num_nodes(num_nodes)
        check_pointers(self._store, num_nodes)
        self._node.set_num_nodes(num_nodes)

    # ---- edges

    @property
    def has_edges(self) -> bool:
        """Whether an interrupted conversion had finished the edges: none need be read."""
        return EDGE_TYPE in self._finished

    def expect_edges(
        self, num_edges: int, some_targets: Iterable[npt.NDArray[Any]] | None = None
    ) -> None:
        """Announce the number of edges, so that a budget that is too small fails at once.

        With targets from all over the edges these may be sorted while they are added.
        """
        self._expect(num_edges, some_targets)

    def _expect(
        self,
        num_edges: int,
        some_targets: Iterable[npt.NDArray[Any]] | None,
        attributes: Mapping[str, ArraySource] | None = None,
    ) -> None:
        each = sum(map(row_bytes, (attributes or {}).values()))
        if not self.has_edges and self._adds_inverse:
            self._builder.expect(2 * num_edges, row_bytes=each)
        elif not self.has_edges:
            self._builder.expect(num_edges, some_targets, each)

    def reserve_memory(self, num_bytes: int) -> None:
        """Leave memory to the caller: that much less of the budget goes to the edges."""
        self._builder.reserve(num_bytes)

    def describe_edge_attribute(
        self, name: str, *, dtype: str, cat_dim: int = 0, time_unit: str | None = None
    ) -> None:
        """Give an edge attribute's element type, where NumPy has none, its row axis, and unit."""
        self._describe(EDGE_TYPE, name, dtype, cat_dim, time_unit)

    def carry_edge_ids(self, dtype: np.dtype[Any]) -> None:
        """Take original ids of edges from `CARRIED_IDS`; their ids here are their positions."""
        self._carried = dtype

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
            first = self._builder.buffer.num_seen // (2 if self._adds_inverse else 1)
            rows = self._checked_rows(given, first, where)
            if self._adds_inverse:
                ends, rows = _with_inverse(*ends, rows, first, where)
            self._builder.add(*ends, rows, where)

    def _checked_rows(
        self, rows: Mapping[str, npt.NDArray[Any]], first: int, where: str
    ) -> Mapping[str, npt.NDArray[Any]]:
        return checked_edges(rows, self._attribute_types[EDGE_TYPE], self.options, first, where)

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
            If an edge comes before the edge in front of it; names file, row and both pairs.
        """
        if self.has_edges:
            return
        if self._builder.has_runs:
            for sources, targets, rows in read():
                self.add_edges(sources, targets, rows, where=where)
            return

        def checked() -> Iterator[OrderedChunk]:
            first = 0
            for sources, targets, rows in read():
                yield sources, targets, self._checked_rows(rows, first, where)
                first += len(sources)

        count = self.num_nodes or 0
        self._write_edges(
            OrderedEdges(
                checked,
                self._rules,
                places,
                num_nodes=count,
                num_edges=num_edges,
                where=where,
                progress=self.progress,
            )
        )

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
        attributes = self._take_units(EDGE_TYPE, attributes)
        if self.has_edges:
            return
        if places is not None and num_edges is not None:
            chunks = partial(self._with_rows, pairs, num_edges, attributes)
            self.write_in_order(
                lambda: (chunk[:3] for chunk in chunks()), num_edges, places, where=where
            )
            return
        self._adds_inverse |= add_inverse_edge
        if num_edges is not None:
            self._expect(num_edges, None if attributes else some_targets, attributes)

        def add(sources: Any, targets: Any, rows: dict[str, npt.NDArray[Any]], _: int) -> None:
            self.add_edges(sources, targets, rows, where=where)

        self._read_pairs(pairs, num_edges, attributes, add)

    def finish_edges(self) -> None:
        """Sort and write the edges; needs no call before `commit`."""
        if self._edges:
            return
        if self.has_edges:
            self._edges[EDGE_TYPE], num_nodes = self._finished[EDGE_TYPE]
            self._node.set_num_nodes(num_nodes)
            return
        if self.num_nodes is None:  # the largest id decides, which may be a wrong one
            found = self._builder.buffer
            warn_of_stray_ids(found.max_id + 1, 2 * found.num_seen, "the edges")
            check_pointers(self._store, found.max_id + 1)
        with self.progress.phase("sort edges", unit="edges"):
            built = self._builder.finish(self.num_nodes)
        self._write_edges(built)
        built.close()

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
        self._write_edges(split, split, rule)

    def _write_edges(
        self,
        built: BuiltEdges,
        split: SplitEdges | None = None,
        rule: SplitRule | None = None,
    ) -> None:
        num_nodes = built.num_nodes
        self._node.set_num_nodes(num_nodes)
        edges = write_adjacency(
            self._store,
            built,
            self._attribute_types[EDGE_TYPE],
            self.progress,
            split_sizes=None if split is None else split.sizes,
            are_renumbered=split is not None or self._carried is not None,
            carried_ids=self._carried,
        )
        if split is not None and rule is not None and rule.num_negatives:
            is_undirected = split.is_undirected
            edges = write_negatives(
                self._store, edges, rule, is_undirected=is_undirected, progress=self.progress
            )
        self._edges[EDGE_TYPE] = edges
        self._store.journal.record_edges({"num_nodes": num_nodes, "spec": asdict(edges)})

    # ---- nodes

    def node_rows(
        self, name: str, *, num_rows: int, row_shape: tuple[int, ...], dtype: str
    ) -> AbstractContextManager[RowSink]:
        """Write a node attribute row by row: the way in for features of any size.

        Parameters
        ----------
        name : str
            "x" is the features: `options.feature_dtype` applies to it. (`feature_scale` needs
            rows that can be read twice, as `set_node_attribute` does.)
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
        if name == SCALES and self.options.feature_scale:
            raise InputError(
                f"{SCALES!r} is the name of the scales that feature_scale= adds to the graph; "
                "rename the attribute, or leave it out"
            )
        values = as_source(values, f"the node attribute {name!r}")
        self._node.write(name, values, dtype=dtype, cat_dim=cat_dim)
        if name in self._node.scales:
            self.set_graph_array(SCALES, self._node.scales[name])

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
            raise UsageError(f"{where}: say how many nodes there are before the edge splits")
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
                self._attribute_types[EDGE_TYPE],
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

    def commit(self) -> Path:
        """Finish the store and return its path."""
        self.finish_edges()
        edges = self._edges[EDGE_TYPE]
        self._edges[EDGE_TYPE] = replace(
            edges, splits={**edges.splits, **self._edge_splits}, value_names=self._value_names
        )
        return self._commit(explicit_num_nodes=self.explicit_num_nodes)


def _with_inverse(
    sources: npt.NDArray[Any],
    targets: npt.NDArray[Any],
    rows: Mapping[str, npt.NDArray[Any]],
    first: int,
    where: str,
) -> tuple[tuple[npt.NDArray[Any], npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
    """Return edges with the reverse of each behind it; the first has a position in the input."""
    if sources.shape != targets.shape or sources.ndim != 1:
        return (sources, targets), dict(rows)  # which is refused as a whole
    for ids, end in ((sources, "source"), (targets, "target")):
        check_ids(ids, None, f"{where}: {end} node id", first)
    both = np.stack((sources, targets, targets, sources), axis=1).reshape(-1, 2)
    return (both[:, 0], both[:, 1]), {n: np.repeat(values, 2, axis=0) for n, values in rows.items()}
