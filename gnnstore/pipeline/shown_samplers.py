"""The loader's own order as torch's samplers.

Frameworks look at a loader's samplers, and build loaders anew with those that they found; so the
order shows as a sampler of torch's types, and is known again where it comes back.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler

from gnnstore.pipeline.order import EpochCursor, EpochOrder
from gnnstore.pipeline.ranks import KeyedOrder, RankSampler, RankShard
from gnnstore.pipeline.shuffle import epoch_order
from gnnstore.pipeline.user_samplers import ExternalSampler

_INT_CHUNK = 65536

_BYPASSED = (
    "another DataLoader prepares this loader's batches, one at a time: strategy=, cache=, memory= "
    "and threads have no effect, and batches differ from the loader's. Iterate the loader "
    "itself; with accelerate, prepare() the model and the optimizer only, make the loader with "
    "rank=accelerator.process_index, world_size=accelerator.num_processes and seed=, and move each "
    "batch with batch.to(accelerator.device)"
)


class SeededShuffle(RandomSampler):
    """Positions of an epoch in an order that depends on (seed, epoch) and nothing else.

    A `RandomSampler` by type, so that code that looks at a loader sees that it shuffles. The loader
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
    device = "cpu" if generator is None else generator.device  # not torch's default
    return int(torch.empty((), dtype=torch.int64, device=device).random_(generator=generator))


def shuffles(options: Mapping[str, Any]) -> bool:
    """Return whether a loader with these options of a `DataLoader` shuffles by itself."""
    sampler = options.get("sampler")
    if sampler is None and options.get("batch_sampler") is None:
        return bool(options.get("shuffle"))
    return isinstance(sampler, SeededShuffle) or (
        isinstance(sampler, RankSampler) and sampler.shuffle
    )


def own_sampler(
    num_seeds: int, seed: int | None, shard: RankShard, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of a `DataLoader` that show the loader's own order, where it has one."""
    if shard.world_size > 1:
        sampler: Any = RankSampler(
            num_seeds,
            shard,
            batch_size=options.get("batch_size", 1),
            shuffle=shuffles(options),
            seed=seed or 0,
            drop_last=bool(options.get("drop_last")),
        )
    elif shuffles(options):
        sampler = SeededShuffle(num_seeds, seed, generator=options.get("generator"))
    else:
        return {}
    return {"shuffle": False, "sampler": sampler}


def order_of(
    loader: DataLoader[Any], num_seeds: int, shard: RankShard, *, shuffles: bool
) -> EpochOrder:
    """Return the order of a loader that torch has set up."""
    sampler: Any = loader.sampler
    is_in_order = type(sampler) is SequentialSampler and len(sampler) == num_seeds
    is_own = is_in_order or isinstance(sampler, (SeededShuffle, RankSampler))
    if loader.batch_sampler is not None and (loader.batch_size is None or not is_own):
        return ExternalSampler(loader.batch_sampler)
    if not is_own:
        return ExternalSampler(sampler)
    return KeyedOrder(num_seeds, loader.batch_size, shuffles, loader.drop_last, shard)
