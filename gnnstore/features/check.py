"""Verifies a store and the batches of its packed epochs, as training reads them.

The checksums of packed files are of the bytes that were read back while packing. The
checksums in the records are of the bytes that were to be written; training compares them, and so
does this module, batch by batch.
"""

from __future__ import annotations

import itertools
import os
from contextlib import closing
from pathlib import Path

from gnnstore.errors import CorruptStoreError, check_choice, limits_named
from gnnstore.features.saved import PackedFiles
from gnnstore.features.source import RowRequest
from gnnstore.formats.container.files import Problem
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.container.verify import (
    LEVELS,
    Level,
    Report,
    compare_checksums,
    find_units,
    stray_files,
)
from gnnstore.formats.packed import PackedReader
from gnnstore.formats.table_directory import verify_table
from gnnstore.formats.tables import TableManifest
from gnnstore.progress import NullProgress, Progress
from gnnstore.threads import ordered_map


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
    threads = num_threads or len(os.sched_getaffinity(0))
    progress = progress or NullProgress()
    try:
        if TableManifest.is_at(Path(path)):
            return verify_table(Path(path), level, progress)
        units, problems = find_units(Path(path))
    except CorruptStoreError as error:
        return Report(level, [Problem(error.path or str(path), str(error))])
    readers = list(units)
    report = Report(level, problems, sum(len(reader.files) + 1 for reader in readers))
    found = {reader: [*own, *stray_files(reader)] for reader, own in units.items()}
    for unit in readers[1:]:
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
        for reader in readers:
            if isinstance(reader, PackedReader):
                report.problems += check_batches(reader, threads, progress)
    return report


def check_batches(reader: PackedReader, num_threads: int, progress: Progress) -> list[Problem]:
    """Read every packed batch, except for cached rows; return the problems."""
    packed, path = PackedFiles.open(reader), reader.path

    def check(number: int) -> Problem | None:
        try:
            record = packed.record(number)
            for rows in packed.rows(number, record).values():
                out = rows.spec.empty(len(record.slots))
                rows.read_into(RowRequest(record.subgraph.rows(packed.space), record.slots), out)
        except (ValueError, IndexError) as error:  # gnnstore's errors included
            message = str(error)
            if not getattr(error, "path", None):
                message = f"{packed.name_of(number)} cannot be read: {message}"
            return Problem(getattr(error, "path", None) or str(path), message)
        return None

    num_batches = packed.reader.manifest.num_batches
    problems = []
    with (
        progress.phase(f"read the batches of {path.name}", num_batches, "batches") as phase,
        closing(
            ordered_map(
                check,
                range(num_batches),
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
