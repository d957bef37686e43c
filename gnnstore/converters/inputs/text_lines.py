"""Lines of tables in text, read by the letter: each has a row, or is an error that is named."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from gnnstore import _core
from gnnstore.errors import InputError

KINDS = {"int64": "i", "float32": "f", "float64": "d"}  # as the core calls them
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_DECIMAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)")
_INT64 = np.iinfo(np.int64)
_SEPARATORS = {",": "commas", "\t": "tabs", " ": "spaces"}
_QUOTES = "; quotation marks have no meaning here: write the file without them"


@dataclass(frozen=True)
class TextColumn:
    """A column of numbers behind the two ends of an edge."""

    position: int  # from 0
    dtype: str | None = None  # None: int64, or float32 if some of its values have fractions
    what: str = "value"  # name of a value, for messages


@dataclass(frozen=True)
class TableFormat:
    """The form that the lines of a table must have."""

    dtype: str  # "int64", "float32" or "float64"; "text" gives blocks of `NameBlock`
    num_columns: int | None = None  # fields in a line; None: as many as in the first
    # Columns of numbers, in a table whose first two fields are the ends of an edge; others are
    # skipped.
    columns: tuple[TextColumn, ...] = ()
    # Position of a field that is a name of another kind than the ends, in a table of text of three
    # columns: the relation of a triple.
    label_column: int | None = None
    # The separator of fields; None: a comma, a tab or spaces, as in the first line.
    delimiter: str | None = ","
    comments: bytes = b""  # a line that begins with one of these characters is a comment
    comments_lead: bool = False  # whether comments come only before the first row
    skip_blank: bool = False  # whether blank lines are skipped, as they are where comments are
    minimum: int | None = None  # the smallest allowed value
    limit: int | None = None  # allowed values are below
    what: str = "value"  # name of a value, for messages
    allow_nan: bool = True  # whether NaN is a value (in a table of floats)
    ignore_extra: bool = False  # whether fields after the `num_columns` first ones are skipped
    skip_header: bool = False  # whether the first line that is no comment is skipped
    extra_hint: str = ""  # advice for the message about too many fields
    single_hint: str = ""  # advice for the message about a single field
    type_hint: str = ""  # advice for the message about a field that is no number

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers."""
        return self.dtype == "int64"

    @property
    def end_columns(self) -> list[int]:
        """The positions of the two ends of an edge."""
        return [column for column in range(3) if column != self.label_column][:2]

    def row_dtype(self, types: tuple[str, ...]) -> np.dtype[Any]:
        """Return the element type of blocks: `dtype`, or `ends` (two numbers) and "0", "1", ..."""
        if not self.columns:
            return np.dtype(self.dtype)
        order = sorted(range(len(types)), key=lambda i: self.columns[i].position)
        return np.dtype([("ends", self.dtype, 2), *((str(i), types[i]) for i in order)])


class LineReader:
    """Reads lines of one table."""

    def __init__(self, path: Path, table_format: TableFormat) -> None:
        self.path = path
        self.format = table_format
        # Types of the columns; while those of values are looked for, float64 has fractions.
        self.types = tuple(column.dtype or "int64" for column in table_format.columns)
        self.has_all_types = all(column.dtype for column in table_format.columns)
        self._delimiter = table_format.delimiter
        self._num_columns = table_format.num_columns
        self._comments = b"" if table_format.comments_lead else table_format.comments

    def _widen(self, column: int) -> None:
        """Read a column whose type is not known as decimals, from now on."""
        types = list(self.types)
        types[column] = "float64"
        self.types = tuple(types)

    def _may_widen(self, column: int, field: bytes) -> bool:
        """Whether a field is a fraction in a column whose type is not known yet."""
        return (
            not self.has_all_types
            and self.format.columns[column].dtype is None
            and not _INTEGER.fullmatch(field)
            and _DECIMAL.fullmatch(field.lower()) is not None
        )

    @property
    def _skips_blank(self) -> bool:
        return self.format.skip_blank or bool(self.format.comments)

    def _is_skipped(self, line: bytes) -> bool:
        text = line.lstrip()
        return self._skips_blank and (not text or text[0] in self._comments)

    def _look_at_first_line(self, line: bytes, number: int) -> None:
        """Detect the separator and the number of columns."""
        if not line.strip():
            self._fail_blank(number)
        if self._delimiter is None:
            # Names may have commas in them, or spaces, but no tabs.
            marks = ("\t", ",") if self.format.dtype == "text" else (",", "\t")
            found = [mark for mark in marks if mark.encode() in line.strip()]
            self._delimiter = found[0] if found else " "
        if self._num_columns is None:
            self._num_columns = len(self._fields(self._row_of(line)))

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

    def _row(self, number: int, line: bytes) -> list[Any] | None:
        """Return the values of a line, None for columns that are skipped; None for a comment."""
        text = self._row_of(line)
        if self._is_skipped(text):
            return None
        if not text:
            self._fail_blank(number)
        fields = self._fields(text)
        if self.format.ignore_extra:
            fields = fields[: self._num_columns]
        if len(fields) != self._num_columns:
            self._fail_fields(number, text, len(fields))
        columns = {column.position: i for i, column in enumerate(self.format.columns)}
        return [
            self._value(number, position, field)
            if position < 2 or not columns
            else self._column_value(number, columns[position], field)
            if position in columns
            else None
            for position, field in enumerate(fields)
        ]

    def _column_value(self, line: int, column: int, field: bytes) -> Any:
        found = self.format.columns[column]
        where = f"column {found.position + 1}"
        if self._may_widen(column, field):
            self._widen(column)
        if not _DECIMAL.fullmatch(field.lower()):
            hint = _QUOTES if field[:1] in (b'"', b"'") else ""
            self._fail(
                line, f"{where}: {show(field)} is not a number, expected {_a(found.what)}{hint}"
            )
        if self.types[column] == "int64":
            return self._integer(line, where, field, found.what)
        return self._decimal(line, where, field, found.what, self.types[column])

    def _value(self, line: int, column: int, field: bytes) -> Any:
        where = f"column {column + 1}"
        if not field:
            self._fail(line, f"{where} is empty: {_a(self.format.what)} is missing")
        if self.format.is_integer:
            allowed = (self.format.minimum, self.format.limit)
            return self._integer(line, where, field, self.format.what, allowed)
        if self.format.dtype == "text":
            return self._text(line, where, field)
        return self._decimal(line, where, field, self.format.what, self.format.dtype)

    def _text(self, line: int, where: str, field: bytes) -> bytes:
        try:
            field.decode()
        except UnicodeDecodeError:
            self._fail(line, f"{where}: {show(field)} is not UTF-8; convert the file to UTF-8")
        return field

    def _integer(
        self,
        line: int,
        where: str,
        field: bytes,
        what: str,
        within: tuple[int | None, int | None] = (None, None),
    ) -> int:
        low, limit = within
        if not _INTEGER.fullmatch(field):
            hint = self.format.type_hint
            if field[:1] in (b'"', b"'"):
                hint = _QUOTES
            elif _DECIMAL.fullmatch(field.lower()):
                hint = "; write it without a point and an exponent"
            self._fail(line, f"{where}: {show(field)} is not an integer, expected {_a(what)}{hint}")
        # A number of more digits is out of range in any case, and slow to convert.
        digits = field.lstrip(b"+-").lstrip(b"0") or b"0"
        value = int(digits) if len(digits) < 25 else int(_INT64.max) + 2
        value = -value if field.startswith(b"-") else value
        least = int(_INT64.min) if low is None else low
        if not least <= value <= (int(_INT64.max) if limit is None else limit - 1):
            allowed = f"[{'-2^63' if low is None else low}, {'2^63' if limit is None else limit})"
            shown = value if len(digits) < 25 else show(field)
            self._fail(line, f"{where}: {what} {shown} is outside {allowed}")
        return value

    def _decimal(self, line: int, where: str, field: bytes, what: str, dtype: str) -> float:
        if not _DECIMAL.fullmatch(field.lower()):
            hint = _QUOTES if field[:1] in (b'"', b"'") else self.format.type_hint
            self._fail(line, f"{where}: {show(field)} is not a number, expected {_a(what)}{hint}")
        value = float(field)
        if dtype == "float32":
            # Rounded once, as the core does: from a double it would be rounded twice.
            record, fault = _core.parse_text(
                field, KINDS[dtype], is_comma=False, comments=b"", ignore_extra=False
            )
            value = value if fault >= 0 else float(record.view(np.float32)[0])
        if math.isnan(value) and not self.format.allow_nan:
            self._fail(line, f"{where}: NaN is not {_a(what)}")
        finite = field.lower().lstrip(b"+-") not in (b"inf", b"infinity", b"nan")
        with np.errstate(over="ignore"):
            stored = np.array(value).astype(dtype)
        if finite and not np.isfinite(stored):
            self._fail(line, f"{where}: {show(field)} overflows {dtype}")
        return value

    def _fail_fields(self, line: int, text: bytes, found: int) -> NoReturn:
        fields = "field" if found == 1 else "fields"
        problem = f"found {found} {fields}, expected {self._num_columns}, in {show(text)}"
        others = len(text.split(b",") if self._delimiter != "," else text.split())
        if b'"' in text and self._delimiter == ",":
            problem += _QUOTES
        elif self._num_columns == others and self._num_columns != 1:
            problem += (
                f"; it is separated by {_SEPARATORS[',' if self._delimiter != ',' else ' ']} "
                f"instead of {_SEPARATORS[self._delimiter or ' ']}"
            )
        elif text[:1] == b"," or text[:1] == b"\t":
            problem += (
                "; the first field is empty, as in the header over the index that pandas writes: "
                "write the file with index=False"
            )
        elif found > (self._num_columns or 0):
            problem += self.format.extra_hint
        elif found == 1:
            problem += self.format.single_hint
        self._fail(line, problem)

    def _fail_blank(self, line: int) -> NoReturn:
        self._fail(line, "the line is blank where a row was expected")

    def _fail(self, line: int, problem: str) -> NoReturn:
        raise InputError(f"{self.path}: line {line}: {problem}", path=self.path)


def _a(what: str) -> str:
    return f"{'an' if what[:1] in 'aeiou' else 'a'} {what}"


def show(field: bytes) -> str:
    """Return a field for a message."""
    text = field.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:37] + "...")
