"""A tensor whose values lie on disk: what `store.x`, `store.features`, `store.edge_index` are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from gnnstore.budget.ledger import OF_FREE_MEMORY, Ledger, Reservation
from gnnstore.budget.limits import available_bytes
from gnnstore.errors import BadIndexError, GnnstoreError, UsageError, limits_named
from gnnstore.units import format_count, format_size

if TYPE_CHECKING:
    from gnnstore.formats import AttributeSpec

Rows = range | npt.NDArray[np.int64]  # numbers of rows, none of them negative

# Bytes that are read without asking for free memory, which takes longer than reading a few rows.
_UNCHECKED_BYTES = 16 << 20
_aten = torch.ops.aten


class LazySource(ABC):
    """The place that the values of a `LazyTensor` are read from. Pickled with it."""

    name: str  # in messages
    shape: tuple[int, ...]  # of the tensor
    dtype: torch.dtype
    axis: int = 0  # the axis of the rows

    @abstractmethod
    def read(self) -> Tensor:
        """Return all values."""

    def take(self, rows: Rows) -> Tensor | None:  # noqa: ARG002
        """Return some rows, along the first axis; None where only all can be read."""
        return None

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes of all values as they are stored."""
        return self.num_bytes


class LazyTensor(Tensor):
    """A tensor on disk: its shape and type are known, and values are read when they are used.

    Indexing by rows reads these: `x[ids]`, `x[10:20]`, `x[mask]`. Every other operation of torch
    reads the whole tensor, each time anew: keep `tensor()` where it is used often. It cannot be
    written to, and pickles as its place. A module that keeps it, as `torch.nn.Embedding` and
    `torch.nn.Parameter` do, takes its values: `torch.nn.Parameter(store.x.tensor())`.

    Attributes
    ----------
    source : LazySource
        Reads the values.
    """

    source: LazySource
    # Operations come to `__torch_dispatch__` alone.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type[Self], source: LazySource) -> Self:
        """Return a tensor without memory of its own."""
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, source.shape, dtype=source.dtype, device=torch.device("cpu")
        )
        made.source = source
        return made  # type: ignore[no-any-return]

    @property
    def spec(self) -> AttributeSpec:
        """Name, element type, shape and layout of the stored array."""
        spec: AttributeSpec = self.source.spec  # type: ignore[attr-defined]
        return spec

    @limits_named("read rows")
    def tensor(self, ids: Any = None) -> Tensor:
        """Read rows; the whole tensor by default.

        Raises
        ------
        BudgetError
            If it does not fit available memory.
        """
        if ids is not None:
            return self[ids]
        require_memory(self.source.name, self.source.num_bytes)
        return self.source.read()

    def read(self) -> npt.NDArray[Any]:
        """Read the whole tensor into a NumPy array; bfloat16 as its bits, uint16.

        Raises
        ------
        BudgetError
            If it does not fit available memory.
        """
        found = self.tensor()
        return found.view(torch.uint16 if found.dtype == torch.bfloat16 else found.dtype).numpy()

    def __getitem__(self, key: Any) -> Tensor:
        """Return a part as a tensor in memory."""
        try:
            if isinstance(key, list | np.ndarray):
                ids = np.asarray(key)
                is_ids = ids.dtype.kind in "iu" or not ids.size
                key = torch.from_numpy(ids.astype(np.int64) if is_ids else ids)
            return super().__getitem__(key)
        except (IndexError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, GnnstoreError):
                raise
            raise BadIndexError(
                f"{self.source.name}: {error}; choose rows, as in [ids] or [10:20], and index these"
            ) from None

    @limits_named("read rows")
    def _rows(self, rows: Any) -> Tensor | None:
        """Return the rows of a range, or of a tensor of ids or booleans."""
        source, shape = self.source, None
        if isinstance(rows, Tensor):
            if rows.dtype not in _IDS and (rows.dtype != torch.bool or rows.dim() != 1):
                return None
            shape = rows.shape
            rows = _row_ids(rows, self.shape[source.axis], source.name)
        elif len(rows) == self.shape[source.axis]:
            return self.tensor()
        row_bytes = source.num_bytes // max(1, self.shape[source.axis])
        require_memory(source.name, len(rows) * row_bytes)
        found = source.take(rows)
        if found is None:
            return None
        if shape is not None and len(shape) != 1:
            return found.reshape(*shape, *found.shape[1:]) if not source.axis else None
        return found.movedim(0, source.axis)

    def _part(self, func: Any, args: Sequence[Any]) -> Tensor | None:
        """Return what an operation takes of the rows, without reading others; None: it does not."""
        if not self.dim():
            return None
        axis, length = self.source.axis, self.shape[self.source.axis]
        if func is _aten.index.Tensor:
            given = [(i, index) for i, index in enumerate(args[0]) if index is not None]
            return self._rows(given[0][1]) if len(given) == 1 and given[0][0] == axis else None
        if func not in _ALONG_AXIS or (args[0] if args else 0) % self.dim() != axis:
            return None
        if func is _aten.index_select.default:
            ids = args[1]  # torch's own errors for other types and, unlike indexing, negative ids
            is_plain = ids.dim() < 2 and ids.dtype in (torch.int32, torch.int64)
            return self._rows(ids.reshape(-1)) if is_plain and not (ids < 0).any() else None
        if func is _aten.slice.Tensor:
            return self._rows(range(length)[slice(*args[1:])])
        row = args[1] % length if -length <= args[1] < length else None  # None: torch's own error
        found = None if row is None else self._rows(range(row, row + 1))
        return None if found is None else found.select(axis, 0)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Apply an operation of torch to the values that it needs, which are read."""
        kwargs = kwargs or {}
        for at, argument in enumerate(func._schema.arguments):
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            if isinstance(value, LazyTensor) and getattr(argument.alias_info, "is_write", False):
                value._refuse_writes()
        first = args[0] if args else None
        if isinstance(first, LazyTensor) and (found := first._part(func, args[1:])) is not None:
            return found

        def read(value: Any) -> Any:
            return value.tensor() if isinstance(value, LazyTensor) else value

        return func(*tree_map(read, args), **tree_map(read, kwargs))

    def _refuse_writes(self) -> NoReturn:
        raise UsageError(
            f"{self.source.name}: it belongs to a store and cannot be written to; change a copy, "
            "as in x = store.x.tensor()"
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        """Refuse new values."""
        self._refuse_writes()

    # What torch would do to memory, of which there is none.

    def numpy(self, *, force: bool = False) -> npt.NDArray[Any]:
        """Read the whole tensor into a NumPy array."""
        return self.tensor().numpy(force=force)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError(f"{self.source.name}: it lies on disk, so reading it is a copy")
        return np.asarray(self.numpy(), dtype)

    def tolist(self) -> Any:
        """Return all values as Python's numbers."""
        return self.tensor().tolist()

    def share_memory_(self) -> Self:
        """Return it: other processes read the values themselves."""
        return self

    def untyped_storage(self) -> torch.UntypedStorage:
        """Return an empty storage."""
        return torch.UntypedStorage(0)

    def _typed_storage(self) -> torch.TypedStorage:
        return torch.empty(0, dtype=self.dtype)._typed_storage()  # type: ignore[no-any-return]

    storage = _typed_storage

    def data_ptr(self) -> int:
        """Refuse: no memory holds the values."""
        raise UsageError(f"{self.source.name}: it lies on disk; use the memory of store.x.tensor()")

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tensor().__dlpack__(*args, **kwargs)

    def __deepcopy__(self, _: Any) -> Self:
        return type(self)(self.source)

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        return LazyTensor, (self.source,)

    def __repr__(self) -> str:  # type: ignore[override]
        source, dtype = self.source, str(self.dtype).removeprefix("torch.")
        size = format_size(source.stored_bytes)
        return f"{type(self).__name__}({source.name}: {dtype} {list(self.shape)}, {size} on disk)"


_IDS = (torch.int8, torch.int16, torch.int32, torch.int64)  # types of ids; uint8 is a mask
_ALONG_AXIS = (_aten.index_select.default, _aten.slice.Tensor, _aten.select.int)


def _row_ids(given: Tensor, num_rows: int, name: str) -> npt.NDArray[np.int64]:
    """Return ids, or the places of what is true in a mask, checked and not negative."""
    if given.dtype == torch.bool:
        if len(given) != num_rows:
            raise BadIndexError(
                f"{name}: the mask has {format_count(len(given), 'entry')} for "
                f"{format_count(num_rows, 'row')}"
            )
        return given.cpu().nonzero().view(-1).numpy()
    ids: npt.NDArray[np.int64] = given.detach().cpu().reshape(-1).to(torch.int64).numpy()
    if ids.size and (ids.min() < -num_rows or ids.max() >= num_rows):
        place = int(np.argmax((ids < -num_rows) | (ids >= num_rows)))
        raise BadIndexError(
            f"{name}: row id {ids[place]} at position {place} is outside [{-num_rows}, {num_rows})"
        )
    return np.where(ids < 0, ids + num_rows, ids) if ids.size and ids.min() < 0 else ids


def require_memory(name: str, num_bytes: int) -> None:
    """Refuse to read what available memory does not hold."""
    if num_bytes > _UNCHECKED_BYTES and num_bytes > (free := available_bytes()):
        memory = Ledger(free, (), f"reading {name} at once", OF_FREE_MEMORY, "")
        memory.add(Reservation("rows", num_bytes)).check(
            None,
            "read some rows at a time, as in [ids]",
            "load batches with gnnstore.NeighborLoader",
            "compute embeddings of all nodes with gnnstore.inference",
        )
