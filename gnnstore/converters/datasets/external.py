"""Features and labels in their own files: `.npy`, `.npz`, CSV, raw, one file or many."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.datasets.headers import column_names, first_lines, id_column
from gnnstore.converters.inputs.derived import JoinedArrays, MappedRows, cut_rows
from gnnstore.converters.inputs.files import RawLayout, open_raw
from gnnstore.converters.inputs.npy import open_npy
from gnnstore.converters.inputs.npz import open_npz
from gnnstore.converters.inputs.opening import PathLike, existing_file
from gnnstore.converters.inputs.scattered import ScatteredRows
from gnnstore.converters.inputs.source import ArraySource, MemoryArray, SequentialArray
from gnnstore.converters.inputs.text_arrays import read_as_stored, read_numbers
from gnnstore.converters.inputs.text_tables import TableFormat, TextTable
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError, NotFoundError, UsageError

_TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
_PATTERN_MARKS = re.compile(r"[*?\[]")

Paths = PathLike | Sequence[PathLike]


@dataclass(frozen=True)
class ArrayFiles:
    """An array, and its files."""

    source: ArraySource  # the array [N, ...]
    dtype: str | None  # element type, where NumPy has none
    files: tuple[Path, ...]  # in the order of their rows
    row_ids: ArraySource | None = None  # the id of each row; None: row i is that of node i
    ids_option: str = ""  # the option that names ids, if text without ids may hold some

    def write(
        self,
        writer: GraphWriter,
        name: str,
        nodes: ArraySource | None,
        ids: Callable[[], npt.NDArray[Any]] | None = None,
    ) -> None:
        """Write the array as a node attribute, each row to its node.

        `ids` returns the ids of all nodes in the input; None: their numbers.
        """
        if nodes is None:
            source = self.source
            if self.ids_option and len(source.shape) > 1 and source.shape[1] > 1:
                known = ids or (lambda: np.arange(source.shape[0]))
                source = _NoIds(source, known, self.ids_option)
            writer.set_node_attribute(name, source, dtype=self.dtype)
            return
        place = writer.spill_directory / f"rows of {name}"
        ordered = ScatteredRows(self.source, nodes, place, writer.options.memory_bytes)
        writer.set_node_attribute(name, ordered, dtype=self.dtype)
        ordered.close()


class _NoIds(SequentialArray):
    """An array of text that is refused if its first column is the id of each node once."""

    def __init__(
        self, source: ArraySource, ids: Callable[[], npt.NDArray[Any]], option: str
    ) -> None:
        self.label, self.shape, self.dtype = source.label, source.shape, source.dtype
        self._source, self._ids, self._option = source, ids, option

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time."""
        left: npt.NDArray[Any] | None = None  # ids that no row had yet, sorted
        may_be = start == 0
        for rows in self._source.rows(step, start):
            if may_be:
                column = np.sort(rows[:, 0])
                may_be = bool((np.diff(column) > 0).all() and (column == np.rint(column)).all())
            if may_be:
                # As the column has them: it may be float32, in which large ids are equal.
                left = np.unique(self._ids().astype(self.dtype)) if left is None else left
                others = np.setdiff1d(left, column, assume_unique=True)
                may_be, left = len(left) - len(others) == len(column), others
            yield rows
        if may_be and left is not None and not len(left):
            raise InputError(
                f"{self.label}: the first column has the id of each node once, and would be stored "
                f"as values; take the ids from it with {self._option}={Path(self.label).name}, or "
                "remove it"
            )


class _TextIds(SequentialArray):
    """The column of ids in a table of text, int64 [N]."""

    def __init__(self, path: Path, place: int, shape: tuple[int, ...], skip_header: bool) -> None:
        self.label, self.shape, self.dtype = str(path), shape[:1], np.dtype(np.int64)
        self._table = TextTable(
            path,
            TableFormat(
                "int64",
                num_columns=shape[1],
                ends=(place,),
                delimiter=None,
                what="node id",
                skip_header=skip_header,
            ),
        )

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time."""
        blocks = (self._table.ends(block)[:, 0] for block in self._table.blocks())
        return cut_rows(blocks, step, start)


def _has_own_ids(names: list[str], ids: PathLike | None, what: str) -> bool:
    """Whether text has its ids in a column; refuse such a column that is not taken."""
    texts = [path for path in map(Path, names) if is_text(path)]
    if ids is not None and len(texts) == len(names) and paths_of(ids, "the ids") == names:
        return True
    for path in filter(Path.is_file, texts):
        columns = column_names(first_lines(path, b"")[1])
        place = id_column(columns)
        if place is not None and len(columns) > 1:
            raise InputError(
                f"{path}: the column {columns[place]} has ids of nodes, and no {what}; take them "
                f"from it with {what}_ids={path.name} and skip the first line "
                f"({what}_skip_header=True), or remove the column",
                path=path,
            )
    return False


def _own_ids(name: str, source: ArraySource, skip_header: bool) -> tuple[ArraySource, int]:
    """Return the ids in a table of text, and the position of their column."""
    path = Path(name)
    place = id_column(column_names(first_lines(path, b"")[1])) if skip_header else None
    if source.shape[1] < 2:
        raise InputError(f"{path}: has one column, where ids and values are wanted", path=path)
    return _TextIds(path, place or 0, source.shape, skip_header), place or 0


def _joined(parts: Sequence[ArraySource]) -> ArraySource:
    return parts[0] if len(parts) == 1 else JoinedArrays(parts)


def open_features(
    paths: Paths,
    *,
    raw: RawLayout | None = None,
    what: str = "the features",
    stored: str | None = None,
    skip_header: bool = False,
    ids: PathLike | None = None,
) -> ArrayFiles:
    """Open an array in one or several files, perhaps with the ids of its rows."""
    found = paths_of(paths, what)
    if not found:
        raise UsageError(f"{what}: no file was given")
    one = RawLayout(raw.dtype, (-1, *raw.shape[1:])) if raw is not None else None
    has_own_ids = raw is None and _has_own_ids(found, ids, "features")
    parts = [_open(name, one, what, stored, skip_header) for name in found]
    row_ids = None
    if has_own_ids:
        own = [_own_ids(*pair, skip_header) for pair in zip(found, parts, strict=True)]
        row_ids = _joined([column for column, _ in own])
        parts = [_without(part, place) for part, (_, place) in zip(parts, own, strict=True)]
    source = _joined(parts)
    if raw is not None and raw.shape[0] not in (-1, source.shape[0]):
        raise InputError(
            f"{source.label}: has {source.shape[0]} rows of {raw.row_bytes} bytes, but the layout "
            f"{raw} says {raw.shape[0]}"
        )
    files = tuple(Path(_split_member(name)[0]) for name in found)
    if ids is not None and not has_own_ids:
        rows = open_labels(ids)
        row_ids, files = rows.source, (*files, *rows.files)
    is_table = raw is None and all(map(is_text, files))
    dtype = "bfloat16" if raw and raw.dtype == "bfloat16" else None
    return ArrayFiles(source, dtype, files, row_ids, "features_ids" if is_table else "")


def _without(source: ArraySource, place: int) -> ArraySource:
    """Return a table without a column."""
    width = source.shape[1] - 1
    return MappedRows(source, lambda rows, _: np.delete(rows, place, axis=1), row_shape=(width,))


def open_labels(
    paths: Paths, *, skip_header: bool = False, ids: PathLike | None = None
) -> ArrayFiles:
    """Open labels: as `open_features` does, but whole numbers in text are int64."""
    what = "the labels"
    names = paths_of(paths, what)
    if not names or not all(is_text(Path(name)) for name in names):
        found = open_features(paths, what=what)
        rows = None if ids is None else open_labels(ids)
        return (
            found
            if rows is None
            else replace(found, files=(*found.files, *rows.files), row_ids=rows.source)
        )
    files = tuple(existing_file(name, what) for name in names)
    has_own_ids = _has_own_ids(names, ids, "labels")
    header: dict[str, Any] = {"skip_header": skip_header, "header_hint": _header_hint("labels")}
    tables = [read_numbers(path, "label", **header) for path in files]
    row_ids = None
    if has_own_ids:
        arrays = [MemoryArray(str(path), t) for path, t in zip(files, tables, strict=True)]
        own = [_own_ids(*pair, skip_header) for pair in zip(names, arrays, strict=True)]
        row_ids = _joined([column for column, _ in own])
        tables = [np.delete(t, place, axis=1) for t, (_, place) in zip(tables, own, strict=True)]
    elif ids is not None:
        rows = open_labels(ids)
        row_ids, files = rows.source, (*files, *rows.files)
    if len({table.dtype for table in tables}) > 1:  # some have fractions
        tables = [
            _as_float32(table, path) for table, path in zip(tables, map(Path, names), strict=True)
        ]
    parts: list[ArraySource] = [
        MemoryArray(name, table[:, 0] if table.shape[1] == 1 else table)
        for name, table in zip(names, tables, strict=True)
    ]
    return ArrayFiles(_joined(parts), None, files, row_ids, "labels_ids")


def _as_float32(table: npt.NDArray[Any], path: Path) -> npt.NDArray[np.float32]:
    """Return whole numbers as float32, since other files have fractions."""
    found = table.astype(np.float32)
    if (found != table).any():
        number = table[found != table].flat[0]
        raise InputError(
            f"{path}: the label {number} is no float32, which labels with fractions are; the other "
            "files have some",
            path=path,
        )
    return found


def is_text(path: Path) -> bool:
    """Whether a file's name says that it is a table of text, gzipped or not."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.suffix.lower() in _TEXT_SUFFIXES


def paths_of(paths: Paths, what: str) -> list[str]:
    """Return the names of files, with those that match patterns in place of these."""
    given = [paths] if isinstance(paths, (str, Path)) or hasattr(paths, "__fspath__") else paths
    return [name for path in given for name in _expand(str(path), what)]


def _expand(name: str, what: str) -> list[str]:
    path = Path(name)
    if not _PATTERN_MARKS.search(path.name) or path.exists():
        return [name]
    matching = sorted(path.parent.glob(path.name), key=_natural_order)
    if not matching:
        raise NotFoundError(f"{what}: no file matches {name}; check the path", path=path)
    return [str(match) for match in matching]


def _natural_order(path: Path) -> list[tuple[int, int | str]]:
    """Order part-2 before part-10."""
    pieces = re.split(r"([0-9]+)", path.name)
    is_number = re.compile(r"[0-9]+").fullmatch
    return [(0, int(piece)) if is_number(piece) else (1, piece) for piece in pieces if piece]


def _split_member(name: str) -> tuple[str, str | None]:
    path, mark, member = name.rpartition(".npz:")
    return (f"{path}.npz", member) if mark else (name, None)


def _header_hint(what: str) -> str:
    return f". If the line names the columns, skip it ({what}_skip_header=True)"


def _open(
    name: str, raw: RawLayout | None, what: str, stored: str | None, skip_header: bool
) -> ArraySource:
    if raw is not None:
        return open_raw(Path(name), raw)
    file, member = _split_member(name)
    path = Path(file)
    if path.suffix == ".npy":
        return open_npy(path)
    if path.suffix == ".npz":
        return _open_member(path, member)
    existing_file(path, what)
    if is_text(path):
        hint = _header_hint("features")
        return read_as_stored(path, stored, skip_header=skip_header, header_hint=hint)
    raise UsageError(
        f"{what}: {path} is neither .npy, .npz nor .csv; if it is raw binary, say its type and "
        "shape (features_raw=), as in float32,-1,128"
    )


def _open_member(path: Path, member: str | None) -> ArraySource:
    members = open_npz(path)
    if member is None and len(members) == 1:
        return next(iter(members.values()))
    if member is None or member not in members:
        raise InputError(
            f"{path}: has the arrays {', '.join(sorted(members)) or '(none)'}; choose one as "
            f"{path}:NAME" + (f", there is no {member!r}" if member else ""),
            path=path,
        )
    return members[member]


def open_external(
    features: Paths | None,
    raw: RawLayout | None,
    ids: PathLike | None,
    options: ConvertOptions | None,
    *,
    skip_header: bool = False,
) -> ArrayFiles | None:
    """Open the features and the ids of their rows; None if there are none."""
    if features is None:
        if raw is not None or ids is not None or skip_header:
            raise UsageError(
                "features_raw=, features_ids= and features_skip_header= say what the features are "
                "like; give the features as well"
            )
        return None
    stored = None if options is None else options.feature_dtype
    return open_features(features, raw=raw, stored=stored, skip_header=skip_header, ids=ids)
