"""An order that follows the partitions in memory: the batches of one state, then of the next."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError
from gnnstore.partitions.orders import Purpose, Schedule, draws
from gnnstore.pipeline.order import Position, drawn_order

if TYPE_CHECKING:
    from gnnstore.partitions.policy import BufferShape
    from gnnstore.partitions.seeds import Assigned, SeedsByState

Int64Array = npt.NDArray[np.int64]


class InState(NamedTuple):
    """The seeds of a batch: a range in the order of its state's seeds."""

    state: int
    begin: int
    end: int


@dataclass(frozen=True, eq=False)
class EpochByStates:
    """The states of an epoch, and their batches."""

    seed: int
    epoch: int
    schedule: Schedule
    assigned: Assigned
    num_batches: Int64Array  # int64 [n]: batches of each state
    shuffles: bool

    @cached_property
    def ends(self) -> Int64Array:
        """Number of the batch after the last one of each state."""
        return np.cumsum(self.num_batches)

    @property
    def total(self) -> int:
        """Number of batches."""
        return int(self.num_batches.sum())

    def state_of(self, batch: int) -> int:
        """Return the state of a batch."""
        return int(np.searchsorted(self.ends, batch, side="right"))

    def left(self, done: int) -> list[int]:
        """Return the states that have batches after the first `done` of the epoch."""
        return np.flatnonzero((self.num_batches > 0) & (self.ends > done)).tolist()

    def order_of(self, state: int) -> Any:
        """Return the order in which a state's seeds are taken, to be sliced."""
        count = int(self.assigned.counts[state])
        if not self.shuffles:
            return range(count)
        return drawn_order(count, draws(self.seed, self.epoch, Purpose.SEEDS, state))


@dataclass(frozen=True, eq=False)
class PartitionOrder:
    """Divides the seeds of each state into batches, state after state; an `EpochOrder`."""

    shape: BufferShape
    seeds: SeedsByState
    batch_size: int
    shuffles: bool
    drop_last: bool
    _known: dict[tuple[int, int], EpochByStates] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    name = None
    is_keyed = varies = True

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.shape, self.seeds, self.batch_size, self.shuffles, self.drop_last)
        return (type(self), arguments)

    def of(self, seed: int, epoch: int) -> EpochByStates:
        """Return the states of an epoch; the last two epochs are cached."""
        with self._lock:
            known = self._known.get((seed, epoch))
            if known is None:
                schedule = self.shape.schedule(seed, epoch)
                assigned = self.seeds.assign(schedule, seed, epoch)
                size = self.batch_size
                num_batches = (assigned.counts + (0 if self.drop_last else size - 1)) // size
                known = EpochByStates(seed, epoch, schedule, assigned, num_batches, self.shuffles)
                for key in [*self._known][:-1]:
                    del self._known[key]
                self._known[seed, epoch] = known
            return known

    def start(self) -> None:
        """Do nothing: the order follows from (seed, epoch)."""

    def check(self, position: Position, seed: int) -> None:
        """Check that an epoch has at least the batches that were handed out."""
        total = self.of(seed, position.epoch).total
        if position.batches > total:
            raise UsageError(
                f"the state's 'batches' is {position.batches}; expected at most {total}, which is "
                f"epoch {position.epoch}"
            )

    def number(self, first: int, k: int) -> int:
        """Return the number in its epoch of the k-th batch after the first `first` batches."""
        return first + k

    def num_left(self, position: Position, seed: int | None) -> int:
        """Return the number of batches of an epoch that follow a position."""
        if seed is None:
            raise UsageError("the number of batches depends on seed=, which is not drawn yet")
        return max(0, self.of(seed, position.epoch).total - position.batches)

    def batches(self, start: Position, seed: int) -> Iterator[tuple[int, InState, Position]]:
        """Yield the number, the seeds and the place after each batch from `start` on."""
        epoch, size = self.of(seed, start.epoch), self.batch_size
        for state in epoch.left(start.batches):
            count, end = int(epoch.assigned.counts[state]), int(epoch.ends[state])
            first = end - int(epoch.num_batches[state])
            for number in range(max(first, start.batches), end):
                begin = (number - first) * size
                seeds = InState(state, begin, min(begin + size, count))
                yield number, seeds, Position(start.epoch, number + 1)
