"""Scales of the columns of node attributes of int8: read, and checked, where a store is opened."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.store.schema import Schema

# A scale has all bits of a float32, and so are above 0 and not subnormal.
SMALLEST = np.finfo(np.float32).tiny

Scales = npt.NDArray[np.float32]


def read_scales(reader: SealedReader[Any], schema: Schema) -> dict[str, Scales]:
    """Return the scales of a schema's node attributes, by the paths of these.

    Raises
    ------
    CorruptStoreError
        If one is NaN, infinite, negative, 0 or subnormal; if bytes are not what was written.
    """
    found: dict[str, Scales] = {}
    for spec, scaled in schema.scaled_attributes():
        reader.check_arrays(scaled.scales.path)
        values: Scales = reader.read(scaled.scales)
        bad = np.argwhere(~(np.isfinite(values) & (values >= SMALLEST)))
        if len(bad):
            place = tuple(map(int, bad[0]))
            column = ", ".join(map(str, place))
            raise reader.corrupt(
                f"the scale of column {column} of {spec.name!r} is {values[place]!s}; expected a "
                f"finite number of at least {SMALLEST!s}",
                scaled.scales.path,
            )
        found[spec.path] = values
    return found
