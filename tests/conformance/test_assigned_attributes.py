"""Which attributes batches have: those that a loader names, and tensors assigned to the store."""

from __future__ import annotations

import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

import gnnstore
from gnnstore.converters import from_pyg
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import BudgetError, NotFoundError, UsageError
from gnnstore.strategies.registry import STRATEGIES
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose
from tests.support.hetero import WRITES, hetero_store, make_hetero
from tests.support.packing import pack

N, E = 400, 3000
OPTIONS: dict[str, Any] = {"batch_size": 40, "shuffle": True, "seed": 3, "num_threads": 2}


@pytest.fixture(scope="module")
def data() -> Data:
    rng = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(N, 16, generator=rng),
        edge_index=torch.randint(N, (2, E), generator=rng),
        y=torch.randint(4, (N,), generator=rng),
        time=torch.randint(99, (N,), generator=rng),
        edge_attr=torch.randn(E, 2, generator=rng),
        train_mask=torch.rand(N, generator=rng) < 0.5,
    )


@pytest.fixture(scope="module")
def path(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("assigned") / "a.gnn"
    return Path(from_pyg(data, path, time_attr=("time",)))


def opened(path: Path) -> Any:
    """Return the store with two attributes assigned."""
    store: Any = gnnstore.open(path)
    store.rank = np.arange(N) * 2
    store.code = torch.arange(3.0 * N).reshape(N, 3).bfloat16()
    return store


@pytest.fixture(scope="module")
def expected(path: Path) -> Batches:
    """Return the batches of two epochs, with all attributes, read in memory."""
    loader = gnnstore.NeighborLoader(opened(path), [4, 3], "train", strategy="memory", **OPTIONS)
    return batches_of(loader, 2)


def test_assigned_ones_come_by_node(path: Path, expected: Batches) -> None:
    store = opened(path)
    for batch in expected:
        assert torch.equal(batch["rank"], 2 * batch["n_id"])
        assert torch.equal(batch["code"], store.code[batch["n_id"]])


@pytest.mark.parametrize(
    "strategy", choose(["direct", "static", "packed"], [*STRATEGIES.names, "auto"])
)
def test_every_strategy_gives_the_same(path: Path, expected: Batches, strategy: str) -> None:
    """Also of some attributes; and features that no batch shows are not read."""
    more: dict[str, Any] = (
        {"superbatch": 3} if strategy in STRATEGIES and STRATEGIES[strategy].plans else {}
    )
    if strategy in STRATEGIES and STRATEGIES[strategy].reads_disk:
        more |= {"cache_bytes": "5kB"}
    store = opened(path)
    for names in (None, ["y", "rank"], ["x", "edge_attr"], []):
        loader = gnnstore.NeighborLoader(
            store, [4, 3], "train", strategy=strategy, attributes=names, **OPTIONS, **more
        )
        shown = {"x", "y", "time", "train_mask", "rank", "code", "edge_attr"}
        left_out = set() if names is None else shown - set(names)
        wanted = [{k: v for k, v in each.items() if k not in left_out} for each in expected]
        assert_same_batches(batches_of(loader, 2), wanted)
        if "x" in left_out:
            assert not any("nodes/node/x" in path for path in loader._sources.tables)


def test_loaders_of_one_budget_show_other_attributes(path: Path, expected: Batches) -> None:
    """An evaluation loader comes in mid-epoch, and takes nothing from the other's cache."""
    for strategy in ("static", "belady", "packed"):
        store = opened(path)
        given = OPTIONS | {"strategy": strategy, "memory": "60MB"}
        train = gnnstore.NeighborLoader(store, [4, 3], "train", **given)
        valid = gnnstore.NeighborLoader(store, [4, 3], "train", attributes=["x", "y"], **given)
        found = []
        for i, batch in enumerate(train):
            found.append(batch.to_dict())
            if i == 1:
                for own, other in zip(valid, expected, strict=False):
                    assert torch.equal(own.x, other["x"])
                    assert "rank" not in own
        assert_same_batches(found, expected[: len(found)])


def test_they_are_copies(path: Path) -> None:
    """Sending a tensor to a process moves its memory; neither that nor writes change batches."""
    given = torch.arange(N) * 2
    store: Any = gnnstore.open(path)
    store.rank = given
    loader = gnnstore.NeighborLoader(store, [3], batch_size=40, seed=0)
    state = loader.state_dict()
    given.share_memory_()
    store.rank.share_memory_()
    given.add_(5)
    for batch in loader:
        assert torch.equal(batch.rank, 2 * batch.n_id)
    assert torch.equal(store.rank, 2 * torch.arange(N))
    gnnstore.NeighborLoader(store, [3], batch_size=40, seed=0).load_state_dict(state)
    store.to_pyg().rank.zero_()
    with pytest.raises(UsageError, match="'rank': it belongs to a store and cannot be written to"):
        store.rank[:] = 7
    assert torch.equal(store.rank, 2 * torch.arange(N))
    store.rank = 0 * store.rank
    gnnstore.NeighborLoader(store, [3])


def test_resumed_and_pickled(path: Path, expected: Batches) -> None:
    def loader(store: Any, **options: Any) -> Any:
        return gnnstore.NeighborLoader(store, [4, 3], "train", **OPTIONS, **options)

    first = loader(opened(path))
    for _ in zip(range(2), first, strict=False):
        pass
    state = first.state_dict()
    again = loader(pickle.loads(pickle.dumps(opened(path))))  # noqa: S301
    again.load_state_dict(state)
    assert_same_batches(batches_of(again), expected[2 : len(again)])
    changed = opened(path)
    changed.rank = torch.zeros(N)
    with pytest.raises(UsageError, match=r"crc32c of the assigned node\.rank: expected .* found"):
        loader(changed).load_state_dict(state)
    with pytest.raises(UsageError, match=r"attributes: expected \['y'\], found nothing"):
        loader(opened(path), attributes=["y"]).load_state_dict(state)


def test_packed_epochs_and_partitions(
    path: Path, expected: Batches, data: Data, tmp_path: Path
) -> None:
    pack(path, [4, 3], batch_size=40)
    loader = gnnstore.NeighborLoader(opened(path), [4, 3], "train", packed="base", **OPTIONS)
    assert_same_batches(batches_of(loader), expected[: len(loader)])
    with pytest.raises(UsageError, match=r"packed= has no use for attributes=\['y'\]"):
        gnnstore.NeighborLoader(path, [4, 3], "train", packed="base", attributes=["y"], **OPTIONS)
    other = Path(from_pyg(data, tmp_path / "b.gnn"))
    partition(other, 4)
    policy = gnnstore.PartitionPolicy("dispersed", capacity=0.5)
    store: Any = gnnstore.open(other)
    store.rank = torch.arange(N)
    loader = gnnstore.NeighborLoader(
        store, [4], "train", partitions=policy, attributes=["y", "rank"], **OPTIONS
    )
    for batch in loader:
        assert torch.equal(batch.rank, batch.n_id)
        assert torch.equal(batch.y, data.y[batch.n_id])
        assert "x" not in batch


def test_times_that_no_batch_shows(path: Path, data: Data) -> None:
    options = OPTIONS | {"time_attr": "time", "batch_size": 1}
    whole = gnnstore.NeighborLoader(path, [4, 3], "train", **options)
    some = gnnstore.NeighborLoader(path, [4, 3], "train", attributes=["y"], **options)
    for batch, other in islice(zip(whole, some, strict=True), choose(20, None)):
        assert torch.equal(batch.n_id, other.n_id)
        assert "time" not in other


def test_csr_needs_its_values(path: Path, data: Data, tmp_path: Path) -> None:
    weighted = Data(x=data.x, y=data.y, edge_index=data.edge_index, w=torch.rand(E))
    store = gnnstore.open(from_pyg(weighted, tmp_path / "c.gnn"))
    given = OPTIONS | {"edge_format": "csr", "adj_value": "w"}
    some = gnnstore.NeighborLoader(store, [4], attributes=["y"], **given)
    whole = gnnstore.NeighborLoader(store, [4], **given)
    for batch, other in zip(some, whole, strict=True):
        assert torch.equal(batch.adj_t.values(), other.adj_t.values())
        assert "x" not in batch


def test_link_loaders(path: Path, data: Data) -> None:
    loader = gnnstore.LinkNeighborLoader(
        opened(path), [3], neg_sampling="binary", attributes=["rank"], **OPTIONS
    )
    batch = next(iter(loader))
    assert torch.equal(batch.rank, 2 * batch.n_id)
    assert not {"x", "y", "edge_attr"} & set(batch.keys())


def test_stores_of_several_types(tmp_path: Path) -> None:
    data = make_hetero()
    store: Any = hetero_store(tmp_path / "a.gnn", data)
    for name in ("paper", "author"):
        store[name].rank = torch.arange(store[name].num_nodes)
    assert torch.equal(store["paper"].rank, torch.arange(60))
    assert "rank" in store["paper"]
    assert "x" in store["paper"]
    assert "rank" not in store["institution"]
    store = pickle.loads(pickle.dumps(store))  # noqa: S301
    for strategy in ("memory", "static", "packed"):
        loader = gnnstore.NeighborLoader(
            store, [3, 3], ("paper", None), batch_size=20, strategy=strategy, attributes=["rank"]
        )
        for batch in loader:
            for name in ("paper", "author"):
                assert torch.equal(batch[name].rank, batch[name].n_id)
            assert "x" not in batch["paper"]
            assert "rank" not in batch["institution"]
    whole = store.to_pyg()
    assert torch.equal(whole["author"].rank, torch.arange(35))
    store["paper"].y = store["paper"].y
    store["paper"].x = store["paper"].x
    with pytest.raises(UsageError, match="'x' cannot be assigned to"):
        store["paper"].x = torch.zeros(60)
    with pytest.raises(AttributeError, match="no attribute 'w'"):
        store[WRITES].w = torch.zeros(store[WRITES].num_edges)
    del store["paper"].rank
    with pytest.raises(AttributeError, match="nothing was assigned to 'rank' of 'paper'"):
        del store["paper"].rank


def test_what_a_store_has_of_them(path: Path, data: Data) -> None:
    store = opened(path)
    assert "rank" in store
    assert store.rank.tolist() == [2 * i for i in range(N)]
    assert torch.equal(store.to_pyg().code, store.code)
    sampler = gnnstore.NeighborLoader(store, [3], seed=0).node_sampler
    batch = next(iter(NodeLoader((store, store), sampler, torch.arange(9), batch_size=5)))
    assert torch.equal(batch.rank, 2 * batch.n_id)
    store.rank = "no tensor"
    assert "rank" not in store
    store.rank = torch.ones(N)
    assert store.rank.sum() == N
    del store.rank
    assert "rank" not in store
    with pytest.raises(AttributeError, match="rank"):
        _ = store.rank


def test_what_cannot_be_shown(path: Path, data: Data) -> None:
    store = opened(path)
    for value in (torch.zeros(N, requires_grad=True), torch.zeros(N).to_sparse()):
        with pytest.raises(UsageError, match="rows of dense tensors in the memory of the CPU"):
            store.rank = value
    with pytest.raises(UsageError, match="'w': attributes of edges cannot be assigned"):
        store.w = torch.zeros(E)
    with pytest.raises(UsageError, match=r"'x' cannot be deleted; .* attributes=\['y'\]"):
        del store.x
    with pytest.raises(UsageError, match=r"attributes='y': expected a list of names"):
        gnnstore.NeighborLoader(store, [2], attributes="y")
    with pytest.raises(NotFoundError, match=r"an attribute 'z'; there are: .*x, y.* rank"):
        gnnstore.NeighborLoader(store, [2], attributes=["z"])
    with pytest.raises(UsageError, match=r"'num_nodes' of 'node' cannot be assigned to"):
        store["node"].num_nodes = 3


@pytest.mark.parametrize(
    "value",
    [
        np.arange(N)[::-1],
        np.arange(N).astype(">i8"),
        np.broadcast_to(np.float32(1), N),
        torch.arange(N).to(torch.complex64).mul(1j).conj(),
        torch.arange(2 * N).view(N, 2).T.contiguous().T,
    ],
)
def test_any_layout(path: Path, value: Any) -> None:
    store: Any = gnnstore.open(path)
    store.rank = value
    batch = next(iter(gnnstore.NeighborLoader(store, [2], **OPTIONS)))
    assert batch.rank.tolist() == value[batch.n_id.numpy()].tolist()


def test_their_memory_is_in_the_budget(path: Path) -> None:
    store: Any = gnnstore.open(path)
    store.wide = torch.zeros(N, 30_000)  # 48 MB
    with pytest.raises(BudgetError):
        gnnstore.NeighborLoader(store, [2], batch_size=1, memory="40MB")
    gnnstore.NeighborLoader(store, [2], batch_size=1, memory="40MB", attributes=["y"])
