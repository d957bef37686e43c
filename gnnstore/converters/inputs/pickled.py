"""Arrays out of what `torch.save` wrote, without unpickling it, read in pieces.

OGB publishes splits as `torch.save` of a dict of NumPy arrays (or of a dict of such dicts), up to
gigabytes. That is a pickle in a zip archive, or a few pickles in a row before torch 1.6. Tensors
lie in members of their own.
"""

from __future__ import annotations

import codecs
import math
import pickle
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.npz import BOUNDED_METHODS
from gnnstore.converters.inputs.opening import existing_file, open_input, open_zip
from gnnstore.converters.inputs.pickle_machine import (
    NotArraysError,
    NumpyArray,
    Place,
    StridedTensor,
    follow_pickle,
    skip,
)
from gnnstore.converters.inputs.source import ArraySource, MemoryArray, SequentialArray
from gnnstore.errors import InputError, storage_error

_MAX_ARRAYS = 64
_PIECE_BYTES = 2**20
# Columns of an array in Fortran order are read side by side, each from a stream of its own.
_MAX_COLUMNS = 16
# The first of the four pickles that torch wrote before it wrote archives.
_OLD_TORCH = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
_NUM_PICKLES_BEFORE = 3
_STORAGES = {
    "BoolStorage": "?",
    "ByteStorage": "u1",
    "CharStorage": "i1",
    "ShortStorage": "i2",
    "IntStorage": "i4",
    "LongStorage": "i8",
    "HalfStorage": "f2",
    "FloatStorage": "f4",
    "DoubleStorage": "f8",
}

Arrays = Mapping[str, "ArraySource | Mapping[str, ArraySource]"]


def open_pickled(path: Path, what: str) -> Arrays:
    """Open the arrays of a (nested) dict that `torch.save` wrote; numbers stay on disk."""
    existing_file(path, what)
    try:
        return _Pickled(path).arrays()
    except OSError as error:
        raise storage_error(error, f"read {what}", path) from error
    except (MemoryError, InputError):
        raise
    except NotArraysError as error:
        found = str(error)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        found = f"a damaged archive ({error})"
    except Exception as error:  # on odd bytes pickletools, unpacking and NumPy raise anything
        found = f"a malformed pickle ({error})"
    raise InputError(
        f"{path}: expected a dict of arrays as torch.save writes it, found {found}. "
        "Nothing else in a pickle is read; if you trust the file, save its arrays beside it with "
        f"numpy.savez as {path.with_suffix('.npz').name} and remove it",
        path=path,
    )


@contextmanager
def _open(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    """Open a member of an archive; None: the file itself."""
    if member is None:
        with open_input(path) as file:
            yield file
    else:
        with open_zip(path) as archive, archive.open(member) as stream:
            yield stream


class _Pickled:
    """A file of `torch.save`, and which of its members is what."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._member: str | None = None
        self._sizes: dict[str, int] = {}
        self._is_big_endian = False

    def arrays(self) -> Arrays:
        with open_input(self.path) as file:
            is_old = file.read(len(_OLD_TORCH)) == _OLD_TORCH
        if not is_old:
            self._look_at_members()
        with _open(self.path, self._member) as stream:
            end = 0
            for _ in range(_NUM_PICKLES_BEFORE if is_old else 0):
                _, end = follow_pickle(stream, end)
            found, _ = follow_pickle(stream, end)
            stream.read(1)  # reaching the end makes zipfile compare the checksum
        if not isinstance(found, dict) or len(found) > _MAX_ARRAYS:
            raise NotArraysError(f"a {type(found).__name__} of something else")
        if not all(isinstance(name, str) for name in found):
            raise NotArraysError("a dict whose keys are no names")
        return {name: self._value(name, value) for name, value in found.items()}

    def _look_at_members(self) -> None:
        with open_zip(self.path) as archive:
            members = archive.infolist()
            pickles = [m.filename for m in members if m.filename.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise NotArraysError(f"{len(pickles)} members data.pkl")
            if any(m.compress_type not in BOUNDED_METHODS for m in members):
                raise NotArraysError("a member compressed as torch.save never does")
            self._member = pickles[0]
            self._sizes = {m.filename: m.file_size for m in members}
            order = self._beside("byteorder")
            self._is_big_endian = order in self._sizes and archive.open(order).read(3) == b"big"

    def _beside(self, name: str) -> str:
        return f"{(self._member or '').removesuffix('data.pkl')}{name}"

    def _value(self, name: str, value: Any, depth: int = 0) -> Any:
        if isinstance(value, NumpyArray):
            return self._numpy_array(name, value)
        if isinstance(value, StridedTensor):
            return self._tensor(name, value)
        if isinstance(value, dict) and len(value) <= _MAX_ARRAYS and not depth:
            return {str(n): self._value(f"{name}: {n}", v, depth + 1) for n, v in value.items()}
        raise NotArraysError(f"a dict of something else ({name} is a {type(value).__name__})")

    def _numpy_array(self, name: str, array: NumpyArray) -> ArraySource:
        _, shape, code, fortran_order, data = array.state
        dtype = np.dtype(code.code).newbyteorder(code.byte_order)
        num_bytes = dtype.itemsize * math.prod(shape)
        is_text = isinstance(data, Place) and data.is_text
        found = data.num_bytes if isinstance(data, Place) else len(data)
        # Half of the characters of a text take two bytes.
        if dtype.kind not in "iubf" or not num_bytes <= found <= num_bytes * (1 + is_text):
            raise NotArraysError(f"an array of {dtype} of {found} bytes")
        if isinstance(data, bytes):
            flat = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran_order else "C")
            return MemoryArray(f"{self.path}: {name}", flat)
        return PickledArray(
            self.path,
            self._member,
            data,
            label=f"{self.path}: {name}",
            shape=tuple(shape),
            dtype=dtype,
            fortran_order=bool(fortran_order),
        )

    def _tensor(self, name: str, tensor: StridedTensor) -> ArraySource:
        kind, shape = _STORAGES.get(tensor.storage.kind), tensor.shape
        if kind is None:
            raise NotArraysError(f"a tensor in a {tensor.storage.kind}")
        if self._member is None:
            raise NotArraysError("a tensor as torch wrote it before 1.6; load and save it again")
        in_c = tensor.strides == tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
        in_fortran = tensor.strides == tuple(math.prod(shape[:i]) for i in range(len(shape)))
        if not (in_c or in_fortran or 0 in shape):
            raise NotArraysError(f"a tensor of strides {list(tensor.strides)}; save a clone")
        dtype = np.dtype(kind).newbyteorder(">" if self._is_big_endian else "<")
        size = dtype.itemsize
        place = Place(size * tensor.first_item, size * math.prod(shape), is_text=False)
        member = self._beside(f"data/{tensor.storage.key}")
        if min(place.first_byte, *shape, 0) < 0 or (
            place.first_byte + place.num_bytes > self._sizes[member]
        ):
            raise NotArraysError(f"a tensor beyond the {self._sizes[member]} bytes of its storage")
        return PickledArray(
            self.path,
            member,
            place,
            label=f"{self.path}: {name}",
            shape=tuple(shape),
            dtype=dtype,
            fortran_order=in_fortran and not in_c,
        )


class PickledArray(SequentialArray):
    """An array whose numbers lie in a pickle or beside it, as an `ArraySource`."""

    def __init__(
        self,
        path: Path,
        member: str | None,
        place: Place,
        *,
        label: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        fortran_order: bool,
    ) -> None:
        self.path = path
        self.label = label
        self.shape = shape
        self.dtype = dtype.newbyteorder("=")
        self._stored_dtype = dtype
        self._member = member
        self._place = place
        self._fortran_order = fortran_order and len(shape) > 1
        if self._fortran_order and (len(shape) > 2 or shape[1] > _MAX_COLUMNS):
            raise InputError(
                f"{label}: is an array of shape {list(shape)} in Fortran order, which takes a pass "
                "over the file for each column; save it in C order (numpy.ascontiguousarray)",
                path=path,
            )

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the array along its first axis from row `start` on, at most `step` at a time."""
        if 0 in self.shape:
            return
        num_rows, row_items = self.shape[0], math.prod(self.shape[1:])
        step = min(step, max(1, _PIECE_BYTES // (self.dtype.itemsize * row_items)))
        if self._fortran_order:
            first_items = [column * num_rows for column in range(row_items)]
            columns = [self._items(i + start, i + num_rows, step) for i in first_items]
            for pieces in zip(*columns, strict=True):
                yield np.stack(pieces, axis=1)
            return
        for piece in self._items(start * row_items, num_rows * row_items, step * row_items):
            yield piece.reshape(-1, *self.shape[1:])

    def _items(self, first: int, stop: int, step: int) -> Iterator[npt.NDArray[Any]]:
        """Yield elements first, ..., stop - 1 as they lie in the file, `step` at a time."""
        size = self.dtype.itemsize
        passed, missing = first * size, (stop - first) * size
        held = bytearray()
        try:
            for data in self._bytes():
                held += data[passed:]
                passed = max(0, passed - len(data))
                while missing and len(held) >= min(step * size, missing):
                    taken = bytes(held[: min(step * size, missing)])
                    del held[: len(taken)]
                    missing -= len(taken)
                    yield np.frombuffer(taken, self._stored_dtype).astype(self.dtype, copy=False)
                if not missing and stop < math.prod(self.shape):
                    return
        except OSError as error:
            raise storage_error(error, "read the array", self.path) from error
        except (zipfile.BadZipFile, zlib.error, EOFError, UnicodeError) as error:
            raise InputError(
                f"{self.label}: the file is damaged ({error}); download or copy it again",
                path=self.path,
            ) from None
        if missing or held:
            raise InputError(
                f"{self.label}: has not the bytes of an array of shape {list(self.shape)}; "
                "download or copy it again",
                path=self.path,
            )

    def _bytes(self) -> Iterator[bytes]:
        """Yield the bytes of the array, some at a time."""
        decode = codecs.getincrementaldecoder("utf-8")().decode
        rest = self._place.num_bytes
        with _open(self.path, self._member) as stream:
            skip(stream, self._place.first_byte)
            while rest:
                data = stream.read(min(rest, _PIECE_BYTES))
                if not data:
                    raise EOFError(f"{rest} bytes are missing")
                rest -= len(data)
                yield decode(data, not rest).encode("latin1") if self._place.is_text else data
