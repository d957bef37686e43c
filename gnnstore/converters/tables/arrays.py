"""Named arrays in memory: those of NumPy, tensors, and lists of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from gnnstore.converters.converter import converter
from gnnstore.converters.datasets.numpy import copy_arrays
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import MemoryArray, as_array
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import check_choice
from gnnstore.progress import Progress


@converter
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
