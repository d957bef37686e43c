"""Writes the partitions of a store: its nodes in a new order, its edges in buckets.

Everything is read and written in order. In memory are the new ids of all nodes, and a part of the
edges or rows, which is sorted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import Memory, memory_ledger, memory_of, parse_memory
from gnnstore.converters.edges.runs import WIDE_BYTES
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import read_ahead
from gnnstore.converters.spill_files import in_order
from gnnstore.converters.stores.buckets import BucketedEdges, Grid, edges_at_once
from gnnstore.converters.stores.graph import CopiedRows, StoreInput
from gnnstore.errors import InputError, UsageError, check_choice, did_you_mean, limits_named
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.arrays.pages import PageGeometry
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base.files import RangeCrcs, require_space
from gnnstore.formats.partitions import (
    BUCKET_CRCS_ARRAY,
    BUCKET_PTR_ARRAY,
    EDGE_ARRAYS,
    MOST_PARTITIONS,
    MOST_ROWS,
    ORDER_ARRAY,
    PARTITION_CRCS_ARRAY,
    PARTITIONS,
    PLACE_ARRAY,
    POSITION_ARRAY,
    SOURCE_ARRAY,
    TARGET_ARRAY,
    OrderKind,
    PartitionsWriter,
    node_rows,
)
from gnnstore.formats.store.units import unit_path, units_directory
from gnnstore.progress import NullProgress, Progress
from gnnstore.random_words import draw_words
from gnnstore.units import format_count, format_size

_LOG = logging.getLogger(__name__)


ORDERS: tuple[OrderKind, ...] = ("random", "none")

_COPY_BYTES = 2**22  # bytes of a piece in which rows are copied
_PIECE_NODES = 2**18  # nodes of a piece, a multiple of four: a block of random words
# Memory of the writers of edges and buckets; and of the pieces in flight.
_BUFFER_BYTES, _WORK_BYTES = 4 * 2**22, 2**24
_LEAST_TO_SORT = 2**24
# Bytes of a node while a piece of the order is drawn: its word and number, twice, and its rank.
_BYTES_TO_DRAW = 5 * 8
_BUCKET_CRC_BYTES = 4 * len(EDGE_ARRAYS)


@dataclass(frozen=True)
class Partitioning:
    """The future partitions of a store: their number, size and cost."""

    graph: StoreInput
    num_partitions: int
    train_first: str | None = None
    seed: int = 0
    memory_bytes: Memory = None
    order: OrderKind = "random"

    def __post_init__(self) -> None:
        check_choice("order", self.order, ORDERS)
        if self.order == "none" and self.train_first is not None:
            raise UsageError(
                f"order='none' keeps nodes where they are, and train_first={self.train_first!r} "
                "moves the nodes of a split: leave out one"
            )
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"seed={self.seed} is outside [0, 2^64)")
        if self.train_first is not None and self.train_first not in self.graph.nodes.splits:
            names = ", ".join(map(repr, self.graph.nodes.splits)) or "none"
            raise UsageError(
                f"{self.graph.reader.path} has no split {self.train_first!r}"
                f"{did_you_mean(self.train_first, self.graph.nodes.splits)}; its splits: {names}. "
                "Name one of them, or spread nodes at random"
            )
        if empty := [name for name, spec in self.attributes.items() if not spec.row_bytes]:
            raise InputError(
                f"{self.graph.reader.path}: rows of the attribute {empty[0]!r} hold nothing, which "
                "partitions cannot have pages of; convert the graph without it"
            )
        _ = self.rows
        need = Reservation("edges that are sorted at a time", _LEAST_TO_SORT)
        self.memory.add(need).check(None, "partition on a larger machine")

    @property
    def order_kind(self) -> OrderKind:
        """The order by which nodes are assigned."""
        return self.order if self.train_first is None else "train-first"

    @property
    def attributes(self) -> Mapping[str, AttributeSpec]:
        """Node attributes, by name; all are in pages here, compressed ones of the store too."""
        return self.graph.nodes.attributes

    @property
    def _geometries(self) -> list[PageGeometry]:
        specs = self.attributes.values()
        return [PageGeometry.for_rows(spec.row_bytes, spec.num_rows) for spec in specs]

    @cached_property
    def rows(self) -> int:
        """Rows of a partition, R."""
        num_nodes = self.graph.num_nodes
        ids = PageGeometry.for_rows(id_dtype(num_nodes).itemsize, num_nodes)
        per_page = [geometry.rows_per_page for geometry in (ids, *self._geometries)]
        return rows_per_partition(num_nodes, self.num_partitions, per_page)

    @cached_property
    def memory(self) -> Ledger:
        """Memory in use, except for the part that is sorted."""
        num_nodes = self.graph.num_nodes
        num_buckets = self.num_partitions**2
        is_first = 0 if self.train_first is None else num_nodes
        whole = self.graph.reader.schema.bytes_in_memory
        given = memory_of(self.memory_bytes, whole, name="memory_bytes")
        limit = None if given is None else parse_memory(given, name="memory_bytes")
        return memory_ledger("partitioning", limit).add(
            Reservation("new ids of all nodes", id_dtype(num_nodes).itemsize * num_nodes),
            Reservation("nodes of the split", is_first),
            Reservation(
                "sizes and checksums of buckets", (4 * 8 + _BUCKET_CRC_BYTES) * num_buckets
            ),
            Reservation("pieces on their way", _BUFFER_BYTES + _WORK_BYTES),
        )

    @property
    def final_bytes(self) -> int:
        """Approximate bytes of the partitions on disk."""
        num_nodes, num_edges = self.graph.num_nodes, self.graph.num_edges
        num_buckets = self.num_partitions**2
        ids = 2 * id_dtype(num_nodes).itemsize * num_nodes
        ids += 8 * (num_buckets + 1) + _BUCKET_CRC_BYTES * num_buckets
        edges = (4 + 4 + id_dtype(num_edges).itemsize) * num_edges
        return ids + edges + sum(g.body_bytes(num_nodes) for g in self._geometries)

    def _spilled(self) -> list[int]:
        """Return the bytes of what is sorted on disk: the edges, then each attribute."""
        left, edges = self.memory.left(), self.graph.num_edges
        spilled = [0 if edges <= edges_at_once(self.memory) else WIDE_BYTES * edges]
        return spilled + [s.num_bytes for s in self.attributes.values() if s.num_bytes > left]

    @property
    def temporary_bytes(self) -> int:
        """The most bytes of temporary files at a time."""
        edges, *rows = self._spilled()
        return max(edges, *(own + 8 * self.graph.num_nodes for own in rows), 0)

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """Approximate bytes read and bytes written in all."""
        edges, spilled = self.graph.edges, self._spilled()
        passes = 2 if spilled[0] else 1
        read = passes * (edges.indptr.num_bytes + edges.indices.num_bytes)
        read += sum(spec.num_bytes for spec in self.attributes.values())
        return read + sum(spilled), self.final_bytes + sum(spilled)


@limits_named("partition the store")
def partition(
    store: PathLike,
    num_partitions: int,
    *,
    name: str | None = None,
    output: PathLike | None = None,
    train_first: str | None = None,
    seed: int = 0,
    memory_bytes: int | str | None = None,
    order: OrderKind = "random",
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write the nodes and edges of a store once more, in partitions, and return their path.

    Parameters
    ----------
    num_partitions : int
        p; nodes are spread evenly.
    name : str, optional
        Name of the partitioning in the store; by default its order and p, as in "random-16".
    output : path-like, optional
        Where to write it, if not in the store.
    train_first : str, optional
        A split, to put its nodes first.
    order : {"random", "none"}
        How nodes are spread; "none" keeps them where they are in the store.
    overwrite, resume, seed, memory_bytes, progress
        See `gnnstore.converters`; `memory_bytes` may be a share as in "10%", as a loader's memory.

    Raises
    ------
    UsageError, BudgetError
        If the store is heterogeneous, or there are no such partitions of it.
    StoreExistsError
        If there is one of that name.
    NoSpaceError, NotFoundError, CorruptStoreError, StorageError
        If the store cannot be read, or the partitions not written.
    """
    graph = StoreInput(store, "gnnstore partition")
    plan = Partitioning(graph, num_partitions, train_first, seed, memory_bytes, order)
    final = partitions_path(plan, name, output)
    if not resume:
        temporary = plan.temporary_bytes
        require_space(
            final,
            plan.final_bytes + temporary,
            f"write the partitions, with {format_size(temporary)} of temporary files",
            "choose an --output on another file system; nothing has been written",
        )
    with (
        units_directory(PARTITIONS, plan.graph.reader.path, is_needed=output is None),
        PartitionsWriter(
            final,
            overwrite=overwrite,
            on_event=_LOG.warning,
            fingerprint={
                "store": plan.graph.reader.uuid,
                "partitions": num_partitions,
                "train_first": train_first,
                "order": order,
                "seed": seed,
            },
            resume=resume,
        ) as writer,
    ):
        return _Work(plan, writer, progress or NullProgress()).run()


def partitions_path(plan: Partitioning, name: str | None, output: PathLike | None) -> Path:
    """Return the path of the partitions to write."""
    if output is None:
        default = f"{plan.order_kind}-{plan.num_partitions}"
        return unit_path(PARTITIONS, plan.graph.reader.path, default if name is None else name)
    if name is not None:
        raise UsageError("give the partitions a --name in the store, or an --output elsewhere")
    return Path(output)


class _Work:
    """Writes the arrays, one after the other."""

    def __init__(self, plan: Partitioning, writer: PartitionsWriter, progress: Progress) -> None:
        self._plan = plan
        self._graph = plan.graph
        self._writer = writer
        self._progress = progress
        num_nodes = plan.graph.num_nodes
        self._ids = id_dtype(num_nodes)
        self._place = np.empty(num_nodes, self._ids)
        self._bounds = np.minimum(np.arange(plan.num_partitions + 1) * plan.rows, num_nodes)
        # uint32 [p, 1 + attributes]: of each partition's rows of the order, then of attributes.
        self._crcs = np.zeros((plan.num_partitions, 1 + len(plan.attributes)), np.uint32)

    def run(self) -> Path:
        """Write everything, and return the path."""
        plan, graph = self._plan, self._graph
        num_train = self._write_order()
        self._write_edges()
        for name, spec in plan.attributes.items():
            self._write_rows(name, spec)
        with self._writer.array(PARTITION_CRCS_ARRAY, "uint32", *self._crcs.shape) as array:
            array.append(self._crcs)
        with self._progress.phase("commit"):
            return self._writer.commit(
                time_units={name: spec.time_unit for name, spec in plan.attributes.items()},
                store_uuid=graph.reader.uuid,
                num_nodes=graph.num_nodes,
                num_edges=graph.num_edges,
                num_partitions=plan.num_partitions,
                rows_per_partition=plan.rows,
                order_kind=plan.order_kind,
                seed=plan.seed,
                train_split=plan.train_first,
                num_train_partitions=-(-num_train // plan.rows),
            )

    def _write_order(self) -> int:
        """Draw the order, write it and its inverse; return the number of nodes that come first."""
        plan, num_nodes = self._plan, self._graph.num_nodes
        is_first = None if plan.train_first is None else _nodes_of(self._graph, plan.train_first)
        order = self._writer.array(ORDER_ARRAY, self._ids.name, num_nodes)
        firsts = range(0, num_nodes, _PIECE_NODES)
        drawn: Iterator[npt.NDArray[np.int64]] = (
            np.arange(first, min(first + _PIECE_NODES, num_nodes)) for first in firsts
        )
        if plan.order != "none":
            at_once = min(num_nodes, plan.memory.left() // _BYTES_TO_DRAW)
            drawn = node_order(num_nodes, plan.seed, is_first, at_once)
        done, crcs = 0, RangeCrcs(self._bounds)
        with self._progress.phase("draw the order", num_nodes, "nodes") as phase:
            for nodes in drawn:
                for begin in range(0, len(nodes), _PIECE_NODES):
                    piece = nodes[begin : begin + _PIECE_NODES]
                    self._place[piece] = np.arange(done, done + len(piece))
                    done += len(piece)
                    stored = piece.astype(self._ids)
                    crcs.add(stored)
                    order.append(stored)
                phase.advance(len(nodes))
        place = self._writer.array(PLACE_ARRAY, self._ids.name, num_nodes)
        place.append(self._place)
        for array in (order, place):
            array.close()
        self._crcs[:, 0] = crcs.crcs
        return 0 if is_first is None else int(is_first.sum())

    def _write_edges(self) -> None:
        plan, graph, writer = self._plan, self._graph, self._writer
        num_edges, num_buckets = graph.num_edges, plan.num_partitions**2
        positions = id_dtype(num_edges)
        bucket_ptr = writer.array(BUCKET_PTR_ARRAY, "int64", num_buckets + 1)
        columns = [
            writer.array(path, dtype, num_edges)
            for path, dtype in (
                (SOURCE_ARRAY, "int32"),
                (TARGET_ARRAY, "int32"),
                (POSITION_ARRAY, positions.name),
            )
        ]
        bucket_crcs = writer.array(BUCKET_CRCS_ARRAY, "uint32", num_buckets, len(EDGE_ARRAYS))
        arrays = [bucket_ptr, *columns, bucket_crcs]
        if all(array.num_committed_rows == array.spec.num_rows for array in arrays):
            for array in arrays:
                array.skip(array.spec.num_rows)
            return
        edges = BucketedEdges(graph, Grid(plan.num_partitions, plan.rows, self._place), plan.memory)
        edges.divide(writer.journal.spill_directory, self._progress)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(edges.counts)])
        crcs = [RangeCrcs(bounds) for _ in columns]
        bucket_ptr.append(bounds)
        with self._progress.phase("sort edges", num_edges, "edges") as phase:
            for source, target, position in edges.sorted():
                values = source, target, position.astype(positions, copy=False)
                for column, column_crcs, part in zip(columns, crcs, values, strict=True):
                    column_crcs.add(part)
                    column.append(part)
                phase.advance(len(source))
        bucket_crcs.append(np.stack([of.crcs for of in crcs], axis=1))
        for array in arrays:
            array.close()

    def _write_rows(self, name: str, spec: AttributeSpec) -> None:
        array = self._writer.paged(
            node_rows(name),
            name=name,
            row_shape=spec.shape[1:],
            dtype=spec.dtype,
            num_rows=spec.num_rows,
            cat_dim=spec.cat_dim,
        )
        crcs = RangeCrcs(self._bounds)
        for _, rows in array.committed().pieces(_COPY_BYTES):
            crcs.add(rows)
        done = array.skip(spec.num_rows)
        with self._progress.phase(f"write rows of {name}", spec.num_rows, "rows") as phase:
            phase.advance(done)
            if done < spec.num_rows:
                step = max(1, _COPY_BYTES // max(1, spec.row_bytes))
                source, left = CopiedRows(self._graph, spec), self._plan.memory.left()
                directory = self._writer.journal.spill_directory
                with in_order(source, self._place, directory, left, at_once=left) as ordered:
                    for rows in read_ahead(ordered.rows(step, done)):
                        crcs.add(rows)
                        array.append(rows)
                        phase.advance(len(rows))
        array.close()
        self._crcs[:, 1 + sorted(self._plan.attributes).index(name)] = crcs.crcs


def _nodes_of(graph: StoreInput, split: str) -> npt.NDArray[np.bool_]:
    """Return a mask of the nodes of a split; a node that is listed twice counts once."""
    found = np.zeros(graph.num_nodes, bool)
    found[graph.split(split)] = True
    if not found.any():
        raise InputError(f"{graph.reader.path}: the split {split!r} has no nodes")
    return found


_PURPOSE = int.from_bytes(b"node-row", "big")


def node_order(
    num_nodes: int, seed: int, is_first: npt.NDArray[np.bool_] | None, nodes_at_once: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the nodes in an order that depends on the seed alone, piece by piece."""
    num_pieces = max(1, -(-num_nodes // nodes_at_once))
    for wanted in (None,) if is_first is None else (True, False):
        for piece in range(num_pieces):
            low, last = piece * 2**64 // num_pieces, (piece + 1) * 2**64 // num_pieces - 1
            keys, nodes = [], []
            for first in range(0, num_nodes, _PIECE_NODES):
                end = min(first + _PIECE_NODES, num_nodes)
                words = draw_words(seed, _PURPOSE, first // 4, end - first)
                chosen = (words >= np.uint64(low)) & (words <= np.uint64(last))
                if is_first is not None:
                    chosen &= is_first[first:end] == wanted
                here = np.flatnonzero(chosen)
                keys.append(words[here])
                nodes.append(here + first)
            order = np.argsort(np.concatenate(keys), kind="stable")
            if len(order):
                yield np.concatenate(nodes)[order]


def rows_per_partition(num_nodes: int, num_partitions: int, rows_per_page: list[int]) -> int:
    """Return the rows of each partition but the last, which may have fewer."""
    most = min(num_nodes, MOST_PARTITIONS)
    if not 2 <= num_partitions <= most:
        raise UsageError(
            f"{format_count(num_partitions, 'partition')}: expected 2 to {most} for "
            f"{format_count(num_nodes, 'node')}"
            + ("; a graph of fewer than two nodes has no partitions" if num_nodes < 2 else "")
        )
    rows = -(-num_nodes // num_partitions)
    if rows > MOST_ROWS or rows * (num_partitions - 1) >= num_nodes:
        rows = min(rows, MOST_ROWS)
        nearest = -(-num_nodes // rows)
        raise UsageError(
            f"{format_count(num_partitions, 'partition')}: {format_count(num_nodes, 'node')} fill "
            f"{format_count(nearest, 'partition')} of {rows}; take {nearest}"
        )
    pages = lcm(*rows_per_page)
    whole = -(-rows // pages) * pages
    left = num_nodes - whole * (num_partitions - 1)
    return whole if 2 * left >= whole and whole <= MOST_ROWS else rows
