"""Rows in the memory of an accelerator: a tier above those in main memory (DiskGNN, section 4).

A building block, for programs that assemble features on a GPU: loaders do not use it. DiskGNN
has four levels, and rows of a higher one are left out of what the lower ones read: some nodes'
rows on the device, some in main memory, some in a cache on disk, and the others packed for each
batch. The upper one is here; the level below is a function that returns the other rows only, such
as a `RowSource`, or a planned cache in front of packed rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.errors import UsageError
from gnnstore.features.source import RowSource
from gnnstore.features.static import WARM_UP_BYTES, SlotIndex

# Rows are moved as whole words of any element type: half of the types that a store knows cannot
# be indexed on a device, and wide words are copied faster.
_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


@dataclass(frozen=True, eq=False)
class Split:
    """The rows of a batch that a tier has, and the others."""

    positions: npt.NDArray[np.int64]  # int64 [h]: positions in the batch of the rows in the tier
    slots: npt.NDArray[np.int64]  # int64 [h]: their slots
    others: npt.NDArray[np.int64]  # int64 [n - h]: positions of the rows that come from below


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """The rows of some nodes, as a tensor on a device. Immutable, so safe to use from threads."""

    slots: SlotIndex  # the nodes' slots; in main memory
    words: torch.Tensor
    row_shape: tuple[int, ...]
    dtype: torch.dtype  # of a row's elements

    @classmethod
    def from_nodes(
        cls,
        source: RowSource,
        nodes: npt.NDArray[np.int64],
        device: torch.device | str,
        *,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Read the rows of some nodes and move them to a device, some megabytes at a time."""
        try:
            slots = SlotIndex.of(nodes, source.num_rows)
        except (ValueError, IndexError) as error:
            raise UsageError(f"rows of these nodes cannot be held: {error}") from error
        none = torch.from_numpy(source.gather(nodes[:0]).values)
        found = none.dtype if dtype is None else dtype
        if found.itemsize != none.dtype.itemsize:
            raise UsageError(
                f"dtype={dtype} has {found.itemsize} bytes, but elements of the table have "
                f"{none.dtype.itemsize}; leave it out, or name a type of that size"
            )
        row_shape = tuple(none.shape[1:])
        row_bytes = math.prod(row_shape) * none.itemsize
        size, word = next((size, word) for size, word in _WORDS if row_bytes % size == 0)
        words = torch.empty((len(nodes), row_bytes // size), dtype=word, device=device)
        step = max(1, WARM_UP_BYTES // max(1, row_bytes))
        for first in range(0, len(nodes) if row_bytes else 0, step):
            rows = torch.from_numpy(source.gather(nodes[first : first + step]).values)
            words[first : first + len(rows)] = _as_words(rows, word).to(device)
        return cls(slots, words, row_shape, found)

    @property
    def device(self) -> torch.device:
        """The device that holds the rows."""
        return self.words.device

    @property
    def num_rows(self) -> int:
        """Number of rows on the device, C."""
        return len(self.words)

    @property
    def device_bytes(self) -> int:
        """Bytes that the rows occupy on the device."""
        return self.words.nbytes

    def split(self, ids: npt.NDArray[Any]) -> Split:
        """Divide the rows of a batch into those on the device and the others."""
        slots = self.slots.slots(ids)
        positions = np.flatnonzero(slots >= 0)
        return Split(positions, slots[positions].astype(np.int64), np.flatnonzero(slots < 0))

    def fill(self, out: torch.Tensor, split: Split) -> None:
        """Write the rows on the device to their places; the others stay as they are."""
        self._check(out, len(split.positions) + len(split.others), "out")
        slots, places = (
            torch.from_numpy(part).to(self.device) for part in (split.slots, split.positions)
        )
        _put(out, places, self.words.index_select(0, slots))

    def empty(self, num_rows: int) -> torch.Tensor:
        """Return a tensor [num_rows, *row_shape] of unspecified rows on the device."""
        return torch.empty((num_rows, *self.row_shape), dtype=self.dtype, device=self.device)

    def _check(self, rows: torch.Tensor, num_rows: int, name: str) -> None:
        expected = (num_rows, *self.row_shape)
        if tuple(rows.shape) != expected or rows.dtype != self.dtype or not rows.is_contiguous():
            layout = "" if rows.is_contiguous() else ", not contiguous"
            raise UsageError(
                f"{name} must be a contiguous tensor of {self.dtype} and shape {expected}, got "
                f"{rows.dtype} and {tuple(rows.shape)}{layout}"
            )


def assemble(
    n_id: npt.NDArray[Any],
    device_tier: DeviceRows,
    lower: Callable[[npt.NDArray[Any]], torch.Tensor],
) -> torch.Tensor:
    """Return the rows of a batch on the tier's device."""
    split = device_tier.split(n_id)
    out = device_tier.empty(len(n_id))
    device_tier.fill(out, split)  # goes on while the others are read
    if len(split.others):
        rows = lower(n_id[split.others])
        device_tier._check(rows, len(split.others), "what lower() returns")
        places = torch.from_numpy(split.others).to(device_tier.device)
        _put(out, places, rows.to(device_tier.device))
    return out


def _put(out: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> None:
    """Write rows [m, ...] to out[places], where elements of both have any type of one size."""
    row_bytes = math.prod(out.shape[1:]) * out.itemsize
    if row_bytes and len(places):
        # A view of a tensor may begin at any byte.
        begins = [tensor.storage_offset() * tensor.itemsize for tensor in (out, rows)]
        word = next(word for size, word in _WORDS if math.gcd(row_bytes, *begins) % size == 0)
        _as_words(out, word).index_copy_(0, places, _as_words(rows, word))


def _as_words(rows: torch.Tensor, word: torch.dtype) -> torch.Tensor:
    return rows.reshape(-1).view(word).view(len(rows), -1)
