"""DGL GraphBolt's OnDiskDataset: `metadata.yaml`, and the `.npy` and CSV files that it names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.converters.converter import converter
from gnnstore.converters.datasets.graphbolt.metadata import DataFile, Metadata, Task, read_metadata
from gnnstore.converters.inputs.npy import open_npy
from gnnstore.converters.inputs.opening import (
    PathLike,
    choose_name,
    describe_files,
    existing_directory,
    existing_file,
)
from gnnstore.converters.inputs.source import ArraySource, MemoryArray
from gnnstore.converters.inputs.text_arrays import TextEdges
from gnnstore.converters.memory import memory_ledger
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, write_graph
from gnnstore.converters.writer.casting import Caster
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.converters.writer.splits import split_ids
from gnnstore.errors import InputError
from gnnstore.formats.store.schema import EdgeType
from gnnstore.progress import Progress

_SEEDS = ("seeds", "seed_nodes", "")  # GraphBolt's name, its earlier one, and none


@converter
def from_graphbolt(
    input: PathLike,  # noqa: A002 - the word the command line uses
    output: PathLike,
    *,
    task: str | None = None,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Convert an OnDiskDataset of DGL GraphBolt, homogeneous or with types.

    The node feature `feat` becomes `x`, the edge feature `feat` becomes `edge_attr`; others
    keep their names, those of edges behind "edge_". The seeds of a task's sets become splits,
    and their labels `y`: -1 (NaN, if they are no integers) for nodes without one.

    Parameters
    ----------
    input : path-like
        The directory with `metadata.yaml` in it (not GraphBolt's `preprocessed/` below).
    task : str, optional
        Name of the task to take; may be left out where there is only one.
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    NotFoundError
        If a file is not there.
    InputError
        If metadata or data are wrong, in torch's pickled form, or the seeds of a task are edges.
    """
    options = options or ConvertOptions()
    metadata = read_metadata(existing_directory(input, "the GraphBolt data set"))
    names = [str(name) for name, _ in metadata.tasks]
    wanted = choose_name(names, task, "task", metadata.path)
    name, sets = metadata.tasks[names.index(wanted)] if wanted is not None else (None, {})
    for path in metadata.files:
        existing_file(path, "a file of the data set")
    nodes = {
        node_type: NodeInput(count, _by_name(metadata.node_features.get(node_type, ()), _node_name))
        for node_type, count in metadata.num_nodes.items()
    }
    _read_task(nodes, metadata, sets, options)
    return write_graph(
        output,
        nodes,
        {own: _edges(metadata, own, file, options) for own, file in metadata.edges.items()},
        kind="graphbolt",
        source={"inputs": describe_files(metadata.files), "task": name},
        options=options,
        progress=progress,
    )


def _node_name(name: str) -> str:
    return "x" if name == "feat" else name


def _edge_name(name: str) -> str:
    if name == "feat":
        return "edge_attr"
    return name if name.startswith("edge_") else f"edge_{name}"


def _by_name(files: Iterable[DataFile], rename: Callable[[str], str]) -> dict[str, ArraySource]:
    """Open features, by their names in a store."""
    arrays: dict[str, ArraySource] = {}
    for file in files:
        name = rename(file.name)
        if name in arrays:
            raise InputError(
                f"{file.place}: {file.name!r} becomes {name!r}, which is there already"
            )
        arrays[name] = _open(file)
    return arrays


def _open(file: DataFile) -> ArraySource:
    if file.format != "numpy":
        hint = "a pickle, which is never loaded; " if file.format == "torch" else ""
        raise InputError(
            f"{file.place}: has the format {file.format!r}, {hint}save {file.path} with "
            "numpy.save and the format numpy",
            path=file.path,
        )
    return open_npy(file.path)


def _edges(
    metadata: Metadata, edge_type: EdgeType, file: DataFile, options: ConvertOptions
) -> EdgeInput:
    attributes = _by_name(metadata.edge_features.get(edge_type, ()), _edge_name)
    if file.format != "csv":
        return EdgeInput.of_array(_open(file), attributes)
    most = max((metadata.num_nodes.get(name, 0) for name in edge_type[::2]), default=0)
    text = TextEdges(file.path, most, memory_bytes=options.memory_bytes)
    return EdgeInput(text.pairs, str(file.path), None, attributes, text.memory_bytes)


# ---- seeds and their labels


def _read_task(
    nodes: Mapping[str, NodeInput], metadata: Metadata, sets: Task, options: ConvertOptions
) -> None:
    """Read the seeds of the sets of a task, and their labels, which become `y`."""
    labels: dict[str, npt.NDArray[Any]] = {}
    for split, by_type in sets.items():
        for node_type, files in by_type.items():
            node = nodes[node_type]
            if not files:
                of = f" of {node_type!r}" if metadata.has_types else ""
                raise InputError(
                    f"{metadata.path}: the {split} set{of} has no data", path=metadata.path
                )
            seeds = next((own for name in _SEEDS for own in files if own.name == name), None)
            if seeds is None:
                raise InputError(
                    f"{files[0].place}: the {split} set has no 'seeds', which name its nodes: "
                    f"{', '.join(repr(file.name) for file in files)}"
                )
            ids = _read_seeds(seeds, node.count)
            node.splits[split] = MemoryArray(str(seeds.path), ids)
            node.memory_bytes += ids.nbytes
            named = next((file for file in files if file.name == "labels"), None)
            if named is None and seeds.name == "" and len(files) > 1:
                named = files[1]  # without names, labels follow the seeds
            if named is not None:
                values = _open(named).read()
                _check_labels(values, ids, labels.get(node_type), str(named.path))
                if node_type not in labels:
                    labels[node_type] = _unlabelled(values, node.count, options)
                _add_labels(labels[node_type], ids, values, str(named.path))
    for node_type, values in labels.items():
        own_attributes = nodes[node_type].attributes
        if "y" in own_attributes:
            raise InputError(
                f"{metadata.path}: a feature becomes 'y', as the labels do; rename it",
                path=metadata.path,
            )
        y: dict[str, ArraySource] = {
            "y": MemoryArray(f"{metadata.path}: labels of {node_type!r}", values)
        }
        first, last = (own_attributes, y) if metadata.has_types else (y, own_attributes)
        nodes[node_type].attributes = {**first, **last}
        nodes[node_type].memory_bytes += values.nbytes


def _read_seeds(file: DataFile, num_nodes: int) -> npt.NDArray[np.int64]:
    seeds = _open(file).read()
    if seeds.dtype == np.bool_ or (seeds.ndim == 2 and seeds.shape[1] != 1):
        raise InputError(
            f"{file.path}: has shape {list(seeds.shape)} {seeds.dtype}; seeds of a split are ids "
            "of nodes, neither a mask (store numpy.flatnonzero(mask)) nor those of a link task",
            path=file.path,
        )
    return split_ids(seeds, num_nodes, str(file.path))


def _check_labels(
    values: npt.NDArray[Any],
    nodes: npt.NDArray[np.int64],
    labels: npt.NDArray[Any] | None,
    where: str,
) -> None:
    if values.shape[:1] != nodes.shape or values.dtype.kind not in "biuf":
        raise InputError(
            f"{where}: has labels of shape {list(values.shape)} {values.dtype} for {len(nodes)} "
            "seeds"
        )
    is_float = values.dtype.kind == "f"
    if labels is not None and (
        labels.shape[1:] != values.shape[1:] or is_float != (labels.dtype.kind == "f")
    ):
        raise InputError(
            f"{where}: has labels of shape {list(values.shape[1:])} {values.dtype}, unlike those "
            "of the sets before"
        )


def _unlabelled(
    values: npt.NDArray[Any], num_nodes: int, options: ConvertOptions
) -> npt.NDArray[Any]:
    """Return labels like those of a set, of which no node has one yet."""
    shape = (num_nodes, *values.shape[1:])
    whole = Reservation(f"labels of {num_nodes} nodes", 8 * math.prod(shape))
    ledger = memory_ledger("reading the labels", options.memory_bytes)
    ledger.add(whole).check(None, "check the number of nodes")
    is_float = values.dtype.kind == "f"
    return np.full(shape, np.nan if is_float else -1, np.float32 if is_float else np.int64)


def _add_labels(
    labels: npt.NDArray[Any], nodes: npt.NDArray[np.int64], values: npt.NDArray[Any], where: str
) -> None:
    """Set the labels of the seeds of a set; refuse other labels than those of a set before."""
    own = Caster("y", values.dtype.name, labels.dtype.name)(values)
    before = labels[nodes]
    is_known = ~np.isnan(before) if labels.dtype.kind == "f" else before != -1
    differ = (is_known & (before != own)).reshape(len(nodes), -1).any(axis=1)
    if differ.any():
        raise InputError(
            f"{where}: node {int(nodes[np.argmax(differ)])} has another label here than in a set "
            "before"
        )
    labels[nodes] = own
