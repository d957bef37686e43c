"""Small graphs of several types as `HeteroData`, and stores of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import HeteroData

import gnnstore
from gnnstore.converters import from_pyg
from gnnstore.formats.store.schema import EdgeType

CITES = ("paper", "cites", "paper")
WRITES = ("author", "writes", "paper")
WRITTEN_BY = ("paper", "rev_writes", "author")
TEACHES = ("author", "teaches", "author")
AT = ("author", "at", "institution")
COUNTS = {"paper": 60, "author": 35, "institution": 6}
# The edges of each type, about.
DEGREES: Mapping[EdgeType, int] = {CITES: 5, WRITES: 3, WRITTEN_BY: 4, TEACHES: 2, AT: 4}


def make_hetero(
    seed: int = 0,
    *,
    counts: Mapping[str, int] = COUNTS,
    degrees: Mapping[EdgeType, int] = DEGREES,
    widths: Mapping[str, int] | None = None,
    sort: bool = False,
) -> HeteroData:
    """Return a random graph: features, labels, splits, times, weights, repeated edges, loops."""
    rng = torch.Generator().manual_seed(seed)
    data = HeteroData()
    widths = {"paper": 8, "author": 3} if widths is None else widths
    for name, count in counts.items():
        if name in widths:
            data[name].x = torch.rand(count, widths[name], generator=rng)
        else:
            data[name].num_nodes = count
        if name in ("paper", "author"):
            data[name].time = torch.randint(-50, 200, (count,), generator=rng)
    if "paper" in counts:
        num_papers = counts["paper"]
        data["paper"].y = torch.randint(0, 4, (num_papers,), generator=rng)
        draws = torch.rand(num_papers, generator=rng)
        data["paper"].train_mask = draws < 0.5
        data["paper"].val_mask = (draws >= 0.5) & (draws < 0.7)
    for edge_type, degree in degrees.items():
        num_sources, num_targets = counts[edge_type[0]], counts[edge_type[2]]
        num_edges = degree * num_targets if num_sources else 0
        sources = torch.randint(0, max(1, num_sources), (num_edges,), generator=rng)
        targets = torch.randint(0, max(1, num_targets), (num_edges,), generator=rng)
        if sort:
            order = torch.argsort(targets * max(1, num_sources) + sources, stable=True)
            sources, targets = sources[order], targets[order]
        store = data[edge_type]
        store.edge_index = torch.stack([sources, targets])
        store.edge_time = torch.randint(-50, 200, (num_edges,), generator=rng)
        weights = torch.rand(num_edges, generator=rng)
        store.w = torch.where(torch.rand(num_edges, generator=rng) < 0.1, 0.0, weights)
        if edge_type == CITES:
            store.edge_attr = torch.rand(num_edges, 2, generator=rng)
    data.name = "example"
    return data


def hetero_store(
    path: str | Path,
    data: HeteroData | None = None,
    *,
    time_attr: Sequence[str] = (),
    weight_attr: Sequence[str] = (),
    **options: Any,
) -> gnnstore.GraphStore:
    """Write a store of a graph, `make_hetero()` by default, and open it."""
    more = {
        **({"time_attr": tuple(time_attr)} if time_attr else {}),
        **({"weight_attr": tuple(weight_attr)} if weight_attr else {}),
        **options,
    }
    return gnnstore.open(from_pyg(data or make_hetero(), path, **more))
