"""Partitions on disk: the rows of a store's nodes and its edges once more, in large pieces.

Nodes have new ids: in partition k they are `rows(k)`, the rows that it has in `nodes`. Bucket
(i, j) holds the edges with their source in partition i and their target in j; it is entry
j * p + i of `bucket_ptr`, so that all edges into a partition lie together. Within a bucket edges
are sorted by target, source and position.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.errors import CorruptStoreError, GnnstoreError, UsageError
from gnnstore.formats.arrays.paged import PagedArrayWriter
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base.files import Problem, add_crcs
from gnnstore.formats.base.names import encode
from gnnstore.formats.base.strict_json import Fields
from gnnstore.formats.container.manifest import CHECKSUMS_ARRAY, KINDS, Kind, Manifest
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.container.writer import SealedWriter
from gnnstore.formats.store.schema import ID_DTYPES, StoreManifest
from gnnstore.formats.store.store import StoreReader
from gnnstore.formats.store.units import find_unit, find_units, unit_names
from gnnstore.random_words import mix

PARTITIONS_DIRECTORY = "partitions"
PARTITIONS_FORMAT_VERSION = 2

ORDER_ARRAY = "order"
PLACE_ARRAY = "place"
PARTITION_CRCS_ARRAY = "partition_crc32c"
NODES_GROUP = "nodes"
EDGES_GROUP = "edges"
BUCKET_PTR_ARRAY = "edges/bucket_ptr"
SOURCE_ARRAY = "edges/source"
TARGET_ARRAY = "edges/target"
POSITION_ARRAY = "edges/position"
BUCKET_CRCS_ARRAY = "edges/bucket_crc32c"
# The arrays of edges, in the order of the columns of their checksums.
EDGE_ARRAYS = (SOURCE_ARRAY, TARGET_ARRAY, POSITION_ARRAY)

# Most partitions: there are as many buckets as pairs of them, and the place of each is in memory.
MOST_PARTITIONS = 4096
# Most rows of a partition: edges hold places in partitions as int32.
MOST_ROWS = 2**31 - 1

# Bytes of an array that `verify` holds at a time.
_SCAN_BYTES = 8 * 2**20
_SCAN_EDGES = 2**20

OrderKind = Literal["random", "train-first", "none"]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PartitionsManifest(Manifest):
    """Identity, contents and files of partitions."""

    FORMAT: ClassVar[str] = "gnnstore-partitions"
    VERSION: ClassVar[int] = PARTITIONS_FORMAT_VERSION
    # There has been no release with older versions.
    OLDEST: ClassVar[int] = PARTITIONS_FORMAT_VERSION
    WORD: ClassVar[str] = "partitioning"
    VERB: ClassVar[str] = "partition"
    MAKE: ClassVar[str] = "make one with 'gnnstore partition'"

    store_uuid: str  # identity of the partitioned store
    num_nodes: Annotated[int, 1]
    num_edges: int
    num_partitions: Annotated[int, 2, MOST_PARTITIONS]  # p
    # R; the last partition may have fewer rows, at least one.
    rows_per_partition: Annotated[int, 1, MOST_ROWS]
    # How nodes were spread: "random"; "train-first": nodes of a split first; "none": in the store's
    # order.
    order_kind: OrderKind = field(metadata={"key": "order"})
    seed: Annotated[int, 0, 2**64 - 1]  # seed of the order
    train_split: str | None  # name of the split of "train-first"
    # With "train-first", the number of first partitions, which hold all nodes of the split; else 0.
    num_train_partitions: int
    # The node attributes, by name: the store's, rows in the new order.
    nodes: Mapping[str, AttributeSpec]
    paged_arrays: tuple[AttributeSpec, ...] = field(metadata={"key": "arrays"})  # the others

    def row_specs(self) -> tuple[AttributeSpec, ...]:
        """Return the arrays of rows by new id, in the order of the columns of their checksums."""
        return (self.spec(ORDER_ARRAY), *(self.nodes[name] for name in sorted(self.nodes)))

    def arrays(self) -> tuple[AttributeSpec, ...]:
        """Return the arrays of the partitions."""
        return (*self.paged_arrays, *self.nodes.values())

    @classmethod
    def parse(cls, own: Fields) -> Mapping[str, Any]:
        """Check the fields of partitions, and return them as arguments of the class."""
        found = own.values(cls, Manifest)
        num_nodes, num_partitions = found["num_nodes"], found["num_partitions"]
        rows = found["rows_per_partition"]
        if not (num_partitions - 1) * rows < num_nodes <= num_partitions * rows:
            raise own.fail(
                "rows_per_partition",
                f"rows for {num_nodes} nodes in {num_partitions} partitions, none of them empty",
            )
        is_train_first = found["order_kind"] == "train-first"
        least, most = (1, num_partitions) if is_train_first else (0, 0)
        own.integer("num_train_partitions", least, most)
        return found | {"train_split": own.text("train_split") if is_train_first else None}


def node_rows(name: str) -> str:
    """Return the path of the rows of a node attribute."""
    return f"{NODES_GROUP}/{encode(name)}"


class PartitionsReader(SealedReader[PartitionsManifest]):
    """Open, validated partitions. The only array that opening reads is `bucket_ptr`.

    A partition's rows are consecutive rows of each array, and may begin within a page: R is a
    multiple of the rows of a page only where that leaves the last partition at least half full.
    """

    MANIFEST: ClassVar[type[PartitionsManifest]] = PartitionsManifest

    def check(self) -> None:
        """Compare the arrays with the numbers of nodes and edges, and read `bucket_ptr`."""
        manifest = self.manifest
        self.name = self.path.name  # of this partitioning in the store
        self.store_uuid, self.nodes = manifest.store_uuid, manifest.nodes
        self.num_nodes = num_nodes = manifest.num_nodes
        self.num_edges = num_edges = manifest.num_edges
        self.num_partitions = manifest.num_partitions
        self.rows_per_partition = manifest.rows_per_partition
        self.order_kind, self.seed = manifest.order_kind, manifest.seed
        self.num_train_partitions = manifest.num_train_partitions
        num_buckets, num_columns = self.num_partitions**2, 1 + len(self.nodes)
        expected: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
            ORDER_ARRAY: (ID_DTYPES, (num_nodes,)),
            PLACE_ARRAY: (ID_DTYPES, (num_nodes,)),
            PARTITION_CRCS_ARRAY: (("uint32",), (self.num_partitions, num_columns)),
            BUCKET_PTR_ARRAY: (("int64",), (num_buckets + 1,)),
            BUCKET_CRCS_ARRAY: (("uint32",), (num_buckets, len(EDGE_ARRAYS))),
            SOURCE_ARRAY: (("int32",), (num_edges,)),
            TARGET_ARRAY: (("int32",), (num_edges,)),
            POSITION_ARRAY: (ID_DTYPES, (num_edges,)),
        }
        self.expect(manifest.paged_arrays, expected)
        self.order_spec, self.place_spec = map(manifest.spec, (ORDER_ARRAY, PLACE_ARRAY))
        self.source_spec, self.target_spec, self.position_spec = map(manifest.spec, EDGE_ARRAYS)
        for name, spec in self.nodes.items():
            if (spec.name, spec.path) != (name, node_rows(name)):
                raise self.corrupt(f"{spec.path!r} is not the node attribute {name!r}")
            spec.expect(self.path, (num_nodes, ...), (spec.dtype,))
        self.bucket_ptr: npt.NDArray[np.int64] = self.paged(manifest.spec(BUCKET_PTR_ARRAY)).load()
        ends = int(self.bucket_ptr[0]), int(self.bucket_ptr[-1])
        if ends != (0, num_edges) or (np.diff(self.bucket_ptr) < 0).any():
            raise self.corrupt(
                f"its buckets run from {ends[0]} to {ends[1]}, expected ascending places from 0 to "
                f"{num_edges}",
                BUCKET_PTR_ARRAY,
            )

    def meaningless(self) -> Iterator[Problem]:
        """Yield values that do not partition a graph, or not the store around them."""
        try:
            problem = _order_problem(self) or _edge_problem(self)
        except GnnstoreError as error:  # of the store around them
            problem = Problem(error.path or str(self.path), str(error))
        yield from () if problem is None else (problem,)

    def rows(self, partition: int) -> range:
        """Return the new ids of a partition's nodes."""
        begin = partition * self.rows_per_partition
        return range(begin, min(begin + self.rows_per_partition, self.num_nodes))

    def new_ids(self, nodes: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return the new ids of some nodes of the store; by default of all.

        All of the array is compared with its checksums: a damaged one would train other seeds in
        a state before it were found.
        """
        self.check_arrays(PLACE_ARRAY)
        place = self.paged(self.place_spec)
        found = place.load() if nodes is None else place.gather(nodes)
        if len(found) and not 0 <= found.min() <= found.max() < self.num_nodes:
            raise self.corrupt(f"new ids lie outside [0, {self.num_nodes})", PLACE_ARRAY)
        return found

    def nodes_of(self, partition: int) -> npt.NDArray[Any]:
        """Return the store's ids of a partition's nodes."""
        rows = self.rows(partition)
        found = self.paged(self.order_spec).read_slice(rows.start, rows.stop)
        self.check_rows(partition, self.order_spec, found)
        return found

    def check_rows(self, partition: int, spec: AttributeSpec, rows: npt.NDArray[Any]) -> None:
        """Compare a partition's rows of an array with their checksum."""
        column = self.manifest.row_specs().index(spec)
        crcs = self.paged(self.manifest.spec(PARTITION_CRCS_ARRAY)).gather([partition])
        found = np.zeros(1, np.uint32)
        add_crcs(rows, np.zeros(1, np.int64), np.full(1, len(rows)), found)
        if found[0] != crcs[0, column]:
            raise self._damaged(
                spec, f"the rows of partition {partition}", found[0], crcs[0, column]
            )

    def check_edges(
        self,
        buckets: npt.NDArray[np.int64],
        spec: AttributeSpec,
        begins: npt.NDArray[np.int64],
        values: npt.NDArray[Any],
    ) -> None:
        """Compare buckets of edges, each at its place among some values, with their checksums."""
        crcs = self.paged(self.manifest.spec(BUCKET_CRCS_ARRAY)).gather(buckets)
        expected, found = crcs[:, EDGE_ARRAYS.index(spec.path)], np.zeros(len(buckets), np.uint32)
        sizes = self.bucket_ptr[buckets + 1] - self.bucket_ptr[buckets]
        add_crcs(values, begins, begins + sizes, found)
        wrong = np.flatnonzero(found != expected)
        if len(wrong):
            first = int(wrong[0])
            target, source = divmod(int(buckets[first]), self.num_partitions)
            what = f"the edges from partition {source} to partition {target}"
            raise self._damaged(spec, what, found[first], expected[first])

    def _damaged(
        self, spec: AttributeSpec, what: str, found: np.uint32, expected: np.uint32
    ) -> CorruptStoreError:
        self.check_place()  # raises a better message
        return self.corrupt(
            f"{what} have the crc32c {found:08x}, but {expected:08x} was written: they are damaged",
            spec.path,
        )


class PartitionsWriter(SealedWriter):
    """Builds partitions under a temporary name; `commit` gives them their own."""

    READER: ClassVar[type[PartitionsReader]] = PartitionsReader

    def row_dimension(self, array_path: str) -> str | None:
        """Return "node" or "edge"; for checksums a name that the store does not use."""
        if array_path == CHECKSUMS_ARRAY:
            return "partitions_checksums"
        if array_path in {BUCKET_PTR_ARRAY, BUCKET_CRCS_ARRAY, PARTITION_CRCS_ARRAY}:
            return None
        return "edge" if array_path.startswith(f"{EDGES_GROUP}/") else "node"

    def array(self, path: str, dtype: str, num_rows: int, *row_shape: int) -> PagedArrayWriter:
        """Begin an array other than the rows of nodes."""
        name = path.rpartition("/")[2]
        return self.paged(path, name=name, row_shape=row_shape, dtype=dtype, num_rows=num_rows)

    def commit(self, *, time_units: Mapping[str, str | None], **fields: Any) -> Path:
        """Finish every array, write the manifest, and rename the partitions into place."""
        specs = [writer.spec for writer in self._writers.values()]
        nodes = {
            s.name: replace(s, time_unit=time_units[s.name])
            for s in specs
            if s.path.startswith(f"{NODES_GROUP}/")
        }
        return self.seal(
            PartitionsManifest(
                nodes=nodes,
                paged_arrays=tuple(s for s in specs if s.path != node_rows(s.name)),
                **fields,
            )
        )


PARTITIONS = KINDS.register(
    Kind(
        PartitionsManifest,
        PartitionsReader.open,
        frozenset({ORDER_ARRAY, PLACE_ARRAY, PARTITION_CRCS_ARRAY, NODES_GROUP, EDGES_GROUP}),
        PARTITIONS_DIRECTORY,
    )
)


def open_partitions(
    store: Path, name: str | os.PathLike[str] | None, *, store_uuid: str
) -> PartitionsReader:
    """Open a partitioning of a store."""
    if name is None:
        found = find_units(PARTITIONS, store)
        if not found:
            raise UsageError(
                f"{store} has no partitions; make some with 'gnnstore partition {store}'"
            )
        if len(found) > 1:
            raise UsageError(
                f"{store} is partitioned more than once; give the name of one: "
                f"{unit_names(PARTITIONS, store)}"
            )
        name = found[0].name
    path = find_unit(PARTITIONS, store, name)
    reader = PartitionsReader.open(path)
    if reader.store_uuid != store_uuid:
        raise UsageError(
            f"{path}: these are partitions of another store ({reader.store_uuid}); this one is "
            f"{store_uuid}. Name others, or partition this store with 'gnnstore partition {store}'"
        )
    return reader


def _order_problem(reader: PartitionsReader) -> Problem | None:
    num_nodes = reader.manifest.num_nodes
    place = reader.paged(reader.manifest.spec(PLACE_ARRAY)).view("random")
    for first, nodes in reader.paged(reader.manifest.spec(ORDER_ARRAY)).pieces(_SCAN_BYTES):
        is_inside = (nodes >= 0) & (nodes < num_nodes)
        rows = np.arange(first, first + len(nodes))
        wrong = np.flatnonzero(~is_inside | (place[np.where(is_inside, nodes, 0)] != rows))
        if len(wrong):
            row = int(wrong[0])
            return Problem(
                str(reader.path / ORDER_ARRAY),
                f"row {first + row} is said to be of node {int(nodes[row])}, which has another "
                f"row, or is outside [0, {num_nodes})",
            )
    return None


def _edge_problem(reader: PartitionsReader) -> Problem | None:
    """Compare the edges with the store around the partitions, if there is one.

    Every position has a random weight, so that sums are equal only if at every position there is an
    edge with the same ends, but for a chance in 2^64.
    """
    manifest = reader.manifest
    num_partitions, rows = manifest.num_partitions, manifest.rows_per_partition
    arrays = [reader.paged(manifest.spec(path)) for path in EDGE_ARRAYS]
    order = reader.paged(manifest.spec(ORDER_ARRAY)).view("random")
    bucket_ptr = reader.paged(manifest.spec(BUCKET_PTR_ARRAY)).load()
    seed, found = secrets.randbits(64), np.zeros(3, np.uint64)
    for first in range(0, manifest.num_edges, _SCAN_EDGES):
        end = min(first + _SCAN_EDGES, manifest.num_edges)
        edges = np.arange(first, end)
        bucket = np.searchsorted(bucket_ptr, edges, side="right") - 1
        source, target, position = (
            array.read_slice(first, end).astype(np.int64) for array in arrays
        )
        to, origin = np.divmod(bucket, num_partitions)
        for path, values, limits in (
            (EDGE_ARRAYS[0], source, np.minimum(rows, manifest.num_nodes - origin * rows)),
            (EDGE_ARRAYS[1], target, np.minimum(rows, manifest.num_nodes - to * rows)),
            (EDGE_ARRAYS[2], position, np.full(len(edges), manifest.num_edges)),
        ):
            outside = np.flatnonzero((values < 0) | (values >= limits))
            if len(outside):
                edge = int(outside[0])
                return Problem(
                    str(reader.path / path),
                    f"edge {first + edge} has {int(values[edge])}, outside [0, "
                    f"{int(limits[edge])})",
                )
        found += _sums(seed, position, order[origin * rows + source], order[to * rows + target])
    store = reader.path.parent.parent
    if reader.path.parent.name != PARTITIONS_DIRECTORY or not StoreManifest.is_at(store):
        return None
    return _compare(reader, store, seed, found)


def _compare(
    reader: PartitionsReader, store: Path, seed: int, found: npt.NDArray[np.uint64]
) -> Problem | None:
    around = StoreReader.open(store)
    indptr = around.paged(around.schema.edge.indptr).view("sequential")
    expected = np.zeros(3, np.uint64)
    for first, sources in around.paged(around.schema.edge.indices).pieces(_SCAN_BYTES):
        positions = np.arange(first, first + len(sources))
        targets = np.searchsorted(indptr, positions, side="right") - 1
        expected += _sums(seed, positions, sources, targets)
    if (expected == found).all():
        return None
    return Problem(
        str(reader.path / POSITION_ARRAY),
        "the edges are not the store's, each once; partition again",
    )


def _sums(seed: int, positions: Ids, sources: Ids, targets: Ids) -> npt.NDArray[np.uint64]:
    words = positions.astype(np.uint64)
    words += np.uint64(seed)
    mix(words)
    parts = (words, words * sources.astype(np.uint64), words * targets.astype(np.uint64))
    return np.array([part.sum(dtype=np.uint64) for part in parts])
