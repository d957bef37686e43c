"""Arrays in `.npy` files and `.npz` archives, read in pieces and never unpickled.

The largest public graphs come as one `.npz` of 80 GB, which `numpy.load` can only read
member by member into memory. Here a member is a stream behind a checked header: any range
of its elements is read in order, at the cost of decompressing what lies before it.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt

from gnnstore.converters.inputs import existing_file, read_error
from gnnstore.errors import InputError

_KINDS = "biuf"  # booleans, integers, floats: what a store can hold


class ArraySource(Protocol):
    """An array that can be read in order, a piece at a time.

    Attributes
    ----------
    label : str
        Where it comes from, for messages: "graph.npz: x".
    shape : tuple of int
        Its shape.
    dtype : np.dtype
        Its element type, in native byte order.
    """

    label: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def rows(self, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the array along its first axis, `step` rows at a time."""

    def columns(self, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield a two-dimensional array along its second axis, `step` columns at a time."""

    def read(self) -> npt.NDArray[Any]:
        """Return the whole array."""


class MemoryArray:
    """An array that is in memory, or a memory map, as an `ArraySource`."""

    def __init__(self, label: str, array: npt.NDArray[Any]) -> None:
        self.label = label
        self.shape = array.shape
        self.dtype = array.dtype.newbyteorder("=")
        self._array = array

    def rows(self, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the array along its first axis, `step` rows at a time."""
        for first in range(0, self.shape[0], step):
            yield self._array[first : first + step].astype(self.dtype, copy=False)

    def columns(self, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield a two-dimensional array along its second axis, `step` columns at a time."""
        for first in range(0, self.shape[1], step):
            yield self._array[:, first : first + step].astype(self.dtype, copy=False)

    def read(self) -> npt.NDArray[Any]:
        """Return the whole array (a view where the byte order is native)."""
        return self._array.astype(self.dtype, copy=False)


class NpzMember:
    """One array of a `.npz` archive, streamed out of it."""

    def __init__(self, path: Path, member: zipfile.ZipInfo) -> None:
        self.path = path
        self.label = f"{path}: {member.filename.removesuffix('.npy')}"
        self._member = member
        with self._open() as stream:
            self.shape, fortran_order, self._stored_dtype = _read_header(stream, self.label, path)
            header_bytes = stream.tell()
        # One-dimensional arrays are in both orders at once.
        self._fortran_order = fortran_order and len(self.shape) > 1
        self.dtype = self._stored_dtype.newbyteorder("=")
        expected = header_bytes + math.prod(self.shape) * self.dtype.itemsize
        if expected != member.file_size:
            raise InputError(
                f"{self.label}: shape {list(self.shape)} of {self.dtype} needs {expected} bytes, "
                f"but the archive holds {member.file_size}; the file is damaged",
                path=path,
            )

    def rows(self, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the array along its first axis, `step` rows at a time."""
        # A row's elements may be scattered over the whole member, or there may be none.
        if self._fortran_order or 0 in self.shape:
            yield from MemoryArray(self.label, self.read()).rows(step)
            return
        tail = self.shape[1:]
        row_items = math.prod(tail)
        for piece in self._stream(0, math.prod(self.shape), step * row_items):
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
        flat = np.empty(math.prod(self.shape), self.dtype)
        filled = 0
        for piece in self._stream(0, len(flat), 2**20):
            flat[filled : filled + len(piece)] = piece
            filled += len(piece)
        return flat.reshape(self.shape[::-1]).T if self._fortran_order else flat.reshape(self.shape)

    def _open(self) -> IO[bytes]:
        return zipfile.ZipFile(self.path).open(self._member)

    def _stream(self, start: int, stop: int, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield elements start, ..., stop - 1 as they lie in the file, `step` at a time."""
        size = self.dtype.itemsize
        try:
            with self._open() as stream:
                _read_header(stream, self.label, self.path)
                # Read, not seek: zipfile gives up comparing checksums after a seek.
                for skipped in range(0, start * size, 2**22):
                    _exactly(stream, min(2**22, start * size - skipped))
                for first in range(start, stop, step):
                    data = _exactly(stream, (min(first + step, stop) - first) * size)
                    yield np.frombuffer(data, self._stored_dtype).astype(self.dtype, copy=False)
                if stop == math.prod(self.shape):
                    stream.read(1)  # reaching the end makes zipfile compare the checksum
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise _damaged(self.label, self.path, error) from None
        except OSError as error:
            raise read_error(error, "the archive", self.path) from error


def _exactly(stream: IO[bytes], num_bytes: int) -> bytes:
    data = stream.read(num_bytes)
    if len(data) != num_bytes:
        raise EOFError(f"{num_bytes - len(data)} bytes are missing")
    return data


def open_npy(path: Path) -> ArraySource:
    """Open a `.npy` file as a memory map.

    Raises
    ------
    NotFoundError, InputError, StorageError
        If it is missing, no `.npy` file, truncated, pickled, or of a type that no store
        can hold.
    """
    existing_file(path, "the array")
    try:
        with path.open("rb") as stream:
            shape, _, dtype = _read_header(stream, str(path), path)
            expected = stream.tell() + math.prod(shape) * dtype.itemsize
        found = path.stat().st_size
        if found != expected:
            raise InputError(
                f"{path}: shape {list(shape)} of {dtype} needs {expected} bytes, but the file has "
                f"{found}; it is truncated or damaged",
                path=path,
            )
        if math.prod(shape) == 0:  # nothing to map
            return MemoryArray(str(path), np.empty(shape, dtype))
        return MemoryArray(str(path), np.load(path, mmap_mode="r", allow_pickle=False))
    except OSError as error:
        raise read_error(error, "the array", path) from error


def open_npz(path: Path) -> Mapping[str, ArraySource]:
    """Open every array of a `.npz` archive; only headers are read.

    Raises
    ------
    NotFoundError, InputError, StorageError
        If it is missing, not a whole archive, or a member is pickled, damaged, or of a type
        that no store can hold.
    """
    existing_file(path, "the archive")
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile as error:
        raise InputError(
            f"{path}: not a complete .npz archive ({error}); it is truncated or something else",
            path=path,
        ) from None
    except OSError as error:
        raise read_error(error, "the archive", path) from error
    sources: dict[str, ArraySource] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise InputError(
                f"{path}: the member {name!r} is not an array (.npy); remove it from the archive",
                path=path,
            )
        if name in sources:
            raise InputError(f"{path}: two members are called {name!r}", path=path)
        try:
            sources[name] = NpzMember(path, member)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise _damaged(f"{path}: {name}", path, error) from None
        except OSError as error:
            raise read_error(error, "the archive", path) from error
    return sources


def open_npy_directory(path: Path) -> Mapping[str, ArraySource]:
    """Open every `.npy` file of a directory as a memory map; other files are left alone."""
    return {file.stem: open_npy(file) for file in sorted(path.glob("*.npy"))}


def _damaged(label: str, path: Path, error: Exception) -> InputError:
    return InputError(
        f"{label}: the archive is damaged ({error}); download or copy it again", path=path
    )


def _read_header(
    stream: IO[bytes], label: str, path: Path
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type of the `.npy` data that follow."""
    try:
        version = npy.read_magic(stream)
        if version == (1, 0):
            shape, fortran_order, dtype = npy.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran_order, dtype = npy.read_array_header_2_0(stream)
        else:
            raise InputError(
                f"{label}: .npy format {version[0]}.{version[1]} holds structured arrays, which "
                "a store cannot hold; save plain arrays of numbers",
                path=path,
            )
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, InputError):
        raise
    except Exception as error:  # on odd bytes NumPy's parser raises anything, TokenError too
        raise InputError(f"{label}: not a valid .npy array ({error})", path=path) from None
    if any(extent < 0 for extent in shape):
        raise InputError(f"{label}: not a valid .npy array (shape {shape})", path=path)
    if dtype.hasobject:
        raise InputError(
            f"{label}: holds pickled Python objects, which are never loaded (unpickling runs "
            "code); save it as a plain array of numbers",
            path=path,
        )
    if dtype.kind not in _KINDS or dtype.itemsize > 8:
        raise InputError(
            f"{label}: has the element type {dtype}, which a store cannot hold; save it as "
            "integers or floats of at most 64 bits",
            path=path,
        )
    return shape, fortran_order, dtype
