"""Checks that inputs are there, describes them for provenance, and cuts text into blocks.

Graphs come as gigabytes of text. Blocks of 1 MiB keep the parser fast (the arrays of a block fit in
a processor's cache), several at work at a time, and memory bounded; lines are counted meanwhile, so
that an error can name the line.
"""

from __future__ import annotations

import codecs
import gzip
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from gnnstore.converters.inputs.kinds import (
    BINARY,
    GZIP_MAGIC,
    HEAD_BYTES,
    describe_binary,
    describe_raw,
    describe_text,
)
from gnnstore.errors import InputError, NotFoundError, UsageError, storage_error, storage_errors
from gnnstore.formats.base.files import check_regular, open_binary
from gnnstore.progress import NullPhase, Phase

PathLike = str | os.PathLike[str]

BLOCK_BYTES = 2**20
# Longest line, beyond any row of numbers: in a longer one the file is not text, or a bomb of a
# gigabyte without a line end.
MAX_LINE_BYTES = 2**26


def existing_path(path: PathLike, what: str) -> Path:
    """Return the path of an input that exists."""
    found = Path(path)
    with storage_errors(f"look for {what}", found):
        exists = found.exists()
    if not exists:
        raise NotFoundError(f"{what}: {found} does not exist; check the path", path=found)
    return found


def existing_file(path: PathLike, what: str) -> Path:
    """Return the path of an input that exists and is a file."""
    found = existing_path(path, what)
    if found.is_dir():
        raise InputError(
            f"{what} should be a file, but {found} is a directory; name a file in it", path=found
        )
    check_regular(found, InputError)
    return found


def open_input(path: Path) -> BinaryIO:
    """Open an input for reading; it may be a link."""
    return open_binary(path, error=InputError)


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive for reading, as `open_input` does."""
    with open_input(path) as file, zipfile.ZipFile(file) as archive:
        yield archive


def refuse_kind(
    path: Path,
    *wanted: bytes,
    what: str = "the file",
    is_raw: bool = False,
    is_input: bool = False,
) -> None:
    """Raise if the first bytes of a file are not wanted ones, but begin another kind."""
    with storage_errors(f"read {what}", path), open_input(path) as file:
        head = file.read(HEAD_BYTES)
    if wanted and head.startswith(wanted):
        return
    found = describe_raw(head) if is_raw else describe_binary(head, is_input=is_input)
    if found is not None:
        raise InputError(f"{path}: {found}", path=path)


def existing_directory(path: PathLike, what: str) -> Path:
    """Return the path of an input that exists and is a directory."""
    found = existing_path(path, what)
    if not found.is_dir():
        raise InputError(f"{what} should be a directory, but {found} is a file", path=found)
    return found


def describe_files(paths: Iterable[PathLike]) -> list[dict[str, Any]]:
    """Return the absolute path and the size in bytes of each input, for provenance.

    Bytes of a path that are not UTF-8 are escaped: JSON cannot hold them.
    """
    found = [Path(path).absolute() for path in paths]
    return [
        {
            "path": os.fsencode(path).decode("utf-8", "backslashreplace"),
            "size_bytes": existing_path(path, "an input").stat().st_size,
        }
        for path in found
    ]


def choose_name(names: Sequence[str], wanted: str | None, kind: str, path: Path) -> str | None:
    """Return the name of the split or task to take from a data set; None if it has none."""
    listed = ", ".join(names) or "none"
    if wanted is not None and wanted not in names:
        raise NotFoundError(f"{path}: there is no {kind} {wanted!r}; there is {listed}", path=path)
    if wanted is None and len(names) > 1:
        raise UsageError(
            f"{path}: there are several {kind}s; choose one with {kind}= (--{kind}): {listed}"
        )
    return wanted or next(iter(names), None)


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of a text file."""

    first_line: int  # number of the first line, from 1
    data: bytes  # the lines; the last may lack its newline


def read_blocks(
    path: Path, phase: Phase | None = None, *, block_bytes: int = BLOCK_BYTES
) -> Iterator[TextBlock]:
    """Yield the lines of a text file, decompressed if it is gzipped, in blocks."""
    line, rest = 1, list[bytes]()  # the number of the line that follows, and its beginning
    blank = 0  # the first of the blank lines before it, which wait for others to follow; or none
    try:
        for chunk in _chunks(path, phase or NullPhase(), block_bytes):
            if b"\0" in chunk:
                line += chunk.count(b"\n", 0, chunk.index(b"\0"))
                raise InputError(f"{path}: line {line}: {BINARY}", path=path)
            end = chunk.rfind(b"\n") + 1
            if end:
                lines, rest = b"".join((*rest, chunk[:end])), []
                data = _without_blank_end(lines)
                if data and blank:
                    yield TextBlock(blank, b"\n")  # one stands for all
                    blank = 0
                if data:
                    yield _block(line, data)
                    line += data.count(b"\n")
                if len(data) < len(lines):
                    blank = blank or line
                    line += lines.count(b"\n", len(data))
            rest.append(chunk[end:])
            if sum(map(len, rest)) > MAX_LINE_BYTES:
                raise InputError(
                    f"{path}: line {line} is longer than {MAX_LINE_BYTES} bytes; "
                    "this is not a table of numbers",
                    path=path,
                )
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path}: the gzip stream is damaged or ends early, in or soon after line {line} "
            f"({error}); download or copy it again",
            path=path,
        ) from None
    except OSError as error:
        raise storage_error(error, "read the text file", path) from error
    last = b"".join(rest)
    if last.strip():
        if blank:
            yield TextBlock(blank, b"\n")
        yield _block(line, last)


def _chunks(path: Path, phase: Phase, num_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of a text, decompressed, some at a time."""
    with open_input(path) as raw:
        zipped = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        raw.seek(0)
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if zipped else raw)
        chunk = stream.read(num_bytes)
        problem = describe_text(chunk[:HEAD_BYTES])
        if problem is not None:
            raise InputError(f"{path}: {problem}", path=path)
        if path.suffix == ".gz" and not zipped:
            raise InputError(
                f"{path}: not a gzip file, though it is named .gz; "
                "decompress or rename it, or download it again",
                path=path,
            )
        position = 0
        while chunk:
            phase.advance(raw.tell() - position)
            position = raw.tell()
            yield chunk
            chunk = stream.read(num_bytes)


def _block(line: int, data: bytes) -> TextBlock:
    """Return a block, without the byte order mark that some editors put first."""
    return TextBlock(line, data.removeprefix(codecs.BOM_UTF8) if line == 1 else data)


def _without_blank_end(lines: bytes) -> bytes:
    """Return whole lines up to the last that is not blank."""
    if lines[-2:-1] not in (b"\r", b"\n", b""):
        return lines
    text = lines.rstrip(b"\r\n")
    return lines[: lines.find(b"\n", len(text)) + 1] if text else b""
