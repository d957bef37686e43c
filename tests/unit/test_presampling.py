"""Batches sampled before a run: which seeds they take, what they count, how large they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import BatchSampler, SequentialSampler

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.pipeline.batch import Batch
from gnnstore.pipeline.lookahead import presample as presampling
from gnnstore.pipeline.lookahead.presample import Presampler, batch_shape
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.seeds.base import BatchKey
from gnnstore.seeds.nodes import resolve_input_nodes
from gnnstore.testing.graphs import random_graph
from gnnstore.threads import Lookahead

N, E = 400, 3000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    graph = random_graph(N, E, feature_dim=25, edge_feature_dim=3, num_classes=4, skew=2.0)
    return gnnstore.open(graph.write(tmp_path_factory.mktemp("presampling") / "s.gnn"))


def presampler(
    store: gnnstore.GraphStore,
    fanouts: tuple[int, ...] = (3, 3),
    nodes: Any = None,
    *,
    batch_size: int = 20,
    in_order: bool = False,
    **config: Any,
) -> Presampler:
    seeds = resolve_input_nodes(store, nodes)
    return Presampler.of(store, SamplingConfig(fanouts, **config), seeds, batch_size, in_order)


def test_it_knows_what_a_batch_brings(store: gnnstore.GraphStore) -> None:
    found = presampler(store)
    assert tuple(found.value_bytes.values()) == (100 + 8, 12)


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_the_size_is_that_of_a_batch(
    store: gnnstore.GraphStore, subgraph_type: Any, disjoint: bool
) -> None:
    """All in-neighbours of all nodes: every batch is the same, up to the order of its seeds."""
    if disjoint and subgraph_type == "induced":
        pytest.skip("these two exclude each other")
    options: dict[str, Any] = {"subgraph_type": subgraph_type, "disjoint": disjoint}
    found = presampler(store, (-1,), batch_size=N, **options).run(store.topology(), 2)
    loader = NeighborLoader(store, [-1], batch_size=N, strategy="memory", **options)
    batch = Batch(BatchKey(0, 0, 0), range(N))
    loader._source.prepare(batch)
    loader._assembler.assemble(batch)
    assert batch.sample is not None
    assert batch.labels is not None
    (input_id,) = batch.labels.arrays()
    assert found.largest_bytes == (
        batch.sample.num_bytes + input_id.nbytes + batch.cost.bytes_gathered
    )


def test_the_largest_is_found(store: gnnstore.GraphStore) -> None:
    """Node 0 is the only one with in-edges, if fan-outs are 0 for the others."""
    topology = store.topology()
    degrees = np.diff(topology.columns().indptr)
    hub, lonely = int(np.argmax(degrees)), np.flatnonzero(degrees == degrees.min())
    nodes = [*lonely[:10].tolist(), hub]
    found = presampler(store, (-1,), nodes, batch_size=1, in_order=True).run(topology, 1)
    assert found.num_batches == 4
    alone = presampler(store, (-1,), [hub], batch_size=1).run(topology, 1)
    assert found.largest_bytes == alone.largest_bytes, "the last is always among them"


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_nodes_are_counted_once_a_batch(store: gnnstore.GraphStore, num_threads: int) -> None:
    counts = np.zeros(N, np.uint8)
    found = presampler(store, (), range(100, 140), batch_size=10).run(
        store.topology(), num_threads, counts
    )
    # 1600 visits, ten a batch: 160 batches, each seed in every fourth.
    assert found.num_batches == 160
    assert counts.tolist() == [0] * 100 + [40] * 40 + [0] * (N - 140)


def test_threads_change_nothing(store: gnnstore.GraphStore) -> None:
    found = []
    for num_threads in (0, 1, 4):
        counts = np.zeros(N, np.uint8)
        result = presampler(store, (3, 3), "train").run(store.topology(), num_threads, counts)
        found.append((result, counts.tolist()))
    assert found[0] == found[1] == found[2]
    assert 4 < found[0][0].num_batches < 255


def test_samples_stay_within_the_memory_for_batches(
    store: gnnstore.GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many threads draw them; which are drawn does not depend on it."""
    ahead: list[int] = []

    class Watched(Lookahead):
        def __call__(self) -> int:
            ahead.append(super().__call__())
            return ahead[-1]

    monkeypatch.setattr(presampling, "Lookahead", Watched)
    topology, one = store.topology(), presampler(store, (-1,), batch_size=N)
    sampled = one.run(topology, 1)
    ids_bytes = sampled.largest_bytes - N * (108 + 8) - E * (12 + 8)
    most: dict[int | None, int] = {}
    for spare_bytes in (None, 5 * ids_bytes, 2 * ids_bytes, 1):
        ahead.clear()
        counts = np.zeros(N, np.uint8)
        assert one.run(topology, 8, counts, spare_bytes) == sampled
        assert counts.max() == counts.min() == sampled.num_batches
        most[spare_bytes] = max(ahead)
    assert list(most.values()) == [16, 4, 1, 1]


def test_the_seed_of_the_run_does_not_matter(store: gnnstore.GraphStore) -> None:
    """A seed may be drawn later than a cache is filled, and rows must not depend on when."""
    counts = np.zeros((2, N), np.uint8)
    for seed in (0, 1):
        presampler(store, (2,), "train", seed=seed).run(store.topology(), 1, counts[seed])
    assert counts[0].tolist() == counts[1].tolist()


def test_no_more_than_a_byte_can_count(store: gnnstore.GraphStore) -> None:
    counts = np.zeros(N, np.uint8)
    found = presampler(store, (), [7], batch_size=1).run(store.topology(), 1, counts)
    assert found.num_batches == 255
    assert counts[7] == 255


def test_a_mapped_structure_is_sampled_less(store: gnnstore.GraphStore) -> None:
    counts = np.zeros(N, np.uint8)
    found = presampler(store, (), [7], batch_size=1).run(store.topology("mmap"), 1, counts)
    assert (found.num_batches, counts[7]) == (32, 32)


def test_no_seeds_no_batches(store: gnnstore.GraphStore) -> None:
    found = presampler(store, (3,), []).run(store.topology(), 2, np.zeros(N, np.uint8))
    assert (found.num_batches, found.largest_bytes) == (0, 0)


def test_an_epoch_takes_each_seed_once(store: gnnstore.GraphStore) -> None:
    positions = list(presampler(store, nodes=range(50), batch_size=10)._positions(10))
    for first in (0, 5):
        assert sorted(np.concatenate(positions[first : first + 5]).tolist()) == list(range(50))
    assert np.concatenate(positions[:5]).tolist() != np.concatenate(positions[5:]).tolist()


def test_seeds_in_their_order_are_taken_in_runs(store: gnnstore.GraphStore) -> None:
    of_all = presampler(store, nodes=range(101), batch_size=10, in_order=True)
    assert list(of_all._positions(3)) == [range(10), range(50, 60), range(100, 101)]
    assert len(list(of_all._positions(99))) == 11


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (1, True)),
        ({"batch_size": 7}, (7, True)),
        ({"batch_size": 7, "shuffle": True}, (7, False)),
        ({"batch_size": 7, "sampler": [3, 1]}, (7, False)),
        ({"batch_sampler": [[1], [2, 3, 4]]}, (3, False)),
        ({"batch_sampler": BatchSampler(SequentialSampler(range(9)), 4, False)}, (4, False)),
        ({"batch_size": None, "sampler": [[1, 2], [3]]}, (2, False)),
        ({"batch_size": None, "sampler": [5, 6]}, (1, False)),
        ({"batch_size": None, "shuffle": True}, (1, False)),
        ({"batch_sampler": iter([[1, 2]])}, (1, False)),
    ],
)
def test_the_shape_of_a_batch(options: dict[str, Any], shape: tuple[int, bool]) -> None:
    assert batch_shape(options) == shape


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    graph = random_graph(50, 200)
    store = gnnstore.open(graph.write(tmp_path / "s.gnn"))
    topology = store.topology()
    topology.columns().indices[:] = 50
    with pytest.raises(gnnstore.CorruptStoreError) as caught:
        presampler(store, (2,)).run(topology, 2)
    assert caught.value.__notes__ == ["while sampling batch 0 beforehand"]
