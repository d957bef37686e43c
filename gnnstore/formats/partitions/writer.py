"""Writes partitions: several arrays at a time, then one atomic commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from gnnstore.formats.arrays.paged_writer import PagedArrayWriter
from gnnstore.formats.container.manifest import CHECKSUMS_ARRAY
from gnnstore.formats.container.writer import SealedWriter
from gnnstore.formats.partitions.manifest import (
    BUCKET_CRCS_ARRAY,
    BUCKET_PTR_ARRAY,
    EDGES_GROUP,
    NODES_GROUP,
    PARTITION_CRCS_ARRAY,
    PartitionsManifest,
    node_rows,
)
from gnnstore.formats.partitions.reader import PartitionsReader


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

    def checksums(self, array_path: str, shape: tuple[int, int]) -> PagedArrayWriter:
        """Begin an array of the crc32c of ranges of other arrays, a column for each of these."""
        name, (num_rows, width) = array_path.rpartition("/")[2], shape
        return self.paged(
            array_path, name=name, row_shape=(width,), dtype="uint32", num_rows=num_rows
        )

    def values(self, array_path: str, dtype: str, num_values: int) -> PagedArrayWriter:
        """Begin an array of single values: ids, places, positions."""
        name = array_path.rpartition("/")[2]
        return self.paged(array_path, name=name, row_shape=(), dtype=dtype, num_rows=num_values)

    def commit(self, **fields: Any) -> Path:
        """Finish every array, write the manifest, and rename the partitions into place."""
        specs = [writer.spec for writer in self._writers.values()]
        nodes = {s.name: s for s in specs if s.path.startswith(f"{NODES_GROUP}/")}
        return self.seal(
            PartitionsManifest(
                nodes=nodes,
                paged_arrays=tuple(s for s in specs if s.path != node_rows(s.name)),
                **fields,
            )
        )
