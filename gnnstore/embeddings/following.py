"""A table that follows a loader: the partitions in memory, and the loader's state at a commit."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import MemoryBudget
from gnnstore.embeddings.opening import check_memory
from gnnstore.embeddings.rows import FLOAT_BYTES, TableRows
from gnnstore.errors import UsageError
from gnnstore.formats.partitions import PartitionsReader
from gnnstore.formats.table_directory import TableDirectory
from gnnstore.graph.store import GraphStore
from gnnstore.partitions.policy import Slots

Int64Array = npt.NDArray[np.int64]


class FollowingTable(torch.nn.Module):
    """A `ResidentTable`, without what users call."""

    def __init__(
        self,
        directory: TableDirectory,
        store: GraphStore,
        unit: PartitionsReader | None,
        memory: int | str | None,
    ) -> None:
        super().__init__()
        self._directory, self._manifest, self._store = directory, directory.manifest, store
        self._close = weakref.finalize(self, directory.close)
        self.path = directory.path
        MemoryBudget.of(memory)  # refuses a value that is not a size
        self._memory = memory
        self._rows = TableRows(directory, unit)
        self._buffer = self._rows.buffer
        # Whether all partitions are in memory: without partitions, or with a loader that has none.
        self._is_whole = unit is None
        self._is_reserved = False  # whether the loader reserves all partitions
        self._steps = self._committed_steps = directory.base.steps
        self._position = directory.base.position
        # State of the loader that trains, with the loader; then of one that may be evaluating.
        self._noted: tuple[Any, Mapping[str, Any]] | None = None
        self._pending: tuple[Any, Mapping[str, Any]] | None = None
        # The state that was entered last; and the one in which `load` was called.
        self._state = self._loaded_in = np.empty(0, np.int64)
        self._process = os.getpid()
        self.leaves: list[Tensor] = []
        self._given: list[tuple[Int64Array, Tensor]] = []  # these, with their places in memory

    def attach(self, unit_uuid: str) -> None:
        """Check that the table goes with a loader by partitions; see `ResidentTable`."""
        manifest = self._manifest
        if manifest.partitions is not None and unit_uuid != manifest.partitions_uuid:
            raise UsageError(
                f"{self.path}: the table is cut by the partitions {manifest.partitions!r} "
                f"({manifest.partitions_uuid}), and the loader goes through {unit_uuid}; give the "
                "loader the partitions of the table, or create a table of its partitions"
            )

    def reserve(self, slots: Slots | None) -> Reservation:
        """Return the memory with this many partitions at once; see `ResidentTable`."""
        manifest = self._manifest
        if slots is None or manifest.partitions is None:
            if self._memory is not None:
                self._check_budget()
            slots = Slots(manifest.num_partitions, 0)
        num_bytes = sum(slots) * manifest.slot_bytes
        return Reservation(f"embeddings of {self.path.name}", num_bytes + self._rows.place_bytes)

    def _check_budget(self) -> None:
        """Refuse all rows if they do not fit the table's own budget."""
        held_bytes = len(self._buffer.memory) * FLOAT_BYTES
        check_memory(self.path, self._manifest, self._memory, held_bytes)

    def enter(self, state: Int64Array | None, slots: Slots | None) -> bool:
        """Load the partitions of a state; see `ResidentTable`."""
        self._check_usable()
        self._is_whole = self._is_reserved = state is None or self._manifest.partitions is None
        if state is None or slots is None or self._is_whole:
            return False  # all are read when rows are needed
        state, num_slots = np.sort(state), max(len(state), slots[0]) + slots[1]
        if np.array_equal(state, self._loaded_in):
            return False
        self._loaded_in = np.empty(0, np.int64)
        self._state = state
        is_there = np.array_equal(state, self._buffer.resident())
        if is_there and self._buffer.num_slots <= num_slots:
            return False
        self._check_stepped()
        self._rows.enter(state, num_slots)
        return True

    def _check_stepped(self) -> None:
        """Forget rows that were given out, since their places in memory change."""
        waiting = sum(leaf.grad is not None for leaf in self.leaves)
        if waiting:
            raise UsageError(
                f"{self.path}: the loader goes on to other partitions, and gradients of {waiting} "
                "calls of the table wait for a step, which must be made while their rows are in "
                "memory: call step() before the next batch, or zero_grad() to drop them; "
                "accumulate gradients within a state only"
            )
        self._forget()

    def _forget(self) -> None:
        """Forget rows that were given out, and refuse their gradients from now on."""
        self._refuse(self.leaves)
        self._given.clear()
        self.leaves.clear()

    def _refuse(self, leaves: Iterable[Tensor]) -> None:
        for leaf in leaves:  # a loss may still be computed from these
            leaf.register_hook(self._refuse_late)

    def _refuse_late(self, _: Tensor) -> NoReturn:
        raise UsageError(
            f"{self.path}: backward() of rows that a step was made with, or whose partitions have "
            "left memory; compute all gradients of a batch before step() and the next batch, or "
            "call the table again"
        )

    def expect(self, state: Int64Array) -> None:
        """Begin to read the next state; see `ResidentTable`."""
        if not self._is_whole:
            self._buffer.expect(np.asarray(state, np.int64))

    def leave(self, loader: object) -> None:
        """End an iteration; see `ResidentTable`."""
        if self._pending is not None and self._pending[0]() is loader:
            self._pending = None
        self._is_reserved = False
        self._buffer.cancel()

    def position(self) -> dict[str, Any] | None:
        """Return the loader's state at the table's commit, or None."""
        return None if self._position is None else dict(self._position)

    def note_position(self, loader: object, state_dict: dict[str, Any]) -> None:
        """Take a loader's state, for the next commit; see `ResidentTable`."""
        found = weakref.ref(loader), state_dict
        if self._noted is not None and self._noted[0]() is loader:
            self._noted, self._pending = found, None
        else:
            self._pending = found

    def _check_usable(self) -> None:
        if not self._close.alive:
            raise UsageError(
                f"{self.path}: the table was closed; open it again with EmbeddingTable.open"
            )
        if os.getpid() != self._process:
            raise UsageError(
                f"{self.path}: the table is open in process {self._process}, and this is a forked "
                "process, whose changes would be lost; use the table in the training loop, not in "
                "workers of a DataLoader"
            )


def as_json(position: Mapping[str, Any]) -> dict[str, Any]:
    """Return a loader's state as the plain values of JSON."""
    try:
        if not isinstance(position, Mapping):
            raise TypeError(f"a {type(position).__name__} is not a state of a loader")
        plain: dict[str, Any] = json.loads(json.dumps(position, allow_nan=False, default=_as_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"position: {error}; give what loader.state_dict() returns: values that JSON can hold"
        ) from None
    return plain


def _as_plain(value: Any) -> Any:
    """Return the plain form of values in a user's sampler state, to be compared."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")
