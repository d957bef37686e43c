"""Columns of tables as arrays: numbers, lists of equal length, times, and names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.name_ids import NameBlock, encode_arrow
from gnnstore.converters.inputs.derived import cut_rows
from gnnstore.converters.inputs.source import SequentialArray
from gnnstore.converters.read_ahead import read_ahead
from gnnstore.converters.tables.inputs import Table
from gnnstore.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


def to_array(column: pa.Array, where: str, first_row: int = 0) -> npt.NDArray[Any]:
    """Return a column as an array [k] or, of lists of equal length, [k, ...].

    Times become int64 in their own unit, and missing floats NaN.
    """
    import pyarrow as pa  # noqa: PLC0415

    types = pa.types
    if isinstance(column, pa.ExtensionArray):
        shape = getattr(column.type, "shape", None)  # of tensors
        values = to_array(column.storage, where, first_row)
        return values if shape is None else values.reshape(len(values), *shape)
    kind = column.type
    if types.is_dictionary(kind):
        return to_array(column.dictionary_decode(), where, first_row)
    if column.null_count and not types.is_floating(kind):
        row = first_row + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        floats = "" if types.is_temporal(kind) else ", or store the column as floats"
        raise InputError(f"{where}: row {row} has no value; fill it{floats}")
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _list_to_array(column, where, first_row)
    if types.is_temporal(kind) and not types.is_interval(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return to_array(column.cast(width), where, first_row)
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise InputError(
            f"{where}: is {kind}, which is no number; number it, cast it, or leave it out"
        )
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def _list_to_array(column: pa.Array, where: str, first_row: int) -> npt.NDArray[Any]:
    from pyarrow import compute  # noqa: PLC0415

    lengths = compute.list_value_length(column).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(lengths != lengths[:1])
    if len(others):
        row = int(others[0])
        raise InputError(
            f"{where}: row {first_row + row} has {lengths[row]} values, and row {first_row} "
            f"{lengths[0]}; lists must have equal lengths"
        )
    values = to_array(column.flatten(), where)
    width = int(lengths[0]) if len(lengths) else 0
    return values.reshape(len(column), width, *values.shape[1:])


class TableColumns(SequentialArray):
    """One column of a table as an array [k, ...], or several, joined along the second axis."""

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        table.check_columns(columns)
        self.label = f"{table.label}: {', '.join(columns)}"
        self._table = table
        self._columns = list(dict.fromkeys(columns))
        first = next(self._arrays(), None)
        if first is None:  # the types of a table without rows
            empty = self._table.schema.empty_table().select(self._columns).combine_chunks()
            first = self._join(empty.to_batches()[0] if empty.to_batches() else None, 0)
        self.dtype = first.dtype
        self.shape: tuple[int, ...] = (table.num_rows, *first.shape[1:])

    def rows(self, step: int, start: int = 0) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows from `start` on, at most `step` at a time."""
        return cut_rows(self._checked(), step, start)

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
        done = 0
        for batch in self._table.record_batches(self._columns):
            if batch.num_rows:
                yield self._join(batch, done)
            done += batch.num_rows

    def _join(self, batch: pa.RecordBatch | None, first_row: int) -> npt.NDArray[Any]:
        if batch is None:
            return np.empty((0, len(self._columns)), np.float32)
        arrays = [
            to_array(batch.column(name), f"{self._table.label}: {name}", first_row)
            for name in self._columns
        ]
        if len(arrays) == 1:
            return arrays[0]
        flat = [array.reshape(len(array), -1) for array in arrays]
        return np.concatenate(flat, axis=1, dtype=np.result_type(*flat))


def edge_batches(
    table: Table, ends: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], list[npt.NDArray[Any]]]]:
    """Yield sources, targets and other columns of the next edges; ends are integers."""

    def arrays() -> Iterator[list[npt.NDArray[Any]]]:
        done, wanted = 0, [*ends, *columns]
        for batch in table.record_batches(list(dict.fromkeys(wanted))):
            found = [to_array(batch.column(c), f"{table.label}: {c}", done) for c in wanted]
            for name, ids in zip(ends, found, strict=False):
                if ids.ndim != 1 or ids.dtype.kind not in "iu":
                    raise InputError(
                        f"{table.label}: {name}: is {ids.dtype}; ids of nodes are integers or names"
                    )
            yield found
            done += batch.num_rows

    for sources, targets, *others in read_ahead(arrays()):
        yield sources, targets, others


def name_batches(
    table: Table, ends: Sequence[str], columns: Sequence[str] = ()
) -> Iterator[NameBlock]:
    """Yield the next rows of one or two columns of names, with other columns as numbers."""
    import pyarrow as pa  # noqa: PLC0415

    done = 0
    for batch in table.record_batches(list(dict.fromkeys([*ends, *columns]))):
        if not batch.num_rows:
            continue
        texts = []
        for name in ends:
            column = batch.column(name)
            if column.null_count:
                row = done + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                raise InputError(f"{table.label}: {name}: row {row} has no name")
            texts.append(pa.chunked_array([column.cast(pa.string())]))
        numbers = tuple(to_array(batch.column(c), f"{table.label}: {c}", done) for c in columns)
        yield replace(encode_arrow(texts), columns=numbers)
        done += batch.num_rows


def is_text(table: Table, column: str) -> bool:
    """Whether a column holds names rather than integers."""
    import pyarrow as pa  # noqa: PLC0415

    kind = table.schema.field(column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
