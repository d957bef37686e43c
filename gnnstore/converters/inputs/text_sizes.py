"""Guesses what a table of edges in text holds by samples of its lines, before it is read.

A small file is its own sample. In a larger one that is not gzipped, pieces from all over it are
read. The number of nodes is extrapolated from how many ids are in one or two pieces.
"""

from __future__ import annotations

import operator
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnnstore import _core
from gnnstore.converters.inputs.kinds import GZIP_MAGIC
from gnnstore.converters.inputs.opening import open_input
from gnnstore.converters.inputs.text_tables import INTEGER, TableFormat, delimiter_of

_PIECES, _PIECE_BYTES = 8, 2**15
_MOST_GROWTH = 16  # most times that text grows when it is decompressed
_SIZE_PERIOD = 2**32  # the modulus of the size that gzip states


@dataclass(frozen=True)
class TextSizes:
    """What a table of edges in text holds."""

    num_bytes: int  # of the text, decompressed
    num_edges: int
    num_nodes: int
    map_bytes: int  # of ids or names of nodes, about as a store has them; 0: nodes are numbers
    attribute_bytes: tuple[int, ...]  # of a value of each column
    are_sorted: bool  # whether edges are in the order in which a store has them


def guess_sizes(path: Path, form: TableFormat, num_nodes: int | None = None) -> TextSizes | None:
    """Return what a text holds; None if its lines have another form."""
    pieces, num_bytes, is_whole = _pieces(path)
    lines = list(_rows(pieces, form))
    delimiter = delimiter_of(lines[0], is_named=form.dtype == "text") if lines else " "
    places = (*form.ends, *(column.position for column in form.columns))
    rows = [_core.split_text(line, delimiter) for line in lines]
    if not rows or any(len(row) <= max(places) for row in rows):
        return None
    ends = [[row[place].strip() for place in places] for row in rows]
    sampled = sum(map(len, lines)) + len(lines)
    scale = 1.0 if is_whole else num_bytes / max(1, sampled)
    num_edges = len(lines) if is_whole else round(len(lines) * scale)
    names = {end for row in ends for end in row[:2]}
    count = _extrapolated(ends, scale)
    map_bytes = 0
    if form.dtype == "text":
        map_bytes = count * 8 + round(count * sum(map(len, names)) / len(names))
    elif all(map(INTEGER.fullmatch, names)):
        ids = np.sort(np.array([int(name) for name in names], np.float64)).astype(np.int64)
        most = int(ids[-1]) + 1
        count = min(count, most)
        if num_nodes is not None:
            count = num_nodes
        elif most != count or ids[0] != 0:
            map_bytes = round(len(zlib.compress(ids.tobytes(), 3)) / len(ids) * count)
    widths = []
    for i, column in enumerate(form.columns):
        values = [row[2 + i] for row in ends]
        dtype = column.dtype or ("int64" if all(map(INTEGER.fullmatch, values)) else "float32")
        widths.append(np.dtype(dtype).itemsize)
    is_sorted = _is_sorted(ends, form)
    return TextSizes(num_bytes, num_edges, count, map_bytes, tuple(widths), is_sorted)


def _extrapolated(ends: list[list[bytes]], scale: float) -> int:
    """Return the number of different ends in `scale` times as many rows (Chao et al. 2014).

    The numbers in one piece of the rows only, and in two, give the number in none. Rows next to
    one another may have ends in common, so that ends are not counted.
    """
    step = -(-len(ends) // _PIECES)
    pieces = [ends[first : first + step] for first in range(0, len(ends), step)]
    counts = Counter(end for piece in pieces for end in {end for row in piece for end in row[:2]})
    if scale <= 1:
        return len(counts)
    numbers = Counter(counts.values())
    once, twice = numbers[1], max(1, numbers[2])
    unseen = once * once / (2 * twice)
    if not unseen:
        return len(counts)
    missed: float = (1 - once / (len(pieces) * unseen + once)) ** (len(pieces) * (scale - 1))
    return len(counts) + round(unseen * (1 - missed))


def _is_sorted(ends: list[list[bytes]], form: TableFormat) -> bool:
    """Whether rows are in the order of the numbers of their targets, as edges in a store are."""
    if form.dtype == "text":
        numbers: dict[bytes, int] = {}
        for row in ends:
            for name in row[:2]:
                numbers.setdefault(name, len(numbers))
        targets = [numbers[row[1]] for row in ends]
    elif all(INTEGER.fullmatch(row[1]) for row in ends):
        targets = [int(row[1]) for row in ends]
    else:
        return False
    return all(map(operator.le, targets, targets[1:]))


def _pieces(path: Path) -> tuple[list[bytes], int, bool]:
    """Return whole lines from all over a text, its size, and whether they are all of it."""
    size = path.stat().st_size
    with open_input(path) as file:
        head = file.read(_PIECES * _PIECE_BYTES)
        if head.startswith(GZIP_MAGIC):
            stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
            text = stream.decompress(head, _MOST_GROWTH * len(head))
            if stream.eof and not stream.unused_data:
                return [text], len(text), True
            guess = size * len(text) / max(1, len(head) - len(stream.unconsumed_tail))
            file.seek(-4, 2)
            stated = int.from_bytes(file.read(4), "little")
            stated += round((guess - stated) / _SIZE_PERIOD) * _SIZE_PERIOD
            num_bytes = stated if guess / 2 < stated < 2 * guess else round(guess)
            text = text[: _PIECES * _PIECE_BYTES]
            return [text[: text.rfind(b"\n") + 1]], num_bytes, False
        if len(head) == size:
            return [head], size, True
        pieces = [head[: head.rfind(b"\n", 0, _PIECE_BYTES) + 1]]
        for part in range(1, _PIECES):
            file.seek((size - _PIECE_BYTES) * part // (_PIECES - 1))
            piece = file.read(_PIECE_BYTES)
            pieces.append(piece[piece.find(b"\n") + 1 : piece.rfind(b"\n") + 1])
    return pieces, size, False


def _rows(pieces: list[bytes], form: TableFormat) -> Iterator[bytes]:
    """Yield the lines that are rows."""
    has_header, is_head = form.skip_header, True
    for piece in pieces:
        for line in piece.splitlines():
            text = line.strip()
            if not text or (text[0] in form.comments and (is_head or not form.comments_lead)):
                continue
            if has_header:
                has_header = False
                continue
            is_head = False
            yield line
