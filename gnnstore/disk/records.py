"""Records of arrays as bytes: a header of int64, and then the arrays, padded to 8 bytes each.

The header says how many arrays there are, and of each its dtype, the number of its axes and their
lengths. There are no pickles in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import UsageError

_ALIGNMENT_BYTES = 8
_KINDS = "biuf"  # flags and numbers


def crc_seed(i: int) -> int:
    """Return what the checksum of a record begins with: found under another number, it is wrong."""
    return _core.crc32c(np.array([i], np.int64).view(np.uint8))


def _padding(num_bytes: int) -> int:
    return -num_bytes % _ALIGNMENT_BYTES


def encode_record(arrays: Sequence[npt.NDArray[Any]]) -> list[memoryview]:
    """Return the bytes of a record, in pieces that view the arrays."""
    header = [len(arrays)]
    parts: list[memoryview] = []
    for array in arrays:
        if array.dtype.kind not in _KINDS:
            raise UsageError(f"an array of {array.dtype} cannot be written; only numbers can")
        code = array.dtype.str.encode().ljust(_ALIGNMENT_BYTES, b"\0")
        header += [int.from_bytes(code, "little"), array.ndim, *array.shape]
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        parts += [flat.data, memoryview(bytes(_padding(flat.nbytes)))]
    return [np.array(header, np.int64).data.cast("B"), *parts]


def decode_record(record: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
    """Return the arrays of a record whose checksum is right, as views."""
    words = record.view(np.int64)
    shapes: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
    at = 1
    for _ in range(int(words[0])):
        code = int(words[at]).to_bytes(_ALIGNMENT_BYTES, "little").rstrip(b"\0").decode()
        end = at + 2 + int(words[at + 1])
        shapes.append((np.dtype(code), tuple(words[at + 2 : end].tolist())))
        at = end
    begin = at * _ALIGNMENT_BYTES
    arrays = []
    for dtype, shape in shapes:
        num_bytes = math.prod(shape) * dtype.itemsize
        arrays.append(record[begin : begin + num_bytes].view(dtype).reshape(shape))
        begin += num_bytes + _padding(num_bytes)
    return arrays
