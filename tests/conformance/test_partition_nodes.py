"""Training on nodes by partitions: what lies in memory, and which batches come of it."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import time
import weakref
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gnnstore
from gnnstore import NeighborLoader, PartitionPolicy
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import (
    BudgetError,
    CorruptStoreError,
    NotFoundError,
    StorageError,
    UsageError,
)
from gnnstore.formats.partitions import PartitionsReader
from gnnstore.partitions.buffer import ResidentState, StateToRead
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose
from tests.support.faults import inject
from tests.support.loaders import partition_order_of, threads_of_loaders
from tests.support.twins.partitions import partitions_loaded

N, E, SEED = 300, 3_000, 5


@pytest.fixture(scope="module")
def graph() -> GraphArrays:
    """Hubs, parallel edges, self-loops, and rows that do not fill their pages."""
    return random_graph(N, E, seed=1, feature_dim=100, num_classes=3, edge_feature_dim=2, skew=2.0)


@pytest.fixture(scope="module")
def store(graph: GraphArrays, tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    path = graph.write(tmp_path_factory.mktemp("partitions") / "g.gnn")
    partition(path, 8, name="spread", seed=3)
    partition(path, 10, name="first", train_first="train", seed=3)
    return gnnstore.open(path)


DISPERSED = PartitionPolicy("dispersed", capacity=2, name="spread")
GROUPED = PartitionPolicy("dispersed", capacity=4, logical=4, name="spread")
WHOLE = PartitionPolicy("dispersed", capacity=1.0, name="spread")
SEQUENTIAL = PartitionPolicy("sequential", capacity=8, name="first")
POLICIES = {
    "dispersed": DISPERSED,
    "grouped": GROUPED,
    "whole": WHOLE,
    "sequential": SEQUENTIAL,
}


def make(store: Any, policy: PartitionPolicy, **options: Any) -> NeighborLoader:
    given: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": SEED, "num_threads": 2}
    given |= options
    fanouts = given.pop("num_neighbors", [4, 3])
    return NeighborLoader(
        store, fanouts, given.pop("input_nodes", "train"), partitions=policy, **given
    )


def states_of(loader: NeighborLoader, num_epochs: int = 1) -> list[ResidentState]:
    """Go through the states of epochs as the loader's batches do, keeping each to look at."""
    buffer, order = loader._sources.buffer, partition_order_of(loader)
    assert loader.seed is not None
    found = []
    for epoch in range(num_epochs):
        known = order.states_of(loader.seed, epoch)
        states = [
            StateToRead(i, known.schedule.partitions(i)) for i in range(len(known.num_batches))
        ]
        with buffer.run(states, in_thread=epoch % 2 == 1) as ahead:
            for _ in states:
                state = ahead.next()
                check_state(state, loader)
                state.close()
                found.append(state)
    return found


def check_state(state: ResidentState, loader: NeighborLoader) -> None:
    """Compare what lies in memory with the subgraph that the store has between these nodes."""
    store, unit = loader.data, loader._sources.unit
    order = unit.read(unit.order_spec).astype(np.int64)
    members, graph = state.members, state.graph
    local = np.arange(members.num_nodes)
    nodes = order[members.nodes(local)]
    np.testing.assert_array_equal(members.local(members.nodes(local)), local)
    np.testing.assert_array_equal(state.store_ids(local), nodes)
    rows = state.gather(local)
    np.testing.assert_array_equal(rows["x"].values, store.features.read()[nodes])
    np.testing.assert_array_equal(rows["y"].values, store.labels[nodes])
    csc = store.topology().columns()
    targets = np.repeat(np.arange(store.num_nodes), np.diff(csc.indptr))
    inside = np.flatnonzero(np.isin(targets, nodes) & np.isin(csc.indices, nodes))
    assert graph is not None
    np.testing.assert_array_equal(np.sort(graph.positions), inside)
    of = np.repeat(local, np.diff(graph.columns.indptr))
    np.testing.assert_array_equal(nodes[of], targets[graph.positions])
    np.testing.assert_array_equal(nodes[graph.columns.indices], csc.indices[graph.positions])
    # Ascending within a column, by partition and row, then position: whatever the slots.
    keys = np.stack([of, graph.columns.indices, graph.positions])
    np.testing.assert_array_equal(np.lexsort(keys[::-1]), np.arange(len(of)))


@settings(
    max_examples=choose(2, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    sizes=st.sampled_from([(4, 1, 4), (6, 2, 3), (6, 4, 6), (8, 2, 4), (8, 8, 1), (12, 6, 4)]),
    num_nodes=st.integers(12, 80),
    seed=st.integers(0, 2**40),
)
def test_states_are_induced_subgraphs(
    tmp_path_factory: pytest.TempPathFactory, sizes: tuple[int, int, int], num_nodes: int, seed: int
) -> None:
    num_partitions, capacity, groups = sizes
    rows = -(-num_nodes // num_partitions)
    if rows * (num_partitions - 1) >= num_nodes:
        num_nodes = num_partitions * rows
    arrays = random_graph(num_nodes, 400, seed=seed % 999, num_classes=2, feature_dim=3)
    path = arrays.write(tmp_path_factory.mktemp("states") / "g.gnn")
    partition(path, num_partitions, seed=seed)
    policy = PartitionPolicy("dispersed", capacity=capacity, logical=groups)
    loader = make(path, policy, input_nodes=None, seed=seed)
    num_epochs = 2
    states = states_of(loader, num_epochs)
    shape = loader._sources.shape
    schedule = partition_order_of(loader).states_of(seed, 0).schedule
    for state in states:
        assert len(set(state.members.partitions.tolist())) == capacity
    for before, after in pairwise(states[: len(states) // 2]):
        entered = np.setdiff1d(after.members.partitions, before.members.partitions)
        assert len(entered) == num_partitions // groups
    loads = loader.stats().partitions_read
    # The second epoch finds some of the partitions of the first.
    each = partitions_loaded(schedule)
    assert each <= loads <= num_epochs * each
    assert loader.stats().states == len(states) == num_epochs * len(schedule.states)
    assert shape.capacity == capacity


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_threads", [0, 2])
def test_every_node_is_trained_once_beside_nodes_of_its_state(
    store: gnnstore.GraphStore, graph: GraphArrays, policy: str, num_threads: int
) -> None:
    loader = make(store, POLICIES[policy], num_threads=num_threads)
    unit = loader._sources.unit
    place = unit.read(unit.place_spec) // unit.rows_per_partition
    ids = store.original_edge_ids
    assert ids is not None
    train = graph.splits["train"]
    for epoch in range(choose(2, 3)):
        known, seen = partition_order_of(loader).states_of(SEED, epoch), []
        assert len(loader) == loader.batches_left == loader.len_of(epoch) == known.total
        for number, batch in enumerate(loader):
            inside = known.schedule.partitions(known.state_of(number))
            nodes = batch.n_id.numpy()
            assert np.isin(place[nodes], inside).all()
            seen.append(batch.input_id.numpy())
            np.testing.assert_array_equal(nodes[: batch.batch_size], train[seen[-1]])
            np.testing.assert_array_equal(batch.x.numpy(), graph.attributes["x"][nodes])
            np.testing.assert_array_equal(batch.y.numpy(), graph.attributes["y"][nodes])
            edges = batch.e_id.numpy()
            ends = nodes[batch.edge_index.numpy()]
            np.testing.assert_array_equal(ends, graph.edge_index[:, edges])
            np.testing.assert_array_equal(
                batch.edge_attr.numpy(), graph.attributes["edge_attr"][edges]
            )
        assert number + 1 == known.total
        np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.arange(len(train)))
    if policy == "sequential":
        assert len(known.schedule.states) == 1


def test_all_neighbours_are_those_in_memory(store: gnnstore.GraphStore, graph: GraphArrays) -> None:
    loader = make(store, DISPERSED, num_neighbors=[-1])
    unit = loader._sources.unit
    place = unit.read(unit.place_spec) // unit.rows_per_partition
    known = partition_order_of(loader).states_of(SEED, 0)
    for number, batch in enumerate(loader):
        inside = np.isin(place, known.schedule.partitions(known.state_of(number)))
        seeds = batch.n_id[: batch.batch_size].numpy()
        sources, targets = graph.edge_index
        wanted = np.flatnonzero(np.isin(targets, seeds) & inside[sources])
        np.testing.assert_array_equal(np.sort(batch.e_id.numpy()), wanted)


OPTIONS: dict[str, dict[str, Any]] = {
    "no hops": {"num_neighbors": []},
    "all nodes": {"input_nodes": None},
    "disjoint": {"disjoint": True},
    "disjoint, no hops": {"disjoint": True, "num_neighbors": []},
    "induced": {"subgraph_type": "induced"},
    "induced, no hops": {"subgraph_type": "induced", "num_neighbors": []},
    "with replacement": {"replace": True},
    "in order": {"shuffle": False},
    "drop_last": {"drop_last": True},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "few nodes": {"input_nodes": torch.tensor([7, 3, 3, 250])},
}


WAYS: list[dict[str, Any]] = [
    {"num_threads": 4, "prefetch_batches": 7},
    {"num_threads": 1, "memory": "1GB", "io_engine": "pread"},
    {"num_threads": 2, "transform_sampler_output": lambda output: output},
]


@pytest.mark.parametrize("options", choose(["disjoint", "induced", "bidirectional"], OPTIONS))
def test_batches_do_not_depend_on_who_prepares_them(
    store: gnnstore.GraphStore, options: str
) -> None:
    given = OPTIONS[options]
    loader = make(store, GROUPED, num_threads=0, **given)
    expected = batches_of(loader, 2)
    assert len(expected) == loader.len_of(0) + loader.len_of(1)
    for way in WAYS if options == "disjoint" else WAYS[:1]:
        assert_same_batches(batches_of(make(store, GROUPED, **{**given, **way}), 2), expected)


def test_nothing_is_read_that_is_not_needed(store: gnnstore.GraphStore) -> None:
    loader = make(store, WHOLE, num_neighbors=[])
    batches_of(loader, 2)
    assert loader._sources.buffer._graph is None
    assert loader.stats().partitions_read == 8


def test_with_all_in_memory_batches_are_distributed_as_without_partitions(tmp_path: Path) -> None:
    """Which two of six neighbours are drawn, and which seeds come first: chi-squared."""
    num_centres, num_epochs = 400, 10
    num_nodes = 7 * num_centres  # node 7 i has the in-neighbours 7 i + 1, ..., 7 i + 6
    edges = np.array([(7 * i + k, 7 * i) for i in range(num_centres) for k in range(1, 7)]).T
    path = GraphArrays(num_nodes, edges).write(tmp_path / "g.gnn")
    partition(path, 8)
    centres = torch.arange(0, num_nodes, 7)
    policy = PartitionPolicy("dispersed", capacity=1.0)
    for way in (policy, None):
        loader = NeighborLoader(
            path,
            [2],
            centres,
            batch_size=100,
            shuffle=True,
            seed=SEED,
            num_threads=0,
            partitions=way,
        )
        pairs, firsts = np.zeros((6, 6)), np.zeros(4)
        for _ in range(num_epochs):
            for number, batch in enumerate(loader):
                drawn, target = batch.n_id[batch.edge_index].numpy()
                assert (drawn // 7 * 7 == target).all()
                order = np.argsort(target, kind="stable")
                first, second = (drawn[order] % 7 - 1).reshape(-1, 2).T
                np.add.at(pairs, (np.minimum(first, second), np.maximum(first, second)), 1)
                if number == 0:
                    firsts += np.bincount(4 * batch.input_id.numpy() // num_centres, minlength=4)
        counts = pairs[np.triu_indices(6, 1)]
        assert counts.sum() == num_epochs * num_centres
        expected = counts.sum() / 15
        assert ((counts - expected) ** 2 / expected).sum() < 36.1  # of 14 degrees: 0.1 %
        expected = firsts.sum() / 4
        assert ((firsts - expected) ** 2 / expected).sum() < 16.3  # of 3


@pytest.mark.parametrize(
    "policy",
    [DISPERSED, *choose((), (GROUPED,)), SEQUENTIAL],
    ids=lambda policy: policy.kind,
)
def test_the_next_epoch_is_begun_while_the_last_state_trains(
    store: gnnstore.GraphStore, policy: PartitionPolicy
) -> None:
    expected = batches_of(make(store, policy, num_threads=0), 2)
    loader = make(store, policy)
    buffer, shape = loader._sources.buffer, loader._sources.shape
    epochs = [partition_order_of(loader).states_of(SEED, epoch).schedule for epoch in (0, 1)]
    last, first = epochs[0].partitions(len(epochs[0].states) - 1), epochs[1].partitions(0)
    batches = iter(loader)
    found = [next(batches).to_dict() for _ in range(len(loader))]
    assert buffer._slots is not None
    known = min(len(first), int(np.isin(first, last).sum()) + shape.num_spare)
    deadline = time.monotonic() + 30
    while np.isin(first, [*buffer._slots.slot_of]).sum() < known:
        assert time.monotonic() < deadline, (buffer._slots.slot_of, last, first)
        time.sleep(0.005)
    assert next(batches, None) is None
    found += batches_of(loader)
    assert_same_batches(found, expected)


@pytest.mark.parametrize("policy", choose(["dispersed"], ["dispersed", "sequential"]))
def test_resuming_anywhere_gives_the_same_batches(store: gnnstore.GraphStore, policy: str) -> None:
    loader = make(store, POLICIES[policy], batch_size=24)
    expected, states = [], []
    for _ in range(2):
        for batch in loader:
            states.append(loader.state_dict())
            expected.append(batch.to_dict())
    ends = [loader.len_of(0), loader.len_of(0) + loader.len_of(1)]
    for place, state in [*enumerate(states)][:: choose(5, 1)]:
        again = make(store, POLICIES[policy], batch_size=24, seed=None, num_threads=place % 3)
        again.load_state_dict(json.loads(json.dumps(state)))
        end = next(end for end in ends if place + 1 <= end)
        assert again.batches_left == end - place - 1
        assert_same_batches(batches_of(again), expected[place + 1 : end])
        known = partition_order_of(again).states_of(SEED, again.epoch - 1)
        assert again.stats().states == len(known.left(state["batches"]))


def test_a_state_of_another_policy_is_refused(store: gnnstore.GraphStore) -> None:
    state = make(store, DISPERSED).state_dict()
    with pytest.raises(UsageError, match="partitions"):
        make(store, GROUPED).load_state_dict(state)
    with pytest.raises(UsageError, match="partitions"):
        NeighborLoader(store, [4, 3], "train", batch_size=16, shuffle=True).load_state_dict(state)


def test_epochs_and_seeds_differ(store: gnnstore.GraphStore) -> None:
    loader = make(store, DISPERSED, input_nodes=None)
    groups = {
        str(partition_order_of(loader).states_of(seed, epoch).schedule.groups)
        for seed in range(3)
        for epoch in (0, 1)
    }
    assert len(groups) == 6
    torch.manual_seed(1)
    expected = batches_of(loader)
    torch.manual_seed(2)
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader), expected)


def test_leaving_early_and_coming_back(store: gnnstore.GraphStore) -> None:
    loader = make(store, DISPERSED)
    expected = batches_of(make(store, DISPERSED), 3)
    for number in choose((5,), (1, 5, 9)):
        loader.set_epoch(0)
        found = []
        for batch in loader:
            found.append(batch.to_dict())
            if len(found) == number:
                break
        assert threads_of_loaders() == []
        assert_same_batches(found, expected[:number])
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader, 3), expected)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_iteration_takes_the_partitions_of_the_one_before(
    store: gnnstore.GraphStore, num_threads: int
) -> None:
    options = {"num_threads": num_threads, "transform_sampler_output": lambda output: output}
    loader = make(store, DISPERSED, **options)
    first = iter(loader)
    next(first)
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader), batches_of(make(store, DISPERSED)))
    with pytest.raises(UsageError, match="another iteration of this loader"):
        for _ in first:
            pass
    assert threads_of_loaders() == []


def test_ctrl_c_in_a_state(store: gnnstore.GraphStore) -> None:
    def interrupt(batch: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return batch

    with pytest.raises(KeyboardInterrupt):
        batches_of(make(store, DISPERSED, transform=interrupt))
    assert threads_of_loaders() == []


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[: len(data) // 2] = b"\xff" * (len(data) // 2)
    path.write_bytes(data)


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("array", ["source", "target", "position"])
def test_damaged_edges_are_an_error_that_names_them(
    graph: GraphArrays, tmp_path: Path, num_threads: int, array: str
) -> None:
    path = graph.write(tmp_path / "g.gnn")
    unit = PartitionsReader.open(partition(path, 4, seed=0))
    specs = {"source": unit.source_spec, "target": unit.target_spec, "position": unit.position_spec}
    damaged(unit.paged(specs[array]).file_paths[0])
    loader = make(path, PartitionPolicy("dispersed", capacity=2), num_threads=num_threads)
    with pytest.raises(CorruptStoreError, match=rf"random-4/edges/{array}: the edges from "):
        batches_of(loader)
    assert threads_of_loaders() == []


@pytest.mark.parametrize("feature_dim", choose([300], [256, 300]), ids=lambda dim: f"{dim}")
def test_rows_are_compared_with_their_checksums(tmp_path: Path, feature_dim: int) -> None:
    graph = random_graph(6_000, 6_000, seed=1, feature_dim=feature_dim)
    path = graph.write(tmp_path / "g.gnn")
    unit = PartitionsReader.open(partition(path, 2, seed=0))
    policy = PartitionPolicy("dispersed", capacity=1)
    options: dict[str, Any] = {"input_nodes": None, "batch_size": 3_000, "num_neighbors": [1]}
    loader = make(path, policy, **options)
    expected = batches_of(loader)
    file = unit.paged(unit.nodes["x"]).file_paths[0]
    data = bytearray(file.read_bytes())
    data[1_500_000] ^= 1
    file.write_bytes(data)
    loader = make(path, policy, **options)
    with pytest.raises(CorruptStoreError, match="nodes/x: the rows of partition 0 have the"):
        batches_of(loader)
    assert threads_of_loaders() == []
    data[1_500_000] ^= 1
    file.write_bytes(data)
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader), expected)  # what was damaged is read again


@pytest.mark.parametrize("num_threads", choose([2], [0, 2]))
def test_a_read_that_fails_reaches_the_loop(store: gnnstore.GraphStore, num_threads: int) -> None:
    loader = make(store, DISPERSED, num_threads=num_threads, io_engine="pread")
    expected = batches_of(loader)
    loader.set_epoch(0)
    with inject("pread", errno=5, skip=3, times=1):
        found = iter(loader)
        with pytest.raises(StorageError, match=r"spread/.*(offset|byte)") as caught:
            for _ in found:
                pass
    assert os.strerror(5) in str(caught.value)
    assert threads_of_loaders() == []
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader), expected)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a strategy": ({"strategy": "belady"}, "strategy='belady'"),
    "topology": ({"topology": "mmap"}, "topology='mmap'"),
    "packed epochs": ({"packed": "p"}, "packed='p'"),
    "a cache": ({"cache_bytes": "1MB"}, "cache_bytes"),
    "ranks": ({"rank": 0, "world_size": 2}, "rank=0"),
    "no tables": ({"tables": [3]}, r"tables=\[3\]: expected a list"),
    "a table alone": ({"tables": 3}, "tables=3: expected a list"),
    "a sampler": ({"sampler": [1, 2], "shuffle": None}, "sampler"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_go_together_is_refused(store: gnnstore.GraphStore, what: str) -> None:
    options, message = REFUSED[what]
    with pytest.raises(UsageError, match=message):
        make(store, DISPERSED, **options)


POLICIES_REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "edges' kind": (lambda: PartitionPolicy(capacity=3, name="spread"), "nearest that work"),
    "not dividing": (lambda: PartitionPolicy("dispersed", capacity=3, name="spread"), "2 and 4"),
    "too many": (lambda: PartitionPolicy("dispersed", capacity=9, name="spread"), "nearest"),
    "too few for training nodes": (
        lambda: PartitionPolicy("sequential", capacity=5, name="first"),
        "capacity=6",
    ),
    "sequential, spread": (
        lambda: PartitionPolicy("sequential", capacity=4, name="spread"),
        "--train-first",
    ),
    "no name": (lambda: PartitionPolicy("dispersed", capacity=2), "'first', 'spread'"),
    "another name": (lambda: PartitionPolicy("dispersed", capacity=2, name="x"), "'spread'"),
    "no capacity": (lambda: PartitionPolicy("dispersed", name="spread"), "give it, or memory="),
    "kind": (lambda: PartitionPolicy("spread"), "choose one of"),
    "order": (lambda: PartitionPolicy(order="walecki"), "choose one of even, beta"),
    "share": (lambda: PartitionPolicy(capacity=1.5), "share"),
    "both": (lambda: PartitionPolicy(capacity=2, memory="1GB"), "leave out one"),
    "no policy": (lambda: "spread", "expected a gnnstore.PartitionPolicy"),
    "name of a number": (lambda: PartitionPolicy(name=cast("Any", 3)), "name=3: expected a name"),
    "empty name": (lambda: PartitionPolicy(name=""), "name='': expected a name"),
    "groups alone": (lambda: PartitionPolicy(logical=4), "give both"),
    "no groups": (lambda: PartitionPolicy(capacity=0.5, logical=0), "expected a number of groups"),
}


@pytest.mark.parametrize("what", POLICIES_REFUSED)
def test_policies_that_cannot_be_are_refused(store: gnnstore.GraphStore, what: str) -> None:
    policy, message = POLICIES_REFUSED[what]
    with pytest.raises((UsageError, NotFoundError), match=message):
        make(store, policy())


def test_training_nodes_outside_of_the_first_partitions_are_refused(
    store: gnnstore.GraphStore,
) -> None:
    """When the loader is made: others are in memory in some epochs, and not in all."""
    with pytest.raises(
        UsageError, match=r"seed nodes are in others, first node \d+ in partition \d"
    ):
        make(store, SEQUENTIAL, input_nodes="valid")
    with pytest.raises(UsageError, match="kind='dispersed'"):
        make(store, SEQUENTIAL, input_nodes=None)


def test_batches_on_demand_are_refused(store: gnnstore.GraphStore) -> None:
    loader = make(store, DISPERSED)
    for ask in (lambda: loader([0]), lambda: loader.node_sampler):
        with pytest.raises(UsageError, match="in the course of an epoch"):
            ask()
    sampled: Any = NeighborLoader(store, [4, 3], "train", filter_per_worker=False, batch_size=16)
    for each in (loader, pickle.loads(pickle.dumps(loader))):  # noqa: S301 - our own
        with pytest.raises(UsageError, match=r"rows of 'x' by id .* in the course of an epoch"):
            each.filter_fn(sampled.collate_fn([0]))

    def add(output: Any) -> Any:
        output.node = torch.cat([output.node, torch.tensor([0, 1, 2])])
        return output

    with pytest.raises(UsageError, match="nodes for transform_sampler_output"):
        batches_of(make(store, DISPERSED, transform_sampler_output=add))


def test_epochs_count_from_0(store: gnnstore.GraphStore) -> None:
    with pytest.raises(UsageError, match="epochs count from 0"):
        make(store, DISPERSED).len_of(-1)


def test_memory_decides_the_capacity_and_is_kept(store: gnnstore.GraphStore) -> None:
    """The smallest budget that an error names works, and one byte less does not."""
    policy = PartitionPolicy("dispersed", memory="256KB", name="spread")
    with pytest.raises(BudgetError) as caught:
        make(store, policy, memory="1GB")
    assert caught.value.missing_bytes
    assert "of the memory= budget" in str(caught.value)
    least = 256_000 + caught.value.missing_bytes
    loader = make(store, PartitionPolicy("dispersed", memory=least, name="spread"))
    assert loader._sources.shape.capacity == 1
    with pytest.raises(BudgetError):
        make(store, PartitionPolicy("dispersed", memory=least - 1, name="spread"))
    roomy = make(store, PartitionPolicy("dispersed", name="spread"), memory="1GB")
    assert roomy._sources.shape.capacity == 8
    assert "8 of 8 partitions" in roomy.stats().reason
    assert roomy.state_dict()["fingerprint"]["partitions"]["capacity"] == 8


def test_a_loader_travels_as_what_it_opens(store: gnnstore.GraphStore) -> None:
    loader = make(store, DISPERSED)
    copy = pickle.loads(pickle.dumps(loader))  # noqa: S301 - our own
    assert_same_batches(batches_of(copy), batches_of(loader))


def test_bytes_are_those_of_the_formula_and_nothing_is_written(tmp_path: Path) -> None:
    graph = random_graph(20_000, 130_000, seed=2, feature_dim=32, num_classes=2)
    path = graph.write(tmp_path / "g.gnn")
    unit = PartitionsReader.open(partition(path, 8, seed=0))
    files = [file for file in path.rglob("*") if file.is_file()]
    before = [(file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    for file in [path, *path.rglob("*")]:
        file.chmod(0o555 if file.is_dir() else 0o444)
    policy = PartitionPolicy("dispersed", capacity=4)
    # Without threads, so that nothing is read for the next epoch.
    options: dict[str, Any] = {"batch_size": 8192, "num_neighbors": [2], "input_nodes": None}
    loader = make(path, policy, num_threads=0, **options)
    batches_of(loader)
    known = partition_order_of(loader).states_of(SEED, 0)
    sizes = np.diff(unit.bucket_ptr).reshape(8, 8)
    inside = [known.schedule.partitions(i) for i in range(len(known.schedule.states))]
    num_edges = int(sizes[np.ix_(inside[0], inside[0])].sum())
    for last, next_ in pairwise(inside):
        stay = np.intersect1d(last, next_)
        num_edges += int(sizes[np.ix_(next_, next_)].sum() - sizes[np.ix_(stay, stay)].sum())
    row_bytes = 32 * 4 + 8 + 4
    expected = 20_000 * row_bytes + num_edges * 12
    found = loader.stats().bytes_read
    assert expected <= found <= 1.02 * expected
    assert loader.stats().partitions_read == 8
    assert before == [(file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    for directory in [path, *path.rglob("*")]:
        if directory.is_dir():
            directory.chmod(0o755)


def test_a_loader_that_was_iterated_goes_with_its_buffer(
    store: gnnstore.GraphStore,
) -> None:
    """With the last reference to it, and not when the garbage collector comes by."""
    gc.collect()
    gc.disable()
    try:
        for num_batches in (None, 3):
            loader = NeighborLoader(
                store, [2], batch_size=8, shuffle=True, seed=0, num_threads=2, partitions=DISPERSED
            )
            batches = iter(loader)
            list(islice(batches, num_batches))
            alive = [weakref.ref(part) for part in (loader, loader._source, loader._sources)]
            del loader, batches
            assert [part() for part in alive] == [None] * len(alive)
    finally:
        gc.enable()
