"""The loader's own order: positions one after the other or shuffled, all or one rank's share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset, RandomSampler

from gnnstore.errors import UsageError
from gnnstore.pipeline.order.epoch import epoch_order
from gnnstore.pipeline.order.ranks import ALONE, RankShard
from gnnstore.pipeline.order.state import Position

if TYPE_CHECKING:
    from gnnstore.pipeline.order.cursor import EpochCursor

_INT_CHUNK = 65536

_BYPASSED = (
    "another DataLoader prepares this loader's batches, one at a time: strategy=, cache=, memory= "
    "and threads have no effect, and batches are not those of the loader. Iterate the loader "
    "itself; with accelerate, prepare() the model and the optimizer only, make the loader with "
    "rank=accelerator.process_index, world_size=accelerator.num_processes and seed=, and move each "
    "batch with batch.to(accelerator.device)"
)


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
    """Positions of an epoch in an order that depends on (seed, epoch) and nothing else.

    A `RandomSampler` by type, so that whoever inspects a loader sees that it shuffles. The loader
    does not iterate it; a loader that a framework builds from its parts does, epoch after epoch.
    """

    def __init__(
        self,
        num_seeds: int,
        seed: int | None = None,
        epoch: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        # RandomSampler itself refuses an empty data source in some versions of torch.
        self.data_source = range(num_seeds)
        self.replacement = False
        self._num_samples = None
        self.generator = generator
        self.seed = seed
        self.epoch = epoch
        self.cursor: EpochCursor | None = None  # of the loader

    def draw_seed(self) -> int:
        """Return the seed, which is drawn at the first use if none was given."""
        if self.seed is None:
            self.seed = drawn_seed(self.generator)
        return self.seed

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that is iterated next; it counts up by itself.

        The loader moves on to that epoch, too, if it has not come so far: Lightning calls this
        alone when it resumes at the end of an epoch.
        """
        self.epoch = epoch
        if self.cursor is not None:
            self.cursor.advance(int(epoch))

    def __iter__(self) -> Iterator[int]:
        """Yield every position once, as Python integers."""
        order = epoch_order(len(self), self.draw_seed(), self.epoch)
        self.epoch += 1
        # A list of all would take 36 bytes each.
        pieces = (order[i : i + _INT_CHUNK].tolist() for i in range(0, len(order), _INT_CHUNK))
        return chain.from_iterable(pieces)

    def __len__(self) -> int:
        """Return the number of seed nodes."""
        return len(self.data_source)


class SeedPositions(Dataset[int]):
    """The positions of a loader's seeds, which its own iterations do not ask for."""

    def __init__(self, num_seeds: int) -> None:
        self._positions = range(num_seeds)
        self._has_warned = False

    def __len__(self) -> int:
        """Return the number of seeds."""
        return len(self._positions)

    def __getitem__(self, index: int) -> int:
        """Return a position."""
        return self._positions[index]

    def __getitems__(self, index: list[int]) -> list[int]:
        """Return positions; called by a torch `DataLoader` that was built from a loader's parts."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(_BYPASSED, UserWarning, stacklevel=2)
        return index


def drawn_seed(generator: torch.Generator | None) -> int:
    """Return a seed from torch's generator, or another one."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))
