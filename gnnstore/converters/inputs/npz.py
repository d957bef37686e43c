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
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.inputs.npy import NpyHeader, read_npy_header
from gnnstore.converters.inputs.opening import describe_binary, existing_file, open_zip
from gnnstore.converters.inputs.source import ArraySource, Items, MemoryArray, StoredArray
from gnnstore.errors import InputError, storage_errors
from gnnstore.units import format_size

# Deflate makes 258 bytes of two bits at best: more than 1032 times its input is no archive
# that any program wrote, and bzip2's and LZMA's much higher ratios only occur in bombs.
MAX_EXPANSION = 1032
# zipfile decodes the others without a limit: 1 kB of bzip2 took 2 GB. NumPy writes these.
_BOUNDED_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Read from a stream at a time: zipfile takes twice as much, from a heap that keeps it.
_READ_BYTES = 2**18
_IS_ENCRYPTED = 1  # of a member's flag bits
_SLACK_BYTES = 2**16  # tiny members may expand by any factor, as a header of zeros does
_LOCAL_HEADER_BYTES = 30  # at the least, before each member's data


class NpzMember(StoredArray):
    """One array of a `.npz` archive, as an `ArraySource`."""

    _block_bytes = 2**26  # each block is another pass

    def __init__(self, path: Path, member: zipfile.ZipInfo, header: NpyHeader) -> None:
        label = f"{path}: {member.filename.removesuffix('.npy')}"
        super().__init__(label, header.shape, header.dtype, fortran_order=header.fortran_order)
        self.path = path
        self._member = member

    @contextmanager
    def _open(self) -> Iterator[Items]:
        with (
            _errors_named(self.label, self.path),
            open_zip(self.path) as archive,
            archive.open(self._member) as stream,
        ):
            begin = read_npy_header(stream, self.label, self.path).header_bytes
            yield partial(self._items, stream, begin)

    def _items(self, stream: IO[bytes], begin: int, first: int, count: int) -> npt.NDArray[Any]:
        # Read, not seek: zipfile gives up comparing checksums after a seek.
        place = begin + first * self.dtype.itemsize
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


def _open_member(path: Path, member: zipfile.ZipInfo) -> ArraySource:
    label = f"{path}: {member.filename.removesuffix('.npy')}"
    with (
        _errors_named(label, path),
        open_zip(path) as archive,
        archive.open(member) as stream,
    ):
        header = read_npy_header(stream, label, path)
    problem = f"the archive holds {member.file_size}; the file is damaged"
    header.check_size(member.file_size, label, path, problem)
    if 0 in header.shape:
        return MemoryArray(label, np.empty(header.shape, header.dtype))
    return NpzMember(path, member, header)


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
            directory_begin = archive.start_dir
    except zipfile.BadZipFile as error:
        found = describe_binary(path) or "zip"
        if "zip" not in found:
            raise InputError(f"{path}: {found}; expected an archive (.npz)", path=path) from None
        raise InputError(
            f"{path}: not a complete .npz archive ({error}); it is truncated or something else",
            path=path,
        ) from None
    _check_declared_sizes(path, members, directory_begin)
    sources: dict[str, ArraySource] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise InputError(
                f"{path}: the member {name!r} is not an array (.npy); remove it from the archive",
                path=path,
            )
        if name in leave_out:
            continue
        if name in sources:
            raise InputError(f"{path}: two members are called {name!r}", path=path)
        sources[name] = _open_member(path, member)
    return sources


def _check_declared_sizes(path: Path, members: list[zipfile.ZipInfo], end: int) -> None:
    """Refuse an archive that declares more data than its bytes can hold."""
    for member in sorted(members, key=lambda found: found.header_offset, reverse=True):
        label = f"{path}: {member.filename.removesuffix('.npy')}"
        if member.header_offset + _LOCAL_HEADER_BYTES + member.compress_size > end:
            raise InputError(
                f"{label}: its {member.compress_size} bytes reach into the next part of the "
                "archive: it is damaged, or made to expand without end",
                path=path,
            )
        end = member.header_offset
        if member.flag_bits & _IS_ENCRYPTED:
            raise InputError(
                f"{label}: is encrypted; decrypt the archive, or save its arrays again with "
                "numpy.savez",
                path=path,
            )
        if member.compress_type not in _BOUNDED_METHODS:
            raise InputError(
                f"{label}: is compressed by method {member.compress_type} of zip archives, which "
                "NumPy does not write; save it again with numpy.savez",
                path=path,
            )
        if member.file_size > member.compress_size * MAX_EXPANSION + _SLACK_BYTES:
            raise InputError(
                f"{label}: says that {format_size(member.compress_size)} expand to "
                f"{format_size(member.file_size)}, more than {MAX_EXPANSION} times as much; "
                "save it again with numpy.savez if it is not an attack",
                path=path,
            )


@contextmanager
def _errors_named(label: str, path: Path) -> Iterator[None]:
    try:
        with storage_errors("read the archive", path):
            yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        reason = str(error) or "it ends early"  # where a member does, zipfile says nothing
        raise InputError(
            f"{label}: the archive is damaged ({reason}); download or copy it again", path=path
        ) from None
