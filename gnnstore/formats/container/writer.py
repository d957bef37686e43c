"""Writes a sealed directory: arrays one by one or together, then one atomic commit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import (
    CorruptStoreError,
    GnnstoreError,
    InputError,
    NoSpaceError,
    NotFoundError,
    ReplacedError,
    StorageError,
    StoreExistsError,
    UnsupportedVersionError,
    UsageError,
    storage_error,
    storage_errors,
)
from gnnstore.formats.arrays.compressed import write_compressed_files
from gnnstore.formats.arrays.dtypes import dtype_name, storage_dtype
from gnnstore.formats.arrays.journal import Journal
from gnnstore.formats.arrays.paged import PagedArrayWriter
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES, MAX_PAGE_BYTES, MIN_PAGE_BYTES
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.arrays.zarr_metadata import MAX_DIMENSIONS, METADATA_FILE, group_metadata
from gnnstore.formats.base.files import (
    BlockCrcs,
    directory_bytes,
    encode_json,
    free_bytes,
    write_new,
)
from gnnstore.formats.container.manifest import (
    CHECKSUMS_ARRAY,
    FileEntry,
    Manifest,
    content_uuid,
)
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.container.workdir import DirectoryTransaction
from gnnstore.units import format_size

_MAX_DIFFERENCES = 3  # differences that a message names


class SealedWriter:
    """Builds a directory under a temporary name; `seal` gives it its own. Not thread-safe.

    A context manager: leaving it without a commit leaves nothing behind, unless the writer can be
    resumed and the data were not at fault: no space, an I/O error, Ctrl-C.
    """

    READER: ClassVar[type[SealedReader[Any]]]

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        page_bytes: int | None = None,
        shard_bytes: int | None = None,
        on_event: Callable[[str], None] | None = None,
        fingerprint: Mapping[str, Any] | None = None,
        decided: Mapping[str, Any] | None = None,
        resume: bool = False,
        sweeps: bool = True,
    ) -> None:
        size = DEFAULT_PAGE_BYTES if page_bytes is None else page_bytes
        if not MIN_PAGE_BYTES <= size <= MAX_PAGE_BYTES or size & (size - 1):
            raise UsageError(
                f"page_bytes={page_bytes}: a page has a power of two of bytes, from "
                f"{MIN_PAGE_BYTES} to {MAX_PAGE_BYTES}; leave it out for the best of each array"
            )
        self.page_bytes = page_bytes  # None: chosen for each array
        self.shard_bytes = shard_bytes
        # Without a fingerprint no later attempt can be the same; where others may be at work, none
        # looks for what is left.
        self._may_resume = fingerprint is not None and sweeps
        self._on_event = on_event or (lambda _: None)
        self._writers: dict[str, PagedArrayWriter] = {}
        self._paths: set[str] = set()
        self._files: dict[str, tuple[int, BlockCrcs]] = {}
        manifest = self.READER.MANIFEST
        self._transaction = DirectoryTransaction(
            Path(path),
            manifest,
            overwrite,
            self._on_event,
            partial(_can_continue, fingerprint or {}),
            resume=resume,
            sweeps=sweeps,
        )
        try:
            found = self.is_resumed and Journal.read(self.temporary_path, to_continue=True)
            self.journal = found or Journal.create(
                self.temporary_path, fingerprint or {}, decided or {}
            )
            self.journal.remove_unfinished()
            self.take_over()
        except BaseException:
            self._transaction.keep() if self.is_resumed else self._transaction.abort()
            raise
        if self.is_resumed:
            found_bytes = format_size(directory_bytes(self.temporary_path))
            self._on_event(
                f"resuming with the {found_bytes} that an interrupted attempt finished "
                f"in {self.temporary_path}"
            )
        elif resume:
            self._on_event(f"nothing to resume for {self.path}: starting from the beginning")
        self._open = True

    def take_over(self) -> None:
        """Begin with the finished work in the journal."""

    @property
    def path(self) -> Path:
        """The final path."""
        return self._transaction.final

    @property
    def temporary_path(self) -> Path:
        """The temporary path under which the directory is being built."""
        return self._transaction.path

    @property
    def is_resumed(self) -> bool:
        """Whether the writer continues an interrupted attempt."""
        return self._transaction.adopted

    # ---- arrays

    def paged(
        self,
        array_path: str,
        *,
        name: str,
        row_shape: tuple[int, ...],
        dtype: str,
        num_rows: int,
        cat_dim: int = 0,
    ) -> PagedArrayWriter:
        """Begin a paged array, whose rows lie raw in pages to be read one by one."""
        if 0 in row_shape:
            raise InputError(
                f"the attribute {name!r} has rows of shape {list(row_shape)}, which hold nothing; "
                "leave it out"
            )
        spec = AttributeSpec(name, array_path, "paged", dtype, (num_rows, *row_shape), cat_dim)
        storage_dtype(dtype, what=f"the attribute {name!r}")
        writer = PagedArrayWriter(
            self._array_directory(spec),
            spec,
            self.page_bytes,
            self.shard_bytes,
            self.journal,
            row_dimension=self.row_dimension(array_path),
        )
        self._writers[array_path] = writer
        self._check_space(spec)
        return writer

    @property
    def remaining_bytes(self) -> int:
        """Bytes that the paged arrays begun so far still need."""
        return sum(writer.remaining_bytes for writer in self._writers.values())

    def _check_space(self, spec: AttributeSpec) -> None:
        """Refuse at once an array for which the disk has no room."""
        if self.remaining_bytes > free_bytes(self.path.parent):
            raise NoSpaceError(
                f"cannot write the array {spec.name!r}: no space left for {self.path}. Free some "
                "space or choose an output on another file system; nothing was left under the "
                "final name.",
                path=self.path,
            )

    def compressed(
        self,
        array_path: str,
        array: npt.NDArray[Any],
        *,
        name: str,
        dtype: str | None = None,
        cat_dim: int = 0,
    ) -> AttributeSpec:
        """Write an array compressed, to be read whole, and return its description."""
        dtype = dtype or dtype_name(array.dtype)
        stored = np.ascontiguousarray(array, dtype=storage_dtype(dtype, what=f"{name!r}"))
        stored = stored.reshape(array.shape)  # ascontiguousarray makes 0-d arrays 1-d
        spec = AttributeSpec(name, array_path, "cold", dtype, stored.shape, cat_dim)
        directory = self._array_directory(spec)
        with storage_errors(f"write the array {name!r}", directory):
            files = write_compressed_files(directory, spec, stored, self.row_dimension(array_path))
        for file_name, size, crcs in files:
            self._files[f"{array_path}/{file_name}"] = (size, crcs)
        return spec

    def link_files(self, reader: SealedReader[Any]) -> None:
        """Take over the arrays of another directory of this kind by links to their files.

        Where the file system has no links, files are copied.
        """
        arrays = {spec.path for spec in reader.manifest.arrays()}
        crcs, files = reader.block_checksums(), reader.manifest.files
        for entry, (first, last) in zip(
            files, pairwise(reader.manifest.first_blocks()), strict=True
        ):
            directory = str(PurePosixPath(entry.path).parent)
            if directory not in arrays:  # the metadata of a group
                continue
            source, target = reader.path / entry.path, self.temporary_path / entry.path
            with storage_errors("link", source):
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(source, target)
                except OSError:  # a file system without links, or a file with many
                    shutil.copyfile(source, target)
            self._paths.add(directory)
            self._files[entry.path] = (entry.size_bytes, crcs[first:last])

    def row_dimension(self, array_path: str) -> str | None:  # noqa: ARG002 - kinds have their own
        """Return the name of an array's first axis, where other arrays have the same rows."""
        return None

    def check_spec(self, spec: AttributeSpec) -> None:
        """Refuse an array that a directory of this kind must not hold, before it is written."""
        if len(spec.shape) > MAX_DIMENSIONS:
            raise InputError(
                f"the attribute {spec.name!r} has {len(spec.shape)} axes, an array may have "
                f"{MAX_DIMENSIONS}; flatten its rows to one axis"
            )

    def _array_directory(self, spec: AttributeSpec) -> Path:
        self.check_spec(spec)
        directory = self.temporary_path / spec.path
        # The directory may hold parts that an earlier attempt finished.
        may_exist = self.is_resumed and spec.path not in self._paths
        try:
            directory.mkdir(parents=True, exist_ok=may_exist)
        except FileExistsError:
            raise InputError(
                f"the name {spec.name!r} is used twice ({spec.path}); rename one of the attributes"
            ) from None
        except OSError as error:
            raise storage_error(error, "create the array", directory) from error
        self._paths.add(spec.path)
        return directory

    # ---- the end

    def seal(self, manifest: Manifest) -> Path:
        """Finish every array, write the manifest, and rename the directory into place."""
        for array_path, writer in self._writers.items():
            writer.close()
            for name, size, crcs in writer.files:
                self._files[f"{array_path}/{name}"] = (size, crcs)
        written = {path.rsplit("/", 1)[0] for path in self._files}
        missing = sorted({spec.path for spec in manifest.arrays()} - written)
        if missing:
            raise InputError(f"the schema names arrays that were not written: {missing}")
        self._write_groups()
        files = sorted(self._files.items())
        blocks = np.concatenate([np.empty(0, np.uint32), *(crcs for _, (_, crcs) in files)])
        manifest = replace(
            manifest,
            uuid="",
            files=tuple(FileEntry(path, size) for path, (size, _) in files),
            checksum_files=self._write_checksums(blocks),
        )
        try:
            manifest = replace(manifest, uuid=content_uuid(manifest.encode(), blocks))
            document = manifest.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"the metadata of {self.path} cannot be written as JSON ({error}); store other "
                "graph-level values as tensors"
            ) from error
        write_new(self.temporary_path / METADATA_FILE, document)
        self._check_readable()
        self._transaction.commit(self._clear_work)
        self._open = False
        return self.path

    def _check_readable(self) -> None:
        """Open the directory as readers do: one that cannot be opened gets no name."""
        try:
            self.READER.open(self.temporary_path)
        except (CorruptStoreError, UnsupportedVersionError, NotFoundError) as error:
            reason = str(error).replace(str(self.temporary_path), str(self.path))
            raise InputError(
                f"{self.path}: the {self.READER.MANIFEST.WORD} would be refused by readers, so "
                f"that it was not committed: {reason}",
                path=self.path,
            ) from error

    def _clear_work(self) -> None:
        """Remove files that do not belong to the directory, when all others are durable."""
        for directory in self.journal.spill_directories:
            _core.remove_tree(directory)
        self.journal.close()

    def _write_groups(self) -> None:
        """Give every directory between the root and the arrays its group metadata."""
        arrays = {str(PurePosixPath(path).parent) for path in self._files}
        groups = {str(parent) for path in arrays for parent in PurePosixPath(path).parents}
        document = encode_json(group_metadata())
        for group in sorted(groups - {"."}):
            path = self.temporary_path / group / METADATA_FILE
            name, size, crcs = write_new(path, document)
            self._files[f"{group}/{name}"] = (size, crcs)

    def _write_checksums(self, blocks: BlockCrcs) -> tuple[tuple[FileEntry, int], ...]:
        directory = self.temporary_path / CHECKSUMS_ARRAY
        directory.mkdir()
        spec = AttributeSpec("checksums", CHECKSUMS_ARRAY, "paged", "uint32", blocks.shape)
        with PagedArrayWriter(
            directory,
            spec,
            DEFAULT_PAGE_BYTES,
            self.shard_bytes,
            row_dimension=self.row_dimension(CHECKSUMS_ARRAY),
        ) as writer:
            writer.append(blocks)
        entries = []
        for name, size, _ in writer.files:
            whole = _core.crc32c_file(str(directory / name), max(1, size))
            entries.append((FileEntry(f"{CHECKSUMS_ARRAY}/{name}", size), int(whole[0])))
        return tuple(entries)

    def abort(self, *, keep: bool = False) -> None:
        """Stop without a result. Does nothing after a commit."""
        if not self._open:
            return
        self._open = False
        self.release()
        if keep and self.journal.has_work:
            self.journal.remove_unfinished()
            self._transaction.keep()
        else:
            self._transaction.abort()

    def release(self) -> None:
        """Close unfinished files, without making them durable."""
        for writer in self._writers.values():
            writer.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # No fault of the data, so that a later attempt may succeed.
        keeps = self._open and isinstance(
            error, StorageError | OSError | MemoryError | KeyboardInterrupt
        )
        keeps = keeps and not isinstance(error, NotFoundError | StoreExistsError | ReplacedError)
        keeps = keeps and self._may_resume
        if not keeps:
            self.abort()
            return
        missing, free = self.remaining_bytes, free_bytes(self.path.parent)
        self.abort(keep=True)
        advice = []
        if missing > free:
            advice.append(
                f"At least {format_size(missing)} more are needed and {format_size(free)} are "
                f"free: {format_size(missing - free)} are missing."
            )
        if self.temporary_path.exists():
            size = format_size(directory_bytes(self.temporary_path))
            advice.append(
                f"What was finished ({size}) is kept in {self.temporary_path}: repeat the command "
                "with resume=True to go on; 'gnnstore gc' removes it."
            )
        if isinstance(error, GnnstoreError) and advice:
            end = "" if error.message.endswith((".", "!", "?")) else "."
            error.message = " ".join([f"{error.message}{end}", *advice])
        elif advice:
            self._on_event(" ".join(advice))


def _can_continue(fingerprint: Mapping[str, Any], directory: Path) -> bool:
    """Whether an attempt with this fingerprint may continue a directory."""
    journal = Journal.read(directory)
    if journal is None or not journal.has_work:
        return False
    before = dict(_flat(journal.fingerprint))
    now = dict(_flat(json.loads(json.dumps(fingerprint))))
    changed = [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r} now"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if not changed:
        return True
    raise UsageError(
        f"{directory}: the interrupted attempt there cannot be continued, since it is "
        f"another one: {'; '.join(changed[:_MAX_DIFFERENCES])}. Repeat the command that was "
        "interrupted, or leave resume=True out to remove it and start anew",
        path=directory,
    )


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in JSON objects and lists of them, by the names on their way."""
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        value = {str(place): item for place, item in enumerate(value)}
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else key)
    else:
        yield name, value
