"""Rows of an input whose fields are names of nodes: each name once, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class NameBlock:
    """Rows with one or two fields that are names of nodes."""

    names: list[bytes]  # the distinct names, in order of appearance, as UTF-8
    codes: npt.NDArray[np.int64]  # int64, shape [k, C]: the position in `names` of each field
    # int64, shape [len(names)]: the first place of each name: C i + c for column c of row i.
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


def wrong_name(names: list[bytes]) -> tuple[int, str] | None:
    """Return the place of a name that a store cannot hold, and what is wrong with it."""
    if b"" in names:
        return names.index(b""), "has an empty name"
    try:
        b"\n".join(names).decode()
    except UnicodeDecodeError:
        odd = (i for i, n in enumerate(names) if n.decode(errors="replace").encode() != n)
        wrong = next(odd)
        shown = names[wrong].decode(errors="replace")[:40]
        return wrong, f"has {shown!r}, which is not UTF-8; convert it to UTF-8"
    return None


def join_columns(sources: NameBlock, targets: NameBlock) -> NameBlock:
    """Return two blocks of one column as one of two columns, in which a name has one place."""
    names = [*sources.names, *targets.names]
    places = np.concatenate([2 * sources.first, 2 * targets.first + 1])
    first: dict[bytes, int] = {}
    for i in np.argsort(places).tolist():
        first.setdefault(names[i], int(places[i]))
    numbers = {name: number for number, name in enumerate(first)}
    codes = [
        np.array([numbers[name] for name in block.names], np.int64)[block.codes[:, 0]]
        for block in (sources, targets)
    ]
    return NameBlock(list(first), np.stack(codes, axis=1), np.array([*first.values()], np.int64))
