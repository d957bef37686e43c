"""Tables in text, which the core parses at hundreds of megabytes a second.

The core returns the first line that is not a row and the field at fault; the message is made here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.limits import available_bytes
from gnnstore.converters.inputs.name_blocks import NameBlock
from gnnstore.converters.inputs.opening import BLOCK_BYTES, TextBlock, read_blocks
from gnnstore.converters.inputs.source import (
    EXACT_IN_FLOAT64,
    map_in_order,
    num_threads,
    read_ahead,
    rounds,
)
from gnnstore.errors import InputError
from gnnstore.progress import Phase
from gnnstore.units import format_size

# Types of columns, and of the ends of edges, by the core's letters.
_KINDS = {"int64": "i", "uint64": "u", "float32": "f", "float64": "d"}
_END_KINDS = {**_KINDS, "int64": "e", "text": "n"}
_INT64 = np.iinfo(np.int64)
_BEYOND_UINT64 = 2**64
_TEXT = re.compile(rb"\S")
_LONE_RETURN = re.compile(rb"\r(?!\r*(?:\n|\Z))")


_MIN_BLOCK_BYTES = 2**16
# Share of a budget for all blocks in flight.
_MEMORY_SHARE = 4
# Bytes of memory for a byte of text. Names take the most: for every five bytes of text a place (8
# bytes) and its copy, a code (8), the first place (8), and up to 16 in a table of hashes; the text
# is there as read and as parsed.
_BYTES_PER_BYTE = 12
INTEGER = re.compile(rb"[+-]?[0-9]+")
_DECIMAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)")
_MAX_DIGITS = 25  # digits that a message writes out
_OTHER_MARKS = {b";": "semicolons", b"|": "bars"}
_SEPARATORS = {",": "commas", "\t": "tabs", " ": "spaces"}
_MAX_COMMENTS = 10_000
# A statement of Turtle before the first triple.
_TURTLE = re.compile(rb"@?(prefix\s+\S*:|base)\s*<", re.IGNORECASE)
NO_NAME = (
    "the first column has no name, as the index that pandas writes (index=False leaves it "
    "out) and of R's row names (row.names=FALSE); "
)
_ODD_NAME = (
    "has a quotation mark without its other; a mark within a name is written twice, and names with "
    "commas go between tabs"
)
QUOTES = (
    "; quotation marks have no meaning in numbers, and a comma within them is not read: write the "
    "file without them, or separate the columns by tabs"
)


@dataclass(frozen=True)
class TextColumn:
    """A column of numbers in a table of edges."""

    position: int  # from 0
    # None: int64, or uint64 if some need it; with fractions or gaps float32, or float64 if that
    # rounds a number from 2^24 on.
    dtype: str | None = None
    what: str = "value"  # name of a value, for messages


@dataclass(frozen=True)
class OddLine:
    """A line that is not a row, and the lines around it, by which the remedy is chosen."""

    fields: list[bytes]
    num_wanted: int  # fields
    next_fields: list[bytes]  # of the line behind it; none behind the last
    is_first: bool  # whether it is the first row of the file
    begins_file: bool  # whether the lines around it are the first of the file
    counts: tuple[int, ...]  # of fields of the lines around it, in order

    @property
    def has_wrong_first(self) -> bool:
        """Whether the first line of the file alone has another number of fields."""
        others = set(self.counts[1:])
        is_sure = self.begins_file and len(self.counts) > 2
        return is_sure and len(others) == 1 and self.counts[0] not in others


@dataclass(frozen=True)
class TableFormat:
    """The form that the lines of a table must have."""

    dtype: str  # "int64", "float32" or "float64"; "text" gives blocks of `NameBlock`
    num_columns: int | None = None  # fields in a line; None: as many as in the first
    # Positions of the ends of an edge, where `columns` or other ones are given, or ends are names.
    ends: tuple[int, ...] = (0, 1)
    columns: tuple[TextColumn, ...] = ()  # columns of numbers; those that are neither are skipped
    # Position of a field that is a name of another kind than the ends, in a table of text of three
    # columns: the relation of a triple.
    label_column: int | None = None
    # The separator of fields; None: a comma, a tab or spaces, as in the first line, or, between
    # names of triples, the form of N-Triples.
    delimiter: str | None = ","
    comments: bytes = b""  # a line that begins with one of these characters is a comment
    comments_lead: bool = False  # whether comments come only before the first row
    skip_blank: bool = False  # whether blank lines are skipped, as they are where comments are
    minimum: int | None = None  # the smallest allowed value
    limit: int | None = None  # allowed values are below
    what: str = "value"  # name of a value, for messages
    allow_nan: bool = True  # whether NaN is a value (in a table of floats)
    # Whether fields after the `num_columns` first ones are skipped, as many as in the first row.
    ignore_extra: bool = False
    skip_header: bool = False  # whether the first line that is not a comment is skipped
    # Whether quotation marks around names are "keep", part of them, or "strip", not. None: not,
    # between commas, and elsewhere if all names have them.
    quotes: str | None = None
    hint: str = ""  # advice for messages about lines that have another form
    advise: Callable[[OddLine], str] | None = None  # the same, by what is in the line

    @property
    def is_plain(self) -> bool:
        """Whether all fields are numbers of one type."""
        return self.dtype != "text" and not self.columns and self.ends == (0, 1)


@dataclass(frozen=True)
class TextHead:
    """The beginning of a text."""

    comments: list[bytes]  # before the first line, without blanks around them
    lines: list[TextBlock]  # the first two that are not comments, nor blank if these are skipped
    delimiter: str  # as the first of them has it

    def fields(self, number: int) -> list[bytes]:
        """Return the fields of the first line or the second; none if there is none."""
        if number >= len(self.lines):
            return []
        return _core.split_text(self.lines[number].data.rstrip(b"\n"), self.delimiter)

    def names(self, number: int = 0) -> list[str]:
        """Return these fields as names of columns, without quotation marks."""
        fields = self.fields(number)
        plain = (unquoted(field) if is_quoted(field) else field for field in fields)
        return [name.decode("utf-8", "replace") for name in plain]


def read_head(
    path: Path,
    comments: bytes = b"#%",
    *,
    is_named: bool = False,
    mixes: bool = False,
    skips_blank: bool = True,
) -> TextHead:
    """Read the beginning of a text, and detect its separator; see `delimiter_of`."""
    found, lines = list[bytes](), list[TextBlock]()
    places = (
        (number, block.data[begin:end])
        for block in read_blocks(path)
        for number, begin, end in _lines_of(block, skips_blank=skips_blank)
    )
    for number, line in places:
        text = line.strip()
        if not text or text[0] not in comments:
            lines.append(TextBlock(number, line))
        elif not lines and len(found) < _MAX_COMMENTS:
            found.append(text)
        if len(lines) == 2:
            break
    first = lines[0].data.strip() if lines else b""
    return TextHead(found, lines, delimiter_of(first, is_named=is_named, mixes=mixes))


def delimiter_of(line: bytes, *, is_named: bool = False, mixes: bool = False) -> str:
    """Return what separates the fields of a line.

    Tabs separate before commas if names do, which may have commas in them. Blanks next to tabs
    separate if there are `mixes`, and the first field has several numbers in it, as KONECT's have.
    """
    marks = "\t," if is_named else ",\t"
    delimiter = next((mark for mark in marks if mark.encode() in line), " ")
    if mixes and delimiter == "\t":
        ends = line.partition(b"\t")[0].split()
        delimiter = " " if len(ends) > 1 and all(map(is_number, ends)) else "\t"
    return delimiter


def _lines_of(block: TextBlock, *, skips_blank: bool = True) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each line of a block, its first byte and the one behind its last."""
    data, begin, number = block.data, 0, block.first_line
    while begin < len(data):
        if skips_blank:  # many at a time
            text = _TEXT.search(data, begin)
            if text is None:
                return
            first = data.rfind(b"\n", begin, text.start()) + 1 or begin
            begin, number = first, number + data.count(b"\n", begin, first)
        end = data.find(b"\n", begin) + 1 or len(data)
        yield number, begin, end
        begin, number = end, number + 1


def is_quoted(name: bytes) -> bool:
    """Whether a name has quotation marks around it."""
    return len(name) > 1 and name[:1] == name[-1:] == b'"'


def unquoted(name: bytes) -> bytes:
    """Return a name without quotation marks, as between commas (RFC 4180); b"" if one is odd."""
    if name[:1] != b'"':
        return name
    inner = name[1:-1]
    is_whole = len(name) > 1 and name[-1:] == b'"' and b'"' not in inner.replace(b'""', b"")
    return inner.replace(b'""', b'"') if is_whole else b""


def is_number(field: bytes) -> bool:
    """Whether a field is a number."""
    return _DECIMAL.fullmatch(field.lower()) is not None


def separator_hint(text: bytes) -> str:
    """Return what to do if something else than commas, tabs or blanks separates columns."""
    name = next((name for mark, name in _OTHER_MARKS.items() if mark in text), "")
    return name and (
        f". If {name} separate the columns, which is not read, write tabs in their place, and "
        "points in numbers"
    )


def word_field(table_format: TableFormat, dtype: str, position: int, field: bytes) -> str:
    """Return what is wrong with a field that has no value of its column's type."""
    form, where, has_number = table_format, f"column {position + 1}", is_number(field)
    column = next((c for c in form.columns if c.position == position), None)
    what = form.what if column is None else column.what
    wanted = f"{'an' if what[:1] in 'aeiou' else 'a'} {what}"
    if dtype == "text":
        return f"{where} is empty: {wanted} is missing"
    if has_number and dtype == "int64" and not INTEGER.fullmatch(field):
        written = "written as an integer" if float(field).is_integer() else "an integer"
        return f"{where}: {show(field)} is not {written}, expected {wanted}"
    if not has_number:
        is_whole = dtype == "int64" and column is None
        hint = separator_hint(field)
        if not hint:
            hint = QUOTES if field[:1] == b'"' else form.hint
        kind = "an integer" if is_whole else "a number"
        return f"{where}: {show(field)} is not {kind}, expected {wanted}{hint}"
    if dtype != "int64":
        is_nan = field.lower().lstrip(b"+-") == b"nan"
        remedy = ""
        if column is not None and not is_nan:
            is_wide = dtype == "float64"
            remedy = f"; give the type, as in {position + 1}:float64" if form.advise else ""
            remedy = "; it holds numbers up to 1.79e308, and inf" if is_wide else remedy
        return (
            f"{where}: "
            + (f"NaN is not {wanted}" if is_nan else f"{show(field)} overflows {dtype}")
            + remedy
        )
    low, limit = (form.minimum, form.limit) if column is None else (None, None)
    allowed = f"[{'-2^63' if low is None else low}, {'2^63' if limit is None else limit})"
    shown = int(field) if len(field) < _MAX_DIGITS else show(field)
    return f"{where}: {what} {shown} is outside {allowed}"


def show(field: bytes) -> str:
    """Return a field for a message."""
    text = field.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _num_in_flight() -> int:
    """Return the number of blocks at a time: read ahead, being parsed or done, in use."""
    return num_threads() + 3


@dataclass
class Found:
    """What decides on the type of a column."""

    is_wide: bool = False  # whether float32 would round a number of 2^24 or more
    has_fraction: bool = False
    has_gap: bool = False  # NaN or infinite
    huge: float | None = None  # a number that float64 may round
    low: float = 0  # the least number, if one is below 0
    high: float = 0  # the greatest, if one is above 0

    @property
    def is_whole(self) -> bool:
        """Whether all are integers that every type of 64 bits holds."""
        return not self.has_fraction and not self.has_gap and self.huge is None

    @property
    def is_mask(self) -> bool:
        """Whether all are 0 or 1."""
        return self.is_whole and self.low == 0 and self.high <= 1

    def look_at(self, values: npt.NDArray[Any]) -> None:
        """Note what some values have."""
        if not len(values):
            return
        self.is_wide |= bool(rounds(values).any())
        is_finite = np.isfinite(values)
        is_huge = is_finite & (np.abs(values) >= EXACT_IN_FLOAT64)
        if self.huge is None and is_huge.any():
            self.huge = values[int(np.argmax(is_huge))]
        if values.dtype.kind == "f":
            self.has_gap |= not is_finite.all()
            self.has_fraction |= bool((is_finite & (values != np.rint(values))).any())
        self.low = min(self.low, values.min())
        self.high = max(self.high, values.max())

    def add(self, other: Found) -> None:
        """Note what another part of the column has."""
        self.is_wide |= other.is_wide
        self.has_fraction |= other.has_fraction
        self.has_gap |= other.has_gap
        self.huge = other.huge if self.huge is None else self.huge
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)


class TextTable:
    """A text file of numbers, read as arrays [rows, columns] one block at a time."""

    def __init__(
        self,
        path: Path,
        table_format: TableFormat,
        *,
        block_bytes: int = BLOCK_BYTES,
        memory_bytes: int | None = None,
    ) -> None:
        self.path = path
        self.format = table_format
        # Types of the columns; while types of values are looked for, float64 has fractions.
        self.types = tuple(column.dtype or "int64" for column in table_format.columns)
        self._lock = Lock()
        self.has_all_types = all(column.dtype for column in table_format.columns)
        self._delimiter = table_format.delimiter
        self._num_columns = table_format.num_columns
        label = table_format.label_column
        self._end_positions = (*table_format.ends, *(() if label is None else (label,)))
        self._comments = b"" if table_format.comments_lead else table_format.comments
        self._skips_blank = table_format.skip_blank or bool(table_format.comments)
        self._has_braces = False  # whether the last field is in braces, which are skipped
        self._quotes = table_format.quotes  # or "all" or "none", which names must have them
        self.header = b""  # the first line, if it was skipped
        # In the last pass: lines of names that were skipped as comments, rows, and the first row.
        self.num_comments = self.num_rows = 0
        self.first: Any = None
        self.found = tuple(Found() for _ in table_format.columns)
        if memory_bytes is not None:
            fitting = memory_bytes // (_MEMORY_SHARE * _BYTES_PER_BYTE * _num_in_flight())
            block_bytes = min(max(fitting, _MIN_BLOCK_BYTES), block_bytes)
        self._block_bytes = block_bytes
        self._has_header = False
        self._first_line = 1  # the number of the first row's line

    @property
    def _num_values(self) -> int:
        """The number of fields that are values, in a table of one type."""
        return self.format.num_columns or self._num_columns or 0

    @property
    def num_fields(self) -> int:
        """The number of fields of a row, once one was read."""
        return self._num_columns or 0

    @property
    def memory_bytes(self) -> int:
        """The peak memory of reading."""
        return _BYTES_PER_BYTE * self._block_bytes * _num_in_flight()

    def read(self) -> npt.NDArray[Any]:
        """Return the whole table, [rows, columns]."""
        blocks, num_bytes, limit = [], 0, available_bytes() // 2
        for block in self.blocks():
            blocks.append(block)
            num_bytes += block.nbytes
            if num_bytes > limit:
                raise InputError(
                    f"{self.path}: holds at least {format_size(num_bytes)} of numbers, and would "
                    f"be read whole: more than half of the {format_size(2 * limit)} of memory "
                    "that are available. Check that it is the right file",
                    path=self.path,
                )
        empty = np.empty((0, self._num_columns or 0), self.format.dtype)
        return np.concatenate(blocks) if blocks else empty

    def blocks(self, phase: Phase | None = None) -> Generator[Any, None, None]:
        """Yield the rows in order."""
        self.num_comments = self.num_rows = 0
        # Decompressing and looking for lines is one thread's work, parsing the others'.
        blocks = read_ahead(self._prepared(phase))
        for rows, num_comments in map_in_order(self._parse, blocks, num_threads()):
            self.num_comments += num_comments
            if len(rows):
                if not self.num_rows:
                    self.first = rows if isinstance(rows, NameBlock) else rows[:1].copy()
                self.num_rows += len(rows)
                if not self.has_all_types:
                    self._look_at_columns(rows)
                yield rows

    def find_width(self) -> int:
        """Return the number of fields in the first row, which is checked."""
        head = self._find_form()
        names, rows = head.fields(0), head.lines[int(self.format.skip_header) :]
        if self.format.skip_header and (
            names[:1] in ([b""], [b'""']) or len(names) + 1 == self._num_columns
        ):
            self._fail(head.lines[0], 0, NO_NAME + "write the file without them")
        if rows:
            self._parse(rows[0])
        return self._num_columns or 0

    # ---- types of columns

    def values(self, rows: Any, column: int) -> npt.NDArray[Any]:
        """Return the values of a column, shape [k]."""
        found: npt.NDArray[Any] = (
            rows.columns[column] if isinstance(rows, NameBlock) else rows[str(column)]
        )
        return found

    def ends(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the numbers at the ends of edges, shape [k, 2]."""
        if self.format.is_plain:
            return rows
        return np.stack([rows[f"end{position}"] for position in self.format.ends], axis=1)

    def first_ends(self) -> list[Any]:
        """Return the ends in the first row of the last pass; none if there was no row."""
        if self.first is None:
            return []
        if isinstance(self.first, NameBlock):
            return [self.first.names[code] for code in self.first.codes[0]]
        return list(self.ends(self.first)[0])

    def settle_types(self, *others: TextTable) -> None:
        """Decide the types of columns, the same in other parts, after a pass over the files."""
        parts, types = (self, *others), list(self.types)
        for i, column in enumerate(self.format.columns):
            for part in others:
                self.found[i].add(part.found[i])
            found, own = self.found[i], {part.types[i] for part in parts}
            if column.dtype is not None or own == {"int64"}:
                continue
            if "float64" not in own and found.low >= 0:
                types[i] = "uint64"
                continue
            if found.huge is not None:
                self._refuse_rounded(column, found, parts)
            is_large = found.huge is not None and not found.has_fraction
            types[i] = "float64" if found.is_wide or is_large else "float32"
        for part in parts:
            part.found, part.types, part.has_all_types = self.found, tuple(types), True

    def _refuse_rounded(self, column: TextColumn, found: Found, parts: Sequence[TextTable]) -> None:
        """Refuse integers of a column of floats that these do not hold."""
        where = f"{self.path}: column {column.position + 1}"
        if found.has_gap and not found.has_fraction:
            raise InputError(
                f"{where} has whole numbers and gaps, which float64 holds, but that rounds "
                f"{found.huge:.0f}; write a number into the gaps, as -1",
                path=self.path,
            )
        form = replace(
            self.format,
            dtype="text",
            ends=(column.position,),
            columns=(),
            label_column=None,
            delimiter=self._delimiter,
        )
        names = (block.names for part in parts for block in TextTable(part.path, form).blocks())
        for text in filter(INTEGER.fullmatch, chain.from_iterable(names)):
            number = int(text) if len(text) < _MAX_DIGITS else None
            has_type = number is not None and (
                found.has_fraction or _INT64.min <= number < _BEYOND_UINT64
            )
            if number is None or not has_type or int(float(number)) != number:
                raise InputError(
                    f"{where}: {show(text)} is rounded by float64, which the column needs for "
                    "numbers with a point or an exponent, or below 0; write all as integers of "
                    "64 bits, or this one with a point",
                    path=self.path,
                )

    def _look_at_columns(self, rows: Any) -> None:
        for i, column in enumerate(self.format.columns):
            if column.dtype is None:
                self.found[i].look_at(self.values(rows, i))

    # ---- lines

    def _prepared(self, phase: Phase | None) -> Iterator[TextBlock]:
        """Yield the blocks behind comments and headers, after detecting the form of fields."""
        self._has_header = self.format.skip_header
        if self._delimiter is None or self._num_columns is None or self.format.ignore_extra:
            self._find_form()
        in_head = self._has_header or self.format.comments_lead
        for found in read_blocks(self.path, phase, block_bytes=self._block_bytes):
            block = found
            self._check_returns(block)
            if in_head:
                block = self._without_head(block)
                in_head = not block.data
                if in_head:
                    continue
            yield block

    def _check_returns(self, block: TextBlock) -> None:
        """Refuse a carriage return that ends no line: what follows would belong to its line."""
        lone = None
        if b"\r" in block.data and block.data.count(b"\r") != block.data.count(b"\r\n"):
            lone = _LONE_RETURN.search(block.data)
        if lone is not None:
            self._fail(block, lone.start(), "a carriage return without a line feed ends no line")

    def _without_head(self, block: TextBlock) -> TextBlock:
        """Return the rest of a block behind the lines before the first row."""
        for number, begin, end in _lines_of(block):
            line = block.data[begin:end].strip()
            if line[0] in self.format.comments:
                self.num_comments += 1
            elif self._has_header:
                self._has_header, self.header = False, line
                if not self.format.comments_lead:
                    return TextBlock(number + 1, block.data[end:])
            else:
                return TextBlock(number, block.data[begin:])
        return TextBlock(block.first_line, b"")

    # ---- blocks

    def _find_form(self) -> TextHead:
        """Detect the separator and the number of columns by the first row."""
        form, is_named = self.format, self.format.dtype == "text"
        is_edges = form.dtype == "int64" and form.num_columns is not None
        head = read_head(
            self.path,
            form.comments,
            is_named=is_named,
            mixes=is_edges,
            skips_blank=self._skips_blank or form.skip_header,
        )
        number = int(form.skip_header)
        if len(self._end_positions) == 3:  # triples of names
            head = self._with_terms(number) or head
        head = replace(head, delimiter=form.delimiter or head.delimiter)
        self._delimiter, row = head.delimiter, head.fields(number)
        width = len(row)
        self._has_braces = form.ignore_extra and row[-1:] != [] and row[-1].startswith(b"{")
        if form.num_columns is not None:
            width = max(width, form.num_columns) if form.ignore_extra else form.num_columns
        elif self._delimiter == "\t":
            width = max((i for i, field in enumerate(row, 1) if field), default=0)
        self._num_columns = width or self._num_columns
        self._first_line = head.lines[number].first_line if number < len(head.lines) else 1
        if is_named and self._quotes is None and self._delimiter in "\t " and row:
            names = [row[position] for position in self._end_positions if position < len(row)]
            marked = [is_quoted(name) for name in names]
            self._quotes = "all" if all(marked) else "none"
        return head

    def _with_terms(self, number: int) -> TextHead | None:
        """Return the head of a file of N-Triples, in which lines may be blank or comments."""
        head = read_head(self.path, b"#")
        line = head.lines[number] if number < len(head.lines) else TextBlock(1, b"")
        text = line.data.strip()
        if _TURTLE.match(text):
            self._fail(line, 0, "this is Turtle, which is not read: write it as N-Triples")
        terms = _core.split_text(text, ".") if text.startswith((b"<", b"_:")) else []
        if not terms:
            return None
        self._comments, self._skips_blank = b"#", True
        return replace(head, delimiter=".")

    def _row_dtype(self, types: tuple[str, ...]) -> np.dtype[Any]:
        """Return the type of rows: numbers, or ends by position and columns "0", "1", ..."""
        form = self.format
        if form.is_plain:
            return np.dtype(form.dtype)
        end = ("u4", (2,)) if form.dtype == "text" else (form.dtype,)
        fields = {c.position: (str(i), types[i]) for i, c in enumerate(form.columns)}
        fields |= {position: (f"end{position}", *end) for position in self._end_positions}
        return np.dtype([fields[position] for position in sorted(fields)])

    def _kinds(self, types: tuple[str, ...]) -> str:
        """Return the kind of each field, as the core has them."""
        form = self.format
        end = _END_KINDS[form.dtype]
        kinds = ["-"] * (self._num_columns or 0)
        places = range(self._num_values) if form.is_plain else self._end_positions
        for position in places:
            kinds[position] = end
        for column, dtype in zip(form.columns, types, strict=True):
            kinds[column.position] = _KINDS[dtype]
        if self._has_braces and kinds[-1] == "-":
            kinds[-1] = "*"
        return "".join(kinds)

    def _parse(self, block: TextBlock) -> tuple[Any, int]:
        """Return the rows of a block, and the number of comments in it."""
        form, data = self.format, block.data
        # No row has more fields than the block has bytes: a column's number may be any.
        is_possible = (self._num_columns or 0) <= len(data)
        while True:
            types = self.types
            records, num_comments, fault = _core.parse_text(
                data,
                self._kinds(types) if is_possible else "",
                self._delimiter or " ",
                self._comments,
                skip_blank=self._skips_blank,
                allow_nan=form.allow_nan,
                low=_INT64.min if form.minimum is None else form.minimum,
                high=_INT64.max if form.limit is None else form.limit - 1,
            )
            if fault is None:
                break
            line, num_fields, position, begin, end = fault
            column = {c.position: i for i, c in enumerate(form.columns)}.get(position)
            field = data[begin:end]
            if column is not None and types[column] != "float64" and self._widens(column, field):
                continue
            dtype = form.dtype if column is None else types[column]
            if position < 0:
                self._fail(block, line, self._word_count(block, line, num_fields))
            if self._has_braces and position == self.num_fields - 1:
                braces = (
                    f"column {position + 1}: {show(field)} is not in braces, as in the first line"
                )
                self._fail(block, line, braces)
            if column is None:
                form = replace(form, hint=self._advice(block, line))
            self._fail(block, line, word_field(form, dtype, position, field))
        rows = records.view(self._row_dtype(types))
        if form.dtype == "text":
            return self._encode(block, rows), num_comments
        return rows.reshape(-1, self._num_values) if form.is_plain else rows, 0

    def _word_count(self, block: TextBlock, begin: int, found: int) -> str:
        """Return what is wrong with a line that has another number of fields than wanted."""
        line, separator = block.data[begin:].partition(b"\n")[0], self._delimiter or " "
        text = line.rstrip(b" \t\r").lstrip(b" " if separator == "\t" else b" \t")
        if not line.strip():
            return "the line is blank where a row was expected"
        if separator == ".":
            wanted = "subject, predicate, object and a stop, as the lines before it"
            if found > 3:
                return f"found {found} terms, as N-Quads have, where N-Triples have {wanted}"
            return f"{show(text)} is not of N-Triples, which have {wanted}"
        problem = (
            f"found {found} {'field' if found == 1 else 'fields'}, expected {self._num_columns}, "
            f"in {show(text)}, where {_SEPARATORS[separator]} separate fields as in the first line"
        )
        quotes = QUOTES if b'"' in text else ""
        return problem + (separator_hint(text) or quotes or self._advice(block, begin))

    def _advice(self, block: TextBlock, begin: int) -> str:
        """Return advice about a line that is not a row, which also depends on others."""
        if self.format.advise is None:
            return self.format.hint

        def split(text: bytes) -> list[list[bytes]]:
            lines = (line for line in text.split(b"\n") if line.strip())
            rows = (line for line in lines if line.strip()[0] not in self._comments)
            return [_core.split_text(line, self._delimiter or " ") for line in rows]

        rows, before = split(block.data), len(split(block.data[:begin]))
        begins_file = block.first_line <= self._first_line
        counts = tuple(map(len, rows)) + (() if begins_file else (self.num_fields,))
        own, *others = rows[before : before + 2]
        return self.format.advise(
            OddLine(
                own,
                self.num_fields,
                others[0] if others else [],
                is_first=begins_file and not before,
                begins_file=begins_file,
                counts=counts,
            )
        )

    def _widens(self, column: int, field: bytes) -> bool:
        """Give a column whose type is not known yet a wider one, if a field is a number."""
        is_open = not self.has_all_types and self.format.columns[column].dtype is None
        if not is_open or not is_number(field):
            return False
        is_unsigned = INTEGER.fullmatch(field) and len(field) < _MAX_DIGITS
        is_unsigned = is_unsigned and 0 <= int(field) < _BEYOND_UINT64
        with self._lock:  # other blocks are parsed meanwhile
            if self.types[column] != "float64":
                wider = "uint64" if is_unsigned else "float64"
                self.types = (*self.types[:column], wider, *self.types[column + 1 :])
        return True

    def _encode(self, block: TextBlock, rows: npt.NDArray[Any]) -> NameBlock:
        """Return rows whose names are places in a block."""

        def encode(columns: tuple[int, ...]) -> NameBlock:
            places = np.stack([rows[f"end{column}"] for column in columns], axis=1).reshape(-1)
            names, codes, first = _core.encode_names(block.data, places)

            def fail(wrong: int, problem: str) -> NoReturn:
                number = int(first[wrong])
                where = f"column {columns[number % len(columns)] + 1}"
                self._fail(
                    block, int(places[2 * number]), f"{where}: {show(names[wrong])} {problem}"
                )

            try:
                b"\n".join(names).decode()
            except UnicodeDecodeError:
                odd = (i for i, n in enumerate(names) if n.decode(errors="replace").encode() != n)
                fail(next(odd), "is not UTF-8; convert the file to UTF-8")
            if plain := self._without_quotes(block, names, fail):
                for i, name in enumerate(plain):
                    if not name:
                        is_empty = names[i] == b'""'
                        fail(i, "is an empty name" if is_empty else _ODD_NAME)
                numbers: dict[bytes, int] = {}
                renumbered = np.array([numbers.setdefault(name, len(numbers)) for name in plain])
                first = first[np.unique(renumbered, return_index=True)[1]]
                names, codes = list(numbers), renumbered[codes]
            return NameBlock(names, codes.reshape(-1, len(columns)), first)

        names, label = encode(self.format.ends), self.format.label_column
        columns = tuple(rows[str(i)] for i in range(len(self.format.columns)))
        return replace(names, columns=columns, labels=None if label is None else encode((label,)))

    def _without_quotes(
        self, block: TextBlock, names: list[bytes], fail: Callable[[int, str], NoReturn]
    ) -> list[bytes]:
        """Return names without quotation marks; none if they have none, or these are part of them.

        A name that is odd becomes b"".
        """
        is_literal = self._delimiter == "." and self._quotes is None
        if (
            is_literal
            or self._quotes == "keep"
            or (self._quotes != "all" and b'"' not in block.data)
        ):
            return []
        if self._delimiter == ",":
            return [unquoted(name) for name in names]
        marked = [is_quoted(name) for name in names]
        wrong = {"all": False, "none": True}.get(self._quotes or "")
        if wrong in marked:
            fail(
                marked.index(wrong),
                f"has {'' if wrong else 'no '}quotation marks around it, and other names have "
                f"{'none' if wrong else 'them'}; write them around all names or none, or "
                "choose, for edges and triples, whether they are part of names (quotes=keep|strip)",
            )
        return [unquoted(n) if has else n for n, has in zip(names, marked, strict=True)]

    def _fail(self, block: TextBlock, offset: int, problem: str) -> NoReturn:
        line = block.first_line + block.data.count(b"\n", 0, offset)
        raise InputError(f"{self.path}: line {line}: {problem}", path=self.path)
