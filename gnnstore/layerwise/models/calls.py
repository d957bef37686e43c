"""Finds the call of a layer on a block that gives the result of the whole graph.

Convolutions differ in their arguments: pairs of rows or rows, lists of edges or sparse matrices. A
sparse matrix saves the copy of a row for each edge, which is most of the memory, so it is tried
first. A call must run, and must give on the blocks of a small graph the result of the layer on that
graph. A layer without such a call is not layer-wise.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from gnnstore.errors import UsageError, described
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.layerwise.models.block import Block
from gnnstore.layerwise.models.gcn import DegreeNorm, not_normalizing
from gnnstore.layerwise.models.layers import Layer
from gnnstore.layerwise.models.sums import Projection, projection_of, sums_rows

EDGE_DATA = ("edge_weight", "edge_attr")

# Results that differ by more than this differ by more than the order of sums.
_TOLERANCE = 1e-3
_CHECK_NODES, _CHECK_EDGES, _CHECK_BLOCKS = 40, 160, (0, 1, 14, 27, 40)
# Nodes without any edge.
_CHECK_ISOLATED = 5


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A layer, and the form in which it is called."""

    layer: Layer
    # "rows": without edges. "sparse pair", "sparse": with a matrix [D, n]. "pair", "single": with a
    # list of edges.
    form: str
    norm: DegreeNorm | None = None  # computes the edge weights for the layer
    takes: tuple[str, ...] = ()  # names of the edge data that it takes
    # Whether `x` may have rows that the block does not need: they cost nothing.
    sums: bool = False
    projection: Projection | None = None  # `x` has rows that it has mapped

    @property
    def needs_edges(self) -> bool:
        """Whether it uses neighbours."""
        return self.layer.conv is not None

    def as_sources(self, rows: Tensor) -> Tensor:
        """Return rows as the layer sums them."""
        return rows if self.projection is None else self.projection(rows)

    def __call__(self, block: Block) -> Tensor:
        """Return the rows of the block's targets, in memory of their own: [D, width]."""
        rows = self.layer.finish(self._convolve(block))
        if rows.dim() != 2 or len(rows) != block.num_targets:
            raise ValueError(f"it gives {list(rows.shape)} for {block.num_targets} nodes")
        # Written while the layer runs on the next block, so not in shared memory.
        return rows if is_alone(rows) else rows.clone()

    def _convolve(self, block: Block) -> Tensor:
        conv = self.layer.conv
        if conv is None:
            return block.x_dst
        data: dict[str, Any] = {name: block.edges[name] for name in self.takes}
        if self.norm is not None:
            block, weights = self.norm.apply(block)
            data = {"edge_weight": weights}
        x: Any = block.x
        if "pair" in self.form:
            x = (block.x, block.x_dst)
        mapped = nullcontext() if self.projection is None else self.projection.left_out(conv)
        with not_normalizing(conv, self.norm), mapped:
            if "sparse" in self.form:
                out = conv(x, _matrix(block, data.get("edge_weight")))
            else:
                out = conv(x, block.edge_index, **data)
        return _rows_of_targets(out, block)


def is_alone(rows: Tensor) -> bool:
    """Return whether no other tensor refers to the memory of this one."""
    return _num_users is not None and _users(rows) == _ALONE


def _users(rows: Tensor) -> int:
    assert _num_users is not None  # noqa: S101 - callers check this
    return int(_num_users(rows.untyped_storage()._cdata))


_num_users: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)
_ALONE = 0 if _num_users is None else _users(torch.empty(1))


def _matrix(block: Block, weights: Tensor | None) -> Tensor:
    """Return the edges as a sparse matrix [D, n]."""
    if weights is None:
        weights = torch.ones(len(block.sources), dtype=block.x.dtype, device=block.x.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            block.begins,
            block.sources,
            weights,
            (block.num_targets, len(block.x)),
            check_invariants=False,  # without it torch warns that it does not check them
        )


def _rows_of_targets(out: Any, block: Block) -> Tensor:
    if not isinstance(out, Tensor) or out.dim() != 2 or not out.shape[1]:
        found = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"it gives {found} instead of rows [n, width]")
    if len(out) not in (block.num_targets, len(block.x)):
        raise ValueError(f"it gives {len(out)} rows for {block.num_targets} nodes")
    # Not a view of a whole tensor: a result in memory of its own is written without a copy.
    return out if len(out) == block.num_targets else out[: block.num_targets]


@dataclass(frozen=True)
class RowKind:
    """The width, types and place of a layer's input."""

    width: int
    stored: str  # the type of rows as stored
    dtype: torch.dtype  # the type that the layer computes with
    device: torch.device
    # Width of the available edge data, by argument; 0 for a vector.
    edge_widths: Mapping[str, int]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in a block."""
        return self.width * self.dtype.itemsize

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """NumPy's type of a stored element; uint16 for bfloat16."""
        return STORAGE_DTYPES[self.stored]

    @property
    def stored_bytes(self) -> int:
        """Bytes of a row as stored."""
        return self.width * self.stored_dtype.itemsize

    @property
    def is_as_stored(self) -> bool:
        """Whether the layer computes with the type that is stored."""
        return self.stored == str(self.dtype).removeprefix("torch.")


def choose_call(layer: Layer, kind: RowKind) -> LayerCall:
    """Return a call of a layer that gives the right result on a small graph."""
    with torch.random.fork_rng(devices=[]):
        return _choose_call(layer, kind)


def _choose_call(layer: Layer, kind: RowKind) -> LayerCall:
    graph = _SmallGraph.draw(kind)
    takes = tuple(name for name in _edge_data_of(layer.conv) if name in kind.edge_widths)
    try:
        expected = layer.finish(graph.convolve(layer.conv, takes))
        expected = _rows_of_targets(expected, graph.block(0, graph.num_nodes))
    except Exception as error:
        missing = [name for name in _edge_data_of(layer.conv) if name not in takes]
        hint = f"; for its edge data, name an attribute: {missing[0]}=" if missing else ""
        raise UsageError(
            f"{layer.name} fails on rows of {kind.width} {_short(kind.dtype)} with edges between "
            f"{graph.num_nodes} nodes: {described(error)}{hint}"
        ) from error
    failures: list[str] = []
    for call in _candidates(layer, takes):
        if call.sums and kind.device.type != "cpu":
            continue  # kept rows are in the memory of the host
        try:
            found = graph.in_blocks(call)
        except Exception as error:  # any error: this form does not suit the layer
            failures.append(f"called with {call.form}: {described(error)}")
            continue
        if found.shape == expected.shape and torch.allclose(
            found, expected, _TOLERANCE, _atol(expected), equal_nan=True
        ):
            return call
        failures.append(f"called with {call.form}: other values")
    raise UsageError(
        f"{layer.name} is not layer-wise: on nodes with all their in-neighbours it computes "
        f"other values than on the whole graph ({'; '.join(failures)}). It may look further "
        "than one hop, use degrees or statistics of the whole graph, or be random. Split it into "
        "layers that look at in-neighbours once, or evaluate with a gnnstore.NeighborLoader"
    )


def _atol(expected: Tensor) -> float:
    finite = expected[expected.isfinite()].abs()
    return _TOLERANCE * float(finite.max()) if len(finite) else _TOLERANCE


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _candidates(layer: Layer, takes: tuple[str, ...]) -> Iterator[LayerCall]:
    conv = layer.conv
    if conv is None:
        yield LayerCall(layer, "rows")
        return
    if not isinstance(conv, MessagePassing):
        yield LayerCall(layer, "pair", takes=takes)
        return
    norm = DegreeNorm.of(conv, "edge_weight" if "edge_weight" in takes else None)
    projection = projection_of(conv)
    if norm is not None:
        if conv.fuse and (projection or sums_rows(conv)):
            yield LayerCall(layer, "sparse", norm, takes, True, projection)
        if conv.fuse:
            yield LayerCall(layer, "sparse", norm, takes)
        yield LayerCall(layer, "single", norm, takes)
        return
    if conv.fuse and not takes:
        if projection and sums_rows(conv):
            yield LayerCall(layer, "sparse pair", sums=True, projection=projection)
        if sums_rows(conv):
            yield LayerCall(layer, "sparse pair", sums=True)
        yield LayerCall(layer, "sparse pair")
        yield LayerCall(layer, "sparse")
    yield LayerCall(layer, "pair", takes=takes)
    yield LayerCall(layer, "single", takes=takes)


def _edge_data_of(conv: Callable[..., Tensor] | None) -> tuple[str, ...]:
    """Return the names of the edge data that a convolution takes."""
    if conv is None:
        return ()
    function = conv.forward if isinstance(conv, torch.nn.Module) else conv
    names = inspect.signature(function).parameters
    return tuple(name for name in EDGE_DATA if name in names)


@dataclass(frozen=True, eq=False)
class _SmallGraph:
    """A graph with self-loops, parallel edges and isolated nodes, and its blocks."""

    x: Tensor
    begins: Tensor
    sources: Tensor
    edges: Mapping[str, Tensor]

    @classmethod
    def draw(cls, kind: RowKind) -> _SmallGraph:
        generator = torch.Generator().manual_seed(0)
        last = _CHECK_NODES - _CHECK_ISOLATED
        ends = torch.randint(0, last, (2, _CHECK_EDGES), generator=generator)
        # Not several self-loops at a node: convolutions may keep any of their weights.
        ends[1] = torch.where(ends[0] == ends[1], (ends[1] + 1) % last, ends[1])
        ends[:, :4] = torch.arange(4)  # self-loops
        ends[:, 4:8] = ends[:, 8:12]  # parallel edges
        order = torch.from_numpy(np.lexsort(ends.numpy()))
        sources, targets = ends[:, order]
        begins = torch.searchsorted(targets.contiguous(), torch.arange(_CHECK_NODES + 1))
        x = torch.randn(_CHECK_NODES, kind.width, generator=generator)
        edges = {}
        for name, width in kind.edge_widths.items():
            shape = (_CHECK_EDGES, width) if width else (_CHECK_EDGES,)
            edges[name] = torch.rand(shape, generator=generator).to(kind.device, kind.dtype)
        device = kind.device
        return cls(x.to(device, kind.dtype), begins.to(device), sources.to(device), edges)

    @property
    def num_nodes(self) -> int:
        return len(self.x)

    def convolve(self, conv: Callable[..., Tensor] | None, takes: tuple[str, ...]) -> Any:
        """Return the result of a convolution on the whole graph."""
        if conv is None:
            return self.x
        whole = self.block(0, self.num_nodes)
        # PyTorch Geometric's convolutions are called with rows, others with a pair.
        x = self.x if isinstance(conv, MessagePassing) else (self.x, self.x)
        return conv(x, whole.edge_index, **{name: whole.edges[name] for name in takes})

    def block(self, first: int, last: int, scale: Tensor | None = None) -> Block:
        begin, end = int(self.begins[first]), int(self.begins[last])
        sources = self.sources[begin:end]
        others = torch.unique(sources)
        others = others[(others < first) | (others >= last)]
        nodes = torch.cat([torch.arange(first, last, device=self.x.device), others])
        places = torch.empty(self.num_nodes, dtype=torch.int64, device=self.x.device)
        places[nodes] = torch.arange(len(nodes), device=self.x.device)
        return Block(
            self.x[nodes],
            self.begins[first : last + 1] - begin,
            places[sources],
            {name: values[begin:end] for name, values in self.edges.items()},
            None if scale is None else scale[nodes],
        )

    def in_blocks(self, call: LayerCall) -> Tensor:
        """Return the result of a layer, block by block."""
        norm = call.norm
        scale = None if norm is None else norm.scale(self.block(0, self.num_nodes))
        make = partial(self.block, scale=scale)
        bounds = itertools.pairwise(_CHECK_BLOCKS)
        blocks = [make(first, last) for first, last in bounds]
        if call.projection is not None:
            blocks = [replace(one, x=call.as_sources(one.x), own=one.x_dst) for one in blocks]
        return torch.cat([call(block) for block in blocks])
