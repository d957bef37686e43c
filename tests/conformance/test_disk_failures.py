"""A store that is damaged, and a disk that fails, while a loader trains on it."""

from __future__ import annotations

import errno
import gc
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch_geometric.sampler import SamplerOutput

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.errors import InputError, StorageError
from gnnstore.graph.cache_owner import shared_caches
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import paired
from tests.support.faults import inject
from tests.support.graphs import N
from tests.support.loaders import threads_of_loaders
from tests.support.references import OPTIONS
from tests.support.twins.reads import available


@pytest.fixture
def own(path: Path, tmp_path: Path) -> Path:
    """Copy the store, to damage it."""
    return Path(shutil.copytree(path, tmp_path / "own.gnn"))


def loader_of(path: Path, engine: str, cache: str | None = None, **options: Any) -> NeighborLoader:
    given: dict[str, Any] = {"cache": cache, "cache_bytes": 60_000 if cache else None}
    given |= {"strategy": "direct", "io_engine": engine, **OPTIONS, **options}
    return NeighborLoader(path, [4, 4], "train", **given)


@pytest.mark.parametrize("strategy", ["direct", "static"])
def test_a_read_only_store(own: Path, expected: list[Any], strategy: str) -> None:
    places = [*own.rglob("*"), own]
    for place in places:
        place.chmod(0o555 if place.is_dir() else 0o444)
    try:
        loader = NeighborLoader(own, [4, 4], "train", strategy=strategy, **OPTIONS)
        assert_same_batches(batches_of(loader, 2), expected)
        assert [place.stat().st_mode & 0o222 for place in places] == [0] * len(places)
    finally:
        for place in places:
            if place.is_dir():
                place.chmod(0o755)


def threads_and_descriptors() -> tuple[list[str], int]:
    return threads_of_loaders(), len(list(Path("/proc/self/fd").iterdir()))


def check_that_nothing_is_left(before: tuple[list[str], int]) -> None:
    gc.collect()  # the traceback of an error may hold on to an engine
    threads, descriptors = threads_and_descriptors()
    assert threads == before[0] == []
    assert descriptors <= before[1], "an engine that has failed is closed"


@pytest.mark.parametrize("cache", [None, "degree"])
def test_files_that_are_removed_while_training(
    own: Path, expected: Batches, engine: str, cache: str | None
) -> None:
    loader = loader_of(own, engine, cache)
    running = iter(loader)
    found = [next(running).to_dict()]
    shutil.rmtree(own)
    found += batches_of(running)
    assert_same_batches(found + batches_of(loader), expected)  # open files are read to the end


def data_files(store: Path, attribute: str) -> list[Path]:
    (directory,) = store.rglob(attribute)
    return [file for file in directory.rglob("c*") if file.is_file()]


@pytest.mark.parametrize(("cache", "num_threads"), [(None, 0), ("frequency", 3)])
def test_files_that_are_truncated_while_training(
    own: Path, engine: str, cache: str | None, num_threads: int
) -> None:
    loader = loader_of(own, engine, cache, num_threads=num_threads)
    batches_of(loader)
    before = threads_and_descriptors()
    (file,) = data_files(own, "x")
    os.truncate(file, 60 * 4096)  # of 100 pages
    for _ in range(2):  # the second epoch fails as the first did
        with pytest.raises(StorageError) as caught:
            batches_of(loader)
        assert caught.value.path == str(file)
        assert str(file) in str(caught.value)
        assert "the array 'nodes/node/x'" in str(caught.value)
        assert any("while preparing batch" in note for note in caught.value.__notes__)
    check_that_nothing_is_left(before)


def test_files_that_are_truncated_before_they_are_opened(own: Path) -> None:
    store = gnnstore.open(own)
    (file,) = data_files(own, "x")
    os.truncate(file, 4096)
    for strategy in ("direct", "static"):
        with pytest.raises(StorageError) as caught:
            NeighborLoader(store, [4], "train", strategy=strategy)
        assert str(file) in str(caught.value)
    file.unlink()
    with pytest.raises(StorageError) as caught:
        NeighborLoader(store, [4], "train", strategy="direct")
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("strategy", ["direct", "static"])
@pytest.mark.parametrize("bad", [-1, N, 2**40])
def test_ids_out_of_range(path: Path, strategy: str, bad: int) -> None:
    def to_bad(out: SamplerOutput) -> SamplerOutput:
        out.node = out.node.clone()
        out.node[-1] = bad
        return out

    with pytest.raises(InputError, match=f"node id {bad} at position 1 of 2"):
        NeighborLoader(path, [4], [0, bad], strategy=strategy)
    loader = NeighborLoader(path, [4], [0], strategy=strategy, transform_sampler_output=to_bad)
    with pytest.raises(IndexError, match=str(bad)):
        next(iter(loader))


@pytest.fixture(params=[("io_uring", "io_uring_read"), ("pread", "pread")], ids=str)
def read_call(request: pytest.FixtureRequest, path: Path) -> tuple[str, Any]:
    """Return an engine and what it reads by, which may fail or come short; a mapping has none."""
    available(request.param[0], path)
    found: tuple[str, Any] = request.param
    return found


@pytest.mark.parametrize(("cache", "num_threads"), paired([None, "degree"], [0, 2], 1))
def test_a_disk_that_fails_while_training(
    path: Path,
    expected: Batches,
    read_call: tuple[str, Any],
    cache: str | None,
    num_threads: int,
) -> None:
    engine, call = read_call
    loader = loader_of(path, engine, cache, num_threads=num_threads)
    batches_of(loader)
    loader.set_epoch(0)
    before = threads_and_descriptors()
    with inject(call, errno=errno.EIO, skip=40) as faults, pytest.raises(StorageError) as caught:
        batches_of(loader)
    assert faults.count == 1
    assert os.strerror(errno.EIO) in str(caught.value)
    assert caught.value.path is not None
    assert Path(caught.value.path).is_file()
    assert any("while preparing batch" in note for note in caught.value.__notes__)
    check_that_nothing_is_left(before)
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader, 2), expected)  # and then it goes on


@pytest.mark.parametrize(
    "fault", [{"errno": errno.EINTR}, {"errno": errno.EAGAIN}, {"short_bytes": 512}]
)
def test_a_disk_that_hesitates(
    path: Path, expected: Batches, read_call: tuple[str, Any], fault: dict[str, int]
) -> None:
    engine, call = read_call
    loader = loader_of(path, engine)
    with inject(call, skip=5, times=20, **fault) as faults:
        found = batches_of(loader, 2)
    assert faults.count == 20
    assert_same_batches(found, expected)


def test_a_disk_that_fails_while_the_cache_is_filled(
    path: Path, read_call: tuple[str, Any]
) -> None:
    engine, call = read_call
    store = gnnstore.open(path)
    options: dict[str, Any] = {"strategy": "static", "io_engine": engine, **OPTIONS}
    # The first read tries the engine out.
    with (
        inject(call, errno=errno.EIO, skip=1),
        pytest.raises(StorageError, match=os.strerror(errno.EIO)),
    ):
        NeighborLoader(store, [4], "train", cache="degree", **options)
    assert shared_caches(store).cached_bytes < 400 * N, "no half cache is kept"
    loader = NeighborLoader(store, [4], "train", cache="degree", **options)
    assert loader.stats().cache_rows > 0
    assert len(batches_of(loader)) == 12


@pytest.mark.parametrize(
    ("code", "remedy"), [(errno.ENOMEM, "memlock"), (errno.EMFILE, "ulimit -n")]
)
def test_a_ring_that_cannot_be_made_says_what_helps(
    path: Path, code: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine worked when the loader was made; a thread that needs one more gets none."""
    available("io_uring", path)
    monkeypatch.setattr("gnnstore.disk.engines._readers", {})  # those of other loaders have rings
    loader = NeighborLoader(path, [4], strategy="direct", io_engine="io_uring", **OPTIONS)
    with (
        inject("io_uring_setup", errno=code, times=-1),
        pytest.raises(StorageError, match=rf"engine 'io_uring' failed: io_uring_setup.*{remedy}"),
    ):
        batches_of(loader)
    assert len(batches_of(loader)) == N // 50
