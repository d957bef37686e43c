"""Random words of 64 bits, and numbers and orders made from such words, equal on every machine.

Words depend on a key and a place, never on the order in which they are drawn. NumPy guarantees the
stream of a generator's raw words, but not the numbers that it derives.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

# Mean and standard deviation of the sum of eight random bytes.
_BYTES_MEAN = 8 * 127.5
_BYTES_STD = math.sqrt(8 * (2**16 - 1) / 12)


def keyed(key: tuple[int, int], counter: tuple[int, int, int, int]) -> np.random.Philox:
    """Return the generator of a key and a counter; callers must use its raw words only."""
    return np.random.Philox(counter=np.array(counter, np.uint64), key=np.array(key, np.uint64))


def uniform(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return for each word a number in [0, 1), made of 53 bits."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(count: int, generator: np.random.Philox) -> npt.NDArray[np.int64]:
    """Return 0 to count - 1, sorted by random words."""
    order = np.argsort(generator.random_raw(count), kind="stable")
    return order.astype(np.int64, copy=False)


def mix(words: npt.NDArray[np.uint64]) -> None:
    """Scramble words in place, one to one: the finalizer of SplitMix64."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)


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


def hash_pairs(seed: int, low: npt.NDArray[Any], high: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return a random word for each pair of numbers, where no single number is a place."""
    words = low.astype(np.uint64)
    words *= np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: SplitMix64's step
    words ^= np.uint64(seed)
    mix(words)
    words += high.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)  # odd, unlike the first
    mix(words)
    return words
