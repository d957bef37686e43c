"""What a store hands out are tensors of torch: on disk until an operation needs their values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torch_geometric.data import Data
from torch_geometric.data.lightning import LightningNodeData
from torch_geometric.loader import ImbalancedSampler, NodeLoader
from torch_geometric.nn import GATConv, GCNConv, SAGEConv
from torch_geometric.utils import k_hop_subgraph, to_undirected

import gnnstore
from gnnstore.converters import from_pyg
from gnnstore.errors import BudgetError, InputError, UsageError
from gnnstore.formats import PagedArray
from gnnstore.graph import lazy
from gnnstore.graph.lazy import LazyTensor

N, E = 60, 400


@pytest.fixture(scope="module")
def data() -> Data:
    rng = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(N, 8, generator=rng),
        edge_index=torch.randint(N, (2, E), generator=rng),
        y=torch.randint(4, (N, 1), generator=rng),
        edge_attr=torch.randn(E, 3, generator=rng),
        train_mask=torch.rand(N, generator=rng) < 0.5,
        val_mask=torch.rand(N, generator=rng) < 0.3,
    )


@pytest.fixture(scope="module")
def store(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return gnnstore.open(from_pyg(data, tmp_path_factory.mktemp("lazy") / "a.gnn"))


def test_labels_masks_and_splits(store: Any, data: Data) -> None:
    for name in ("y", "train_mask", "val_mask"):
        assert torch.equal(torch.as_tensor(getattr(store, name)).clone(), data[name])
    train = data.train_mask.nonzero().view(-1)
    assert torch.equal(store.splits["train"], train)
    assert torch.equal(store.train_idx, train)
    assert torch.equal(store.valid_idx, store.val_idx)
    assert torch.equal(store.labels, data.y)
    assert "train_idx" in store
    with pytest.raises(AttributeError, match="has no attribute 'test_idx'"):
        _ = store.test_idx
    again = pickle.loads(pickle.dumps(store))  # noqa: S301
    batch = next(iter(gnnstore.NeighborLoader(again, [2], again.val_mask, batch_size=N)))
    assert torch.equal(batch.input_id, data.val_mask.nonzero().view(-1))


def test_it_is_a_tensor(store: Any, data: Data, tmp_path: Path) -> None:
    x = store.x
    assert isinstance(x, torch.Tensor)
    assert (x.shape, x.dtype, x.device.type, len(x)) == ((N, 8), torch.float32, "cpu", N)
    assert repr(x) == "LazyTensor(nodes/node/x: float32 [60, 8], 1.92 kB on disk)"
    for same in (torch.as_tensor(x), copy.deepcopy(x), x.share_memory_(), x.float(), x.cpu()):
        assert type(same) is LazyTensor
        assert torch.equal(same, data.x)
    assert torch.as_tensor(x, dtype=torch.float64).equal(data.x.double())
    torch.testing.assert_close(1 + x @ x.T, 1 + data.x @ data.x.T)
    assert np.array_equal(np.asarray(x, np.float64), data.x.double())
    assert np.array_equal(np.from_dlpack(x), data.x)
    assert x.tolist() == data.x.tolist()
    assert torch.equal(torch.stack(list(x)), data.x)
    assert len(pickle.dumps(x)) < 1000
    for tensor in (x, store.edge_index, store.edge_attr, store.features):
        assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)  # noqa: S301
    torch.save(x, tmp_path / "x.pt")
    assert torch.equal(torch.load(tmp_path / "x.pt", weights_only=False), data.x)
    with pytest.raises(ValueError, match="it lies on disk, so reading it is a copy"):
        store.x.__array__(copy=False)


@pytest.mark.parametrize("kind", [GCNConv, SAGEConv, GATConv])
def test_a_model_takes_it(store: Any, data: Data, kind: Callable[..., torch.nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind(8, 4)
    found = model(store.x, store.edge_index)
    expected = model(data.x, data.edge_index)
    assert torch.equal(found, expected)
    weight = next(p for p in model.parameters() if p.dim() == 2)
    grads = [torch.autograd.grad(out.sum(), weight)[0] for out in (found, expected)]
    assert torch.equal(*grads)
    assert torch.equal(to_undirected(store.edge_index), to_undirected(data.edge_index))


def test_what_torch_and_pyg_do_with_it(store: Any, data: Data) -> None:
    assert torch.equal(default_collate([store.x, store.x]), torch.stack([data.x, data.x]))
    set_ = TensorDataset(store.x, store.y)
    x, y = next(iter(DataLoader(set_, batch_size=4, num_workers=1)))
    assert torch.equal(x, data.x[:4])
    assert torch.equal(y, data.y[:4])
    sampler = ImbalancedSampler(store.y, input_nodes=store.train_mask)
    torch.manual_seed(0)
    drawn = list(sampler)
    torch.manual_seed(0)
    assert drawn == list(ImbalancedSampler(data.y, input_nodes=data.train_mask))
    node_sampler = gnnstore.NeighborLoader(store, [2], seed=0).node_sampler
    loader = NodeLoader((store, store), node_sampler, input_nodes=store.train_mask, batch_size=N)
    batch = next(iter(loader))
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.input_id, data.train_mask.nonzero().view(-1))
    module = LightningNodeData(
        (store, store),
        input_train_nodes=store.train_mask,
        input_val_nodes=store.val_mask,
        loader="custom",
        node_sampler=node_sampler,
        batch_size=N,
        pin_memory=False,
    )
    (batch,) = module.val_dataloader()
    assert torch.equal(batch.input_id, data.val_mask.nonzero().view(-1))


@pytest.mark.parametrize("topology", ["memory", "disk"])
def test_lightning_samples_otherwise_for_evaluation(store: Any, data: Data, topology: str) -> None:
    loader = gnnstore.NeighborLoader(store, [1, 1], seed=0, strategy="direct", topology=topology)
    sampler, own = loader.node_sampler, {"num_neighbors": [-1], "replace": False}
    module = LightningNodeData(
        (store, store),
        input_train_nodes=store.train_mask,
        input_val_nodes=store.val_mask,
        loader="custom",
        node_sampler=sampler,
        batch_size=N,
        pin_memory=False,
        eval_loader_kwargs={**own, "subgraph_type": "induced", "batch_size": 3},
    )
    for batch in module.val_dataloader():
        nodes, *_ = k_hop_subgraph(batch.n_id[: batch.batch_size], 1, data.edge_index)
        assert set(batch.n_id.tolist()) == set(nodes.tolist())
        assert batch.num_edges == torch.isin(data.edge_index, nodes).all(0).sum()
    assert module.eval_graph_sampler.num_neighbors == [-1]
    (batch,) = module.train_dataloader()
    assert len(batch.num_sampled_edges) == len(sampler.num_neighbors) == 2
    assert type(sampler)(sampler.sampler, store.schema, {}, num_neighbors=[2]).num_neighbors == [2]
    with pytest.raises(UsageError, match="num_neighbors='two' is not a list of fan-outs"):
        sampler.num_neighbors = "two"


def test_attributes_of_edges_by_id(store: Any, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of few edges are looked up; ids are not read into an order of all."""
    monkeypatch.setattr("gnnstore.graph.pyg_data.order_of_ids", None)
    ids = torch.tensor([[3, -1], [399, 3]])
    edges = pickle.loads(pickle.dumps(store))  # noqa: S301
    assert torch.equal(edges.edge_attr[ids], data.edge_attr[ids])
    assert torch.equal(edges.edge_attr[5:9], data.edge_attr[5:9])
    with pytest.raises(IndexError, match=r"row id 400 at position 1 is outside \[-400, 400\)"):
        edges.edge_attr[[0, 400]]


def test_what_does_not_fit_memory_is_refused_before_it_is_read(
    store: Any, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazy, "_UNCHECKED_BYTES", 500)
    monkeypatch.setattr(lazy, "available_bytes", lambda: 1000)
    reads: list[int] = []
    gather = PagedArray.gather

    def note(array: PagedArray, ids: Any) -> Any:
        reads.append(len(ids))
        return gather(array, ids)

    monkeypatch.setattr(PagedArray, "gather", note)
    monkeypatch.setattr(PagedArray, "load", None)
    x = store.x
    whole: list[Callable[[], Any]] = [
        lambda: np.asarray(x),
        x.tensor,
        x.read,
        lambda: x[:],
        lambda: x[:, 3],
        lambda: x[[1, 2], 3],
        lambda: x[np.arange(N)],
        lambda: x + 1,
        lambda: torch.stack([x, x]),
    ]
    for read in whole:
        with pytest.raises(
            BudgetError, match=r"(?s)at once does not fit.* has 1000 bytes.* of rows"
        ):
            read()
    assert not reads
    assert torch.equal(x[[1, 2]][:, 3], data.x[[1, 2]][:, 3])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ([60], r"row id 60 at position 0 is outside \[-60, 60\)"),
        ([0, -61], r"row id -61 at position 1"),
        (60, "index 60 is out of bounds .*; choose rows, as in"),
        (slice(None, None, -1), "step must be greater than zero; choose rows"),
        ((0, 0, 0), "too many indices"),
        ([0.5], "tensors used as indices must be"),
        ("x", "invalid data type 'str'"),
        ([[1], [2, 3]], "inhomogeneous shape"),
        (np.array([True, False]), "the mask has 2 entries for 60 rows"),
    ],
)
def test_what_is_no_index(store: Any, key: Any, message: str) -> None:
    """The error is one that others catch."""
    with pytest.raises(IndexError, match=f"nodes/node/x: .*{message}") as caught:
        store.features[key]
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    "ids",
    [
        torch.tensor(3),
        torch.tensor([4, 3, 4], dtype=torch.int32),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([-1, 2]),
        torch.tensor([N]),
        torch.ones(N, dtype=torch.bool),
        torch.tensor([1], dtype=torch.int16),
        torch.empty(0, dtype=torch.int64),
    ],
)
def test_index_select_is_torch_s(store: Any, data: Data, ids: torch.Tensor) -> None:
    try:
        expected = data.x.index_select(0, ids)
    except (IndexError, RuntimeError) as error:
        with pytest.raises((type(error), IndexError)):
            store.x.index_select(0, ids)
    else:
        assert torch.equal(store.x.index_select(0, ids), expected)


def test_it_cannot_be_written_to(store: Any, data: Data) -> None:
    x = store.x
    writes: list[Callable[[], Any]] = [
        lambda: x.add_(1),
        lambda: x.__setitem__(0, 1.0),
        lambda: torch.add(data.x, data.x, out=x),
        x.data_ptr,
    ]
    for write in writes:
        with pytest.raises(UsageError, match="nodes/node/x: it "):
            write()
    with pytest.raises(IndexError, match="60"):
        torch.select(x, 0, N)
    assert x.untyped_storage().nbytes() == 0  # and no crash
    assert torch.equal(x, data.x)
