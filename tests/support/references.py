"""Loaders to compare, and the batches that all of them have to yield."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gnnstore import NeighborLoader
from tests.support.batches import Batches, batches_of
from tests.support.graphs import N

OPTIONS: dict[str, Any] = {"batch_size": 50, "shuffle": True, "seed": 3}
BATCHES, EPOCHS = 12, 2  # of the graphs of `tests.support.graphs`: of an epoch, and compared


def batches_in_memory(path: Path, **options: Any) -> Batches:
    """Return the batches of `EPOCHS` epochs, sampled and read in memory."""
    plain = NeighborLoader(path, [4, 4], "train", strategy="memory", **(OPTIONS | options))
    return batches_of(plain, EPOCHS)


def loader_of_packed(path: Any, packed: Any = "base", **options: Any) -> NeighborLoader:
    """Return a loader of the same batches by packed epochs, a path or a name in the store."""
    fanouts = options.pop("num_neighbors", [4, 4])
    nodes = options.pop("input_nodes", "train")
    return NeighborLoader(path, fanouts, nodes, **({"packed": packed} | OPTIONS | options))


def keep_half(out: Any) -> Any:
    """Leave half of the nodes of a sampler's output, and the edges between them."""
    out.node = out.node[: len(out.node) // 2]
    inside = (out.row < len(out.node)) & (out.col < len(out.node))
    out.row, out.col, out.edge = out.row[inside], out.col[inside], out.edge[inside]
    return out


def add_one(out: Any) -> Any:
    """Add a node to a sampler's output."""
    missing = next(v for v in range(N) if v not in out.node)
    out.node = torch.cat([out.node, torch.tensor([missing])])
    return out
