"""`gnnstore reorder` from the shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.testing.graphs import random_graph


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
    assert done.document["store"]["provenance"]["parameters"] == {"by": "degree"}
    assert run("verify", tmp_path / "b.gnn", "--level", "full").status == 0
    assert run("reorder", store, tmp_path / "b.gnn").status == 2
    assert run("reorder", store, tmp_path / "b.gnn", "--overwrite", "-q").status == 0
    assert run("reorder", store, tmp_path / "c.gnn", "--by", "size").status == 2


def test_by_frequency_rows_that_batches_need_come_first(
    run: Any, store: Path, tmp_path: Path
) -> None:
    words = ("--by", "frequency", "--num-neighbors", "3", "--batch-size", "5", "-q")
    done = run("reorder", store, tmp_path / "b.gnn", *words)
    assert (done.status, done.stderr) == (0, "")
    ordered = gnnstore.open(tmp_path / "b.gnn")
    train = ordered.splits["train"]
    drawn = [ordered.in_neighbors(node) for node in train]
    reached = np.unique(np.concatenate([train, *drawn]))
    # Whatever a batch may need, and nothing else, lies in front; all seeds are needed.
    loader = gnnstore.NeighborLoader(ordered, [3], input_nodes="train", batch_size=5)
    needed = np.unique(np.concatenate([batch.n_id.numpy() for batch in loader]))
    assert set(needed) <= set(reached)
    assert train.max() < len(reached)
    done = run("reorder", store, tmp_path / "c.gnn", "--by", "frequency", "--input-nodes", "no")
    assert done.status == 3
