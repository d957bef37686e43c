"""An OnDiskDataset of DGL GraphBolt with several types of nodes or edges."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gnnstore.converters.datasets.graphbolt.metadata import DataFile, TypedMetadata
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
    existing_file,
)
from gnnstore.converters.inputs.source import ArraySource, MemoryArray
from gnnstore.converters.inputs.text_arrays import TextEdges
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, write_typed
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError
from gnnstore.formats.store.schema import EdgeType
from gnnstore.progress import Progress


def from_graphbolt_types(
    metadata: TypedMetadata,
    output: PathLike,
    task: str | None,
    options: ConvertOptions | None,
    progress: Progress | None,
) -> Path:
    """Convert a data set of several types; see `from_graphbolt`."""
    options = options or ConvertOptions()
    names = [str(name) for name, _ in metadata.tasks]
    name = choose_name(names, task, "task", metadata.path)
    for path in metadata.files():
        existing_file(path, "a file of the data set")
    nodes = {
        node_type: NodeInput(count, by_name(metadata.node_features.get(node_type, ()), node_name))
        for node_type, count in metadata.num_nodes.items()
    }
    if name is not None:
        _read_task(nodes, metadata, names.index(name), options)
    edges = {
        edge_type: _edges(
            metadata,
            edge_type,
            file,
            by_name(metadata.edge_features.get(edge_type, ()), edge_name),
            options,
        )
        for edge_type, file in metadata.edges.items()
    }
    return write_typed(
        output,
        nodes,
        edges,
        kind="graphbolt",
        source={"inputs": describe_files(metadata.files()), "task": name},
        options=options,
        progress=progress,
    )


def _read_task(
    nodes: dict[str, NodeInput], metadata: TypedMetadata, place: int, options: ConvertOptions
) -> None:
    labels: dict[str, Labels] = {}
    for split, by_type in metadata.tasks[place][1].items():
        for node_type, files in by_type.items():
            own = nodes[node_type]
            if not files:
                raise InputError(
                    f"{metadata.path}: the {split} set of {node_type!r} has no data",
                    path=metadata.path,
                )
            known = labels.setdefault(node_type, Labels(own.count, options.memory_bytes))
            read_set(split, files, known, partial(_set_split, own, split))
    for node_type, known in labels.items():
        if known.values is not None:
            label = f"{metadata.path}: labels of {node_type!r}"
            nodes[node_type].attributes["y"] = MemoryArray(label, known.values)
            nodes[node_type].memory_bytes += known.num_bytes


def _set_split(node: NodeInput, split: str, ids: npt.NDArray[Any], where: str) -> None:
    node.splits[split] = MemoryArray(where, ids)
    node.memory_bytes += ids.nbytes


def _edges(
    metadata: TypedMetadata,
    edge_type: EdgeType,
    file: DataFile,
    attributes: dict[str, ArraySource],
    options: ConvertOptions,
) -> EdgeInput:
    if file.format != "csv":
        return EdgeInput.of_array(open_file(file), attributes)
    unknown = [name for name in edge_type[::2] if name not in metadata.num_nodes]
    if unknown:
        raise InputError(f"{file.place}: there is no node type {unknown[0]!r}", path=metadata.path)
    most = max(metadata.num_nodes[name] for name in edge_type[::2])
    text = TextEdges(file.path, most, memory_bytes=options.memory_bytes)
    return EdgeInput(text.pairs, str(file.path), None, attributes, text.memory_bytes)
