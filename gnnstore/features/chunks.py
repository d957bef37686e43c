"""The rows that batches miss, packed: each batch reads its own with a few large reads.

On disk there is one file for each table. In it, each batch has a chunk: the distinct rows that it
misses, one behind the other in the order of the table, from a multiple of 4096 bytes on. The place
of each row in the batch is kept in memory, 4 bytes a row, or in another file.

A chunk has a crc32c for each block of some kilobytes, compared as it is read. They are computed of
what is in memory while it is packed, not of what can be read back, so that a disk that alters bytes
on their way to it is noticed as well.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts
from gnnstore.disk.spool import Spool
from gnnstore.features.chunk_rows import PackedRows, Ranks, places_within, read_chunk
from gnnstore.features.source import RowSource, RowSpec
from gnnstore.formats.packed import CHECKED_ROWS, MAX_PIECE_BYTES
from gnnstore.sampling.row_space import RowRange

# Alignment of chunks, which suits direct reads of any common disk.
CHUNK_ALIGNMENT_BYTES = 4096
# Bytes under a checksum: few enough that a compared piece is still in the second-level cache when
# its rows are copied, and that a message names the place of a damage; 4 bytes a block are nothing
# in comparison.
BLOCK_BYTES = 128 << 10
assert MAX_PIECE_BYTES % BLOCK_BYTES == 0  # noqa: S101 - reads are of MAX_PIECE_BYTES
# Reads of a chunk: 16 of 512 KiB reach a disk's full bandwidth, in as much staging memory
# (8 MiB) as an engine takes that reads single rows. A read is of whole blocks.
_READ_BYTES = MAX_PIECE_BYTES
_QUEUE_DEPTH = 16
_READING_THREADS = 8  # threads of an engine that has some
# Bytes for each thread that reads chunks.
CHUNK_STAGING_BYTES = _READ_BYTES * _QUEUE_DEPTH
_HELP = (
    "The disk or another program has changed them: start the run again, which packs rows anew, and "
    "with another directory for packed rows (spill_dir=) if this happens again"
)


@dataclass(frozen=True, eq=False)
class PackedChunks:
    """Positions of the chunks of a table in its file, and their checksums."""

    # int64 [S + 1]: where the chunk of each batch begins; the end of the last one.
    offsets: npt.NDArray[np.int64]
    # uint32 [blocks]: ``crcs[crc_begins[i]:crc_begins[i + 1]]`` are of the blocks of chunk i.
    crcs: npt.NDArray[np.uint32]
    crc_begins: npt.NDArray[np.int64]  # int64 [S + 1]

    @classmethod
    def from_num_rows(
        cls, num_rows: npt.NDArray[np.int64], row_bytes: int, begin: int
    ) -> PackedChunks:
        """Return the places of chunks from a byte of a file on, with room for their checksums."""
        offsets = np.concatenate([[begin], chunk_bytes(num_rows, row_bytes)]).cumsum()
        blocks = np.concatenate([[0], -(-num_rows * row_bytes // BLOCK_BYTES)]).cumsum()
        return cls(offsets, np.zeros(int(blocks[-1]), np.uint32), blocks)

    def of_chunk(self, i: int) -> npt.NDArray[np.uint32]:
        """Return the checksums of a chunk: a view."""
        return self.crcs[self.crc_begins[i] : self.crc_begins[i + 1]]

    def compare(self, i: int, content: npt.NDArray[np.uint8], offset: int) -> None:
        """Compare a chunk that was read whole."""
        found, expected = _core.crc32c_blocks(content, BLOCK_BYTES), self.of_chunk(i)
        bad = np.flatnonzero(found != expected)
        if len(bad):
            at = offset + int(bad[0]) * BLOCK_BYTES
            raise OSError(
                errno.EBADMSG,
                f"bytes {at} to {min(at + BLOCK_BYTES, offset + len(content))} are not what was "
                f"written: the crc32c is {int(found[bad[0]]):08x}, not "
                f"{int(expected[bad[0]]):08x}. Test the disk, or pack to another one",
            )


def shared_crcs(row_crcs: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Return the checksums of rows that batches share, in the order of their ranks.

    A batch reads some of a segment's rows, and not those between them, so that there are no blocks
    to compare: it has one checksum for `CHECKED_ROWS` of its rows, of these rows' own.
    """
    return _core.crc32c_blocks(row_crcs.astype("<u4").view(np.uint8), 4 * CHECKED_ROWS)


def chunk_bytes(num_rows: npt.NDArray[np.int64], row_bytes: int) -> npt.NDArray[np.int64]:
    """Return the bytes on disk of each chunk, by its number of rows: int64."""
    unit = CHUNK_ALIGNMENT_BYTES
    return -(-(num_rows * row_bytes) // unit) * unit


@dataclass(frozen=True, eq=False)
class PackedTable:
    """The file with the packed rows of one table."""

    file_path: Path
    chunks: PackedChunks
    spec: RowSpec
    files: _core.FileSet  # the file, open: it is read to the end even if it has been removed


# A reader for each engine: all superbatches share its staging memory, once for each thread.
_readers: WeakValueDictionary[str, _core.Reader] = WeakValueDictionary()


def chunk_reader(engine: str) -> _core.Reader:
    """Return a reader of chunks with an engine; shared as long as it is in use."""
    reader = _readers.get(engine)
    if reader is None:
        reader = _core.Reader(
            engine,
            queue_depth=_QUEUE_DEPTH,
            num_threads=_READING_THREADS,
            max_read_bytes=_READ_BYTES,
        )
        reader = _readers.setdefault(engine, reader)
    return reader


@dataclass(eq=False)
class PackedSuperbatch:
    """The packed rows of a superbatch. Thread-safe; a context manager that closes it."""

    directory: Path
    num_rows: npt.NDArray[np.int64]  # int64 [S]: distinct missed rows of each batch
    places: Spool  # where rows of each batch go: see `places_within`
    tables: Mapping[str, PackedTable]
    reader: _core.Reader
    counts: Counter[str]  # of reads, writes, their bytes, and rows: see `_core.pack_rows`
    removed: Callable[[], None] = lambda: None  # to be called once it is closed

    @property
    def num_batches(self) -> int:
        """Number of batches, S."""
        return len(self.num_rows)

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        chunks = sum(int(table.chunks.offsets[-1]) for table in self.tables.values())
        return chunks + self.places.num_disk_bytes

    def rows(self, i: int) -> dict[str, RowSource]:
        """Return the sources of the rows that batch `i` misses, by the table's path."""
        return {
            path: PackedRows(table.spec, partial(self.read, i, path))
            for path, table in self.tables.items()
        }

    def read(
        self,
        i: int,
        path: str,
        part: RowRange,
        out: npt.NDArray[Any],
        ranks: Ranks | None = None,
    ) -> ReadCounts:
        """Write the missed rows of a part of batch `i` to their places; the others stay."""
        table = self.tables[path]
        return read_chunk(
            self.reader,
            table.files,
            int(table.chunks.offsets[i]),
            places_within(part, *self.places.read(i), ranks=ranks),
            out,
            path=table.file_path,
            what=lambda: f"batch {i} of the array {path!r}",
            advice=_HELP,
            row_bytes=table.spec.row_bytes,
            crcs=table.chunks.of_chunk(i),
            piece_bytes=BLOCK_BYTES,
        )

    def close(self) -> None:
        """Remove the files. Idempotent; reads that are under way finish."""
        _core.remove_tree(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
