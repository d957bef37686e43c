"""Convert a graph, load batches of it and train: what an installed wheel must be able to do.

Run by a test and by the release workflow, with nothing installed but the wheel and what it needs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import gnnstore
from gnnstore import converters


def main() -> None:
    """Make a store of 2,000 nodes, check it, load it from disk and from memory, and train."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "graph.gnn"
        converters.from_rmat(path, scale=11, edge_factor=8, feature_dim=16)
        assert gnnstore.verify(path, "full").ok
        store = gnnstore.open(path)
        seen = []
        for strategy in ("memory", "static"):
            loader = gnnstore.NeighborLoader(
                store, [5, 5], batch_size=256, shuffle=True, seed=0, strategy=strategy
            )
            seen.append(list(loader))
        assert sum(batch.batch_size for batch in seen[0]) == store.num_nodes
        for one, other in zip(*seen, strict=True):
            assert one.x.equal(other.x)
            assert one.edge_index.equal(other.edge_index)
        assert train(store) < 1, "of eight classes, of which guessing gives 2.1"
    print(f"gnnstore {gnnstore.__version__} from {Path(gnnstore.__file__).parent}")


def train(store: gnnstore.GraphStore) -> float:
    """Train for eight epochs with features on disk, and return the last mean loss."""
    loader = gnnstore.NeighborLoader(
        store, [5, 5], "train", batch_size=128, shuffle=True, seed=0, strategy="belady"
    )
    model = GraphSAGE(store.features.shape[1], 32, num_layers=2, out_channels=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(8):
        losses = []
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = cross_entropy(out, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


if __name__ == "__main__":
    main()
