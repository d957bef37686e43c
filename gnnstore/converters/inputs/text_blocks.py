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

BLOCK_BYTES, _MIN_BLOCK_BYTES = 2**20, 2**16
# Share of a budget for all blocks in flight.
_MEMORY_SHARE = 4
# Names take the most: for every five bytes of text a place (8 bytes) and its copy, a code (8), the
# first place (8), and up to 16 in a table of hashes; the text is there as read and as parsed.
_BYTES_PER_BYTE = 12
# Longer than any row of numbers: the file is not text, or a bomb of a gigabyte without a line end.
MAX_LINE_BYTES = 2**26
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of a text file."""

    first_line: int  # number of the first line, from 1
    data: bytes  # the lines; the last may lack its newline


def block_bytes_for(memory_bytes: int | None, num_in_flight: int) -> int:
    """Return the size of blocks with which all blocks in flight take a quarter of a budget."""
    if memory_bytes is None:
        return BLOCK_BYTES
    fitting = memory_bytes // (_MEMORY_SHARE * _BYTES_PER_BYTE * num_in_flight)
    return min(max(fitting, _MIN_BLOCK_BYTES), BLOCK_BYTES)


def blocks_memory_bytes(block_bytes: int, num_in_flight: int) -> int:
    """Return the peak memory of a number of blocks while they are parsed."""
    return _BYTES_PER_BYTE * block_bytes * num_in_flight


def read_blocks(
    path: Path, phase: Phase | None = None, *, block_bytes: int = BLOCK_BYTES
) -> Iterator[TextBlock]:
    """Yield the lines of a text file, decompressed if it is gzipped, in blocks."""
    phase = phase or NullPhase()
    line, rest = 1, b""
    num_blank = 0  # lines before `rest`, which count only if something follows them
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
                data, more_blank, rest = _cut(rest + chunk)
                if data:
                    if num_blank:
                        yield TextBlock(line, b"\n")  # one blank line in place of all
                        line, num_blank = line + num_blank, 0
                    yield _block(line, data)
                    line += data.count(b"\n")
                num_blank += more_blank
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
        if num_blank:
            yield TextBlock(line, b"\n")
        yield _block(line + num_blank, rest)


def _block(line: int, data: bytes) -> TextBlock:
    """Return a block, without the byte order mark that some editors put first."""
    return TextBlock(line, data.removeprefix(codecs.BOM_UTF8) if line == 1 else data)


def _cut(data: bytes) -> tuple[bytes, int, bytes]:
    """Split into whole lines, the number of blank lines behind, and the beginning of a line."""
    end = data.rfind(b"\n") + 1
    if end >= 2 and data[end - 2] not in b"\r\n":  # no blank line: spares two copies
        return data[:end], 0, data[end:]
    lines = data[:end].rstrip(b"\r\n")
    last = data.find(b"\n", len(lines)) + 1 if lines else 0
    return data[:last], data.count(b"\n", last, end), data[end:]
