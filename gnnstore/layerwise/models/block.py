"""The block that a layer runs on, and the normalisation of its edges by degree.

`GCNConv` computes its weights from the edges that it is given, and a block does not show the degree
of a source. So the weights are computed here, from degrees that one pass over the graph counts, and
the convolution does not normalise them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GCNConv, LGConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm


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
    # Rows to be put between those of the targets and those kept; see `KeptRows.in_front`.
    others: Tensor | None = None

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
    """The normalisation of edge weights: w(j, i) / sqrt(degree(j) degree(i))."""

    # Each node gets one self-loop in place of its own, whose weight it keeps.
    adds_loops: bool
    loop_weight: float  # weight of a self-loop that is added
    weight_name: str | None  # the edge data with the weights; None: all are 1

    @classmethod
    def of(cls, conv: Any, weight_name: str | None) -> DegreeNorm | None:
        """Return the normalisation of a convolution; None if it has none, or another kind."""
        if not isinstance(conv, (GCNConv, LGConv)) or not conv.normalize:
            return None
        if isinstance(conv, LGConv):
            return cls(False, 1.0, weight_name)
        fill = 2.0 if conv.improved else 1.0
        if weight_name is None and conv.improved:
            fill = _loop_weight_without_weights()
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


def _loop_weight_without_weights() -> float:
    """Return the weight of `improved=True` on a graph without weights: PyG's versions differ."""
    edges = torch.tensor([[0], [1]])
    _, weights = gcn_norm(edges, None, 2, improved=True, dtype=torch.float64)
    own = float(weights[-1])  # of node 1, which also has another edge: w / (1 + w)
    return own / (1 - own)
