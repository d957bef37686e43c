"""Random words that depend on a key and a place, never on the order in which they are drawn.

Synthetic graphs must come out the same for any chunking and on any machine, so every random number
is a function of (seed, purpose, place), computed with exact arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.random_words import keyed, mix

# The sum of eight random bytes has this mean and standard deviation.
_BYTES_MEAN = 8 * 127.5
_BYTES_STD = math.sqrt(8 * (2**16 - 1) / 12)


def draw_words(seed: int, purpose: int, first_block: int, num_words: int) -> npt.NDArray[np.uint64]:
    """Return words of Philox4x64-10, beginning with block `first_block` of four words."""
    return keyed((seed, purpose), (first_block, 0, 0, 0)).random_raw(num_words)


def draw_noise(
    seed: int, purpose: int, first: int, shape: tuple[int, int], deviation: float
) -> npt.NDArray[np.float32]:
    """Return noise of mean 0 for rows first, first + 1, ..., as float32."""
    num_rows, width = shape
    # Whole blocks of four words a row, so that a row begins where a counter does.
    row_words = -(-width // 4) * 4
    words = draw_words(seed, purpose, first * (row_words // 4), num_rows * row_words)
    sums = _sum_of_bytes(words).reshape(num_rows, row_words)[:, :width]
    noise = sums.astype(np.float32)
    noise -= np.float32(_BYTES_MEAN)
    noise *= np.float32(deviation / _BYTES_STD)
    return noise


def _sum_of_bytes(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the sum of the eight bytes of each word."""
    even = np.uint64(0x00FF00FF00FF00FF)
    pairs = (words & even) + ((words >> np.uint64(8)) & even)  # four sums, 16 bits each
    return (pairs * np.uint64(0x0001000100010001)) >> np.uint64(48)


def hash_pairs(
    seed: int, low: npt.NDArray[Any], high: npt.NDArray[Any], rank: npt.NDArray[Any] | None
) -> npt.NDArray[np.uint64]:
    """Return a random word for each pair of numbers, where no single number is a place."""
    words = low.astype(np.uint64)
    words *= np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: SplitMix64's step
    words ^= np.uint64(seed)
    mix(words)
    words += high.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)  # odd, unlike the first
    mix(words)
    if rank is not None:
        repeated = np.flatnonzero(rank)
        again = words[repeated] + rank[repeated].astype(np.uint64)
        mix(again)
        words[repeated] = again
    return words
