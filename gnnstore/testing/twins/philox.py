"""Philox4x64-10 in NumPy, whole arrays of counters at a time.

The kernels draw every random number from this generator, keyed by what the number is for,
and their twins must draw the same ones. `numpy.random.Philox` computes the same blocks, but
one counter at a time; it is what the tests hold this module against.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MULTIPLIERS = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def multiply_high(a: NDArray[np.uint64], b: np.uint64) -> NDArray[np.uint64]:
    """Return the upper 64 bits of the 128-bit products of `a` and `b`."""
    a_low, a_high = a & _LOW, a >> _HALF
    b_low, b_high = b & _LOW, b >> _HALF
    middle = a_high * b_low + (a_low * b_low >> _HALF)
    carry = (middle & _LOW) + a_low * b_high
    high: NDArray[np.uint64] = a_high * b_high + (middle >> _HALF) + (carry >> _HALF)
    return high


def philox4x64_10(counter: tuple[ArrayLike, ...], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Return the blocks of four draws at the given counters.

    Words of counters, lowest first, are broadcast. The result, uint64 [..., 4], equals
    ``numpy.random.Philox(counter=c - 1, key=key).random_raw(4)`` for each counter c: NumPy
    increments its counter before the first block.
    """
    words = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in counter))
    c0, c1, c2, c3 = (np.atleast_1d(word) for word in words)
    k0, k1 = key
    for _ in range(10):
        high0, low0 = multiply_high(c0, _MULTIPLIERS[0]), c0 * _MULTIPLIERS[0]
        high1, low1 = multiply_high(c2, _MULTIPLIERS[1]), c2 * _MULTIPLIERS[1]
        c0, c1 = high1 ^ c1 ^ np.uint64(k0), low1
        c2, c3 = high0 ^ c3 ^ np.uint64(k1), low0
        k0, k1 = (k0 + _WEYL[0]) % 2**64, (k1 + _WEYL[1]) % 2**64
    return np.stack([c0, c1, c2, c3], axis=-1).reshape(*words[0].shape, 4)
