"""The open files of a stored table, for reading its rows with an engine and for packing them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts
from gnnstore.disk.engines import Engine
from gnnstore.formats.arrays.paged_array import PagedArray


@dataclass(frozen=True, eq=False)
class FileRows:
    """The files of a table's rows, and the engine that reads them. Thread-safe.

    The files stay open: a store that is removed or replaced meanwhile is read to the end.
    """

    array: PagedArray
    engine: Engine
    files: _core.FileSet

    @classmethod
    def open(cls, array: PagedArray, engine: Engine) -> Self:
        """Open the files of a stored array for an engine."""
        return cls(array, engine, array.open_files(direct=engine.choice.is_direct))

    @cached_property
    def num_rows(self) -> int:
        """Rows in the table."""
        return self.array.num_rows

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row's values."""
        return self.array.geometry.row_bytes

    @cached_property
    def engine_name(self) -> str:
        """The engine's name in the core."""
        return self.engine.name

    @cached_property
    def place(self) -> dict[str, int]:
        """The kernels' arguments for the place of rows, and for how reads are merged."""
        return {**self.array.place, "gap_bytes": self.engine.tuning.gap_bytes}

    def read_ranges(
        self,
        firsts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        out: npt.NDArray[Any],
    ) -> ReadCounts:
        """Read ranges of rows in large reads, many in flight at a time."""
        wrong = np.flatnonzero((firsts < 0) | (ends < firsts) | (ends > self.num_rows))
        if wrong.size:
            first, end = firsts[wrong[0]], ends[wrong[0]]
            raise IndexError(f"[{first}, {end}) is not within [0, {self.num_rows})")
        there = np.flatnonzero(ends > firsts)
        if out.size == 0 or there.size == 0:
            return ReadCounts()
        firsts, ends, places = firsts[there], ends[there], places[there]
        shard_rows, row_bytes = self.array.layout.shard_rows, self.row_bytes
        first_shards = firsts // shard_rows
        num_shards = (ends - 1) // shard_rows - first_shards + 1
        of = np.repeat(np.arange(len(firsts)), num_shards)
        before = np.repeat(np.cumsum(num_shards) - num_shards, num_shards)
        shards = first_shards[of] + np.arange(len(of)) - before
        begins = np.maximum(shards * shard_rows, firsts[of])
        lasts = np.minimum((shards + 1) * shard_rows, ends[of])
        return self.engine.reader.read_ranges(
            self.files,
            shards,
            (begins - shards * shard_rows) * row_bytes,
            (lasts - begins) * row_bytes,
            (places[of] + begins - firsts[of]) * row_bytes,
            out.reshape(-1).view(np.uint8),
        )
