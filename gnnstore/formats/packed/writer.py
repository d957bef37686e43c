"""Writes packed epochs: superbatch by superbatch, each journalled, then one atomic commit.

Packed epochs have a bounded number of files: one of records, one of rows for each cached
attribute, and the index that says where each batch lies in them. They grow by a superbatch at a
time, and what is durable is written down, so that packing for hours survives a crash or a full
disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gnnstore.errors import CorruptStoreError
from gnnstore.formats.arrays.growing import ONE_SHARD_BYTES, GrowingFile
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container.files import directory_bytes
from gnnstore.formats.container.journal import JOURNAL_FILE, Record
from gnnstore.formats.container.manifest import CHECKSUMS_ARRAY
from gnnstore.formats.container.names import check_relative_path
from gnnstore.formats.container.strict_json import Fields
from gnnstore.formats.container.writer import SealedWriter
from gnnstore.formats.packed.manifest import (
    BATCHES_ARRAY,
    INDEX_ARRAY,
    SEGMENTS_ARRAY,
    PackedManifest,
)
from gnnstore.formats.packed.reader import PackedReader
from gnnstore.units import format_size


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
        on_event: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.index: list[list[int]] = []  # a row for each finished batch; see `INDEX_COLUMNS`
        self.segments: list[list[int]] = []  # for each finished segment; see `SEGMENT_COLUMNS`
        self.num_superbatches = 0  # superbatches that are finished
        self.largest_batch_bytes = 0  # bytes of the largest finished batch
        self._growing: dict[str, GrowingFile] = {}
        super().__init__(
            path,
            overwrite=overwrite,
            shard_bytes=ONE_SHARD_BYTES,
            on_event=on_event,
            fingerprint=asked,
            decided=decided,
            resume=resume,
        )

    def row_dimension(self, array_path: str) -> str | None:
        """Return a name for the checksums that the store around the epochs does not use."""
        return "plan_checksums" if array_path == CHECKSUMS_ARRAY else None

    @property
    def decided(self) -> Fields:
        """Decisions of the first attempt."""
        return Fields(self.journal.decided, self._journal_path, "decided")

    @property
    def _journal_path(self) -> str:
        return str(self.temporary_path / JOURNAL_FILE)

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

    def commit(self, manifest: PackedManifest, graph: Mapping[str, npt.NDArray[Any]]) -> Path:
        """Write index, checksums and manifest, and rename the directory into place."""
        arrays = []
        for name, file in self._growing.items():
            arrays.append(AttributeSpec(name, name, "paged", "uint8", (file.size_bytes,)))
            self._files |= file.finish()
        arrays.append(self._write_table(INDEX_ARRAY, self.index, manifest.index_columns))
        if manifest.has_segments:
            columns = manifest.segment_columns
            arrays.append(self._write_table(SEGMENTS_ARRAY, self.segments, columns))
        for spec in manifest.schema.graph_arrays.values():
            self.compressed(spec.path, graph[spec.path], name=spec.name, dtype=spec.dtype)
        return self.seal(replace(manifest, paged_arrays=tuple(arrays)))

    def _write_table(self, name: str, rows: list[list[int]], width: int) -> AttributeSpec:
        try:
            values = np.array(rows, np.int64).reshape(-1, width)
        except (OverflowError, TypeError, ValueError) as error:  # not a journal of ours
            raise CorruptStoreError(
                f"{self._journal_path}: what it says of finished batches is no {name} ({error}); "
                "repeat the command without --resume",
                path=self._journal_path,
            ) from error
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
        """Open the growing files, and keep the superbatches that earlier attempts finished."""
        rows = self.decided.texts("rows")
        names = [check_relative_path(name, file=self._journal_path) for name in rows]
        names.insert(0, BATCHES_ARRAY)
        self._growing = {name: GrowingFile(self.temporary_path, name) for name in names}
        for number, step in enumerate(self.journal.steps):
            if not self._is_as_it_was(step):
                self.journal.forget_steps(number)
                self.journal.remove_unfinished()
                break
            self._count(step)
        for file in self._growing.values():
            file.cut()

    def _is_as_it_was(self, step: Record) -> bool:
        """Whether a superbatch's regions are unchanged; else it is packed again."""
        good = [
            name in step["ends"]
            and name in step["crcs"]
            and file.take_region(step["ends"][name], step["crcs"][name])
            for name, file in self._growing.items()
        ]
        for file in self._growing.values():
            file.keep_region() if all(good) else file.forget_region()
        return all(good)

    def _count(self, step: Mapping[str, Any]) -> None:
        fields = Fields(step, self._journal_path, f"steps[{self.num_superbatches}]")
        self.num_superbatches += 1
        self.index += fields.array("index")
        self.segments += fields.array("segments")
        size = fields.integer("largest_batch_bytes")
        self.largest_batch_bytes = max(self.largest_batch_bytes, size)

    def describe_start(self) -> str:
        """Return a sentence that says where a resumed attempt begins."""
        if not self.is_resumed:
            return super().describe_start()
        return (
            f"resuming after {self.num_superbatches} superbatches ({format_size(self.num_bytes)}) "
            f"that were finished in {self.temporary_path}"
        )

    def describe_kept(self) -> str:
        """Return advice on an attempt that stopped and can go on."""
        directory = self.temporary_path
        return (
            f"The {self.num_superbatches} superbatches that are finished "
            f"({format_size(directory_bytes(directory))}) are kept in {directory}: repeat the "
            "command with resume=True to go on; 'gnnstore gc' removes them."
        )
