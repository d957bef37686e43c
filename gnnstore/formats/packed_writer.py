"""Writes packed epochs: superbatch by superbatch, each journalled, then one atomic commit.

Packed epochs have a bounded number of files: one of records, one of rows for each cached
attribute, and the index that says where each batch lies in them. They grow by a superbatch at a
time, and what is durable is written down, so that packing for hours survives a crash or a full
disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import storage_errors
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES, PageGeometry, plan_shards
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.arrays.zarr_metadata import (
    METADATA_FILE,
    paged_metadata,
    shard_index,
    shard_name,
)
from gnnstore.formats.base.files import (
    BlockChecksums,
    open_regular,
    read_part,
    write_json,
    write_part,
)
from gnnstore.formats.container.manifest import CHECKSUMS_ARRAY
from gnnstore.formats.container.writer import SealedWriter
from gnnstore.formats.packed import (
    BATCHES_ARRAY,
    DEVICE_ROWS,
    INDEX_ARRAY,
    INDEX_COLUMNS,
    PACKED_ALIGNMENT_BYTES,
    SEGMENT_COLUMNS,
    SEGMENTS_ARRAY,
    PackedManifest,
    PackedReader,
)

_READ_BYTES = 4 * 2**20
# Bytes of a shard of arrays that are one file, however large.
_ONE_SHARD_BYTES = 2**60


class GrowingFile:
    """Bytes one behind the other, in regions that are made durable one by one.

    Some are appended here; others are written by the kernel that packs rows, straight to disk, and
    read back for their checksums. In the end they are a Zarr array of bytes.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self._directory = root / name
        self.file_path = self._directory / shard_name(0, 0)
        self.size_bytes = 0  # with the bytes of the open region, which kernels may have written
        self._region_begin = 0
        self._sums = BlockChecksums()
        with storage_errors("create a file", self.file_path):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = open_regular(self.file_path, os.O_RDWR | os.O_CREAT)

    def append(self, parts: Iterable[memoryview]) -> int:
        """Write bytes from the next multiple of 4096 on, and return the offset of the first."""
        begin = self.size_bytes + -self.size_bytes % PACKED_ALIGNMENT_BYTES
        place = begin
        with storage_errors("write", self.file_path):
            for part in parts:
                place = write_part(self._descriptor, part, place)
        self.size_bytes = place
        return begin

    def end_region(self) -> tuple[int, int]:
        """Make the written bytes durable, and return the region's end and crc32c."""
        with storage_errors("write", self.file_path):
            # The region is filled up to a whole page, so that the next one begins on a page.
            self.size_bytes += -self.size_bytes % PACKED_ALIGNMENT_BYTES
            os.ftruncate(self._descriptor, self.size_bytes)
            os.fsync(self._descriptor)
            crc = self._read(self._region_begin, self.size_bytes, self._sums)
        self._region_begin = self.size_bytes
        return self.size_bytes, crc

    def take_over(self, end: int, crc: int) -> bool:
        """Take over the next region of an earlier attempt, and return whether it is unchanged."""
        try:
            is_unchanged = self._read(self._region_begin, end, self._sums) == crc
        except OSError:
            return False
        self._region_begin = self.size_bytes = end
        return is_unchanged

    def cut(self) -> None:
        """Cut the file off behind the regions that were taken over."""
        with storage_errors("continue", self.file_path):
            os.ftruncate(self._descriptor, self._region_begin)

    def seal(self) -> dict[str, tuple[int, npt.NDArray[np.uint32]]]:
        """Turn the bytes into a Zarr array; return its files: size and checksums by path."""
        layout = plan_shards(PageGeometry(1, DEFAULT_PAGE_BYTES), self.size_bytes, _ONE_SHARD_BYTES)
        files = {}
        if layout.num_shards:
            padding = layout.shard_body_bytes(0) - self.size_bytes
            tail = np.concatenate([np.zeros(padding, np.uint8), shard_index(layout, 0)])
            self._sums.update(tail)
            self.append([tail.data])  # the end of a region is a multiple of 4096
            with storage_errors("write", self.file_path):
                os.fsync(self._descriptor)
            files[f"{self.name}/{self.file_path.name}"] = (self._sums.num_bytes, self._sums.crcs)
        self.close()
        if not layout.num_shards:
            self.file_path.unlink()
        document = paged_metadata("uint8", (), layout, [f"{self.name}_0"])
        name, size, crcs = write_json(self._directory / METADATA_FILE, document)
        return {**files, f"{self.name}/{name}": (size, crcs)}

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _read(self, begin: int, end: int, sums: BlockChecksums) -> int:
        """Add a part of the file to the checksums of its blocks; return the part's own."""
        crc = 0
        for first in range(begin, end, _READ_BYTES):
            piece = read_part(self._descriptor, min(_READ_BYTES, end - first), first)
            crc = _core.crc32c(piece, crc)
            sums.update(piece)
        # The file is not read again before training, and there are better uses of memory.
        os.posix_fadvise(self._descriptor, 0, end, os.POSIX_FADV_DONTNEED)
        return crc


class PackedWriter(SealedWriter):
    """Builds packed epochs under a temporary name; `commit` gives them their own."""

    READER: ClassVar[type[PackedReader]] = PackedReader

    def __init__(
        self,
        path: Path,
        *,
        asked: Mapping[str, Any],
        decided: Mapping[str, Any],
        overwrite: bool = False,
        resume: bool = False,
        sweeps: bool = True,
        on_event: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.index: list[list[int]] = []  # a row for each finished batch; see `INDEX_COLUMNS`
        self.segments: list[list[int]] = []  # for each finished segment; see `SEGMENT_COLUMNS`
        self.num_superbatches = 0  # superbatches that are finished
        self.largest_batch_bytes = 0  # bytes of the largest finished batch
        self._growing: dict[str, GrowingFile] = {}
        self._cached: list[AttributeSpec] = []
        super().__init__(
            path,
            overwrite=overwrite,
            shard_bytes=_ONE_SHARD_BYTES,
            on_event=on_event,
            fingerprint=asked,
            decided=decided,
            resume=resume,
            sweeps=sweeps,
        )

    def row_dimension(self, array_path: str) -> str | None:
        """Return a name for the checksums that the store around the epochs does not use."""
        return "plan_checksums" if array_path == CHECKSUMS_ARRAY else None

    @property
    def num_bytes(self) -> int:
        """Bytes of records and rows so far."""
        return sum(file.size_bytes for file in self._growing.values())

    @property
    def batches(self) -> GrowingFile:
        """The records."""
        return self._growing[BATCHES_ARRAY]

    def rows(self, name: str) -> GrowingFile:
        """Return the file of an attribute's rows, by the name of its array."""
        return self._growing[name]

    def finish_superbatch(
        self,
        index: Sequence[Sequence[int]],
        largest_batch_bytes: int,
        segments: Sequence[Sequence[int]] = (),
    ) -> None:
        """Make the appended bytes durable, and record the superbatch."""
        ends = {name: file.end_region() for name, file in self._growing.items()}
        values = {
            "largest_batch_bytes": largest_batch_bytes,
            "index": [list(row) for row in index],
            "segments": [list(row) for row in segments],
        }
        self.journal.record_step(ends, values)
        self._count(values)

    def cached(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        pieces: Iterable[npt.NDArray[Any]],
    ) -> None:
        """Write an array of rows that all batches have in common, from pieces in order."""
        writer = self.paged(name, name=name, row_shape=shape[1:], dtype=dtype, num_rows=shape[0])
        for piece in pieces:
            writer.append(piece)
        self._cached.append(writer.spec)

    def commit(self, manifest: PackedManifest, graph: Mapping[str, npt.NDArray[Any]]) -> Path:
        """Write index, checksums and manifest, and rename the directory into place."""
        arrays = []
        arrays += self._cached
        for name, file in self._growing.items():
            arrays.append(AttributeSpec(name, name, "paged", "uint8", (file.size_bytes,)))
            self._files |= file.seal()
        width = INDEX_COLUMNS + manifest.cached_columns
        arrays.append(self._write_table(INDEX_ARRAY, self.index, width))
        if manifest.has_segments:
            width = SEGMENT_COLUMNS + manifest.cached_columns
            arrays.append(self._write_table(SEGMENTS_ARRAY, self.segments, width))
        for spec in manifest.schema.whole_arrays():
            self.compressed(spec.path, graph[spec.path], name=spec.name, dtype=spec.dtype)
        features = manifest.schema.scaled_features
        features += [] if manifest.device is None else [DEVICE_ROWS]
        return self.seal(
            replace(manifest, paged_arrays=tuple(arrays), reader_features=tuple(features))
        )

    def _write_table(self, name: str, rows: list[list[int]], width: int) -> AttributeSpec:
        values = np.array(rows, np.int64).reshape(-1, width)
        writer = self.paged(
            name, name=name, row_shape=(width,), dtype="int64", num_rows=len(values)
        )
        writer.append(values)
        return writer.spec

    def release(self) -> None:
        """Close unfinished files."""
        super().release()
        for file in self._growing.values():
            file.close()

    # ---- beginning, and going on

    def take_over(self) -> None:
        """Open the growing files, and keep the superbatches that earlier attempts finished.

        If the bytes of one have changed, all are packed again.
        """
        steps = self.journal.steps
        self._open_files()
        files = self._growing.items()
        if all(file.take_over(*step["ends"][name]) for step in steps for name, file in files):
            for step in steps:
                self._count(step)
        else:
            self.journal.forget_steps()
            self.release()
            self._open_files()
        for file in self._growing.values():
            file.cut()

    def _open_files(self) -> None:
        names = [BATCHES_ARRAY, *self.journal.decided["rows"]]
        self._growing = {name: GrowingFile(self.temporary_path, name) for name in names}

    def _count(self, step: Mapping[str, Any]) -> None:
        self.num_superbatches += 1
        self.index += step["index"]
        self.segments += step["segments"]
        self.largest_batch_bytes = max(self.largest_batch_bytes, step["largest_batch_bytes"])
