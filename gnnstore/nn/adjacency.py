"""The adjacency of a batch as a sparse matrix, whose products have prepared backward passes.

PyG's layers that have `message_and_aggregate` call `torch.sparse.mm` on a matrix in CSR, instead of
gathering and scattering a row for each edge. For the backward pass torch transposes the matrix each
time; here the transposes come with the batch, so it is one more product of the same kind.

Indices are int32 in memory and in these products, and int64 wherever else they are taken out: what
layers without a fused form do with them, such as `gather` with an expanded index, is wrong for
int32 in torch 2.13, without an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeAlias

import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node, tree_map_only

from gnnstore import _core
from gnnstore.errors import UsageError
from gnnstore.formats.store.schema import EdgeType

_MAXIMA = ("max", "amax", "min", "amin")

_Function: TypeAlias = Callable[[Tensor], Tensor]


class Transpose:
    """The edges that a layer keeps, by source: m edges of n source nodes.

    Parameters
    ----------
    ptr : tensor of int32 or int64 [n + 1]
        The edges of source i are at ``ptr[i]`` to ``ptr[i + 1]``.
    index : tensor of int32 or int64 [m]
        Targets, for each source in the order of the edges.
    values : tensor [m], optional
        Weights, in the order of `index`; None: ones.
    """

    def __init__(self, ptr: Tensor, index: Tensor, values: Tensor | None = None) -> None:
        self._ptr, self._index, self.values = ptr, index, values

    @property
    def ptr(self) -> Tensor:
        """Bounds of the sources' edges, int64 [n + 1]."""
        return self._ptr.long()

    @property
    def index(self) -> Tensor:
        """Targets, int64 [m]."""
        return self._index.long()


class AdjT(Tensor):
    """The transposed adjacency of a batch, as PyG's `adj_t`: rows are targets, columns are sources.

    A `torch.sparse_csr` tensor of n targets, n sources and m edges, which layers of PyG take in
    place of `edge_index`. `torch.sparse.mm` of it uses the prepared transposes for gradients; any
    other function works as on a plain tensor in CSR. Columns are in the order of the edges, not
    sorted. Methods that move or copy tensors keep the class, and so does pickling.

    Parameters
    ----------
    crow : tensor of int32 or int64 [n + 1]
        The edges of target i are at ``crow[i]`` to ``crow[i + 1]``.
    col : tensor of int32 or int64 [m]
        Their sources, in the order of the batch's edges.
    values : tensor [m], optional
        Weights of the edges, which take no gradient. None: ones, made where they are needed.
    size : pair of int
        Targets and sources.
    transposes : sequence of Transpose
        The same edges by source: those that layer 0 keeps when the batch is trimmed, which are all;
        those that layer 1 keeps; and so on. Without any, gradients sort the edges each time.
    dtype : torch.dtype, optional
        Element type, by default the type of `values`, or float32.

    Attributes
    ----------
    transposes : tuple of Transpose

    Raises
    ------
    UsageError
        If `values` require a gradient.

    Examples
    --------
    >>> loader = gnnstore.NeighborLoader(store, [10, 10], "train", edge_format="csr")
    ...                                                            # doctest: +SKIP
    >>> for batch in loader:                                       # doctest: +SKIP
    ...     out = model(batch.x, batch.adj_t)[:batch.batch_size]
    """

    transposes: tuple[Transpose, ...]
    _crow: Tensor
    _col: Tensor
    _edge_values: Tensor | None
    # Values by element type, and columns as int64, once made; trimmed matrices share them.
    _made: dict[torch.dtype | str, Tensor]

    @staticmethod
    def __new__(
        cls,
        crow: Tensor,
        col: Tensor,
        values: Tensor | None = None,
        *,
        size: Sequence[int],
        dtype: torch.dtype | None = None,
        **_: Any,
    ) -> Self:
        """Make a wrapper, which has no memory of its own."""
        if values is not None and values.requires_grad:
            raise UsageError(
                "the values of an AdjT require a gradient, which its products do not compute; "
                'detach them, or train edge weights with edge_format="coo"'
            )
        if dtype is None:
            dtype = torch.float32 if values is None else values.dtype
        adj: Self = Tensor._make_wrapper_subclass(
            cls, tuple(size), dtype=dtype, layout=torch.sparse_csr, device=col.device
        )
        return adj

    def __init__(
        self,
        crow: Tensor,
        col: Tensor,
        values: Tensor | None = None,
        *,
        size: Sequence[int],  # noqa: ARG002 - for __new__
        transposes: Sequence[Transpose] = (),
        dtype: torch.dtype | None = None,  # noqa: ARG002
    ) -> None:
        self._crow, self._col, self._edge_values = crow, col, values
        self.transposes = tuple(transposes)
        self._made = {}

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]  # a wrapper has none of its own
        """`torch.sparse_csr`."""
        return torch.sparse_csr

    @property
    def num_edges(self) -> int:
        """Number of edges, m."""
        return len(self._col)

    def crow_indices(self) -> Tensor:
        """Return the bounds of the targets' edges, int64 [n + 1]."""
        return self._crow.long()

    def col_indices(self) -> Tensor:
        """Return the sources of the edges, int64 [m]."""
        return self._first_edges("columns", self._col.long)

    def values(self) -> Tensor:
        """Return the weights of the edges [m]; ones if there are none."""
        return self._weights_as(self.dtype)

    @property
    def has_values(self) -> bool:
        """Whether edges have weights."""
        return self._edge_values is not None

    def arrays(self) -> Iterator[Tensor]:
        """Yield the tensors that have the matrix's memory."""
        found = [self._crow, self._col, self._edge_values]
        for each in self.transposes:
            found += each._ptr, each._index, each.values
        yield from (array for array in found if array is not None)

    def narrowed(self, num_rows: int, num_columns: int, num_edges: int, layers_left: int) -> Self:
        """Return the matrix of the first edges; rows without any of these edges are empty."""
        transposes = self.transposes
        narrow = type(self)(
            self._crow[: num_rows + 1].clamp(max=num_edges),
            self._col[:num_edges],
            None if self._edge_values is None else self._edge_values[:num_edges],
            size=(num_rows, num_columns),
            transposes=transposes[max(0, len(transposes) - layers_left) :],
            dtype=self.dtype,
        )
        narrow._made = self._made
        return narrow

    def narrow(self, *_: Any, **__: Any) -> Tensor:
        """Refuse what PyG's `trim_to_layer` calls: torch cannot narrow a matrix in CSR."""
        raise UsageError(
            "an AdjT cannot be narrowed, as by PyG's trim_to_layer or by its models with "
            "num_sampled_nodes_per_hop; use gnnstore.nn.trim in a model of your own"
        )

    def _first_edges(self, what: torch.dtype | str, make: Callable[[], Tensor]) -> Tensor:
        """Return one number for each edge, made once for a matrix and what is trimmed of it."""
        known = self._made.get(what)
        if known is None or len(known) < self.num_edges:
            known = make()
            if not _is_transformed():  # there it would be a tensor of the transformation's
                self._made[what] = known
        return known[: self.num_edges]

    def _weights_as(self, dtype: torch.dtype) -> Tensor:
        def make() -> Tensor:
            if self._edge_values is None:
                return torch.ones(self.num_edges, dtype=dtype, device=self._col.device)
            return self._edge_values.to(dtype)

        return self._first_edges(dtype, make)

    def _forward_matrix(self, dtype: torch.dtype) -> _Matrix:
        return _Matrix(self._crow, self._col, self._weights_as(dtype), self.size(1))

    def _backward_matrix(self, dtype: torch.dtype, *, mean: bool) -> _Matrix:
        """Return the transpose; of means, each weight over the number of edges of its target."""
        transpose = self.transposes[0] if self.transposes else self._transposed()
        ptr, index, values = transpose._ptr, transpose._index, transpose.values
        weights = self._weights_as(dtype) if values is None else values.to(dtype)
        if mean:
            share = self._crow.diff().clamp(min=1).to(dtype).reciprocal().index_select(0, index)
            weights = share if values is None else weights * share
        return _Matrix(ptr, index, weights, self.size(0))

    def _transposed(self) -> Transpose:
        order = torch.argsort(self._col, stable=True)
        ptr = self._crow.new_zeros(self.size(1) + 1)
        ptr[1:] = torch.bincount(self._col, minlength=self.size(1)).cumsum(0)
        targets = torch.arange(self.size(0), dtype=self._crow.dtype, device=self._col.device)
        index = targets.repeat_interleave(self._crow.diff(), output_size=len(self._col))
        values = None if self._edge_values is None else self._edge_values[order]
        return Transpose(ptr, index[order], values)

    def _product(self, x: Tensor, reduce: str = "sum") -> Tensor:
        if reduce in _MAXIMA:
            if self.device.type != "cpu":
                raise UsageError(
                    f"torch has no sparse product on {self.device} that takes the {reduce}; make "
                    'the loader with edge_format="coo" for this aggregation'
                )
            with _not_transformed(f"the {reduce} over neighbours"):
                found: Tensor = torch.sparse.mm(self._forward_matrix(x.dtype).in_csr(), x, reduce)
                return found
        matrix, mean = self._forward_matrix(x.dtype), reduce == "mean"

        def apply(rows: Tensor) -> Tensor:
            return matrix.times(rows, reduce)

        def adjoint(rows: Tensor) -> Tensor:
            return self._backward_matrix(rows.dtype, mean=mean).times(rows, "sum")

        product: Tensor = _Linear.apply(x, apply, adjoint)  # type: ignore[no-untyped-call]
        return product

    def _plain(self) -> Tensor:
        """Return the matrix as a plain tensor in CSR, with indices of int64."""
        indices = self.crow_indices(), self.col_indices()
        return _Matrix(*indices, self.values(), self.size(1)).in_csr()

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch's: on this matrix a product, on a plain one all others."""
        kwargs = kwargs or {}
        if func in _OF_THE_TENSOR:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func is torch.sparse.mm and _is_product(*args):
            return args[0]._product(*args[1:], **kwargs)
        if func in _OF_EACH_ARRAY:
            return args[0].mapped(lambda array: func(array, *args[1:], **kwargs))
        return cls.__torch_dispatch__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's is untyped
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function on plain tensors in CSR."""
        with _not_transformed(getattr(func, "__name__", str(func))):
            args, kwargs = tree_map_only(AdjT, AdjT._plain, (args, kwargs or {}), _is_matrix)
            return func(*args, **kwargs)

    def mapped(
        self, function: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None
    ) -> Self:
        """Return the matrix of what a function makes of each array."""

        def apply(array: Tensor | None) -> Tensor | None:
            return None if array is None else function(array)

        transposes = [
            Transpose(function(each._ptr), function(each._index), apply(each.values))
            for each in self.transposes
        ]
        return type(self)(
            function(self._crow),
            function(self._col),
            apply(self._edge_values),
            size=self.size(),
            transposes=transposes,
            dtype=dtype or self.dtype,
        )

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """See `torch.Tensor.to`; an element type is for the values."""
        copy = kwargs.pop("copy", False)
        like = next((other for other in args if isinstance(other, Tensor)), None)
        if like is not None:
            args = (like.device, like.dtype, *args[1:])
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        is_there = device is None or self._is_on(device)
        if not copy and dtype in (None, self.dtype) and is_there:
            return self

        def moved(array: Tensor) -> Tensor:
            to = dtype if array.is_floating_point() else None
            return array.to(device, to, non_blocking=non_blocking, copy=copy)

        return self.mapped(moved, dtype)

    def _is_on(self, device: torch.device) -> bool:
        own = self.device
        if device.type != own.type:
            return False
        number = device.index
        if number is None and own.index is not None:
            number = getattr(torch, own.type).current_device()
        return own.type == "cpu" or number == own.index

    def cpu(self, *_: Any, **__: Any) -> Self:
        """See `torch.Tensor.cpu`."""
        return self.to("cpu")

    def cuda(
        self,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: Any = None,  # noqa: ARG002 - indices have none
    ) -> Self:
        """See `torch.Tensor.cuda`."""
        if isinstance(device, int):
            device = torch.device("cuda", device)
        return self.to("cuda" if device is None else device, non_blocking=non_blocking)

    def is_pinned(self, *args: Any) -> bool:
        """See `torch.Tensor.is_pinned`."""
        return self._col.is_pinned(*args)

    def record_stream(self, stream: Any) -> None:
        """See `torch.Tensor.record_stream`."""
        for array in self.arrays():
            array.record_stream(stream)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo[id(self)] = copied = self.mapped(torch.clone)
        return copied

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        options: dict[str, Any] = {
            "size": tuple(self.size()),
            "transposes": self.transposes,
            "dtype": self.dtype,
        }
        return (partial(type(self), **options), (self._crow, self._col, self._edge_values))

    def __repr__(self) -> str:  # type: ignore[override]
        rows, columns = self.size()
        return (
            f"AdjT(size=({rows}, {columns}), edges={self.num_edges}, "
            f"layers={len(self.transposes)}, device='{self.device}')"
        )


@dataclass(frozen=True, eq=False)
class _Matrix:
    """A matrix in CSR of a product."""

    ptr: Tensor
    index: Tensor
    weights: Tensor
    num_columns: int

    def in_csr(self) -> Tensor:
        size = (len(self.ptr) - 1, self.num_columns)
        return torch.sparse_csr_tensor(
            self.ptr, self.index, self.weights, size, check_invariants=False
        )

    def times(self, x: Tensor, reduce: str) -> Tensor:
        """Return the product, without gradients."""
        # As gathering and scattering, and unlike matrix products, not in a lower precision.
        with torch.autocast(x.device.type, enabled=False):
            if x.device.type == "cpu":  # this kernel is five times as fast as plain products
                product: Tensor = torch.sparse.mm(self.in_csr(), x.contiguous(), reduce)
                return product
            product = torch.sparse.mm(self.in_csr(), x.contiguous())
            if reduce == "mean":
                product /= self.ptr.diff().clamp(min=1).view(-1, 1)
            return product


class _Linear(torch.autograd.Function):
    """A linear function of each column, whose gradient is its adjoint."""

    @staticmethod
    def forward(x: Tensor, apply: _Function, adjoint: _Function) -> Tensor:  # noqa: ARG004
        return apply(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:  # noqa: ARG004
        _, *ctx.functions = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        apply, adjoint = ctx.functions
        return _Linear.apply(*grads, adjoint, apply), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return _Linear.apply(tangents[0], *ctx.functions)  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, apply: _Function, adjoint: _Function) -> Any:
        """Map over one dimension of x, which becomes more columns."""
        rows = x.movedim(in_dims[0], 1)
        product = _Linear.apply(rows.flatten(1), apply, adjoint)  # type: ignore[no-untyped-call]
        return product.unflatten(1, (info.batch_size, rows.size(2))), 1


def _is_transformed() -> bool:
    """Whether this runs inside a transformation of torch.func."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@contextmanager
def _not_transformed(what: str) -> Iterator[None]:
    """Say what to do where torch.func does not take a plain matrix."""
    try:
        yield
    except RuntimeError as error:
        if not _is_transformed():
            raise
        raise UsageError(
            f"{what} of an AdjT inside a transformation of torch.func ({error}): only sums and "
            'means over neighbours work there; make the loader with edge_format="coo"'
        ) from error


def _is_matrix(value: Any) -> bool:
    return isinstance(value, AdjT)


# Transformations of torch.func wrap tensors among the arguments, and would not find the arrays of a
# matrix in the wrapper. It takes no gradient and is not mapped over: to them it is a constant.
register_pytree_node(AdjT, lambda adj: ([], adj), lambda _, adj: adj)


# What the wrapper has itself.
_OF_THE_TENSOR = {
    Tensor.size,
    Tensor.dim,
    Tensor.is_floating_point,
    *(
        getattr(Tensor, name).__get__
        for name in ("shape", "ndim", "dtype", "device", "is_cuda", "requires_grad")
    ),
}


# What a matrix does as its arrays do, keeping its class.
_OF_EACH_ARRAY = {
    Tensor.clone,
    Tensor.detach,
    Tensor.pin_memory,
    Tensor.share_memory_,
}


def _is_product(adj: Any, x: Any = None, *_: Any) -> bool:
    """Whether a sparse product is one of this class's: by a dense matrix on the right."""
    return (
        isinstance(adj, AdjT)
        and isinstance(x, Tensor)
        and x.layout == torch.strided
        and x.is_floating_point()
        and x.dim() == 2
    )


# Torch warns once in a process that its CSR is in beta state: that is swallowed here.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _Matrix(torch.tensor([0]), torch.tensor([], dtype=torch.int64), torch.tensor([]), 0).in_csr()


def adjacency(
    edge_index: npt.NDArray[Any],
    num_nodes: tuple[int, int],
    hop_sources: Sequence[int] | None,
    hop_edges: Sequence[int] | None,
    values: Tensor | None,
    *,
    edge_type: EdgeType | None = None,
) -> AdjT:
    """Return edges of one type as a matrix of targets and sources, with its layers' transposes."""
    num_targets, num_sources = num_nodes
    layers = [(edge_index.shape[1], num_sources)]
    if hop_sources is not None and hop_edges is not None:
        # Each layer takes a hop less than the one before.
        layers += [
            (sum(hop_edges[:left]), sum(hop_sources[: left + 1]))
            for left in range(len(hop_edges) - 1, 0, -1)
        ]
    weights = None if values is None else values.numpy()
    try:
        crow, col, transposes = _core.edges_by_node(
            edge_index, num_targets, num_sources, layers, weights
        )
    except (ValueError, IndexError) as error:
        where = "" if edge_type is None else f", edges of {edge_type}"
        raise UsageError(
            f'edge_format="csr"{where}: {error}. Return sampler output whose edges are sorted '
            'by target and end at its nodes, or make the loader with edge_format="coo"'
        ) from error
    return AdjT(
        torch.from_numpy(crow),
        torch.from_numpy(col),
        values,
        size=(num_targets, num_sources),
        transposes=[
            Transpose(
                torch.from_numpy(ptr),
                torch.from_numpy(index),
                None if of_layer is None else torch.from_numpy(of_layer),
            )
            for ptr, index, of_layer in transposes
        ],
    )
