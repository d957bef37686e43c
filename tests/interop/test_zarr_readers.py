"""Other Zarr readers and a plain memory map see the numbers that were written."""

from __future__ import annotations

import math
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore
import zarr
from zarr.codecs import ZstdCodec

from gnnstore.formats import AttributeSpec, StoreReader
from gnnstore.formats.arrays.compressed import write_compressed_files
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from tests.support.effort import choose
from tests.support.stores import ExampleStore, write_example_store

NUM_NODES = 400
# Rows that fill pages, rows with a tail, long rows, one value a row; one and several shards.
SHAPES: list[tuple[tuple[int, ...], str, int | None]] = [
    ((128,), "float32", None),
    ((25,), "float32", 2**16),
    ((1025,), "float32", 2**16),
    ((3, 5), "int8", None),
    ((7,), "bfloat16", None),
    ((9,), "bool", None),
    ((), "float64", None),
    *choose(
        [],
        [
            ((128,), "float32", 2**16),
            ((25,), "float32", None),
            ((2048,), "float32", 2**16),
        ],
    ),
]


@pytest.fixture(scope="module", params=SHAPES, ids=lambda p: f"{p[0]}-{p[1]}-{p[2]}")
def example(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ExampleStore:
    feature_shape, dtype, shard_bytes = request.param
    return write_example_store(
        tmp_path_factory.mktemp("zarr") / "a.gnn",
        num_nodes=NUM_NODES,
        feature_shape=feature_shape,
        feature_dtype=dtype,
        shard_bytes=shard_bytes,
    )


def read_with_zarr(example: ExampleStore, path: str) -> npt.NDArray[Any]:
    array = zarr.open_group(str(example.path), mode="r")[path]
    assert isinstance(array, zarr.Array)
    return np.asarray(array[...])


def read_with_tensorstore(example: ExampleStore, path: str) -> npt.NDArray[Any]:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{example.path}/{path}/"}}
    return np.asarray(tensorstore.open(spec, read=True).result().read().result())


@pytest.mark.parametrize("read", [read_with_zarr, read_with_tensorstore])
def test_every_array_is_read_by(read: Any, example: ExampleStore) -> None:
    for path, expected in example.arrays.items():
        found = read(example, path)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected, err_msg=path)


def test_zarr_slices(example: ExampleStore) -> None:
    array = zarr.open_array(str(example.path / "nodes/node/x"), mode="r")
    expected = example.arrays["nodes/node/x"]
    for rows in (slice(0, 1), slice(200, 377), slice(NUM_NODES - 1, NUM_NODES)):
        np.testing.assert_array_equal(array[rows], expected[rows])


def test_zarr_lists_the_hierarchy_without_a_warning(example: ExampleStore) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(str(example.path), mode="r")
        arrays = {
            name for name, member in group.members(max_depth=None) if isinstance(member, zarr.Array)
        }
    assert arrays == example.arrays.keys() | {"checksums"}


def test_memmap_over_a_shard_equals_it(example: ExampleStore) -> None:
    reader = StoreReader.open(example.path)
    array = reader.paged(reader.schema.node.attributes["x"])
    geometry, layout = array.geometry, array.layout
    expected = example.arrays["nodes/node/x"]
    for shard, path in enumerate(array.file_paths):
        body = np.memmap(path, dtype=np.uint8, mode="r", shape=(layout.shard_body_bytes(shard),))
        for row in range(layout.shard_num_rows(shard)):
            number = shard * layout.shard_rows + row
            start = geometry.offset(row)
            bytes_of_row = body[start : start + geometry.row_bytes].tobytes()
            assert bytes_of_row == expected[number].tobytes()
        if geometry.is_exact:
            rows = layout.shard_num_rows(shard)
            whole = np.memmap(path, dtype=array.dtype, mode="r", shape=(rows, *array.row_shape))
            start_row = shard * layout.shard_rows
            np.testing.assert_array_equal(whole, expected[start_row : start_row + rows])


# Of one chunk, none, and several of which the last is cut.
COMPRESSED = [
    *product([(), (0,), (3,), (2, 3), (0, 2)], choose(["bool", "float32"], list(STORAGE_DTYPES))),
    ((2_100_001,), "bfloat16"),
    ((2_100_001,), "int64"),
    ((3, 2_900_001), "int16"),
]


@pytest.mark.parametrize(("shape", "dtype"), COMPRESSED)
def test_compressed_arrays_are_those_of_zarr(
    tmp_path: Path, shape: tuple[int, ...], dtype: str
) -> None:
    """The same bytes in every file."""
    spec = AttributeSpec("a", "nodes/node/a", "cold", dtype, shape)
    values = (np.arange(int(np.prod(shape))) % 100).reshape(shape).astype(STORAGE_DTYPES[dtype])
    chunks = tuple(max(1, extent) for extent in shape)
    while math.prod(chunks) * values.itemsize > 2**23:
        longest = chunks.index(max(chunks))
        chunks = tuple(-(-n // 2) if axis == longest else n for axis, n in enumerate(chunks))
    (tmp_path / "own").mkdir()
    files = write_compressed_files(tmp_path / "own", spec, values, "node")
    array = zarr.create_array(
        store=str(tmp_path / "zarr"),
        shape=shape,
        chunks=chunks,
        dtype=values.dtype,
        compressors=ZstdCodec(level=3),
        chunk_key_encoding={"name": "default", "separator": "."},
        dimension_names=spec.dimension_names("node")[: len(shape)],
        attributes={"gnnstore": {"layout": "cold", "dtype": dtype}},
        config={"write_empty_chunks": True},
    )
    array[...] = values
    expected = sorted((tmp_path / "zarr").iterdir())
    assert [name for name, _, _ in files] == [file.name for file in expected]
    for (name, size, _), file in zip(files, expected, strict=True):
        data = (tmp_path / "own" / name).read_bytes()
        assert (len(data), data) == (size, file.read_bytes()), name


def test_an_array_of_zeros_has_all_its_chunks(tmp_path: Path) -> None:
    """Zarr leaves chunks of fill values out unless told otherwise; a store must not."""
    example = write_example_store(tmp_path / "a.gnn", num_nodes=1, num_edges=0)
    reader = StoreReader.open(example.path)
    listed = {entry.path for entry in reader.files}
    assert "nodes/node/y/c.0" in listed
    assert "splits/node/valid/c.0" in listed  # holds the single id 0
