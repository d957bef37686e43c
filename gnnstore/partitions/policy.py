"""The policy that chooses the partitions in memory, and what tables are told of these."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.errors import UsageError, as_plain, check_choice
from gnnstore.partitions.orders import (
    ASSIGNMENTS,
    ORDERS,
    Schedule,
    dispersed,
    group_size,
    nearest,
    sequential,
    two_level,
)
from gnnstore.partitions.sizes import Contents, sizes_of_partitions

KINDS = ("two-level", "dispersed", "sequential")


@dataclass(frozen=True)
class BufferShape:
    """Partitions in memory and their order: the parameters that batches depend on."""

    kind: str  # as in `PartitionPolicy`
    order: str  # as in `PartitionPolicy`
    assignment: str  # as in `PartitionPolicy`
    num_partitions: int  # p
    capacity: int  # c: partitions in memory
    num_groups: int  # l: logical groups
    num_train: int = 0  # partitions that hold the training nodes, of "sequential"

    @property
    def num_spare(self) -> int:
        """Partitions that are read ahead while those of a state are trained."""
        if self.kind == "sequential" or self.capacity == self.num_partitions:
            return 0
        return self.num_partitions // self.num_groups

    def schedule(self, seed: int, epoch: int) -> Schedule:
        """Return the states of an epoch."""
        if self.kind == "sequential":
            args = (self.num_partitions, self.capacity, self.num_train)
            return sequential(*args, seed=seed, epoch=epoch)
        sizes = (self.num_partitions, self.capacity, self.num_groups)
        if self.kind == "dispersed":
            return dispersed(*sizes, seed=seed, epoch=epoch)
        return two_level(*sizes, order=self.order, seed=seed, epoch=epoch)

    def fingerprint(self) -> dict[str, Any]:
        """Return the parameters that batches depend on, as plain values by name."""
        found: dict[str, Any] = {
            "kind": self.kind,
            "num_partitions": self.num_partitions,
            "capacity": self.capacity,
        }
        if self.kind == "sequential":
            return found
        found["logical"] = self.num_groups
        if self.kind == "two-level":
            found |= {"order": self.order, "assignment": self.assignment}
        return found

    def describe(self) -> str:
        """Return a description of the buffer, for `stats().reason`."""
        groups = "" if self.kind == "sequential" else f" in {self.num_groups} logical groups"
        order = f", order {self.order!r}" if self.kind == "two-level" else ""
        return (
            f"{self.capacity} of {self.num_partitions} partitions in memory{groups}, "
            f"kind {self.kind!r}{order}"
        )


@dataclass(frozen=True)
class PartitionPolicy:
    """Trains on some partitions of a store at a time (MariusGNN); see `gnnstore partition`.

    Some partitions of the graph lie in memory at a time, and batches are sampled from these alone:
    unlike a strategy, a policy changes batches. Which partitions are together, and in which state
    an edge or a node is trained, is drawn anew in each epoch.

    Attributes
    ----------
    kind : "two-level", "dispersed" or "sequential"
        "two-level": all pairs of partitions meet, for training on edges. For training on nodes:
        "dispersed" reads each partition once an epoch; "sequential" holds the partitions of the
        training nodes, and others that change with the epoch (`gnnstore partition
        --train-first`).
    capacity : int, float or None
        Partitions in memory, or their share of all; None: as many as fit in `memory`.
    logical : int or "auto"
        Logical groups, of which one is replaced at a time; "auto": with `capacity`, the number with
        which `kind` holds the fewest groups in memory; else the number that suits the memory.
    order : "beta" or "even"
        Of "two-level": Marius' BETA, or paths on which all groups are in memory equally often.
    assignment : "random" or "greedy"
        Of "two-level": an edge is trained in any state that holds its ends, or in the first.
    memory : int, str or None
        Budget that decides `capacity`; by default the loader's. The capacity that it leads to is
        part of the loader's state.
    name : str, path-like or None
        Name of the partitions, if a store has several; or the path of their directory.

    Raises
    ------
    UsageError
        If a value is not allowed.

    Examples
    --------
    >>> policy = PartitionPolicy("two-level", capacity=4)
    """

    kind: str = "two-level"
    capacity: int | float | None = None
    logical: int | Literal["auto"] = "auto"
    order: str = "beta"
    assignment: str = "random"
    memory: int | str | None = None
    name: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_choice("order", self.order, ORDERS)
        check_choice("assignment", self.assignment, ASSIGNMENTS)
        if not isinstance(self.name, str | os.PathLike | None) or self.name == "":
            raise UsageError(f"name={self.name!r}: expected a name of partitions, or their path")
        for option in ("capacity", "logical"):
            object.__setattr__(self, option, as_plain(getattr(self, option)))
        capacity, logical = self.capacity, self.logical
        is_number = isinstance(capacity, int | None) and not isinstance(capacity, bool)
        if not is_number and not (isinstance(capacity, float) and 0 < capacity <= 1):
            raise UsageError(
                f"capacity={capacity!r}: expected a number of partitions, or a share of all, above "
                "0 and up to 1"
            )
        is_number = isinstance(logical, int) and not isinstance(logical, bool) and logical > 0
        if logical != "auto" and not is_number:
            raise UsageError(f"logical={logical!r}: expected a number of groups, or 'auto'")
        if self.kind == "sequential" and logical != "auto":
            raise UsageError(f"logical={logical}: kind='sequential' has no groups; leave it out")
        if capacity is None and logical != "auto":
            raise UsageError(f"logical={logical} without capacity=: give both, or neither")
        if capacity is not None and self.memory is not None:
            raise UsageError(
                f"capacity={capacity} and memory={self.memory!r}, which decides it: leave out one"
            )

    def shapes(
        self,
        num_partitions: int,
        *,
        for_edges: bool,
        num_train: int = 0,
        contents: Contents | None = None,
        memory_bytes: int | None = None,
    ) -> list[BufferShape]:
        """Return the shapes that the policy allows for a number of partitions, the best one first.

        `num_train` of these hold the training nodes; 0: all may hold some. With `for_edges` every
        pair of partitions must meet. `contents` and `memory_bytes` decide if no capacity was given.
        """
        if for_edges and self.kind != "two-level":
            raise UsageError(
                f"kind={self.kind!r}: not all pairs of partitions are in memory together in an "
                "epoch, so that edges between some would not be trained; use kind='two-level'"
            )
        if self.kind == "sequential" and num_train == 0:
            raise UsageError(
                "kind='sequential': training nodes lie in all partitions; partition the store "
                "with 'gnnstore partition --train-first', or use kind='dispersed'"
            )
        if self.capacity is not None:
            found = [self._of_capacity(num_partitions, self.capacity)]
        elif contents is None or memory_bytes is None:
            raise UsageError(
                "PartitionPolicy: capacity is not given; give it, or memory= to decide it by"
            )
        elif self.kind == "sequential":
            found = [(c, num_partitions) for c in range(num_partitions, num_train - 1, -1)]
        else:
            order = self.order if self.kind == "two-level" else self.kind
            sizes = sizes_of_partitions(contents, memory_bytes, num_partitions, order=order)
            found = [(each.capacity, each.num_groups) for each in sizes]
        shapes = [
            BufferShape(self.kind, self.order, self.assignment, num_partitions, *numbers, num_train)
            for numbers in found
        ]
        if self.capacity is not None:
            shapes[0].schedule(0, 0)  # refuses parameters that do not fit together
        return shapes

    def _of_capacity(self, num_partitions: int, capacity: int | float) -> tuple[int, int]:
        """Return the number of partitions in memory, and of groups of all partitions."""
        if self.kind == "sequential":
            is_share = isinstance(capacity, float)
            return _count(num_partitions, capacity) if is_share else int(capacity), num_partitions
        # Groups in memory if their number is chosen.
        each = 2 if self.kind == "two-level" else 1
        sizes = [size for size in range(1, num_partitions // each + 1) if not num_partitions % size]
        allowed = sorted({*(each * size for size in sizes), num_partitions})
        if isinstance(capacity, float):
            most = _count(num_partitions, capacity)
            if self.logical != "auto":
                size = max(1, num_partitions // self.logical)
                capacity = max(each, most // size) * size
            else:
                capacity = max([c for c in allowed if c <= most], default=allowed[0])
        if self.logical != "auto":
            group_size(num_partitions, capacity, self.logical)  # refuses what does not divide
            return capacity, self.logical
        if capacity not in allowed:
            raise UsageError(
                f"capacity={capacity} of {num_partitions} partitions: kind={self.kind!r} holds "
                f"{each} of the groups that they are divided into; the nearest that work are "
                f"{nearest(allowed, capacity)}"
            )
        return capacity, 1 if capacity == num_partitions else each * num_partitions // capacity


def _count(num_partitions: int, share: float) -> int:
    return max(1, int(num_partitions * share + 1e-9))


class Slots(NamedTuple):
    """Memory for partitions."""

    num_resident: int  # partitions of a state
    num_spare: int  # further partitions, which are being read ahead or written behind


@runtime_checkable
class ResidentTable(Protocol):
    """A table of rows by node with the partitions of a state in memory.

    All calls come from the thread that takes batches, between two batches.
    """

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

    def check_position(self, state_dict: Mapping[str, Any]) -> None:
        """Compare the state that a loader resumes from with the commit's, if it has one."""

    def note_position(self, loader: object, state_dict: dict[str, Any]) -> None:
        """Take a loader's state with the batch that was handed out last, for the next commit."""
