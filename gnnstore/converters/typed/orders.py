"""Writes the orders of edges by time, and the sums of their weights, into a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.typed.reading import ReadArray
from gnnstore.converters.typed.times import check_weights, checked_times
from gnnstore.converters.writer.adjacency import finished_array
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError, UsageError, limits_named
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container import names as store_names
from gnnstore.formats.container.manifest import KINDS
from gnnstore.formats.store.by_column import (
    BLOCK_EDGE_BYTES,
    column_blocks,
    integer_weights,
    is_time,
    is_weight,
    largest_column,
    node_times,
    places_by_time,
    sums_by_column,
    weights_of,
)
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.schema import EdgeTypeSpec, Schema
from gnnstore.formats.store.units import find_units
from gnnstore.formats.store.writer import StoreWriter
from gnnstore.progress import NullProgress, Progress

_MAX_BLOCK_EDGES = 2**22


@dataclass
class Orders:
    """The orders and sums that a store is to have."""

    times: Sequence[str]  # time attributes
    weights: Sequence[str]  # weight attributes
    paged: Callable[[AttributeSpec], ReadArray]  # opens an array that is written
    read: Callable[[AttributeSpec], npt.NDArray[Any]]  # reads an attribute of nodes
    memory_bytes: int | None = None
    _times: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)  # of nodes, by path

    def add(self, store: StoreWriter, schema: Schema, progress: Progress) -> Schema:
        """Write the arrays that are not there, and return the schema with all."""
        self.check(schema)
        edges = []
        for edge in schema.edge_types:
            orders, sums = dict(edge.orders), dict(edge.weight_sums)
            for name in self._times_of(schema, edge):
                if name not in orders:
                    orders[name] = self._write_order(store, schema, edge, name, progress)
            for name in self.weights:
                if name in edge.attributes and name not in sums:
                    sums[name] = self._write_sums(store, edge, name, progress)
            edges.append(replace(edge, orders=orders, weight_sums=sums))
        return replace(schema, edge_types=tuple(edges))

    def _times_of(self, schema: Schema, edge: EdgeTypeSpec) -> list[str]:
        """Return the times that order the edges of a type."""
        return [
            name
            for name in self.times
            if name in edge.attributes or node_times(schema, edge, name) is not None
        ]

    def are_in(self, schema: Schema) -> bool:
        """Whether a schema has all orders and sums already."""
        return all(
            set(self._times_of(schema, edge)) <= edge.orders.keys()
            and set(self.weights) & edge.attributes.keys() <= edge.weight_sums.keys()
            for edge in schema.edge_types
        )

    def check(self, schema: Schema) -> None:
        """Refuse names that no attribute has, and attributes of other types."""
        of_nodes = {node.name: node.attributes for node in schema.node_types}
        of_edges = {edge.type: edge.attributes for edge in schema.edge_types}
        check_names(self.times, self.weights, of_nodes, of_edges)
        for name in self.times:
            nodes, edges = _owners(of_nodes, name), _owners(of_edges, name)
            if nodes and edges:
                raise InputError(
                    f"time_attr={name!r}: nodes ({_list(nodes)}) and edges ({_list(edges)}) have "
                    "it, but a loader can obey the times of either; rename one"
                )
            for owner in (*nodes, *edges):
                spec = (of_nodes.get(owner) or of_edges.get(owner) or {})[name]
                if not is_time(spec):
                    raise InputError(
                        f"time_attr={name!r}: that of {owner!r} is {spec.dtype} "
                        f"{list(spec.shape)}; times are int64 [N]: convert again with time_attr="
                    )
        for name in self.weights:
            for owner in _owners(of_edges, name):
                if not is_weight(spec := of_edges[owner][name]):
                    raise InputError(
                        f"weight_attr={name!r}: that of {owner} has the shape {list(spec.shape)}; "
                        "weights are one number for each edge"
                    )

    def _block_edges(self, held: int) -> int:
        """Return the number of edges of a block; `held` bytes are taken."""
        ledger = memory_ledger("orders by time, or sums of weights", self.memory_bytes)
        ledger = ledger.add(Reservation("times of nodes", held)) if held else ledger
        return max(1, min(_MAX_BLOCK_EDGES, ledger.left() // BLOCK_EDGE_BYTES))

    def _write_order(
        self, store: StoreWriter, schema: Schema, edge: EdgeTypeSpec, name: str, progress: Progress
    ) -> AttributeSpec:
        of_nodes = node_times(schema, edge, name)
        times = None if of_nodes is None else self._node_times(of_nodes)
        held = 0 if times is None else times.nbytes
        indptr, indices = self.paged(edge.indptr), self.paged(edge.indices)
        edge_id = None if edge.edge_id is None else self.paged(edge.edge_id)
        array = store.paged(
            store_names.order_array(edge.type, name),
            name=name,
            row_shape=(),
            dtype="uint16" if largest_column(indptr) <= 2**16 else "uint32",
            num_rows=edge.num_edges,
        )
        with progress.phase(f"order edges by {name}", edge.num_edges, "edges") as phase:
            for first, counts in column_blocks(indptr, self._block_edges(held)):
                last = first + int(counts.sum())
                if last > array.num_committed_rows:
                    if times is not None:
                        of_edges = times[indices.read_slice(first, last)]
                    else:
                        of_edges = self.paged(edge.attributes[name]).read_slice(first, last)
                        checked_times(of_edges, first, f"the times {name!r} of {edge.type}")
                    ids = (
                        np.arange(first, last)
                        if edge_id is None
                        else edge_id.read_slice(first, last)
                    )
                    places = places_by_time(of_edges, ids, counts)
                else:
                    places = np.zeros(last - first, np.int64)  # written already
                array.append(places.astype(array.dtype))
                phase.advance(last - first)
        array.close()
        return array.spec

    def _node_times(self, spec: AttributeSpec) -> npt.NDArray[np.int64]:
        if spec.path not in self._times:
            needed = Reservation(f"times of {spec.num_rows} nodes", spec.num_bytes)
            memory_ledger("orders by time", self.memory_bytes).add(needed).check()
            times = checked_times(self.read(spec), 0, f"the times in {spec.path}")
            self._times = {spec.path: times}  # one type's at a time
        return self._times[spec.path]

    def _write_sums(
        self, store: StoreWriter, edge: EdgeTypeSpec, name: str, progress: Progress
    ) -> AttributeSpec:
        spec = edge.attributes[name]
        indptr, weights = self.paged(edge.indptr), self.paged(spec)
        array = store.paged(
            store_names.weight_sums_array(edge.type, name),
            name=name,
            row_shape=(),
            dtype="uint64",
            num_rows=edge.num_edges,
        )
        with progress.phase(f"sum {name}", edge.num_edges, "edges") as phase:
            for first, counts in column_blocks(indptr, self._block_edges(0)):
                last = first + int(counts.sum())
                rows = weights.read_slice(first, last)
                check_weights(rows, spec.dtype, first, f"the weights {name!r} of {edge.type}")
                values = weights_of(rows, spec.dtype)
                array.append(sums_by_column(integer_weights(values, counts), counts))
                phase.advance(last - first)
        array.close()
        return array.spec


def add_orders(
    store: StoreWriter,
    schema: Schema,
    times: Mapping[str, npt.NDArray[np.int64]],
    options: ConvertOptions,
    progress: Progress,
) -> Schema:
    """Write the orders and sums that the options of a conversion name, and return the schema.

    `times` are those of nodes that lie compressed in the store, by path.
    """
    if not options.time_attr and not options.weight_attr:
        return schema
    return Orders(
        options.time_attr,
        options.weight_attr,
        lambda spec: ReadArray(finished_array(store, spec)),
        lambda spec: times[spec.path] if spec.path in times else finished_array(store, spec).load(),
        options.memory_bytes,
    ).add(store, schema, progress)


def _owners(attributes: Mapping[Any, Mapping[str, Any]], name: str) -> list[Any]:
    return [owner for owner, own in attributes.items() if name in own]


def _list(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))


def check_names(
    times: Sequence[str],
    weights: Sequence[str],
    of_nodes: Mapping[Any, Mapping[str, Any]],
    of_edges: Mapping[Any, Mapping[str, Any]],
) -> None:
    """Refuse times and weights that no type has, given the attributes of each."""
    for option, names, what, known in (
        ("time_attr", times, "node or edge attribute", {**of_nodes, **of_edges}),
        ("weight_attr", weights, "edge attribute", of_edges),
    ):
        for name in names:
            if not _owners(known, name):
                found = "; ".join(f"{own}: {_list(has) or 'none'}" for own, has in known.items())
                raise UsageError(f"{option}={name!r}: there is no such {what}; there are {found}")


@limits_named("add an order")
def add_order(
    store: PathLike,
    time_attr: str | Sequence[str] = (),
    weight_attr: str | Sequence[str] = (),
    *,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Give a store what loaders with `time_attr=` and `weight_attr=` need; return its path.

    The store is replaced in one step by one that has more arrays, and shares all other files with
    it. It has another uuid, so that packed epochs and partitions would not belong to it.

    Parameters
    ----------
    store : path-like
        The store.
    time_attr, weight_attr : str or sequence of str
        Attributes with times, of nodes or edges, and with weights of edges; see `ConvertOptions`.
        Those that have their order or sums already are passed over.
    memory_bytes : int, optional
        The most memory to use. None: all that is available.
    progress : Progress, optional
        Reports how far the work is.

    Raises
    ------
    UsageError
        If no attribute has such a name, or the store has packed epochs or partitions.
    InputError
        If times are no int64, or weights negative, NaN or infinite.
    BudgetError
        If the edges into one node, or the times of nodes, do not fit.
    NotFoundError, CorruptStoreError, StorageError
        If the store cannot be read, or replaced.
    """
    names = ConvertOptions(time_attr=time_attr, weight_attr=weight_attr)  # type: ignore[arg-type]
    if not names.time_attr and not names.weight_attr:
        raise UsageError("name what to add: time_attr (--time-attr) or weight_attr (--weight-attr)")
    reader = StoreReader.open(store)
    schema = reader.schema
    orders = Orders(
        names.time_attr,
        names.weight_attr,
        lambda spec: ReadArray(reader.paged(spec)),
        reader.read,
        memory_bytes=memory_bytes,
    )
    orders.check(schema)
    if orders.are_in(schema):
        return reader.path
    for kind in KINDS:
        if kind.directory and (found := find_units(kind, reader.path)):
            raise UsageError(
                f"{reader.path}: the {kind.name} {', '.join(unit.name for unit in found)} would "
                "not belong to the store with an order; remove what it is with 'gnnstore rm', and "
                "make it again afterwards"
            )
    with StoreWriter(reader.path, overwrite=True) as writer:
        writer.link_files(reader)
        schema = orders.add(writer, schema, progress or NullProgress())
        return writer.commit(schema, reader.manifest.provenance)
