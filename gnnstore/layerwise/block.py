"""The block that a layer runs on: consecutive nodes with all their in-neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


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
