"""The block that a layer runs on, and the form in which the layer is called on it.

The form follows from the layer's type. "rows": f(x), for a layer without edges. "sparse": with a
matrix [D, n], which saves the copy of a row for each edge, for convolutions that are known to
multiply with one. "pair": f((x, x_dst), edge_index) with the edge data that it names, for all
others. A small graph shows whether the result is the whole graph's; if not, the layer is
refused.
"""

from __future__ import annotations

import inspect
import itertools
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch_geometric.nn
from torch import Tensor
from torch_geometric.nn import GCNConv, GINConv, GraphConv, LGConv, MessagePassing, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from gnnstore.errors import UsageError, described
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.layerwise.layers import Layer, changed
from gnnstore.units import format_count

# Convolutions that sum rows as they are: such a block may refer to rows that are kept in memory.
_SUMMING = (SAGEConv, GINConv, GraphConv, GCNConv, LGConv)
# Convolutions that take x alone, and weights in their matrix that they do not normalise.
_NORMALIZING = (GCNConv, LGConv)
_SPARSE_DTYPES = (torch.float32, torch.float64)
# A linear map of sums is the sum of mapped rows. Where it makes rows narrower, they are mapped
# once, before they are kept or packed, and the convolution runs without it.
_MAPS = {SAGEConv: "lin_l", GraphConv: "lin_rel", GCNConv: "lin"}
_LINEAR_MAPS = (torch.nn.Linear, torch_geometric.nn.Linear)
_EDGE_DATA = ("edge_weight", "edge_attr")

# Largest difference of results by the order of sums.
_TOLERANCE = 1e-3
_CHECK_NODES, _CHECK_EDGES, _CHECK_BLOCKS = 40, 160, (0, 1, 14, 27, 40)
# Nodes without any edge.
_CHECK_ISOLATED = 5


@dataclass(frozen=True, eq=False)
class Block:
    """D consecutive nodes (the targets), and m edges into them from n distinct nodes."""

    # Rows of the targets in order, then of the other in-neighbours; then, for a layer that sums
    # rows, all rows that are kept in memory.
    x: Tensor
    begins: Tensor  # the edges into target i are begins[i] ... begins[i + 1] - 1.
    sources: Tensor  # rows of `x`
    # Data of the edges, by the name of the argument that takes it.
    edges: Mapping[str, Tensor] = field(default_factory=dict)
    scale: Tensor | None = None  # the factor of each row in a normalisation by degrees
    own: Tensor | None = None  # rows of the targets, where `x` has mapped rows

    @property
    def num_targets(self) -> int:
        """Number of targets, D."""
        return len(self.begins) - 1

    @property
    def x_dst(self) -> Tensor:
        """Rows of the targets."""
        return self.x[: self.num_targets] if self.own is None else self.own

    @property
    def targets(self) -> Tensor:
        """The target of each edge: int64 [m], a new tensor."""
        nodes = torch.arange(self.num_targets, device=self.begins.device)
        return torch.repeat_interleave(nodes, self.begins.diff(), output_size=len(self.sources))

    @property
    def edge_index(self) -> Tensor:
        """Sources above targets: int64 [2, m], a new tensor."""
        return torch.stack([self.sources, self.targets])

    def to(self, device: torch.device) -> Block:
        """Return the block on a device."""
        if self.x.device == device:
            return self
        return Block(
            self.x.to(device),
            self.begins.to(device),
            self.sources.to(device),
            {name: values.to(device) for name, values in self.edges.items()},
            None if self.scale is None else self.scale.to(device),
            None if self.own is None else self.own.to(device),
        )


@dataclass(frozen=True)
class DegreeNorm:
    """The normalisation of edge weights: w(j, i) / sqrt(degree(j) degree(i)).

    `GCNConv` computes its weights from the edges that it is given, and a block does not show the
    degree of a source. So they are computed here, from degrees that one pass over the graph counts.
    """

    # Each node gets one self-loop in place of its own, whose weight it keeps.
    adds_loops: bool
    loop_weight: float  # weight of a self-loop that is added
    weight_name: str | None  # the edge data with the weights; None: all are 1

    @classmethod
    def for_conv(cls, conv: Any, weight_name: str | None) -> DegreeNorm | None:
        """Return the normalisation of a convolution; None if it has none, or another kind."""
        if not isinstance(conv, _NORMALIZING) or not conv.normalize:
            return None
        if isinstance(conv, LGConv):
            return cls(False, 1.0, weight_name)
        fill = 2.0 if conv.improved else 1.0
        if weight_name is None and conv.improved:  # PyTorch Geometric's versions differ
            _, weights = gcn_norm(torch.tensor([[0], [1]]), None, 2, True, dtype=torch.float64)
            own = float(weights[-1])  # of node 1, which also has another edge: w / (1 + w)
            fill = own / (1 - own)
        return cls(conv.add_self_loops, fill, weight_name)

    def edges(self, block: Block) -> tuple[Block, Tensor]:
        """Return a block with its edges and self-loops, in the order of targets, and weights."""
        weights = block.x.new_ones(len(block.sources))
        if self.weight_name is not None:
            weights = block.edges[self.weight_name].reshape(-1).to(block.x.dtype)
        if not self.adds_loops:
            return block, weights
        targets = block.targets
        is_loop = block.sources == targets
        others = (~is_loop).nonzero().view(-1)
        # A node's self-loop follows its other edges, so edges into node i move by i places.
        degrees = torch.bincount(targets[others], minlength=block.num_targets).add_(1)
        begins = torch.zeros_like(block.begins)
        torch.cumsum(degrees, 0, out=begins[1:])
        places = torch.arange(len(others), device=targets.device).add_(targets[others])
        sources = targets.new_empty(len(others) + block.num_targets)
        sources[places] = block.sources[others]
        sources[begins[1:] - 1] = torch.arange(block.num_targets, device=targets.device)
        loops = weights.new_full((block.num_targets,), self.loop_weight)
        loops[targets[is_loop]] = weights[is_loop]
        values = weights.new_empty(len(sources))
        values[places] = weights[others]
        values[begins[1:] - 1] = loops
        return replace(block, begins=begins, sources=sources, edges={}), values

    def scale(self, block: Block) -> Tensor:
        """Return 1 / sqrt(degree) of the targets [D]; 0 where the degree is 0."""
        whole, weights = self.edges(block)
        degrees = weights.new_zeros(block.num_targets).index_add_(0, whole.targets, weights)
        scale = degrees.pow_(-0.5)
        return scale.masked_fill_(scale == float("inf"), 0.0)

    def apply(self, block: Block) -> tuple[Block, Tensor]:
        """Return a block with its edges and self-loops, and their normalised weights [m']."""
        assert block.scale is not None  # noqa: S101 - blocks are made with it
        whole, weights = self.edges(block)
        scale = block.scale.to(weights.dtype)
        # Not in place: they may belong to the block.
        return whole, (scale[whole.sources] * weights).mul_(scale[whole.targets])


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
    def stored_bytes(self) -> int:
        """Bytes of a row as stored."""
        return self.width * STORAGE_DTYPES[self.stored].itemsize

    @property
    def is_as_stored(self) -> bool:
        """Whether the layer computes with the type that is stored."""
        return self.stored == str(self.dtype).removeprefix("torch.")


class _Bias(torch.nn.Module):
    """What is left of a linear map if rows are mapped already."""

    def __init__(self, bias: Tensor | None) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, rows: Tensor) -> Tensor:
        return rows if self.bias is None else rows + self.bias


@dataclass(frozen=True, eq=False)
class LayerCall:
    """A layer, its input, and the form in which it is called."""

    layer: Layer
    kind: RowKind
    form: str  # "rows", "sparse" or "pair"
    takes: tuple[str, ...] = ()  # names of the edge data that it takes
    norm: DegreeNorm | None = None  # computes the edge weights for the layer
    sums: bool = False  # `x` may have rows that the block does not need: they cost nothing
    map_name: str | None = None  # the convolution's linear map, which has mapped the rows of `x`
    linear: Any = None  # the map itself; while the layer runs, the convolution has none

    @classmethod
    def for_layer(cls, layer: Layer, kind: RowKind) -> LayerCall:
        """Return the call that follows from the type of a layer."""
        conv: Any = layer.conv
        if conv is None:
            return cls(layer, kind, "rows")
        takes = tuple(name for name in _edge_data_of(conv) if name in kind.edge_widths)
        is_summing = type(conv) in _SUMMING
        is_sparse = is_summing and conv.fuse and kind.dtype in _SPARSE_DTYPES
        if not is_sparse and not isinstance(conv, _NORMALIZING):
            return cls(layer, kind, "pair", takes)
        norm = DegreeNorm.for_conv(conv, "edge_weight" if "edge_weight" in takes else None)
        # Rows that are kept are in the memory of the host.
        sums = is_summing and kind.device.type == "cpu" and not getattr(conv, "project", False)
        map_name = _map_of(conv) if sums else None
        linear = None if map_name is None else getattr(conv, map_name)
        return cls(layer, kind, "sparse", takes, norm, sums, map_name, linear)

    @property
    def needs_edges(self) -> bool:
        """Whether it uses neighbours."""
        return self.layer.conv is not None

    @property
    def source_width(self) -> int:
        """Width of the rows of `x`."""
        return self.kind.width if self.map_name is None else int(self.linear.weight.shape[0])

    @property
    def source_bytes(self) -> int:
        """Bytes of a row of `x`."""
        return self.source_width * self.kind.dtype.itemsize

    def as_sources(self, rows: Tensor) -> Tensor:
        """Return rows as the layer sums them: mapped, without the bias, which is not summed."""
        if self.map_name is None:
            return rows
        return torch.nn.functional.linear(rows, self.linear.weight.detach())

    def __call__(self, block: Block, dtype: torch.dtype | None = None) -> Tensor:
        """Return the rows of the block's targets, in memory of their own: [D, width]."""
        rows: Tensor = self.layer.apply_after(self._convolve(block))
        if rows.dim() != 2 or len(rows) != block.num_targets:
            raise ValueError(
                f"it gives {list(rows.shape)} for {format_count(block.num_targets, 'node')}"
            )
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
        if self.map_name is not None:
            changes.append((conv, self.map_name, _Bias(self.linear.bias)))
        if self.norm is not None:  # weights are normalised already
            changes.append((conv, "normalize", False))
            block, weights = self.norm.apply(block)
        with changed(changes):
            if block.x.dtype not in _SPARSE_DTYPES:
                return conv(block.x, block.edge_index, weights)[: block.num_targets]
            is_single = isinstance(conv, _NORMALIZING)
            return conv(block.x if is_single else (block.x, block.x_dst), _matrix(block, weights))


def _map_of(conv: Any) -> str | None:
    """Return the name of a convolution's linear map; None: it has none, or nothing is gained."""
    name = _MAPS.get(type(conv))
    if name is None or conv.aggr not in ("add", "sum", "mean"):
        return None
    linear = getattr(conv, name)
    if type(linear) not in _LINEAR_MAPS or linear._forward_hooks or linear._forward_pre_hooks:
        return None
    out_width, in_width = linear.weight.shape
    # `GCNConv` maps rows first in any case.
    return name if type(conv) is GCNConv or out_width < in_width else None


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


def check_call(call: LayerCall) -> None:
    """Check on a small graph that a layer gives block by block what it gives on the whole."""
    with torch.random.fork_rng(devices=[]):
        kind, layer = call.kind, call.layer
        whole = _small_graph(kind)
        data = {name: whole.edges[name] for name in call.takes}
        try:
            # PyTorch Geometric's convolutions are called with rows, others with a pair.
            x: Any = whole.x if isinstance(layer.conv, MessagePassing) else (whole.x, whole.x)
            rows: Any = whole.x if layer.conv is None else layer.conv(x, whole.edge_index, **data)
            if not isinstance(rows, Tensor):
                raise TypeError(f"it gives a {type(rows).__name__}, and not a tensor of rows")
            expected = replace(call, layer=replace(layer, conv=None))(replace(whole, x=rows)).cpu()
        except Exception as error:
            missing = [] if layer.conv is None else [*_edge_data_of(layer.conv)]
            missing = [name for name in missing if name not in call.takes]
            hint = f"; for its edge data, name an attribute: {missing[0]}=" if missing else ""
            raise UsageError(
                f"{layer.name} fails on rows of {kind.width} "
                f"{str(kind.dtype).removeprefix('torch.')} with edges between {_CHECK_NODES} "
                f"nodes: {described(error)}{hint}{_list_of_layers(layer)}"
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
        advice = _list_of_layers(layer) or (
            ". It may look further than one hop, use degrees or statistics of the whole graph, be "
            "random, or take its arguments in another form. Split it into layers that look at "
            "in-neighbours once, wrap it in a function that takes ((x, x_dst), edge_index), or "
            "evaluate with a gnnstore.NeighborLoader"
        )
        raise UsageError(
            f"{layer.name} is not layer-wise: on nodes with all their in-neighbours it computes "
            f"other values than on the whole graph (called with {call.form}: {failure}){advice}"
        )


def _list_of_layers(layer: Layer) -> str:
    """Return how a module is given that has graph layers in it, as a whole model has."""
    if not isinstance(layer.conv, torch.nn.Module) or isinstance(layer.conv, MessagePassing):
        return ""
    parts = layer.conv.named_modules(prefix="model")
    names = [name for name, part in parts if isinstance(part, MessagePassing)]
    if not names:
        return ""
    listed = re.sub(r"\.(\d+)", r"[\1]", ", torch.relu, ".join(names))
    return (
        ". If it is a whole model, give its layers in a list, with the functions between them: "
        f"inference([{listed}], store); else evaluate with a gnnstore.NeighborLoader"
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
            None if call.map_name is None else x[: last - first],
        )
        results.append(call(block))
    return torch.cat(results)
