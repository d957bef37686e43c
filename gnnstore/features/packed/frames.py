"""Chunks of packed rows that are compressed: one frame for each batch, read and decoded whole.

A chunk is always read from its beginning to its end, so it can be compressed where a disk is slower
than decoding: bits of the same weight are put together, and the result goes through LZ4 or
Zstandard (Blosc's frames, by numcodecs). Features that are measured values hardly become smaller;
counts, categories and quantised ones do. A chunk that does not become smaller stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts, empty
from gnnstore.errors import CorruptStoreError, storage_errors
from gnnstore.features.packed.chunks import PACK_ELSEWHERE
from gnnstore.formats.container.files import read_part, write_part
from gnnstore.formats.container.regular_files import open_regular
from gnnstore.formats.packed.manifest import Compression
from gnnstore.threads import Workers

if TYPE_CHECKING:
    from gnnstore.features.files import FileRows
    from gnnstore.features.packed.chunks import ChunkChecksums


# LZ4 gains nothing from more; of Zstandard's, the first is the fastest to write, and all are
# decoded at the same speed.
_LEVELS: dict[Compression, int] = {"lz4": 5, "zstd": 1}
_ALIGNMENT_BYTES = 4096
# Of a chunk that is compressed: as it was, where Blosc writes to, and what comes of it.
_COPIES = 3


def compress(raw: npt.NDArray[np.uint8], name: Compression, item_bytes: int) -> bytes | None:
    """Return the frame of a chunk; None if it would not be smaller."""
    from numcodecs import blosc  # noqa: PLC0415 - not needed for plans without

    if len(raw) == 0 or len(raw) > blosc.MAX_BUFFERSIZE - blosc.MAX_OVERHEAD:
        return None
    items = raw.view(f"u{item_bytes}")
    frame: bytes = blosc.compress(items, name.encode(), _LEVELS[name], blosc.BITSHUFFLE)
    return frame if len(frame) < len(raw) else None


def decompress(frame: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    """Fill `out` with what a frame holds."""
    from numcodecs import blosc  # noqa: PLC0415

    head = frame[:16].tobytes()
    # Blosc's header: at byte 4 the decoded bytes, at byte 12 those of the frame.
    sizes = int.from_bytes(head[4:8], "little"), int.from_bytes(head[12:16], "little")
    if len(head) < 16 or sizes != (len(out), len(frame)):
        raise ValueError(f"it is no frame of {len(out)} bytes in {len(frame)}")
    try:
        blosc.decompress(frame, out)
    except RuntimeError as error:
        raise ValueError(f"it cannot be decoded ({error})") from error


@dataclass(frozen=True, eq=False)
class Frames:
    """Positions of chunks and parts after compression."""

    # int64 [chunks + parts + 1]: where each begins; the end of the last.
    offsets: npt.NDArray[np.int64]
    num_bytes: npt.NDArray[np.int64]  # int64 [chunks]: of each chunk as it is kept
    crcs: npt.NDArray[np.int64]  # int64 [chunks]: of each chunk as it is kept


def compress_chunks(
    path: Path,
    offsets: npt.NDArray[np.int64],
    chunk_bytes: Sequence[int],
    name: Compression,
    item_bytes: int,
    *,
    checksums: ChunkChecksums,
    memory_bytes: int,
    num_threads: int = 1,
) -> Frames:
    """Compress the chunks at the beginning of a part of a file in place; move up the rest."""
    num_chunks = len(chunk_bytes)
    at_once = memory_bytes // max(1, _COPIES * max(chunk_bytes, default=0))
    num_threads = max(1, min(num_threads, at_once))
    found = Frames(offsets.copy(), np.zeros(num_chunks, np.int64), np.zeros(num_chunks, np.int64))
    place = int(offsets[0])
    with storage_errors("compress packed rows", path):
        descriptor = open_regular(path, os.O_RDWR, error=CorruptStoreError, root=path.parent)
        try:

            def frame_of(i: int) -> npt.NDArray[np.uint8]:
                raw = read_part(descriptor, chunk_bytes[i], int(offsets[i]))
                checksums.compare(i, raw, int(offsets[i]), advice=PACK_ELSEWHERE)
                frame = compress(raw, name, item_bytes)
                return raw if frame is None else np.frombuffer(frame, np.uint8)

            with Workers(num_threads, "gnnstore-compress") as workers:
                for first in range(0, num_chunks, num_threads):
                    some = range(first, min(first + num_threads, num_chunks))
                    # No frame is longer than its chunk, so none reaches into one that is unread.
                    for i, frame in zip(
                        some, workers.run([partial(frame_of, i) for i in some]), strict=True
                    ):
                        found.offsets[i] = place
                        found.num_bytes[i], found.crcs[i] = len(frame), _core.crc32c(frame)
                        place = _write(descriptor, frame, place)
            for i in range(num_chunks, len(offsets) - 1):
                part = read_part(descriptor, int(offsets[i + 1] - offsets[i]), int(offsets[i]))
                found.offsets[i] = place
                place = _write(descriptor, part, place)
            found.offsets[-1] = place
        finally:
            os.close(descriptor)
    return found


class FrameReader:
    """Reads compressed chunks. Safe to use from many threads at once."""

    def __init__(
        self,
        reader: _core.Reader,
        index: npt.NDArray[np.int64],
        begins: slice,
        num_bytes: slice,
        crcs: slice,
    ) -> None:
        self._reader = reader
        self._begins, self._sizes = index[:, begins], index[:, num_bytes]
        self._crcs, self._rows = index[:, crcs], index[:, 3]

    def staging_bytes(self, row_bytes: Sequence[int]) -> int:
        """Return the memory of a thread that reads a chunk: its frame, and the decoded rows."""
        longest = int(self._rows.max(initial=0)) * max(row_bytes, default=0)
        return longest + int(self._sizes.max(initial=0))

    def read(
        self,
        number: int,
        column: int,
        table: FileRows,
        positions: npt.NDArray[np.int32],
        out: npt.NDArray[Any],
    ) -> ReadCounts:
        """Write the rows of a batch's chunk to their places in `out`; the others stay."""
        begin, size = int(self._begins[number, column]), int(self._sizes[number, column])
        if len(positions) == 0:
            return ReadCounts()
        frame = empty((size,), np.uint8)
        zero = np.zeros(1, np.int64)
        counts = self._reader.read_ranges(
            table.files, zero, np.array([begin]), np.array([size]), zero, frame
        )
        path = table.array.file_paths[0]
        crc, expected = _core.crc32c(frame), int(self._crcs[number, column])
        raw = frame
        try:
            if crc != expected:
                raise ValueError(f"the crc32c is {crc:08x}, not {expected:08x}")
            if size != len(positions) * table.row_bytes:
                raw = empty((len(positions) * table.row_bytes,), np.uint8)
                decompress(frame, raw)
        except ValueError as error:
            raise CorruptStoreError(
                f"{path}: bytes {begin} to {begin + size}, packed rows, are damaged: {error}",
                path=path,
                offset=begin,
            ) from error
        _core.copy_to_slots(
            raw,
            np.arange(len(positions), dtype=np.int32),
            out.reshape(-1).view(np.uint8),
            positions,
            row_bytes=table.row_bytes,
        )
        return counts + ReadCounts(rows_read=len(positions))


def _write(descriptor: int, data: npt.NDArray[np.uint8], offset: int) -> int:
    """Write bytes, and zeros up to a page; return where that ends."""
    end = write_part(descriptor, data.data, offset)
    return write_part(descriptor, memoryview(bytes(-end % _ALIGNMENT_BYTES)), end)
