"""The storage kernels refuse what is wrong by name, and never crash on it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore import _core
from tests.support.files import raised

U8 = np.uint8
IDS = np.zeros(2, np.int32)
PLACE = {"num_rows": 10, "row_bytes": 4, "rows_per_page": 1, "page_stride_bytes": 4}
# What the type checker would refuse too.
ANY_FLOATS: Any = np.zeros(3)
ANY_LIST: Any = [1, 2]
LEVELS = np.full((3, 4), 0.25)


def gather(table: Any = None, ids: Any = None, out: Any = None, **place: int) -> None:
    _core.gather_rows(
        np.zeros(40, U8) if table is None else table,
        np.array([1, 2]) if ids is None else ids,
        np.zeros(8, U8) if out is None else out,
        **{**PLACE, **place},
    )


def buckets_for(num_edges: int) -> _core.EdgeBuckets:
    buckets = _core.EdgeBuckets(5)
    buckets.plan(num_edges)
    return buckets


# --- arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: _core.crc32c(ANY_FLOATS), TypeError, "data must be uint8, got float64"),
        (lambda: _core.crc32c(np.zeros(3, bool)), TypeError, "data must be uint8, got bool"),
        (lambda: _core.crc32c(np.zeros((3, 2), U8)), ValueError, "data must have one dimension"),
        (lambda: _core.crc32c(np.zeros(9, U8)[::2]), ValueError, "data must be contiguous"),
        (lambda: _core.crc32c(np.zeros(9, U8)[::-1]), ValueError, "data must be contiguous"),
        (lambda: _core.crc32c(ANY_LIST), TypeError, "incompatible function arguments"),
        (lambda: _core.crc32c(np.zeros(3, U8), -1), TypeError, "incompatible function arguments"),
        (lambda: _core.crc32c_rows(np.zeros(3, U8), np.zeros(1, "i4"), 0), ValueError, "row_bytes"),
        (lambda: _core.crc32c_rows(np.zeros(7, U8), np.ones(1, "i4"), 4), IndexError, "id 1 "),
        (lambda: _core.crc32c_rows(np.zeros(7, U8), -np.ones(1, "i4"), 4), IndexError, "id -1 "),
        (lambda: _core.crc32c_rows(np.zeros(7, U8), ANY_FLOATS, 4), TypeError, "rows must be"),
        (lambda: _core.crc32c_blocks(np.zeros(3, U8), 0), ValueError, "block_bytes must be at"),
        (lambda: gather(num_threads=0), ValueError, "num_threads must be between 1 and 1024"),
        (lambda: gather(num_threads=1025), ValueError, "num_threads must be between 1 and 1024"),
        (lambda: gather(ids=np.zeros(2)), TypeError, "ids must be int32 or int64, got float64"),
        (lambda: gather(ids=np.zeros(2, np.uint64)), TypeError, "int32 or int64, got uint64"),
        (lambda: gather(table=np.zeros(39, U8)), ValueError, "holds 39 bytes, but its last row"),
        (lambda: gather(out=np.zeros(9, U8)), ValueError, "must hold 2 rows of 4 bytes = 8 bytes"),
        (lambda: gather(num_rows=-1), ValueError, "num_rows must not be negative"),
        (lambda: gather(row_bytes=0), ValueError, "row_bytes must be at least 1"),
        (lambda: gather(rows_per_page=0), ValueError, "rows_per_page must be at least 1"),
        (lambda: gather(page_stride_bytes=3), ValueError, "1 rows of 4 bytes need 4"),
        (lambda: gather(rows_per_page=2**62), ValueError, "a page is too large"),
        (lambda: gather(page_stride_bytes=2**62), ValueError, "the table is too large"),
        (lambda: gather(num_rows=2**62), ValueError, "the table is too large"),
        (lambda: gather(ids=np.array([1, 10])), IndexError, r"id 10 at position 1 is outside \[0"),
        (lambda: gather(ids=np.array([-1, 0])), IndexError, "row id -1 at position 0 is outside"),
        (lambda: gather(num_rows=0), IndexError, r"outside \[0, 0\)"),
        (
            lambda: gather(ids=np.array([3, -(2**31)], np.int32)),
            IndexError,
            "row id -2147483648 at position 1",
        ),
        (lambda: gather(ids=np.array([2**63 - 1, 0])), IndexError, "row id 9223372036854775807"),
        (
            lambda: _core.csc_from_coo(np.array([0, 5]), np.array([0, 0]), 5),
            IndexError,
            r"the source of edge 1 is 5, outside \[0, 5\)",
        ),
        (
            lambda: _core.csc_from_coo(np.array([0, 1]), np.array([0, -1]), 5, 4),
            IndexError,
            r"the target of edge 1 is -1, outside \[0, 5\)",
        ),
        (
            lambda: _core.csc_from_coo(np.array([0]), np.array([0]), 0),
            IndexError,
            r"the source of edge 0 is 0, outside \[0, 0\)",
        ),
        (
            lambda: _core.csc_from_coo(np.array([0, 1]), np.array([0]), 5),
            ValueError,
            "src and dst must have the same length, got 2 and 1",
        ),
        (
            lambda: _core.csc_from_coo(np.array([0], np.int32), np.array([0]), 5),
            TypeError,
            "dst must be of the dtype of src, got int64",
        ),
        (
            lambda: _core.csc_from_coo(np.array([0]), np.array([0]), -1),
            ValueError,
            "num_nodes and num_src_nodes must not be negative",
        ),
        (
            lambda: _core.csc_from_coo(np.array([0]), np.array([0]), 2**63 - 1),
            ValueError,
            "the length of indptr is too large",
        ),
        (lambda: _core.EdgeBuckets(2**27 + 1), ValueError, r"num_nodes must be in \[0, 2\^27\]"),
        (lambda: _core.EdgeBuckets(5, 0), ValueError, "num_threads must be between"),
        (lambda: _core.EdgeBuckets(5).plan(-1), ValueError, r"num_edges must be in \[0, 2\^31\)"),
        (lambda: _core.EdgeBuckets(5).add(IDS, IDS, 0), ValueError, "when the buckets are planned"),
        (
            lambda: _core.EdgeBuckets(5).add(IDS, IDS[:1], 0),
            ValueError,
            "the same length, got 2 and",
        ),
        (lambda: _core.EdgeBuckets(5).sample(IDS + 5), IndexError, r"outside \[0, 5\)"),
        (lambda: _core.EdgeBuckets(5).sample(IDS - 1), IndexError, r"outside \[0, 5\)"),
        (lambda: _core.EdgeBuckets(5).sort(0), IndexError, "there is no piece 0"),
        (lambda: buckets_for(1).add(IDS, IDS, 0), ValueError, "more edges than the buckets were"),
        (lambda: buckets_for(2).add(IDS, IDS, 1), ValueError, "more edges than the buckets were"),
        (lambda: buckets_for(2).add(IDS, IDS, -1), ValueError, "more edges than the buckets were"),
        (lambda: buckets_for(2).add(IDS, IDS + 5, 0), IndexError, r"outside \[0, 5\)"),
        (lambda: buckets_for(2).add(IDS - 1, IDS, 0), IndexError, r"outside \[0, 5\)"),
        (lambda: buckets_for(2).give(ANY_FLOATS), TypeError, "ids must be int32, got float64"),
        (lambda: _core.EdgeBuckets(5).give(IDS), ValueError, "when the buckets are planned"),
        (lambda: buckets_for(2).finish(), ValueError, "fewer edges than the buckets were"),
        (lambda: buckets_for(2).plan(2), ValueError, "the buckets are planned already"),
        (lambda: buckets_for(2).sample(IDS), ValueError, "the buckets are planned already"),
        (lambda: _core.rmat_edges(-1, 1, 3, LEVELS, 0), ValueError, "first_edge must not be"),
        (lambda: _core.rmat_edges(0, -1, 3, LEVELS, 0), ValueError, "num_edges must not be"),
        (lambda: _core.rmat_edges(2**63 - 1, 1, 3, LEVELS, 0), ValueError, "is too large"),
        (lambda: _core.rmat_edges(0, 1, 4, LEVELS, 0), ValueError, r"\[scale, 4\] = \[4, 4\]"),
        (lambda: _core.rmat_edges(0, 1, -1, LEVELS, 0), ValueError, r"\[scale, 4\]"),
        (lambda: _core.rmat_edges(0, 1, 3, LEVELS.astype("f4"), 0), TypeError, "must be float64"),
        (lambda: _core.rmat_edges(0, 1, 3, LEVELS / 2, 0), ValueError, r"\[0\] must add up to 1"),
        (lambda: _core.rmat_edges(0, 1, 3, LEVELS * np.nan, 0), ValueError, r"in \[0, 1\], got"),
        (lambda: _core.rmat_edges(0, 1, 3, LEVELS, -1), TypeError, "incompatible function"),
        (
            lambda: _core.rmat_edges(0, 1, 63, np.full((63, 4), 0.25), 0),
            ValueError,
            "scale must be between 0 and 62, got 63",
        ),
        (
            lambda: _core.permute_ids(np.array([0, 8]), 3, 0),
            IndexError,
            r"id 8 at position 1 is outside \[0, 8\)",
        ),
        (lambda: _core.permute_ids(np.array([-1]), 3, 0), IndexError, "id -1 at position 0"),
        (lambda: _core.permute_ids(np.array([1], np.int32), 3, 0), TypeError, "must be int64"),
        (lambda: _core.permute_ids(np.array([1]), 63, 0), ValueError, "scale must be between"),
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


def test_output_must_not_overlap_what_says_where_it_comes_from() -> None:
    memory = np.zeros(64, dtype=U8)
    with pytest.raises(ValueError, match="out overlaps the ids"):
        gather(ids=memory[:16].view(np.int64), out=memory[8:16])
    with pytest.raises(ValueError, match="out overlaps the slots"):
        _core.copy_from_slots(np.ones((2, 4), U8), memory[:8].view(np.int32), memory[4:12])


ZERO_DIMENSIONS = np.array(0)
NO_INTS = np.zeros(0, np.int32)


@pytest.mark.parametrize(
    "call",
    [
        lambda: _core.sort_misses(
            np.zeros(1, np.int64), -np.ones(1, np.int32), ZERO_DIMENSIONS, NO_INTS, num_rows=1
        ),
        lambda: _core.add_pinned(
            ZERO_DIMENSIONS.astype(np.uint64), NO_INTS, NO_INTS, NO_INTS, NO_INTS, first_slot=0
        ),
        lambda: _core.initial_rows(
            ZERO_DIMENSIONS,
            np.zeros(1, np.float32),
            dim=1,
            distribution="normal",
            scale=1.0,
            seed=0,
        ),
        lambda: _core.sample_neighbors(
            np.array([0, 0]),
            np.zeros(0, np.int64),
            np.array([0]),
            [1],
            seed=0,
            epoch=0,
            batch=0,
            excluded=(ZERO_DIMENSIONS,) * 3,
        ),
    ],
)
def test_an_array_without_dimensions_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="one dimension"):
        call()


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
@pytest.mark.parametrize(("num_nodes", "num_threads"), [(2**20, 1), (2**20, 3), (2**27 + 8, 3)])
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


@pytest.mark.parametrize("sources", [300, 5000, 2**24])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_buckets_of_targets_that_crowd_together(sources: int, num_threads: int) -> None:
    """Long columns, a bucket that is too large to be sorted at once, and targets far apart.

    Sources differ in few bits, in more than one digit has, and in more than two have.
    """
    num_nodes = 2**24
    rng = np.random.default_rng(num_nodes)
    dst = rng.integers(num_nodes // 2, num_nodes // 2 + 30, 400_000, np.int32)
    dst[::2] = num_nodes // 2 + 7
    dst[::50] = num_nodes - 1 - rng.integers(0, 4000, len(dst[::50])) ** 2
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
    dst = rng.integers(0, 2000, 200_000, np.int32)
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


@pytest.mark.parametrize("sorted_by", ["source", "target", "both"])
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


def test_map_files_closes_its_descriptors(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(4096))
    before = len(list(Path("/proc/self/fd").iterdir()))
    mapped = _core.map_files([tmp_path / "a"] * 50, [4096] * 50, "random")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(mapped) == 50 * 4096
    lines = Path("/proc/self/maps").read_text().count(str(tmp_path / "a"))
    del mapped
    assert lines > 0
    assert str(tmp_path / "a") not in Path("/proc/self/maps").read_text()


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
    started = time.monotonic()
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
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("paths", "body_bytes", "place", "message"),
    [
        (1, [], {}, "paths and body_bytes must have the same length, got 1 and 0"),
        (1, [-1], {}, r"body_bytes\[0\] must not be negative"),
        (1, [39], {}, "the bodies add up to 39 bytes, but the last row ends at byte 40"),
        (2, [6, 40], {}, "add up to 6 bytes, not to whole pages of 4"),
        (2, [2**62, 2**62], {}, "the sum of body_bytes is too large"),
        (1, [40], {"num_rows": 9}, "out must hold 9 rows of 4 bytes = 36 bytes, got 40"),
    ],
)
def test_read_pages_refuses_what_does_not_fit(
    tmp_path: Path, paths: int, body_bytes: list[int], place: dict[str, int], message: str
) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    with pytest.raises(ValueError, match=message):
        _core.read_pages(
            [tmp_path / "a"] * paths, body_bytes, np.zeros(40, U8), **{**PLACE, **place}
        )


@pytest.mark.parametrize(
    ("body_bytes", "message"),
    [
        ([1], "paths and body_bytes must have the same length, got 2 and 1"),
        ([1, -1], r"body_bytes\[1\] must not be negative"),
        ([10, 10], "add up to 10 bytes, not a multiple of the system's page"),
        ([2**62, 2**62], "the sum of body_bytes is too large"),
    ],
)
def test_map_files_refuses_what_does_not_fit(
    tmp_path: Path, body_bytes: list[int], message: str
) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    with pytest.raises(ValueError, match=message):
        _core.map_files([tmp_path / "a"] * 2, body_bytes)


def test_wrong_advice_and_lone_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="advice must be 'normal', 'random' or 'sequential'"):
        _core.map_files([], [], "often")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a list of paths, got a single one"):
        _core.map_files("abc", [1, 2, 3])
    with pytest.raises(ValueError, match="null"):
        _core.map_files(["a\0b"], [1])


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
