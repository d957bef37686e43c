"""Packed epochs whose runs are compressed: the batches of every other loader."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.errors import CorruptStoreError, UsageError
from gnnstore.formats.packed.reader import PackedReader
from gnnstore.packing.compression import try_out
from gnnstore.packing.estimate import estimate_packing
from gnnstore.packing.job import EpochPacker
from gnnstore.packing.sampling import PackSettings
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.batches import assert_same_batches, batches_of
from tests.support.disks import usual_profile
from tests.support.graphs import E, N
from tests.support.packed import pack
from tests.support.references import BATCHES, EPOCHS, batches_in_memory, loader_of_packed


def make_graph(dtype: str = "float32") -> GraphArrays:
    """Return a graph with features that become smaller, and others that do not."""
    graph = random_graph(N, E, seed=5, feature_dim=4, num_classes=7, skew=2.0)
    rng = np.random.default_rng(9)
    graph.attributes["x"] = rng.integers(0, 5, (N, 100)).astype(dtype)
    graph.attributes["h"] = rng.standard_normal((N, 30)).astype(np.float64)
    return graph


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_graph().write(tmp_path_factory.mktemp("frames") / "s.gnn")


@pytest.mark.parametrize("segment", [1, 4])
@pytest.mark.parametrize("compress", ["lz4", "zstd"])
def test_batches_are_the_same(
    path: Path, tmp_path: Path, expected: list[dict[str, Any]], compress: str, segment: int
) -> None:
    packed = pack(path, [4, 4], output=tmp_path / "packed", compress=compress, segment=segment)
    plain = PackedReader.open(pack(path, [4, 4], output=tmp_path / "plain", segment=segment))
    reader = PackedReader.open(packed)
    assert reader.manifest.compression == compress
    assert gnnstore.verify(packed).ok
    sizes, raw = (
        [int(found.chunk_bytes(column).sum()) for column in range(2)] for found in (reader, plain)
    )
    assert sizes[0] < 0.5 * raw[0], "small whole numbers"
    assert reader.rows["nodes/node/x"].num_rows < plain.rows["nodes/node/x"].num_rows
    assert_same_batches(batches_of(loader_of_packed(path, packed), EPOCHS), expected)
    loader = gnnstore.open_packed(packed).loader(num_threads=2)
    assert_same_batches(batches_of(loader, EPOCHS), expected)
    stats = loader.stats()
    assert stats.rows_read > 0
    if segment == 1:
        assert stats.bytes_useful == sum(sizes)


@pytest.mark.parametrize("dtype", ["int8", "float16", "uint16", "bool"])
def test_element_types(tmp_path: Path, dtype: str) -> None:
    path = make_graph(dtype).write(tmp_path / "s.gnn")
    packed = pack(path, [4, 4], output=tmp_path / "packed", compress="lz4")
    assert_same_batches(batches_of(loader_of_packed(path, packed), 2), batches_in_memory(path))


@pytest.mark.parametrize("engine", ["io_uring", "pread", "mmap"])
def test_engines(path: Path, tmp_path: Path, expected: list[dict[str, Any]], engine: str) -> None:
    packed = pack(path, [4, 4], output=tmp_path / "packed", compress="lz4", epochs=1)
    try:
        loader = loader_of_packed(path, packed, io_engine=engine)
    except UsageError as error:
        pytest.skip(str(error))
    assert_same_batches(batches_of(loader), expected[:BATCHES])


@pytest.mark.parametrize("number", [0, 7, 2 * BATCHES - 1])
def test_a_frame_that_is_damaged(path: Path, tmp_path: Path, number: int) -> None:
    packed = pack(path, [4, 4], output=tmp_path / "packed", compress="zstd")
    reader = PackedReader.open(packed)
    begin = int(reader.index[number, reader.chunk_columns(0)][0])
    size = int(reader.chunk_bytes(0)[number])
    with (packed / "rows/x/c.0").open("r+b") as file:
        file.seek(begin + size // 2)
        byte = file.read(1)
        file.seek(begin + size // 2)
        file.write(bytes([byte[0] ^ 1]))
    loader = gnnstore.open_packed(packed).loader(num_threads=1)
    loader.set_epoch(number // BATCHES)
    taken: list[Any] = []
    name = f"batch {number % BATCHES} of epoch {number // BATCHES}"
    message = f"rows/x/c.0: bytes {begin} to {begin + size}, packed rows, are damaged.*{name}"
    with pytest.raises(CorruptStoreError, match=message):
        taken.extend(loader)
    assert len(taken) == number % BATCHES
    (problem,) = gnnstore.verify(packed).problems
    assert problem.path == str(packed / "rows/x/c.0")


def test_a_frame_of_another_length(path: Path, tmp_path: Path) -> None:
    """An index whose crc fits a part of a frame: what is decoded would be too short."""
    packed = pack(path, [4, 4], output=tmp_path / "packed", compress="zstd")
    reader = PackedReader.open(packed)
    begin = int(reader.index[0, reader.chunk_columns(0)][0])
    with (packed / "rows/x/c.0").open("rb") as file:
        file.seek(begin)
        crc = gnnstore._core.crc32c(np.frombuffer(file.read(100), np.uint8))
    columns = reader.manifest.index_columns
    values = reader.index.copy()
    values[0, reader.chunk_columns(1).start], values[0, reader.chunk_columns(2).start] = 100, crc
    with (packed / "index/c.0.0").open("r+b") as file:
        file.write(values[:1].tobytes())
    assert values.shape[1] == columns == 4 + 3 * 2
    with pytest.raises(CorruptStoreError, match=r"no frame of \d+ bytes in 100"):
        next(iter(gnnstore.open_packed(packed).loader(num_threads=1)))


def test_what_nobody_knows(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="compress='gzip' is unknown"):
        pack(path, [4, 4], output=tmp_path / "packed", compress="gzip")


# --- whether it pays -----------------------------------------------------------------------


class Clock:
    """A clock on which each piece of work takes the same time."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


def test_what_compressing_saves() -> None:
    small = np.zeros((1000, 100), np.float32)
    noise = np.random.default_rng(0).integers(0, 256, (1000, 400), dtype=np.uint8)
    trial = try_out([small, noise], "lz4", 1e6, Clock(0.05))
    assert trial.raw_bytes == 800_000
    assert 400_000 <= trial.kept_bytes < 410_000
    assert trial.decode_seconds == pytest.approx(0.05), "of what became smaller"
    assert trial.saved_seconds == pytest.approx((800_000 - trial.kept_bytes) / 1e6 - 0.05)
    assert try_out([small], "lz4", 1e9, Clock(0.05)).saved_seconds < 0
    assert try_out([noise], "zstd", 1e6, Clock(0.05)).saved_seconds == 0


@pytest.mark.parametrize(("rate", "pays"), [(1e5, True), (1e15, False)])
def test_the_choice_follows_the_disk(path: Path, rate: float, pays: bool) -> None:
    profile = usual_profile(
        path,
        sequential_read_bytes_per_second=rate,
        sequential_write_bytes_per_second=1e6,
        random_reads_per_second={4096: {1: 1000.0}, 65536: {1: 500.0}},
    )
    settings = PackSettings(
        SamplingConfig((4, 4), seed=3), "train", 50, 1, cache_bytes=0, compress="auto"
    )
    with closing(EpochPacker(gnnstore.open(path), settings)) as packer:
        assert packer.compression is None
        choice = estimate_packing(packer, profile).compression
        assert choice is not None
        assert (packer.compression in {"lz4", "zstd"}) == pays
        assert choice.compression == packer.compression
        assert [trial.compression for trial in choice.trials] == ["lz4", "zstd"]
        assert estimate_packing(packer, None).compression.compression is None  # type: ignore[union-attr]
