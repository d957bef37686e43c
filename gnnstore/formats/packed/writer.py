"""Write a packed plan: superbatch by superbatch, each journalled, then one atomic commit.

A plan has a bounded number of files: one of records, one of rows for each cached attribute, and
the index that says where each batch lies in them. They grow by a superbatch at a time, and what
is durable is written down, so that a plan of hours survives a crash or a full disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, GnnstoreError, UsageError, storage_error
from gnnstore.formats.arrays.compressed import write_cold_files
from gnnstore.formats.arrays.growing import ONE_SHARD_BYTES, ValuesFile
from gnnstore.formats.arrays.paged_writer import PagedArrayWriter
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE, group_metadata
from gnnstore.formats.container.files import ChecksummedFile, directory_bytes
from gnnstore.formats.container.journal_file import (
    JOURNAL_FILE,
    JOURNAL_VERSION,
    SUPERBATCH_RECORD,
    Record,
    append_record,
    cut_journal,
    read_records,
)
from gnnstore.formats.container.regular_files import open_binary
from gnnstore.formats.container.resume import differences, is_resumable_error
from gnnstore.formats.container.transaction import DirectoryTransaction
from gnnstore.formats.packed.manifest import (
    BATCHES_ARRAY,
    INDEX_ARRAY,
    SEGMENT_COLUMNS,
    SEGMENTS_ARRAY,
    PlanManifest,
    is_plan,
    rows_array,
)
from gnnstore.formats.store.manifest import CHECKSUMS_ARRAY, FileEntry
from gnnstore.formats.store.schema import AttributeSpec
from gnnstore.units import format_size

_MAX_DIFFERENCES = 3  # named in a message


class PlanWriter:
    """Builds a plan under a temporary name; `commit` gives it its own. Not thread-safe.

    A context manager: what is finished stays where an attempt was stopped by what is no fault of
    the data (no space, an I/O error, Ctrl-C), for `resume`; else nothing is left.

    Parameters
    ----------
    path : Path
        The plan's directory; its parent must exist.
    asked : Mapping
        What is packed and how, as JSON values: an attempt may be continued by an equal one.
    decided : Mapping
        What was decided besides, such as the sizes of superbatches. A continued attempt has
        those of the first.
    overwrite, resume : bool
    on_event : callable
        Told in a sentence what a user should know.

    Attributes
    ----------
    decided : Mapping
        What counts: that which was given, or that of the attempt that is continued.
    index : list of list of int
        Of each batch that is done; see `PlanReader`.
    segments : list of list of int
        Of each segment that is done; see `PlanReader`.
    num_superbatches : int
        That are done.
    largest_batch_bytes : int
        Of those that are done.

    Raises
    ------
    StoreExistsError, UsageError, NotFoundError, StorageError
        If the plan cannot be written there, or what was left is of another one.
    """

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
        self._asked = json.loads(json.dumps(asked))
        self._on_event = on_event
        self.decided: Mapping[str, Any] = decided
        self.index: list[list[int]] = []
        self.segments: list[list[int]] = []
        self.num_superbatches = 0
        self.largest_batch_bytes = 0
        self._values: dict[str, ValuesFile] = {}
        self._open = True
        self._transaction = DirectoryTransaction(
            path,
            overwrite=overwrite,
            is_replaceable=is_plan,
            on_event=on_event,
            adopt=self._may_adopt if resume else None,
            what="attempt to pack",
        )
        try:
            self._begin()
        except BaseException:
            self._transaction.keep() if self._transaction.adopted else self._transaction.abort()
            raise
        if resume:
            on_event(self._describe_start())

    @property
    def path(self) -> Path:
        """The plan's final path."""
        return self._transaction.final

    @property
    def temporary_path(self) -> Path:
        """Where the plan is being built."""
        return self._transaction.path

    @property
    def num_bytes(self) -> int:
        """Bytes of records and rows so far."""
        return sum(values.size_bytes for values in self._values.values())

    @property
    def batches(self) -> ValuesFile:
        """The records."""
        return self._values[BATCHES_ARRAY]

    def rows(self, spec: AttributeSpec) -> ValuesFile:
        """Return the file of an attribute's rows."""
        return self._values[rows_array(spec)]

    def finish_superbatch(
        self,
        index: Sequence[Sequence[int]],
        largest_batch_bytes: int,
        segments: Sequence[Sequence[int]] = (),
    ) -> None:
        """Make what was appended durable, and write it down.

        Parameters
        ----------
        index : sequence of sequence of int
            Of each of its batches.
        largest_batch_bytes : int
            Of its batches.
        segments : sequence of sequence of int
            Of each of its segments, where there are any.
        """
        regions = {name: values.end_region() for name, values in self._values.items()}
        record = {
            "kind": SUPERBATCH_RECORD,
            "number": self.num_superbatches,
            "ends": {name: end for name, (end, _) in regions.items()},
            "crcs": {name: crc for name, (_, crc) in regions.items()},
            "largest_batch_bytes": largest_batch_bytes,
            "index": [list(row) for row in index],
            **({"segments": [list(row) for row in segments]} if segments else {}),
        }
        append_record(self.temporary_path / JOURNAL_FILE, record)
        self._count(record)

    def commit(self, manifest: PlanManifest, graph: Mapping[str, npt.NDArray[Any]]) -> Path:
        """Write index, checksums and manifest, and rename the plan into place.

        Parameters
        ----------
        manifest : PlanManifest
            But for its files.
        graph : Mapping of str to ndarray
            Values of the graph-level arrays, by path.
        """
        files: dict[str, tuple[int, npt.NDArray[np.uint32]]] = {}
        for values in self._values.values():
            files |= values.finish()
        more = len(manifest.cached)
        index = np.array(self.index, np.int64).reshape(-1, manifest.index_columns)
        files |= self._write_paged(INDEX_ARRAY, "int64", index)
        if manifest.has_segments:
            segments = np.array(self.segments, np.int64).reshape(-1, SEGMENT_COLUMNS + more)
            files |= self._write_paged(SEGMENTS_ARRAY, "int64", segments)
        for spec in manifest.schema.graph_arrays.values():
            directory = self.temporary_path / spec.path
            directory.mkdir(parents=True)
            for name, size, crcs in write_cold_files(directory, spec, graph[spec.path]):
                files[f"{spec.path}/{name}"] = (size, crcs)
        for group in sorted({path.split("/")[0] for path in files if path.count("/") > 1}):
            files[f"{group}/{METADATA_FILE}"] = self._write_group(self.temporary_path / group)
        listed = sorted(files.items())
        blocks = np.concatenate([np.empty(0, np.uint32), *(crcs for _, (_, crcs) in listed)])
        document = replace(
            manifest,
            files=tuple(FileEntry(path, size) for path, (size, _) in listed),
            checksum_files=self._write_checksums(blocks),
        ).encode()
        root = ChecksummedFile(self.temporary_path / METADATA_FILE)
        root.write(np.frombuffer(document, dtype=np.uint8))
        root.close()
        self._transaction.commit((self.temporary_path / JOURNAL_FILE).unlink)
        self._open = False
        return self.path

    def abort(self, *, keep: bool = False) -> None:
        """Stop without a plan. Does nothing after a commit.

        Parameters
        ----------
        keep : bool
            Whether to leave the superbatches that are finished for a later attempt.
        """
        if not self._open:
            return
        self._open = False
        for values in self._values.values():
            values.close()
        if keep and self.num_superbatches:
            self._transaction.keep()
        else:
            self._transaction.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        keeps = self._open and error is not None and is_resumable_error(error)
        self.abort(keep=keeps)
        if keeps and self.temporary_path.exists():
            advice = (
                f"The {self.num_superbatches} superbatches that are finished "
                f"({format_size(directory_bytes(self.temporary_path))}) are kept in "
                f"{self.temporary_path}: repeat the command with --resume (resume=True) to go on; "
                "'gnnstore gc' removes them."
            )
            if isinstance(error, GnnstoreError):
                error.message = f"{error.message} {advice}"
            else:
                self._on_event(advice)

    # ---- beginning, and going on

    def _may_adopt(self, directory: Path) -> bool:
        records, _ = read_records(directory / JOURNAL_FILE)
        if not any(record.get("kind") == SUPERBATCH_RECORD for record in records):
            return False
        found = list(differences(records[0]["fingerprint"].get("asked"), self._asked))
        if not found:
            return True
        shown = "; ".join(found[:_MAX_DIFFERENCES])
        more = len(found) - _MAX_DIFFERENCES
        raise UsageError(
            f"{directory}: the interrupted plan there cannot be continued, since it is another "
            f"one: {shown}{f'; and {more} more' if more > 0 else ''}. Repeat the command that was "
            "interrupted, or leave --resume (resume=True) out to remove it and start anew",
            path=directory,
        )

    def _begin(self) -> None:
        directory = self.temporary_path
        records: list[Record] = []
        if self._transaction.adopted:
            records, good_bytes = read_records(directory / JOURNAL_FILE)
            self.decided = records[0]["fingerprint"]["decided"]
            cut_journal(directory / JOURNAL_FILE, good_bytes)
        else:
            fingerprint = {"asked": self._asked, "decided": dict(self.decided)}
            header = {"kind": "header", "version": JOURNAL_VERSION, "fingerprint": fingerprint}
            append_record(directory / JOURNAL_FILE, header)
        names = [BATCHES_ARRAY, *self.decided["rows"]]
        self._values = {name: ValuesFile(directory, name) for name in names}
        for record in records[1:]:
            if not self._take_over(record):
                break
        for values in self._values.values():
            values.cut()
        kept = {directory / JOURNAL_FILE, *(values.file_path for values in self._values.values())}
        for root, _, files in os.walk(directory, topdown=False):
            for path in (Path(root, name) for name in files):
                if path not in kept:
                    path.unlink()
            if Path(root) != directory and not any(Path(root).iterdir()):
                Path(root).rmdir()  # of an array that was made at the end

    def _take_over(self, record: Record) -> bool:
        """Read what a superbatch has left and compare it; False: it is to be done again."""
        if record.get("kind") != SUPERBATCH_RECORD or record["number"] != self.num_superbatches:
            return False
        good = [
            values.take_region(record["ends"][name], record["crcs"][name])
            for name, values in self._values.items()
        ]
        if not all(good):
            for values in self._values.values():
                values.forget_region()
            _truncate_journal(self.temporary_path / JOURNAL_FILE, self.num_superbatches + 1)
            return False
        for values in self._values.values():
            values.keep_region()
        self._count(record)
        return True

    def _count(self, record: Mapping[str, Any]) -> None:
        self.num_superbatches += 1
        self.index += record["index"]
        self.segments += record.get("segments", [])
        self.largest_batch_bytes = max(self.largest_batch_bytes, record["largest_batch_bytes"])

    def _describe_start(self) -> str:
        if not self._transaction.adopted:
            return f"nothing to resume for {self.path}: starting from the beginning"
        return (
            f"resuming after {self.num_superbatches} superbatches ({format_size(self.num_bytes)}) "
            f"that were finished in {self.temporary_path}"
        )

    # ---- files that are written at once

    def _write_paged(
        self, array_path: str, dtype: str, values: npt.NDArray[Any]
    ) -> dict[str, tuple[int, npt.NDArray[np.uint32]]]:
        directory = self.temporary_path / array_path
        directory.mkdir()
        spec = AttributeSpec(array_path, array_path, "paged", dtype, values.shape)
        with PagedArrayWriter(directory, spec, DEFAULT_PAGE_BYTES, ONE_SHARD_BYTES) as writer:
            writer.append(values)
        return {f"{array_path}/{name}": (size, crcs) for name, size, crcs in writer.files}

    def _write_group(self, directory: Path) -> tuple[int, npt.NDArray[np.uint32]]:
        file = ChecksummedFile(directory / METADATA_FILE)
        file.write(np.frombuffer(json.dumps(group_metadata(), indent=1).encode(), np.uint8))
        crcs = file.close()
        return file.size_bytes, crcs

    def _write_checksums(self, blocks: npt.NDArray[np.uint32]) -> tuple[tuple[FileEntry, int], ...]:
        entries = []
        for path, (size, _) in self._write_paged(CHECKSUMS_ARRAY, "uint32", blocks).items():
            whole = _core.crc32c_file(str(self.temporary_path / path), max(1, size))
            entries.append((FileEntry(path, size), int(whole[0])))
        return tuple(entries)


def _truncate_journal(path: Path, num_lines: int) -> None:
    """Keep the first lines of a journal."""
    try:
        with open_binary(path, error=CorruptStoreError, root=path.parent) as file:
            lines = file.readlines()[:num_lines]
    except OSError as error:
        raise storage_error(error, "continue the journal", path) from error
    cut_journal(path, sum(map(len, lines)))
