"""The order of an epoch, and where a loader is in it.

A loader asks its order for positions and nothing else: they may be shuffled, come from a user's
sampler, be this rank's share, or follow the partitions that lie in memory. An `EpochCursor` is
where the consumer is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol


class Position(NamedTuple):
    """A place between two batches of a run."""

    epoch: int  # number of the epoch
    batches: int = 0  # batches of it that were handed out
    # State from which the user's own sampler resumes; None without one.
    sampler: dict[str, Any] | None = None


class EpochOrder(Protocol):
    """Yields the batches of an epoch, as positions in what a loader starts from."""

    @property
    def name(self) -> str | None:
        """The name of a sampler that is not the loader's own; None for its own order."""

    @property
    def shuffles(self) -> bool:
        """Whether the loader draws the order itself, anew in each epoch."""

    @property
    def varies(self) -> bool:
        """Whether epochs differ in their number of batches, which depends on the seed then."""

    @property
    def is_keyed(self) -> bool:
        """Whether (seed, epoch) decides the batches, so that they are known before it begins."""

    def start(self) -> dict[str, Any] | None:
        """Return the state that a sampler needs to begin an epoch; None without one."""

    def check(self, position: Position, seed: int) -> None:
        """Refuse a position that is not in an epoch of this order."""

    def number(self, first: int, k: int) -> int:
        """Return the number in its epoch of the k-th batch after the first `first` ones."""

    def num_left(self, position: Position, seed: int | None) -> int:
        """Return the number of batches after a position; without a seed if none is drawn yet."""

    def batches(self, start: Position, seed: int) -> Iterator[tuple[int, Any, Position]]:
        """Yield the number, the positions [B] and the place after each batch from `start` on."""


class EpochCursor:
    """The position of a loader's consumer between two batches, without what was prepared beyond it.

    The newest iterator moves it; older ones that still run do not. At the end of an epoch it is
    before the first batch of the next one.
    """

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self.epoch = 0  # the next to begin
        self.loaded: Position | None = None  # what a loaded state asks for
        self.newest: Iteration | None = None

    def position(self, epoch: int) -> Position:
        """Return the present position; `epoch` is the next to begin."""
        if self.newest is not None and not self.newest.is_left:
            return self.newest.position
        return self._loaded_for(epoch) or self._first(epoch)

    def load(self, position: Position) -> None:
        """Let the next iteration begin here, if it is one of the same epoch."""
        self.loaded, self.newest = position, None

    def leave(self) -> None:
        """Move on to the next epoch, until the iteration that is under way gives a batch."""
        if self.newest is not None:
            self.newest.is_left = True

    def advance(self, epoch: int) -> None:
        """Move on to a later epoch, and with it an iteration that has not begun to give batches."""
        newest = self.newest
        if newest is None or newest.has_begun or newest.is_left:
            if epoch > self.epoch:
                self.epoch = epoch
                self.leave()
        elif epoch > newest.start.epoch:
            newest.start, newest.position = Position(epoch), self._first(epoch)
            self.epoch = epoch  # until it begins: another iteration may take its place

    def begin(self, epoch: int) -> Iteration:
        """Return the iteration of an epoch that begins now."""
        loaded, self.loaded = self._loaded_for(epoch), None
        start = loaded or Position(epoch)
        self.newest = Iteration(self, start, loaded or self._first(epoch))
        return self.newest

    def _loaded_for(self, epoch: int) -> Position | None:
        return self.loaded if self.loaded is not None and self.loaded.epoch == epoch else None

    def _first(self, epoch: int) -> Position:
        return Position(epoch, 0, self._order.start())


class Iteration:
    """One iteration over an epoch, or over what is left of it."""

    def __init__(self, cursor: EpochCursor, start: Position, position: Position) -> None:
        self.start = start  # where it begins
        self.position = position  # where the consumer is
        # Whether the loader has moved on to another epoch since the last batch.
        self.is_left = False
        self.has_begun = False  # to give batches
        self._cursor = cursor

    def begin(self) -> Position:
        """Return where it begins, which it does now."""
        self.has_begun, cursor = True, self._cursor
        if self is cursor.newest and not self.is_left:
            cursor.epoch = max(cursor.epoch, self.start.epoch + 1)
        return self.start

    def close(self) -> None:
        """Move to the next epoch."""
        if self is not self._cursor.newest:
            return
        self._cursor.newest, start = None, self.start
        if start.sampler is not None and start.batches and start.sampler.get("epoch_done"):
            # The sampler was neither asked for more, since nothing was left, nor given a position.
            self._cursor.loaded = Position(start.epoch + 1, 0, start.sampler)
