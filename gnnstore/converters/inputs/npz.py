"""Streams the arrays of a `.npz` archive; nothing is unpickled.

The largest public graphs come as one `.npz` of 80 GB, which `numpy.load` can only read
member by member into memory. Here a member is a stream behind a checked header: any range
of its elements is read in order, at the cost of decompressing the elements before it.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.inputs.npy import read_npy_header
from gnnstore.converters.inputs.opening import describe_binary, existing_file, open_zip
from gnnstore.converters.inputs.source import ArraySource, MemoryArray, check_fits, row_bytes
from gnnstore.errors import InputError, storage_error
from gnnstore.units import format_size

# Deflate makes 258 bytes of two bits at best: more than 1032 times its input is no archive
# that any program wrote, and bzip2's and LZMA's much higher ratios only occur in bombs.
MAX_EXPANSION = 1032
# zipfile decodes the others without a limit: 1 kB of bzip2 took 2 GB. NumPy writes these.
_BOUNDED_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# For arrays in Fortran order: bytes of rows that one pass gathers, and items that it reads at a
# time.
_BLOCK_BYTES, _STEP_ITEMS = 2**26, 2**18
# Read from a stream at a time: zipfile takes twice as much, from a heap that keeps it.
_READ_BYTES = 2**18
_IS_ENCRYPTED = 1  # of a member's flag bits
_SLACK_BYTES = 2**16  # tiny members may expand by any factor, as a header of zeros does
_LOCAL_HEADER_BYTES = 30  # at the least, before each member's data


class NpzMember:
    """One array of a `.npz` archive, as an `ArraySource`."""

    def __init__(self, path: Path, member: zipfile.ZipInfo) -> None:
        self.path = path
        self.label = f"{path}: {member.filename.removesuffix('.npy')}"
        self._member = member
        with self._open() as stream:
            header = read_npy_header(stream, self.label, path)
        self.shape = header.shape
        self.dtype = header.dtype.newbyteorder("=")
        self._stored_dtype = header.dtype
        # One-dimensional arrays are in both orders at once.
        self._fortran_order = header.fortran_order and len(self.shape) > 1
        expected = header.header_bytes + math.prod(self.shape) * self.dtype.itemsize
        if expected != member.file_size:
            raise InputError(
                f"{self.label}: shape {list(self.shape)} of {self.dtype} needs {expected} bytes, "
                f"but the archive holds {member.file_size}; the file is damaged",
                path=path,
            )

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the array along its first axis from row `start` on, `step` rows at a time."""
        if 0 in self.shape:
            yield from MemoryArray(self.label, self.read()).rows(step, start)
            return
        tail = self.shape[1:]
        if self._fortran_order:
            block_rows = min(max(step, _BLOCK_BYTES // row_bytes(self)), self.shape[0])
            # One block in memory, never two: pieces are copies, which do not keep it alive.
            block = np.empty((math.prod(self.shape[1:]), block_rows), self.dtype)
            for first in range(start, self.shape[0], block_rows):
                rows = self._read_block(first, block[:, : self.shape[0] - first])
                for begin in range(0, len(rows), step):
                    piece = _core.empty((min(step, len(rows) - begin), *tail), self.dtype)
                    piece[:] = rows[begin : begin + step]
                    yield piece
            return
        row_items = math.prod(tail)
        total = math.prod(self.shape)
        for piece in self._stream(start * row_items, total, step * row_items):
            yield piece.reshape(-1, *tail)

    def columns(self, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield a two-dimensional array along its second axis, `step` columns at a time."""
        height, width = self.shape
        if 0 in self.shape:
            yield from MemoryArray(self.label, self.read()).columns(step)
            return
        if self._fortran_order:
            for piece in self._stream(0, height * width, step * height):
                yield piece.reshape(-1, height).T
            return
        starts = [row * width for row in range(height)]
        streams = [self._stream(start, start + width, step) for start in starts]
        for pieces in zip(*streams, strict=True):
            yield np.stack(pieces)

    def read(self) -> npt.NDArray[Any]:
        """Return the whole array."""
        check_fits(self)
        flat = np.empty(math.prod(self.shape), self.dtype)
        filled = 0
        for piece in self._stream(0, len(flat), 2**20):
            flat[filled : filled + len(piece)] = piece
            filled += len(piece)
        return flat.reshape(self.shape[::-1]).T if self._fortran_order else flat.reshape(self.shape)

    def _read_block(self, first: int, columns: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Fill columns [row_items, count] with rows from `first` on, in Fortran order here."""
        num_rows, count = self.shape[0], columns.shape[1]
        total, begin = math.prod(self.shape), 0
        for piece in self._stream(0, total, _STEP_ITEMS):
            end = begin + len(piece)
            for column in range(begin // num_rows, -(-end // num_rows)):
                top = column * num_rows  # the element at which the column begins
                low, high = max(begin, top + first), min(end, top + first + count)
                if low < high:
                    columns[column, low - top - first : high - top - first] = piece[
                        low - begin : high - begin
                    ]
            begin = end
        return columns.reshape(*self.shape[:0:-1], count).T

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        with open_zip(self.path) as archive, archive.open(self._member) as stream:
            yield stream

    def _stream(self, start: int, stop: int, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield elements start, ..., stop - 1 as they lie in the file, `step` at a time."""
        size = self.dtype.itemsize
        try:
            with self._open() as stream:
                read_npy_header(stream, self.label, self.path)
                # Read, not seek: zipfile gives up comparing checksums after a seek.
                for skipped in range(0, start * size, _READ_BYTES):
                    _exactly(stream, min(_READ_BYTES, start * size - skipped))
                for first in range(start, stop, step):
                    piece = _core.empty((min(first + step, stop) - first,), self._stored_dtype)
                    _fill(piece.view(np.uint8), stream)
                    yield piece.astype(self.dtype, copy=False)
                if stop == math.prod(self.shape):
                    stream.read(1)  # reaching the end makes zipfile compare the checksum
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise _damaged(self.label, self.path, error) from None
        except OSError as error:
            raise storage_error(error, "read the archive", self.path) from error


def _fill(piece: npt.NDArray[np.uint8], stream: IO[bytes]) -> None:
    for begin in range(0, len(piece), _READ_BYTES):
        part = piece[begin : begin + _READ_BYTES]
        part[:] = np.frombuffer(_exactly(stream, len(part)), np.uint8)


def _exactly(stream: IO[bytes], num_bytes: int) -> bytes:
    data = stream.read(num_bytes)
    if len(data) != num_bytes:
        raise EOFError(f"{num_bytes - len(data)} bytes are missing")
    return data


def open_npz(path: Path, leave_out: Collection[str] = ()) -> dict[str, ArraySource]:
    """Open every array of a `.npz` archive but some; only headers are read."""
    existing_file(path, "the archive")
    try:
        with open_zip(path) as archive:
            members = archive.infolist()
            directory_begin = archive.start_dir
    except zipfile.BadZipFile as error:
        found = describe_binary(path) or "zip"
        if "zip" not in found:
            raise InputError(f"{path}: {found}; expected an archive (.npz)", path=path) from None
        raise InputError(
            f"{path}: not a complete .npz archive ({error}); it is truncated or something else",
            path=path,
        ) from None
    except OSError as error:
        raise storage_error(error, "read the archive", path) from error
    _check_declared_sizes(path, members, directory_begin)
    sources: dict[str, ArraySource] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise InputError(
                f"{path}: the member {name!r} is not an array (.npy); remove it from the archive",
                path=path,
            )
        if name in leave_out:
            continue
        if name in sources:
            raise InputError(f"{path}: two members are called {name!r}", path=path)
        try:
            sources[name] = NpzMember(path, member)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise _damaged(f"{path}: {name}", path, error) from None
        except OSError as error:
            raise storage_error(error, "read the archive", path) from error
    return sources


def _check_declared_sizes(path: Path, members: list[zipfile.ZipInfo], end: int) -> None:
    """Refuse an archive that declares more data than its bytes can hold."""
    for member in sorted(members, key=lambda found: found.header_offset, reverse=True):
        label = f"{path}: {member.filename.removesuffix('.npy')}"
        if member.header_offset + _LOCAL_HEADER_BYTES + member.compress_size > end:
            raise InputError(
                f"{label}: its {member.compress_size} bytes reach into the next part of the "
                "archive: it is damaged, or made to expand without end",
                path=path,
            )
        end = member.header_offset
        if member.flag_bits & _IS_ENCRYPTED:
            raise InputError(
                f"{label}: is encrypted; decrypt the archive, or save its arrays again with "
                "numpy.savez",
                path=path,
            )
        if member.compress_type not in _BOUNDED_METHODS:
            raise InputError(
                f"{label}: is compressed by method {member.compress_type} of zip archives, which "
                "NumPy does not write; save it again with numpy.savez",
                path=path,
            )
        if member.file_size > member.compress_size * MAX_EXPANSION + _SLACK_BYTES:
            raise InputError(
                f"{label}: says that {format_size(member.compress_size)} expand to "
                f"{format_size(member.file_size)}, more than {MAX_EXPANSION} times as much; "
                "save it again with numpy.savez if it is not an attack",
                path=path,
            )


def _damaged(label: str, path: Path, error: Exception) -> InputError:
    reason = str(error) or "it ends early"  # where a member does, zipfile says nothing
    return InputError(
        f"{label}: the archive is damaged ({reason}); download or copy it again", path=path
    )
