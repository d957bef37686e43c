"""A disk that fails: the right error or a right result, soon, and nothing is left behind."""

from __future__ import annotations

import errno
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore import _core
from gnnstore.formats import PagedArray
from tests.support.effort import choose, paired
from tests.support.faults import Fault, SystemCall, inject, inject_all
from tests.support.twins.reads import available, files_of, write_array

# A hung disk would be reported within this time, and so must a failing one be.
LIMIT_SECONDS = 60.0
pytestmark = pytest.mark.timeout(60)  # nothing waits for ever
ROW_BYTES, NUM_ROWS = 1200, 2000

# Where an engine learns that a read came short; a mapping has no such place.
READ_CALLS: dict[str, SystemCall] = {"io_uring": "io_uring_read", "pread": "pread"}
# Where it learns that a read failed: "mmap" looks at the file before it touches a page.
FAILING_CALLS: dict[str, SystemCall] = {**READ_CALLS, "mmap": "fstat"}


def thread_names() -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(
            FileNotFoundError, ProcessLookupError
        ):  # it ends before it is opened, or read
            names.append((task / "comm").read_text().strip())
    return names


def in_use() -> dict[str, int]:
    return {
        # A handle of iterdir itself is in every count.
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        # The kernel lends a ring workers of its own, and takes them back some time later.
        "threads": sum(not name.startswith("iou-") for name in thread_names()),
        "pool bytes": _core.pool_stats()["bytes_in_use"],
    }


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    gc.collect()
    before = in_use()
    yield
    gc.collect()
    deadline = time.monotonic() + LIMIT_SECONDS
    while in_use() != before and time.monotonic() < deadline:
        time.sleep(0.01)  # threads take a moment to end
    assert in_use() == before


@pytest.fixture(params=READ_CALLS)
def read_engine(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return available(request.param, tmp_path)


@pytest.fixture
def ring(tmp_path: Path) -> str:
    return available("io_uring", tmp_path)


class Table:
    """A table in several files, with a reader of its own."""

    def __init__(self, directory: Path, engine: str, **options: int) -> None:
        rng = np.random.default_rng(0)
        self.rows = rng.integers(0, 256, (NUM_ROWS, ROW_BYTES), dtype=np.uint8)
        self.array: PagedArray = write_array(directory / "x", self.rows, shard_bytes=2**20)
        assert self.array.layout.num_shards >= 2
        self.files = files_of(self.array)
        options = {"queue_depth": 16, "num_threads": 4, "max_read_bytes": 8192} | options
        self.reader = _core.Reader(engine, **options)
        self.ids = rng.permutation(NUM_ROWS)[:500]

    def gather(self, ids: NDArray[Any] | None = None) -> NDArray[np.uint8]:
        ids = self.ids if ids is None else ids
        out = np.full((len(ids), ROW_BYTES), 7, np.uint8)
        self.reader.gather_rows(
            self.files, ids, out.reshape(-1), gap_bytes=0, **self.array.kernel_layout
        )
        return out

    def check(self) -> None:
        """Read as if nothing had happened."""
        np.testing.assert_array_equal(self.gather(), self.rows[self.ids])

    def is_right_with(self, *given: Fault) -> None:
        with inject_all(*given) as injection:
            found = self.gather()
        assert injection.count > 0, "the fault was never met"
        np.testing.assert_array_equal(found, self.rows[self.ids])
        self.check()

    def error_with(self, *given: Fault) -> OSError:
        with inject_all(*given) as injection, pytest.raises(OSError) as caught:  # noqa: PT011
            self.gather()
        assert injection.count > 0, "the fault was never met"
        self.check()
        return caught.value

    def check_place(self, error: OSError) -> None:
        """Expect the name of one of the files, and an offset within it."""
        assert error.filename in {str(path) for path in self.array.file_paths}
        offset = re.search(r"(?:byte|offset) (\d+)", str(error))
        assert offset, str(error)
        assert 0 <= int(offset[1]) < Path(error.filename).stat().st_size
        assert int(offset[1]) % self.files.alignment_bytes == 0


# --- reads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [0, 7, 100])
def test_eio(tmp_path: Path, engine: str, skip: int) -> None:
    table = Table(tmp_path, engine)
    table.check()
    error = table.error_with(Fault(FAILING_CALLS[engine], errno=errno.EIO, skip=skip))
    assert error.errno == errno.EIO
    table.check_place(error)


@pytest.mark.parametrize("num_bytes", [512, *choose([], [4096, 100, 1]), 513])
@pytest.mark.parametrize("times", [1, 40])
def test_short_reads_are_continued(
    tmp_path: Path, read_engine: str, num_bytes: int, times: int
) -> None:
    """Even where the rest begins at no multiple of a sector, which a direct read cannot ask for."""
    table = Table(tmp_path, read_engine)
    table.is_right_with(Fault(READ_CALLS[read_engine], short_bytes=num_bytes, skip=3, times=times))


def test_the_end_of_the_file(tmp_path: Path, read_engine: str) -> None:
    table = Table(tmp_path, read_engine)
    error = table.error_with(Fault(READ_CALLS[read_engine], short_bytes=0, skip=5, times=-1))
    assert error.errno == errno.EIO
    assert "truncated" in str(error) or "end" in str(error)
    table.check_place(error)


@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN])
@pytest.mark.parametrize("times", [1, 30])
def test_retried(tmp_path: Path, read_engine: str, code: int, times: int) -> None:
    table = Table(tmp_path, read_engine)
    table.is_right_with(Fault(READ_CALLS[read_engine], errno=code, skip=2, times=times))


def test_a_read_that_is_never_ready(tmp_path: Path, read_engine: str) -> None:
    table = Table(tmp_path, read_engine)
    error = table.error_with(Fault(READ_CALLS[read_engine], errno=errno.EAGAIN, times=-1))
    assert error.errno == errno.EAGAIN
    table.check_place(error)


def test_ranges_fail_alike(tmp_path: Path, read_engine: str) -> None:
    table = Table(tmp_path, read_engine)
    index, offsets = np.zeros(50, np.int64), np.arange(50) * 8192 + 1
    sizes, places = np.full(50, 5000), np.arange(50) * 5000
    out = np.empty(50 * 5000, np.uint8)
    expected = np.fromfile(table.array.file_paths[0], np.uint8)
    for given, fails in [
        (Fault(READ_CALLS[read_engine], errno=errno.EIO, skip=7), True),
        (Fault(READ_CALLS[read_engine], short_bytes=512, skip=7, times=9), False),
    ]:
        with inject_all(given):
            try:
                table.reader.read_ranges(table.files, index, offsets, sizes, places, out)
            except OSError as error:
                assert fails
                table.check_place(error)
            else:
                assert not fails
    table.reader.read_ranges(table.files, index, offsets, sizes, places, out)
    for i in range(50):
        at = int(offsets[i])
        np.testing.assert_array_equal(out[i * 5000 : (i + 1) * 5000], expected[at : at + 5000])


# --- files -----------------------------------------------------------------------------------


def test_truncated_after_it_was_opened(tmp_path: Path, engine: str) -> None:
    table = Table(tmp_path, engine)
    table.check()
    path = table.array.file_paths[0]
    size = path.stat().st_size
    kept = path.read_bytes()
    os.truncate(path, 300_000)
    with pytest.raises(OSError, match=r"truncated|end") as caught:
        table.gather()
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(path)
    offset = re.search(r"(?:byte|offset) (\d+)", str(caught.value))
    assert offset
    assert 300_000 - 65536 <= int(offset[1]) < size
    # Rows before the cut, and those of the other files, can still be had.
    whole = np.arange(200, dtype=np.int64)
    np.testing.assert_array_equal(table.gather(whole), table.rows[:200])
    path.write_bytes(kept)  # the same file again, in full
    table.check()


def test_removed_after_it_was_opened(tmp_path: Path, engine: str) -> None:
    table = Table(tmp_path, engine)
    for path in table.array.file_paths:
        path.unlink()
    table.check()


def test_a_file_system_without_direct_reads(tmp_path: Path, engine: str) -> None:
    table = Table(tmp_path, engine)
    with inject("open", errno=errno.EINVAL):
        table.files = files_of(table.array)
    assert not table.files.is_direct
    assert "O_DIRECT" in table.files.buffered_because
    table.check()


# --- rings, maps and threads -----------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EPERM, errno.ENOSYS, errno.EMFILE])
def test_no_ring(tmp_path: Path, ring: str, code: int) -> None:
    table = Table(tmp_path, ring)
    error = table.error_with(Fault("io_uring_setup", errno=code, times=-1))
    assert error.errno == code
    assert "io_uring_setup" in str(error)
    with inject("io_uring_setup", errno=code, times=-1), pytest.raises(OSError, match="io_uring"):
        _core.probe_engine("io_uring", table.array.file_paths[0])


@pytest.mark.parametrize("skip", range(4))
def test_no_memory_for_the_ring(tmp_path: Path, engine: str, skip: int) -> None:
    """Each of the mappings that an engine makes, and fewer than that."""
    table = Table(tmp_path, engine)
    with inject("mmap", errno=errno.ENOMEM, skip=skip, times=-1) as injection:
        try:
            found = table.gather()
        except (OSError, MemoryError) as error:
            assert isinstance(error, MemoryError) or error.errno == errno.ENOMEM  # noqa: PT017
            assert injection.count > 0
        else:
            np.testing.assert_array_equal(found, table.rows[table.ids])
    table.check()


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EINVAL, errno.EPERM])
@pytest.mark.parametrize("skip", range(3))
def test_nothing_can_be_registered(tmp_path: Path, ring: str, code: int, skip: int) -> None:
    """Registered buffers are for speed: without the right to lock memory, reads go on."""
    table = Table(tmp_path, ring)
    with inject("io_uring_register", errno=code, skip=skip, times=-1):
        np.testing.assert_array_equal(table.gather(), table.rows[table.ids])
    table.check()


@pytest.mark.parametrize(
    ("code", "skip"), paired([errno.EINTR, errno.EAGAIN, errno.EBUSY], [0, 1, 2])
)
@pytest.mark.parametrize("times", [1, 3])
def test_the_ring_is_busy(tmp_path: Path, ring: str, code: int, skip: int, times: int) -> None:
    table = Table(tmp_path, ring)
    table.is_right_with(Fault("io_uring_enter", errno=code, skip=skip, times=times))


@pytest.mark.parametrize(("code", "skip"), [(errno.EAGAIN, 2), (errno.ENOMEM, 0), (errno.EBADF, 2)])
def test_the_ring_fails_for_ever(tmp_path: Path, ring: str, code: int, skip: int) -> None:
    table = Table(tmp_path, ring)
    error = table.error_with(Fault("io_uring_enter", errno=code, skip=skip, times=-1))
    assert error.errno == code


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.ENODEV])
def test_no_mapping(tmp_path: Path, code: int) -> None:
    table = Table(tmp_path, available("mmap", tmp_path))
    error = table.error_with(Fault("mmap", errno=code, times=-1))
    assert error.errno == code
    assert error.filename in {str(path) for path in table.array.file_paths}


@pytest.mark.parametrize("code", [errno.EFAULT, errno.EIO, errno.ENOMEM, errno.EAGAIN])
def test_a_page_that_cannot_be_mapped(tmp_path: Path, code: int) -> None:
    """Touched, it would end the process (SIGBUS); asked for beforehand, it is an error."""
    table = Table(tmp_path, available("mmap", tmp_path))
    table.check()
    error = table.error_with(Fault("madvise", errno=code, times=-1))
    assert error.errno == (errno.EIO if code == errno.EFAULT else code)
    table.check_place(error)


@pytest.mark.parametrize("skip", range(4))
def test_a_thread_that_does_not_start(tmp_path: Path, engine: str, skip: int) -> None:
    table = Table(tmp_path, engine)
    with inject("thread", errno=errno.EAGAIN, skip=skip, times=-1) as injection:
        try:
            found = table.gather()
        except OSError as error:
            assert error.errno == errno.EAGAIN  # noqa: PT017
            assert "thread" in str(error)  # noqa: PT017
        else:
            np.testing.assert_array_equal(found, table.rows[table.ids])
    assert (injection.count > 0) == (engine != "io_uring")
    table.check()


# --- many callers, signals, processes --------------------------------------------------------


def test_callers_do_not_share_their_errors(tmp_path: Path, engine: str) -> None:
    """Three of many reads fail: at most three calls do, and the others are right."""
    table, num_calls = Table(tmp_path, engine), choose(4, 8)
    outcomes: list[str] = []

    def work() -> None:
        for _ in range(num_calls):
            try:
                found = table.gather()
            except OSError as error:
                outcomes.append("error" if error.errno == errno.EIO else repr(error))
            else:
                same = np.array_equal(found, table.rows[table.ids])
                outcomes.append("right" if same else "wrong")

    call = FAILING_CALLS[engine]
    with inject(call, errno=errno.EIO, skip=1000, times=3) as injection:
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert injection.count == 3
    assert len(outcomes) == 6 * num_calls
    assert set(outcomes) == {"right", "error"}
    assert 1 <= outcomes.count("error") <= 3
    table.check()


def test_real_signals(tmp_path: Path, engine: str) -> None:
    """A handler that runs every millisecond interrupts waits, and changes nothing."""
    table = Table(tmp_path, engine, queue_depth=2)
    fired = 0

    def count(number: int, frame: FrameType | None) -> None:
        nonlocal fired
        fired += 1

    before = signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        while fired < choose(20, 50):
            table.check()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


FORK = """
import os, sys, warnings
import numpy as np
from gnnstore import _core
warnings.simplefilter("ignore")  # that a process with threads forks, from Python 3.12 on
engine, path = sys.argv[1:]
rows = np.fromfile(path, np.uint8).reshape(-1, 512)
files = _core.FileSet([path], [rows.size])
reader = _core.Reader(engine, queue_depth=16, num_threads=4)
ids = np.random.default_rng(0).integers(0, len(rows), 300)
def right():
    out = np.empty((len(ids), 512), np.uint8)
    reader.gather_rows(files, ids, out.reshape(-1), num_rows=len(rows), row_bytes=512,
                       rows_per_page=8, page_stride_bytes=4096)
    return np.array_equal(out, rows[ids])
assert right()
for _ in range(3):
    child = os.fork()
    if child == 0:
        status = 0 if right() and right() else 3
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(0 if right() else 4)
        _, result = os.waitpid(grandchild, 0)
        del reader, files
        os._exit(status or os.waitstatus_to_exitcode(result))
    assert right()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    assert right()
print("right")
"""


@pytest.mark.parametrize("engine", ["pread", "io_uring", *choose([], ["mmap"])], indirect=True)
def test_fork(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "rows"
    rng = np.random.default_rng(0)
    path.write_bytes(rng.integers(0, 256, 2**20, dtype=np.uint8).tobytes())
    finished = subprocess.run(
        [sys.executable, "-c", FORK, engine, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (finished.returncode, finished.stdout) == (0, "right\n"), finished.stderr
