"""Rows far into large tables: no offset or id passes through 32 bits or a float."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore import _core
from gnnstore.formats import AttributeSpec, PagedArray, PageGeometry, plan_shards
from tests.support.twins.reads import files_of


@pytest.fixture
def reader(engine: str) -> _core.Reader:
    return _core.Reader(engine, queue_depth=8, num_threads=2)


def sparse(
    directory: Path, row_bytes: int, num_rows: int, written: list[int], shard_bytes: int
) -> tuple[PagedArray, NDArray[np.uint8]]:
    """Make a table of zeros in which some rows are random; return it and these rows."""
    layout = plan_shards(PageGeometry(row_bytes, 4096), num_rows, shard_bytes)
    paths = tuple(directory / str(shard) for shard in range(layout.num_shards))
    rng = np.random.default_rng(row_bytes)
    rows = rng.integers(1, 256, (len(written), row_bytes), dtype=np.uint8)
    for shard, path in enumerate(paths):
        with path.open("wb") as file:
            try:
                file.truncate(layout.shard_file_bytes(shard))
            except OSError as error:
                if error.errno != errno.EFBIG:
                    raise
                pytest.skip(f"the file system of {directory} holds no file that large")
            begin = shard * layout.shard_runs * layout.geometry.page_stride_bytes
            for row, values in zip(written, rows, strict=True):
                offset = layout.geometry.offset(row) - begin
                if 0 <= offset < layout.shard_body_bytes(shard):
                    file.seek(offset)
                    file.write(values.tobytes())
    spec = AttributeSpec("x", "x", "paged", "uint8", (num_rows, row_bytes))
    return PagedArray(spec, layout, paths), rows


def gather(reader: _core.Reader, array: PagedArray, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
    out = np.full((len(ids), array.geometry.row_bytes), 7, np.uint8)
    reader.gather_rows(files_of(array), ids, out.reshape(-1), gap_bytes=4096, **array.kernel_layout)
    return out


# Rows of 512 bytes: ids beyond 2^24 - where float32 ends - and 2^31, offsets beyond 2^32 and
# 2^40. Rows of 4097: an id times its stride of 8192 passes 2^40.
@pytest.mark.parametrize(
    ("row_bytes", "row"),
    [
        (512, 2**24 + 1),
        (512, 2**32 // 512 + 3),
        (512, 2**31 + 1),
        (512, 2**40 // 512 + 5),
        (4097, 2**40 // 8192 + 5),
        (1, 2**32 + 12345),
    ],
)
def test_one_file(tmp_path: Path, reader: _core.Reader, row_bytes: int, row: int) -> None:
    array, rows = sparse(tmp_path, row_bytes, row + 100, [3, row, row + 99], 2**43)
    assert array.layout.num_shards == 1
    # What 32 bits, and the 24 of a float32, would make of the id is not what is written.
    ids = np.array([row + 99, 4, row, 3, row - 1, int(np.float32(row)) + 98])
    found = gather(reader, array, ids)
    np.testing.assert_array_equal(found[[0, 2, 3]], rows[[2, 1, 0]])
    others = ~np.isin(ids, [3, row, row + 99])
    assert others.sum() >= 2
    assert not found[others].any()


def test_ids_of_32_bits(tmp_path: Path, reader: _core.Reader) -> None:
    array, rows = sparse(tmp_path, 512, 2**31, [2**24 + 1, 2**31 - 1], 2**43)
    ids = np.array([2**31 - 1, 2**24, 2**24 + 1], np.int32)
    out = np.full((3, 512), 7, np.uint8)
    reader.gather_rows(files_of(array), ids, out.reshape(-1), **array.kernel_layout)
    np.testing.assert_array_equal(out[[0, 2]], rows[[1, 0]])
    assert not out[1].any()


def test_files_that_add_up(tmp_path: Path, reader: _core.Reader) -> None:
    """Each shard ends below 2^39, and the table beyond 2^40."""
    shard_rows = 2**38 // 512
    written = [shard_rows - 1, shard_rows, 3 * shard_rows + 7, 5 * shard_rows - 1]
    array, rows = sparse(tmp_path, 512, 5 * shard_rows, written, 2**38)
    assert array.layout.num_shards == 5
    np.testing.assert_array_equal(gather(reader, array, np.array(written[::-1])), rows[::-1])


def test_ranges(tmp_path: Path, reader: _core.Reader) -> None:
    path = tmp_path / "file"
    offset = 2**40 + 12345
    with path.open("wb") as file:
        file.truncate(offset + 8192)
        file.seek(offset)
        file.write(b"\x05" * 1000)
    files = _core.FileSet([path], [offset + 8192])
    out = np.full(1002, 7, np.uint8)
    one = np.zeros(1, np.int64)
    reader.read_ranges(files, one, one + offset - 1, one + 1002, one, out)
    assert out.tolist() == [0, *[5] * 1000, 0]


def test_an_id_beyond_the_rows_but_within_the_file(tmp_path: Path, reader: _core.Reader) -> None:
    array, _ = sparse(tmp_path, 512, 2**31 + 1, [], 2**43)
    with pytest.raises(IndexError, match=str(2**31 + 1)):
        gather(reader, array, np.array([2**31 + 1]))
