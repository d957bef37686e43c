"""Tables of rows: in memory, mapped from files, or read from disk by an engine on request."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts, empty
from gnnstore.disk.engines import Engine
from gnnstore.features.source import FileRows, MemoryRows, RowSource, RowSpec, TypedRows, copy_rows
from gnnstore.formats import AttributeSpec, PagedArray, StoreReader
from gnnstore.formats.store.schema import Schema
from gnnstore.machine import PRIVATE, Machine
from gnnstore.sampling.row_space import RowRange, RowSpace

# A page fault blocks the thread that takes it, so a mapping is read faster by more threads
# than there are cores. A batch of 136,000 rows, none of them cached, two batches at a time,
# on a disk of 100,000 reads a second: 3.9 s with 1 thread, 0.54 s with 4, 0.27 s with 16,
# 0.21 s with 32. Their cost when every page is cached: half a millisecond.
MAX_FAULT_THREADS = 32
MIN_ROWS_PER_FAULT_THREAD = 512


# Wider rows are features, of which hardly any are integers: a search for them would read twice.
MAX_ROW_BYTES = 64


def held_row_bytes(array: PagedArray) -> int:
    """Return the bytes of a row of a stored array in memory."""
    row_bytes = array.geometry.row_bytes
    if row_bytes > MAX_ROW_BYTES:
        return row_bytes
    return row_bytes // array.dtype.itemsize * array.narrowest_dtype.itemsize


@dataclass(frozen=True, eq=False)
class CompactRows(RowSource):
    """A table of integers in memory, narrower than in a batch.

    Labels are int64 for PyTorch's sake, and few have more than 256 values: of 16 million nodes they
    take 17 MB instead of 134, which cached rows have then.
    """

    table: MemoryRows
    dtype: np.dtype[Any]  # of the rows that are read

    @classmethod
    def load(cls, array: PagedArray, machine: Machine = PRIVATE) -> Self:
        """Load a stored array a piece at a time, so that memory never holds it in full width."""
        narrow, shape = array.narrowest_dtype, (array.num_rows, *array.row_shape)

        def fill(out: npt.NDArray[np.uint8]) -> None:
            table = out.view(narrow).reshape(shape)
            for first, piece in array.pieces():
                table[first : first + len(piece)] = piece

        found = machine.share(array.key(narrow), math.prod(shape) * narrow.itemsize, fill)
        return cls(MemoryRows(found.view(narrow).reshape(shape)), array.dtype)

    @cached_property
    def spec(self) -> RowSpec:
        """The rows as they are read."""
        held = self.table.spec
        return RowSpec(held.num_rows, held.shape, self.dtype)

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the table occupies."""
        return self.table.resident_bytes

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Copy the rows of `ids` to `out`, widened."""
        spec = self.table.spec
        rows = empty((len(ids), *spec.shape), spec.dtype)
        counts = self.table.read_rows(ids, rows)
        out.reshape(-1).view(self.dtype)[:] = rows.reshape(-1)
        return counts


@dataclass(frozen=True, eq=False)
class MappedRows(RowSource):
    """A stored table, mapped: the operating system reads a page on the first access to it."""

    array: PagedArray
    body: npt.NDArray[np.uint8]

    @classmethod
    def map(cls, array: PagedArray) -> Self:
        """Map a stored array, advising the system not to read ahead."""
        return cls(array, array.map("random"))

    @cached_property
    def spec(self) -> RowSpec:
        """The rows of the array."""
        return RowSpec.of(self.array.spec)

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Copy the rows of `ids` to `out`.

        Several threads share one call, so that their page faults overlap.
        """
        num_threads = max(1, min(MAX_FAULT_THREADS, ids.size // MIN_ROWS_PER_FAULT_THREAD))
        return copy_rows(self.body, ids, out, **self.array.place, num_threads=num_threads)


@dataclass(frozen=True, eq=False)
class SharedRows(RowSource):
    """Rows of another table, in an order of its own."""

    table: RowSource
    rows: RowSource  # int32 or int64: the row of each in the other table

    @property
    def spec(self) -> RowSpec:
        """The rows of the other table, as many as there are here."""
        return replace(self.table.spec, num_rows=self.rows.num_rows)

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of `ids`."""
        places, counts = self.rows.gather(ids)
        return counts + self.table.read_rows(places, out)


Mode = Literal["memory", "mmap"]


def open_rows(
    array: PagedArray, place: Mode | Engine, num_threads: int = 1, machine: Machine = PRIVATE
) -> RowSource:
    """Open the rows of a stored array."""
    if place == "memory":
        if held_row_bytes(array) < array.geometry.row_bytes:
            return CompactRows.load(array, machine)
        return MemoryRows.load(array, num_threads, machine)
    if place == "mmap":
        return MappedRows.map(array)
    return FileRows.open(array, place)


def open_attribute(
    reader: StoreReader,
    spec: AttributeSpec,
    place: Mode | Engine,
    num_threads: int = 1,
    machine: Machine = PRIVATE,
) -> RowSource:
    """Open the rows of an attribute of a store; a compressed or empty one is loaded."""
    if spec.layout == "cold":
        return MemoryRows.from_array(reader.compressed(spec, machine))
    array = reader.paged(spec)
    return open_rows(array, place if array.num_rows else "memory", num_threads, machine)


@dataclass(frozen=True, eq=False)
class CachedTables:
    """The node attributes whose rows are read from disk and cached together."""

    specs: tuple[AttributeSpec, ...]
    space: RowSpace  # of the node types that have them
    owners: Mapping[str, str]  # node type of each attribute, by path

    @classmethod
    def of(cls, schema: Schema, paths: Container[str]) -> Self:
        """Return the node attributes of a store that are at some paths."""
        owners = {
            spec.path: node.name
            for node in schema.node_types
            for spec in node.attributes.values()
            if spec.path in paths
        }
        specs = tuple(spec for spec in schema.node_attributes() if spec.path in owners)
        return cls(specs, RowSpace.of_schema(schema, owners), owners)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a node's rows; with several types, of the widest."""
        return max(self.widths.values(), default=0)

    @property
    def widths(self) -> Counter[RowRange]:
        """Bytes of a node's rows, by the numbers of the rows of its type."""
        widths = Counter[RowRange]()
        for spec, own in zip(self.specs, self.ranges, strict=True):
            widths[own] += spec.row_bytes
        return widths

    @property
    def row_bytes(self) -> int:
        """Bytes of a node's rows, on average over the types."""
        total = sum(spec.num_rows * spec.row_bytes for spec in self.specs)
        return -(-total // max(1, self.space.num_rows))

    @property
    def ranges(self) -> tuple[RowRange, ...]:
        """The numbers of the rows of each attribute."""
        return tuple(self.space.range_of(self.owners[spec.path]) for spec in self.specs)

    def open(self, table: Callable[[AttributeSpec], RowSource]) -> dict[str, TypedRows[RowSource]]:
        """Return the tables by path, opened by a function."""
        opened = zip(self.specs, self.ranges, strict=True)
        return {spec.path: TypedRows(table(spec), own) for spec, own in opened}
