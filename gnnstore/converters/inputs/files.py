"""Arrays that lie in a file as they are: `.npy` behind its header, raw binary from the start.

Read with `pread` into fresh memory rather than mapped: pages of a map count as memory of the
process as long as there is room, so that a conversion with a stated budget would seem to need
the size of its input; and a file that shrinks under a map kills the process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.inputs.opening import existing_file
from gnnstore.converters.inputs.source import (
    MAX_POOLED_BYTES,
    Items,
    StoredArray,
    empty_piece,
)
from gnnstore.errors import InputError, UsageError, storage_errors
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.container.files import fill_at, open_regular

# Direct reads are of whole blocks of this size, and from here on pay for a second descriptor.
_ALIGNMENT, _MIN_DIRECT_BYTES = 4096, 2**20


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
                        f"{self.label}: ends {num_bytes - len(found)} bytes early; copy it again",
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
        with suppress(OSError):  # the file system knows no such thing
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
            except OSError:  # it has not, or cannot tell
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
        """Return the layout that "TYPE,ROWS,WIDTH" says."""
        dtype, *extents = text.split(",")
        try:
            shape = tuple(map(int, extents))
        except ValueError:
            shape = ()
        if not shape:
            raise UsageError(
                f"{text!r} is no layout; give TYPE,ROWS,WIDTH such as float32,1000,128, with "
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
    with storage_errors("read the raw file", path):
        found = path.stat().st_size
    rows, rest = divmod(found, layout.row_bytes)
    if rest:
        raise InputError(
            f"{path}: has {found} bytes, which are not the rows of {layout.row_bytes} bytes that "
            f"the layout {layout} says; it is truncated, or the layout is not its own",
            path=path,
        )
    return FileArray(path, (rows, *layout.shape[1:]), STORAGE_DTYPES[layout.dtype])
