"""Writes the edges of one type, which come in pieces, into a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.edges.buffer import warn_of_stray_ids
from gnnstore.converters.edges.builder import EdgeBuilder
from gnnstore.converters.edges.columns import BuiltEdges
from gnnstore.converters.edges.ordered import EdgePlaces, OrderedChunk, OrderedEdges
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.inputs.ids import check_ids
from gnnstore.converters.inputs.source import ArraySource, RowTaker, check_rows, row_bytes
from gnnstore.converters.inputs.times import as_times
from gnnstore.converters.writer.adjacency import write_adjacency
from gnnstore.converters.writer.node_arrays import NodeArrays
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.converters.writer.orders import checked_edges
from gnnstore.formats.base.files import directory_bytes, require_space
from gnnstore.formats.store.schema import EdgeType, EdgeTypeSpec
from gnnstore.formats.store.store import StoreWriter
from gnnstore.progress import Progress
from gnnstore.units import format_size

Pairs = Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]]
_PIECE_BYTES = 2**23  # bytes of attributes of edges that are read at a time


def check_pointers(store: StoreWriter, num_nodes: int) -> None:
    """Refuse a number of nodes if the disk has no room for their column pointers."""
    needed = 8 * (num_nodes + 1)
    require_space(
        store.path,
        needed - directory_bytes(store.temporary_path),
        f"convert {num_nodes} nodes, whose pointers to edges alone take {format_size(needed)}, "
        "on disk and in memory where they are sampled",
        "check the number of nodes",
    )


class EdgeWriter:
    """Checks, sorts and writes the edges of one type. Not thread-safe.

    The type is the only one of a graph with one type of nodes, or one of several.
    """

    def __init__(
        self,
        store: StoreWriter,
        options: ConvertOptions,
        progress: Progress,
        nodes: Mapping[str, NodeArrays],
        rules: EdgeRules,
        *,
        edge_type: EdgeType,
        is_only: bool,
        spill_directory: Path,
        finished: tuple[EdgeTypeSpec, int] | None,
        reserved_bytes: int,
    ) -> None:
        self.spec: EdgeTypeSpec | None = None  # set when the edges are written
        # The types of attributes that NumPy does not have, and axes of their rows.
        self.attribute_types: dict[str, tuple[str, int]] = {}
        self.time_units: dict[str, str] = {}
        self.rules = rules
        self.adds_inverse = False  # whether the reverse of each edge is added behind it
        # Ids that come as the attribute `CARRIED_IDS`, and whether they are of the original data.
        self.carried_ids: np.dtype[Any] | None = None
        self.are_renumbered = False
        self._edge_type = edge_type
        self._is_only = is_only
        self._store = store
        self._options = options
        self._progress = progress
        self._nodes = nodes
        self._spill_directory = spill_directory
        self._finished = finished  # the edges that an interrupted conversion wrote, and N
        self._reserved_bytes = reserved_bytes

    @property
    def is_finished(self) -> bool:
        """Whether an interrupted conversion had finished the edges: none need be read."""
        return self._finished is not None

    @property
    def num_nodes(self) -> int | None:
        """N of both ends, the larger one; None if the largest id of an edge is to decide."""
        if self._is_only:
            return self._nodes[self._edge_type[2]].num_nodes
        # Columns behind the last target stay empty.
        return max(self._nodes[end].num_nodes or 0 for end in self._edge_type[::2])

    @cached_property
    def builder(self) -> EdgeBuilder:
        """What collects and sorts the edges."""
        builder = EdgeBuilder(
            self.rules,
            self._spill_directory,
            num_nodes=self.num_nodes,
            memory_bytes=self._options.memory_bytes,
            journal=self._store.journal,
        )
        builder.reserve(self._reserved_bytes)
        return builder

    def reserve(self, num_bytes: int) -> None:
        """Leave memory to the caller: that much less of the budget goes to the edges."""
        self._reserved_bytes += num_bytes
        if "builder" in self.__dict__:
            self.builder.reserve(num_bytes)

    def describe(self, name: str, dtype: str, cat_dim: int, time_unit: str | None) -> None:
        """Give an attribute's element type, where NumPy has none, its row axis, and unit."""
        if time_unit is not None:
            self.time_units[name] = time_unit
        is_time = name in self._options.time_attr
        self.attribute_types[name] = ("int64" if is_time else dtype, cat_dim)

    def expect(
        self,
        num_edges: int,
        some_targets: Iterable[npt.NDArray[Any]] | None = None,
        num_bytes: int = 0,
    ) -> None:
        """Check that there is room for so many edges, with attributes of `num_bytes` each."""
        if self.is_finished:
            return
        if self.adds_inverse:
            self.builder.expect(2 * num_edges, row_bytes=num_bytes)
        else:
            self.builder.expect(num_edges, some_targets, num_bytes)

    def add(
        self,
        sources: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        rows: Mapping[str, npt.NDArray[Any]],
        where: str,
    ) -> None:
        """Add a chunk of edges [k] with attribute rows [k, ...]; `where` names the input."""
        first = self.builder.buffer.num_seen // (2 if self.adds_inverse else 1)
        sources, targets, rows = self._checked(sources, targets, rows, first, where)
        if self.adds_inverse:
            (sources, targets), rows = _with_inverse(sources, targets, rows, first, where)
        self.builder.add(sources, targets, rows, where)

    def _checked(
        self,
        sources: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        rows: Mapping[str, npt.NDArray[Any]],
        first: int,
        where: str,
    ) -> OrderedChunk:
        what = where
        if not self._is_only:
            what = f"edges of type {self._edge_type}"
            source, _, target = self._edge_type
            for end, name, ids in (("source", source, sources), ("target", target, targets)):
                of = f"{where}: {what}: id of the {end} ({name!r})"
                check_ids(ids, self._nodes[name].num_nodes or 0, of, first)
        return (
            sources,
            targets,
            checked_edges(rows, self.attribute_types, self._options, first, what),
        )

    def read(
        self,
        pairs: Pairs,
        num_edges: int | None,
        attributes: Mapping[str, ArraySource] | None,
        *,
        where: str,
        some_targets: Iterable[npt.NDArray[Any]] | None = None,
        places: EdgePlaces | None = None,
    ) -> None:
        """Take all edges of an input; see `GraphWriter.read_edges`."""
        sources = {name: as_times(values) for name, values in (attributes or {}).items()}
        units = {name: source.time_unit for name, source in sources.items()}
        self.time_units |= {name: unit for name, unit in units.items() if unit}
        if self.is_finished:
            return
        chunks = partial(self._with_rows, pairs, num_edges, sources)
        if places is not None and num_edges is not None:
            self.write_in_order(chunks, num_edges, places, where=where)
            return
        if num_edges is not None:
            targets = None if sources else some_targets
            self.expect(num_edges, targets, sum(map(row_bytes, sources.values())))
        of = "" if self._is_only else f" {'__'.join(self._edge_type)}"
        with self._progress.phase(f"read edges{of}", num_edges, "edges") as phase:
            for chunk in chunks():
                self.add(*chunk, where)
                phase.advance(len(chunk[0]))

    def _with_rows(
        self, pairs: Pairs, num_edges: int | None, attributes: Mapping[str, ArraySource]
    ) -> Iterator[OrderedChunk]:
        """Yield sources, targets and attribute rows of all edges."""
        num_bytes = _PIECE_BYTES // max(1, len(attributes))
        takers = {name: RowTaker(source, num_bytes) for name, source in attributes.items()}
        for source in attributes.values():
            what = "edges" if self._is_only else f"edges of type {self._edge_type}"
            check_rows(source, num_edges, what)
        step = max(1, _PIECE_BYTES // max(1, sum(map(row_bytes, attributes.values()))))
        edges_read = 0
        for ends in _cut(pairs, step):
            num_new = len(ends[0])
            yield *ends, {name: taker.take(num_new) for name, taker in takers.items()}
            edges_read += num_new
        if not edges_read:  # the attributes' types still have to be known
            none = np.empty(0, np.int64)
            yield none, none, {name: taker.take(0) for name, taker in takers.items()}
        for taker in takers.values():
            taker.check_end(edges_read)

    def write_in_order(
        self,
        read: Callable[[], Iterable[OrderedChunk]],
        num_edges: int,
        places: EdgePlaces,
        *,
        where: str,
    ) -> None:
        """Write edges that come sorted; see `GraphWriter.write_in_order`."""
        if self.is_finished:
            return
        if self.builder.has_runs:
            for chunk in read():
                self.add(*chunk, where)
            return

        def checked() -> Iterator[OrderedChunk]:
            first = 0
            for chunk in read():
                yield self._checked(*chunk, first, where)
                first += len(chunk[0])

        ordered = OrderedEdges(
            checked,
            self.rules,
            places,
            num_nodes=self.num_nodes or 0,
            num_edges=num_edges,
            where=where,
            progress=self._progress,
        )
        self.write(ordered)

    def sort_and_write(
        self, complete: Callable[[EdgeTypeSpec], EdgeTypeSpec] | None = None
    ) -> EdgeTypeSpec:
        """Sort and write the edges, unless they are written; return what lies in the store."""
        if self.spec is None and self._finished is not None:
            self.spec, num_nodes = self._finished
            self._nodes[self._edge_type[2]].set_num_nodes(num_nodes)
        if self.spec is not None:
            return self.spec
        if self.num_nodes is None:  # the largest id decides, which may be a wrong one
            buffer = self.builder.buffer
            warn_of_stray_ids(buffer.max_id + 1, 2 * buffer.num_seen, "the edges")
            check_pointers(self._store, buffer.max_id + 1)
        with self._progress.phase("sort edges", unit="edges"):
            built = self.builder.build(self.num_nodes)
        return self.write(built, complete=complete)

    def write(
        self,
        built: BuiltEdges,
        *,
        split_sizes: Mapping[str, int] | None = None,
        complete: Callable[[EdgeTypeSpec], EdgeTypeSpec] | None = None,
    ) -> EdgeTypeSpec:
        """Write sorted edges, as `write_adjacency`; `complete` adds what belongs to them."""
        targets = self._nodes[self._edge_type[2]]
        if self._is_only:
            targets.set_num_nodes(built.num_nodes)
        num_targets = targets.num_nodes or 0
        spec = write_adjacency(
            self._store,
            built,
            self.attribute_types,
            self._progress,
            split_sizes=split_sizes,
            edge_type=self._edge_type,
            num_targets=num_targets,
            are_renumbered=self.are_renumbered,
            carried_ids=self.carried_ids,
        )
        self.spec = spec if complete is None else complete(spec)
        self._store.journal.record_edges({"num_nodes": num_targets, "spec": asdict(self.spec)})
        built.close()
        self.__dict__.pop("builder", None)
        _core.pool_trim()
        return self.spec


def _cut(pairs: Pairs, step: int) -> Pairs:
    """Yield sources and targets, at most `step` of them at a time, in which rows are bounded."""
    for sources, targets in pairs:
        if sources.shape != targets.shape:
            yield sources, targets  # which is refused
            continue
        for begin in range(0, len(sources), step):
            yield sources[begin : begin + step], targets[begin : begin + step]


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
