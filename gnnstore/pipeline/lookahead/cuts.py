"""Cuts the batches of iterations into the lists of which superbatches are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from gnnstore.pipeline.batch import Batch, EpochRun
from gnnstore.seeds.base import BatchKey


class BatchLists(Iterator[tuple[int, list[Batch]]]):
    """Lists of an iteration's batches, each with the number of its first batch in the iteration.

    Lists have `size` batches; the first one and the last one may have fewer. What came before an
    error is yielded before the error is raised.
    """

    def __init__(self, batches: Iterator[Batch], size: int) -> None:
        self._batches = batches
        self._size = size
        self._num_first = 0  # batches of the first list; 0: as many as of the others
        self._ready: list[Batch] = []  # taken, and not yet yielded
        self._num_yielded = 0
        self._is_exhausted = False
        self._error: Exception | None = None
        self.num_taken = 0  # lists

    @property
    def are_all_taken(self) -> bool:
        """Whether the last list has been taken."""
        return self._is_exhausted and not self._ready

    def begin_with(self, num_batches: int) -> None:
        """Give the first list another number of batches; 0: as many as the others have."""
        self._num_first = num_batches

    def begins_with(self, keys: Sequence[BatchKey]) -> bool:
        """Whether the next batches are these, in this order, and all are to be handed out."""
        self._fill(len(keys))
        coming = self._ready[: len(keys)]
        is_whole = all(batch.position is not None for batch in coming)
        return is_whole and [batch.key for batch in coming] == list(keys)

    def __next__(self) -> tuple[int, list[Batch]]:
        size, self._num_first = self._num_first or self._size, 0
        self._fill(size)
        chunk, self._ready = self._ready[:size], self._ready[size:]
        if chunk:
            self.num_taken += 1
            first, self._num_yielded = self._num_yielded, self._num_yielded + len(chunk)
            return first, chunk
        try:
            raise StopIteration if self._error is None else self._error
        finally:
            self._error = None  # else error, traceback and this hold each other

    def _fill(self, num_batches: int) -> None:
        """Take batches until so many are ready, or there are no more."""
        while len(self._ready) < num_batches and not self._is_exhausted:
            try:
                self._ready.append(next(self._batches))
            except StopIteration:
                self._is_exhausted = True
            except Exception as error:
                self._is_exhausted, self._error = True, error


def first_list(
    following: tuple[EpochRun, Iterator[Batch]] | None, size: int, most_runs: int
) -> list[tuple[EpochRun, list[Batch]]]:
    """Return the batches of a superbatch that begins with an iteration still to come, by iteration.

    These are its first `size` batches; or all of its batches, and all batches of each of the
    iterations after it, as long as they fit.
    """
    parts: list[tuple[EpochRun, list[Batch]]] = []
    room = size
    while following is not None and len(parts) < most_runs:
        run, batches = following
        found = list(islice(batches, room + 1))
        if not found or (parts and len(found) > room):
            break
        parts.append((run, found[:room]))
        if len(found) > room:
            break
        room -= len(found)
        following = run.following()
    return parts
