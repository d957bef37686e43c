"""Rows that lie batch by batch: those that a batch misses, in a chunk of its own."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts
from gnnstore.errors import CorruptStoreError, storage_error
from gnnstore.features.source import RowRequest, Rows, RowSource, RowSpec
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.sampling.row_space import RowRange

# int32 [n]: for each missed row of a part of a batch, how many it misses before.
Ranks = npt.NDArray[np.int32]
# Places of packed rows in a batch: see `places_within`.
Places = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]


@dataclass(frozen=True, eq=False)
class AbsentRows(RowSource):
    """A table that cannot be read by id: rows come with the batches."""

    attribute: AttributeSpec
    # Returns the error for a request by id; a function of a module, which can be pickled.
    refusal: Callable[[str], Exception]

    @cached_property
    def spec(self) -> RowSpec:
        """The rows of the table."""
        return RowSpec.of(self.attribute)

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:  # noqa: ARG002
        """Refuse to read rows by id."""
        raise self.refusal(f"rows of {self.attribute.name!r} by id ({ids.size} of them)")


class PackedRows(RowSource):
    """The rows that one batch misses of a table, as they were packed for it, and no others."""

    def __init__(
        self,
        spec: RowSpec,
        # Given the part of the batch that the table's type is, the output, and the place there of
        # the row at each position of the part, unless it is the position.
        read_missed: Callable[[RowRange, npt.NDArray[Any], Ranks | None], ReadCounts],
    ) -> None:
        self._spec = spec
        self._read_missed = read_missed

    @property
    def spec(self) -> RowSpec:
        """The rows of the table, packed or not."""
        return self._spec

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of a batch that misses all of them."""
        return self._read_missed(RowRange(0, ids.size), out, None)

    def read_into(self, request: RowRequest, out: npt.NDArray[Any]) -> ReadCounts:
        """Fill `out` with the rows of the batch; cached ones are copied when others are read."""
        if request.slots is None:
            return self.read_rows(request.ids, out)
        part = RowRange(request.row_offset, len(request.slots))
        return self._read_missed(part, out, None) + request.copy_cached(out)

    def read_missed(self, request: RowRequest) -> Rows:
        """Return the rows that the batch misses, one behind the other."""
        if request.slots is None:
            return super().read_missed(request)
        # A row that has a slot gets the rank of the last missed one, or -1.
        ranks = np.cumsum(request.slots < 0, dtype=np.int32)
        out = self.spec.empty(int(ranks[-1]) if len(ranks) else 0)
        ranks -= 1
        part = RowRange(request.row_offset, len(request.slots))
        return Rows(out, self._read_missed(part, out, ranks))


def places_within(
    part: RowRange,
    positions: npt.NDArray[np.int32],  # of each distinct row
    targets: npt.NDArray[np.int32],  # positions that get the row of another one
    sources: npt.NDArray[np.int32],  # positions of these other rows
    *,
    ranks: Ranks | None = None,
) -> Places:
    """Return where packed rows go that are of a node type's part of a batch, from its first row on.

    Positions and targets ascend from type to type. With ranks, rows go to these.
    """
    if part.first or any((each[-1:] >= part.num_rows).any() for each in (positions, targets)):
        _, positions = part.part(positions)
        repeats, targets = part.part(targets)
        sources = sources[repeats] - np.int32(part.first)
    if ranks is None:
        return positions, targets, sources
    return ranks[positions], ranks[targets], ranks[sources]


def read_chunk(
    reader: _core.Reader,
    files: _core.FileSet,
    begin: int,
    places: Places,
    out: npt.NDArray[Any],
    *,
    path: Path,
    what: Callable[[], str],
    advice: str,
    **options: Any,  # `row_bytes`, `crcs` and `piece_bytes`
) -> ReadCounts:
    """Write the rows of a chunk to their places; `what` and `advice` are for messages."""
    if len(places[0]) + len(places[1]) == 0:
        return ReadCounts()
    content = out.reshape(-1).view(np.uint8)
    try:
        return _core.read_packed_rows(reader, files, 0, begin, *places, content, **options)
    except OSError as error:
        where = error.filename or path
        if error.errno != errno.EBADMSG:
            raise storage_error(error, f"read the packed rows of {what()}", where) from error
        raise CorruptStoreError(
            f"{where}: packed rows are damaged: {error.strerror}; they are of {what()}. {advice}",
            path=where,
            offset=begin,
        ) from error
