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

    def check_size(self, num_bytes: int, label: str, path: Path, problem: str) -> None:
        """Raise unless header and elements take that many bytes."""
        expected = self.header_bytes + math.prod(self.shape) * self.dtype.itemsize
        if num_bytes != expected:
            raise InputError(
                f"{label}: shape {list(self.shape)} of {self.dtype} needs {expected} bytes, but "
                f"{problem}",
                path=path,
            )


def read_npy_header(stream: IO[bytes], label: str, path: Path) -> NpyHeader:
    """Read the header at the position of a stream."""
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
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, InputError, MemoryError):
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
    return NpyHeader(shape, dtype, fortran_order, stream.tell())


def open_npy(path: Path) -> ArraySource:
    """Open a `.npy` file; only its header is read."""
    existing_file(path, "the array")
    with storage_errors("read the array", path):
        with open_input(path) as stream:
            header = read_npy_header(stream, str(path), path)
        found = path.stat().st_size
    problem = f"the file has {found}; it is truncated or damaged"
    header.check_size(found, str(path), path, problem)
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
