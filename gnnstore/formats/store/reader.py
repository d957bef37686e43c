"""Open a store: check the manifest, the files' sizes and every array's metadata, once."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import CorruptStoreError, NotFoundError, storage_error
from gnnstore.formats.arrays.compressed import chunk_file_names, num_chunks, read_chunks, read_cold
from gnnstore.formats.arrays.paged_array import PagedArray
from gnnstore.formats.arrays.zarr_metadata import (
    MAX_ARRAY_METADATA_BYTES,
    METADATA_FILE,
    parse_cold,
    parse_paged,
    shard_name,
)
from gnnstore.formats.container.files import directory_bytes, read_small
from gnnstore.formats.container.leftovers import leftovers
from gnnstore.formats.container.regular_files import stat_below
from gnnstore.formats.container.strict_json import parse_object
from gnnstore.formats.store.manifest import CHECKSUMS_ARRAY, MAX_MANIFEST_BYTES, FileEntry, Manifest
from gnnstore.formats.store.schema import AttributeSpec, Schema
from gnnstore.units import format_size


class StoreReader:
    """An open, validated store. Needs NumPy only; pickles as its path.

    Opening reads metadata: the manifest, each array's `zarr.json`, and the ends of each
    `indptr`. It checks that every listed file is there with its exact size, and that every
    file an array needs is listed. It does not read the data: that is `verify`'s work.

    Attributes
    ----------
    path : Path
        The store's directory, absolute.
    manifest : Manifest
        Identity, schema, files.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._paged: dict[str, PagedArray] = {}
        self._sizes = {entry.path: entry.size_bytes for entry in manifest.files}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> StoreReader:
        """Open a store.

        Raises
        ------
        NotFoundError
            If there is no such directory, or it is no store.
        UnsupportedVersionError
            If it was written by a newer gnnstore.
        CorruptStoreError
            If metadata is malformed or altered, or a file is missing, short, long or unlisted.
        StorageError
            If the operating system refuses a read.
        """
        directory = Path(os.path.abspath(path))  # noqa: PTH100  (resolve() would hide links)
        root = directory / METADATA_FILE
        if not directory.is_dir() or not os.path.lexists(root):
            raise _not_a_store(directory)
        manifest = Manifest.decode(read_small(root, MAX_MANIFEST_BYTES, directory), str(root))
        reader = cls(directory, manifest)
        check_sizes(directory, reader.files, "convert")
        for spec in manifest.schema.arrays():
            reader._check_array(spec)
        reader._check_indptr_ends()
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        return (StoreReader.open, (str(self.path),))

    def __repr__(self) -> str:
        return f"StoreReader({str(self.path)!r})"

    @property
    def schema(self) -> Schema:
        """Node types, edge types, attributes."""
        return self.manifest.schema

    @property
    def uuid(self) -> str:
        """The store's identity, derived from its contents: equal for equal stores."""
        return self.manifest.uuid

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Every file of the store but the root `zarr.json`."""
        return self.manifest.all_files()

    @property
    def total_bytes(self) -> int:
        """Bytes of the store on disk, its root metadata not counted."""
        return sum(entry.size_bytes for entry in self.files)

    def paged(self, spec: AttributeSpec) -> PagedArray:
        """Return a paged array of the store."""
        return self._paged[spec.path]

    def cold(self, spec: AttributeSpec) -> npt.NDArray[Any]:
        """Read a cold array whole into a new array in its storage type.

        Raises
        ------
        CorruptStoreError
            If it cannot be decoded or is not what the schema says.
        """
        return read_cold(self.path / spec.path, spec)

    def cold_chunks(
        self, spec: AttributeSpec
    ) -> Iterator[tuple[tuple[slice, ...], npt.NDArray[Any]]]:
        """Yield the places and values of a cold array's chunks, one in memory at a time.

        Raises
        ------
        CorruptStoreError
            If one cannot be decoded, or the array is not what the schema says.
        """
        return read_chunks(self.path / spec.path, spec)

    def read(self, spec: AttributeSpec) -> npt.NDArray[Any]:
        """Read any array whole into memory, in its storage type."""
        return self.cold(spec) if spec.layout == "cold" else self.paged(spec).load()

    def block_checksums(self) -> npt.NDArray[np.uint32]:
        """Return the crc32c of every block of every file, in the order of the manifest."""
        return read_block_checksums(self.path, self.manifest.first_blocks()[-1])

    def _check_array(self, spec: AttributeSpec) -> None:
        if spec.layout == "cold":
            check_cold_array(self.path, spec, self._sizes)
            return
        document, path = array_document(self.path, spec.path)
        dtype, row_shape, layout = parse_paged(document, path)
        # Compared before anything is made per shard: a hostile count is not a loop.
        _require_listed(layout.num_shards <= len(self._sizes), spec, path)
        spec.check(dtype, (layout.num_rows, *row_shape), path)
        names = [shard_name(shard, len(row_shape)) for shard in range(layout.num_shards)]
        files = tuple(self.path / spec.path / name for name in names)
        self._paged[spec.path] = PagedArray(spec, layout, files)
        for shard, name in enumerate(names):
            listed, size = self._sizes.get(f"{spec.path}/{name}"), layout.shard_file_bytes(shard)
            _require_listed(listed is not None, spec, name)
            if listed != size:
                raise CorruptStoreError(
                    f"{files[shard]}: the file has {listed} bytes, but the array's shape needs "
                    f"{size}",
                    path=files[shard],
                )

    def _check_indptr_ends(self) -> None:
        for edge in self.schema.edge_types:
            array = self.paged(edge.indptr)
            ends = [int(array.read_slice(row, row + 1)[0]) for row in (0, array.num_rows - 1)]
            if ends != [0, edge.num_edges]:
                raise CorruptStoreError(
                    f"{self.path}: {edge.indptr.path} runs from {ends[0]} to {ends[1]}, but there "
                    f"are {edge.num_edges} edges; run 'gnnstore verify'",
                    path=self.path / edge.indptr.path,
                )


def array_document(directory: Path, array_path: str) -> tuple[dict[str, Any], str]:
    """Return the `zarr.json` of an array, and its path.

    Raises
    ------
    CorruptStoreError
        If it is missing, no regular file, or no JSON object.
    StorageError
        If it cannot be read.
    """
    path = str(directory / array_path / METADATA_FILE)
    text = read_small(Path(path), MAX_ARRAY_METADATA_BYTES, directory)
    return parse_object(text, path=path), path


def check_cold_array(directory: Path, spec: AttributeSpec, listed: Collection[str]) -> None:
    """Check that a cold array is what a schema says, and that all its chunks are listed.

    Parameters
    ----------
    directory : Path
        Of the store or plan.
    listed : collection of str
        The paths of its files.

    Raises
    ------
    CorruptStoreError
        If its metadata is malformed or says something else, or a chunk is not listed.
    StorageError
        If it cannot be read.
    """
    document, path = array_document(directory, spec.path)
    dtype, shape, chunk_shape = parse_cold(document, path)
    # Compared before there is a name for each: a hostile count is not a loop.
    _require_listed(num_chunks(shape, chunk_shape) <= len(listed), spec, path)
    spec.check(dtype, shape, path)
    for name in chunk_file_names(shape, chunk_shape):
        _require_listed(f"{spec.path}/{name}" in listed, spec, name)


def read_block_checksums(directory: Path, num_blocks: int) -> npt.NDArray[np.uint32]:
    """Return the array `checksums` of a store or a plan: so many, for all files.

    Raises
    ------
    CorruptStoreError
        If there are not so many.
    """
    document, path = array_document(directory, CHECKSUMS_ARRAY)
    dtype, row_shape, layout = parse_paged(document, path)
    if dtype != "uint32" or row_shape or layout.num_rows != num_blocks:
        raise CorruptStoreError(
            f"{directory}: the checksums are {layout.num_rows} {dtype}, but the manifest's "
            f"files have {num_blocks} blocks",
            path=directory / CHECKSUMS_ARRAY,
        )
    spec = AttributeSpec("checksums", CHECKSUMS_ARRAY, "paged", dtype, (num_blocks,))
    names = [shard_name(shard, 0) for shard in range(layout.num_shards)]
    files = tuple(directory / CHECKSUMS_ARRAY / name for name in names)
    return PagedArray(spec, layout, files).load()


def check_sizes(directory: Path, files: Iterable[FileEntry], verb: str) -> None:
    """Check that every file is there with the size that a manifest gives.

    Parameters
    ----------
    verb : str
        How such a directory is made anew: "convert" or "pack".

    Raises
    ------
    CorruptStoreError
        If a file is missing, short, long, no regular file, or behind a symbolic link.
    StorageError
        If the operating system refuses.
    """
    checked: set[str] = set()
    for entry in files:
        path = directory / entry.path
        try:
            found = stat_below(directory, entry.path, checked)
        except FileNotFoundError:
            raise CorruptStoreError(
                f"{path}: the file is missing ({format_size(entry.size_bytes)} according to "
                f"the manifest); restore it from a copy or {verb} again",
                path=path,
            ) from None
        except OSError as error:
            raise storage_error(error, "open the store", path) from error
        if found.st_size != entry.size_bytes:
            raise CorruptStoreError(
                f"{path}: the file has {found.st_size} bytes, but the manifest says "
                f"{entry.size_bytes}; it was truncated or altered: restore it from a copy "
                f"or {verb} again",
                path=path,
                offset=min(found.st_size, entry.size_bytes),
            )


def _require_listed(present: bool, spec: AttributeSpec, name: str) -> None:
    if not present:
        raise CorruptStoreError(
            f"the array {spec.path!r} needs files that the manifest does not list ({name}); "
            "the store is incomplete: convert again",
            path=spec.path,
        )


def _not_a_store(directory: Path) -> NotFoundError:
    message = f"{directory}: no such store"
    if directory.is_dir():
        message = f"{directory}: not a gnnstore store (it has no {METADATA_FILE})"
    elif directory.exists():
        message = f"{directory}: a file, not a store directory"
    unfinished = leftovers(directory)
    if unfinished:
        size = format_size(sum(directory_bytes(path) for path in unfinished))
        message += (
            f"; an unfinished conversion ({size}) lies beside it as {unfinished[0].name}: wait for "
            "it, repeat the command with --resume, or remove it with 'gnnstore gc'"
        )
    else:
        message += "; make one with 'gnnstore convert' (see 'gnnstore convert --help')"
    return NotFoundError(message, path=directory)
