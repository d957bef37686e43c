"""A tensor that is read when it is used: what `store.x` and `loader.data.edge_index` give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from gnnstore.units import format_size

# Operators, which Python looks for in the class.
_OPERATORS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv"),
    *("rtruediv", "floordiv", "mod", "pow", "matmul", "rmatmul", "and", "or", "xor", "invert"),
    *("neg", "bool", "iter", "int", "float"),
)


class LazyTensor:
    """A tensor on disk, whose shape and type are known and whose values are read when used.

    Indexing reads the rows asked for. Methods and operators of tensors, and functions of torch,
    read the whole tensor, each time anew: keep `tensor()` where it is used often.

    Parameters
    ----------
    store : object
        The object whose attribute this is. Pickling keeps it and the name, and no values.
    name : str
        Of the attribute.
    read : callable
        Returns the whole tensor. Raises a BudgetError if it does not fit available memory.
    select : callable, optional
        Returns a part by its index, without reading the whole.
    """

    def __init__(
        self,
        store: object,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        read: Callable[[], Tensor],
        *,
        select: Callable[[Any], Tensor] | None = None,
    ) -> None:
        self._store, self._name = store, name
        self._read, self._select = read, select
        self.shape, self.dtype = torch.Size(shape), dtype

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._store, self._name)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def device(self) -> torch.device:
        """The device that tensors are read to."""
        return torch.device("cpu")

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of elements."""
        return self.shape.numel()

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the length of an axis."""
        return self.shape if dim is None else self.shape[dim]

    def is_same(self, other: LazyTensor) -> bool:
        """Whether another one reads the same attribute of the same object."""
        return (self._store, self._name) == (other._store, other._name)

    def tensor(self) -> Tensor:
        """Read the whole tensor.

        Raises
        ------
        BudgetError
            If it does not fit available memory.
        """
        return self._read()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Tensor:
        return self.tensor()[key] if self._select is None else self._select(key)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError(f"{self._name}: it lies on disk, so reading it is a copy")
        return np.asarray(self.tensor().numpy(), dtype)

    def __getattr__(self, name: str) -> Any:
        """Return a method or attribute of the tensor, which is read for it."""
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.tensor(), name)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        _types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Apply a function of torch to the tensors that are read."""

        def read(value: Any) -> Any:
            return value.tensor() if isinstance(value, LazyTensor) else value

        return func(*tree_map(read, args), **tree_map(read, dict(kwargs or {})))

    def __repr__(self) -> str:
        size = format_size(self.numel() * self.dtype.itemsize)
        dtype = str(self.dtype).removeprefix("torch.")
        return f"LazyTensor({self._name}: {dtype} {list(self.shape)}, {size} on disk)"


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: LazyTensor, *others: Any) -> Any:
        values = [each.tensor() if isinstance(each, LazyTensor) else each for each in others]
        return getattr(self.tensor(), name)(*values)

    apply.__name__ = name
    return apply


for _name in _OPERATORS:
    setattr(LazyTensor, f"__{_name}__", _operator(f"__{_name}__"))
