"""Features and labels in their own files: `.npy`, `.npz`, CSV, raw, one file or many."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.converters.datasets.text import id_column
from gnnstore.converters.edges.numbering import may_be_ids
from gnnstore.converters.inputs.files import RawLayout, open_npy, open_npz, open_raw
from gnnstore.converters.inputs.opening import PathLike, existing_file
from gnnstore.converters.inputs.parts import natural_order
from gnnstore.converters.inputs.source import (
    EXACT_IN_FLOAT64,
    ArraySource,
    MappedRows,
    MemoryArray,
    joined,
)
from gnnstore.converters.inputs.text_arrays import TextArray, open_features, open_numbers
from gnnstore.converters.inputs.text_tables import TableFormat, TextTable, is_number, read_head
from gnnstore.converters.spill_files import ScatteredRows
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError, NotFoundError, UsageError
from gnnstore.formats.store.schema import NODE_TYPE
from gnnstore.units import format_count

_TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
_PATTERN_MARKS = re.compile(r"[*?\[]")
# A file with several arrays or columns, and one of these.
_MEMBER = re.compile(r"(.*\.(?:npz|(?:csv|tsv|txt)(?:\.gz)?)):(.+)", re.IGNORECASE | re.DOTALL)
_HEAD_ROWS = 2**12  # rows that distinguish most columns of values from ids

Paths = PathLike | Sequence[PathLike]


@dataclass(frozen=True)
class ArrayFiles:
    """An array, and its files."""

    source: ArraySource  # the array [N, ...]
    dtype: str | None  # element type, where NumPy has none
    files: tuple[Path, ...]  # in the order of their rows
    row_ids: ArraySource | None = None  # the id of each row; None: node i has row i
    ids_option: str = ""  # the option that names ids, if text without ids may hold some
    skip_header: bool = False  # whether text has names of columns

    def write(
        self,
        writer: GraphWriter,
        name: str,
        nodes: ArraySource | None,
        ids: Callable[[], npt.NDArray[Any]] | None = None,
    ) -> None:
        """Write the array as a node attribute, each row to its node.

        `ids` returns the ids of all nodes in the input, ascending; None: their numbers.
        """
        if nodes is None:
            self.refuse_ids(ids or (lambda: np.arange(self.source.shape[0])))
            writer.set_node_attribute(name, self.source, dtype=self.dtype)
            return
        directory = writer.spill_directory / f"rows of {name}"
        ordered = ScatteredRows(self.source, nodes, directory, writer.options.memory_bytes)
        writer.set_node_attribute(name, ordered, dtype=self.dtype)
        ordered.close()

    def refuse_ids(self, ids: Callable[[], npt.NDArray[Any]]) -> None:
        """Refuse text that has a column, next to others, which may be the ids of the nodes."""
        if not self.ids_option or len(self.source.shape) < 2 or self.source.shape[1] < 2:
            return
        first = self.files[0]
        names = read_head(first, b"").names() if self.skip_header else []
        head = TextTable(first, TableFormat("float64", delimiter=None, skip_header=bool(names)))
        for number, values in enumerate(next(head.blocks(), np.empty((0, 0)))[:_HEAD_ROWS].T):
            name = names[number] if names else ""
            exact = values[np.abs(values) < EXACT_IN_FLOAT64]
            if (values != np.rint(values)).any() or len(np.unique(exact)) < len(exact):
                continue
            found = self._integers(number)
            if found is not None and may_be_ids(name, found, lambda a: np.array_equal(a, ids())):
                raise InputError(
                    f"{first}: the column {repr(name) if name else number + 1} has different "
                    "integers, as ids of nodes have, and would be stored as values; take the ids "
                    f"from it with {self.ids_option}={first.name}:{name or number + 1}, or remove "
                    "it",
                    path=first,
                )

    def _integers(self, number: int) -> npt.NDArray[Any] | None:
        """Return a column of text as integers; None if it has others."""
        found = None
        for dtype in ("float64", "int64"):  # the latter if the former may round some
            columns = [_IdColumn(path, number, self.skip_header) for path in self.files]
            try:
                found = joined([column.open(dtype=dtype) for column in columns]).read()
            except InputError:
                return None
            if (found != np.rint(found)).any():
                return None
            if np.all(np.abs(found) < EXACT_IN_FLOAT64):
                break
        return found


def open_arrays(
    paths: Paths,
    what: Literal["features", "labels"],
    *,
    raw: RawLayout | None = None,
    stored: str | None = None,
    skip_header: bool = False,
    ids: Paths | None = None,
) -> ArrayFiles:
    """Open an array in one or several files, perhaps with the ids of its rows.

    Whole numbers in text are int64 if they are labels, which go by classes.
    """
    names = paths_of(paths, f"the {what}")
    if not names:
        raise UsageError(f"the {what}: no file was given")
    files = tuple(_file_of(name, what) for name in names)
    is_table = raw is None and all(map(is_text, files))
    for path in files if is_table else ():
        existing_file(path, f"the {what}")
    id_names = [] if ids is None else paths_of(ids, "the ids")
    id_files = tuple(Path(_split_member(name)[0]) for name in id_names)
    # They may be in a column of the same table.
    is_own = is_table and [f.resolve() for f in id_files] == [f.resolve() for f in files]
    columns = [
        _IdColumn.find(name, f"{what}_ids", skip_header=is_own and skip_header) for name in id_names
    ]
    own = [column for column in columns if column is not None] if is_own else []
    skip_header |= any(column.has_header for column in own)
    if is_table and skip_header:
        _check_names(files, own)
    how: dict[str, Any] = {
        "ids": [column.number for column in own],
        "skip_header": skip_header,
        "hint": f". If the line names the columns, skip it ({what}_skip_header=True)",
    }
    if raw is not None:
        layout = RawLayout(raw.dtype, (-1, *raw.shape[1:]))
        source = joined([open_raw(path, layout) for path in files])
    elif is_table and what == "labels":
        labels = open_numbers(files, "label", allow_nan=False, **how)
        source = MemoryArray(labels.label, labels.read())
    elif is_table:
        source = open_features(files, stored, **how)
    else:
        source = joined([_open_file(name, what, stored, **how) for name in names])
    if own and not source.shape[1]:
        raise InputError(f"{source.label}: has one column, where ids and values are wanted")
    row_ids = joined([column.open() for column in own]) if own else None
    if columns and not own:
        files += id_files
        opened = zip(id_names, columns, strict=True)
        row_ids = joined([_open_file(name, "ids") if c is None else c.open() for name, c in opened])
    if raw is not None and raw.shape[0] not in (-1, source.shape[0]):
        raise InputError(
            f"{source.label}: has {source.shape[0]} rows of {raw.row_bytes} bytes, but the layout "
            f"{raw} has {raw.shape[0]}"
        )
    if is_table and what == "labels" and source.shape[1] == 1:
        source = MappedRows(source, lambda rows, _: rows[:, 0], row_shape=())
    dtype = "bfloat16" if raw and raw.dtype == "bfloat16" else None
    option = f"{what}_ids" if is_table and row_ids is None else ""
    found = ArrayFiles(source, dtype, files, row_ids, option, skip_header=skip_header)
    found.refuse_ids(lambda: np.empty(0))
    return found


@dataclass(frozen=True)
class _IdColumn:
    """The column of a table of text that has the ids of its rows."""

    path: Path
    number: int  # from 0
    has_header: bool

    @classmethod
    def find(cls, name: str, option: str, *, skip_header: bool) -> _IdColumn | None:
        """Find the column that a name has behind a colon, else that called `id`, else the only one.

        None if the file is not a table of text.
        """
        file, column = _split_member(name)
        path = Path(file)
        if not is_text(path):
            return None
        head = read_head(existing_file(path, "the ids"), b"")
        fields = head.fields(0)
        has_header = skip_header or not all(map(is_number, fields))
        names = head.names() if has_header else []
        number = id_column(names) if column is None else None
        if column is not None and names.count(column) == 1:
            number = names.index(column)
        elif column is not None and column.isdecimal() and 0 < int(column[:9]) <= len(fields):
            number = int(column) - 1
        elif column is None and len(fields) < 2:
            number = 0
        if number is None:
            problem = "the column of the ids is unknown"
            if column is not None:
                problem = f"{column!r} is not a column"
            raise InputError(
                f"{path}: {problem}; write {option}={path.name}:COLUMN with its name in the first "
                "line or its number, counted from 1; there are "
                + (", ".join(names) or f"{format_count(len(fields), 'column')} without names"),
                path=path,
            )
        return cls(path, number, has_header)

    def open(self, num_rows: int | None = None, dtype: str = "int64") -> ArraySource:
        """Open the column."""
        how: dict[str, Any] = {"num_rows": num_rows, "skip_header": self.has_header}
        return TextArray(self.path, dtype, what="node id", column=self.number, **how)


def _check_names(files: Sequence[Path], ids: Sequence[_IdColumn]) -> None:
    """Refuse parts of a table whose first lines name other columns, or in another order."""
    first: list[str] | None = None
    for path, own in zip_longest(files, ids):
        names = read_head(path, b"").names()
        if own is not None:
            del names[own.number]
        first = first if first is not None else names
        if names != first:
            raise InputError(
                f"{path}: the first line names the columns {', '.join(names)}, and in "
                f"{files[0].name} {', '.join(first)}; files of one table need the same columns in "
                "the same order",
                path=path,
            )


def is_text(path: Path) -> bool:
    """Whether a file has the name of a table of text, gzipped or not."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.suffix.lower() in _TEXT_SUFFIXES


def paths_of(paths: Paths, what: str) -> list[str]:
    """Return the names of files, with those that match patterns in place of these."""
    names: list[str] = []
    for given in [paths] if isinstance(paths, str | os.PathLike) else paths:
        file, member = _split_member(str(given))
        path = Path(file)
        if not _PATTERN_MARKS.search(path.name) or path.exists():
            names.append(str(given))
            continue
        found = path.parent.glob(path.name)  # a shell's pattern does not match names as .part-0
        shown = [own for own in found if own.name[0] != "." or path.name[0] == "."]
        matching = sorted(shown, key=lambda own: natural_order(own.name))
        if not matching:
            raise NotFoundError(f"{what}: no file matches {path}; check the path", path=path)
        names += [str(own) if member is None else f"{own}:{member}" for own in matching]
    return names


def _split_member(name: str) -> tuple[str, str | None]:
    """Return a file, and the array or the column in it that its name has behind a colon."""
    found = _MEMBER.fullmatch(name)
    return (name, None) if found is None or Path(name).exists() else (found[1], found[2])


def _file_of(name: str, what: str) -> Path:
    """Return the file of a name; refuse a column of text, as ids alone have."""
    file, member = _split_member(name)
    if member is not None and is_text(Path(file)):
        raise UsageError(
            f"the {what}: {name} names a column, as {what}_ids= does; give a file that has the "
            f"columns of the {what} alone"
        )
    return Path(file)


def _open_file(name: str, what: str, stored: str | None = None, **how: Any) -> ArraySource:
    """Open one file; `how` is for text."""
    what, (file, member) = f"the {what}", _split_member(name)
    path = Path(file)
    if path.suffix == ".npy":
        return open_npy(path)
    if path.suffix == ".npz":
        members = open_npz(path)
        chosen = next(iter(members)) if member is None and len(members) == 1 else member
        if chosen not in members:
            raise InputError(
                f"{path}: has the arrays {', '.join(sorted(members)) or '(none)'}; choose one as "
                f"{path}:NAME" + (f", there is no {member!r}" if member else ""),
                path=path,
            )
        return members[chosen]
    existing_file(path, what)
    if is_text(path):
        return open_features([path], stored, **how)
    raise UsageError(
        f"{what}: {path} is neither .npy, .npz nor .csv; if it is raw binary, pass its type and "
        "shape (features_raw=), as in float32,-1,128"
    )


def open_external(
    features: Paths | None,
    raw: RawLayout | None,
    ids: Paths | None,
    options: ConvertOptions | None,
    *,
    skip_header: bool = False,
) -> ArrayFiles | None:
    """Open the features and the ids of their rows; None if there are none."""
    if features is not None:
        stored = None if options is None else options.feature_dtype_of(NODE_TYPE, "x")
        how: dict[str, Any] = {"stored": stored, "skip_header": skip_header, "ids": ids}
        return open_arrays(features, "features", raw=raw, **how)
    if raw is not None or ids is not None or skip_header:
        raise UsageError(
            "features_raw=, features_ids= and features_skip_header= describe features; give the "
            "features as well"
        )
    return None


def recorded(**options: Any) -> dict[str, Any]:
    """Return the options that were given, for provenance."""
    return {
        name: value if isinstance(value, bool | int | str | dict) else str(value)
        for name, value in options.items()
        if value not in (None, False, {})
    }
