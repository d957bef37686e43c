"""Columns of text: names, which pyarrow separates, as a list of distinct names and codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class NameBlock:
    """Rows with two fields that are names of nodes."""

    names: list[bytes]  # the distinct names, in order of appearance, as UTF-8
    codes: npt.NDArray[np.int64]  # int64, shape [k, 2]: the position in `names` of each field
    # int64, shape [len(names)]: the first place of each name: 2 i + c for column c of row i.
    first: npt.NDArray[np.int64]
    columns: tuple[npt.NDArray[Any], ...] = ()  # the other columns, shape [k]
    labels: NameBlock | None = None  # the label column, as a block of its own of one column

    def __len__(self) -> int:
        return len(self.codes)


def split_fields(
    data: bytes, names: list[str], wanted: list[str], delimiter: str, *, skip_blank: bool
) -> Any:
    """Return the wanted columns of text as a pyarrow table; None if a line has other fields."""
    import pyarrow as pa  # noqa: PLC0415  (60 ms, and only names need it)
    from pyarrow import csv  # noqa: PLC0415

    # Arrow's own pool keeps freed memory for a while: twice the memory in use.
    pool = pa.system_memory_pool()
    # A copy in Arrow's memory: Arrow's reading thread releases the text some time after the
    # call, and if that were Python's memory while the interpreter ends, the process would be
    # aborted ("terminate called without an active exception", one run in 30).
    text = pa.allocate_buffer(len(data), memory_pool=pool)
    memoryview(text).cast("B")[:] = data
    try:
        return csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(
                column_names=names, block_size=len(data), use_threads=False
            ),
            parse_options=csv.ParseOptions(
                delimiter=delimiter, quote_char=False, ignore_empty_lines=skip_blank
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, pa.string()),
                include_columns=wanted,
                null_values=[],
                strings_can_be_null=False,
            ),
            memory_pool=pool,
        )
    except pa.ArrowInvalid:
        return None


def join_lines(column: Any) -> bytes:
    """Return the texts of a pyarrow column, one in a line."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import compute  # noqa: PLC0415

    values = pa.concat_arrays(column.chunks)
    lines = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    text: bytes = compute.binary_join(lines, "\n")[0].as_py().encode()
    return text


def encode_arrow(columns: list[Any], *, trim: bool = True) -> NameBlock:
    """Return columns of text of a pyarrow table as a block, perhaps without surrounding blanks."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import compute  # noqa: PLC0415

    chunks = [chunk for column in columns for chunk in column.chunks]
    texts = pa.concat_arrays(chunks)
    encoded = (compute.ascii_trim_whitespace(texts) if trim else texts).dictionary_encode()
    codes = encoded.indices.to_numpy().reshape(len(columns), -1).T
    # The dictionary has the sources before the targets; names are to come as lines have them.
    _, first = np.unique(codes, return_index=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    names = encoded.dictionary.cast(pa.binary()).take(pa.array(order)).to_pylist()
    return NameBlock(names, rank[codes], first[order].astype(np.int64))


def encode_fields(rows: Sequence[Sequence[bytes]]) -> NameBlock:
    """Return rows of fields as a block."""
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    codes = np.empty((len(rows), len(rows[0]) if rows else 2), np.int64)
    for place, field in enumerate(field for row in rows for field in row):
        codes.flat[place] = numbers.setdefault(field, len(numbers))
        if len(first) < len(numbers):
            first.append(place)
    return NameBlock(list(numbers), codes, np.array(first, np.int64))
