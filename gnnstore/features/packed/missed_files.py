"""The rows that the batches of a superbatch miss, sorted, in files: no memory for each of them.

A superbatch may be as long as an epoch, and what it misses many times what memory holds. Each batch
is sorted, and appended to two files: ids, which are read once for each table, range by range (see
`_core.pack_spilled_rows`), and positions, which are read when the batch is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.caching.trace_file import create, guarded
from gnnstore.features.packed import memory as packing_memory
from gnnstore.features.packed.miss_sorting import (
    BatchPlan,
    BatchTrace,
    MissSorting,
    Stopped,
    for_each,
)


@dataclass(frozen=True, eq=False)
class Appended:
    """Where something of each batch lies in a file, and its checksum.

    Attributes
    ----------
    begins : ndarray of int64 [S]
        In bytes.
    counts : ndarray of int64 [S]
        Numbers, not bytes.
    crcs : ndarray of uint32 [S]
    """

    begins: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    crcs: npt.NDArray[np.uint32]

    @classmethod
    def none(cls, num_batches: int) -> Appended:
        """Return that nothing is there yet."""
        sizes = np.zeros((2, num_batches), np.int64)
        return cls(sizes[0], sizes[1], np.zeros(num_batches, np.uint32))

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return self.begins.nbytes + self.counts.nbytes + self.crcs.nbytes

    def append(self, file: _core.SpillFile, i: int, numbers: npt.NDArray[Any]) -> None:
        """Write a batch's numbers behind all others."""
        self.begins[i], self.crcs[i] = file.append(numbers, i)
        self.counts[i] = len(numbers)

    def read_int32(self, file: _core.SpillFile, i: int) -> npt.NDArray[np.int32]:
        """Read and check a batch's numbers, a new array."""
        return file.read_int32(int(self.begins[i]), int(self.counts[i]), int(self.crcs[i]), i)


@dataclass(frozen=True, eq=False)
class SpilledIndex:
    """Where the packed rows of each batch go, in a file. Says the same as `MissIndex`.

    Attributes
    ----------
    path : Path
    file : SpillFile
    positions : Appended
        Of each batch's distinct missed rows, in the order of the table.
    repeats : Appended
        Positions that get the row of another one, and then those others.
    """

    path: Path
    file: _core.SpillFile
    positions: Appended
    repeats: Appended

    @property
    def num_rows(self) -> npt.NDArray[np.int64]:
        """Distinct missed rows of each batch, int64 [S]."""
        return self.positions.counts

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return self.positions.num_bytes + self.repeats.num_bytes

    @property
    def num_disk_bytes(self) -> int:
        """Bytes of the file."""
        return self.file.num_bytes

    def batch(
        self, i: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Read what `MissIndex.batch` returns: new arrays.

        Raises
        ------
        CorruptStoreError
            If the file no longer holds it.
        StorageError
            If it cannot be read.
        """

        def read() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
            positions = self.positions.read_int32(self.file, i)
            # Samplers name no node twice, and then there is nothing to read.
            has_repeats = self.repeats.counts[i] > 0
            return positions, self.repeats.read_int32(self.file, i) if has_repeats else positions[
                :0
            ]

        positions, repeats = guarded(read, f"read where packed rows of batch {i} go", self.path)
        half = len(repeats) // 2
        return positions, repeats[:half], repeats[half:]

    def close(self) -> None:
        """Remove the file. Idempotent."""
        self.file.close()


@dataclass(frozen=True, eq=False)
class SpilledMisses:
    """The distinct rows that each batch misses, and where they go. Says the same as `MissedRows`.

    Attributes
    ----------
    path : Path
    file : SpillFile
    rows : Appended
        Of each batch, in the order of the table.
    stride : int
    samples : ndarray of int32 or int64
        Every stride-th row of each batch, by which the ends of ranges are found.
    index : SpilledIndex
    """

    path: Path
    file: _core.SpillFile
    rows: Appended
    stride: int
    samples: npt.NDArray[Any] = field(repr=False)
    index: SpilledIndex

    @property
    def num_bytes(self) -> int:
        """Bytes of memory, while rows are packed."""
        num_batches = len(self.rows.counts)
        return packing_memory.SPILLED_BATCH_BYTES * num_batches + self.samples.nbytes

    def close_rows(self) -> None:
        """Remove the file of ids, when all tables are packed. Idempotent."""
        self.file.close()

    def close(self) -> None:
        """Remove both files. Idempotent."""
        self.close_rows()
        self.index.close()


def spill_out(
    trace: BatchTrace,
    slots: BatchPlan | npt.NDArray[Any],
    num_table_rows: int,
    directory: Path,
    *,
    memory_bytes: int,
    num_threads: int = 1,
    is_stopped: Callable[[], bool] = lambda: False,
) -> SpilledMisses:
    """Find and sort the rows that each batch misses, as `sort_out` does, to files.

    Parameters
    ----------
    directory : Path
        Where they are made: "missed" and "positions".

    Raises
    ------
    NoSpaceError, StorageError
        If a file cannot be made, or written; both are removed then.
    UsageError, BudgetError, StorageError, CorruptStoreError, Stopped
        As `sort_out`.
    """
    sorting = MissSorting.of(trace, slots, num_table_rows)
    num_batches, dtype = trace.num_batches, sorting.id_dtype
    stride = packing_memory.STRIDE_ROWS
    left_bytes = memory_bytes - packing_memory.spilled_bytes(sorting.most, dtype.itemsize)
    num_threads = sorting.num_threads(num_threads, memory_bytes, left_bytes, spills=True)
    ids, positions, repeats = (Appended.none(num_batches) for _ in range(3))
    samples: list[npt.NDArray[Any]] = [np.empty(0, dtype)] * num_batches
    largest = int(sorting.most.max(initial=0))
    # One of each thread. Not from the pool, which keeps what it gets back.
    idle = [(np.empty(largest, dtype), np.empty(largest, np.int32)) for _ in range(num_threads)]
    path, positions_path = directory / "missed", directory / "positions"
    file = create(path)
    try:
        positions_file = create(positions_path)
    except BaseException:
        file.close()
        raise

    def sort_batch(i: int) -> None:
        if is_stopped():
            raise Stopped
        scratch, most = idle.pop(), int(sorting.most[i])
        size, *pair = sorting.sort(i, scratch[0][:most], scratch[1][:most])
        found, places = scratch[0][:size], scratch[1][:size]
        samples[i] = found[::stride].copy()

        def append() -> None:
            ids.append(file, i, found)
            positions.append(positions_file, i, places)
            if len(pair[0]):
                repeats.append(positions_file, i, np.concatenate(pair))

        guarded(append, f"write which rows batch {i} misses", path)
        idle.append(scratch)

    try:
        for_each(num_batches, num_threads, sort_batch)
        sorting.check(ids.counts)
    except BaseException:
        file.close()
        positions_file.close()
        raise
    joined = np.concatenate([np.empty(0, dtype), *samples])
    index = SpilledIndex(positions_path, positions_file, positions, repeats)
    return SpilledMisses(path, file, ids, stride, joined, index)
