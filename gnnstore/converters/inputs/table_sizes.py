"""Reads how much memory parts of tables take, before any is read.

Arrow reads a batch as a whole, and all dictionaries. Messages of a file or a stream have the
lengths of their buffers; where buffers are compressed, each begins with its length before that.

Parquet decompresses a page as a whole, however few of its rows are wanted, and each row gets a copy
of a text that lies in the dictionary once. Headers of pages (Thrift's compact protocol) have the
sizes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from gnnstore.converters.inputs.opening import open_input
from gnnstore.errors import storage_errors

_CONTINUATION = 0xFFFFFFFF  # the mark before the length of each message
_DICTIONARY, _BATCH = 2, 3  # kinds of messages with buffers


class BatchSizes(NamedTuple):
    """Bytes of memory."""

    dictionaries: int  # of all
    largest: int  # of the largest batch


def read_sizes(path: Path, *, is_stream: bool) -> BatchSizes:
    """Return what the dictionaries of a file take, and its largest batch, while they are read."""
    dictionaries = largest = 0
    with storage_errors("read the table", path), open_input(path) as file:
        try:
            for kind, num_bytes in _messages(file, 0 if is_stream else 8):
                if kind == _DICTIONARY:
                    dictionaries += num_bytes
                elif kind == _BATCH:
                    largest = max(largest, num_bytes)
        except struct.error:  # Arrow names the damage
            pass
    return BatchSizes(dictionaries, largest)


def _messages(file: BinaryIO, offset: int) -> Iterator[tuple[int, int]]:
    """Yield the kind of each message, and the bytes of its buffers, read and decompressed."""
    end = os.fstat(file.fileno()).st_size
    while offset + 8 <= end:
        file.seek(offset)
        mark, length = struct.unpack("<Ii", file.read(8))
        if mark != _CONTINUATION or not 0 < length <= end - offset:
            return
        data = file.read(length)
        message = struct.unpack_from("<I", data)[0]
        kind = _scalar(data, message, 1, "<B")
        body_bytes = _scalar(data, message, 3, "<q")
        offset += 8 + length
        buffers = _compressed(data, message, kind)
        decoded = _decoded_bytes(file, offset, buffers) if buffers else body_bytes
        yield kind, body_bytes + decoded
        offset += max(0, body_bytes)


def _compressed(data: bytes, message: int, kind: int) -> list[tuple[int, int]]:
    """Return where the buffers of a message begin in its body, and their lengths, if compressed."""
    batch = _table(data, message, 2)
    if kind == _DICTIONARY:
        batch = _table(data, batch, 1)
    if kind not in {_DICTIONARY, _BATCH} or not _field(data, batch, 3):
        return []
    buffers = _table(data, batch, 2)
    count = struct.unpack_from("<I", data, buffers)[0]
    return [struct.unpack_from("<qq", data, buffers + 4 + 16 * i) for i in range(count)]


def _decoded_bytes(file: BinaryIO, body: int, buffers: list[tuple[int, int]]) -> int:
    total = 0
    for first, length in buffers:
        if length >= 8 and first >= 0:
            file.seek(body + first)
            decoded = struct.unpack("<q", file.read(8))[0]
            total += length if decoded < 0 else decoded  # -1: it is not compressed
    return total


# ---- FlatBuffers of Arrow


def _field(data: bytes, table: int, number: int) -> int:
    """Return the offset of a field of a table, or 0 if it is not there."""
    layout = table - struct.unpack_from("<i", data, table)[0]
    entry = 4 + 2 * number
    if entry >= struct.unpack_from("<H", data, layout)[0]:
        return 0
    offset = struct.unpack_from("<H", data, layout + entry)[0]
    return table + offset if offset else 0


def _scalar(data: bytes, table: int, number: int, form: str) -> int:
    offset = _field(data, table, number)
    return int(struct.unpack_from(form, data, offset)[0]) if offset else 0


def _table(data: bytes, table: int, number: int) -> int:
    """Return the offset of a table or a vector that a field refers to."""
    offset = _field(data, table, number)
    return offset + int(struct.unpack_from("<I", data, offset)[0])


# ---- Parquet

_HEADER_BYTES, _MOST_HEADER_BYTES = 2**10, 2**20
_DICTIONARY_PAGE = 2  # a kind of page
# Kinds of fields.
_STOP, _BINARY, _STRUCT, _INTEGERS = 0, 8, 12, (4, 5, 6)
_WIDTHS = {1: 0, 2: 0, 3: 1, 7: 8}  # bytes of values by kind: true, false, a byte, a double
_MOST_DEPTH = 8


class ColumnSizes(NamedTuple):
    """Bytes of memory."""

    page: int  # of the largest page, as it is read and decompressed
    value: int  # of the largest text in a dictionary; 0 without one


def read_column_sizes(file: BinaryIO, metadata: Any, name: str, most_bytes: int) -> ColumnSizes:
    """Return the sizes of a column, or of all columns below it, together.

    Dictionaries of more than `most_bytes` are not read: their texts may be as long.
    """
    pages = values = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        page = value = 0
        for column in map(group.column, range(group.num_columns)):
            if f"{column.path_in_schema}.".startswith(f"{name}."):
                own = _chunk_sizes(file, column, most_bytes)
                page, value = page + own.page, value + own.value
        pages, values = max(pages, page), max(values, value)
    return ColumnSizes(pages, values)


def _chunk_sizes(file: BinaryIO, column: Any, most_bytes: int) -> ColumnSizes:
    begin = column.data_page_offset
    if column.has_dictionary_page:
        begin = min(begin, column.dictionary_page_offset or begin)
    is_text = column.physical_type == "BYTE_ARRAY"
    largest = value = 0
    try:
        for page in _pages(file, begin, begin + column.total_compressed_size):
            stored = 0 if column.compression == "UNCOMPRESSED" else page.stored
            largest = max(largest, page.size + stored)
            if is_text and page.kind == _DICTIONARY_PAGE:
                value = page.size
                if value <= most_bytes:
                    value = _largest_text(_decoded(file, page, column.compression))
    except (struct.error, IndexError):  # Arrow names the damage
        pass
    return ColumnSizes(largest, value)


class _Page(NamedTuple):
    kind: int
    size: int  # bytes, decompressed
    stored: int  # bytes in the file
    offset: int  # of its first byte behind the header


def _pages(file: BinaryIO, offset: int, end: int) -> Iterator[_Page]:
    while offset < end:
        file.seek(offset)
        header = file.read(_HEADER_BYTES)
        try:
            fields, length = _structure(header)
        except (IndexError, struct.error):  # it has statistics with long texts
            file.seek(offset)
            fields, length = _structure(file.read(_MOST_HEADER_BYTES))
        kind, size, stored = (fields.get(number, -1) for number in (1, 2, 3))
        if min(kind, size, stored) < 0:
            return
        yield _Page(kind, size, stored, offset + length)
        offset += length + stored


def _decoded(file: BinaryIO, page: _Page, compression: str) -> bytes:
    import pyarrow as pa  # noqa: PLC0415

    file.seek(page.offset)
    data = file.read(page.stored)
    if compression == "UNCOMPRESSED":
        return data
    try:
        codec = "lz4_raw" if compression == "LZ4" else compression.lower()
        decoded: bytes = pa.decompress(data, page.size, codec, asbytes=True)
    except (pa.ArrowException, ValueError, OSError):  # Arrow names the damage
        return b""
    return decoded


def _largest_text(data: bytes) -> int:
    """Return the length of the longest text of a dictionary: each has its length before it."""
    offset = largest = 0
    while len(data) - offset - 4 > largest:
        (length,) = struct.unpack_from("<I", data, offset)
        largest = max(largest, length)
        offset += 4 + length
    return largest


# ---- headers of pages


def _structure(data: bytes, offset: int = 0, depth: int = 0) -> tuple[dict[int, int], int]:
    """Return the integers of a structure by their numbers, and the offset behind it."""
    found: dict[int, int] = {}
    number = 0
    if depth > _MOST_DEPTH:
        raise IndexError
    while (head := data[offset]) != _STOP:
        offset += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, offset = _integer(data, offset)
        if kind in _INTEGERS:
            found[number], offset = _integer(data, offset)
        else:
            offset = _behind(data, offset, kind, depth)
    return found, offset + 1


def _behind(data: bytes, offset: int, kind: int, depth: int) -> int:
    """Return the offset behind a value."""
    if kind in _WIDTHS:
        return offset + _WIDTHS[kind]
    if kind == _BINARY:
        length, offset = _unsigned(data, offset)
        return offset + length
    if kind == _STRUCT:
        return _structure(data, offset, depth + 1)[1]
    raise IndexError  # lists and maps are in no header of a page


def _integer(data: bytes, offset: int) -> tuple[int, int]:
    value, offset = _unsigned(data, offset)
    return value >> 1 ^ -(value & 1), offset


def _unsigned(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value, offset
        if shift > 63:
            raise IndexError
