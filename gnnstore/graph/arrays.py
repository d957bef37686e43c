"""The arrays of an open store as they are indexed: attributes by row, texts, splits by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore.budget.ledger import OF_FREE_MEMORY, Ledger, Reservation
from gnnstore.budget.limits import available_bytes
from gnnstore.errors import (
    BadIndexError,
    CorruptStoreError,
    NoSplitError,
    limits_named,
)
from gnnstore.formats import AttributeSpec, StoreReader
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.store.schema import NodeTypeSpec, TextSpec
from gnnstore.graph.indexing import Selection, select
from gnnstore.units import format_count

SPLIT_ALIASES = {"val": "valid", "validation": "valid", "training": "train", "testing": "test"}

# Rows of which only parts are returned are read in pieces; larger reads check free memory first.
_PIECE_BYTES = 16 << 20


class Attribute:
    """An attribute of nodes or edges: its rows by id, indexed and iterated as a NumPy array.

    A compressed attribute is read whole on first use; of a paged one, only the rows asked for.

    Attributes
    ----------
    spec : AttributeSpec
        Name, element type, shape, layout.
    """

    def __init__(self, reader: StoreReader, spec: AttributeSpec) -> None:
        self.spec = spec
        self._reader = reader
        self._values: npt.NDArray[Any] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, rows first."""
        return self.spec.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.spec.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy type of what indexing returns: uint16 for bfloat16, which `spec.dtype` names."""
        return STORAGE_DTYPES[self.spec.dtype]

    def __len__(self) -> int:
        return self.spec.num_rows

    @limits_named("read rows")
    def __getitem__(self, key: Any) -> Any:
        """Return a copy of a part, indexed as in NumPy: `[ids]`, `[3]`, `[10:20, ::2]`."""
        selection = select(key, self.shape, self.spec.path)
        row_bytes = self.spec.row_bytes
        num_bytes = len(selection.rows) * row_bytes
        if num_bytes > _PIECE_BYTES and selection.is_by_row and not selection.is_whole:
            return self._by_pieces(selection, max(1, _PIECE_BYTES // row_bytes))
        self._require_memory(num_bytes)
        return selection.take(self._rows(selection.rows))

    def _by_pieces(self, selection: Selection, step: int) -> npt.NDArray[Any]:
        """Return a part of each of many rows, reading the rows a piece at a time."""
        count = len(selection.rows)
        out: npt.NDArray[Any] | None = None
        for first in range(0, count, step):
            piece = replace(selection, rows=selection.rows[first : first + step])
            part = piece.take(self._rows(piece.rows))
            if out is None:
                self._require_memory(part.nbytes // len(part) * count)
                out = np.empty((count, *part.shape[1:]), part.dtype)
                target = out[::-1] if selection.is_reversed else out
            target[first : first + len(part)] = part[::-1] if selection.is_reversed else part
        assert out is not None  # noqa: S101 - there are rows
        return out

    @limits_named("read rows")
    def _rows(self, rows: range | npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return a copy of some rows."""
        if self.spec.layout != "paged":
            values = self.values()
            return (
                values[rows.start : rows.stop].copy() if isinstance(rows, range) else values[rows]
            )
        array = self._reader.paged(self.spec)
        array.check_mapped_files()
        if not isinstance(rows, range) or len(rows) <= 1:
            return array.gather(rows)
        found = array.read_slice(rows.start, rows.stop)
        return found if found.flags.writeable else found.copy()  # a mapping is read-only

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows in order, with a piece of them in memory."""
        if not self.shape:
            raise TypeError(f"{self.spec.path}: a single value has no rows")
        step = max(1, _PIECE_BYTES // max(1, self.spec.row_bytes))
        for first in range(0, len(self), step):
            yield from self._rows(range(first, min(first + step, len(self))))

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Return all rows as a new array, for `np.asarray`."""
        if copy is False:
            raise ValueError(f"{self.spec.path}: its rows lie on disk, so reading them is a copy")
        return self.read().astype(self.dtype if dtype is None else dtype, copy=False)

    def tensor(self, ids: Any = None) -> Tensor:
        """Return rows as a torch tensor of the attribute's own type; all rows by default."""
        values = self.read() if ids is None else self[ids]
        return as_tensor(values, self.spec.dtype)

    @limits_named("read rows")
    def read(self) -> npt.NDArray[Any]:
        """Read all rows into memory: [rows, *row_shape], a new array.

        Raises
        ------
        BudgetError
            If they do not fit available memory.
        """
        self._require_memory(self.spec.num_bytes)
        return self._reader.read(self.spec)

    @limits_named("read rows")
    def values(self) -> npt.NDArray[Any]:
        """Return all rows of a compressed attribute; read once and kept. Do not write to it."""
        if self._values is None:
            self._require_memory(self.spec.num_bytes)
            self._values = self._reader.compressed(self.spec)
        return self._values

    def _require_memory(self, num_bytes: int) -> None:
        # Asking takes longer than reading a few rows does.
        if num_bytes > _PIECE_BYTES and num_bytes > (free := available_bytes()):
            memory = Ledger(free, (), f"reading {self.spec.path} at once", OF_FREE_MEMORY, "")
            memory.add(Reservation("rows", num_bytes)).check(
                None,
                "read some rows at a time, as in [ids] or by iterating",
                "load batches with gnnstore.NeighborLoader",
                "compute embeddings of all nodes with gnnstore.inference",
            )

    def __repr__(self) -> str:
        return f"Attribute({self.spec.name!r}, {self.spec.dtype}, shape={list(self.shape)})"


def as_tensor(values: npt.NDArray[Any], dtype: str) -> Tensor:
    """Return a tensor that shares memory with `values`; bits of bfloat16 become bfloat16."""
    tensor = torch.from_numpy(np.asarray(values))  # a single value is no array
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


class Texts(Sequence[str]):
    """Texts by number, read as they are asked for: `texts[3]`, `texts[10:20]`."""

    def __init__(self, reader: StoreReader, spec: TextSpec) -> None:
        self._letters = reader.paged(spec.bytes)
        self._offsets = reader.paged(spec.offsets)

    def __len__(self) -> int:
        return self._offsets.num_rows - 1

    @overload
    def __getitem__(self, key: int) -> str: ...

    @overload
    def __getitem__(self, key: slice) -> list[str]: ...

    def __getitem__(self, key: int | slice) -> str | list[str]:
        """Return a text, or a list of texts."""
        if isinstance(key, slice):
            return [self[i] for i in range(*key.indices(len(self)))]
        number = int(key)
        if not -len(self) <= number < len(self):
            raise BadIndexError(f"there is no text {number}; there are {len(self)}")
        number %= len(self)
        begin, end = self._offsets.read_slice(number, number + 2).tolist()
        if not 0 <= begin <= end <= self._letters.num_rows:
            raise CorruptStoreError(
                f"{self._offsets.spec.path}: text {number} goes from byte {begin} to {end} of "
                f"{self._letters.num_rows}; run gnnstore verify --level full"
            )
        return self._letters.read_slice(begin, end).tobytes().decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"Texts({len(self)})"


class Splits(Mapping[str, npt.NDArray[np.int64]]):
    """Node ids by split name; "val" finds "valid"."""

    def __init__(self, reader: StoreReader, node: NodeTypeSpec) -> None:
        self._reader = reader
        self._specs = node.splits
        self._attributes = node.attributes
        self._num_nodes = node.num_nodes

    def __getitem__(self, name: str) -> npt.NDArray[np.int64]:
        """Return the ids of a split."""
        spec = self._specs.get(name) or self._specs.get(SPLIT_ALIASES.get(name, name))
        if spec is None:
            problem = f"there is no split {name!r}; the store's splits: "
            problem += ", ".join(self._specs) or "none"
            mask = self._attributes.get(f"{name}_mask")
            if mask is not None and len(mask.shape) == 2:
                problem += (
                    f"; {mask.name} has {format_count(mask.shape[1], 'column')}: choose one, as in "
                    f"input_nodes=store.{mask.name}[:, 0]"
                )
            raise NoSplitError(f"{self._reader.path}: {problem}", path=self._reader.path)
        ids = self._reader.read(spec)
        is_list = ids.ndim == 1 and ids.dtype.kind in "iu"
        if not is_list or (ids.size and not 0 <= ids.min() <= ids.max() < self._num_nodes):
            raise CorruptStoreError(
                f"{self._reader.path / spec.path}: the split {name!r} is no list of node ids below "
                f"{self._num_nodes}; run 'gnnstore verify' on the store, and convert again",
                path=self._reader.path / spec.path,
            )
        return ids.astype(np.int64, copy=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {spec.num_rows}" for name, spec in self._specs.items())
        return f"Splits({sizes})"
