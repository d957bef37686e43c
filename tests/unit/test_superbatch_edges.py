"""Rows of the edges of a superbatch, read in one pass over their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.disk.spool import SPOOLED_BYTES, FileSpool
from gnnstore.formats.store.schema import EDGE_TYPE
from gnnstore.pipeline.lookahead import edge_rows
from gnnstore.pipeline.lookahead.edge_rows import PassSize, SuperbatchEdges
from gnnstore.sampling.neighbor import EdgeSample, Sample
from gnnstore.testing.graphs import random_graph

NUM_EDGES = 5000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    graph = random_graph(300, NUM_EDGES, seed=4)
    rng = np.random.default_rng(2)
    edges: dict[str, Any] = {
        "edge_time": rng.integers(-(2**60), 2**60, NUM_EDGES),
        "edge_attr": rng.random((NUM_EDGES, 2, 3)).astype(np.float32),
        "edge_flags": rng.random((NUM_EDGES, 3)) < 0.5,
    }
    graph.attributes.update(edges)
    return gnnstore.open(graph.write(tmp_path_factory.mktemp("ids") / "g.gnn"))


def sample_of(positions: np.ndarray) -> Sample:
    edges = {EDGE_TYPE: EdgeSample(np.zeros((2, len(positions)), np.int64), positions)}
    return Sample(nodes={}, edges=edges, trees=None, hop_nodes=None, hop_edges=None, num_seeds=0)


def edges_in(
    store: gnnstore.GraphStore, path: Path, most_bytes: int = 1 << 20, *, ids_only: bool = False
) -> SuperbatchEdges:
    edge = store.schema.edge
    assert edge.edge_id is not None
    specs = [edge.edge_id, *([] if ids_only else edge.own_attributes())]
    tables = {EDGE_TYPE: [store.reader.paged(spec) for spec in specs]}
    return SuperbatchEdges(tables, path / "e", 5, most_bytes)


@pytest.mark.parametrize("ids_only", [True, False])
@pytest.mark.parametrize("piece", [4, 1000, 1 << 20])
def test_each_batch_has_its_rows(
    store: gnnstore.GraphStore,
    tmp_path: Path,
    piece: int,
    ids_only: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge_rows, "_PIECE_BYTES", piece)  # of 4: as many pieces as there may be
    rng, edge = np.random.default_rng(0), store.schema.edge
    specs = [edge.edge_id, *([] if ids_only else edge.own_attributes())]
    tables = {spec.path: store.reader.read(spec) for spec in specs if spec is not None}
    assert len(tables) == (1 if ids_only else 4)
    size = PassSize(NUM_EDGES, (4,) if ids_only else (4, 8, 24, 3))
    checks: list[int] = []
    batches = [rng.integers(0, NUM_EDGES, count) for count in (700, 0, 1, 2000)]
    edges = edges_in(store, tmp_path, ids_only=ids_only)
    for i, positions in enumerate(batches):
        edges.put(i, sample_of(positions))
    assert edges.num_disk_bytes == 2701 * (4 + (4 if ids_only else 40))
    assert edges.read(lambda: checks.append(0)) == NUM_EDGES * (4 if ids_only else 39)
    assert len(checks) == -(-NUM_EDGES // size.piece_rows) <= 64
    written = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert written == 2701 * (4 if ids_only else 40)
    for i in (2, 0, 3, 1):
        found = edges.rows(i, sample_of(batches[i]))
        assert found.keys() == tables.keys()
        for path, table in tables.items():
            assert found[path].values.dtype == table.dtype
            np.testing.assert_array_equal(found[path].values, table[batches[i]])
    assert edges.rows(4, sample_of(batches[0])) == {}  # was never put
    assert edges.num_disk_bytes
    edges.close()
    assert not list(tmp_path.iterdir())


def test_only_pieces_that_are_needed_are_read(
    store: gnnstore.GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_rows, "_PIECE_BYTES", 1000)
    edges, edge = edges_in(store, tmp_path), store.schema.edge
    positions = np.arange(2000, 2100).repeat(2)
    edges.put(0, sample_of(positions))
    num_rows = PassSize(NUM_EDGES, (4, 8, 24, 3)).piece_rows
    pieces = 2099 // num_rows - 2000 // num_rows + 1
    assert edges.read(lambda: None) == pieces * num_rows * 39 < NUM_EDGES * 39 / 8
    found = edges.rows(0, sample_of(positions))
    for spec in edge.own_attributes():
        np.testing.assert_array_equal(found[spec.path].values, store.reader.read(spec)[positions])
    edges.close()


def test_few_edges_are_read_by_themselves(store: gnnstore.GraphStore, tmp_path: Path) -> None:
    edges, positions = edges_in(store, tmp_path), np.arange(NUM_EDGES // 65)
    edges.put(0, sample_of(positions))
    assert edges.read(lambda: None) == 0
    assert edges.rows(0, sample_of(positions)) == {}
    assert not list(tmp_path.iterdir())


def test_batches_beyond_the_disk_are_read_by_themselves(
    store: gnnstore.GraphStore, tmp_path: Path
) -> None:
    edges, positions = edges_in(store, tmp_path, most_bytes=1000), np.arange(NUM_EDGES)
    edges.put(0, sample_of(positions))
    edges.put(1, sample_of(positions))
    edges.read(lambda: None)
    assert edges.rows(0, sample_of(positions))
    assert edges.rows(1, sample_of(positions)) == {}
    edges.close()


def test_memory_of_a_pass_is_a_piece_and_places() -> None:
    ids = PassSize(1000, (4,))
    assert (ids.piece_bytes, ids.index_bytes) == (4000, 4 * SPOOLED_BYTES)
    assert PassSize(1 << 28, (4,)).piece_bytes == 16 << 20
    # An id, a time and a byte, in 16; and the times of a piece before they are put there.
    more = PassSize(1 << 28, (4, 8, 1))
    assert (more.record_bytes, more.piece_bytes) == (16, (1 << 22) * (16 + 8))
    for num_rows in (1 << 28, (1 << 28) + 1, (25 << 20) - 1):
        for widths in ((4,), (4, 8, 1)):
            places = PassSize(num_rows, widths).index_bytes
            assert 50 * 4 * SPOOLED_BYTES < places <= 64 * 4 * SPOOLED_BYTES


def held(edges: SuperbatchEdges) -> int:
    """Return the bytes of the places in all files that are still referred to."""
    found, seen = 0, [edges]
    known: set[int] = set()
    while seen:
        each: Any = seen.pop()
        if id(each) in known:
            continue
        known.add(id(each))
        if isinstance(each, FileSpool):
            found += each.num_bytes
        elif isinstance(each, dict):
            seen += each.values()
        elif isinstance(each, SuperbatchEdges | edge_rows._TypeRows):
            seen += vars(each).values()
    return found


@pytest.mark.parametrize("piece", [4, 1000, 1 << 20])
def test_places_take_the_memory_that_is_reserved(
    store: gnnstore.GraphStore, tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a superbatch that is made, one that is read, and one whose last batch is read."""
    monkeypatch.setattr(edge_rows, "_PIECE_BYTES", piece)
    rng, reserved = np.random.default_rng(0), 5 * PassSize(NUM_EDGES, (4, 8, 24, 3)).index_bytes
    three = []
    for name in "abc":
        (tmp_path / name).mkdir()
        edges = edges_in(store, tmp_path / name)
        for i in range(5):
            edges.put(i, sample_of(rng.integers(0, NUM_EDGES, 300)))
        three.append(edges)
        assert 0 < sum(map(held, three)) <= reserved
        edges.read(lambda: None)
    for edges in three:
        edges.close()
    assert sum(map(held, three)) == 0
    assert edges.rows(0, sample_of(np.arange(3))) == {}
