"""Node arrays that lie beside a graph, in whatever form: `.npy`, `.npz`, CSV, raw, many files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnstore.converters.arrays.files import open_npy, open_npz
from gnnstore.converters.arrays.joined import JoinedArrays
from gnnstore.converters.arrays.raw import RawLayout, open_raw
from gnnstore.converters.arrays.source import ArraySource, MemoryArray
from gnnstore.converters.arrays.text.arrays import TextArray, read_numbers
from gnnstore.converters.inputs import PathLike, existing_file
from gnnstore.errors import InputError, NotFoundError, UsageError

_TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
_PATTERN_MARKS = re.compile(r"[*?\[]")

Paths = PathLike | Sequence[PathLike]


@dataclass(frozen=True)
class FeatureFiles:
    """An array, and the files that it is in.

    Attributes
    ----------
    source : ArraySource
        The array [N, ...].
    dtype : str or None
        Its element type, where NumPy has none.
    files : tuple of Path
        In the order of their rows.
    """

    source: ArraySource
    dtype: str | None
    files: tuple[Path, ...]


def open_features(
    paths: Paths, *, raw: RawLayout | None = None, what: str = "the features"
) -> FeatureFiles:
    """Open an array in one or several files.

    Parameters
    ----------
    paths : path-like, or sequence of path-like
        `.npy`; `.npz` with one array, or FILE.npz:NAME for one of several; `.csv`, `.tsv` and
        `.txt`, also gzipped; anything else as raw binary, with a layout. A name with `*` in
        it stands for all files that match, in the order of the numbers in their names.
        Several files are joined along their first axis.
    raw : RawLayout, optional
        The files are raw binary, like this; the rows it says are those of all files.
    what : str
        What the array is, for messages.

    Raises
    ------
    NotFoundError, InputError, StorageError
        If a file is missing, damaged, or unlike the others.
    UsageError
        If nobody said what a file is.
    """
    given = [paths] if isinstance(paths, (str, Path)) or hasattr(paths, "__fspath__") else paths
    found = [name for path in given for name in _expand(str(path), what)]
    if not found:
        raise UsageError(f"{what}: no file was given")
    one = RawLayout(raw.dtype, (-1, *raw.shape[1:])) if raw is not None else None
    parts = [_open(name, one, what) for name in found]
    source = parts[0] if len(parts) == 1 else JoinedArrays(parts)
    if raw is not None and raw.shape[0] not in (-1, source.shape[0]):
        raise InputError(
            f"{source.label}: has {source.shape[0]} rows of {raw.row_bytes} bytes, but the layout "
            f"{raw} says {raw.shape[0]}"
        )
    files = tuple(Path(_split_member(name)[0]) for name in found)
    return FeatureFiles(source, "bfloat16" if raw and raw.dtype == "bfloat16" else None, files)


def open_labels(paths: Paths) -> FeatureFiles:
    """Open labels: as `open_features` does, but whole numbers in text are int64."""
    if isinstance(paths, (str, Path)) and is_text(Path(paths)) and Path(paths).exists():
        path = existing_file(paths, "the labels")
        values = read_numbers(path, "label")
        if values.shape[1] == 1:
            values = values[:, 0]
        return FeatureFiles(MemoryArray(str(path), values), None, (path,))
    return open_features(paths, what="the labels")


def is_text(path: Path) -> bool:
    """Whether a file's name says that it is a table of text, gzipped or not."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.suffix.lower() in _TEXT_SUFFIXES


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
    return [(0, int(piece)) if piece.isdigit() else (1, piece) for piece in pieces if piece]


def _split_member(name: str) -> tuple[str, str | None]:
    path, mark, member = name.rpartition(".npz:")
    return (f"{path}.npz", member) if mark else (name, None)


def _open(name: str, raw: RawLayout | None, what: str) -> ArraySource:
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
        return TextArray(path, what="feature")
    raise UsageError(
        f"{what}: {path} is neither .npy, .npz nor .csv; if it is raw binary, say its type and "
        "shape (features_raw, --features-raw), as in float32,-1,128"
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
