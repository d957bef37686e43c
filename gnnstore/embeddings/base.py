"""The protocol between a loader that goes through a graph by partitions, and tables that follow it.

All calls come from the thread that takes batches, between two batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation


@runtime_checkable
class ResidentTable(Protocol):
    """A table of rows by node, of which the partitions of a state are in memory."""

    def attach(self, unit_uuid: str | None, num_partitions: int, rows_per_partition: int) -> None:
        """Follow a loader.

        Parameters
        ----------
        unit_uuid : str or None
            The partitions that the loader goes through; None: it takes nodes from the whole graph.

        Raises
        ------
        UsageError
            If the table is of other partitions, or another loader uses it now.
        """
        ...

    def reserve(self, num_slots: int, num_spare: int) -> Reservation:
        """Return the memory that the table takes with so many partitions at once.

        Parameters
        ----------
        num_slots : int
            Partitions of a state.
        num_spare : int
            Further partitions, which are being read ahead or written behind.
        """
        ...

    def enter(self, state: npt.NDArray[np.int64]) -> None:
        """Have exactly the partitions of a state in memory, in ascending order.

        Those that leave are written behind if rows of them changed.

        Raises
        ------
        UsageError
            If gradients wait for a step of the optimizer.
        """
        ...

    def expect(self, state: npt.NDArray[np.int64]) -> None:
        """Begin to read the partitions of the next state, as far as there is room; do not wait."""
        ...

    def leave(self) -> None:
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

    def note_position(self, state_dict: dict[str, Any]) -> None:
        """Take the loader's state with the batch that was handed out last, for the next commit."""
        ...
