"""DGL GraphBolt's OnDiskDataset: `metadata.yaml`, and the `.npy` and CSV files that it names.

Facts from the published specification: `graph.nodes` lists {type, num}, `graph.edges`
{type, format, path} with format csv or numpy; `feature_data` {domain, type, name, format,
path}; `tasks` each have train_set, validation_set and test_set, lists of {type, data}, whose
data are {name, format, path}. Paths are relative to the file. In a homogeneous graph `type`
is left out or null.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.inputs.files import open_npy
from gnnstore.converters.inputs.opening import (
    PathLike,
    choose_name,
    describe_files,
    existing_directory,
    existing_file,
    open_input,
    refuse_kind,
)
from gnnstore.converters.inputs.source import ArraySource, MemoryArray, rounds
from gnnstore.converters.inputs.text_arrays import TextEdges
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, write_graph
from gnnstore.converters.writer.node_arrays import Caster, split_ids
from gnnstore.converters.writer.options import ConvertOptions, converter
from gnnstore.errors import InputError, storage_errors
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE, EdgeType
from gnnstore.progress import Progress
from gnnstore.units import format_count

Key = TypeVar("Key")
T = TypeVar("T")

_FILE_NAME = "metadata.yaml"
_MAX_BYTES = 2**16  # largest file of metadata; the largest public one has a few thousand
_NULLS = (None, "", "~", "null", "Null", "NULL")  # nulls of YAML, which are text as all scalars are
_SETS = {"train_set": "train", "validation_set": "valid", "test_set": "test"}
_SEEDS = ("seeds", "seed_nodes", "")  # names of seeds: GraphBolt's, its earlier one, and none


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
    keep their names, attributes of edges behind "edge_". The seeds of a task's sets become splits,
    and their labels `y`: -1 (NaN, if they are not integers) for nodes without one.

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
    metadata = _read_metadata(existing_directory(input, "the GraphBolt data set"))
    name = choose_name([own for own, _ in metadata.tasks], task, "task", metadata.path)
    sets = next((sets for own, sets in metadata.tasks if own == name), {})
    for path in metadata.files:
        existing_file(path, "a file of the data set")
    nodes = {
        node_type: NodeInput(count, _by_name(metadata.features.get(node_type, ()), _node_name))
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


@dataclass(frozen=True)
class _DataFile:
    """One file that the metadata name."""

    name: str  # name of its contents: "feat", "seeds", "labels"
    format: str  # "numpy", "csv" or "torch"
    path: Path


_Entry = dict[str, Any]
# Files of a task by split and node type.
_Task = Mapping[str, Mapping[str, list[_DataFile]]]


@dataclass(frozen=True)
class _Metadata:
    """The parts of a data set, by type; a homogeneous one has a store's names."""

    path: Path
    has_types: bool
    num_nodes: Mapping[str, int]
    edges: Mapping[EdgeType, _DataFile]
    features: Mapping[str | EdgeType, list[_DataFile]]
    tasks: list[tuple[str, _Task]]  # with their names
    files: list[Path]  # the metadata first, each once


def _read_metadata(directory: Path) -> _Metadata:
    path = existing_file(directory / _FILE_NAME, "the data set's metadata")
    import yaml  # noqa: PLC0415  (only this converter needs it)

    with storage_errors("read the metadata", path), open_input(path) as file:
        text = file.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        raise InputError(f"{path}: has more than {_MAX_BYTES} bytes", path=path)
    try:
        # Only text, lists and dicts: tags are ignored, and all scalars are text.
        return _metadata(path, yaml.load(text, Loader=yaml.BaseLoader))  # noqa: S506
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        refuse_kind(path, is_raw=True)
        found = " ".join(str(error).split())[:300]
        raise InputError(f"{path}: is not metadata of GraphBolt: {found}", path=path) from None


def _metadata(path: Path, document: Any) -> _Metadata:
    """Check the document; a ValueError describes what is wrong."""
    graph = document.get("graph") if isinstance(document, dict) else None
    if not isinstance(graph, dict):
        raise ValueError("has no graph; of what GraphBolt made of a data set, give the one above")
    nodes, edges = _entries(graph, "nodes"), _entries(graph, "edges")
    has_types = max(len(nodes), len(edges)) > 1
    if not has_types and not (nodes and edges):
        raise ValueError("graph: lists 0 types of nodes or edges; expected one or more")

    def node_type(entry: _Entry) -> str:
        return _text(entry, "type") if has_types else NODE_TYPE

    def edge_type(entry: _Entry) -> EdgeType:
        names = _text(entry, "type").split(":") if has_types else EDGE_TYPE
        if len(names) != 3:
            raise ValueError(f"{':'.join(names)!r} is not SOURCE:RELATION:TARGET")
        return (names[0], names[1], names[2])

    def file(entry: _Entry) -> _DataFile:
        relative = Path(_text(entry, "path"))
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"path: {str(relative)!r} leaves the directory of the data set")
        # Older files name no data of sets: seeds come first.
        return _DataFile(_text(entry, "name", ""), _text(entry, "format"), path.parent / relative)

    counts = _by_type("graph", nodes, node_type, _count)
    ends = _by_type("graph", edges, edge_type, file)
    features: dict[str | EdgeType, list[_DataFile]] = defaultdict(list)
    # Features may also be listed below graph, for sampling.
    entries = [*_entries(document, "feature_data"), *_entries(graph, "feature_data")]
    for entry in sorted(entries, key=lambda own: own.get("domain") == "edge"):
        domain = _text(entry, "domain")
        if domain not in ("node", "edge"):
            raise ValueError(f"feature_data: domain {domain!r} is not 'node' or 'edge'")
        features[node_type(entry) if domain == "node" else edge_type(entry)].append(file(entry))
    tasks: list[tuple[str, _Task]] = []
    for entry in _entries(document, "tasks"):
        sets = {split: _entries(entry, key) for key, split in _SETS.items()}
        task = {
            split: _by_type(
                f"{split} set", parts, node_type, lambda own: [*map(file, _entries(own, "data"))]
            )
            for split, parts in sets.items()
            if parts
        }
        tasks.append((_text(entry, "name", ""), task))
    seeds = [by_type for _, task in tasks for by_type in task.values()]
    for name in (*features, *chain.from_iterable(seeds)):
        if name not in {*counts, *ends}:
            raise ValueError(
                f"there is no type {name!r}, of which there are features or a set of seeds (seeds "
                "of edges cannot be a split)"
            )
    data = chain(features.values(), *(by_type.values() for by_type in seeds))
    files = [*ends.values(), *chain.from_iterable(data)]
    paths = list(dict.fromkeys([path, *(own.path for own in files)]))
    return _Metadata(path, has_types, counts, ends, features, tasks, paths)


def _by_type(
    where: str, entries: list[_Entry], name: Callable[[_Entry], Key], value: Callable[[_Entry], T]
) -> dict[Key, T]:
    found = {name(own): value(own) for own in entries}
    if len(found) < len(entries):
        raise ValueError(f"{where}: has a type twice")
    return found


def _count(entry: _Entry) -> int:
    found = _text(entry, "num")
    if not found.isdecimal() or len(found) > 18:
        raise ValueError(f"num: {found!r} is not a number of nodes")
    return int(found)


def _text(entry: _Entry, key: str, default: str | None = None) -> str:
    value = entry.get(key)
    value = default if value in _NULLS else value
    if not isinstance(value, str):
        # Never the value: aliases would repeat it billions of times.
        raise ValueError(f"{key}: expected a text, found {type(value).__name__}")
    return value


def _entries(parent: _Entry, key: str) -> list[_Entry]:
    found = parent.get(key)
    found = [] if found in _NULLS else found
    if not isinstance(found, list) or not all(isinstance(own, dict) for own in found):
        raise ValueError(f"{key}: expected a list of mappings")
    return found


def _node_name(name: str) -> str:
    return "x" if name == "feat" else name


def _edge_name(name: str) -> str:
    return f"edge_{'attr' if name == 'feat' else name.removeprefix('edge_')}"


def _by_name(files: Iterable[_DataFile], rename: Callable[[str], str]) -> dict[str, ArraySource]:
    """Open features, by their names in a store."""
    arrays: dict[str, ArraySource] = {}
    for file in files:
        name = rename(file.name)
        if name in arrays:
            raise InputError(
                f"{file.path}: the feature {file.name!r} becomes {name!r}, which is there already"
            )
        arrays[name] = _open(file)
    return arrays


def _open(file: _DataFile) -> ArraySource:
    if file.format != "numpy":
        hint = "a pickle, which is never loaded; " if file.format == "torch" else ""
        raise InputError(
            f"{file.path}: has the format {file.format!r}, {hint}save it with numpy.save and the "
            "format numpy",
            path=file.path,
        )
    return open_npy(file.path)


def _edges(
    metadata: _Metadata, edge_type: EdgeType, file: _DataFile, options: ConvertOptions
) -> EdgeInput:
    attributes = _by_name(metadata.features.get(edge_type, ()), _edge_name)
    if file.format != "csv":
        return EdgeInput.of_array(_open(file), attributes)
    most = max((metadata.num_nodes.get(name, 0) for name in edge_type[::2]), default=0)
    text = TextEdges(file.path, most, memory_bytes=options.memory_bytes)
    return EdgeInput(text.pairs, str(file.path), None, attributes, text.memory_bytes)


# ---- seeds and their labels


def _read_task(
    nodes: Mapping[str, NodeInput], metadata: _Metadata, sets: _Task, options: ConvertOptions
) -> None:
    """Read the seeds of the sets of a task, and their labels, which become `y`."""
    labels: defaultdict[str, list[tuple[npt.NDArray[np.int64], _DataFile]]] = defaultdict(list)
    for split, by_type in sets.items():
        for node_type, files in by_type.items():
            node = nodes[node_type]
            seeds = next((own for name in _SEEDS for own in files if own.name == name), None)
            if seeds is None:
                raise InputError(
                    f"{metadata.path}: the {split} set has no 'seeds', which name its nodes: "
                    f"{', '.join(repr(file.name) for file in files) or 'no data'}"
                )
            ids = split_ids(_open(seeds).read(), node.count, str(seeds.path))
            node.splits[split] = MemoryArray(str(seeds.path), ids)
            node.memory_bytes += ids.nbytes
            named = next((file for file in files if file.name == "labels"), None)
            if named is None and seeds.name == "" and len(files) > 1:
                named = files[1]  # without names, labels follow the seeds
            if named is not None:
                labels[node_type].append((ids, named))
    for node_type, parts in labels.items():
        node = nodes[node_type]
        if "y" in node.attributes:
            raise InputError(
                f"{metadata.path}: a feature becomes 'y', as the labels do; rename it",
                path=metadata.path,
            )
        values = _read_labels(node.count, parts, options)
        y = MemoryArray(f"{metadata.path}: labels of {node_type!r}", values)
        has_types, others = metadata.has_types, node.attributes
        node.attributes = {**others, "y": y} if has_types else {"y": y, **others}
        node.memory_bytes += values.nbytes


def _read_labels(
    num_nodes: int, sets: list[tuple[npt.NDArray[np.int64], _DataFile]], options: ConvertOptions
) -> npt.NDArray[Any]:
    """Return the labels of all nodes, given the seeds and the labels of each set."""
    first = _open(sets[0][1])
    shape, is_float = (num_nodes, *first.shape[1:]), first.dtype.kind == "f"
    whole = Reservation(f"labels of {num_nodes} nodes", 8 * math.prod(shape))
    ledger = memory_ledger("reading the labels", options.memory_bytes)
    ledger.add(whole).check(None, "check the number of nodes")
    is_wide = is_float and any(rounds(_open(file).read()).any() for _, file in sets)
    dtype = np.int64 if not is_float else np.float64 if is_wide else np.float32
    labels = np.full(shape, np.nan if is_float else -1, dtype)
    for nodes, file in sets:
        values = _open(file).read()
        is_alike = values.dtype.kind in ("f" if is_float else "biu")
        if values.shape != (len(nodes), *shape[1:]) or not is_alike:
            raise InputError(
                f"{file.path}: has labels of shape {list(values.shape)} {values.dtype} for "
                f"{format_count(len(nodes), 'seed')}; each has one, in all sets alike"
            )
        labels[nodes] = Caster("y", values.dtype.name, labels.dtype.name)(values)
    return labels
