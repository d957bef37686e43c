"""Features and labels in their own files: `.npy`, `.npz`, CSV, raw, one file or many."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.derived import JoinedArrays
from gnnstore.converters.inputs.files import RawLayout, open_raw
from gnnstore.converters.inputs.npy import open_npy
from gnnstore.converters.inputs.npz import open_npz
from gnnstore.converters.inputs.opening import PathLike, existing_file
from gnnstore.converters.inputs.scattered import ScatteredRows
from gnnstore.converters.inputs.source import ArraySource, MemoryArray
from gnnstore.converters.inputs.text_arrays import read_as_stored, read_numbers
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


def open_features(
    paths: Paths,
    *,
    raw: RawLayout | None = None,
    what: str = "the features",
    stored: str | None = None,
    skip_header: bool = False,
) -> ArrayFiles:
    """Open an array in one or several files."""
    found = paths_of(paths, what)
    if not found:
        raise UsageError(f"{what}: no file was given")
    one = RawLayout(raw.dtype, (-1, *raw.shape[1:])) if raw is not None else None
    parts = [_open(name, one, what, stored, skip_header) for name in found]
    source = parts[0] if len(parts) == 1 else JoinedArrays(parts)
    if raw is not None and raw.shape[0] not in (-1, source.shape[0]):
        raise InputError(
            f"{source.label}: has {source.shape[0]} rows of {raw.row_bytes} bytes, but the layout "
            f"{raw} says {raw.shape[0]}"
        )
    files = tuple(Path(_split_member(name)[0]) for name in found)
    return ArrayFiles(source, "bfloat16" if raw and raw.dtype == "bfloat16" else None, files)


def open_labels(paths: Paths, *, skip_header: bool = False) -> ArrayFiles:
    """Open labels: as `open_features` does, but whole numbers in text are int64."""
    what = "the labels"
    names = paths_of(paths, what)
    if not names or not all(is_text(Path(name)) for name in names):
        return open_features(paths, what=what)
    files = tuple(existing_file(name, what) for name in names)
    header: dict[str, Any] = {"skip_header": skip_header, "header_hint": _header_hint("labels")}
    tables = [read_numbers(path, "label", **header) for path in files]
    if len({table.dtype for table in tables}) > 1:  # some have fractions
        tables = [_as_float32(table, path) for table, path in zip(tables, files, strict=True)]
    parts: list[ArraySource] = [
        MemoryArray(str(path), table[:, 0] if table.shape[1] == 1 else table)
        for table, path in zip(tables, files, strict=True)
    ]
    return ArrayFiles(parts[0] if len(parts) == 1 else JoinedArrays(parts), None, files)


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


@dataclass(frozen=True)
class ExternalFeatures(ArrayFiles):
    """The node attribute `x`, and its files."""

    row_ids: ArraySource | None = None  # the id of each row; None: row i is that of node i

    def write(self, writer: GraphWriter, nodes: ArraySource | None) -> None:
        """Write the features as `x`, each row to its node."""
        if nodes is None:
            writer.set_node_attribute("x", self.source, dtype=self.dtype)
            return
        place = writer.spill_directory / "features"
        ordered = ScatteredRows(self.source, nodes, place, writer.options.memory_bytes)
        writer.set_node_attribute("x", ordered, dtype=self.dtype)
        ordered.close()


def open_external(
    features: Paths | None,
    raw: RawLayout | None,
    ids: PathLike | None,
    options: ConvertOptions | None,
    *,
    skip_header: bool = False,
) -> ExternalFeatures | None:
    """Open the features and the ids of their rows; None if there are none."""
    if features is None:
        if raw is not None or ids is not None or skip_header:
            raise UsageError(
                "features_raw=, features_ids= and features_skip_header= say what the features are "
                "like; give the features as well"
            )
        return None
    stored = None if options is None else options.feature_dtype
    found = open_features(features, raw=raw, stored=stored, skip_header=skip_header)
    if ids is None:
        return ExternalFeatures(found.source, found.dtype, found.files)
    rows = open_labels(ids)
    return ExternalFeatures(found.source, found.dtype, (*found.files, *rows.files), rows.source)
