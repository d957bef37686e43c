"""System calls of the core that fail: the right error or a right result, and nothing left over."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore import _core
from gnnstore.errors import StorageError
from gnnstore.formats import PagedArray, StoreReader
from gnnstore.pipeline.check import verify
from tests.support.effort import choose
from tests.support.faults import Fault, SystemCall, inject, inject_all
from tests.support.files import raised
from tests.support.stores import write_example_store

BODY_BYTES = 3 << 20  # three pieces of read_pages
PLACE = {
    "num_rows": BODY_BYTES >> 9,
    "row_bytes": 512,
    "rows_per_page": 1,
    "page_stride_bytes": 512,
}


def descriptors() -> list[str]:
    """Return the files that are open; zarr keeps other descriptors once it was used."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except FileNotFoundError:  # the one that lists them
            continue
    return sorted(name for name in found if name.startswith("/"))


@pytest.fixture(autouse=True)
def nothing_is_left_over(tmp_path: Path) -> Iterator[None]:
    """No descriptor, no mapping of the test's files, and no fault still in force."""
    before = descriptors()
    yield
    gc.collect()  # an error that a test has kept holds the frames it came through
    assert descriptors() == before
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    with inject("open", errno=errno.EIO) as fault:
        assert fault.count == 0


@pytest.fixture
def body(tmp_path: Path) -> npt.NDArray[np.uint8]:
    """Write the files "a" and "b" of the same random bytes."""
    values = np.random.default_rng(0).integers(0, 256, BODY_BYTES, dtype=np.uint8)
    for name in "ab":
        (tmp_path / name).write_bytes(values.tobytes())
    return values


def read(path: Path, num_threads: int = 1) -> npt.NDArray[np.uint8]:
    out = np.zeros(BODY_BYTES, np.uint8)
    _core.read_pages([path], [BODY_BYTES], out, num_threads=num_threads, **PLACE)
    return out


# --- opening and mapping -------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.EIO])
@pytest.mark.parametrize("skip", [0, 1])
def test_a_file_that_cannot_be_opened(
    tmp_path: Path, body: npt.NDArray[np.uint8], code: int, skip: int
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with inject("open", errno=code, skip=skip) as fault:
        error = raised(lambda: _core.map_files(paths, [BODY_BYTES] * 2))
    assert fault.count == 1
    assert (error.errno, error.filename) == (code, str(paths[skip]))
    assert "cannot open for reading" in str(error)
    mapped = _core.map_files(paths, [BODY_BYTES] * 2)
    assert np.array_equal(mapped, np.tile(body, 2))


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_file_whose_size_is_not_told(
    tmp_path: Path, body: npt.NDArray[np.uint8], code: int
) -> None:
    path = tmp_path / "a"
    for call in (
        lambda: _core.map_files([path], [BODY_BYTES]),
        lambda: _core.crc32c_file(path, 4096),
    ):
        with inject("fstat", errno=code) as fault:
            error = raised(call)
        assert fault.count == 1
        assert (error.errno, error.filename) == (code, str(path))
        assert "cannot get the size" in str(error)


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.ENODEV, errno.EACCES])
@pytest.mark.parametrize(
    ("skip", "name", "message"),
    [(0, "a", "cannot reserve"), (1, "a", "cannot map"), (2, "b", "cannot map")],
)
def test_a_file_that_cannot_be_mapped(
    tmp_path: Path, body: npt.NDArray[np.uint8], *, code: int, skip: int, name: str, message: str
) -> None:
    with inject("mmap", errno=code, skip=skip) as fault:
        error = raised(lambda: _core.map_files([tmp_path / "a", tmp_path / "b"], [BODY_BYTES] * 2))
    assert fault.count == 1
    assert (error.errno, error.filename) == (code, str(tmp_path / name))
    assert message in str(error)


def test_memory_that_cannot_be_had_is_a_memory_error() -> None:
    _core.pool_trim(0)  # a recycled buffer needs no call
    before = _core.pool_stats()["buffers_in_use"]
    with inject("mmap", errno=errno.ENOMEM) as fault, pytest.raises(MemoryError):
        _core.pool_empty(16 << 20)
    assert fault.count == 1
    assert _core.pool_stats()["buffers_in_use"] == before


# --- reading -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("code", [errno.EIO, errno.EAGAIN])
def test_a_read_that_fails_names_file_and_offset(
    tmp_path: Path, body: npt.NDArray[np.uint8], code: int, num_threads: int
) -> None:
    path = tmp_path / "a"
    with inject("pread", errno=code, skip=2) as fault:
        error = raised(lambda: read(path, num_threads))
    assert fault.count == 1
    assert (error.errno, error.filename) == (code, str(path))
    # Which piece is third is the threads' affair when there are several.
    offsets = [2 << 20] if num_threads == 1 else [0, 1 << 20, 2 << 20]
    assert any(f"cannot read 1048576 bytes at offset {offset}:" in str(error) for offset in offsets)
    assert np.array_equal(read(path, num_threads), body)


def test_interrupted_calls_are_made_again(tmp_path: Path, body: npt.NDArray[np.uint8]) -> None:
    with inject_all(
        Fault("open", errno.EINTR, times=3),
        Fault("pread", errno.EINTR, times=2),
        Fault("pread", errno.EINTR, skip=4, times=2),
    ) as fault:
        assert np.array_equal(read(tmp_path / "a"), body)
    assert fault.count == 7


@pytest.mark.parametrize("short_bytes", [1, 511, 4096, (1 << 20) - 1])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_short_reads_are_continued(
    tmp_path: Path, body: npt.NDArray[np.uint8], short_bytes: int, num_threads: int
) -> None:
    with inject("pread", short_bytes=short_bytes, times=5) as fault:
        assert np.array_equal(read(tmp_path / "a", num_threads), body)
        checksums = _core.crc32c_file(tmp_path / "b", 1 << 20)
    # The third read of three pieces, cut to all but a byte, leaves one more read to each.
    assert fault.count == 5
    assert np.array_equal(checksums, _core.crc32c_blocks(body, 1 << 20))


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_file_that_ends_early_is_never_zeros(
    tmp_path: Path, body: npt.NDArray[np.uint8], num_threads: int
) -> None:
    with inject("pread", short_bytes=0, skip=1) as fault:
        error = raised(lambda: read(tmp_path / "a", num_threads))
    assert fault.count == 1
    assert (error.errno, error.filename) == (errno.EIO, str(tmp_path / "a"))
    assert "the file ends at byte" in str(error)
    assert "it is truncated" in str(error)


# --- threads -------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [0, 1])
def test_fewer_threads_change_no_result(
    tmp_path: Path, body: npt.NDArray[np.uint8], skip: int
) -> None:
    with inject("thread", errno=errno.EAGAIN, skip=skip, times=-1) as fault:
        assert np.array_equal(read(tmp_path / "a", num_threads=3), body)
    assert fault.count == 1  # the first refusal ends the attempts
    ids = np.arange(PLACE["num_rows"])[::-1].copy()
    out = np.zeros(BODY_BYTES, np.uint8)
    with inject("thread", errno=errno.EAGAIN, skip=skip, times=-1) as fault:
        _core.gather_rows(body, ids, out, num_threads=4, **PLACE)
    assert fault.count == 1
    assert np.array_equal(out.reshape(-1, 512), body.reshape(-1, 512)[::-1])


# --- renames -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL])
@pytest.mark.parametrize("rename", [_core.rename_noreplace, _core.rename_exchange])
def test_a_rename_that_fails_changes_nothing(
    tmp_path: Path, rename: Callable[[Path, Path], None], code: int
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("a")
    if rename is _core.rename_exchange:
        b.write_text("b")
    before = sorted(path.name for path in tmp_path.iterdir())
    with inject("renameat2", errno=code) as fault:
        error = raised(lambda: rename(a, b))
    assert fault.count == 1
    assert (error.errno, error.filename, error.filename2) == (code, str(a), str(b))
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert a.read_text() == "a"


# --- a store -------------------------------------------------------------------------------


def features(path: Path) -> PagedArray:
    reader = StoreReader.open(path)
    return reader.paged(reader.schema.node.attributes["x"])


@pytest.mark.parametrize(
    ("call", "code", "doing"),
    [
        *choose([], [("open", errno.EMFILE, "load"), ("fstat", errno.EIO, "map")]),
        ("pread", errno.EIO, "load"),
        ("open", errno.EACCES, "map"),
        ("mmap", errno.ENOMEM, "map"),
    ],
)
def test_an_array_that_cannot_be_read(
    tmp_path: Path, call: SystemCall, code: int, doing: str
) -> None:
    stored = write_example_store(tmp_path / "s.gnn", num_nodes=3000, shard_bytes=65536)
    array = features(stored.path)
    assert len(array.file_paths) > 3
    # The first call that maps reserves the addresses, and names the first file too.
    skip = 3 if call == "mmap" else 2
    with (
        inject(call, errno=code, skip=skip) as fault,
        pytest.raises(StorageError, match="the array 'nodes/node/x'") as info,
    ):
        array.load() if doing == "load" else array.map()
    assert fault.count == 1
    assert info.value.path == str(array.file_paths[2])
    assert info.value.path in str(info.value)
    assert os.strerror(code) in str(info.value)
    assert isinstance(info.value.__cause__, OSError)
    assert info.value.__cause__.errno == code
    # The next attempt starts from nothing.
    np.testing.assert_array_equal(array.load(2), stored.arrays["nodes/node/x"])
    ids = np.arange(3000)[::-1]
    np.testing.assert_array_equal(array.gather(ids), stored.arrays["nodes/node/x"][ids])


def test_a_store_loads_through_interruptions(tmp_path: Path) -> None:
    stored = write_example_store(tmp_path / "s.gnn", num_nodes=3000, shard_bytes=65536)
    with inject_all(
        Fault("open", errno.EINTR, skip=1, times=4),
        Fault("pread", errno.EINTR, skip=2, times=3),
        Fault("pread", short_bytes=7, times=20),
        Fault("thread", errno.EAGAIN, skip=1),
    ) as fault:
        found = features(stored.path).load(4)
    assert fault.count == 4 + 3 + 20 + 1
    np.testing.assert_array_equal(found, stored.arrays["nodes/node/x"])


@pytest.mark.parametrize(("skip", "doing"), [(0, "read the checksums"), (6, "verify")])
def test_verification_says_what_it_could_not_read(tmp_path: Path, skip: int, doing: str) -> None:
    stored = write_example_store(tmp_path / "s.gnn")
    with (
        inject("pread", errno=errno.EIO, skip=skip) as fault,
        pytest.raises(StorageError, match=f"cannot {doing}: .*Input/output error"),
    ):
        verify(stored.path, num_threads=1)
    assert fault.count == 1


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_store_that_cannot_be_committed_leaves_things_as_they_were(
    tmp_path: Path, overwrite: bool
) -> None:
    path = tmp_path / "s.gnn"
    if overwrite:
        old = write_example_store(path, seed=1).arrays["nodes/node/x"]
    before = sorted(tmp_path.iterdir())
    with (
        inject("renameat2", errno=errno.EIO) as fault,
        pytest.raises(StorageError, match="cannot commit") as info,
    ):
        write_example_store(path, overwrite=overwrite)
    assert fault.count == 1
    assert info.value.path == str(path)
    assert sorted(tmp_path.iterdir()) == before
    if overwrite:
        np.testing.assert_array_equal(features(path).load(), old)


@pytest.mark.parametrize("overwrite", [False, True])
def test_file_systems_without_these_renames_commit_as_well(tmp_path: Path, overwrite: bool) -> None:
    path = tmp_path / "s.gnn"
    if overwrite:
        write_example_store(path, seed=1)
    with inject("renameat2", errno=errno.EINVAL, times=-1) as fault:
        stored = write_example_store(path, overwrite=overwrite)
    assert fault.count == 1
    assert list(tmp_path.iterdir()) == [path]
    np.testing.assert_array_equal(features(path).load(), stored.arrays["nodes/node/x"])
