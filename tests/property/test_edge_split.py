"""Splitting the edges of a graph: a partition by unordered pairs, whatever is done how."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnstore
from gnnstore.converters import ConvertOptions, split_edges
from gnnstore.converters.edges import builder as spill
from gnnstore.converters.edges import split
from gnnstore.converters.edges.split import SplitRule
from gnnstore.converters.writer import edge_splits
from gnnstore.errors import InputError, UsageError
from gnnstore.graph.store import GraphStore
from gnnstore.pipeline.check import verify
from gnnstore.testing.graphs import write_store
from tests.support.effort import choose
from tests.support.graphs import read_store
from tests.support.stores import assert_same_files

Edges = npt.NDArray[np.int64]


def edges_of(store: GraphStore) -> dict[str, tuple[Edges, Edges, Edges]]:
    """Read edge_index, edge ids and weights of each split, the graph's as "train"."""
    graph = read_store(store.path)
    found = {"train": (graph.edge_index, graph.edge_id, graph.edge_attributes["edge_weight"])}
    for name, own in store.edge_splits.items():
        assert own.edge_ids is not None
        weights = own.attributes["edge_weight"].read()
        found[name] = (own.edge_index.numpy(), own.edge_ids.read(), weights)
    return found


def pairs(edges: Edges) -> set[tuple[int, ...]]:
    return {tuple(pair) for pair in np.sort(edges, axis=0).T.tolist()}


def write(
    path: Path,
    edges: Edges,
    num_nodes: int,
    fractions: tuple[float, ...] | None = None,
    *,
    seed: int = 0,
    num_negatives: int = 0,
    strict: bool = False,
    **options: Any,
) -> GraphStore:
    """Return a graph as a store, and split, if there are fractions; weights are by pair."""
    low, high = np.sort(edges, axis=0)
    whole = write_store(
        path if fractions is None else path.with_name(f"whole-{path.name}"),
        edges,
        num_nodes=num_nodes,
        edge_weight=1000.0 * low + high + 10,
        options=ConvertOptions(**options),
    )
    if fractions is not None:
        negatives: Any = {"num_negatives": num_negatives, "strict": strict}
        split_edges(whole, path, fractions, seed=seed, **negatives)
    return gnnstore.open(path)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Edges]:
    num_nodes = draw(st.integers(30, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    edges = rng.integers(0, draw(st.integers(20, num_nodes)), (2, draw(st.integers(400, 3000))))
    return num_nodes, edges[:, rng.integers(0, edges.shape[1], edges.shape[1])]  # some repeated


@given(
    graph=graphs(),
    seed=st.integers(0, 2**64 - 1),
    undirected=st.booleans(),
    self_loops=st.sampled_from(["keep", "drop", "add"]),
    fractions=st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.5, 0.0), (0.3, 0.3, 0.2)]),
)
@settings(max_examples=choose(3, 25), deadline=None)
def test_a_split_is_a_partition_by_pairs(  # noqa: PLR0917 - hypothesis' arguments
    tmp_path_factory: pytest.TempPathFactory,
    graph: tuple[int, Edges],
    seed: int,
    undirected: bool,
    self_loops: Any,
    fractions: tuple[float, ...],
) -> None:
    tmp_path = tmp_path_factory.mktemp("split")
    num_nodes, edges = graph
    rules: dict[str, Any] = {"undirected": undirected, "self_loops": self_loops}
    whole = read_store(write(tmp_path / "whole.gnn", edges, num_nodes, **rules).path)
    store = write(
        tmp_path / "a.gnn",
        edges,
        num_nodes,
        fractions,
        seed=seed,
        **rules,
        edge_ids=True,
    )
    assert verify(store.path, "full").ok
    found = edges_of(store)
    assert list(found) == [
        "train",
        *(n for n, f in zip(split.NAMES[1:], fractions[1:], strict=True) if f),
    ]

    # Copies and reverses fall into the same split, so that the splits share no pair.
    by_split = {name: pairs(index) for name, (index, _, _) in found.items()}
    assert sum(map(len, by_split.values())) == len(set().union(*by_split.values()))

    # With its id and attributes, each edge of the graph is in one split.
    rows = Counter[tuple[float, ...]]()
    for name, (index, ids, weights) in found.items():
        rows.update(zip(*index.tolist(), ids.tolist(), weights.tolist(), strict=True))
        if undirected and name != "train":
            assert (index[0] <= index[1]).all()
        assert (np.lexsort((index[0], index[1])) == np.arange(index.shape[1])).all()
    expected = Counter[tuple[float, ...]]()
    held = set().union(*(by_split[name] for name in found if name != "train"))
    whole_rows = zip(
        *whole.edge_index.tolist(),
        whole.edge_id.tolist(),
        whole.edge_attributes["edge_weight"].tolist(),
        strict=True,
    )
    for row in whole_rows:
        pair = tuple(sorted(row[:2]))
        if (pair in held and not (undirected and row[0] > row[1])) or pair in by_split["train"]:
            expected[row] += 1
    assert rows == expected
    if sum(fractions) == 1:
        assert set().union(*by_split.values()) == pairs(whole.edge_index)


@given(graph=graphs(), undirected=st.booleans(), order=st.randoms())
@settings(max_examples=choose(1, 15), deadline=None)
def test_neither_memory_nor_order_matters(
    tmp_path_factory: pytest.TempPathFactory,
    graph: tuple[int, Edges],
    undirected: bool,
    order: Any,
) -> None:
    tmp_path = tmp_path_factory.mktemp("split")
    num_nodes, edges = graph
    rules: dict[str, Any] = {"undirected": undirected, "fractions": (0.6, 0.2, 0.2)}
    expected = edges_of(write(tmp_path / "a.gnn", edges, num_nodes, **rules))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "PIECE_EDGES", 37)
        patch.setattr(split, "_PIECE_COLUMNS", 11)
        patch.setattr(spill, "MIN_SPILL_BYTES", 2**12)
        patch.setattr(spill, "_MIN_PIECE_EDGES", 100)
        patch.setattr(EdgeBuilderProbe, "spilled", False)
        patch.setattr(spill.EdgeBuilder, "_spill", EdgeBuilderProbe.spill)
        small = write(tmp_path / "b.gnn", edges, num_nodes, **rules, memory_bytes=2**14)
        assert EdgeBuilderProbe.spilled
    for name, arrays in edges_of(small).items():
        for ours, theirs in zip(arrays, expected[name], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    places = list(range(edges.shape[1]))
    order.shuffle(places)
    shuffled = edges_of(write(tmp_path / "c.gnn", edges[:, places], num_nodes, **rules))
    for name, (index, _, _) in shuffled.items():
        np.testing.assert_array_equal(index, expected[name][0])


class EdgeBuilderProbe:
    spilled = False
    original = spill.EdgeBuilder._spill

    @staticmethod
    def spill(builder: spill.EdgeBuilder) -> None:
        EdgeBuilderProbe.spilled = True
        EdgeBuilderProbe.original(builder)


@pytest.mark.parametrize("seed", range(choose(1, 4)))
def test_shares_are_binomial(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = np.unique(np.sort(rng.integers(0, 10**6, (2, 60_000)), axis=0), axis=1)
    fractions = (0.85, 0.1, 0.05)
    store = write(tmp_path / "a.gnn", edges, 10**6, fractions, seed=seed)
    total = edges.shape[1]
    counts = [store.num_edges, *map(len, store.edge_splits.values())]
    assert sum(counts) == total
    for count, share in zip(counts, fractions, strict=True):
        assert abs(count - share * total) < 5 * (total * share * (1 - share)) ** 0.5


def test_seeds_give_other_splits_and_undirectedness_is_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    one_way = rng.integers(0, 100, (2, 2000))
    both = np.concatenate([one_way, one_way[::-1]], axis=1)
    first, second = (
        write(tmp_path / f"{seed}.gnn", both, 100, (0.5, 0.5, 0), seed=seed) for seed in (0, 1)
    )
    assert pairs(first.edge_splits["valid"].edge_index.numpy()) != pairs(
        second.edge_splits["valid"].edge_index.numpy()
    )
    for store in (first, second):
        source, target = store.edge_splits["valid"].edge_index
        assert (source <= target).all()
    directed = write(tmp_path / "d.gnn", one_way, 100, (0.5, 0.5, 0))
    source, target = directed.edge_splits["valid"].edge_index
    assert (source > target).any()
    assert (source < target).any()


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ((0.8, 0.2, 0.1), "a sum of at most 1"),
        ((0.8, -0.1, 0.1), "fractions=0.8,-0.1,0.1"),
        ((0.8, 0.2), "train, valid and test"),
        ((0.8, float("nan"), 0.1), "fractions=0.8,nan,0.1"),
        ((0.0, 0.5, 0.5), "above 0 for train"),
        ((1.0, 0.0, 0.0), "above 0 for train, and for valid or test"),
    ],
)
def test_bad_shares_are_refused_before_any_work(fractions: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SplitRule(fractions)
    with pytest.raises(UsageError, match="seed"):
        SplitRule((0.8, 0.1, 0.1), seed=2**64)


@pytest.mark.parametrize("edges", [np.empty((2, 0), np.int64), np.array([[0], [1]])])
def test_a_split_without_edges_is_an_error(tmp_path: Path, edges: Edges) -> None:
    with pytest.raises(InputError, match=r"none of the \d edges? fell into"):
        write(tmp_path / "a.gnn", edges, 2, (0.5, 0.25, 0.25))
    assert [path.name for path in tmp_path.iterdir()] == ["whole-a.gnn"]


@given(graph=graphs(), undirected=st.booleans(), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=choose(1, 15), deadline=None)
def test_strict_negatives_are_no_edges(
    tmp_path_factory: pytest.TempPathFactory,
    graph: tuple[int, Edges],
    undirected: bool,
    seed: int,
) -> None:
    tmp_path = tmp_path_factory.mktemp("split")
    num_nodes, edges = graph
    num_nodes += 200  # so that 17 draws always find one that is no neighbour
    rules: dict[str, Any] = {
        "undirected": undirected,
        "fractions": (0.5, 0.3, 0.2),
        "seed": seed,
        "num_negatives": 5,
    }
    whole = set(
        read_store(write(tmp_path / "w.gnn", edges, num_nodes, undirected=undirected).path).pairs()
    )
    store = write(tmp_path / "a.gnn", edges, num_nodes, **rules, strict=True)
    plain = write(tmp_path / "b.gnn", edges, num_nodes, **rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_splits, "_PIECE_VALUES", 23)
        how: dict[str, Any] = {"seed": seed, "num_negatives": 5, "strict": True}
        again = split_edges(tmp_path / "whole-a.gnn", tmp_path / "c.gnn", rules["fractions"], **how)
    assert_same_files(again, store.path)
    assert verify(store.path, "full").ok
    num_hits = 0
    for name, own in store.edge_splits.items():
        free = plain.edge_splits[name].target_negatives
        drawn = own.target_negatives
        assert drawn is not None
        assert free is not None
        assert drawn.shape == free.shape == (len(own), 5)
        sources = np.repeat(own.source.read(), 5).tolist()
        targets = np.repeat(own.target.read(), 5).tolist()
        for source, target, strict, first in zip(
            sources,
            targets,
            drawn.read().ravel().tolist(),
            free.read().ravel().tolist(),
            strict=True,
        ):
            is_bad = (source, first) in whole or first in (source, target)
            num_hits += is_bad
            assert is_bad or strict == first
            assert (source, strict) not in whole
            assert strict not in (source, target)
    assert num_hits


def test_negatives_are_uniform_and_of_their_seed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 50, (2, 4000))
    stores = [
        write(
            tmp_path / f"{s}.gnn",
            edges,
            50,
            (0.5, 0.5, 0),
            seed=s,
            num_negatives=20,
        )
        for s in (0, 1)
    ]
    drawn = [store.edge_splits["valid"].target_negatives for store in stores]
    for values in drawn:
        assert values is not None
        counts = np.bincount(values.read().ravel(), minlength=50)
        expected = counts.sum() / 50
        assert ((counts - expected) ** 2 / expected).sum() < 49 + 5 * (2 * 49) ** 0.5
    rows = min(map(len, drawn))  # type: ignore[arg-type]
    assert (drawn[0][:rows] != drawn[1][:rows]).float().mean() > 0.9  # type: ignore[index]


def test_negatives_of_a_complete_graph_are_kept_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edges = np.stack(np.divmod(np.arange(900), 30))
    store = write(tmp_path / "a.gnn", edges, 30, (0.5, 0.5, 0), num_negatives=2, strict=True)
    count = 2 * len(store.edge_splits["valid"])
    assert f"{count} of {count} negatives are edges" in caplog.text


def test_negatives_that_make_no_sense() -> None:
    bads: list[dict[str, Any]] = [{"num_negatives": -1}, {"strict_negatives": True}]
    for bad in bads:
        with pytest.raises(UsageError, match="negatives"):
            SplitRule((0.8, 0.1, 0.1), **bad)
