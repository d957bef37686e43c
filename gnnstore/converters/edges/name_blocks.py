"""Columns of names, as a list of distinct names and codes."""

from __future__ import annotations

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


def encode_arrow(columns: list[Any]) -> NameBlock:
    """Return columns of text of a pyarrow table as a block."""
    import pyarrow as pa  # noqa: PLC0415

    chunks = [chunk for column in columns for chunk in column.chunks]
    texts = pa.concat_arrays(chunks)
    encoded = texts.dictionary_encode()
    codes = encoded.indices.to_numpy().reshape(len(columns), -1).T
    # The dictionary has the sources before the targets; names are to come as lines have them.
    _, first = np.unique(codes, return_index=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    names = encoded.dictionary.cast(pa.binary()).take(pa.array(order)).to_pylist()
    return NameBlock(names, rank[codes], first[order].astype(np.int64))
