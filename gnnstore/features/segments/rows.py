"""Reads the rows that the batches of a segment share: pages from among those of other batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts
from gnnstore.errors import CorruptStoreError, storage_error
from gnnstore.features.packed.chunks import shared_crcs
from gnnstore.formats.packed.manifest import CHECKED_ROWS
from gnnstore.formats.packed.segments import segment_layout

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.features.source import FileRows
    from gnnstore.formats.packed.reader import PackedReader

_IS_READ, _IS_LEFT = np.int32(-1), np.int32(0)


class SharedReader:
    """The shared rows of packed epochs with segments. Safe to use from many threads at once."""

    def __init__(self, reader: PackedReader, engine: Engine) -> None:
        assert reader.segments is not None  # noqa: S101 - for the type checker
        self._reader = reader
        self._engine = engine
        self._ends = reader.segments[:, 1]

    def read(
        self,
        number: int,
        column: int,
        table: FileRows,
        places: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]],
        out: npt.NDArray[Any],
        *,
        crcs: npt.NDArray[np.uint32],
    ) -> ReadCounts:
        """Write the rows that a batch shares with others to their places; the others stay."""
        positions, ranks = places
        if len(positions) == 0 or table.row_bytes == 0:
            return ReadCounts()
        segment = int(np.searchsorted(self._ends, number, side="right"))
        assert self._reader.segments is not None  # noqa: S101 - for the type checker
        specs = self._reader.manifest.cached_specs
        layout = segment_layout(self._reader.segments, specs, segment, column)
        ids = np.zeros(len(out), np.int32)
        slots = np.full(len(out), _IS_LEFT)
        try:
            ids[positions], slots[positions] = ranks, _IS_READ
            counts = self._engine.reader.gather_rows(
                table.files,
                ids,
                out.reshape(-1).view(np.uint8),
                num_rows=layout.num_rows,
                row_bytes=layout.row_bytes,
                rows_per_page=layout.part_rows,
                page_stride_bytes=layout.part_bytes,
                begin_bytes=layout.begin,
                gap_bytes=self._engine.tuning.gap_bytes,
                slots=slots,
            )
        except IndexError as error:
            path = table.array.file_paths[0]
            raise CorruptStoreError(
                f"{path}: a batch shares rows that its segment or it does not have ({error})",
                path=path,
            ) from error
        except OSError as error:
            where = error.filename or table.array.file_paths[0]
            first, end = self._reader.segments[segment, :2]
            doing = f"read the rows that the packed batches {first} to {end - 1} share"
            raise storage_error(error, doing, where) from error
        content = out.reshape(-1).view(np.uint8)
        found = shared_crcs(_core.crc32c_rows(content, positions, layout.row_bytes))
        bad = np.flatnonzero(found != crcs)
        if len(bad):
            first = int(bad[0])
            some = ranks[first * CHECKED_ROWS : (first + 1) * CHECKED_ROWS]
            begin, last = layout.offset(int(some[0])), layout.offset(int(some[-1]))
            path = table.array.file_paths[0]
            raise CorruptStoreError(
                f"{path}: bytes {begin} to {last + layout.row_bytes}, packed rows that batches "
                f"share, are damaged: the crc32c of {len(some)} rows among them is "
                f"{found[first]:08x}, not {crcs[first]:08x}",
                path=path,
                offset=begin,
            )
        return counts
