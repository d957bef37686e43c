"""Checks a sealed directory against its manifest, and names the damaged files and bytes.

Three levels, each including the one before: `header` (metadata, sizes, stray files),
`checksums` (every byte of every file), `full` (the meaning of the numbers, by kind).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import (
    CorruptStoreError,
    NotFoundError,
    UnsupportedVersionError,
    storage_errors,
)
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE
from gnnstore.formats.container.files import BLOCK_BYTES, Problem
from gnnstore.formats.container.manifest import KINDS, FileEntry, Kind, kind_of
from gnnstore.formats.container.reader import SealedFiles, SealedReader

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


def _sealed_kind(path: Path) -> Kind | None:
    kind = kind_of(path)
    return kind if kind is not None and kind.manifest.FILE == METADATA_FILE else None


def _open(kind: Kind, directory: Path) -> tuple[SealedFiles[Any], list[Problem]]:
    try:
        return kind.open(directory), []
    except CorruptStoreError as error:
        files: SealedFiles[Any] = SealedFiles.find(directory, kind.manifest)
        wrong = [Problem(found.path or "", str(found)) for _, found in files.wrong_sizes()]
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
        wrong = {entry.path for entry, _ in reader.wrong_sizes()}
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
