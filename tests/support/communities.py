"""A graph of communities without edges between them, whose batches come by turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from gnnstore.converters import from_pyg
from tests.support.batches import Batches
from tests.support.twins import caches as twins

NUM_COMMUNITIES = 4
SIZE = 40  # nodes of a community
BATCH_SIZE = 6
BATCHES_EACH = 5  # of a community
NUM_BATCHES = NUM_COMMUNITIES * BATCHES_EACH
# A batch has the seeds of one community, the next batch of the next.
SEEDS = [
    SIZE * community + BATCH_SIZE * turn + k
    for turn in range(BATCHES_EACH)
    for community in range(NUM_COMMUNITIES)
    for k in range(BATCH_SIZE)
]


def write_communities(path: Path) -> Path:
    """Write the graph; its rows are wide enough to be read from disk."""
    rng = torch.Generator().manual_seed(4)
    num_nodes = NUM_COMMUNITIES * SIZE
    ends = torch.randint(0, SIZE, (2, 8 * num_nodes), generator=rng)
    edge_index = ends + SIZE * torch.randint(0, NUM_COMMUNITIES, (8 * num_nodes,), generator=rng)
    x = torch.rand(num_nodes, 20, generator=rng)
    return from_pyg(Data(x=x, y=torch.arange(num_nodes), edge_index=edge_index), path)


def nodes_of(batch: dict[str, Any]) -> frozenset[Any]:
    """Return the nodes of a batch, with their types if these have names."""
    if "n_id" in batch:
        return frozenset(batch["n_id"].tolist())
    return frozenset(
        (name, node)
        for name, own in batch.items()
        if isinstance(name, str) and "n_id" in own and "x" in own
        for node in own["n_id"].tolist()
    )


def in_windows(batches: Batches, size: int) -> Batches:
    """Return the batches of an epoch in the order that `reorder=size` gives them."""
    found = []
    for first in range(0, len(batches), size):
        window = batches[first : first + size]
        order = twins.window_order([nodes_of(batch) for batch in window])
        found += [window[i] for i in order]
    return found
