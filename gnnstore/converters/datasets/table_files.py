"""Tables in Parquet, Arrow and Feather files, or in memory, and their columns as arrays.

Tables are read in record batches of bounded size. Columns hold numbers, lists of equal length,
times, names, and ids of nodes.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.datasets.external import Paths, paths_of
from gnnstore.converters.edges.numbering import find_ids
from gnnstore.converters.inputs.name_blocks import NameBlock, encode_arrow, wrong_name
from gnnstore.converters.inputs.opening import (
    existing_file,
    existing_path,
    open_input,
    refuse_kind,
)
from gnnstore.converters.inputs.parts import directory_columns, parts_of, refuse_two_formats
from gnnstore.converters.inputs.source import (
    EXACT_IN_FLOAT64,
    ArraySource,
    cut_rows,
    read_ahead,
)
from gnnstore.converters.inputs.table_sizes import (
    BatchSizes,
    ColumnSizes,
    read_column_sizes,
    read_sizes,
)
from gnnstore.converters.inputs.times import finest, in_unit
from gnnstore.errors import InputError, UsageError, storage_error
from gnnstore.units import format_count

if TYPE_CHECKING:
    import pyarrow as pa

ENDINGS = (".parquet", ".pq", ".arrow", ".feather", ".ipc", ".arrows")
_MAGIC = {b"PAR1": "parquet", b"ARRO": "file", b"\xff\xff\xff\xff": "stream"}
# Types of columns in names of directories, by what all their values look like; else text.
_DIRECTORY_TYPES = {
    "int64": re.compile(r"-?[0-9]+"),
    "date32": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "float64": re.compile(r"-?[0-9]+\.[0-9]+"),
}
_BUFFER_BYTES = 2**16  # bytes of a column chunk that are read at a time
# One part in so many of a budget for a batch, and its most bytes and rows.
_MEMORY_SHARE, _MAX_BATCH_BYTES, _MAX_BATCH_ROWS = 16, 2**22, 2**18
_ID_BYTES = 32  # bytes of an id: itself, its row, and both while they are sorted
_ROW_TIMES = 8  # copies of a row that is longer than a batch: decoded, as an array, read ahead
_PARQUET_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
_FIRST_ROWS = 1024  # rows that are measured to choose the rows of a batch
# Batches at a time: decoded, as arrays, read ahead, and what Arrow's pool keeps.
_IN_FLIGHT = 6


class Table(ABC):
    """Columns of equal length, read in record batches, any number of times."""

    label: str  # name for messages
    schema: pa.Schema
    files: tuple[Path, ...] = ()  # empty in memory
    of_directories: list[str]  # columns that names of directories state, and no file has
    is_reindexed = False  # whether the numbers of rows are not their places

    def __init__(self, memory_bytes: int | None = None) -> None:
        self._memory_bytes = memory_bytes
        self.of_directories = []
        share = _MAX_BATCH_BYTES if memory_bytes is None else memory_bytes // _MEMORY_SHARE
        self._batch_bytes = min(share, _MAX_BATCH_BYTES)

    @property
    def memory_bytes(self) -> int:
        """The peak memory of reading."""
        return _IN_FLIGHT * self._batch_bytes

    @cached_property
    def num_rows(self) -> int:
        """The number of rows; some files need a pass over one column for it."""
        return sum(batch.num_rows for batch in self.record_batches(self.schema.names[:1]))

    def time_unit(self, column: str) -> str | None:
        """Return the unit in which times of a column are read; None for other columns."""
        return unit_of(self.schema.field(column).type)

    @abstractmethod
    def record_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns in order."""

    def place_of(self, row: int) -> tuple[str, int]:
        """Return the file of a row, for messages, and the number of the row in the file."""
        return self.label, row

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise if a column is not there."""
        for name in columns:
            if self.schema.get_field_index(name) < 0:
                times = self.schema.names.count(name)
                raise InputError(
                    f"{self.label}: has {times or 'no'} columns {name!r}; its columns are "
                    f"{', '.join(map(repr, self.schema.names[:50]))}"
                )

    def _rows_for(self, batch: pa.RecordBatch) -> int:
        """Return the number of rows that a batch may have, by one with some rows."""
        return self._rows_of(sum(map(_value_bytes, batch.columns)))

    def _rows_of(self, row_bytes: int) -> int:
        """Return the number of rows of a size that a batch may have."""
        if row_bytes > self._batch_bytes:
            row = Reservation(f"a row of {self.label}", _ROW_TIMES * row_bytes)
            self._check_memory("shorten its text, or split its lists into several columns", row)
        return min(max(1, self._batch_bytes // max(1, row_bytes)), _MAX_BATCH_ROWS)

    def _check_memory(self, remedy: str, *parts: Reservation) -> None:
        ledger = memory_ledger(f"reading {self.label}", self._memory_bytes)
        ledger.add(*parts).check(None, remedy)

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for name in batch.schema.names:
            _as_bytes(batch.column(name)).validate(full=True)  # else what lies reads anywhere
        yield from self._cut(batch)

    def _cut(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        step = self._rows_for(batch)
        for first in range(0, batch.num_rows, step):
            yield batch.slice(first, step)


def _pyarrow(label: str) -> Any:
    """Return pyarrow, which an extra installs."""
    try:
        import pyarrow as pa  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            f"{label}: tables are read with pyarrow, which cannot be imported ({error}); install "
            "it with: pip install 'gnnstore[parquet]'"
        ) from error
    return pa


def _table_of(label: str, columns: Any) -> pa.Table:
    """Return columns as a table of pyarrow."""
    try:
        return _pyarrow(label).table(columns)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{label}: {error}; expected columns of one length by name, such as "
            '{"src": [...], "dst": [...]}'
        ) from error


class MemoryTable(Table):
    """A table of pyarrow, pandas or Polars, or what gives one in batches."""

    _batches: Callable[[list[str]], Iterator[pa.RecordBatch]]

    def __init__(self, label: str, frame: Any, memory_bytes: int | None = None) -> None:
        pa = _pyarrow(label)
        super().__init__(memory_bytes)
        self.label = label
        if hasattr(frame, "iloc"):
            frame, self.is_reindexed = _of_pandas(label, frame)
        elif isinstance(frame, dict | pa.RecordBatch) or hasattr(frame, "__arrow_c_stream__"):
            frame = _table_of(label, frame)
        elif hasattr(frame, "collect_schema"):  # a LazyFrame
            empty = frame.head(0).collect()
            self.schema, self._batches = empty.to_arrow().schema, self._of_lazy_frame
        elif hasattr(frame, "to_batches"):  # a data set or a scanner
            schema = frame.schema if hasattr(frame, "scanner") else frame.projected_schema
            self.schema, self._batches = schema, self._of_dataset
        else:
            raise UsageError(
                f"{label}: a {type(frame).__name__} is not a table; give files, a table, data set "
                "or scanner of pyarrow, or a frame of pandas or Polars"
            )
        if isinstance(frame, pa.Table):
            self.schema, self._batches = frame.schema, self._of_table
        self._frame = frame

    def record_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns in order."""
        import pyarrow as pa  # noqa: PLC0415

        try:
            for batch in self._batches(list(columns)):
                yield from self._pieces(batch)
        except pa.ArrowException as error:
            found = " ".join(str(error).split())[:200]
            raise InputError(f"{self.label}: cannot be read ({found})") from error

    def _of_table(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        yield from self._frame.select(columns).to_batches()

    def _of_lazy_frame(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        chosen = self._frame.select(columns)
        if not hasattr(chosen, "collect_batches"):
            yield from chosen.collect().to_arrow().to_batches()
            return
        for some in chosen.collect_batches(maintain_order=True):
            yield from some.to_arrow().to_batches()

    def _of_dataset(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if hasattr(self._frame, "scanner"):
            rows = _MAX_BATCH_ROWS if self._memory_bytes is None else _FIRST_ROWS
            how = {"batch_size": rows, "batch_readahead": 1, "fragment_readahead": 1}
            yield from self._frame.to_batches(columns=columns, **how)
            return
        for batch in self._frame.to_batches():
            yield batch.select(columns)


def _of_pandas(label: str, frame: Any) -> tuple[pa.Table, bool]:
    """Return a frame of pandas, and whether an index without a name is not 0, ..., N - 1.

    Levels of the index that have a name are columns.
    """
    import pyarrow as pa  # noqa: PLC0415

    index = frame.index
    levels = [(place, name) for place, name in enumerate(index.names) if name is not None]
    names = [str(name) for name in (*frame.columns, *(name for _, name in levels))]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise InputError(
            f"{label}: there are two columns {twice!r} (a level of the index with a name is one); "
            "rename one"
        )
    columns = [frame.iloc[:, place] for place in range(frame.shape[1])]
    columns += [index.get_level_values(place) for place, _ in levels]
    arrays = []
    for name, column in zip(names, columns, strict=True):
        try:
            arrays.append(pa.array(column, from_pandas=True))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            found = " ".join(str(error).split())[:200]
            raise InputError(
                f"{label}: the column {name!r} has values of several types, or objects that are "
                f"neither numbers nor text ({found}); convert it to one type"
            ) from None
    is_plain = bool(levels) or np.array_equal(np.asarray(index), np.arange(len(index)))
    return pa.table(arrays, names=names), not is_plain


class FileTable(Table):
    """Files with the same columns, one behind the other.

    Columns in the names of directories are behind the others.
    """

    def __init__(self, paths: Sequence[Path], memory_bytes: int | None = None) -> None:
        super().__init__(memory_bytes)
        self.files = tuple(paths)
        self.label = str(paths[0]) if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"
        self._kinds = {path: _kind_of(path) for path in paths}
        pa = _pyarrow(self.label)
        self._units: dict[str, str] = {}  # of times, by column
        self._sizes: dict[Path, BatchSizes] = {}  # of Arrow files that were opened
        self._columns: dict[tuple[Path, str], ColumnSizes] = {}  # of Parquet
        self._above = {path: directory_columns(path) for path in paths}
        with self._open(paths[0]) as (_, schema):
            self.schema = schema
        for name in dict.fromkeys(name for own in self._above.values() for name in own):
            if schema.get_field_index(name) < 0:
                values = [own[name] for own in self._above.values() if name in own]
                self.schema = self.schema.append(pa.field(name, directory_column(values).type))
                self.of_directories.append(name)

    @property
    def memory_bytes(self) -> int:
        """The peak memory of reading."""
        return super().memory_bytes + max((sum(own) for own in self._sizes.values()), default=0)

    @cached_property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(map(self._rows_in, self.files))

    def _rows_in(self, path: Path) -> int:
        if self._kinds[path] == "parquet":
            with self._open(path) as (reader, _):
                return int(reader.metadata.num_rows)
        first = self.schema.names[:1]
        return sum(batch.num_rows for batch in self._batches_of(path, first))

    def place_of(self, row: int) -> tuple[str, int]:
        """Return the file of a row, for messages, and the number of the row in the file."""
        for path in self.files:
            if row < (num_rows := self._rows_in(path)):
                return str(path), row
            row -= num_rows
        raise IndexError(row)

    def time_unit(self, column: str) -> str | None:
        """Return the finest unit of all files, in which times of a column are read."""
        unit = super().time_unit(column)
        if unit is None or len(self.files) == 1:
            return unit
        if column not in self._units:
            units = {unit}
            for path in self.files:
                with self._open(path) as (_, schema):
                    place = schema.get_field_index(column)
                    units.add((place >= 0 and unit_of(schema.field(place).type)) or unit)
            self._units[column] = finest(units)
        return self._units[column]

    def record_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns in order."""
        for path in self.files:
            yield from self._batches_of(path, columns)

    def _batches_of(self, path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415

        above = {name: text for name, text in self._above[path].items() if name in columns}
        if not above:
            yield from self._own_batches(path, columns)
            return
        with self._open(path) as (_, schema):
            own = [name for name in columns if name not in above or name in schema.names]
            first = schema.names[:1]
        values = {name: self._scalar(path, name, text) for name, text in above.items()}
        done = 0
        for batch in self._own_batches(path, own or first):
            for name in set(own) & values.keys():
                _check_equal(batch.column(name), values[name], f"{path}: {name}", done)
            found = [
                batch.column(name) if name in own else pa.repeat(values[name], batch.num_rows)
                for name in columns
            ]
            done += batch.num_rows
            yield pa.RecordBatch.from_arrays(found, names=list(columns))

    def _scalar(self, path: Path, name: str, text: str | None) -> pa.Scalar:
        """Return the value of a column that the names of directories state."""
        import pyarrow as pa  # noqa: PLC0415

        kind = self.schema.field(name).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        try:
            return pa.scalar(text, pa.string()).cast(kind)
        except pa.ArrowException:
            raise InputError(
                f"{path}: the column {name!r} is {kind}, and {text!r} in the name of the "
                "directory; rename one",
                path=path,
            ) from None

    def _own_batches(self, path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self._open(path, columns) as (reader, schema):
            for name in columns:
                place, first = schema.get_field_index(name), self.schema.field(name).type
                found = "missing" if place < 0 else schema.field(place).type
                if found != first and not (place >= 0 and _are_times(found, first)):
                    raise InputError(
                        f"{path}: the column {name!r} is {found}, and {first} in {self.files[0]}; "
                        "files of one table need the same columns",
                        path=path,
                    )
            if self._kinds[path] == "parquet":
                value_bytes = self._check_pages(path, reader.metadata, columns)
                most = self._rows_of(_row_bytes(reader.metadata, columns) + value_bytes)
                first = min(most, _FIRST_ROWS)
                head = next(reader.iter_batches(first, columns=list(columns)), None)
                if head is not None:
                    step = min(most, self._rows_for(head))
                    for batch in reader.iter_batches(step, columns=list(columns)):
                        yield from self._cut(batch)
                return
            is_file = self._kinds[path] == "file"
            numbers = range(reader.num_record_batches) if is_file else ()
            for batch in map(reader.get_batch, numbers) if is_file else reader:
                yield from self._pieces(batch.select(list(columns)))

    @contextmanager
    def _open(self, path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[Any, pa.Schema]]:
        """Open a file for reading some columns, with its schema; all errors in it are ours."""
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415

        kind = self._kinds[path]
        try:
            with pa.OSFile(os.fsencode(path)) as file:
                if kind == "parquet":
                    reader = parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
                    yield reader, reader.schema_arrow
                    return
                self._check_batches(path)
                opened = pa.ipc.open_file if kind == "file" else pa.ipc.open_stream
                reader = opened(file)
                schema, names = reader.schema, reader.schema.names
                if columns and set(columns) <= set(names):
                    file.seek(0)
                    fields = sorted(names.index(name) for name in set(columns))
                    reader = opened(file, options=pa.ipc.IpcReadOptions(included_fields=fields))
                yield reader, schema
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            # Arrow raises an OSError without a number for files that end early.
            if isinstance(error, OSError) and error.errno is not None:
                raise storage_error(error, "read the table", path) from error
            found = " ".join(str(error).split())[:200]
            raise InputError(
                f"{path}: the table is damaged ({found}); copy it again", path=path
            ) from None

    def _check_pages(self, path: Path, metadata: Any, columns: Sequence[str]) -> int:
        """Refuse columns whose pages do not fit in memory; return their largest texts' bytes."""
        new = [name for name in columns if (path, name) not in self._columns]
        with open_input(path) as file:
            for name in new:
                self._columns[path, name] = read_column_sizes(
                    file, metadata, name, self._batch_bytes
                )
        sizes = [self._columns[path, name] for name in columns]
        pages = sum(own.page for own in sizes) + max((own.page for own in sizes), default=0)
        self._check_memory(
            "write it with smaller pages (data_page_size=, write_batch_size=)",
            Reservation(f"the largest pages of {path.name}", pages),
        )
        return sum(own.value for own in sizes)

    def _check_batches(self, path: Path) -> None:
        """Refuse a file whose batches do not fit in memory: each is read as a whole."""
        if path in self._sizes:
            return
        sizes = read_sizes(path, is_stream=self._kinds[path] == "stream")
        self._sizes[path] = sizes
        self._check_memory(
            "write it in smaller batches, or as Parquet",
            Reservation(f"{path.name}, of whose batches the largest", sizes.largest),
            Reservation(f"the dictionaries of {path.name}", sizes.dictionaries),
        )


def _row_bytes(metadata: Any, columns: Sequence[str]) -> int:
    """Return the bytes of a row of Parquet, by the row group whose rows are the longest."""
    largest = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        total = 0
        for column in map(group.column, range(group.num_columns)):
            path = column.path_in_schema
            if any(path == name or path.startswith(f"{name}.") for name in columns):
                width = _PARQUET_BYTES.get(column.physical_type, 0)
                total += max(column.total_uncompressed_size, width * column.num_values)
        largest = max(largest, total // max(1, group.num_rows))
    return largest


def _value_bytes(column: pa.Array) -> int:
    """Return the bytes of the largest value of a column; with a dictionary rows have copies."""
    from pyarrow import compute, large_string, types  # noqa: PLC0415

    if types.is_string_view(column.type):  # of Polars; pyarrow 22 does not count their bytes
        column = column.cast(large_string())
    if types.is_dictionary(column.type):
        return _value_bytes(column.indices) + _value_bytes(column.dictionary)
    each = 1
    if types.is_list(column.type) or types.is_large_list(column.type):
        lengths, inner = compute.list_value_length(column), column.flatten()
        each = -(-int(inner.nbytes) // max(1, len(inner)))
    elif types.is_string(column.type) or types.is_large_string(column.type):
        lengths = compute.binary_length(column)
    else:
        return -(-int(column.nbytes) // max(1, len(column)))
    return each * int(compute.max(lengths).as_py() or 0)


def directory_column(values: Sequence[str | None]) -> pa.Array:
    """Return what names of directories state: integers, dates, numbers or texts."""
    pa = _pyarrow("the columns in names of directories")
    column = pa.array(values, pa.string())
    texts = [value for value in values if value is not None]
    for kind, form in _DIRECTORY_TYPES.items():
        if texts and all(map(form.fullmatch, texts)):
            with suppress(pa.ArrowException):  # 2^64, or the 31st of February
                return column.cast(kind)
    return column


def _check_equal(column: pa.Array, value: pa.Scalar, where: str, first_row: int) -> None:
    """Refuse a column that differs from the value in the name of the directory."""
    from pyarrow import compute  # noqa: PLC0415

    is_alike = column.is_null() if not value.is_valid else compute.equal(column, value)
    wrong = np.flatnonzero(~is_alike.fill_null(False).to_numpy(zero_copy_only=False))
    if len(wrong):
        row = int(wrong[0])
        raise InputError(
            f"{where}: row {first_row + row} has {column[row].as_py()!r}, and the name of the "
            f"directory {value.as_py()!r}; rename the directory, or leave the column out"
        )


def _kind_of(path: Path) -> str:
    """Return "parquet", "file" or "stream", by the first bytes."""
    with open_input(path) as file:
        kind = _MAGIC.get(file.read(4))
    if kind is None:
        refuse_kind(path)
        raise InputError(
            f"{path}: is neither Parquet, Arrow nor Feather; 'gnnstore convert snap' reads lists "
            "of edges in text, and 'gnnstore convert typed' tables of nodes, too",
            path=path,
        )
    return kind


def is_paths(given: Any) -> TypeGuard[Paths]:
    """Whether something names files; else it is a frame."""
    one = (str, os.PathLike)
    return isinstance(given, one) or (
        isinstance(given, list | tuple) and all(isinstance(path, one) for path in given)
    )


def open_table(given: Any, what: str, memory_bytes: int | None = None) -> Table:
    """Open files, patterns and directories as one table, or a frame that is in memory."""
    if not is_paths(given):
        return MemoryTable(what, given, memory_bytes)
    files: list[Path] = []
    for name in paths_of(given, what):
        path = existing_path(name, what)
        if not path.is_dir():
            files.append(existing_file(path, what))
            continue
        wanted = "*.parquet, *.arrow or *.feather"
        found = parts_of(path, lambda file: file.name.endswith(ENDINGS), wanted)
        refuse_two_formats(found, ENDINGS)
        files += found
    if not files:
        raise UsageError(f"{what}: no file was given")
    return FileTable(files, memory_bytes)


# ---- columns


def to_array(
    column: pa.Array, where: str, first_row: int = 0, per_row: int = 1
) -> npt.NDArray[Any]:
    """Return a column as an array [k] or, of lists of equal length, [k, ...].

    Times become int64 in their own unit, and missing floats NaN. `per_row` values, which are those
    of lists, lie in a row.
    """
    import pyarrow as pa  # noqa: PLC0415

    types = pa.types
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        shape = getattr(kind, "shape", None)  # of tensors
        values = to_array(column.storage, where, first_row, per_row)
        return values if shape is None else values.reshape(len(values), *shape)
    if types.is_dictionary(kind):
        return to_array(plain(column), where, first_row, per_row)
    if types.is_decimal(kind):
        return to_array(_of_decimals(column, where, first_row, per_row), where, first_row, per_row)
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    is_time = types.is_temporal(kind) and not types.is_interval(kind)
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if not (is_list or is_time or is_number or types.is_null(kind)):
        raise InputError(
            f"{where}: is {kind}, which is not a number; number it, cast it, or leave it out"
        )
    if column.null_count and not types.is_floating(kind):
        row = first_row + _first_null(column) // per_row
        raise InputError(f"{where}: row {row} has no value; fill it")
    if is_list:
        return _list_to_array(column, where, first_row, per_row)
    if is_time:
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return to_array(column.cast(width).cast(pa.int64()), where, first_row, per_row)
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def _as_bytes(column: pa.Array) -> pa.Array:
    """Return text as bytes: if it is not UTF-8, messages are to name the row."""
    import pyarrow as pa  # noqa: PLC0415

    kind = column.type
    if pa.types.is_dictionary(kind):
        values = _as_bytes(column.dictionary)
        return pa.DictionaryArray.from_arrays(column.indices, values, safe=False)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    return column


def plain(column: pa.Array) -> pa.Array:
    """Return the values of a column that may have a dictionary."""
    import pyarrow as pa  # noqa: PLC0415

    if not pa.types.is_dictionary(column.type):
        return column
    values = column.dictionary
    if pa.types.is_string_view(values.type):  # of Polars; Arrow does not take from views
        values = values.cast(pa.large_string())
    return values.take(column.indices)


def _of_decimals(column: pa.Array, where: str, first_row: int, per_row: int) -> pa.Array:
    """Return decimals without a fraction as int64, and others as float64 in which they differ."""
    import pyarrow as pa  # noqa: PLC0415

    has_fraction = column.type.scale > 0
    with suppress(pa.ArrowException):
        found = column.cast(pa.float64() if has_fraction else pa.int64())
        if not has_fraction or found.cast(column.type).equals(column):
            return found
    for row, value in enumerate(column.to_pylist()):
        if value is not None and (
            Decimal(repr(float(value))) != value if has_fraction else not -(2**63) <= value < 2**63
        ):
            kind = "float64" if has_fraction else "int64"
            raise InputError(
                f"{where}: row {first_row + row // per_row} has {value}, which {kind} cannot hold; "
                "cast the column"
            )
    return found


def unit_of(kind: pa.DataType) -> str | None:
    """Return the unit of dates and timestamps, or of lists of them; None for other types."""
    import pyarrow as pa  # noqa: PLC0415

    inner = getattr(kind, "storage_type", kind)
    inner = getattr(inner, "value_type", None) or inner  # of a list or a dictionary
    if inner is not kind:
        return unit_of(inner)
    if pa.types.is_date(kind):
        return "D" if pa.types.is_date32(kind) else "ms"
    return str(kind.unit) if pa.types.is_timestamp(kind) else None


def _are_times(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types can be brought to one unit: both of dates, or in UTC, or neither."""
    zones = [getattr(kind, "tz", None) is None for kind in (one, other)]
    return zones[0] == zones[1] and None not in (unit_of(one), unit_of(other))


def _first_null(column: pa.Array) -> int:
    return int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))


def _list_to_array(column: pa.Array, where: str, first_row: int, per_row: int) -> npt.NDArray[Any]:
    from pyarrow import compute  # noqa: PLC0415

    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(lengths != lengths[:1])
    if len(others):
        place = int(others[0])
        raise InputError(
            f"{where}: row {first_row + place // per_row} has "
            f"{format_count(lengths[place], 'value')}, and row "
            f"{first_row} {lengths[0]}; lists must have equal lengths"
        )
    width = int(lengths[0]) if len(lengths) else 0
    values = to_array(column.flatten(), where, first_row, per_row * max(1, width))
    return values.reshape(len(column), width, *values.shape[1:])


class TableColumns(ArraySource):
    """One column of a table as an array [k, ...], or several, joined along the second axis."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        table.check_columns(columns)
        self.label = f"{table.label}: {', '.join(columns)}"
        self.memory_bytes = table.memory_bytes
        self._table = table
        self._columns = list(dict.fromkeys(columns))
        first = next(self._arrays(), None)
        if first is None:  # the types of a table without rows
            empty = table.schema.empty_table().combine_chunks()
            chunks = (empty.column(c).chunk(0) for c in self._columns)
            first = _join([to_array(chunk, self.label) for chunk in chunks], self.label)
        self.dtype = first.dtype
        self.time_unit = table.time_unit(columns[0]) if len(columns) == 1 else None
        self.shape: tuple[int, ...] = (table.num_rows, *first.shape[1:])

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time."""
        return cut_rows(self._checked(), step, start)

    def place_of(self, row: int) -> tuple[str, int]:
        """Return the file of a row, for messages, and the number of the row in the file."""
        return self._table.place_of(row)

    def _checked(self) -> Iterator[npt.NDArray[Any]]:
        done = 0
        for rows in self._arrays():
            if rows.shape[1:] != self.shape[1:] or rows.dtype != self.dtype:
                raise InputError(
                    f"{self.label}: rows from {done} on are {rows.dtype} "
                    f"{list(rows.shape[1:])}, and those before {self.dtype} {list(self.shape[1:])}"
                )
            done += len(rows)
            yield rows

    def _arrays(self) -> Iterator[npt.NDArray[Any]]:
        batches = _batches(self._table, self._columns)
        return (_join(arrays, self.label) for arrays in batches)


def _join(arrays: list[npt.NDArray[Any]], where: str) -> npt.NDArray[Any]:
    if len(arrays) == 1:
        return arrays[0]
    flat = [array.reshape(len(array), -1) for array in arrays]
    dtype = np.result_type(*flat)
    for values in flat if dtype.kind == "f" else ():
        is_lost = values > EXACT_IN_FLOAT64
        if values.dtype.kind in "iu" and (is_lost := is_lost | (values < -EXACT_IN_FLOAT64)).any():
            raise InputError(
                f"{where}: joined columns are {dtype}, which rounds {values[is_lost].flat[0]}; "
                "take integers of more than 2^53 as an attribute of their own"
            )
    return np.concatenate(flat, axis=1, dtype=dtype)


def _batches(table: Table, columns: Sequence[str]) -> Iterator[list[npt.NDArray[Any]]]:
    """Yield the next rows of some columns."""
    done = 0
    for batch in table.record_batches(list(dict.fromkeys(columns))):
        if batch.num_rows:
            yield [_column(table, batch, name, done) for name in columns]
        done += batch.num_rows


def _column(table: Table, batch: pa.RecordBatch, name: str, first: int) -> npt.NDArray[Any]:
    """Return a column of a batch, times in one unit; `first` is the number of its first row."""
    where, column = f"{table.label}: {name}", batch.column(name)
    rows, own, unit = to_array(column, where, first), unit_of(column.type), table.time_unit(name)
    return rows if own is None or unit is None else in_unit(rows, own, unit, where, first)


def edge_batches(
    table: Table, ends: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], list[npt.NDArray[Any]]]]:
    """Yield sources, targets and other columns of the next edges; ends are integers."""
    for sources, targets, *others in read_ahead(_batches(table, [*ends, *columns])):
        for name, ids in zip(ends, (sources, targets), strict=True):
            _check_ids(ids, f"{table.label}: {name}")
        yield sources, targets, others


def _check_ids(ids: npt.NDArray[Any], where: str) -> None:
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InputError(f"{where}: is {ids.dtype}; ids of nodes are integers or names")


def name_batches(
    table: Table, ends: Sequence[str], columns: Sequence[str] = ()
) -> Iterator[NameBlock]:
    """Yield the next rows of one or two columns of names, with other columns as numbers."""
    done = 0
    for batch in table.record_batches(list(dict.fromkeys([*ends, *columns]))):
        if batch.num_rows:
            block = _encode(table, batch, ends, done)
            numbers = [_column(table, batch, name, done) for name in columns]
            yield replace(block, columns=tuple(numbers))
        done += batch.num_rows


def end_batches(
    table: Table, ends: Sequence[str], has_names: Sequence[bool]
) -> Iterator[list[NameBlock | npt.NDArray[Any]]]:
    """Yield each end of the next edges: a block of names, or ids."""
    done = 0
    for batch in table.record_batches(ends):
        found: list[NameBlock | npt.NDArray[Any]] = []
        for end, is_name in zip(ends, has_names, strict=True):
            if is_name:
                found.append(_encode(table, batch, [end], done))
                continue
            ids = to_array(batch.column(end), f"{table.label}: {end}", done)
            _check_ids(ids, f"{table.label}: {end}")
            found.append(ids)
        if batch.num_rows:
            yield found
        done += batch.num_rows


def _encode(table: Table, batch: pa.RecordBatch, ends: Sequence[str], first_row: int) -> NameBlock:
    """Return columns of names as a block; refuse rows without one."""
    import pyarrow as pa  # noqa: PLC0415

    texts = [plain(batch.column(name)).cast(pa.string()) for name in ends]
    for name, text in zip(ends, texts, strict=True):
        if text.null_count:
            row = first_row + _first_null(text)
            raise InputError(f"{table.label}: {name}: row {row} has no name")
    block = encode_arrow([pa.chunked_array([text]) for text in texts])
    wrong = wrong_name(block.names)
    if wrong is not None:
        place, problem = int(block.first[wrong[0]]), wrong[1]
        row, end = first_row + place // len(ends), ends[place % len(ends)]
        raise InputError(f"{table.label}: {end}: row {row} {problem}")
    return block


def is_text(table: Table, column: str) -> bool:
    """Whether a column holds names rather than integers."""
    kind = str(table.schema.field(column).type).removeprefix("dictionary<values=")
    return kind.startswith(("string", "large_string"))


class RowIds:
    """Numbers of nodes by their integer ids: node i has row i of a table."""

    def __init__(self, column: ArraySource, memory_bytes: int | None = None) -> None:
        if len(column.shape) != 1 or column.dtype.kind not in "iu":
            raise InputError(
                f"{column.label}: has rows of {column.dtype} {list(column.shape[1:])}; ids of "
                "nodes are integers or names"
            )
        self.label, self.num_nodes = column.label, column.shape[0]
        memory = Reservation(f"{self.num_nodes} ids and their rows", _ID_BYTES * self.num_nodes)
        memory_ledger("numbering the nodes of a table", memory_bytes).add(memory).check(
            None, "number the nodes from 0 in the order of the table"
        )
        ids = column.read()
        if ids.dtype == np.uint64 and (is_large := ids > np.iinfo(np.int64).max).any():
            row = int(np.argmax(is_large))
            raise InputError(
                f"{column.label}: row {row}: the id {ids[row]} is not below 2^63; store ids as text"
            )
        self.ids = ids.astype(np.int64)  # of row i, shape [N]
        self._order = np.argsort(self.ids, kind="stable")
        self._sorted = self.ids[self._order]
        same = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if len(same):
            raise InputError(
                f"{column.label}: the id {self._sorted[same[0]]} is in rows "
                f"{self._order[same[0]]} and {self._order[same[0] + 1]}; each node has one row"
            )
        self.is_identity = bool(np.array_equal(self.ids, np.arange(self.num_nodes)))
        self.num_bytes = self.ids.nbytes + self._order.nbytes + self._sorted.nbytes

    def to_nodes(self, ids: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
        """Return the rows of ids, shape [k]."""
        return self._order[find_ids(self._sorted, ids, where, f"is not in {self.label}")]
