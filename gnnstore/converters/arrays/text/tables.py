"""Tables of numbers in text: parsed fast where they are clean, by the letter where not.

pyarrow parses a block of clean lines at hundreds of megabytes a second, but its messages
know no line numbers and it takes things for numbers that are not ("0x1F" as an id). So it
only accelerates: any block that it refuses, or whose values are not allowed, is read again
line by line, and that reading alone decides what is an error and where.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from gnnstore.budget.limits import available_bytes
from gnnstore.converters.arrays.text.blocks import (
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
_SEPARATORS = {",": "commas", "\t": "tabs", " ": "spaces"}


@dataclass(frozen=True)
class TableFormat:
    """What the lines of a table must look like.

    Attributes
    ----------
    dtype : str
        "int64", "float32" or "float64".
    num_columns : int, optional
        Fields in a line; None: as many as in the first.
    delimiter : str, optional
        What stands between two fields; None: a comma, a tab or spaces, whichever the first
        line has.
    comments : bytes
        Characters that make a line a comment when it begins with one of them. With any,
        blank lines are skipped as well; without, they are errors.
    minimum, limit : int, optional
        Allowed values are minimum, ..., limit - 1.
    what : str
        What a value is, for messages.
    allow_nan : bool
        Whether NaN is a value (in a table of floats).
    ignore_extra : bool
        Whether fields after the `num_columns` first ones are skipped.
    """

    dtype: str
    num_columns: int | None = None
    delimiter: str | None = ","
    comments: bytes = b""
    minimum: int | None = None
    limit: int | None = None
    what: str = "value"
    allow_nan: bool = True
    ignore_extra: bool = False

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers."""
        return self.dtype == "int64"


class _Count(NullPhase):
    """How far a file has been read, counted in one thread and told in another."""

    def __init__(self) -> None:
        self.total = 0

    def advance(self, n: int = 1) -> None:
        """Count n bytes."""
        self.total += n


def _num_in_flight() -> int:
    """Return how many blocks exist at a time: read ahead, being parsed or done, being used."""
    return num_threads() + 3


class TextTable:
    """A text file of numbers, read as arrays [rows, columns] one block at a time.

    Parameters
    ----------
    path : Path
        The file, plain or gzipped.
    table_format : TableFormat
        What its lines look like.
    block_bytes : int
        Size of a block of text.
    memory_bytes : int, optional
        The most memory that the conversion may use: makes blocks smaller.
    """

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
        self._num_columns = table_format.num_columns

    @property
    def num_columns(self) -> int | None:
        """Fields in a line; None until the first line was read, if they were not given."""
        return self._num_columns

    @property
    def memory_bytes(self) -> int:
        """The most memory that reading takes at a time."""
        return blocks_memory_bytes(self._block_bytes, _num_in_flight())

    def read(self, phase: Phase | None = None) -> npt.NDArray[Any]:
        """Return the whole table, [rows, columns].

        Raises
        ------
        InputError
            See `blocks`; or if it takes half of the memory that is available: what is read
            whole (labels, splits, counts) is small, and 10 MB of gzip may hold 10 GB of zeros.
        """
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

    def blocks(self, phase: Phase | None = None) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows in order.

        Parameters
        ----------
        phase : Phase, optional
            Is advanced by the bytes read from disk.

        Yields
        ------
        ndarray of the format's dtype, [rows, columns]
            At least one row.

        Raises
        ------
        InputError
            Naming the file, the line, and what is wrong there.
        """
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
        """Return how many fields the first row of a block has."""
        data = self._strip(block.data)
        if data:
            self._look_at_first_line(data)
        return self._num_columns or 0

    def _prepared(self, read: Phase) -> Iterator[TextBlock]:
        """Yield the blocks, once it is known what fields are like."""
        for block in read_blocks(self.path, read, block_bytes=self._block_bytes):
            if self._delimiter is None or self._num_columns is None:
                data = self._strip(block.data)
                if not data:
                    continue
                self._look_at_first_line(data)
            yield block

    def _parse(self, block: TextBlock) -> npt.NDArray[Any]:
        data = self._strip(block.data)
        if not data:
            return np.empty((0, self._num_columns or 0), self.format.dtype)
        rows = self._parse_fast(data)
        return self._parse_by_line(block) if rows is None else rows

    def _strip(self, data: bytes) -> bytes:
        """Return the lines that are no comments, with plain line ends."""
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

    def _look_at_first_line(self, data: bytes) -> None:
        line = self._first_row(data)
        if line is None:
            return
        if self._delimiter is None:
            found = [mark for mark in (",", "\t") if mark.encode() in line.strip()]
            self._delimiter = found[0] if found else " "
        if self._num_columns is None:
            self._num_columns = len(self._fields(line))

    def _first_row(self, data: bytes) -> bytes | None:
        """Return the first line that is not to be skipped."""
        begin = 0
        while begin < len(data):
            end = data.find(b"\n", begin)
            line = data[begin : end if end >= 0 else len(data)]
            if not self.format.comments or not self._is_skipped(line):
                return line
            begin += len(line) + 1
        return None

    def _fields(self, line: bytes) -> list[bytes]:
        if self._delimiter == ",":
            return [field.strip() for field in line.split(b",")]
        return line.split()

    # ---- fast: pyarrow, on blocks where it agrees with the letter

    def _parse_fast(self, data: bytes) -> npt.NDArray[Any] | None:
        rows = self._parse_arrow(data)
        if rows is None and self._delimiter in ("\t", " "):
            # Columns aligned with several spaces, or trailing ones.
            space = self._delimiter.encode()
            single = re.sub(rb"[ \t]+", space, data)
            single = single.replace(space + b"\n", b"\n").replace(b"\n" + space, b"\n")
            rows = self._parse_arrow(single.strip(space))
        return rows if rows is not None and self._allowed(rows) else None

    def _parse_arrow(self, data: bytes) -> npt.NDArray[Any] | None:
        import pyarrow as pa  # noqa: PLC0415  (60 ms, and only text input needs it)
        from pyarrow import csv  # noqa: PLC0415

        if b"\r" in data or (self.format.is_integer and (b"x" in data or b"X" in data)):
            return None
        # What Arrow's own pool gets it keeps for a while: twice as much as is in use.
        pool = pa.system_memory_pool()
        # A copy that is Arrow's own: its reading thread lets go of the text some time after the
        # call, and if that were memory of Python's while the interpreter ends, the process would
        # be aborted ("terminate called without an active exception", one run in 30).
        text = pa.allocate_buffer(len(data), memory_pool=pool)
        memoryview(text).cast("B")[:] = data
        names = [str(column) for column in range(self._num_columns or 0)]
        extra: dict[str, Any] = {}
        if self.format.ignore_extra:
            line = self._first_row(data) or b""
            total = len(line.split((self._delimiter or " ").encode()))
            extra["include_columns"] = names
            names = [str(column) for column in range(max(total, len(names)))]
        kind = {"int64": pa.int64(), "float32": pa.float32(), "float64": pa.float64()}
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
                    column_types=dict.fromkeys(names, kind[self.format.dtype]),
                    null_values=[],
                    strings_can_be_null=False,
                    **extra,
                ),
                memory_pool=pool,
            )
        except pa.ArrowInvalid:
            return None
        return np.stack([column.to_numpy() for column in table.columns], axis=1)

    def _allowed(self, rows: npt.NDArray[Any]) -> bool:
        if not self.format.is_integer:
            # An infinity may be a number too large for the type; the letter tells.
            nan_is_fine = self.format.allow_nan or not np.isnan(rows).any()
            return nan_is_fine and not np.isinf(rows).any()
        if not len(rows):
            return True
        low, limit = self.format.minimum, self.format.limit
        return (low is None or rows.min() >= low) and (limit is None or rows.max() < limit)

    # ---- by the letter: one line after the other

    def _parse_by_line(self, block: TextBlock) -> npt.NDArray[Any]:
        parsed = []
        for number, line in enumerate(block.data.split(b"\n"), block.first_line):
            text = line.strip(b" \t\r")
            if self.format.comments and self._is_skipped(text):
                continue
            if not text:
                if number == block.first_line + block.data.count(b"\n"):
                    continue  # what follows the last line end
                self._fail(number, "the line is blank where a row was expected")
            fields = self._fields(text)
            if self.format.ignore_extra:
                fields = fields[: self._num_columns]
            if len(fields) != self._num_columns:
                self._fail_fields(number, text, len(fields))
            parsed.append([self._value(number, c, f) for c, f in enumerate(fields, 1)])
        return np.array(parsed, dtype=self.format.dtype).reshape(-1, self._num_columns or 0)

    def _value(self, line: int, column: int, field: bytes) -> int | float:
        where = f"column {column}"
        if not field:
            self._fail(line, f"{where} is empty: a {self.format.what} is missing")
        if self.format.is_integer:
            return self._integer(line, where, field)
        return self._decimal(line, where, field)

    def _integer(self, line: int, where: str, field: bytes) -> int:
        what = self.format.what
        if not _INTEGER.fullmatch(field):
            self._fail(line, f"{where}: {_show(field)} is not an integer, expected a {what}")
        # A number of more digits is out of range in any case, and slow to convert.
        value = int(field) if len(field) < 25 else int(_INT64.max) + 1
        if not _INT64.min <= value <= _INT64.max:
            self._fail(line, f"{where}: {what} {_show(field)} does not fit in 64 bits")
        low, limit = self.format.minimum, self.format.limit
        if (low is not None and value < low) or (limit is not None and value >= limit):
            allowed = f"[{'-2^63' if low is None else low}, {'2^63' if limit is None else limit})"
            self._fail(line, f"{where}: {what} {value} is outside {allowed}")
        return value

    def _decimal(self, line: int, where: str, field: bytes) -> float:
        what, dtype = self.format.what, self.format.dtype
        if not _DECIMAL.fullmatch(field.lower()):
            self._fail(line, f"{where}: {_show(field)} is not a number, expected a {what}")
        value = float(field)
        if math.isnan(value) and not self.format.allow_nan:
            self._fail(line, f"{where}: NaN is not a {what}")
        finite = field.lower().lstrip(b"+-") not in (b"inf", b"infinity", b"nan")
        with np.errstate(over="ignore"):
            stored = np.array(value).astype(dtype)
        if finite and not np.isfinite(stored):
            self._fail(line, f"{where}: {_show(field)} overflows {dtype}")
        return value

    def _fail_fields(self, line: int, text: bytes, found: int) -> NoReturn:
        problem = f"found {found} fields, expected {self._num_columns}, in {_show(text)}"
        others = len(text.split(b",") if self._delimiter != "," else text.split())
        if self._num_columns == others and self._num_columns != 1:
            problem += (
                f"; it is separated in another way than the lines before it, by "
                f"{_SEPARATORS[',' if self._delimiter != ',' else ' ']} instead of "
                f"{_SEPARATORS[self._delimiter or ' ']}"
            )
        self._fail(line, problem)

    def _fail(self, line: int, problem: str) -> NoReturn:
        raise InputError(f"{self.path}: line {line}: {problem}", path=self.path)


def _show(field: bytes) -> str:
    text = field.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:37] + "...")
