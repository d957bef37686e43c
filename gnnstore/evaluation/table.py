"""A table of rows by node, read as tensors from memory or disk."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnstore.errors import InputError, NotFoundError, UsageError
from gnnstore.formats.container.regular_files import check_regular


class Table:
    """Rows by node: of a store, an array, a mapping, a tensor or a .npy file."""

    def __init__(self, table: Any) -> None:
        if isinstance(table, (str, os.PathLike)):
            path = Path(table)
            if not path.exists():
                raise NotFoundError(f"table: {path} does not exist", path=path)
            check_regular(path, InputError)
            try:
                table = np.load(path, mmap_mode="r", allow_pickle=False)
            except ValueError as error:
                raise InputError(f"table: {path} is no .npy array ({error})", path=path) from None
        self._table = table
        shape = tuple(getattr(table, "shape", ()))
        if len(shape) < 2:
            raise UsageError(
                f"table is a {type(table).__name__} of shape {list(shape)}; expected a row for "
                "each node, [N, ...]: an attribute of a store, an array, a tensor or a .npy file"
            )
        self.num_rows: int = shape[0]
        # Bytes of a row in memory.
        self.row_bytes: int = max(1, math.prod(shape[1:]) * table.dtype.itemsize)

    def __getitem__(self, rows: Any) -> Tensor:
        """Return the rows of a slice, or of an array of ids, in a few large reads each."""
        if isinstance(self._table, Tensor):
            return self._table[rows if isinstance(rows, slice) else torch.from_numpy(rows)]
        found = self._table[rows]
        return found if isinstance(found, Tensor) else torch.from_numpy(np.array(found))
