"""Arrays wait for their batch in memory or in a file, and come back as they were, or not at all."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore.disk.spool import FileSpool, MemorySpool, Spool
from gnnstore.errors import CorruptStoreError, NoSpaceError, StorageError, UsageError
from gnnstore.features.packed_rows import decode_record, encode_record
from tests.support.faults import inject

Arrays = list[npt.NDArray[Any]]
NUM_BATCHES, NUM_ARRAYS = 80, 4


@pytest.fixture(params=["memory", "file"])
def spool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Spool]:
    in_memory = request.param == "memory"
    made: Spool
    made = MemorySpool() if in_memory else FileSpool(tmp_path / "kept", NUM_BATCHES, NUM_ARRAYS)
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def file(tmp_path: Path) -> Iterator[FileSpool]:
    made = FileSpool(tmp_path / "kept", NUM_BATCHES, NUM_ARRAYS, what="the sample")
    yield made
    made.close()


def record(i: int) -> Arrays:
    """Return arrays that only batch i has."""
    rng = np.random.default_rng(i)
    return [
        rng.integers(0, 2**31, i * 100, np.int32),
        rng.integers(0, 2**62, i),
        np.arange(3 * i, dtype=np.int32)[::3],
    ]


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        np.testing.assert_array_equal(one, other)


def test_arrays_come_back_in_any_order(spool: Spool) -> None:
    numbers = [7, 0, 3, 50, 1]
    for i in numbers:
        spool.append(i, record(i))
    for i in [*sorted(numbers), *numbers]:
        assert_same(spool.read(i), record(i))


def test_many_threads_write_and_read(spool: Spool) -> None:
    barrier = threading.Barrier(4)

    def work(k: int) -> None:
        barrier.wait()
        for i in range(k, NUM_BATCHES, 4):
            spool.append(i, record(i))
            assert_same(spool.read(i), record(i))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    for i in range(NUM_BATCHES):
        assert_same(spool.read(i), record(i))


def test_arrays_are_kept_until_they_are_dropped(spool: Spool) -> None:
    for i in (5, 2, 9):
        spool.append(i, record(i))
    taken = sum(array.nbytes for i in (5, 2, 9) for array in record(i))
    assert taken in {spool.num_bytes, spool.num_disk_bytes}
    for i in (2, 2, 77):
        spool.drop(i)
    for i in (2, 77):
        with pytest.raises(KeyError):
            spool.read(i)
    assert_same(spool.read(5), record(5))
    spool.append(2, record(3))
    assert_same(spool.read(2), record(3))


def test_short_writes_and_reads_are_gone_on_with(file: FileSpool) -> None:
    with inject("pwrite", short_bytes=77, times=5) as fault:
        file.append(3, record(3))
    assert fault.count == 5
    with inject("pread", short_bytes=33, times=5) as fault:
        assert_same(file.read(3), record(3))
    assert fault.count == 5


@pytest.mark.parametrize("where", [0, 9, 200, -1])
def test_a_flipped_byte_is_named(file: FileSpool, tmp_path: Path, where: int) -> None:
    file.append(0, record(1))
    begin = file.num_disk_bytes
    file.append(1, record(2))
    path = tmp_path / "kept"
    data = bytearray(path.read_bytes())
    data[where if where < 0 else begin + where] ^= 0x10
    path.write_bytes(data)
    assert_same(file.read(0), record(1))
    message = r"kept: batch 1 is not what was written: \d+ bytes at offset \d+ have the crc32c"
    with pytest.raises(CorruptStoreError, match=message) as caught:
        file.read(1)
    assert caught.value.path == str(path)


def test_a_file_that_was_truncated_is_named(file: FileSpool, tmp_path: Path) -> None:
    for i in range(3):
        file.append(i, record(i))
    os.truncate(tmp_path / "kept", file.num_disk_bytes - 1)
    assert_same(file.read(1), record(1))
    with pytest.raises(StorageError, match=r"read the sample of batch 2: .*the file ends"):
        file.read(2)


def test_arrays_of_another_batch_are_noticed(file: FileSpool) -> None:
    file.append(0, record(5))
    file.append(1, record(5))
    for table in (file.begins, file.crcs):
        table[:2] = table[1::-1].copy()
    for i in range(2):
        with pytest.raises(CorruptStoreError, match="have the crc32c"):
            file.read(i)


def test_closing_removes_the_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    spool = FileSpool(tmp_path / "kept", 3)
    spool.append(1, [np.arange(3)])
    spool.close()
    spool.close()
    assert list(tmp_path.iterdir()) == []
    uses: list[Callable[[], object]] = [
        lambda: spool.read(1),
        lambda: spool.append(2, [np.arange(3)]),
    ]
    for use in uses:
        with pytest.raises(UsageError, match="is closed"):
            use()
    spool.drop(1)
    forgotten = FileSpool(tmp_path / "kept", 3)
    assert len(list(tmp_path.iterdir())) == 1
    del forgotten
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_full_disk_is_said_and_gone_on_from(tiny_disk: Path) -> None:
    spool = FileSpool(tiny_disk / "kept", 2, what="the sample")
    spool.append(0, [np.arange(20_000, dtype=np.int64)])
    with pytest.raises(NoSpaceError) as caught:
        spool.append(1, [np.zeros(20_000, np.int64)])
    message = str(caught.value)
    assert f"write the sample of batch 1: no space left for {tiny_disk}/kept" in message
    assert re.search(r"has \d+ \w+ free", message)
    assert "a smaller superbatch" in message
    np.testing.assert_array_equal(spool.read(0)[0], np.arange(20_000))
    with pytest.raises(KeyError):
        spool.read(1)
    spool.close()
    assert list(tiny_disk.iterdir()) == []


@pytest.mark.parametrize("call", ["pwrite", "pread"])
def test_a_disk_that_fails_is_named(file: FileSpool, call: Any) -> None:
    file.append(0, record(2))
    doing = "write the sample of batch 1" if call == "pwrite" else "read the sample of batch 0"
    with (
        inject(call, errno=errno.EIO),
        pytest.raises(StorageError, match=rf"cannot {doing}: .*kept: .*Input/output error"),
    ):
        file.append(1, record(1)) if call == "pwrite" else file.read(0)
    assert_same(file.read(0), record(2))
    file.append(1, record(1))
    assert_same(file.read(1), record(1))


def test_a_forked_process_reads_and_does_not_remove(file: FileSpool, tmp_path: Path) -> None:
    file.append(0, record(6))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert_same(file.read(0), record(6))
            file.drop(0)
            file.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(tmp_path.iterdir())) == 1
    assert_same(file.read(0), record(6))


# --- records, as packed epochs have them ---------------------------------------------------------


def test_records_of_any_numbers_come_back() -> None:
    array = np.arange(24).reshape(4, 6)
    given: Arrays = [
        *record(6),
        array.T,
        array[::2, 1::3],
        np.arange(7) > 3,
        np.ones((3, 0, 2)),
        np.array(9, np.uint16),
    ]
    for arrays in (given, []):
        parts = [np.frombuffer(part, np.uint8) for part in encode_record(arrays)]
        assert_same(decode_record(np.concatenate(parts)), arrays)
