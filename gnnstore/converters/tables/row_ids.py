"""Ids of nodes that a table lists, as the numbers of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.memory import memory_ledger
from gnnstore.errors import InputError

_BYTES = 32  # of an id: itself, its row, and both while they are sorted


class RowIds:
    """Numbers of nodes by their integer ids: node i is that of row i of a table."""

    def __init__(self, column: ArraySource, memory_bytes: int | None = None) -> None:
        if len(column.shape) != 1 or column.dtype.kind not in "iu":
            raise InputError(
                f"{column.label}: has rows of {column.dtype} {list(column.shape[1:])}; ids of "
                "nodes are integers or names"
            )
        self.label, self.num_nodes = column.label, column.shape[0]
        ids = Reservation(f"{self.num_nodes} ids and their rows", _BYTES * self.num_nodes)
        memory_ledger("numbering the nodes of a table", memory_bytes).add(ids).check(
            None, "number the nodes from 0 in the order of the table"
        )
        found = column.read()
        if len(found) and found.max() > np.iinfo(np.int64).max:
            raise InputError(f"{column.label}: the id {found.max()} is outside [-2^63, 2^63)")
        self.ids = found.astype(np.int64)  # of row i, shape [N]
        self._order = np.argsort(self.ids, kind="stable")
        self._sorted = self.ids[self._order]
        same = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if len(same):
            raise InputError(
                f"{column.label}: the id {self._sorted[same[0]]} is in rows "
                f"{self._order[same[0]]} and {self._order[same[0] + 1]}; each node has one row"
            )
        self.is_identity = bool(np.array_equal(self.ids, np.arange(self.num_nodes)))
        self.num_bytes = self.ids.nbytes + self._order.nbytes + self._sorted.nbytes

    def to_nodes(self, ids: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
        """Return the rows of ids, shape [k]."""
        wanted = ids.astype(np.int64)  # compared with unsigned numbers, they would be rounded
        places = np.searchsorted(self._sorted, wanted)
        is_unknown = (wanted < 0) != (ids < 0)
        if self.num_nodes:
            is_unknown |= self._sorted[np.minimum(places, self.num_nodes - 1)] != wanted
        else:
            is_unknown[:] = True
        if is_unknown.any():
            raise InputError(
                f"{where}: the id {ids[int(np.argmax(is_unknown))]} is not in {self.label}"
            )
        return self._order[places]
