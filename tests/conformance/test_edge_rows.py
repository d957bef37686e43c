"""Rows of edges that are read in a pass for many batches: the same batches, in fewer reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import LinkNeighborLoader, NeighborLoader
from gnnstore.formats.packed import PACKED
from gnnstore.formats.store.units import make_units_directory, unit_path
from gnnstore.pipeline.lookahead.superbatch import Superbatch
from gnnstore.strategies import placement
from gnnstore.testing.graphs import random_graph
from tests.support.batches import Batches, assert_goes_on, assert_same_batches, batches_of
from tests.support.effort import choose, is_long
from tests.support.hetero import hetero_store, make_hetero
from tests.support.packing import pack
from tests.support.references import OPTIONS, loader_of_packed

PLANNED = ("belady", "packed")


@pytest.fixture(autouse=True)
def _nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rows of all widths read from disk: those of small graphs would be held."""
    monkeypatch.setattr(placement, "HELD_ROW_BYTES", 0)
    monkeypatch.setattr(placement, "IDS_SHARE", 2**60)
    monkeypatch.setattr(placement, "_SMALL_SHARE", 2**60)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a graph with times, weights, vectors, flags, and rows too wide for a pass."""
    graph = random_graph(600, 4_000, seed=2, feature_dim=40, num_classes=3, skew=2.0)
    rng = np.random.default_rng(1)
    edges: dict[str, Any] = {
        "edge_time": rng.integers(-(2**60), 2**60, 4_000),
        "edge_weight": rng.random(4_000).astype(np.float16),
        "edge_attr": rng.random((4_000, 2, 3)).astype(np.float32),
        "edge_flag": rng.random(4_000) < 0.5,
        "edge_wide": rng.random((4_000, 17)).astype(np.float32),
    }
    graph.attributes.update(edges)
    return graph.write(tmp_path_factory.mktemp("edges") / "g.gnn")


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = make_hetero()
    data["author", "writes", "paper"].code = data["author", "writes", "paper"].w.bfloat16()
    return hetero_store(tmp_path_factory.mktemp("edges") / "h.gnn", data).path


def nodes_loader(store: Any, **options: Any) -> NeighborLoader:
    return NeighborLoader(store, [4, 3], "train", **(OPTIONS | options))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """Return the arrays whose rows came with each batch, from a pass."""
    found: list[set[str]] = []
    of = Superbatch.edge_rows_of

    def edge_rows_of(self: Any, i: int, sample: Any) -> Any:
        rows = of(self, i, sample)
        found.append({path.rsplit("/", 1)[-1] for path in rows})
        return rows

    monkeypatch.setattr(Superbatch, "edge_rows_of", edge_rows_of)
    return found


@pytest.mark.parametrize("edge_format", ["coo", "csr"])
@pytest.mark.parametrize("strategy", PLANNED)
def test_batches_are_the_same_and_read_less(
    path: Path, strategy: str, edge_format: str, passes: list[set[str]]
) -> None:
    more = {"edge_format": edge_format}
    wanted = batches_of(nodes_loader(path, strategy="memory", **more), 2)
    reads = {}
    for disk in ("0", "1GB") if strategy == "belady" else ("1GB",):
        loader = nodes_loader(gnnstore.open(path), strategy=strategy, disk=disk, **more)
        assert_same_batches(batches_of(loader, 2), wanted)
        reads[disk] = loader.stats().reads
        narrow = {"edge_id", "edge_time", "edge_weight", "edge_attr", "edge_flag"}
        assert {frozenset(each) for each in passes} == {frozenset(narrow if disk != "0" else ())}
        passes.clear()
    assert strategy == "packed" or reads["1GB"] < 0.7 * reads["0"]


@pytest.mark.parametrize("strategy", PLANNED)
def test_without_ids_there_are_attributes(
    path: Path, strategy: str, passes: list[set[str]]
) -> None:
    options: dict[str, Any] = {"edge_ids": "store", "attributes": ("x", "edge_time")}
    wanted = batches_of(nodes_loader(path, strategy="memory", **options))
    found = batches_of(nodes_loader(gnnstore.open(path), strategy=strategy, **options))
    assert_same_batches(found, wanted)
    assert {frozenset(each) for each in passes} == {frozenset({"edge_time"})}


@pytest.mark.parametrize("strategy", choose(["packed"], PLANNED))
@pytest.mark.parametrize(
    "subgraph_type", choose(["bidirectional"], ["directional", "bidirectional"])
)
@pytest.mark.filterwarnings("ignore:subgraph_type='bidirectional'")
def test_edges_of_each_type(
    typed: Path, strategy: str, subgraph_type: str, passes: list[set[str]]
) -> None:
    options: dict[str, Any] = {
        "num_neighbors": [3, 2],
        "input_nodes": ("paper", "train"),
        "batch_size": 5,
        "seed": 1,
        "subgraph_type": subgraph_type,
    }
    wanted = batches_of(NeighborLoader(typed, strategy="memory", **options), 2)
    found = NeighborLoader(gnnstore.open(typed), strategy=strategy, **options)
    assert_same_batches(batches_of(found, 2), wanted)
    assert {frozenset(each) for each in passes} == {
        frozenset({"edge_id", "edge_time", "w", "edge_attr", "code"})
    }


def test_links_and_changed_outputs(path: Path, passes: list[set[str]]) -> None:
    """`transform_sampler_output` drops edges: rows are chosen from those that were read."""

    def every_other(output: Any) -> Any:
        for name in ("row", "col", "edge"):
            setattr(output, name, getattr(output, name)[::2])
        return output

    def make(**more: Any) -> Batches:
        return batches_of(
            LinkNeighborLoader(
                gnnstore.open(path),
                [3],
                batch_size=300,
                neg_sampling="binary",
                seed=3,
                transform_sampler_output=every_other,
                **more,
            )
        )

    assert_same_batches(make(strategy="packed"), make(strategy="memory"))
    assert all("edge_time" in each for each in passes)


def test_packed_epochs_and_resuming(path: Path, passes: list[set[str]]) -> None:
    store = gnnstore.open(path)
    make_units_directory(PACKED, path)
    pack(path, [4, 3], output=unit_path(PACKED, path, "edges"))
    assert passes
    assert all("edge_time" in each for each in passes)
    wanted = batches_of(nodes_loader(store, strategy="memory"))
    by_store = loader_of_packed(store, "edges", num_neighbors=[4, 3])
    assert_same_batches(batches_of(by_store), wanted)
    if is_long():
        assert_goes_on(lambda: nodes_loader(gnnstore.open(path), strategy="packed"))
