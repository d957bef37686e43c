"""The order of batches that are sampled ahead: window by window, so that neighbours share rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.caching.windows import distinct, overlaps, window_order, working_bytes
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.pipeline.batch import Batch
from gnnstore.sampling.row_space import RowSpace

Nodes: TypeAlias = Mapping[str, npt.NDArray[Any]]  # node ids of a batch by type


@dataclass(frozen=True)
class Windows:
    """Windows of an epoch's batches, and the rows by which batches are put in order in them."""

    size: int  # batches of a window; the last one of an epoch may have fewer
    space: RowSpace

    def reserve(self, num_threads: int, batch_nodes: int, phase: str) -> Reservation:
        """Return the memory of putting batches in order while they are sampled by threads."""
        id_bytes = id_dtype(self.space.num_rows - 1).itemsize
        # The nodes of a window's batches and their rows, the batch before, and those that wait.
        num_batches = 2 * self.size + 2 * num_threads + 1
        fixed = num_batches * batch_nodes * id_bytes
        fixed += working_bytes(self.space.num_rows, batch_nodes, id_bytes)
        return Reservation("batches of a window", fixed, phase=phase)


class WindowOrder:
    """The order of the batches of a superbatch, which become known one after the other.

    Batches come in the order of their numbers. They begin a window, and so does each epoch. Those
    in places that were handed out before, at the beginning, are left out.
    """

    def __init__(
        self,
        windows: Windows,
        batches: Sequence[Batch],
        last: tuple[int, Nodes] | None = None,
        *,
        # Is called with the new place of a batch, its nodes, and the nodes of the batch before.
        put: Callable[[int, Nodes, Nodes | None], object],
        drop: Callable[[int], object],  # with the place among all batches of one left out
        check: Callable[[], None],  # is called while batches are compared; what it raises ends it
    ) -> None:
        self._windows, self._batches = windows, batches
        self._put, self._drop, self._check = put, drop, check
        # In the order of places; a batch takes the position of its new place.
        self._positions = [batch.position for batch in batches]
        self._num_left_out = self._positions.count(None)
        self._window: list[Nodes] = []
        self._order: list[int] = []
        # The epoch and the nodes of the last batch, so far of the superbatch before: an iteration's
        # first batch has none before it.
        self.last = last

    @property
    def sampled(self) -> list[int]:
        """The places of the ordered batches among those that were sampled."""
        return self._order[self._num_left_out :]

    @property
    def batches(self) -> list[Batch]:
        """The batches of the windows that are known, in their order."""
        return [self._batches[place] for place in self.sampled]

    def add(self, nodes: Nodes) -> None:
        """Take the nodes of the next batch; with the last one of a window its order is known."""
        first, window = len(self._order), self._window
        window.append(nodes)
        end = first + len(window)
        is_last = end == len(self._batches)
        if len(window) < self._windows.size and not (
            is_last or self._batches[end].key.epoch != self._batches[first].key.epoch
        ):
            return
        self._window = []
        for i in self._order_of(window):
            place, sampled = len(self._order), first + i
            self._order.append(sampled)
            self._batches[sampled].position = self._positions[place]
            if place < self._num_left_out:
                self._drop(sampled)
                continue
            epoch, nodes = self._batches[sampled].key.epoch, window[i]
            before = None if self.last is None or self.last[0] != epoch else self.last[1]
            self.last = epoch, nodes
            self._put(place - self._num_left_out, nodes, before)

    def _order_of(self, window: list[Nodes]) -> list[int]:
        """Return the order of a window's batches."""
        if self._windows.size == 1:
            return [0]
        space = self._windows.space
        rows = [distinct(space.rows(each)) for each in window]
        return window_order(overlaps(rows, space.num_rows, self._check))
