"""Packing on a bad day: budgets that are too small, disks that are full or fail, wrong input."""

from __future__ import annotations

import errno
import gc
import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore import _core
from gnnstore.caching.plan import Trace
from gnnstore.errors import (
    BudgetError,
    CorruptStoreError,
    NoSpaceError,
    StorageError,
)
from gnnstore.features.chunks import BLOCK_BYTES, PackedSuperbatch
from gnnstore.features.pack import least_memory, packed_bytes
from gnnstore.sampling.row_space import RowRange
from gnnstore.threads import CancelledError
from tests.support.effort import choose
from tests.support.faults import Fault, SystemCall, inject, inject_all
from tests.support.files import flip
from tests.support.packing import PackingCase, watched_memory
from tests.support.twins.packing import packed_file
from tests.support.twins.reads import available

ROW_BYTES, NUM_ROWS = 1200, 3000
pytestmark = pytest.mark.timeout(60)  # nothing waits for ever


class Case(PackingCase):
    """A table, and a superbatch that misses all of its rows."""

    def __init__(self, directory: Path, engine: str = "pread") -> None:
        super().__init__(directory, NUM_ROWS, {"x": ROW_BYTES}, engine=engine, shard_bytes=2**20)
        self.table = self.tables["x"].table
        assert self.table.array.layout.num_shards >= 2
        self.path = self.table.array.file_paths[0]
        self.trace = Trace.of([self.rng.permutation(NUM_ROWS)[:700] for _ in range(6)])
        self.slots: NDArray[np.int32] = np.full(self.trace.num_accesses, -1, np.int32)
        self.misses = np.full(6, 700)

    def pack(self, **options: Any) -> PackedSuperbatch:
        return self.packed(self.trace, self.slots, **options)

    def check(self, **options: Any) -> None:
        """Pack, and compare every byte."""
        with self.pack(**options) as packed:
            self.compare(packed)
        self.nothing_is_left()

    def compare(self, packed: PackedSuperbatch) -> None:
        trace = self.trace
        assert packed.tables["x"].file_path.read_bytes() == packed_file(
            self.rows["x"], trace.ids, trace.offsets, self.slots
        )

    def nothing_is_left(self) -> None:
        assert self.left() == []

    def read(self, packed: PackedSuperbatch, i: int) -> NDArray[np.uint8]:
        out = np.full((len(self.trace.batch(i)), ROW_BYTES), 7, np.uint8)
        packed.read(i, "x", RowRange(0, len(out)), out)
        return out


def in_use() -> dict[str, int]:
    gc.collect()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "pool bytes": _core.pool_stats()["bytes_in_use"],
    }


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.fixture
def ring(tmp_path: Path) -> Case:
    return Case(tmp_path, available("io_uring", tmp_path))


@pytest.mark.parametrize(
    "faults",
    [
        *choose(
            [],
            [
                [Fault("pwrite", short_bytes=4096, times=3)],
                [Fault("pwrite", short_bytes=100, times=3)],
                [Fault("fallocate", errno.EINTR)],
            ],
        ),
        [Fault("pwrite", short_bytes=5000, times=3)],
        [Fault("pwrite", short_bytes=0, times=5)],
        [Fault("pwrite", errno.EINTR, times=4), Fault("pwrite", errno.EAGAIN, skip=2, times=4)],
        [Fault("fallocate", errno.EOPNOTSUPP)],
        [Fault("open", errno.EINTR)],
        [Fault("statx", errno.ENOSYS, times=-1)],
        [Fault("pread", short_bytes=4096, times=5)],
        [Fault("pread", errno.EINTR, times=5)],
        [Fault("thread", errno.EAGAIN, skip=3, times=2)],  # of those that write
    ],
    ids=lambda faults: "-".join(f"{f.call}-{f.errno or f.short_bytes}" for f in faults),
)
def test_what_can_be_mended_is(case: Case, faults: list[Fault]) -> None:
    with inject_all(*faults) as injection:
        case.check()
    assert injection.count > 0, "the fault was never met"


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (Fault("open", errno.EACCES), StorageError, "cannot make a file"),
        (Fault("fallocate", errno.ENOSPC), NoSpaceError, "no space left"),
        (Fault("fallocate", errno.EIO), StorageError, "aside"),
        (Fault("pwrite", errno.EIO, skip=5), StorageError, r"cannot write \d+ bytes at offset \d"),
        *choose(
            [],
            [
                (Fault("pwrite", errno.EIO), StorageError, r"cannot write \d+ bytes at offset"),
                (Fault("pwrite", errno.ENOSPC, skip=3), NoSpaceError, "no space left"),
                (Fault("pwrite", errno.EDQUOT), NoSpaceError, "no space left"),
                (Fault("pread", errno.EIO), StorageError, r"cannot read \d+ bytes at offset"),
                (Fault("thread", errno.EAGAIN, times=-1), StorageError, "cannot start a thread"),
            ],
        ),
        (Fault("pread", errno.EIO, skip=3), StorageError, r"cannot read \d+ bytes at offset \d"),
        (Fault("thread", errno.EAGAIN, skip=4, times=-1), StorageError, "cannot start a thread"),
    ],
    ids=lambda value: f"{value.call}-{value.errno}-{value.skip}" if hasattr(value, "skip") else "",
)
def test_what_cannot_be_mended(
    case: Case, fault: Fault, kind: type[StorageError], message: str
) -> None:
    case.check()
    before = in_use()
    with inject_all(fault) as injection, pytest.raises(kind, match=message) as caught:
        case.pack()
    assert injection.count > 0
    assert "the array 'x'" in str(caught.value)
    assert caught.value.path is not None
    case.nothing_is_left()
    del caught
    assert in_use() == before
    case.check()


def test_a_write_that_never_gets_on(case: Case) -> None:
    with (
        inject("pwrite", short_bytes=0, times=-1),
        pytest.raises(StorageError, match="the system writes nothing of them"),
    ):
        case.pack()
    case.nothing_is_left()


@pytest.mark.parametrize("skip", [0, 3])
@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL])
def test_reads_of_a_ring_that_fail(ring: Case, code: int, skip: int) -> None:
    ring.check()
    with (
        inject("io_uring_read", errno=code, skip=skip) as fault,
        pytest.raises(StorageError, match=r"cannot read \d+ bytes at offset") as caught,
    ):
        ring.pack()
    assert fault.count == 1
    assert str(ring.path.parent) in str(caught.value)
    ring.nothing_is_left()
    with inject("io_uring_read", short_bytes=4096, times=3):
        ring.check()


def test_a_ring_that_cannot_be_made(ring: Case) -> None:
    with inject("io_uring_setup", errno=errno.EPERM), pytest.raises(StorageError, match="io_uring"):
        ring.pack()
    ring.nothing_is_left()
    ring.check()


def test_a_table_that_was_cut_off(case: Case) -> None:
    os.truncate(case.path, 4096)
    with pytest.raises(StorageError, match=r"truncated") as caught:
        case.pack()
    assert str(case.path) in str(caught.value)
    case.nothing_is_left()


@pytest.mark.parametrize("engine", ["pread", "io_uring"])
def test_reading_back_fails(request: pytest.FixtureRequest, tmp_path: Path, engine: str) -> None:
    case: Case = request.getfixturevalue("case" if engine == "pread" else "ring")
    call: SystemCall = "pread" if engine == "pread" else "io_uring_read"
    with case.pack() as packed:
        path = packed.tables["x"].file_path
        with (
            inject(call, errno=errno.EIO) as fault,
            pytest.raises(StorageError, match="packed rows of batch 2 of the array 'x'") as caught,
        ):
            case.read(packed, 2)
        assert fault.count == 1
        assert caught.value.path == str(path)
        with inject(call, short_bytes=4096, times=3):
            np.testing.assert_array_equal(case.read(packed, 2), case.rows["x"][case.trace.batch(2)])
        os.truncate(path, int(packed.tables["x"].chunks.offsets[3]) + 4096)
        case.read(packed, 2)
        with pytest.raises(StorageError, match="truncated"):
            case.read(packed, 3)


@pytest.mark.parametrize("engine", ["pread", "io_uring"])
@pytest.mark.parametrize(
    "places",
    [
        [BLOCK_BYTES - 1],
        [700 * ROW_BYTES - 1],
        *choose([], [[0], [BLOCK_BYTES]]),
        [600_000, 300_000, 0],
    ],
)
def test_a_bit_that_flipped(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str, places: list[int]
) -> None:
    case: Case = request.getfixturevalue("case" if engine == "pread" else "ring")
    with case.pack() as packed:
        table = packed.tables["x"]
        begin = int(table.chunks.offsets[3])
        for place in places:
            flip(table.file_path, begin + place)
        first = begin + min(places) // BLOCK_BYTES * BLOCK_BYTES
        end = min(first + BLOCK_BYTES, begin + 700 * ROW_BYTES)
        more = f"; {len(places) - 1} more of the chunk's 7 pieces" if len(places) > 1 else ""
        message = (
            rf"0\.rows: packed rows are damaged: bytes {first} to {end} are not what was written: "
            rf"the crc32c is [0-9a-f]{{8}}, not [0-9a-f]{{8}}{more}.* of batch 3 of the array 'x'. "
            r".*start the run again"
        )
        with pytest.raises(CorruptStoreError, match=message) as caught:
            case.read(packed, 3)
        assert caught.value.path == str(table.file_path)
        assert caught.value.offset == begin
        for i in (2, 4):
            np.testing.assert_array_equal(case.read(packed, i), case.rows["x"][case.trace.batch(i)])
        for place in places:
            flip(table.file_path, begin + place)
        np.testing.assert_array_equal(case.read(packed, 3), case.rows["x"][case.trace.batch(3)])


def test_files_that_were_removed_are_read_to_the_end(case: Case) -> None:
    packed = case.pack()
    packed.close()
    packed.close()
    case.nothing_is_left()
    np.testing.assert_array_equal(case.read(packed, 5), case.rows["x"][case.trace.batch(5)])


def test_several_threads_read_at_once(ring: Case) -> None:
    wrong: list[int] = []

    def work(first: int) -> None:
        for i in range(first, first + 60):
            batch = i % ring.trace.num_batches
            if not np.array_equal(
                ring.read(packed, batch), ring.rows["x"][ring.trace.batch(batch)]
            ):
                wrong.append(i)

    with ring.pack() as packed:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_disk_budget(case: Case) -> None:
    num_bytes = packed_bytes(case.tables, case.misses)
    assert num_bytes == 6 * -(-700 * ROW_BYTES // 4096) * 4096
    case.check(disk_bytes=num_bytes)
    with pytest.raises(BudgetError, match=r"(?s)fit, 1 byte too few.* of disk space"):
        case.pack(disk_bytes=num_bytes - 1)
    case.nothing_is_left()


def test_a_memory_budget(case: Case) -> None:
    in_memory = least_memory(case.tables, case.misses, 8)
    least = least_memory(case.tables, case.misses, 8, spills=True)
    assert least < in_memory
    for memory_bytes in (in_memory, in_memory - 1, least):
        case.check(memory_bytes=memory_bytes)
    with pytest.raises(BudgetError, match=r"6 batches does not fit, 8 bytes too few"):
        case.pack(memory_bytes=least - 8)
    with pytest.raises(BudgetError, match=r"raise the memory budget by .*, or make superbatches"):
        case.pack(memory_bytes=20_000)  # less than sorting takes
    case.nothing_is_left()


@pytest.mark.parametrize("memory_bytes", [6 << 20, *choose([], [12 << 20, 1 << 28])])
def test_memory_stays_within_its_budget(tmp_path: Path, memory_bytes: int) -> None:
    case = Case(tmp_path)
    rng = np.random.default_rng(1)
    case.trace = Trace.of([rng.integers(0, NUM_ROWS, 2000) for _ in range(40)])
    case.slots = np.full(case.trace.num_accesses, -1, np.int32)
    case.check()  # what is there to stay, such as malloc's arenas
    gc.collect()
    _core.release_memory()  # what others have left to be used again
    with watched_memory() as most:
        packed = case.pack(memory_bytes=memory_bytes, num_threads=4)
    with packed:
        case.compare(packed)
    # Threads have stacks and arenas. With memory to spare, some 40 MB would be used.
    slack_bytes = 3 << 20
    assert most[0] <= min(memory_bytes, 50 << 20) + slack_bytes
    if memory_bytes == 1 << 28:
        assert most[0] > (12 << 20) + slack_bytes, "the other cases show nothing"


@pytest.mark.parametrize("directory", ["missing", "file"])
def test_a_directory_that_is_none(case: Case, directory: str) -> None:
    (case.directory.parent / "file").touch()
    case.directory = case.directory.parent / directory
    with pytest.raises(StorageError, match=directory):
        case.pack()


def test_stopping(case: Case) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(CancelledError, match="before it began"):
        case.pack(stop=stop)
    stop.clear()
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    # A disk that is slow: each write is tried for 2 s, and then fails with another error.
    with inject("pwrite", errno=errno.EAGAIN, times=-1), pytest.raises(CancelledError):
        case.pack(stop=stop)
    timer.join()
    case.nothing_is_left()
    stop.clear()
    case.check(stop=stop)


def test_an_interrupted_wait_ends_the_work(case: Case) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with inject("pwrite", errno=errno.EAGAIN, times=200), pytest.raises(KeyboardInterrupt):
        case.pack(advance=interrupt)
    case.nothing_is_left()


def test_a_superbatch_without_misses_or_batches(case: Case) -> None:
    case.slots[:] = 0
    with case.pack() as packed:
        assert packed.num_bytes == packed.counts["bytes_read"] == packed.counts["rows_packed"] == 0
        assert np.all(case.read(packed, 0) == 7)
    case.trace, case.slots = Trace.of([]), np.empty(0, np.int32)
    with case.pack() as packed:
        assert (packed.num_batches, packed.num_bytes) == (0, 0)
    case.nothing_is_left()


class Arguments(NamedTuple):
    """Of a packing kernel that works; tests change one at a time."""

    given: dict[str, Any]

    def call(self, **changes: Any) -> None:
        _core.pack_rows(**self.given | changes)


@pytest.fixture
def arguments(case: Case) -> Arguments:
    geometry = case.table.array.geometry
    chunk_bytes = -(-700 * ROW_BYTES // 4096) * 4096
    given = {
        "files": case.table.files,
        "rows": np.concatenate([np.sort(case.trace.batch(i)) for i in range(6)]),
        "begins": case.trace.offsets[:-1],
        "num_rows_of": np.full(6, 700),
        "paths": [case.directory / "a", case.directory / "b"],
        "file_bytes": [3 * chunk_bytes, 3 * chunk_bytes],
        "chunk_files": np.array([0, 1, 0, 1, 0, 1]),
        "chunk_offsets": np.array([0, 0, 1, 1, 2, 2]) * chunk_bytes,
        "chunk_crcs": np.zeros(6 * 7, np.uint32),
        "progress": np.zeros(2, np.int64),
        "engine": "pread",
        "num_rows": NUM_ROWS,
        "row_bytes": ROW_BYTES,
        "rows_per_page": geometry.rows_per_page,
        "page_stride_bytes": geometry.page_stride_bytes,
        "gap_bytes": 4096,
        "num_windows": 3,
        "window_bytes": 1 << 20,
        "buffer_bytes": 8192,
        "num_spare_buffers": 2,
        "piece_bytes": 1 << 17,
        "num_threads": 2,
    }
    return Arguments(given)


@pytest.mark.parametrize("engine", ["io_uring", "pread", "mmap"])
@pytest.mark.parametrize("gap_bytes", [0, 8192])
def test_tables_in_files_that_end_within_a_block(
    arguments: Arguments, engine: str, gap_bytes: int, tmp_path: Path
) -> None:
    """What is read ends with a block, which may lie behind where the next file begins."""
    available(engine, tmp_path)
    rows = np.random.default_rng(0).integers(1, 256, (40, 512), dtype=np.uint8)
    ends = [0, 9, 10, 27, 40]
    paths = [tmp_path / f"part-{i}" for i in range(4)]
    for path, begin, end in zip(paths, ends, ends[1:], strict=False):
        path.write_bytes(rows[begin:end].tobytes() + b"\xff" * 100)
    files = _core.FileSet(paths, (512 * np.diff(ends)).tolist(), direct=False)
    needed = np.array([0, 8, 9, 10, 11, 26, 27, 39])
    packed = tmp_path / "packed"
    arguments.call(
        files=files,
        rows=needed,
        begins=np.zeros(1, np.int64),
        num_rows_of=np.array([len(needed)]),
        paths=[packed],
        file_bytes=[4096],
        chunk_files=np.zeros(1, np.int64),
        chunk_offsets=np.zeros(1, np.int64),
        chunk_crcs=np.zeros(1, np.uint32),
        engine=engine,
        num_rows=40,
        row_bytes=512,
        rows_per_page=1,
        page_stride_bytes=512,
        gap_bytes=gap_bytes,
    )
    assert packed.read_bytes() == rows[needed].tobytes()
