"""The order of a loader's epochs, by the sampler options of torch's `DataLoader`.

Frameworks look at a loader's samplers, and build loaders anew with those that they found; so a
loader's own order shows as a sampler of torch's types, and is known again where it comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader, SequentialSampler

from gnnstore.pipeline.order.epoch import EpochOrder
from gnnstore.pipeline.order.external import ExternalSampler
from gnnstore.pipeline.order.keyed import KeyedOrder, SeededShuffle
from gnnstore.pipeline.order.ranks import RankSampler, RankShard


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
