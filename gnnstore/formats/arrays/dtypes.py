"""Element types: their names in a store, in NumPy and in Zarr.

A store has one type that NumPy has not: bfloat16 is kept as its 16 bits (`uint16`) and
named in the array's attributes, so that every Zarr reader can still open the array.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from gnnstore.errors import InputError

# NumPy types of the bytes on disk by their names in a store: little-endian, 1 to 8 bytes.
STORAGE_DTYPES: dict[str, np.dtype] = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64"),
    )
} | {"bfloat16": np.dtype("<u2")}


def storage_dtype(name: str, *, what: str = "array") -> np.dtype:
    """Return the NumPy dtype in which elements of type `name` are stored."""
    try:
        return STORAGE_DTYPES[name]
    except KeyError:
        raise InputError(
            f"{what} has the element type {name!r}, which a store cannot hold; "
            f"convert it to one of {', '.join(STORAGE_DTYPES)}"
        ) from None


def dtype_name(dtype: npt.DTypeLike) -> str:
    """Return a store's name of a NumPy dtype, without its byte order ('<f4' -> 'float32')."""
    return np.dtype(dtype).newbyteorder("=").name


@cache
def id_dtype(most: int) -> np.dtype:
    """Return the type for ids up to `most`: int32 if it can hold `most`, else int64."""
    return np.dtype(np.int32 if most < 2**31 else np.int64)


def zarr_data_type(name: str) -> str:
    """Return the Zarr v3 `data_type` of an element type."""
    return dtype_name(storage_dtype(name))


def to_bfloat16_bits(values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint16]:
    """Round floats to bfloat16 (nearest, ties to even) and return their 16 bits."""
    single = np.ascontiguousarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    # Adding 0x7fff plus the lowest kept bit carries into the kept half exactly when
    # rounding to nearest even must go up.
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(
        16
    )
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(single), quiet, rounded).astype(np.uint16)


def from_bfloat16_bits(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the exact float32 values of bfloat16 bits, in a new array of the same shape."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
