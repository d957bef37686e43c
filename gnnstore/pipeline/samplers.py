"""The orders that loaders have: their own, all of it or a rank's share, and a user's sampler's.

Frameworks look at a loader's samplers, and build loaders anew with those that they found; so its
own order shows as a sampler of torch's types, and is known again where it comes back.

A user's order cannot be computed from (seed, epoch). A sampler with `state_dict` and
`load_state_dict` is asked for its state after each batch that it gives, as torchdata's
`StatefulDataLoader` does; that state waits with the batch until the batch is handed out, since
samplers run ahead. Any other sampler is run again from the start of the epoch, its batches
dropped, which samples nothing; a checksum of what it gave tells whether it is the same order.
"""

from __future__ import annotations

import base64
import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from gnnstore.errors import UsageError, whole_number
from gnnstore.pipeline.order import EpochCursor, EpochOrder, Position, epoch_order
from gnnstore.seeds.nodes import crc_of_positions

_INT_CHUNK = 65536

_BYPASSED = (
    "another DataLoader prepares this loader's batches, one at a time: strategy=, cache=, memory= "
    "and threads have no effect, and batches are not those of the loader. Iterate the loader "
    "itself; with accelerate, prepare() the model and the optimizer only, make the loader with "
    "rank=accelerator.process_index, world_size=accelerator.num_processes and seed=, and move each "
    "batch with batch.to(accelerator.device)"
)
_INSTEAD = ("sampler", "batch_sampler")


@dataclass(frozen=True)
class ExternalSampler:
    """The order of a sampler that the user gave; an `EpochOrder`."""

    sampler: Any  # gives batches of positions; or single positions if batches are not made at all

    shuffles = False
    is_keyed = varies = False

    @property
    def name(self) -> str:
        """The type of the sampler, and of the one within."""
        within = self._within
        inner = "" if within is None else f"({type(within).__name__})"
        return f"{type(self.sampler).__name__}{inner}"

    def start(self, *, epoch_done: bool = False) -> dict[str, Any]:
        """Return the state needed to go on from the sampler's present position."""
        if (stateful := self._stateful) is not None:
            return {"state": copy.deepcopy(stateful.state_dict()), "epoch_done": epoch_done}
        generator = self._generator
        state = None
        if generator is not None:
            state = base64.b64encode(generator.get_state().numpy().tobytes()).decode()
        return {"generator": state, "crc32c": 0}

    def number(self, first: int, k: int) -> int:
        """Return the number in its epoch of the k-th batch after the first `first` ones."""
        return first + k

    def num_left(self, position: Position, seed: int | None) -> int:  # noqa: ARG002
        """Return the number of batches of an epoch that follow a position."""
        return max(0, len(self.sampler) - position.batches)

    def check(self, position: Position, seed: int) -> None:  # noqa: ARG002
        """Check that this sampler can go on from a position of `start` or `batches`."""
        state = position.sampler
        if state is None:
            raise UsageError(f"the state says nothing of {self.name}, which this loader uses")
        if (self._stateful is not None) != ("state" in state):
            raise UsageError(
                f"the state was taken when {self.name} had another state_dict, or none; resume "
                "with the sampler as it was"
            )

    def batches(
        self,
        start: Position,
        seed: int,  # noqa: ARG002 - the sampler has its own
    ) -> Iterator[tuple[int, Any, Position]]:
        """Yield the number, the positions [B] and the place after each batch from `start` on."""
        given = self._run_again(start) if self._stateful is None else self._go_on(start)
        for number, (index, state) in enumerate(given, start.batches):
            yield number, index, Position(start.epoch, number + 1, state)

    def _go_on(self, start: Position) -> Iterator[tuple[Any, dict[str, Any]]]:
        state = start.sampler
        if state is not None and start.batches and state["epoch_done"]:
            return
        if state is not None:
            self._stateful.load_state_dict(copy.deepcopy(state["state"]))
        batches = _each(iter(self.sampler))
        if start.batches == 0 and state is not None:
            batches = self._anew_if_empty(batches)
        size = self.sampler.batch_size if _is_plain(self.sampler) else None
        for index in batches:
            # Looking for more positions ended the sampler: what it says now is of the end.
            short = size is not None and len(index) < size
            yield index, self.start(epoch_done=short)

    def _anew_if_empty(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Start again if a state of the end of an epoch gave the nothing that was left of it."""
        for first in batches:
            return chain([first], batches)
        return _each(iter(self.sampler))

    def _run_again(self, start: Position) -> Iterator[tuple[Any, dict[str, Any]]]:
        found = start.sampler or self.start()
        generator = self._generator
        if start.sampler is not None and generator is not None and found["generator"] is not None:
            state = np.frombuffer(base64.b64decode(found["generator"]), np.uint8)
            generator.set_state(torch.from_numpy(state.copy()))
        batches, given, crc = _each(iter(self.sampler)), 0, 0
        for index in batches:
            if given == start.batches:
                batches = chain([index], batches)
                break
            crc, given = _crc_of(index, crc), given + 1
        if given < start.batches or crc != found["crc32c"]:
            raise UsageError(
                f"{self.name} gives another order than before: its first {start.batches} batches "
                f"had the checksum {found['crc32c']:08x}, now {given} have {crc:08x}. Seed it, as "
                "with generator=torch.Generator().manual_seed(0), call its set_epoch if it has "
                "one, or give it state_dict and load_state_dict"
            )
        for index in batches:
            crc = _crc_of(index, crc)
            yield index, {**found, "crc32c": crc}

    @property
    def _within(self) -> Any:
        """The sampler that a plain `BatchSampler` only cuts into batches."""
        return self.sampler.sampler if _is_plain(self.sampler) else None

    @property
    def _stateful(self) -> Any:
        for sampler in (self.sampler, self._within):
            if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
                return sampler
        return None

    @property
    def _generator(self) -> torch.Generator | None:
        for sampler in (self.sampler, getattr(self.sampler, "sampler", None)):
            generator = getattr(sampler, "generator", None)
            if isinstance(generator, torch.Generator):
                return generator
        return None


def _each(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield what `next` gives: `iter` would begin a sampler anew that is its own iterator.

    Lightning wraps the batches of a prediction in one.
    """
    with suppress(StopIteration):
        while True:
            yield next(batches)


def _is_plain(sampler: Any) -> bool:
    # A class of the user's may read ahead in the sampler within.
    return isinstance(sampler, BatchSampler) and type(sampler).__iter__ is BatchSampler.__iter__


def _crc_of(index: Any, crc: int) -> int:
    try:
        return crc_of_positions(index, crc)
    except (TypeError, ValueError):
        return crc  # not positions: where the batch is prepared an error will say so


@dataclass(frozen=True)
class RankShard:
    """The batches of an epoch that one of the processes takes that train one model together.

    They share the batches of the run of a single process: batch k goes to rank k mod W. A position
    in the epoch is the same for all, so a state that one rank has saved is that of each, of another
    number of ranks too. All take equally many, because they wait for one another at every step.
    """

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
    device = "cpu" if generator is None else generator.device  # whatever torch's default is
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
