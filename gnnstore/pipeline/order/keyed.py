"""The loader's own order: positions one after the other or shuffled, all or one rank's share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import RandomSampler

from gnnstore.errors import UsageError
from gnnstore.pipeline.order.epoch import epoch_order
from gnnstore.pipeline.order.ranks import ALONE, RankShard
from gnnstore.pipeline.order.state import Position

_INT_CHUNK = 65536


@dataclass(frozen=True)
class KeyedOrder:
    """Cuts a keyed permutation of all positions, or the positions as they are, into batches."""

    num_seeds: int  # positions are 0 to num_seeds - 1
    batch_size: int | None  # B; None: every batch is a single position, not a list of one
    shuffles: bool
    drop_last: bool
    shard: RankShard = ALONE  # the batches of the epoch that this process takes

    name = None
    is_keyed = True
    varies = False

    @property
    def num_batches(self) -> int:
        """Batches of an epoch, of all ranks together."""
        size = self.batch_size or 1
        return self.num_seeds // size if self.drop_last else -(-self.num_seeds // size)

    def start(self) -> None:
        """Return nothing: the order follows from (seed, epoch)."""

    def check(self, position: Position, seed: int) -> None:  # noqa: ARG002
        """Check that an epoch has as many batches as were handed out."""
        if position.batches > self.num_batches:
            raise UsageError(
                f"the state's 'batches' is {position.batches}; expected at most "
                f"{self.num_batches}, which is an epoch"
            )

    def number(self, first: int, k: int) -> int:
        """Return the number in its epoch of the k-th batch after the first `first` ones."""
        return self.shard.number(first, k, self.num_batches)

    def num_left(self, position: Position, seed: int | None) -> int:  # noqa: ARG002
        """Return the number of batches that this rank takes after those handed out of all."""
        return self.shard.num_rounds(position.batches, self.num_batches, drop_last=self.drop_last)

    def batches(self, start: Position, seed: int) -> Iterator[tuple[int, Any, Position]]:
        """Yield the number, the positions [B] and the place after each batch from `start` on."""
        order: Any = range(self.num_seeds)
        if self.shuffles:
            order = epoch_order(self.num_seeds, seed, start.epoch)
        size, total, drop_last = self.batch_size, self.num_batches, self.drop_last
        for number, done in self.shard.batches(start.batches, total, drop_last=drop_last):
            index = order[number] if size is None else order[number * size : (number + 1) * size]
            yield number, index, Position(start.epoch, done)


class SeededShuffle(RandomSampler):
    """Positions of one epoch in an order that depends on (seed, epoch) and nothing else.

    A `RandomSampler` by type, so that whoever inspects a loader sees that it shuffles.
    """

    def __init__(self, num_seeds: int, seed: int = 0, epoch: int = 0) -> None:
        # RandomSampler itself refuses an empty data source in some versions of torch.
        self.data_source = range(num_seeds)
        self.replacement = False
        self._num_samples = None
        self.generator = None
        self.seed = seed
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        """Yield every position once, as Python integers."""
        order = epoch_order(len(self), self.seed, self.epoch)
        for first in range(0, len(order), _INT_CHUNK):  # a list of all would take 36 bytes each
            yield from order[first : first + _INT_CHUNK].tolist()

    def __len__(self) -> int:
        """Return the number of seed nodes."""
        return len(self.data_source)
