"""The journal of a writer: finished and durable work, so that a later run can go on.

The journal lies in the temporary directory and grows by one line whenever something is complete: a
shard, a sorted run of edges, the adjacency, a step of arrays that grow together. The data are
synchronised before their line is written and the line before work goes on, so a line that can be
read speaks of bytes that are there. Everything without a line is done again, compressed arrays too.

Lines are JSON, each led by its crc32c. Reading stops at the first line that is damaged, as a crash
may tear the last one; it is cut off before the file grows again.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, storage_errors
from gnnstore.formats.arrays.pages import ShardLayout
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.arrays.zarr_metadata import shard_name
from gnnstore.formats.base.files import (
    BLOCK_BYTES,
    BlockCrcs,
    StoredFile,
    crc32c_of,
    open_binary,
    open_regular,
    write_all,
)

SPILL_DIRECTORY = "spill"
JOURNAL_FILE = "journal"
JOURNAL_VERSION = 2

Record = dict[str, Any]


class Journal:
    """The lines of one writer; made by `create` or `read`. Not thread-safe."""

    def __init__(self, directory: Path, records: Sequence[Record]) -> None:
        self.directory = directory  # the temporary directory that the journal lies in
        # Description of the contents and how they are written: a run may go on with this directory
        # if its own is equal.
        self.fingerprint: Mapping[str, Any] = records[0]["fingerprint"]
        # Further choices of the first run, which later runs take over.
        self.decided: Mapping[str, Any] = records[0]["decided"]
        # For sorted runs of edges, the current one last; they may not exist.
        self.spill_directories = [directory / SPILL_DIRECTORY]
        self.steps: list[Record] = []  # the steps that are finished, in order; see `record_step`
        self.edges: list[Record] = []  # the adjacencies that are complete; see `record_edges`
        self._shards: dict[tuple[str, int], Record] = {}
        self._runs: list[Record] = []
        # Shards that were compared already: an array may be opened more than once.
        self._compared: dict[tuple[str, int], BlockCrcs] = {}
        for record in records[1:]:
            self._take(**record)

    @classmethod
    def create(
        cls, directory: Path, fingerprint: Mapping[str, Any], decided: Mapping[str, Any]
    ) -> Journal:
        """Begin a journal in an empty directory."""
        header = {
            "kind": "header",
            "version": JOURNAL_VERSION,
            "fingerprint": dict(fingerprint),
            "decided": dict(decided),
        }
        return cls(directory, [append_record(directory / JOURNAL_FILE, header)])

    @classmethod
    def read(cls, directory: Path, *, to_continue: bool = False) -> Journal | None:
        """Return the journal in a directory; None if there is none. Cut off damaged lines."""
        path = directory / JOURNAL_FILE
        records, good_bytes = read_records(path)
        if not records:
            return None
        if to_continue:  # and the directory is locked
            with storage_errors("continue the journal", path):
                os.truncate(path, good_bytes)
        return cls(directory, records)

    @property
    def has_work(self) -> bool:
        """Whether a later run can use finished work."""
        return bool(self.fingerprint and (self._shards or self._runs or self.steps))

    @property
    def spill_directory(self) -> Path:
        """The directory for sorted runs of edges to come."""
        return self.spill_directories[-1]

    def _take(self, kind: str, **record: Any) -> None:
        if kind == "shard" and self._is_own(self.directory / record["array"] / record["file"]):
            self._shards[record["array"], record["number"]] = record
        elif kind == "run":
            self._runs.append(record)
        elif kind == "forget_runs":
            self._runs.clear()
        elif kind == "step":
            self.steps.append(record)
        elif kind == "forget_steps":
            self.steps.clear()
            self._shards.clear()
        elif kind == "edges":
            self.edges.append(record["edges"])
            self._runs.clear()  # runs of other edges follow
        # Cleaning up deletes this directory, so a journal must not name any other.
        elif kind == "spill_directory":
            path = Path(record["path"])
            if path == self.spill_directories[0] or path.name == foreign_spill_name(self.directory):
                self.spill_directories.append(path)

    def _is_own(self, path: Path) -> bool:
        # Files that a journal names are deleted, so it must not name other files.
        places = (self.directory, *self.spill_directories)
        return ".." not in path.parts and any(map(path.is_relative_to, places))

    def _record(self, kind: str, **record: Any) -> None:
        self._take(**append_record(self.directory / JOURNAL_FILE, {"kind": kind, **record}))

    # ---- arrays

    def committed_shards(self, spec: AttributeSpec, layout: ShardLayout) -> list[StoredFile]:
        """Return the first shards of a paged array that are complete.

        Their bytes are read and compared: that costs less than writing them again, and bytes that a
        disk lost in spite of its promise are found now rather than in training.
        """
        found: list[StoredFile] = []
        for number in range(layout.num_shards):
            record = self._shards.get((spec.path, number))
            if record is None or record["layout"] != [spec.dtype, asdict(layout)]:
                break
            name, size = record["file"], layout.shard_file_bytes(number)
            crcs = self._compared.get((spec.path, number))
            if crcs is None:
                crcs = _checked_blocks(self.directory / spec.path / name, size, record["crc"])
            if crcs is None:
                break
            self._compared[spec.path, number] = crcs
            found.append((name, size, crcs))
        for path, number in list(self._shards):
            if path == spec.path and number >= len(found):  # to be written again
                file = self.directory / path / self._shards.pop((path, number))["file"]
                file.unlink(missing_ok=True)
        return found

    def record_shard(
        self, spec: AttributeSpec, layout: ShardLayout, number: int, file: StoredFile
    ) -> None:
        """Record that a shard is complete and durable."""
        name, _, crcs = file
        self._record(
            "shard",
            array=spec.path,
            number=number,
            file=name,
            layout=[spec.dtype, asdict(layout)],
            crc=crc_of_blocks(crcs),
        )

    # ---- edges

    def use_spill_directory(self, path: Path) -> None:
        """Put the runs to come elsewhere; runs of an earlier attempt stay where they are."""
        if path != self.spill_directory:
            self._record("spill_directory", path=str(path))

    def runs(self) -> list[Record]:
        """Return the sorted runs that an earlier attempt finished, in order."""
        found = []
        for record in self._runs:
            files = zip(map(Path, record["run"]["files"]), record["sizes"], strict=True)
            if not all(self._is_own(path) and _has_size(path, size) for path, size in files):
                break
            found.append(dict(record["run"]))
        return found

    def record_run(self, run: Mapping[str, Any]) -> None:
        """Record that a sorted run of edges is complete and durable."""
        sizes = [Path(path).stat().st_size for path in run["files"]]
        self._record("run", run=dict(run), sizes=sizes)

    def forget_runs(self) -> None:
        """Record that the runs are gone, before the first run is deleted or changed."""
        if self._runs:
            self._record("forget_runs")

    def record_edges(self, edges: Mapping[str, Any]) -> None:
        """Record that every shard of the adjacency is recorded."""
        self._record("edges", edges=dict(edges))

    # ---- steps of arrays that grow together

    def record_step(self, ends: Mapping[str, tuple[int, int]], values: Mapping[str, Any]) -> None:
        """Record that another step is durable: the end and the crc32c of its part of each array."""
        self._record("step", ends=ends, **values)

    def forget_steps(self) -> None:
        """Record that all steps are gone, and what was written after them."""
        for record in self._shards.values():
            (self.directory / record["array"] / record["file"]).unlink(missing_ok=True)
        self._record("forget_steps")

    # ---- the directory

    def remove_unfinished(self) -> None:
        """Delete every file that no line names, and then empty directories."""
        recorded = {self.directory / JOURNAL_FILE}
        recorded |= {self.directory / of["array"] / of["file"] for of in self._shards.values()}
        for run in self.runs():
            recorded |= {Path(path) for path in run["files"]}
        for step in self.steps:
            recorded |= {self.directory / path / shard_name(0, 0) for path in step["ends"]}
        for place in (self.directory, *self.spill_directories[1:]):
            for root, _, names in os.walk(place, topdown=False):
                for name in names:
                    if Path(root, name) not in recorded:
                        Path(root, name).unlink(missing_ok=True)
                if Path(root) != self.directory:
                    with suppress(OSError):  # it holds a recorded file
                        Path(root).rmdir()

    def close(self) -> None:
        """Remove the journal, when the directory is complete."""
        (self.directory / JOURNAL_FILE).unlink()


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


def append_record(path: Path, record: Mapping[str, Any]) -> Record:
    """Append the line of a record, durably; return the record as it will be read."""
    line = encode_record(record)
    with storage_errors("write the journal", path):
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with io.FileIO(open_regular(path, flags), "a") as file:
            write_all(file, memoryview(line))
            os.fsync(file.fileno())
    return _decode(line) or {}


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Return the line of a record: a crc32c, then JSON."""
    text = json.dumps(record, allow_nan=False).encode()
    return b"%08x %s\n" % (crc32c_of(text), text)


def _decode(line: bytes) -> Record | None:
    """Return the record of a line; None if it is damaged."""
    crc, _, text = line.partition(b" ")
    if not line.endswith(b"\n") or b"%08x" % crc32c_of(text[:-1]) != crc:
        return None
    record: Record = json.loads(text)
    return record


def read_records(path: Path) -> tuple[list[Record], int]:
    """Return the records of a journal up to the first damaged line, and their bytes."""
    records: list[Record] = []
    good_bytes = 0
    with suppress(OSError, CorruptStoreError), open_binary(path) as file:
        for line in file:
            if (record := _decode(line)) is None:
                break
            records.append(record)
            good_bytes += len(line)
    header = records[0] if records else {}
    if (header.get("kind"), header.get("version")) != ("header", JOURNAL_VERSION):
        return [], 0
    return records, good_bytes
