"""The topology of a graph for samplers: in memory, mapped, or read from disk behind a cache.

The cache holds the most important in-neighbour lists (Ginex, section 3.2). The importance of a node
is its out-degree over its in-degree: the number of lists that it can be drawn from, over the length
of its own. Equally important lists are cached by ascending ids, until the cache is full.
It is filled once, when it is opened: a pass over the graph counts out-degrees, with 4 bytes of
memory a node, and another reads the lists, in the order in which they lie on disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts, crc32c, empty
from gnnstore.caching.scores import count_out_degrees, highest_that_overflows
from gnnstore.disk.engines import Engine
from gnnstore.errors import CorruptStoreError
from gnnstore.features.file_rows import FileRows
from gnnstore.features.source import RowSource
from gnnstore.features.tables import open_rows
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.formats.store.store import Csc, load_csc
from gnnstore.machine import PRIVATE, Machine
from gnnstore.sampling.disk import CachedNeighbors, DiskNeighborSampler
from gnnstore.sampling.neighbor import NeighborSampler
from gnnstore.sampling.sampled_graph import EdgeFinder, StoredColumns

if TYPE_CHECKING:
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.formats.store.schema import EdgeType, Schema
    from gnnstore.formats.store.store import StoreReader, TopologyMode
    from gnnstore.sampling.neighbor import IndexDtype, SamplingConfig
    from gnnstore.sampling.sampled_graph import Column, Fetch


# Ids of a piece in a pass: 8 or 16 MB, read in pieces of 1 MB side by side. A multiple of any page,
# so that pieces go straight to where they are wanted.
SCAN_IDS = 1 << 21


class ColumnRows:
    """An array along the edges of a graph on disk, by position. Thread-safe."""

    def __init__(self, rows: RowSource) -> None:
        self._rows = rows
        self._counts = ReadCounts()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, array: PagedArray, engine: Engine) -> Self:
        """Open the files of a stored array."""
        return cls(open_rows(array, engine))

    @property
    def counts(self) -> ReadCounts:
        """Reads of all calls so far."""
        return self._counts

    def fetch(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Read the rows at some positions: [n, ...], in the order of the positions."""
        gathered = self._rows.gather(positions)
        self._count(gathered.counts)
        return gathered.values

    def _count(self, counts: ReadCounts) -> None:
        with self._lock:
            self._counts += counts


class IndexRows(ColumnRows):
    """The `indices` of a graph on disk, or other integers along its edges.

    `fetch` is what `gnnstore.sampling.DiskNeighborSampler` needs.
    """

    def __init__(self, rows: RowSource) -> None:
        super().__init__(rows)
        files = rows.file_rows
        assert isinstance(files, FileRows)  # noqa: S101 - an engine reads files
        array = files.array
        if not array.geometry.is_exact or array.row_shape != ():
            raise CorruptStoreError(
                f"the array {array.spec.path!r} is not a vector of node ids: found rows of "
                f"shape {list(array.row_shape)}, {files.row_bytes} bytes each, in pages of "
                f"{array.geometry.page_bytes}"
            )
        self._files = files

    @property
    def num_edges(self) -> int:
        """Ids in the array."""
        return self._files.num_rows

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an id: int32 or int64."""
        return self._files.array.dtype

    @property
    def key(self) -> str:
        """The name of all ids in memory on a machine."""
        return self._files.array.key(self.dtype)

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Read the ids at positions start ... stop - 1, in large reads: [stop - start]."""
        out = empty((stop - start,), self.dtype)
        self._count(self._rows.read_range(start, out))
        return out

    def scan(self) -> Iterator[npt.NDArray[Any]]:
        """Read all ids in order, in pieces of up to `SCAN_IDS`."""
        for start in range(0, self.num_edges, SCAN_IDS):
            yield self.read(start, min(start + SCAN_IDS, self.num_edges))


@dataclass(frozen=True, eq=False)
class Topology:
    """The in-neighbours of all nodes by edge type, in memory or with readers of the files."""

    schema: Schema
    stored: StoredColumns  # what sampling by time or weight needs
    csc: Mapping[EdgeType, Csc]  # if there are `rows`, only length and dtype of `indices` are used
    rows: Mapping[EdgeType, IndexRows] = field(default_factory=dict)
    # In-neighbour lists, which need not be read once they are in memory.
    neighbors: Mapping[EdgeType, CachedNeighbors] = field(default_factory=dict)
    # Opens arrays that an engine reads, and those that were opened, by path.
    open_rows: Callable[[AttributeSpec], ColumnRows] | None = None
    columns_read: dict[str, ColumnRows] = field(default_factory=dict)
    num_ranks: int = 1  # processes that share what is in memory

    @classmethod
    def load(
        cls,
        reader: StoreReader,
        mode: TopologyMode,
        num_threads: int,
        machine: Machine = PRIVATE,
    ) -> Self:
        """Read a store's topology into memory, or map it."""
        edges = reader.schema.edge_types
        csc = {e.type: load_csc(reader, e, mode, num_threads, machine) for e in edges}
        stored = StoredColumns(reader, mode, num_threads, machine)
        return cls(reader.schema, stored, csc, num_ranks=machine.num_ranks)

    def on_disk(self, reader: StoreReader, engine: Engine) -> Self:
        """Return the topology with in-neighbours that an engine reads."""

        def open_rows(spec: AttributeSpec) -> ColumnRows:
            are_integers = len(spec.shape) == 1 and STORAGE_DTYPES[spec.dtype].kind in "iu"
            kind = IndexRows if are_integers else ColumnRows
            return kind.open(reader.paged(spec), engine)

        indices = {of: self.schema.edge_of(of).indices for of in self.csc}
        rows = {of: IndexRows.open(reader.paged(spec), engine) for of, spec in indices.items()}
        return replace(self, rows=rows, open_rows=open_rows, columns_read={})

    def columns(self, edge_type: EdgeType | None = None) -> Csc:
        """Return the in-neighbours along the edges of a type, or of the only type."""
        schema = self.schema
        return self.csc[(schema.edge if edge_type is None else schema.edge_of(edge_type)).type]

    def finder(self, edge_type: EdgeType) -> EdgeFinder:
        """Return what finds the edges of a type, where they lie."""
        rows = self.rows.get(edge_type)
        return EdgeFinder(self.csc[edge_type], None if rows is None else rows.fetch)

    @property
    def is_read(self) -> bool:
        """Whether in-neighbours are read from disk, so that batches are best sampled together."""
        return bool(self.rows)

    @property
    def label(self) -> str:
        """The origin of the graph, for messages."""
        return next((csc.label for csc in self.csc.values()), "the graph")

    @property
    def is_slow(self) -> bool:
        """Whether sampling may have to wait for a disk."""
        return any(csc.mapped for csc in self.csc.values())

    @property
    def counts(self) -> ReadCounts:
        """Reads of in-neighbours, their order, times, weights and attributes so far."""
        read = (*self.rows.values(), *self.columns_read.values())
        return sum((rows.counts for rows in read), ReadCounts())

    def sampler(self, config: SamplingConfig, index_dtype: IndexDtype) -> NeighborSampler:
        """Return a sampler; its batches are the same wherever the topology lies."""
        config.check_part(self.schema, self.label)
        types, specs = self.stored.types(self.csc, config.time_attr, config.weight_attr)
        if not self.rows:
            return NeighborSampler(types, config, index_dtype)
        fetch: dict[tuple[EdgeType, Column], Fetch] = {
            (of, "indices"): rows.fetch for of, rows in self.rows.items()
        }
        for of, spec in specs.items():
            fetch[of] = self.rows_of(spec).fetch
        return DiskNeighborSampler(types, config, index_dtype, fetch, self.neighbors)

    def rows_of(self, spec: AttributeSpec) -> ColumnRows:
        """Return an array that lies along edges, to be read from disk; opened once."""
        if spec.path not in self.columns_read:
            assert self.open_rows is not None  # noqa: S101 - given with the rows
            self.columns_read.setdefault(spec.path, self.open_rows(spec))
        return self.columns_read[spec.path]


# Bytes for 64 nodes: their bits and the start of their lists.
_WORD_BYTES = 16


def index_bytes(num_nodes: int) -> int:
    """Return the bytes of a neighbour cache without its lists."""
    return _WORD_BYTES * -(-num_nodes // 64)


def bytes_for_all(csc: Csc) -> int:
    """Return the bytes of a neighbour cache of all lists."""
    return index_bytes(csc.num_nodes) + csc.num_edges * csc.indices.itemsize


def bytes_to_choose(csc: Csc) -> int:
    """Return the bytes that choosing the lists takes, before the cache is filled."""
    return 4 * csc.num_src + csc.num_nodes + 3 * SCAN_IDS * csc.indices.itemsize


def open_neighbor_cache(
    csc: Csc, rows: IndexRows, num_bytes: int, machine: Machine = PRIVATE
) -> CachedNeighbors | None:
    """Return the most important in-neighbour lists that fit; None if none does."""
    capacity = (num_bytes - index_bytes(csc.num_nodes)) // csc.indices.itemsize
    if capacity <= 0:
        return None
    if capacity >= csc.num_edges:
        return _fill(csc, rows, _packed(all_lists(csc)), machine)
    degrees = count_out_degrees(rows.scan(), csc.num_src, csc.label)
    bits = _packed(choose_lists(csc, degrees, capacity))
    del degrees
    return _fill(csc, rows, bits, machine)


def _packed(chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    return np.packbits(chosen, bitorder="little").view(np.uint64)


def _fill(
    csc: Csc, rows: IndexRows, bits: npt.NDArray[np.uint64], machine: Machine
) -> CachedNeighbors | None:
    """Return the lists of the chosen nodes; None if they are empty."""

    def chosen(first: int, last: int) -> npt.NDArray[np.bool_]:
        words, begin = bits[first // 64 : -(-last // 64)].view(np.uint8), first % 64
        unpacked = np.unpackbits(words, count=begin + last - first, bitorder="little")
        return unpacked[begin:].view(np.bool_)

    starts = np.zeros(len(bits) + 1, np.int64)
    for first, degrees in in_degrees(csc):
        cached = degrees * chosen(first, first + len(degrees))
        sums = np.add.reduceat(cached, range(0, len(degrees), 64))
        starts[first // 64 + 1 :][: len(sums)] = sums
    np.cumsum(starts, out=starts)
    if not (total := int(starts[-1])):
        return None

    def fill(out: npt.NDArray[np.uint8]) -> None:
        neighbors, filled = out.view(rows.dtype), 0
        for start in range(0, csc.num_edges, SCAN_IDS):
            stop = min(start + SCAN_IDS, csc.num_edges)
            # From the first node whose list reaches into the range to the last one.
            first = int(np.searchsorted(csc.indptr, start, side="right")) - 1
            last = int(np.searchsorted(csc.indptr, stop, side="left"))
            bounds: npt.NDArray[np.int64] = np.clip(csc.indptr[first : last + 1], start, stop)
            wanted = np.repeat(chosen(first, last), bounds[1:] - bounds[:-1])
            if wanted.any():
                ids = rows.read(start, stop)[wanted]
                neighbors[filled : filled + len(ids)] = ids
                filled += len(ids)

    key = f"{rows.key} of nodes {crc32c(bits.view(np.uint8)):08x}"
    neighbors = machine.share(key, total * rows.dtype.itemsize, fill).view(rows.dtype)
    return CachedNeighbors(
        machine.share_values(f"{key}: bits", bits),
        machine.share_values(f"{key}: starts", starts[:-1]),
        neighbors,
    )


# Nodes that are processed at a time, so that choosing takes only a few MB more than the
# out-degrees. A multiple of 64: pieces fill whole words of a bitmap.
_CHUNK = 1 << 18


def choose_lists(
    csc: Csc, out_degrees: npt.NDArray[np.uint32], max_neighbors: int
) -> npt.NDArray[np.bool_]:
    """Choose the most important lists that hold at most `max_neighbors` in-neighbours."""
    threshold, left = highest_that_overflows(
        lambda: ((keys, degrees * (keys > 0)) for _, degrees, keys in _keys(csc, out_degrees)),
        max_neighbors,
    )
    chosen = _none_of(csc)
    for first, degrees, keys in _keys(csc, out_degrees):
        own = chosen[first:][: len(keys)]
        own[:] = keys > threshold
        # Equally important lists are taken from the first on, up to one that does not fit.
        ties = np.flatnonzero((keys == threshold) & (keys > 0))
        fitting = np.cumsum(degrees[ties]) <= left
        own[ties[fitting]] = True
        left = left - int(degrees[ties].sum()) if fitting.all() else 0
    return chosen


def all_lists(csc: Csc) -> npt.NDArray[np.bool_]:
    """Choose all lists that are not empty: bool [N], filled up to a multiple of 64."""
    chosen = _none_of(csc)
    for first, degrees in in_degrees(csc):
        chosen[first:][: len(degrees)] = degrees > 0
    return chosen


def _none_of(csc: Csc) -> npt.NDArray[np.bool_]:
    return np.zeros(csc.num_nodes + -csc.num_nodes % 64, np.bool_)


def in_degrees(csc: Csc) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the first node of a piece and the lengths of its lists, for all nodes."""
    expected = 0
    for first in range(0, csc.num_nodes, _CHUNK):
        part = csc.indptr[first : first + _CHUNK + 1]
        degrees = np.diff(part)
        if part[0] != expected or (degrees < 0).any():
            raise _damaged(csc)
        expected = int(part[-1])
        yield first, degrees
    if expected != csc.num_edges:
        raise _damaged(csc)


def _keys(
    csc: Csc, out_degrees: npt.NDArray[np.uint32]
) -> Iterator[tuple[int, npt.NDArray[np.int64], npt.NDArray[np.uint32]]]:
    """Yield first node, lengths of lists, and importance as integers in its order; 0: none."""
    for first, degrees in in_degrees(csc):
        uses = np.zeros(len(degrees), np.float32)
        found = out_degrees[first : first + len(degrees)]
        uses[: len(found)] = found
        # Positive floats are ordered as their bits are.
        keys = (uses / np.maximum(degrees, 1).astype(np.float32)).view(np.uint32)
        keys[degrees == 0] = 0
        yield first, degrees, keys


def _damaged(csc: Csc) -> CorruptStoreError:
    return CorruptStoreError(
        f"cannot choose the in-neighbour lists to cache of {csc.label}: indptr does not ascend "
        f"from 0 to {csc.num_edges}, the number of edges. Its topology is damaged; run 'gnnstore "
        "verify' on it, or convert the graph again",
        path=csc.label,
    )
