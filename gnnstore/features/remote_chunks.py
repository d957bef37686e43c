"""Records and chunks of packed epochs, read from a bucket: one request for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import ReadCounts, empty
from gnnstore.errors import CorruptStoreError, NotFoundError
from gnnstore.features.chunk_rows import Places
from gnnstore.features.file_rows import FileRows
from gnnstore.features.packed_rows import HELP, PackedFiles, PackedTable
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.packed import BATCHES_ARRAY, rows_array
from gnnstore.remote.objects import Files
from gnnstore.remote.streams import StreamedReader


class RemoteFiles(PackedFiles):
    """The objects of packed epochs, or of a part. What arrives is compared with its checksums."""

    reader: StreamedReader

    def open_rows(self, spec: AttributeSpec) -> FileRows | None:  # noqa: ARG002
        """Open nothing: a chunk is a request."""
        return None

    def open_records(self) -> None:
        """Open nothing: a record is a request."""

    def read_record(self, number: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a record; asked for once more if they are not what was written."""
        begin, num_bytes, _ = self._place(number)
        record = empty((num_bytes,), np.uint8)

        def problem(data: npt.NDArray[np.uint8]) -> CorruptStoreError | None:
            return self.problem_of(number, data)

        np.copyto(record, self._fetched(BATCHES_ARRAY, begin, num_bytes, problem))
        return record

    def read_chunk(
        self,
        number: int,
        table: PackedTable,
        places: Places,
        out: npt.NDArray[Any],
        crcs: npt.NDArray[np.uint32],
    ) -> ReadCounts:
        """Write the rows of a chunk to their places, if it has any."""
        positions, targets, sources = places
        row_bytes, piece_bytes = table.spec.row_bytes, self.reader.manifest.piece_bytes
        num_bytes = len(positions) * row_bytes
        if not num_bytes:
            return ReadCounts()
        begin, path = self.chunk_begin(number, table), self.path_of(table)
        array = rows_array(self.reader.manifest.schema, path)
        if len(crcs) != -(-num_bytes // piece_bytes):
            raise ValueError(f"{len(crcs)} checksums of {num_bytes} bytes of rows")

        def problem(data: npt.NDArray[np.uint8]) -> CorruptStoreError | None:
            found = _core.crc32c_blocks(data, piece_bytes)
            whole = len(data) == num_bytes
            bad = np.flatnonzero(found != crcs) if whole else np.array([len(data) // piece_bytes])
            if not len(bad):
                return None
            at = begin + int(bad[0]) * piece_bytes
            what = f"the crc32c of its bytes from {at} on is not what was written"
            return CorruptStoreError(
                f"{self._object_of(array)}: packed rows are damaged: "
                f"{what if whole else f'it ends at byte {begin + len(data)}'}; they are of "
                f"{self.name_of(number)}, {path!r}. {HELP}",
                path=self._object_of(array),
                offset=at,
            )

        data = self._fetched(array, begin, num_bytes, problem)
        rows = out.reshape(-1).view(np.uint8).reshape(-1, row_bytes)
        _core.copy_to_slots(data, np.arange(len(positions), dtype=np.int32), rows, positions)
        if len(targets):
            _core.copy_to_slots(rows.reshape(-1), sources, rows, targets)
        counts = {"reads": 1, "bytes_read": num_bytes, "bytes_useful": num_bytes}
        return ReadCounts(**counts, rows_read=len(positions))

    @property
    def records_at(self) -> str:
        """The object of the records, for messages."""
        return self._object_of(BATCHES_ARRAY)

    @property
    def _files(self) -> Files:
        return self.reader.files_there

    def _object_of(self, array: str) -> str:
        return self._files.name(self.reader.object_of(array))

    def _fetched(
        self,
        array: str,
        begin: int,
        num_bytes: int,
        problem: Callable[[npt.NDArray[np.uint8]], CorruptStoreError | None],
    ) -> npt.NDArray[np.uint8]:
        """Return bytes of an array, valid until the thread's next request; two are made at most."""
        name = self.reader.object_of(array)
        error: CorruptStoreError | None = None
        for _ in range(2):  # a network or a cache may have damaged them on their way
            try:
                data = self._files.read(name, begin, num_bytes)
            except NotFoundError as missing:
                raise CorruptStoreError(
                    f"{self._files.name(name)}: the file is missing, but the manifest lists it. "
                    f"{HELP}",
                    path=self._files.name(name),
                ) from missing
            if (error := problem(data)) is None:
                return data
        assert error is not None  # noqa: S101 - of the last round
        raise error
