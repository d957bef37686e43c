"""`NeighborLoader` in the places where PyG users put theirs."""

from __future__ import annotations

import gc
import inspect
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch_geometric.data import Data, HeteroData
from torch_geometric.datasets import KarateClub
from torch_geometric.loader import CachedLoader, ImbalancedSampler, PrefetchLoader, ZipLoader
from torch_geometric.nn import GraphConv
from torch_geometric.sampler import NumNeighbors, SamplerOutput
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.typing import EdgeTypeStr
from torch_geometric.utils import is_undirected

import gnnstore
from gnnstore import NeighborLoader, _core
from gnnstore.converters import from_pyg
from gnnstore.errors import BudgetError, InputError, NotFoundError, UsageError
from gnnstore.loaders import pinning
from tests.support.effort import choose, paired

N, E = 100, 1500

pytestmark = pytest.mark.usefixtures("way_of_reading")


@pytest.fixture(scope="module")
def data() -> Data:
    rng = np.random.default_rng(1)
    pairs = np.unique(rng.integers(0, N, (2, E)), axis=1)
    return Data(
        x=torch.arange(N, dtype=torch.float32).view(-1, 1).repeat(1, 5),
        y=torch.from_numpy((rng.random(N) < 0.2).astype(np.int64)),
        edge_index=torch.from_numpy(pairs),
        edge_attr=torch.arange(pairs.shape[1]),
        train_mask=torch.arange(N) < 40,
    )


@pytest.fixture(scope="module")
def path(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return from_pyg(data, tmp_path_factory.mktemp("loader") / "s.gnn")


@pytest.fixture(scope="module")
def store(path: Path) -> gnnstore.GraphStore:
    return gnnstore.open(path)


def equal(a: Any, b: Any) -> bool:
    """Whether two batches hold the same under the same names, bit for bit."""
    if set(a.keys()) != set(b.keys()):
        return False
    return all(
        torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype
        if isinstance(a[k], Tensor)
        else a[k] == b[k]
        for k in a.keys()  # noqa: SIM118 - Data iterates over pairs
    )


# --- the signature and the basics ----------------------------------------------------------


@pytest.mark.ways("memory")
def test_the_positional_parameters_are_pygs() -> None:
    from torch_geometric.loader import NeighborLoader as Theirs  # noqa: PLC0415

    def positional(loader: type) -> list[tuple[str, Any]]:
        return [
            (name, parameter.default)
            for name, parameter in inspect.signature(loader).parameters.items()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]

    assert positional(NeighborLoader) == positional(Theirs)


@pytest.mark.parametrize(
    ("subgraph_type", "filter_per_worker"),
    paired([*SubgraphType, *(kind.value for kind in SubgraphType)], [None, True, False], 1),
)
def test_basics(
    store: gnnstore.GraphStore, data: Data, subgraph_type: Any, filter_per_worker: bool | None
) -> None:
    loader = NeighborLoader(
        store,
        num_neighbors=[5] * 2,
        batch_size=20,
        subgraph_type=subgraph_type,
        filter_per_worker=filter_per_worker,
    )
    assert isinstance(loader, DataLoader)
    assert repr(loader) == "NeighborLoader()"
    assert len(loader) == 5
    assert loader.batch_size == 20
    single = loader([0])
    assert isinstance(single, Data)
    assert int(single.n_id[0]) == 0
    edges = set(map(tuple, data.edge_index.t().tolist()))
    directed = SubgraphType(subgraph_type) is not SubgraphType.bidirectional
    for i, batch in enumerate(loader):
        assert type(batch) is Data
        assert batch.batch_size == batch.input_id.numel() == 20
        assert type(batch.edge_index) is Tensor
        assert batch.n_id.size() == (batch.num_nodes,)
        assert batch.x[:20, 0].tolist() == list(range(i * 20, (i + 1) * 20))
        assert batch.edge_attr.size(0) == batch.edge_index.size(1)
        if directed:
            assert set(map(tuple, batch.n_id[batch.edge_index].t().tolist())) <= edges
            assert torch.equal(batch.edge_attr, batch.e_id)
        else:
            assert is_undirected(batch.edge_index)


def test_a_path_or_a_pair_is_as_good_as_a_store(store: gnnstore.GraphStore, path: Path) -> None:
    for given in (str(path), path, (store, store)):
        (batch,) = NeighborLoader(given, [2], [3, 4], batch_size=2, seed=0)
        assert equal(batch, next(iter(NeighborLoader(store, [2], [3, 4], batch_size=2, seed=0))))


def test_a_split_by_name(store: gnnstore.GraphStore) -> None:
    loader = NeighborLoader(store, [2], "train", batch_size=40)
    (batch,) = loader
    assert batch.n_id[:40].tolist() == batch.input_id.tolist() == list(range(40))
    assert loader.input_nodes == "train"
    assert loader.input_data.node.tolist() == list(range(40))


@pytest.mark.ways("memory")
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_last_batch(store: gnnstore.GraphStore, drop_last: bool) -> None:
    loader = NeighborLoader(store, [2], batch_size=30, drop_last=drop_last, shuffle=True)
    sizes = [batch.batch_size for batch in loader]
    assert sizes == ([30] * 3 if drop_last else [30, 30, 30, 10])
    assert len(loader) == len(sizes)


def test_fanouts_as_num_neighbors(store: gnnstore.GraphStore) -> None:
    for fanouts in ((2, 3), NumNeighbors([2, 3])):
        batch = NeighborLoader(store, fanouts, seed=5)([7])
        assert equal(batch, NeighborLoader(store, [2, 3], seed=5)([7]))


def test_a_graph_without_edges(tmp_path: Path) -> None:
    lonely = Data(x=torch.rand(9, 3), edge_index=torch.empty(2, 0, dtype=torch.int64))
    store = gnnstore.open(from_pyg(lonely, tmp_path / "s.gnn"))
    for batch in NeighborLoader(store, [-1, 5], batch_size=4):
        assert batch.edge_index.shape == (2, 0)
        assert batch.num_sampled_nodes == [batch.batch_size, 0, 0]
        assert torch.equal(batch.x, lonely.x[batch.n_id])


def test_a_graph_without_attributes(tmp_path: Path) -> None:
    bare = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=4)
    store = gnnstore.open(from_pyg(bare, tmp_path / "s.gnn"))
    batches = list(NeighborLoader(store, [1], batch_size=2))
    assert [batch.n_id.tolist() for batch in batches] == [[0, 1, 2], [2, 3, 1]]
    assert [batch.num_nodes for batch in batches] == [3, 3]


def test_directed_is_deprecated(store: gnnstore.GraphStore) -> None:
    with pytest.warns(UserWarning, match="write subgraph_type='induced'"):
        loader = NeighborLoader(store, [3], directed=False, seed=1)
    assert equal(loader([4]), NeighborLoader(store, [3], subgraph_type="induced", seed=1)([4]))


class TwoLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GraphConv(34, 16), GraphConv(16, 7)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        x = self.first(x, edge_index, edge_weight).relu()
        out: Tensor = self.second(x, edge_index, edge_weight)
        return out


@pytest.mark.ways("memory", "belady")
@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_a_gnn_on_batches_equals_the_gnn_on_the_graph(tmp_path: Path, subgraph_type: str) -> None:
    torch.manual_seed(0)
    karate = KarateClub()[0]
    # The same both ways: of a bidirectional subgraph's edge, either id may be kept.
    karate.edge_weight = (karate.edge_index + 1).prod(dim=0) % 7 / 7
    store = gnnstore.open(from_pyg(karate, tmp_path / "karate.gnn"))
    model = TwoLayers()
    expected = model(karate.x, karate.edge_index, karate.edge_weight)
    for batch in NeighborLoader(store, [-1, -1], batch_size=6, subgraph_type=subgraph_type):
        out = model(batch.x, batch.edge_index, batch.edge_weight)[: batch.batch_size]
        torch.testing.assert_close(out, expected[batch.input_id], atol=1e-6, rtol=1e-5)


# --- samplers ------------------------------------------------------------------------------


def positions_of(loader: NeighborLoader) -> list[int]:
    return [int(i) for batch in loader for i in batch.input_id]


def test_any_sampler_gives_positions_in_input_nodes(store: gnnstore.GraphStore) -> None:
    nodes = torch.arange(50, 90)
    loader = NeighborLoader(store, [2], nodes, batch_size=8, sampler=[3, 1, 4, 1, 5])
    (batch,) = loader
    assert batch.input_id.tolist() == [3, 1, 4, 1, 5]
    assert batch.n_id[:5].tolist() == [53, 51, 54, 51, 55]
    assert len(loader) == 1

    subset = SubsetRandomSampler([7, 8, 9], generator=torch.Generator().manual_seed(0))
    loader = NeighborLoader(store, [2], nodes, batch_size=2, sampler=subset)
    assert sorted(positions_of(loader)) == [7, 8, 9]

    weighted = WeightedRandomSampler([0.0] * 39 + [1.0], 10)
    loader = NeighborLoader(store, [2], nodes, batch_size=4, sampler=weighted)
    assert positions_of(loader) == [39] * 10


def test_a_batch_sampler(store: gnnstore.GraphStore) -> None:
    loader = NeighborLoader(store, [2], batch_sampler=[[1, 2], [3], [4, 5, 6]])
    assert [batch.input_id.tolist() for batch in loader] == [[1, 2], [3], [4, 5, 6]]
    batches = BatchSampler(SequentialSampler(range(100)), 30, drop_last=True)
    loader = NeighborLoader(store, [2], batch_sampler=batches)
    assert [batch.batch_size for batch in loader] == [30, 30, 30]


def test_a_sampler_of_batches_without_batching(store: gnnstore.GraphStore) -> None:
    loader = NeighborLoader(store, [2], batch_size=None, sampler=[[1, 2], [3]])
    assert [batch.input_id.tolist() for batch in loader] == [[1, 2], [3]]
    loader = NeighborLoader(store, [2], [5, 6], batch_size=None, shuffle=True, seed=0)
    assert sorted(int(batch.n_id[0]) for batch in loader) == [5, 6]


@pytest.mark.ways("memory")
def test_ranks_share_the_seeds(store: gnnstore.GraphStore) -> None:
    found = []
    for rank in range(3):
        sampler: DistributedSampler[int] = DistributedSampler(
            range(99),  # type: ignore[arg-type]
            num_replicas=3,
            rank=rank,
            shuffle=True,
            seed=1,
        )
        found += positions_of(
            NeighborLoader(store, [2], range(99), batch_size=10, sampler=sampler, seed=0)
        )
    assert sorted(found) == list(range(99))


def test_an_imbalanced_sampler_repeats_seeds(store: gnnstore.GraphStore, data: Data) -> None:
    def labels() -> Tensor:
        torch.manual_seed(12345)
        sampler = ImbalancedSampler(data)
        loader = NeighborLoader(store, [3, 3], batch_size=10, sampler=sampler)
        seen = []
        for batch in loader:
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
            seen.append(batch.y[: batch.batch_size])
        return torch.cat(seen)

    assert len(labels()) == N
    assert 30 < int(labels().sum()) < 70, "a fifth of the labels, drawn as often as the others"
    assert torch.equal(labels(), labels())


@pytest.mark.ways("memory")
def test_a_position_that_does_not_exist(store: gnnstore.GraphStore) -> None:
    loader = NeighborLoader(store, [2], [5, 6], batch_size=2, sampler=[0, 1, 2, 0])
    batches = iter(loader)
    assert next(batches).n_id[:2].tolist() == [5, 6]
    with pytest.raises(InputError, match="position 2 at position 0 of 2") as caught:
        next(batches)
    assert caught.value.__notes__ == ["while preparing batch 1 of epoch 0"]


# --- transforms ----------------------------------------------------------------------------


def test_transforms_run_in_order_and_reproducibly(store: gnnstore.GraphStore) -> None:
    def noise(batch: Data) -> tuple[int, Tensor]:
        return int(batch.input_id[0]), torch.rand(3)

    def run(num_threads: int) -> list[tuple[int, Tensor]]:
        torch.manual_seed(7)
        return list(
            NeighborLoader(store, [2], batch_size=10, transform=noise, num_threads=num_threads)
        )

    first, second = run(1), run(4)
    assert [i for i, _ in first] == list(range(0, 100, 10))
    for (i, a), (j, b) in zip(first, second, strict=True):
        assert i == j
        assert torch.equal(a, b)


def test_transform_sampler_output_comes_before_the_gather(
    store: gnnstore.GraphStore, data: Data
) -> None:
    order = []

    def first_edges_only(out: SamplerOutput) -> SamplerOutput:
        order.append(int(out.metadata[0][0]))
        assert out.edge is not None
        out.row, out.col, out.edge = out.row[:7], out.col[:7], out.edge[:7]
        return out

    options: dict[str, Any] = {"batch_size": 25, "seed": 3, "num_threads": 2}
    plain = NeighborLoader(store, [3, 3], **options)
    cut = NeighborLoader(store, [3, 3], transform_sampler_output=first_edges_only, **options)
    for expected, batch in zip(plain, cut, strict=True):
        assert torch.equal(batch.edge_index, expected.edge_index[:, :7])
        assert torch.equal(batch.e_id, expected.e_id[:7])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.x, expected.x)
    assert order == [0, 25, 50, 75]
    assert cut.stats().bytes_gathered > 0

    def no_edges(out: SamplerOutput) -> SamplerOutput:
        out.edge = None
        return out

    batch = NeighborLoader(store, [2], transform_sampler_output=no_edges)([0])
    assert "e_id" not in batch
    assert "edge_attr" not in batch

    def both_ways(out: SamplerOutput) -> SamplerOutput:
        return out.to_bidirectional(keep_orig_edges=True)

    batch = NeighborLoader(store, [2], transform_sampler_output=both_ways)([0])
    assert is_undirected(batch.edge_index)
    assert batch._orig_edge_index.shape == (2, 2)


@pytest.mark.ways("memory")
@pytest.mark.parametrize("name", ["filter_fn", "collate_fn"])
def test_a_step_of_ones_own_is_never_left_out(store: gnnstore.GraphStore, name: str) -> None:
    """PyG's loaders call these methods for every batch; here, only for those of an index."""

    def marked(loader: Any, argument: Any) -> Any:
        own: Any = super(type(loader), loader)
        batch = own.filter_fn(argument) if name == "filter_fn" else own.collate_fn(argument)
        batch.is_mine = True
        return batch

    loader = type("Mine", (NeighborLoader,), {name: marked})(store, [2], [3])
    assert loader([0]).is_mine
    with pytest.raises(UsageError, match=f"{name} was replaced, .* with transform="):
        iter(loader)
    assigned = NeighborLoader(store, [2], [3])
    with pytest.raises(UsageError, match=f"{name} was replaced"):  # noqa: PT012 - either of them
        setattr(assigned, name, lambda _: None)
        iter(assigned)


@pytest.mark.ways("memory")
def test_a_class_of_ones_own(store: gnnstore.GraphStore) -> None:
    class Mine(Data):  # type: ignore[misc]
        pass

    (batch,) = NeighborLoader(store, [2], [3], custom_cls=Mine)
    assert type(batch) is Mine
    assert batch.x.shape == (3, 5)


# --- PyG's helpers -------------------------------------------------------------------------


@pytest.mark.ways("memory", "belady")
@pytest.mark.parametrize(
    ("filter_per_worker", "num_workers"),
    paired([True, False, *choose((), (None,))], [2, 0], 1),
)
def test_zip_loader(
    store: gnnstore.GraphStore, filter_per_worker: bool | None, num_workers: int
) -> None:
    loaders = [
        NeighborLoader(store, [5] * 2, torch.arange(0, 50), seed=0),
        NeighborLoader(store, [5] * 2, torch.arange(50, 95), seed=0),
    ]
    zipped = ZipLoader(
        loaders, filter_per_worker=filter_per_worker, batch_size=10, num_workers=num_workers
    )
    assert len(zipped) == 5
    for i, (first, second) in enumerate(zipped):
        assert first.n_id[: first.batch_size].tolist() == list(range(10 * i, min(10 * i + 10, 45)))
        assert second.n_id[: second.batch_size].tolist() == list(
            range(50 + 10 * i, min(60 + 10 * i, 95))
        )
        assert torch.equal(first.x[:, 0].long(), first.n_id)


def test_cached_loader(store: gnnstore.GraphStore) -> None:
    loader = CachedLoader(NeighborLoader(store, [3, 3], batch_size=20, shuffle=True))
    first, second = list(loader), list(loader)
    assert len(first) == len(loader) == 5
    for a, b in zip(first, second, strict=True):
        assert equal(a, b)


def test_prefetch_loader(store: gnnstore.GraphStore) -> None:
    loader = NeighborLoader(store, [3], batch_size=20, seed=0)
    ahead = PrefetchLoader(loader, device=torch.device("cpu"))
    loader.set_epoch(0)
    for a, b in zip(list(ahead), NeighborLoader(store, [3], batch_size=20, seed=0), strict=True):
        assert equal(a, b)


def test_a_framework_may_build_a_loader_anew_from_its_attributes(
    store: gnnstore.GraphStore,
) -> None:
    """As Lightning does to put in a sampler for distributed training."""
    original = NeighborLoader(
        store, [3, -1], "train", batch_size=8, shuffle=True, seed=9, replace=True, num_threads=2
    )
    attributes = {k: v for k, v in vars(original).items() if not k.startswith("_")}
    names = {
        *inspect.signature(NeighborLoader.__init__).parameters,
        *inspect.signature(DataLoader.__init__).parameters,
    } - {"self", "kwargs", "batch_sampler"}
    missing = names - attributes.keys() - {"shuffle", "multiprocessing_context"}
    assert not missing
    arguments = {name: attributes[name] for name in names if name in attributes}
    arguments["sampler"] = SequentialSampler(range(40))
    anew = NeighborLoader(**arguments)
    plain = NeighborLoader(store, [3, -1], "train", batch_size=8, seed=9, replace=True)
    for a, b in zip(anew, plain, strict=True):
        assert equal(a, b)


@pytest.mark.ways("memory")
def test_cpu_affinity(store: gnnstore.GraphStore) -> None:
    loader = NeighborLoader(store, [3], batch_size=20, num_workers=2, seed=0)
    expected = list(loader)
    core = min(os.sched_getaffinity(0))
    for cores in (None, [core], [[core]]):
        loader.set_epoch(0)
        with loader.enable_cpu_affinity(cores):
            assert all(equal(a, b) for a, b in zip(loader, expected, strict=True))


# --- seeds, epochs, and torch's generators -------------------------------------------------


def content(loader: NeighborLoader) -> list[list[int]]:
    return [batch.n_id.tolist() for batch in loader]


def test_epochs_differ_and_can_be_revisited(store: gnnstore.GraphStore) -> None:
    loader = NeighborLoader(store, [3, 3], batch_size=25, shuffle=True, seed=1)
    epochs = [content(loader) for _ in range(3)]
    assert loader.epoch == 3
    assert epochs[0] != epochs[1] != epochs[2]
    loader.set_epoch(1)
    assert [content(loader), content(loader)] == epochs[1:]
    with pytest.raises(UsageError, match="epoch=-1 is outside"):
        loader.set_epoch(-1)
    for epoch in epochs:  # each seed once
        assert sorted(i for ids in epoch for i in ids[:25]) == list(range(N))


def test_batches_draw_differently(store: gnnstore.GraphStore) -> None:
    loader = NeighborLoader(store, [3], batch_sampler=[[5, 6]] * 8, seed=1)
    assert len(set(map(tuple, content(loader)))) > 4


def test_manual_seed_reproduces_a_run(store: gnnstore.GraphStore) -> None:
    def run(seed: int, when: str) -> list[list[int]]:
        if when == "before":
            torch.manual_seed(seed)
        loader = NeighborLoader(store, [3], batch_size=50, shuffle=True)
        if when == "after":
            torch.manual_seed(seed)
        return content(loader) + content(loader)

    assert run(3, "before") == run(3, "before") == run(3, "after")
    assert run(3, "before") != run(4, "before")


@pytest.mark.ways("memory")
def test_a_generator_takes_the_place_of_torchs(store: gnnstore.GraphStore) -> None:
    def run(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return content(NeighborLoader(store, [3], batch_size=50, shuffle=True, generator=generator))

    state = torch.get_rng_state()
    assert run(5) == run(5) != run(6)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.ways("memory")
def test_a_given_seed_leaves_torchs_generator_alone(store: gnnstore.GraphStore) -> None:
    state = torch.get_rng_state()
    list(NeighborLoader(store, [3], batch_size=50, shuffle=True, seed=0))
    assert torch.equal(state, torch.get_rng_state())


def test_calls_on_demand_do_not_disturb_iterations(store: gnnstore.GraphStore) -> None:
    plain = NeighborLoader(store, [3], batch_size=25, seed=1)
    disturbed = NeighborLoader(store, [3], batch_size=25, seed=1)
    for a, b in zip(plain, disturbed, strict=True):
        disturbed([1, 2, 3])
        assert equal(a, b)
    assert len({tuple(disturbed([5]).n_id.tolist()) for _ in range(20)}) > 4


# --- what is refused -----------------------------------------------------------------------


class Colour(Enum):
    red = "red"


class Needy(Data):  # type: ignore[misc]
    def __init__(self, needed: Any) -> None:
        super().__init__(needed)


@pytest.mark.ways("memory")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_attr": "t"}, "time_attr='t': there is no such attribute of nodes or edges; "),
        ({"input_time": torch.ones(1)}, "input_time is set while time_attr is not"),
        ({"temporal_strategy": "first"}, "temporal_strategy='first' is unknown"),
        ({"weight_attr": "w"}, "weight_attr='w': there is no such edge attribute; there are: "),
        ({"neighbor_sampler": object()}, "neighbor_sampler: gnnstore samples with its own kernel"),
        ({"subgraph_type": "undirected"}, "='undirected' is unknown; choose one of directional, "),
        ({"subgraph_type": Colour.red}, "subgraph_type='red' is unknown; choose one of"),
        ({"subgraph_type": "induced", "disjoint": True}, "exclude each other"),
        ({"num_neighbors": {("a", "to", "b"): [2]}}, "fan-outs by edge type, and the store"),
        ({"num_neighbors": NumNeighbors({EdgeTypeStr("a__to__b"): [2]})}, "by edge type"),
        ({"num_neighbors": [-2]}, "the fan-out of hop 0 is -2"),
        ({"num_neighbors": 5}, "num_neighbors=5 is not a list of fan-outs"),
        ({"num_neighbors": [1.5]}, "is not a list of fan-outs"),
        ({"seed": -1}, "seed must be in [0, 2^64); got -1"),
        ({"strategy": "disk"}, "strategy='disk' is unknown; choose one of auto, memory, mmap"),
        ({"num_threads": -1}, "num_threads=-1: expected 0"),
        ({"num_threads": 2, "num_workers": 3}, "num_threads=2: expected 0"),
        ({"prefetch_batches": 0}, "prefetch_batches=0: at least 1 is needed"),
        ({"rank": "0", "world_size": "2"}, "rank='0' is not a whole number"),
        ({"memory": [], "strategy": "memory"}, "memory=[] is not a size"),
        ({"custom_cls": HeteroData}, "expected torch_geometric.data.Data or a subclass that is ma"),
        ({"custom_cls": Needy}, "is made without arguments: Needy.__init__() missing 1"),
        ({"custom_cls": 5}, "custom_cls=5: expected torch_geometric.data.Data or a subclass"),
        # torch's own checks and words
        ({"num_workers": -1}, "num_workers option should be non-negative"),
        ({"prefetch_factor": 2}, "prefetch_factor option could only be specified in multiproc"),
        ({"persistent_workers": True}, "persistent_workers option needs num_workers > 0"),
        ({"timeout": -1}, "timeout option should be non-negative"),
        ({"shuffle": True, "sampler": [1]}, "sampler option is mutually exclusive with shuffle"),
        ({"batch_size": 2, "batch_sampler": [[1]]}, "batch_sampler option is mutually exclusive"),
        ({"shuffle": True, "batch_sampler": [[1]]}, "batch_sampler option is mutually exclusive"),
    ],
)
def test_what_cannot_work_is_refused(
    store: gnnstore.GraphStore, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        NeighborLoader(store, **{"num_neighbors": [2], **options})
    assert message in str(caught.value)


@pytest.mark.ways("memory")
def test_other_data_is_refused(store: gnnstore.GraphStore, data: Data, tmp_path: Path) -> None:
    wrong: Any
    for wrong in (data, HeteroData(), (data, store), None):
        with pytest.raises(UsageError, match=r"expected a gnnstore\.GraphStore or the path"):
            NeighborLoader(wrong, [2])
    with pytest.raises(NotFoundError, match="no such store"):
        NeighborLoader(tmp_path / "absent.gnn", [2])
    with pytest.raises(NotFoundError, match="no split 'dev'"):
        NeighborLoader(store, [2], "dev")
    with pytest.raises(InputError, match="node id 100 at position 1 of 2 is outside the graph"):
        NeighborLoader(store, [2], [1, N])


@pytest.mark.ways("memory")
def test_options_that_have_nothing_to_apply_to(store: gnnstore.GraphStore) -> None:
    with pytest.warns(UserWarning, match="worker_init_fn of NeighborLoader have nothing to apply"):
        NeighborLoader(store, [2], worker_init_fn=print, num_workers=1)
    with pytest.warns(UserWarning, match="multiprocessing_context of NeighborLoader"):
        NeighborLoader(store, [2], multiprocessing_context="spawn", num_workers=1)


@pytest.mark.parametrize("option", ["none", "transform", "transform_sampler_output"])
def test_pinning_is_the_last_thing_that_happens(
    store: gnnstore.GraphStore, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Without a GPU nothing can be pinned; who would do it to what can be seen nevertheless."""
    pinned: list[tuple[Any, bool]] = []

    def pin(output: Any, device: str) -> Any:
        pinned.append((output, threading.current_thread() is threading.main_thread()))
        return output

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(pinning, "pin_memory", pin)
    identity: dict[str, Any] = {} if option == "none" else {option: lambda given: given}
    loader = NeighborLoader(store, [2], batch_size=25, pin_memory=True, num_threads=1, **identity)
    outputs = list(loader)
    assert [each for each, in_consumer in pinned if in_consumer == (option != "none")] == outputs
    # Before a transform as well, by a preparing thread: in the consumer's, tensors that are pinned
    # stay as they are.
    in_thread = sum(not in_consumer for _, in_consumer in pinned)
    assert in_thread == (0 if option == "transform_sampler_output" else 4)


@pytest.mark.ways("memory")
@pytest.mark.parametrize(("kind", "is_pinned"), [("xpu", True), ("mps", False), (None, False)])
def test_batches_are_pinned_for_any_accelerator_that_can(
    store: gnnstore.GraphStore, monkeypatch: pytest.MonkeyPatch, kind: str | None, is_pinned: bool
) -> None:
    found = None if kind is None else torch.device(kind)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: found)
    pinned: list[Any] = []

    def pin(output: Any, device: str) -> Any:
        pinned.append(output)
        return output

    monkeypatch.setattr(pinning, "pin_memory", pin)
    with nullcontext() if is_pinned else pytest.warns(UserWarning, match="pin_memory=True of"):
        loader = NeighborLoader(store, [2], batch_size=50, pin_memory=True)
    assert len(list(loader)) == 2
    assert len(pinned) == (2 if is_pinned else 0)


@pytest.mark.ways("memory")
@pytest.mark.parametrize("edge_format", ["coo", "csr"])
def test_pinned_copies_are_in_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edge_format: str
) -> None:
    """Without a GPU a copy takes the place of a pinned one."""
    ring = torch.stack([torch.arange(400).roll(-1), torch.arange(400)])  # batches are of one size
    path = from_pyg(Data(x=torch.rand(400, 64), edge_index=ring), tmp_path / "s.gnn")
    fourth, num_pinned = threading.Event(), itertools.count(1)

    def pin(output: Data, device: str) -> Data:
        if next(num_pinned) == 4:
            fourth.set()
        return output.clone()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(pinning, "pin_memory", pin)

    def loader(memory: int, **options: Any) -> NeighborLoader:
        return NeighborLoader(
            path,
            [1],
            batch_size=40,
            strategy="mmap",
            memory=memory,
            num_threads=2,
            edge_format=edge_format,
            **options,
        )

    def missing_bytes(**options: Any) -> int:
        with pytest.raises(BudgetError) as caught:
            loader(6000, **options)
        return caught.value.missing_bytes or 0

    missing = missing_bytes(pin_memory=True)
    assert missing - missing_bytes() > 2 * 41 * 64 * 4  # a copy of each of two batches
    # With room for some samples besides, which are not waited for.
    batches = iter(loader(22_000 + missing, pin_memory=True))
    next(batches)
    batch = next(batches)
    part = batch.edge_index[0, 1:] if edge_format == "coo" else batch.adj_t
    batch = next(batches)
    assert not fourth.wait(0.2), "beside a batch that is used, and the one after it"
    del part
    assert fourth.wait(10)
    assert len(list(batches)) == 7


@pytest.mark.ways("memory")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("transform", [None, lambda batch: (batch, batch.x + 1)])
def test_pinning(store: gnnstore.GraphStore, transform: Callable[[Data], Any] | None) -> None:
    loader = NeighborLoader(store, [2], batch_size=10, pin_memory=True, transform=transform)
    for output in loader:
        batch = output if transform is None else output[0]
        assert batch.x.is_pinned()
        assert batch.edge_index.is_pinned()
        assert transform is None or output[1].is_pinned()


# --- threads, budgets, statistics ----------------------------------------------------------


@pytest.mark.ways("memory")
def test_threads_by_any_name(store: gnnstore.GraphStore) -> None:
    assert NeighborLoader(store, [2]).num_threads >= 1
    assert NeighborLoader(store, [2], num_workers=3).num_threads == 3
    assert NeighborLoader(store, [2], num_threads=0).num_threads == 0
    assert NeighborLoader(store, [2], num_threads=3, num_workers=3).num_threads == 3
    loader = NeighborLoader(store, [2], num_workers=3, prefetch_factor=5, persistent_workers=True)
    assert loader.prefetch_batches == 15
    assert NeighborLoader(store, [2], prefetch_batches=7).prefetch_batches == 7
    assert len(list(loader)) == len(list(loader)) == N


@pytest.mark.ways("memory")
def test_a_budget_too_small_is_refused_before_any_work(store: gnnstore.GraphStore) -> None:
    with pytest.raises(BudgetError, match=r"(?s)bytes too few.*raise memory= by at least"):
        NeighborLoader(store, [2], strategy="memory", memory=10_000)


@pytest.mark.ways("mmap")
def test_a_budget_without_room_for_two_batches_is_refused_at_once(
    store: gnnstore.GraphStore,
) -> None:
    with pytest.raises(BudgetError, match=r"(?s)of batches in flight.* choose a smaller"):
        NeighborLoader(
            store, [-1, -1], strategy="mmap", topology="mmap", batch_size=100, memory="20kB"
        )


@pytest.mark.ways("mmap")
def test_a_batch_without_room_says_so(store: gnnstore.GraphStore) -> None:
    """One that is larger than those that were sampled beforehand."""
    loader = NeighborLoader(
        store, [-1, -1], strategy="mmap", topology="mmap", batch_size=100, memory="2MB"
    )
    loader._spare_bytes = 20_000
    with pytest.raises(BudgetError, match=r"(?s)and the one before it.* choose a smaller"):
        next(iter(loader))


@pytest.mark.ways("mmap")
def test_a_budget_with_room_bounds_what_is_ahead(store: gnnstore.GraphStore) -> None:
    taken = []

    class Spy:
        def __iter__(self) -> Any:
            for n in range(N):
                taken.append(n)
                yield n

    options: dict[str, Any] = {"strategy": "mmap", "topology": "mmap", "num_threads": 2, "seed": 0}
    free = NeighborLoader(store, [5], prefetch_batches=20, **options)
    bound = NeighborLoader(store, [5], sampler=Spy(), memory="6kB", prefetch_batches=20, **options)
    for k, (batch, expected) in enumerate(zip(bound, free, strict=True)):
        assert equal(batch, expected)
        assert len(taken) <= k + 12


@pytest.mark.ways("mmap")
def test_a_budget_bounds_the_buffers_too(tmp_path: Path) -> None:
    wide = Data(x=torch.rand(4000, 1024), edge_index=torch.randint(0, 4000, (2, 40_000)))
    store = gnnstore.open(from_pyg(wide, tmp_path / "s.gnn"))
    gc.collect()
    _core.pool_trim()
    held = _core.pool_stats()["bytes_in_use"]
    loader = NeighborLoader(
        store,
        [-1],
        batch_size=300,
        memory="200MB",
        strategy="mmap",
        prefetch_batches=100,
        num_threads=3,
    )
    most = 0
    for _ in range(choose(1, 3)):
        for batch in loader:
            stats = _core.pool_stats()
            most = max(most, stats["bytes_in_use"] + stats["bytes_free"] - held)
            del batch
    assert 40e6 < most < 200e6


@pytest.mark.ways("mmap")
def test_a_batch_leaves_its_buffers_to_the_next(
    store: gnnstore.GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has lain idle goes to the system before a batch is let go of, and not after."""
    living = []
    last: Any = None

    def trim(max_free_bytes: int) -> None:
        assert max_free_bytes >= 0
        if last is not None:  # not before the first batch
            living.append(last() is not None)

    monkeypatch.setattr("gnnstore.pipeline.batch.pool_trim", trim)
    options: dict[str, Any] = {"memory": "6kB", "strategy": "mmap", "topology": "mmap"}
    for batch in NeighborLoader(store, [5], num_threads=2, **options):
        last = weakref.ref(batch.x)
        del batch
    assert living == [True] * N


@pytest.mark.ways("memory")
def test_statistics_add_up(store: gnnstore.GraphStore) -> None:
    loader = NeighborLoader(store, [3, 3], batch_size=20, num_threads=2, strategy="memory", seed=0)
    batches = list(loader)
    stats = loader.stats()
    assert stats.batches == 5
    assert stats.nodes == sum(batch.num_nodes for batch in batches)
    assert stats.edges == sum(batch.num_edges for batch in batches)
    per_batch = ("x", "y", "train_mask", "edge_attr", "e_id")
    assert stats.bytes_gathered == sum(b[name].nbytes for b in batches for name in per_batch)
    for seconds in (stats.seconds_sampling, stats.seconds_gathering, stats.seconds_waiting):
        assert 0 < seconds < 60
    assert stats.peak_rss_bytes > 10**7
    assert (stats.strategy, stats.num_threads) == ("memory", 2)
    assert "asked for" in stats.reason
    assert "5 batches, sampling 0." in str(stats)

    list(loader)
    assert loader.stats().batches == 10
    assert loader.stats().since(stats).batches == 5
    assert loader.stats().since(stats).strategy == "memory"


def test_the_choice_is_logged(store: gnnstore.GraphStore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gnnstore"):
        loader = NeighborLoader(store, [2])
    messages = [record.message for record in caplog.records if "loaders" in record.name]
    assert messages == [f"{store.path}: {loader.stats().reason}"]


def test_tensors_of_a_batch_may_be_kept_and_changed(store: gnnstore.GraphStore) -> None:
    loader = NeighborLoader(store, [-1, -1], batch_size=20, seed=0)
    kept = list(loader)
    copies = [batch.clone() for batch in kept]
    for batch in loader:  # reuses buffers, but none that is held
        batch.x.fill_(-1)
        batch.edge_attr.fill_(-1)
    assert all(equal(a, b) for a, b in zip(kept, copies, strict=True))
