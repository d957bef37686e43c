"""Rows of nodes in slots, a partition each, and the files that partitions are read from."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts
from gnnstore.disk.engines import Engine
from gnnstore.errors import CorruptStoreError
from gnnstore.features.source import FileRows, MemoryRows, Rows, RowSpec
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.partitions import PartitionsReader

Int64Array = npt.NDArray[np.int64]

# Reading may be stopped between two pieces.
_PIECE_BYTES = 2**26


class PartitionFiles:
    """Reads partitions in order, and compares what is read with its checksums.

    Its methods take a callable `proceed`, which is called between two pieces and raises to end
    reading.
    """

    def __init__(self, unit: PartitionsReader, engine: Engine) -> None:
        self.unit = unit
        self.engine = engine
        self.counts = ReadCounts()
        self._open: dict[str, FileRows] = {}

    def read_rows(
        self,
        spec: AttributeSpec,
        partition: int,
        out: npt.NDArray[Any],
        proceed: Callable[[], None],
    ) -> None:
        """Fill `out` with the rows of a partition."""
        rows, first = self._rows(spec), self.unit.rows(partition).start
        step = max(1, _PIECE_BYTES // max(1, rows.row_bytes))
        for begin in range(0, len(out), step):
            proceed()
            self.counts += rows.read_range(first + begin, out[begin : begin + step])
        self.unit.check_rows(partition, spec, out)

    def read_edges(
        self,
        spec: AttributeSpec,
        buckets: Int64Array,
        places: Int64Array,
        out: npt.NDArray[Any],
        proceed: Callable[[], None],
    ) -> None:
        """Read buckets of edges to their places in `out`, about a piece at a time."""
        bucket_ptr = self.unit.bucket_ptr
        firsts, ends, to = _joined(bucket_ptr[buckets], bucket_ptr[buckets + 1], places)
        rows = self._rows(spec)
        piece = np.cumsum(ends - firsts) * rows.row_bytes // _PIECE_BYTES
        cuts = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(firsts)]
        for begin, end in pairwise(cuts):
            proceed()
            cut = slice(begin, end)
            self.counts += rows.read_ranges(firsts[cut], ends[cut], to[cut], out)
        self.unit.check_edges(buckets, spec, places, out)

    def _rows(self, spec: AttributeSpec) -> FileRows:
        if spec.path not in self._open:
            self._open[spec.path] = FileRows.open(self.unit.paged(spec), self.engine)
        return self._open[spec.path]


class PartitionSlots:
    """Memory for the rows of some partitions: all node attributes, and the store's ids."""

    def __init__(self, files: PartitionFiles, num_slots: int) -> None:
        self.files = files
        self.num_slots = num_slots
        self.slot_of: dict[int, int] = {}  # slot of each partition that has its rows in memory
        unit = files.unit
        rows = num_slots * unit.rows_per_partition
        self._specs = {spec.path: spec for spec in (unit.order_spec, *unit.nodes.values())}
        self._tables = {
            path: MemoryRows(RowSpec.of(spec).empty(rows)) for path, spec in self._specs.items()
        }

    @staticmethod
    def row_bytes_of(unit: PartitionsReader) -> int:
        """Return the memory of a node in a slot: its id and its rows."""
        return sum(spec.row_bytes for spec in (unit.order_spec, *unit.nodes.values()))

    def read(self, partition: int, slot: int, proceed: Callable[[], None]) -> None:
        """Read the rows of a partition into a slot, which is overwritten."""
        self.slot_of = {known: its for known, its in self.slot_of.items() if its != slot}
        unit = self.files.unit
        new_ids, begin = unit.rows(partition), slot * unit.rows_per_partition
        for path, spec in self._specs.items():
            out = self._tables[path].table[begin : begin + len(new_ids)]
            self.files.read_rows(spec, partition, out, proceed)
            is_order = path == unit.order_spec.path
            if is_order and not 0 <= out.min() <= out.max() < unit.num_nodes:
                raise CorruptStoreError(
                    f"{unit.path / path}: partition {partition} has nodes outside [0, "
                    f"{unit.num_nodes}). It is damaged: run 'gnnstore verify', or partition the "
                    "store again",
                    path=unit.path / path,
                )
        self.slot_of[partition] = slot

    def free(self, kept: set[int]) -> int | None:
        """Return a slot that has none of the partitions to be kept, if there is one."""
        taken = {slot for partition, slot in self.slot_of.items() if partition in kept}
        return next((slot for slot in range(self.num_slots) if slot not in taken), None)

    def first_rows(self, partitions: Int64Array) -> Int64Array:
        """Return the row at which the slot of each partition begins [c]."""
        slots = [self.slot_of[partition] for partition in partitions.tolist()]
        return np.array(slots, np.int64) * self.files.unit.rows_per_partition

    def store_ids(self, rows: Int64Array) -> npt.NDArray[Any]:
        """Return the store's ids of the nodes in some rows."""
        return self._tables[self.files.unit.order_spec.path].gather(rows).values

    def gather(self, rows: Int64Array) -> dict[str, Rows]:
        """Return the attributes of the nodes in some rows, by name."""
        nodes = self.files.unit.nodes
        return {name: self._tables[spec.path].gather(rows) for name, spec in nodes.items()}


def _joined(
    firsts: Int64Array, ends: Int64Array, places: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return ranges of rows and their places, without empty ones, and adjacent ones joined."""
    kept = ends > firsts
    firsts, ends, places = firsts[kept], ends[kept], places[kept]
    follows = (firsts[1:] == ends[:-1]) & (np.diff(places) == np.diff(firsts))
    begins = np.flatnonzero(np.concatenate([[True], ~follows])[: len(firsts)])
    lasts = np.append(begins[1:], len(firsts))[: len(begins)] - 1
    return firsts[begins], ends[lasts], places[begins]
