"""Arrays in binary files: `.npy`, members of `.npz`, and raw binary; nothing is unpickled.

Read with `pread` into fresh memory rather than mapped: pages of a map count as memory of the
process as long as there is room, so that a conversion with a stated budget would seem to need
the size of its input; and a file that shrinks under a map kills the process. The largest public
graphs come as one `.npz` of 80 GB: any range of a member's elements is read in order, at the cost
of decompressing those before it.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.inputs.kinds import ZIP_MAGIC
from gnnstore.converters.inputs.opening import existing_file, open_input, open_zip, refuse_kind
from gnnstore.converters.inputs.parts import parts_of
from gnnstore.converters.inputs.source import (
    ArraySource,
    Items,
    MemoryArray,
    StoredArray,
)
from gnnstore.errors import InputError, UsageError, storage_errors
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.base.files import fill_at, open_regular
from gnnstore.formats.container.reads import MAX_POOLED_BYTES, empty_piece
from gnnstore.units import format_count

# Bytes of a block that is read directly, and least bytes of a direct read: less does not pay for a
# second descriptor.
_ALIGNMENT, _MIN_DIRECT_BYTES = 4096, 2**20

_KINDS = "biufM"  # booleans, integers, floats, times: what a store can hold
# Compressions that are read, which are NumPy's: zipfile decodes others without a limit, and 1 kB of
# bzip2 took 2 GB.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Bytes that are read from a stream at a time: zipfile takes twice as much, from a heap that keeps
# it.
_READ_BYTES = 2**18
_IS_ENCRYPTED = 1  # the bit of a member's flags


class FileArray(StoredArray):
    """An array in a file."""

    def __init__(
        self,
        path: Path,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        first_byte: int = 0,
        fortran_order: bool = False,
    ) -> None:
        super().__init__(str(path), shape, dtype, fortran_order=fortran_order)
        self.path = path
        self._first_byte = first_byte

    @contextmanager
    def _open(self, *, in_order: bool = True) -> Iterator[Items]:
        with _Reader(self.path, in_order=in_order) as reader:

            def items(first: int, count: int) -> npt.NDArray[Any]:
                num_bytes = count * self.dtype.itemsize
                offset = self._first_byte + first * self.dtype.itemsize
                found = reader.read(num_bytes, offset)
                if len(found) < num_bytes:
                    raise InputError(
                        f"{self.label}: ends {format_count(num_bytes - len(found), 'byte')} "
                        "early; copy it again",
                        path=self.path,
                        offset=offset,
                    )
                return found.view(self._stored_dtype).astype(self.dtype, copy=False)

            yield items

    def look_at(self, row: int, places: Iterable[slice]) -> Iterator[npt.NDArray[Any]]:
        """Yield some parts of a row of a two-dimensional array in C order."""
        width = self.shape[1]
        with self._open(in_order=False) as items:
            for place in places:
                yield items(row * width + place.start, place.stop - place.start)


class _Reader:
    """An open file that is read at positions.

    Large pieces are copied from the page cache as long as it has them, and then read around it
    where the file system allows that: through it a gigabyte costs five times the processor's time.
    """

    def __init__(self, path: Path, *, in_order: bool = True) -> None:
        self._path = path
        self._is_cached = True
        self._direct: int | None = None  # a descriptor for reads that bypass the page cache
        with storage_errors("read the array", path):
            self._file = open_regular(path, error=InputError)
        advice = os.POSIX_FADV_SEQUENTIAL if in_order else os.POSIX_FADV_RANDOM
        os.posix_fadvise(self._file, 0, 0, advice)
        with suppress(OSError):  # the file system has no such call
            self._direct = open_regular(path, os.O_RDONLY | os.O_DIRECT, error=InputError)

    def read(self, num_bytes: int, offset: int) -> npt.NDArray[np.uint8]:
        """Return bytes from an offset on; fewer at the file's end."""
        with storage_errors("read the array", self._path):
            if not _MIN_DIRECT_BYTES <= num_bytes <= MAX_POOLED_BYTES:
                out = empty_piece(num_bytes, np.uint8)
                return out[: fill_at(self._file, out.data, offset)]
            # Whole blocks, however they are read: the pool would keep pieces of both sizes.
            first, last = offset % _ALIGNMENT, offset + num_bytes
            out = _core.pool_empty(last + -last % _ALIGNMENT - offset + first)
            if self._direct is not None and not self._has_cached(num_bytes, offset):
                try:
                    done = self._read_direct(self._direct, out, offset - first)
                    return out[first : min(done, first + num_bytes)]
                except OSError:  # some file systems take the flag and refuse the read
                    os.close(self._direct)
                    self._direct = None
            out = out[first : first + num_bytes]
            return out[: fill_at(self._file, out.data, offset)]

    def _has_cached(self, num_bytes: int, offset: int) -> bool:
        """Return whether the page cache has bytes, by its last one that has."""
        if self._is_cached:
            last = bytearray(1)
            try:
                os.preadv(self._file, [last], offset + num_bytes - 1, os.RWF_NOWAIT)
            except OSError:  # the file system has none, or does not report them
                self._is_cached = False
        return self._is_cached

    @staticmethod
    def _read_direct(file: int, out: npt.NDArray[np.uint8], offset: int) -> int:
        """Fill whole blocks; return the bytes read before the file's end."""
        done = 0
        while done < len(out):
            count = os.preadv(file, [out.data[done:]], offset + done)
            done += count
            if not count or count % _ALIGNMENT:
                break  # the file ends here
        return done

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        if self._direct is not None:
            os.close(self._direct)


@dataclass(frozen=True)
class RawLayout:
    """The type and shape of raw binary, which has no header; little-endian, in C order."""

    dtype: str  # element type by its name in a store: "float32", "bfloat16",
    shape: tuple[int, ...]  # shape, rows first. -1 rows: as many as the file has.

    def __post_init__(self) -> None:
        shape_is_sound = self.shape and self.shape[0] >= -1 and min(self.shape[1:], default=1) > 0
        if self.dtype not in STORAGE_DTYPES or not shape_is_sound:
            raise UsageError(
                f"raw layout {self}: expected one of {', '.join(map(repr, STORAGE_DTYPES))}, then "
                "the rows (-1: from the file's size) and the extents of a row"
            )

    @staticmethod
    def parse(text: str) -> RawLayout:
        """Return the layout that "TYPE,ROWS,WIDTH" describes."""
        dtype, *extents = text.split(",")
        try:
            shape = tuple(map(int, extents))
        except ValueError:
            shape = ()
        if not shape:
            raise UsageError(
                f"{text!r} is not a layout; give TYPE,ROWS,WIDTH such as float32,1000,128, with "
                "ROWS -1 to take what the file has"
            )
        return RawLayout(dtype.strip(), shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return STORAGE_DTYPES[self.dtype].itemsize * math.prod(self.shape[1:])

    def __str__(self) -> str:
        return ",".join([self.dtype, *map(str, self.shape)])


def open_raw(path: Path, layout: RawLayout) -> FileArray:
    """Open a raw file, with as many rows as it has."""
    existing_file(path, "the raw file")
    refuse_kind(path, is_raw=True)
    with storage_errors("read the raw file", path):
        found = path.stat().st_size
    rows, rest = divmod(found, layout.row_bytes)
    if rest:
        raise InputError(
            f"{path}: has {found} bytes, which are not the rows of {layout.row_bytes} bytes that "
            f"the layout {layout} has; it is truncated, or the layout is not its own",
            path=path,
        )
    return FileArray(path, (rows, *layout.shape[1:]), STORAGE_DTYPES[layout.dtype])


@dataclass(frozen=True)
class NpyHeader:
    """Shape, element type and order of an array in `.npy` form."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # with the byte order of the file
    fortran_order: bool  # whether the first axis varies fastest
    header_bytes: int  # where the elements begin


def read_npy_header(stream: IO[bytes], label: str, path: Path, num_bytes: int) -> NpyHeader:
    """Read the header at the beginning of a stream that has a number of bytes."""
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran_order, dtype = read(stream)
        if any(extent < 0 for extent in shape):
            raise ValueError(f"shape {shape}")
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, MemoryError):
        raise
    except Exception as error:  # on odd bytes NumPy's parser raises anything, TokenError too
        raise InputError(f"{label}: not a valid .npy array ({error})", path=path) from None
    if dtype.kind not in _KINDS or dtype.itemsize > 8:
        what = "pickled Python objects" if dtype.hasobject else f"elements of type {dtype}"
        text = "; text, such as names of nodes, goes into a table (Parquet, Arrow, CSV)"
        raise InputError(
            f"{label}: holds {what}, which a store cannot hold; save integers, floats or times, of "
            f"at most 64 bits{text if dtype.kind in 'US' else ''}",
            path=path,
        )
    header = NpyHeader(shape, dtype, fortran_order, stream.tell())
    expected = header.header_bytes + math.prod(shape) * dtype.itemsize
    if num_bytes != expected:
        raise InputError(
            f"{label}: shape {list(shape)} of {dtype} needs {expected} bytes, but there are "
            f"{num_bytes}; it is truncated or damaged",
            path=path,
        )
    return header


def open_npy(path: Path) -> ArraySource:
    """Open a `.npy` file; only its header is read."""
    existing_file(path, "the array")
    refuse_kind(path, npy.MAGIC_PREFIX, what="the array")
    with storage_errors("read the array", path), open_input(path) as stream:
        header = read_npy_header(stream, str(path), path, path.stat().st_size)
    if 0 in header.shape:  # nothing to read
        return MemoryArray(str(path), np.empty(header.shape, header.dtype))
    return FileArray(
        path,
        header.shape,
        header.dtype,
        first_byte=header.header_bytes,
        fortran_order=header.fortran_order,
    )


def npy_files(path: Path) -> list[Path]:
    """Return every `.npy` file in a directory; what else is there is named."""
    return parts_of(path, lambda file: file.suffix == ".npy", "*.npy", is_deep=False)


class NpzMember(StoredArray):
    """One array of a `.npz` archive."""

    _block_bytes = 2**26  # each block is another pass

    def __init__(self, label: str, path: Path, member: zipfile.ZipInfo, header: NpyHeader) -> None:
        super().__init__(label, header.shape, header.dtype, fortran_order=header.fortran_order)
        self.path = path
        self._member = member
        self._begin = header.header_bytes

    @contextmanager
    def _open(self) -> Iterator[Items]:
        with _member_stream(self.label, self.path, self._member) as stream:

            def items(first: int, count: int) -> npt.NDArray[Any]:
                # Read, not seek: zipfile gives up comparing checksums after a seek.
                place = self._begin + first * self.dtype.itemsize
                while (left := place - stream.tell()) > 0:
                    _exactly(stream, min(_READ_BYTES, left))
                piece = _core.empty((count,), self._stored_dtype)
                out = piece.view(np.uint8)
                for start in range(0, len(out), _READ_BYTES):
                    part = out[start : start + _READ_BYTES]
                    part[:] = np.frombuffer(_exactly(stream, len(part)), np.uint8)
                if first + count == math.prod(self.shape):
                    stream.read(1)  # reaching the end makes zipfile compare the checksum
                return piece.astype(self.dtype, copy=False)

            yield items


def _exactly(stream: IO[bytes], num_bytes: int) -> bytes:
    data = stream.read(num_bytes)
    if len(data) != num_bytes:
        raise EOFError(f"it ends {format_count(num_bytes - len(data), 'byte')} early")
    return data


def open_npz(path: Path, leave_out: Collection[str] = ()) -> dict[str, ArraySource]:
    """Open every array of a `.npz` archive but some; only headers are read."""
    existing_file(path, "the archive")
    try:
        with storage_errors("read the archive", path), open_zip(path) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile as error:
        refuse_kind(path, ZIP_MAGIC)
        found = f"not a complete .npz archive ({error}); it is truncated or something else"
        raise InputError(f"{path}: {found}", path=path) from None
    if any(member.filename.endswith("/data.pkl") for member in members):
        raise InputError(
            f"{path}: is a file of torch.save; a Data in one is read by 'gnnstore convert pyg'",
            path=path,
        )
    sources: dict[str, ArraySource] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        label = f"{path}: {name}"
        is_odd = member.flag_bits & _IS_ENCRYPTED or member.compress_type not in _METHODS
        if is_odd or name == member.filename or name in sources:
            raise InputError(
                f"{label}: is not an array (.npy) as NumPy writes it, or is there twice; save the "
                "archive again with numpy.savez",
                path=path,
            )
        if name in leave_out:
            continue
        with _member_stream(label, path, member) as stream:
            header = read_npy_header(stream, label, path, member.file_size)
        sources[name] = (
            MemoryArray(label, np.empty(header.shape, header.dtype))
            if 0 in header.shape
            else NpzMember(label, path, member, header)
        )
    return sources


@contextmanager
def _member_stream(label: str, path: Path, member: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    """Open a member of an archive; errors in it are named."""
    try:
        with (
            storage_errors("read the archive", path),
            open_zip(path) as archive,
            archive.open(member) as stream,
        ):
            yield stream
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        reason = str(error) or "it ends early"  # zipfile has no message where a member does
        raise InputError(
            f"{label}: the archive is damaged ({reason}); download or copy it again", path=path
        ) from None
