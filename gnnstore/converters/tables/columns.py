"""Columns of tables as arrays: numbers, lists of equal length, times, names, and ids of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.edges.numbering import NameBlock, encode_arrow, find_ids
from gnnstore.converters.inputs.source import ArraySource, cut_rows, read_ahead
from gnnstore.converters.tables.inputs import Table
from gnnstore.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_ID_BYTES = 32  # of an id: itself, its row, and both while they are sorted


def to_array(column: pa.Array, where: str, first_row: int = 0) -> npt.NDArray[Any]:
    """Return a column as an array [k] or, of lists of equal length, [k, ...].

    Times become int64 in their own unit, and missing floats NaN.
    """
    import pyarrow as pa  # noqa: PLC0415

    types = pa.types
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        shape = getattr(kind, "shape", None)  # of tensors
        values = to_array(column.storage, where, first_row)
        return values if shape is None else values.reshape(len(values), *shape)
    if types.is_dictionary(kind):
        return to_array(column.dictionary_decode(), where, first_row)
    if column.null_count and not types.is_floating(kind):
        raise InputError(f"{where}: row {first_row + _first_null(column)} has no value; fill it")
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


def _first_null(column: pa.Array) -> int:
    return int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))


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
            first = _join([to_array(empty.column(c).chunk(0), self.label) for c in self._columns])
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
        return map(_join, _batches(self._table, self._columns))


def _join(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if len(arrays) == 1:
        return arrays[0]
    flat = [array.reshape(len(array), -1) for array in arrays]
    return np.concatenate(flat, axis=1, dtype=np.result_type(*flat))


def _batches(table: Table, columns: Sequence[str]) -> Iterator[list[npt.NDArray[Any]]]:
    """Yield the next rows of some columns."""
    done = 0
    for batch in table.record_batches(list(dict.fromkeys(columns))):
        if batch.num_rows:
            yield [to_array(batch.column(c), f"{table.label}: {c}", done) for c in columns]
        done += batch.num_rows


def edge_batches(
    table: Table, ends: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], list[npt.NDArray[Any]]]]:
    """Yield sources, targets and other columns of the next edges; ends are integers."""
    for sources, targets, *others in read_ahead(_batches(table, [*ends, *columns])):
        for name, ids in zip(ends, (sources, targets), strict=True):
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                raise InputError(
                    f"{table.label}: {name}: is {ids.dtype}; ids of nodes are integers or names"
                )
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
        for name in ends:
            if batch.column(name).null_count:
                row = done + _first_null(batch.column(name))
                raise InputError(f"{table.label}: {name}: row {row} has no name")
        texts = [pa.chunked_array([batch.column(name).cast(pa.string())]) for name in ends]
        numbers = tuple(to_array(batch.column(c), f"{table.label}: {c}", done) for c in columns)
        yield replace(encode_arrow(texts), columns=numbers)
        done += batch.num_rows


def is_text(table: Table, column: str) -> bool:
    """Whether a column holds names rather than integers."""
    kind = str(table.schema.field(column).type).removeprefix("dictionary<values=")
    return kind.startswith(("string", "large_string"))


class RowIds:
    """Numbers of nodes by their integer ids: node i is that of row i of a table."""

    def __init__(self, column: ArraySource, memory_bytes: int | None = None) -> None:
        if len(column.shape) != 1 or column.dtype.kind not in "iu":
            raise InputError(
                f"{column.label}: has rows of {column.dtype} {list(column.shape[1:])}; ids of "
                "nodes are integers or names"
            )
        self.label, self.num_nodes = column.label, column.shape[0]
        ids = Reservation(f"{self.num_nodes} ids and their rows", _ID_BYTES * self.num_nodes)
        memory_ledger("numbering the nodes of a table", memory_bytes).add(ids).check(
            None, "number the nodes from 0 in the order of the table"
        )
        self.ids = column.read().astype(np.int64)  # of row i, shape [N]
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
