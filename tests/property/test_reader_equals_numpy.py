"""Rows read around the page cache are NumPy's rows, bit for bit, and no read is wasted."""

from __future__ import annotations

import tempfile
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gnnstore import _core
from gnnstore.disk.engines import open_engine
from gnnstore.features.file_rows import FileRows
from gnnstore.formats import PageGeometry, plan_shards
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from tests.support.effort import examples, paired
from tests.support.twins.reads import (
    files_of,
    plan_reads,
    some_rows,
    write_array,
)

# The widths at which published systems compute the wrong page.
ROW_BYTES = (1, 2, 100, 400, 511, 512, 513, 1200, 4095, 4096, 4097, 12288)
# Queue depth, threads, largest read: one at a time; rows cut across reads; as in production.
OPTIONS = ((1, 1, 4096), (3, 2, 8192), (128, 4, 65536), (7, 3, 1 << 20))
GAPS = (0, 511, 5000, 1 << 20)


@cache
def reader(engine: str, options: tuple[int, int, int]) -> _core.Reader:
    depth, num_threads, max_read_bytes = options
    return _core.Reader(
        engine, queue_depth=depth, num_threads=num_threads, max_read_bytes=max_read_bytes
    )


@pytest.mark.parametrize(("row_bytes", "page_bytes"), paired(ROW_BYTES, [512, 4096, 65536]))
def test_every_width(tmp_path: Path, engine: str, row_bytes: int, page_bytes: int) -> None:
    # Three shards at least, the last with one run only; shards have 64 KiB or more.
    geometry = PageGeometry(row_bytes, page_bytes)
    layout = plan_shards(geometry, 10**9, 1)
    num_rows = 2 * layout.shard_rows + geometry.rows_per_page // 2 + 1
    rows = some_rows(num_rows, row_bytes)
    array = write_array(tmp_path / "x", rows, page_bytes=page_bytes, shard_bytes=1)
    assert array.layout.num_shards == 3
    files = files_of(array)
    rng = np.random.default_rng(page_bytes)
    unsorted = rng.integers(0, num_rows, 150)
    unsorted[-2:] = num_rows - 1
    wanted: list[NDArray[Any]] = [
        np.empty(0, np.int64),
        np.array([num_rows - 1], np.int32),
        unsorted,
        np.repeat(unsorted[:20], 3).astype(np.int32),
        np.arange(num_rows),
    ]
    for options, gap_bytes in zip(OPTIONS, GAPS, strict=True):
        for ids in wanted:
            out = np.full((len(ids), row_bytes), 7, np.uint8)
            counts = reader(engine, options).gather_rows(
                files, ids, out.reshape(-1), gap_bytes=gap_bytes, **array.kernel_layout
            )
            np.testing.assert_array_equal(out, rows[ids])
            assert counts.rows_read == len(np.unique(ids))


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Draw row_bytes, page_bytes, num_rows, and shard_bytes."""
    row_bytes = draw(st.sampled_from(ROW_BYTES) | st.integers(1, 20_000))
    page_bytes = draw(st.sampled_from([512, 1024, 4096, 16384, 65536]))
    # A few rows; enough for several shards; never more than 4 MB.
    most = max(2, 4_000_000 // PageGeometry(row_bytes, page_bytes).page_stride_bytes)
    num_rows = draw(st.integers(1, 30) | st.integers(1, min(most, 2000)))
    return row_bytes, page_bytes, num_rows, draw(st.sampled_from([1, 2**17, 2**30]))


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_rows_and_reads(engine: str, data: st.DataObject) -> None:
    """What arrives is right, and what was read for it is what the twin plans."""
    row_bytes, page_bytes, num_rows, shard_bytes = data.draw(tables())
    options = data.draw(st.sampled_from(OPTIONS))
    gap_bytes = data.draw(st.sampled_from(GAPS) | st.integers(0, 20_000))
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    # Ids close together are merged, ids far apart are not.
    span = data.draw(st.integers(1, num_rows))
    count = data.draw(st.integers(0, 10) | st.integers(0, 3000))
    seed = data.draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    ids = (rng.integers(0, span, count) + rng.integers(0, num_rows - span + 1)).astype(dtype)
    rows = some_rows(num_rows, row_bytes)
    num_slots = data.draw(st.none() | st.integers(0, 50))
    cached = rng.integers(0, 256, (num_slots or 0, row_bytes), dtype=np.uint8)
    slots = rng.integers(-1 - (num_slots or 0), num_slots or 0, count).clip(-1).astype(np.int32)
    given_cache: dict[str, Any] = {"cache": cached, "slots": slots}

    with tempfile.TemporaryDirectory() as directory:
        array = write_array(
            Path(directory) / "x", rows, page_bytes=page_bytes, shard_bytes=shard_bytes
        )
        files = files_of(array, direct=data.draw(st.booleans()))
        # The neighbours of the output must stay as they are.
        buffer = np.full((count + 2, row_bytes), 7, np.uint8)
        counts = reader(engine, options).gather_rows(
            files,
            ids,
            buffer[1:-1].reshape(-1),
            gap_bytes=gap_bytes,
            **array.kernel_layout,
            **({} if num_slots is None else given_cache),
        )
    missing = ids if num_slots is None else ids[slots < 0]
    expected = rows[ids]
    if num_slots is not None:
        expected[slots >= 0] = cached[slots[slots >= 0]]
    np.testing.assert_array_equal(buffer[1:-1], expected)
    assert np.all(buffer[[0, -1]] == 7)

    planned = plan_reads(missing, array.layout, files.alignment_bytes, gap_bytes, options[2])
    num_distinct = len(np.unique(missing))
    assert counts.reads == len(planned)
    assert counts.bytes_read == sum(length for _, length in planned)
    assert counts.rows_read == num_distinct
    assert counts.bytes_useful == num_distinct * row_bytes
    assert counts.rows_cached == len(ids) - len(missing)
    assert counts.depth_sum <= counts.waits * options[0]


def test_reads_of_a_known_batch() -> None:
    """The twin's rule, on rows whose reads can be told by hand: 8 rows a page, 64 a read."""
    layout = plan_shards(PageGeometry(512, 4096), 1000, 2**16)
    assert layout.shard_rows == 128

    def reads(rows: list[int], alignment: int, gap: int, limit: int = 65536) -> list[Any]:
        return plan_reads(np.array(rows), layout, alignment, gap, limit)

    assert reads([], 512, 0) == []
    assert reads([9, 3, 3], 512, 0) == [(3 * 512, 512), (9 * 512, 512)]
    assert reads([9, 3, 3], 512, 5 * 512) == [(3 * 512, 7 * 512)]
    assert reads([9, 3], 4096, 0) == [(0, 8192)]  # adjacent pages
    assert reads([17, 3], 4096, 4095) == [(0, 4096), (8192, 4096)]
    assert reads([127, 128], 512, 4096) == [(65024, 512), (65536, 512)]  # two files
    assert reads([0, 40], 512, 2**20, 4096) == [(0, 4096), (40 * 512, 512)]  # not the gap


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_ranges(engine: str, data: st.DataObject) -> None:
    """Any bytes of the files go anywhere: straight where all is aligned, else by a copy."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sizes = data.draw(st.lists(st.integers(1, 300_000), min_size=1, max_size=3))
    contents = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    count = data.draw(st.integers(0, 30))
    unit = data.draw(st.sampled_from([1, 512, 4096]))
    index = rng.integers(0, len(sizes), count)
    offsets = np.array([rng.integers(0, sizes[i]) // unit * unit for i in index], np.int64)
    num_bytes = np.array(
        [rng.integers(0, sizes[i] - at + 1) for i, at in zip(index, offsets, strict=True)],
        np.int64,
    )
    if count and data.draw(st.booleans()):
        num_bytes = num_bytes // unit * unit
    room = -(-num_bytes // unit) * unit
    out_offsets = np.cumsum(room) - room
    out = _core.pool_empty(int(room.sum()) + 1)
    out[:] = 7
    expected = out.copy()
    for i, at, size, to in zip(index, offsets, num_bytes, out_offsets, strict=True):
        expected[to : to + size] = contents[i][at : at + size]
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / str(i) for i in range(len(sizes))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content.tobytes())
        files = _core.FileSet(paths, sizes)
        options = data.draw(st.sampled_from(OPTIONS))
        counts = reader(engine, options).read_ranges(
            files, index, offsets, num_bytes, out_offsets, out
        )
    np.testing.assert_array_equal(out, expected)
    assert counts.bytes_useful == num_bytes.sum()


@pytest.mark.parametrize("name", sorted(STORAGE_DTYPES))
@pytest.mark.parametrize("shape", [(), (7,), (3, 5)])
def test_every_dtype(tmp_path: Path, engine: str, name: str, shape: tuple[int, ...]) -> None:
    storage = STORAGE_DTYPES[name]
    rng = np.random.default_rng(len(shape))
    raw = rng.integers(0, 256, (3000, *shape, storage.itemsize), dtype=np.uint8)
    values = (raw[..., 0] & 1).astype(bool) if name == "bool" else raw.view(storage)[..., 0]
    array = write_array(tmp_path / "x", values, dtype=name, shard_bytes=1)
    rows = FileRows.open(array, open_engine(array.file_paths[0], engine))
    assert (rows.num_rows, rows.resident_bytes) == (3000, 0)
    ids = rng.integers(0, 3000, 500)
    found, counts = rows.gather(ids)
    assert (found.dtype, found.shape) == (storage, (500, *shape))
    assert found.tobytes() == values[ids].tobytes()  # NaN included
    assert counts.rows_read == len(np.unique(ids))
    assert counts.bytes_useful == counts.rows_read * rows.row_bytes
    empty, counts = rows.gather(ids[:0])
    assert (empty.shape, counts.reads) == ((0, *shape), 0)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("bad", [-1, 300, 2**31 - 1])
def test_an_id_outside_the_table_writes_nothing(
    tmp_path: Path, engine: str, dtype: type, bad: int
) -> None:
    array = write_array(tmp_path / "x", some_rows(300, 100))
    out = np.full(300, 7, np.uint8)
    with pytest.raises(IndexError, match=rf"{bad}.*position 2"):
        reader(engine, OPTIONS[2]).gather_rows(
            files_of(array), np.array([0, 299, bad], dtype), out, gap_bytes=0, **array.kernel_layout
        )
    assert np.all(out == 7)


def test_a_slot_outside_the_cache_writes_nothing(tmp_path: Path, engine: str) -> None:
    array = write_array(tmp_path / "x", some_rows(300, 100))
    out = np.full(200, 7, np.uint8)
    with pytest.raises(IndexError, match=r"slot 5 at position 1.*5 rows"):
        reader(engine, OPTIONS[2]).gather_rows(
            files_of(array),
            np.array([0, 1]),
            out,
            gap_bytes=0,
            cache=np.zeros((5, 100), np.uint8),
            slots=np.array([-1, 5], np.int32),
            **array.kernel_layout,
        )
    assert np.all(out == 7)


ROW = np.zeros((1, 100), np.uint8)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"ids": np.zeros(2, np.float64)}, TypeError),
        ({"ids": np.zeros((2, 1), np.int64)}, ValueError),
        ({"out": np.zeros(199, np.uint8)}, ValueError),
        ({"row_bytes": 0}, ValueError),
        ({"gap_bytes": -1}, ValueError),
        ({"num_rows": 10**6}, ValueError),
        ({"cache": ROW}, ValueError),
        ({"cache": ROW, "slots": np.zeros(1, np.int32)}, ValueError),
        ({"cache": ROW, "slots": np.zeros(2, np.int64)}, TypeError),
        ({"cache": ROW[:, :99], "slots": np.zeros(2, np.int32)}, ValueError),
        ({"cache": ROW.reshape(-1), "slots": np.zeros(2, np.int32)}, ValueError),
    ],
)
def test_wrong_arguments(tmp_path: Path, wrong: dict[str, Any], error: type[Exception]) -> None:
    array = write_array(tmp_path / "x", some_rows(300, 100))
    ids, out = np.array([0, 299]), np.full(200, 7, np.uint8)
    arguments = {"ids": ids, "out": out, "gap_bytes": 0, **array.kernel_layout, **wrong}
    with pytest.raises(error):
        reader("pread", OPTIONS[0]).gather_rows(files_of(array), **arguments)
    assert np.all(out == 7)


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue_depth": 0},
        {"queue_depth": 4097},
        {"num_threads": 0},
        {"max_read_bytes": 1000},
        {"max_read_bytes": 0},
        {"max_read_bytes": 2**40},
    ],
)
def test_wrong_options(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        _core.Reader("pread", **wrong)


def test_an_unknown_engine() -> None:
    with pytest.raises(ValueError, match="libaio"):
        _core.Reader("libaio")


def test_many_options_are_combined(tmp_path: Path, engine: str) -> None:
    """A queue deeper, and one shallower, than there are reads."""
    rows = some_rows(900, 513)
    array = write_array(tmp_path / "x", rows, shard_bytes=1)
    ids = np.random.default_rng(0).permutation(900)
    for options, gap_bytes in product([(1, 1, 4096), (2, 64, 4096), (1000, 2, 4096)], GAPS):
        out = np.empty((900, 513), np.uint8)
        counts = reader(engine, options).gather_rows(
            files_of(array), ids, out.reshape(-1), gap_bytes=gap_bytes, **array.kernel_layout
        )
        np.testing.assert_array_equal(out, rows[ids])
        assert counts.waits >= 1
