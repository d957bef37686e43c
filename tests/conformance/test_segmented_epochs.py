"""Packed epochs whose batches share rows on disk: the batches of every other loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.errors import UsageError
from gnnstore.features import segments as segment_packing
from gnnstore.formats.packed import PackedReader
from gnnstore.pipeline.lookahead import producer
from gnnstore.pipeline.lookahead.superbatch import SuperbatchFiles
from gnnstore.testing.graphs import random_graph
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose, paired
from tests.support.graphs import E, N, graph_of_three_tables
from tests.support.packing import pack
from tests.support.references import EPOCHS, batches_in_memory, loader_of_packed
from tests.support.stores import assert_same_files


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graph_of_three_tables().write(tmp_path_factory.mktemp("segments") / "s.gnn")


def stored_bytes(packed: Path) -> int:
    """Return the bytes of packed rows."""
    return sum(array.num_rows for array in PackedReader.open(packed).rows.values())


@pytest.mark.parametrize(
    ("lengths", "cache_bytes"),
    paired([(4, 12), *choose((), ((100, 5), (2, 5), (5, 5), (12, 12)))], ["100kB", "0B"], 1),
)
def test_segments_of_every_length(
    path: Path, tmp_path: Path, expected: Batches, lengths: tuple[int, int], cache_bytes: str
) -> None:
    segment, superbatch = lengths
    options: dict[str, Any] = {"superbatch": superbatch, "cache_bytes": cache_bytes}
    packed = pack(path, [4, 4], output=tmp_path / "packed", segment=segment, **options)
    plain = pack(path, [4, 4], output=tmp_path / "plain", **options)
    assert_same_batches(batches_of(loader_of_packed(path, packed), EPOCHS), expected)
    reader = PackedReader.open(packed)
    assert reader.manifest.segment == min(segment, superbatch)
    assert reader.segments is not None
    assert reader.segments[:, 2].sum() > 0
    assert (np.diff(reader.segments[:, :2]) <= segment).all()
    assert stored_bytes(packed) < stored_bytes(plain)


def test_chunks_of_segments(
    path: Path, tmp_path: Path, expected: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_packing, "_PART_BYTES", 4000)
    monkeypatch.setattr(segment_packing, "_MAX_PARTS_PER_BATCH", 100)
    packed = pack(path, [4, 4], output=tmp_path / "packed", segment=6, superbatch=12)
    reader = PackedReader.open(packed)
    assert reader.segments is not None
    assert set(reader.segments[:, 3].tolist()) == {10}
    assert reader.segments[:, 2].min() > 30
    assert_same_batches(batches_of(loader_of_packed(path, packed), EPOCHS), expected)


def test_topology_alone_has_nothing_to_share(tmp_path: Path) -> None:
    graph = random_graph(N, E, seed=5, num_classes=7)
    path = graph.write(tmp_path / "s.gnn")
    packed = pack(path, [4, 4], output=tmp_path / "packed", segment=4)
    assert not PackedReader.open(packed).manifest.has_segments
    assert_same_batches(batches_of(loader_of_packed(path, packed), 2), batches_in_memory(path))


@pytest.mark.parametrize("segment", choose([4], [1, 4]))
def test_traces_and_plans_on_disk(
    path: Path, tmp_path: Path, expected: Batches, monkeypatch: pytest.MonkeyPatch, segment: int
) -> None:
    options: dict[str, Any] = {"segment": segment, "superbatch": 12}
    whole = pack(path, [4, 4], output=tmp_path / "in-memory", **options)
    monkeypatch.setattr(
        producer,
        "SuperbatchFiles",
        lambda *a, **k: SuperbatchFiles(*a, **k | {"table_bytes": 1 << 20}),
    )
    packed = pack(path, [4, 4], output=tmp_path / "spilled", spill_dir=tmp_path, **options)
    assert_same_files(packed, whole)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in-memory", "spilled"]
    assert_same_batches(batches_of(loader_of_packed(path, packed), EPOCHS), expected)


@pytest.mark.parametrize(("cache", "segment"), [("degree", 1), *choose((), (("frequency", 4),))])
def test_caches_that_stay_the_same(
    path: Path, tmp_path: Path, expected: Batches, cache: str, segment: int
) -> None:
    packed = pack(path, [4, 4], output=tmp_path / "packed", cache=cache, segment=segment)
    loader = loader_of_packed(path, packed)
    assert_same_batches(batches_of(loader, EPOCHS), expected)
    assert loader.stats().cache == cache
    assert loader.stats().rows_cached > 0
    if segment == 1:
        best = pack(path, [4, 4], output=tmp_path / "best")
        assert PackedReader.open(best).manifest.cached_by == "belady"
        assert stored_bytes(best) <= stored_bytes(packed)


def test_caches_that_nobody_knows(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cache='lru' is unknown"):
        pack(path, [4, 4], output=tmp_path / "packed", cache="lru")
