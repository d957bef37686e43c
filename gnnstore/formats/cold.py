"""Cold arrays: small ones that are read whole (labels, splits, maps), compressed by Zarr."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.journal import StoredFile
from gnnstore.formats.manifest import BLOCK_BYTES
from gnnstore.formats.regular_files import check_tree, open_binary
from gnnstore.formats.schema import AttributeSpec
from gnnstore.formats.zarr_metadata import MAX_COLD_CHUNK_BYTES

# Level 3 is zstd's own default: the sizes of label arrays hardly change above it.
_ZSTD_LEVEL = 3


def write_cold(directory: Path, spec: AttributeSpec, array: npt.NDArray[Any]) -> None:
    """Write an array, zstd-compressed, with zarr-python.

    Parameters
    ----------
    directory : Path
        The array's directory; Zarr creates its files in it.
    spec : AttributeSpec
        Its `dtype` is recorded beside Zarr's own (bfloat16 is kept as uint16).
    array : ndarray
        Any shape, in the storage type of `spec.dtype`.
    """
    import zarr  # noqa: PLC0415  (not needed to read metadata, which must be quick)
    from zarr.codecs import ZstdCodec  # noqa: PLC0415

    target = zarr.create_array(
        store=str(directory),
        shape=array.shape,
        chunks=_chunk_shape(array.shape, array.itemsize),
        dtype=array.dtype,
        compressors=ZstdCodec(level=_ZSTD_LEVEL),
        chunk_key_encoding={"name": "default", "separator": "."},
        attributes={"gnnstore": {"layout": "cold", "dtype": spec.dtype}},
        # A chunk of zeros is written like any other: what is not there is lost, not zero.
        config={"write_empty_chunks": True},
        overwrite=False,
    )
    target[...] = array


def crc_of_array(spec: AttributeSpec, stored: npt.NDArray[Any]) -> int:
    """Return a checksum of the values, type and shape of an array."""
    described = repr((spec.dtype, spec.shape)).encode()
    head = _core.crc32c(np.frombuffer(described, np.uint8))
    return _core.crc32c(stored.reshape(-1).view(np.uint8), head)


def write_cold_files(
    directory: Path, spec: AttributeSpec, stored: npt.NDArray[Any]
) -> list[StoredFile]:
    """Write an array as `write_cold` does, durably, and return its files."""
    write_cold(directory, spec, stored)
    files = []
    for file in sorted(directory.iterdir()):
        with open_binary(file, error=CorruptStoreError, root=directory) as handle:
            os.fsync(handle.fileno())
        files.append((file.name, file.stat().st_size, _core.crc32c_file(str(file), BLOCK_BYTES)))
    return files


def _chunk_shape(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """Halve the longest axis until a chunk has at most half of what a reader accepts."""
    chunk = [max(1, extent) for extent in shape]
    while math.prod(chunk) * item_bytes > MAX_COLD_CHUNK_BYTES // 2:
        longest = chunk.index(max(chunk))
        chunk[longest] = -(-chunk[longest] // 2)
    return tuple(chunk)


def chunk_file_names(shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> Iterator[str]:
    """Yield the file names of all chunks of a cold array."""
    counts = [-(-extent // length) for extent, length in zip(shape, chunk_shape, strict=True)]
    for position in itertools.product(*map(range, counts)):
        yield ".".join(["c", *map(str, position)])


def read_cold(directory: Path, spec: AttributeSpec) -> npt.NDArray[Any]:
    """Read a cold array whole, into a new array in its storage type.

    Raises
    ------
    CorruptStoreError
        If Zarr cannot decode it, or its directory holds links, FIFOs, devices or sockets.
    """
    import zarr  # noqa: PLC0415

    check_tree(directory)  # Zarr opens what lies there as it is
    try:
        array = zarr.open_array(store=str(directory), mode="r", zarr_format=3)
        values = np.asarray(array[...])
    except Exception as error:  # Zarr's codecs raise anything, from RuntimeError to KeyError
        raise CorruptStoreError(
            f"{directory}: the array {spec.path!r} cannot be decoded ({error}); "
            "run 'gnnstore verify' on the store",
            path=directory,
        ) from error
    return values
