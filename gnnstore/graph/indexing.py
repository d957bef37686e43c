"""NumPy's indexing of arrays that lie on disk by rows.

A key is split into the rows that must be read, and a key into those rows: NumPy applies it, so that
all else is by its rules. Keys are checked before anything is read.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.errors import BadIndexError

_ACCEPTED = (
    "expected integers, slices, Ellipsis, None, and at most one array of integers or booleans"
)
_ALL = (slice(None), slice(None, None, 1))


@dataclass(frozen=True, eq=False)
class Selection:
    """The part of an array that a key stands for."""

    # range (of step 1) or ndarray of int64 [k]: the rows to read, none of them negative.
    rows: range | npt.NDArray[np.int64]
    within: tuple[Any, ...]  # numPy's key into an array of these rows

    @property
    def is_whole(self) -> bool:
        """Whether all of each row is wanted, in their order."""
        return all(
            part is None or (isinstance(part, slice) and part in _ALL) for part in self.within
        )

    @property
    def is_by_row(self) -> bool:
        """Whether pieces of the rows give pieces of the result along its first axis."""
        rest = self.within[1:]
        is_mixed = any(isinstance(part, np.ndarray) for part in rest) and any(
            isinstance(part, int) for part in rest
        )
        return isinstance(self.within[0], slice) and not is_mixed

    @property
    def is_reversed(self) -> bool:
        """Whether the last of the rows comes first."""
        return isinstance(self.within[0], slice) and self.within[0].step == -1

    def take(self, rows: npt.NDArray[Any]) -> Any:
        """Return the selected values: an array of their own, or a scalar."""
        taken = rows[self.within]
        # A view of a part would keep the memory of all rows; and torch takes no negative strides,
        # not even of an axis of length 1.
        is_all = taken.size == rows.size and taken.flags.c_contiguous
        is_forward = all(stride >= 0 for stride in taken.strides)
        return taken if np.isscalar(taken) or (is_all and is_forward) else taken.copy()


def select(key: Any, shape: tuple[int, ...], name: str) -> Selection:
    """Return the rows of an array that a key needs, and its part of these rows."""
    entries = [_entry(part, name) for part in (key if isinstance(key, tuple) else (key,))]
    num_axes = sum(map(_num_axes, entries))
    if num_axes > len(shape):
        raise BadIndexError(f"{name}: {num_axes} indices for the {len(shape)} axes {list(shape)}")
    if sum(isinstance(entry, np.ndarray) for entry in entries) > 1:
        raise BadIndexError(
            f"{name}: two arrays of indices, whose meaning differs between libraries; choose rows "
            "first, then index the result"
        )
    num_ellipses = sum(entry is Ellipsis for entry in entries)
    if num_ellipses > 1:
        raise BadIndexError(f"{name}: an index has one Ellipsis at most, found {num_ellipses}")
    if num_axes < len(shape) and not num_ellipses:
        entries.append(Ellipsis)

    rows: range | npt.NDArray[np.int64] = range(shape[0])
    axis = 0
    for place, entry in enumerate(entries):
        checked = entry if entry is None or entry is Ellipsis else _check(entry, shape, axis, name)
        if axis == 0 and _num_axes(entry):
            rows, entries[place] = _rows(checked, shape[0], is_first=place == 0)
        else:
            entries[place] = checked
        axis += len(shape) - num_axes if entry is Ellipsis else _num_axes(entry)
    within = []
    for entry in entries:
        # One that stands for no axis makes an array of what would be a scalar, and stays.
        is_axes = entry is Ellipsis and num_axes < len(shape)
        within += [slice(None)] * (len(shape) - num_axes) if is_axes else [entry]
    return Selection(rows, tuple(within))


def _entry(part: Any, name: str) -> Any:
    """Return a part of a key as an integer, a slice, Ellipsis, None or an array."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if isinstance(part, torch.Tensor):
        part = part.cpu().numpy()
    try:
        array = np.asarray(part)
    except ValueError:  # a list of lists of different lengths
        array = np.empty(0, object)
    if array.ndim == 0 and array.dtype != bool:
        try:
            return operator.index(part)
        except TypeError:
            pass
    elif array.ndim and array.dtype.kind in "iub":
        return array
    elif array.ndim and array.size == 0 and array.dtype == np.float64:
        return array.astype(np.int64)  # an empty list
    found = f"{type(part).__name__} {array.dtype} {list(array.shape)}"
    raise BadIndexError(f"{name}: {_ACCEPTED}; found {found}")


def _num_axes(entry: Any) -> int:
    """Return the number of the array's axes that an index takes up."""
    if isinstance(entry, np.ndarray) and entry.dtype == bool:
        return entry.ndim
    return 0 if entry is None or entry is Ellipsis else 1


def _check(entry: Any, shape: tuple[int, ...], axis: int, name: str) -> Any:
    """Return an index, checked to be in range; integers become non-negative."""
    length = shape[axis]
    unit, of_axis = ("row id", "") if axis == 0 else ("index", f" of axis {axis}")
    outside = f"is outside [{-length}, {length})"
    if isinstance(entry, slice):
        entry.indices(length)  # raises what NumPy does
        return entry
    if isinstance(entry, int):
        if not -length <= entry < length:
            raise BadIndexError(f"{name}: {unit} {entry}{of_axis} {outside}")
        return entry % length
    if entry.dtype == bool:
        if entry.shape != shape[axis : axis + entry.ndim]:
            there_are = f"{length} rows" if axis == 0 else f"{length} on axis {axis}"
            if entry.ndim > 1:
                there_are = f"{list(shape[axis : axis + entry.ndim])} values"
            raise BadIndexError(
                f"{name}: the mask has shape {list(entry.shape)}, but there are {there_are}"
            )
        return entry
    if entry.size and (int(entry.min()) < -length or int(entry.max()) >= length):
        flat = entry.reshape(-1)
        place = int(np.argmax((flat < -length) | (flat >= length)))
        raise BadIndexError(f"{name}: {unit} {flat[place]}{of_axis} at position {place} {outside}")
    ids = entry.astype(np.int64)
    ids[ids < 0] += length
    return ids


def _rows(
    entry: Any, num_rows: int, *, is_first: bool
) -> tuple[range | npt.NDArray[np.int64], Any]:
    """Return the rows that the index of the first axis needs, and the index into them."""
    if isinstance(entry, int):
        return range(entry, entry + 1), 0
    if isinstance(entry, slice):
        wanted = range(num_rows)[entry]
        if len(wanted) > 1 and abs(wanted.step) > 1:
            return np.arange(wanted.start, wanted.stop, wanted.step, dtype=np.int64), slice(None)
        ascending = wanted if wanted.step > 0 else wanted[::-1]
        first = ascending.start if ascending else 0
        return range(first, first + len(wanted)), slice(None, None, 1 if wanted.step > 0 else -1)
    if entry.dtype == bool:
        rows = entry.any(axis=tuple(range(1, entry.ndim))).nonzero()[0]
        entry = entry[rows]
        is_plain = entry.ndim == 1
    else:
        rows = entry.reshape(-1)
        entry = np.arange(len(rows)).reshape(entry.shape)
        is_plain = entry.ndim == 1
    # Behind a None, NumPy may put the axis of an array in another place than that of a slice.
    return rows, slice(None) if is_plain and is_first else entry
