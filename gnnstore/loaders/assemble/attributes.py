"""Rows of attributes, as the tensors that a batch shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore._core import ReadCounts, empty

if TYPE_CHECKING:
    from gnnstore.features.source import Rows, RowSource, RowSpec
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.pipeline.batch import BatchCost


def hold_nothing(_: object) -> None:
    """Do nothing: nobody counts the arrays of this batch."""


@dataclass(frozen=True)
class AttributeRows:
    """One attribute of nodes or edges: the source of its rows, and their form as a tensor."""

    path: str
    rows: RowSource
    spec: RowSpec
    is_bfloat16: bool  # whether the values are the bits of bfloat16, which NumPy does not know
    cat_dim: int  # the row axis in the source data

    @classmethod
    def all_of(
        cls, specs: Mapping[str, AttributeSpec], tables: Mapping[str, RowSource]
    ) -> dict[str, AttributeRows]:
        """Return the attributes of nodes or edges by name; tables are by path."""
        return {
            name: cls(
                spec.path,
                tables[spec.path],
                tables[spec.path].spec,
                spec.dtype == "bfloat16",
                spec.cat_dim,
            )
            for name, spec in specs.items()
        }

    def gather(self, ids: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ReadCounts]:
        """Return the rows of some ids, and the reads that they cost."""
        out = empty((ids.size, *self.spec.shape), self.spec.dtype)
        return out, self.rows.read_rows(ids, out)


class Gathering:
    """The attributes of one batch: rows that its source provided, and others read by ids."""

    def __init__(
        self, rows: Mapping[str, Rows], hold: Callable[[npt.NDArray[Any]], None] = hold_nothing
    ) -> None:
        self._rows = rows
        self._hold = hold
        self._num_bytes, self._counts = 0, ReadCounts()

    def tensors(
        self, attributes: Mapping[str, AttributeRows], ids: npt.NDArray[Any]
    ) -> dict[str, Tensor]:
        """Return attributes by name, their rows in the order of the ids."""
        values: dict[str, Tensor] = {}
        for name, attribute in attributes.items():
            found, read = self._rows.get(attribute.path) or attribute.gather(ids)
            self._hold(found)
            tensor = torch.from_numpy(found)
            if attribute.is_bfloat16:
                tensor = tensor.view(torch.bfloat16)
            if attribute.cat_dim not in (0, -tensor.dim()):
                tensor = tensor.movedim(0, attribute.cat_dim).contiguous()
            values[name] = tensor
            self._num_bytes += tensor.nbytes
            self._counts += read
        return values

    def edge_ids(self, path: str, source: RowSource | None, positions: Tensor) -> Tensor:
        """Return the ids of edges at some positions, int64; without a source, the positions."""
        known = self._rows.get(path)
        if known is None and source is None:
            found = positions.to(torch.int64)
        else:
            ids = (known or source.gather(positions.numpy())).values  # type: ignore[union-attr]
            if ids.dtype != np.int64:
                wide = empty(ids.shape, np.int64)
                np.copyto(wide, ids)
                ids = wide
            found = torch.from_numpy(ids)
        self._num_bytes += found.nbytes
        return found

    def note(self, cost: BatchCost) -> None:
        """Note what gathering took."""
        cost.bytes_gathered, cost.counts = self._num_bytes, self._counts
