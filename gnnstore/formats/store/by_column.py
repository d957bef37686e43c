"""What is computed for each column of an adjacency: orders by time, and sums of integer weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.errors import CorruptStoreError, InputError
from gnnstore.formats.arrays.dtypes import from_bfloat16_bits
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import EdgeTypeSpec, Schema

# Times that stand for none: pandas and torch_frame write NaT as the smallest int64.
NO_TIME = np.iinfo(np.int64).min
# Bytes for each edge of a block while its order or sums are computed.
BLOCK_EDGE_BYTES = 96
_POINTERS = 2**17

Counts = npt.NDArray[np.int64]  # of edges, by column


def column_blocks(
    indptr: PagedArray, max_edges: int
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield consecutive columns as (first edge, edges of each column), at most some edges each."""
    first = column = 0
    pending = np.empty(0, np.int64)
    latest = np.empty(0, np.int64)
    pieces = indptr.pieces(8 * _POINTERS)
    while True:
        _, piece = next(pieces, (0, None))
        if piece is not None:
            pointers = np.concatenate([latest, piece])
            latest = pointers[-1:]
            pending = np.concatenate([pending, np.diff(pointers)])
            if (pending < 0).any():
                where = indptr.file_paths[0]
                problem = "the pointers of columns do not ascend"
                raise CorruptStoreError(
                    f"{where}: {problem}; restore the store from a copy or convert again",
                    path=where,
                )
        while len(pending):
            ends = np.cumsum(pending)
            take = int(np.searchsorted(ends, max_edges, side="right"))
            is_short = ends[-1] + len(pending) < max_edges // 2  # also of columns without edges
            if take == len(pending) and piece is not None and is_short:
                break  # more columns fit
            if take == 0:
                who = f"{indptr.spec.path}: computing the order or sums of column {column}"
                edges = Reservation(f"{int(pending[0])} edges", BLOCK_EDGE_BYTES * int(pending[0]))
                memory = Ledger(BLOCK_EDGE_BYTES * max_edges, (edges,), who, "for a block", "")
                raise memory.refusal(None, "allow more memory (memory_bytes=, --memory)")
            yield first, pending[:take]
            first += int(ends[take - 1])
            column += take
            pending = pending[take:]
        if piece is None:
            return


def largest_column(indptr: PagedArray) -> int:
    """Return the most edges that a column has."""
    most, latest = 0, np.empty(0, np.int64)
    for _, piece in indptr.pieces(8 * _POINTERS):
        most = max(most, int(np.diff(piece, prepend=latest).max(initial=0)))
        latest = piece[-1:]
    return most


def places_by_time(
    times: npt.NDArray[np.int64], ids: npt.NDArray[Any], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return for each of c columns the places of its edges in the order of (time, edge id): [k]."""
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    columns = np.repeat(np.arange(len(counts)), counts)
    return np.lexsort((ids, times, columns)) - starts


def integer_weights(
    weights: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Return integers in the ratio of the weights of each column, below 2^62 in all.

    A weight w becomes 0 if it is 0, else max(1, round(w 2^s)), s = 61 - exponent of the column's
    sum, which is added up in float64 and in order.
    """
    columns = np.repeat(np.arange(len(counts)), counts)
    sums = np.bincount(columns, weights=weights, minlength=len(counts))
    if not np.isfinite(sums).all():
        raise InputError(
            f"the weights of {int(counts[np.argmin(np.isfinite(sums))])} edges into one node add "
            "up to infinity; scale the weights down"
        )
    shifts = 61 - np.frexp(sums)[1]
    scaled = np.rint(np.ldexp(weights, shifts[columns])).astype(np.uint64)
    found: npt.NDArray[np.uint64] = np.where(
        weights > 0, np.maximum(scaled, np.uint64(1)), np.uint64(0)
    )
    return found


def sums_by_column(
    values: npt.NDArray[np.uint64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Return the inclusive sums of values within each column."""
    sums = np.cumsum(values, dtype=np.uint64)
    before = np.concatenate([np.zeros(1, np.uint64), sums])[np.cumsum(counts) - counts]
    found: npt.NDArray[np.uint64] = sums - np.repeat(before, counts)  # modulo 2^64
    return found


def weights_of(rows: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float64]:
    """Return the weights [k] in rows [k] or [k, 1] of an attribute."""
    values = from_bfloat16_bits(rows) if dtype == "bfloat16" else rows
    return values.reshape(-1).astype(np.float64)


def is_time(spec: AttributeSpec) -> bool:
    """Whether an attribute can be a time."""
    return spec.dtype == "int64" and len(spec.shape) == 1


def is_weight(spec: AttributeSpec) -> bool:
    """Whether an attribute can be a weight."""
    return spec.shape[1:] in ((), (1,))


def node_times(schema: Schema, edge: EdgeTypeSpec, name: str) -> AttributeSpec | None:
    """Return the times of the nodes that edges come from; None if the edges have their own."""
    return None if name in edge.attributes else schema.node_of(edge.source).attributes.get(name)
