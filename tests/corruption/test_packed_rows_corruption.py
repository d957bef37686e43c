"""Disks that alter packed rows: found while packing, while training, and by `verify`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.errors import CorruptStoreError, StorageError
from gnnstore.features import segments as segment_packing
from gnnstore.formats.packed import PackedReader
from gnnstore.formats.packed_writer import PackedWriter
from gnnstore.pipeline.lookahead import superbatch as rolling
from gnnstore.testing.graphs import random_graph
from tests.support.batches import assert_same_batches, batches_of
from tests.support.files import flip
from tests.support.packing import pack
from tests.support.traces import Recorder

BATCHES = 12
OPTIONS: dict[str, Any] = {"batch_size": 50, "shuffle": True, "seed": 3}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(1000, 12_000, seed=5, feature_dim=100, num_classes=7)
    return graph.write(tmp_path_factory.mktemp("packed") / "s.gnn")


@pytest.fixture(scope="module")
def expected(store: Path) -> list[dict[str, Any]]:
    return batches_of(NeighborLoader(store, [4, 4], "train", strategy="memory", **OPTIONS), 2)


def altering(monkeypatch: pytest.MonkeyPatch, home: Any, name: str, alter: Any) -> None:
    """Have something done to what a function returns."""
    found: Callable[..., Any] = getattr(home, name)

    def altered(*given: Any, **options: Any) -> Any:
        result = found(*given, **options)
        alter(result, *given)
        return result

    monkeypatch.setattr(home, name, altered)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_rows_that_change_while_training_packs_ahead(
    store: Path,
    tmp_path: Path,
    expected: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    num_threads: int,
) -> None:
    """The second superbatch is damaged; what comes before its fourth batch is sound."""
    made = []

    def damage(packed: Any, *_: Any) -> None:
        made.append(packed)
        if len(made) == 2:
            table = packed.tables["nodes/node/x"]
            flip(table.file_path, int(table.chunks.offsets[3]) + 17)

    altering(monkeypatch, rolling, "pack", damage)
    loader = NeighborLoader(
        store,
        [4, 4],
        "train",
        strategy="packed",
        superbatch=5,
        cache_bytes="100kB",
        num_threads=num_threads,
        spill_dir=tmp_path,
        **OPTIONS,
    )
    taken: list[Any] = []
    message = r"0\.rows: packed rows are damaged: bytes \d+ to \d+ .* batch 3 .*start the run again"
    with pytest.raises(CorruptStoreError, match=message):
        taken.extend(batch.to_dict() for batch in loader)
    assert_same_batches(taken, expected[: 5 + 3])
    assert list(tmp_path.iterdir()) == [], "the run directory is removed"


def test_a_disk_that_alters_what_is_written(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files' own checksums are of what could be read back, those of rows are not."""
    finish = PackedWriter.finish_superbatch

    def finish_damaged(self: PackedWriter, index: Any, *rest: Any) -> None:
        if not self.num_superbatches:
            flip(self.temporary_path / "rows/x/c.0", int(index[1][4]) + 5)
        finish(self, index, *rest)

    monkeypatch.setattr(PackedWriter, "finish_superbatch", finish_damaged)
    packed = pack(store, [4, 4], output=tmp_path / "packed")
    assert gnnstore.verify(packed, "checksums").ok
    told = Recorder()
    report = gnnstore.verify(packed, "full", progress=told)
    (problem,) = report.problems
    num_batches = PackedReader.open(packed).manifest.num_batches
    assert (told.phases[-1][0], told.phases[-1][-1]) == ("read the batches of packed", num_batches)
    assert problem.path == str(packed / "rows/x/c.0")
    assert "batch 1 of epoch 0, 'nodes/node/x'" in problem.message
    with pytest.raises(CorruptStoreError, match="batch 1 of epoch 0, 'nodes/node/x'"):
        list(gnnstore.open_packed(packed).loader(num_threads=1))


def test_what_packing_reads_back_is_compared(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage(appended: Any, _: Any, missed: Any, files: Any) -> None:
        last = len(missed.num_rows) - 1
        flip(files["nodes/node/x"][0], int(appended["nodes/node/x"].offsets[last]))

    altering(monkeypatch, segment_packing, "append_missed", damage)
    message = "cannot order the rows of a segment: .*bytes .* are not what was written: the crc32c "
    with pytest.raises(StorageError, match=f"{message}is .*Test the"):
        pack(store, [4, 4], output=tmp_path / "packed", segment=4)
    assert not (tmp_path / "packed").exists()
