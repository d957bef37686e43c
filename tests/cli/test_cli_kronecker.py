"""`gnnstore convert kronecker`: the expansion, its report and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnnstore.converters import ConvertOptions
from gnnstore.formats import StoreReader
from gnnstore.testing.graphs import random_graph
from tests.support.graphs import read_store


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    options = ConvertOptions(self_loops="drop", undirected=True)
    graph = random_graph(200, 1500, feature_dim=4, num_classes=3, skew=2.0)
    return graph.write(tmp_path / "seed.gnn", options=options)


def test_the_text_compares_degrees(run: Any, seed: Path, tmp_path: Path) -> None:
    done = run("convert", "kronecker", seed, tmp_path / "a.gnn", "--factor", 4, "-q")
    assert done.status == 0
    assert done.stderr == ""
    lines = [line.split() for line in done.stdout.splitlines()]
    num_edges = StoreReader.open(seed).schema.edge.num_edges
    assert ["before", "200", f"{num_edges:,}"] in [line[:3] for line in lines]
    assert ["after", "800", f"{4 * num_edges:,}"] in [line[:3] for line in lines]
    assert "4 times the nodes, 4 times the edges." in done.stdout
    assert "in-degrees in units of their mean): 0.0000" in done.stdout
    assert run("verify", tmp_path / "a.gnn").status == 0


def test_the_document_compares_degrees(run: Any, seed: Path, tmp_path: Path) -> None:
    words = ("--factor", 4, "--edge-factor", 8.8, "--json", "-q")
    done = run("convert", "kronecker", seed, tmp_path / "a.gnn", *words)
    assert done.status == 0
    degrees = done.document["degrees"]
    assert degrees["node_factor"] == 4
    assert degrees["edge_factor"] == pytest.approx(8.8, rel=0.01)
    assert 0 < degrees["ks_distance"] < 0.05
    for side, num_nodes in (("before", 200), ("after", 800)):
        assert degrees[side]["num_nodes"] == num_nodes
        assert degrees[side]["mean"] == degrees[side]["num_edges"] / num_nodes
    assert done.document["store"]["path"] == str(tmp_path / "a.gnn")
    parameters = done.document["store"]["provenance"]["parameters"]
    assert parameters["edge_factor"] == 8.8


def test_options_reach_the_converter(run: Any, seed: Path, tmp_path: Path) -> None:
    words = ["convert", "kronecker", seed, tmp_path / "a.gnn", "--factor", 2, "-q"]
    assert run(*words, "--no-features", "--edge-ids").status == 0
    stored = read_store(tmp_path / "a.gnn")
    assert "x" not in stored.attributes
    assert StoreReader.open(tmp_path / "a.gnn").schema.edge.edge_id is not None
    assert run(*words, "--overwrite", "--feature-noise", 0, "--seed", 3).status == 0
    again = read_store(tmp_path / "a.gnn")
    assert (again.attributes["x"][:200] == read_store(seed).attributes["x"]).all()
    assert (again.edge_index != stored.edge_index).any()


def test_a_picture_shows_both_distributions(
    run: Any, seed: Path, tmp_path: Path, figures: list[Any]
) -> None:
    picture = tmp_path / "degrees.png"
    words = ["convert", "kronecker", seed, tmp_path / "a.gnn", "--factor", 3, "-q"]
    done = run(*words, "--json", "--plot", picture)
    assert done.status == 0
    assert done.document["drawn_to"] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    for axes in figures[0].axes:
        assert [line.get_label() for line in axes.get_lines()] == ["before", "after"]
        before, after = axes.get_lines()
        # The same degrees three times over: the curves lie on one another.
        assert before.get_xdata().tolist() == after.get_xdata().tolist()
        assert before.get_ydata().tolist() == pytest.approx(after.get_ydata().tolist())
    colours = [[line.get_color() for line in axes.get_lines()] for axes in figures[0].axes]
    assert colours[0] == colours[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--factor", "0"], "--factor 0 is not from 1 to 256"),
        ([], "--factor"),
        (["--factor", "1.5"], "'1.5' is not a valid integer"),
        (["--factor", "4", "--edge-factor", "17"], "--edge-factor 17 cannot be had"),
        (["--factor", "4", "--feature-noise", "-1"], "is not a standard deviation"),
        (["--factor", str(2**44)], "a graph has at most 2^48"),
    ],
)
def test_bad_options(run: Any, seed: Path, tmp_path: Path, words: list[str], message: str) -> None:
    done = run("convert", "kronecker", seed, tmp_path / "a.gnn", *words)
    assert done.status == 2
    assert message in done.stderr
    assert sorted(tmp_path.iterdir()) == [seed]


def test_what_is_no_store_and_what_is_in_the_way(run: Any, seed: Path, tmp_path: Path) -> None:
    output = tmp_path / "a.gnn"
    done = run("convert", "kronecker", tmp_path / "none.gnn", output, "--factor", 2)
    assert done.status == 3
    assert "no such store" in done.stderr
    output.mkdir()
    done = run("convert", "kronecker", seed, output, "--factor", 2)
    assert done.status == 2
    assert "exists" in done.stderr
