"""Raw binary files: numbers without a header, whose type and shape somebody has to say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from gnnstore.converters.arrays.file_arrays import FileArray
from gnnstore.converters.inputs import existing_file, read_error
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES


@dataclass(frozen=True)
class RawLayout:
    """What the bytes of a raw file mean; little-endian, in C order.

    Attributes
    ----------
    dtype : str
        Element type by its name in a store: "float32", "bfloat16", ...
    shape : tuple of int
        Shape, rows first. -1 rows: as many as the file has.
    """

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in STORAGE_DTYPES:
            raise UsageError(
                f"raw type {self.dtype!r} is not one of {', '.join(map(repr, STORAGE_DTYPES))}"
            )
        if not self.shape or self.shape[0] < -1 or any(extent < 1 for extent in self.shape[1:]):
            raise UsageError(
                f"raw shape {list(self.shape)} is none: give the rows (-1: from the file's size), "
                "then the extents of a row"
            )

    @staticmethod
    def parse(text: str) -> RawLayout:
        """Return the layout that "TYPE,ROWS,WIDTH" says.

        >>> RawLayout.parse("float32,-1,128")
        RawLayout(dtype='float32', shape=(-1, 128))
        """
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
    """Open a raw file.

    Raises
    ------
    NotFoundError, StorageError
        If it is not there, or cannot be looked at.
    InputError
        If its size is not what the layout says.
    """
    existing_file(path, "the raw file")
    try:
        found = path.stat().st_size
    except OSError as error:
        raise read_error(error, "the raw file", path) from error
    rows, rest = divmod(found, layout.row_bytes)
    if rest:
        raise InputError(
            f"{path}: has {found} bytes, which is no multiple of the {layout.row_bytes} bytes of a "
            f"row of {list(layout.shape[1:])} {layout.dtype}; it is truncated, or the layout "
            f"{layout} is not its own",
            path=path,
        )
    if layout.shape[0] not in (-1, rows):
        raise InputError(
            f"{path}: has {rows} rows of {layout.row_bytes} bytes, but the layout {layout} says "
            f"{layout.shape[0]}",
            path=path,
        )
    return FileArray(path, (rows, *layout.shape[1:]), STORAGE_DTYPES[layout.dtype])
