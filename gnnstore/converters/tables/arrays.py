"""Named arrays in memory: those of NumPy, tensors, and lists of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnstore.converters.datasets.numpy import copy_arrays
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import MemoryArray
from gnnstore.converters.stores.ordered import converter
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import UsageError, check_choice
from gnnstore.progress import Progress


@converter()
def from_arrays(
    arrays: Mapping[str, Any],
    output: PathLike,
    *,
    layout: Literal["csc", "csr"] = "csc",
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert named arrays in memory, such as {"edge_index": ..., "x": ..., "train": ...}.

    Names mean what they mean to `gnnstore.converters.from_numpy`.

    Parameters
    ----------
    arrays : Mapping of str to array
        Arrays of NumPy, tensors of torch on any device, or lists of numbers.
    layout : "csc" or "csr"
        The meaning of `indptr`.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    InputError
        If an array is missing, or disagrees with another.
    UsageError
        If something is no array of numbers.
    """
    check_choice("layout", layout, ("csc", "csr"))
    sources = {name: MemoryArray(name, as_array(values, name)) for name, values in arrays.items()}
    source = {"attributes": sorted(sources), "layout": layout}
    with GraphWriter(
        output, kind="arrays", source=source, options=options, progress=progress
    ) as writer:
        copy_arrays(writer, sources, "the arrays", layout)
        return writer.commit()


def as_array(values: Any, name: str) -> npt.NDArray[Any]:
    """Return an array, a tensor or a list of numbers as an array that a store can hold."""
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
    try:
        found = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: is no array of numbers ({error})") from None
    if found.dtype.kind not in "biuf" or found.dtype.itemsize > 8:
        raise UsageError(
            f"{name}: an array of {found.dtype} cannot be stored; use integers or floats of at "
            "most 64 bits"
        )
    return found
