"""The policy that chooses the partitions in memory, and the buffer that follows from it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

from gnnstore.errors import UsageError, as_plain, check_choice
from gnnstore.partitions.assignment import ASSIGNMENTS
from gnnstore.partitions.orders import (
    ORDERS,
    Schedule,
    dispersed,
    group_size,
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
    max_bias : float or None
        Largest Edge Permutation Bias to allow when `memory` decides.
    name : str, path-like or None
        Name of the partitions, if a store has several; or the path of their directory.

    Raises
    ------
    UsageError
        If a value is not allowed.

    Examples
    --------
    >>> PartitionPolicy("two-level", capacity=4)
    PartitionPolicy(kind='two-level', capacity=4)
    """

    kind: str = "two-level"
    capacity: int | float | None = None
    logical: int | Literal["auto"] = "auto"
    order: str = "beta"
    assignment: str = "random"
    memory: int | str | None = None
    max_bias: float | None = None
    name: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_choice("order", self.order, ORDERS)
        check_choice("assignment", self.assignment, ASSIGNMENTS)
        if not isinstance(self.name, str | os.PathLike | None) or self.name == "":
            raise UsageError(f"name={self.name!r}: expected a name of partitions, or their path")
        for option in ("capacity", "logical", "max_bias"):
            object.__setattr__(self, option, as_plain(getattr(self, option)))
        bias = self.max_bias
        if bias is not None and (not isinstance(bias, int | float) or not 0 <= bias <= 1):
            raise UsageError(f"max_bias={bias!r}: expected a number from 0 to 1")
        capacity, logical = self.capacity, self.logical
        if isinstance(capacity, float) and not 0 < capacity <= 1:
            raise UsageError(f"capacity={capacity}: a share of all partitions is above 0, up to 1")
        if isinstance(capacity, bool) or not isinstance(capacity, int | float | None):
            raise UsageError(f"capacity={capacity!r}: expected a number of partitions, or a share")
        if logical != "auto" and (isinstance(logical, bool) or not isinstance(logical, int)):
            raise UsageError(f"logical={logical!r}: expected a number of groups, or 'auto'")
        if self.kind == "sequential" and logical != "auto":
            raise UsageError(f"logical={logical}: kind='sequential' has no groups; leave it out")
        if capacity is None and logical != "auto":
            raise UsageError(f"logical={logical} without capacity=: give both, or neither")
        if capacity is not None and (self.memory is not None or self.max_bias is not None):
            raise UsageError(
                f"capacity={capacity} and memory= or max_bias=, which decide it: leave out one"
            )

    def __repr__(self) -> str:
        given = {
            name: getattr(self, name)
            for name, known in type(self).__dataclass_fields__.items()
            if name == "kind" or getattr(self, name) != known.default
        }
        return f"PartitionPolicy({', '.join(f'{n}={v!r}' for n, v in given.items())})"

    def shapes(
        self,
        num_partitions: int,
        *,
        num_train: int = 0,
        contents: Contents | None = None,
        memory_bytes: int | None = None,
        for_edges: bool = True,
    ) -> list[BufferShape]:
        """Return the shapes that the policy allows for a number of partitions, the best one first.

        Parameters
        ----------
        num_train : int
            Partitions that hold the training nodes; 0: all may hold some.
        contents : Contents, optional
            The arrays that the buffer holds; needed, with `memory_bytes`, if no capacity was given.
        for_edges : bool
            Whether edges are trained, so that every pair of partitions must meet.

        Raises
        ------
        UsageError
            If no shape is possible; names the nearest values that are.
        BudgetError
            If nothing fits the memory.
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
        if self.capacity is None:
            return self._within(num_partitions, num_train, contents, memory_bytes)
        return [self._of_capacity(num_partitions, num_train, self.capacity)]

    def _of_capacity(
        self, num_partitions: int, num_train: int, capacity: int | float
    ) -> BufferShape:
        if isinstance(capacity, float):
            capacity = self._nearest(num_partitions, capacity)
        shape = self._shape(num_partitions, capacity, self._groups(num_partitions, capacity))
        if self.kind == "sequential":
            shape = BufferShape(
                self.kind, "", "", num_partitions, capacity, num_partitions, num_train
            )
        shape.schedule(0, 0)  # refuses parameters that do not fit together
        return shape

    def _shape(self, num_partitions: int, capacity: int, num_groups: int) -> BufferShape:
        is_two_level = self.kind == "two-level"
        order, assignment = (self.order, self.assignment) if is_two_level else ("", "")
        return BufferShape(self.kind, order, assignment, num_partitions, capacity, num_groups)

    @property
    def _resident_groups(self) -> int:
        """Groups in memory if the number of groups is chosen."""
        return 2 if self.kind == "two-level" else 1

    def _groups(self, num_partitions: int, capacity: int) -> int:
        if self.kind == "sequential":
            return num_partitions
        if self.logical != "auto":
            group_size(num_partitions, capacity, self.logical)
            return self.logical
        if capacity == num_partitions:
            return 1
        if capacity not in self._capacities(num_partitions):
            near = _nearest(self._capacities(num_partitions), capacity)
            raise UsageError(
                f"capacity={capacity} of {num_partitions} partitions: kind={self.kind!r} holds "
                f"{self._resident_groups} of the groups that they are divided into; the nearest "
                f"that work are {' and '.join(map(str, near))}"
            )
        return self._resident_groups * num_partitions // capacity

    def _capacities(self, num_partitions: int) -> list[int]:
        """Return the capacities that work if the number of groups is chosen, ascending."""
        each = self._resident_groups
        sizes = [f for f in range(1, num_partitions // each + 1) if num_partitions % f == 0]
        found = {each * size for size in sizes if each * size <= num_partitions}
        return sorted(found | {num_partitions})

    def _nearest(self, num_partitions: int, share: float) -> int:
        """Return the largest capacity that works up to a share of partitions, else the smallest."""
        most = max(1, int(num_partitions * share + 1e-9))
        if self.kind == "sequential":
            return most
        if self.logical != "auto":
            size = max(1, num_partitions // self.logical)
            return max(self._resident_groups, most // size) * size
        allowed = self._capacities(num_partitions)
        return max([c for c in allowed if c <= most], default=allowed[0])

    def _within(
        self,
        num_partitions: int,
        num_train: int,
        contents: Contents | None,
        memory_bytes: int | None,
    ) -> list[BufferShape]:
        if contents is None or memory_bytes is None:
            raise UsageError(
                "PartitionPolicy: capacity is not given; give it, or memory= to decide it by"
            )
        if self.kind == "sequential":
            return [
                self._of_capacity(num_partitions, num_train, capacity)
                for capacity in range(num_partitions, num_train - 1, -1)
            ]
        found = sizes_of_partitions(
            contents,
            memory_bytes,
            num_partitions,
            order=self.order if self.kind == "two-level" else "dispersed",
            max_bias=self.max_bias,
        )
        return [self._shape(num_partitions, s.capacity, s.num_groups) for s in found]


def _nearest(allowed: list[int], wanted: int) -> list[int]:
    below, above = [c for c in allowed if c < wanted], [c for c in allowed if c > wanted]
    return below[-1:] + above[:1]
