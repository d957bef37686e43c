"""The order of an epoch: which positions make up each batch, and where an epoch is taken up again.

A loader asks its order for positions and knows nothing else of it: whether they are shuffled, come
from a user's sampler or are this rank's share, or follow the partitions that lie in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gnnstore.pipeline.order.state import Position

Int64Array = npt.NDArray[np.int64]

# The sampling kernel's counter is (block, node, hop, batch). No batch has this number, so
# a shuffle never shares a draw with a sample.
_SHUFFLE_COUNTER = np.array([0, 0, 0, 2**64 - 1], dtype=np.uint64)


class EpochOrder(Protocol):
    """Yields the batches of an epoch, as positions in what a loader starts from."""

    @property
    def name(self) -> str | None:
        """The name of a sampler that is not the loader's own; None for its own order."""

    @property
    def shuffles(self) -> bool:
        """Whether the loader draws the order itself, anew in each epoch."""

    @property
    def is_keyed(self) -> bool:
        """Whether (seed, epoch) decides the batches, so that they are known before it begins."""

    def start(self) -> dict[str, Any] | None:
        """Return the state that a sampler needs to begin an epoch; None without one."""

    def check(self, position: Position) -> None:
        """Check that an epoch can be taken up at a position.

        Raises
        ------
        UsageError
            If there is no such place in an epoch of this order.
        """

    def number(self, first: int, k: int) -> int:
        """Return the number in its epoch of the k-th batch after the first `first` ones."""

    def num_left(self, done: int) -> int:
        """Return the number of batches that follow the first `done` ones of an epoch."""

    def batches(self, start: Position, seed: int) -> Iterator[tuple[int, Any, Position]]:
        """Yield the number, the positions [B] and the place after each batch from `start` on."""


def epoch_permutation(num_seeds: int, seed: int, epoch: int) -> Int64Array:
    """Return the order of an epoch: a permutation of 0 to num_seeds - 1, int64 [num_seeds].

    A pure function of its arguments on every machine: positions are sorted by 64-bit keys
    straight from a counter-based generator, whose stream NumPy guarantees, unlike that of
    its `permutation`.
    """
    key = np.array([seed, epoch], dtype=np.uint64)
    draws = np.random.Philox(counter=_SHUFFLE_COUNTER, key=key).random_raw(num_seeds)
    return np.argsort(draws, kind="stable").astype(np.int64, copy=False)


def batches_in_order(
    order: range | Int64Array, batch_size: int, *, drop_last: bool
) -> Iterator[range | Int64Array]:
    """Cut an order into batches, as torch's `BatchSampler` does, without lists of integers."""
    end = len(order) - (len(order) % batch_size if drop_last else 0)
    for first in range(0, end, batch_size):
        yield order[first : first + batch_size]
