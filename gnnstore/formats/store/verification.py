"""Check a store against its own promises, and say which file and bytes break them.

Three levels, each including the one before: `header` (metadata, sizes, stray files),
`checksums` (every byte of every file), `full` (what the numbers mean: column pointers
ascend, neighbours exist and are sorted, splits name nodes, page tails are zero).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import (
    CorruptStoreError,
    GnnstoreError,
    UnsupportedVersionError,
    UsageError,
    storage_error,
)
from gnnstore.formats.arrays.paged_array import PagedArray
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE, shard_index
from gnnstore.formats.container.regular_files import open_binary
from gnnstore.formats.packed.manifest import PLANS_DIRECTORY, find_plans, is_plan
from gnnstore.formats.packed.reader import PlanReader
from gnnstore.formats.store.manifest import BLOCK_BYTES, FileEntry
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.schema import AttributeSpec, EdgeTypeSpec, NodeTypeSpec, TextSpec
from gnnstore.progress import NullProgress, Progress

Level = Literal["header", "checksums", "full"]
LEVELS: tuple[Level, ...] = ("header", "checksums", "full")

# Plans and caches are committed units of their own, with manifests of their own.
_SEPARATE_UNITS = ("plans", "caches")
_MAX_RANGES_PER_FILE = 20
_LINK = "a symbolic link, which no reader follows; remove it, or put there what it leads to"
_MAX_BATCHES = 8  # named for a damaged range
# Scans hold this much of an array at a time, and a few temporaries of the same size.
_SCAN_BYTES = 16 * 2**20
_TEXT_SCAN_BYTES = 2**16  # of offsets; the texts are many times as long


@dataclass(frozen=True)
class Problem:
    """Something that is not as it should be.

    Attributes
    ----------
    path : str
        File or directory.
    message : str
        What was expected and what was found.
    first_byte, end_byte : int or None
        The damaged range of the file, half-open, where one is known.
    """

    path: str
    message: str
    first_byte: int | None = None
    end_byte: int | None = None

    def __str__(self) -> str:
        where = "" if self.first_byte is None else f" bytes {self.first_byte}-{self.end_byte}"
        return f"{self.path}{where}: {self.message}"


@dataclass
class Report:
    """What `verify` found.

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
        """Whether nothing was found."""
        return not self.problems


def verify(
    path: str | os.PathLike[str],
    level: Level = "checksums",
    *,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a store and the packed plans in it, or a plan.

    Parameters
    ----------
    path : path-like
        The directory.
    level : "header", "checksums" or "full"
        How much to check.
    num_threads : int, optional
        Threads that read and checksum; the processors available by default.
    progress : Progress, optional
        Is told how far it is.

    Returns
    -------
    Report
        With every problem found: a damaged store is a result, not an error.

    Raises
    ------
    NotFoundError, UnsupportedVersionError
        If there is nothing that could be verified.
    StorageError
        If the operating system refuses a read.
    """
    if level not in LEVELS:
        raise UsageError(f"level={level!r}: choose one of {', '.join(LEVELS)}")
    threads = num_threads or len(os.sched_getaffinity(0))
    progress = progress or NullProgress()
    try:
        parts, report = _parts_of(Path(path), level)
    except CorruptStoreError as error:
        return Report(level, [Problem(error.path or str(path), str(error))])
    for part in parts:
        part.problems += _stray_files(part.reader)
    if level != "header":
        total = sum(part.reader.total_bytes for part in parts)
        with progress.phase("compare checksums", total, "bytes") as phase:

            def compared(num_bytes: int) -> None:
                report.bytes_read += num_bytes
                phase.advance(num_bytes)

            for part in parts:
                part.problems += _check_checksums(part.reader, threads, compared)
    for part in parts:
        # Numbers that fail their checksum need no second complaint about what they mean.
        if level == "full" and isinstance(part.reader, StoreReader) and not part.problems:
            with progress.phase("look at what the numbers mean"):
                part.problems += _check_meaning(part.reader)
        report.files += len(part.reader.files) + 1
        report.problems += part.problems
    return report


@dataclass
class _Part:
    """A committed unit: a store without its plans, or a plan."""

    reader: StoreReader | PlanReader
    problems: list[Problem] = field(default_factory=list)


def _parts_of(directory: Path, level: Level) -> tuple[list[_Part], Report]:
    """Open a store and its plans, or a plan; the report says which plans cannot be opened."""
    report = Report(level)
    plans = [directory] if is_plan(directory) else find_plans(directory)
    parts = [] if is_plan(directory) else [_Part(StoreReader.open(directory))]
    for link in sorted((directory / PLANS_DIRECTORY).glob("*")):
        if link.is_symlink():
            report.problems.append(Problem(str(link), _LINK))
    for plan in plans:
        try:
            # Its index leads nowhere else if it can be opened.
            parts.append(_Part(PlanReader.open(plan)))
        except (CorruptStoreError, UnsupportedVersionError) as error:
            report.problems.append(Problem(error.path or str(plan), str(error)))
    return parts, report


def _with_batches(problem: Problem, reader: PlanReader) -> Problem:
    """Say which batches lie in damaged bytes."""
    if problem.first_byte is None or problem.end_byte is None:
        return problem
    file = Path(problem.path).relative_to(reader.path).as_posix()
    numbers = reader.batches_in(file, problem.first_byte, problem.end_byte)
    if not numbers:
        return problem
    per_epoch = reader.manifest.batches_per_epoch
    names = [f"batch {n % per_epoch} of epoch {n // per_epoch}" for n in numbers]
    shown = names if len(names) <= _MAX_BATCHES else [names[0], "...", names[-1]]
    return replace(problem, message=f"{problem.message}, in {', '.join(shown)}")


def _stray_files(reader: StoreReader | PlanReader) -> Iterator[Problem]:
    listed = {entry.path for entry in reader.files} | {METADATA_FILE}
    for root, directories, names in os.walk(reader.path):
        for name in directories:
            link = Path(root) / name
            if link.is_symlink():
                yield Problem(str(link), _LINK)
        if Path(root) == reader.path:
            directories[:] = [name for name in directories if name not in _SEPARATE_UNITS]
        for name in names:
            file = Path(root) / name
            if file.relative_to(reader.path).as_posix() not in listed:
                yield Problem(str(file), "the manifest does not list this file; remove it")


def _check_checksums(
    reader: StoreReader | PlanReader, num_threads: int, on_bytes: Callable[[int], None]
) -> Iterator[Problem]:
    """Compare every file with what was recorded of it, and say which batches lie in damage."""
    is_readable = True
    for entry, expected in reader.manifest.checksum_files:
        path = reader.path / entry.path
        crcs = _crcs_of(path, max(1, entry.size_bytes), 1)
        if crcs.tolist() != [expected]:
            is_readable = False
            yield Problem(str(path), "the checksums are altered", 0, entry.size_bytes)
        on_bytes(entry.size_bytes)
    if not is_readable:  # without the table nothing can be compared
        return
    table = reader.block_checksums()
    first_blocks = reader.manifest.first_blocks()
    for entry, first in zip(reader.manifest.files, first_blocks[:-1], strict=True):
        path = reader.path / entry.path
        crcs = _crcs_of(path, BLOCK_BYTES, num_threads)
        expected_crcs = table[first : first + entry.num_blocks]
        for problem in _differences(path, entry, crcs, expected_crcs):
            yield _with_batches(problem, reader) if isinstance(reader, PlanReader) else problem
        on_bytes(entry.size_bytes)


def _crcs_of(path: Path, block_bytes: int, num_threads: int) -> npt.NDArray[np.uint32]:
    try:
        return _core.crc32c_file(str(path), block_bytes, num_threads)
    except OSError as error:
        raise storage_error(error, "verify", path) from error


def _differences(
    path: Path,
    entry: FileEntry,
    found: npt.NDArray[np.uint32],
    expected: npt.NDArray[np.uint32],
) -> Iterator[Problem]:
    """Yield the runs of blocks whose checksums differ."""
    if len(found) != len(expected):
        yield Problem(str(path), f"the file changed its size from {entry.size_bytes} bytes")
        return
    bad = np.flatnonzero(found != expected)
    if not len(bad):
        return
    runs = np.split(bad, np.flatnonzero(np.diff(bad) > 1) + 1)
    for run in runs[:_MAX_RANGES_PER_FILE]:
        first = int(run[0]) * BLOCK_BYTES
        end = min((int(run[-1]) + 1) * BLOCK_BYTES, entry.size_bytes)
        detail = f"expected {int(expected[run[0]]):08x}, found {int(found[run[0]]):08x}"
        yield Problem(str(path), f"checksum mismatch ({detail})", first, end)
    if len(runs) > _MAX_RANGES_PER_FILE:
        yield Problem(str(path), f"and {len(runs) - _MAX_RANGES_PER_FILE} more damaged ranges")


def _check_meaning(reader: StoreReader) -> Iterator[Problem]:
    schema = reader.schema
    is_readable = True
    for spec in schema.arrays():
        if spec.layout == "paged":
            yield from _check_layout(reader, reader.paged(spec))
        else:
            try:
                for _ in reader.cold_chunks(spec):
                    pass
            except GnnstoreError as error:
                is_readable = False
                yield Problem(str(reader.path / spec.path), str(error))
    if not is_readable:  # what cannot be decoded means nothing
        return
    num_src = {node.name: node.num_nodes for node in schema.node_types}
    for node in schema.node_types:
        yield from _check_node_ids(reader, node)
        yield from _check_scales(reader, node)
        if node.original_name is not None:
            yield from _check_text(reader, node.original_name)
    for edge in schema.edge_types:
        yield from _check_columns(reader, edge, num_src[edge.source])


def _check_layout(reader: StoreReader, array: PagedArray) -> Iterator[Problem]:
    """Shard indexes are what the arithmetic says, and the tails of pages are zero."""
    layout, geometry = array.layout, array.geometry
    for shard, path in enumerate(array.file_paths):
        body = layout.shard_body_bytes(shard)
        with open_binary(path, error=CorruptStoreError, root=reader.path) as file:
            file.seek(body)
            index = file.read()
        if index != shard_index(layout, shard).tobytes():
            yield Problem(
                str(path), "the shard index is not that of the layout", body, body + len(index)
            )
    if geometry.is_exact or not array.num_rows:
        return
    stride, used = geometry.page_stride_bytes, geometry.rows_per_page * geometry.row_bytes
    runs = array.map("sequential").reshape(-1, stride)
    step = max(1, _SCAN_BYTES // stride)
    for start in range(0, len(runs), step):
        dirty = np.flatnonzero(runs[start : start + step, used:].any(axis=1))
        if len(dirty):
            run = start + int(dirty[0])
            yield Problem(
                str(reader.path / array.spec.path),
                f"the padding behind row {run * geometry.rows_per_page} is not zero",
            )
            return


def _check_node_ids(reader: StoreReader, node: NodeTypeSpec) -> Iterator[Problem]:
    for name, spec in node.splits.items():
        if len(spec.shape) != 1:
            yield Problem(
                str(reader.path / spec.path),
                f"split {name!r} has shape {list(spec.shape)}, expected a list of node ids",
            )
            continue
        if spec.layout == "paged":
            pieces = reader.paged(spec).pieces(_SCAN_BYTES)
        else:
            pieces = ((place.start, ids) for (place,), ids in reader.cold_chunks(spec))
        for first, ids in pieces:
            outside = np.flatnonzero((ids < 0) | (ids >= node.num_nodes))
            if len(outside):
                position = int(outside[0])
                yield Problem(
                    str(reader.path / spec.path),
                    f"split {name!r}: entry {first + position} is node {int(ids[position])}, "
                    f"outside [0, {node.num_nodes})",
                )
                break


def _check_scales(reader: StoreReader, node: NodeTypeSpec) -> Iterator[Problem]:
    for name, spec in node.attributes.items():
        scale = reader.schema.graph_arrays.get(f"{name}_scale")
        if scale is None or (spec.dtype, scale.dtype) != ("int8", "float32"):
            continue
        if scale.shape != spec.shape[1:]:
            continue  # of somebody else's making: a scale has the shape of a row
        values = reader.read(scale)
        bad = np.argwhere(~(np.isfinite(values) & (values > 0)))
        if len(bad):
            place = tuple(int(i) for i in bad[0])
            yield Problem(
                str(reader.path / scale.path),
                f"the scale of column {', '.join(map(str, place))} of {name!r} is "
                f"{values[place]!s}, expected a finite number above 0",
            )


def _check_text(reader: StoreReader, text: TextSpec) -> Iterator[Problem]:
    """Offsets ascend from the first byte to the last, and every text is UTF-8."""
    where = str(reader.path / text.offsets.path)
    num_bytes = text.bytes.num_rows
    letters = reader.paged(text.bytes)
    latest = 0
    for first, piece in reader.paged(text.offsets).pieces(_TEXT_SCAN_BYTES):
        if first == 0 and piece[0] != 0:
            yield Problem(where, f"the first text begins at byte {int(piece[0])}, expected 0")
            return
        descents = np.flatnonzero(np.diff(piece, prepend=latest) < 0)
        if len(descents) or piece[-1] > num_bytes:
            place = first + int(descents[0]) if len(descents) else first + len(piece) - 1
            yield Problem(where, f"entry {place} descends, or is behind the {num_bytes} bytes")
            return
        data = letters.read_slice(latest, int(piece[-1]))
        begins = piece[:-1] - latest
        try:
            str(data.tobytes(), "utf-8")
            is_utf8 = not (data[begins[begins < len(data)]] & 0xC0 == 0x80).any()
        except UnicodeDecodeError:
            is_utf8 = False
        if not is_utf8:
            path = str(reader.path / text.bytes.path)
            yield Problem(path, "a text is not UTF-8", latest, int(piece[-1]))
            return
        latest = int(piece[-1])
    if latest != num_bytes:
        yield Problem(where, f"the last text ends at byte {latest} of {num_bytes}")


def _check_columns(reader: StoreReader, edge: EdgeTypeSpec, num_src: int) -> Iterator[Problem]:
    where = {spec.name: str(reader.path / spec.path) for spec in (edge.indptr, edge.indices)}
    indptr, indices = reader.paged(edge.indptr), reader.paged(edge.indices)
    previous = 0
    for first, piece in indptr.pieces(_SCAN_BYTES):
        descents = np.flatnonzero(np.diff(piece, prepend=previous) < 0)
        if len(descents):
            column = first + int(descents[0])
            yield Problem(where["indptr"], f"the pointer of column {column} descends")
            return
        previous = int(piece[-1])
    pointers = indptr.view("sequential")
    last = -1
    for first, piece in indices.pieces(_SCAN_BYTES):
        outside = np.flatnonzero((piece < 0) | (piece >= num_src))
        if len(outside):
            position = int(outside[0])
            yield Problem(
                where["indices"],
                f"edge {first + position} comes from node {int(piece[position])}, outside "
                f"[0, {num_src})",
            )
            return
        descents = np.flatnonzero(np.diff(piece, prepend=last) < 0) + first
        # Sources may descend only where a column begins.
        columns = np.searchsorted(pointers, descents, side="left")
        unsorted = descents[(pointers[np.minimum(columns, len(pointers) - 1)] != descents)]
        if len(unsorted):
            yield Problem(
                where["indices"], f"the sources of a column are not sorted at edge {unsorted[0]}"
            )
            return
        last = int(piece[-1])
    if edge.edge_id is not None:
        yield from _check_edge_ids(reader, edge.edge_id)


def _check_edge_ids(reader: StoreReader, spec: AttributeSpec) -> Iterator[Problem]:
    for first, piece in reader.paged(spec).pieces(_SCAN_BYTES):
        negative = np.flatnonzero(piece < 0)
        if len(negative):
            position = first + int(negative[0])
            yield Problem(str(reader.path / spec.path), f"the id of edge {position} is negative")
            return
