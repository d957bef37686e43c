"""`gnnstore demo`: small, but the whole way; the graph network must win."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch_geometric")


def test_the_graph_network_beats_both_controls(run: Any, tmp_path: Path) -> None:
    done = run("demo", "--dir", tmp_path, "--scale", 13, "--epochs", 4, "--json", "-q")
    assert (done.status, done.stderr) == (0, "")
    document = done.document
    sage, mlp, shuffled = (result["test_accuracy"] for result in document["results"])
    assert sage > mlp + 0.15
    assert sage > shuffled + 0.15
    assert document["loader"]["strategy"] == "mmap"
    assert document["store"]["feature_bytes"] == 2**13 * 128 * 4
    assert document["store"]["disk_bytes"] > document["store"]["feature_bytes"]
    assert document["memory"]["peak_resident_bytes"] > 0
    assert set(document["seconds"]) == {"convert", "inspect", "train and test"}


def test_text_shows_accuracies_sizes_times_and_next_commands(run: Any, tmp_path: Path) -> None:
    done = run("demo", "--dir", tmp_path / "new", "--scale", 10, "--epochs", 1)
    assert done.status == 0
    for text in (
        "GraphSAGE, shuffled",
        "MLP",
        "store on disk",
        "memory for training",
        "train and test",
        "gnnstore inspect",
        "gnnstore convert --help",
    ):
        assert text in done.stdout
    assert "Making a graph of 2^10 nodes" in done.stderr


def test_it_runs_again_in_the_same_place_with_the_same_result(run: Any, tmp_path: Path) -> None:
    arguments = ["demo", "--dir", tmp_path, "--scale", 10, "--epochs", 1, "--json"]
    first, second = (run(*arguments).document["results"] for _ in range(2))
    for one, two in zip(first, second, strict=True):
        assert one["test_accuracy"] == two["test_accuracy"]


def test_a_directory_that_cannot_be_made(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("demo", "--dir", tmp_path / "file" / "demo", "-q")
    assert done.status == 5
    assert "cannot make the demo's directory" in done.stderr
