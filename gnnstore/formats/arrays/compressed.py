"""Small arrays that are read whole (labels, splits, maps), compressed."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import CorruptStoreError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.arrays.zarr_metadata import (
    MAX_ARRAY_METADATA_BYTES,
    MAX_COMPRESSED_CHUNK_BYTES,
    MAX_COMPRESSED_FILE_BYTES,
    METADATA_FILE,
    compressed_metadata,
    parse_compressed,
)
from gnnstore.formats.base.files import StoredFile, read_small, write_new
from gnnstore.formats.base.strict_json import parse_object

# zstd's level, its own default: the sizes of label arrays hardly change above it.
_ZSTD_LEVEL = 3
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER_BYTES = 6  # least bytes of a header


def write_compressed_files(
    directory: Path,
    spec: AttributeSpec,
    stored: npt.NDArray[Any],
    row_dimension: str | None = None,
) -> list[StoredFile]:
    """Write an array, zstd-compressed, in place of what its directory holds; durably.

    Return its files, in the order of their names. zarr-python would write the same bytes.
    """
    from numcodecs.zstd import compress  # noqa: PLC0415  (not needed to read metadata)

    for file in directory.iterdir():
        file.unlink()
    shape, chunk_shape = stored.shape, _chunk_shape(stored.shape, stored.itemsize)
    names = spec.dimension_names(row_dimension)
    document = compressed_metadata(spec.dtype, shape, chunk_shape, _ZSTD_LEVEL, names)
    files = [write_new(directory / METADATA_FILE, json.dumps(document, indent=2).encode())]
    for place, name in _places(shape, chunk_shape):
        part = stored[place]
        if part.shape != chunk_shape:  # the last chunk along an axis is as long as the others
            part, cut = np.zeros(chunk_shape, stored.dtype), part
            part[tuple(map(slice, cut.shape))] = cut
        files.append(write_new(directory / name, compress(part.tobytes(), _ZSTD_LEVEL)))
    return sorted(files, key=itemgetter(0))


def _chunk_shape(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """Halve the longest axis until a chunk has at most half the bytes that a reader accepts."""
    chunk = [max(1, extent) for extent in shape]
    while math.prod(chunk) * item_bytes > MAX_COMPRESSED_CHUNK_BYTES // 2:
        longest = chunk.index(max(chunk))
        chunk[longest] = -(-chunk[longest] // 2)
    return tuple(chunk)


def chunk_counts(shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> list[int]:
    """Return the number of chunks of a compressed array along each axis."""
    return [-(-extent // length) for extent, length in zip(shape, chunk_shape, strict=True)]


def chunk_files(counts: list[int]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the position and the file name of each chunk of a compressed array."""
    # product() makes lists of its ranges: a hostile array is empty along one axis, long along
    # another.
    for position in itertools.product(*map(range, counts)) if 0 not in counts else ():
        yield position, ".".join(["c", *map(str, position)])


def _places(
    shape: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> Iterator[tuple[tuple[slice, ...], str]]:
    """Yield the place in the array and the file name of each chunk."""
    for position, name in chunk_files(chunk_counts(shape, chunk_shape)):
        begins = [i * length for i, length in zip(position, chunk_shape, strict=True)]
        ends = map(min, shape, map(sum, zip(begins, chunk_shape, strict=True)))
        yield tuple(map(slice, begins, ends)), name


def read_chunks(
    directory: Path, spec: AttributeSpec
) -> Iterator[tuple[tuple[slice, ...], npt.NDArray[Any]]]:
    """Yield the chunks of a compressed array, each with its place: (slices, values).

    Memory is taken for one chunk and its file: a frame is decoded into as many bytes as a chunk of
    the array has.
    """
    path = str(directory / METADATA_FILE)
    document = parse_object(read_small(Path(path), MAX_ARRAY_METADATA_BYTES), path=path)
    dtype, shape, chunk_shape = parse_compressed(document, path)
    spec.check(dtype, shape, path)
    chunk = np.empty(chunk_shape, STORAGE_DTYPES[dtype])
    raw = chunk.reshape(-1).view(np.uint8)
    for place, name in _places(shape, chunk_shape):
        file = directory / name
        frame = read_small(file, MAX_COMPRESSED_FILE_BYTES)
        try:
            _decode(frame, raw)
        except (RuntimeError, ValueError) as error:
            raise CorruptStoreError(
                f"{file}: the array {spec.path!r} cannot be decoded ({error}); "
                "run 'gnnstore verify' on the store",
                path=file,
            ) from error
        # The last chunk along an axis is as long as the others: cut values beyond the array.
        yield place, chunk[tuple(slice(part.stop - part.start) for part in place)]


def _decode(frame: bytes, out: npt.NDArray[np.uint8]) -> None:
    """Decode a Zstandard frame into `out`, without other memory."""
    from numcodecs import zstd  # noqa: PLC0415  (not needed to read metadata, which must be quick)

    declared = _declared_bytes(frame)
    if declared not in (None, len(out)):
        raise ValueError(f"it holds {declared} bytes, a chunk of the array has {len(out)}")
    # A frame that does not declare its size, declares too little, or is followed by another cannot
    # write beyond `out`, and is refused unless it fills `out`.
    zstd.decompress(frame, out)


def _declared_bytes(frame: bytes) -> int | None:
    """Return the bytes that a frame declares to hold (RFC 8878, 3.1.1.1); None if it does not."""
    if frame[:4] != _ZSTD_MAGIC or len(frame) < _ZSTD_HEADER_BYTES:
        raise ValueError("it is not a frame of Zstandard")
    is_single_segment = frame[4] >> 5 & 1
    begin = 5 + (1 - is_single_segment) + (0, 1, 2, 4)[frame[4] & 3]
    length = (is_single_segment, 2, 4, 8)[frame[4] >> 6]
    if length == 0:
        return None
    size = int.from_bytes(frame[begin : begin + length], "little")
    return size + 256 if length == 2 else size
