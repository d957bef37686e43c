"""Zarr v3 metadata of the arrays that gnnstore lays out itself, and the shard index.

A *paged* array is a Zarr array with the `sharding_indexed` codec whose shard bodies are
the raw pages, so a Zarr reader and a memory map see the same numbers. Groups carry no
attributes but the root, whose attributes are the manifest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES, zarr_data_type
from gnnstore.formats.arrays.pages import (
    MAX_PAGE_BYTES,
    MIN_PAGE_BYTES,
    PageGeometry,
    ShardLayout,
)
from gnnstore.formats.base.strict_json import Fields

METADATA_FILE = "zarr.json"
MAX_ARRAY_METADATA_BYTES = 2**20
_MISSING_CHUNK = 2**64 - 1
MAX_DIMENSIONS = 32  # most axes of an array, as in NumPy before version 2

_LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}
# "c.3.0" rather than "c/3/0": one flat directory of shards.
_KEYS = {"name": "default", "configuration": {"separator": "."}}


def group_metadata(attributes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the `zarr.json` document of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes or {}}


def paged_metadata(
    dtype: str,
    row_shape: tuple[int, ...],
    layout: ShardLayout,
    dimension_names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the `zarr.json` document of a paged array."""
    geometry = layout.geometry
    sharding = {
        "chunk_shape": [layout.chunk_rows, *row_shape],
        "codecs": [_LITTLE_ENDIAN],
        "index_codecs": [_LITTLE_ENDIAN, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [layout.num_rows, *row_shape],
        "data_type": zarr_data_type(dtype),
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [layout.shard_rows, *row_shape]},
        },
        "chunk_key_encoding": _KEYS,
        "fill_value": False if dtype == "bool" else 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {
            "gnnstore": {
                "layout": "paged",
                "dtype": dtype,
                "row_bytes": geometry.row_bytes,
                "page_bytes": geometry.page_bytes,
                "rows_per_page": geometry.rows_per_page,
                "pages_per_row": geometry.pages_per_row,
                "shard_rows": layout.shard_rows,
                "chunk_rows": layout.chunk_rows,
            }
        },
        **({} if dimension_names is None else {"dimension_names": list(dimension_names)}),
    }


def shard_name(shard: int, row_ndim: int) -> str:
    """File name of a shard: 'c.' and the shard's number, then a 0 for each row dimension."""
    return ".".join(["c", str(shard), *["0"] * row_ndim])


def shard_index(layout: ShardLayout, shard: int) -> npt.NDArray[np.uint8]:
    """Return the bytes that follow a shard's body: offset and size of each inner chunk, crc32c."""
    geometry = layout.geometry
    entries = np.full((layout.chunks_per_shard, 2), _MISSING_CHUNK, dtype="<u8")
    present = layout.shard_num_chunks(shard)
    chunk_stride = layout.chunk_runs * geometry.page_stride_bytes
    entries[:present, 0] = np.arange(present, dtype=np.uint64) * np.uint64(chunk_stride)
    entries[:present, 1] = layout.chunk_rows * geometry.row_bytes
    body = entries.reshape(-1).view(np.uint8)
    crc = np.array([_core.crc32c(body)], dtype="<u4").view(np.uint8)
    return np.concatenate([body, crc])


def parse_paged(document: dict[str, Any], path: str) -> tuple[str, tuple[int, ...], ShardLayout]:
    """Check a paged array's `zarr.json` and return (dtype, row shape, shard layout).

    The document must be, value for value, what `paged_metadata` writes for its own shape, type and
    page size: a reader that trusts the arithmetic cannot be led astray.
    """
    top = Fields(document, path)
    shape = top.integers("shape", 0)
    own = top.fields("attributes").fields("gnnstore")
    own.choice("layout", ("paged",))
    dtype = own.choice("dtype", tuple(STORAGE_DTYPES))
    if not 1 <= len(shape) <= MAX_DIMENSIONS or 0 in shape[1:]:
        raise top.fail("shape", f"1 to {MAX_DIMENSIONS} dimensions, rows not empty")
    row_bytes = STORAGE_DTYPES[dtype].itemsize
    for extent in shape[1:]:
        row_bytes *= extent  # Python integers: no overflow
    page_bytes = own.integer("page_bytes", MIN_PAGE_BYTES, MAX_PAGE_BYTES)
    if page_bytes & (page_bytes - 1):
        raise own.fail("page_bytes", "a power of two")
    geometry = PageGeometry(row_bytes, page_bytes)
    shard_rows, chunk_rows = own.integer("shard_rows", 1), own.integer("chunk_rows", 1)
    rows_per_page = geometry.rows_per_page
    if chunk_rows % rows_per_page or shard_rows % chunk_rows:
        raise own.fail("chunk_rows", f"a divisor of shard_rows and multiple of {rows_per_page}")
    if not geometry.is_exact and chunk_rows != rows_per_page:
        raise own.fail("chunk_rows", f"{rows_per_page}, since rows do not fill their pages")
    layout = ShardLayout(
        geometry, shape[0], shard_rows // rows_per_page, chunk_rows // rows_per_page
    )
    expected = paged_metadata(dtype, shape[1:], layout)
    for key, value in expected.items():
        if document.get(key) != value:
            raise top.fail(key, json.dumps(value)[:300])
    return dtype, shape[1:], layout


def compressed_metadata(
    dtype: str,
    shape: tuple[int, ...],
    chunk_shape: tuple[int, ...],
    level: int,
    dimension_names: Sequence[str],
) -> dict[str, Any]:
    """Return the `zarr.json` document of a compressed array, with keys in zarr-python's order."""
    storage = STORAGE_DTYPES[dtype]
    return {
        "shape": list(shape),
        "data_type": zarr_data_type(dtype),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": _KEYS,
        "fill_value": storage.type(0).item(),
        "codecs": [
            _LITTLE_ENDIAN if storage.itemsize > 1 else {"name": "bytes"},
            {"name": "zstd", "configuration": {"level": level, "checksum": False}},
        ],
        "attributes": {"gnnstore": {"layout": "cold", "dtype": dtype}},
        **({"dimension_names": list(dimension_names)} if shape else {}),
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def parse_compressed(
    document: dict[str, Any], path: str
) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Check a compressed array's `zarr.json` and return (dtype, shape, chunk shape)."""
    top = Fields(document, path)
    shape = top.integers("shape", 0)
    own = top.fields("attributes").fields("gnnstore")
    own.choice("layout", ("cold",))
    dtype = own.choice("dtype", tuple(STORAGE_DTYPES))
    if top.text("data_type") != zarr_data_type(dtype):
        raise top.fail("data_type", repr(zarr_data_type(dtype)))
    # Any other codec could make a chunk larger than allowed, or make it of fewer bytes.
    codecs = [dict(Fields(item, path, "codecs").document) for item in top.array("codecs")]
    little = {} if STORAGE_DTYPES[dtype].itemsize == 1 else {"configuration": {"endian": "little"}}
    if (
        [codec.get("name") for codec in codecs] != ["bytes", "zstd"]
        or codecs[0] not in ({"name": "bytes", **little}, _LITTLE_ENDIAN)
        or top.document.get("storage_transformers")
    ):
        raise top.fail("codecs", "little-endian bytes and zstd, and no storage_transformers")
    if top.document.get("chunk_key_encoding") != _KEYS:
        raise top.fail("chunk_key_encoding", repr(_KEYS))
    grid = top.fields("chunk_grid").fields("configuration")
    chunk_shape = grid.integers("chunk_shape", 1)
    item_bytes = STORAGE_DTYPES[dtype].itemsize
    # As NumPy counts: a length of 0 does not make the others any smaller.
    if len(shape) > MAX_DIMENSIONS or math.prod(n or 1 for n in shape) * item_bytes >= 2**62:
        raise top.fail("shape", f"at most {MAX_DIMENSIONS} dimensions and 2^62 bytes")
    chunk_bytes = math.prod(chunk_shape) * item_bytes
    if len(chunk_shape) != len(shape) or chunk_bytes > MAX_COMPRESSED_CHUNK_BYTES:
        raise CorruptStoreError(
            f"{path}: malformed metadata: chunk_shape {list(chunk_shape)} for shape {list(shape)}: "
            f"expected as many dimensions and at most {MAX_COMPRESSED_CHUNK_BYTES} bytes a chunk",
            path=path,
        )
    return dtype, shape, chunk_shape


# Most bytes of a decompressed chunk, which may claim to be anything: together with "every chunk is
# listed in the manifest" this bounds what decompressing a hostile array can allocate.
MAX_COMPRESSED_CHUNK_BYTES = 2**24
# The most bytes of a chunk that Zstandard cannot compress.
MAX_COMPRESSED_FILE_BYTES = MAX_COMPRESSED_CHUNK_BYTES + MAX_COMPRESSED_CHUNK_BYTES // 256
