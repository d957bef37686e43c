"""The shuffled order of an epoch, by keyed words: sorted, or computed where it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.random_words import keyed, permutation

# The sampling kernel's counter is (block, node, hop, batch). No batch has this number, so
# a shuffle never shares a draw with a sample.
_SHUFFLE_COUNTER = (0, 0, 0, 2**64 - 1)

# Most positions that are shuffled by sorting, with 16 bytes each.
MAX_SORTED = 2**22
_NUM_ROUNDS = 8


def epoch_order(num_seeds: int, seed: int, epoch: int) -> Any:
    """Return the shuffled order of an epoch: of 0 to num_seeds - 1, to be indexed and sliced."""
    return drawn_order(num_seeds, shuffle_draws(seed, epoch))


def drawn_order(num_seeds: int, generator: np.random.Philox) -> Any:
    """Return a shuffled order as `epoch_order` does, by the words of a generator."""
    if num_seeds > MAX_SORTED:
        return KeyedBijection(num_seeds, generator)
    return permutation(num_seeds, generator)


def order_bytes(num_seeds: int, *, shuffles: bool, num_orders: int = 2) -> int:
    """Return the memory of epochs' orders, and of the keys that the newest is sorted by."""
    return 8 * num_seeds * (num_orders + 1) if shuffles and num_seeds <= MAX_SORTED else 0


def shuffle_draws(seed: int, epoch: int) -> np.random.Philox:
    """Return the generator of the shuffle of an epoch; of its words only raw ones are taken."""
    return keyed((seed, epoch), _SHUFFLE_COUNTER)


class KeyedBijection:
    """A permutation of many positions, each computed when it is asked for."""

    def __init__(self, num_seeds: int, generator: np.random.Philox) -> None:
        num_bits = max(2, (num_seeds - 1).bit_length())
        self._num_seeds = num_seeds
        # The halves of an odd number of bits differ by one: each round takes the other's width.
        self._widths = (np.uint64(num_bits // 2), np.uint64(num_bits - num_bits // 2))
        self._keys = np.asarray(generator.random_raw(_NUM_ROUNDS))

    def __len__(self) -> int:
        """Return the number of positions."""
        return self._num_seeds

    def __getitem__(self, key: int | slice) -> Any:
        """Return a position, or the positions of a slice: int64 [n]."""
        if isinstance(key, slice):
            places = np.arange(*key.indices(self._num_seeds), dtype=np.uint64)
            return self._walked(places).astype(np.int64)
        place = range(self._num_seeds)[key]
        return np.int64(self._walked(np.array([place], dtype=np.uint64))[0])

    def _walked(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        values = self._mixed(values)
        while (outside := np.flatnonzero(values >= self._num_seeds)).size:
            values[outside] = self._mixed(values[outside])
        return values

    def _mixed(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        low_bits, high_bits = self._widths
        left, right = values >> low_bits, values & _mask(low_bits)
        for key in self._keys:
            left, right = right, left ^ (_hash(right ^ key) & _mask(high_bits))
            low_bits, high_bits = high_bits, low_bits
        return left << low_bits | right


def _mask(num_bits: np.uint64) -> np.uint64:
    return (np.uint64(1) << num_bits) - np.uint64(1)


def _hash(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix 64-bit words: the finalizer of SplitMix64, from its high half."""
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words >> np.uint64(32)
