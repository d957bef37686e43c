"""Tables in Parquet, Arrow and Feather files, or in memory, as record batches of bounded size."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.datasets.external import Paths, paths_of
from gnnstore.converters.inputs.opening import (
    describe_binary,
    describe_files,
    existing_file,
    existing_path,
    open_input,
)
from gnnstore.errors import InputError, NotFoundError, UsageError, storage_error

if TYPE_CHECKING:
    import pyarrow as pa

ENDINGS = (".parquet", ".pq", ".arrow", ".feather", ".ipc", ".arrows")
_MAGIC = {b"PAR1": "parquet", b"ARRO": "file", b"\xff\xff\xff\xff": "stream"}
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
    def num_rows(self) -> int:
        """The number of rows; of some files only a pass over one column tells."""
        return sum(batch.num_rows for batch in self.record_batches(self.schema.names[:1]))

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
        import pyarrow as pa  # noqa: PLC0415

        super().__init__(memory_bytes)
        self.label = label
        if hasattr(frame, "iloc"):
            self._table = pa.Table.from_pandas(frame, preserve_index=False)
        elif isinstance(frame, dict | pa.RecordBatch) or hasattr(frame, "__arrow_c_stream__"):
            self._table = pa.table(frame)
        else:
            raise UsageError(
                f"{label}: a {type(frame).__name__} is no table; give files, a table of pyarrow, "
                "or a frame of pandas or Polars"
            )
        self.schema = self._table.schema

    def record_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns in order."""
        for batch in self._table.select(list(columns)).to_batches():
            yield from self._pieces(batch)


class FileTable(Table):
    """Files with the same columns, one behind the other."""

    def __init__(self, paths: Sequence[Path], memory_bytes: int | None = None) -> None:
        super().__init__(memory_bytes)
        self.files = tuple(paths)
        self.label = str(paths[0]) if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"
        self._kinds = {path: _kind_of(path) for path in paths}
        with self._open(paths[0]) as (_, schema):
            self.schema = schema

    @cached_property
    def num_rows(self) -> int:
        """The number of rows."""
        total = 0
        for path, kind in self._kinds.items():
            if kind == "parquet":
                with self._open(path) as (reader, _):
                    total += reader.metadata.num_rows
            else:
                batches = self._batches_of(path, self.schema.names[:1])
                total += sum(batch.num_rows for batch in batches)
        return total

    def record_batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns in order."""
        for path in self.files:
            yield from self._batches_of(path, columns)

    def _batches_of(self, path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self._open(path, columns) as (reader, schema):
            for name in columns:
                place, first = schema.get_field_index(name), self.schema.field(name).type
                found = "missing" if place < 0 else schema.field(place).type
                if found != first:
                    raise InputError(
                        f"{path}: the column {name!r} is {found}, and {first} in {self.files[0]}; "
                        "files of one table need the same columns",
                        path=path,
                    )
            if self._kinds[path] == "parquet":
                head = next(reader.iter_batches(_FIRST_ROWS, columns=list(columns)), None)
                if head is not None:
                    yield from reader.iter_batches(self._rows_for(head), columns=list(columns))
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
                opened = pa.ipc.open_file if kind == "file" else pa.ipc.open_stream
                reader = opened(file)
                schema, names = reader.schema, reader.schema.names
                if kind == "file":
                    self._check_batches(path, reader.num_record_batches)
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

    def _check_batches(self, path: Path, num_batches: int) -> None:
        """Refuse a file whose batches do not fit in memory: each is read as a whole."""
        each = path.stat().st_size // max(1, num_batches)
        batch = Reservation(f"{path.name}, of whose {num_batches} batches one", 2 * each)
        memory_ledger(f"reading {path}", self._memory_bytes).add(batch).check(
            None, "write it in smaller batches, or as Parquet"
        )


def _kind_of(path: Path) -> str:
    """Return "parquet", "file" or "stream", by the first bytes."""
    with open_input(path) as file:
        kind = _MAGIC.get(file.read(4))
    if kind is None:
        found = describe_binary(path) or (
            "is neither Parquet, Arrow nor Feather; 'gnnstore convert snap' reads lists of edges "
            "in text"
        )
        raise InputError(f"{path}: {found}", path=path)
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
