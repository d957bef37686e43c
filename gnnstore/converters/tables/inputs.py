"""Tables in Parquet, Arrow and Feather files, or in memory, as record batches of bounded size."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard

from gnnstore.budget.ledger import Reservation
from gnnstore.converters.datasets.external import Paths, paths_of
from gnnstore.converters.inputs.opening import (
    describe_binary,
    describe_files,
    existing_file,
    existing_path,
    open_input,
)
from gnnstore.converters.memory import memory_ledger
from gnnstore.errors import InputError, NotFoundError, UsageError, storage_error

if TYPE_CHECKING:
    import pyarrow as pa

ENDINGS = (".parquet", ".pq", ".arrow", ".feather", ".ipc", ".arrows")
_STREAM_MAGIC = b"\xff\xff\xff\xff"
_BUFFER_BYTES = 2**16  # of a column chunk that is read
# A batch takes this share of a budget, and at most 4 MiB.
_MEMORY_SHARE, _MAX_BATCH_BYTES, _MAX_BATCH_ROWS = 16, 2**22, 2**18
_FIRST_ROWS = 1024  # whose bytes say how many rows a batch may have
# Batches at a time: decoded, as arrays, read ahead, and what Arrow's pool keeps.
_IN_FLIGHT = 6


class Table(ABC):
    """Columns of equal length, read in record batches, any number of times."""

    label: str  # name for messages
    schema: pa.Schema
    files: tuple[Path, ...] = ()  # empty in memory

    def __init__(self, memory_bytes: int | None = None) -> None:
        self._memory_bytes = memory_bytes
        share = _MAX_BATCH_BYTES if memory_bytes is None else memory_bytes // _MEMORY_SHARE
        self._batch_bytes = min(share, _MAX_BATCH_BYTES)

    @property
    def memory_bytes(self) -> int:
        """The peak memory of reading."""
        return _IN_FLIGHT * self._batch_bytes

    @cached_property
    @abstractmethod
    def num_rows(self) -> int:
        """The number of rows; of some files only a pass over one column tells."""

    @abstractmethod
    def record_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns in order."""

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
        row_bytes = max(1, int(batch.nbytes) // max(1, int(batch.num_rows)))
        return min(max(1, self._batch_bytes // row_bytes), _MAX_BATCH_ROWS)

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        step = self._rows_for(batch)
        for first in range(0, batch.num_rows, step):
            yield batch.slice(first, step)


class MemoryTable(Table):
    """A table of pyarrow, pandas or Polars."""

    def __init__(self, label: str, frame: Any, memory_bytes: int | None = None) -> None:
        super().__init__(memory_bytes)
        self.label = label
        self._table = _as_arrow(frame, label)
        self.schema = self._table.schema

    @cached_property
    def num_rows(self) -> int:
        """The number of rows."""
        num_rows: int = self._table.num_rows
        return num_rows

    def record_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns in order."""
        for batch in self._table.select(list(columns)).to_batches():
            yield from self._pieces(batch)


def _as_arrow(frame: Any, label: str) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415

    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    if not isinstance(frame, pa.Table) and hasattr(frame, "dtypes") and hasattr(frame, "iloc"):
        return pa.Table.from_pandas(frame, preserve_index=False)
    if not isinstance(frame, pa.Table) and not hasattr(frame, "__arrow_c_stream__"):
        if isinstance(frame, dict):
            return pa.table(frame)
        raise UsageError(
            f"{label}: a {type(frame).__name__} is no table; give files, a table of pyarrow, or a "
            "frame of pandas or Polars"
        )
    return pa.table(frame)


class FileTable(Table):
    """Files with the same columns, one behind the other."""

    def __init__(self, paths: Sequence[Path], memory_bytes: int | None = None) -> None:
        super().__init__(memory_bytes)
        self.files = tuple(paths)
        self.label = str(paths[0]) if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"
        self._kinds = [_kind_of(path) for path in paths]
        with self._open(0) as reader:
            self.schema = _schema_of(reader)

    @cached_property
    def num_rows(self) -> int:
        """The number of rows."""
        total = 0
        for number, kind in enumerate(self._kinds):
            if kind == "parquet":
                with self._open(number) as reader:
                    total += reader.metadata.num_rows
            else:
                first = self.schema.names[:1]
                total += sum(batch.num_rows for batch in self._batches_of(number, first))
        return total

    def record_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns in order."""
        for number in range(len(self.files)):
            yield from self._batches_of(number, columns)

    def _batches_of(self, number: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        path, kind = self.files[number], self._kinds[number]
        with self._open(number, columns) as reader:
            self._check_like_first(path, _schema_of(reader), columns)
            if kind == "parquet":
                rows = _FIRST_ROWS
                for batch in reader.iter_batches(rows, columns=list(columns)):
                    rows = self._rows_for(batch)
                    break
                for batch in reader.iter_batches(rows, columns=list(columns)):
                    yield batch
                return
            batches = (
                map(reader.get_batch, range(reader.num_record_batches))
                if kind == "file"
                else iter(reader)
            )
            for batch in batches:
                yield from self._pieces(batch.select(list(columns)))

    @contextmanager
    def _open(self, number: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Open a file for reading some columns; all errors in it are ours."""
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415

        path, kind = self.files[number], self._kinds[number]
        try:
            with open_input(path) as file:
                if kind == "parquet":
                    yield parquet.ParquetFile(
                        pa.OSFile(f"/proc/self/fd/{file.fileno()}"),
                        buffer_size=_BUFFER_BYTES,
                        pre_buffer=False,
                        thrift_string_size_limit=2**24,
                        thrift_container_size_limit=2**22,
                    )
                    return
                opened = pa.ipc.open_file if kind == "file" else pa.ipc.open_stream
                reader = opened(pa.PythonFile(_BoundedFile(file), mode="r"))
                names = reader.schema.names
                if kind == "file":
                    self._check_batches(path, reader.num_record_batches)
                if columns is not None and set(columns) <= set(names):
                    fields = sorted(names.index(name) for name in set(columns))
                    file.seek(0)
                    options = pa.ipc.IpcReadOptions(included_fields=fields)
                    reader = opened(pa.PythonFile(_BoundedFile(file), mode="r"), options=options)
                yield reader
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise _damaged(path, error) from None
        except OSError as error:  # Arrow raises it for files that end early, without a number
            if error.errno is None:
                raise _damaged(path, error) from None
            raise storage_error(error, "read the table", path) from error

    def _check_batches(self, path: Path, num_batches: int) -> None:
        """Refuse a file whose batches do not fit in memory: each is read as a whole."""
        each = path.stat().st_size // max(1, num_batches)
        batch = Reservation(f"{path.name}, of whose {num_batches} batches one", 2 * each)
        memory_ledger(f"reading {path}", self._memory_bytes).add(batch).check(
            None, "write it in smaller batches, or as Parquet"
        )

    def _check_like_first(self, path: Path, schema: pa.Schema, columns: Sequence[str]) -> None:
        for name in columns:
            place, first = schema.get_field_index(name), self.schema.field(name).type
            found = "missing" if place < 0 else schema.field(place).type
            if found != first:
                raise InputError(
                    f"{path}: the column {name!r} is {found}, and {first} in {self.files[0]}; "
                    "files of one table need the same columns",
                    path=path,
                )


class _BoundedFile:
    """A file of which no more is asked for than it has: Python allocates what is asked for."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self.closed = False

    def read(self, count: int = -1) -> bytes:
        left = max(0, self._size - self._file.tell())
        return self._file.read(left if count < 0 else min(count, left))

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def _schema_of(reader: Any) -> pa.Schema:
    return reader.schema_arrow if hasattr(reader, "schema_arrow") else reader.schema


def _damaged(path: Path, error: Exception) -> InputError:
    found = " ".join(str(error).split())[:200]
    return InputError(f"{path}: the table is damaged ({found}); copy it again", path=path)


def _kind_of(path: Path) -> str:
    """Return "parquet", "file" or "stream", by the first bytes."""
    with open_input(path) as file:
        head = file.read(8)
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"ARROW1"):
        return "file"
    if head.startswith(_STREAM_MAGIC):
        return "stream"
    found = describe_binary(path) or (
        "is neither Parquet, Arrow nor Feather; 'gnnstore convert snap' reads lists of edges in "
        "text"
    )
    raise InputError(f"{path}: {found}", path=path)


def is_paths(given: Any) -> TypeGuard[Paths]:
    """Whether something names files; else it is a frame."""
    one = (str, os.PathLike)
    return isinstance(given, one) or (
        isinstance(given, list | tuple) and all(isinstance(path, one) for path in given)
    )


def open_table(given: Any, what: str, memory_bytes: int | None = None) -> Table:
    """Open files, patterns and directories as one table, or a frame that is in memory.

    Parameters
    ----------
    given : path-like, sequence of path-like, or a frame
        Files of Parquet, Arrow IPC or Feather, their directories, or a table of pyarrow, pandas or
        Polars.
    what : str
        Name of the table, for messages.
    memory_bytes : int, optional
        The budget of the conversion, of which batches take a share.
    """
    if not is_paths(given):
        return MemoryTable(what, given, memory_bytes)
    files: list[Path] = []
    for name in paths_of(given, what):
        path = existing_path(name, what)
        if not path.is_dir():
            files.append(existing_file(path, what))
            continue
        found = sorted({file for ending in ENDINGS for file in path.rglob(f"*{ending}")})
        if not found:
            raise NotFoundError(
                f"{what}: {path} has no file *.parquet, *.arrow or *.feather", path=path
            )
        files += found
    if not files:
        raise UsageError(f"{what}: no file was given")
    return FileTable(files, memory_bytes)


def describe_tables(*tables: Table | None) -> dict[str, Any]:
    """Return the files of tables for provenance; nothing, if one is in memory."""
    there = [table for table in tables if table is not None]
    if not all(table.files for table in there):
        return {}
    return {"inputs": describe_files(file for table in there for file in table.files)}
