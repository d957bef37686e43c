"""Text files, plain or gzipped, as large blocks of whole lines that know their line numbers.

Graphs come as gigabytes of text. Blocks of 1 MiB keep the parser fast (the arrays of a block fit in
a processor's cache), several at work at a time, and memory bounded; lines are counted meanwhile, so
that an error can name the line.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from gnnstore.converters.inputs.opening import TAR_MAGIC, describe_binary, open_input
from gnnstore.errors import InputError, storage_error
from gnnstore.progress import NullPhase, Phase

BLOCK_BYTES = 2**20
# Longer than any row of numbers: the file is not text, or a bomb of a gigabyte without a line end.
MAX_LINE_BYTES = 2**26
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of a text file."""

    first_line: int  # number of the first line, from 1
    data: bytes  # the lines; the last may lack its newline


def read_blocks(
    path: Path, phase: Phase | None = None, *, block_bytes: int = BLOCK_BYTES
) -> Iterator[TextBlock]:
    """Yield the lines of a text file, decompressed if it is gzipped, in blocks."""
    phase = phase or NullPhase()
    line, rest = 1, b""  # blank lines at the end of a block wait for others to follow
    try:
        with open_input(path) as raw:
            zipped = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            raw.seek(0)
            problem = describe_binary(path)
            if problem is not None:
                raise InputError(f"{path}: {problem}", path=path)
            if path.suffix == ".gz" and not zipped:
                raise InputError(
                    f"{path}: not a gzip file, though it is named .gz; "
                    "decompress or rename it, or download it again",
                    path=path,
                )
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if zipped else raw)
            position = 0
            while chunk := stream.read(block_bytes):
                phase.advance(raw.tell() - position)
                position = raw.tell()
                if line == 1 and chunk[TAR_MAGIC] == b"ustar":
                    raise InputError(f"{path}: is a tar archive; extract what is in it", path=path)
                data, rest = _cut(rest + chunk)
                if data:
                    yield _block(line, data)
                    line += data.count(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise InputError(
                        f"{path}: line {line} is longer than {MAX_LINE_BYTES} bytes; "
                        "this is not a table of numbers",
                        path=path,
                    )
    except EOFError:
        raise InputError(
            f"{path}: the gzip stream ends early, in or soon after line {line}: "
            "the file is truncated; download or copy it again",
            path=path,
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path}: the gzip stream is damaged, in or soon after line {line} ({error}); "
            "download or copy it again",
            path=path,
        ) from None
    except OSError as error:
        raise storage_error(error, "read the text file", path) from error
    if rest.strip():
        yield _block(line, rest)


def _block(line: int, data: bytes) -> TextBlock:
    """Return a block, without the byte order mark that some editors put first."""
    return TextBlock(line, data.removeprefix(codecs.BOM_UTF8) if line == 1 else data)


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """Split into whole lines, and what is behind the last that is not blank."""
    end = data.rfind(b"\n") + 1
    if end >= 2 and data[end - 2] not in b"\r\n":  # no blank line: spares two copies
        return data[:end], data[end:]
    lines = data[:end].rstrip(b"\r\n")
    last = data.find(b"\n", len(lines)) + 1 if lines else 0
    return data[:last], data[last:]
