"""Neighbour sampling on graphs small enough to see the answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch_geometric.sampler.utils import to_bidirectional

from gnnstore import _core
from gnnstore.formats.store.store import Csc
from gnnstore.sampling.neighbor import NeighborSampler, Sample, SamplingConfig, only
from tests.support.twins import sampling as reference


def graph(columns: list[list[int]], dtype: str = "int64") -> Csc:
    """Build a graph from its in-neighbour lists."""
    indptr = np.cumsum([0] + [len(column) for column in columns])
    indices = np.array([source for column in columns for source in column], dtype=dtype)
    return Csc(indptr.astype(np.int64), indices, len(columns))


def random_graph(num_nodes: int, num_edges: int, seed: int, dtype: str = "int64") -> Csc:
    """Make a graph whose degrees differ widely; columns are unsorted, edges may be repeated."""
    rng = np.random.default_rng(seed)
    targets = np.sort((num_nodes * rng.random(num_edges) ** 3).astype(np.int64))
    indptr = np.searchsorted(targets, np.arange(num_nodes + 1)).astype(np.int64)
    return Csc(indptr, rng.integers(0, num_nodes, num_edges).astype(dtype), num_nodes)


def sample(csc: Csc, seeds: list[int], *fanouts: int, **options: Any) -> Sample:
    config = SamplingConfig(tuple(fanouts), **options)
    return NeighborSampler(csc, config).sample(seeds, epoch=0, batch=0)


def assert_equal(a: Sample, b: Sample) -> None:
    for name in ("n_id", "edge_index", "edge_pos"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    np.testing.assert_equal(a.trees, b.trees)
    assert (a.hop_nodes, a.hop_edges) == (b.hop_nodes, b.hop_edges)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("num_nodes", "num_edges"), [(1, 0), (1, 3), (9, 40), (300, 2000)])
def test_bidirectional_edges_are_pygs(num_nodes: int, num_edges: int, dtype: str) -> None:
    rng = np.random.default_rng(num_edges)
    edges = rng.integers(0, num_nodes, (2, num_edges)).astype(dtype)
    edges[1].sort()
    edge_pos = rng.permutation(num_edges)

    merged, merged_pos = _core.add_reverse_edges(edges, edge_pos, num_nodes)

    row, col, position = map(torch.from_numpy, (edges[0], edges[1], edge_pos))
    pyg_row, pyg_col, _ = to_bidirectional(row, col, row, col, position, position)
    np.testing.assert_array_equal(merged, torch.stack([pyg_row, pyg_col]).numpy())
    assert merged.dtype == dtype
    # Which of several equal edges lends its id is open in PyG; here it is the edge itself.
    expected, expected_pos = reference.add_reverse_edges(edges, edge_pos)
    np.testing.assert_array_equal(merged, expected)
    np.testing.assert_array_equal(merged_pos, expected_pos)


@pytest.mark.parametrize("indices_dtype", ["int32", "int64"])
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_dtypes(indices_dtype: str, index_dtype: Any) -> None:
    csc = random_graph(50, 400, seed=1, dtype=indices_dtype)
    config = SamplingConfig((4, 3), disjoint=True, seed=5)
    batch = NeighborSampler(csc, config, index_dtype).sample([3, 4], epoch=1, batch=2)
    assert batch.n_id.dtype == index_dtype
    assert batch.edge_index.dtype == index_dtype
    assert batch.edge_pos.dtype == np.int64
    assert batch.trees is not None
    assert only(batch.trees).dtype == np.int64
    expected = NeighborSampler(random_graph(50, 400, seed=1), config).sample(
        [3, 4], epoch=1, batch=2
    )
    assert_equal(batch, expected)


@pytest.mark.parametrize("induced", [False, True])
def test_large_node_ids_change_the_table_and_not_the_batch(induced: bool) -> None:
    csc = random_graph(2000, 20000, seed=3)
    subgraph_type: Any = "induced" if induced else "directional"
    compact, wide = (
        sample(of, [*range(0, 2000, 50)], 5, 5, subgraph_type=subgraph_type, seed=1)
        for of in (csc, replace(csc, num_src=2**40))
    )
    assert_equal(compact, wide)


def test_sources_may_be_more_than_targets() -> None:
    csc = Csc(np.array([0, 2, 3]), np.array([2**33, 7, 2**33]), num_src=2**34)
    batch = sample(csc, [0, 1], -1)
    assert batch.n_id.tolist() == [0, 1, 2**33, 7]
    assert batch.edge_index.tolist() == [[2, 3, 2], [0, 0, 1]]


def test_a_node_of_great_degree() -> None:
    csc = graph([list(range(1, 70_001))] + [[]] * 70_000)
    batch = sample(csc, [0], 2000)
    assert len(set(batch.edge_pos.tolist())) == 2000
    assert batch.n_id.tolist() == [0, *(batch.edge_pos + 1).tolist()]


def test_seeds_may_be_any_integers() -> None:
    csc = random_graph(50, 400, seed=1)
    expected = sample(csc, [3, 4], 3, 3)
    sampler = NeighborSampler(csc, SamplingConfig((3, 3)))
    for seeds in (np.array([3, 4], dtype=np.int32), np.array([3, 0, 4, 0])[::2], (3, 4)):
        assert_equal(sampler.sample(seeds, epoch=0, batch=0), expected)
    read_only = np.array([3, 4])
    read_only.setflags(write=False)
    assert_equal(sampler.sample(read_only, epoch=0, batch=0), expected)


def test_key_changes_the_batch_and_nothing_else_does() -> None:
    csc = random_graph(500, 50_000, seed=2)
    seeds = np.arange(0, 500, 7)

    def edges(seed: int, epoch: int, batch: int) -> bytes:
        sampler = NeighborSampler(csc, SamplingConfig((5, 5), seed=seed))
        return sampler.sample(seeds, epoch=epoch, batch=batch).edge_pos.tobytes()

    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), (2**64 - 1, 0, 0)]
    assert len({edges(*key) for key in keys}) == len(keys)
    assert [edges(*key) for key in keys] == [edges(*key) for key in keys]


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"replace": True}])
def test_threads_do_not_change_batches(options: dict[str, Any]) -> None:
    csc = random_graph(3000, 60_000, seed=4)
    sampler = NeighborSampler(csc, SamplingConfig((8, 8), seed=9, **options))
    seeds = np.random.default_rng(0).integers(0, 3000, (24, 64))

    def one(batch: int) -> Sample:
        return sampler.sample(seeds[batch], epoch=0, batch=batch)

    expected = [one(batch) for batch in range(24)]
    for num_threads in (1, 2, 4):
        with ThreadPoolExecutor(num_threads) as pool:
            for got, want in zip(pool.map(one, range(24)), expected, strict=True):
                assert_equal(got, want)


def test_scratch_memory_follows_the_batch_and_not_the_graph() -> None:
    num_nodes = 1 << 26
    csc = Csc(np.zeros(num_nodes + 1, dtype=np.int64), np.zeros(0, dtype=np.int32), num_nodes)
    _core.pool_trim(0)
    in_use = _core.pool_stats()["bytes_in_use"]
    batch = sample(csc, [1, num_nodes - 1], 10, 10, 10)
    assert batch.n_id.tolist() == [1, num_nodes - 1]
    stats = _core.pool_stats()
    assert stats["bytes_in_use"] - in_use + stats["bytes_free"] < 1 << 20


def test_batches_do_not_share_memory() -> None:
    csc = random_graph(500, 5000, seed=5)
    sampler = NeighborSampler(csc, SamplingConfig((5, 5)))
    first = sampler.sample([1, 2, 3], epoch=0, batch=0)
    copies: list[npt.NDArray[Any]] = [first.n_id.copy(), first.edge_index.copy()]
    for batch in range(1, 20):
        sampler.sample([4, 5, 6], epoch=0, batch=batch)
    np.testing.assert_array_equal(first.n_id, copies[0])
    np.testing.assert_array_equal(first.edge_index, copies[1])
    assert first.n_id.flags.writeable
