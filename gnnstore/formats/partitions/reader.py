"""Opens the partitions of a store: the rows of each, and the edges between each two.

Nodes have new ids: those of partition k are `rows(k)`, the rows that it has in `nodes`. Bucket
(i, j) holds the edges with their source in partition i and their target in j; it is entry
j * p + i of `bucket_ptr`, so that all edges into a partition lie together. Within a bucket edges
are sorted by target, source and position.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gnnstore.errors import CorruptStoreError, UsageError
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container.files import Problem, add_crcs
from gnnstore.formats.container.manifest import KINDS, Kind
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.partitions.checks import check_meaning
from gnnstore.formats.partitions.manifest import (
    BUCKET_CRCS_ARRAY,
    BUCKET_PTR_ARRAY,
    EDGE_ARRAYS,
    EDGES_GROUP,
    NODES_GROUP,
    ORDER_ARRAY,
    PARTITION_CRCS_ARRAY,
    PARTITIONS_DIRECTORY,
    PLACE_ARRAY,
    POSITION_ARRAY,
    SOURCE_ARRAY,
    TARGET_ARRAY,
    PartitionsManifest,
    node_rows,
)
from gnnstore.formats.store.edge_splits import ID_DTYPES
from gnnstore.formats.store.units import find_unit, find_units, unit_names


class PartitionsReader(SealedReader[PartitionsManifest]):
    """Open, validated partitions. Of the data it reads `bucket_ptr` only.

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
        """Yield values of arrays that are no partitions of a graph."""
        return check_meaning(self)

    def rows(self, partition: int) -> range:
        """Return the new ids of a partition's nodes."""
        begin = partition * self.rows_per_partition
        return range(begin, min(begin + self.rows_per_partition, self.num_nodes))

    def new_ids(self, nodes: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return the new ids of some nodes of the store; by default of all.

        All of the array is compared with its checksums: a damaged one would train other seeds in
        a state before it were found.
        """
        self.check_array(PLACE_ARRAY)
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


PARTITIONS = KINDS.register(
    Kind(
        PartitionsManifest,
        PartitionsReader.open,
        frozenset({ORDER_ARRAY, PLACE_ARRAY, PARTITION_CRCS_ARRAY, NODES_GROUP, EDGES_GROUP}),
        PARTITIONS_DIRECTORY,
    )
)


def find_partitions(store: Path) -> list[Path]:
    """Return the partitionings in the directory of a store, by name."""
    return find_units(PARTITIONS, store)


def open_partitions(
    store: Path, name: str | os.PathLike[str] | None, *, store_uuid: str
) -> PartitionsReader:
    """Open a partitioning of a store."""
    if name is None:
        found = find_partitions(store)
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
