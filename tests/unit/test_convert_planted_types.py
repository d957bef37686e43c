"""The synthetic graph of papers, authors and institutions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore.converters import ConvertOptions, from_planted_types
from gnnstore.converters.synthetic import planted_types, rmat
from gnnstore.converters.synthetic.planted_types import AFFILIATED, CITES, WRITES
from gnnstore.errors import UsageError
from gnnstore.tools.cli import main
from tests.support.effort import choose
from tests.support.stores import assert_same_files


def test_what_it_has(tmp_path: Path) -> None:
    options = ConvertOptions(
        time_attr=("time", "edge_time"), weight_attr=("weight",), reverse=("all",)
    )
    path = from_planted_types(
        tmp_path / "a.gnn", num_papers=2000, feature_dim=16, seed=3, options=options
    )
    store = gnnstore.open(path)
    assert store.node_types == ("paper", "author", "institution")
    assert [store[name].num_nodes for name in store.node_types] == [2000, 1000, 20]
    assert store.edge_types[:3] == (CITES, WRITES, AFFILIATED)
    assert [store[e].num_edges for e in store.edge_types[:3]] == [16_000, 8000, 2000]
    assert not list(store.reader.meaningless())
    data = store.to_pyg()
    assert data["paper"].x.shape == (2000, 16)
    assert data["author"].x.shape == (1000, 32)
    shares = [len(store["paper"].splits[name]) / 2000 for name in ("train", "valid", "test")]
    assert np.allclose(shares, [0.5, 0.25, 0.25], atol=0.05)
    for edge_type in (CITES, WRITES, AFFILIATED):
        edges = data[edge_type]
        same = edges.edge_index[0] % 8 == edges.edge_index[1] % 8
        assert abs(float(same.float().mean()) - (0.8 + 0.2 / 8)) < 0.03
        assert 0.001 < float((edges.weight == 0).float().mean()) < 0.03
        positive = edges.weight > 0
        assert float(edges.weight[same & positive].min()) >= 1
        assert float(edges.weight[~same].max()) < 0.2
        assert len(edges.edge_time.unique()) > edges.num_edges * 0.9
    # Few papers are cited often, and their ids are spread.
    degrees = torch.bincount(data[CITES].edge_index[0], minlength=2000)
    top = degrees.topk(100).indices
    assert degrees[top].sum() > 0.2 * 16_000
    assert 700 < float(top.float().mean()) < 1300
    # Features tell more than chance, and less than all.
    means = torch.stack([data["paper"].x[data["paper"].y == c].mean(0) for c in range(8)])
    guess = (data["paper"].x @ means.T).argmax(1)
    assert 0.3 < float((guess == data["paper"].y).float().mean()) < 0.95


@pytest.mark.long("the tests above ask what is made")
def test_chunks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, Any] = {"num_papers": choose(120, 500), "num_authors": 90}
    sizes["num_institutions"] = 8
    from_planted_types(tmp_path / "a.gnn", **sizes)
    monkeypatch.setattr(planted_types, "_CHUNK_EDGES", 37)
    monkeypatch.setattr(rmat, "_CHUNK_BYTES", 1000)
    from_planted_types(tmp_path / "b.gnn", **sizes)
    assert_same_files(tmp_path / "a.gnn", tmp_path / "b.gnn")


def test_another_seed(tmp_path: Path) -> None:
    stores = [
        gnnstore.open(from_planted_types(tmp_path / f"{seed}.gnn", num_papers=300, seed=seed))
        for seed in (0, 1)
    ]
    assert stores[0].reader.uuid != stores[1].reader.uuid
    assert not torch.equal(*(s[CITES].edge_index.tensor() for s in stores))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_classes", 0, "expected from num_classes=0, at least 1"),
        ("num_papers", 5, "num_papers=5: expected from num_classes=8"),
        ("num_institutions", 3, "num_institutions=3: expected from num_classes=8"),
        ("degree", -1, "degree=-1 is negative"),
        ("author_dim", -1, "author_dim=-1 is negative"),
        ("homophily", 1.5, r"homophily=1\.5 is not in"),
        ("skew", -1.0, r"skew=-1\.0 is not in"),
        ("feature_noise", float("nan"), "feature_noise=nan is not a standard deviation"),
        ("seed", -1, "seed=-1 is not in"),
    ],
)
def test_parameters_out_of_range(tmp_path: Path, name: str, value: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_planted_types(tmp_path / "a.gnn", **{name: value})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.long("the first test looks at degrees too")
def test_skewed_degrees(tmp_path: Path) -> None:
    """The share of the edges at the tenth of the nodes that have most is 0.1^(1 / (1 + skew))."""
    for skew, least, most in ((0.0, 0.1, 0.25), (2.0, 0.42, 0.52)):
        store = gnnstore.open(
            from_planted_types(tmp_path / f"{skew}.gnn", num_papers=3000, degree=16, skew=skew)
        )
        for edge_type in (CITES, WRITES):
            degrees = np.sort(np.diff(store.topology().columns(edge_type).indptr))[::-1]
            assert least < degrees[:300].sum() / degrees.sum() < most
            # Those of many edges are of all classes, anywhere.
            highest = np.flatnonzero(np.diff(store.topology().columns(edge_type).indptr) > 60)
            assert skew == 0 or 1000 < highest.mean() < 2000


def test_everything_of_homophily(tmp_path: Path) -> None:
    for homophily in choose((1.0,), (0.0, 1.0)):
        path = from_planted_types(
            tmp_path / f"{homophily}.gnn", num_papers=400, homophily=homophily
        )
        edge_index = gnnstore.open(path)[CITES].edge_index.tensor()
        same = float((edge_index[0] % 8 == edge_index[1] % 8).float().mean())
        assert same == 1 if homophily else abs(same - 1 / 8) < 0.03


def test_from_the_shell(tmp_path: Path) -> None:
    words = ["--papers", "60", "--seed", "3", "--feature-dtype", "float16", "-q"]
    assert main(["convert", "planted-types", str(tmp_path / "a.gnn"), *words]) == 0
    path = from_planted_types(
        tmp_path / "b.gnn",
        num_papers=60,
        seed=3,
        options=ConvertOptions(feature_dtype="float16"),
    )
    assert_same_files(tmp_path / "a.gnn", path)
