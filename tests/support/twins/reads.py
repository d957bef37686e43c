"""Reference of the read planner in plain Python, and tables to try it on.

The planning twin defines what the compiled readers must ask the disk for; a test that holds
`reads` and `bytes_read` of a gather against it notices any read too many.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore import _core
from gnnstore.formats import AttributeSpec, PagedArray, PagedArrayWriter
from gnnstore.formats.arrays.dtypes import dtype_name
from gnnstore.formats.arrays.pages import ShardLayout


def plan_reads(
    ids: NDArray[Any],
    layout: ShardLayout,
    alignment_bytes: int,
    gap_bytes: int,
    max_read_bytes: int,
) -> list[tuple[int, int]]:
    """Return the reads that fetch some rows, in the order of the table.

    A row covers its bytes, rounded outwards to the alignment within its shard. Neighbours in
    one shard become one extent when at most `gap_bytes` lie between them. An extent is cut
    into pieces of `max_read_bytes` from its beginning; pieces that no row covers are left out.

    Offsets and lengths are multiples of the alignment; offsets are in the body, of all shards, one
    behind the other.
    """
    geometry = layout.geometry
    shard_bytes = layout.shard_runs * geometry.page_stride_bytes
    extents: list[tuple[int, list[tuple[int, int]]]] = []
    for row in np.unique(ids).tolist():
        shard, begin = divmod(geometry.offset(row), shard_bytes)
        cover = (
            begin // alignment_bytes * alignment_bytes,
            -(-(begin + geometry.row_bytes) // alignment_bytes) * alignment_bytes,
        )
        if extents and extents[-1][0] == shard and cover[0] - extents[-1][1][-1][1] <= gap_bytes:
            extents[-1][1].append(cover)
        else:
            extents.append((shard, [cover]))
    reads = []
    for shard, covers in extents:
        for begin in range(covers[0][0], covers[-1][1], max_read_bytes):
            end = min(begin + max_read_bytes, covers[-1][1])
            if any(first < end and last > begin for first, last in covers):
                reads.append((shard * shard_bytes + begin, end - begin))
    return reads


def write_array(
    directory: Path,
    rows: NDArray[Any],
    *,
    page_bytes: int = 4096,
    shard_bytes: int | None = None,
    dtype: str | None = None,
) -> PagedArray:
    """Write rows [N, ...] as a paged array, without a store around it.

    Small pages and shards make several of small arrays; `dtype` is the element type's name in a
    store where it is not NumPy's ("bfloat16" of uint16).
    """
    spec = AttributeSpec("x", "x", "paged", dtype or dtype_name(rows.dtype), rows.shape)
    directory.mkdir(parents=True)
    with PagedArrayWriter(directory, spec, page_bytes, shard_bytes) as writer:
        writer.append(rows)
    names = [name for name, _, _ in writer.files if name != "zarr.json"]
    return PagedArray(spec, writer.layout, tuple(directory / name for name in names))


def files_of(array: PagedArray, *, direct: bool = True) -> _core.FileSet:
    """Open the shards of an array for a `_core.Reader`."""
    return _core.FileSet(array.file_paths, array.body_bytes, direct=direct)


def why_unavailable(engine: str, directory: Path) -> str:
    """Return why an engine cannot read files of a directory; "" if it can."""
    path = directory / "probe"
    path.write_bytes(bytes(4096))
    try:
        _core.probe_engine(engine, path)
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    finally:
        path.unlink()
    return ""


def available(engine: str, directory: Path) -> str:
    """Return the engine, or skip the test if it cannot read files of the directory."""
    if reason := why_unavailable(engine, directory):
        pytest.skip(f"{engine}: {reason}")
    return engine


def some_rows(num_rows: int, row_bytes: int) -> NDArray[np.uint8]:
    """Return random rows, the same for the same sizes."""
    rng = np.random.default_rng(num_rows * row_bytes)
    return rng.integers(0, 256, (num_rows, row_bytes), dtype=np.uint8)
