"""Tables in text: numbers are parsed by the core, names are separated by pyarrow.

The core parses blocks of lines at hundreds of megabytes a second, up to the first line that is not
clean. That line is read here by the letter: it has a row, or is an error with a line number. Blocks
of names that pyarrow refuses are read by the letter as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.limits import available_bytes
from gnnstore.converters.edges.name_blocks import (
    NameBlock,
    encode_arrow,
    encode_fields,
    join_lines,
    split_fields,
)
from gnnstore.converters.inputs.text_blocks import (
    BLOCK_BYTES,
    TextBlock,
    block_bytes_for,
    blocks_memory_bytes,
    read_blocks,
)
from gnnstore.converters.inputs.text_lines import (
    KINDS,
    LineReader,
    TableFormat,
    TextColumn,
    show,
)
from gnnstore.converters.read_ahead import map_in_order, num_threads, read_ahead
from gnnstore.errors import InputError
from gnnstore.progress import NullPhase, Phase
from gnnstore.units import format_size

__all__ = ["NameBlock", "TableFormat", "TextColumn", "TextTable"]

_EXACT_IN_FLOAT32 = 2**24
_SPACES = re.compile(rb"[ \t\v\f]+")  # between fields, as `bytes.split` has it
_TWO_TABS = re.compile(rb"\t *\t")  # a field is missing between them
_LONE_RETURN = re.compile(rb"\r(?!\r*(?:\n|\Z))")


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


class TextTable(LineReader):
    """A text file of numbers, read as arrays [rows, columns] one block at a time."""

    def __init__(
        self,
        path: Path,
        table_format: TableFormat,
        *,
        block_bytes: int = BLOCK_BYTES,
        memory_bytes: int | None = None,
    ) -> None:
        super().__init__(path, table_format)
        self.header = b""  # the first line, if it was skipped
        self.num_comments = 0  # lines of names that were skipped as comments, in the last pass
        self._rounded: dict[int, Any] = {}  # by column, a value that float32 would change
        self._block_bytes = min(block_bytes, block_bytes_for(memory_bytes, _num_in_flight()))
        self._has_header = False

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
        self.num_comments = 0
        # Decompressing and looking for lines is one thread's work, parsing that of all others.
        blocks = read_ahead(self._prepared(read))
        for rows, num_comments in map_in_order(self._parse, blocks, num_threads()):
            phase.advance(read.total - told)  # here, since phases belong to the caller's thread
            told = read.total
            self.num_comments += num_comments
            if len(rows):
                if not self.has_all_types:
                    self._look_at_columns(rows)
                yield rows
        phase.advance(read.total - told)

    def columns_of(self, block: TextBlock) -> int:
        """Return the number of fields in the first row of a block."""
        if self.format.skip_header:
            self._has_header = True
            block = self._without_head(block)
        place = self._first_row_place(block.data)
        if place is not None:
            number = block.first_line + block.data.count(b"\n", 0, place.start)
            self._look_at_first_line(block.data[place], number)
            self._row(number, block.data[place])
        return self._num_columns or 0

    # ---- types of columns

    def values(self, rows: Any, column: int) -> npt.NDArray[Any]:
        """Return the values of a column, shape [k]."""
        found: npt.NDArray[Any] = (
            rows.columns[column] if isinstance(rows, NameBlock) else rows[str(column)]
        )
        return found

    def settle_types(self) -> None:
        """Decide the types of columns after a pass over the file."""
        for column, value in self._rounded.items():
            if self.types[column] == "float64" and self.format.columns[column].dtype is None:
                number = self.format.columns[column].position + 1
                raise InputError(
                    f"{self.path}: column {number} has fractions, so that it would be float32, "
                    f"which rounds {value:.17g} to {float(np.float32(value)):.15g}; say the type, "
                    f"as in {number}:float64 or {number}:float32",
                    path=self.path,
                )
        self.types = tuple(
            "float32" if column.dtype is None and dtype == "float64" else dtype
            for column, dtype in zip(self.format.columns, self.types, strict=True)
        )
        self.has_all_types = True

    def _look_at_columns(self, rows: Any) -> None:
        for i in range(len(self.types)):
            values = self.values(rows, i)
            with np.errstate(over="ignore"):
                is_rounded = np.isfinite(values) & (values.astype(np.float32) != values)
            is_rounded &= np.abs(values) >= _EXACT_IN_FLOAT32
            if is_rounded.any():
                self._rounded.setdefault(i, values[int(np.argmax(is_rounded))])

    # ---- lines

    def _prepared(self, read: Phase) -> Iterator[TextBlock]:
        """Yield the blocks behind comments and headers, after detecting the form of fields."""
        self._has_header = self.format.skip_header
        in_head = self._has_header or self.format.comments_lead
        for found in read_blocks(self.path, read, block_bytes=self._block_bytes):
            block = found
            self._check_returns(block)
            if in_head:
                block = self._without_head(block)
                in_head = not block.data
                if in_head:
                    continue
            if self._delimiter is None or self._num_columns is None:
                place = self._first_row_place(block.data)
                if place is None:
                    continue
                number = block.first_line + block.data.count(b"\n", 0, place.start)
                self._look_at_first_line(block.data[place], number)
            yield block

    def _check_returns(self, block: TextBlock) -> None:
        """Refuse a carriage return that ends no line: what follows would belong to its line."""
        num_returns = block.data.count(b"\r")
        if num_returns == 0 or num_returns == block.data.count(b"\r\n"):
            return
        lone = _LONE_RETURN.search(block.data)
        if lone is not None:
            self._fail(
                block.first_line + block.data.count(b"\n", 0, lone.start()),
                "a carriage return without a line feed ends no line; convert the file",
            )

    def _without_head(self, block: TextBlock) -> TextBlock:
        """Return the rest of a block behind the lines before the first row."""
        data, begin, number = block.data, 0, block.first_line
        while begin < len(data):
            end = data.find(b"\n", begin) + 1 or len(data)
            line = data[begin:end].strip()
            if not line or line[0] in self.format.comments:
                self.num_comments += 1 if line else 0
            elif self._has_header:
                self._has_header, self.header = False, line
                if line[:1] == b"," or data[begin : begin + 1] == b"\t":
                    self._fail(
                        number,
                        f"the first column has no name, in {show(line)}: it looks like the "
                        "index that pandas writes; write the file with index=False",
                    )
                if not self.format.comments_lead:
                    begin, number = end, number + 1
                    break
            else:
                break
            begin, number = end, number + 1
        return TextBlock(number, data[begin:])

    def _strip(self, data: bytes) -> tuple[bytes, int]:
        """Return the lines without comments, with plain line ends, and the number of comments."""
        if b"\r" in data:  # looking for one byte is twenty times as fast as for two
            data = data.replace(b"\r\n", b"\n")
        # Blank lines are the parser's work: looking for them here took half as long as parsing.
        marks = self._comments
        if not any(marks[i : i + 1] in data for i in range(len(marks))):
            return data, 0
        lines = data.split(b"\n")
        kept = [line for line in lines if line.lstrip()[:1] not in marks or not line.strip()]
        return b"\n".join(kept), len(lines) - len(kept)

    def _first_row_place(self, data: bytes) -> slice | None:
        begin = 0
        while begin < len(data):
            end = data.find(b"\n", begin)
            place = slice(begin, end if end >= 0 else len(data))
            if not self._is_skipped(data[place]):
                return place
            begin = place.stop + 1
        return None

    # ---- blocks

    def _parse(self, block: TextBlock) -> tuple[Any, int]:
        """Return the rows of a block, and the number of comments in it, in a table of text."""
        if self.format.dtype != "text":
            return self._parse_numbers(block), 0
        data, num_comments = self._strip(block.data)
        rows = self._parse_names(data)
        return self._parse_by_line(block) if rows is None else rows, num_comments

    def _parse_numbers(self, block: TextBlock) -> npt.NDArray[Any]:
        data, begin, number = block.data, 0, block.first_line
        types = self.types
        if (self._num_columns or 0) > len(data):  # fewer bytes than a row has fields
            self._read_by_line(block)  # raises, unless all are comments
            return np.empty(0, self.format.row_dtype(types))
        kinds = [KINDS[self.format.dtype]] * (self._num_columns or 0)
        if types:
            kinds[2:] = "-" * len(kinds[2:])
        for column, dtype in zip(self.format.columns, types, strict=True):
            kinds[column.position] = KINDS[dtype]
        row_dtype = self.format.row_dtype(types)
        pieces = [np.empty(0 if types else (0, len(kinds)), row_dtype)]
        while begin < len(data):
            records, fault = _core.parse_text(
                data,
                "".join(kinds),
                self._delimiter == ",",
                self._comments,
                self.format.ignore_extra,
                begin,
            )
            rows = records.view(row_dtype)
            pieces.append(rows if types else rows.reshape(-1, len(kinds)))
            self._check_allowed(pieces[-1], data, begin, number)
            if fault < 0:
                break
            number += data.count(b"\n", begin, fault)
            end = data.find(b"\n", fault)
            end = len(data) if end < 0 else end
            row = self._row(number, data[fault:end])
            if self.types != types:  # a column has fractions
                return self._parse_numbers(block)
            if row is not None:
                pieces.append(self._record(row, row_dtype))
            begin, number = end + 1, number + 1
        return np.concatenate(pieces) if len(pieces) > 2 else pieces[-1]

    def _record(self, row: list[Any], row_dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return a row that was read by the letter as an array of one row."""
        if not self.format.columns:
            return np.array([row], row_dtype)
        record = np.empty(1, row_dtype)
        record["ends"] = row[:2]
        for i, column in enumerate(self.format.columns):
            record[str(i)] = row[column.position]
        return record

    def _check_allowed(self, rows: npt.NDArray[Any], data: bytes, begin: int, number: int) -> None:
        """Raise if a value is not allowed; the rows are those of the lines from a byte on."""
        values = rows["ends"] if rows.dtype.names else rows
        low, limit = self.format.minimum, self.format.limit
        if not self.format.is_integer:
            is_right = self.format.allow_nan or not np.isnan(values).any()
        else:
            is_right = not len(values) or (
                (low is None or values.min() >= low) and (limit is None or values.max() < limit)
            )
        if not is_right:
            self._read_by_line(TextBlock(number, data[begin:]))  # raises at the value

    def _parse_names(self, data: bytes) -> NameBlock | None:
        """Return the rows of clean lines; None if some line has to be read by the letter."""
        if b"\r" in data or not 0 < (self._num_columns or 0) <= len(data):
            return None if data else encode_fields([])
        delimiter = self._delimiter or " "
        if delimiter == " " and _has_more_than_single_spaces(data):
            if _TWO_TABS.search(data):
                return None
            # Arrow would see an empty field between two spaces, and take a tab for a letter.
            data = _SPACES.sub(b" ", data)
            data = data.replace(b" \n", b"\n").replace(b"\n ", b"\n").strip(b" ")
        names = [str(column) for column in range(self._num_columns or 0)]
        wanted = names
        if self.format.columns or self.format.label_column is None:
            positions = {0, 1, *(column.position for column in self.format.columns)}
            wanted = [str(position) for position in sorted(positions)]
        if self.format.ignore_extra:
            line = data.lstrip(b"\n").partition(b"\n")[0]
            names = [str(i) for i in range(max(len(names), len(line.split(delimiter.encode()))))]
        table = split_fields(data, names, wanted, delimiter, skip_blank=self._skips_blank)
        if table is None:
            return None
        block = encode_arrow([table.column(str(column)) for column in self.format.end_columns])
        is_clean = b"" not in block.names
        if self.format.label_column is not None:
            labels = encode_arrow([table.column(str(self.format.label_column))])
            block = replace(block, labels=labels)
            is_clean = is_clean and b"" not in labels.names
        columns = [
            self._parse_column(i, join_lines(table.column(str(column.position))))
            for i, column in enumerate(self.format.columns)
        ]
        numbers = tuple(values for values in columns if values is not None)
        is_clean = is_clean and len(numbers) == len(columns)
        return replace(block, columns=numbers) if is_clean else None

    def _parse_column(self, column: int, lines: bytes) -> npt.NDArray[Any] | None:
        """Return the numbers of a column of a table of names; None if one is not clean."""
        while True:
            dtype = self.types[column]
            records, fault = _core.parse_text(
                lines, KINDS[dtype], is_comma=True, comments=b"", ignore_extra=False
            )
            if fault < 0 and lines:
                return records.view(dtype)
            if not self._may_widen(column, lines[fault:].partition(b"\n")[0].strip()):
                return None
            self._widen(column)

    def _read_by_line(self, block: TextBlock) -> list[list[Any]]:
        numbered = enumerate(block.data.removesuffix(b"\n").split(b"\n"), block.first_line)
        found = [self._row(number, line) for number, line in numbered]
        return [row for row in found if row is not None]

    def _parse_by_line(self, block: TextBlock) -> NameBlock:
        """Return rows of names that are read by the letter."""
        rows = self._read_by_line(block)
        ends, label = self.format.end_columns, self.format.label_column
        names = encode_fields([[row[end] for end in ends] for row in rows])
        if label is not None:
            return replace(names, labels=encode_fields([[row[label]] for row in rows]))
        columns = [
            np.array([row[column.position] for row in rows], dtype)
            for column, dtype in zip(self.format.columns, self.types, strict=True)
        ]
        return replace(names, columns=tuple(columns))


def _has_more_than_single_spaces(data: bytes) -> bool:
    """Whether fields may be separated by other white space than one space."""
    marks = (b"\t", b"\v", b"\f", b"  ", b" \n", b"\n ")
    return any(mark in data for mark in marks) or data.strip(b" ") != data
