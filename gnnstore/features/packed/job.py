"""Packing one table: its missed rows, written batch by batch to one file."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnnstore import _core
from gnnstore.disk.spool import translated
from gnnstore.errors import storage_error
from gnnstore.features.files import FileRows
from gnnstore.features.packed import memory as packing_memory
from gnnstore.features.packed.checksum_blocks import PIECE_BYTES, RunPieces
from gnnstore.features.packed.chunks import PackCounts, PackedRuns, PackedTable, run_bytes
from gnnstore.features.packed.memory import share_out, share_with_rows
from gnnstore.features.packed.misses import MissTable
from gnnstore.features.source import RowSpec
from gnnstore.parallel import interruptible
from gnnstore.units import format_size


@dataclass(frozen=True, eq=False)
class TableJob:
    """One table of one superbatch, to be packed.

    Attributes
    ----------
    path : str
        Of the table in the store.
    table : FileRows
    missed : MissTable
    file_path : Path
        The file to make; or, if it `grows`, to make longer.
    begin : int
        Where the first run is to begin in the file, a multiple of 4096.
    grows : bool
        Only of rows in memory.
    """

    path: str
    table: FileRows
    missed: MissTable
    file_path: Path
    begin: int = 0
    grows: bool = False

    def run(
        self,
        memory_bytes: int,
        num_threads: int,
        stop: threading.Event | None,
        advance: Callable[[int], None] | None,
    ) -> tuple[PackedRuns, PackCounts]:
        """Write the table's file; return where the runs of batches are in it."""
        table, missed = self.table, self.missed
        index, left_bytes = missed.index, memory_bytes - missed.num_bytes
        num_batches = len(index.num_rows)
        if missed.file is None:
            shares = share_out(table, num_batches, left_bytes)
        else:
            id_bytes = missed.samples.itemsize
            shares, max_rows = share_with_rows(table, index.num_rows, id_bytes, left_bytes)
        offsets = np.zeros(num_batches + 1, np.int64)
        np.cumsum(run_bytes(index.num_rows, table.row_bytes), out=offsets[1:])
        offsets += self.begin
        file_bytes = int(offsets[-1])
        pieces = RunPieces.unknown(index.num_rows * table.row_bytes)
        progress = np.zeros(2, np.int64)  # bytes so far; whether to stop

        outputs: tuple[Any, ...] = (
            [self.file_path],
            [file_bytes],
            np.zeros(num_batches, np.int64),
            offsets[:-1],
            pieces.crcs,
            progress,
        )
        options: dict[str, Any] = {
            "engine": table.engine.name,
            **table.place,
            "num_windows": shares.num_windows,
            "window_bytes": shares.window_bytes(table),
            "buffer_bytes": shares.buffer_bytes,
            "num_spare_buffers": shares.num_spare_buffers,
            "piece_bytes": PIECE_BYTES,
            "num_threads": num_threads,
        }

        def work() -> dict[str, int]:
            if missed.file is None:
                rows = (missed.rows, missed.begins, index.num_rows)
                return _core.pack_rows(table.files, *rows, *outputs, grows=self.grows, **options)
            spool = missed.file
            ids = (spool.file, spool.begins.reshape(-1), index.num_rows, spool.crcs.reshape(-1))
            options.update(stride=packing_memory.STRIDE_ROWS, max_rows=max_rows)
            return _core.pack_spilled_rows(table.files, *ids, missed.samples, *outputs, **options)

        try:
            counts = interruptible(work, progress, stop, advance)
        except OSError as error:
            raise self._error(error, file_bytes - self.begin) from error
        return PackedRuns(offsets, pieces), PackCounts(**counts)

    def opened(self, runs: PackedRuns) -> PackedTable:
        """Return the file to be read."""
        file_bytes = int(runs.offsets[-1])
        try:
            files = _core.FileSet([self.file_path], [file_bytes], direct=self.table.files.is_direct)
        except OSError as error:
            raise self._error(error, file_bytes) from error
        spec = RowSpec.of(self.table.array.spec)
        return PackedTable(self.file_path, runs.offsets, runs.pieces, spec, files)

    def _error(self, error: OSError, file_bytes: int) -> Exception:
        where = error.filename or self.table.array.file_paths[0]
        doing = f"pack rows of the array {self.path!r} ({format_size(file_bytes)})"
        if error.errno == errno.EBADMSG:  # of the sorted rows
            return translated(error, doing, Path(where))
        return storage_error(error, doing, where)
