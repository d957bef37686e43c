"""The arrays of an open store: rows by number, texts, splits by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore.errors import BadIndexError, CorruptStoreError, NoSplitError, UsageError
from gnnstore.formats import AttributeSpec, StoreReader
from gnnstore.formats.store.schema import NodeTypeSpec, TextSpec
from gnnstore.graph.lazy import LazySource, LazyTensor, Rows, require_memory
from gnnstore.units import format_count

T = TypeVar("T")
S = TypeVar("S")

SPLIT_ALIASES = {"val": "valid", "validation": "valid", "training": "train", "testing": "test"}

# Tensors of one number a row, as labels and masks are, lie in memory up to this size.
_NARROW_BYTES, _PLAIN_BYTES = 8, 64 << 20


@dataclass(frozen=True)
class ArrayRows(LazySource):
    """Rows of an array of a store, along the axis that they had in its input."""

    reader: StoreReader
    spec: AttributeSpec
    axis: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reader, self.spec, self.axis)

    @property
    def name(self) -> str:  # type: ignore[override]
        """The array's path in the store."""
        return self.spec.path

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape with the rows along their axis."""
        rest = self.spec.shape[1:]
        return (*rest[: self.axis], *self.spec.shape[:1], *rest[self.axis :])

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """Type of the elements."""
        return getattr(torch, self.spec.dtype)  # type: ignore[no-any-return]

    def read(self) -> Tensor:
        """Return all values."""
        found = as_tensor(self.reader.read(self.spec), self.spec.dtype)
        return found.movedim(0, self.axis) if self.axis else found

    @cached_property
    def values(self) -> npt.NDArray[Any]:
        """All rows, read once and kept."""
        require_memory(self.name, self.spec.num_bytes)
        return self.reader.read(self.spec)

    @cached_property
    def _kept(self) -> Tensor:
        return kept_tensor(self.values, self.spec.dtype)

    @property
    def whole(self) -> Tensor:
        """All values, read once and kept. Do not write to it."""
        refuse_written(self._kept, self.name)
        return self._kept.movedim(0, self.axis)

    def check(self) -> None:
        """Refuse values that someone has written to."""
        if "_kept" in vars(self):
            refuse_written(self._kept, self.name)

    def take(self, rows: Rows) -> Tensor:
        """Return a copy of some rows; of a compressed array all are read, once."""
        if self.spec.layout != "paged":
            some = slice(rows.start, rows.stop, rows.step) if isinstance(rows, range) else rows
            return as_tensor(self.values[some].copy(), self.spec.dtype)
        array = self.reader.paged(self.spec)
        if isinstance(rows, range) and rows.step == 1 and len(rows) > 1:
            found = array.read_slice(rows.start, rows.stop)
            found = found if found.flags.writeable else found.copy()  # a mapping is read-only
        else:
            found = array.gather(np.asarray(rows, np.int64))
        return as_tensor(found, self.spec.dtype)


def stored(reader: StoreReader, spec: AttributeSpec) -> LazyTensor:
    """Return a stored array, rows first, as a tensor that is read when it is used."""
    return LazyTensor(ArrayRows(reader, spec))


def is_small(num_bytes: int) -> bool:
    """Whether labels or masks are handed out as tensors in memory."""
    return num_bytes <= _PLAIN_BYTES


def plain_if_small(source: ArrayRows) -> Tensor:
    """Return labels and masks of a usual size as a tensor in memory, read once; do not write."""
    is_narrow = source.spec.row_bytes <= _NARROW_BYTES
    return source.whole if is_narrow and is_small(source.num_bytes) else LazyTensor(source)


def kept_tensor(values: npt.NDArray[Any], dtype: str) -> Tensor:
    """Return a tensor of which torch counts the writes."""
    with torch.inference_mode(mode=False):
        return as_tensor(values, dtype)


def refuse_written(
    tensor: Tensor,
    name: str,
    remedy: str = "open the store again, and change a copy, as in y = store.y.clone()",
) -> None:
    """Refuse a tensor that someone has written to in place, which no batch would show."""
    if tensor._version:
        raise UsageError(f"{name}: it cannot be written to, but was, in place; {remedy}")


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


def check_nodes(
    reader: StoreReader, spec: AttributeSpec, ids: npt.NDArray[Any], num_nodes: int
) -> None:
    """Refuse what a split has stored if it is no list of node ids."""
    is_list = ids.ndim == 1 and ids.dtype.kind in "iu"
    if not is_list or (ids.size and not 0 <= ids.min() <= ids.max() < num_nodes):
        path = reader.path / spec.path
        raise CorruptStoreError(
            f"{path}: the split is no list of node ids below {num_nodes}; run 'gnnstore verify' on "
            "the store, and convert again",
            path=path,
        )


class ByName(Mapping[str, T], Generic[T, S]):
    """What a store has of some specs, by name; "val" finds "valid"."""

    def __init__(self, reader: StoreReader, specs: Mapping[str, S]) -> None:
        self._reader, self._specs = reader, specs

    def find(self, name: str) -> S | None:
        """Return the spec of a name; None if there is none."""
        return self._specs.get(name) or self._specs.get(SPLIT_ALIASES.get(name, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


class Splits(ByName[Tensor, AttributeSpec]):
    """Node ids by split name, int64; "val" finds "valid"."""

    def __init__(self, reader: StoreReader, node: NodeTypeSpec) -> None:
        super().__init__(reader, node.splits)
        self._attributes = node.attributes
        self._num_nodes = node.num_nodes

    def __getitem__(self, name: str) -> Tensor:
        """Return the ids of a split."""
        spec = self.find(name)
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
        check_nodes(self._reader, spec, ids, self._num_nodes)
        return torch.from_numpy(ids.astype(np.int64, copy=False))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {spec.num_rows}" for name, spec in self._specs.items())
        return f"Splits({sizes})"
