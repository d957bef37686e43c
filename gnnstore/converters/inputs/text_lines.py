"""The form of tables in text, and the words for a line that has another."""

from __future__ import annotations

import re
from dataclasses import dataclass

_INTEGER = re.compile(rb"[+-]?[0-9]+")
_DECIMAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)")
_MAX_DIGITS = 25  # that a message writes out
_SEPARATORS = {",": "commas", "\t": "tabs", " ": "spaces"}
_QUOTES = "; quotation marks have no meaning here: write the file without them"
QUOTED_COMMAS = "; a comma within quotation marks is not read: separate the columns by tabs"


@dataclass(frozen=True)
class TextColumn:
    """A column of numbers in a table of edges."""

    position: int  # from 0
    dtype: str | None = None  # None: int64, or float32 if some of its values have fractions
    what: str = "value"  # name of a value, for messages


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
    def is_plain(self) -> bool:
        """Whether all fields are numbers of one type."""
        return self.dtype != "text" and not self.columns and self.ends == (0, 1)


def fields_of(line: bytes) -> list[str]:
    """Return the fields of a line, separated by commas, tabs or blanks, without quotation marks."""
    mark = next((mark for mark in (b",", b"\t") if mark in line), None)
    fields = (field.strip().decode("utf-8", "replace") for field in line.split(mark))
    return [field[1:-1] if field[:1] == field[-1:] == '"' else field for field in fields]


def unquoted(name: bytes) -> bytes:
    """Return a name of a file with commas without quotation marks (RFC 4180); b"" if one is odd."""
    if name[:1] != b'"':
        return name
    inner = name[1:-1]
    is_whole = len(name) > 1 and name[-1:] == b'"' and b'"' not in inner.replace(b'""', b"")
    return inner.replace(b'""', b'"') if is_whole else b""


def is_number(field: bytes) -> bool:
    """Whether a field is a number."""
    return _DECIMAL.fullmatch(field.lower()) is not None


def is_fraction(field: bytes) -> bool:
    """Whether a field is a number, but no integer."""
    return not _INTEGER.fullmatch(field) and is_number(field)


def word_count(
    table_format: TableFormat, separator: str, wanted: int, line: bytes, found: int
) -> str:
    """Return what is wrong with a line that has another number of fields than wanted."""
    text = line.rstrip(b" \t\r").lstrip(b" " if separator == "\t" else b" \t")
    if found == 0:
        return "the line is blank where a row was expected"
    fields = "field" if found == 1 else "fields"
    problem = f"found {found} {fields}, expected {wanted}, in {show(text)}"
    others = len(text.split(b",") if separator != "," else text.split())
    if b'"' in text and separator == ",":
        problem += QUOTED_COMMAS if table_format.dtype == "text" else _QUOTES
    elif wanted == others and wanted != 1:
        problem += (
            f"; it is separated by {_SEPARATORS[',' if separator != ',' else ' ']} "
            f"instead of {_SEPARATORS[separator]}"
        )
    elif text[:1] in (b",", b"\t"):
        problem += (
            "; the first field is empty, as in the header over the index that pandas writes: "
            "write the file with index=False"
        )
    elif found > wanted:
        problem += table_format.extra_hint
    elif found == 1:
        problem += table_format.single_hint
    return problem


def word_field(table_format: TableFormat, dtype: str, position: int, field: bytes) -> str:
    """Return what is wrong with a field that has no value of its column's type."""
    form, where, hint = table_format, f"column {position + 1}", ""
    column = next((c for c in form.columns if c.position == position), None)
    what = form.what if column is None else column.what
    wanted = f"{'an' if what[:1] in 'aeiou' else 'a'} {what}"
    if not field and column is None:
        return f"{where} is empty: {wanted} is missing"
    lower, has_number = field.lower(), is_number(field)
    if field[:1] in (b'"', b"'"):
        hint = _QUOTES
    elif dtype == "int64" and has_number:
        hint = "; write it without a point and an exponent"
    elif column is None:
        hint = form.type_hint
    if not has_number or (dtype == "int64" and not _INTEGER.fullmatch(field)):
        kind = "an integer" if dtype == "int64" and (column is None or has_number) else "a number"
        return f"{where}: {show(field)} is not {kind}, expected {wanted}{hint}"
    if dtype != "int64":
        is_nan = lower.lstrip(b"+-") == b"nan"
        return f"{where}: " + (
            f"NaN is not {wanted}" if is_nan else f"{show(field)} overflows {dtype}"
        )
    low, limit = (form.minimum, form.limit) if column is None else (None, None)
    allowed = f"[{'-2^63' if low is None else low}, {'2^63' if limit is None else limit})"
    shown = int(field) if len(field) < _MAX_DIGITS else show(field)
    return f"{where}: {what} {shown} is outside {allowed}"


def show(field: bytes) -> str:
    """Return a field for a message."""
    text = field.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:37] + "...")
