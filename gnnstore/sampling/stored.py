"""Opens what a store has for sampling by time or weight: orders, times and sums of weights."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError
from gnnstore.formats.arrays.paged_array import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.csc import Csc, TopologyMode, load_column
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.schema import EdgeType, EdgeTypeSpec, NodeTypeSpec, Schema
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.sampling.sampled_graph import Column, SampledTypes
from gnnstore.sampling.temporal import TimeColumns

ColumnSpecs = dict[tuple["EdgeType", Column], "AttributeSpec"]


class StoredColumns:
    """Arrays of a store, each opened when a sampler first needs it. Thread-safe.

    Those of nodes are in memory, like `indptr`.
    """

    def __init__(self, reader: StoreReader, mode: TopologyMode, num_threads: int) -> None:
        self._reader = reader
        self._threads = num_threads if mode == "memory" else None
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._mapped: list[PagedArray] = []
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays in memory."""
        mapped = {array.spec.path for array in self._mapped}
        return sum(array.nbytes for path, array in self._arrays.items() if path not in mapped)

    def types(
        self, csc: Mapping[EdgeType, Csc], *, time_attr: str | None, weight_attr: str | None
    ) -> tuple[SampledTypes, ColumnSpecs]:
        """Return the graph with what sampling by an attribute needs, and where that is stored."""
        schema = self._reader.schema
        specs: ColumnSpecs = {}
        times: dict[EdgeType, TimeColumns] = {}
        sums: dict[EdgeType, npt.NDArray[np.uint64]] = {}
        node_times: dict[str, npt.NDArray[np.int64]] = {}
        if weight_attr is not None:
            for edge in _with(schema, "weight", weight_attr)[1]:
                spec = _made(self._reader.path, edge, "weight", weight_attr)
                specs[edge.type, "weight_sums"] = spec
                sums[edge.type] = self._get(spec)
        if time_attr is not None:
            of_nodes, timed = _with(schema, "time", time_attr)
            node_times = {name: self._get(spec, of_nodes=True) for name, spec in of_nodes.items()}
            for edge in timed:
                order = _made(self._reader.path, edge, "time", time_attr)
                specs[edge.type, "order"] = order
                if not of_nodes:
                    specs[edge.type, "times"] = edge.attributes[time_attr]
                own = node_times[edge.source] if of_nodes else self._get(edge.attributes[time_attr])
                times[edge.type] = TimeColumns(self._get(order), own, of_edges=not of_nodes)
        counts = {node.name: node.num_nodes for node in schema.node_types}
        label = str(self._reader.path)
        return SampledTypes(counts, csc, label, times, node_times, sums), specs

    def _get(self, spec: AttributeSpec, *, of_nodes: bool = False) -> npt.NDArray[Any]:
        with self._lock:
            if spec.path not in self._arrays:
                self._arrays[spec.path] = (
                    self._reader.read(spec)
                    if of_nodes
                    else load_column(self._reader, spec, self._mapped, self._threads)
                )
            return self._arrays[spec.path]


def times_needed(schema: Schema, path: object, config: SamplingConfig) -> frozenset[str] | None:
    """Check that a store has what is needed; return the node types that have times, or None."""
    if config.weight_attr is not None:
        for edge in _with(schema, "weight", config.weight_attr)[1]:
            _made(path, edge, "weight", config.weight_attr)
    if config.time_attr is None:
        return None
    of_nodes, timed = _with(schema, "time", config.time_attr)
    for edge in timed:
        _made(path, edge, "time", config.time_attr)
    return frozenset(of_nodes)


def _made(path: object, edge: EdgeTypeSpec, kind: str, name: str) -> AttributeSpec:
    made = edge.orders if kind == "time" else edge.weight_sums
    if name not in made:
        what = "order of its edges by" if kind == "time" else "sums of"
        raise UsageError(
            f"{kind}_attr={name!r}: {path} has no {what} {name!r} for the edge "
            f"type {edge.type}; make it: gnnstore add-order {path} --{kind}-attr {name}"
        )
    return made[name]


def _with(
    schema: Schema, kind: str, name: str
) -> tuple[dict[str, AttributeSpec], list[EdgeTypeSpec]]:
    """Return the attributes of node types, for times, and the edge types that they are about."""
    nodes = schema.node_types if kind == "time" else ()
    of_nodes = {node.name: node.attributes[name] for node in nodes if name in node.attributes}
    of_edges = [edge for edge in schema.edge_types if name in edge.attributes]
    if of_nodes and of_edges:
        raise UsageError(
            f"time_attr={name!r}: nodes ({', '.join(of_nodes)}) and edges "
            f"({', '.join(str(edge.type) for edge in of_edges)}) have it; sampling obeys the times "
            "of either: rename one"
        )
    if not of_nodes and not of_edges:
        owners: list[NodeTypeSpec | EdgeTypeSpec] = [*nodes, *schema.edge_types]
        there = {name for of in owners for name in of.attributes}
        raise UsageError(
            f"{kind}_attr={name!r}: there is no such "
            f"{'attribute of nodes or edges' if nodes else 'edge attribute'}; there are: "
            f"{', '.join(sorted(there)) or 'none'}"
        )
    return of_nodes, of_edges or [edge for edge in schema.edge_types if edge.source in of_nodes]
