"""Times and weights as a store can use them: checked, and times as int64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.source import ArraySource, MappedRows, MemoryArray
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import dtype_name
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.by_column import NO_TIME, is_weight, weights_of


def integer_times(source: ArraySource, what: str) -> ArraySource:
    """Return times [N] or [N, 1] as int64 [N]; `what` they are, for messages."""
    if source.dtype.kind not in "iu" or source.shape[1:] not in ((), (1,)):
        raise InputError(
            f"{what if source.label == what else f'{source.label}: {what}'} are {source.dtype} "
            f"{list(source.shape)}; times are one integer for each row, of one unit, as seconds "
            "since 1970: convert them, and decide on a time for rows that have none"
        )
    return MappedRows(
        source,
        lambda rows, first: checked_times(rows, first, what),
        row_shape=(),
        dtype=np.int64,
    )


def checked_times(rows: npt.NDArray[Any], first: int, what: str) -> npt.NDArray[np.int64]:
    """Return times as int64 [k]; `first` is the number of the first row, for messages."""
    rows = rows.reshape(-1)
    bad = rows > np.iinfo(np.int64).max if rows.dtype == np.uint64 else rows == NO_TIME
    if bad.any():
        row = int(np.argmax(bad))
        value = int(rows[row])
        problem = "is NaT (the smallest int64)" if value == NO_TIME else f"is {value}, above int64"
        raise InputError(
            f"{what}: row {first + row} {problem}; decide on a time for rows without one"
        )
    return rows.astype(np.int64, copy=False)


def checked_edges(
    rows: Mapping[str, npt.NDArray[Any]],
    types: Mapping[str, tuple[str, int]],
    options: ConvertOptions,
    first: int,
    of: str,
) -> dict[str, npt.NDArray[Any]]:
    """Return attribute rows of edges; times are checked and int64, weights are checked."""
    found = dict(rows)
    for name in options.time_attr:
        if name in rows:
            what = f"the times {name!r} of {of}"
            integer_times(MemoryArray(what, rows[name]), what)
            found[name] = checked_times(rows[name], first, what)
    for name in options.weight_attr:
        if name in rows:
            dtype = types.get(name, (dtype_name(rows[name].dtype), 0))[0]
            check_weights(rows[name], dtype, first, f"the weights {name!r} of {of}")
    return found


def check_weights(rows: npt.NDArray[Any], dtype: str, first: int, what: str) -> None:
    """Refuse weights that are negative, NaN or infinite, or not one for each edge."""
    spec = AttributeSpec("", "", "paged", dtype, rows.shape)
    if not is_weight(spec) or rows.dtype.kind not in "biuf":
        raise InputError(
            f"{what} are {dtype} [E, {', '.join(map(str, rows.shape[1:]))}]; expected one number "
            "for each edge"
        )
    weights = weights_of(rows, dtype)
    bad = ~((weights >= 0) & (weights < np.inf))
    if bad.any():
        edge = int(np.argmax(bad))
        raise InputError(
            f"{what}: the weight of edge {first + edge} is {weights[edge]}; weights are finite and "
            "not negative"
        )
