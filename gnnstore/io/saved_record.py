"""What a packed plan holds of one batch besides packed rows: a record, read in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError
from gnnstore.io.planned_cache import BatchStep
from gnnstore.io.ragged_file import crc_seed, encode_record
from gnnstore.sampling.compact import CompactSubgraph

# Arrays of a record before those of the attributes: input_id, slots, changes (positions and
# slots), and where missed rows go (positions; targets and sources of those that come again). In a
# plan with segments there follow positions and ranks of rows that batches share.
_STEP_ARRAYS = 7
_SHARED_ARRAYS = 2


@dataclass(frozen=True, eq=False)
class SavedRecord:
    """What a plan holds of one batch of n nodes and m edges, but for packed rows.

    Attributes
    ----------
    input_id : ndarray of int64 [B]
    slots : ndarray of int32 [n]
    change_positions, change_slots : ndarray of int32 [c]
        As in `BatchStep`.
    positions, repeat_targets, repeat_sources : ndarray of int32
        As `MissIndex.batch` returns them.
    shared : pair of ndarray of int32 [d], or None
        Positions and ranks of rows that the batches of a segment share; None: the plan has no
        segments.
    plain : tuple of ndarray
        Rows of the attributes that are not cached, [n, ...] or [m, ...].
    edge_ids : ndarray of int32 or int64 [m], or None
        None: positions are ids.
    subgraph : CompactSubgraph
    """

    input_id: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    change_positions: npt.NDArray[np.int32]
    change_slots: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    repeat_targets: npt.NDArray[np.int32]
    repeat_sources: npt.NDArray[np.int32]
    plain: tuple[npt.NDArray[Any], ...]
    edge_ids: npt.NDArray[Any] | None
    subgraph: CompactSubgraph
    shared: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None = None

    @property
    def step(self) -> BatchStep:
        """What the plan says of the batch."""
        changes = (self.change_positions, self.change_slots)
        return BatchStep(self.subgraph.n_id, self.slots, *changes)

    def encode(self, number: int) -> tuple[list[memoryview], int, int]:
        """Return the bytes of the record in pieces, their number, and their crc32c."""
        arrays: list[npt.NDArray[Any]] = [self.input_id, self.slots]
        arrays += [self.change_positions, self.change_slots]
        arrays += [self.positions, self.repeat_targets, self.repeat_sources]
        arrays += [*(self.shared or ()), *self.plain]
        arrays += [] if self.edge_ids is None else [self.edge_ids]
        parts = encode_record([*arrays, *self.subgraph.arrays()])
        crc = crc_seed(number)
        for part in parts:
            crc = _core.crc32c(np.frombuffer(part, np.uint8), crc)
        return parts, sum(map(len, parts)), crc

    @classmethod
    def of(
        cls,
        arrays: Sequence[npt.NDArray[Any]],
        num_plain: int,
        has_edge_ids: bool,
        has_segments: bool = False,
    ) -> SavedRecord:
        """Return the record that was encoded as these arrays; it keeps them.

        Raises
        ------
        CorruptStoreError
            If they are those of no record.
        """
        step = _STEP_ARRAYS + (_SHARED_ARRAYS if has_segments else 0)
        first = step + num_plain
        last = first + int(has_edge_ids)
        if len(arrays) < last:
            raise CorruptStoreError(f"{len(arrays)} arrays are no record of a batch")
        input_id, slots, change_positions, change_slots, *places = arrays[:_STEP_ARRAYS]
        return cls(
            input_id=input_id,
            slots=slots,
            change_positions=change_positions,
            change_slots=change_slots,
            positions=places[0],
            repeat_targets=places[1],
            repeat_sources=places[2],
            plain=tuple(arrays[step:first]),
            edge_ids=arrays[first] if has_edge_ids else None,
            subgraph=CompactSubgraph.from_arrays(arrays[last:]),
            shared=(arrays[_STEP_ARRAYS], arrays[_STEP_ARRAYS + 1]) if has_segments else None,
        )
