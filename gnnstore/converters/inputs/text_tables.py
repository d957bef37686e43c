"""Tables in text, parsed by the core or by pyarrow where lines are clean, else line by line.

The core parses a block of clean lines of numbers, and pyarrow one of names, at hundreds of
megabytes a second; neither has messages with line numbers. So every refused block, and every block
with forbidden values, is read again line by line; only that pass reports errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.limits import available_bytes
from gnnstore.converters.inputs.text_blocks import (
    BLOCK_BYTES,
    TextBlock,
    block_bytes_for,
    blocks_memory_bytes,
    read_blocks,
)
from gnnstore.converters.read_ahead import map_in_order, num_threads, read_ahead
from gnnstore.errors import InputError
from gnnstore.progress import NullPhase, Phase
from gnnstore.units import format_size

_INTEGER = re.compile(rb"[+-]?[0-9]+")
_DECIMAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)")
_INT64 = np.iinfo(np.int64)
_KINDS = {"int64": "i", "float32": "f", "float64": "d"}  # as the core calls them
_SPACES = re.compile(rb"[ \t\v\f]+")  # between fields, as `bytes.split` has it
_TWO_TABS = re.compile(rb"\t *\t")  # a field is missing between them
_SEPARATORS = {",": "commas", "\t": "tabs", " ": "spaces"}


@dataclass(frozen=True)
class TableFormat:
    """The form that the lines of a table must have."""

    dtype: str  # "int64", "float32" or "float64"; "text" gives blocks of `NameBlock`
    num_columns: int | None = None  # fields in a line; None: as many as in the first
    # Position of a field that is a float32, in a table whose first two fields are the ends of an
    # edge; fields between these are skipped.
    weight_column: int | None = None
    # Position of a field that is a name of another kind than the ends, in a table of text of three
    # columns: the relation of a triple.
    label_column: int | None = None
    # The separator of fields; None: a comma, a tab or spaces, as in the first line.
    delimiter: str | None = ","
    comments: bytes = b""  # a line that begins with one of these characters is a comment
    minimum: int | None = None  # the smallest allowed value
    limit: int | None = None  # allowed values are below
    what: str = "value"  # name of a value, for messages
    allow_nan: bool = True  # whether NaN is a value (in a table of floats)
    ignore_extra: bool = False  # whether fields after the `num_columns` first ones are skipped
    skip_header: bool = False  # whether the first line that is no comment is skipped
    extra_hint: str = ""  # advice for the message about too many fields
    type_hint: str = ""  # advice for the message about a field that is no integer

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers."""
        return self.dtype == "int64"

    @property
    def end_columns(self) -> list[int]:
        """The positions of the two ends of an edge."""
        return [column for column in range(3) if column != self.label_column][:2]

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """The element type of blocks: `dtype`, or `ends` (two numbers) and `weight`."""
        if self.weight_column is None:
            return np.dtype(self.dtype)
        return np.dtype([("ends", self.dtype, 2), ("weight", np.float32)])


@dataclass(frozen=True)
class NameBlock:
    """Rows with two fields that are names of nodes."""

    names: list[bytes]  # the distinct names, in order of appearance, as UTF-8
    codes: npt.NDArray[np.int64]  # int64, shape [k, 2]: the position in `names` of each field
    # int64, shape [len(names)]: the first place of each name: 2 i + c for column c of row i.
    first: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float32] | None = None  # float32, shape [k], or None: the weight column
    labels: NameBlock | None = None  # the label column, as a block of its own of one column

    def __len__(self) -> int:
        return len(self.codes)


class _Count(NullPhase):
    """Progress in a file that one thread reads and another reports."""

    def __init__(self) -> None:
        self.total = 0

    def advance(self, n: int = 1) -> None:
        """Count n bytes."""
        self.total += n


def _num_in_flight() -> int:
    """Return the number of blocks at a time: read ahead, being parsed or done, in use."""
    return num_threads() + 3


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
        self._block_bytes = min(block_bytes, block_bytes_for(memory_bytes, _num_in_flight()))
        self._delimiter = table_format.delimiter
        self._has_header = table_format.skip_header
        self._num_columns = table_format.num_columns

    @property
    def memory_bytes(self) -> int:
        """The peak memory of reading."""
        return blocks_memory_bytes(self._block_bytes, _num_in_flight())

    def read(self, phase: Phase | None = None) -> npt.NDArray[Any]:
        """Return the whole table, [rows, columns]."""
        blocks, num_bytes, limit = [], 0, available_bytes() // 2
        for block in self.blocks(phase):
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

    def blocks(self, phase: Phase | None = None) -> Iterator[Any]:
        """Yield the rows in order."""
        phase, read, told = phase or NullPhase(), _Count(), 0
        # Decompressing and looking for lines is one thread's work, parsing that of all others.
        blocks = read_ahead(self._prepared(read))
        for rows in map_in_order(self._parse, blocks, num_threads()):
            phase.advance(read.total - told)  # here, since phases belong to the caller's thread
            told = read.total
            if len(rows):
                yield rows
        phase.advance(read.total - told)

    def columns_of(self, block: TextBlock) -> int:
        """Return the number of fields in the first row of a block."""
        data = self._strip(block.data)
        row = self._first_row(data)
        if row is not None:
            self._look_at_first_line(data, block.first_line)
            self._parse_by_line(TextBlock(block.first_line, row))
        return self._num_columns or 0

    def _prepared(self, read: Phase) -> Iterator[TextBlock]:
        """Yield the blocks, after detecting the form of their fields."""
        self._has_header = self.format.skip_header
        for found in read_blocks(self.path, read, block_bytes=self._block_bytes):
            block = self._without_header(found) if self._has_header else found
            if self._delimiter is None or self._num_columns is None:
                data = self._strip(block.data)
                if not data:
                    continue
                self._look_at_first_line(data, block.first_line)
            yield block

    def _without_header(self, block: TextBlock) -> TextBlock:
        """Return the rest of a block behind its first line that is no comment."""
        data = block.data
        place = self._first_row_place(data)
        if place is None:
            return block
        self._has_header = False
        begin = place.stop + 1
        return TextBlock(block.first_line + data.count(b"\n", 0, begin), data[begin:])

    def _parse(self, block: TextBlock) -> Any:
        rows = None if _has_lone_returns(block.data) else self._parse_fast(block.data)
        return self._parse_by_line(block) if rows is None else rows

    def _strip(self, data: bytes) -> bytes:
        """Return the lines without comments, with plain line ends."""
        if b"\r" in data:  # looking for one byte is twenty times as fast as for two
            data = data.replace(b"\r\n", b"\n")
        # Blank lines are the parser's work: looking for them here took half as long as parsing.
        marks = self.format.comments
        if not any(marks[i : i + 1] in data for i in range(len(marks))):
            return data
        lines = data.split(b"\n")
        return b"\n".join([line for line in lines if not self._is_skipped(line)])

    def _is_skipped(self, line: bytes) -> bool:
        text = line.lstrip()
        return not text or text[0] in self.format.comments

    def _look_at_first_line(self, data: bytes, number: int) -> None:
        """Detect the separator and the number of columns; `number` is the first line's."""
        line = self._first_row(data)
        if line is None:
            return
        if not line.strip():
            self._fail_blank(number)
        if self._delimiter is None:
            # Names may have commas in them, or spaces, but no tabs.
            marks = ("\t", ",") if self.format.dtype == "text" else (",", "\t")
            found = [mark for mark in marks if mark.encode() in line.strip()]
            self._delimiter = found[0] if found else " "
        if self._num_columns is None:
            self._num_columns = len(self._fields(self._row_of(line)))

    def _first_row(self, data: bytes) -> bytes | None:
        """Return the first line that is not to be skipped."""
        place = self._first_row_place(data)
        return None if place is None else data[place]

    def _first_row_place(self, data: bytes) -> slice | None:
        begin = 0
        while begin < len(data):
            end = data.find(b"\n", begin)
            place = slice(begin, end if end >= 0 else len(data))
            if not self.format.comments or not self._is_skipped(data[place]):
                return place
            begin = place.stop + 1
        return None

    def _row_of(self, line: bytes) -> bytes:
        """Return a line without surrounding blanks; a tab in front follows a missing field."""
        return line.rstrip(b" \t\r").lstrip(b" " if self._delimiter == "\t" else b" \t")

    def _fields(self, line: bytes) -> list[bytes]:
        if self._delimiter == "," or (self._delimiter == "\t" and self.format.dtype == "text"):
            return [field.strip() for field in line.split(self._delimiter.encode())]
        if b"\t" not in line:
            return line.split()
        # Between numbers tabs may be mixed with spaces; but between two tabs a field is missing,
        # and later fields would take its place.
        return [field for part in line.split(b"\t") for field in part.split() or [b""]]

    # ---- fast: clean lines

    def _parse_fast(self, data: bytes) -> npt.NDArray[Any] | NameBlock | None:
        """Return the rows of lines; None if some lines are not clean or have forbidden values."""
        if not 0 < (self._num_columns or 0) <= len(data):
            return None  # it has no row, or fewer bytes than a row has fields
        if self.format.dtype != "text":
            rows: Any = self._parse_numbers(data)
        else:
            stripped = self._strip(data)
            if not stripped:
                return NameBlock([], np.empty((0, 2), np.int64), np.empty(0, np.int64))
            if self._delimiter == " " and _has_more_than_single_spaces(stripped):
                if _TWO_TABS.search(stripped):
                    return None
                # Arrow would see an empty field between two spaces, and take a tab for a letter.
                stripped = _SPACES.sub(b" ", stripped)
                stripped = stripped.replace(b" \n", b"\n").replace(b"\n ", b"\n").strip(b" ")
            rows = self._parse_arrow(stripped)
        return rows if rows is not None and self._allowed(rows) else None

    def _parse_numbers(self, data: bytes) -> npt.NDArray[Any] | None:
        kinds = [_KINDS[self.format.dtype]] * (self._num_columns or 0)
        weight = self.format.weight_column
        if weight is not None:
            kinds[2:] = "-" * len(kinds[2:])
            kinds[weight] = _KINDS["float32"]
        records = _core.parse_text(
            data,
            "".join(kinds),
            self._delimiter == ",",
            self.format.comments,
            self.format.ignore_extra,
        )
        if records is None:
            return None
        rows = records.view(self.format.row_dtype)
        return rows if weight is not None else rows.reshape(-1, len(kinds))

    def _parse_arrow(self, data: bytes) -> NameBlock | None:
        import pyarrow as pa  # noqa: PLC0415  (60 ms, and only names need it)
        from pyarrow import csv  # noqa: PLC0415

        if b"\r" in data:
            return None
        # Arrow's own pool keeps freed memory for a while: twice the memory in use.
        pool = pa.system_memory_pool()
        # A copy in Arrow's memory: Arrow's reading thread releases the text some time after the
        # call, and if that were Python's memory while the interpreter ends, the process would be
        # aborted ("terminate called without an active exception", one run in 30).
        text = pa.allocate_buffer(len(data), memory_pool=pool)
        memoryview(text).cast("B")[:] = data
        names = [str(column) for column in range(self._num_columns or 0)]
        weight = self.format.weight_column
        wanted = names if weight is None else ["0", "1", str(weight)]
        if self.format.ignore_extra:
            line = self._first_row(data) or b""
            total = len(line.split((self._delimiter or " ").encode()))
            names = [str(column) for column in range(max(total, len(names)))]
        types = dict.fromkeys(wanted, pa.string())
        if weight is not None:
            types[str(weight)] = pa.float32()
        try:
            table = csv.read_csv(
                pa.BufferReader(text),
                read_options=csv.ReadOptions(
                    column_names=names, block_size=len(data), use_threads=False
                ),
                parse_options=csv.ParseOptions(
                    delimiter=self._delimiter,
                    quote_char=False,
                    ignore_empty_lines=bool(self.format.comments),
                ),
                convert_options=csv.ConvertOptions(
                    column_types=types,
                    include_columns=wanted,
                    null_values=[],
                    strings_can_be_null=False,
                ),
                memory_pool=pool,
            )
        except pa.ArrowInvalid:
            return None
        return self._encode_table(table)

    def _weighted(self, columns: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        rows = np.empty(len(columns[0]), self.format.row_dtype)
        rows["ends"][:, 0], rows["ends"][:, 1], rows["weight"] = columns
        return rows

    def _allowed(self, rows: npt.NDArray[Any] | NameBlock) -> bool:
        if isinstance(rows, NameBlock):
            labels = rows.labels.names if rows.labels else []
            # Arrow's infinity may be a number too large for the type; reading by line decides.
            is_finite = rows.weight is None or bool(np.isfinite(rows.weight).all())
            return b"" not in rows.names and b"" not in labels and is_finite
        if self.format.weight_column is not None:
            rows = rows["ends"]
        if not self.format.is_integer:
            return self.format.allow_nan or not np.isnan(rows).any()
        if not len(rows):
            return True
        low, limit = self.format.minimum, self.format.limit
        return (low is None or rows.min() >= low) and (limit is None or rows.max() < limit)

    def _encode_table(self, table: Any) -> NameBlock:
        """Return the rows of a pyarrow table as a block."""
        ends = self.format.end_columns
        block = _encode_arrow([table.column(column) for column in ends])
        if self.format.label_column is not None:
            return replace(block, labels=_encode_arrow([table.column(self.format.label_column)]))
        return replace(block, weight=table.column(2).to_numpy()) if table.num_columns > 2 else block

    def _encode_lines(self, rows: list[list[Any]]) -> NameBlock:
        """Return rows that were parsed line by line as a block."""
        weight, label = self.format.weight_column, self.format.label_column
        block = _encode_fields(
            [[row[column] for column in self.format.end_columns] for row in rows]
        )
        if label is not None:
            return replace(block, labels=_encode_fields([[row[label]] for row in rows]))
        if weight is not None:
            return replace(block, weight=np.array([row[weight] for row in rows], np.float32))
        return block

    # ---- line by line

    def _parse_by_line(self, block: TextBlock) -> npt.NDArray[Any] | NameBlock:
        parsed = []
        for number, line in enumerate(block.data.split(b"\n"), block.first_line):
            text = self._row_of(line)
            if self.format.comments and self._is_skipped(text):
                continue
            if b"\r" in text:
                self._fail(
                    number, "a carriage return without a line feed ends no line; convert the file"
                )
            if not text:
                if number == block.first_line + block.data.count(b"\n"):
                    continue  # behind the last line end
                self._fail_blank(number)
            fields = self._fields(text)
            if self.format.ignore_extra:
                fields = fields[: self._num_columns]
            if len(fields) != self._num_columns:
                self._fail_fields(number, text, len(fields))
            parsed.append([self._value(number, c, f) for c, f in enumerate(fields, 1)])
        weight = self.format.weight_column
        if self.format.dtype == "text":
            return self._encode_lines(parsed)
        if weight is not None:
            columns = [np.array([row[c] for row in parsed]) for c in (0, 1, weight)]
            return self._weighted(columns)
        rows = np.array(parsed, dtype=self.format.dtype)
        return rows.reshape(len(parsed), self._num_columns or 0)

    def _value(self, line: int, column: int, field: bytes) -> Any:
        where = f"column {column}"
        if self.format.weight_column is not None and column > 2:
            is_weight = column - 1 == self.format.weight_column
            return self._decimal(line, where, field, "weight", "float32") if is_weight else None
        if not field:
            self._fail(line, f"{where} is empty: a {self.format.what} is missing")
        if self.format.is_integer:
            return self._integer(line, where, field)
        if self.format.dtype == "text":
            return self._text(line, where, field)
        return self._decimal(line, where, field, self.format.what, self.format.dtype)

    def _text(self, line: int, where: str, field: bytes) -> bytes:
        try:
            field.decode()
        except UnicodeDecodeError:
            self._fail(line, f"{where}: {_show(field)} is not UTF-8; convert the file to UTF-8")
        return field

    def _integer(self, line: int, where: str, field: bytes) -> int:
        what = self.format.what
        if not _INTEGER.fullmatch(field):
            self._fail(
                line,
                f"{where}: {_show(field)} is not an integer, expected a {what}"
                f"{self.format.type_hint}",
            )
        # A number of more digits is out of range in any case, and slow to convert.
        digits = field.lstrip(b"+-").lstrip(b"0") or b"0"
        value = int(digits) if len(digits) < 25 else int(_INT64.max) + 2
        value = -value if field.startswith(b"-") else value
        low, limit = self.format.minimum, self.format.limit
        least = int(_INT64.min) if low is None else low
        if not least <= value <= (int(_INT64.max) if limit is None else limit - 1):
            allowed = f"[{'-2^63' if low is None else low}, {'2^63' if limit is None else limit})"
            shown = value if len(digits) < 25 else _show(field)
            self._fail(line, f"{where}: {what} {shown} is outside {allowed}")
        return value

    def _decimal(self, line: int, where: str, field: bytes, what: str, dtype: str) -> float:
        if not _DECIMAL.fullmatch(field.lower()):
            self._fail(line, f"{where}: {_show(field)} is not a number, expected a {what}")
        value = float(field)
        if dtype == "float32":
            # Rounded once, as the fast parser does: from a double it would be rounded twice.
            record = _core.parse_text(
                field, _KINDS[dtype], is_comma=False, comments=b"", ignore_extra=False
            )
            value = value if record is None else float(record.view(np.float32)[0])
        if math.isnan(value) and not self.format.allow_nan:
            self._fail(line, f"{where}: NaN is not a {what}")
        finite = field.lower().lstrip(b"+-") not in (b"inf", b"infinity", b"nan")
        with np.errstate(over="ignore"):
            stored = np.array(value).astype(dtype)
        if finite and not np.isfinite(stored):
            self._fail(line, f"{where}: {_show(field)} overflows {dtype}")
        return value

    def _fail_fields(self, line: int, text: bytes, found: int) -> NoReturn:
        fields = "field" if found == 1 else "fields"
        problem = f"found {found} {fields}, expected {self._num_columns}, in {_show(text)}"
        others = len(text.split(b",") if self._delimiter != "," else text.split())
        if self._num_columns == others and self._num_columns != 1:
            problem += (
                f"; it is separated in another way than the lines before it, by "
                f"{_SEPARATORS[',' if self._delimiter != ',' else ' ']} instead of "
                f"{_SEPARATORS[self._delimiter or ' ']}"
            )
        elif found > (self._num_columns or 0):
            problem += self.format.extra_hint
        self._fail(line, problem)

    def _fail_blank(self, line: int) -> NoReturn:
        self._fail(line, "the line is blank where a row was expected")

    def _fail(self, line: int, problem: str) -> NoReturn:
        raise InputError(f"{self.path}: line {line}: {problem}", path=self.path)


def _has_lone_returns(data: bytes) -> bool:
    """Whether there are carriage returns that do not end a line."""
    num_returns = data.count(b"\r")
    return num_returns > 0 and num_returns != data.count(b"\r\n") + data.endswith(b"\r")


def _has_more_than_single_spaces(data: bytes) -> bool:
    """Whether fields may be separated by other white space than one space."""
    marks = (b"\t", b"\v", b"\f", b"  ", b" \n", b"\n ")
    return any(mark in data for mark in marks) or data.strip(b" ") != data


def _show(field: bytes) -> str:
    text = field.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _encode_arrow(columns: list[Any]) -> NameBlock:
    """Return columns of text of a pyarrow table as a block."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import compute  # noqa: PLC0415

    chunks = [chunk for column in columns for chunk in column.chunks]
    encoded = compute.ascii_trim_whitespace(pa.concat_arrays(chunks)).dictionary_encode()
    codes = encoded.indices.to_numpy().reshape(len(columns), -1).T
    # The dictionary has the sources before the targets; names are to come as lines have them.
    _, first = np.unique(codes, return_index=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    names = encoded.dictionary.cast(pa.binary()).take(pa.array(order)).to_pylist()
    return NameBlock(names, rank[codes], first[order].astype(np.int64))


def _encode_fields(rows: list[list[bytes]]) -> NameBlock:
    """Return rows of fields as a block."""
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    codes = np.empty((len(rows), len(rows[0]) if rows else 0), np.int64)
    for place, field in enumerate(field for row in rows for field in row):
        codes.flat[place] = numbers.setdefault(field, len(numbers))
        if len(first) < len(numbers):
            first.append(place)
    return NameBlock(list(numbers), codes, np.array(first, np.int64))
