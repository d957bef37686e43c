"""What inference does at once: a block is made, the layer runs, rows are written."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("torch_geometric")

import gnnstore
from gnnstore.disk.engines import open_engine
from gnnstore.errors import CorruptStoreError, NoSpaceError, UsageError, storage_error
from gnnstore.features.file_rows import FileRows
from gnnstore.formats.base.files import ChecksummedFile
from gnnstore.layerwise import blocks as inference_blocks
from gnnstore.layerwise.blocks import BlockMaker
from gnnstore.layerwise.plan import BlockLimits
from gnnstore.layerwise.result import Embeddings
from gnnstore.layerwise.rows import PackedRows
from gnnstore.layerwise.run import InferenceRun
from gnnstore.progress import NullProgress
from gnnstore.testing.graphs import random_graph
from tests.support.effort import choose
from tests.support.stores import write_example_store


def slowed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    write = ChecksummedFile.write

    def slow(file: ChecksummedFile, data: Any) -> None:
        sleep(seconds)
        write(file, data)

    monkeypatch.setattr(ChecksummedFile, "write", slow)


def test_a_failed_write_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As do rows of the block before, which are told as written."""
    monkeypatch.setattr(InferenceRun, "_reservations", lambda *_: ())
    monkeypatch.setattr("gnnstore.formats.arrays.paged._BUFFER_BYTES", 1)
    store = random_graph(4000, 0, feature_dim=32).write(tmp_path / "s.gnn")
    written: list[Path] = []
    write = ChecksummedFile.write

    def full(file: ChecksummedFile, data: Any) -> None:
        sleep(0.02)
        if file.path not in written:
            if len(written) == 2:
                raise storage_error(OSError(errno.ENOSPC, "no space"), "write", file.path)
            written.append(file.path)
        write(file, data)

    monkeypatch.setattr(ChecksummedFile, "write", full)
    progress = Interrupting()
    options: dict[str, Any] = {"memory": "200kB", "shard_bytes": 1 << 16, "progress": progress}
    with pytest.raises(NoSpaceError, match=r"/nodes/node/x/c"):
        gnnstore.inference([torch.nn.Identity()], store, tmp_path / "a", **options)
    assert 0 < sum(progress.done) <= 4000 * 2 // 3


def test_a_layer_that_keeps_what_it_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next result is in the same memory, while the one before is being written."""
    slowed(monkeypatch, 0.05)
    monkeypatch.setattr(InferenceRun, "_reservations", lambda *_: ())
    graph = random_graph(4000, 0, feature_dim=32)
    kept = torch.empty(4000, 32)

    def doubled(x: Tensor) -> Tensor:
        if len(x) <= 40:  # on the small graph this would be found out
            return x * 2
        return torch.mul(x, 2, out=kept[: len(x)])

    store = graph.write(tmp_path / "s.gnn")
    cases: tuple[tuple[Any, int], ...] = ((doubled, 2), (torch.nn.Identity(), 1))
    for number, (layer, factor) in enumerate(cases):
        found = gnnstore.inference([layer], store, tmp_path / str(number), memory="200kB")
        assert isinstance(found, Embeddings)
        np.testing.assert_array_equal(found.read(), factor * graph.attributes["x"])


# Bytes for each edge, node and target of a block: made, run, written.
COSTS = np.array([[12, 108, 8], [8, 150, 48], [0, 0, 40]])


def test_limits_are_for_three_blocks() -> None:
    limits = BlockLimits.from_costs(COSTS, 10**6, (5, 6, 1), np.array([100, 101, 1]))
    assert limits.is_ahead
    assert limits.shares.sum() <= 10**6
    most = limits.most(np.array([5, 6, 1]))
    assert limits.admits((5 * most, 6 * most, most))
    assert not limits.admits((5 * most + 5, 6 * most + 6, most + 1))
    assert not limits.admits((0, 0, limits.shares[2] // 40 + 1))
    # A hub gets all, and nothing takes place in the background.
    alone = BlockLimits.from_costs(COSTS, 10**6, (5, 6, 1), np.array([0, 6000, 1]))
    assert not alone.is_ahead
    assert alone.shares.tolist() == [10**6] * 3
    assert alone.admits((0, 6000, 1))


@pytest.mark.parametrize("engine", ["pread", "io_uring", "mmap"])
@pytest.mark.parametrize("row_bytes", choose([64, 4096], [64, 512, 4096, 8192]))
def test_ranges_of_rows(tmp_path: Path, engine: str, row_bytes: int) -> None:
    stored = write_example_store(
        tmp_path / "s.gnn",
        num_nodes=301,
        feature_shape=(row_bytes,),
        feature_dtype="uint8",
        shard_bytes=65536,
    )
    reader = gnnstore.open(stored.path).reader
    array = reader.paged(reader.schema.node.attributes["x"])
    try:
        rows = FileRows.open(array, open_engine(array.file_paths[0], engine))
    except UsageError as error:
        pytest.skip(str(error))
    expected = stored.arrays["nodes/node/x"]
    for first, last in ((0, 301), (0, 0), (7, 8), (3, 299), (128, 256), (300, 301)):
        out = np.zeros((last - first, row_bytes), np.uint8)
        counts = rows.read_range(first, out)
        np.testing.assert_array_equal(out, expected[first:last])
        assert counts.rows_read == last - first
    for first in (-1, 301):
        with pytest.raises(IndexError, match="not within"):
            rows.read_range(first, np.zeros((1, row_bytes), np.uint8))


def test_a_range_of_rows_that_leave_gaps(tmp_path: Path) -> None:
    stored = write_example_store(tmp_path / "s.gnn", feature_shape=(1000,), feature_dtype="uint8")
    reader = gnnstore.open(stored.path).reader
    array = reader.paged(reader.schema.node.attributes["x"])
    rows = FileRows.open(array, open_engine(array.file_paths[0], "pread"))
    out = np.zeros((2, 1000), np.uint8)
    assert rows.read_range(7, out).rows_read == 2
    np.testing.assert_array_equal(out, stored.arrays["nodes/node/x"][7:9])


def summed(x: tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
    return x[1].index_add(0, edge_index[1], x[0][edge_index[0]])


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store that no test changes, of 20 MB of rows."""
    graph = random_graph(20_000, 60_000, feature_dim=256, seed=3)
    return graph.write(tmp_path_factory.mktemp("wide") / "p.gnn")


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave small budgets to blocks."""
    monkeypatch.setattr(InferenceRun, "_reservations", lambda *_: ())


@pytest.mark.usefixtures("packing")
def test_packed_rows_that_were_damaged(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = PackedRows.flush

    def damaging(self: PackedRows) -> None:
        flush(self)
        with self.path.open("r+b") as file:
            file.seek(300_000)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))

    monkeypatch.setattr(PackedRows, "flush", damaging)
    with pytest.raises(CorruptStoreError, match=r"packed.*rows.*The disk or another program"):
        gnnstore.inference([summed], wide, tmp_path / "out", memory="12MB")


class Interrupting(NullProgress):
    """Ctrl-C after some rows, if at all."""

    def __init__(self, after: int | None = None) -> None:
        self.after = after
        self.done: list[int] = []

    @contextmanager
    def phase(self, name: str, *_: Any, **__: Any) -> Iterator[Any]:
        yield Interrupting() if name == "out-degrees" else self

    def advance(self, n: int = 1) -> None:
        self.done.append(n)
        if self.after is not None and sum(self.done) > self.after:
            raise KeyboardInterrupt


@pytest.mark.long("tests/crash kills and resumes it")
@pytest.mark.usefixtures("packing")
@pytest.mark.timeout(60)
def test_interrupted_and_resumed(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads end (as is checked after each test), and what is finished is not done again."""
    options: dict[str, Any] = {"memory": "12MB", "shard_bytes": 1 << 20, "resume": True}
    with monkeypatch.context() as patch:
        slowed(patch, 0.01)
        with pytest.raises(KeyboardInterrupt):
            gnnstore.inference(
                [summed], wide, tmp_path / "out", progress=Interrupting(9000), **options
            )
    rest = Interrupting()
    found = gnnstore.inference([summed], wide, tmp_path / "out", progress=rest, **options)
    assert rest.done[0] > 4000  # of an earlier attempt
    expected = gnnstore.inference([summed], wide, memory="1GB")
    assert isinstance(expected, Tensor)
    assert isinstance(found, Embeddings)
    torch.testing.assert_close(found.tensor(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("packing")
@pytest.mark.timeout(60)
def test_a_failure_ends_packing(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What packs for blocks to come is told to stop when the layer fails meanwhile."""
    told: list[BlockMaker] = []
    outline = BlockMaker._outline_group

    def waiting(self: BlockMaker, first: int) -> Any:
        if told:  # a later group: packed while the layer runs
            assert self.stop.wait(30)
        told.append(self)
        return outline(self, first)

    monkeypatch.setattr(BlockMaker, "_outline_group", waiting)
    monkeypatch.setattr(inference_blocks, "_MAX_BLOCKS", 2)
    calls: list[int] = []

    def failing(x: tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        if len(x[1]) > 40:  # not on the small graph
            calls.append(len(x[1]))
            if len(calls) > 2:
                raise ValueError("enough")
        return summed(x, edge_index)

    with pytest.raises(UsageError, match="enough"):
        gnnstore.inference([failing], wide, tmp_path / "out", memory="12MB")
    assert len(told) == 2
    assert told[0].stop.is_set()
