"""What `e_id` of batches is: the edges' places in the input, their positions, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gnnstore
from gnnstore import LinkNeighborLoader, NeighborLoader, PartitionPolicy
from gnnstore.budget.ledger import PLANNED
from gnnstore.converters import reorder, split_edges
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import UsageError
from gnnstore.formats.packed import PACKED
from gnnstore.formats.store.units import make_units_directory, unit_path
from gnnstore.pipeline.lookahead.edge_rows import PassSize
from gnnstore.strategies import placement
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose, paired
from tests.support.hetero import hetero_store, make_hetero
from tests.support.packing import pack
from tests.support.references import OPTIONS, loader_of_packed

STRATEGIES = ("memory", "mmap", "direct", "static", "belady", "packed")


@pytest.fixture(scope="module")
def graph() -> GraphArrays:
    return random_graph(
        600, 4_000, seed=2, feature_dim=40, edge_feature_dim=3, num_classes=3, skew=2.0
    )


@pytest.fixture(scope="module")
def store(graph: GraphArrays, tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    path = graph.write(tmp_path_factory.mktemp("ids") / "g.gnn")
    partition(path, 4, name="spread", seed=3)
    return gnnstore.open(path)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hetero_store(tmp_path_factory.mktemp("typed") / "h.gnn", make_hetero()).path


@pytest.fixture(params=["held", "read"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let ids of edges be held in memory, or read from disk."""
    if request.param == "read":
        monkeypatch.setattr(placement, "IDS_SHARE", 2**60)
    return str(request.param)


def without_ids(batches: Batches) -> Batches:
    """Return batches of one or more edge types without `e_id`."""
    return [
        {
            key: {k: v for k, v in value.items() if k != "e_id"}
            if isinstance(value, dict)
            else value
            for key, value in batch.items()
            if key != "e_id"
        }
        for batch in batches
    ]


def nodes_loader(store: Any, **options: Any) -> NeighborLoader:
    return NeighborLoader(store, [4, 3], "train", **(OPTIONS | options))


@pytest.mark.parametrize("strategy", choose(["direct", "packed"], STRATEGIES))
def test_ids_are_those_of_the_input_or_positions_or_none(
    store: gnnstore.GraphStore, graph: GraphArrays, strategy: str, place: str
) -> None:
    wanted = batches_of(nodes_loader(store, strategy="memory"))
    edges = torch.from_numpy(graph.edge_index)
    for batch in wanted:
        assert torch.equal(batch["n_id"][batch["edge_index"]], edges[:, batch["e_id"]])
    again = nodes_loader(gnnstore.open(store.path), strategy=strategy)
    assert_same_batches(batches_of(again), wanted)
    where = {"held": "in memory", "read": "read from disk for each batch"}[place]
    if strategy in {"belady", "packed"} and place == "read":
        where = "read in a pass for many batches"
    where = {"memory": "", "mmap": "mapped"}.get(strategy, where)
    note = f"ids of edges: 16 kB {where} (none with edge_ids='store')" if where else ""
    assert note in again.stats().reason
    positions = nodes_loader(gnnstore.open(store.path), strategy=strategy, edge_ids="store")
    found = batches_of(positions)
    assert_same_batches(without_ids(found), without_ids(wanted))
    assert store.original_edge_ids is not None
    for batch, expected in zip(found, wanted, strict=True):
        assert batch["e_id"].dtype == torch.int64
        assert torch.equal(store.original_edge_ids[batch["e_id"]].long(), expected["e_id"])
    assert not positions._sources.edge_ids
    assert "ids of edges" not in positions.stats().reason
    bare = nodes_loader(store, strategy=strategy, edge_ids=None)
    assert_same_batches(batches_of(bare), without_ids(wanted))


def test_less_is_read_without_ids(store: gnnstore.GraphStore, place: str) -> None:
    read = {}
    for edge_ids in ("input", "store"):
        loader = nodes_loader(
            gnnstore.open(store.path), strategy="static", cache_bytes=0, edge_ids=edge_ids
        )
        batches_of(loader)
        read[edge_ids] = loader.stats().reads
    assert (read["store"] < read["input"]) == (place == "read")


def test_without_disk_ids_are_read_batch_by_batch(
    store: gnnstore.GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "IDS_SHARE", 2**60)
    num_epochs = choose(2, 3)
    wanted = batches_of(nodes_loader(store, strategy="memory"), num_epochs)
    read = {}
    for disk in ("0", "1GB"):
        loader = nodes_loader(gnnstore.open(store.path), strategy="belady", disk=disk)
        assert_same_batches(batches_of(loader, num_epochs), wanted)
        where = "read from disk for each" if disk == "0" else "read in a pass for many batches"
        assert f"ids of edges: 16 kB {where}" in loader.stats().reason
        read[disk] = loader.stats().reads
        parts = loader._sources.placement.superbatch.reservations
        reserved = [part.per for part in parts if part.what == "places of rows of edges"]
        assert reserved == ([] if disk == "0" else [{PLANNED: PassSize(4_000, (4,)).index_bytes}])
    assert read["1GB"] < read["0"]


@pytest.mark.parametrize("strategy", choose(["packed"], ["memory", "packed"]))
@pytest.mark.parametrize("edge_ids", ["input", "store", None])
def test_edges_of_links_are_excluded_by_position(
    store: gnnstore.GraphStore, strategy: str, edge_ids: Any, place: str
) -> None:
    options: dict[str, Any] = {"exclude_edges": "self", "batch_size": 300, "seed": 3}

    def make(**more: Any) -> Batches:
        opened = gnnstore.open(store.path)
        return batches_of(LinkNeighborLoader(opened, [3], **(options | more)))

    wanted = make(strategy="memory")
    found = make(strategy=strategy, edge_ids=edge_ids)
    if edge_ids == "input":
        assert_same_batches(found, wanted)
    assert_same_batches(without_ids(found), without_ids(wanted))  # `input_id` too
    assert all(("e_id" in batch) == (edge_ids is not None) for batch in found)


@pytest.mark.parametrize(
    ("strategy", "edge_ids"), paired(["memory", "static", "packed"], ["input", "store", None])
)
def test_ids_of_each_type(typed: Path, strategy: str, edge_ids: Any, place: str) -> None:
    options: dict[str, Any] = {"input_nodes": ("paper", "train"), "batch_size": 5, "seed": 1}
    wanted: Any = batches_of(NeighborLoader(typed, [3, 2], strategy="memory", **options))
    store = gnnstore.open(typed)
    loader = NeighborLoader(store, [3, 2], strategy=strategy, edge_ids=edge_ids, **options)
    found: Any = batches_of(loader)
    assert_same_batches(without_ids(found), without_ids(wanted))
    for batch, expected in zip(found, wanted, strict=True):
        for kind in store.edge_types:
            assert ("e_id" in batch[kind]) == (edge_ids is not None)
            ids = store[kind].original_edge_ids
            if edge_ids is None:
                continue
            e_id = batch[kind]["e_id"]
            if edge_ids == "store" and ids is not None:
                e_id = ids[e_id].long()
            assert torch.equal(e_id, expected[kind]["e_id"])


@pytest.mark.parametrize("edge_ids", choose(["store", None], ["input", "store", None]))
def test_packed_epochs_show_any_ids(store: gnnstore.GraphStore, edge_ids: Any, place: str) -> None:
    path = unit_path(PACKED, store.path, place)
    if not path.exists():
        make_units_directory(PACKED, store.path)
        pack(store.path, [4, 3], output=path)
    wanted = batches_of(nodes_loader(store, strategy="memory", edge_ids=edge_ids))
    by_store = loader_of_packed(store, place, num_neighbors=[4, 3], edge_ids=edge_ids)
    assert_same_batches(batches_of(by_store), wanted)
    alone = gnnstore.open_packed(path).loader(edge_ids=edge_ids)
    assert_same_batches(batches_of(alone), wanted)


@pytest.mark.parametrize("edge_ids", ["store", None])
def test_partitions_show_any_ids(store: gnnstore.GraphStore, edge_ids: Any) -> None:
    policy = PartitionPolicy("dispersed", capacity=2, name="spread")
    wanted = batches_of(nodes_loader(store, partitions=policy))
    found = batches_of(nodes_loader(store, partitions=policy, edge_ids=edge_ids))
    assert_same_batches(without_ids(found), without_ids(wanted))
    assert store.original_edge_ids is not None
    for batch, expected in zip(found, wanted, strict=True):
        assert ("e_id" in batch) == (edge_ids is not None)
        if edge_ids is not None:
            ids = store.original_edge_ids[batch["e_id"]].long()
            assert torch.equal(ids, expected["e_id"])


@pytest.mark.parametrize("saved", ["input", "store", None])
@pytest.mark.parametrize("loaded", ["input", "store", None])
def test_a_state_resumes_with_other_ids(
    store: gnnstore.GraphStore, saved: Any, loaded: Any
) -> None:
    """They change what batches show and not which batches come."""
    first = nodes_loader(store, edge_ids=saved)
    batches = iter(first)
    for _ in range(2):
        next(batches)
    state = first.state_dict()
    del batches
    second = nodes_loader(store, edge_ids=loaded)
    wanted = batches_of(second)[2:]
    second.load_state_dict(state)
    assert_same_batches(batches_of(second), wanted)


@pytest.mark.parametrize("make", choose([reorder], [reorder, split_edges]))
def test_a_store_made_from_another_has_positions(
    store: gnnstore.GraphStore, tmp_path: Path, make: Any
) -> None:
    made = gnnstore.open(make(store.path, tmp_path / "made.gnn"))
    assert made.schema.edge.edge_id is None
    wanted = batches_of(nodes_loader(made, strategy="memory"))
    found = batches_of(nodes_loader(made, edge_ids="store", strategy="packed"))
    assert_same_batches(found, wanted)
    ids, before = made.original_edge_ids, store.edge_index
    assert ids is not None
    for batch in wanted:
        ends = batch["n_id"][batch["edge_index"]]
        assert torch.equal(ends, made.edge_index[:, batch["e_id"]])
        original = ids[batch["e_id"]].long()
        if make is reorder:
            assert made.original_ids is not None
            ends = torch.as_tensor(made.original_ids)[ends]
        assert torch.equal(ends, before[:, original])


def test_other_values_are_refused(store: gnnstore.GraphStore) -> None:
    for value in ("positions", False, ["input"]):
        with pytest.raises(UsageError, match=r"edge_ids=.*choose one of 'input', 'store' or None"):
            nodes_loader(store, edge_ids=value)
