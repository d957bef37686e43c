"""Records come back as they were written, or with an error that says what became of them."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore.disk.ragged_file import RaggedFile
from gnnstore.errors import CorruptStoreError, NoSpaceError, StorageError, UsageError
from gnnstore.pipeline.lookahead.sample_spool import (
    KeptSubgraphs,
    SubgraphsInMemory,
    SubgraphsOnDisk,
)
from gnnstore.sampling.compact import CompactSubgraph
from gnnstore.sampling.neighbor import SampledSubgraph

Arrays = list[npt.NDArray[Any]]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[RaggedFile]:
    with RaggedFile(tmp_path / "kept") as ragged:
        yield ragged


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount(8) here")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def record(i: int) -> Arrays:
    """Return arrays that only record i has."""
    rng = np.random.default_rng(i)
    return [
        rng.integers(0, 2**31, i * 100, np.int32),
        rng.integers(0, 2**62, (2, i)),
        rng.random(i % 5).astype(np.float32) > 0.5,
        rng.random((3, 0, 2)),
        np.array(i, np.uint16),
    ]


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        np.testing.assert_array_equal(one, other)


def test_records_come_back_in_any_order(file: RaggedFile) -> None:
    numbers = [7, 0, 3, 50, 1]
    for i in numbers:
        file.append(i, record(i))
    for i in [*sorted(numbers), *numbers]:
        assert_same(file.read(i), record(i))
    file.append(8, [])
    assert file.read(8) == []


def test_what_is_not_contiguous_comes_back_in_order(file: RaggedFile) -> None:
    array = np.arange(24).reshape(4, 6)
    file.append(0, [array.T, array[::2, 1::3]])
    assert_same(file.read(0), [array.T, array[::2, 1::3]])


def test_what_is_read_may_be_changed(file: RaggedFile) -> None:
    file.append(2, record(2))
    file.read(2)[0][:] = 0
    assert_same(file.read(2), record(2))


def test_many_threads_write_and_read(file: RaggedFile) -> None:
    barrier = threading.Barrier(4)

    def work(k: int) -> None:
        barrier.wait()
        for i in range(k, 80, 4):
            file.append(i, record(i))
            assert_same(file.read(i), record(i))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    for i in range(80):
        assert_same(file.read(i), record(i))


def test_short_writes_and_reads_are_gone_on_with(
    file: RaggedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, pread = os.pwrite, os.pread
    calls = []

    def write_some(fd: int, parts: list[memoryview], offset: int) -> int:
        calls.append(offset)
        return pwrite(fd, parts[0][:100], offset)

    def read_some(fd: int, buffers: list[memoryview], offset: int) -> int:
        data = pread(fd, min(100, len(buffers[0])), offset)
        buffers[0][: len(data)] = data
        return len(data)

    monkeypatch.setattr(os, "pwritev", write_some)
    file.append(3, record(3))
    assert len(calls) > 13
    monkeypatch.setattr(os, "preadv", read_some)
    assert_same(file.read(3), record(3))


@pytest.mark.parametrize("where", [0, 9, 200, -1])
def test_a_flipped_byte_is_named(file: RaggedFile, tmp_path: Path, where: int) -> None:
    file.append(0, record(1))
    begin = (tmp_path / "kept.values").stat().st_size
    file.append(1, record(2))
    values = tmp_path / "kept.values"
    data = bytearray(values.read_bytes())
    data[where if where < 0 else begin + where] ^= 0x10
    values.write_bytes(data)
    assert_same(file.read(0), record(1))
    message = rf"kept.values: record 1 is not what was written: bytes {begin} to {len(data)} have"
    with pytest.raises(CorruptStoreError, match=message) as caught:
        file.read(1)
    assert caught.value.offset == begin
    assert caught.value.path == str(values)


def test_a_file_that_was_truncated_is_named(file: RaggedFile, tmp_path: Path) -> None:
    for i in range(3):
        file.append(i, record(i))
    os.truncate(tmp_path / "kept.values", (tmp_path / "kept.values").stat().st_size - 1)
    assert_same(file.read(1), record(1))
    with pytest.raises(CorruptStoreError, match="record 2 is not what was written: it lies"):
        file.read(2)
    os.truncate(tmp_path / "kept.offsets", 30)
    with pytest.raises(CorruptStoreError, match=r"record 1 .*: of its offsets 6 bytes are there"):
        file.read(1)


def test_offsets_of_another_record_are_noticed(file: RaggedFile, tmp_path: Path) -> None:
    file.append(0, record(5))
    file.append(1, record(5))
    offsets = np.fromfile(tmp_path / "kept.offsets", np.int64).reshape(-1, 3)
    offsets[::-1].tofile(tmp_path / "kept.offsets")
    for i in range(2):
        with pytest.raises(CorruptStoreError, match="have the crc32c"):
            file.read(i)


def test_what_makes_no_sense_is_refused(file: RaggedFile, tmp_path: Path) -> None:
    file.append(4, record(4))
    with pytest.raises(UsageError, match="record 4 is there already"):
        file.append(4, record(4))
    with pytest.raises(UsageError, match="or negative"):
        file.append(-1, [])
    with pytest.raises(UsageError, match="only numbers"):
        file.append(5, [np.array(["a"])])
    with pytest.raises(UsageError, match="only numbers"):
        file.append(5, [np.array([object()])])
    with pytest.raises(KeyError, match="no record 5"):
        file.read(5)
    with pytest.raises(StorageError, match=r"cannot create a file: .*kept.values: File exists"):
        RaggedFile(tmp_path / "kept")
    assert_same(file.read(4), record(4))


def test_files_that_cannot_be_made_are_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"none/kept.values: No such file"):
        RaggedFile(tmp_path / "none" / "kept")
    (tmp_path / "kept.offsets").mkdir()
    with pytest.raises(StorageError, match=r"cannot create a file: .*kept.offsets: "):
        RaggedFile(tmp_path / "kept")
    assert not (tmp_path / "kept.values").exists()


def test_closing_removes_the_files(tmp_path: Path) -> None:
    file = RaggedFile(tmp_path / "kept")
    file.append(1, record(1))
    file.close()
    file.close()
    assert list(tmp_path.iterdir()) == []
    assert file.num_bytes == 0
    for use in (lambda: file.read(1), lambda: file.append(2, [])):
        with pytest.raises(UsageError, match="is closed"):
            use()
    file.drop(1)


def test_a_forgotten_file_is_removed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    file = RaggedFile(tmp_path / "kept")
    assert len(list(tmp_path.iterdir())) == 2
    del file
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_disk_comes_back_when_nothing_is_kept(file: RaggedFile, tmp_path: Path) -> None:
    values = tmp_path / "kept.values"
    assert file.num_bytes == 0
    for i in range(3):
        file.append(i, record(i))
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert file.num_bytes == sum(sizes)
    for i in (1, 9, 0):
        file.drop(i)
        assert values.stat().st_size > 0
        assert_same(file.read(2), record(2))
    file.drop(2)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0, 0]
    assert file.num_bytes == 0
    with pytest.raises(KeyError):
        file.read(2)
    file.append(2, record(3))
    assert_same(file.read(2), record(3))


def test_a_full_disk_is_said_with_what_is_missing(tiny_disk: Path) -> None:
    with RaggedFile(tiny_disk / "kept") as file:
        file.append(0, [np.arange(20_000, dtype=np.int64)])
        with pytest.raises(NoSpaceError) as caught:
            file.append(1, [np.zeros(20_000, np.int64)])
        message = str(caught.value)
        assert f"{tiny_disk}: no space left for record 1 of kept.values, of 160 kB" in message
        missing = re.search(r"at least ([\d.]+) kB are missing", message)
        assert missing is not None
        # 256 KiB less what record 0 and some pages of the file system take
        assert 60 < float(missing[1]) <= 160
        assert "a smaller superbatch" in message
        # What was written in part is given back, and the number is free again.
        file.append(1, [np.arange(5000)])
        np.testing.assert_array_equal(file.read(0)[0], np.arange(20_000))
        np.testing.assert_array_equal(file.read(1)[0], np.arange(5000))
    assert list(tiny_disk.iterdir()) == []


@pytest.mark.parametrize("call", ["pwritev", "preadv", "pread"])
def test_a_disk_that_fails_is_named(
    file: RaggedFile, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file.append(0, record(2))
    monkeypatch.setattr(os, call, fail)
    doing = "write record 1" if call == "pwritev" else "read record 0"
    with pytest.raises(StorageError, match=rf"cannot {doing}: .*kept.values: Input/output error"):
        file.append(1, record(1)) if call == "pwritev" else file.read(0)
    monkeypatch.undo()
    assert_same(file.read(0), record(2))
    file.append(1, record(1))
    assert_same(file.read(1), record(1))


def test_a_forked_process_reads_and_neither_writes_nor_removes(
    file: RaggedFile, tmp_path: Path
) -> None:
    file.append(0, record(6))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert_same(file.read(0), record(6))
            file.drop(0)
            with pytest.raises(UsageError, match="was made before a fork"):
                file.append(1, [])
            file.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(tmp_path.iterdir())) == 2
    assert_same(file.read(0), record(6))


# ---- kept subgraphs, in either form


@pytest.fixture(params=["memory", "disk"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeptSubgraphs]:
    in_memory = request.param == "memory"
    subgraphs: KeptSubgraphs
    subgraphs = SubgraphsInMemory() if in_memory else SubgraphsOnDisk(tmp_path / "subgraphs")
    yield subgraphs
    subgraphs.close()
    assert list(tmp_path.iterdir()) == []


def subgraph(i: int) -> CompactSubgraph:
    nodes = np.arange(i, 2 * i + 1)
    edge_index = np.array([np.arange(i) + 1, np.zeros(i)], np.int64)
    sampled = SampledSubgraph(
        nodes, edge_index, np.arange(i) * 3, np.zeros(i + 1, np.int64), [1, i], [i], 1
    )
    return CompactSubgraph.of(sampled, 1000, 1000)


def test_subgraphs_are_kept_until_they_are_dropped(kept: KeptSubgraphs) -> None:
    for i in (5, 2, 9):
        kept.put(i, subgraph(i))
    taken = max(kept.num_bytes, kept.num_disk_bytes)
    assert taken >= sum(subgraph(i).num_bytes for i in (5, 2, 9))
    assert 0 in {kept.num_bytes, kept.num_disk_bytes}
    for i in (2, 9, 5, 5):
        found, expected = kept.get(i).expand("int64"), subgraph(i).expand("int64")
        np.testing.assert_array_equal(found.edge_index, expected.edge_index)
        np.testing.assert_array_equal(found.n_id, expected.n_id)
        assert found.num_sampled_nodes == expected.num_sampled_nodes
    for i in (2, 2, 77):
        kept.drop(i)
    with pytest.raises(KeyError):
        kept.get(2)
    kept.get(5)
    kept.drop(5)
    kept.drop(9)
    assert (kept.num_bytes, kept.num_disk_bytes) == (0, 0)
    kept.put(5, subgraph(5))
    kept.get(5)
    kept.close()
    assert (kept.num_bytes, kept.num_disk_bytes) == (0, 0)
