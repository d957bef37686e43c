"""The position of a loader's consumer between two batches, whatever was prepared beyond it.

The newest iterator moves the cursor; older ones that still run do not. At the end of an epoch
it lies before the first batch of the next one.
"""

from __future__ import annotations

from gnnstore.pipeline.order.epoch import EpochOrder
from gnnstore.pipeline.order.state import Position


class EpochCursor:
    """The position of the next batch, and the position that a loaded state asks for."""

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self.epoch = 0  # the next to begin
        self._loaded: Position | None = None
        self._newest: Iteration | None = None

    def position(self, epoch: int) -> Position:
        """Return the present position; `epoch` is the next to begin."""
        if self._newest is not None and not self._newest.is_left:
            return self._newest.position
        return self._loaded_for(epoch) or self._first(epoch)

    def load(self, position: Position) -> None:
        """Let the next iteration begin here, if it is one of the same epoch."""
        self._loaded, self._newest = position, None

    def leave(self) -> None:
        """Move on to the next epoch, until the iteration that is under way gives a batch."""
        if self._newest is not None:
            self._newest.is_left = True

    def advance(self, epoch: int) -> None:
        """Move on to a later epoch, and with it an iteration that has not begun to give batches."""
        newest = self._newest
        if newest is None or newest.has_begun or newest.is_left:
            if epoch > self.epoch:
                self.epoch = epoch
                self.leave()
        elif epoch > newest.start.epoch:
            newest.start, newest.position = Position(epoch), self._first(epoch)
            self.epoch = epoch  # until it begins: another iteration may take its place

    def begun(self, iteration: Iteration) -> None:
        """Note that an iteration begins to give batches."""
        if iteration is self._newest and not iteration.is_left:
            self.epoch = max(self.epoch, iteration.start.epoch + 1)

    def begin(self, epoch: int) -> Iteration:
        """Return the iteration of an epoch that begins now."""
        loaded, self._loaded = self._loaded_for(epoch), None
        start = loaded or Position(epoch)
        self._newest = Iteration(self, start, loaded or self._first(epoch))
        return self._newest

    def ended(self, iteration: Iteration) -> None:
        """Note that an iteration has come to the end of its epoch."""
        if iteration is not self._newest:
            return
        self._newest = None
        start = iteration.start
        if start.sampler is not None and start.batches and start.sampler.get("epoch_done"):
            # The sampler was not asked for the nothing that was left, nor told where it is.
            self._loaded = Position(start.epoch + 1, 0, start.sampler)

    def _loaded_for(self, epoch: int) -> Position | None:
        return self._loaded if self._loaded is not None and self._loaded.epoch == epoch else None

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
        self.has_begun = True
        self._cursor.begun(self)
        return self.start

    def end(self) -> None:
        """Move to the next epoch."""
        self._cursor.ended(self)
