"""Arrays in `.npy` files and `.npz` archives: opened by a checked header, read in pieces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gnnstore.converters.arrays.file_arrays import FileArray
from gnnstore.converters.arrays.npy import read_npy_header
from gnnstore.converters.arrays.npz import open_npz
from gnnstore.converters.arrays.source import ArraySource, MemoryArray
from gnnstore.converters.inputs import existing_file, open_input, read_error
from gnnstore.errors import InputError

__all__ = ["ArraySource", "MemoryArray", "open_npy", "open_npy_directory", "open_npz"]


def open_npy(path: Path) -> ArraySource:
    """Open a `.npy` file; only its header is read.

    Raises
    ------
    NotFoundError, InputError, StorageError
        If it is missing, no `.npy` file, truncated, pickled, or of a type that no store
        can hold.
    """
    existing_file(path, "the array")
    try:
        with open_input(path) as stream:
            header = read_npy_header(stream, str(path), path)
        found = path.stat().st_size
    except OSError as error:
        raise read_error(error, "the array", path) from error
    expected = header.header_bytes + math.prod(header.shape) * header.dtype.itemsize
    if found != expected:
        raise InputError(
            f"{path}: shape {list(header.shape)} of {header.dtype} needs {expected} bytes, but "
            f"the file has {found}; it is truncated or damaged",
            path=path,
        )
    if math.prod(header.shape) == 0:  # nothing to read
        return MemoryArray(str(path), np.empty(header.shape, header.dtype))
    return FileArray(
        path,
        header.shape,
        header.dtype,
        first_byte=header.header_bytes,
        fortran_order=header.fortran_order,
    )


def open_npy_directory(path: Path) -> Mapping[str, ArraySource]:
    """Open every `.npy` file of a directory; other files are left alone."""
    return {file.stem: open_npy(file) for file in sorted(path.glob("*.npy"))}
