"""Sampling by time: what is allowed, what is chosen of it, and from where."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gnnstore.converters import from_pyg
from gnnstore.disk.engines import open_engine
from gnnstore.errors import CorruptStoreError, InputError, UsageError
from gnnstore.formats.store.by_column import places_by_time
from gnnstore.formats.store.store import Csc
from gnnstore.graph.store import GraphStore
from gnnstore.sampling.disk import DiskNeighborSampler
from gnnstore.sampling.neighbor import BatchRequest, NeighborSampler, Sample, SamplingConfig
from gnnstore.sampling.sampled_graph import SampledTypes, TimeColumns
from gnnstore.seeds.negatives import Negatives, NodeTimes
from tests.support.effort import choose

LEAST = -(2**63)
NODE, EDGE = "node", ("node", "to", "node")
EdgeType = tuple[str, str, str]
CITES: EdgeType = ("paper", "cites", "paper")
WRITES: EdgeType = ("author", "writes", "paper")
STRATEGIES = pytest.mark.parametrize("strategy", ["uniform", "last"])
LEVELS = pytest.mark.parametrize("of_edges", [True, False])


def star(times: Any, *, of_edges: bool, num_targets: int = 1) -> SampledTypes:
    """Return a graph in which the last nodes are the targets of one edge of each other node."""
    own = np.array(times, np.int64)
    count = len(own)
    num_nodes = count + num_targets
    indptr = np.zeros(num_nodes + 1, np.int64)
    indptr[count + 1 :] = count * np.arange(1, num_targets + 1)
    indices = np.tile(np.arange(count, dtype=np.int32), num_targets)
    edge_times = np.tile(own, num_targets)
    order = places_by_time(edge_times, np.arange(len(indices)), np.diff(indptr)).astype(np.uint16)
    node_times = np.concatenate([own, np.zeros(num_targets, np.int64)])
    columns = TimeColumns(order, edge_times if of_edges else node_times, of_edges)
    return SampledTypes(
        {NODE: num_nodes},
        {EDGE: Csc(indptr, indices, num_nodes, "g")},
        "g",
        {EDGE: columns},
        {} if of_edges else {NODE: node_times},
    )


def allowed(types: SampledTypes, time: int, fanout: int = -1, **options: Any) -> list[int]:
    """Return the sources that a seed of some time, the target, gets."""
    config = SamplingConfig((fanout,), time_attr="time", **options)
    seed = types.num_nodes[NODE] - 1
    sample = NeighborSampler(types, config).sample([seed], epoch=0, batch=0, times=[time])
    return list(map(int, sample.nodes[NODE][sample.edges[EDGE].index[0]]))


@STRATEGIES
@LEVELS
def test_up_to_the_seeds_time(strategy: Any, of_edges: bool) -> None:
    types = star([5, 3, 4, 3], of_edges=of_edges)
    options = {"temporal_strategy": strategy}
    # In the order of times, equal ones as in the input, whatever the strategy: also with -1.
    for time, want in ((2, []), (3, [1, 3]), (4, [1, 3, 2]), (5, [1, 3, 2, 0]), (99, [1, 3, 2, 0])):
        assert allowed(types, time, **options) == want
        assert allowed(types, time, 4, **options) == want
    chosen = [allowed(types, 5, 2, seed=seed, **options) for seed in range(40)]
    if strategy == "last":
        assert chosen == [[2, 0]] * 40
        drawn = {tuple(allowed(types, 5, 2, seed=s, replace=True, **options)) for s in range(40)}
        assert drawn == {(2, 2), (2, 0), (0, 2), (0, 0)}  # of the last two
    else:
        assert {tuple(sorted(pair)) for pair in chosen} == {
            (a, b) for a in range(4) for b in range(4) if a < b
        }


@LEVELS
def test_times_beyond_ids(of_edges: bool) -> None:
    """Ids are int32: times are not narrowed to them."""
    times = [2**31 - 1, 2**31, 2**31 + 1, 1_700_000_000_000_000_000, -(2**40), LEAST + 1]
    types = star(times, of_edges=of_edges)
    for time in (*times, 2**62, -1, -(2**31)):
        want = sorted((own, node) for node, own in enumerate(times) if own <= time)
        assert allowed(types, time) == [node for _, node in want]


def test_an_order_that_is_damaged() -> None:
    """An edge after its seed's time is never taken for an earlier one."""
    for of_edges in (True, False):
        types = star([1, 2, 9, 9], of_edges=of_edges)
        types.times[EDGE].order[:] = [2, 0, 1, 3]
        with pytest.raises(CorruptStoreError, match="the order by time does not ascend"):
            allowed(types, 5)
        types.times[EDGE].order[:] = [0, 7, 1, 3]
        with pytest.raises(CorruptStoreError, match="has the place 7 in a list of 4 edges"):
            allowed(types, 5)
    types = star([1, 2, 9, 9], of_edges=False)
    types.edges[EDGE].indices[0] = 77
    with pytest.raises(CorruptStoreError, match="the node id 77 at position 0 is outside"):
        allowed(types, 5)


def test_draws_of_negatives() -> None:
    times = NodeTimes(np.array([7, -200, 3, -200]))
    assert times.oldest == 1
    asked: list[int] = []

    def draw(attempt: int) -> npt.NDArray[np.int64]:
        asked.append(attempt)
        return np.array([0, 2, 0, 3]) if attempt == 0 else np.array([2, 0, 0, 0])

    drawn = times.existing(draw, np.array([5, 5, 5, -300]), max_redraws=4)
    assert drawn.tolist() == [2, 2, 1, 1]  # redrawn, as drawn, the oldest, the oldest
    assert asked == [0, 1, 2, 3, 4]
    asked.clear()
    assert times.existing(draw, np.full(4, 7), max_redraws=4).tolist() == [0, 2, 0, 3]
    assert asked == [0]


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="time_attr and weight_attr exclude each other"):
        SamplingConfig((1,), time_attr="t", weight_attr="w")
    with pytest.raises(UsageError, match="disjoint=True and subgraph_type='induced' exclude"):
        SamplingConfig((1,), time_attr="t", subgraph_type="induced")
    given: list[dict[str, Any]] = [{"time_window": 3}, {"temporal_strategy": "last"}]
    for options in given:
        with pytest.raises(UsageError, match="need time_attr"):
            SamplingConfig((1,), **options)
    for window in (0, -1, 2**63):
        with pytest.raises(UsageError, match="time_window must be 1 or more"):
            SamplingConfig((1,), time_attr="t", time_window=window)
    assert SamplingConfig((1,), time_attr="t").disjoint
    sampler = NeighborSampler(star([1], of_edges=True), SamplingConfig((1,), time_attr="when"))
    key: dict[str, Any] = {"epoch": 0, "batch": 0}
    with pytest.raises(UsageError, match="'node' have no times, since these nodes have no 'when'"):
        sampler.sample([0], **key)
    types = star([1], of_edges=False)
    with pytest.raises(InputError, match="seed 2 at position 0 is outside"):
        NeighborSampler(types, SamplingConfig((1,), time_attr="t")).sample([2], **key)


def graph(rng: np.random.Generator, *, several: bool) -> Any:
    """Return a graph with times of papers, times of edges, and weights."""
    count, num_edges = 200, 3000
    data: Any = HeteroData() if several else Data()
    paper = data["paper"] if several else data
    paper.x = torch.arange(count).float()[:, None]
    paper.time = torch.from_numpy(rng.integers(0, 100, count))
    if not several:
        data.edge_index = torch.from_numpy(rng.integers(0, count, (2, num_edges)))
        data.at = torch.from_numpy(rng.integers(0, 100, num_edges))
        data.edge_attr = torch.rand(num_edges)
        data.w = torch.from_numpy(rng.random(num_edges) * rng.integers(0, 2, num_edges))
        return data
    data["author"].x = torch.zeros(50, 1)
    types: list[tuple[str, str, str]] = [
        ("paper", "cites", "paper"),
        ("author", "writes", "paper"),
        ("paper", "by", "author"),
    ]
    for of in types:
        ends = [rng.integers(0, 50 if end == "author" else count, num_edges) for end in of[::2]]
        data[of].edge_index = torch.from_numpy(np.stack(ends))
        if of[1] != "by":
            data[of].at = torch.from_numpy(rng.integers(0, 100, num_edges))
            data[of].w = torch.from_numpy(rng.random(num_edges) * rng.integers(0, 2, num_edges))
    return data


@pytest.fixture(scope="module", params=[False, True], ids=["one type", "several types"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    path = tmp_path_factory.mktemp("timed") / "s.gnn"
    data = graph(np.random.default_rng(0), several=request.param)
    return GraphStore(from_pyg(data, path, time_attr=("time", "at"), weight_attr=("w",)))


CONFIGS = [
    SamplingConfig((5, 4), time_attr="time", seed=7),
    SamplingConfig((5, 4), time_attr="time", temporal_strategy="last", time_window=20),
    SamplingConfig((5, -1), time_attr="at", replace=True),
    SamplingConfig((5, 4), time_attr="at", temporal_strategy="last"),
    SamplingConfig((5, 4), weight_attr="w", subgraph_type="induced"),
    SamplingConfig((5, 4), weight_attr="w", replace=True, disjoint=True),
    SamplingConfig((5, 4), weight_attr="w", subgraph_type="bidirectional"),
]


def parts(sample: Sample) -> list[Any]:
    """Return all that a sample consists of, as lists."""
    return [
        {name: ids.tolist() for name, ids in sample.nodes.items()},
        {of: (each.index.tolist(), each.positions.tolist()) for of, each in sample.edges.items()},
        sample.trees and {name: tree.tolist() for name, tree in sample.trees.items()},
        sample.hop_nodes,
        sample.hop_edges,
    ]


@pytest.mark.parametrize("config", choose(CONFIGS[1:3] + CONFIGS[4:6], CONFIGS))
def test_wherever_a_store_lies(store: GraphStore, config: SamplingConfig) -> None:
    name = "paper" if len(store.schema.node_types) > 1 else NODE
    needs_times, time_attr = config.time_attr == "at", config.time_attr or ""
    requests = [
        BatchRequest(
            {name: np.arange(20 * batch, 20 * batch + 20)},
            0,
            batch,
            times={name: np.arange(20) + 60} if needs_times else None,
        )
        for batch in range(5)
    ]
    memory = store.topology("memory").sampler(config, "int64")
    want = [parts(each) for each in memory.sample_many(requests, memory_bytes=0)]
    assert all(len(nodes[name]) > 60 for nodes, *_ in want)
    mapped = store.topology("mmap")
    on_disk = store.topology("disk").on_disk(
        store.reader, open_engine(store.path / "zarr.json", "pread")
    )
    for topology in (mapped, on_disk):
        sampler = topology.sampler(config, "int64")
        for num_threads in (1, 3):
            found = sampler.sample_many(requests, memory_bytes=10**8, num_threads=num_threads)
            assert [parts(each) for each in found] == want
        alone = [sampler.sample(**request._asdict()) for request in requests]
        assert [parts(each) for each in alone] == want
    assert on_disk.counts.rows_read > 1000
    assert set(on_disk.columns_read) == {
        spec.path
        for edge in store.schema.edge_types
        for spec in (
            *([edge.orders[time_attr]] if time_attr in edge.orders else []),
            *([edge.attributes["at"]] if needs_times and "at" in edge.attributes else []),
            *(edge.weight_sums.values() if config.weight_attr else []),
        )
    }


def test_sources_whose_times_decide_are_read_once(tmp_path: Path) -> None:
    """Lists are read whole, and what is chosen of them is not read again."""
    data = graph(np.random.default_rng(0), several=False)
    store = GraphStore(from_pyg(data, tmp_path / "s.gnn", time_attr=("time",)))
    on_disk = store.topology("disk").on_disk(
        store.reader, open_engine(store.path / "zarr.json", "pread")
    )
    sampler = on_disk.sampler(SamplingConfig((5, 4), time_attr="time"), "int64")
    assert isinstance(sampler, DiskNeighborSampler)
    sample = sampler.sample(**BatchRequest({NODE: np.arange(40)}, 0, 0)._asdict())
    assert sample.hop_nodes is not None
    indptr = store.topology("memory").columns().indptr
    expanded = sample.nodes[NODE][: sum(sample.hop_nodes[NODE][:2])]
    num_along = int(np.diff(indptr)[expanded].sum())
    (rows,) = on_disk.rows.values()
    assert sample.num_edges < rows.counts.rows_read <= num_along
    assert num_along > sample.num_edges


def test_no_edge_is_later_than_its_seed(store: GraphStore) -> None:
    """By the store's own times, read another way; and all that could be taken is."""
    name = "paper" if len(store.schema.node_types) > 1 else NODE
    time = store.reader.read(store.schema.node_of(name).attributes["time"])
    seeds = np.arange(50)
    config = SamplingConfig((-1, 2), time_attr="time")
    sample = (
        store.topology("memory").sampler(config, "int64").sample({name: seeds}, epoch=0, batch=0)
    )
    assert sample.trees is not None
    of_seed = time[seeds]
    assert (time[sample.nodes[name][50:]] <= of_seed[sample.trees[name][50:]]).all()
    for edge in store.schema.edge_types:
        if edge.target != name:
            continue
        csc = store.topology("memory").columns(edge.type)
        (hop, *_) = sample.hop_edges[edge.type]  # type: ignore[index]
        sources, targets = sample.edges[edge.type].index[:, :hop]
        for seed in range(50):
            column = csc.indices[csc.indptr[seed] : csc.indptr[seed + 1]]
            want = column[time[column] <= of_seed[seed]] if edge.source == name else column
            got = sample.nodes[edge.source][sources[targets == seed]]
            assert sorted(got) == sorted(want)
            if edge.source == name:
                assert all(a <= b for a, b in pairwise(time[got]))


def test_what_a_store_lacks(tmp_path: Path) -> None:
    data = graph(np.random.default_rng(1), several=True)
    data["paper"].both = data["paper"].time
    data["paper", "by", "author"].both = torch.zeros(3000, dtype=torch.int64)
    store = GraphStore(from_pyg(data, tmp_path / "s.gnn"))
    topology = store.topology("memory")
    for option, name, message in (
        (
            "time_attr",
            "time",
            r"no order of its edges by 'time' for .*add-order .*--time-attr ti",
        ),
        ("time_attr", "at", r"no order of its edges by 'at'"),
        ("weight_attr", "w", r"no sums of 'w' for .*add-order .*s.gnn --weight-attr w"),
        ("time_attr", "both", r"nodes \(paper\) and edges \(\('paper', 'by', 'author'\)\) have it"),
        (
            "time_attr",
            "x2",
            r"no such attribute of nodes or edges.*; there are: at, both, time,",
        ),
        ("weight_attr", "x", r"no such edge attribute; there are: at, both, w"),
    ):
        config = SamplingConfig((2,), **{option: name})  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=message):
            topology.sampler(config, "int64")


def test_nothing_is_read_for_samplers_without_times(store: GraphStore) -> None:
    topology = GraphStore(store.path).topology("memory")
    plain = topology.sampler(SamplingConfig((2,)), "int64")
    assert topology.stored is not None
    assert topology.stored.num_bytes == 0
    assert isinstance(plain, NeighborSampler)
    topology.sampler(SamplingConfig((2,), weight_attr="w"), "int64")
    weighted = [edge for edge in store.schema.edge_types if edge.weight_sums]
    assert topology.stored.num_bytes == sum(8 * edge.num_edges for edge in weighted)


def test_times_of_negatives_count_once() -> None:
    times = NodeTimes(np.zeros(1000, np.int64))
    other = NodeTimes(np.zeros(10, np.int64))
    assert Negatives("binary", 1.0, 9, 9, src_times=times, dst_times=times).num_bytes == 8000
    assert Negatives("binary", 1.0, 9, 9, src_times=times, dst_times=other).num_bytes == 8080
