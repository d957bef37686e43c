"""The `metadata.yaml` of DGL GraphBolt's OnDiskDataset, checked into plain values.

Facts from the published specification: `graph.nodes` lists {type, num}, `graph.edges`
{type, format, path} with format csv or numpy; `feature_data` {domain, type, name, format,
path}; `tasks` each have train_set, validation_set and test_set, lists of {type, data}, whose
data are {name, format, path}. Paths are relative to the file. In a homogeneous graph `type`
is left out or null.
"""

from __future__ import annotations

import re
import reprlib
from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gnnstore.converters.inputs.opening import existing_file, open_input
from gnnstore.errors import InputError, UsageError, storage_errors
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE, EdgeType

FILE_NAME = "metadata.yaml"
_MAX_BYTES = 2**16  # the largest public metadata have a few thousand
_NULLS = ("", "~", "null", "Null", "NULL")
_SETS = {"train_set": "train", "validation_set": "valid", "test_set": "test"}
_SHOWN = reprlib.Repr()  # of bounded size
_SHOWN.maxstring, _SHOWN.maxlevel = 80, 2


@dataclass(frozen=True)
class DataFile:
    """One file that the metadata name."""

    place: str  # where it is described, for messages: "/data/metadata.yaml: feature_data[2]"
    name: str  # name of its contents: "feat", "seeds", "labels"
    format: str  # "numpy", "csv" or "torch"
    path: Path


# Files of a task by split and node type.
Task = Mapping[str, Mapping[str, list[DataFile]]]


@dataclass(frozen=True)
class Metadata:
    """The parts of a data set, by type; those of a homogeneous one have a store's names."""

    path: Path
    has_types: bool
    num_nodes: Mapping[str, int]
    edges: Mapping[EdgeType, DataFile]
    node_features: Mapping[str, list[DataFile]]
    edge_features: Mapping[EdgeType, list[DataFile]]
    tasks: list[tuple[str | None, Task]]  # with their names
    files: list[Path]  # the metadata first, each once


def read_metadata(directory: Path) -> Metadata:
    """Read and check the metadata of a data set."""
    path = existing_file(directory / FILE_NAME, "the data set's metadata")
    try:
        import yaml  # noqa: PLC0415  (only this converter needs it)
    except ImportError:
        raise UsageError(
            f"{path}: PyYAML is needed to read it; install it with: "
            "pip install 'gnnstore[graphbolt]'"
        ) from None
    with storage_errors("read the metadata", path), open_input(path) as file:
        text = file.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        raise InputError(f"{path}: has more than {_MAX_BYTES} bytes", path=path)
    try:
        # Only text, lists and dicts: tags are ignored, and all scalars are text.
        document = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        found = " ".join(str(error).split())[:300]
        raise InputError(f"{path}: is not valid YAML: {found}", path=path) from None
    return _Reader(path).metadata(document)


class _Reader:
    """Reads the document into metadata; errors name the place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_types = False

    def metadata(self, document: Any) -> Metadata:
        top = self._mapping(document, "the document")
        if "graph" not in top and "graph_topology" in top:
            self._fail(
                "graph_topology",
                "this is what GraphBolt made of a data set; give the directory above, whose "
                "metadata.yaml has 'graph'",
            )
        graph = self._mapping(top.get("graph"), "graph")
        nodes, edges = (self._entries(graph, key, "graph.") for key in ("nodes", "edges"))
        self._has_types = max(len(nodes), len(edges)) > 1
        if not self._has_types and not (nodes and edges):
            self._fail("graph", "lists 0 types of nodes or edges; expected one or more")
        counts = {self._node_type(own, at): self._count(own, at) for at, own in nodes}
        files = {
            self._edge_type(own, at): self._file({"name": "edges", **own}, at) for at, own in edges
        }
        if len(counts) < len(nodes) or len(files) < len(edges):
            self._fail("graph", "has a type twice")
        of_nodes: dict[str, list[DataFile]] = defaultdict(list)
        of_edges: dict[EdgeType, list[DataFile]] = defaultdict(list)
        # Features may also be listed below graph, for sampling.
        features = self._entries(top, "feature_data")
        for place, entry in [*features, *self._entries(graph, "feature_data", "graph.")]:
            domain = entry.get("domain")
            if domain == "node":
                of_nodes[self._node_type(entry, place, counts)].append(self._file(entry, place))
            elif domain == "edge":
                of_edges[self._edge_type(entry, place, files)].append(self._file(entry, place))
            else:
                self._fail(f"{place}.domain", f"{_show(domain)} is not 'node' or 'edge'")
        tasks = [
            (self._text(own, "name", at), self._task(own, at, counts))
            for at, own in self._entries(top, "tasks")
        ]
        described = [files.values(), *of_nodes.values(), *of_edges.values()]
        described += [own for _, task in tasks for parts in task.values() for own in parts.values()]
        paths = dict.fromkeys([self._path, *(file.path for own in described for file in own)])
        return Metadata(
            self._path, self._has_types, counts, files, of_nodes, of_edges, tasks, list(paths)
        )

    def _task(self, entry: Mapping[str, Any], place: str, counts: Mapping[str, int]) -> Task:
        splits: dict[str, dict[str, list[DataFile]]] = {}
        for key, split in _SETS.items():
            parts = self._entries(entry, key, f"{place}.")
            if len(parts) > 1 and not self._has_types:
                self._fail(f"{place}.{key}", "has several types, and the graph has one")
            for at, part in parts:
                files = [self._file(own, of) for of, own in self._entries(part, "data", f"{at}.")]
                splits.setdefault(split, {})[self._node_type(part, at, counts)] = files
        return splits

    def _count(self, entry: Mapping[str, Any], place: str) -> int:
        found = entry.get("num")
        if not isinstance(found, str) or not re.fullmatch(r"[0-9]{1,18}", found):
            self._fail(f"{place}.num", f"{_show(found)} is not a number of nodes")
        return int(found)

    def _node_type(
        self, entry: Mapping[str, Any], place: str, known: Container[str] | None = None
    ) -> str:
        found = self._text(entry, "type", place) if self._has_types else NODE_TYPE
        if found is None or (known is not None and found not in known):
            hint = ": seeds of edges cannot be a split" if ":" in (found or "") else ""
            self._fail(f"{place}.type", f"there is no node type {_show(entry.get('type'))}{hint}")
        return found

    def _edge_type(
        self, entry: Mapping[str, Any], place: str, known: Container[EdgeType] | None = None
    ) -> EdgeType:
        if not self._has_types:
            return EDGE_TYPE
        names = (self._text(entry, "type", place) or "").split(":")
        if len(names) != 3:
            self._fail(f"{place}.type", f"{_show(entry.get('type'))} is no source:relation:target")
        edge_type = (names[0], names[1], names[2])
        if known is not None and edge_type not in known:
            self._fail(f"{place}.type", f"there are no edges of type {_show(entry['type'])}")
        return edge_type

    def _file(self, entry: Mapping[str, Any], place: str) -> DataFile:
        # Older files name no data of sets: seeds come first.
        name = self._text(entry, "name", place) or ""
        file_format, relative = (self._text(entry, key, place) for key in ("format", "path"))
        if file_format is None or relative is None:
            self._fail(place, "has no format, or no path")
        if Path(relative).is_absolute() or ".." in Path(relative).parts:
            self._fail(f"{place}.path", f"{_show(relative)} leaves the directory of the data set")
        return DataFile(f"{self._path}: {place}", name, file_format, self._path.parent / relative)

    def _text(self, entry: Mapping[str, Any], key: str, place: str) -> str | None:
        """Return a text; None for YAML's null, which is text here as all scalars are."""
        value = entry.get(key)
        if not isinstance(value, str | None):
            self._fail(f"{place}.{key}", f"{_show(value)} is not a text")
        return None if value in _NULLS else value

    def _entries(
        self, parent: Mapping[str, Any], key: str, before: str = ""
    ) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the mappings in a list, and the place of each."""
        found, place = parent.get(key), f"{before}{key}"
        if isinstance(found, str) and found in _NULLS:
            found = None
        if not isinstance(found, list | None):
            self._fail(place, f"expected a list, found {type(found).__name__}")
        places = [f"{place}[{number}]" for number in range(len(found or ()))]
        return [(at, self._mapping(own, at)) for at, own in zip(places, found or (), strict=True)]

    def _mapping(self, value: Any, place: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self._fail(place, f"expected a mapping, found {type(value).__name__}")
        found: dict[str, Any] = value
        return found

    def _fail(self, place: str, problem: str) -> NoReturn:
        raise InputError(f"{self._path}: {place}: {problem}", path=self._path)


def _show(value: object) -> str:
    return _SHOWN.repr(value)
