"""`NeighborLoader` on graphs of several types gives the batches of PyG's, as `HeteroData`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NumNeighbors

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.errors import InputError, NotFoundError, UsageError
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose
from tests.support.hetero import (
    AT,
    CITES,
    TEACHES,
    WRITES,
    WRITTEN_BY,
    hetero_store,
    make_hetero,
)

DATA = make_hetero()
TYPES = {CITES: [3, 2], WRITES: [2, 2], WRITTEN_BY: [2, 1], TEACHES: [1, 1], AT: [4, 4]}
TRAIN = ("paper", "train")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hetero_store(tmp_path_factory.mktemp("typed") / "s.gnn", DATA).path


@pytest.fixture
def store(path: Path) -> gnnstore.GraphStore:
    return gnnstore.open(path)


def check_batch(batch: HeteroData, data: HeteroData = DATA, *, has_edges: bool = True) -> None:
    """Compare all that a batch shows of the graph with the graph, type by type."""
    assert batch.node_types == data.node_types
    assert batch.edge_types == data.edge_types
    batch.validate()
    for name in data.node_types:
        rows, own = batch[name], data[name]
        for key, value in own.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(rows[key], value[rows.n_id]), (name, key)
        assert rows.num_nodes == len(rows.n_id)
        assert ("num_nodes" in rows) == ("num_nodes" in own)
    for kind in data.edge_types:
        edges, own = batch[kind], data[kind]
        assert edges.edge_index.dtype == torch.int64
        assert edges.edge_index.shape[0] == 2
        if not has_edges:
            continue
        source, target = batch[kind[0]].n_id, batch[kind[2]].n_id
        ends = torch.stack([source[edges.edge_index[0]], target[edges.edge_index[1]]])
        assert torch.equal(ends, own.edge_index[:, edges.e_id]), kind
        assert (edges.edge_index[1].diff() >= 0).all()
        for key in own:
            if key != "edge_index":
                assert torch.equal(edges[key], own[key][edges.e_id]), (kind, key)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replace": True},
        {"disjoint": True},
        {"subgraph_type": "induced"},
        {"num_neighbors": [-1, -1]},
        {"num_neighbors": TYPES},
        {"num_neighbors": []},
        {"input_nodes": "author"},
        {"input_nodes": {"paper": "train", "author": [3, 3, 9]}},
        {"num_neighbors": [0, 3]},
    ],
)
def test_batches_are_parts_of_the_graph(path: Path, options: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"num_neighbors": [3, 2], "input_nodes": TRAIN, "batch_size": 8}
    arguments |= options
    loader = NeighborLoader(path, **arguments, seed=1)
    assert repr(loader) == "NeighborLoader()"
    count = 0
    for batch in loader:
        assert type(batch) is HeteroData
        check_batch(batch)
        assert batch.name == "example"
        assert batch.input_type == ("author" if options.get("input_nodes") == "author" else "paper")
        for name in loader.input_offsets:
            size = batch[name].batch_size
            assert len(batch[name].input_id) == size
            assert len(batch[name].n_id) >= size
            count += size
        if "subgraph_type" in options:
            assert "num_sampled_nodes" not in batch["paper"]
            continue
        num_hops = len(arguments["num_neighbors"])
        if isinstance(arguments["num_neighbors"], dict):
            num_hops = 2
        for name in batch.node_types:
            hops = batch[name].num_sampled_nodes
            assert len(hops) == num_hops + 1
            assert sum(hops) == batch[name].num_nodes
            assert hops[0] == batch[name].get("batch_size", 0)
        for kind in batch.edge_types:
            assert len(batch[kind].num_sampled_edges) == num_hops
            assert sum(batch[kind].num_sampled_edges) == batch[kind].num_edges
        assert ("batch" in batch["institution"]) == bool(options.get("disjoint"))
    assert count == len(loader._seeds)


def test_order_of_a_batchs_attributes(path: Path) -> None:
    """As in PyG: those of the graph, in its order, and then what describes the sample."""
    batch = next(iter(NeighborLoader(path, [2], TRAIN, batch_size=4, disjoint=True)))
    assert list(batch["paper"].keys()) == [
        *("x", "time", "y", "train_mask", "val_mask", "n_id", "batch", "num_sampled_nodes"),
        *("input_id", "batch_size"),
    ]
    assert list(batch["institution"].keys()) == ["num_nodes", "n_id", "batch", "num_sampled_nodes"]
    assert list(batch[CITES].keys()) == [
        *("edge_index", "edge_time", "w", "edge_attr", "e_id", "num_sampled_edges")
    ]


def test_a_few_fanouts_per_edge_type(store: gnnstore.GraphStore) -> None:
    """A fan-out is of an edge type and a target; draws of a type do not depend on the others."""
    loaders = {
        "all": NeighborLoader(store, TYPES, TRAIN, batch_size=64, seed=4),
        "same": NeighborLoader(
            store,
            NumNeighbors({"paper__cites__paper": [3, 2], WRITES: [2, 2]}, default=[0, 0]),
            TRAIN,
            batch_size=64,
            seed=4,
        ),
    }
    found = {name: next(iter(loader)) for name, loader in loaders.items()}
    for kind, fanouts in TYPES.items():
        edges = found["all"][kind].edge_index[1]
        if edges.numel():
            assert edges.bincount().max() <= max(fanouts)
    assert found["same"][TEACHES].num_edges == found["same"][WRITTEN_BY].num_edges == 0
    size = found["all"]["paper"].batch_size
    for kind in (CITES, WRITES):  # of the first hop
        first = [found[name][kind].num_sampled_edges[0] for name in found]
        assert first[0] == first[1] > 0
        ids = [found[name][kind].e_id[: first[0]] for name in found]
        assert torch.equal(*ids)
        assert (found["all"][kind].edge_index[1][: first[0]] < size).all()


@pytest.mark.parametrize(
    ("fanouts", "message"),
    [
        ({CITES: [2]}, r"Missing number of neighbors for edge type '\('author', 'writes', 'paper'"),
        ({**TYPES, ("paper", "x", "paper"): [1, 1]}, r"Not all edge types specified in 'num_neigh"),
        ({**TYPES, CITES: [2]}, "Number of hops must be the same across all edge types"),
        (
            {"paper": [2]},
            r"num_neighbors: Cannot convert the edge type 'paper'.*there are",
        ),
        ({CITES: 3}, "give a list with a fan-out for each hop"),
        ({**TYPES, CITES: [2, -2]}, "fan-out of hop 1 is -2"),
    ],
)
def test_fanouts_that_cannot_be(path: Path, fanouts: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        NeighborLoader(path, fanouts, TRAIN)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("author", ("author", range(35), range(35))),
        (("author", None), ("author", range(35), range(35))),
        (("author", [4, 2, 4]), ("author", [4, 2, 4], range(3))),
        (["author", torch.tensor([4, 2])], ("author", [4, 2], range(2))),
        (("author", torch.arange(35) % 7 == 0), ("author", range(0, 35, 7), range(0, 35, 7))),
        (("paper", "val"), ("paper", DATA["paper"].val_mask.nonzero()[:, 0].tolist(), None)),
        ("train", ("paper", DATA["paper"].train_mask.nonzero()[:, 0].tolist(), None)),
        (("paper", "train_mask"), ("paper", DATA["paper"].train_mask.nonzero()[:, 0].tolist(), 0)),
        ("val_mask", ("paper", DATA["paper"].val_mask.nonzero()[:, 0].tolist(), 0)),
    ],
)
def test_seeds_by_type(path: Path, nodes: Any, expected: tuple[str, Any, Any]) -> None:
    node_type, ids, input_ids = expected
    loader = NeighborLoader(path, [1], nodes, batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = list(loader)
    seeds = [batch[node_type].n_id[: batch[node_type].batch_size] for batch in batches]
    assert torch.cat(seeds).tolist() == list(ids)
    shown = range(len(ids)) if input_ids is None else (ids if input_ids == 0 else input_ids)
    assert torch.cat([batch[node_type].input_id for batch in batches]).tolist() == list(shown)
    assert loader.input_offsets == {node_type: (0, len(ids))}
    given = loader.input_data
    assert (given.input_type, given.node.tolist()) == (node_type, list(ids))


@pytest.mark.parametrize(
    ("nodes", "message", "error"),
    [
        (None, r"input_nodes=\('paper', 'train'\).*'paper' \(splits: train, valid\)", UsageError),
        ([3, 4], "input_nodes does not name a node type", UsageError),
        (
            "venue",
            "input_nodes='venue' is not .*mask in no type; give",
            UsageError,
        ),
        (("venue", None), "no node type 'venue'; there are: 'paper', 'author'", UsageError),
        ({"venue": None}, "no node type 'venue'; there are: 'paper', 'author'", UsageError),
        ({}, r"input_nodes does not name a node type.*example input_nodes=", UsageError),
        (("author", "train"), "there is no split 'train'; the store's splits: none", NotFoundError),
        (
            ("author", [35]),
            "node id 35 at position 0 of 1 is outside 'author', which has",
            InputError,
        ),
        (("author", [True] * 3), "the mask in input_nodes has 3 entries for 35 nodes", InputError),
        ({"author": [1.5]}, "element type float64; give node ids", InputError),
    ],
)
def test_seeds_that_cannot_be(path: Path, nodes: Any, message: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=message):
        NeighborLoader(path, [1], nodes)


def test_a_split_of_several_types(tmp_path: Path) -> None:
    data = make_hetero()
    data["author"].train_mask = torch.arange(35) % 2 == 0
    store = hetero_store(tmp_path / "s.gnn", data)
    with pytest.raises(UsageError, match=r"'train' is not a node type.* mask in 'paper', 'aut"):
        NeighborLoader(store, [1], "train")
    loader = NeighborLoader(store, [1], {"author": "train", "paper": "train"}, batch_size=16)
    assert list(loader.input_offsets) == ["paper", "author"]


def test_no_edge_leads_to_the_seeds(tmp_path: Path) -> None:
    """[I pyg#7280]: one warning, and batches of seeds."""
    degrees = {("author", "writes", "paper"): 3}
    store = hetero_store(tmp_path / "s.gnn", make_hetero(degrees=degrees))
    with pytest.warns(UserWarning, match="no edge type leads to 'author', so batches") as caught:
        loader = NeighborLoader(store, [2, 2], "author", batch_size=10)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    for batch in loader:
        assert batch["author"].num_sampled_nodes == [batch["author"].batch_size, 0, 0]
        assert batch["paper"].num_nodes == batch[WRITES].num_edges == 0
        assert batch["paper"].x.shape == (0, 8)


def test_types_without_nodes_or_edges(tmp_path: Path) -> None:
    """[I pyg#7584, #7060]: right empty shapes and types."""
    counts = {"paper": 20, "author": 0, "institution": 4}
    degrees = {CITES: 0, WRITES: 3, AT: 0}
    store = hetero_store(tmp_path / "s.gnn", make_hetero(counts=counts, degrees=degrees))
    for batch in NeighborLoader(store, [2, 2], "paper", batch_size=7):
        assert batch["author"].x.shape == (0, 3)
        assert batch["author"].n_id.dtype == torch.int64
        for kind in batch.edge_types:
            assert batch[kind].edge_index.shape == (2, 0)
            assert batch[kind].edge_index.dtype == batch[kind].e_id.dtype == torch.int64
        assert batch[CITES].edge_attr.shape == (0, 2)
        assert batch["paper"].num_sampled_nodes == [batch["paper"].batch_size, 0, 0]


def test_one_named_type_is_heterogeneous_too(tmp_path: Path) -> None:
    data = make_hetero(counts={"paper": 40}, degrees={CITES: 4})
    store = hetero_store(tmp_path / "s.gnn", data)
    ways: list[dict[str, Any]] = [
        {},
        {"strategy": "belady", "cache_bytes": "1kB"},
        {"strategy": "direct", "topology": "disk"},
    ]
    for options in ways:
        for batch in NeighborLoader(store, [2, 2], TRAIN, batch_size=7, seed=0, **options):
            check_batch(batch, data)


def test_equal_counts_keep_their_owner(tmp_path: Path) -> None:
    """[I pyg#3626]: N == E within a type, and N of both ends == E."""
    counts = {"paper": 12, "author": 12}
    degrees = {CITES: 1, WRITES: 1}
    data = make_hetero(counts=counts, degrees=degrees)
    store = hetero_store(tmp_path / "s.gnn", data)
    for batch in NeighborLoader(store, [-1], "paper", batch_size=5):
        check_batch(batch, data)


# --- seeds of several types ------------------------------------------------------------------

SEVERAL = {"paper": "train", "author": [3, 3, 9, 30, 11, 2, 0]}


def test_one_type_equals_the_tuple(path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 2}
    expected = batches_of(NeighborLoader(path, [2, 2], TRAIN, **options), 2)
    found = batches_of(NeighborLoader(path, [2, 2], {"paper": "train"}, **options), 2)
    assert_same_batches(found, expected)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("disjoint", choose([True], [False, True]))
def test_seeds_of_several_types(path: Path, shuffle: bool, drop_last: bool, disjoint: bool) -> None:
    options: dict[str, Any] = {
        "batch_size": 8,
        "shuffle": shuffle,
        "seed": 2,
        "drop_last": drop_last,
        "disjoint": disjoint,
    }
    loader = NeighborLoader(path, [2, 2], SEVERAL, **options)
    num_papers = int(DATA["paper"].train_mask.sum())
    total = num_papers + 7
    assert loader.input_offsets == {"paper": (0, num_papers), "author": (num_papers, total)}
    batches = list(loader)
    assert len(batches) == len(loader) == (total // 8 if drop_last else -(-total // 8))
    seen: dict[str, list[int]] = {"paper": [], "author": []}
    for batch in batches:
        check_batch(batch)
        assert batch.input_type == "paper"
        sizes = [batch[name].batch_size for name in SEVERAL]
        assert sum(sizes) == 8 or batch is batches[-1]
        places = []
        for name in SEVERAL:
            size = batch[name].batch_size
            assert batch[name].num_sampled_nodes[0] == size
            assert batch[name].input_id.dtype == torch.int64
            seen[name] += batch[name].input_id.tolist()
            ids = {"paper": DATA["paper"].train_mask.nonzero()[:, 0], "author": None}[name]
            chosen = torch.tensor(SEVERAL["author"]) if ids is None else ids
            assert torch.equal(batch[name].n_id[:size], chosen[batch[name].input_id])
            if disjoint:
                places += batch[name].batch[:size].tolist()
        if disjoint:
            assert sorted(places) == list(range(sum(sizes)))
            for kind in batch.edge_types:
                trees = batch[kind[0]].batch, batch[kind[2]].batch
                ends = batch[kind].edge_index
                assert torch.equal(trees[0][ends[0]], trees[1][ends[1]])
    if not drop_last:
        assert sorted(seen["paper"]) == list(range(num_papers))
        assert sorted(seen["author"]) == list(range(7))
    if not shuffle:  # type after type, in the store's order
        assert batches[0]["author"].batch_size == 0
        assert batches[0]["author"].input_id.tolist() == []
    reordered = dict(reversed(SEVERAL.items()))
    again = NeighborLoader(path, [2, 2], reordered, **options)
    assert again.state_dict()["fingerprint"] == loader.state_dict()["fingerprint"]
    assert_same_batches(batches_of(again), [batch.to_dict() for batch in batches])


def test_a_sampler_gives_positions_of_all_types(path: Path) -> None:
    loader = NeighborLoader(path, [2], SEVERAL, batch_sampler=[[0, 33, 31], [36, 35]])
    first, second = loader
    num_papers = loader.input_offsets["author"][0]
    assert first["paper"].batch_size + first["author"].batch_size == 3
    assert second["author"].input_id.tolist() == [36 - num_papers, 35 - num_papers]
    assert second["paper"].batch_size == 0


def test_ids_by_type(path: Path) -> None:
    ids = {"author": torch.tensor([7, 8, 9]), "paper": [100, 101]}
    nodes = {"paper": [5, 6], "author": [1, 2, 3]}
    (batch,) = NeighborLoader(path, [1], nodes, input_id=ids, batch_size=9)
    assert batch["paper"].input_id.tolist() == [100, 101]
    assert batch["author"].input_id.tolist() == [7, 8, 9]
    with pytest.raises(UsageError, match="input_id: input_nodes lists node types, so give a dict"):
        NeighborLoader(path, [1], nodes, input_id=[1, 2])
    with pytest.raises(UsageError, match=r"input_id has values of \['venue'\]"):
        NeighborLoader(path, [1], nodes, input_id={"venue": [1]})
    with pytest.raises(UsageError, match="the seeds are of the node types"):
        NeighborLoader(path, [1], nodes).input_data  # noqa: B018


# --- the same batches however they come ------------------------------------------------------


def test_states_of_other_loaders(path: Path) -> None:
    options: dict[str, Any] = {"num_neighbors": TYPES, "input_nodes": SEVERAL, "batch_size": 6}
    state = NeighborLoader(path, **options).state_dict()
    for change in (
        {"num_neighbors": [3, 2]},
        {"num_neighbors": {**TYPES, AT: [1, 1]}},
        {"input_nodes": TRAIN},
        {"input_nodes": {**SEVERAL, "author": [3, 3, 9, 30, 11, 2, 1]}},
    ):
        with pytest.raises(UsageError, match="not of a loader like this one"):
            NeighborLoader(path, **(options | change)).load_state_dict(state)


# --- PyG's habits ----------------------------------------------------------------------------


def test_transforms(path: Path) -> None:
    def drop_last_node(out: Any) -> Any:
        assert list(out.node) == DATA.node_types
        assert list(out.row) == DATA.edge_types
        kept = out.col[WRITTEN_BY] < 0
        out.row[WRITTEN_BY], out.col[WRITTEN_BY] = (
            out.row[WRITTEN_BY][kept],
            out.col[WRITTEN_BY][kept],
        )
        out.edge[WRITTEN_BY] = out.edge[WRITTEN_BY][kept]
        return out

    def mark(batch: HeteroData) -> HeteroData:
        batch["paper"].seen = True
        return batch

    plain = batches_of(NeighborLoader(path, [3, 2], TRAIN, batch_size=8, seed=1))
    for options in ({}, {"strategy": "packed", "superbatch": 2, "cache_bytes": "1kB"}):
        arguments: dict[str, Any] = {"batch_size": 8, "seed": 1, **options}
        same = NeighborLoader(
            path, [3, 2], TRAIN, transform_sampler_output=lambda o: o, **arguments
        )
        assert_same_batches(batches_of(same), plain)
        loader = NeighborLoader(
            *(path, [3, 2], TRAIN),
            transform_sampler_output=drop_last_node,
            transform=mark,
            **arguments,
        )
        for batch in loader:
            check_batch(batch)
            assert batch[WRITTEN_BY].num_edges == 0
            assert batch["paper"].seen


def test_a_batch_on_demand(path: Path) -> None:
    loader = NeighborLoader(path, [-1], TRAIN, batch_size=8)
    batch = loader([2, 0])
    check_batch(batch)
    assert batch["paper"].input_id.tolist() == [2, 0]
    output = NeighborLoader(path, [-1], TRAIN, filter_per_worker=False).collate_fn([2, 0])
    assert output.metadata[0].tolist() == [2, 0]
    several = NeighborLoader(path, [-1], SEVERAL)([0, 33])
    assert several["author"].batch_size + several["paper"].batch_size == 2


def test_custom_class(path: Path) -> None:
    class Mine(HeteroData):  # type: ignore[misc]
        pass

    assert type(next(iter(NeighborLoader(path, [1], TRAIN, custom_cls=Mine)))) is Mine
    with pytest.raises(UsageError, match=r"expected torch_geometric\.data\.HeteroData or a subcl"):
        NeighborLoader(path, [1], TRAIN, custom_cls=Data)


def test_pygs_own_loader_takes_the_sampler(path: Path) -> None:
    from torch_geometric.loader import NodeLoader  # noqa: PLC0415

    store = gnnstore.open(path)
    sampler = NeighborLoader(store, [2, 2], TRAIN, seed=1).node_sampler
    assert sampler.num_neighbors == [2, 2]
    loader = NodeLoader(DATA, node_sampler=sampler, input_nodes=("paper", DATA["paper"].train_mask))
    for batch in loader:
        check_batch(batch)
        assert batch["paper"].batch_size == 1


def test_what_works_on_one_numbering_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="partitions= works on stores whose nodes have one type"):
        NeighborLoader(
            path, [1], TRAIN, partitions=gnnstore.PartitionPolicy("dispersed", capacity=0.5)
        )


def test_copies_share_data(path: Path) -> None:
    import copy  # noqa: PLC0415
    import pickle  # noqa: PLC0415

    loader = NeighborLoader(path, [3, 2], SEVERAL, batch_size=6, seed=3)
    copied = copy.copy(loader)
    assert_same_batches(batches_of(copied), batches_of(loader))
    assembler = pickle.loads(pickle.dumps(loader._assembler))  # noqa: S301
    assert type(assembler) is type(loader._assembler)
