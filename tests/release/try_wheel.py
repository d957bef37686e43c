"""Convert a graph and load batches of it: what an installed wheel must be able to do.

Run by a test and by the release workflow, with nothing installed but the wheel and what it needs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import gnnstore
from gnnstore import converters


def main() -> None:
    """Make a store of 2,000 nodes, check it, and load all its nodes from disk and from memory."""
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
    print(f"gnnstore {gnnstore.__version__} from {Path(gnnstore.__file__).parent}")


if __name__ == "__main__":
    main()
