"""Opens a sealed directory: checks its manifest, the sizes of files, and metadata of arrays."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import (
    CorruptStoreError,
    NotFoundError,
    ReplacedError,
    StorageError,
    UsageError,
    storage_errors,
)
from gnnstore.formats.arrays.compressed import chunk_counts, chunk_files, read_chunks
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.arrays.zarr_metadata import (
    MAX_ARRAY_METADATA_BYTES,
    METADATA_FILE,
    parse_compressed,
    parse_paged,
    shard_name,
)
from gnnstore.formats.base.files import (
    BLOCK_BYTES,
    Problem,
    read_small,
)
from gnnstore.formats.base.strict_json import parse_object
from gnnstore.formats.container.manifest import (
    CHECKSUMS_ARRAY,
    MAX_MANIFEST_BYTES,
    FileEntry,
    Manifest,
)
from gnnstore.formats.container.workdir import is_resumable, leftovers, locked
from gnnstore.machine import PRIVATE, Machine

M = TypeVar("M", bound=Manifest)
R = TypeVar("R")


# Bytes of an array that `problems` holds at a time.
_SCAN_BYTES = 16 * 2**20


class SealedFiles(Generic[M]):
    """The files of a sealed directory, as its manifest lists them; they may be damaged."""

    def __init__(self, path: Path, manifest: M) -> None:
        self.path = path  # the directory, absolute
        self.manifest = manifest  # identity, contents, files
        # Refuses another directory that was put in place of the one whose manifest was read. Not a
        # method: arrays refer to it, and must not keep the reader.
        self.check_place = partial(_refuse_another, path, manifest.WORD, _written_at(path))

    @classmethod
    def find(cls, path: str | os.PathLike[str], kind: type[M]) -> SealedFiles[M]:
        """Read the manifest of a directory of some kind."""
        if "://" in os.fspath(path):  # not shown: it may have a password
            raise UsageError(
                f"a URL was given where the path of a {kind.WORD} is expected; copy the "
                f"{kind.WORD} first: gnnstore copy URL PATH"
            )
        directory = Path(os.path.abspath(path))  # noqa: PTH100  (resolve() would hide links)
        root = directory / METADATA_FILE
        with storage_errors(f"open the {kind.WORD}", directory):
            is_there = directory.is_dir() and root.exists()
        if not is_there:
            raise _nothing_at(directory, kind)
        text = read_small(root, MAX_MANIFEST_BYTES)
        return SealedFiles(directory, kind.decode(text, str(root)))

    @property
    def uuid(self) -> str:
        """The directory's identity, derived from its contents: equal for equal ones."""
        return self.manifest.uuid

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Every file but the root `zarr.json`."""
        manifest = self.manifest
        return (*manifest.files, *(entry for entry, _ in manifest.checksum_files))

    @property
    def total_bytes(self) -> int:
        """Bytes on disk, the root metadata not counted."""
        return sum(entry.size_bytes for entry in self.files)

    def wrong_files(self) -> Iterator[tuple[FileEntry, CorruptStoreError | StorageError]]:
        """Yield the files that are missing, links, or not of the size in the manifest."""
        word, verb = self.manifest.WORD, self.manifest.VERB
        for entry in self.files:
            path, size = self.path / entry.path, entry.size_bytes
            with storage_errors(f"open the {word}", path):
                status = path.lstat() if os.path.lexists(path) else None
            found = None if status is None else status.st_size
            if status is not None and stat.S_ISLNK(status.st_mode):
                message = f"{path}: a symbolic link, which is not followed; copy the {word} with "
                message += f"what its links lead to: cp -rL {self.path} COPY"
                yield entry, StorageError(message, path=path)
            elif found != size:
                state = "is missing" if found is None else f"has {found} bytes"
                message = f"{path}: the file {state}, but the manifest says {size} bytes; restore "
                message += f"it from a copy or {verb} again"
                yield entry, CorruptStoreError(message, path=path, offset=min(found or 0, size))

    def altered_checksums(self) -> Iterator[tuple[FileEntry, CorruptStoreError]]:
        """Yield the files of the checksums that were altered."""
        for entry, expected in self.manifest.checksum_files:
            file = self.path / entry.path
            with storage_errors("read the checksums", file):
                crcs = _core.crc32c_file(str(file), max(1, entry.size_bytes))
            if crcs.tolist() != [expected]:
                message = (
                    f"{file}: the checksums are altered; restore the file from a copy, or "
                    f"{self.manifest.VERB} again"
                )
                yield entry, CorruptStoreError(message, path=file, offset=0)

    def block_checksums(self) -> npt.NDArray[np.uint32]:
        """Return the crc32c of every block of every file, in the order of the manifest."""
        self.check_place()
        for _, error in self.altered_checksums():
            raise error
        return self.checksum_table()

    def check_arrays(self, *array_paths: str) -> None:
        """Compare every block of some arrays' files with its checksum."""
        crcs, threads = self.block_checksums(), min(8, len(os.sched_getaffinity(0)))
        first_blocks = self.manifest.first_blocks()[:-1]
        for entry, first in zip(self.manifest.files, first_blocks, strict=True):
            if str(PurePosixPath(entry.path).parent) not in array_paths:
                continue
            path = self.path / entry.path
            with storage_errors(f"read the {self.manifest.WORD}", path):
                found = _core.crc32c_file(str(path), BLOCK_BYTES, threads)
            self.check_blocks(path, 0, found, crcs[first : first + entry.num_blocks])

    def check_blocks(
        self,
        path: Path,
        first: int,
        found: npt.NDArray[np.uint32],
        expected: npt.NDArray[np.uint32],
    ) -> None:
        """Compare the crc32c of consecutive blocks of a file with those in the manifest."""
        wrong = np.flatnonzero(found != expected)
        if not len(wrong):
            return
        self.check_place()
        begin = (first + int(wrong[0])) * BLOCK_BYTES
        name = path.relative_to(self.path).as_posix()
        size = next(entry.size_bytes for entry in self.manifest.files if entry.path == name)
        raise CorruptStoreError(
            f"{path}: bytes {begin}-{min(begin + BLOCK_BYTES, size)} are damaged: their crc32c is "
            f"{found[wrong[0]]:08x}, but {expected[wrong[0]]:08x} was written; restore the file "
            f"from a copy, or {self.manifest.VERB} again. 'gnnstore verify' lists everything that "
            "is damaged",
            path=path,
            offset=begin,
        )

    def checksum_table(self) -> npt.NDArray[np.uint32]:
        """Return `block_checksums` without looking for alterations."""
        document, _ = self._array_document(CHECKSUMS_ARRAY)
        return checksums_array(self.path, self.manifest, document, self.check_place).load()

    def _array_document(self, array_path: str) -> tuple[dict[str, Any], str]:
        """Return the `zarr.json` of an array, and its path."""
        path = str(self.path / array_path / METADATA_FILE)
        text = read_small(Path(path), MAX_ARRAY_METADATA_BYTES)
        return parse_object(text, path=path), path


class SealedReader(SealedFiles[M]):
    """An open, validated directory. Needs NumPy only; pickles as its path and identity.

    Opening reads metadata. It checks that every listed file exists with its exact size, and that
    every file an array needs is listed. It does not read the data: `verify` does.
    """

    MANIFEST: ClassVar[type[Manifest]]

    def __init__(self, path: Path, manifest: M) -> None:
        super().__init__(path, manifest)
        self._paged: dict[str, PagedArray] = {}
        self._sizes = {entry.path: entry.size_bytes for entry in manifest.files}
        for spec in manifest.arrays():
            self._check_array(spec)
        self.check()

    def check(self) -> None:
        """Compare the arrays with the manifest, as far as that is quick."""

    def corrupt(self, problem: str, array: str = "") -> CorruptStoreError:
        """Return the error for contents that contradict one another, of an array if named."""
        path, manifest = self.path / array, self.manifest
        advice = f"restore the {manifest.WORD} from a copy or {manifest.VERB} again"
        return CorruptStoreError(f"{path}: {problem}; {advice}", path=path)

    def expect(
        self,
        specs: Sequence[AttributeSpec],
        expected: Mapping[str, tuple[tuple[str, ...], tuple[int | None, ...]]],
    ) -> None:
        """Raise unless these are arrays of the expected paths, types and shapes, each once."""
        if sorted(spec.path for spec in specs) != sorted(expected):
            listed, wanted = sorted({spec.path for spec in specs}), sorted(expected)
            raise self.corrupt(f"it lists the arrays {listed}, but {wanted} were expected")
        for spec in specs:
            dtypes, shape = expected[spec.path]
            advice = f"; restore it from a copy or {self.manifest.VERB} again"
            spec.expect(self.path, shape, dtypes, advice)

    def problems(self) -> Iterator[Problem]:
        """Yield unreadable arrays; if there are none, meaningless values; reads all."""
        is_readable = True
        for spec in self.manifest.arrays():
            try:
                for _ in self.compressed_chunks(spec) if spec.layout == "cold" else ():
                    pass
            except CorruptStoreError as error:
                is_readable = False
                yield Problem(str(self.path / spec.path), str(error))
        if is_readable:
            yield from self.meaningless()

    def meaningless(self) -> Iterator[Problem]:
        """Yield values of arrays that mean nothing in a directory of this kind."""
        yield from ()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a directory."""
        found: SealedFiles[Any] = SealedFiles.find(path, cls.MANIFEST)
        for _, error in found.wrong_files():
            raise error
        return cls(found.path, found.manifest)

    def require(self, uuid: str) -> None:
        """Raise unless this is the directory that was pickled."""
        if self.uuid != uuid:
            word = self.manifest.WORD
            raise ReplacedError(
                f"{self.path}: another {word} was put in place of the one that was pickled "
                f"({uuid}, found {self.uuid}); open it again",
                path=self.path,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return (reopened, (type(self).open, str(self.path), self.uuid))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def paged(self, spec: AttributeSpec) -> PagedArray:
        """Return a paged array."""
        return self._paged[spec.path]

    def compressed(self, spec: AttributeSpec, machine: Machine = PRIVATE) -> npt.NDArray[Any]:
        """Read a compressed array whole into memory, in its storage type."""
        dtype = STORAGE_DTYPES[spec.dtype]

        def fill(out: npt.NDArray[np.uint8]) -> None:
            values = out.view(dtype).reshape(spec.shape)
            for place, chunk in self.compressed_chunks(spec):
                values[place] = chunk

        found = machine.share(spec.key(self.uuid, dtype), spec.num_bytes, fill)
        return found.view(dtype).reshape(spec.shape)

    def compressed_chunks(
        self, spec: AttributeSpec
    ) -> Iterator[tuple[tuple[slice, ...], npt.NDArray[Any]]]:
        """Yield the places and values of a compressed array's chunks, one in memory at a time."""
        self.check_place()
        return read_chunks(self.path / spec.path, spec)

    def pieces(self, spec: AttributeSpec, num_bytes: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the first row and consecutive rows, of a compressed array if it has one axis."""
        if spec.layout == "paged":
            yield from self.paged(spec).pieces(num_bytes)
        else:
            for (place,), rows in self.compressed_chunks(spec):
                yield place.start, rows

    def read(self, spec: AttributeSpec, machine: Machine = PRIVATE) -> npt.NDArray[Any]:
        """Read any array whole into memory, in its storage type."""
        if spec.layout == "cold":
            return self.compressed(spec, machine)
        return self.paged(spec).load(machine=machine)

    def _check_array(self, spec: AttributeSpec) -> None:
        """Check that an array matches the manifest, and that all its files are listed."""
        document, path = self._array_document(spec.path)
        if spec.layout == "cold":
            dtype, shape, chunk_shape = parse_compressed(document, path)
            # Compared before there is a name for each: a hostile count is not a loop.
            counts = chunk_counts(shape, chunk_shape)
            self._require(math.prod(counts) <= len(self._sizes), spec, path)
            spec.check(dtype, shape, path)
            for _, name in chunk_files(counts):
                self._require(f"{spec.path}/{name}" in self._sizes, spec, name)
            return
        dtype, row_shape, layout = parse_paged(document, path)
        self._require(layout.num_shards <= len(self._sizes), spec, path)
        spec.check(dtype, (layout.num_rows, *row_shape), path)
        names = [shard_name(shard, len(row_shape)) for shard in range(layout.num_shards)]
        shards = tuple(self.path / spec.path / name for name in names)
        self._paged[spec.path] = PagedArray(spec, layout, shards, self.check_place, self.uuid)
        for shard, name in enumerate(names):
            listed, size = self._sizes.get(f"{spec.path}/{name}"), layout.shard_file_bytes(shard)
            self._require(listed is not None, spec, name)
            if listed != size:
                raise CorruptStoreError(
                    f"{shards[shard]}: the file has {listed} bytes, but the array's shape needs "
                    f"{size}",
                    path=shards[shard],
                )

    def _require(self, present: bool, spec: AttributeSpec, name: str) -> None:
        if not present:
            raise CorruptStoreError(
                f"the array {spec.path!r} needs files that the manifest does not list ({name}); "
                f"the {self.manifest.WORD} is incomplete: {self.manifest.VERB} again",
                path=spec.path,
            )


def checksums_array(
    directory: Path,
    manifest: Manifest,
    document: dict[str, Any],
    check_place: Callable[[], None] = lambda: None,
) -> PagedArray:
    """Return the checksums of a directory, whose files need not be there, from their metadata."""
    num_blocks = manifest.first_blocks()[-1]
    path = directory / CHECKSUMS_ARRAY
    dtype, row_shape, layout = parse_paged(document, str(path / METADATA_FILE))
    if dtype != "uint32" or row_shape or layout.num_rows != num_blocks:
        raise CorruptStoreError(
            f"{directory}: the checksums are {layout.num_rows} {dtype}, but the manifest's "
            f"files have {num_blocks} blocks",
            path=path,
        )
    spec = AttributeSpec("checksums", CHECKSUMS_ARRAY, "paged", dtype, (num_blocks,))
    names = [shard_name(shard, 0) for shard in range(layout.num_shards)]
    return PagedArray(spec, layout, tuple(path / name for name in names), check_place)


def reopened(open_path: Callable[[str], R], path: str, uuid: str) -> R:
    """Open a pickled reader, or an object with a reader, by its path and identity."""
    found = open_path(path)
    reader: Any = getattr(found, "reader", found)
    reader.require(uuid)
    return found


def _written_at(directory: Path) -> int:
    """Return when the manifest of a directory was written, in nanoseconds."""
    return (directory / METADATA_FILE).stat().st_mtime_ns


def _refuse_another(directory: Path, word: str, written_at: int) -> None:
    with suppress(FileNotFoundError):  # opening the next file raises
        if _written_at(directory) != written_at:
            raise ReplacedError(
                f"{directory}: another {word} was put in place of the one that was opened; open it "
                "again",
                path=directory,
            )


def _nothing_at(directory: Path, kind: type[Manifest]) -> NotFoundError:
    message = f"{directory}: no such {kind.WORD}"
    if directory.is_dir():
        message = f"{directory}: not a gnnstore {kind.WORD} (it has no {METADATA_FILE})"
    elif directory.exists():
        message = f"{directory}: a file, not a gnnstore {kind.WORD}"
    advice = kind.MAKE
    for path in leftovers(directory):
        advice = f"an unfinished {kind.WORD} lies next to it as {path.name}: "
        with locked(path) as free:
            if not free:
                advice += "wait for it"
            elif path.name.startswith(f".{directory.name}.old-"):
                advice += "'gnnstore gc --yes' gives it its name back"
            else:
                again = "repeat the command with --resume, or " if is_resumable(path) else ""
                advice += f"{again}remove it with 'gnnstore gc --yes'"
    return NotFoundError(f"{message}; {advice}", path=directory)
