"""Ranks among all nodes are those that a plain loop over nodes and edges gives.

Whatever the sides, the relations, the edges to filter by, the place of the table and the budget;
the table is read in order, once for each block of queries.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnstore
from gnnstore import evaluation
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import BudgetError, InputError, NotFoundError, UsageError
from gnnstore.evaluation import answers, ranks
from tests.support.effort import choose

Edges = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]


def score(known: torch.Tensor, rows: torch.Tensor, queries: evaluation.LinkQueries) -> torch.Tensor:
    """Score by a product of whole numbers, which is exact, and not symmetric."""
    if queries.relation is not None:
        known = known + queries.relation[:, None]
    return known @ rows.T + (queries.side == "src") * rows[:, 0]


def expected(
    table: npt.NDArray[np.float64],
    queries: Edges,
    known: list[Edges],
    side: str,
    *,
    with_relations: bool,
) -> list[float]:
    """Rank by a loop over queries, candidates and edges."""
    edges = {edge for part in known for edge in zip(*(a.tolist() for a in part), strict=True)}
    found = []
    for source, relation, target in zip(*(a.tolist() for a in queries), strict=True):
        own, other = (source, target) if side == "src" else (target, source)
        kept = table[other] + relation * with_relations
        scores = table @ kept + (side == "src") * table[:, 0]
        above = 0
        for node in set(range(len(table))) - {own}:
            ends = (node, target) if side == "src" else (source, node)
            relations = [relation] if with_relations else range(3)
            if not any((ends[0], r, ends[1]) in edges for r in relations):
                above += int(scores[node] > scores[own]) + int(scores[node] >= scores[own])
        found.append(1 + above / 2)
    return found


def random_edges(rng: np.random.Generator, num_nodes: int, most: int) -> Edges:
    count = int(rng.integers(1, most + 1))
    ends = (num_nodes * rng.random((2, count)) ** 2).astype(np.int64)
    return ends[0], rng.integers(0, 3, count), ends[1]


def write_store(path: Path, num_nodes: int, edges: Edges, valid: Edges) -> gnnstore.GraphStore:
    with GraphWriter(path, kind="test", num_nodes=num_nodes) as writer:
        writer.add_edges(edges[0], edges[2], {"relation": edges[1]})
        writer.set_edge_split(
            "valid", source=valid[0], target=valid[2], attributes={"relation": valid[1]}
        )
        return gnnstore.open(writer.commit())


class Counted:
    """A table that counts the rows that are read of it in order, and by id."""

    def __init__(self, rows: npt.NDArray[Any]) -> None:
        self._rows = rows
        self.shape, self.dtype = rows.shape, rows.dtype
        self.in_order: list[tuple[int, int]] = []
        self.by_id = 0

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        if isinstance(key, slice):
            self.in_order.append((key.start, key.stop))
        else:
            self.by_id += len(key)
        rows: npt.NDArray[Any] = self._rows[key]
        return rows


@settings(max_examples=choose(4, 150), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_nodes=st.integers(1, 40),
    side=st.sampled_from(["src", "dst", "both"]),
    with_relations=st.booleans(),
    num_lists=st.integers(0, 2),
    with_store=st.booleans(),
    sizes=st.tuples(st.integers(1, 50), st.integers(1, 90), st.integers(1, 40), st.integers(1, 9)),
)
def test_ranks_are_those_of_a_plain_loop(  # noqa: PLR0917
    seed: int,
    num_nodes: int,
    side: str,
    with_relations: bool,
    num_lists: int,
    with_store: bool,
    sizes: tuple[int, int, int, int],
) -> None:
    rng = np.random.default_rng(seed)
    table = rng.integers(-2, 3, (num_nodes, 3)).astype(np.float64)
    queries = random_edges(rng, num_nodes, 30)
    known = [random_edges(rng, num_nodes, 60) for _ in range(num_lists)]
    relation = "relation" if with_relations else None

    def shown(edges: Edges) -> Any:
        return edges if with_relations else (edges[0], edges[2])

    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        filters = [shown(part) for part in known]
        if with_store:
            edges = random_edges(rng, num_nodes, 200)
            store = write_store(Path(directory) / "a.gnn", num_nodes, edges, queries)
            filters += [store, store.edge_splits["valid"]]
            known += [edges, queries]
        num_queries, scores, rows, piece = sizes
        step = max(1, scores // num_queries)
        patch.setattr(ranks, "_plan", lambda *_: (num_queries, rows, step))
        patch.setattr(ranks, "_OWN", piece)
        patch.setattr(answers, "_PIECE", piece)
        counted = Counted(table)
        found = gnnstore.link_ranks(
            score, shown(queries), counted, side=side, filter=filters, relation=relation
        )
    for row, each in zip(
        found if side == "both" else [found],
        ("src", "dst") if side == "both" else (side,),
        strict=True,
    ):
        wanted = expected(table, queries, known, each, with_relations=with_relations)
        assert row.tolist() == wanted
    passes = -(-len(queries[0]) // num_queries)
    once = [(i, min(i + rows, num_nodes)) for i in range(0, num_nodes, rows)]
    assert counted.in_order == passes * once
    assert counted.by_id == 2 * len(queries[0])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    rng = np.random.default_rng(0)
    edges, valid = random_edges(rng, 50, 300), random_edges(rng, 50, 20)
    path = tmp_path_factory.mktemp("store") / "a.gnn"
    with GraphWriter(path, kind="test", num_nodes=50) as writer:
        writer.add_edges(edges[0], edges[2], {"relation": edges[1]})
        x = rng.integers(-9, 9, (50, 4)).astype(np.float32)
        writer.set_node_attribute("x", x)
        writer.set_edge_split(
            "valid", source=valid[0], target=valid[2], attributes={"relation": valid[1]}
        )
        return gnnstore.open(writer.commit())


def test_a_table_may_lie_anywhere(store: gnnstore.GraphStore, tmp_path: Path) -> None:
    split, x = store.edge_splits["valid"], store.features.read()
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    tables = [store.features, x, torch.from_numpy(x), mapped]
    found = [gnnstore.link_ranks(score, split, table, relation="relation") for table in tables]
    triple = (split.source, split.attributes["relation"], split.target)
    found.append(gnnstore.link_ranks(score, triple, x))
    for each in found:
        assert each.dtype == torch.float64
        assert each.equal(found[0])
    plain = gnnstore.link_ranks(score, split.edge_index, x)
    assert plain.equal(gnnstore.link_ranks(score, split, x))


def test_a_budget_decides_how_often_the_table_is_read(store: gnnstore.GraphStore) -> None:
    wide = np.ones((50, 1 << 13), np.float32)
    edges = np.tile(store.edge_splits["valid"].edge_index, choose(2, 10))
    ranked, num_reads = {}, {}
    for memory in ("8MB", "1MB", "400kB"):
        counted = Counted(wide)
        ranked[memory] = gnnstore.link_ranks(score, edges, counted, memory=memory)
        num_reads[memory] = sum(stop - start for start, stop in counted.in_order) / 50
    assert num_reads["8MB"] < num_reads["1MB"] < num_reads["400kB"]
    for found in ranked.values():
        assert found.tolist() == [1 + 49 / 2] * edges.shape[1], "all others are equal"
    with pytest.raises(
        BudgetError, match=r"(?s)ranking one query .* needs \d+ bytes.*raise memory="
    ) as e:
        gnnstore.link_ranks(score, edges, wide, memory="100kB")
    more = 100_000 + (e.value.missing_bytes or 0)  # is enough
    assert gnnstore.link_ranks(score, edges, wide, memory=more).numel() == edges.shape[1]
    with pytest.raises(BudgetError, match="of edges to filter by"):
        gnnstore.link_ranks(score, edges, wide, memory="10MB", filter=store)


def test_the_edge_itself_stays_when_it_is_filtered_by(store: gnnstore.GraphStore) -> None:
    split = store.edge_splits["valid"]
    target, other = int(split.target[0]), int(split.target[0]) ^ 1
    pair = np.array([[int(split.source[0])], [target]])
    both = np.array([[int(split.source[0])] * 2, [target, other]])
    likes_other = torch.zeros(50)
    likes_other[other] = 1

    def score_by_row(known: Any, rows: Any, _: Any) -> Any:
        return rows[:, 0].expand(len(known), -1)

    table = likes_other[:, None]
    assert gnnstore.link_ranks(score_by_row, pair, table).tolist() == [1 + 1 + 48 / 2]
    for known in (both, [both], [pair, both], (both[0], both[1])):
        ranked = gnnstore.link_ranks(score_by_row, pair, table, filter=known)
        assert ranked.tolist() == [1 + 48 / 2]


def test_what_cannot_be_ranked_is_refused(store: gnnstore.GraphStore, tmp_path: Path) -> None:
    split, x = store.edge_splits["valid"], store.features

    def ranked(given: Any = split, table: Any = x, function: Any = score, **options: Any) -> None:
        gnnstore.link_ranks(function, given, table, **options)

    with pytest.raises(UsageError, match="side='tail' is unknown; choose one of src, dst, both"):
        ranked(side="tail")
    with pytest.raises(UsageError, match="queries is a NoneType of parts"):
        ranked(None)
    for known in (3, [3]):
        with pytest.raises(UsageError, match=r"filter is a int of parts"):
            ranked(filter=known)
    with pytest.raises(UsageError, match="queries has no edges"):
        ranked(np.empty((2, 0), np.int64))
    with pytest.raises(UsageError, match="queries is a ndarray of parts"):
        ranked(np.zeros((4, 2), np.int64))
    with pytest.raises(UsageError, match=r"shapes \[\[2\], \[3\]\]"):
        ranked((np.zeros(2, int), np.zeros(3, int)))
    with pytest.raises(InputError, match="queries: node 50 at position 1 of 2 is outside"):
        ranked((np.array([0, 50]), np.array([0, 1])))
    with pytest.raises(InputError, match="element type float64; expected node ids"):
        ranked((np.array([0.5]), np.array([1])))
    with pytest.raises(InputError, match="filter: node -1 at position 0 of 1"):
        ranked(filter=(np.array([-1]), np.array([1])))
    with pytest.raises(UsageError, match="50 nodes, and the table 9 rows"):
        ranked(np.zeros((2, 1), int), np.ones((9, 4), np.float32), filter=store)
    with pytest.raises(NotFoundError, match=r"'kind': queries is an edge split .* relation"):
        ranked(relation="kind")
    with pytest.raises(NotFoundError, match="no edge attribute 'kind'"):
        ranked(np.zeros((2, 1), int), filter=store, relation="kind")
    for own in (split.edge_index, store):
        with pytest.raises(UsageError, match="name the attribute that holds them"):
            ranked((np.zeros(1, int),) * 3, filter=own)
    with pytest.raises(UsageError, match="table is a list of shape"):
        ranked(table=[1, 2])
    with pytest.raises(UsageError, match=r"score_block returned \[3\]; expected scores \[3, 3\]"):
        ranked(function=lambda known, rows, queries: (known * rows).sum(1))  # noqa: ARG005
    with pytest.raises(UsageError, match="score_block returned NoneType"):
        ranked(function=lambda *_: None)
    broken = x.read()
    broken[7] = np.nan
    with pytest.raises(
        InputError, match=r"score_block returned NaN.*candidate 7 of 50, side 'dst'"
    ):
        ranked((np.array([0]), np.array([1])), broken)
