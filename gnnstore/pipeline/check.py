"""Verifies a store and the batches of its packed epochs, as training reads them.

Three levels, each including the one before: `header` (metadata, sizes, stray files),
`checksums` (every byte of every file), `full` (the meaning of the numbers, by kind).

The checksums of packed files are of the bytes that were read back while packing. The
checksums in the records are of the bytes that were to be written; training compares them, and so
does this module, batch by batch.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import (
    CorruptStoreError,
    NotFoundError,
    StorageError,
    UnsupportedVersionError,
    UsageError,
    check_choice,
    checked_path,
    limits_named,
    storage_errors,
)
from gnnstore.features.packed_epochs import cached_nodes, device_rows
from gnnstore.features.packed_rows import PackedFiles
from gnnstore.features.source import RowRequest
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE
from gnnstore.formats.base.files import BLOCK_BYTES, Problem, page_aligned
from gnnstore.formats.container.manifest import KINDS, FileEntry, Kind, kind_of
from gnnstore.formats.container.reader import SealedFiles, SealedReader
from gnnstore.formats.packed import (
    PACKED,
    PackedParts,
    PackedReader,
    check_complete,
    has_parts,
    parts_in,
)
from gnnstore.formats.table_directory import SlotFile
from gnnstore.formats.tables import SLOTS_FILE, TableManifest
from gnnstore.progress import NullProgress, Progress
from gnnstore.sampling.row_space import RowSpace
from gnnstore.threads import ordered_map

Level = Literal["header", "checksums", "full"]
LEVELS: tuple[Level, ...] = ("header", "checksums", "full")


@dataclass
class Report:
    """The result of `verify`.

    Attributes
    ----------
    level : str
        The level that was asked for.
    problems : list of Problem
        Empty for a sound store.
    files, bytes_read : int
        Files whose size was checked; bytes whose checksum was computed.
    """

    level: Level
    problems: list[Problem] = field(default_factory=list)
    files: int = 0
    bytes_read: int = 0

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def find_units(
    directory: Path,
) -> tuple[dict[SealedFiles[Any], list[Problem]], list[Problem]]:
    """Return a sealed directory and those inside it, such as the packed epochs of a store."""
    if has_parts(directory):
        return _find_parts(directory)
    # A directory of no kind is opened as a store, to report the problem.
    units = dict([_open(_sealed_kind(directory) or KINDS["store"], directory)])
    problems: list[Problem] = []
    for inner in KINDS:
        place = directory / inner.directory
        if not inner.directory or not place.is_dir():
            continue
        for unit in sorted(place.iterdir()):
            if unit.name.startswith(".") or unit.name == METADATA_FILE:
                continue  # a writer's directory, or the group's metadata
            try:
                units |= [_open(_sealed_kind(unit) or inner, unit)]
            except (CorruptStoreError, UnsupportedVersionError, NotFoundError) as error:
                problems.append(Problem(error.path or str(unit), str(error)))
    return units, problems


def _find_parts(directory: Path) -> tuple[dict[SealedFiles[Any], list[Problem]], list[Problem]]:
    """Return the parts of packed epochs in a directory, and what they lack together."""
    units: dict[SealedFiles[Any], list[Problem]] = {}
    problems: list[Problem] = []
    names = parts_in(os.listdir(directory))  # noqa: PTH208
    for *_, name in names:
        try:
            units |= [_open(PACKED, directory / name)]
        except (CorruptStoreError, UnsupportedVersionError, NotFoundError) as error:
            problems.append(Problem(error.path or str(directory / name), str(error)))
    try:
        check_complete(str(directory), names)
        if readers := [each for each in units if isinstance(each, PackedReader)]:
            PackedParts.from_readers(directory, {reader.path.name: reader for reader in readers})
    except (UsageError, NotFoundError) as error:
        problems.append(Problem(str(directory), str(error)))
    return units, problems


def _sealed_kind(path: Path) -> Kind | None:
    kind = kind_of(path)
    return kind if kind is not None and kind.manifest.FILE == METADATA_FILE else None


def _open(kind: Kind, directory: Path) -> tuple[SealedFiles[Any], list[Problem]]:
    try:
        return kind.open(directory), []
    except (CorruptStoreError, StorageError) as error:
        files: SealedFiles[Any] = SealedFiles.find(directory, kind.manifest)
        wrong = [Problem(found.path or "", str(found)) for _, found in files.wrong_files()]
        if isinstance(error, StorageError) and not wrong:
            raise
        return files, wrong or [Problem(error.path or str(directory), str(error))]


def stray_files(reader: SealedFiles[Any]) -> Iterator[Problem]:
    """Yield files that the manifest does not list."""
    listed = {entry.path for entry in reader.files} | {METADATA_FILE}
    separate = {kind.directory for kind in KINDS}
    for root, directories, names in os.walk(reader.path):
        if Path(root) == reader.path:
            directories[:] = [name for name in directories if name not in separate]
        for name in names:
            file = Path(root) / name
            if file.relative_to(reader.path).as_posix() not in listed:
                yield Problem(str(file), "the manifest does not list this file; remove it")


def compare_checksums(
    reader: SealedFiles[Any], num_threads: int, on_bytes: Callable[[int], None]
) -> Iterator[Problem]:
    """Compare every file with its checksums; yield the ranges that differ."""
    wrong: set[str] = set()
    if not isinstance(reader, SealedReader):
        wrong = {entry.path for entry, _ in reader.wrong_files()}
    if not wrong.isdisjoint(entry.path for entry, _ in reader.manifest.checksum_files):
        return
    altered = [
        Problem(error.path or "", str(error), 0, entry.size_bytes)
        for entry, error in reader.altered_checksums()
    ]
    on_bytes(sum(entry.size_bytes for entry, _ in reader.manifest.checksum_files))
    yield from altered
    if altered:  # without the checksums nothing can be compared
        return
    try:
        table = reader.checksum_table()
    except CorruptStoreError as error:  # the files have the listed sizes, but of another array
        yield Problem(error.path or str(reader.path), str(error))
        return
    first_blocks = reader.manifest.first_blocks()
    for entry, first in zip(reader.manifest.files, first_blocks[:-1], strict=True):
        on_bytes(entry.size_bytes)
        if entry.path in wrong:
            continue
        path = reader.path / entry.path
        with storage_errors("verify", path):
            crcs = _core.crc32c_file(str(path), BLOCK_BYTES, num_threads)
        expected_crcs = table[first : first + entry.num_blocks]
        yield from _differences(path, entry, crcs, expected_crcs)


def _differences(
    path: Path,
    entry: FileEntry,
    found: npt.NDArray[np.uint32],
    expected: npt.NDArray[np.uint32],
) -> Iterator[Problem]:
    """Yield the runs of blocks whose checksums differ."""
    bad = np.flatnonzero(found != expected)
    if not len(bad):
        return
    for run in np.split(bad, np.flatnonzero(np.diff(bad) > 1) + 1):
        first = int(run[0]) * BLOCK_BYTES
        end = min((int(run[-1]) + 1) * BLOCK_BYTES, entry.size_bytes)
        detail = f"expected {int(expected[run[0]]):08x}, found {int(found[run[0]]):08x}"
        yield Problem(str(path), f"checksum mismatch ({detail})", first, end)


@limits_named("verify")
def verify(
    path: str | os.PathLike[str],
    level: Level = "checksums",
    *,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a store with its packed epochs and partitions, one of these, or an embedding table.

    Parameters
    ----------
    level : "header", "checksums" or "full"
        How much to check. "full" also reads each packed batch as training does, once everything
        else is sound.
    num_threads : int, optional
        Threads that read and checksum; the processors available by default.

    Returns
    -------
    Report
        All problems: a damaged store is a result, not an error.

    Raises
    ------
    NotFoundError, UnsupportedVersionError
        If there is nothing to verify.
    StorageError
        If the operating system refuses a read.
    """
    check_choice("level", level, LEVELS)
    place = checked_path("path", path)
    threads = num_threads or len(os.sched_getaffinity(0))
    progress = progress or NullProgress()
    try:
        if TableManifest.is_at(place):
            return _verify_table(place, level, progress)
        units, problems = find_units(place)
    except CorruptStoreError as error:
        return Report(level, [Problem(error.path or str(path), str(error))])
    readers = list(units)
    report = Report(level, problems, sum(len(reader.files) + 1 for reader in readers))
    found = {reader: [*own, *stray_files(reader)] for reader, own in units.items()}
    for unit in () if has_parts(place) else readers[1:]:
        if unit.manifest.store_uuid not in {readers[0].uuid, None}:
            foreign = (
                f"it belongs to the store {unit.manifest.store_uuid}, but lies in "
                f"{readers[0].uuid}; remove it with 'gnnstore rm', and make it again"
            )
            found[unit].append(Problem(str(unit.path), foreign))
    if level != "header":
        total = sum(reader.total_bytes for reader in readers)
        with progress.phase("compare checksums", total, "bytes") as phase:

            def compared(num_bytes: int) -> None:
                report.bytes_read += num_bytes
                phase.advance(num_bytes)

            for reader in readers:
                found[reader] += compare_checksums(reader, threads, compared)
    if level == "full":
        # Numbers that fail their checksum need no second complaint about what they mean.
        for reader in readers:
            if found[reader] or not isinstance(reader, SealedReader):
                continue
            with progress.phase("look at what the numbers mean"):
                found[reader] += reader.problems()
    report.problems += itertools.chain(*found.values())
    if level == "full" and report.ok:
        packed = [reader for reader in readers if isinstance(reader, PackedReader)]
        # The first part has the numbers of the cached rows of all.
        first = packed[0] if has_parts(place) else None
        for each in packed:
            report.problems += check_batches(each, first or each, threads, progress)
    return report


def check_batches(
    reader: PackedReader, first: PackedReader, num_threads: int, progress: Progress
) -> list[Problem]:
    """Read every packed batch, except for cached rows, which `first` may have for all parts.

    Returns the problems.
    """
    from gnnstore.pipeline.packed_batches import read_labels  # noqa: PLC0415 - imports torch
    from gnnstore.seeds.labels import labels_of  # noqa: PLC0415

    path, schema = reader.path, reader.manifest.schema
    space = RowSpace.of_schema(schema, set(reader.manifest.cached))
    try:
        packed = PackedFiles.open(reader, held=device_rows(first, space))
    except CorruptStoreError as error:
        return [Problem(error.path or str(first.path), str(error))]
    labels, owners = None, schema.owners()
    with suppress(UnsupportedVersionError):  # seeds of a plug-in that is not imported
        labels = labels_of(reader.manifest.fingerprint)
    nodes = None
    if first.manifest.holds_cache:
        try:
            nodes = cached_nodes(first, space)
        except CorruptStoreError as error:
            return [Problem(error.path or str(first.path), str(error))]

    def check(number: int) -> Problem | None:
        try:
            record = packed.record(number)
            if labels is not None:
                read_labels(packed, labels, number, record)
            ids = record.step(space, packed.held).ids
            if nodes is not None:
                _core.check_cached(nodes, record.slots, ids)
            for of, rows in packed.rows(number, record).items():
                own = space.range_of(str(owners[of])).within(ids)
                out = rows.spec.empty(own.stop - own.start)
                rows.read_into(RowRequest(ids[own], record.slots[own], None, own.start), out)
        except (ValueError, TypeError, IndexError) as error:  # gnnstore's errors included
            message = str(error)
            if not getattr(error, "path", None):
                message = f"{packed.name_of(number)} cannot be read: {message}"
            return Problem(getattr(error, "path", None) or str(path), message)
        return None

    batches = packed.reader.manifest.batches
    problems = []
    with (
        progress.phase(f"read the batches of {path.name}", len(batches), "batches") as phase,
        closing(
            ordered_map(
                check,
                batches,
                num_threads=num_threads,
                lookahead=lambda: 2 * num_threads,
            )
        ) as found,
    ):
        for problem in found:
            phase.advance()
            if problem is not None:
                problems.append(problem)
    return problems


def _verify_table(path: Path, level: Level, progress: Progress) -> Report:
    """Check the manifest of a table, and unless the level is "header" every slot of its commits.

    A table that is being trained should be closed: its slots come and go with commits.
    """
    manifest, report = TableManifest.read(path), Report(level, files=2)
    size = manifest.slot_bytes
    slots = {
        slot: crc
        for commit in manifest.commits
        for slot, crc in zip(commit.slots.tolist(), commit.crcs.tolist(), strict=True)
        if slot >= 0
    }
    file = SlotFile(path / SLOTS_FILE, size, manifest.used_bytes, writable=False)
    try:
        found, needed = file.path.stat().st_size, (max(slots, default=-1) + 1) * size
        if found < needed:
            short = f"{found} bytes, but the commits name slots up to byte {needed}"
            report.problems.append(Problem(str(file.path), short))
        if level == "header" or found < size:
            return report
        data = page_aligned(size)
        with progress.phase("compare checksums", len(slots) * size, "bytes") as phase:
            for slot, crc in sorted(slots.items()):
                try:
                    file.read(slot, data, crc)
                except CorruptStoreError as error:
                    begin = slot * size
                    problem = Problem(str(file.path), error.message, begin, begin + size)
                    report.problems.append(problem)
                report.bytes_read += size
                phase.advance(size)
    finally:
        file.close()
    return report
