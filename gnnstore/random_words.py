"""Random words of 64 bits, and numbers and orders made from such words, equal on every machine.

NumPy guarantees the stream of a generator's raw words, but not the numbers that it derives.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


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
