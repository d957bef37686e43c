"""What a synthetic graph's nodes carry: labels to predict, features that hint at them.

Every value is a function of (seed, node), drawn from a counter-based generator and computed
with exact arithmetic, so that any chunking, on any machine, gives the same bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnstore import _core

# The second word of the generator's key says what is drawn, so that streams never meet.
_NOISE = 0x6E6F697365  # "noise"
_SPLIT = 0x73706C6974  # "split"
# The sum of eight random bytes has this mean and standard deviation.
_BYTES_MEAN = 8 * 127.5
_BYTES_STD = math.sqrt(8 * (2**16 - 1) / 12)


@dataclass(frozen=True)
class PlantedNodes:
    """Communities, features and splits of the 2**scale nodes of a synthetic graph.

    Attributes
    ----------
    scale : int
        Logarithm of the number of nodes N to the base 2.
    num_communities : int
        C, a power of two.
    feature_dim : int
        F.
    feature_noise : float
        Standard deviation of the noise in each feature; class means have length 1.
    seed : int
        In [0, 2**64).
    """

    scale: int
    num_communities: int
    feature_dim: int
    feature_noise: float
    seed: int

    @property
    def community_bits(self) -> int:
        """Leading bits of an unpermuted id that are the community."""
        return self.num_communities.bit_length() - 1

    def labels(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return the communities of nodes first, ..., last - 1."""
        nodes = np.arange(first, last, dtype=np.int64)
        plain = _core.permute_ids(nodes, self.scale, self.seed, inverse=True)
        return np.right_shift(plain, self.scale - self.community_bits)

    def class_means(self) -> npt.NDArray[np.float32]:
        """Return the class means [C, F]: rows of length 1, orthogonal if C divides F.

        Entry (c, j) is positive where c and j share an even number of set bits: the rows of
        a Hadamard matrix, repeated.
        """
        classes = np.arange(self.num_communities)[:, None]
        shared = classes & np.arange(self.feature_dim)[None, :]
        parity = np.zeros_like(shared)
        while shared.any():
            parity ^= shared & 1
            shared >>= 1
        length = np.float32(1 / math.sqrt(self.feature_dim))
        return np.where(parity == 1, -length, length)

    def features(
        self, first: int, last: int, labels: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """Return features [last - first, F]: the class mean and noise.

        The noise is the sum of eight random bytes, standardised. That is normal to within
        0.005 of the distribution function, and has the same bits everywhere, which
        logarithms and cosines have not.
        """
        # Whole blocks of four words a row, so that a row begins where a counter does.
        row_words = -(-self.feature_dim // 4) * 4
        words = _draw(self.seed, _NOISE, first * (row_words // 4), (last - first) * row_words)
        sums = _sum_of_bytes(words).reshape(-1, row_words)[:, : self.feature_dim]
        noise = sums.astype(np.float32)
        noise -= np.float32(_BYTES_MEAN)
        noise *= np.float32(self.feature_noise / _BYTES_STD)
        noise += self.class_means()[labels]
        return noise

    def splits(
        self, candidates: npt.NDArray[np.int64], fractions: tuple[float, float, float]
    ) -> dict[str, npt.NDArray[np.int64]]:
        """Share nodes out at random.

        Parameters
        ----------
        candidates : ndarray of int64
            Nodes to choose from, ascending.
        fractions : tuple of float
            Expected shares of train, valid and test; the rest stays out.
        """
        draws = _draw(self.seed, _SPLIT, 0, 1 << self.scale)[candidates] / 2.0**64
        bounds = np.cumsum((0.0, *fractions))
        return {
            name: candidates[(draws >= low) & (draws < high)]
            for name, low, high in zip(
                ("train", "valid", "test"), bounds[:-1], bounds[1:], strict=True
            )
        }


def _draw(seed: int, purpose: int, first_block: int, num_words: int) -> npt.NDArray[np.uint64]:
    """Return words of Philox4x64-10 from a block of four on."""
    generator = np.random.Philox(
        key=np.array([seed, purpose], np.uint64),
        counter=np.array([first_block, 0, 0, 0], np.uint64),
    )
    return generator.random_raw(num_words)


def _sum_of_bytes(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the sum of the eight bytes of each word."""
    even = np.uint64(0x00FF00FF00FF00FF)
    pairs = (words & even) + ((words >> np.uint64(8)) & even)  # four sums, 16 bits each
    return (pairs * np.uint64(0x0001000100010001)) >> np.uint64(48)
