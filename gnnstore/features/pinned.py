"""Pinned rows of a planned cache: rows that most batches need, which stay whatever is planned.

The best plan would keep them anyway: on W, a quarter of the slots for the rows that sampling needs
most often changes misses by less than a thousandth. But they are most of what batches need, so that
without them traces and plans are less than half as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.features.static import SlotIndex


@dataclass(frozen=True, eq=False)
class PinnedRows:
    """The nodes whose rows are always cached, in slots behind those that are planned."""

    # int64 [H]: ascending; the row of ``nodes[k]`` is in slot ``first_slot + k``.
    nodes: npt.NDArray[np.int64]
    first_slot: int  # the number of slots that are planned
    _bits: npt.NDArray[np.uint64]
    _ranks: npt.NDArray[np.int32]

    @classmethod
    def of(cls, nodes: npt.NDArray[Any], num_nodes: int, first_slot: int) -> Self | None:
        """Index strictly ascending nodes of a graph of `num_nodes`; None if there are none."""
        if len(nodes) == 0:
            return None
        wide = nodes.astype(np.int64)
        return cls(wide, first_slot, *_core.index_nodes(wide, num_nodes))

    @staticmethod
    def bytes_for(num_nodes: int, num_pinned: int) -> int:
        """Return the bytes of the index of so many pinned nodes; 0 for none."""
        return SlotIndex.bytes_for(num_nodes, num_pinned) if num_pinned else 0

    @property
    def num_rows(self) -> int:
        """Number of pinned rows, H."""
        return len(self.nodes)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the index occupies."""
        return self.nodes.nbytes + self._bits.nbytes + self._ranks.nbytes

    def is_of(self, nodes: npt.NDArray[Any] | None) -> bool:
        """Whether these nodes are pinned, and no others."""
        return nodes is not None and np.array_equal(nodes, self.nodes)

    def drop(self, ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the ids (int32 or int64) that are not pinned, in their order: a new array."""
        return _core.drop_pinned(self._bits, ids)

    def add(
        self,
        ids: npt.NDArray[Any],
        slots: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return the plan of a batch from that of its unpinned ids."""
        return _core.add_pinned(
            self._bits, self._ranks, ids, slots, positions, first_slot=self.first_slot
        )
