"""Times and weights of a store, the orders of edges by time, and the sums of their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import ArraySource, MappedRows
from gnnstore.converters.writer.adjacency import finished_array
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import CorruptStoreError, InputError, UsageError, limits_named
from gnnstore.formats.arrays.dtypes import dtype_name
from gnnstore.formats.arrays.paged import PagedArray, PagedArrayWriter
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base import names as store_names
from gnnstore.formats.container.manifest import KINDS
from gnnstore.formats.container.reads import CheckedFiles
from gnnstore.formats.store.by_column import (
    BLOCK_EDGE_BYTES,
    NO_TIME,
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
from gnnstore.formats.store.schema import EdgeTypeSpec, Schema
from gnnstore.formats.store.store import StoreReader, StoreWriter
from gnnstore.formats.store.units import find_units
from gnnstore.progress import NullProgress, Phase, Progress

_MAX_BLOCK_EDGES = 2**22


# ---- times and weights


def integer_times(source: ArraySource, what: str) -> ArraySource:
    """Return times [N] or [N, 1] as int64 [N]; `what` they are, for messages."""
    named = what if source.label == what else f"{source.label}: {what}"
    checked_times(np.empty((0, *source.shape[1:]), source.dtype), 0, named)
    return MappedRows(
        source, lambda rows, first: checked_times(rows, first, what), row_shape=(), dtype=np.int64
    )


def checked_times(rows: npt.NDArray[Any], first: int, what: str) -> npt.NDArray[np.int64]:
    """Return times as int64 [k]; `first` is the number of the first row, for messages."""
    if rows.dtype.kind not in "iu" or rows.shape[1:] not in ((), (1,)):
        raise InputError(
            f"{what} are {rows.dtype} [{', '.join(map(str, ('N', *rows.shape[1:])))}]; times are "
            "one integer for each row, of one unit, as seconds since 1970: convert them, and "
            "decide on a time for rows that have none"
        )
    rows = rows.reshape(-1)
    bad = rows > np.iinfo(np.int64).max if rows.dtype == np.uint64 else rows == NO_TIME
    if bad.any():
        row = int(np.argmax(bad))
        value = int(rows[row])
        problem = "is NaT (the smallest int64)" if value == NO_TIME else f"is {value}, above int64"
        raise InputError(
            f"{what}: row {first + row} {problem}; decide on a time for rows without one"
        )
    return rows.astype(np.int64, copy=False)


def checked_edges(
    rows: Mapping[str, npt.NDArray[Any]],
    types: Mapping[str, tuple[str, int]],
    options: ConvertOptions,
    first: int,
    of: str,
) -> dict[str, npt.NDArray[Any]]:
    """Return attribute rows of edges; times are checked and int64, weights are checked."""
    found = dict(rows)
    for name in options.time_attr:
        if name in rows:
            found[name] = checked_times(rows[name], first, f"the times {name!r} of {of}")
    for name in options.weight_attr:
        if name in rows:
            dtype = types.get(name, (dtype_name(rows[name].dtype), 0))[0]
            check_weights(rows[name], dtype, first, f"the weights {name!r} of {of}")
    return found


def check_weights(rows: npt.NDArray[Any], dtype: str, first: int, what: str) -> None:
    """Refuse weights that are negative, NaN or infinite, or not one for each edge."""
    spec = AttributeSpec("", "", "paged", dtype, rows.shape)
    if not is_weight(spec) or rows.dtype.kind not in "biuf":
        raise InputError(
            f"{what} are {dtype} [E, {', '.join(map(str, rows.shape[1:]))}]; expected one number "
            "for each edge"
        )
    weights = weights_of(rows, dtype)
    bad = ~((weights >= 0) & (weights < np.inf))
    if bad.any():
        edge = int(np.argmax(bad))
        raise InputError(
            f"{what}: the weight of edge {first + edge} is {weights[edge]}; weights are finite and "
            "not negative"
        )


# ---- orders and sums


def _list(names: Iterable[object]) -> str:
    return ", ".join(map(str, names))


def _type_name(own: object) -> str:
    return "__".join(own) if isinstance(own, tuple) else str(own)


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
            if not any(name in has for has in known.values()):
                there = {own: _list(has) for own, has in known.items() if has}
                found = "; ".join(f"{_type_name(own)}: {has}" for own, has in there.items())
                raise UsageError(
                    f"{option}={name!r}: there is no such {what}; there are {found or 'none'}"
                )


@dataclass
class Orders:
    """The orders and sums that a store is to have."""

    times: Sequence[str]  # time attributes
    weights: Sequence[str]  # weight attributes
    paged: Callable[[AttributeSpec], PagedArray]  # opens an array that is written
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
            nodes, edges = (
                {owner: own[name] for owner, own in some.items() if name in own}
                for some in (of_nodes, of_edges)
            )
            if nodes and edges:
                raise InputError(
                    f"time_attr={name!r}: nodes ({_list(nodes)}) and edges ({_list(edges)}) "
                    "have it, but a loader can obey the times of either; rename one"
                )
            for owner, spec in {**nodes, **edges}.items():
                if not is_time(spec):
                    raise InputError(
                        f"time_attr={name!r}: in {owner!r} it is {spec.dtype} "
                        f"{list(spec.shape)}; times are int64 [N]: convert again with time_attr="
                    )
            units = {owner: spec.time_unit for owner, spec in {**nodes, **edges}.items()}
            if len(set(units.values())) > 1:
                found = ", ".join(f"{owner}: {unit or 'none'}" for owner, unit in units.items())
                raise InputError(
                    f"time_attr={name!r}: its units differ ({found}), so that times cannot be "
                    f"compared; convert again with time_attr={name!r}, and time_unit= for what "
                    "states no unit"
                )
        for name in self.weights:
            for owner, own in of_edges.items():
                if name in own and not is_weight(spec := own[name]):
                    raise InputError(
                        f"weight_attr={name!r}: in {owner} it has the shape {list(spec.shape)}; "
                        "weights are one number for each edge"
                    )

    def _block_edges(self, held: int) -> int:
        """Return the number of edges of a block; `held` bytes are taken."""
        ledger = memory_ledger("orders by time, or sums of weights", self.memory_bytes)
        ledger = ledger.add(Reservation("times of nodes", held)) if held else ledger
        return max(1, min(_MAX_BLOCK_EDGES, ledger.left() // BLOCK_EDGE_BYTES))

    def _write(
        self,
        array: PagedArrayWriter,
        edge: EdgeTypeSpec,
        values: Callable[[int, int, npt.NDArray[np.int64]], npt.NDArray[Any]],
        phase: Phase,
        held: int = 0,
    ) -> AttributeSpec:
        """Write the values of all edges, given the first and last of some columns' and counts."""
        for first, counts in column_blocks(self.paged(edge.indptr), self._block_edges(held)):
            last = first + int(counts.sum())
            is_written = last <= array.num_committed_rows
            rows = np.zeros(last - first) if is_written else values(first, last, counts)
            array.append(rows.astype(array.dtype))
            phase.advance(last - first)
        array.close()
        return array.spec

    def _write_order(
        self, store: StoreWriter, schema: Schema, edge: EdgeTypeSpec, name: str, progress: Progress
    ) -> AttributeSpec:
        of_nodes = node_times(schema, edge, name)
        times = None if of_nodes is None else self._node_times(of_nodes)
        array = store.paged(
            store_names.order_array(edge.type, name),
            name=name,
            row_shape=(),
            dtype="uint16" if largest_column(self.paged(edge.indptr)) <= 2**16 else "uint32",
            num_rows=edge.num_edges,
        )

        def places(first: int, last: int, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            if times is not None:
                of_edges = times[self._sources(edge, first, last, len(times))]
            else:
                of_edges = self.paged(edge.attributes[name]).read_slice(first, last)
                checked_times(of_edges, first, f"the times {name!r} of {edge.type}")
            ids = np.arange(first, last)
            if edge.edge_id is not None:
                ids = self.paged(edge.edge_id).read_slice(first, last)
            return places_by_time(of_edges, ids, counts)

        with progress.phase(f"order edges by {name}", edge.num_edges, "edges") as phase:
            held = 0 if times is None else times.nbytes
            return self._write(array, edge, places, phase, held)

    def _sources(
        self, edge: EdgeTypeSpec, first: int, last: int, num_nodes: int
    ) -> npt.NDArray[Any]:
        ids = self.paged(edge.indices).read_slice(first, last)
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
            where = self.paged(edge.indices).file_paths[0]
            raise CorruptStoreError(
                f"{where}: edges {first} to {last - 1} come from nodes outside [0, {num_nodes}); "
                "restore the store from a copy or convert again",
                path=where,
            )
        return ids

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
        weights, dtype = self.paged(edge.attributes[name]), edge.attributes[name].dtype
        array = store.paged(
            store_names.weight_sums_array(edge.type, name),
            name=name,
            row_shape=(),
            dtype="uint64",
            num_rows=edge.num_edges,
        )

        def sums(first: int, last: int, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
            rows = weights.read_slice(first, last)
            check_weights(rows, dtype, first, f"the weights {name!r} of {edge.type}")
            return sums_by_column(integer_weights(weights_of(rows, dtype), counts), counts)

        with progress.phase(f"sum {name}", edge.num_edges, "edges") as phase:
            return self._write(array, edge, sums, phase)


def add_orders(
    store: StoreWriter,
    schema: Schema,
    times: Mapping[str, npt.NDArray[np.int64]],
    options: ConvertOptions,
    progress: Progress,
) -> Schema:
    """Write the orders and sums that the options of a conversion name, and return the schema.

    `times` are the times of nodes that lie compressed in the store, by path.
    """
    if not options.time_attr and not options.weight_attr:
        return schema
    return Orders(
        options.time_attr,
        options.weight_attr,
        partial(finished_array, store),
        lambda spec: times[spec.path] if spec.path in times else finished_array(store, spec).load(),
        options.memory_bytes,
    ).add(store, schema, progress)


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
        If times are not int64 or differ in their units, or weights are negative, NaN or infinite.
    BudgetError
        If the edges into one node, or the times of nodes, do not fit.
    NotFoundError, CorruptStoreError, StorageError
        If the store cannot be read, or replaced.
    """
    names = ConvertOptions(time_attr=time_attr, weight_attr=weight_attr)  # type: ignore[arg-type]
    if not names.time_attr and not names.weight_attr:
        raise UsageError("name what to add: time_attr= or weight_attr=")
    reader = StoreReader.open(store)
    schema, files = reader.schema, CheckedFiles(reader)
    orders = Orders(
        names.time_attr, names.weight_attr, files.paged, files.read, memory_bytes=memory_bytes
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
