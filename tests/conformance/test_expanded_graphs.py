"""What an expanded graph must keep: the shape of its degrees, and structure to learn from."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore.converters import ConvertOptions, from_kronecker, from_numpy, from_ogb, from_rmat
from gnnstore.testing.graphs import write_store
from gnnstore.tools.scan import compare_degrees
from tests.support.effort import choose, is_long
from tests.support.graphs import read_store
from tests.support.modules import import_file

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_sage.py"
NUM_NODES = 1000  # to train on
# Whatever the factors, with at least as many edges a node as the seed has.
MAX_DISTANCE = 0.05


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return import_file(EXAMPLE)


def shuffled(store: Path, output: Path) -> Path:
    """Write the control of a store: each edge leads from a random edge's source."""
    graph = read_store(store)
    sources = np.random.default_rng(0).permutation(graph.edge_index[0])
    return write_store(
        output,
        np.stack([sources, graph.edge_index[1]]),
        splits=graph.splits,
        options=ConvertOptions(edge_ids=False),
        x=graph.attributes["x"],
        y=graph.attributes["y"],
    )


def accuracy(example: ModuleType, store: Path, epochs: int) -> float:
    """Train GraphSAGE on some nodes for some epochs; test it on all test nodes."""
    torch.manual_seed(0)
    opened = gnnstore.open(store)
    rng = np.random.default_rng(1)
    nodes = torch.from_numpy(rng.permutation(opened.splits["train"].numpy())[:NUM_NODES])
    loader = gnnstore.NeighborLoader(
        opened, [5, 5], input_nodes=nodes, shuffle=True, batch_size=250, seed=0, strategy="mmap"
    )
    num_classes = int(opened.labels.max()) + 1
    model = example.GraphSAGE([opened.features.shape[1], 32, num_classes], dropout=0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(epochs):
        example.train(model, loader, optimizer)
    return float(example.evaluate(model, opened)["test"])


def check_accuracy(
    example: ModuleType, expanded: Path, control: Path, *, epochs: int, margin: float
) -> None:
    found = accuracy(example, expanded, epochs)
    expected = accuracy(example, shuffled(expanded, control), epochs)
    assert found > expected + margin, (found, expected)


@pytest.mark.timeout(600)
def test_a_planted_graph(example: ModuleType, tmp_path: Path) -> None:
    seed = from_rmat(tmp_path / "seed.gnn", scale=10, feature_dim=32, num_communities=4)
    factor = choose(8, 16)
    expanded = from_kronecker(seed, tmp_path / "expanded.gnn", factor=factor, edge_factor=24)
    assert compare_degrees(seed, expanded).distance < MAX_DISTANCE
    check_accuracy(example, expanded, tmp_path / "control.gnn", epochs=2, margin=0.15)


@pytest.mark.long("as a planted graph is expanded in both")
@pytest.mark.timeout(600)
def test_cora(example: ModuleType, cora_directory: Path, tmp_path: Path) -> None:
    seed = from_ogb(cora_directory, tmp_path / "seed.gnn")
    for factor, edge_factor in choose([(16, 35.2)], [(16, 16), (16, 35.2), (64, 100)]):
        options = ConvertOptions(overwrite=True)
        expanded = from_kronecker(
            seed,
            tmp_path / "degrees.gnn",
            factor=factor,
            edge_factor=edge_factor,
            features=False,
            options=options,
        )
        assert compare_degrees(seed, expanded).distance < MAX_DISTANCE
    if is_long():  # the planted graph is trained on in both forms
        expanded = from_kronecker(seed, tmp_path / "expanded.gnn", factor=16)
        check_accuracy(example, expanded, tmp_path / "control.gnn", epochs=5, margin=0.05)


@pytest.mark.long("as other real graphs are expanded in both")
@pytest.mark.timeout(600)
def test_facebook(example: ModuleType, facebook_npz: Path, tmp_path: Path) -> None:
    options = ConvertOptions(undirected=True)  # each edge is stored once
    seed = from_numpy(facebook_npz, tmp_path / "seed.gnn", options=options)
    expanded = from_kronecker(seed, tmp_path / "x32.gnn", factor=32, edge_factor=40, features=False)
    assert compare_degrees(seed, expanded).distance < MAX_DISTANCE
    expanded = from_kronecker(seed, tmp_path / "expanded.gnn", factor=16, edge_factor=24)
    assert compare_degrees(seed, expanded).distance < MAX_DISTANCE
    check_accuracy(example, expanded, tmp_path / "control.gnn", epochs=3, margin=0.05)
