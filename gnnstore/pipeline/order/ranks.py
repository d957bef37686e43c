"""The share of an epoch's batches of each of several processes that train one model together.

They share the batches of the run of a single process: the batch of number k goes to rank k mod W.
A batch is keyed by its number, so it is the same one whoever takes it, and a position in the epoch
is the same for all: a state that one rank has saved is the state of each, of another number of
ranks too. All ranks take equally many, because those that train together wait
for one another at every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from torch.utils.data.distributed import DistributedSampler

from gnnstore.errors import UsageError, whole_number
from gnnstore.pipeline.order.epoch import epoch_order

if TYPE_CHECKING:
    from gnnstore.pipeline.order.cursor import EpochCursor

_INSTEAD = ("sampler", "batch_sampler")


@dataclass(frozen=True)
class RankShard:
    """The batches of an epoch that one rank takes."""

    rank: int = 0  # of this process, from 0
    world_size: int = 1  # W, the number of processes; 1: this one takes them all

    @classmethod
    def of(
        cls, rank: int | None, world_size: int | None, seed: int | None, options: dict[str, Any]
    ) -> Self:
        """Check what the user has given."""
        if rank is None and world_size is None:
            return cls()
        if rank is None or world_size is None:
            raise UsageError(
                f"rank={rank} and world_size={world_size}: give both, such as "
                "torch.distributed.get_rank() and get_world_size(), or neither"
            )
        rank, world_size = whole_number("rank", rank), whole_number("world_size", world_size)
        if not 0 <= rank < world_size:
            raise UsageError(
                f"rank={rank} is none of the ranks of world_size={world_size}; expected 0 to "
                f"{world_size - 1}"
            )
        if seed is None:
            raise UsageError(
                "rank= needs seed=, the same on every rank: each would draw one of its own, and "
                "their batches would not be those of one epoch"
            )
        given = {name: options[name] for name in _INSTEAD if options.get(name) is not None}
        # Frameworks that build a loader anew pass what the other one had made.
        if given and not isinstance(given.get("sampler"), RankSampler):
            raise UsageError(
                f"rank= deals out the batches of the loader's own order, and {next(iter(given))}= "
                "has another; leave out one of them"
            )
        if options.get("batch_size", 1) is None:
            raise UsageError("rank= deals out batches, and batch_size=None makes none")
        return cls(rank, world_size)

    def number(self, first: int, k: int, num_batches: int) -> int:
        """Return the number in its epoch of the k-th batch that this rank takes."""
        return (first + self.rank + k * self.world_size) % max(1, num_batches)

    def num_rounds(self, first: int, num_batches: int, *, drop_last: bool) -> int:
        """Return how many batches each rank takes of what is left of an epoch."""
        left = max(0, num_batches - first)
        return left // self.world_size if drop_last else -(-left // self.world_size)

    def batches(
        self, first: int, num_batches: int, *, drop_last: bool
    ) -> Iterator[tuple[int, int]]:
        """Return the number of each batch, and how many all ranks have had after it, in order."""
        rounds, size = self.num_rounds(first, num_batches, drop_last=drop_last), self.world_size
        own = range(first + self.rank, first + self.rank + rounds * size, size)
        # Only in the last round may there be fewer batches than ranks.
        numbers = chain(own[:-1], (self.number(first, rounds - 1, num_batches) for _ in own[-1:]))
        done = range(first + size, first + rounds * size + 1, size)
        return zip(numbers, chain(done[:-1], (min(num_batches, n) for n in done[-1:])), strict=True)


ALONE = RankShard()


class RankSampler(DistributedSampler[int]):
    """Positions that one rank takes in an epoch, whose order depends on (seed, epoch) alone.

    A `DistributedSampler` by type, so that whoever inspects a loader sees that it shares the seeds
    already, and does not split them again.
    """

    def __init__(
        self,
        num_seeds: int,
        shard: RankShard,
        *,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
    ) -> None:
        positions: Any = range(num_seeds)
        super().__init__(
            positions, shard.world_size, shard.rank, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        self._shard = shard
        self._num_seeds = num_seeds
        self._batch_size = batch_size
        self.num_samples = sum(len(batch) for batch in self._batches(range(num_seeds)))
        self.total_size = num_seeds
        self.cursor: EpochCursor | None = None  # of the loader

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that is iterated next; the loader moves on, as with `SeededShuffle`."""
        super().set_epoch(epoch)
        if self.cursor is not None:
            self.cursor.advance(int(epoch))

    def __iter__(self) -> Iterator[int]:
        """Yield the positions of an epoch, as Python integers; the next call, of the next one."""
        order: Any = range(self._num_seeds)
        if self.shuffle:
            order = epoch_order(self._num_seeds, self.seed, self.epoch)
        self.epoch += 1
        return chain.from_iterable(map(int, batch) for batch in self._batches(order))

    def _batches(self, order: Any) -> Iterator[Any]:
        size = self._batch_size
        total = len(range(0, self._num_seeds, size))
        if self.drop_last:
            total = self._num_seeds // size
        for number, _ in self._shard.batches(0, total, drop_last=self.drop_last):
            yield order[number * size : (number + 1) * size]
