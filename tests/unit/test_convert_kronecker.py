"""Expanded graphs: every edge a copy of one, as many as asked for, whatever the chunking."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gnnstore
from gnnstore.converters import (
    ConvertOptions,
    GraphWriter,
    from_kronecker,
    from_triples,
    split_edges,
)
from gnnstore.converters.edges import builder
from gnnstore.converters.edges.columns import estimate_peak_bytes
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.inputs import source as array_source
from gnnstore.converters.stores import graph as store_input
from gnnstore.converters.synthetic import kronecker
from gnnstore.converters.synthetic.kronecker import draw_factor
from gnnstore.errors import (
    NotFoundError,
    StoreExistsError,
    UsageError,
)
from gnnstore.formats import StoreReader
from gnnstore.formats.arrays.dtypes import from_bfloat16_bits, to_bfloat16_bits
from gnnstore.testing.graphs import random_graph
from tests.support.effort import choose
from tests.support.graphs import StoredGraph, read_store
from tests.support.hostile import rewrite

NUM_NODES = 300
OVERWRITE = ConvertOptions(overwrite=True)


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directed graph with hubs, isolated nodes, self-loops and parallel edges."""
    folder = tmp_path_factory.mktemp("seed")
    graph = random_graph(
        NUM_NODES, 4000, feature_dim=5, num_classes=3, edge_feature_dim=2, skew=2.0
    )
    return graph.write(folder / "seed.gnn")


@pytest.fixture(scope="module")
def undirected_seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an undirected graph without self-loops, which is what most of them are."""
    folder = tmp_path_factory.mktemp("undirected")
    options = ConvertOptions(undirected=True, self_loops="drop", edge_ids=False)
    return random_graph(NUM_NODES, 2000, skew=2.0).write(folder / "seed.gnn", options=options)


def expand(store: Path, folder: Path, /, **arguments: Any) -> StoredGraph:
    arguments.setdefault("options", OVERWRITE)
    return read_store(from_kronecker(store, folder / "expanded.gnn", **arguments))


def blocks_of(expanded: StoredGraph, num_nodes: int) -> Counter[tuple[int, int, int, int]]:
    """Count edges as (source, target) of the seed and (row, column) of copies."""
    (rows, columns), (sources, targets) = np.divmod(expanded.edge_index, num_nodes)
    return Counter(zip(*(a.tolist() for a in (sources, targets, rows, columns)), strict=True))


def same(a: StoredGraph, b: StoredGraph) -> bool:
    pairs = [(a.edge_index, b.edge_index)]
    for left, right in (
        (a.attributes, b.attributes),
        (a.edge_attributes, b.edge_attributes),
        (a.splits, b.splits),
    ):
        assert left.keys() == right.keys()
        pairs += [(left[name], right[name]) for name in left]
    return all(np.array_equal(left, right) for left, right in pairs)


# ---- edges


def test_the_store_is_a_function_of_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = choose(150, 500)
    graph = random_graph(60, size, feature_dim=5, num_classes=3, edge_feature_dim=2, skew=2.0)
    seed = graph.write(tmp_path / "seed.gnn")
    first = expand(seed, tmp_path, factor=2, edge_factor=1.7)
    for module, name, value in (
        (kronecker, "_CHUNK_EDGES", 7),  # pieces of one edge: parallel ones are parted
        (store_input, "_BLOCK_COLUMNS", 11),
        (store_input, "_READ_EDGES", 13),
        (kronecker, "_CHUNK_VALUES", 17),
        (array_source, "_PIECE_BYTES", 100),
    ):
        monkeypatch.setattr(module, name, value)
    assert same(first, expand(seed, tmp_path, factor=2, edge_factor=1.7))
    other = expand(seed, tmp_path, factor=2, edge_factor=1.7, seed=1)
    assert not np.array_equal(first.edge_index, other.edge_index)
    assert not np.array_equal(first.attributes["x"], other.attributes["x"])


@pytest.mark.parametrize("edge_factor", choose([6.3], [0.5, 4, 6.3, 16]))
def test_each_edge_has_each_block_at_most_once(
    seed: Path, tmp_path: Path, edge_factor: float
) -> None:
    original, expanded = read_store(seed), expand(seed, tmp_path, factor=4, edge_factor=edge_factor)
    assert expanded.num_nodes == 4 * NUM_NODES
    multiplicity = Counter(original.pairs())
    found = blocks_of(expanded, NUM_NODES)
    for (source, target, _, _), count in found.items():
        assert count <= multiplicity[source, target]
    loops = {node for node in range(NUM_NODES) if multiplicity[node, node]}
    for node in loops:  # a self-loop stays one, at every copy
        blocks = {key[2:]: n for key, n in found.items() if key[:2] == (node, node)}
        assert blocks == {(i, i): multiplicity[node, node] for i in range(4)}


def test_names_of_relations_are_kept_and_edge_splits_refused(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a likes b\nb hates c\nc likes a\n")
    small = from_triples(tmp_path / "train.txt", tmp_path / "kg.gnn")
    larger = gnnstore.open(from_kronecker(small, tmp_path / "larger.gnn", factor=2))
    assert larger.relation_names is not None
    assert list(larger.relation_names) == ["likes", "hates"]
    many = random_graph(50, 400, seed=1).write(tmp_path / "many.gnn")
    split = split_edges(many, tmp_path / "split.gnn", (0.4, 0.3, 0.3))
    with pytest.raises(UsageError, match="has edge splits, valid, test, whose copies could be"):
        from_kronecker(split, tmp_path / "none.gnn", factor=2)


def test_as_many_edges_as_asked_for(seed: Path, tmp_path: Path) -> None:
    original = read_store(seed)
    loops = int(np.sum(original.edge_index[0] == original.edge_index[1]))
    others = original.edge_index.shape[1] - loops
    for edge_factor in choose((0.5, 6.3), (0.5, 4.0, 6.3, 8.8, 15.9)):
        expanded = expand(seed, tmp_path, factor=4, edge_factor=edge_factor, features=False)
        factor = draw_factor(4, edge_factor, 0)
        assert factor.edge_factor == pytest.approx(edge_factor, rel=2e-4)
        spread = float(np.diff(factor.offsets).std()) * math.sqrt(others)
        expected = others * factor.edge_factor + 4 * loops
        assert abs(expanded.edge_index.shape[1] - expected) <= 5 * spread


def test_each_block_has_its_probability(seed: Path, tmp_path: Path) -> None:
    original = read_store(seed)
    factor = draw_factor(4, 6.3, 7)
    counts = np.bincount(factor.rows.astype(np.int64) * 4 + factor.columns, minlength=16)
    probabilities = counts.reshape(4, 4) / factor.num_patterns
    expanded = expand(seed, tmp_path, factor=4, edge_factor=6.3, seed=7, features=False)
    found = np.zeros((4, 4))
    for (source, target, row, column), count in blocks_of(expanded, NUM_NODES).items():
        if source != target:
            found[row, column] += count
    source, target = original.edge_index
    up, down = np.sum(source < target), np.sum(source > target)
    expected = up * probabilities + down * probabilities.T
    variance = up * probabilities * (1 - probabilities)
    variance += down * probabilities.T * (1 - probabilities.T)
    assert np.all(np.abs(found - expected) <= 5 * np.sqrt(variance) + 1e-9)


@pytest.mark.parametrize("edge_factor", [4, 5.1, *choose([], [1.3, 8, 14.6])])
def test_degrees_are_those_of_the_seed_times_the_ratio(
    undirected_seed: Path, tmp_path: Path, edge_factor: float
) -> None:
    """With a whole ratio every copy has exactly the seed's degree times it."""
    expanded = expand(undirected_seed, tmp_path, factor=4, edge_factor=edge_factor)
    original = read_store(undirected_seed)
    ratio = edge_factor / 4
    for end in range(2):
        degrees = np.bincount(original.edge_index[end], minlength=NUM_NODES)
        copies = np.bincount(expanded.edge_index[end], minlength=4 * NUM_NODES).reshape(4, -1)
        assert np.all(copies >= math.floor(ratio) * degrees)
        assert np.all(copies <= math.ceil(ratio) * degrees)
        assert copies.sum() == pytest.approx(4 * ratio * degrees.sum(), rel=0.03)


def test_an_undirected_graph_stays_undirected(undirected_seed: Path, tmp_path: Path) -> None:
    expanded = expand(undirected_seed, tmp_path, factor=5, edge_factor=7.7)
    pairs = Counter(expanded.pairs())
    assert {(target, source): n for (source, target), n in pairs.items()} == pairs
    assert max(pairs.values()) == 1


def test_edge_attributes_follow_their_edges(seed: Path, tmp_path: Path) -> None:
    original, expanded = read_store(seed), expand(seed, tmp_path, factor=3, edge_factor=3.5)
    by_edge: dict[tuple[int, int], set[bytes]] = {}
    for edge, row in zip(original.pairs(), original.edge_attributes["edge_attr"], strict=True):
        by_edge.setdefault(edge, set()).add(row.tobytes())
    sources, targets = expanded.edge_index % NUM_NODES
    rows = expanded.edge_attributes["edge_attr"]
    for source, target, row in zip(sources.tolist(), targets.tolist(), rows, strict=True):
        assert row.tobytes() in by_edge[source, target]


def test_common_options_apply(seed: Path, tmp_path: Path) -> None:
    options = ConvertOptions(self_loops="drop", edge_ids=True, feature_dtype="float16")
    expanded = expand(seed, tmp_path, factor=2, options=options)
    assert np.all(expanded.edge_index[0] != expanded.edge_index[1])
    assert len(np.unique(expanded.edge_id)) == len(expanded.edge_id)
    assert expanded.attributes["x"].dtype == np.float16


# ---- nodes


def test_nodes_carry_what_the_seeds_carry(seed: Path, tmp_path: Path) -> None:
    original = read_store(seed)
    expanded = expand(seed, tmp_path, factor=3, feature_noise=0)
    for name in ("x", "y"):
        once = original.attributes[name]
        assert np.array_equal(expanded.attributes[name], np.concatenate([once] * 3))
        assert expanded.attributes[name].dtype == once.dtype
    for name, ids in original.splits.items():
        copies = [ids + i * NUM_NODES for i in range(3)]
        assert np.array_equal(expanded.splits[name], np.concatenate(copies))
    assert "x" not in expand(seed, tmp_path, factor=3, features=False).attributes


def noisy_store(tmp_path: Path, x: npt.NDArray[Any], dtype: str | None = None) -> Path:
    with GraphWriter(tmp_path / "noisy.gnn", kind="test", num_nodes=len(x)) as out:
        out.set_node_attribute("x", x, dtype=dtype)
        out.add_edges(np.array([0]), np.array([1]))
        return out.commit()


@pytest.mark.parametrize(
    "dtype", ["float32", *choose([], ["float16", "float64", "int32"]), "bfloat16", "int8"]
)
def test_noise_is_a_share_of_each_columns_deviation(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    scale = np.array([20.0, 10.0, 5.0])
    values = rng.standard_normal((4000, 3)) * scale + 3
    x = (
        to_bfloat16_bits(values.astype(np.float32))
        if dtype == "bfloat16"
        else np.rint(values).astype(dtype)
        if dtype.startswith("int")
        else values.astype(dtype)
    )
    seed = noisy_store(tmp_path, x, dtype if dtype == "bfloat16" else None)
    expanded = expand(seed, tmp_path, factor=2, feature_noise=0.5)
    found = expanded.attributes["x"]
    assert found.dtype == x.dtype
    plain, noisy = (
        from_bfloat16_bits(a) if dtype == "bfloat16" else a.astype(np.float64) for a in (x, found)
    )
    noise = (noisy.reshape(2, 4000, 3) - plain).astype(np.float64)
    assert np.all(np.abs(noise.mean(axis=(0, 1))) < 5 * 0.5 * scale / math.sqrt(8000))
    np.testing.assert_allclose(noise.std(axis=(0, 1)), 0.5 * scale, rtol=0.05)
    assert abs(np.corrcoef(noise[0, :, 0], noise[1, :, 0])[0, 1]) < 0.08  # copies differ


@pytest.mark.parametrize("dtype", ["bool", "int64", *choose([], ["uint64"])])
def test_what_is_no_measurement_gets_no_noise(tmp_path: Path, dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 2, (50, 4)).astype(dtype)
    expanded = expand(noisy_store(tmp_path, x), tmp_path, factor=2, feature_noise=1)
    assert np.array_equal(expanded.attributes["x"], np.concatenate([x, x]))


@pytest.mark.parametrize("dtype", ["float16", *choose([], ["float32"]), "bfloat16"])
def test_noise_makes_nothing_infinite(tmp_path: Path, dtype: str) -> None:
    """Finite values stay finite, and what was infinite or no number stays that."""
    bits = dtype == "bfloat16"
    top = 3.3895313892515355e38 if bits else float(np.finfo(dtype).max)
    values = np.tile(np.array([[top], [-top], [np.inf], [np.nan]]), (100, 1))
    values = values.astype(np.float32 if bits else dtype)
    x: npt.NDArray[Any] = to_bfloat16_bits(values) if bits else values
    seed = noisy_store(tmp_path, x, dtype if bits else None)
    found = expand(seed, tmp_path, factor=2, feature_noise=1).attributes["x"][:, 0]
    found = (from_bfloat16_bits(found) if bits else found).reshape(-1, 4)
    assert np.all(np.isfinite(found[:, :2]))
    assert np.all(np.isposinf(found[:, 2]))
    assert np.all(np.isnan(found[:, 3]))


def test_noise_is_cut_off_at_the_ends_of_an_integer_type(tmp_path: Path) -> None:
    x = np.tile(np.array([[0], [255]], np.uint8), (200, 1))
    seed = noisy_store(tmp_path, x)
    found = expand(seed, tmp_path, factor=2, feature_noise=1).attributes["x"].reshape(-1, 2)
    for column, end in enumerate((0, 255)):
        assert np.mean(found[:, column] == end) > 0.4  # and not wrapped around
        assert len(np.unique(found[:, column])) > 50


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_scaled_features_keep_their_scales(tmp_path: Path, noise: float) -> None:
    """Features of int8 in multiples of a scale: copied with it, and noisy in its steps."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2000, 3)).astype(np.float32) * [0.01, 1, 300]
    options = ConvertOptions(feature_dtype="int8", feature_scale="column")
    with GraphWriter(tmp_path / "s.gnn", kind="test", num_nodes=len(x), options=options) as out:
        out.set_node_attribute("x", x)
        path = out.commit()
    before = read_store(path)
    after = expand(path, tmp_path, factor=3, feature_noise=noise)
    scales = before.scales["x"]
    assert np.array_equal(after.scales["x"], scales)
    copies, stored = np.tile(before.attributes["x"], (3, 1)), after.attributes["x"]
    assert stored.dtype == np.int8
    assert stored.min() >= -127  # the scale's own range: negating never overflows
    if not noise:
        assert np.array_equal(stored, copies)
        return
    added = (stored.astype(np.float64) - copies) * scales
    np.testing.assert_allclose(added.std(axis=0), noise * x.std(axis=0), rtol=0.05)


def test_graph_attributes_and_types_are_carried(tmp_path: Path) -> None:
    path = tmp_path / "seed.gnn"
    with GraphWriter(path, kind="test", num_nodes=3, index_dtype="int32") as out:
        out.explicit_num_nodes = True
        out.set_graph_attribute("title", "small")
        out.set_graph_array("x_scale", np.array([2.0], np.float32))
        out.set_graph_array("other", np.array([3.0]))
        out.set_node_attribute("x", np.array([[1], [2], [3]], np.int8))
        out.describe_edge_attribute("edge_weight", dtype="bfloat16")
        weights = to_bfloat16_bits(np.array([0.5, 2.0], np.float32))
        out.add_edges(np.array([0, 1]), np.array([1, 2]), {"edge_weight": weights})
        out.commit()
    rewrite(path, lambda own: own.update(reader_features=[]))  # a store with scales of old
    expanded = from_kronecker(path, tmp_path / "expanded.gnn", factor=2, feature_noise=0)
    schema = StoreReader.open(expanded).schema
    assert schema.graph_attributes == {"title": "small"}
    assert schema.index_dtype == "int32"
    assert schema.explicit_num_nodes
    assert schema.edge.attributes["edge_weight"].dtype == "bfloat16"
    stored = read_store(expanded)
    assert stored.scales["x"].tolist() == [2.0]
    assert list(stored.graph_arrays) == ["other"]
    copied = from_bfloat16_bits(stored.edge_attributes["edge_weight"])
    assert sorted(copied.tolist()) == [0.5, 0.5, 2.0, 2.0]
    bare = expand(path, tmp_path, factor=2, features=False)
    assert (list(bare.graph_arrays), bare.scales) == (["other"], {})
    options = ConvertOptions(feature_dtype="int8", feature_scale="column")
    with pytest.raises(UsageError, match="'x=int8': the attribute has a scale per column in"):
        from_kronecker(path, tmp_path / "c.gnn", factor=2, options=options)


@pytest.mark.parametrize(
    ("num_nodes", "num_edges"), choose([(0, 0), (1, 3)], [(0, 0), (1, 0), (1, 3), (2, 5)])
)
def test_tiny_graphs(tmp_path: Path, num_nodes: int, num_edges: int) -> None:
    graph = random_graph(num_nodes, num_edges, feature_dim=2, num_classes=2)
    expanded = expand(graph.write(tmp_path / "seed.gnn"), tmp_path, factor=3)
    assert expanded.num_nodes == 3 * num_nodes
    assert expanded.attributes["x"].shape == (3 * num_nodes, 2)
    assert expanded.edge_index.shape[1] == 3 * graph.num_edges


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"factor": 0}, "factor=0 is not from 1 to 256"),
        ({"factor": -3}, "factor=-3 is not from 1 to 256"),
        ({"factor": 257}, "factor=257 is not from 1 to 256; for more, expand the result again"),
        (
            {"factor": 2**45},
            r"times the 300 nodes of .*seed.gnn are \d+; a graph has at most 2\^48",
        ),
        ({"factor": 4, "edge_factor": 16.1}, r"edge_factor=16.1 cannot be had with factor=4"),
        ({"factor": 4, "edge_factor": 0}, r"edge_factor=0 cannot be had .* at least 0.0625"),
        ({"factor": 4, "edge_factor": math.nan}, "edge_factor=nan cannot be had"),
        ({"factor": 2, "feature_noise": -1}, "feature_noise=-1 is not a standard deviation"),
        ({"factor": 2, "feature_noise": math.inf}, "feature_noise=inf is not a standard"),
        ({"factor": 2, "seed": -1}, r"seed=-1 is not in \[0, 2\*\*64\)"),
    ],
)
def test_bad_parameters_are_named(
    seed: Path, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        expand(seed, tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_stores_that_are_not_there_or_in_the_way(seed: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such store"):
        from_kronecker(tmp_path / "none.gnn", tmp_path / "a.gnn", factor=2)
    with pytest.raises(NotFoundError, match="not a gnnstore store"):
        from_kronecker(tmp_path, tmp_path / "a.gnn", factor=2)
    output = from_kronecker(seed, tmp_path / "a.gnn", factor=2)
    with pytest.raises(StoreExistsError, match=r"a\.gnn exists"):
        from_kronecker(seed, output, factor=2)
    with pytest.raises(UsageError, match="choose another place"):
        from_kronecker(output, output, factor=2, options=OVERWRITE)


# ---- the seed, read in pieces


# ---- with little memory, and interrupted


def files_of(store: Path) -> dict[Path, bytes]:
    return {p.relative_to(store): p.read_bytes() for p in store.rglob("*") if p.is_file()}


@pytest.mark.long("the builder is one for all converters")
def test_a_small_budget_gives_the_same_store(
    seed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edges that do not fit are sorted on disk by the builder, which none of this knows."""
    monkeypatch.setattr(builder, "MIN_SPILL_BYTES", 2**20)
    size: dict[str, Any] = {"factor": 16, "edge_factor": 40, "features": False}
    budget = 2**21
    num_edges = 4000 * 36
    assert estimate_peak_bytes(EdgeRules(keep_ids=False), num_edges, 16 * NUM_NODES, 8) > budget
    plain = from_kronecker(seed, tmp_path / "a.gnn", **size)
    options = ConvertOptions(memory_bytes=budget)
    spilled = from_kronecker(seed, tmp_path / "b.gnn", **size, options=options)
    assert StoreReader.open(plain).schema.edge.num_edges > num_edges
    assert files_of(plain) == files_of(spilled)


@pytest.mark.parametrize(
    "step", choose(["copy_graph"], ["_write_edges", "_write_nodes", "copy_graph"])
)
def test_an_interrupted_expansion_is_resumed(
    seed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    plain = from_kronecker(seed, tmp_path / "a.gnn", factor=4, edge_factor=6.5)
    output = tmp_path / "out" / "b.gnn"
    output.parent.mkdir()

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kronecker, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            from_kronecker(seed, output, factor=4, edge_factor=6.5)
    assert not output.exists()
    options = ConvertOptions(resume=True)
    resumed = from_kronecker(seed, output, factor=4, edge_factor=6.5, options=options)
    assert files_of(plain) == files_of(resumed)
    assert list(output.parent.iterdir()) == [output]
