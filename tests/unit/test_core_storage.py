"""The storage kernels refuse what is wrong by name, and never crash on it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore import _core
from tests.support.effort import choose, paired
from tests.support.files import raised

U8 = np.uint8
IDS = np.zeros(2, np.int32)
PLACE = {"num_rows": 10, "row_bytes": 4, "rows_per_page": 1, "page_stride_bytes": 4}
LEVELS = np.full((3, 4), 0.25)


def gather(table: Any = None, ids: Any = None, out: Any = None, **place: int) -> None:
    _core.gather_rows(
        np.zeros(40, U8) if table is None else table,
        np.array([1, 2]) if ids is None else ids,
        np.zeros(8, U8) if out is None else out,
        **{**PLACE, **place},
    )


def csc(src: list[int], dst: list[int], num_nodes: int) -> None:
    _core.csc_from_coo(np.array(src), np.array(dst), num_nodes)


def buckets_for(num_edges: int) -> _core.EdgeBuckets:
    buckets = _core.EdgeBuckets(5)
    buckets.plan(num_edges)
    return buckets


# --- arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: _core.crc32c_rows(np.zeros(7, U8), np.ones(1, "i4"), 4), IndexError, "id 1 "),
        (lambda: _core.crc32c_rows(np.zeros(7, U8), -np.ones(1, "i4"), 4), IndexError, "id -1 "),
        (lambda: gather(ids=np.zeros(2)), TypeError, "ids must be int32 or int64, got float64"),
        (lambda: gather(table=np.zeros(39, U8)), ValueError, "holds 39 bytes, but its last row"),
        (lambda: gather(out=np.zeros(9, U8)), ValueError, "must hold 2 rows of 4 bytes = 8 bytes"),
        (lambda: gather(row_bytes=0), ValueError, "row_bytes must be at least 1"),
        (lambda: gather(page_stride_bytes=3), ValueError, "1 rows of 4 bytes need 4"),
        (lambda: gather(page_stride_bytes=2**62), ValueError, "the table is too large"),
        (lambda: gather(num_rows=2**62), ValueError, "the table is too large"),
        (lambda: gather(ids=np.array([1, 10])), IndexError, r"id 10 at position 1 is outside \[0"),
        (lambda: gather(ids=np.array([-1, 0])), IndexError, "row id -1 at position 0 is outside"),
        (lambda: gather(ids=np.array([2**63 - 1, 0])), IndexError, "row id 9223372036854775807"),
        (lambda: csc([0, 5], [0, 0], 5), IndexError, r"source of edge 1 is 5, outside \[0, 5\)"),
        (lambda: csc([0, 1], [0, -1], 5), IndexError, r"target of edge 1 is -1, outside \[0, 5\)"),
        (lambda: csc([0, 1], [0], 5), ValueError, "src and dst must have the same length"),
        (lambda: csc([0], [0], 2**63 - 1), ValueError, "the length of indptr is too large"),
        (lambda: _core.EdgeBuckets(5).sort(0), IndexError, "there is no piece 0"),
        (lambda: buckets_for(1).add(IDS, IDS, 0), ValueError, "more edges than the buckets were"),
        (lambda: buckets_for(2).add(IDS, IDS, -1), ValueError, "more edges than the buckets were"),
        (lambda: buckets_for(2).add(IDS, IDS + 5, 0), IndexError, r"outside \[0, 5\)"),
        (lambda: buckets_for(2).finish(), ValueError, "fewer edges than the buckets were"),
        (lambda: _core.rmat_edges(0, 1, 3, LEVELS * np.nan, 0), ValueError, r"in \[0, 1\], got"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_gather_writes_nothing_when_an_id_is_wrong() -> None:
    out = np.full(4 * 10_000, 7, dtype=U8)
    ids = np.zeros(10_000, dtype=np.int64)
    ids[-1] = 10
    with pytest.raises(IndexError, match="position 9999"):
        gather(ids=ids, out=out, num_threads=2)
    assert np.all(out == 7)


def test_gather_refuses_overlap_and_read_only_output() -> None:
    memory = np.zeros(48, dtype=U8)
    with pytest.raises(ValueError, match="out overlaps the table"):
        gather(table=memory[:40], out=memory[36:44])
    gather(table=memory[:40], out=memory[40:])
    memory.flags.writeable = False
    gather(table=memory[:40])  # inputs may be read-only
    with pytest.raises(TypeError, match="incompatible function arguments"):
        gather(out=memory[:8])


def test_csc_of_sources_beyond_32_bits() -> None:
    rng = np.random.default_rng(0)
    src = rng.integers(0, 2**40, 5000)
    src[::3] = src[0]
    dst = rng.integers(0, 7, 5000)
    indptr, indices, edge_id = _core.csc_from_coo(src, dst, 7, 2, num_src_nodes=2**40)
    order = np.lexsort((src, dst))
    assert edge_id is not None
    assert np.array_equal(edge_id, order)
    assert np.array_equal(indices, src[order])
    assert indptr[-1] == 5000
    with pytest.raises(IndexError, match=r"outside \[0, 7\)"):
        _core.csc_from_coo(src, dst, 7)


# The pointers of the last take a gigabyte.
CROWDS = [(2**20, 1), (2**20, 3), (2**27 + 8, 3)]


@pytest.mark.parametrize(("num_nodes", "num_threads"), choose(CROWDS[1:2], CROWDS))
def test_csc_of_targets_that_crowd_together(num_nodes: int, num_threads: int) -> None:
    """More edges than are sorted at once, of targets that no bin of 2^14 tells apart.

    Half of them have one target; what little is left is spread over all nodes.
    """
    rng = np.random.default_rng(num_nodes)
    dst = rng.integers(num_nodes // 2, num_nodes // 2 + 30, 400_000)
    dst[::2] = num_nodes // 2 + 7
    dst[::100] = rng.integers(0, num_nodes, len(dst[::100]))
    src = rng.integers(0, 300, len(dst))  # so that positions have to decide
    order = np.lexsort((src, dst))
    indptr, indices, edge_id = _core.csc_from_coo(src, dst, num_nodes, num_threads)
    assert edge_id is not None
    assert np.array_equal(edge_id, order)
    assert np.array_equal(indices, src[order])
    assert (int(indptr[0]), int(indptr[-1])) == (0, len(dst))
    nodes, degrees = np.unique(dst, return_counts=True)
    assert np.array_equal(indptr[nodes + 1] - indptr[nodes], degrees)
    assert np.all(indptr[1:] >= indptr[:-1])
    without_ids = _core.csc_from_coo(src, dst, num_nodes, num_threads, with_edge_id=False)
    assert np.array_equal(without_ids[0], indptr)
    assert np.array_equal(without_ids[1], indices)


@pytest.mark.parametrize(
    ("sources", "num_threads"), paired([300, 5000, choose(5_000_000, 2**24)], [1, 3], 1)
)
def test_buckets_of_targets_that_crowd_together(sources: int, num_threads: int) -> None:
    """Long columns, a bucket that is too large to be sorted at once, and targets far apart.

    Sources differ in few bits, in more than one digit has, and in more than two have.
    """
    num_nodes = max(sources, 2**20)
    rng = np.random.default_rng(num_nodes)
    dst = rng.integers(num_nodes // 2, num_nodes // 2 + 30, choose(200_000, 400_000), np.int32)
    dst[::2] = num_nodes // 2 + 7
    dst[::50] = num_nodes - 1 - rng.integers(0, 1000, len(dst[::50])) ** 2
    dst[1::7] = rng.integers(0, 10, len(dst[1::7]))
    src = rng.integers(num_nodes - sources, num_nodes, len(dst), np.int32)
    src[5::11] = src[5]
    check_buckets(src, dst, num_nodes, num_threads)


@pytest.mark.parametrize("sorted_by", ["source", "target", "both"])
def test_buckets_of_edges_in_order(sorted_by: str) -> None:
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, 50_000, (2, 300_000), np.int32)
    keys = {"source": (src,), "target": (dst,), "both": (src, dst)}
    order = np.lexsort(keys[sorted_by])
    check_buckets(src[order], dst[order], 50_000, 2)


def test_buckets_of_columns_whose_sources_lie_close_together() -> None:
    """Their upper digits are the same, so that all of the order is found in columns."""
    rng = np.random.default_rng(6)
    dst = rng.integers(0, 2000, choose(50_000, 200_000), np.int32)
    src = (1000 * dst + rng.integers(0, 1000, len(dst))).astype(np.int32)
    check_buckets(src, dst, 2**24, 2)


def check_buckets(
    src: NDArray[np.int32], dst: NDArray[np.int32], num_nodes: int, num_threads: int
) -> None:
    buckets = _core.EdgeBuckets(num_nodes, num_threads)
    buckets.sample(dst)
    buckets.plan(len(src))

    def add(block: NDArray[np.int64]) -> None:
        ends = src[block], dst[block]
        buckets.add(*ends, block[0])
        for ids in ends:
            buckets.give(ids)

    # More at a time than they have threads for, and in any order.
    with ThreadPoolExecutor(num_threads + 2) as pool:
        list(pool.map(add, reversed(np.array_split(np.arange(len(src)), 7))))
    buckets.finish()
    found = [buckets.sort(piece) for piece in range(buckets.num_pieces)]
    order = np.lexsort((src, dst))
    assert np.array_equal(np.concatenate([ids for _, _, ids in found if ids is not None]), order)
    assert np.array_equal(np.concatenate([indices for _, indices, _ in found]), src[order])
    pointers = np.concatenate([indptr[bool(k) :] for k, (indptr, _, _) in enumerate(found)])
    assert np.array_equal(pointers, np.searchsorted(dst[order], np.arange(num_nodes + 1)))


@pytest.mark.parametrize("sorted_by", ["source", *choose([], ["both"]), "target"])
def test_csc_of_edges_in_order(sorted_by: str) -> None:
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, 50_000, (2, 300_000), np.int32)
    keys = {"source": (src,), "target": (dst,), "both": (src, dst)}
    order = np.lexsort(keys[sorted_by])
    src, dst = src[order], dst[order]
    expected = np.lexsort((src, dst))
    _, indices, edge_id = _core.csc_from_coo(src, dst, 50_000, 2)
    assert edge_id is not None
    assert np.array_equal(edge_id, expected)
    assert np.array_equal(indices, src[expected])


def test_csc_of_nothing() -> None:
    none = np.zeros(0, dtype=np.int32)
    indptr, indices, edge_id = _core.csc_from_coo(none, none, 0)
    assert indptr.tolist() == [0]
    assert edge_id is not None
    assert len(indices) == len(edge_id) == 0
    assert _core.csc_from_coo(none, none, 3)[0].tolist() == [0, 0, 0, 0]


def test_rmat_follows_its_probabilities() -> None:
    # One level, so that the quadrants can be counted; 5 sigma of a binomial.
    probabilities = np.array([[0.57, 0.19, 0.19, 0.05]])
    num_edges = 200_000
    src, dst = _core.rmat_edges(0, num_edges, 1, probabilities, 3)
    counts = np.bincount(2 * src + dst, minlength=4)
    for count, p in zip(counts, probabilities[0], strict=True):
        assert abs(count - num_edges * p) < 5 * np.sqrt(num_edges * p * (1 - p))
    other, _ = _core.rmat_edges(0, num_edges, 1, probabilities, 4)
    assert not np.array_equal(src, other)


# --- files ---------------------------------------------------------------------------------


def test_map_files_is_one_read_only_array(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    bodies = [rng.integers(0, 256, size, dtype=U8) for size in (8192, 0, 4096, 5000)]
    for i, body in enumerate(bodies):
        (tmp_path / str(i)).write_bytes(body.tobytes() + b"index")
        (tmp_path / str(i)).chmod(0o444)
    paths = [tmp_path / str(i) for i in range(4)]
    for advice in ("normal", "random", "sequential"):
        mapped = _core.map_files(paths, [len(body) for body in bodies], advice)
        assert np.array_equal(mapped, np.concatenate(bodies))
        assert not mapped.flags.writeable
    view = mapped[8000:]
    del mapped
    assert np.array_equal(view, np.concatenate(bodies)[8000:])  # the view keeps the mapping
    assert len(_core.map_files([], [])) == 0
    assert len(_core.map_files(paths[1:2], [0])) == 0


def test_rows_beyond_32_and_40_bits(tmp_path: Path) -> None:
    # A sparse file: offsets that a 32-bit integer or a float32 cannot hold.
    row_bytes, num_rows = 512, 2**41 // 512
    path = tmp_path / "sparse"
    ids = np.array([0, 2**23 - 1, 2**23, 2**24 + 1, 2**31 + 1, 2**31 - 1, num_rows - 1])
    with path.open("wb") as file:
        try:
            file.truncate(2**41)
        except OSError as error:
            pytest.skip(f"this file system has no sparse files of 2 TiB: {error}")
        for i, row in enumerate(ids.tolist()):
            file.seek(row * row_bytes)
            file.write(bytes([i + 1]) * row_bytes)
    table = _core.map_files([path], [2**41], "random")
    out = np.zeros(len(ids) * row_bytes, dtype=U8)
    _core.gather_rows(
        table, ids, out, num_rows=num_rows, row_bytes=512, rows_per_page=8, page_stride_bytes=4096
    )
    assert out.reshape(len(ids), row_bytes).T.tolist() == [list(range(1, len(ids) + 1))] * row_bytes


def test_system_errors_name_the_file(tmp_path: Path) -> None:
    absent, short = tmp_path / "absent", tmp_path / "short"
    short.write_bytes(bytes(5000))
    for call in (
        lambda: _core.map_files([absent], [1]),
        lambda: _core.crc32c_file(absent, 10),
        lambda: _core.read_pages([absent], [40], np.zeros(40, U8), **PLACE),
    ):
        error = raised(call)
        assert isinstance(error, FileNotFoundError)
        assert error.filename == str(absent)
        assert "cannot open for reading" in str(error)
    error = raised(lambda: _core.map_files([short], [5001]))
    assert (error.errno, error.filename) == (errno.EIO, str(short))
    assert "holds 5000 bytes, but its body should have 5001; it is truncated" in str(error)
    assert isinstance(raised(lambda: _core.crc32c_file(tmp_path, 10)), IsADirectoryError)


def test_truncated_and_failing_files_are_errors_with_an_offset(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(bytes(4096 + 100))
    for row_bytes, rows_per_page in ((512, 8), (400, 10)):
        place = {"row_bytes": row_bytes, "rows_per_page": rows_per_page, "page_stride_bytes": 4096}
        num_rows = 2 * rows_per_page
        out = np.zeros(num_rows * row_bytes, U8)
        for num_threads in (1, 3):
            error = raised(
                lambda place=place, num_rows=num_rows, out=out, num_threads=num_threads: (  # type: ignore[misc]
                    _core.read_pages(
                        [short], [8192], out, num_rows=num_rows, num_threads=num_threads, **place
                    )
                )
            )
            assert (error.errno, error.filename) == (errno.EIO, str(short))
            assert "the file ends at byte 4196" in str(error)
    # The kernel itself answers EIO to a read of this process's address 0.
    error = raised(lambda: _core.read_pages(["/proc/self/mem"], [40], np.zeros(40, U8), **PLACE))
    assert (error.errno, error.filename) == (errno.EIO, "/proc/self/mem")
    assert "cannot read 40 bytes at offset 0" in str(error)


@pytest.mark.parametrize("row_bytes", [1, 7, 8, 100, 512, 513, 5000])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 10])
def test_crc32c_rows(row_bytes: int, num_rows: int) -> None:
    rng = np.random.default_rng(row_bytes)
    data = rng.integers(0, 256, (11, row_bytes), U8)
    rows = rng.integers(0, 11, num_rows).astype(np.int32)
    found = _core.crc32c_rows(data.reshape(-1), rows, row_bytes)
    assert found.dtype == np.uint32
    assert found.tolist() == [_core.crc32c_portable(data[row]) for row in rows]


def test_crc32c_ranges() -> None:
    """Empty ranges, ranges that overlap, and ranges that go on from other bytes."""
    data = np.random.default_rng(0).integers(0, 256, 10_000, U8)
    begins, ends = np.array([0, 7, 7, 5000, 10_000]), np.array([7, 7, 9000, 10_000, 10_000])
    crcs = np.arange(5, dtype=np.uint32)
    expected = [
        _core.crc32c_portable(data[i:j], crc)
        for i, j, crc in zip(begins, ends, crcs.tolist(), strict=True)
    ]
    _core.crc32c_ranges(data, begins, ends, crcs)
    assert crcs.tolist() == expected
    for low, high in ((-1, 3), (4, 3), (0, 10_001)):
        with pytest.raises(IndexError, match=f"range 1 is from byte {low} to {high} of 10000"):
            _core.crc32c_ranges(data, np.array([0, low]), np.array([9, high]), crcs[:2])
    with pytest.raises(ValueError, match="must have the same length"):
        _core.crc32c_ranges(data, begins, ends[1:], crcs)
    assert crcs.tolist() == expected


def test_crc32c_file(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"not-utf-8-\xff")
    for size, block_bytes in ((0, 7), (1, 7), (300_001, 7), (9 << 20, 1 << 20), (5 << 20, 1 << 40)):
        data = np.random.default_rng(size).integers(0, 256, size, dtype=U8)
        path.write_bytes(data.tobytes())
        expected = _core.crc32c_blocks(data, block_bytes)
        for num_threads in (1, 3):
            found = _core.crc32c_file(path, block_bytes, num_threads)
            assert np.array_equal(found, expected)
    with pytest.raises(ValueError, match="block_bytes must be at least 1"):
        _core.crc32c_file(path, 0)


def test_renames(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    a.write_text("a")
    b.write_text("b")
    error = raised(lambda: _core.rename_noreplace(a, b))
    assert isinstance(error, FileExistsError)
    assert (error.filename, error.filename2) == (str(a), str(b))
    assert (a.read_text(), b.read_text()) == ("a", "b")
    _core.rename_exchange(a, b)
    assert (a.read_text(), b.read_text()) == ("b", "a")
    _core.rename_noreplace(a, c)
    assert (a.exists(), c.read_text()) == (False, "b")
    assert isinstance(raised(lambda: _core.rename_exchange(a, c)), FileNotFoundError)
    assert c.read_text() == "b"


def test_objects_that_outlive_the_interpreter_are_not_reported() -> None:
    """A loader does that was passed to a spawned worker of another loader."""
    script = (
        "import ctypes\n"
        "from gnnstore import _core\n"
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(_core.ReadCounts()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
