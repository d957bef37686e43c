"""Typed arrays in recycled memory, because fresh memory is the most expensive part of a batch.

A batch of 50 MB in a fresh array costs more in page faults than in copying. Large arrays therefore
come from a process-wide pool of huge-page buffers; a buffer returns to the pool when the last array
or tensor that views it is released.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core

# Below this, its own threshold for returning memory to the system, malloc serves from memory that
# it keeps, and recycling gains nothing.
MIN_POOLED_BYTES = 128 * 1024


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised, writable, C-ordered array.

    Parameters
    ----------
    shape : tuple of int
        Extents, possibly zero.
    dtype : dtype-like
        Element type.

    Returns
    -------
    ndarray
        A large one views a buffer of the pool and owns a share of it.
    """
    element = np.dtype(dtype)
    num_bytes = math.prod(shape) * element.itemsize
    if num_bytes < MIN_POOLED_BYTES:
        return np.empty(shape, element)
    return _core.pool_empty(num_bytes).view(element).reshape(shape)


def trim(max_free_bytes: int) -> None:
    """Return free buffers to the system until at most `max_free_bytes` are kept."""
    _core.pool_trim(max_free_bytes)


def keep_within_budget() -> None:
    """Keep the pool from growing beyond the buffers in use, from now on.

    The buffers of successive batches rarely have quite the same size; free ones are returned to the
    system when others are needed.
    """
    _core.pool_exchange(True)


def release() -> None:
    """Return all free memory to the system."""
    trim(0)
    release_heap()


def release_heap() -> None:
    """Return the freed memory that malloc keeps to the system; takes milliseconds.

    glibc keeps blocks of up to 32 MiB once one of them has been freed, and allocating and freeing
    arrays alternately leaves holes: 80 MB on top of a budget of 300, after superbatches of 38
    batches of 75,000 nodes had been sampled and planned.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
