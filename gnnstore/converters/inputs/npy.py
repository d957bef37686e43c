"""Arrays in `.npy` form: a checked header first, then elements that are read in pieces."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.lib.format as npy

from gnnstore.converters.inputs.files import FileArray
from gnnstore.converters.inputs.opening import existing_file, open_input
from gnnstore.converters.inputs.source import ArraySource, MemoryArray
from gnnstore.errors import InputError, storage_errors

_KINDS = "biuf"  # booleans, integers, floats: what a store can hold


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
        raise InputError(
            f"{label}: holds {what}, which a store cannot hold; save integers or floats of at most "
            "64 bits",
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


def open_npy_directory(path: Path) -> Mapping[str, ArraySource]:
    """Open every `.npy` file of a directory; other files are ignored."""
    return {file.stem: open_npy(file) for file in sorted(path.glob("*.npy"))}
