"""Seed edges of a topology on disk are looked up by its engine, and batches are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gnnstore import LinkNeighborLoader
from gnnstore.formats.store import store as formats
from gnnstore.graph.arrays import ArrayRows
from gnnstore.sampling import sampled_graph
from gnnstore.testing.graphs import GraphArrays
from tests.support.batches import assert_same_batches
from tests.support.effort import choose
from tests.support.hetero import CITES, hetero_store, make_hetero

N = 300


@pytest.fixture(scope="module")
def edges() -> npt.NDArray[np.int64]:
    """Edges of random order, some of them twice, and a node with thousands of in-neighbours."""
    rng = np.random.default_rng(3)
    to_hub = np.stack([rng.integers(0, N, 1500), np.full(1500, 7)])
    return rng.permutation(np.concatenate([rng.integers(0, N, (2, 500)), to_hub], axis=1), axis=1)


@pytest.fixture(scope="module")
def path(edges: npt.NDArray[np.int64], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with ids of its edges in the input."""
    weights = np.arange(edges.shape[1], dtype=np.float32)
    graph = GraphArrays(N, edges, {"edge_weight": weights})
    return graph.write(tmp_path_factory.mktemp("links") / "s.gnn")


@pytest.fixture
def unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill mappings of the topology with nonsense: batches that look at them are wrong."""
    load = formats.load_column

    def load_column(reader: Any, spec: Any, mapped: Any, num_threads: int | None, *at: Any) -> Any:
        found = load(reader, spec, mapped, num_threads, *at)
        return found if num_threads is not None else np.full_like(found, -1)

    monkeypatch.setattr(formats, "load_column", load_column)


def batches(source: Any, topology: str, **options: Any) -> tuple[list[Any], int]:
    loader = LinkNeighborLoader(
        source, batch_size=200, shuffle=True, seed=5, topology=topology, num_threads=0, **options
    )
    return list(loader), loader.stats().topology_reads


@pytest.mark.parametrize(
    "options",
    [
        {"num_neighbors": []},
        {"num_neighbors": [3, 3], "exclude_edges": "reverse", "neg_sampling": "binary"},
        {"num_neighbors": [2], "neg_sampling": ("triplet", 3), "strict_negatives": True},
        {
            "num_neighbors": [],
            "edge_label_attrs": ["edge_weight"],
            "edge_label_index": 700,
        },
        {"num_neighbors": [2], "exclude_edges": "self", "strategy": "belady"},
    ],
    ids=["seeds alone", "excluded", "strict", "attributes", "ahead"],
)
def test_batches_are_those_in_memory(
    path: Path,
    edges: npt.NDArray[np.int64],
    unmapped: None,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    """Also where a list is searched by parts, and read in several groups."""
    if some := options.get("edge_label_index"):
        options = options | {"edge_label_index": torch.from_numpy(edges[:, :some])}
    # Read first, since a store that is open in memory is not looked up on disk.
    for read_ids, together in choose(((4, 32),), ((1 << 10, 1 << 16), (4, 32))):
        monkeypatch.setattr(sampled_graph, "_READ_IDS", read_ids)
        monkeypatch.setattr(sampled_graph, "_READ_TOGETHER", together)
        found, num_reads = batches(path, "disk", **{"strategy": "direct"} | options)
        assert num_reads > 0
        expected, _ = batches(path, "memory", strategy="memory", **without(options, "strategy"))
        assert_same_batches(found, expected)


def without(options: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != name}


@pytest.mark.parametrize("exclude", choose(["reverse"], ["self", "reverse"]))
def test_edges_of_one_type_among_others(tmp_path: Path, unmapped: None, exclude: str) -> None:
    path = hetero_store(tmp_path / "s.gnn", make_hetero()).path
    options = {
        "num_neighbors": [2, 2],
        "edge_label_index": CITES,
        "exclude_edges": exclude,
        "neg_sampling": "binary",
    }
    found, num_reads = batches(path, "disk", strategy="direct", **options)
    assert num_reads > 0
    assert_same_batches(found, batches(path, "memory", strategy="memory", **options)[0])


def test_attributes_of_seed_edges_are_read_by_the_engine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from no mapping, and count as reads."""
    options: dict[str, Any] = {"num_neighbors": [], "attributes": [], "strategy": "direct"}
    expected, without = batches(path, "memory", **options | {"strategy": "memory"})
    assert without == 0
    monkeypatch.setattr(ArrayRows, "take", None)
    _, plain = batches(path, "disk", **options)
    found, num_reads = batches(path, "disk", **options, edge_label_attrs=["edge_weight"])
    assert num_reads > plain
    for batch, other in zip(found, expected, strict=True):
        assert batch.input_id.tolist() == other.input_id.tolist()
        assert batch.label_edge_weight.tolist() == batch.input_id.tolist()
