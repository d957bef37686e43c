"""The kind of `gnnstore convert` that probably reads an input: only suggested, never taken."""

from __future__ import annotations

import gzip
import zlib
from contextlib import suppress
from pathlib import Path

_COMPRESSED = {".gz"}
_TEXT = {"", ".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el", ".mtx", ".konect"}
_BY_ENDING = {
    ".npz": "numpy",
    ".npy": "numpy",
    ".parquet": "table",
    ".pq": "table",
    ".arrow": "table",
    ".feather": "table",
    ".pt": "pyg",
    ".pth": "pyg",
    ".nt": "triples",
}
# By the first bytes of a file.
_BY_MARK = {b"PAR1": "table", b"ARROW1": "table", b"FEA1": "table", b"\x93NUMPY": "numpy"}
_HEAD_BYTES = 1 << 16
# By an entry of a directory; the first that is there.
_BY_ENTRY = {
    "metadata.yaml": "graphbolt",
    "meta.pt": "mag240m",
    "split": "ogb",  # beside raw/, which PyG's data sets have, too
    "edges": "typed",
    "author": "igbh",
    "paper": "igb",
    "train.txt": "triples",
    "train.tsv": "triples",
    "train.txt.gz": "triples",
    "train.tsv.gz": "triples",
    "train2id.txt": "triples",
}


def likely_kind(path: Path) -> str | None:
    """Return the kind by the name of a file and what it begins with, or by a directory's entries.

    The path need not exist; None if nothing suggests a kind.
    """
    with suppress(OSError, EOFError, zlib.error):  # the last two of a damaged .gz
        if path.is_dir():
            return _of_directory(path)
        return _of_file(path)
    return None


def _of_directory(path: Path) -> str | None:
    entries = {entry.name for entry in path.iterdir()}
    for name, kind in _BY_ENTRY.items():
        if name in entries:
            return kind
    if "processed" in entries:  # of IGB's data sets, and of PyG's, whose file is not this
        return _of_directory(path / "processed")
    kinds = {_BY_ENDING.get(Path(name).suffix) for name in entries} & {"numpy", "table"}
    return kinds.pop() if len(kinds) == 1 else None


def _of_file(path: Path) -> str | None:
    ending = path.suffix.lower()
    is_packed = ending in _COMPRESSED
    if is_packed:
        ending = path.with_suffix("").suffix.lower()
    if ending in _BY_ENDING:
        return _BY_ENDING[ending]
    if not path.is_file():
        return "snap" if ending in _TEXT - {""} else None
    with gzip.open(path) if is_packed else path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    for mark, kind in _BY_MARK.items():
        if head.startswith(mark):
            return kind
    if b"\0" in head:
        return None
    return _of_text(head.decode(errors="replace"))


def _of_text(text: str) -> str | None:
    """Return the kind of a list of edges: "triples" if its lines have a relation in the middle."""
    lines = [line for line in text.splitlines() if line.strip() and line[0] not in "#%"]
    for line in lines[1:2] or lines:  # the first may be a header
        mark = next((mark for mark in "\t," if mark in line), None)
        fields = [field.strip() for field in line.split(mark)]
        names = [not field.replace(".", "", 1).lstrip("-").isdigit() for field in fields]
        if line.startswith("<") or (len(fields) == 3 and all(names[1:])):
            return "triples"
        return "snap" if len(fields) > 1 else None
    return None
