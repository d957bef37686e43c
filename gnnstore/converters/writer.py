"""What every converter talks to: edges, rows and splits go in, in pieces; a store comes out.

The writer knows what a homogeneous graph needs to be a sound store (counts that agree, ids
in range, splits that name nodes) and checks it in one place, whatever the input was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.adjacency import write_adjacency
from gnnstore.converters.array_files import ArraySource, MemoryArray
from gnnstore.converters.casting import Caster
from gnnstore.converters.edge_rules import EdgeRules
from gnnstore.converters.edges import EdgeBuilder
from gnnstore.converters.inputs import PathLike
from gnnstore.converters.opening import announce, open_store, place_spill
from gnnstore.converters.options import ConvertOptions, IndexDtype
from gnnstore.converters.pipeline import read_ahead
from gnnstore.converters.provenance import provenance
from gnnstore.converters.row_sink import RowSink
from gnnstore.converters.scaling import ScalingCaster, column_scales
from gnnstore.converters.spill import make_edge_builder
from gnnstore.converters.splits import split_ids, split_name
from gnnstore.converters.workload import Workload
from gnnstore.errors import InputError, UsageError
from gnnstore.formats import names
from gnnstore.formats.dtypes import dtype_name
from gnnstore.formats.schema import (
    NODE_TYPE,
    AttributeSpec,
    EdgeTypeSpec,
    NodeTypeSpec,
    Schema,
)
from gnnstore.progress import NullProgress, Progress

# Attribute rows of at most this many bytes (a label, a mask, a weight) are kept compressed
# and read whole; wider ones are read by row, so they are laid out in pages.
_MAX_COLD_ROW_BYTES = 8
# Compressing an array takes it whole, so that one of many rows is laid out in pages as well.
_MAX_COLD_BYTES = 2**26
_COPY_BYTES = 2**23  # pieces in which attributes are copied


class GraphWriter:
    """Writes one homogeneous graph as a store.

    A context manager: without a `commit` there is no store. What a full disk, an I/O error or
    Ctrl-C interrupts can be resumed; after any other error nothing is left. Not thread-safe.

    Parameters
    ----------
    output : path-like
        The store to be.
    kind : str
        The converter's name, for provenance.
    source : Mapping, optional
        What was read and how, as JSON values, for provenance.
    options : ConvertOptions, optional
        The common options.
    num_nodes : int, optional
        N, if it is known; else `set_num_nodes`, or the largest id of an edge decides.
    index_dtype : "int64" or "int32"
        Type of node ids in batches, unless the options say.
    edge_ids : bool
        Whether edges keep their positions in the input, unless the options say.
    progress : Progress, optional
        Is told how far the work is.

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
        self.options = options or ConvertOptions()
        self.progress = progress or NullProgress()
        self.explicit_num_nodes = False
        self._provenance = provenance(kind, source or {}, self.options)
        self._index_dtype: IndexDtype = self.options.index_dtype or index_dtype
        self._num_nodes = num_nodes
        keep_ids = edge_ids if self.options.edge_ids is None else self.options.edge_ids
        rules = EdgeRules(self.options.undirected, self.options.self_loops, keep_ids)
        graph = {"num_nodes": num_nodes, "index_dtype": self._index_dtype, "edge_ids": keep_ids}
        self._store = open_store(output, self.options, self._provenance, graph)
        self.journal = self._store.journal
        try:
            self.spill_directory = place_spill(self._store, self.options)
            announce(
                self._store,
                self.options,
                rules,
                source=source or {},
                progress=self.progress,
                workload=workload,
            )
            self._builder: EdgeBuilder = make_edge_builder(
                rules,
                num_nodes=num_nodes,
                memory_bytes=self.options.memory_bytes,
                spill_directory=self.spill_directory,
                journal=self.journal,
            )
        except BaseException:
            self._store.abort(keep=self.options.resume)  # hours of work may be in it
            raise
        self._edges: EdgeTypeSpec | None = None
        self._edge_types: dict[str, tuple[str, int]] = {}
        self._nodes: dict[str, AttributeSpec] = {}
        self._splits: dict[str, tuple[str, npt.NDArray[Any]]] = {}
        self._original_ids: AttributeSpec | None = None
        self._graph_values: dict[str, Any] = {}
        self._graph_arrays: dict[str, AttributeSpec] = {}

    @property
    def num_nodes(self) -> int | None:
        """N, as far as it is known."""
        return self._num_nodes

    def set_num_nodes(self, num_nodes: int) -> None:
        """Say how many nodes there are, before the edges are finished."""
        if self._num_nodes is not None and self._num_nodes != num_nodes:
            raise InputError(
                f"the input says {self._num_nodes} nodes in one place and {num_nodes} in another"
            )
        self._num_nodes = num_nodes
        self._builder.set_num_nodes(num_nodes)
        for where, values in self._splits.values():
            split_ids(values, num_nodes, where)

    # ---- edges

    def expect_edges(self, num_edges: int) -> None:
        """Say how many edges will come, so that a budget that is too small fails at once."""
        self._builder.expect(num_edges)

    def reserve_memory(self, num_bytes: int) -> None:
        """Leave memory to the caller: that much less of the budget goes to the edges."""
        self._builder.reserve(num_bytes)

    def describe_edge_attribute(self, name: str, *, dtype: str, cat_dim: int = 0) -> None:
        """Give an edge attribute's element type, where NumPy has none, and its row axis."""
        self._edge_types[name] = (dtype, cat_dim)

    def add_edges(
        self,
        sources: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        attributes: Mapping[str, npt.NDArray[Any]] | None = None,
        *,
        where: str = "the edges",
    ) -> None:
        """Add a chunk of edges.

        Parameters
        ----------
        sources, targets : ndarray of integers, shape [k]
            Node ids.
        attributes : Mapping of str to ndarray [k, ...], optional
            Attribute rows; the same names, types and row shapes in every chunk.
        where : str
            The input's name, for messages.

        Raises
        ------
        InputError, NoSpaceError, StorageError, BudgetError
            See `SpillingEdgeBuilder.add`.
        """
        self._builder.add(sources, targets, attributes or {}, where)

    def finish_edges(
        self, on_degrees: Callable[[npt.NDArray[np.int64]], None] | None = None
    ) -> None:
        """Sort and write the edges; needs no call before `commit`.

        Parameters
        ----------
        on_degrees : callable, optional
            Told the number of in-neighbours of the next nodes, int64 [k], until all N came.
        """
        if self._edges is not None:
            return
        with self.progress.phase("sort edges", unit="edges"):
            built = self._builder.finish(self._num_nodes)
        self._num_nodes = built.num_nodes
        self._edges = write_adjacency(
            self._store, built, self._edge_types, self.progress, on_degrees
        )
        built.close()

    # ---- nodes

    @contextmanager
    def node_rows(
        self,
        name: str,
        *,
        num_rows: int,
        row_shape: tuple[int, ...],
        dtype: str,
        cat_dim: int = 0,
        where: str | None = None,
        scales: npt.NDArray[np.float32] | None = None,
    ) -> Iterator[RowSink]:
        """Write a node attribute row by row: the way in for features of any size.

        Parameters
        ----------
        name : str
            "x" is the features: `options.feature_dtype` applies to it.
        num_rows : int
            N.
        row_shape : tuple of int
            Shape of a row.
        dtype : str
            Element type of the rows that will come.
        where : str, optional
            The input's name, for messages.
        scales : ndarray of float32, shape of a row, optional
            Store int8, as multiples of these. `set_node_attribute` finds them as
            `options.feature_scale` says, which needs rows that can be read twice.

        Yields
        ------
        RowSink
        """
        self._check_rows(where or repr(name), num_rows)
        stored = self.options.feature_dtype if name == "x" else None
        if name == "x" and self.options.feature_scale and scales is None:
            raise UsageError(
                "feature_scale needs features that can be read twice, which these cannot; "
                "convert without it first"
            )
        caster: Caster | ScalingCaster = Caster(name, dtype, stored or dtype)
        if scales is not None:
            caster = ScalingCaster(dtype, scales)
            self.set_graph_array(f"{name}_scale", scales)
        array = self._store.paged(
            names.node_array(NODE_TYPE, name),
            name=name,
            row_shape=row_shape,
            dtype=caster.target,
            num_rows=num_rows,
            cat_dim=cat_dim,
        )
        with self.progress.phase(f"write {name}", num_rows, "rows") as phase:
            yield RowSink(array, caster, phase)
        if array.is_complete:  # close now: what comes before the commit may be interrupted
            array.close()
        self._nodes[name] = array.spec

    def set_node_attribute(
        self,
        name: str,
        values: npt.NDArray[Any] | ArraySource,
        *,
        dtype: str | None = None,
        cat_dim: int = 0,
    ) -> None:
        """Write a node attribute: compressed if its rows are single values, else in pages.

        Parameters
        ----------
        values : ndarray or ArraySource, shape [N, ...]
            Rows first, whatever `cat_dim` was.
        dtype : str, optional
            Element type, where NumPy has none (bfloat16 as its bits).

        Raises
        ------
        InputError
            If there are not N rows, or a store cannot hold the values.
        """
        source = MemoryArray(repr(name), values) if isinstance(values, np.ndarray) else values
        dtype = dtype or dtype_name(source.dtype)
        if not source.shape:
            raise InputError(
                f"{source.label}: a single value is no node attribute, which has a row per node"
            )
        row_shape = source.shape[1:]
        row_bytes = source.dtype.itemsize * math.prod(row_shape)
        num_bytes = source.shape[0] * row_bytes
        is_wide = name == "x" or row_bytes > _MAX_COLD_ROW_BYTES or num_bytes > _MAX_COLD_BYTES
        if row_bytes and is_wide:
            step = max(1, _COPY_BYTES // row_bytes)
            with self.node_rows(
                name,
                num_rows=source.shape[0],
                row_shape=row_shape,
                dtype=dtype,
                cat_dim=cat_dim,
                where=source.label,
                scales=self._scales(name, source, dtype, step),
            ) as sink:
                start = sink.skip(sink.num_committed_rows)
                for rows in read_ahead(source.rows(step, start)):
                    sink.append(rows)
            return
        self._check_rows(source.label, source.shape[0])
        path = names.node_array(NODE_TYPE, name)
        array = source.read()
        self._nodes[name] = self._store.cold(path, array, name=name, dtype=dtype, cat_dim=cat_dim)

    def _scales(
        self, name: str, source: ArraySource, dtype: str, step: int
    ) -> npt.NDArray[np.float32] | None:
        if name != "x" or self.options.feature_scale is None:
            return None
        self._check_rows(source.label, source.shape[0])
        with self.progress.phase(f"find scales of {name}", source.shape[0], "rows") as phase:
            return column_scales(source, dtype, step, phase)

    def _check_rows(self, where: str, num_rows: int) -> None:
        if self._num_nodes is not None and num_rows != self._num_nodes:
            raise InputError(
                f"{where}: has {num_rows} rows, but the graph has {self._num_nodes} nodes; "
                "every node needs exactly one row"
            )

    def set_split(self, name: str, values: npt.NDArray[Any], *, where: str | None = None) -> None:
        """Name a set of nodes.

        Parameters
        ----------
        name : str
            "train", "valid" (or "val"), "test", or any other.
        values : ndarray
            Node ids (integers, [k]), in the order to keep, or a mask (bool, [N]).
        where : str, optional
            The input's name, for messages.

        Raises
        ------
        InputError
            If the split is there already, or names nodes that are not: at once if N is known,
            else as soon as it is.
        """
        name = split_name(name)
        where = where or f"the split {name!r}"
        if name in self._splits:
            raise InputError(f"{where}: the split {name!r} was given already")
        if self._num_nodes is not None:
            split_ids(values, self._num_nodes, where)
        self._splits[name] = (where, values)

    def set_original_ids(self, ids: npt.NDArray[np.int64]) -> None:
        """Record the input's own id [N] of every node."""
        self._check_rows("the original ids", len(ids))
        path = names.original_id_array(NODE_TYPE)
        self._original_ids = self._store.cold(path, ids, name="original_id")

    # ---- the graph as a whole

    def set_graph_attribute(self, name: str, value: Any) -> None:
        """Record a value of the whole graph: anything that JSON can hold."""
        self._graph_values[name] = value

    def set_graph_array(
        self, name: str, array: npt.NDArray[Any], *, dtype: str | None = None
    ) -> None:
        """Record an array of the whole graph."""
        path = names.graph_array(name)
        self._graph_arrays[name] = self._store.cold(path, array, name=name, dtype=dtype)

    def commit(self) -> Path:
        """Finish the store and return its path.

        Raises
        ------
        InputError
            If counts disagree or a split names nodes that are not there.
        StorageError
            If the operating system refuses.
        """
        self.finish_edges()
        edges, num_nodes = self._edges, self._num_nodes
        if edges is None or num_nodes is None:  # both are set by finish_edges
            raise AssertionError("edges are not finished")
        if self._index_dtype == "int32" and num_nodes > np.iinfo(np.int32).max:
            raise UsageError(
                f"index_dtype='int32' cannot number {num_nodes} nodes; use index_dtype='int64'"
            )
        for name, spec in self._nodes.items():
            self._check_rows(repr(name), spec.num_rows)
        if self._original_ids is not None:
            self._check_rows("the original ids", self._original_ids.num_rows)
        splits = {}
        for name, (where, values) in self._splits.items():
            ids = split_ids(values, num_nodes, where)
            splits[name] = self._store.cold(names.split_array(NODE_TYPE, name), ids, name=name)
        schema = Schema(
            node_types=(
                NodeTypeSpec(NODE_TYPE, num_nodes, self._nodes, splits, self._original_ids),
            ),
            edge_types=(edges,),
            graph_attributes=self._graph_values,
            graph_arrays=self._graph_arrays,
            index_dtype=self._index_dtype,
            explicit_num_nodes=self.explicit_num_nodes,
        )
        with self.progress.phase("commit"):
            return self._store.commit(schema, self._provenance)

    def __enter__(self) -> GraphWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._store.__exit__(kind, error, traceback)
        # The columns came from the kernels' pool, which would keep up to a gigabyte of them.
        _core.pool_trim()
