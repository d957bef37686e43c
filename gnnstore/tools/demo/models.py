"""The two models that the demonstration compares: one that sees the graph, one that does not."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.nn import SAGEConv

HIDDEN = 64


class GraphSage(torch.nn.Module):
    """Two GraphSAGE layers: a node's class from its own features and its neighbours'."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.first = SAGEConv(num_features, HIDDEN)
        self.second = SAGEConv(HIDDEN, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return scores [n, classes] for features [n, F] and a sampled subgraph [2, m]."""
        return self.second(self.first(x, edge_index).relu(), edge_index)  # type: ignore[no-any-return]


class Mlp(torch.nn.Module):
    """The same size without the graph: a node's class from its own features alone."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(num_features, HIDDEN)
        self.second = torch.nn.Linear(HIDDEN, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores [n, classes] for features [n, F]."""
        return self.second(self.first(x).relu())  # type: ignore[no-any-return]
