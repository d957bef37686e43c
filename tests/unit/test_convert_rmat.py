"""Synthetic graphs: the same for every chunking, with communities worth finding."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import ConvertOptions, from_rmat
from gnnstore.converters.synthetic import rmat
from gnnstore.converters.synthetic.rmat import SyntheticNodes
from gnnstore.errors import BudgetError, NoSpaceError, UsageError
from tests.support.effort import choose
from tests.support.graphs import StoredGraph, read_store

OVERWRITE = ConvertOptions(overwrite=True)


def make(folder: Path, **arguments: Any) -> StoredGraph:
    arguments.setdefault("options", OVERWRITE)
    arguments.setdefault("scale", 10)
    return read_store(from_rmat(folder / "r.gnn", **arguments))


def same(a: StoredGraph, b: StoredGraph) -> bool:
    parts = [(a.edge_index, b.edge_index)]
    parts += [(a.attributes[name], b.attributes[name]) for name in ("x", "y")]
    parts += [(a.splits[name], b.splits[name]) for name in ("train", "valid", "test")]
    return all(np.array_equal(left, right) for left, right in parts)


def test_the_graph_is_a_function_of_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(tmp_path, seed=3)
    monkeypatch.setattr(rmat, "_CHUNK_EDGES", 1000)
    monkeypatch.setattr(rmat, "_CHUNK_BYTES", 7000)
    assert same(first, make(tmp_path, seed=3))
    assert not same(first, make(tmp_path, seed=4))


def test_sizes_and_types(tmp_path: Path) -> None:
    stored = make(tmp_path, edge_factor=5, feature_dim=19, num_communities=4)
    assert stored.num_nodes == 1024
    assert stored.edge_index.shape == (2, 5 * 1024)
    assert stored.edge_id.tolist() == list(range(5 * 1024))  # none were kept
    assert stored.attributes["x"].shape == (1024, 19)
    assert stored.attributes["x"].dtype == np.float32
    assert np.bincount(stored.attributes["y"]).tolist() == [256] * 4


@pytest.mark.parametrize("homophily", [0.5, 1.0, *choose([], [0.125, 0.8])])
def test_homophily_is_the_share_of_edges_within_communities(
    tmp_path: Path, homophily: float
) -> None:
    stored = make(tmp_path, scale=12, homophily=homophily)
    source, target = stored.attributes["y"][stored.edge_index]
    spread = math.sqrt(homophily * (1 - homophily) / stored.edge_index.shape[1])
    assert abs(np.mean(source == target) - homophily) <= 5 * spread


def test_degrees_are_skewed_as_in_graph500(tmp_path: Path) -> None:
    stored = make(tmp_path, scale=12)
    degrees = np.sort(np.bincount(stored.edge_index[1], minlength=4096))
    assert degrees[-1] > 10 * degrees.mean()
    assert np.count_nonzero(degrees == 0) > 100


def test_splits_are_disjoint_and_have_in_neighbours(tmp_path: Path) -> None:
    stored = make(tmp_path, scale=12, split_fractions=(0.2, 0.3, 0.4))
    degrees = np.bincount(stored.edge_index[1], minlength=4096)
    connected = np.count_nonzero(degrees)
    joined = np.concatenate(list(stored.splits.values()))
    assert len(np.unique(joined)) == len(joined)
    assert np.all(degrees[joined] > 0)
    for name, share in (("train", 0.2), ("valid", 0.3), ("test", 0.4)):
        assert abs(len(stored.splits[name]) / connected - share) < 0.05


def test_noise_is_normal_and_independent() -> None:
    nodes = SyntheticNodes(16, 2, 30, 1.0, 5)
    features = nodes.features(4000, lambda first, last: np.zeros(last - first, np.int64)).read()
    noise = (features - nodes.class_means()[0]).astype(np.float64)
    count = noise.size
    assert abs(noise.mean()) < 5 / math.sqrt(count)
    assert abs(noise.std() - 1) < 5 / math.sqrt(2 * count)
    # The distribution function, at a few points.
    for z in (-2.0, -1.0, 0.0, 0.5, 1.5):
        expected = (1 + math.erf(z / math.sqrt(2))) / 2
        assert abs(np.mean(noise <= z) - expected) < 0.005 + 5 * 0.5 / math.sqrt(count)
    correlations = np.corrcoef(noise.T) - np.eye(30)
    assert np.abs(correlations).max() < 6 / math.sqrt(4000)


@pytest.mark.long("the tests before it ask for what is drawn")
def test_features_tell_the_community_only_roughly(tmp_path: Path) -> None:
    stored = make(tmp_path, scale=13)
    features, labels = stored.attributes["x"], stored.attributes["y"]
    means = SyntheticNodes(13, 8, 64, 0.7, 0).class_means()

    def accuracy(values: Any, nodes: Any) -> float:
        return float(np.mean(np.argmax(values[nodes] @ means.T, axis=1) == labels[nodes]))

    neighbours = features.astype(np.float64)
    np.add.at(neighbours, stored.edge_index[1], features[stored.edge_index[0]])
    test = stored.splits["test"]
    # The best that can be done without the graph; and a sum over neighbours, as simple as a
    # model with the graph can be.
    assert 0.45 < accuracy(features, test) < 0.6
    assert accuracy(neighbours, test) > 0.8


def test_odd_sizes(tmp_path: Path) -> None:
    one = make(tmp_path, scale=0, num_communities=1, edge_factor=3)
    assert one.num_nodes == 1
    assert one.pairs() == [(0, 0)] * 3
    none = make(tmp_path, scale=4, edge_factor=0, feature_dim=0)
    assert none.edge_index.shape == (2, 0)
    assert "x" not in none.attributes
    assert all(len(ids) == 0 for ids in none.splits.values())
    assert make(tmp_path, scale=3, num_communities=8).attributes["y"].tolist() != list(range(8))


def test_common_options_apply(tmp_path: Path) -> None:
    options = ConvertOptions(undirected=True, self_loops="drop", feature_dtype="float16")
    stored = make(tmp_path, options=options)
    pairs = stored.pairs()
    assert len(set(pairs)) == len(pairs)
    assert {(t, s) for s, t in pairs} == set(pairs)
    assert all(s != t for s, t in pairs)
    assert stored.attributes["x"].dtype == np.float16


def test_what_fits_nowhere_fails_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnstore.formats.base.files.free_bytes", lambda _: 10**11)
    with pytest.raises(NoSpaceError, match=r"a store of at least \d+ GB: .* 100 GB are free"):
        from_rmat(tmp_path / "r.gnn", scale=30, options=ConvertOptions(memory_bytes=8 * 10**9))
    assert list(tmp_path.iterdir()) == []


def test_a_tiny_budget_fails_before_anything_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"(?s)needs 16777216 bytes.* 16\.8 MB of buffers"):
        from_rmat(tmp_path / "r.gnn", scale=16, options=ConvertOptions(memory_bytes=10**6))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": -1}, r"scale=-1 is not in \[0, 40\]"),
        ({"scale": 41}, r"scale=41 is not in \[0, 40\]"),
        ({"edge_factor": -1}, "edge_factor=-1 is negative"),
        ({"feature_dim": -1}, "feature_dim=-1 is negative"),
        ({"num_communities": 6}, "num_communities=6 is not a power of two from 1 to 1024"),
        ({"num_communities": 2048}, "num_communities=2048 is not a power of two from 1 to 1024"),
        ({"homophily": 1.5}, r"homophily=1.5 is not in \[0, 1\]"),
        ({"feature_noise": -1.0}, "feature_noise=-1.0 is not a standard deviation"),
        ({"feature_noise": math.nan}, "feature_noise=nan is not a standard deviation"),
        ({"split_fractions": (0.5, 0.5, 0.5)}, "are not three shares that add up to at most 1"),
        ({"probabilities": (0.5, 0.5, 0.5, 0.5)}, "are not four probabilities that add up to 1"),
        ({"probabilities": (1.5, -0.5, 0, 0)}, "are not four probabilities that add up to 1"),
        ({"seed": -1}, r"seed=-1 is not in \[0, 2\*\*64\)"),
    ],
)
def test_bad_parameters_are_named(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(tmp_path, **arguments)
