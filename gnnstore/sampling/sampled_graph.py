"""What samplers read of an open graph, by node type and edge type: in-neighbours, times, weights.

Orders by time and sums of weights lie along in-neighbour lists; `StoredColumns` opens them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, UsageError, did_you_mean
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import EdgeType, EdgeTypeSpec, NodeTypeSpec, Schema
from gnnstore.formats.store.store import Csc, StoreReader, TopologyMode, load_column
from gnnstore.machine import PRIVATE, Machine

Int64Array = npt.NDArray[np.int64]

# What lies along in-neighbour lists, in the kernels' order; only times of edges.
Column = Literal["indices", "order", "times", "weight_sums"]
COLUMNS: tuple[Column, ...] = get_args(Column)

FanoutsOf = Callable[[EdgeType], tuple[int, ...]]
ColumnSpecs = dict[tuple[EdgeType, Column], AttributeSpec]

# Edges as ranges of positions in `indices`: target nodes, first positions, and those after the
# last, int64 [n] each, ascending; `EdgeFinder.excluding` gives them.
Excluded = tuple[Int64Array, Int64Array, Int64Array]


@dataclass(frozen=True, eq=False)
class TimeColumns:
    """The times of an edge type's in-neighbours, and the order of each list by time."""

    # uint16 or uint32 [E]: entry start + j is the place in its list of the j-th edge by time.
    order: npt.NDArray[Any]
    times: Int64Array  # int64: of the edges [E], or of all source nodes [N]
    of_edges: bool


@dataclass(frozen=True, eq=False)
class SampledTypes:
    """The types of a graph that batches are sampled from, in the order of the store."""

    num_nodes: Mapping[str, int]
    edges: Mapping[EdgeType, Csc]
    label: str = "the graph"
    # What a configuration's attribute restricts or weighs: edge types without are as ever.
    times: Mapping[EdgeType, TimeColumns] = field(default_factory=dict)
    # int64 [N], for seeds
    node_times: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    # uint64 [E]: inclusive sums of integer weights in each column
    weight_sums: Mapping[EdgeType, npt.NDArray[np.uint64]] = field(default_factory=dict)
    # int32 or int64 [N], for the nodes of a part: their ids in the whole store, which key draws
    draw_ids: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def of_one_type(cls, csc: Csc) -> Self:
        """Return a graph of one node type and one edge type."""
        return cls({csc.edge_type[2]: csc.num_nodes}, {csc.edge_type: csc}, csc.label)

    def column(self, edge_type: EdgeType, column: Column) -> npt.NDArray[Any]:
        """Return what a column of an edge type consists of."""
        if column == "indices":
            return self.edges[edge_type].indices
        if column == "weight_sums":
            return self.weight_sums[edge_type]
        times = self.times[edge_type]
        return times.order if column == "order" else times.times

    def kernel(self, fanouts_of: FanoutsOf, *, on_disk: bool = False) -> _core.SampledGraph:
        """Return the graph with the fan-outs of each edge type, as the kernels take it."""
        numbers = {name: number for number, name in enumerate(self.num_nodes)}
        names = numbers if len(numbers) > 1 else [""]
        return _core.SampledGraph(
            list(zip(names, self.num_nodes.values(), strict=True)),
            [self._columns(of, fanouts_of(of), numbers, on_disk) for of in self.edges],
        )

    def _columns(
        self,
        of: EdgeType,
        fanouts: tuple[int, ...],
        numbers: Mapping[str, int],
        on_disk: bool,
    ) -> _core.EdgeColumns:
        csc, times, sums = self.edges[of], self.times.get(of), self.weight_sums.get(of)
        options: dict[str, Any] = {}
        if times is not None:
            options |= {
                "timing": "edges" if times.of_edges else "sources",
                "order": None if on_disk else times.order,
                "order_dtype": times.order.dtype.name,
                "times": None if on_disk and times.of_edges else times.times,
            }
        if sums is not None:
            options |= {"weighted": True, "weight_sums": None if on_disk else sums}
        return _core.EdgeColumns(
            "" if len(self.edges) == 1 else str(of),
            numbers[of[0]],
            numbers[of[2]],
            list(self.edges).index(of),
            csc.indptr,
            None if on_disk else csc.indices,
            fanouts,
            num_src_nodes=csc.num_src,
            num_edges=csc.num_edges,
            indices_dtype=csc.indices.dtype.name,
            draw_ids=self.draw_ids.get(of[2]),
            **options,
        )


def times_of_seeds(
    ids: Mapping[str, Int64Array],
    given: Mapping[str, Any],
    node_times: Mapping[str, Int64Array],
    time_attr: str,
) -> dict[str, Int64Array]:
    """Return the times of seeds by type: the given ones, else the nodes'."""
    found = {}
    for name, own in ids.items():
        if name in given:
            times = np.asarray(given[name])
        elif name in node_times:
            known = node_times[name]
            # An id that is not a node is refused when it is sampled.
            times = np.take(known, own, mode="clip") if len(known) else np.zeros(len(own))
        elif len(own):
            raise UsageError(
                f"seeds of type {name!r} have no times, since these nodes have no {time_attr!r}; "
                "give them (input_time, or edge_label_time of links)"
            )
        else:
            times = np.empty(0)
        found[name] = np.ascontiguousarray(times, np.int64)
    return found


class StoredColumns:
    """Arrays of a store, each opened when a sampler first needs it. Thread-safe.

    Arrays of nodes are in memory, like `indptr`.
    """

    def __init__(
        self,
        reader: StoreReader,
        mode: TopologyMode,
        num_threads: int,
        machine: Machine = PRIVATE,
    ) -> None:
        self._reader = reader
        self._machine = machine
        self._threads = num_threads if mode == "memory" else None
        self._reads_nodes = mode != "mmap"  # whether what sampling looks up by node is in memory
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._mapped: list[PagedArray] = []
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays in memory."""
        mapped = {array.spec.path for array in self._mapped}
        return sum(array.nbytes for path, array in self._arrays.items() if path not in mapped)

    def types(
        self, csc: Mapping[EdgeType, Csc], time_attr: str | None, weight_attr: str | None
    ) -> tuple[SampledTypes, ColumnSpecs]:
        """Return the graph with what sampling by an attribute needs, and where that is stored."""
        schema, path = self._reader.schema, self._reader.path
        of_nodes, specs = columns_needed(schema, path, time_attr, weight_attr)
        node_times = {name: self._get(spec, of_nodes=True) for name, spec in of_nodes.items()}
        columns = {of: self._get(spec) for of, spec in specs.items()}
        times: dict[EdgeType, TimeColumns] = {}
        sums: dict[EdgeType, npt.NDArray[np.uint64]] = {}
        for (of, column), values in columns.items():
            if column == "weight_sums":
                sums[of] = values
            elif column == "order":
                own = node_times[of[0]] if of_nodes else columns[of, "times"]
                times[of] = TimeColumns(values, own, of_edges=not of_nodes)
        counts = {node.name: node.num_nodes for node in schema.node_types}
        draw_ids = {}
        if schema.part is not None:
            draw_ids[schema.node.name] = self._get(schema.part.whole_id, of_nodes=self._reads_nodes)
        return SampledTypes(counts, csc, str(path), times, node_times, sums, draw_ids), specs

    def _get(self, spec: AttributeSpec, *, of_nodes: bool = False) -> npt.NDArray[Any]:
        with self._lock:
            if spec.path not in self._arrays:
                self._arrays[spec.path] = (
                    self._reader.read(spec, self._machine)
                    if of_nodes
                    else load_column(self._reader, spec, self._mapped, self._threads, self._machine)
                )
            return self._arrays[spec.path]


def columns_needed(
    schema: Schema, path: object, time_attr: str | None, weight_attr: str | None
) -> tuple[dict[str, AttributeSpec], ColumnSpecs]:
    """Return the times of node types and the columns that sampling needs; raise if some lack."""
    of_nodes: dict[str, AttributeSpec] = {}
    specs: ColumnSpecs = {}
    if weight_attr is not None:
        for edge in _with(schema, "weight", weight_attr)[1]:
            specs[edge.type, "weight_sums"] = _made(path, edge, "weight", weight_attr)
    if time_attr is not None:
        of_nodes, timed = _with(schema, "time", time_attr)
        for edge in timed:
            specs[edge.type, "order"] = _made(path, edge, "time", time_attr)
            if not of_nodes:
                specs[edge.type, "times"] = edge.attributes[time_attr]
        of_edges = {edge.type: edge.attributes[time_attr] for edge in timed if not of_nodes}
        _refuse_units(time_attr, of_nodes or of_edges)
    return of_nodes, specs


def _refuse_units(name: str, owners: Mapping[Any, AttributeSpec]) -> None:
    """Refuse to compare times of different units."""
    units = {owner: spec.time_unit for owner, spec in owners.items() if spec.time_unit}
    if len(set(units.values())) > 1:
        raise UsageError(
            f"time_attr={name!r}: "
            + ", ".join(f"in {owner} it is in {unit}" for owner, unit in units.items())
            + "; times of different units cannot be compared: convert again, which brings them to "
            "one unit"
        )


def unit_of_times(schema: Schema, name: str) -> str | None:
    """Return the unit of a time attribute, of nodes or of edges; None: the store records none."""
    of_nodes, timed = _with(schema, "time", name)
    specs = [*of_nodes.values()] or [edge.attributes[name] for edge in timed]
    return next((spec.time_unit for spec in specs if spec.time_unit), None)


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
            f"{'attribute of nodes or edges' if nodes else 'edge attribute'}"
            f"{did_you_mean(name, there)}; there are: {', '.join(sorted(there)) or 'none'}"
        )
    return of_nodes, of_edges or [edge for edge in schema.edge_types if edge.source in of_nodes]


# ---- edges between nodes


# Returns the elements of a column (its dtype, [n]) at some positions (int64 [n]).
Fetch = Callable[[Int64Array], npt.NDArray[Any]]

# Most ids of a list on disk that are read: in a longer one a part of so many is searched for, a
# page of 4 KiB, the least that direct reads take.
_READ_IDS = 1 << 10
# Ids of such lists that are read together: 1 MB with their positions.
_READ_TOGETHER = 1 << 16


class EdgeFinder:
    """Finds the edges between pairs of nodes. Safe to use from many threads at once.

    `fetch` reads `indices` where these lie on disk.
    """

    def __init__(self, csc: Csc, fetch: Fetch | None = None) -> None:
        self._csc = csc
        self._fetch = fetch

    def are_edges(self, sources: Int64Array, targets: Int64Array) -> npt.NDArray[np.bool_]:
        """Return for each pair [B] of nodes whether an edge leads from one to the other."""
        firsts, ends = self.ranges(sources, targets)
        return firsts < ends

    def ranges(self, sources: Int64Array, targets: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the first position of the edges between each pair [B], and the end."""
        begins, ends = self._csc.indptr[targets], self._csc.indptr[targets + 1]
        try:
            if self._fetch is not None:
                return self._read_ranges(self._fetch, begins, ends, sources)
            return _core.equal_ranges(
                self._csc.indices, begins, ends, np.ascontiguousarray(sources)
            )
        except IndexError as error:
            raise CorruptStoreError(
                f"cannot look edges up in {self._csc.label}: {error}. Its topology is damaged; "
                "run 'gnnstore verify' on it, or convert the graph again",
                path=self._csc.label,
            ) from error

    def _read_ranges(
        self, fetch: Fetch, begins: Int64Array, ends: Int64Array, sources: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return what `ranges` does, with as much of each list as a search needs."""
        if ((begins < 0) | (begins > ends) | (ends > self._csc.num_edges)).any():
            raise IndexError(f"indptr does not ascend from 0 to {self._csc.num_edges}")
        # The edges from a source end where those from the next one would begin.
        begins, ends = np.tile(begins, 2), np.tile(ends, 2)
        wanted = np.concatenate([sources, sources + 1])
        while (long := np.flatnonzero(ends - begins > _READ_IDS)).size:
            middles = (begins[long] + ends[long]) // 2
            is_before = fetch(middles) < wanted[long]
            begins[long[is_before]] = middles[is_before] + 1
            ends[long[~is_before]] = middles[~is_before]
        # Each list once, although several searches may end in it.
        firsts, which = np.unique(begins, return_inverse=True)
        lengths = np.zeros(len(firsts), np.int64)
        np.maximum.at(lengths, which, ends - begins)
        places = np.cumsum(lengths) - lengths
        groups = places // _READ_TOGETHER
        for group in np.unique(groups):
            low, high = np.searchsorted(groups, [group, group + 1])
            own = np.flatnonzero((which >= low) & (which < high))
            shifts = firsts[low:high] - (places[low:high] - places[low])
            positions = np.repeat(shifts, lengths[low:high])
            ids = fetch(positions + np.arange(len(positions)))
            starts = places[which[own]] - places[low]
            lasts = starts + (ends[own] - begins[own])
            begins[own] += _core.equal_ranges(ids, starts, lasts, wanted[own])[0] - starts
        return begins[: len(sources)], begins[len(sources) :]

    def excluding(self, sources: Int64Array, targets: Int64Array) -> Excluded:
        """Return the edges between some pairs [B] in the form that samplers leave them out."""
        begins, ends = self.ranges(sources, targets)
        there = np.flatnonzero(begins < ends)
        begins, first = np.unique(begins[there], return_index=True)
        return targets[there[first]], begins, ends[there[first]]

    def ends(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the sources and targets of the edges at some positions [B]."""
        csc = self._csc
        sources = csc.indices[positions] if self._fetch is None else self._fetch(positions)
        if sources.size and (sources.min() < 0 or sources.max() >= csc.num_src):
            raise CorruptStoreError(
                f"{csc.label}: edges of its topology lead from nodes {sources.min()} to "
                f"{sources.max()}, expected 0 to {csc.num_src - 1}; run 'gnnstore verify' on it",
                path=csc.label,
            )
        return sources.astype(np.int64), self.targets_of(positions)

    def targets_of(self, positions: Int64Array) -> Int64Array:
        """Return the nodes that the edges at some positions [B] lead to."""
        return np.searchsorted(self._csc.indptr, positions, side="right") - 1


def reverse_of(edge_type: EdgeType, edge_types: Iterable[EdgeType]) -> EdgeType | None:
    """Return the type of the reverses of a type's edges, as PyTorch Geometric finds it."""
    source, relation, target = edge_type
    if (named := (target, f"rev_{relation}", source)) in (edge_types := tuple(edge_types)):
        return named
    if source == target:
        return edge_type
    candidates = [other for other in edge_types if (other[0], other[2]) == (target, source)]
    return candidates[0] if len(candidates) == 1 else None
