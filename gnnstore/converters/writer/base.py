"""What the writers of graphs of one type and of several types have in common."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._version import __version__
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.inputs.opening import PathLike, existing_directory
from gnnstore.converters.inputs.source import (
    as_array,
)
from gnnstore.converters.writer.adjacency import finished_edges
from gnnstore.converters.writer.edge_writer import EdgeWriter, check_pointers
from gnnstore.converters.writer.estimates import Workload, announce
from gnnstore.converters.writer.node_arrays import NodeArrays
from gnnstore.converters.writer.options import (
    ConvertOptions,
    IndexDtype,
    check_features,
    refuse_scales_name,
)
from gnnstore.converters.writer.orders import add_orders
from gnnstore.errors import GnnstoreError, InputError, UsageError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.journal import SPILL_DIRECTORY, foreign_spill_name
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base import names as store_names
from gnnstore.formats.store.schema import (
    NODE_TYPE,
    EdgeType,
    EdgeTypeSpec,
    NodeTypeSpec,
    PartSpec,
    Schema,
)
from gnnstore.formats.store.store import StoreWriter
from gnnstore.progress import NullProgress, Progress

TypeSpec = TypeVar("TypeSpec", NodeTypeSpec, EdgeTypeSpec)
_LOG = logging.getLogger(__name__)


def provenance(kind: str, source: Mapping[str, Any], options: ConvertOptions) -> dict[str, Any]:
    """Return the description of a store's origin: no clock, so that a resumed one is the same."""
    return {
        "kind": kind,
        **source,
        "options": options.to_json(),
        "gnnstore_version": __version__,
    }


def _fingerprint(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the facts that must be equal for a conversion to resume an interrupted one."""
    inputs = document.get("inputs")
    if inputs is None and "parameters" not in document:
        return None
    return {**document, "inputs_changed": _input_states(document)}


def _input_states(document: Mapping[str, Any]) -> list[list[list[Any]]]:
    """Return the path, size and time of the last change of each file, by input."""
    states = []
    for entry in document.get("inputs") or ():
        path = Path(entry["path"])
        files = filter(Path.is_file, sorted(path.rglob("*")) if path.is_dir() else [path])
        states.append([_state(file) for file in files])
    return states


def _state(file: Path) -> list[Any]:
    status = file.stat() if file.is_file() else None
    return [str(file), *((status.st_size, status.st_mtime_ns) if status else ())]


def _refuse_changed(states: list[list[list[Any]]], cause: BaseException | None = None) -> None:
    """Raise if a file has changed: passes over it may have read what differs."""
    for before in chain.from_iterable(states):
        file = Path(before[0])
        if _state(file) != before:
            raise InputError(
                f"{file}: has changed while it was read; convert it again when it is complete",
                path=file,
            ) from cause


def open_store(
    output: PathLike,
    options: ConvertOptions,
    provenance: Mapping[str, Any],
    graph: Mapping[str, Any],
) -> StoreWriter:
    """Begin a store, or resume an interrupted one if that is an option."""
    known = _fingerprint(provenance)
    if known is None and options.resume:
        raise UsageError(
            f"a conversion by {provenance['kind']!r} cannot be resumed: data in memory "
            "cannot be compared with the data of the interrupted run; leave out resume=True"
        )
    return StoreWriter(
        output,
        overwrite=options.overwrite,
        page_bytes=options.page_bytes,
        on_event=_LOG.warning,
        fingerprint=None if known is None else {**known, "graph": graph},
        resume=options.resume,
    )


def choose_spill_directory(store: StoreWriter, options: ConvertOptions) -> Path:
    """Return the directory for temporary files of edges; nothing is created."""
    building = store.temporary_path
    place = building / SPILL_DIRECTORY
    if options.spill_dir is not None:
        base = existing_directory(options.spill_dir, "the spill directory")
        place = base.absolute() / foreign_spill_name(building)
    store.journal.use_spill_directory(place)
    return place


def _check_units(stated: Iterable[str], types: Sequence[NodeTypeSpec | EdgeTypeSpec]) -> None:
    """Refuse a unit of an attribute that is not there, or does not hold integers."""
    for name in stated:
        specs = [each.attributes[name] for each in types if name in each.attributes]
        if not specs:
            raise UsageError(f"time_unit={name!r}: there is no such node or edge attribute")
        if wrong := [spec for spec in specs if STORAGE_DTYPES[spec.dtype].kind not in "iu"]:
            raise InputError(
                f"time_unit={name!r}: the attribute is {wrong[0].dtype}, and times in a unit are "
                "integers; convert it"
            )


class BaseWriter:
    """Opens a store and commits it; a context manager, and without a `commit` there is no store."""

    _is_homogeneous: ClassVar[bool]

    def __init__(
        self,
        output: PathLike,
        num_nodes: Mapping[str, int | None],
        *,
        kind: str,
        source: Mapping[str, Any] | None = None,
        options: ConvertOptions | None = None,
        index_dtype: IndexDtype = "int64",
        edge_ids: bool = True,
        progress: Progress | None = None,
        workload: Workload | None = None,
    ) -> None:
        self.options = options = options or ConvertOptions()
        self._check_options()
        if not num_nodes:
            raise UsageError("a graph without a node type cannot be stored")
        options.check_types(tuple(num_nodes))
        self.progress = progress or NullProgress()
        self._provenance = provenance(kind, source or {}, options)
        self._index_dtype: IndexDtype = options.index_dtype or index_dtype
        keep_ids = edge_ids if options.edge_ids is None else options.edge_ids
        self._rules = EdgeRules(options.undirected, options.self_loops, keep_ids)
        graph = {
            "num_nodes": list(num_nodes.items()),
            "index_dtype": self._index_dtype,
            "edge_ids": keep_ids,
        }
        self._inputs = _input_states(self._provenance)
        self._store = open_store(output, options, self._provenance, graph)
        self._graph_values: dict[str, Any] = {}
        self._graph_arrays: dict[str, AttributeSpec] = {}
        self._type_values: defaultdict[str | EdgeType, dict[str, Any]] = defaultdict(dict)
        self._type_arrays: defaultdict[str | EdgeType, dict[str, AttributeSpec]] = defaultdict(dict)
        self._edge_writers: dict[EdgeType, EdgeWriter] = {}
        self._edges: dict[EdgeType, EdgeTypeSpec] = {}  # those that are written, in their order
        self._reserved_bytes = 0
        try:
            self._nodes = {
                name: NodeArrays(self._store, options, self.progress, name, num_nodes=count)
                for name, count in num_nodes.items()
            }
            self.spill_directory = choose_spill_directory(self._store, options)
            # What an interrupted conversion had finished, and N.
            self._finished = finished_edges(self._store)
            for count in num_nodes.values():
                if count is not None:
                    check_pointers(self._store, count)
            if workload is not None and len(num_nodes) == 1:
                check_pointers(self._store, workload.num_nodes)
            notice = announce(self._store, options, self._rules, workload, self._provenance)
            if notice:
                self.progress.note(notice)
        except BaseException:
            self._store.abort(keep=options.resume)  # hours of work may be in it
            raise

    def _check_options(self) -> None:
        """Refuse options that such a graph cannot have."""

    def _writer_of(self, edge_type: EdgeType) -> EdgeWriter:
        """Return what writes the edges of a type."""
        if edge_type not in self._edge_writers:
            self._edge_writers[edge_type] = EdgeWriter(
                self._store,
                self.options,
                self.progress,
                self._nodes,
                self._rules,
                edge_type=edge_type,
                is_only=self._is_homogeneous,
                spill_directory=self.spill_directory,
                finished=self._finished.get(edge_type),
                reserved_bytes=self._reserved_bytes,
            )
        return self._edge_writers[edge_type]

    def reserve_memory(self, num_bytes: int) -> None:
        """Leave memory to the caller: that much less of the budget goes to the edges."""
        self._reserved_bytes += num_bytes
        for writer in self._edge_writers.values():
            writer.reserve(num_bytes)

    # ---- the graph as a whole

    def set_graph_attribute(self, name: str, value: Any) -> None:
        """Record a value of the whole graph: anything that JSON can hold."""
        self._check_graph_name(name)
        self._graph_values[name] = value

    def set_graph_array(self, name: str, array: npt.ArrayLike, *, dtype: str | None = None) -> None:
        """Record an array of the whole graph."""
        self._check_graph_name(name)
        values, path = as_array(array, f"the array {name!r}"), store_names.graph_array(name)
        self._graph_arrays[name] = self._store.compressed(path, values, name=name, dtype=dtype)

    def _check_graph_name(self, name: str) -> None:
        if self._is_homogeneous:  # else batches show it apart from what nodes have
            attributes = self._nodes[NODE_TYPE].attributes
            refuse_scales_name(self.options, NODE_TYPE, name, "the graph", attributes)

    def set_type_value(
        self, of: str | EdgeType, name: str, value: Any, *, dtype: str | None = None
    ) -> None:
        """Record what a type has as a whole: an array, or anything that JSON can hold."""
        if isinstance(of, str):
            attributes = self._nodes[of].attributes
            refuse_scales_name(self.options, of, name, f"the node type {of!r}", attributes)
        if isinstance(value, np.ndarray):
            path = store_names.value_array(of, name)
            self._type_arrays[of][name] = self._store.compressed(
                path, value, name=name, dtype=dtype
            )
        else:
            self._type_values[of][name] = value

    def _with_values(self, spec: TypeSpec, of: str | EdgeType) -> TypeSpec:
        return replace(spec, values=self._type_values[of], value_arrays=self._type_arrays[of])

    def _commit(self, *, explicit_num_nodes: bool = False, part: PartSpec | None = None) -> Path:
        check_features(self.options, {name: own.attributes for name, own in self._nodes.items()})
        for nodes in self._nodes.values():
            nodes.draw_splits()
        stated = self.options.time_units
        node_types = tuple(
            self._with_values(nodes.spec().with_time_units({**stated, **nodes.time_units}), name)
            for name, nodes in self._nodes.items()
        )
        edge_types = tuple(
            self._with_values(
                spec.with_time_units({**stated, **self._writer_of(of).time_units}), of
            )
            for of, spec in self._edges.items()
        )
        _check_units(stated, [*node_types, *edge_types])
        num_nodes = max(spec.num_nodes for spec in node_types)
        if self._index_dtype == "int32" and num_nodes > np.iinfo(np.int32).max:
            raise UsageError(
                f"index_dtype='int32' cannot number {num_nodes} nodes; use index_dtype='int64'"
            )
        schema = Schema(
            node_types=node_types,
            edge_types=edge_types,
            graph_attributes=self._graph_values,
            graph_arrays=self._graph_arrays,
            index_dtype=self._index_dtype,
            explicit_num_nodes=explicit_num_nodes,
            part=part,
        )
        times = {path: rows for nodes in self._nodes.values() for path, rows in nodes.times.items()}
        schema = add_orders(self._store, schema, times, self.options, self.progress)
        _refuse_changed(self._inputs)
        with self.progress.phase("commit"):
            return self._store.commit(schema, self._provenance)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._store.__exit__(kind, error, traceback)
        # Frees columns from the kernels' pool, which would keep up to a gigabyte.
        _core.pool_trim()
        if isinstance(error, Exception) and not isinstance(error, GnnstoreError):
            _refuse_changed(self._inputs, error)
