"""How a layer is called on a block: one of three forms, which follows from its type.

"rows": f(x), for a layer without edges. "sparse": with a matrix [D, n], which saves the copy of a
row for each edge, for convolutions that are known to multiply with one. "pair": f((x, x_dst),
edge_index) with the edge data that it names, for all others. A small graph shows whether the result
is that of the whole graph; a layer of which it is not is refused.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch_geometric.nn
from torch import Tensor
from torch_geometric.nn import GCNConv, GINConv, GraphConv, LGConv, MessagePassing, SAGEConv

from gnnstore.errors import UsageError, described
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.layerwise.models.block import Block, DegreeNorm
from gnnstore.layerwise.models.layers import Layer, changed

# Sum rows as they are: such a block may refer to rows that are kept in memory.
_SUMMING = (SAGEConv, GINConv, GraphConv, GCNConv, LGConv)
# These take x alone, and weights in their matrix that they do not normalise.
_NORMALIZING = (GCNConv, LGConv)
_SPARSE_DTYPES = (torch.float32, torch.float64)
# A linear map of sums is the sum of mapped rows. Where it makes rows narrower, they are mapped
# once, before they are kept or packed, and the convolution runs without it.
_MAPS = {SAGEConv: "lin_l", GraphConv: "lin_rel", GCNConv: "lin"}
_LINEAR_MAPS = (torch.nn.Linear, torch_geometric.nn.Linear)
_EDGE_DATA = ("edge_weight", "edge_attr")

# Results that differ by more than this differ by more than the order of sums.
_TOLERANCE = 1e-3
_CHECK_NODES, _CHECK_EDGES, _CHECK_BLOCKS = 40, 160, (0, 1, 14, 27, 40)
# Nodes without any edge.
_CHECK_ISOLATED = 5


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


@dataclass(frozen=True, eq=False)
class Projection:
    """The linear map that a convolution applies to sums of rows, or to rows before it sums them."""

    name: str  # attribute of the convolution
    linear: Any

    @classmethod
    def of(cls, conv: Any) -> Projection | None:
        """Return the map of a convolution; None: there is none, or nothing is gained."""
        name = _MAPS.get(type(conv))
        if name is None or conv.aggr not in ("add", "sum", "mean"):
            return None
        linear = getattr(conv, name)
        if type(linear) not in _LINEAR_MAPS or linear._forward_hooks or linear._forward_pre_hooks:
            return None
        out_width, in_width = linear.weight.shape
        # `GCNConv` maps rows first in any case.
        return cls(name, linear) if type(conv) is GCNConv or out_width < in_width else None

    @property
    def width(self) -> int:
        """Width of the mapped rows."""
        return int(self.linear.weight.shape[0])

    def __call__(self, rows: Tensor) -> Tensor:
        """Map rows, without the bias, which is not summed."""
        return torch.nn.functional.linear(rows, self.linear.weight.detach())


class _Bias(torch.nn.Module):
    def __init__(self, bias: Tensor | None) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, rows: Tensor) -> Tensor:
        return rows if self.bias is None else rows + self.bias


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A layer, and the form in which it is called."""

    layer: Layer
    form: str  # "rows", "sparse" or "pair"
    takes: tuple[str, ...] = ()  # names of the edge data that it takes
    norm: DegreeNorm | None = None  # computes the edge weights for the layer
    sums: bool = False  # `x` may have rows that the block does not need: they cost nothing
    projection: Projection | None = None  # `x` has rows that it has mapped

    @classmethod
    def of(cls, layer: Layer, kind: RowKind) -> LayerCall:
        """Return the call that follows from the type of a layer."""
        conv: Any = layer.conv
        if conv is None:
            return cls(layer, "rows")
        takes = tuple(name for name in _edge_data_of(conv) if name in kind.edge_widths)
        is_summing = type(conv) in _SUMMING
        is_sparse = is_summing and conv.fuse and kind.dtype in _SPARSE_DTYPES
        if not is_sparse and not isinstance(conv, _NORMALIZING):
            return cls(layer, "pair", takes)
        norm = DegreeNorm.of(conv, "edge_weight" if "edge_weight" in takes else None)
        # Rows that are kept are in the memory of the host.
        sums = is_summing and kind.device.type == "cpu" and not getattr(conv, "project", False)
        return cls(layer, "sparse", takes, norm, sums, Projection.of(conv) if sums else None)

    @property
    def needs_edges(self) -> bool:
        """Whether it uses neighbours."""
        return self.layer.conv is not None

    def as_sources(self, rows: Tensor) -> Tensor:
        """Return rows as the layer sums them."""
        return rows if self.projection is None else self.projection(rows)

    def __call__(self, block: Block, dtype: torch.dtype | None = None) -> Tensor:
        """Return the rows of the block's targets, in memory of their own: [D, width]."""
        rows: Tensor = self.layer.finish(self._convolve(block))
        if rows.dim() != 2 or len(rows) != block.num_targets:
            raise ValueError(f"it gives {list(rows.shape)} for {block.num_targets} nodes")
        if not rows.shape[1]:
            raise ValueError(f"it gives rows without elements, {list(rows.shape)}")
        # Written while the layer runs on the next block, so not in shared memory.
        return rows.to("cpu", dtype or rows.dtype, copy=True).contiguous()

    def run(self, block: Block, dtype: torch.dtype | None, where: str) -> Tensor:
        """Call the layer; an error names it and the block."""
        try:
            return self(block, dtype)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise UsageError(f"{self.layer.name} fails on {where}: {described(error)}") from error

    def _convolve(self, block: Block) -> Any:
        conv: Any = self.layer.conv
        if conv is None:
            return block.x_dst
        data = {name: block.edges[name] for name in self.takes}
        if self.form == "pair":
            return conv((block.x, block.x_dst), block.edge_index, **data)
        weights = data.get("edge_weight")
        changes: list[tuple[Any, str, Any]] = []
        if self.projection is not None:  # rows are mapped already
            changes.append((conv, self.projection.name, _Bias(self.projection.linear.bias)))
        if self.norm is not None:  # weights are normalised already
            changes.append((conv, "normalize", False))
            block, weights = self.norm.apply(block)
        with changed(changes):
            if block.x.dtype not in _SPARSE_DTYPES:
                return conv(block.x, block.edge_index, weights)[: block.num_targets]
            is_single = isinstance(conv, _NORMALIZING)
            return conv(block.x if is_single else (block.x, block.x_dst), _matrix(block, weights))


def _matrix(block: Block, weights: Tensor | None) -> Tensor:
    """Return the edges as a sparse matrix [D, n]."""
    if weights is None:
        weights = torch.ones(len(block.sources), dtype=block.x.dtype, device=block.x.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            block.begins,
            block.sources,
            weights.reshape(-1),
            (block.num_targets, len(block.x)),
            check_invariants=False,  # without it torch warns that it does not check them
        )


def _edge_data_of(conv: Any) -> tuple[str, ...]:
    """Return the names of the edge data that a convolution takes."""
    function = conv.forward if isinstance(conv, torch.nn.Module) else conv
    names = inspect.signature(function).parameters
    return tuple(name for name in _EDGE_DATA if name in names)


def check_call(call: LayerCall, kind: RowKind) -> None:
    """Check on a small graph that a layer gives block by block what it gives on the whole."""
    with torch.random.fork_rng(devices=[]):
        whole, layer = _small_graph(kind), call.layer
        data = {name: whole.edges[name] for name in call.takes}
        try:
            # PyTorch Geometric's convolutions are called with rows, others with a pair.
            x: Any = whole.x if isinstance(layer.conv, MessagePassing) else (whole.x, whole.x)
            rows: Any = whole.x if layer.conv is None else layer.conv(x, whole.edge_index, **data)
            expected = LayerCall(replace(layer, conv=None), "rows")(replace(whole, x=rows)).cpu()
        except Exception as error:
            missing = [] if layer.conv is None else [*_edge_data_of(layer.conv)]
            missing = [name for name in missing if name not in call.takes]
            hint = f"; for its edge data, name an attribute: {missing[0]}=" if missing else ""
            raise UsageError(
                f"{layer.name} fails on rows of {kind.width} "
                f"{str(kind.dtype).removeprefix('torch.')} with edges between {_CHECK_NODES} "
                f"nodes: {described(error)}{hint}"
            ) from error
        try:
            found, failure = _in_blocks(call, whole), "other values"
        except Exception as error:  # any error: the form does not suit the layer
            found, failure = expected[:0], described(error)
    finite = expected[expected.isfinite()].abs()
    atol = _TOLERANCE * float(finite.max()) if len(finite) else _TOLERANCE
    if found.shape != expected.shape or not torch.allclose(
        found, expected, _TOLERANCE, atol, equal_nan=True
    ):
        raise UsageError(
            f"{layer.name} is not layer-wise: on nodes with all their in-neighbours it computes "
            f"other values than on the whole graph (called with {call.form}: {failure}). It may "
            "look further than one hop, use degrees or statistics of the whole graph, be random, "
            "or take its arguments in another form. Split it into layers that look at "
            "in-neighbours once, wrap it in a function that takes ((x, x_dst), edge_index), or "
            "evaluate with a gnnstore.NeighborLoader"
        )


def _small_graph(kind: RowKind) -> Block:
    """Draw a graph with self-loops, parallel edges and isolated nodes."""
    generator = torch.Generator().manual_seed(0)
    last = _CHECK_NODES - _CHECK_ISOLATED
    ends = torch.randint(0, last, (2, _CHECK_EDGES), generator=generator)
    # Not several self-loops at a node: convolutions may keep any of their weights.
    ends[1] = torch.where(ends[0] == ends[1], (ends[1] + 1) % last, ends[1])
    ends[:, :4] = torch.arange(4)  # self-loops
    ends[:, 4:8] = ends[:, 8:12]  # parallel edges
    sources, targets = ends[:, torch.from_numpy(np.lexsort(ends.numpy()))]
    begins = torch.searchsorted(targets.contiguous(), torch.arange(_CHECK_NODES + 1))
    x = torch.randn(_CHECK_NODES, kind.width, generator=generator).to(kind.dtype)
    edges = {}
    for name, width in kind.edge_widths.items():
        shape = (_CHECK_EDGES, width) if width else (_CHECK_EDGES,)
        edges[name] = torch.rand(shape, generator=generator).to(kind.dtype)
    return Block(x, begins, sources, edges).to(kind.device)


def _in_blocks(call: LayerCall, whole: Block) -> Tensor:
    """Return the result of a layer, block by block."""
    scale = None if call.norm is None else call.norm.scale(whole)
    results = []
    for first, last in itertools.pairwise(_CHECK_BLOCKS):
        begin, end = int(whole.begins[first]), int(whole.begins[last])
        own = torch.arange(first, last, device=whole.x.device)
        others = torch.unique(whole.sources[begin:end])
        nodes = torch.cat([own, others[(others < first) | (others >= last)]])
        places = torch.empty_like(whole.begins)
        places[nodes] = torch.arange(len(nodes), device=whole.x.device)
        x = whole.x[nodes]
        block = Block(
            call.as_sources(x),
            whole.begins[first : last + 1] - begin,
            places[whole.sources[begin:end]],
            {name: values[begin:end] for name, values in whole.edges.items()},
            None if scale is None else scale[nodes],
            None if call.projection is None else x[: last - first],
        )
        results.append(call(block))
    return torch.cat(results)
