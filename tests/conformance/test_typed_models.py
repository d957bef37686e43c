"""PyG's models run on batches of several types, and its test of sampled counts holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import (
    GraphConv,
    HGTConv,
    to_hetero,
)

import gnnstore
from gnnstore import NeighborLoader
from tests.conformance.test_typed_csr import Layers
from tests.support.hetero import hetero_store, make_hetero

DATA = make_hetero()
# HeteroConv and HGTConv take features of every type.
DATA["institution"].x = torch.rand(6, 4, generator=torch.Generator().manual_seed(1))
del DATA["institution"].num_nodes
TRAIN = ("paper", "train")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hetero_store(tmp_path_factory.mktemp("models") / "s.gnn", DATA).path


def test_counts_by_hop(tmp_path: Path) -> None:
    """[test_hetero_neighbor_loader_sampled_info]."""
    edge_index = torch.tensor([[2, 3, 4, 5, 7, 7, 10, 11, 12, 13], [0, 1, 2, 3, 2, 3, 7, 7, 7, 7]])
    data = HeteroData()
    data["paper"].x = data["author"].x = torch.rand(14, 16)
    kinds = [("paper", "paper"), ("paper", "author"), ("author", "paper")]
    for source, target in kinds:
        data[source, "to", target].edge_index = edge_index
    store = hetero_store(tmp_path / "s.gnn", data)
    batch = next(iter(NeighborLoader(store, [1, 2, 4], "paper", batch_size=2)))
    assert batch.num_sampled_nodes_dict == {"paper": [2, 2, 3, 4], "author": [0, 2, 3, 4]}
    assert batch.num_sampled_edges_dict == {
        ("paper", "to", "paper"): [2, 4, 4],
        ("paper", "to", "author"): [0, 4, 4],
        ("author", "to", "paper"): [2, 4, 4],
    }


def test_all_neighbours_give_what_the_whole_graph_does(path: Path) -> None:
    """[PyG: karate, hetero]: two layers, two hops of all."""
    model = Layers(2, "mean")
    with torch.no_grad():
        whole = model(DATA, DATA.x_dict, DATA.edge_index_dict, None)["paper"]
        for kind in ("directional", "induced"):
            loader = NeighborLoader(path, [-1, -1], "paper", batch_size=20, subgraph_type=kind)
            for batch in loader:
                size, ids = batch["paper"].batch_size, batch["paper"].input_id
                found = model(batch, batch.x_dict, batch.edge_index_dict, None)["paper"]
                torch.testing.assert_close(found[:size], whole[ids])


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GraphConv((-1, -1), 8), GraphConv((-1, -1), 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        x = self.first(x, edge_index, edge_weight).relu()
        found: Tensor = self.second(x, edge_index, edge_weight)
        return found


@pytest.mark.skipif(
    torch.__version__.startswith("2.7"), reason="torch.fx fails on the types of PyG's layers"
)
@pytest.mark.filterwarnings("ignore:There exist node types")
def test_a_model_made_heterogeneous(path: Path) -> None:
    """[PyG: to_hetero]; the store's metadata names the types."""
    store = gnnstore.open(path)
    model = to_hetero(Net(), store.metadata(), aggr="sum")
    optimizer = None
    for batch in NeighborLoader(store, [3, 2], TRAIN, batch_size=8, seed=1):
        out = model(batch.x_dict, batch.edge_index_dict, batch.w_dict)
        loss = torch.nn.functional.cross_entropy(out["paper"], batch["paper"].y % 3)
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert out["paper"].shape == (batch["paper"].num_nodes, 3)


def test_attention_over_types(path: Path) -> None:
    """Fan-outs by type are what gnnstore has for HGTConv."""
    store, widths = gnnstore.open(path), {"paper": 8, "author": 3, "institution": 4}
    model = HGTConv(widths, 8, store.metadata(), heads=2)
    for batch in NeighborLoader(store, [3, 2], TRAIN, batch_size=8, seed=1):
        out = model(batch.x_dict, batch.edge_index_dict)
        assert out["paper"].shape == (batch["paper"].num_nodes, 8)


def test_pygs_hgt_loader_is_not_there() -> None:
    with pytest.raises(AttributeError, match=r"HGTLoader.*NeighborLoader with fan-outs by edge ty"):
        gnnstore.HGTLoader  # noqa: B018
