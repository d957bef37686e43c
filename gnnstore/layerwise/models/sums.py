"""Convolutions that sum rows as they are: a block may refer to rows that are kept in memory.

A linear map of sums is the sum of mapped rows. Where it makes rows narrower, as `lin_l` of
`SAGEConv` does, rows are mapped once, before they are kept or packed, and the convolution runs
without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn
from torch import Tensor
from torch_geometric.nn import GCNConv, GINConv, GraphConv, LGConv, SAGEConv

_LINEAR = ("add", "sum", "mean")
_MAPS = {SAGEConv: "lin_l", GraphConv: "lin_rel", GCNConv: "lin"}
_LINEAR_MAPS = (torch.nn.Linear, torch_geometric.nn.Linear)


@dataclass(frozen=True, eq=False)
class Projection:
    """The linear map that a convolution applies to sums of rows, or to rows before it sums them."""

    name: str  # attribute of the convolution
    linear: Any

    @property
    def width(self) -> int:
        """Width of the mapped rows."""
        return int(self.linear.weight.shape[0])

    def __call__(self, rows: Tensor) -> Tensor:
        """Map rows, without the bias, which is not summed."""
        return torch.nn.functional.linear(rows, self.linear.weight.detach())

    @contextmanager
    def left_out(self, conv: Any) -> Iterator[None]:
        """Let a convolution take rows that are mapped already."""
        setattr(conv, self.name, _Bias(self.linear.bias))
        try:
            yield
        finally:
            setattr(conv, self.name, self.linear)


class _Bias(torch.nn.Module):
    def __init__(self, bias: Tensor | None) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, rows: Tensor) -> Tensor:
        return rows if self.bias is None else rows + self.bias


def sums_rows(conv: Any) -> bool:
    """Return whether a convolution computes nothing for a row before it is aggregated."""
    if type(conv) is SAGEConv:
        return not conv.project
    return type(conv) in (GINConv, GraphConv, LGConv)


def projection_of(conv: Any) -> Projection | None:
    """Return the linear map that may be applied to rows first; None: there is none, or in vain."""
    name = _MAPS.get(type(conv))
    if name is None or not isinstance(conv.aggr, str) or conv.aggr not in _LINEAR:
        return None
    linear = getattr(conv, name)
    if type(linear) not in _LINEAR_MAPS or linear._forward_hooks or linear._forward_pre_hooks:
        return None
    out_width, in_width = linear.weight.shape
    # `GCNConv` maps rows first in any case.
    is_first = type(conv) is GCNConv
    return (
        Projection(name, linear) if is_first or (sums_rows(conv) and out_width < in_width) else None
    )
