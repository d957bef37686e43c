"""The protocol between a loader that goes through a graph by partitions, and tables that follow it.

All calls come from the thread that takes batches, between two batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation


class Slots(NamedTuple):
    """Memory for partitions.

    Attributes
    ----------
    num_resident : int
        Partitions of a state.
    num_spare : int
        Further partitions, which are being read ahead or written behind.
    """

    num_resident: int
    num_spare: int


@runtime_checkable
class ResidentTable(Protocol):
    """A table of rows by node, of which the partitions of a state are in memory."""

    def attach(self, unit_uuid: str, num_partitions: int, rows_per_partition: int) -> None:
        """Check that the table goes with a loader by partitions; nothing changes.

        Parameters
        ----------
        unit_uuid : str
            The partitions that the loader goes through.

        Raises
        ------
        UsageError
            If the table is of other partitions.
        """
        ...

    def reserve(self, slots: Slots | None) -> Reservation:
        """Return the memory that the table takes with so many partitions at once; nothing changes.

        Parameters
        ----------
        slots : Slots or None
            None: all partitions, for a loader that takes nodes from the whole graph.

        Raises
        ------
        BudgetError
            If all are more than the table's own budget.
        """
        ...

    def enter(self, state: npt.NDArray[np.int64] | None, slots: Slots | None) -> bool:
        """Load exactly the partitions of a state, in ascending order.

        Partitions that leave are written in the background if rows of them changed. Loaders may
        take turns: each says before every batch what it needs.

        Parameters
        ----------
        state : ndarray of int64, or None
            None: all partitions, once rows are asked for.
        slots : Slots or None
            As the loader has reserved them.

        Returns
        -------
        bool
            Whether others were in memory.

        Raises
        ------
        UsageError
            If gradients wait for a step of the optimizer.
        """
        ...

    def expect(self, state: npt.NDArray[np.int64]) -> None:
        """Begin to read the partitions of the next state, as far as there is room; do not wait."""
        ...

    def leave(self, loader: object) -> None:
        """End an iteration, also by `break` or an exception: no thread is left, nothing is lost."""
        ...

    def position(self) -> dict[str, Any] | None:
        """Return the loader's state at the last commit, or None."""
        ...

    def check_position(self, state_dict: Mapping[str, Any]) -> None:
        """Compare the state that a loader is to go on from with that of the commit, if it has one.

        Raises
        ------
        UsageError
            If they differ: rows would miss batches, or learn some twice.
        """
        ...

    def note_position(self, loader: object, state_dict: dict[str, Any]) -> None:
        """Take a loader's state with the batch that was handed out last, for the next commit.

        It is that of training once rows are given out for training; from then on, the states of
        this loader are, until rows are given out with the batches of another.
        """
        ...
