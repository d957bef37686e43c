"""Open a packed plan: check the manifest, the files' sizes and where each batch lies, once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import CorruptStoreError, NotFoundError
from gnnstore.formats.arrays.compressed import read_cold
from gnnstore.formats.arrays.paged_array import PagedArray
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE, parse_paged, shard_name
from gnnstore.formats.container.files import read_small
from gnnstore.formats.container.regular_files import check_directories
from gnnstore.formats.packed.manifest import (
    BATCHES_ARRAY,
    INDEX_ARRAY,
    INDEX_COLUMNS,
    PLAN_ALIGNMENT_BYTES,
    PLANS_DIRECTORY,
    SEGMENT_COLUMNS,
    SEGMENTS_ARRAY,
    PlanManifest,
    find_plans,
    rows_array,
)
from gnnstore.formats.packed.segments import batches_sharing, check_segments, row_bytes_of
from gnnstore.formats.store.manifest import MAX_MANIFEST_BYTES, FileEntry
from gnnstore.formats.store.reader import (
    array_document,
    check_cold_array,
    check_sizes,
    read_block_checksums,
)
from gnnstore.formats.store.schema import AttributeSpec


class PlanReader:
    """An open, validated plan. Needs NumPy only; pickles as its path.

    Opening reads metadata and the index, and checks that every listed file is there with its
    exact size. It does not read records and rows: that is `verify`'s work.

    Attributes
    ----------
    path : Path
        The plan's directory, absolute.
    manifest : PlanManifest
    index : ndarray of int64 [num_batches, columns]
        Of each batch, epoch by epoch: where its record begins, its bytes and crc32c; the rows
        that its run has; where its run begins, for each cached attribute. Where runs are
        compressed, then the bytes of each run, and then their crc32c.
    segments : ndarray of int64 [segments, 4 + cached attributes] or None
        Of each segment, where the plan has any: its batches, as first and end; its shared rows;
        the rows of a chunk; where its first chunk begins, for each cached attribute.
    """

    def __init__(self, path: Path, manifest: PlanManifest) -> None:
        self.path = path
        self.manifest = manifest
        self._listed = {entry.path: entry.size_bytes for entry in manifest.files}
        self.batches = self._paged(BATCHES_ARRAY, "uint8", (None,))
        self.rows = {
            spec.path: self._paged(rows_array(spec), "uint8", (None,))
            for spec in manifest.cached_specs
        }
        self.segments: npt.NDArray[np.int64] | None = None
        if manifest.has_segments:
            width = SEGMENT_COLUMNS + len(self.rows)
            self.segments = self._paged(SEGMENTS_ARRAY, "int64", (None, width)).load()
        shape = (manifest.num_batches, manifest.index_columns)
        self.index = self._paged(INDEX_ARRAY, "int64", shape).load()
        self._check_index()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> PlanReader:
        """Open a plan.

        Raises
        ------
        NotFoundError
            If there is no such directory, or it is no plan.
        UnsupportedVersionError
            If it was written by a newer gnnstore.
        CorruptStoreError
            If metadata is malformed or altered, or a file is missing, short or long.
        StorageError
            If the operating system refuses a read.
        """
        directory = Path(os.path.abspath(path))  # noqa: PTH100  (resolve() would hide links)
        root = directory / METADATA_FILE
        if not os.path.lexists(root):
            raise _not_a_plan(directory)
        manifest = PlanManifest.decode(read_small(root, MAX_MANIFEST_BYTES, directory), str(root))
        check_sizes(directory, manifest.all_files(), "pack")
        reader = cls(directory, manifest)
        for spec in manifest.schema.graph_arrays.values():
            check_cold_array(directory, spec, reader._listed)
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        return (PlanReader.open, (str(self.path),))

    def __repr__(self) -> str:
        return f"PlanReader({str(self.path)!r})"

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Every file of the plan but the root `zarr.json`."""
        return self.manifest.all_files()

    @property
    def total_bytes(self) -> int:
        """Bytes of the plan on disk, its root metadata not counted."""
        return sum(entry.size_bytes for entry in self.files)

    def block_checksums(self) -> npt.NDArray[np.uint32]:
        """Return the crc32c of every block of every file, in the order of the manifest."""
        return read_block_checksums(self.path, self.manifest.first_blocks()[-1])

    def graph_array(self, spec: AttributeSpec) -> npt.NDArray[Any]:
        """Read a graph-level array.

        Raises
        ------
        CorruptStoreError
            If it cannot be decoded, or is not what the schema says.
        """
        check_directories(self.path, spec.path)  # the manifest need not list its files
        return read_cold(self.path / spec.path, spec)

    def run_begins(self, number: int) -> npt.NDArray[np.int64]:
        """Return where the runs of a batch begin, one for each cached attribute."""
        begins: npt.NDArray[np.int64] = self.index[number, self.run_columns(0)]
        return begins

    def run_columns(self, kind: int) -> slice:
        """Return the columns of the index that say where runs begin (0), their bytes and crcs."""
        first = INDEX_COLUMNS + kind * len(self.rows)
        return slice(first, first + len(self.rows))

    def run_bytes(self, column: int) -> npt.NDArray[np.int64]:
        """Return the bytes of all runs of the cached attribute with a number, as they are kept."""
        if self.manifest.compression is not None:
            sizes: npt.NDArray[np.int64] = self.index[:, self.run_columns(1)][:, column]
            return sizes
        return self.index[:, 3] * row_bytes_of(self.manifest.cached_specs[column])

    def batches_in(self, file: str, first_byte: int, end_byte: int) -> list[int]:
        """Return the numbers of the batches that have bytes in a part of a file.

        Parameters
        ----------
        file : str
            Relative to the plan.
        """
        begins, ends = self._extents(file)
        hit = (begins < end_byte) & (ends > first_byte)
        numbers = {int(number) for number in np.flatnonzero(hit)}
        if self.segments is not None:
            specs, array = self.manifest.cached_specs, file.rpartition("/")[0]
            numbers.update(batches_sharing(self.segments, specs, array, first_byte, end_byte))
        return sorted(numbers)

    def _extents(self, file: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        array = file.rpartition("/")[0]
        if array == BATCHES_ARRAY:
            return self.index[:, 0], self.index[:, 0] + self.index[:, 1]
        for column, spec in enumerate(self.manifest.cached_specs):
            if array == rows_array(spec):
                begins = self.index[:, INDEX_COLUMNS + column]
                return begins, begins + self.run_bytes(column)
        none = np.empty(0, np.int64)
        return none, none

    def _paged(self, array_path: str, dtype: str, shape: tuple[int | None, ...]) -> PagedArray:
        document, path = array_document(self.path, array_path)
        found, row_shape, layout = parse_paged(document, path)
        if found != dtype or row_shape != shape[1:] or shape[0] not in {None, layout.num_rows}:
            raise CorruptStoreError(
                f"{path}: the array is {found} {[layout.num_rows, *row_shape]}, but the plan's "
                f"manifest says {dtype} {list(shape)}",
                path=path,
            )
        names = [shard_name(shard, len(row_shape)) for shard in range(min(2, layout.num_shards))]
        sizes = [self._listed.get(f"{array_path}/{name}") for name in names]
        if sizes != [layout.shard_file_bytes(shard) for shard in range(layout.num_shards)]:
            raise CorruptStoreError(
                f"{path}: the array needs one file of {layout.num_rows} rows, but the manifest "
                f"lists {sizes}; restore it from a copy or pack again",
                path=path,
            )
        spec = AttributeSpec(array_path, array_path, "paged", dtype, (layout.num_rows, *row_shape))
        files = tuple(self.path / array_path / name for name in names)
        return PagedArray(spec, layout, files)

    def _check_index(self) -> None:
        """Refuse an index that leads outside of the files."""
        if self.segments is not None:
            reason = check_segments(
                self.segments,
                self.manifest.cached_specs,
                num_batches=self.manifest.num_batches,
                file_bytes={path: rows.num_rows for path, rows in self.rows.items()},
            )
            if reason:
                raise self._bad_index(reason)
        index = self.index
        ends = [(index[:, 0], index[:, 1], self.batches)]
        for column, spec in enumerate(self.manifest.cached_specs):
            if index.size and (index[:, 3].min() < 0 or index[:, 3].max() > 2**31):
                raise self._bad_index("rows that are missed are out of range")
            ends.append(
                (index[:, INDEX_COLUMNS + column], self.run_bytes(column), self.rows[spec.path])
            )
        for begins, lengths, array in ends:
            if index.size == 0:
                continue
            is_inside = (begins >= 0) & (lengths >= 0) & (begins <= array.num_rows)
            is_inside &= lengths <= array.num_rows - begins
            if not is_inside.all() or (begins % PLAN_ALIGNMENT_BYTES).any():
                number = int(np.flatnonzero(~is_inside | (begins % PLAN_ALIGNMENT_BYTES != 0))[0])
                raise self._bad_index(
                    f"batch {number} has {lengths[number]} bytes from byte {begins[number]} on of "
                    f"{array.spec.path!r}, which has {array.num_rows}"
                )

    def _bad_index(self, reason: str) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self.path / INDEX_ARRAY}: {reason}; restore the plan from a copy or pack again",
            path=self.path / INDEX_ARRAY,
        )


def find_plan(store: Path, plan: str | os.PathLike[str]) -> Path:
    """Return the directory of a plan that is named, or given as a path.

    Parameters
    ----------
    store : Path
        Whose plans are looked through.
    plan : str or path-like
        A name under `plans` of the store, or the path of a directory.

    Raises
    ------
    NotFoundError
        If there is none; the message lists those of the store.
    CorruptStoreError
        If the name is that of a symbolic link.
    """
    text = os.fspath(plan)
    named = store / PLANS_DIRECTORY / text
    if "/" not in text and os.path.lexists(named / METADATA_FILE):
        check_directories(store, f"{PLANS_DIRECTORY}/{text}")
        return named
    if os.path.lexists(Path(text) / METADATA_FILE):
        return Path(text)
    names = ", ".join(repr(path.name) for path in find_plans(store)) or "none"
    raise NotFoundError(
        f"{store}: no plan {text!r}, and no directory of a plan at {text}; the store's plans: "
        f"{names}. Make one with 'gnnstore pack'",
        path=named,
    )


def _not_a_plan(directory: Path) -> NotFoundError:
    message = f"{directory}: no such plan"
    if directory.exists():
        message = f"{directory}: not a packed plan (it has no {METADATA_FILE})"
    return NotFoundError(f"{message}; make one with 'gnnstore pack'", path=directory)
