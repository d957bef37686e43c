"""`gnnstore split-edges` from the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.testing.graphs import random_graph
from tests.support.stores import assert_same_files


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return random_graph(300, 3000, feature_dim=4).write(tmp_path / "a.gnn")


def test_it_writes_splits_and_says_so(run: Any, store: Path, tmp_path: Path) -> None:
    done = run("split-edges", store, tmp_path / "b.gnn", "--fractions", "0.5,0.3,0.2", "-q")
    assert (done.status, done.stderr) == (0, "")
    assert "edge splits" in done.stdout
    done = run(
        *("split-edges", store, tmp_path / "c.gnn", "--fractions", "0.5,0.3,0.2"),
        *("--test-messages", tmp_path / "d.gnn", "--memory", "64MB", "--json"),
    )
    assert done.status == 0
    (edges,) = done.document["store"]["graph"]["edge_types"]
    sizes = edges["splits"]
    assert list(sizes) == ["valid", "test"]
    assert edges["num_edges"] + sum(sizes.values()) == 3000
    assert_same_files(tmp_path / "b.gnn", tmp_path / "c.gnn")
    assert run("verify", tmp_path / "d.gnn", "--level", "full").status == 0
    assert run("split-edges", store, tmp_path / "c.gnn").status == 2
    assert run("split-edges", store, tmp_path / "c.gnn", "--overwrite", "-q").status == 0


def test_negatives_are_the_same_in_both_stores(run: Any, store: Path, tmp_path: Path) -> None:
    paths = tmp_path / "b.gnn", tmp_path / "c.gnn"
    words = ("--edge-negatives", 3, "--strict-negatives", "-q")
    done = run("split-edges", store, paths[0], "--test-messages", paths[1], *words)
    assert done.status == 0
    first, second = (gnnstore.open(path).edge_splits for path in paths)
    for name in ("valid", "test"):
        found = [splits[name].target_negatives for splits in (first, second)]
        assert found[0] is not None
        assert found[1] is not None
        np.testing.assert_array_equal(found[0], found[1])
        assert found[0].shape == (len(first[name]), 3)


@pytest.mark.parametrize("shares", ["0.8,0.1,0.2", "a,b,c", "0.8", "1,0,0", "0.8,-0.1,0.1"])
def test_bad_shares(run: Any, store: Path, tmp_path: Path, shares: str) -> None:
    done = run("split-edges", store, tmp_path / "b.gnn", "--fractions", shares)
    assert done.status == 2
    assert "share" in done.stderr
    assert not (tmp_path / "b.gnn").exists()
