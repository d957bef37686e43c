"""Stores of the parts of an assignment: each has all that sampling from its seeds needs.

A part has its seeds, and the nodes within L hops of them; a node within L - 1 hops has its whole
in-neighbour list, others have an empty one. Nodes keep the order of the whole store, so that lists
stay ascending, and the store keeps their ids there, which key the draws of sampling.

One ordered pass over the edges for each hop finds the nodes of all parts, as bitmaps; then part
after part is written, in one pass over edges and nodes each.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.edges.columns import CARRIED_IDS
from gnnstore.converters.edges.ordered import EdgePlaces, OrderedChunk
from gnnstore.converters.inputs.source import ArraySource, GeneratedRows, read_ahead
from gnnstore.converters.stores.graph import (
    CopiedRows,
    EdgePiece,
    StoreInput,
    copy_graph,
    copy_rows,
    describe_edges,
    is_made,
    open_copy,
    texts_of,
)
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.node_arrays import MAX_COMPRESSED_BYTES, split_name
from gnnstore.converters.writer.options import ConvertOptions, with_orders
from gnnstore.errors import StoreExistsError, UsageError, limits_named
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container.workdir import check_final, remove_final
from gnnstore.formats.store.schema import StoreManifest, TextSpec
from gnnstore.formats.store.store import StoreReader
from gnnstore.progress import Progress
from gnnstore.units import format_count

KIND = "assign"
_LOG = logging.getLogger(__name__)
_PIECE_EDGES = 2**20
_PIECE_BYTES = 2**23  # bytes of attributes in a piece; some copies exist at a time
_PIECE_NODES = 2**22
_PIECES_BYTES = 2**26  # memory of pieces, and of what is made of them

Int64Array = npt.NDArray[np.int64]
Bitmap = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Members:
    """The nodes of each part, as bitmaps."""

    whole: npt.NDArray[np.uint64]  # [K, words]: nodes with their whole in-neighbour lists
    nodes: npt.NDArray[np.uint64]  # [K, words]: all nodes


@dataclass(frozen=True, eq=False)
class Closure:
    """The stores of parts to be, in a directory."""

    graph: StoreInput
    output: Path
    num_parts: int
    num_hops: int
    split: str  # the seeds' name
    options: ConvertOptions

    @classmethod
    @limits_named("assign")
    def from_options(
        cls,
        store: str | os.PathLike[str],
        output: str | os.PathLike[str],
        num_parts: int,
        num_hops: int,
        split: str | None,
        *,
        options: ConvertOptions,
    ) -> Closure:
        """Check what can be checked before any work; the seeds of no split are called "train"."""
        graph = StoreInput(store, "gnnstore assign --closure full")
        graph.reader.schema.refuse_taken_names(graph.reader.path)
        output, path = Path(output), graph.reader.path.resolve()
        if path in (output.resolve(), *output.resolve().parents):
            raise UsageError(
                f"{output} is the store that is read, or in it; choose another directory"
            )
        if output.exists() and not output.is_dir():
            raise UsageError(f"{output} is not a directory, and parts are written into one")
        name = split_name("train" if split is None else split)
        own = cls(graph, output, num_parts, num_hops, name, with_orders(options, graph.edges))
        fits_less = own.memory.limit >= replace(own, num_parts=1).memory.peak()
        own.memory.check(None, *["assign to fewer parts"] * fits_less)
        return own

    @cached_property
    def memory(self) -> Ledger:
        """Memory that finding and writing the nodes of parts takes."""
        num_nodes = self.graph.num_nodes
        who = f"writing {format_count(self.num_parts, 'part')}"
        return memory_ledger(who, self.options.memory_bytes).add(
            Reservation(
                f"the nodes of {format_count(self.num_parts, 'part')}, as bitmaps",
                16 * self.num_parts * -(-num_nodes // 64),
            ),
            Reservation("numbers of nodes", 2 * id_dtype(num_nodes).itemsize * num_nodes),
            Reservation("pieces", _PIECES_BYTES),
        )

    def path(self, part: int) -> Path:
        """Return the path of a part's store."""
        return self.output / f"part-{part}.gnn"

    def refuse_existing(self) -> None:
        """Raise if a store is in the way of a part, or would pass for one, unless it is replaced.

        Parts of an attempt that is resumed are not in the way.
        """
        overwrite = self.options.overwrite
        if overwrite or not self.options.resume:
            for part in range(self.num_parts):
                check_final(self.path(part), StoreManifest, overwrite=overwrite)
        for path in self._others():
            if not self._is_own(path):
                raise StoreExistsError(
                    f"{path} exists, which is not among the "
                    f"{format_count(self.num_parts, 'part')} and not a part "
                    "of this store; remove it yourself, or choose another output",
                    path=path,
                )
            if not overwrite:
                raise StoreExistsError(
                    f"{path} exists, which is not among the "
                    f"{format_count(self.num_parts, 'part')}; choose another "
                    "output, or pass overwrite=True to remove it once the new parts are complete",
                    path=path,
                )

    def _others(self) -> list[Path]:
        """Return what lies there under names of parts with higher numbers."""
        found = ((re.fullmatch(r"part-(\d+)\.gnn", own.name), own) for own in _entries(self.output))
        return [own for name, own in found if name and int(name[1]) >= self.num_parts]

    def _is_own(self, path: Path) -> bool:
        """Whether a part of the store lies there."""
        part = StoreReader.open(path).schema.part if StoreManifest.is_at(path) else None
        return part is not None and part.store_uuid == self.graph.reader.uuid

    @limits_named("assign")
    def write(
        self, seeds: Int64Array, parts: npt.NDArray[np.uint16], progress: Progress, **source: Any
    ) -> list[Path]:
        """Write the parts of some seeds, [T] each, and return their stores.

        `source` describes where the parts come from, for provenance.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        self._warn_of_splits()
        self.graph.check_carried(self.options.memory_bytes)
        of_parts = [{"part": part, **source} for part in range(self.num_parts)]
        left = [
            part
            for part, own in enumerate(of_parts)
            if not is_made(self.graph, self.path(part), KIND, own, self.options)
        ]
        if left:
            members = self._find(seeds, parts, progress)
            places = np.empty(self.graph.num_nodes, id_dtype(self.graph.num_nodes))
        for part in left:
            own = _Part(self, part, members.whole[part], members.nodes[part], places)
            own.write(seeds[parts == part], of_parts[part], progress)
        for path in self._others():
            if self.options.overwrite and self._is_own(path):
                remove_final(path, "part")
        return [self.path(part) for part in range(self.num_parts)]

    def _warn_of_splits(self) -> None:
        left = [name for name in self.graph.nodes.splits if name != self.split]
        left += [f"edges of {name}" for name in self.graph.edges.splits]
        if left:
            _LOG.warning(
                "%s: the splits %s are left out of the parts, which have all in-neighbours of "
                "their seeds alone; evaluate on the whole store",
                *(self.graph.reader.path, ", ".join(map(repr, left))),
            )

    def _find(
        self, seeds: Int64Array, parts: npt.NDArray[np.uint16], progress: Progress
    ) -> _Members:
        """Return the nodes of each part."""
        graph = self.graph
        nodes = np.zeros((self.num_parts, -(-graph.num_nodes // 64)), np.uint64)
        for part, own in enumerate(nodes):
            _core.bitmap_mark(own, seeds[parts == part])
        whole = np.empty_like(nodes)
        with progress.phase("find nodes", self.num_hops * graph.num_edges, "edges") as phase:
            for _ in range(self.num_hops):
                np.copyto(whole, nodes)
                for piece in read_ahead(graph.edge_pieces(_PIECE_EDGES)):
                    for found, own in zip(nodes, whole, strict=True):
                        if (chosen := _into(own, piece)).any():
                            _core.bitmap_mark(found, piece.sources[chosen])
                    phase.advance(len(piece.sources))
        return _Members(whole, nodes)


@dataclass(frozen=True, eq=False)
class _Part:
    """One part of a store."""

    of: Closure
    number: int
    whole: Bitmap  # nodes with their whole in-neighbour lists
    members: Bitmap  # all nodes
    places: npt.NDArray[Any]  # for the numbers of the part's nodes; others have any

    @cached_property
    def nodes(self) -> npt.NDArray[Any]:
        """The nodes, ascending, by their numbers in the part."""
        found = np.empty(_core.bitmap_count(self.members)[1], self.places.dtype)
        done = 0
        for first in range(0, len(self.places), _PIECE_NODES):
            last = min(first + _PIECE_NODES, len(self.places))
            own = first + np.flatnonzero(_members(self.members, first, last))
            found[done : done + len(own)] = own
            done += len(own)
        return found

    def write(self, seeds: Int64Array, source: dict[str, Any], progress: Progress) -> None:
        """Write the store."""
        of, graph, nodes = self.of, self.of.graph, self.nodes
        self.places[nodes] = np.arange(len(nodes), dtype=self.places.dtype)
        num_edges = self._num_edges()
        own = graph.edges.edge_id
        ids = id_dtype(graph.num_edges) if own is None else np.dtype(own.dtype)
        work = graph.workload(id_bytes=ids.itemsize)
        tables = tuple(table._replace(num_rows=len(nodes)) for table in work.node_tables)
        with open_copy(
            graph,
            of.path(self.number),
            source,
            kind=KIND,
            options=of.options,
            num_nodes=len(nodes),
            edge_ids=False,
            progress=progress,
            workload=replace(
                work, num_nodes=len(nodes), num_edges=num_edges, are_sorted=True, node_tables=tables
            ),
        ) as writer:
            writer.carry_edge_ids(ids, are_renumbered=False)
            describe_edges(writer, graph.edges.attributes)
            writer.write_in_order(self._edges, num_edges, _PLACES, where=str(graph.reader.path))
            if graph.edges.original_id is not None:
                writer.set_original_edge_ids(_EdgeIds(self, graph.edges.original_id, num_edges))
            self._write_nodes(writer)
            writer.set_split(of.split, self.places[seeds].astype(np.int64))
            copy_graph(writer, graph, find_nodes=lambda: nodes)
            writer.set_part(
                self._numbers("ids in the whole store", nodes.dtype),
                store_uuid=graph.reader.uuid,
                num_nodes=graph.num_nodes,
                part=self.number,
                num_parts=of.num_parts,
                num_hops=of.num_hops,
                split=of.split,
            )
            writer.commit()

    def _num_edges(self) -> int:
        first = total = 0
        for degrees in self.of.graph.degree_blocks():
            last = first + len(degrees)
            total += int(degrees[_members(self.whole, first, last)].sum())
            first = last
        return total

    def pieces(self, row_bytes: int) -> Iterator[tuple[EdgePiece, npt.NDArray[np.bool_]]]:
        """Yield pieces of the whole store that have edges of the part, and which these are."""
        step = max(1, min(_PIECE_EDGES, _PIECE_BYTES // max(1, row_bytes)))
        for piece in read_ahead(self.of.graph.edge_pieces(step)):
            if (chosen := _into(self.whole, piece)).any():
                yield piece, chosen

    def _edges(self) -> Iterable[OrderedChunk]:
        """Yield the edges, as numbered in the part, with their ids as an attribute."""
        graph, places = self.of.graph, self.places
        own = graph.edges.edge_id

        def rows(first: int, last: int, chosen: Any) -> dict[str, npt.NDArray[Any]]:
            found = graph.edge_rows(first, last)
            ids = np.arange(first, last) if own is None else graph.rows(own, first, last)
            return {name: values[chosen] for name, values in {**found, CARRIED_IDS: ids}.items()}

        none = np.empty(0, np.int64)
        yield none, none, rows(0, 0, slice(None))  # the attributes' types have to be known
        for piece, chosen in self.pieces(graph.edge_row_bytes):
            ends = (places[ids[chosen]].astype(np.int64) for ids in (piece.sources, piece.targets))
            sources, targets = ends
            yield sources, targets, rows(piece.first, piece.first + len(chosen), chosen)

    def _numbers(self, what: str, dtype: npt.DTypeLike) -> ArraySource:
        """Return the nodes' numbers in the whole store as the rows of an array."""
        nodes = self.nodes
        return GeneratedRows(what, nodes.shape, dtype, lambda a, b: nodes[a:b].astype(dtype))

    def _write_nodes(self, writer: GraphWriter) -> None:
        graph, spec = self.of.graph, self.of.graph.nodes
        copy_rows(writer, graph, lambda source: nullcontext(_ChosenRows(source, self.nodes)))
        original = self._numbers("the ids", np.int64)
        if spec.original_id is not None:
            original = _ChosenRows(CopiedRows(graph, spec.original_id), self.nodes)
        is_small = 8 * len(self.nodes) <= MAX_COMPRESSED_BYTES
        writer.set_original_ids(original.read() if is_small else original)
        if (text := spec.original_name) is not None:
            num_bytes = sum(len(name) for some in self._names(text) for name in some)
            writer.set_original_names(self._names(text), len(self.nodes), num_bytes)

    def _names(self, text: TextSpec) -> Iterator[list[bytes]]:
        """Yield the names of the nodes in order, in lists."""
        first = 0
        for some in texts_of(self.of.graph, text):
            own = np.flatnonzero(_members(self.members, first, first + len(some)))
            if len(own):
                yield [some[place] for place in own.tolist()]
            first += len(some)


class _ChosenRows(ArraySource):
    """The rows of some nodes, which ascend."""

    def __init__(self, source: ArraySource, nodes: npt.NDArray[Any]) -> None:
        self.label = source.label
        self.shape: tuple[int, ...] = (len(nodes), *source.shape[1:])
        self.dtype = source.dtype
        self._source = source
        self._nodes = nodes

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from row `start` on, at most `step` at a time."""
        nodes = self._nodes
        if start == len(nodes):
            return
        first = int(nodes[start])
        for piece in self._source.rows(step, first):
            last = int(np.searchsorted(nodes, first + len(piece)))
            if last > start:
                yield piece[nodes[start:last] - first]
            start, first = last, first + len(piece)
            if start == len(nodes):
                return


class _EdgeIds(ArraySource):
    """The ids in the original data of a part's edges."""

    def __init__(self, part: _Part, spec: AttributeSpec, num_edges: int) -> None:
        self.label = f"{part.of.graph.reader.path}: {spec.name}"
        self.shape: tuple[int, ...] = (num_edges,)
        self.dtype = np.dtype(spec.dtype)
        self._part, self._spec = part, spec

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the ids from the edge `start` on, at most `step` at a time."""
        for piece, chosen in self._part.pieces(-(-_PIECE_BYTES // step)):
            num_new = int(np.count_nonzero(chosen))
            if start < num_new:
                last = piece.first + len(chosen)
                yield self._part.of.graph.rows(self._spec, piece.first, last)[chosen][start:]
            start = max(0, start - num_new)


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _members(words: Bitmap, first: int, last: int) -> npt.NDArray[np.bool_]:
    """Return which nodes of a range are in a set."""
    octets, begin = words.view(np.uint8)[first // 8 : -(-last // 8)], first % 8
    unpacked = np.unpackbits(octets, count=begin + last - first, bitorder="little")
    return unpacked[begin:].view(np.bool_)


def _into(words: Bitmap, piece: EdgePiece) -> npt.NDArray[np.bool_]:
    """Return which edges of a piece lead to nodes of a set."""
    first = int(piece.targets[0])
    return _members(words, first, int(piece.targets[-1]) + 1)[piece.targets - first]


_PLACES = EdgePlaces(partial(iter, ()), lambda row: ("the store", row))
