"""What PyG's own code does with a loader's parts: its data, its sampler, layer-wise inference."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import ImbalancedSampler, NodeLoader
from torch_geometric.loader import NeighborLoader as PygNeighborLoader
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import BaseSampler

import gnnstore
from gnnstore.converters import ConvertOptions, from_pyg
from gnnstore.errors import BudgetError, NotFoundError, UsageError
from gnnstore.graph import arrays as store_arrays
from gnnstore.graph import lazy
from gnnstore.testing.graphs import random_graph

NUM_NODES, NUM_EDGES = 60, 300


@pytest.fixture(scope="module")
def data() -> Data:
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator)

    graph = Data(
        x=rand(NUM_NODES, 8),
        y=(rand(NUM_NODES) * 5).long(),
        edge_index=(rand(2, NUM_EDGES) * NUM_NODES).long(),
        edge_attr=rand(NUM_EDGES, 3),
        half=rand(NUM_NODES, 2).bfloat16(),
        name="a graph",
        scale=torch.tensor([1.0, 2.0]),
    )
    for split, begin in (("train", 0.0), ("val", 0.4), ("test", 0.7)):
        draws = rand(NUM_NODES)
        graph[f"{split}_mask"] = (draws >= begin) & (draws < begin + 0.3)
    return graph


@pytest.fixture(scope="module")
def store(data: Data, tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    return gnnstore.open(from_pyg(data, tmp_path_factory.mktemp("pyg") / "a.gnn"))


def test_there_and_back(store: gnnstore.GraphStore, data: Data) -> None:
    found = store.to_pyg()
    assert set(found.keys()) == set(data.keys())
    for name, value in data:
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype, name
            assert torch.equal(found[name], value), name
        else:
            assert found[name] == value, name


def test_edges_that_a_conversion_added_stand_by_themselves(data: Data, tmp_path: Path) -> None:
    """Their ids are not 0 to E - 1; each attribute stays with its edge."""
    pairs = np.sort(data.edge_index.numpy(), axis=0)
    once = torch.from_numpy(np.unique(pairs, axis=1, return_index=True)[1])
    data = Data(data.x, data.edge_index[:, once], data.edge_attr[once])
    options = ConvertOptions(undirected=True)
    path = from_pyg(data, tmp_path / "u.gnn", options=options)
    store = gnnstore.open(path)
    found = store.to_pyg()
    assert found.num_edges == found.edge_attr.size(0) == store.num_edges
    both = {(int(s), int(t)) for s, t in data.edge_index.T}
    assert {(int(s), int(t)) for s, t in found.edge_index.T} == both | {(t, s) for s, t in both}
    rows = dict(zip(map(tuple, data.edge_index.T.tolist()), data.edge_attr, strict=True))
    for (s, t), row in zip(found.edge_index.T.tolist(), found.edge_attr, strict=True):
        assert torch.equal(row, rows[(s, t)] if (s, t) in rows else rows[(t, s)])


def test_splits_without_masks_come_as_masks(tmp_path: Path) -> None:
    from gnnstore.converters import from_rmat  # noqa: PLC0415

    store = gnnstore.open(from_rmat(tmp_path / "r.gnn", scale=6, feature_dim=4))
    found = store.to_pyg()
    for split, mask in (("train", "train_mask"), ("valid", "val_mask"), ("test", "test_mask")):
        assert found[mask].nonzero().view(-1).tolist() == sorted(store.splits[split].tolist())


def test_a_graph_that_does_not_fit_is_refused(
    store: gnnstore.GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy, "available_bytes", lambda: 1000)
    monkeypatch.setattr(lazy, "_UNCHECKED_BYTES", 100)
    with pytest.raises(BudgetError, match=r"load batches with gnnstore\.NeighborLoader"):
        store.to_pyg()
    with pytest.raises(BudgetError, match="edge_index at once does not fit"):
        store.edge_index.tensor()
    with pytest.raises(BudgetError, match=r"gnnstore\.inference"):
        store.x.clone()


def test_the_data_of_a_loader_is_read_when_it_is_used(
    store: gnnstore.GraphStore, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # nothing of this reads
        patch.setattr(store_arrays.ArrayRows, "take", None)
        patch.setattr(store_arrays.ArrayRows, "read", None)
        found: Any = gnnstore.NeighborLoader(store, [2], batch_size=4).data
        assert (found.num_nodes, found.num_edges) == (NUM_NODES, NUM_EDGES)
        assert (found.num_features, found.num_node_features, found.num_edge_features) == (8, 8, 3)
        for name in ("x", "y", "half", "edge_index", "edge_attr", "train_mask"):
            view = getattr(found, name)
            assert (view.shape, view.dtype) == (data[name].shape, data[name].dtype)
            assert (view.size(0), view.dim(), len(view)) == (
                *(data[name].size(0), data[name].dim(), len(data[name])),
            )
        assert "x: float32 [60, 8], 1.92 kB on disk" in repr(found.x)
    assert found.num_classes == 5
    for name in ("x", "y", "edge_index", "edge_attr", "train_mask"):
        view = getattr(found, name)
        assert torch.equal(view.cpu(), data[name])
        assert torch.equal(view[1:3], data[name][1:3])
        assert torch.equal(torch.flip(view, [0]), torch.flip(data[name], [0]))
        assert np.array_equal(np.asarray(view), data[name].numpy())
    assert torch.equal(found.y == 2, data.y == 2)
    assert torch.equal(~found.train_mask & found.val_mask, ~data.train_mask & data.val_mask)
    assert torch.equal(data.x + found.x, 2 * data.x)
    assert found.y.max() == data.y.max()
    with pytest.raises(AttributeError, match="no attribute 'pos'"):
        found.pos  # noqa: B018
    assert torch.equal(pickle.loads(pickle.dumps(found)).x.cpu(), data.x)  # noqa: S301


def test_code_of_pyg_that_takes_a_store_apart_is_told_how(store: gnnstore.GraphStore) -> None:
    sampler = gnnstore.NeighborLoader(store, [2]).node_sampler
    with pytest.raises(UsageError, match=r"give \(store, store\) where"):
        NodeLoader(store, sampler, input_nodes=torch.arange(4))
    with pytest.raises(UsageError, match=r"store\.to_pyg\(\) where a Data is"):
        ImbalancedSampler(store)


def test_a_mask_by_its_name(store: gnnstore.GraphStore, data: Data) -> None:
    loader = gnnstore.NeighborLoader(store, [2], "val_mask", batch_size=7)
    assert torch.equal(loader.input_data.node, data.val_mask.nonzero().view(-1))
    for name in ("y", "nothing"):
        with pytest.raises(NotFoundError, match=f"there is no split '{name}'"):
            gnnstore.NeighborLoader(store, [2], name)


def test_the_mask_of_a_split_by_its_name(tmp_path: Path) -> None:
    """As in `loader.data.val_mask`, which a store with splits alone has too."""
    path = random_graph(300, 1500, seed=2, num_classes=3).write(tmp_path / "g.gnn")
    store = gnnstore.open(path)
    assert "val_mask" not in store.schema.node.attributes
    found = gnnstore.NeighborLoader(store, [2], "val_mask").input_data
    mask: Any = store.val_mask
    expected = gnnstore.NeighborLoader(store, [2], mask).input_data
    assert len(found.node) == len(store.splits["valid"])
    assert torch.equal(found.node, expected.node)
    assert torch.equal(found.input_id, expected.input_id)


def test_layer_wise_inference_of_pyg(store: gnnstore.GraphStore, data: Data) -> None:
    torch.manual_seed(0)
    model = GraphSAGE(8, 16, num_layers=2, out_channels=4).eval()
    loader = gnnstore.NeighborLoader(store, [-1], batch_size=16, num_threads=2)
    assert isinstance(loader, PygNeighborLoader)
    expected = model(data.x, data.edge_index)
    for cache in (False, True):
        found = model.inference(loader, cache=cache)
        torch.testing.assert_close(found, expected)


def test_more_threads_for_workers_change_nothing(store: gnnstore.GraphStore) -> None:
    loader = gnnstore.NeighborLoader(store, [2, 2], batch_size=16, num_workers=2, seed=0)
    expected = [batch.n_id.tolist() for batch in loader]
    loader.set_epoch(0)
    with loader.enable_multithreading(3), loader.enable_multithreading():
        assert [batch.n_id.tolist() for batch in loader] == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_of_pyg_samples_with_ours(
    store: gnnstore.GraphStore, data: Data, num_workers: int
) -> None:
    sampler = gnnstore.NeighborLoader(store, [3, -1], strategy="memory", seed=5).node_sampler
    assert isinstance(sampler, BaseSampler)
    assert sampler.num_neighbors == [3, -1]
    assert sampler.edge_permutation is None
    for source in (data, (store, store)):
        loader = NodeLoader(
            source, sampler, input_nodes=torch.arange(40), batch_size=10, num_workers=num_workers
        )
        batches = list(loader)
        assert [batch.n_id[:10].tolist() for batch in batches] == torch.arange(40).view(
            4, 10
        ).tolist()
        for batch in batches:
            assert torch.equal(batch.x, data.x[batch.n_id])
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


@pytest.mark.parametrize("strategy", ["mmap", "belady"])
def test_a_store_without_edges_gives_batches_without_edges(tmp_path: Path, strategy: str) -> None:
    """As a graph gives that was converted with an empty `edge_index`; embeddings have none."""
    x = torch.arange(15.0).reshape(5, 3)
    with_none = gnnstore.open(from_pyg(Data(x=x), tmp_path / "a.gnn"))
    gnnstore.inference([lambda rows: rows + 1], with_none, tmp_path / "embeddings")
    store = gnnstore.open(tmp_path / "embeddings")
    assert store.edge_types == ()
    options: dict[str, Any] = {"batch_size": 2, "strategy": strategy}
    expected = list(gnnstore.NeighborLoader(with_none, [2, 2], **options))
    changed: dict[str, Any] = {"transform_sampler_output": lambda output: output}
    for given in ({}, changed):
        found = list(gnnstore.NeighborLoader(store, [2, 2], **options, **given))
        assert len(found) == len(expected) == 3
        for batch, like in zip(found, expected, strict=True):
            assert torch.equal(batch.x, x[batch.n_id] + 1)
            assert torch.equal(batch.n_id, like.n_id)
            assert torch.equal(batch.edge_index, like.edge_index)
            assert batch.num_sampled_nodes == [batch.batch_size, 0, 0]
            assert batch.num_sampled_edges == [0, 0]
            assert batch.keys() == like.keys()
    (batch, *_) = gnnstore.NeighborLoader(store, [2], edge_format="csr", **options)
    assert (batch.adj_t.shape, batch.adj_t.values().numel()) == ((2, 2), 0)
    sampled = gnnstore.NeighborLoader(store, [2]).node_sampler
    (batch, *_) = NodeLoader((store, store), sampled, torch.tensor([3, 1]), batch_size=2)
    assert torch.equal(batch.x, x[[3, 1]] + 1)
