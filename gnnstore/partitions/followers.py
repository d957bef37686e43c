"""The protocol between a loader that trains partition by partition and the tables that follow it.

All calls come from the thread that takes batches, between two batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation


class Slots(NamedTuple):
    """Memory for partitions."""

    num_resident: int  # partitions of a state
    num_spare: int  # further partitions, which are being read ahead or written behind


@runtime_checkable
class ResidentTable(Protocol):
    """A table of rows by node with the partitions of a state in memory."""

    def attach(self, unit_uuid: str) -> None:
        """Check that the table fits a loader by partitions; nothing changes."""

    def reserve(self, slots: Slots | None) -> Reservation:
        """Return the bytes of memory that the table takes with this many partitions at once."""

    def enter(self, state: npt.NDArray[np.int64] | None, slots: Slots | None) -> bool:
        """Load exactly the partitions of a state, in ascending order."""

    def expect(self, state: npt.NDArray[np.int64]) -> None:
        """Begin to read partitions of the next state into free slots; do not wait."""

    def leave(self, loader: object) -> None:
        """End an iteration, also by `break` or an exception: no thread is left, nothing is lost."""

    def position(self) -> dict[str, Any] | None:
        """Return the loader's state at the last commit, or None."""

    def check_position(self, state_dict: Mapping[str, Any]) -> None:
        """Compare the state that a loader resumes from with the commit's, if it has one."""

    def note_position(self, loader: object, state_dict: dict[str, Any]) -> None:
        """Take a loader's state with the batch that was handed out last, for the next commit."""
