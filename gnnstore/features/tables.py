"""Opens the tables of a store in their places, and names those that are cached together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Literal, Self

from gnnstore.disk.engines import Engine
from gnnstore.features.file_rows import FileRows
from gnnstore.features.mapped_rows import MappedRows
from gnnstore.features.memory_rows import CompactRows, MemoryRows
from gnnstore.features.source import RowSource, TypedRows
from gnnstore.formats import AttributeSpec, PagedArray, StoreReader
from gnnstore.formats.store.schema import Schema
from gnnstore.machine import PRIVATE, Machine
from gnnstore.sampling.row_space import RowRange, RowSpace

# Widest rows that are searched for integers: wider ones are features, and a search would read
# twice.
MAX_ROW_BYTES = 64


def held_row_bytes(array: PagedArray) -> int:
    """Return the bytes of a row of a stored array in memory."""
    row_bytes = array.geometry.row_bytes
    if row_bytes > MAX_ROW_BYTES:
        return row_bytes
    return row_bytes // array.dtype.itemsize * array.narrowest_dtype.itemsize


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
    """The node attributes that are read from disk and cached together."""

    specs: tuple[AttributeSpec, ...]
    space: RowSpace  # of the node types that have them
    owners: Mapping[str, str]  # node type of each attribute, by path

    @classmethod
    def from_schema(cls, schema: Schema, paths: Container[str]) -> Self:
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
