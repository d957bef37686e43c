"""Reads how much memory the batches of an Arrow file take, before any is read.

Arrow reads a batch as a whole, and all dictionaries. Messages of a file or a stream say how long
their buffers are; where buffers are compressed, each begins with its length before that.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gnnstore.converters.inputs.opening import open_input
from gnnstore.errors import storage_errors

_CONTINUATION = 0xFFFFFFFF  # before the length of each message
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


def _messages(file: BinaryIO, place: int) -> Iterator[tuple[int, int]]:
    """Yield the kind of each message, and the bytes of its buffers, read and decompressed."""
    end = os.fstat(file.fileno()).st_size
    while place + 8 <= end:
        file.seek(place)
        mark, length = struct.unpack("<Ii", file.read(8))
        if mark != _CONTINUATION or not 0 < length <= end - place:
            return
        data = file.read(length)
        message = struct.unpack_from("<I", data)[0]
        kind = _scalar(data, message, 1, "<B")
        body_bytes = _scalar(data, message, 3, "<q")
        place += 8 + length
        buffers = _compressed(data, message, kind)
        decoded = _decoded_bytes(file, place, buffers) if buffers else body_bytes
        yield kind, body_bytes + decoded
        place += max(0, body_bytes)


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


# ---- FlatBuffers


def _field(data: bytes, table: int, number: int) -> int:
    """Return the place of a field of a table, or 0 if it is not there."""
    layout = table - struct.unpack_from("<i", data, table)[0]
    entry = 4 + 2 * number
    if entry >= struct.unpack_from("<H", data, layout)[0]:
        return 0
    offset = struct.unpack_from("<H", data, layout + entry)[0]
    return table + offset if offset else 0


def _scalar(data: bytes, table: int, number: int, form: str) -> int:
    place = _field(data, table, number)
    return int(struct.unpack_from(form, data, place)[0]) if place else 0


def _table(data: bytes, table: int, number: int) -> int:
    """Return the place of a table or a vector that a field refers to."""
    place = _field(data, table, number)
    return place + int(struct.unpack_from("<I", data, place)[0])
