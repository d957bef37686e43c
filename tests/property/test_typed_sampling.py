"""Sampling from graphs of several types equals its plain Python twin, wherever the graph lies."""

from __future__ import annotations

from dataclasses import replace as replaced
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore import _core
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.store.by_column import integer_weights, places_by_time, sums_by_column
from gnnstore.formats.store.store import Csc
from gnnstore.sampling.disk import DiskNeighborSampler, StagedBatch
from gnnstore.sampling.neighbor import BatchRequest, NeighborSampler, Sample, SamplingConfig
from gnnstore.sampling.sampled_graph import COLUMNS, SampledTypes, TimeColumns
from tests.property.test_disk_sampling import cached_lists
from tests.support.effort import choose, examples
from tests.support.twins.sampling import (
    DrawKey,
    TypedBatch,
    TypedColumns,
    add_reverse_edges,
    sample_types,
)

NODES = ("a", "b", "c", "alone")
EDGES = (
    ("a", "to", "a"),
    ("b", "to", "a"),
    ("a", "rev_to", "b"),
    ("c", "to", "b"),
    ("b", "other", "a"),
    ("alone", "to", "c"),
)
FANOUTS = (-1, 0, 1, 2, 3, 5, 30)


def random_types(rng: np.random.Generator) -> SampledTypes:
    """Make a graph with isolated nodes, repeated edges, types without nodes or edges."""
    counts = {name: int(rng.choice([0, 1, 7, 40], p=[0.1, 0.1, 0.3, 0.5])) for name in NODES}
    edges = {}
    for edge_type in EDGES:
        if rng.random() < 0.3:
            continue
        num_src, num_dst = counts[edge_type[0]], counts[edge_type[2]]
        most = int(rng.choice([0, 5, 60], p=[0.1, 0.6, 0.3])) if num_src else 0
        degrees = rng.integers(0, most + 1, num_dst) * rng.integers(0, 2, num_dst)
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        dtype = rng.choice(["int32", "int64"])
        indices = rng.integers(0, max(num_src, 1), indptr[-1]).astype(dtype)
        for start, end in pairwise(indptr):
            indices[start:end].sort()
        edges[edge_type] = Csc(indptr, indices, num_src, "the/store", edge_type)
    if EDGES[0] in edges and rng.random() < 0.2:  # a graph of one type
        counts, edges = {NODES[0]: counts[NODES[0]]}, {EDGES[0]: edges[EDGES[0]]}
    return SampledTypes(counts, edges, "the/store")


def ordered(csc: Csc, times: npt.NDArray[np.int64], ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the order of each column by (time, id)."""
    counts = np.diff(csc.indptr)
    return places_by_time(times, ids, counts).astype(np.uint16 if csc.num_edges % 2 else np.uint32)


def with_extras(types: SampledTypes, by: str, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return a graph with times or weights on most edge types, and the twin's columns."""
    node_times = {
        name: rng.integers(-20, 20, count) for name, count in types.num_nodes.items() if name != "c"
    }
    times, sums, twins = {}, {}, {}
    for of, csc in types.edges.items():
        own = twins[of] = TypedColumns(csc.indptr, csc.indices)
        ids = rng.permutation(csc.num_edges)
        if by == "nodes" and of[0] in node_times:
            own.times, own.edge_ids = node_times[of[0]][csc.indices], ids
            times[of] = TimeColumns(ordered(csc, own.times, ids), node_times[of[0]], of_edges=False)
        elif by == "edges" and rng.random() < 0.7:
            own.times, own.edge_ids = rng.integers(-20, 20, csc.num_edges), ids
            times[of] = TimeColumns(ordered(csc, own.times, ids), own.times, of_edges=True)
        elif by == "weights" and rng.random() < 0.7:
            weights = 10.0 ** rng.uniform(-6, 6, csc.num_edges) * rng.integers(0, 2, csc.num_edges)
            own.weights = integer_weights(weights, np.diff(csc.indptr))
            sums[of] = sums_by_column(own.weights, np.diff(csc.indptr))
    node_times = node_times if by == "nodes" else {}
    extended = replaced(types, times=times, node_times=node_times, weight_sums=sums)
    return extended, twins


def hide(types: SampledTypes) -> SampledTypes:
    """Return a graph whose arrays on disk have their lengths and types only."""

    def hidden(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.zeros_like(array) - 1 if array.dtype.kind == "i" else np.zeros_like(array)

    return replaced(
        types,
        edges={of: replaced(csc, indices=hidden(csc.indices)) for of, csc in types.edges.items()},
        times={
            of: replaced(
                own, order=hidden(own.order), times=hidden(own.times) if own.of_edges else own.times
            )
            for of, own in types.times.items()
        },
        weight_sums={of: hidden(sums) for of, sums in types.weight_sums.items()},
    )


def some_seeds(types: SampledTypes, rng: np.random.Generator) -> dict[str, npt.NDArray[np.int64]]:
    """Draw seeds of some types, in any order."""
    return {
        name: rng.integers(0, max(count, 1), rng.integers(0, 9) if count else 0)
        for name, count in rng.permutation(np.array(list(types.num_nodes.items()), object))
        if rng.random() < 0.6
    }


def ranges_of(csc: Csc, positions: frozenset[int]) -> Any:
    """Return excluded positions as the samplers take them."""
    at = np.array(sorted(positions), np.int64)
    return np.searchsorted(csc.indptr, at, side="right") - 1, at, at + 1


def assert_equal(got: Sample, want: TypedBatch, config: SamplingConfig) -> None:
    assert list(got.nodes) == list(want.nodes)
    for name, nodes in got.nodes.items():
        assert nodes.tolist() == want.nodes[name]
        if got.trees is not None:
            assert got.trees[name].tolist() == want.trees[name]
    for edge_type, edges in got.edges.items():
        assert edges.index.shape == (2, len(want.positions[edge_type]))
        assert edges.index.tolist() == [want.sources[edge_type], want.targets[edge_type]]
        assert edges.positions.tolist() == want.positions[edge_type]
    assert (got.trees is None) == (not config.disjoint)
    if config.subgraph_type == "directional":
        assert got.hop_nodes == want.hop_nodes
        assert got.hop_edges == want.hop_edges


@pytest.mark.parametrize("mode", ["joint", "disjoint", "induced", "bidirectional"])
@pytest.mark.parametrize("by", ["nothing", "nodes", "edges", "weights"])
def test_samplers_equal_the_twin(mode: str, by: str) -> None:
    if mode == "induced" and by in ("nodes", "edges"):
        pytest.skip("times need disjoint trees")
    for seed in range(choose(8, 150)):
        check_equal(seed, mode, by)


def check_equal(seed: int, mode: str, by: str) -> None:
    """Compare the samplers with the twin on a random graph with random options."""
    rng = np.random.default_rng(seed)
    types, twins = with_extras(random_types(rng), by, rng)
    if mode == "bidirectional" and len(types.num_nodes) == 1:
        return  # has the reverse edges, too
    num_hops = int(rng.integers(0, 4))
    fanouts = {of: tuple(map(int, rng.choice(FANOUTS, num_hops))) for of in types.edges}
    key = tuple(map(int, rng.integers(0, 2**63, 3)))
    index_dtype: Any = rng.choice(["int32", "int64"])
    is_timed = by in ("nodes", "edges")
    subgraph_type: Any = mode if mode in ("induced", "bidirectional") else "directional"
    config = SamplingConfig(
        fanouts,
        replace=bool(rng.random() < 0.3),
        subgraph_type=subgraph_type,
        disjoint=mode == "disjoint",
        seed=key[0],
        weight_attr="w" if by == "weights" else None,
        time_attr="t" if is_timed else None,
        temporal_strategy="last" if is_timed and rng.random() < 0.5 else "uniform",
        time_window=int(rng.integers(1, 40)) if is_timed and rng.random() < 0.5 else None,
    )
    seeds = some_seeds(types, rng)
    excluded = {
        of: frozenset(rng.integers(0, csc.num_edges, csc.num_edges // 3).tolist())
        for of, csc in types.edges.items()
        if csc.num_edges and rng.random() < 0.4
    }
    total = sum(map(len, seeds.values()))
    places: Any = None
    if rng.random() < 0.5:
        order = rng.permutation(total)
        ends = np.cumsum([0, *map(len, seeds.values())])
        places = {name: order[ends[i] : ends[i + 1]] for i, name in enumerate(seeds)}
    times = None
    if config.time_attr is not None:
        times = {name: rng.integers(-25, 25, len(ids)) for name, ids in seeds.items()}
    want = sample_types(
        tuple(types.num_nodes),
        {of: replaced(twin, excluded=excluded.get(of, frozenset())) for of, twin in twins.items()},
        seeds,
        fanouts,
        DrawKey(*key),
        replace=config.replace,
        disjoint=config.disjoint,
        induced=mode == "induced",
        places=None if places is None else {name: of.tolist() for name, of in places.items()},
        times=None if times is None else {name: of.tolist() for name, of in times.items()},
        latest=config.temporal_strategy == "last",
        window=config.time_window,
    )
    arguments: dict[str, Any] = {
        "epoch": key[1],
        "batch": key[2],
        "excluded": {of: ranges_of(types.edges[of], at) for of, at in excluded.items()},
        "places": places,
        "times": times,
    }
    got = NeighborSampler(types, config, index_dtype).sample(seeds, **arguments)
    assert all(nodes.dtype == index_dtype for nodes in got.nodes.values())
    assert_equal(got, want, config)

    hidden = hide(types)
    fetch: dict[tuple[Any, Any], Any] = {
        (of, column): partial(np.take, types.column(of, column))
        for of in types.edges
        for column in COLUMNS
        if column == "indices"
        or (column == "weight_sums" and of in types.weight_sums)
        or (column == "order" and of in types.times)
        or (column == "times" and of in types.times and types.times[of].of_edges)
    }
    share = float(rng.choice([0.0, 0.3, 1.0]))
    disk = DiskNeighborSampler(
        hidden,
        config,
        index_dtype,
        fetch,
        {
            of: cached_lists(csc, np.flatnonzero(rng.random(csc.num_nodes) < share))
            for of, csc in types.edges.items()
            if rng.random() < 0.7
        },
    )
    assert_equal(disk.sample(seeds, **arguments), want, config)
    requests = [BatchRequest(seeds, key[1], key[2], arguments["excluded"], times, places)] * 3
    many = disk.sample_many(requests, memory_bytes=10**8, num_threads=1 + seed % 2)
    for sample in many:
        assert_equal(sample, want, config)
    staged = StagedBatch(disk, requests[0], disk.caches, max_column_positions=3)
    while (drawn := staged.draw()) is not None:
        edge_types = list(types.edges)
        staged.take([fetch[edge_types[of], COLUMNS[column]](at) for (of, column), at in drawn])
    assert_equal(staged.result(), want, config)


@pytest.mark.parametrize("seed", range(choose(20, 400)))
def test_garbage_never_crashes(seed: int) -> None:
    """Orders, times and sums are not trusted: a sample has edges of the graph, or there is none."""
    rng = np.random.default_rng(seed)
    types, _ = with_extras(random_types(rng), str(rng.choice(["nodes", "edges", "weights"])), rng)
    for own in types.times.values():
        own.order[:] = rng.integers(0, 70, len(own.order))
        own.times[:] = rng.integers(-(2**63), 2**63, len(own.times))
    for sums in types.weight_sums.values():
        sums[:] = rng.integers(0, 2**64, len(sums), dtype=np.uint64)
    for csc in types.edges.values():
        csc.indices[rng.random(csc.num_edges) < 0.02] = int(rng.integers(-9, 99))
        if rng.random() < 0.3:
            csc.indptr[rng.random(len(csc.indptr)) < 0.1] = int(rng.integers(-9, 2**40))
    time_attr = None if types.weight_sums else "t"
    config = SamplingConfig((3, -1), time_attr=time_attr, weight_attr=None if time_attr else "w")
    seeds = some_seeds(types, rng)
    times = {name: rng.integers(-99, 99, len(ids)) for name, ids in seeds.items()}
    try:
        sample = NeighborSampler(types, config).sample(seeds, epoch=0, batch=0, times=times)
    except CorruptStoreError:
        return
    for of, edges in sample.edges.items():
        found = types.edges[of].indices[edges.positions]
        np.testing.assert_array_equal(sample.nodes[of[0]][edges.index[0]], found)


@settings(max_examples=examples(200), deadline=None)
@given(
    num_nodes=st.integers(1, 30),
    num_edges=st.integers(0, 100),
    dtype=st.sampled_from([np.int32, np.int64]),
    seed=st.integers(0, 2**32),
)
def test_reverse_edges_equal_twin(num_nodes: int, num_edges: int, dtype: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    edge_index = rng.integers(0, num_nodes, (2, num_edges)).astype(dtype)
    edge_pos = rng.integers(0, 2**62, num_edges)
    got_index, got_pos = _core.add_reverse_edges(edge_index, edge_pos, num_nodes)
    want_index, want_pos = add_reverse_edges(edge_index, edge_pos)
    np.testing.assert_array_equal(got_index, want_index)
    np.testing.assert_array_equal(got_pos, want_pos)
