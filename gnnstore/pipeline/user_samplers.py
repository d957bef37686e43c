"""The order of a sampler that the user gave.

It cannot be computed from (seed, epoch). A sampler with `state_dict` and `load_state_dict` is asked
for its state after each batch that it gives, as torchdata's `StatefulDataLoader` does; that state
waits with the batch until the batch is handed out, since samplers run ahead. Any other sampler is
run again from the start of the epoch, its batches dropped, which samples nothing; a checksum of
what it gave shows whether it is the same order.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler

from gnnstore.errors import UsageError
from gnnstore.pipeline.order import Position
from gnnstore.seeds.nodes import crc_of_positions
from gnnstore.units import format_count


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
            raise UsageError(f"the state has nothing of {self.name}, which this loader uses")
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
            # Looking for more positions ended the sampler: its state is now at the end.
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
                f"{self.name} gives another order than before: its first "
                f"{format_count(start.batches, 'batch')} "
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
        return crc  # not positions: preparing the batch raises an error
