"""`gnnstore reorder` from the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.budget.limits import MemoryBudget
from gnnstore.strategies.placement import place
from gnnstore.testing.graphs import random_graph, write_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    graph = random_graph(400, 3000, feature_dim=4, num_classes=3, skew=2)
    graph.splits["train"] = graph.splits["train"][:20]
    return graph.write(tmp_path / "a.gnn")


def test_it_orders_and_says_so(run: Any, store: Path, tmp_path: Path) -> None:
    done = run("reorder", store, tmp_path / "b.gnn", "--memory", "64MB", "--json")
    assert done.status == 0
    (nodes,) = done.document["store"]["graph"]["node_types"]
    assert nodes["original_ids"]
    assert done.document["store"]["provenance"]["parameters"] == {"order": "degree"}
    assert run("verify", tmp_path / "b.gnn", "--level", "full").status == 0
    assert run("reorder", store, tmp_path / "b.gnn").status == 2
    assert run("reorder", store, tmp_path / "b.gnn", "--overwrite", "-q").status == 0
    assert run("reorder", store, tmp_path / "c.gnn", "--order", "size").status == 2


def test_by_frequency_rows_that_batches_need_come_first(
    run: Any, store: Path, tmp_path: Path
) -> None:
    words = ("--order", "frequency", "--num-neighbors", "3", "--batch-size", "5", "-q")
    done = run("reorder", store, tmp_path / "b.gnn", *words)
    assert (done.status, done.stderr) == (0, "")
    ordered = gnnstore.open(tmp_path / "b.gnn")
    train = ordered.splits["train"]
    csc = ordered.topology().columns()
    drawn = [csc.indices[csc.indptr[node] : csc.indptr[node + 1]] for node in train]
    reached = np.unique(np.concatenate([train, *drawn]))
    # Whatever a batch may need, and nothing else, lies in front; all seeds are needed.
    loader = gnnstore.NeighborLoader(ordered, [3], input_nodes="train", batch_size=5)
    needed = np.unique(np.concatenate([batch.n_id.numpy() for batch in loader]))
    assert set(needed) <= set(reached)
    assert train.max() < len(reached)
    done = run("reorder", store, tmp_path / "c.gnn", "--order", "frequency", "--input-nodes", "no")
    assert done.status == 3


def test_options_that_nothing_would_read(run: Any, store: Path, tmp_path: Path) -> None:
    for words, text in (
        (("--seed", "5"), "--seed: only with --order community"),
        (("--order", "frequency", "--seed", "5"), "--seed: only with --order community"),
        (("--num-neighbors", "3"), "--num-neighbors: only with --order frequency"),
        (("--order", "community", "--links", "all"), "--links: only with --order frequency"),
    ):
        done = run("reorder", store, tmp_path / "b.gnn", *words)
        assert (done.status, text in done.stderr) == (2, True), words
    assert not (tmp_path / "b.gnn").exists()


def test_sampling_keeps_to_the_budget(
    run: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[MemoryBudget] = []

    def placed(sizes: Any, budget: MemoryBudget, **options: Any) -> Any:
        budgets.append(budget)
        return place(sizes, budget, **options)

    monkeypatch.setattr("gnnstore.tools.batches.place", placed)
    words = ("--order", "frequency", "--num-neighbors", "3", "--batch-size", "5", "-q")
    assert run("reorder", store, tmp_path / "b.gnn", *words, "--memory", "64MB").status == 0
    assert [(budget.num_bytes, budget.is_promise) for budget in budgets] == [(64 * 10**6, True)]


def half_drawn(path: Path) -> Path:
    """Write a graph whose even nodes are in-neighbours, of 8 rows in a page."""
    rng = np.random.default_rng(0)
    edges = np.stack([rng.permutation(1000) * 2, rng.integers(0, 2000, 1000)])
    return write_store(path, edges, x=np.zeros((2000, 128), np.float32))


def test_what_it_would_save_is_said_before(run: Any, tmp_path: Path) -> None:
    store = half_drawn(tmp_path / "a.gnn")
    done = run("reorder", store, "--estimate", "--json")
    assert done.status == 0
    order = done.document["node_order"]
    assert order["table"] == "nodes/node/x"
    assert order["table_bytes"] == order["read_bytes"] == 2000 * 512
    assert (order["ordered_bytes"], order["needed_share"]) == (1000 * 512, 0.5)
    assert "50% less" in run("reorder", store, "--estimate", "-q").stdout
    assert [path.name for path in tmp_path.iterdir()] == ["a.gnn"]
    assert run("reorder", store).status == 2


def test_no_store_lies_in_another(run: Any, store: Path, tmp_path: Path) -> None:
    """To verify the outer one would find files that do not belong there."""
    (store / "empty").mkdir()
    for words in (
        ("reorder", store, store / "in.gnn"),
        ("reorder", store, store / "empty" / "in.gnn"),
        ("reorder", store, store / "plans.gnn" / ".." / "in.gnn"),
        ("partition", store, "-p", 2, "--output", store / "nodes" / "pp"),
        ("pack", store, "--num-neighbors", 2, "--output", store / "nodes" / "plan"),
    ):
        done = run(*words, "-q")
        assert done.status in {2, 3}, words
        assert done.status == 3 or "lies inside" in done.stderr, words
    (store / "empty").rmdir()
    assert run("verify", store, "--level", "full").status == 0
