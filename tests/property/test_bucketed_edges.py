"""Edges that memory cannot hold are sorted into the same buckets, group by group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnstore.budget.ledger import Ledger
from gnnstore.converters.stores.buckets import BucketedEdges, Grid, edges_at_once
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.errors import BudgetError, NoSpaceError
from gnnstore.formats import load_csc
from gnnstore.progress import NullProgress
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.effort import examples

_MEMORY_BYTES = 54 * 400  # for 400 edges


def sort(graph: StoreInput, grid: Grid, directory: Path, memory_bytes: int) -> tuple[Any, ...]:
    """Return counts, sources, targets and positions, and whether files were written."""
    edges = BucketedEdges(graph, grid, Ledger(memory_bytes))
    edges.divide(directory, NullProgress())
    wrote = directory.exists()
    columns = [np.concatenate(parts) for parts in zip(*edges.sorted(), strict=True)]
    assert not directory.exists()
    return edges.counts, columns, wrote


def expected(graph: StoreInput, grid: Grid) -> tuple[Any, ...]:
    csc = load_csc(graph.reader, graph.edges)
    nodes = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    targets = grid.new_ids[nodes].astype(np.int64)
    sources = grid.new_ids[csc.indices].astype(np.int64)
    bucket = targets // grid.rows * grid.num_partitions + sources // grid.rows
    order = np.lexsort((sources, targets, bucket))
    counts = np.bincount(bucket, minlength=grid.num_partitions**2)
    return counts, [sources[order] % grid.rows, targets[order] % grid.rows, order]


def check(graph: StoreInput, grid: Grid, directory: Path, memory_bytes: int) -> bool:
    counts, columns, wrote = sort(graph, grid, directory, memory_bytes)
    right_counts, right_columns = expected(graph, grid)
    np.testing.assert_array_equal(counts, right_counts)
    for found, right in zip(columns, right_columns, strict=True):
        np.testing.assert_array_equal(found, right)
    return bool(wrote)


def permutation(num_nodes: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(num_nodes)


@settings(
    max_examples=examples(20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    num_partitions=st.integers(2, 40),
    seed=st.integers(0, 1000),
    memory_bytes=st.sampled_from([_MEMORY_BYTES, 4 * _MEMORY_BYTES, 10**9]),
)
def test_edges_in_groups_are_those_sorted_whole(
    tmp_path_factory: pytest.TempPathFactory, num_partitions: int, seed: int, memory_bytes: int
) -> None:
    """With hubs, whose edges are in several groups."""
    folder = tmp_path_factory.mktemp("edges")
    graph = StoreInput(random_graph(200, 3000, seed=seed, skew=3).write(folder / "graph.gnn"))
    grid = Grid(num_partitions, -(-200 // num_partitions), permutation(200, seed))
    wrote = check(graph, grid, folder / "spill", memory_bytes)
    assert wrote == (memory_bytes < 10**9)


def test_a_node_with_all_edges_is_cut_like_any_other(tmp_path: Path) -> None:
    edges = np.stack([np.arange(5000), np.full(5000, 17)])
    store = GraphArrays(5000, edges).write(tmp_path / "star.gnn")
    grid = Grid(2, 2500, permutation(5000, 1))
    assert check(StoreInput(store), grid, tmp_path / "spill", _MEMORY_BYTES)


def test_places_beyond_32_bits(tmp_path: Path) -> None:
    """So many that the last bits of sources have no room in the keys that groups are cut by."""
    graph = StoreInput(random_graph(300, 4000, seed=2, skew=2).write(tmp_path / "graph.gnn"))
    rows, spread = 2**30, np.random.default_rng(0).integers(0, 64 * 2**30, 600)
    grid = Grid(64, rows, np.unique(spread)[:300][permutation(300, 3)])
    assert check(graph, grid, tmp_path / "spill", _MEMORY_BYTES)


def test_parallel_edges_keep_their_order_and_are_refused_where_they_do_not_fit(
    tmp_path: Path,
) -> None:
    ends = np.repeat(np.arange(20).reshape(2, 10), 150, axis=1)
    graph = StoreInput(GraphArrays(20, ends).write(tmp_path / "graph.gnn"))
    grid = Grid(4, 5, permutation(20, 0))
    assert check(graph, grid, tmp_path / "spill", _MEMORY_BYTES)
    with pytest.raises(BudgetError, match="edges between a few nodes"):
        sort(graph, grid, tmp_path / "spill", 54 * 60)


def test_a_graph_without_edges(tmp_path: Path) -> None:
    graph = StoreInput(random_graph(10, 0).write(tmp_path / "graph.gnn"))
    edges = BucketedEdges(graph, Grid(2, 5, np.arange(10)), Ledger(10**6))
    edges.divide(tmp_path / "spill", NullProgress())
    assert list(edges.sorted()) == []
    assert not edges.counts.any()


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = StoreInput(random_graph(100, 2000).write(tmp_path / "graph.gnn"))
    monkeypatch.setattr("gnnstore.formats.base.files.free_bytes", lambda _: 10_000)
    assert edges_at_once(Ledger(_MEMORY_BYTES)) == 400
    with pytest.raises(NoSpaceError, match=r"48 kB are needed, and 10 kB are free"):
        sort(graph, Grid(4, 25, np.arange(100)), tmp_path / "spill", _MEMORY_BYTES)
    assert not (tmp_path / "spill").exists()
