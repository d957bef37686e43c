"""Ids and positions as users give them, checked before they are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnstore import _core
from gnnstore.errors import InputError
from gnnstore.pipeline.seeds.base import Int64Array


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """Return a tensor, an array or a sequence as an array; the memory may be shared."""
    if isinstance(values, torch.Tensor):
        return values.detach().cpu().numpy()
    if isinstance(values, range):  # which NumPy would walk
        return np.arange(values.start, values.stop, values.step, dtype=np.int64)
    return np.asarray(values)


def checked_positions(index: Any, num_positions: int, where: str) -> Int64Array:
    """Return the index of a batch as positions [B].

    Parameters
    ----------
    where : str
        The option that positions are in.

    Raises
    ------
    InputError
        If it is not integers from 0 to num_positions - 1.
    """
    positions = np.atleast_1d(to_numpy(index))
    if positions.size == 0:
        positions = positions.astype(np.int64)
    if positions.ndim != 1 or positions.dtype.kind not in "iu":
        raise InputError(
            f"a batch's index must be positions in {where}, integers [B]; "
            f"got {positions.dtype} {list(positions.shape)}"
        )
    check_range(positions, num_positions, "position", where, "entries")
    return positions.astype(np.int64, copy=False)


def check_range(values: npt.NDArray[Any], bound: int, what: str, where: str, unit: str) -> None:
    """Raise an `InputError` that names the first value outside of 0 to bound - 1."""
    if values.size == 0 or (values.min() >= 0 and values.max() < bound):
        return
    place = int(np.flatnonzero((values < 0) | (values >= bound))[0])
    raise InputError(
        f"{what} {values[place]} at position {place} of {values.size} is outside {where}, "
        f"which has {bound} {unit} (0 to {bound - 1})"
    )


def crc_of_ids(ids: npt.NDArray[Any], crc: int = 0) -> int:
    """Return the crc32c of ids as int64 in little-endian order, after those before them."""
    contiguous = np.ascontiguousarray(ids, dtype="<i8")
    return _core.crc32c(contiguous.reshape(-1).view(np.uint8), crc)


def crc_of_positions(index: Any, crc: int = 0) -> int:
    """Return the crc32c of a batch's positions after those before it.

    Raises
    ------
    TypeError, ValueError
        If these are not integers.
    """
    positions = np.atleast_1d(to_numpy(index))
    if positions.dtype.kind not in "iu":
        raise TypeError(f"positions of type {positions.dtype}")
    return crc_of_ids(positions, crc_of_ids(np.array([positions.size]), crc))
