"""Write a store: arrays one by one or side by side, then one atomic commit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._version import __version__
from gnnstore.errors import (
    CorruptStoreError,
    GnnstoreError,
    InputError,
    NoSpaceError,
    StorageError,
    UsageError,
    storage_error,
)
from gnnstore.formats.arrays.compressed import crc_of_array, write_cold_files
from gnnstore.formats.arrays.dtypes import dtype_name, storage_dtype
from gnnstore.formats.arrays.paged_writer import PagedArrayWriter
from gnnstore.formats.arrays.pages import DEFAULT_PAGE_BYTES, MAX_PAGE_BYTES, MIN_PAGE_BYTES
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE, group_metadata
from gnnstore.formats.container.files import ChecksummedFile, empty_directory, free_bytes
from gnnstore.formats.container.journal import BlockCrcs
from gnnstore.formats.container.resume import (
    can_continue,
    describe_kept,
    describe_missing,
    describe_start,
    is_resumable_error,
    open_journal,
    remove_unfinished,
)
from gnnstore.formats.container.strict_json import MAX_DEPTH
from gnnstore.formats.container.transaction import DirectoryTransaction
from gnnstore.formats.store.manifest import (
    CHECKSUMS_ARRAY,
    MAX_MANIFEST_BYTES,
    FileEntry,
    Manifest,
    content_uuid,
    is_store,
)
from gnnstore.formats.store.schema import AttributeSpec, Schema


class StoreWriter:
    """Builds a store under a temporary name; `commit` gives it its own.

    A context manager: leaving it without a commit leaves nothing behind, unless the writer
    can be resumed and was stopped by what is no fault of the data: no space, an I/O error,
    Ctrl-C. Then, as after a crash, what is finished stays, until a writer of the same output
    goes on with it (`resume`) or removes it.

    Parameters
    ----------
    path : path-like
        The store's directory, by convention NAME.gnn; its parent must exist.
    overwrite : bool
        Replace an existing store, atomically, at commit.
    page_bytes : int
        Page size of paged arrays: a power of two from 512 to 2 MiB.
    shard_bytes : int, optional
        Approximate size of a shard file; by default chosen per array (1 to 16 GiB).
    on_event : callable, optional
        Told in a sentence what a user should know, such as leftovers that were removed.
    fingerprint : Mapping, optional
        What is written, as JSON values: an attempt with an equal fingerprint writes the same
        bytes. None: the writer cannot be resumed.
    resume : bool
        Go on with what an interrupted attempt left, if there is anything.

    Attributes
    ----------
    journal : Journal
        What is finished, and where sorted runs of edges may be put meanwhile.

    Raises
    ------
    StoreExistsError, UsageError, NotFoundError, StorageError
        If the output cannot be written there, or what was left is of other data or options;
        before any work.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        page_bytes: int = DEFAULT_PAGE_BYTES,
        shard_bytes: int | None = None,
        on_event: Callable[[str], None] | None = None,
        fingerprint: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> None:
        valid_page = MIN_PAGE_BYTES <= page_bytes <= MAX_PAGE_BYTES
        if not valid_page or page_bytes & (page_bytes - 1):
            raise UsageError(
                f"page_bytes={page_bytes}: a page has a power of two of bytes, from "
                f"{MIN_PAGE_BYTES} to {MAX_PAGE_BYTES}; 4096 suits almost every disk"
            )
        self.page_bytes = page_bytes
        self.shard_bytes = shard_bytes
        self._on_event = on_event or (lambda _: None)
        self._transaction = DirectoryTransaction(
            Path(path),
            overwrite=overwrite,
            is_replaceable=is_store,
            on_event=self._on_event,
            adopt=partial(can_continue, fingerprint or {}) if resume else None,
        )
        try:
            self.journal = open_journal(self._transaction, fingerprint or {})
        except BaseException:
            self._transaction.keep() if self._transaction.adopted else self._transaction.abort()
            raise
        if resume:
            self._on_event(describe_start(self._transaction))
        self._writers: dict[str, PagedArrayWriter] = {}
        self._taken: set[str] = set()
        self._files: dict[str, tuple[int, BlockCrcs]] = {}
        self._open = True

    @property
    def path(self) -> Path:
        """The store's final path."""
        return self._transaction.final

    @property
    def temporary_path(self) -> Path:
        """Where the store is being built."""
        return self._transaction.path

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
        """Begin a paged array: rows are read one by one, so they are laid out raw, in pages.

        Parameters
        ----------
        array_path : str
            Where it lies in the store; see `formats.names`.
        name : str
            The user's name of it.
        row_shape : tuple of int
            Shape of one row; () for one value a row.
        dtype : str
            Element type ("float32", "bfloat16", ...).
        num_rows : int
            Rows that will be appended.

        Raises
        ------
        InputError
            If rows are empty, the type cannot be stored, or the path is taken.
        """
        if 0 in row_shape:
            raise InputError(
                f"the attribute {name!r} has rows of shape {list(row_shape)}, which hold nothing; "
                "leave it out"
            )
        spec = AttributeSpec(name, array_path, "paged", dtype, (num_rows, *row_shape), cat_dim)
        storage_dtype(dtype, what=f"the attribute {name!r}")
        writer = PagedArrayWriter(
            self._array_directory(spec), spec, self.page_bytes, self.shard_bytes, self.journal
        )
        self._writers[array_path] = writer
        self._check_space(spec)
        return writer

    @property
    def remaining_bytes(self) -> int:
        """Bytes that the paged arrays begun so far still need."""
        return sum(writer.remaining_bytes for writer in self._writers.values())

    def _check_space(self, spec: AttributeSpec) -> None:
        """Refuse at once what would fill the disk hours later."""
        if self.remaining_bytes > free_bytes(self.path.parent):
            raise NoSpaceError(
                f"cannot write the array {spec.name!r}: no space left for {self.path}. Free some "
                "space or choose an output on another file system; nothing was left under the "
                "final name.",
                path=self.path,
            )

    def cold(
        self,
        array_path: str,
        array: npt.NDArray[Any],
        *,
        name: str,
        dtype: str | None = None,
        cat_dim: int = 0,
    ) -> AttributeSpec:
        """Write an array that is read whole, compressed, and return its description.

        Parameters
        ----------
        array : ndarray
            Any shape, any type that a store holds; bfloat16 as its bits with
            `dtype="bfloat16"`.
        """
        dtype = dtype or dtype_name(array.dtype)
        stored = np.ascontiguousarray(array, dtype=storage_dtype(dtype, what=f"{name!r}"))
        stored = stored.reshape(array.shape)  # ascontiguousarray makes 0-d arrays 1-d
        spec = AttributeSpec(name, array_path, "cold", dtype, stored.shape, cat_dim)
        directory = self._array_directory(spec)
        crc = crc_of_array(spec, stored)
        files = self.journal.cold_files(array_path, crc)
        try:
            if files is None:
                empty_directory(directory)
                files = write_cold_files(directory, spec, stored)
                self.journal.record_cold(array_path, crc, files)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise storage_error(error, f"write the array {name!r}", directory) from error
        for file, size, crcs in files:
            self._files[f"{array_path}/{file}"] = (size, crcs)
        return spec

    def _array_directory(self, spec: AttributeSpec) -> Path:
        directory = self.temporary_path / spec.path
        # What an earlier attempt finished may be in it.
        may_exist = self._transaction.adopted and spec.path not in self._taken
        try:
            directory.mkdir(parents=True, exist_ok=may_exist)
        except FileExistsError:
            raise InputError(
                f"the name {spec.name!r} is used twice ({spec.path}); rename one of the attributes"
            ) from None
        except OSError as error:
            raise storage_error(error, "create the array", directory) from error
        self._taken.add(spec.path)
        return directory

    def commit(self, schema: Schema, provenance: Mapping[str, Any]) -> Path:
        """Finish every array, write the manifest, and rename the store into place.

        Parameters
        ----------
        schema : Schema
            What the arrays are; every one of them must have been written.
        provenance : Mapping
            Where the data came from; JSON values.

        Returns
        -------
        Path
            The store's final path.

        Raises
        ------
        InputError
            If an array got fewer rows than declared, or the metadata cannot be JSON.
        StorageError, StoreExistsError
            See `DirectoryTransaction.commit`.
        """
        schema.checked(str(self.path))
        for array_path, writer in self._writers.items():
            writer.close()
            self._record(array_path, writer)
        written = {path.rsplit("/", 1)[0] for path in self._files}
        missing = sorted({spec.path for spec in schema.arrays()} - written)
        if missing:
            raise InputError(f"the schema names arrays that were not written: {missing}")
        self._write_groups()
        files = sorted(self._files.items())
        blocks = np.concatenate([np.empty(0, np.uint32), *(crcs for _, (_, crcs) in files)])
        manifest = Manifest(
            uuid="",
            created_by=f"gnnstore {__version__}",
            schema=schema,
            files=tuple(FileEntry(path, size) for path, (size, _) in files),
            checksum_files=self._write_checksums(blocks),
            provenance=provenance,
        )
        try:
            manifest = replace(manifest, uuid=content_uuid(manifest.encode(), blocks))
            document = manifest.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"the store's metadata cannot be written as JSON ({error}); graph-level values "
                f"are limited to JSON types, {MAX_DEPTH} levels deep"
            ) from error
        self._check_readable(document)
        root = ChecksummedFile(self.temporary_path / METADATA_FILE)
        root.write(np.frombuffer(document, dtype=np.uint8))
        root.close()
        self._transaction.commit(self._clear_work)
        self._open = False
        return self.path

    def _clear_work(self) -> None:
        """Remove what is not of the store, when all that is of it is durable."""
        for directory in self.journal.spill_directories:
            shutil.rmtree(directory, ignore_errors=True)
        self.journal.close()

    def _check_readable(self, document: bytes) -> None:
        """Put the manifest to the reader's own test: a store that cannot be opened is lost."""
        try:
            if len(document) > MAX_MANIFEST_BYTES:
                raise CorruptStoreError(f"it has {len(document)} bytes")
            Manifest.decode(document, str(self.path))
        except CorruptStoreError as error:
            raise InputError(
                f"the store's metadata would be refused by readers ({error}); graph-level values "
                f"may nest about {MAX_DEPTH // 2} levels deep and take {MAX_MANIFEST_BYTES >> 20} "
                "MiB in all: store large ones as tensors"
            ) from error

    def _record(self, array_path: str, writer: PagedArrayWriter) -> None:
        for name, size, crcs in writer.files:
            self._files[f"{array_path}/{name}"] = (size, crcs)

    def _write_groups(self) -> None:
        """Give every directory between the root and the arrays its group metadata."""
        arrays = {str(PurePosixPath(path).parent) for path in self._files}
        groups = {str(parent) for path in arrays for parent in PurePosixPath(path).parents}
        document = json.dumps(group_metadata(), indent=1).encode()
        for group in sorted(groups - {"."}):
            file = ChecksummedFile(self.temporary_path / group / METADATA_FILE)
            file.write(np.frombuffer(document, dtype=np.uint8))
            self._files[f"{group}/{METADATA_FILE}"] = (file.size_bytes, file.close())

    def _write_checksums(self, blocks: BlockCrcs) -> tuple[tuple[FileEntry, int], ...]:
        directory = self.temporary_path / CHECKSUMS_ARRAY
        directory.mkdir()
        spec = AttributeSpec("checksums", CHECKSUMS_ARRAY, "paged", "uint32", blocks.shape)
        with PagedArrayWriter(directory, spec, DEFAULT_PAGE_BYTES, self.shard_bytes) as writer:
            writer.append(blocks)
        entries = []
        for name, size, _ in writer.files:
            whole = _core.crc32c_file(str(directory / name), max(1, size))
            entries.append((FileEntry(f"{CHECKSUMS_ARRAY}/{name}", size), int(whole[0])))
        return tuple(entries)

    def abort(self, *, keep: bool = False) -> None:
        """Stop without a store. Does nothing after a commit.

        Parameters
        ----------
        keep : bool
            Whether to leave what is finished for a later attempt; the rest is removed.
        """
        if not self._open:
            return
        self._open = False
        for writer in self._writers.values():
            writer.abort()
        if keep and self.journal.has_work:
            remove_unfinished(self.journal)
            self._transaction.keep()
        else:
            self._transaction.abort()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        keeps = self._open and error is not None and is_resumable_error(error)
        missing = describe_missing(self.path.parent, self.remaining_bytes) if keeps else ""
        self.abort(keep=keeps)
        if keeps:
            is_kept = self.temporary_path.exists()
            advice = " ".join(
                filter(None, [missing, describe_kept(self.temporary_path) if is_kept else ""])
            )
            if isinstance(error, GnnstoreError):
                error.message = f"{error.message} {advice}".rstrip()
            elif advice:
                self._on_event(advice)
