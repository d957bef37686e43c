"""The manifest of partitions: their store, their order, and every file.

Partitions hold the rows of nodes and the edges of a store once more, so that those of a few
partitions are read in large pieces. Nodes have new ids, R ids in each partition; edges lie in
buckets, one for each pair of partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container.manifest import Manifest
from gnnstore.formats.container.names import encode
from gnnstore.formats.container.strict_json import Fields

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

# There are as many buckets as pairs of partitions, and the place of each is in memory.
MOST_PARTITIONS = 4096
# Rows of a partition: edges hold places in partitions as int32.
MOST_ROWS = 2**31 - 1

OrderKind = Literal["random", "train-first", "none"]


@dataclass(frozen=True, kw_only=True)
class PartitionsManifest(Manifest):
    """Identity, contents and files of partitions."""

    FORMAT: ClassVar[str] = "gnnstore-partitions"
    VERSION: ClassVar[int] = PARTITIONS_FORMAT_VERSION
    # There has been no release with older versions.
    OLDEST: ClassVar[int] = PARTITIONS_FORMAT_VERSION
    WORD: ClassVar[str] = "partitioning"
    NOUN: ClassVar[str] = "a partitioning of a store"
    VERB: ClassVar[str] = "partition"
    ATTEMPT: ClassVar[str] = "attempt to partition"
    MAKE: ClassVar[str] = "make one with 'gnnstore partition'"

    store_uuid: str  # identity of the partitioned store
    num_nodes: Annotated[int, 1]
    num_edges: int
    num_partitions: Annotated[int, 2, MOST_PARTITIONS]  # p
    # R; the last partition may have fewer rows, at least one.
    rows_per_partition: Annotated[int, 1, MOST_ROWS]
    # How nodes were spread: "random"; "train-first": those of a split first; "none": in the store's
    # order.
    order_kind: OrderKind = field(metadata={"key": "order"})
    seed: Annotated[int, 0, 2**64 - 1]  # seed of the order
    train_split: str | None  # name of the split of "train-first"
    # With "train-first", the number of first partitions, which hold all nodes of the split; else 0.
    num_train_partitions: int
    # The node attributes, by name: those of the store, rows in the new order.
    nodes: Mapping[str, AttributeSpec]
    paged_arrays: tuple[AttributeSpec, ...] = field(metadata={"key": "arrays"})  # the others

    def row_specs(self) -> tuple[AttributeSpec, ...]:
        """Return the arrays of rows by new id, in the order of the columns of their checksums."""
        return (self.spec(ORDER_ARRAY), *(self.nodes[name] for name in sorted(self.nodes)))

    def partition_bounds(self) -> npt.NDArray[np.int64]:
        """Return the first new id of each partition, and N."""
        return partition_bounds(self.num_nodes, self.num_partitions, self.rows_per_partition)

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


def partition_bounds(
    num_nodes: int, num_partitions: int, rows_per_partition: int
) -> npt.NDArray[np.int64]:
    """Return the first new id of each partition, and N."""
    return np.minimum(np.arange(num_partitions + 1) * rows_per_partition, num_nodes)


def node_rows(name: str) -> str:
    """Return the path of the rows of a node attribute."""
    return f"{NODES_GROUP}/{encode(name)}"
