"""Packed epochs whose batches share rows on disk: the batches of every other loader."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.converters import ConvertOptions
from gnnstore.errors import UsageError
from gnnstore.features.packed import segments as segment_packing
from gnnstore.formats.packed.reader import PackedReader
from gnnstore.pipeline.lookahead import producer
from gnnstore.pipeline.lookahead.superbatch import SuperbatchFiles
from gnnstore.testing.graphs import random_graph
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import paired
from tests.support.graphs import E, N, graph_of_three_tables
from tests.support.packed import pack
from tests.support.references import BATCHES, EPOCHS, OPTIONS, batches_in_memory, loader_of_packed
from tests.support.stores import assert_same_files


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graph_of_three_tables().write(tmp_path_factory.mktemp("segments") / "s.gnn")


@pytest.fixture(scope="module")
def base(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(path, [4, 4], output=tmp_path_factory.mktemp("packed") / "base", segment=3)


def stored_bytes(packed: Path) -> int:
    """Return the bytes of packed rows."""
    return sum(array.num_rows for array in PackedReader.open(packed).rows.values())


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_batches_are_the_same(path: Path, base: Path, expected: Batches, num_threads: int) -> None:
    loader = loader_of_packed(path, base, num_threads=num_threads)
    assert_same_batches(batches_of(loader, EPOCHS), expected)
    alone = gnnstore.open_packed(base).loader(num_threads=num_threads)
    assert_same_batches(batches_of(alone, EPOCHS), expected)


@pytest.mark.parametrize(
    ("lengths", "cache_bytes"),
    paired([(2, 5), (5, 5), (100, 5), (4, 12), (12, 12)], ["0B", "100kB"], 1),
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


@pytest.mark.parametrize("engine", ["io_uring", "pread", "mmap"])
def test_engines(path: Path, base: Path, expected: Batches, engine: str) -> None:
    try:
        loader = loader_of_packed(path, base, io_engine=engine)
    except UsageError as error:
        pytest.skip(str(error))
    assert_same_batches(batches_of(loader), expected[:BATCHES])


@pytest.mark.parametrize(
    ("fanouts", "sampling"),
    [
        ([-1], {}),
        ([3, 3, 3], {"replace": True}),
        ([4, 2], {"disjoint": True}),
        ([4, 2], {"subgraph_type": "induced"}),
        ([4], {"drop_last": True, "batch_size": 70}),
        ([4], {"shuffle": False}),
        ([], {}),
    ],
)
def test_ways_of_sampling(
    path: Path, tmp_path: Path, fanouts: list[int], sampling: dict[str, Any]
) -> None:
    packed = pack(path, fanouts, output=tmp_path / "packed", segment=3, **sampling)
    options = OPTIONS | sampling
    plain = batches_of(NeighborLoader(path, fanouts, "train", strategy="memory", **options), 2)
    found = NeighborLoader(path, fanouts, "train", packed=packed, **options)
    assert_same_batches(batches_of(found, 2), plain)
    shutil.copytree(packed, tmp_path / "copy")
    assert_same_batches(batches_of(gnnstore.open_packed(tmp_path / "copy").loader(), 2), plain)


@pytest.mark.parametrize(
    ("width", "dtype"), [(100, "float16"), (100, "int8"), (768, "float32"), (1100, "float32")]
)
def test_element_types_and_widths(tmp_path: Path, width: int, dtype: str) -> None:
    rows = np.random.default_rng(1).standard_normal((N, width)).astype(np.float32)
    options = ConvertOptions(
        feature_dtype=dtype, feature_scale="column" if dtype == "int8" else None
    )
    path = graph_of_three_tables(x=rows).write(tmp_path / "s.gnn", options=options)
    packed = pack(path, [4, 4], output=tmp_path / "packed", segment=4)
    plain = batches_in_memory(path)
    assert_same_batches(batches_of(loader_of_packed(path, packed), 2), plain)


@pytest.mark.parametrize("taken", [1, 5, 11])
def test_going_on_in_the_middle(path: Path, base: Path, expected: Batches, taken: int) -> None:
    loader = gnnstore.open_packed(base).loader(num_threads=2)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state = loader.state_dict()
    del iterator
    other = loader_of_packed(path, base)
    other.load_state_dict(state)
    assert_same_batches(batches_of(other), expected[taken:BATCHES])


def test_topology_alone_has_nothing_to_share(tmp_path: Path) -> None:
    graph = random_graph(N, E, seed=5, num_classes=7)
    path = graph.write(tmp_path / "s.gnn")
    packed = pack(path, [4, 4], output=tmp_path / "packed", segment=4)
    assert not PackedReader.open(packed).manifest.has_segments
    assert_same_batches(batches_of(loader_of_packed(path, packed), 2), batches_in_memory(path))


@pytest.mark.parametrize("segment", [1, 4])
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


@pytest.mark.parametrize("cache", ["degree", "frequency"])
@pytest.mark.parametrize("segment", [1, 4])
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
