"""Edges on their way into columns: rules, ids, attributes, budgets, against a plain reference."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gnnstore.converters import from_arrays, from_pyg, from_typed
from gnnstore.converters.edges import buckets, columns
from gnnstore.converters.edges import rules as edge_rules
from gnnstore.converters.edges.buffer import edge_pairs, some_targets
from gnnstore.converters.edges.builder import EdgeBuilder
from gnnstore.converters.edges.columns import BuiltEdges, InMemoryEdges, estimate_peak_bytes
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.inputs.files import open_npy
from gnnstore.converters.inputs.ids import check_ids
from gnnstore.errors import BudgetError, InputError
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.effort import choose, examples
from tests.support.graphs import pair_weights
from tests.support.strategies import graphs

RULES = st.builds(
    EdgeRules,
    undirected=st.booleans(),
    self_loops=st.sampled_from(("keep", "drop", "add")),
    keep_ids=st.booleans(),
)

Edge = tuple[int, int, int, float]  # target, source, edge id, attribute


def weights_of(graph: GraphArrays, rules: EdgeRules) -> npt.NDArray[np.float32]:
    """Return an attribute, which equal edges share if one of them is kept."""
    if rules.undirected:
        return pair_weights(graph.edge_index)
    return np.arange(graph.num_edges, dtype=np.float32)


def reference(graph: GraphArrays, rules: EdgeRules) -> list[Edge]:
    """Apply the rules one edge at a time, as the options' documentation has them."""
    pairs = [(int(s), int(t)) for s, t in graph.edge_index.T]
    weights = weights_of(graph, rules).tolist()
    listed = [(t, s, e, w) for e, ((s, t), w) in enumerate(zip(pairs, weights, strict=True))]
    if rules.undirected:
        listed += [(s, t, len(pairs) + e, weights[e]) for e, (s, t) in enumerate(pairs)]
    if rules.self_loops == "add":
        have = {t for t, s, _, _ in listed if t == s}
        missing = [v for v in range(graph.num_nodes) if v not in have]
        listed += [(v, v, len(listed) + i, 0.0) for i, v in enumerate(missing)]
    if rules.self_loops == "drop":
        listed = [edge for edge in listed if edge[0] != edge[1]]
    listed.sort()
    if rules.undirected:
        seen: set[tuple[int, int]] = set()
        kept = []
        for edge in listed:  # sorted by id within equal pairs: the first comes first
            if edge[:2] not in seen:
                seen.add(edge[:2])
                kept.append(edge)
        listed = kept
    return listed


def build(
    graph: GraphArrays, rules: EdgeRules, *, chunk: int = 7, num_nodes: int | None = None
) -> list[Edge]:
    builder = EdgeBuilder(rules, num_nodes=num_nodes)
    weights = weights_of(graph, rules)
    for begin in range(0, max(1, graph.num_edges), chunk):
        part = slice(begin, begin + chunk)
        sources, targets = graph.edge_index[:, part]
        builder.add(sources, targets, {"w": weights[part]}, "test")
    built = builder.build(graph.num_nodes)
    assert built.num_nodes == graph.num_nodes
    chunks = list(built.chunks())
    indptr = np.concatenate([c.indptr for c in chunks])
    assert len(indptr) == graph.num_nodes + 1
    assert indptr[0] == 0
    assert indptr[-1] == built.num_edges
    columns = np.repeat(np.arange(built.num_nodes), np.diff(indptr))
    indices = np.concatenate([c.indices for c in chunks])
    ids = [c.edge_id for c in chunks if c.edge_id is not None]
    position = np.concatenate(ids) if ids else np.arange(built.num_edges)
    if not rules.keep_ids:
        assert not ids
        position = np.full(built.num_edges, -1)
    values = np.concatenate([c.attributes["w"] for c in chunks])
    assert indices.dtype == built.index_dtype == np.int32
    return list(
        zip(columns.tolist(), indices.tolist(), position.tolist(), values.tolist(), strict=True)
    )


@settings(max_examples=choose(20, 300), deadline=None)
@given(graph=graphs(), rules=RULES, chunk=st.integers(1, 50))
def test_columns_equal_the_reference(graph: GraphArrays, rules: EdgeRules, chunk: int) -> None:
    expected = reference(graph, rules)
    if not rules.keep_ids:
        expected = [(t, s, -1, w) for t, s, _, w in expected]
    assert build(graph, rules, chunk=chunk) == expected
    assert build(graph, rules, chunk=chunk, num_nodes=graph.num_nodes) == expected


def pieces_ahead(built: BuiltEdges) -> int:
    """Return how many pieces are sorted ahead; fail unless the edges are in buckets."""
    assert isinstance(built, InMemoryEdges)
    assert isinstance(built.pieces, partial)
    assert built.pieces.func is buckets.sorted_pieces
    return int(built.pieces.args[1])


@pytest.fixture
def few_go_to_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deal the edges of small graphs too, whatever share of them one bucket has."""
    monkeypatch.setattr(buckets, "MIN_EDGES", 0)
    monkeypatch.setattr(buckets, "_LARGEST_SHARE", 1)


@pytest.mark.usefixtures("few_go_to_buckets")
@settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(graph=graphs(), rules=RULES, chunk=st.integers(1, 50))
def test_edges_in_buckets_equal_the_reference(
    graph: GraphArrays, rules: EdgeRules, chunk: int
) -> None:
    expected = reference(graph, rules)
    if not rules.keep_ids:
        expected = [(t, s, -1, w) for t, s, _, w in expected]
    assert build(graph, rules, chunk=chunk) == expected


def edges_in_buckets(
    ends: np.ndarray[Any, Any], num_nodes: int, some_targets: list[Any], chunk: int
) -> BuiltEdges:
    builder = EdgeBuilder(EdgeRules(), num_nodes=num_nodes)
    builder.expect(ends.shape[1], some_targets)
    for begin in range(0, ends.shape[1], chunk):
        sources, targets = ends[:, begin : begin + chunk]
        builder.add(sources, targets, {}, "test")
        assert builder.buffer.num_edges == 0
    built = builder.build(num_nodes)
    assert pieces_ahead(built) >= 0
    return built


@pytest.mark.usefixtures("few_go_to_buckets")
@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(graph=graphs(), chunk=st.integers(1, 50), looks=st.booleans(), dtype=st.sampled_from("il"))
def test_edges_fill_buckets_as_read(
    graph: GraphArrays, chunk: int, looks: bool, dtype: str
) -> None:
    """What was looked at beforehand says where buckets begin, never what is in them."""
    ends = graph.edge_index.astype(dtype)
    looked_at = [ends[1, ::2], np.array([-1, 2**31 - 1])] if looks else []
    built = edges_in_buckets(ends, graph.num_nodes, looked_at, chunk)
    order = np.lexsort(graph.edge_index)
    chunks = list(built.chunks())
    assert np.array_equal(np.concatenate([c.indices for c in chunks]), ends[0, order])
    assert (built.edge_id_dtype is None) == bool((np.diff(order) > 0).all())
    if built.edge_id_dtype is not None:
        ids = [c.edge_id for c in chunks if c.edge_id is not None]
        assert np.array_equal(np.concatenate(ids), order)
    pointers = np.searchsorted(ends[1, order], np.arange(graph.num_nodes + 1))
    assert np.array_equal(np.concatenate([c.indptr for c in chunks]), pointers)


@pytest.mark.usefixtures("few_go_to_buckets")
def test_ids_are_checked_as_buckets_fill() -> None:
    builder = EdgeBuilder(EdgeRules(), num_nodes=9)
    builder.expect(4, [np.arange(4)])
    builder.add(np.arange(2), np.arange(2), {}, "test")
    with pytest.raises(InputError, match="test: target node id 9 at position 3 is outside"):
        builder.add(np.arange(2), np.array([8, 9]), {}, "test")


@pytest.mark.usefixtures("few_go_to_buckets")
@pytest.mark.parametrize("dtype", ["<i4", ">i8"])
def test_a_file_of_edges_fills_buckets(tmp_path: Path, dtype: str) -> None:
    graph = random_graph(40, 600, seed=3, skew=3)
    np.save(tmp_path / "edges.npy", np.asarray(graph.edge_index, dtype, order="C"))
    source = open_npy(tmp_path / "edges.npy")
    looked_at = list(some_targets(source) or ())
    assert np.array_equal(np.concatenate(looked_at), graph.edge_index[1])
    builder = EdgeBuilder(EdgeRules(), num_nodes=40)
    builder.expect(600, looked_at)
    for pair in edge_pairs(source):
        builder.add(*pair, {}, "test")
    built = builder.build(40)
    assert pieces_ahead(built) >= 0
    found = np.concatenate([c.indices for c in built.chunks()])
    assert np.array_equal(found, graph.edge_index[0, np.lexsort(graph.edge_index)])


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("self_loops", ["keep", "drop", "add"])
def test_small_blocks_change_nothing(
    monkeypatch: pytest.MonkeyPatch, undirected: bool, self_loops: Any
) -> None:
    graph = random_graph(40, 600, seed=3, skew=3)
    rules = EdgeRules(undirected, self_loops)
    whole = build(graph, rules, chunk=1000)
    monkeypatch.setattr(edge_rules, "_BLOCK_EDGES", 5)
    monkeypatch.setattr(columns, "CHUNK_EDGES", 11)
    assert build(graph, rules, chunk=13) == whole == reference(graph, rules)


def test_ids_that_are_positions_are_not_kept() -> None:
    graph = random_graph(30, 100, seed=1, coalesced=True)
    builder = EdgeBuilder(EdgeRules())
    builder.add(graph.edge_index[0], graph.edge_index[1], {}, "test")
    assert builder.build(30).edge_id_dtype is None


def test_the_largest_id_says_how_many_nodes_there_are() -> None:
    builder = EdgeBuilder(EdgeRules())
    builder.add(np.array([3]), np.array([7]), {}, "test")
    assert builder.build(None).num_nodes == 8
    assert EdgeBuilder(EdgeRules()).build(None).num_nodes == 0
    (chunk,) = EdgeBuilder(EdgeRules()).build(5).chunks()
    assert chunk.indptr.tolist() == [0] * 6


def test_nodes_past_two_to_the_31_have_64_bit_ids() -> None:
    builder = EdgeBuilder(EdgeRules(), memory_bytes=2**40)  # their columns are not built
    builder.add(np.array([1]), np.array([2]), {}, "test")
    builder.add(np.array([2**31]), np.array([2]), {}, "test")
    sources, targets = columns.join_ends(
        builder.buffer, EdgeRules(), 2**31 + 1, np.empty(0, np.int64)
    )
    assert sources.dtype == targets.dtype == np.int64
    assert sources.tolist() == [1, 2**31]


def test_attributes_keep_type_and_shape_without_edges() -> None:
    builder = EdgeBuilder(EdgeRules())
    none = np.empty(0, np.int64)
    builder.add(none, none, {"a": np.empty((0, 3), np.float16)}, "test")
    (chunk,) = builder.build(4).chunks()
    assert chunk.attributes["a"].shape == (0, 3)
    assert chunk.attributes["a"].dtype == np.float16


@pytest.mark.parametrize(
    ("sources", "targets", "attributes", "message"),
    [
        ([0, 1], [1], {}, r"test: \[2\] sources and \[1\] targets"),
        ([0, -3], [1, 1], {}, r"test: source node id -3 at position 3 is outside \[0, 5\)"),
        (
            [0, 1],
            [1, 5],
            {},
            r"test: target node id 5 at position 3 is outside \[0, 5\) of 5 nodes",
        ),
        ([0.5, 1], [1, 1], {}, r"test: source node id: has the element type float64; ids are"),
        ([0, 1], [1, 1], {}, r"and row shapes {}, earlier ones with {'a'"),
        ([0, 1], [1, 1], {"a": [1.0]}, r"the edge attribute 'a' has 1 row for 2 edges"),
        ([0, 1], [1, 1], {"a": [1, 2]}, r"'a': \(dtype\('int64'\), \(\)\)}, earlier ones"),
        ([0, 1], [1, 1], {"a": [[1.0], [2.0]]}, r"'a': \(dtype\('float64'\), \(1,\)\)}, earlier"),
    ],
)
def test_bad_chunks_are_named(
    sources: list[Any], targets: list[Any], attributes: dict[str, list[Any]], message: str
) -> None:
    builder = EdgeBuilder(EdgeRules(), num_nodes=5)
    builder.add(np.array([0, 1]), np.array([1, 2]), {"a": np.array([0.5, 0.5])}, "test")
    rows = {name: np.array(values) for name, values in attributes.items()}
    with pytest.raises(InputError, match=message):
        builder.add(np.array(sources), np.array(targets), rows, "test")


def test_unsigned_ids_are_checked_without_wrapping() -> None:
    with pytest.raises(InputError, match=r"id 18446744073709551615 at position 1 is outside"):
        check_ids(np.array([0, 2**64 - 1], np.uint64), 10, "id")


# ---- memory


def test_a_budget_that_is_too_small_fails_before_any_edge() -> None:
    builder = EdgeBuilder(EdgeRules(), num_nodes=1000, memory_bytes=10**6)
    builder.expect(10_000)
    with pytest.raises(
        BudgetError,
        match=r"(?s)needs 18008008 bytes.* 18 MB of ids.* 1,000,000 edges.* by at least 17\.1 MB",
    ):
        builder.expect(1_000_000)


def test_a_budget_counts_what_has_come() -> None:
    builder = EdgeBuilder(EdgeRules(), memory_bytes=100_000)
    ids = np.arange(1000)
    for _ in range(5):
        builder.add(ids, ids, {}, "test")
    with pytest.raises(
        BudgetError, match=r"(?s)^building the adjacency .* needs 116008 bytes.* 6,000 edges"
    ):
        builder.add(ids, ids, {}, "test")


def test_a_budget_counts_the_longest_column() -> None:
    hub, others = np.zeros(5000, np.int64), np.arange(5000)
    budget = estimate_peak_bytes(EdgeRules(), 5000, 5000, 0)
    builder = EdgeBuilder(EdgeRules(), memory_bytes=budget)
    builder.add(others, hub, {}, "test")
    with pytest.raises(BudgetError, match=r"raise memory_bytes"):
        builder.build(5000)


_MEASURE = """
    import sys
    import numpy as np
    from gnnstore.converters.edges.rules import EdgeRules
    from gnnstore.converters.edges.builder import EdgeBuilder
    from gnnstore.converters.edges.columns import BuiltEdges, InMemoryEdges, estimate_peak_bytes

    def resident(field):
        for line in open("/proc/self/status"):
            if line.startswith(field):
                return int(line.split()[1]) * 1024

    rules = EdgeRules(undirected=sys.argv[1] == "undirected")
    num_nodes, num_edges, chunk = 100_000, int(sys.argv[2]), 100_000
    rng = np.random.default_rng(0)
    small = EdgeBuilder(rules)  # what is loaded and started once is not counted
    small.add(np.arange(9), np.arange(9), {"w": np.zeros((9, 2), np.float32)}, "warm-up")
    list(small.build(9).chunks())
    before = resident("VmRSS")
    builder = EdgeBuilder(rules, num_nodes=num_nodes)
    for _ in range(num_edges // chunk):
        ends = rng.integers(0, num_nodes, (2, chunk))
        builder.add(ends[0], ends[1], {"w": np.zeros((chunk, 2), np.float32)}, "test")
        del ends
    for piece in builder.build(num_nodes).chunks():
        pass
    print(resident("VmHWM") - before, estimate_peak_bytes(rules, num_edges, num_nodes, 8))
"""


def peak_of(directory: Path, direction: str, num_edges: int) -> tuple[int, int]:
    """Return the bytes that sorting edges took at most, and how many were estimated."""
    script = directory / "measure.py"
    script.write_text(textwrap.dedent(_MEASURE))
    done = subprocess.run(
        [sys.executable, script, direction, str(num_edges)],
        capture_output=True,
        text=True,
        check=True,
    )
    measured, estimated = map(int, done.stdout.split())
    return measured, estimated


@pytest.mark.parametrize("direction", choose(["undirected"], ["directed", "undirected"]))
def test_the_estimate_is_the_peak(tmp_path: Path, direction: str) -> None:
    measured, estimated = peak_of(tmp_path, direction, choose(1_600_000, 4_000_000))
    # Chunks on their way in and out are not in the estimate: tens of megabytes.
    assert measured <= estimated * 1.05 + 64e6
    assert measured >= estimated * 0.7


def test_without_a_budget_what_is_available_is_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnstore.budget.limits.available_bytes", lambda: 10**6)
    builder = EdgeBuilder(EdgeRules())
    with pytest.raises(
        BudgetError,
        match=r"(?s)\d+ bytes too few.* has 1000000 bytes \(1 MB\) of memory that .*: convert on",
    ):
        builder.expect(10**6)
    builder = EdgeBuilder(EdgeRules(), Path("spilled"))  # where there is no other remedy
    with pytest.raises(BudgetError, match=r"to do: free at least [0-9.]+ MB, or take a larger"):
        builder.expect(10**6)


def test_garbage_ids_and_counts_are_not_a_matter_of_memory() -> None:
    builder = EdgeBuilder(EdgeRules())
    with pytest.raises(InputError, match=r"test: source node id 4611686018427387904: a graph has"):
        builder.add(np.array([2**62]), np.array([0]), {}, "test")
    with pytest.raises(InputError, match=r"the input states 4,611,686,018,427,387,904 nodes"):
        EdgeBuilder(EdgeRules(), num_nodes=2**62)


# ---- ids that are no node numbers


def test_stray_ids_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    edge_index = np.array([[0, 2**20 + 5], [1, 2]])
    said = "1,048,582 nodes, at most 4 with edges: are these ids of a database? 'gnnstore convert s"
    from_arrays({"edge_index": edge_index}, tmp_path / "a.gnn")
    (tmp_path / "t" / "edges").mkdir(parents=True)
    np.savez(tmp_path / "t" / "edges" / "n__to__n.npz", edge_index=edge_index)
    from_typed(tmp_path / "t", tmp_path / "b.gnn")
    from_pyg(Data(edge_index=torch.from_numpy(edge_index)), tmp_path / "c.gnn")
    found = [record.message for record in caplog.records if "database" in record.message]
    for message, where in zip(
        found, ("the edges", "nodes of type 'n'", "data.edge_index"), strict=True
    ):
        assert message.startswith(f"{where}: {said}")
    caplog.clear()
    counts = {"num_nodes": 2**20 + 6}
    from_arrays({"edge_index": edge_index, **counts}, tmp_path / "d.gnn")
    from_arrays({"edge_index": np.array([[0, 2**20 - 1], [1, 2]])}, tmp_path / "e.gnn")
    from_pyg(Data(edge_index=torch.from_numpy(edge_index), **counts), tmp_path / "f.gnn")
    assert not caplog.records
