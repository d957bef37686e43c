"""Rows that need not come from the host's memory, since a device has them.

A device holds the rows of chosen nodes for as long as loaders use them, and for a while the rows
of the batch before. What is left of a batch are its missed rows: they alone are planned, cached,
packed and read. Here are numbers only; the rows lie on the device, and are joined there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.scores import num_that_fit, select_nodes
from gnnstore.features.static import SlotIndex
from gnnstore.features.tables import CachedTables
from gnnstore.sampling.row_space import RowSpace
from gnnstore.units import format_size

if TYPE_CHECKING:
    import torch

Int32s: TypeAlias = npt.NDArray[np.int32]
# Node ids by type, int32 or int64.
Nodes: TypeAlias = Mapping[str, npt.NDArray[Any]]

_NONE = np.empty(0, np.int32)


class Split(NamedTuple):
    """Where the rows of a batch's n nodes of one type come from.

    Each of the positions 0 to n - 1 is in one of `missed`, `hits` and `matched`, which ascend.
    """

    missed: Int32s  # [m]: gathered in the host's memory, and copied
    hits: Int32s = _NONE  # [h]: held on the device
    slots: Int32s = _NONE  # [h]: their places there
    matched: Int32s = _NONE  # [k]: among the kept rows of the batch before
    places: Int32s = _NONE  # [k]: their places there

    @property
    def is_whole(self) -> bool:
        """Whether all rows are missed."""
        return not (len(self.hits) or len(self.matched))

    @property
    def num_rows(self) -> int:
        """The nodes of the batch."""
        return len(self.missed) + len(self.hits) + len(self.matched)

    @property
    def kept(self) -> Int32s:
        """The positions of the rows that the batch after it may match, as they are kept."""
        return np.concatenate([self.missed, self.matched])


@dataclass(frozen=True, eq=False)
class HeldRows:
    """The nodes with rows on a device, by type; with all tables of the type.

    Types that are not here have no rows on the device, and none are matched.
    """

    indexes: Mapping[str, SlotIndex | None]  # None: no node of the type is held

    @classmethod
    def from_nodes(
        cls, nodes: Mapping[str, npt.NDArray[np.int64]], num_nodes: Mapping[str, int]
    ) -> Self:
        """Hold some nodes of each type, which ascend strictly; there are `num_nodes` of it."""
        return cls(
            {
                name: SlotIndex.from_rows(own, num_nodes[name]) if len(own) else None
                for name, own in nodes.items()
            }
        )

    @property
    def nodes(self) -> dict[str, npt.NDArray[np.int64]]:
        """The held nodes of each type, ascending: the row of node s is in slot s."""
        none = np.empty(0, np.int64)
        return {name: none if own is None else own.nodes for name, own in self.indexes.items()}

    @property
    def num_rows(self) -> int:
        """The nodes that are held."""
        return sum(len(own) for own in self.nodes.values())

    @property
    def num_bytes(self) -> int:
        """Bytes of the host's memory, for the numbers of the rows."""
        return sum(own.num_bytes for own in self.indexes.values() if own is not None)

    def rows_in(self, space: RowSpace) -> npt.NDArray[np.int64]:
        """Return the held rows by their numbers in a row space, ascending."""
        parts = [
            own.first + index.nodes
            for name, own in space.ranges.items()
            if (index := self.indexes.get(name)) is not None
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def missed(self, nodes: Nodes, before: Nodes | None = None) -> dict[str, npt.NDArray[Any]]:
        """Return the nodes of a batch that are missed, of all types, in their order.

        Parameters
        ----------
        nodes : mapping
            The node ids of a batch by type, repeated or not.
        before : mapping, optional
            The nodes of the kept rows of the batch before; see `kept`.
        """
        found = dict(nodes)
        for name, index in self.indexes.items():
            if (ids := found.get(name)) is None:
                continue
            if index is not None:
                ids = _core.drop_pinned(index.bits, ids)
            if before is not None and name in before:
                ids = ids[_core.places_of(ids, before[name]) < 0]
            found[name] = ids
        return found

    def split(
        self,
        nodes: Nodes,
        before: Nodes | None = None,
        num_filled: Mapping[str, int] | None = None,
    ) -> dict[str, Split]:
        """Return where the rows of a batch come from, by type.

        Parameters
        ----------
        nodes, before
            As in `missed`.
        num_filled : mapping, optional
            The number of slots of each type, from the first on, whose rows are there; others are
            missed. By default all are there.
        """
        found = {}
        for name, index in self.indexes.items():
            if (ids := nodes.get(name)) is None:
                continue
            hits, slots, left = _NONE, _NONE, None
            if index is not None:
                of = index.slots(ids)
                if num_filled is not None and num_filled[name] < len(index.nodes):
                    of[of >= num_filled[name]] = -1
                left, hits = _where(of < 0), _where(of >= 0)
                slots = of[hits]
            if left is None:
                left = np.arange(len(ids), dtype=np.int32)
            matched, places = _NONE, _NONE
            if before is not None and name in before:
                of = _core.places_of(ids[left], before[name])
                (at,) = np.nonzero(of >= 0)
                matched, places, left = left[at], of[at], left[of < 0]
            found[name] = Split(left, hits, slots, matched, places)
        return found


@dataclass(eq=False)
class ChosenRows:
    """The rows that stay on a device, of some tables; loaders share them.

    With `device_cache="auto"` there are none until a step of training has been done. Choices that
    are for one device in the end, which had other names before, become one.
    """

    held: HeldRows
    tables: CachedTables
    num_bytes: int  # that they take on the device
    batch_bytes: int  # of the largest batch that is to be expected there
    # Scores of the rows of `tables.space`, to choose by once the bytes are known; None: they are.
    scores: npt.NDArray[Any] | None = None
    # The rows that superbatches are made without: they are on the device, or will be by then.
    left_out: HeldRows | None = None
    device: torch.device | None = None  # the device that "auto" measures, once it is used

    def __deepcopy__(self, _: Any) -> Self:
        return self  # what a device holds is by it

    @classmethod
    def best(
        cls, scores: npt.NDArray[Any], tables: CachedTables, num_bytes: int, batch_bytes: int = 0
    ) -> Self:
        """Choose the rows with the highest scores that fit in a number of bytes."""
        space, widths = tables.space, tables.widths
        nodes = select_nodes(scores, num_that_fit(scores, widths, num_bytes))
        held = HeldRows.from_nodes(
            {
                name: space.ranges[name].part(nodes)[1]
                for name in dict.fromkeys(tables.owners.values())
            },
            {name: own.num_rows for name, own in space.ranges.items()},
        )
        sizes = (widths[space.ranges[name]] * len(own) for name, own in held.nodes.items())
        return cls(held, tables, sum(sizes), batch_bytes, left_out=held if held.num_rows else None)

    @classmethod
    def none(cls, tables: CachedTables) -> Self:
        """Hold no rows of some tables, but perhaps the rows of the batch before."""
        return cls(HeldRows(dict.fromkeys(tables.owners.values())), tables, 0, 0)

    def become(self, other: Self) -> None:
        """Be another choice from now on, with all that changes in it."""
        self.__dict__ = other.__dict__

    def describe(self) -> str:
        """Return a phrase for the loader's reason."""
        if self.scores is not None:
            return "as many rows stay on the device as a step of training leaves room for"
        return f"{self.held.num_rows} rows stay on the device, in {format_size(self.num_bytes)}"


def kept(nodes: Nodes, splits: Mapping[str, Split]) -> dict[str, npt.NDArray[Any]]:
    """Return the nodes whose rows the batch after it may match, in the order of its kept rows."""
    return {name: nodes[name][split.kept] for name, split in splits.items()}


def _where(chosen: npt.NDArray[np.bool_]) -> Int32s:
    return np.flatnonzero(chosen).astype(np.int32)
