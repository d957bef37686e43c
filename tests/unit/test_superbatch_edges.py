"""Ids of the edges of a superbatch, read in one pass over their table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.disk.spool import SPOOLED_BYTES, FileSpool
from gnnstore.formats.store.schema import EDGE_TYPE
from gnnstore.pipeline.lookahead import edge_ids
from gnnstore.pipeline.lookahead.edge_ids import SuperbatchIds, index_bytes, piece_bytes
from gnnstore.sampling.neighbor import EdgeSample, Sample
from gnnstore.testing.graphs import random_graph

NUM_EDGES = 5000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    graph = random_graph(300, NUM_EDGES, seed=4)
    return gnnstore.open(graph.write(tmp_path_factory.mktemp("ids") / "g.gnn"))


def sample_of(positions: np.ndarray) -> Sample:
    edges = {EDGE_TYPE: EdgeSample(np.zeros((2, len(positions)), np.int64), positions)}
    return Sample(nodes={}, edges=edges, trees=None, hop_nodes=None, hop_edges=None, num_seeds=0)


def ids_in(store: gnnstore.GraphStore, path: Path, most_bytes: int = 1 << 20) -> SuperbatchIds:
    spec = store.schema.edge.edge_id
    assert spec is not None
    return SuperbatchIds({EDGE_TYPE: store.reader.paged(spec)}, path / "e", 5, most_bytes)


@pytest.mark.parametrize("piece", [4, 1000, 1 << 20])
def test_each_batch_has_its_ids(
    store: gnnstore.GraphStore, tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_ids, "_PIECE_BYTES", piece)  # of 4: as many pieces as there may be
    rng, known = np.random.default_rng(0), store.original_edge_ids
    assert known is not None
    table, checks = known.read(), []
    batches = [rng.integers(0, NUM_EDGES, count) for count in (700, 0, 1, 2000)]
    ids = ids_in(store, tmp_path)
    for i, positions in enumerate(batches):
        ids.put(i, sample_of(positions))
    assert ids.read(lambda: checks.append(0)) == 4 * NUM_EDGES
    assert len(checks) == -(-NUM_EDGES // (piece_bytes(4 * NUM_EDGES) // 4)) <= 65
    for i in (2, 0, 3, 1):
        ((path, rows),) = ids.rows(i, sample_of(batches[i])).items()
        assert path.endswith("/edge_id")
        np.testing.assert_array_equal(rows.values, table[batches[i]])
    assert ids.rows(4, sample_of(batches[0])) == {}  # was never put
    assert ids.num_disk_bytes
    ids.close()
    assert not list(tmp_path.iterdir())


def test_few_edges_are_read_by_themselves(store: gnnstore.GraphStore, tmp_path: Path) -> None:
    ids, positions = ids_in(store, tmp_path), np.arange(NUM_EDGES // 65)
    ids.put(0, sample_of(positions))
    assert ids.read(lambda: None) == 0
    assert ids.rows(0, sample_of(positions)) == {}
    assert not list(tmp_path.iterdir())


def test_batches_beyond_the_disk_are_read_by_themselves(
    store: gnnstore.GraphStore, tmp_path: Path
) -> None:
    ids, positions = ids_in(store, tmp_path, most_bytes=1000), np.arange(NUM_EDGES)
    ids.put(0, sample_of(positions))
    ids.put(1, sample_of(positions))
    ids.read(lambda: None)
    assert ids.rows(0, sample_of(positions))
    assert ids.rows(1, sample_of(positions)) == {}
    ids.close()


def test_memory_of_a_pass_is_a_piece_and_places() -> None:
    assert piece_bytes(4000) == 4000
    assert piece_bytes(1 << 30) == 16 << 20
    assert index_bytes(4000) == 4 * SPOOLED_BYTES
    for num_bytes in (1 << 30, (1 << 30) + 4, (100 << 20) - 4):
        assert 50 * 4 * SPOOLED_BYTES < index_bytes(num_bytes) <= 64 * 4 * SPOOLED_BYTES


def held(ids: SuperbatchIds) -> int:
    """Return the bytes of the places in all files that are still referred to."""
    found, seen = 0, [ids]
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
        elif type(each).__module__ == edge_ids.__name__:
            seen += vars(each).values()
    return found


@pytest.mark.parametrize("piece", [4, 1000, 1 << 20])
def test_places_take_the_memory_that_is_reserved(
    store: gnnstore.GraphStore, tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a superbatch that is made, one that is read, and one whose last batch is read."""
    monkeypatch.setattr(edge_ids, "_PIECE_BYTES", piece)
    rng, reserved = np.random.default_rng(0), 5 * index_bytes(4 * NUM_EDGES)
    three = []
    for name in "abc":
        (tmp_path / name).mkdir()
        ids = ids_in(store, tmp_path / name)
        for i in range(5):
            ids.put(i, sample_of(rng.integers(0, NUM_EDGES, 300)))
        three.append(ids)
        assert 0 < sum(map(held, three)) <= reserved
        ids.read(lambda: None)
    for ids in three:
        ids.close()
    assert sum(map(held, three)) == 0
    assert ids.rows(0, sample_of(np.arange(3))) == {}
