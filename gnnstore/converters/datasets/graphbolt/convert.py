"""DGL GraphBolt's OnDiskDataset: `metadata.yaml`, and the `.npy` and CSV files that it names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gnnstore.converters.converter import converter
from gnnstore.converters.datasets.graphbolt.metadata import DataFile, Metadata, read_metadata
from gnnstore.converters.datasets.graphbolt.tasks import (
    Labels,
    by_name,
    edge_name,
    node_name,
    open_file,
    read_set,
)
from gnnstore.converters.inputs.opening import (
    PathLike,
    choose_name,
    describe_files,
    existing_directory,
    existing_file,
)
from gnnstore.converters.inputs.source import ArraySource, MemoryArray
from gnnstore.converters.inputs.text_arrays import TextEdges
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, write_one_type, write_typed
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE, EdgeType
from gnnstore.progress import Progress


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
    name = choose_name(names, task, "task", metadata.path)
    chosen = None if name is None else metadata.tasks[names.index(name)]
    for path in metadata.files():
        existing_file(path, "a file of the data set")
    nodes = {
        node_type: NodeInput(count, by_name(metadata.node_features.get(node_type, ()), node_name))
        for node_type, count in metadata.num_nodes.items()
    }
    if chosen is not None:
        _read_task(nodes, metadata, chosen[1], options)
    edges = {
        edge_type: _edges(metadata, edge_type, file, options)
        for edge_type, file in metadata.edges.items()
    }
    common: dict[str, Any] = {
        "kind": "graphbolt",
        "source": {
            "inputs": describe_files(metadata.files()),
            "task": None if chosen is None else chosen[0],
        },
        "options": options,
        "progress": progress,
    }
    if metadata.has_types:
        return write_typed(output, nodes, edges, **common)
    return write_one_type(output, nodes[NODE_TYPE], edges[EDGE_TYPE], **common)


def _read_task(
    nodes: Mapping[str, NodeInput],
    metadata: Metadata,
    splits: Mapping[str, Mapping[str, tuple[DataFile, ...]]],
    options: ConvertOptions,
) -> None:
    labels: dict[str, Labels] = {}
    for split, by_type in splits.items():
        for node_type, files in by_type.items():
            own = nodes[node_type]
            if not files:
                of = f" of {node_type!r}" if metadata.has_types else ""
                raise InputError(
                    f"{metadata.path}: the {split} set{of} has no data", path=metadata.path
                )
            known = labels.setdefault(node_type, Labels(own.count, options.memory_bytes))
            read_set(split, files, known, partial(_set_split, own, split))
    for node_type, known in labels.items():
        if known.values is not None:
            own = nodes[node_type]
            if "y" in own.attributes:
                raise InputError(
                    f"{metadata.path}: a feature becomes 'y', as the labels do; rename it",
                    path=metadata.path,
                )
            label = f"{metadata.path}: labels of {node_type!r}"
            y: dict[str, ArraySource] = {"y": MemoryArray(label, known.values)}
            first, last = (own.attributes, y) if metadata.has_types else (y, own.attributes)
            own.attributes = {**first, **last}
            own.memory_bytes += known.num_bytes


def _set_split(node: NodeInput, split: str, ids: npt.NDArray[Any], where: str) -> None:
    node.splits[split] = MemoryArray(where, ids)
    node.memory_bytes += ids.nbytes


def _edges(
    metadata: Metadata, edge_type: EdgeType, file: DataFile, options: ConvertOptions
) -> EdgeInput:
    attributes = by_name(metadata.edge_features.get(edge_type, ()), edge_name)
    if file.format != "csv":
        return EdgeInput.of_array(open_file(file), attributes)
    unknown = [name for name in edge_type[::2] if name not in metadata.num_nodes]
    if unknown:
        raise InputError(f"{file.place}: there is no node type {unknown[0]!r}", path=metadata.path)
    most = max(metadata.num_nodes[name] for name in edge_type[::2])
    text = TextEdges(file.path, most, memory_bytes=options.memory_bytes)
    return EdgeInput(text.pairs, str(file.path), None, attributes, text.memory_bytes)
