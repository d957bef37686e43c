"""Loaders to compare, and the batches that all of them have to yield."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnnstore import NeighborLoader
from tests.support.batches import batches_of

OPTIONS: dict[str, Any] = {"batch_size": 50, "shuffle": True, "seed": 3}
BATCHES, EPOCHS = 12, 2  # of the graphs of `tests.support.graphs`: of an epoch, and compared


def batches_in_memory(path: Path, **options: Any) -> list[dict[str, Any]]:
    """Return the batches of `EPOCHS` epochs, sampled and read in memory."""
    plain = NeighborLoader(path, [4, 4], "train", strategy="memory", **(OPTIONS | options))
    return batches_of(plain, EPOCHS)


def loader_of_packed(path: Any, packed: Any = "base", **options: Any) -> NeighborLoader:
    """Return a loader of the same batches by packed epochs, a path or a name in the store."""
    fanouts = options.pop("num_neighbors", [4, 4])
    nodes = options.pop("input_nodes", "train")
    return NeighborLoader(path, fanouts, nodes, **({"packed": packed} | OPTIONS | options))
