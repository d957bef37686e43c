"""DGL GraphBolt's OnDiskDataset: `metadata.yaml`, and the `.npy` and CSV files that it names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gnnstore.converters.converter import converter
from gnnstore.converters.datasets.graphbolt.metadata import (
    Metadata,
    Task,
    TypedMetadata,
    read_metadata,
)
from gnnstore.converters.datasets.graphbolt.tasks import (
    Labels,
    by_name,
    edge_name,
    node_name,
    open_file,
    read_set,
)
from gnnstore.converters.datasets.typed.graphbolt import from_graphbolt_types
from gnnstore.converters.edges.node_ids import check_edge_index, edge_pairs, some_targets
from gnnstore.converters.inputs.opening import (
    PathLike,
    choose_name,
    describe_files,
    existing_directory,
    existing_file,
)
from gnnstore.converters.inputs.source import ArraySource, row_bytes
from gnnstore.converters.inputs.text_arrays import TextEdges
from gnnstore.converters.writer.estimates import Workload, inspect_inputs, node_workload
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import InputError
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
    metadata = read_metadata(existing_directory(input, "the GraphBolt data set"))
    if isinstance(metadata, TypedMetadata):
        return from_graphbolt_types(metadata, output, task, options, progress)
    names = [str(found.name) for found in metadata.tasks]
    name = choose_name(names, task, "task", metadata.path)
    chosen = None if name is None else metadata.tasks[names.index(name)]
    for path in metadata.files():
        existing_file(path, "a file of the data set")
    source = {
        "inputs": describe_files(metadata.files()),
        "task": None if chosen is None else chosen.name,
    }
    nodes = by_name(metadata.node_features, node_name)
    edges = by_name(metadata.edge_features, edge_name)
    with GraphWriter(
        output,
        kind="graphbolt",
        source=source,
        options=options,
        progress=progress,
        workload=_workload(metadata, nodes, edges),
    ) as writer:
        writer.set_num_nodes(metadata.num_nodes)
        if chosen is not None:
            _read_task(writer, chosen, metadata)
        for name, array in nodes.items():
            writer.set_node_attribute(name, array)
        _read_edges(writer, metadata, edges)
        return writer.commit()


def _workload(
    metadata: Metadata, nodes: Mapping[str, ArraySource], edges: Mapping[str, ArraySource]
) -> Workload:
    counts = [source.shape[0] for source in edges.values() if source.shape]
    if metadata.edges.format == "numpy":
        total = Workload(num_edges=max(open_file(metadata.edges).shape, default=0))
    else:
        total = inspect_inputs([metadata.edges.path])
        if counts:
            total = replace(total, num_edges=counts[0])
    wide = sum(row_bytes(source) for source in edges.values())
    total += Workload(edge_row_bytes=wide, num_nodes=metadata.num_nodes)
    return sum(map(node_workload, nodes.values()), total)


# ---- tasks


def _read_task(writer: GraphWriter, task: Task, metadata: Metadata) -> None:
    labels = Labels(metadata.num_nodes, writer.options.memory_bytes)
    for split, files in task.splits.items():
        if not files:
            raise InputError(f"{metadata.path}: the {split} set has no data", path=metadata.path)
        read_set(
            split,
            files,
            labels,
            lambda nodes, where, split=split: writer.set_split(split, nodes, where=where),  # type: ignore[misc]
        )
    writer.reserve_memory(labels.num_bytes)
    if labels.values is not None:
        writer.set_node_attribute("y", labels.values)


# ---- edges


def _read_edges(
    writer: GraphWriter, metadata: Metadata, attributes: Mapping[str, ArraySource]
) -> None:
    if writer.has_edges:
        return
    file = metadata.edges
    num_edges: int | None = None
    looked_at: Iterable[npt.NDArray[Any]] | None = None
    if file.format == "csv":
        text = TextEdges(file.path, metadata.num_nodes, memory_bytes=writer.options.memory_bytes)
        writer.reserve_memory(text.memory_bytes)
        edges = text.pairs()
    else:
        source = open_file(file)
        check_edge_index(source)
        num_edges, edges = source.shape[1], edge_pairs(source)
        looked_at = some_targets(source)
    writer.read_edges(edges, num_edges, attributes, where=str(file.path), some_targets=looked_at)
