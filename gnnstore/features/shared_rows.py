"""Rows that another table has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from gnnstore._core import ReadCounts
from gnnstore.features.source import RowSource, RowSpec


@dataclass(frozen=True, eq=False)
class SharedRows(RowSource):
    """Rows of another table, in an order of its own."""

    table: RowSource
    rows: RowSource  # int32 or int64: the row of each in the other table

    @property
    def spec(self) -> RowSpec:
        """The rows of the other table, as many as there are here."""
        return replace(self.table.spec, num_rows=self.rows.num_rows)

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of `ids`."""
        places, counts = self.rows.gather(ids)
        return counts + self.table.read_rows(places, out)
