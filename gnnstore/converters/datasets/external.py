"""Features and labels in their own files: `.npy`, `.npz`, CSV, raw, one file or many."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.converters.datasets.text import id_column
from gnnstore.converters.inputs.files import RawLayout, open_npy, open_npz, open_raw
from gnnstore.converters.inputs.opening import PathLike, existing_file
from gnnstore.converters.inputs.parts import natural_order
from gnnstore.converters.inputs.source import (
    EXACT_IN_FLOAT64,
    ArraySource,
    MappedRows,
    MemoryArray,
    joined,
    rounds,
)
from gnnstore.converters.inputs.text_arrays import TextArray, read_as_stored, read_numbers
from gnnstore.converters.inputs.text_tables import read_head
from gnnstore.converters.spill_files import ScatteredRows
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError, NotFoundError, UsageError

_TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
_PATTERN_MARKS = re.compile(r"[*?\[]")
_HEAD_ROWS = 2**12  # in which ids are looked for

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
            if self.ids_option and len(self.source.shape) > 1 and self.source.shape[1] > 1:
                self._refuse_ids(ids or (lambda: np.arange(self.source.shape[0])))
            writer.set_node_attribute(name, self.source, dtype=self.dtype)
            return
        place = writer.spill_directory / f"rows of {name}"
        ordered = ScatteredRows(self.source, nodes, place, writer.options.memory_bytes)
        writer.set_node_attribute(name, ordered, dtype=self.dtype)
        ordered.close()

    def _refuse_ids(self, ids: Callable[[], npt.NDArray[Any]]) -> None:
        """Refuse an array of text whose first column begins with different ids of nodes."""
        rows = next(self.source.rows(_HEAD_ROWS), None)
        if rows is None or len(np.unique(rows[:, 0])) < len(rows):
            return
        # As the column has them: it may be float32, in which large ids are equal.
        if np.isin(rows[:, 0], ids().astype(rows.dtype)).all():
            raise InputError(
                f"{self.source.label}: the first column has ids of nodes, and would be stored as "
                f"values; take the ids from it with {self.ids_option}={self.files[0].name}, or "
                "remove it"
            )


def open_arrays(
    paths: Paths,
    what: Literal["features", "labels"],
    *,
    raw: RawLayout | None = None,
    stored: str | None = None,
    skip_header: bool = False,
    ids: PathLike | None = None,
) -> ArrayFiles:
    """Open an array in one or several files, perhaps with the ids of its rows.

    Whole numbers in text are int64 if they are labels, which go by classes.
    """
    names = paths_of(paths, f"the {what}")
    if not names:
        raise UsageError(f"the {what}: no file was given")
    files = tuple(Path(_split_member(name)[0]) for name in names)
    is_table = raw is None and all(map(is_text, files))
    parts: list[ArraySource]
    if raw is not None:
        layout = RawLayout(raw.dtype, (-1, *raw.shape[1:]))
        parts = [open_raw(path, layout) for path in files]
    elif is_table and what == "labels":
        parts = _label_tables(files, skip_header=skip_header)
    else:
        parts = [_open_file(name, what, stored, skip_header=skip_header) for name in names]
    row_ids = None
    if ids is not None and is_table and paths_of(ids, "the ids") == names:  # a column of them
        columns = []
        for i, (path, part) in enumerate(zip(files, parts, strict=True)):
            place = id_column(read_head(path, b"").names() if skip_header else []) or 0
            parts[i] = _without(part, place)
            options: dict[str, Any] = {"num_rows": part.shape[0], "skip_header": skip_header}
            columns.append(TextArray(path, "int64", what="node id", column=place, **options))
        row_ids = joined(columns)
    else:
        for path in () if raw is not None else filter(is_text, files):
            _refuse_named_ids(path, what)
        if ids is not None:
            found = open_arrays(ids, "labels")
            row_ids, files = found.source, (*files, *found.files)
    source = joined(parts)
    if raw is not None and raw.shape[0] not in (-1, source.shape[0]):
        raise InputError(
            f"{source.label}: has {source.shape[0]} rows of {raw.row_bytes} bytes, but the layout "
            f"{raw} says {raw.shape[0]}"
        )
    if is_table and what == "labels" and source.shape[1] == 1:
        source = MappedRows(source, lambda rows, _: rows[:, 0], row_shape=())
    dtype = "bfloat16" if raw and raw.dtype == "bfloat16" else None
    return ArrayFiles(source, dtype, files, row_ids, f"{what}_ids" if is_table else "")


def _refuse_named_ids(path: Path, what: str) -> None:
    """Refuse a table whose first line names a column of ids, which nobody takes for ids."""
    columns = read_head(path, b"").names()
    place = id_column(columns)
    if place is not None and len(columns) > 1:
        raise InputError(
            f"{path}: the column {columns[place]} has ids of nodes, and no {what}; take them from "
            f"it with {what}_ids={path.name} and skip the first line ({what}_skip_header=True), or "
            "remove the column",
            path=path,
        )


def _without(source: ArraySource, place: int) -> ArraySource:
    """Return a table without a column."""
    width = source.shape[1] - 1
    if not width:
        raise InputError(f"{source.label}: has one column, where ids and values are wanted")
    return MappedRows(source, lambda rows, _: np.delete(rows, place, axis=1), row_shape=(width,))


def _label_tables(files: Sequence[Path], *, skip_header: bool) -> list[ArraySource]:
    """Read labels in text; all are float32 or float64 if some have fractions."""
    how: dict[str, Any] = {"skip_header": skip_header, "hint": _header_hint("labels")}
    tables = [read_numbers(existing_file(path, "the labels"), "label", **how) for path in files]
    if len({table.dtype for table in tables}) > 1:
        is_wide = any(table.dtype == np.float64 or rounds(table).any() for table in tables)
        for i, (path, table) in enumerate(zip(files, tables, strict=True)):
            tables[i] = table.astype(np.float64 if is_wide else np.float32)
            lost = np.abs(table) > EXACT_IN_FLOAT64
            if table.dtype == np.int64 and lost.any():
                raise InputError(
                    f"{path}: float64, which labels with fractions are, rounds the label "
                    f"{table[lost].flat[0]}; other files have fractions",
                    path=path,
                )
    return [MemoryArray(str(path), table) for path, table in zip(files, tables, strict=True)]


def is_text(path: Path) -> bool:
    """Whether a file's name says that it is a table of text, gzipped or not."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.suffix.lower() in _TEXT_SUFFIXES


def paths_of(paths: Paths, what: str) -> list[str]:
    """Return the names of files, with those that match patterns in place of these."""
    names: list[str] = []
    for given in [paths] if isinstance(paths, str | os.PathLike) else paths:
        path = Path(given)
        if not _PATTERN_MARKS.search(path.name) or path.exists():
            names.append(str(given))
            continue
        found = path.parent.glob(path.name)  # a shell's pattern does not match names as .part-0
        shown = [own for own in found if own.name[0] != "." or path.name[0] == "."]
        matching = sorted(shown, key=lambda own: natural_order(own.name))
        if not matching:
            raise NotFoundError(f"{what}: no file matches {path}; check the path", path=path)
        names += map(str, matching)
    return names


def _split_member(name: str) -> tuple[str, str | None]:
    path, mark, member = name.rpartition(".npz:")
    return (f"{path}.npz", member) if mark else (name, None)


def _header_hint(what: str) -> str:
    return f". If the line names the columns, skip it ({what}_skip_header=True)"


def _open_file(name: str, what: str, stored: str | None, *, skip_header: bool) -> ArraySource:
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
        hint = _header_hint("features")
        return read_as_stored(path, stored, skip_header=skip_header, hint=hint)
    raise UsageError(
        f"{what}: {path} is neither .npy, .npz nor .csv; if it is raw binary, say its type and "
        "shape (features_raw=), as in float32,-1,128"
    )


def open_external(
    features: Paths | None,
    raw: RawLayout | None,
    ids: PathLike | None,
    options: ConvertOptions | None,
    *,
    skip_header: bool = False,
) -> ArrayFiles | None:
    """Open the features and the ids of their rows; None if there are none."""
    if features is not None:
        stored = None if options is None else options.feature_dtype
        how: dict[str, Any] = {"stored": stored, "skip_header": skip_header, "ids": ids}
        return open_arrays(features, "features", raw=raw, **how)
    if raw is not None or ids is not None or skip_header:
        raise UsageError(
            "features_raw=, features_ids= and features_skip_header= say what the features are "
            "like; give the features as well"
        )
    return None


def recorded(**options: Any) -> dict[str, Any]:
    """Return the options that were given, for provenance."""
    return {
        name: value if isinstance(value, bool | int | str | dict) else str(value)
        for name, value in options.items()
        if value not in (None, False, {})
    }
