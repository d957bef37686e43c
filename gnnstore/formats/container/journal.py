"""The journal of a writer: finished and durable work, so that a later run can go on.

Work of hours must survive a full disk, Ctrl-C and a crash. The journal lies in the
temporary directory and grows by one line whenever something is complete: a shard, a compressed
array, a sorted run of edges, the adjacency, a step of arrays that grow together. The data are
synchronised before their line is written and the line before work goes on, so a line that can be
read speaks of bytes that are there. Everything without a line is done again.

Lines are JSON, each led by its crc32c. Reading stops at the first line that is damaged, as a crash
may tear the last one, or has not the fields of its kind; it is cut off before the file grows again.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, StorageError, storage_errors
from gnnstore.formats.arrays.pages import ShardLayout
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.arrays.zarr_metadata import shard_name
from gnnstore.formats.container.files import (
    BLOCK_BYTES,
    BlockCrcs,
    StoredFile,
    crc32c_of,
    write_all,
)
from gnnstore.formats.container.regular_files import open_binary, open_regular
from gnnstore.formats.container.strict_json import parse_object, value_bound

SPILL_DIRECTORY = "spill"
JOURNAL_FILE = "journal"
JOURNAL_VERSION = 1
# A line stays below a kilobyte; the header names each input. A larger file is no journal.
_MAX_JOURNAL_BYTES = 2**28
# In all lines: a packed batch takes ten, which makes 800,000 batches. Steps recorded behind the
# limit are done again, like those behind a damaged line.
_MAX_JOURNAL_VALUES = 2**23

Record = dict[str, Any]

# Fields of the lines of each kind that the journal itself needs: the types of values, of all
# elements of a list, and of all values of an object under `str`. A journal may come from anywhere.
_SHAPES: dict[str, Any] = {
    "header": {"version": int, "fingerprint": dict},
    "shard": {"array": str, "number": int, "row_ndim": int, "layout": list, "crc": int},
    "cold": {"array": str, "content_crc": int, "files": [list]},
    "run": {"run": {"files": [str]}, "sizes": [int]},
    "forget_runs": {},
    "step": {"number": int, "ends": {str: int}, "crcs": {str: int}},
    "edges": {"edges": dict},
    "spill_directory": {"path": str},
}
_MAX_AXES = 64


class Journal:
    """The lines of one writer; made by `create` or `reopen`. Not thread-safe."""

    def __init__(self, directory: Path, records: Sequence[Record]) -> None:
        self.directory = directory  # the temporary directory that the journal lies in
        # Description of the contents and how they are written: a run may go on with this directory
        # if its own is equal.
        self.fingerprint: Mapping[str, Any] = records[0]["fingerprint"]
        # Further choices of the first run, which later runs take over.
        self.decided: Mapping[str, Any] = records[0].get("decided", {})
        # For sorted runs of edges; the directory may not exist.
        self.spill_directory = directory / SPILL_DIRECTORY
        self.steps: list[Record] = []  # the steps that are finished, in order; see `record_step`
        self._shards: dict[tuple[str, int], Record] = {}
        self._compressed: dict[str, Record] = {}
        self._runs: list[Record] = []
        self._edges: list[Record] = []
        # Shards that were compared already: an array may be opened more than once.
        self._compared: dict[tuple[str, int], BlockCrcs] = {}
        self.spill_directories = [self.spill_directory]
        for record in records[1:]:
            self._take(record)

    @classmethod
    def create(
        cls,
        directory: Path,
        fingerprint: Mapping[str, Any],
        decided: Mapping[str, Any] | None = None,
    ) -> Journal:
        """Begin a journal in an empty directory."""
        header = {
            "kind": "header",
            "version": JOURNAL_VERSION,
            "fingerprint": dict(fingerprint),
            **({} if decided is None else {"decided": dict(decided)}),
        }
        # Through JSON, so that it compares equal with what is read back (lists, not tuples).
        journal = cls(directory, [json.loads(json.dumps(header))])
        append_record(directory / JOURNAL_FILE, header)
        return journal

    @classmethod
    def reopen(cls, directory: Path) -> Journal | None:
        """Return the journal in a directory, to be continued; None if none can be trusted.

        The directory must be locked by the caller.
        """
        records, good_bytes = read_records(directory / JOURNAL_FILE)
        if not records:
            return None
        journal = cls(directory, records)
        cut_journal(directory / JOURNAL_FILE, good_bytes)
        return journal

    @property
    def has_work(self) -> bool:
        """Whether a later run can use finished work."""
        return bool(
            self.fingerprint and (self._shards or self._compressed or self._runs or self.steps)
        )

    def _take(self, record: Record) -> None:
        kind = record.get("kind")
        if kind == "shard":
            self._shards[record["array"], record["number"]] = record
        elif kind == "cold":
            self._compressed[record["array"]] = record
        elif kind == "run":
            self._runs.append(record)
        elif kind == "forget_runs":
            self._runs.clear()
        elif kind == "step" and record["number"] == len(self.steps):
            self.steps.append(record)
        elif kind == "edges":
            self._edges.append(record["edges"])
            self._runs.clear()  # those of other edges follow
        elif kind == "spill_directory":
            self._take_spill_directory(Path(record["path"]))

    def _take_spill_directory(self, path: Path) -> None:
        # Cleaning up deletes this directory, so a journal must not name any other.
        if path == self.directory / SPILL_DIRECTORY or path.name == foreign_spill_name(
            self.directory
        ):
            self.spill_directory = path
            self.spill_directories.append(path)

    def _record(self, record: Record) -> None:
        append_record(self.directory / JOURNAL_FILE, record)
        self._take(json.loads(json.dumps(record)))

    # ---- arrays

    def committed_shards(self, spec: AttributeSpec, layout: ShardLayout) -> list[StoredFile]:
        """Return the first shards of a paged array that are complete.

        Their bytes are read and compared: that costs less than writing them again, and bytes that a
        disk lost in spite of its promise are found now rather than in training.
        """
        found: list[StoredFile] = []
        for number in range(layout.num_shards):
            record = self._shards.get((spec.path, number))
            if record is None or record["layout"] != _describe(spec, layout):
                break
            name, size = shard_name(number, len(spec.shape) - 1), layout.shard_file_bytes(number)
            crcs = self._compared.get((spec.path, number))
            if crcs is None:
                crcs = _checked_blocks(self.directory / spec.path / name, size, record["crc"])
            if crcs is None:
                break
            self._compared[spec.path, number] = crcs
            found.append((name, size, crcs))
        for path, number in list(self._shards):
            if path == spec.path and number >= len(found):  # to be written again
                record = self._shards.pop((path, number))
                name = shard_name(number, record["row_ndim"])
                (self.directory / path / name).unlink(missing_ok=True)
        return found

    def record_shard(
        self, spec: AttributeSpec, layout: ShardLayout, number: int, crcs: BlockCrcs
    ) -> None:
        """Record that a shard is complete and durable."""
        self._record(
            {
                "kind": "shard",
                "array": spec.path,
                "number": number,
                "row_ndim": len(spec.shape) - 1,
                "layout": _describe(spec, layout),
                "crc": crc_of_blocks(crcs),
            }
        )

    def compressed_files(self, path: str, content_crc: int) -> list[StoredFile] | None:
        """Return the files of a compressed array if an equal one is written; else None."""
        record = self._compressed.get(path)
        if record is None or record["content_crc"] != content_crc:
            return None
        found = []
        for name, size, crc in record["files"]:
            crcs = _checked_blocks(self.directory / path / name, size, crc)
            if crcs is None:
                return None
            found.append((name, size, crcs))
        return found

    def record_compressed(self, path: str, content_crc: int, files: Sequence[StoredFile]) -> None:
        """Record that a compressed array is complete and durable."""
        listed = [[name, size, crc_of_blocks(crcs)] for name, size, crcs in files]
        self._record({"kind": "cold", "array": path, "content_crc": content_crc, "files": listed})

    # ---- sorted runs of edges

    def use_spill_directory(self, path: Path) -> None:
        """Put the runs to come elsewhere; those of an earlier attempt stay where they are."""
        if path != self.spill_directory:
            self._record({"kind": "spill_directory", "path": str(path)})

    def runs(self) -> list[Record]:
        """Return the runs that an earlier attempt finished, in order."""
        found = []
        for record in self._runs:
            files = zip(map(Path, record["run"]["files"]), record["sizes"], strict=True)
            if not all(self._is_own(path) and _has_size(path, size) for path, size in files):
                break
            found.append(dict(record["run"]))
        return found

    def _is_own(self, path: Path) -> bool:
        # Runs are deleted when they are merged, so a journal must not name other files.
        places = (self.directory, *self.spill_directories)
        return ".." not in path.parts and any(map(path.is_relative_to, places))

    def record_run(self, run: Mapping[str, Any]) -> None:
        """Record that a sorted run of edges is complete and durable."""
        sizes = [Path(path).stat().st_size for path in run["files"]]
        self._record({"kind": "run", "run": dict(run), "sizes": sizes})

    def forget_runs(self) -> None:
        """Record that the runs are gone, before the first run is deleted or changed."""
        if self._runs:
            self._record({"kind": "forget_runs"})

    # ---- the adjacency

    def edges(self) -> list[Record]:
        """Return the descriptions of the adjacencies that an earlier attempt completed."""
        return self._edges

    def record_edges(self, edges: Mapping[str, Any]) -> None:
        """Record that every shard of the adjacency is recorded."""
        self._record({"kind": "edges", "edges": dict(edges)})

    # ---- steps of arrays that grow together

    def record_step(self, ends: Mapping[str, tuple[int, int]], values: Mapping[str, Any]) -> None:
        """Record that another step is durable."""
        record = {
            "kind": "step",
            "number": len(self.steps),
            "ends": {path: end for path, (end, _) in ends.items()},
            "crcs": {path: crc for path, (_, crc) in ends.items()},
            **values,
        }
        self._record(record)

    def forget_steps(self, first: int) -> None:
        """Cut the journal off before step `first`."""
        records, _ = read_records(self.directory / JOURNAL_FILE)
        kept = 0
        for record in records:
            if record.get("kind") == "step" and record["number"] >= first:
                break
            kept += len(encode_record(record))
        cut_journal(self.directory / JOURNAL_FILE, kept)
        del self.steps[first:]
        self._shards.clear()
        self._compressed.clear()

    # ---- the directory

    def _recorded_files(self) -> set[Path]:
        """Return every file that a record names; other files are unfinished."""
        recorded = {self.directory / JOURNAL_FILE}
        for (path, number), record in self._shards.items():
            recorded.add(self.directory / path / shard_name(number, record["row_ndim"]))
        for path, record in self._compressed.items():
            recorded.update(self.directory / path / name for name, _, _ in record["files"])
        for run in self.runs():
            recorded.update(Path(path) for path in run["files"])
        for step in self.steps:
            recorded.update(self.directory / path / shard_name(0, 0) for path in step["ends"])
        return recorded

    def remove_unfinished(self) -> None:
        """Delete every file that no line names, and then empty directories."""
        recorded = self._recorded_files()
        for place in (self.directory, *self.spill_directories[1:]):
            for root, _, names in os.walk(place, topdown=False):
                for name in names:
                    if Path(root, name) not in recorded:
                        Path(root, name).unlink(missing_ok=True)
                if Path(root) != self.directory:
                    with suppress(OSError):  # it holds a recorded file, or zarr's thread writes
                        Path(root).rmdir()

    def close(self) -> None:
        """Remove the journal, when the directory is complete."""
        (self.directory / JOURNAL_FILE).unlink()
        self.steps.clear()
        self._shards.clear()
        self._compressed.clear()
        self._runs.clear()


def _describe(spec: AttributeSpec, layout: ShardLayout) -> list[Any]:
    """Return the values that decide which bytes belong in which shard."""
    geometry = layout.geometry
    return [
        spec.dtype,
        layout.num_rows,
        geometry.row_bytes,
        geometry.page_bytes,
        layout.shard_runs,
        layout.chunk_runs,
    ]


def foreign_spill_name(directory: Path) -> str:
    """Return the name of a spill directory outside of the temporary directory."""
    return f"{directory.name}.{SPILL_DIRECTORY}"


def crc_of_blocks(crcs: BlockCrcs) -> int:
    """Return one crc32c for the checksums of all blocks of a file."""
    return crc32c_of(crcs.astype("<u4").tobytes())


def _checked_blocks(path: Path, size: int, crc: int) -> BlockCrcs | None:
    """Return the checksums of a file's blocks; None if it is not the recorded file."""
    if not _has_size(path, size):
        return None
    try:
        threads = min(8, len(os.sched_getaffinity(0)))
        crcs = np.asarray(_core.crc32c_file(str(path), BLOCK_BYTES, threads))
    except OSError:
        return None
    return crcs if crc_of_blocks(crcs) == crc else None


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _has_shape(value: Any, shape: Any) -> bool:
    if isinstance(shape, list):
        return isinstance(value, list) and all(_has_shape(item, shape[0]) for item in value)
    if isinstance(shape, dict) and str in shape:
        return isinstance(value, dict) and all(_has_shape(v, shape[str]) for v in value.values())
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            _has_shape(value.get(key), expected) for key, expected in shape.items()
        )
    if shape is int:
        return type(value) is int and 0 <= value < 2**62
    return isinstance(value, shape)


def _is_record(record: Record) -> bool:
    """Whether a line has the fields of its kind; kinds of later versions pass."""
    kind = record.get("kind")
    if not isinstance(kind, str) or not _has_shape(record, _SHAPES.get(kind, {})):
        return False
    if kind == "cold":
        return all(
            len(file) == 3 and _has_shape(file[0], str) and _has_shape(file[1:], [int])
            for file in record["files"]
        )
    if kind == "run":
        return len(record["sizes"]) == len(record["run"]["files"])
    return kind != "shard" or record["row_ndim"] < _MAX_AXES


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Append the line of a record, durably."""
    with storage_errors("write the journal", path):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = open_regular(path, flags, error=CorruptStoreError)
        with open(descriptor, "ab", buffering=0) as file:  # noqa: PTH123 - a descriptor
            write_all(file, memoryview(encode_record(record)))
            os.fsync(file.fileno())


def cut_journal(path: Path, num_bytes: int) -> None:
    """Cut a journal off behind a record."""
    with storage_errors("continue the journal", path):
        descriptor = open_regular(path, os.O_WRONLY, error=CorruptStoreError)
        try:
            os.ftruncate(descriptor, num_bytes)
        finally:
            os.close(descriptor)


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Return the line of a record: a crc32c, then JSON."""
    text = json.dumps(record, allow_nan=False).encode()
    return b"%08x %s\n" % (crc32c_of(text), text)


def read_records(path: Path) -> tuple[list[Record], int]:
    """Return the records of a journal up to the first damaged line, and their bytes."""
    try:
        with open_binary(path, error=StorageError) as file:
            data = file.read(_MAX_JOURNAL_BYTES + 1)
    except OSError:
        return [], 0
    if len(data) > _MAX_JOURNAL_BYTES:
        return [], 0
    records: list[Record] = []
    good_bytes = 0
    values_left = _MAX_JOURNAL_VALUES
    for line in io.BytesIO(data):
        record = _decode_line(line, path, values_left)
        if record is None:
            break
        records.append(record)
        good_bytes += len(line)
        values_left -= value_bound(line)
    header = records[0] if records else {}
    if header.get("kind") != "header" or header["version"] != JOURNAL_VERSION:
        return [], 0
    return records, good_bytes


def _decode_line(line: bytes, path: Path, max_values: int) -> Record | None:
    crc, _, text = line.partition(b" ")
    if not line.endswith(b"\n") or b"%08x" % crc32c_of(text[:-1]) != crc:
        return None
    try:
        record = parse_object(text, path=str(path), max_values=max_values)
    except CorruptStoreError:
        return None
    return record if _is_record(record) else None
