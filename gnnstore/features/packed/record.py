"""Records of packed epochs: the parts of a batch other than packed rows, read in one piece.

In bytes a record is a header of int64, and then the arrays, padded to 8 bytes each. The header has
the number of arrays, and the dtype, number of axes and lengths of each. There are no pickles in
records.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, UsageError
from gnnstore.features.planned import PlanStep
from gnnstore.sampling.compact import ONE_TYPE, CompactSample, Types
from gnnstore.sampling.row_space import RowSpace

_ALIGNMENT_BYTES = 8
_KINDS = "biuf"  # flags and numbers
_CODE = re.compile(rb"[<>|][biuf][0-9]{1,2}")
# Arrays of a record after those of its seeds: slots, changes (positions and slots), and places of
# missed rows (positions; targets and sources of repeated rows). With segments there follow
# positions and ranks of rows that batches share; then checksums of chunks and of shared rows, one
# array for each cached attribute, as the manifest says.
_STEP_ARRAYS = 6
_SHARED_ARRAYS = 2


@dataclass(frozen=True, eq=False)
class SavedRecord:
    """The contents of a batch of n nodes and m edges in packed epochs, without its packed rows."""

    # Attributes that describe the seeds: `input_id`, int64 [B], where these are nodes.
    seeds: tuple[npt.NDArray[Any], ...]
    slots: npt.NDArray[np.int32]  # int32 [n]
    change_positions: npt.NDArray[np.int32]  # int32 [c]: of the rows that enter
    change_slots: npt.NDArray[np.int32]  # int32 [c]: of these rows, see `PlanStep`
    positions: npt.NDArray[np.int32]  # of missed rows, see `MissIndex.batch`
    repeat_targets: npt.NDArray[np.int32]  # positions that repeat a missed row
    repeat_sources: npt.NDArray[np.int32]  # positions of these rows
    # Rows of the attributes that are not cached, [n, ...] or [m, ...] of their type.
    plain: tuple[npt.NDArray[Any], ...]
    # int32 or int64 [m], of each edge type that has ids; of others positions are ids.
    edge_ids: tuple[npt.NDArray[Any], ...]
    subgraph: CompactSample
    # Positions and ranks, int32 [d] each, of rows that the batches of a segment share; None: there
    # are no segments.
    shared: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None = None
    # For each cached attribute, the checksums of the blocks of the batch's chunk.
    chunk_crcs: tuple[npt.NDArray[np.uint32], ...] = ()
    # For each cached attribute, the result of `chunks.shared_crcs` for the shared rows.
    shared_crcs: tuple[npt.NDArray[np.uint32], ...] = ()

    def step(self, space: RowSpace) -> PlanStep:
        """Return the cache plan of the batch."""
        changes = (self.change_positions, self.change_slots)
        return PlanStep(self.subgraph.rows(space), self.slots, *changes)

    def check_numbers(self, num_slots: int) -> None:
        """Refuse numbers outside of the batch or the cache: a file may hold any number."""
        graph, num_rows = self.subgraph, len(self.slots)
        numbers = [
            ("slot", self.slots, -1, num_slots),
            ("slot that a row enters", self.change_slots, 0, num_slots),
            ("row that enters the cache", self.change_positions, 0, num_rows),
            ("missed row", self.positions, 0, num_rows),
            ("repeated row", self.repeat_targets, 0, num_rows),
            ("row that is repeated", self.repeat_sources, 0, num_rows),
        ]
        lengths = [
            ("slots for rows that enter", len(self.change_slots), len(self.change_positions)),
            ("repeated rows", len(self.repeat_targets), len(self.repeat_sources)),
        ]
        for (source, _, target), edges in graph.edges.items():
            num_edges, num_targets = len(edges.positions), len(graph.nodes[target])
            incoming = edges.num_incoming
            numbers.append(("source of an edge", edges.sources, 0, len(graph.nodes[source])))
            numbers.append(("number of in-neighbours", incoming, 0, num_edges + 1))
            found = int(incoming.sum(dtype=np.int64)) if incoming.dtype.kind == "i" else -1
            lengths.append(("sources of edges", len(edges.sources), num_edges))
            lengths.append(("edges into nodes", found, num_edges))
            if len(incoming) > num_targets:
                raise CorruptStoreError(f"edges into {len(incoming)} nodes, not {num_targets}")
        for what, array, least, end in numbers:
            if array.ndim != 1 or array.dtype.kind != "i":
                raise CorruptStoreError(f"a {what} is of {array.dtype} {list(array.shape)}")
            if len(array) and not (least <= int(array.min()) and int(array.max()) < end):
                raise CorruptStoreError(f"a {what} is not between {least} and {end - 1}")
        for what, found, wanted in lengths:
            if found != wanted:
                raise CorruptStoreError(f"{found} {what}, not {wanted}")

    def encode(self, number: int) -> tuple[list[memoryview], int, int]:
        """Return the bytes of the record in pieces, their number, and their crc32c."""
        arrays: list[npt.NDArray[Any]] = [*self.seeds, self.slots]
        arrays += [self.change_positions, self.change_slots]
        arrays += [self.positions, self.repeat_targets, self.repeat_sources]
        arrays += [*(self.shared or ()), *self.chunk_crcs, *self.shared_crcs, *self.plain]
        parts = encode_record([*arrays, *self.edge_ids, *self.subgraph.arrays()])
        crc = crc_seed(number)
        for part in parts:
            crc = _core.crc32c(np.frombuffer(part, np.uint8), crc)
        return parts, sum(map(len, parts)), crc

    @classmethod
    def of(
        cls,
        arrays: Sequence[npt.NDArray[Any]],
        num_plain: int,
        num_edge_ids: int,
        has_segments: bool = False,
        num_cached: int = 0,
        *,
        num_seeds: int = 1,
        types: Types = ONE_TYPE,
    ) -> SavedRecord:
        """Return the record that was encoded as these arrays; it keeps them."""
        step = num_seeds + _STEP_ARRAYS
        of_chunk = step + (_SHARED_ARRAYS if has_segments else 0)
        of_shared = of_chunk + num_cached
        plain = of_shared + (num_cached if has_segments else 0)
        first = plain + num_plain
        last = first + num_edge_ids
        if len(arrays) < last:
            raise CorruptStoreError(f"{len(arrays)} arrays are no record of a batch")
        slots, change_positions, change_slots, *places = arrays[num_seeds:step]
        return cls(
            seeds=tuple(arrays[:num_seeds]),
            slots=slots,
            change_positions=change_positions,
            change_slots=change_slots,
            positions=places[0],
            repeat_targets=places[1],
            repeat_sources=places[2],
            chunk_crcs=tuple(arrays[of_chunk:of_shared]),
            shared_crcs=tuple(arrays[of_shared:plain]),
            plain=tuple(arrays[plain:first]),
            edge_ids=tuple(arrays[first:last]),
            subgraph=CompactSample.from_arrays(arrays[last:], types),
            shared=(arrays[step], arrays[step + 1]) if has_segments else None,
        )


def crc_seed(i: int) -> int:
    """Return the initial checksum of a record, by its number: a record elsewhere does not match."""
    return _core.crc32c(np.array([i], np.int64).view(np.uint8))


def _padding(num_bytes: int) -> int:
    return -num_bytes % _ALIGNMENT_BYTES


def encode_record(arrays: Sequence[npt.NDArray[Any]]) -> list[memoryview]:
    """Return the bytes of a record, in pieces that view the arrays."""
    header = [len(arrays)]
    parts: list[memoryview] = []
    for array in arrays:
        if array.dtype.kind not in _KINDS:
            raise UsageError(f"an array of {array.dtype} cannot be written; only numbers can")
        code = array.dtype.str.encode().ljust(_ALIGNMENT_BYTES, b"\0")
        header += [int.from_bytes(code, "little"), array.ndim, *array.shape]
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        parts += [flat.data, memoryview(bytes(_padding(flat.nbytes)))]
    return [np.array(header, np.int64).data.cast("B"), *parts]


def decode_record(record: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
    """Return the arrays of a record whose checksum is right, as views."""
    words = record.view(np.int64)
    shapes: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
    at = 1
    for _ in range(int(words[0])):
        code = words[at].tobytes().rstrip(b"\0")
        if not _CODE.fullmatch(code):
            raise ValueError(f"an array of the type {code!r}")
        end = at + 2 + int(words[at + 1])
        shape = tuple(words[at + 2 : end].tolist())
        # A negative number of axes would read the same ones for ever.
        if len(shape) != end - at - 2 or min(shape, default=0) < 0:
            raise ValueError(f"an array of {end - at - 2} axes, {list(shape)}")
        shapes.append((np.dtype(code.decode()), shape))
        at = end
    begin = at * _ALIGNMENT_BYTES
    arrays = []
    for dtype, shape in shapes:
        num_bytes = math.prod(shape) * dtype.itemsize
        arrays.append(record[begin : begin + num_bytes].view(dtype).reshape(shape))
        begin += num_bytes + _padding(num_bytes)
    return arrays
