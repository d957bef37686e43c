"""Sampling from graphs of several types equals its plain Python twin, wherever the graph lies."""

from __future__ import annotations

from dataclasses import replace as replaced
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.formats.store.csc import Csc
from gnnstore.sampling.disk import TypedDiskSampler
from gnnstore.sampling.hetero import SampledTypes, TypedNeighborSampler
from gnnstore.sampling.neighbor import BatchRequest, Sample, SamplingConfig
from gnnstore.sampling.staged import StagedBatch
from gnnstore.testing.twins.hetero import TypedBatch, TypedColumns, sample_types
from gnnstore.testing.twins.sampling import DrawKey
from tests.property.test_disk_sampling import cached_lists
from tests.support.effort import examples

NODES = ("a", "b", "c", "alone")
EDGES = (
    ("a", "to", "a"),
    ("b", "to", "a"),
    ("a", "rev_to", "b"),
    ("c", "to", "b"),
    ("b", "other", "a"),
    ("alone", "to", "c"),
)
WORDS = st.integers(0, 2**64 - 1)
FANOUT = st.one_of(st.just(-1), st.integers(0, 6), st.integers(30, 40))


@st.composite
def graphs(draw: st.DrawFn) -> SampledTypes:
    """Graphs with hubs, isolated nodes, repeated edges, types without nodes or edges."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    counts = {name: draw(st.sampled_from([0, 1, 7, 40])) for name in NODES}
    edges = {}
    for edge_type in draw(st.lists(st.sampled_from(EDGES), unique=True)):
        num_src, num_dst = counts[edge_type[0]], counts[edge_type[2]]
        most = draw(st.sampled_from([0, 3, 60])) if num_src else 0
        degrees = rng.integers(0, most + 1, num_dst) * rng.integers(0, 2, num_dst)
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        indices = rng.integers(0, max(num_src, 1), indptr[-1]).astype(
            draw(st.sampled_from([np.int32, np.int64]))
        )
        for start, end in zip(indptr, indptr[1:], strict=False):
            indices[start:end].sort()
        edges[edge_type] = Csc(indptr, indices, None, num_src, "the/store", edge_type)
    return SampledTypes(counts, edges, "the/store")


def some_seeds(data: st.DataObject, types: SampledTypes) -> dict[str, npt.NDArray[np.int64]]:
    chosen = data.draw(st.lists(st.sampled_from(NODES), unique=True), label="seed types")
    seeds = {}
    for name in chosen:
        count = types.num_nodes[name]
        ids = st.lists(st.integers(0, count - 1), max_size=8) if count else st.just([])
        seeds[name] = np.array(data.draw(ids, label=name), np.int64)
    return seeds


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


@settings(max_examples=examples(400), deadline=None)
@given(
    types=graphs(),
    data=st.data(),
    key=st.tuples(WORDS, WORDS, WORDS),
    replace=st.booleans(),
    mode=st.sampled_from(["joint", "disjoint", "induced", "bidirectional"]),
    index_dtype=st.sampled_from(["int32", "int64"]),
)
def test_samplers_equal_the_twin(
    *,
    types: SampledTypes,
    data: st.DataObject,
    key: tuple[int, int, int],
    replace: bool,
    mode: str,
    index_dtype: Any,
) -> None:
    num_hops = data.draw(st.integers(0, 3), label="hops")
    hops = st.lists(FANOUT, min_size=num_hops, max_size=num_hops).map(tuple)
    fanouts = {of: data.draw(hops, label=str(of)) for of in types.edges}
    subgraph_type: Any = mode if mode in ("induced", "bidirectional") else "directional"
    config = SamplingConfig(
        fanouts,
        replace=replace,
        subgraph_type=subgraph_type,
        disjoint=mode == "disjoint",
        seed=key[0],
    )
    seeds = some_seeds(data, types)
    excluded = {}
    for of, csc in types.edges.items():
        if csc.num_edges and data.draw(st.booleans(), label="excludes"):
            at = st.integers(0, csc.num_edges - 1)
            excluded[of] = data.draw(st.frozensets(at, max_size=10), label="excluded")
    total = sum(map(len, seeds.values()))
    places = None
    if data.draw(st.booleans(), label="places"):
        order = np.random.default_rng(total).permutation(total)
        ends = np.cumsum([0, *map(len, seeds.values())])
        places = {name: order[ends[i] : ends[i + 1]] for i, name in enumerate(seeds)}
    want = sample_types(
        NODES,
        {
            of: TypedColumns(csc.indptr, csc.indices, excluded.get(of, frozenset()))
            for of, csc in types.edges.items()
        },
        seeds,
        fanouts,
        DrawKey(*key),
        replace=replace,
        disjoint=config.disjoint,
        induced=mode == "induced",
        places=None if places is None else {name: of.tolist() for name, of in places.items()},
    )
    arguments: dict[str, Any] = {
        "epoch": key[1],
        "batch": key[2],
        "excluded": {of: ranges_of(types.edges[of], at) for of, at in excluded.items()},
        "places": places,
    }
    got = TypedNeighborSampler(types, config, index_dtype).sample(seeds, **arguments)
    assert all(nodes.dtype == index_dtype for nodes in got.nodes.values())
    assert_equal(got, want, config)

    hidden = SampledTypes(
        types.num_nodes,
        {
            of: replaced(csc, indices=np.full_like(csc.indices, -1))
            for of, csc in types.edges.items()
        },
        "the/store",
    )
    rng = np.random.default_rng(key[0])
    share = data.draw(st.sampled_from([0.0, 0.3, 1.0]), label="cached")
    disk = TypedDiskSampler(
        hidden,
        config,
        index_dtype,
        {of: csc.indices.__getitem__ for of, csc in types.edges.items()},
        {
            of: cached_lists(csc, np.flatnonzero(rng.random(csc.num_nodes) < share))
            for of, csc in types.edges.items()
            if rng.random() < 0.7
        },
    )
    assert_equal(disk.sample(seeds, **arguments), want, config)
    requests = [BatchRequest(seeds, key[1], key[2], arguments["excluded"], None, places)] * 3
    num_threads = data.draw(st.integers(1, 2), label="threads")
    many = disk.sample_many(requests, memory_bytes=10**8, num_threads=num_threads)
    for sample in many:
        assert_equal(sample, want, config)
    staged = StagedBatch(disk, requests[0], disk.caches, max_column_positions=3)
    while (drawn := staged.draw()) is not None:
        asked = [list(types.edges.values())[stream[0]].indices[at] for stream, at in drawn]
        staged.take(asked)
    assert_equal(staged.result(), want, config)
