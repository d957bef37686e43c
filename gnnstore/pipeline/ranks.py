"""The loader's own order, which follows from (seed, epoch): all of it, or a rank's share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

from torch.utils.data.distributed import DistributedSampler

from gnnstore.errors import UsageError, whole_number
from gnnstore.pipeline.order import EpochCursor, Position
from gnnstore.pipeline.shuffle import epoch_order

# Options of torch's loader that give it another order.
_INSTEAD = ("sampler", "batch_sampler")


@dataclass(frozen=True)
class RankShard:
    """The batches of an epoch that one of the processes takes that train one model together.

    They share the batches of the run of a single process: batch k goes to rank k mod W. A position
    in the epoch is the same for all, so each rank can load a state that one has saved, of another
    number of ranks too. All take equally many, because they wait for one another at every step.
    """

    rank: int = 0  # of this process, from 0
    world_size: int = 1  # W, the number of processes; 1: this one takes them all

    @classmethod
    def from_options(
        cls, rank: int | None, world_size: int | None, seed: int | None, options: dict[str, Any]
    ) -> Self:
        """Check what the user has given."""
        if rank is None and world_size is None:
            return cls()
        if rank is None or world_size is None:
            raise UsageError(
                f"rank={rank!r} and world_size={world_size!r}: give both, such as "
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
                "their batches would not make one epoch"
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


class RankSampler(DistributedSampler[int]):
    """Positions that one rank takes in an epoch, whose order depends on (seed, epoch) alone.

    A `DistributedSampler` by type, so that code that looks sees that it shares the seeds
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
        self._order = KeyedOrder(num_seeds, batch_size, shuffle, drop_last, shard)
        in_order = replace(self._order, shuffles=False).batches(Position(0), seed)
        self.num_samples = sum(len(index) for _, index, _ in in_order)
        self.total_size = num_seeds
        self.cursor: EpochCursor | None = None  # of the loader

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that is iterated next; the loader moves on, as with `SeededShuffle`."""
        super().set_epoch(epoch)
        if self.cursor is not None:
            self.cursor.advance(int(epoch))

    def __iter__(self) -> Iterator[int]:
        """Yield the positions of an epoch, as Python integers; the next call, of the next one."""
        batches = self._order.batches(Position(self.epoch), self.seed)
        self.epoch += 1
        return chain.from_iterable(map(int, index) for _, index, _ in batches)
