"""Samplers of graphs of several types: what they find, and what they refuse."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import _core
from gnnstore.disk.engines import open_engine
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.store.store import Csc
from gnnstore.graph.table_registry import TableRegistry
from gnnstore.graph.topology import Topology
from gnnstore.sampling.neighbor import (
    BatchRequest,
    NeighborSampler,
    Sample,
    SamplingConfig,
    with_reverse_edges,
)
from gnnstore.sampling.sampled_graph import SampledTypes
from tests.support.effort import choose
from tests.support.stores import CITES, WRITES, write_two_typed_store

PP, PA, AP = ("paper", "to", "paper"), ("paper", "to", "author"), ("author", "to", "paper")


def csc_of(edges: Any, num_src: int, num_dst: int, edge_type: Any) -> Csc:
    sources, targets = np.array(edges, np.int64).reshape(2, -1)
    order = np.lexsort((sources, targets))
    indptr = np.searchsorted(targets[order], np.arange(num_dst + 1))
    return Csc(indptr, sources[order].astype(np.int32), num_src, "g", edge_type)


def types_of(counts: dict[str, int], edges: dict[Any, Any]) -> SampledTypes:
    """Return a graph of edge lists [2, E] by type."""
    return SampledTypes(
        counts, {of: csc_of(ends, counts[of[0]], counts[of[2]], of) for of, ends in edges.items()}
    )


def assert_same(got: Sample, want: Sample) -> None:
    assert (got.num_seeds, got.hop_nodes, got.hop_edges) == (
        want.num_seeds,
        want.hop_nodes,
        want.hop_edges,
    )
    for name, nodes in want.nodes.items():
        np.testing.assert_array_equal(got.nodes[name], nodes, strict=True)
    for of, edges in want.edges.items():
        np.testing.assert_array_equal(got.edges[of].index, edges.index, strict=True)
        np.testing.assert_array_equal(got.edges[of].positions, edges.positions, strict=True)
    assert (got.trees is None) == (want.trees is None)
    for name, trees in (want.trees or {}).items():
        np.testing.assert_array_equal(got.trees[name], trees, strict=True)  # type: ignore[index]


def test_the_counts_of_pygs_own_test() -> None:
    ends = [[2, 3, 4, 5, 7, 7, 10, 11, 12, 13], [0, 1, 2, 3, 2, 3, 7, 7, 7, 7]]
    types = types_of({"paper": 14, "author": 14}, {PP: ends, PA: ends, AP: ends})
    sampler = NeighborSampler(types, SamplingConfig((1, 2, 4)))
    sample = sampler.sample({"paper": [0, 1]}, epoch=0, batch=0)
    assert sample.hop_nodes == {"paper": [2, 2, 3, 4], "author": [0, 2, 3, 4]}
    assert sample.hop_edges == {PP: [2, 4, 4], PA: [0, 4, 4], AP: [2, 4, 4]}


def test_positions_lead_to_the_ends_of_each_type() -> None:
    """Also where types have as many nodes as edges."""
    rng = np.random.default_rng(1)
    counts = {"paper": 30, "author": 30}
    types = types_of(counts, {of: rng.integers(0, 30, (2, 30)) for of in (PP, PA, AP)})
    given: list[dict[str, Any]] = [{}, {"disjoint": True}, {"replace": True}]
    for options in (*given, {"subgraph_type": "induced"}):
        config = SamplingConfig((4, 3), **options)
        sample = NeighborSampler(types, config).sample(
            {"author": np.arange(9), "paper": np.arange(3)}, epoch=0, batch=0
        )
        assert sample.num_edges > 20
        for of, edges in sample.edges.items():
            csc, (sources, targets) = types.edges[of], edges.index
            np.testing.assert_array_equal(
                sample.nodes[of[0]][sources], csc.indices[edges.positions]
            )
            owners = np.searchsorted(csc.indptr, edges.positions, side="right") - 1
            np.testing.assert_array_equal(sample.nodes[of[2]][targets], owners)
            assert (np.diff(targets) >= 0).all()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    written = write_two_typed_store(tmp_path_factory.mktemp("typed") / "s.gnn", num_edges=6000)
    return gnnstore.open(written.path)


CONFIGS = [
    SamplingConfig((5, 4), seed=7),
    SamplingConfig({CITES: (5, 4), WRITES: (-1, 2)}, disjoint=True, replace=True),
    SamplingConfig((3, 3), subgraph_type="induced"),
    SamplingConfig((3, 3), subgraph_type="bidirectional"),
]


@pytest.mark.parametrize("config", choose(CONFIGS[1:3], CONFIGS))
def test_wherever_the_topology_lies(store: gnnstore.GraphStore, config: SamplingConfig) -> None:
    memory = store.topology("memory").sampler(config, "int64")
    requests = [
        BatchRequest({"paper": np.arange(10 * batch, 10 * batch + 30), "author": [batch]}, 0, batch)
        for batch in range(6)
    ]
    want = [memory.sample(of.seeds, epoch=of.epoch, batch=of.batch) for of in requests]
    assert all(sample.num_edges > 100 for sample in want)
    with ThreadPoolExecutor(8) as pool:
        again = pool.map(lambda of: memory.sample(of.seeds, epoch=0, batch=of.batch), requests)
        for got, expected in zip(again, want, strict=True):
            assert_same(got, expected)
    mapped = store.topology("mmap").sampler(config, "int64")
    on_disk = store.topology("disk").on_disk(
        store.reader, open_engine(store.path / "zarr.json", "pread")
    )
    for num_bytes in (0, 8_000, 10**8):
        caches = TableRegistry().neighbors(on_disk, num_bytes, 10**9)
        before = sum(rows.counts.rows_read for rows in on_disk.rows.values())
        cached: Topology = replace(on_disk, neighbors=caches)
        disk = cached.sampler(config, "int64")
        assert disk.samples_together
        for sampler in (disk, mapped):
            alone = [sampler.sample(of.seeds, epoch=0, batch=of.batch) for of in requests]
            together = sampler.sample_many(requests, memory_bytes=10**7, num_threads=2)
            for got, expected in zip((*alone, *together), (*want, *want), strict=True):
                assert_same(got, expected)
        assert set(caches) == ({CITES, WRITES} if num_bytes else set())
        num_read = sum(rows.counts.rows_read for rows in on_disk.rows.values()) - before
        assert num_read > 0 or num_bytes == 10**8


def test_numbers_that_would_wrap() -> None:
    indptr, indices = np.array([0, 1]), np.array([0])

    def sample(number: int, hops: int, *, more: bool = False) -> Any:
        edges = [_core.EdgeColumns("", 0, 0, number, indptr, indices, [1] * hops)]
        edges += [_core.EdgeColumns("", 0, 0, 1, indptr, indices, [1] * hops)] * more
        graph = _core.SampledGraph([("", 1)], edges)
        return graph.sample([(np.zeros(1, np.int64), None, None)], seed=0, epoch=0, batch=0)

    with pytest.raises(ValueError, match="number of an edge type must be below 2\\^24 - 1"):
        sample(2**24 - 1, 1)
    sample(2**24 - 2, 256)
    for number, more in ((1, False), (0, True)):
        with pytest.raises(ValueError, match="with several edge types there may be 256 hops"):
            sample(number, 257, more=more)
    sample(0, 257)
    types = types_of({"paper": 2, "author": 2}, {PA: [[0], [0]], AP: [[0], [0]]})
    with pytest.raises(UsageError, match="256 hops at most; got 257 fan-outs"):
        NeighborSampler(types, SamplingConfig((1,) * 257))


def test_what_is_refused() -> None:
    types = types_of({"paper": 2, "author": 2}, {PA: [[0], [0]], AP: [[0], [0]]})
    with pytest.raises(UsageError, match=r"none for \('author', 'to', 'paper'\); they have: \('pa"):
        NeighborSampler(types, SamplingConfig({PA: (1,)}))
    with pytest.raises(UsageError, match="Number of hops must be the same across all edge types"):
        SamplingConfig({PA: (1,), AP: (1, 2)})
    sampler = NeighborSampler(types, SamplingConfig((1,), disjoint=True))
    key: dict[str, Any] = {"epoch": 0, "batch": 0}
    with pytest.raises(InputError, match=r"seed 2 of author at position 1 is outside \[0, 2\)"):
        sampler.sample({"author": [0, 2]}, **key)
    with pytest.raises(InputError, match=r"the place 1 of seed 0 of paper is outside \[0, 1\)"):
        sampler.sample({"paper": [0]}, places={"paper": [1]}, **key)


def test_reverses_are_found_by_name_then_ends() -> None:
    edges: dict[Any, Any] = {
        ("a", "to", "b"): [[0, 1], [0, 0]],
        ("b", "rev_to", "a"): [[1], [1]],
        ("a", "near", "a"): [[1], [0]],
        ("c", "x", "a"): [[0], [0]],
        ("a", "y", "c"): [[0, 1], [0, 0]],
        ("c", "alone", "b"): [[0], [1]],
    }
    types = types_of({"a": 2, "b": 2, "c": 1}, edges)
    config = SamplingConfig((-1,), subgraph_type="bidirectional")
    seeds = {"a": [0, 1], "b": [0, 1], "c": [0]}
    sample = NeighborSampler(types, config).sample(seeds, epoch=0, batch=0)
    found = with_reverse_edges(sample)
    assert {of: each.index.tolist() for of, each in found.edges.items()} == {
        ("a", "to", "b"): [[0, 1, 1], [0, 0, 1]],
        ("b", "rev_to", "a"): [[0, 0, 1], [0, 1, 1]],  # flipped, in the order of the others
        ("a", "near", "a"): [[1, 0], [0, 1]],
        ("c", "x", "a"): [[0, 0], [0, 1]],
        ("a", "y", "c"): [[0, 1], [0, 0]],
        ("c", "alone", "b"): [[0], [1]],
    }
    assert found.edges["c", "alone", "b"] is sample.edges["c", "alone", "b"]
    assert found.hop_nodes is None
    assert found.hop_edges is None
