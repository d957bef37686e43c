"""Training on edges by partitions: each once, beside nodes in memory, with negatives of these."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.sampler import NegativeSampling

import gnnstore
from gnnstore import LinkNeighborLoader, PartitionPolicy
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import CorruptStoreError, UsageError
from gnnstore.formats.partitions import PartitionsReader
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.batches import assert_goes_on, assert_same_batches, batches_of
from tests.support.effort import choose, paired
from tests.support.loaders import partition_order_of
from tests.support.twins.partitions import partitions_loaded

N, E, SEED = 230, 1_500, 5
POLICY = PartitionPolicy(capacity=4)


@pytest.fixture(scope="module")
def graph() -> GraphArrays:
    """Hubs, parallel edges, self-loops; a short last partition and empty buckets."""
    return random_graph(N, E, seed=1, feature_dim=5, edge_feature_dim=2, skew=2.0)


@pytest.fixture(scope="module")
def store(graph: GraphArrays, tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    path = graph.write(tmp_path_factory.mktemp("partitions") / "g.gnn")
    partition(path, 8, seed=3)
    return gnnstore.open(path)


def make(store: Any, policy: PartitionPolicy = POLICY, **options: Any) -> LinkNeighborLoader:
    given: dict[str, Any] = {"batch_size": 32, "shuffle": True, "seed": SEED, "num_threads": 2}
    given |= options
    fanouts = given.pop("num_neighbors", [3, 2])
    return LinkNeighborLoader(store, fanouts, partitions=policy, **given)


def place_of(loader: LinkNeighborLoader) -> np.ndarray:
    unit = loader._sources.unit
    place: np.ndarray = unit.read(unit.place_spec) // unit.rows_per_partition
    return place


OPTIONS: dict[str, dict[str, Any]] = {
    "no negatives": {},
    "binary": {"neg_sampling": "binary"},
    "binary, no hops": {"neg_sampling": "binary", "num_neighbors": []},
    "binary half, disjoint": {"neg_sampling": NegativeSampling("binary", 0.5), "disjoint": True},
    "triplet, no hops": {
        "neg_sampling": NegativeSampling("triplet", 3),
        "num_neighbors": [],
        "neg_side": "both",
        "negative_chunks": 2,
        "degree_fraction": 0.4,
        "edge_label_attrs": ("edge_attr",),
    },
    "without the edges": {
        "neg_sampling": NegativeSampling("triplet", 3),
        "strict_negatives": True,
        "exclude_edges": "reverse",
        "edge_label_attrs": ("edge_attr",),
    },
    "strict, no hops": {
        "neg_sampling": "binary",
        "strict_negatives": True,
        "num_neighbors": [],
    },
    "excluding, all neighbours": {"exclude_edges": "self", "num_neighbors": [-1]},
    "induced": {"subgraph_type": "induced"},
    "in order": {"shuffle": False},
    "drop_last": {"drop_last": True, "neg_sampling": "binary"},
}
SHORT = [
    "binary half, disjoint",
    "triplet, no hops",
    "without the edges",
    "drop_last",
]


@pytest.mark.parametrize(
    ("options", "which"), paired(choose(SHORT, [*OPTIONS]), ["all", "given"], 1)
)
def test_every_edge_is_trained_once_beside_nodes_of_its_state(
    store: gnnstore.GraphStore, graph: GraphArrays, options: str, which: str
) -> None:
    given = dict(OPTIONS[options])
    ids = np.arange(E)
    if which == "given":
        ids = np.random.default_rng(1).permutation(E)[:400]
        given["edge_label_index"] = graph.edge_index[:, ids]
    loader = make(store, **given)
    place = place_of(loader)
    csc = store.topology().columns()
    targets = np.repeat(np.arange(N), np.diff(csc.indptr))
    edges = set(zip(csc.indices.tolist(), targets.tolist(), strict=True))
    for epoch in range(choose(1 + (which == "given"), 2)):
        known, seen = partition_order_of(loader).states_of(SEED, epoch), []
        assert len(loader) == known.total
        for number, batch in enumerate(loader):
            inside = np.isin(place, known.schedule.partitions(known.state_of(number)))
            nodes = batch.n_id.numpy()
            assert inside[nodes].all()
            np.testing.assert_array_equal(batch.x.numpy(), graph.attributes["x"][nodes])
            np.testing.assert_array_equal(
                nodes[batch.edge_index.numpy()], graph.edge_index[:, batch.e_id.numpy()]
            )
            own = ids[batch.input_id.numpy()] if which == "given" else batch.input_id.numpy()
            seen.append(own)
            count, is_triplet = len(own), "src_index" in batch
            if is_triplet:
                ends = torch.stack([batch.src_index, batch.dst_pos_index]).numpy()
            else:
                ends = batch.edge_label_index[:, :count].numpy()
            positive = graph.edge_index[:, own]
            np.testing.assert_array_equal(nodes[ends], positive)
            if "edge_label_attrs" in given:
                shown = batch.label_edge_attr.numpy()
                assert shown.shape == (count, 2)
                same = (shown == graph.attributes["edge_attr"][own]).all(axis=1)
                # Of parallel edges that are given by their ends, any may be shown.
                copies = [
                    int(((graph.edge_index.T - pair) == 0).all(axis=1).sum()) for pair in positive.T
                ]
                assert (same | (np.array(copies) > 1)).all()
            if given.get("exclude_edges"):
                pairs = {*map(tuple, positive.T.tolist())}
                if given["exclude_edges"] == "reverse":
                    pairs |= {pair[::-1] for pair in pairs}
                sampled = nodes[batch.edge_index.numpy()].T.tolist()
                assert not pairs & {*map(tuple, sampled)}
            if given.get("strict_negatives") and not is_triplet:
                drawn = nodes[batch.edge_label_index[:, count:].numpy()].T.tolist()
                kept = sum(tuple(pair) in edges or pair[0] == pair[1] for pair in drawn)
                assert kept <= loader.stats().negatives_kept
        found = np.sort(np.concatenate(seen))
        if given.get("drop_last"):
            assert len(np.unique(found)) == len(found) == known.total * 32
        else:
            np.testing.assert_array_equal(found, np.sort(ids))


@settings(
    max_examples=choose(2, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    sizes=st.sampled_from(
        [(4, 2, "auto"), (6, 4, "auto"), (8, 8, "auto"), (9, 6, 3), (12, 6, 12), (5, 2, "auto")]
    ),
    assignment=st.sampled_from(["random", "greedy"]),
    num_hops=st.integers(0, 1),
    seed=st.integers(0, 2**40),
)
def test_every_bucket_in_one_state(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: tuple[int, int, Any],
    assignment: str,
    num_hops: int,
    seed: int,
) -> None:
    num_partitions, capacity, logical = sizes
    num_nodes = num_partitions * 5 - 3
    arrays = random_graph(num_nodes, 300, seed=seed % 999)
    path = arrays.write(tmp_path_factory.mktemp("states") / "g.gnn")
    partition(path, num_partitions, seed=seed)
    order = "beta" if logical == 12 else "even"
    policy = PartitionPolicy(capacity=capacity, logical=logical, order=order, assignment=assignment)
    loader = make(path, policy, seed=seed, batch_size=7, num_neighbors=[-1] * num_hops)
    place = place_of(loader)
    for epoch in range(2):
        known = partition_order_of(loader).states_of(seed, epoch)
        seen, trained = [], np.full((num_partitions,) * 2, -1)
        for number, batch in enumerate(loader):
            state = known.state_of(number)
            own = batch.input_id.numpy()
            seen.append(own)
            source, target = place[arrays.edge_index[:, own]]
            inside = known.schedule.partitions(state)
            assert np.isin([source, target], inside).all()
            assert np.isin(trained[source, target], [-1, state]).all()
            trained[source, target] = state
        np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.arange(300))
        if epoch == 0:
            trains = [i for i in range(len(known.num_batches)) if known.num_batches[i]]
            assert loader.stats().states == len(trains)
            # One that comes back may still lie in a slot for what is read ahead; and some of the
            # next epoch's are read there.
            most = partitions_loaded(known.schedule) + loader._sources.shape.num_spare
            assert loader.stats().partitions_read <= most
            states = [known.schedule.partitions(i) for i in range(len(known.num_batches))]
            for before, after in pairwise(states):
                entered = np.setdiff1d(after, before)
                assert len(entered) == num_partitions // loader._sources.shape.num_groups


@pytest.mark.parametrize(
    "options", ["binary", *choose((), ("induced", "triplet, no hops", "without the edges"))]
)
def test_batches_do_not_depend_on_who_prepares_them(
    store: gnnstore.GraphStore, options: str
) -> None:
    given = OPTIONS[options]
    expected = batches_of(make(store, num_threads=0, **given), 2)
    ways: list[dict[str, Any]] = [
        {"num_threads": 4, "prefetch_batches": 7},
        {"num_threads": 1, "io_engine": "pread", "memory": "1GB"},
    ]
    for way in ways[: choose(1, 2)]:
        assert_same_batches(batches_of(make(store, **{**given, **way}), 2), expected)


@pytest.mark.parametrize("options", choose(["binary"], ["binary", "binary, no hops"]))
def test_resuming_anywhere_gives_the_same_batches(store: gnnstore.GraphStore, options: str) -> None:
    ways: Iterator[dict[str, Any]] = cycle({"num_threads": count} for count in (2, 0, 1))
    assert_goes_on(lambda: make(store, **OPTIONS[options], batch_size=64, **next(ways)))


def test_negatives_are_uniform_over_the_rows_in_memory(store: gnnstore.GraphStore) -> None:
    """The last partition is shorter, and none of its padding is drawn."""
    loader = make(
        store, neg_sampling=NegativeSampling("triplet", 50), num_neighbors=[], batch_size=64
    )
    known, place = partition_order_of(loader).states_of(SEED, 0), place_of(loader)
    drawn: dict[int, list[np.ndarray]] = {}
    for number, batch in enumerate(loader):
        nodes = batch.n_id[batch.dst_neg_index].numpy().ravel()
        drawn.setdefault(known.state_of(number), []).append(nodes)
    tested = 0
    for state, parts in drawn.items():
        inside = np.flatnonzero(np.isin(place, known.schedule.partitions(state)))
        counts = np.bincount(np.concatenate(parts), minlength=N)[inside]
        assert counts.sum() == sum(map(len, parts))
        if counts.sum() >= 20 * len(inside):
            tested += 1
            chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
            assert chi_square < len(inside) + 6 * np.sqrt(2 * len(inside))
    assert tested


def test_nothing_is_read_that_is_not_needed(store: gnnstore.GraphStore) -> None:
    """Without hops, each edge is read once an epoch; given edges need none of the graph."""
    decoder = make(store, num_neighbors=[], neg_sampling="binary")
    batches_of(decoder)
    assert decoder._sources.buffer._graph is None
    edges = decoder._sources.buffer.files.counts.rows_read
    loads = partitions_loaded(partition_order_of(decoder).states_of(SEED, 0).schedule)
    rows = decoder._sources.unit.rows_per_partition
    assert edges - 3 * E <= loads * rows * 2  # ids and x
    ends = torch.tensor([[3, 4, 5], [6, 7, 8]])
    ends_alone = make(store, num_neighbors=[], edge_label_index=ends)
    batches_of(ends_alone)
    assert ends_alone._sources.buffer.files.counts.rows_read <= loads * rows * 2


REFUSED: dict[str, tuple[dict[str, Any], str | None]] = {
    "weights": (
        {"neg_sampling": NegativeSampling("triplet", 1, dst_weight=torch.ones(N))},
        "leave the weights out",
    ),
    "nodes' kind": ({"policy": PartitionPolicy("dispersed", capacity=4)}, "kind='two-level'"),
    "a strategy": ({"strategy": "belady"}, "strategy='belady'"),
    "an odd capacity": ({"policy": PartitionPolicy(capacity=3)}, "2 and 4"),
    "two groups": ({"policy": PartitionPolicy(capacity=4, logical=8, order="beta")}, None),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_go_together_is_refused(store: gnnstore.GraphStore, what: str) -> None:
    options, message = REFUSED[what]
    options = dict(options)
    policy = options.pop("policy", POLICY)
    if message is None:
        assert len(make(store, policy, **options))
        return
    with pytest.raises(UsageError, match=message):
        make(store, policy, **options)
    if what == "weights":
        with pytest.raises(UsageError, match="in the course of an epoch"):
            make(store).link_sampler  # noqa: B018


def test_damaged_edges_are_an_error_without_a_graph_as_well(
    graph: GraphArrays, tmp_path: Path
) -> None:
    path = graph.write(tmp_path / "g.gnn")
    unit = PartitionsReader.open(partition(path, 4, seed=0))
    file = unit.paged(unit.source_spec).file_paths[0]
    data = bytearray(file.read_bytes())
    data[:4000] = b"\x7f" * 4000
    file.write_bytes(data)
    with pytest.raises(CorruptStoreError, match="edges/source: the edges from partition"):
        batches_of(make(path, PartitionPolicy(capacity=2), num_neighbors=[]))
