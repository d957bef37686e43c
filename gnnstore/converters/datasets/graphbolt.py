"""DGL GraphBolt's OnDiskDataset: `metadata.yaml`, and the `.npy` and CSV files that it names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.converters.converter import converter
from gnnstore.converters.datasets.graphbolt_metadata import DataFile, Metadata, Task, read_metadata
from gnnstore.converters.edges.node_ids import check_edge_index, edge_pairs, some_targets
from gnnstore.converters.inputs.npy import open_npy
from gnnstore.converters.inputs.opening import (
    PathLike,
    choose_name,
    describe_files,
    existing_directory,
    existing_file,
)
from gnnstore.converters.inputs.source import ArraySource, row_bytes
from gnnstore.converters.inputs.text_arrays import TextEdges
from gnnstore.converters.memory import memory_ledger
from gnnstore.converters.writer.casting import Caster
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.converters.writer.workload import Workload, inspect_inputs, node_workload
from gnnstore.errors import InputError
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
    """Convert a homogeneous OnDiskDataset of DGL GraphBolt.

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
        If metadata or data are wrong, in torch's pickled form, or of several types.
    """
    metadata = read_metadata(existing_directory(input, "the GraphBolt data set"))
    names = [str(found.name) for found in metadata.tasks]
    name = choose_name(names, task, "task", metadata.path)
    chosen = None if name is None else metadata.tasks[names.index(name)]
    for path in metadata.files():
        existing_file(path, "a file of the data set")
    source = {
        "inputs": describe_files(metadata.files()),
        "task": None if chosen is None else chosen.name,
    }
    nodes = _by_name(metadata.node_features, lambda name: "x" if name == "feat" else name)
    edges = _by_name(metadata.edge_features, _edge_name)
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


def _by_name(files: tuple[DataFile, ...], rename: Callable[[str], str]) -> dict[str, ArraySource]:
    arrays: dict[str, ArraySource] = {}
    for file in files:
        name = rename(file.name)
        if name in arrays:
            raise InputError(
                f"{file.place}: {file.name!r} becomes {name!r}, which is there already"
            )
        arrays[name] = _open(file)
    return arrays


def _edge_name(name: str) -> str:
    if name == "feat":
        return "edge_attr"
    return name if name.startswith("edge_") else f"edge_{name}"


def _workload(
    metadata: Metadata, nodes: Mapping[str, ArraySource], edges: Mapping[str, ArraySource]
) -> Workload:
    counts = [source.shape[0] for source in edges.values() if source.shape]
    if metadata.edges.format == "numpy":
        total = Workload(num_edges=max(_open(metadata.edges).shape, default=0))
    else:
        total = inspect_inputs([metadata.edges.path])
        if counts:
            total = replace(total, num_edges=counts[0])
    wide = sum(row_bytes(source) for source in edges.values())
    total += Workload(edge_row_bytes=wide, num_nodes=metadata.num_nodes)
    return sum(map(node_workload, nodes.values()), total)


def _open(file: DataFile) -> ArraySource:
    if file.format != "numpy":
        hint = "a pickle, which is never loaded; " if file.format == "torch" else ""
        raise InputError(
            f"{file.place}: has the format {file.format!r}, {hint}save {file.path} with "
            "numpy.save and the format numpy",
            path=file.path,
        )
    return open_npy(file.path)


# ---- tasks


def _read_task(writer: GraphWriter, task: Task, metadata: Metadata) -> None:
    labels = _Labels(metadata.num_nodes, writer.options.memory_bytes)
    for split, files in task.splits.items():
        if not files:
            raise InputError(f"{metadata.path}: the {split} set has no data", path=metadata.path)
        _read_set(writer, split, files, labels)
    writer.reserve_memory(labels.num_bytes)
    if labels.values is not None:
        writer.set_node_attribute("y", labels.values)


class _Labels:
    """Labels of the seeds of all sets, by node."""

    def __init__(self, num_nodes: int, memory_bytes: int | None) -> None:
        self.values: npt.NDArray[Any] | None = None
        self._num_nodes = num_nodes
        self._has_label = np.zeros(0, np.bool_)
        self._memory = memory_ledger("reading the labels", memory_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the labels, and of a mark for each node."""
        return 0 if self.values is None else self.values.nbytes + self._has_label.nbytes

    def set(self, nodes: npt.NDArray[Any], labels: npt.NDArray[Any], where: str) -> None:
        if labels.shape[:1] != nodes.shape or labels.dtype.kind not in "biuf":
            raise InputError(
                f"{where}: has labels of shape {list(labels.shape)} {labels.dtype} for "
                f"{len(nodes)} seeds"
            )
        is_float = labels.dtype.kind == "f"
        dtype = np.float32 if is_float else np.int64
        shape = (self._num_nodes, *labels.shape[1:])
        if self.values is None:
            row_bytes = 1 + np.dtype(dtype).itemsize * math.prod(labels.shape[1:])
            whole = Reservation(f"labels of {self._num_nodes} nodes", row_bytes * self._num_nodes)
            self._memory.add(whole).check(None, "check the number of nodes")
            self._has_label = np.zeros(self._num_nodes, np.bool_)
            self.values = np.full(shape, np.nan if is_float else -1, dtype)
        if self.values.shape != shape or self.values.dtype != dtype:
            raise InputError(
                f"{where}: has labels of shape {list(labels.shape[1:])} {labels.dtype}, unlike "
                "those of the sets before"
            )
        given = Caster("y", labels.dtype.name, np.dtype(dtype).name)(labels)
        known = np.flatnonzero(self._has_label[nodes])
        before, now = self.values[nodes[known]], given[known]
        same = (before == now) | ((before != before) & (now != now))  # noqa: PLR0124 - NaN
        other = known[~same.all(axis=tuple(range(1, same.ndim)))]
        if len(other):
            raise InputError(
                f"{where}: node {int(nodes[other[0]])} has another label here than in a set before"
            )
        self.values[nodes], self._has_label[nodes] = given, True


def _read_set(
    writer: GraphWriter, split: str, files: tuple[DataFile, ...], labels: _Labels
) -> None:
    seeds = next((file for name in _SEEDS for file in files if file.name == name), None)
    if seeds is None:
        found = ", ".join(repr(file.name) for file in files)
        raise InputError(
            f"{files[0].place}: the {split} set has no 'seeds', which name its nodes: {found}"
        )
    nodes = _open(seeds).read()
    if nodes.ndim == 2 and nodes.shape[1] == 1:
        nodes = nodes[:, 0]
    if nodes.dtype == np.bool_:
        raise InputError(
            f"{seeds.path}: seeds are node ids, found a mask of {len(nodes)} truth values; store "
            "numpy.flatnonzero(mask)",
            path=seeds.path,
        )
    if nodes.ndim != 1:
        raise InputError(
            f"{seeds.path}: has shape {list(nodes.shape)}: these are seeds of a link task; only "
            "nodes can be a split",
            path=seeds.path,
        )
    writer.set_split(split, nodes, where=str(seeds.path))
    named = next((file for file in files if file.name == "labels"), None)
    if named is None and seeds.name == "" and len(files) > 1:
        named = files[1]  # without names, labels follow the seeds
    if named is not None:
        labels.set(nodes, _open(named).read(), str(named.path))


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
        source = _open(file)
        check_edge_index(source)
        num_edges, edges = source.shape[1], edge_pairs(source)
        looked_at = some_targets(source)
    writer.read_edges(edges, num_edges, attributes, where=str(file.path), some_targets=looked_at)
