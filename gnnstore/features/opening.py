"""Opens the rows of stored arrays in memory, as mappings, or for reading from disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gnnstore.features.compact import CompactRows, held_row_bytes
from gnnstore.features.tables import DirectRows, MappedRows, MemoryRows

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.features.source import RowSource
    from gnnstore.formats import AttributeSpec, PagedArray, StoreReader

Mode = Literal["memory", "mmap"]


def open_rows(array: PagedArray, place: Mode | Engine, num_threads: int = 1) -> RowSource:
    """Open the rows of a stored array."""
    if place == "memory":
        is_compact = held_row_bytes(array) < array.geometry.row_bytes
        return CompactRows.load(array) if is_compact else MemoryRows.load(array, num_threads)
    if place == "mmap":
        return MappedRows.map(array)
    return DirectRows.open(array, place)


def open_attribute(
    reader: StoreReader, spec: AttributeSpec, place: Mode | Engine, num_threads: int = 1
) -> RowSource:
    """Open the rows of an attribute of a store; a compressed or empty one is loaded."""
    if spec.layout == "cold":
        return MemoryRows.from_array(reader.compressed(spec))
    array = reader.paged(spec)
    return open_rows(array, place if array.num_rows else "memory", num_threads)
