"""Streams the arrays of a `.npz` archive; nothing is unpickled.

The largest public graphs come as one `.npz` of 80 GB, which `numpy.load` can only read
member by member into memory. Here a member is a stream behind a checked header: any range
of its elements is read in order, at the cost of decompressing the elements before it.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.inputs.npy import NpyHeader, read_npy_header
from gnnstore.converters.inputs.opening import describe_binary, existing_file, open_zip
from gnnstore.converters.inputs.source import ArraySource, Items, MemoryArray, StoredArray
from gnnstore.errors import InputError, storage_errors

# zipfile decodes others without a limit: 1 kB of bzip2 took 2 GB. NumPy writes these.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Read from a stream at a time: zipfile takes twice as much, from a heap that keeps it.
_READ_BYTES = 2**18
_IS_ENCRYPTED = 1  # of a member's flag bits


class NpzMember(StoredArray):
    """One array of a `.npz` archive."""

    _block_bytes = 2**26  # each block is another pass

    def __init__(self, label: str, path: Path, member: zipfile.ZipInfo, header: NpyHeader) -> None:
        super().__init__(label, header.shape, header.dtype, fortran_order=header.fortran_order)
        self.path = path
        self._member = member
        self._begin = header.header_bytes

    @contextmanager
    def _open(self) -> Iterator[Items]:
        with _member_stream(self.label, self.path, self._member) as stream:

            def items(first: int, count: int) -> npt.NDArray[Any]:
                # Read, not seek: zipfile gives up comparing checksums after a seek.
                place = self._begin + first * self.dtype.itemsize
                while (left := place - stream.tell()) > 0:
                    _exactly(stream, min(_READ_BYTES, left))
                piece = _core.empty((count,), self._stored_dtype)
                out = piece.view(np.uint8)
                for start in range(0, len(out), _READ_BYTES):
                    part = out[start : start + _READ_BYTES]
                    part[:] = np.frombuffer(_exactly(stream, len(part)), np.uint8)
                if first + count == math.prod(self.shape):
                    stream.read(1)  # reaching the end makes zipfile compare the checksum
                return piece.astype(self.dtype, copy=False)

            yield items


def _exactly(stream: IO[bytes], num_bytes: int) -> bytes:
    data = stream.read(num_bytes)
    if len(data) != num_bytes:
        raise EOFError(f"{num_bytes - len(data)} bytes are missing")
    return data


def open_npz(path: Path, leave_out: Collection[str] = ()) -> dict[str, ArraySource]:
    """Open every array of a `.npz` archive but some; only headers are read."""
    existing_file(path, "the archive")
    try:
        with storage_errors("read the archive", path), open_zip(path) as archive:
            members = archive.infolist()
    except zipfile.BadZipFile as error:
        found = describe_binary(path) or "zip"
        if "zip" in found:
            found = f"not a complete .npz archive ({error}); it is truncated or something else"
        raise InputError(f"{path}: {found}", path=path) from None
    sources: dict[str, ArraySource] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        label = f"{path}: {name}"
        is_odd = member.flag_bits & _IS_ENCRYPTED or member.compress_type not in _METHODS
        if is_odd or name == member.filename or name in sources:
            raise InputError(
                f"{label}: is not an array (.npy) as NumPy writes it, or is there twice; save the "
                "archive again with numpy.savez",
                path=path,
            )
        if name in leave_out:
            continue
        with _member_stream(label, path, member) as stream:
            header = read_npy_header(stream, label, path, member.file_size)
        sources[name] = (
            MemoryArray(label, np.empty(header.shape, header.dtype))
            if 0 in header.shape
            else NpzMember(label, path, member, header)
        )
    return sources


@contextmanager
def _member_stream(label: str, path: Path, member: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    """Open a member of an archive; errors in it are named."""
    try:
        with (
            storage_errors("read the archive", path),
            open_zip(path) as archive,
            archive.open(member) as stream,
        ):
            yield stream
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        reason = str(error) or "it ends early"  # where a member does, zipfile says nothing
        raise InputError(
            f"{label}: the archive is damaged ({reason}); download or copy it again", path=path
        ) from None
