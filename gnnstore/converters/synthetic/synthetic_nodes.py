"""Labels, features and splits of a synthetic graph's nodes; features hint at the labels.

Every value is a function of (seed, node), drawn from a counter-based generator and computed
with exact arithmetic, so that any chunking, on any machine, gives the same bytes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.inputs.source import GeneratedRows
from gnnstore.errors import UsageError, whole_number
from gnnstore.random_words import draw_noise, draw_words

# The second word of the generator's key is the purpose, so that streams never meet.
_NOISE = 0x6E6F697365  # "noise"
_SPLIT = 0x73706C6974  # "split"
_CHUNK_BYTES = 2**20  # intermediate results stay in a core's cache: twice as fast


# What is wrong with a parameter that is below or above some numbers.
_LIMITS: dict[str, tuple[float, float, str]] = {
    "seed": (0, 2**64 - 1, "is not in [0, 2**64)"),
    "scale": (0, 40, "is not in [0, 40]"),
    "homophily": (0, 1, "is not in [0, 1]"),
    "feature_noise": (0, sys.float_info.max, "is not a standard deviation"),
    "skew": (0, 10, "is not in [0, 10]"),
}
_FRACTIONS = ("homophily", "feature_noise", "skew")  # the others are whole numbers


def check_numbers(**given: Any) -> None:
    """Refuse numbers out of range; those without limits of their own must not be negative."""
    for name, value in given.items():
        if isinstance(value, list):
            continue
        if name not in _FRACTIONS:
            whole_number(name, value)
        elif not isinstance(value, int | float | np.number):
            raise UsageError(f"{name}={value!r} is not a number")
        low, high, problem = _LIMITS.get(name, (0, math.inf, "is negative"))
        if not low <= value <= high:  # also refuses NaN
            raise UsageError(f"{name}={value} {problem}")


@dataclass(frozen=True)
class SyntheticNodes:
    """Communities, features and splits of the 2**scale nodes of a synthetic graph."""

    scale: int  # logarithm of the number of nodes N to the base 2
    num_communities: int  # C, a power of two
    feature_dim: int
    # Standard deviation of the noise in each feature; class means have length 1.
    feature_noise: float
    seed: int  # in [0, 2**64)

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
        """Return the class means [C, F]: rows of length 1, orthogonal if C divides F."""
        classes = np.arange(self.num_communities)[:, None]
        shared = classes & np.arange(self.feature_dim)[None, :]
        parity = np.zeros_like(shared)
        while shared.any():
            parity ^= shared & 1
            shared >>= 1
        length = np.float32(1 / math.sqrt(self.feature_dim))
        return np.where(parity == 1, -length, length)

    def features(
        self,
        count: int,
        labels: Callable[[int, int], npt.NDArray[np.int64]],
        purpose: int = _NOISE,
    ) -> GeneratedRows:
        """Return features [count, F], the class mean and noise, of nodes with some labels."""
        means, width = self.class_means(), self.feature_dim
        step = max(1, _CHUNK_BYTES // (4 * width))

        def rows(first: int, last: int) -> npt.NDArray[np.float32]:
            found = np.empty((last - first, width), np.float32)
            for begin in range(first, last, step):
                end = min(begin + step, last)
                shape = (end - begin, width)
                noise = draw_noise(self.seed, purpose, begin, shape, self.feature_noise)
                np.add(noise, means[labels(begin, end)], out=found[begin - first : end - first])
            return found

        return GeneratedRows("x", (count, width), np.float32, rows)

    def splits(
        self, candidates: npt.NDArray[np.int64], fractions: tuple[float, float, float]
    ) -> dict[str, npt.NDArray[np.int64]]:
        """Assign nodes to the splits at random."""
        draws = draw_words(self.seed, _SPLIT, 0, 1 << self.scale)[candidates] / 2.0**64
        bounds = np.cumsum((0.0, *fractions))
        return {
            name: candidates[(draws >= low) & (draws < high)]
            for name, low, high in zip(
                ("train", "valid", "test"), bounds[:-1], bounds[1:], strict=True
            )
        }
