"""The `metadata.yaml` of DGL GraphBolt's OnDiskDataset, checked into plain values.

Facts from the published specification: `graph.nodes` lists {type, num}, `graph.edges`
{type, format, path} with format csv or numpy; `feature_data` {domain, type, name, format,
path}; `tasks` each have train_set, validation_set and test_set, lists of {type, data}, whose
data are {name, format, path}. Paths are relative to the file. In a homogeneous graph `type`
is left out or null.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gnnstore.converters.inputs.opening import existing_file, open_input
from gnnstore.errors import InputError, UsageError, storage_errors
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE, EdgeType

FILE_NAME = "metadata.yaml"
_MAX_BYTES = 2**16  # the largest public metadata have a few thousand
_MAX_EVENTS = 10_000  # of the parser: one or two for each value
_MAX_DEPTH = 32
_MAX_MESSAGE = 300  # characters
_MAX_NAME = 255  # characters of a file's name
_BRACKETS = re.compile(rb"[\[\]{}]")
_MANY_INDICATORS = re.compile(rb"(?:[-?:][ \t]+){%d}" % _MAX_DEPTH)
_NULLS = ("", "~", "null", "Null", "NULL")
_SETS = {"train_set": "train", "validation_set": "valid", "test_set": "test"}


@dataclass(frozen=True)
class DataFile:
    """One file that the metadata name."""

    place: str  # where it is described, for messages: "/data/metadata.yaml: feature_data[2]"
    name: str  # name of its contents: "feat", "seeds", "labels"
    format: str  # "numpy", "csv" or "torch"
    path: Path


@dataclass(frozen=True)
class Metadata:
    """The parts of a data set, by type; those of a homogeneous one have a store's names."""

    path: Path
    has_types: bool
    num_nodes: Mapping[str, int]
    edges: Mapping[EdgeType, DataFile]
    node_features: Mapping[str, tuple[DataFile, ...]]
    edge_features: Mapping[EdgeType, tuple[DataFile, ...]]
    # By task: files by split and node type.
    tasks: tuple[tuple[str | None, Mapping[str, Mapping[str, tuple[DataFile, ...]]]], ...]

    def files(self) -> Iterator[Path]:
        """Yield every file, the metadata first, each once."""
        described = list(self.edges.values())
        for features in (*self.node_features.values(), *self.edge_features.values()):
            described += features
        described += [
            file
            for _, splits in self.tasks
            for by_type in splits.values()
            for part in by_type.values()
            for file in part
        ]
        yield from dict.fromkeys([self.path, *(file.path for file in described)])


def read_metadata(directory: Path) -> Metadata:
    """Read and check the metadata of a data set."""
    path = existing_file(directory / FILE_NAME, "the data set's metadata")
    with storage_errors("read the metadata", path), open_input(path) as file:
        size = os.fstat(file.fileno()).st_size
        text = file.read(_MAX_BYTES)
    if size > _MAX_BYTES:
        raise InputError(f"{path}: has {size} bytes, at most {_MAX_BYTES} are read", path=path)
    return _Reader(path).metadata(_parse(text, path))


def _parse(text: bytes, path: Path) -> Any:
    try:
        import yaml  # noqa: PLC0415  (only this converter needs it)
    except ImportError:
        raise UsageError(
            f"{path}: PyYAML is needed to read it; install it with: "
            "pip install 'gnnstore[graphbolt]'"
        ) from None

    _check_depth(text, path)
    try:
        # Values are built afterwards: a few aliases, merged level by level, make billions.
        for number, event in enumerate(yaml.parse(text, Loader=yaml.BaseLoader)):
            if isinstance(event, yaml.AliasEvent):
                raise InputError(
                    f"{path}: *{event.anchor[:40]}: aliases are not read; write out the value",
                    path=path,
                )
            if getattr(event, "tag", None) is not None:
                raise InputError(
                    f"{path}: !{event.tag[-40:]}: tags are not read; write out the value", path=path
                )
            if number >= _MAX_EVENTS:
                raise InputError(f"{path}: has more than {_MAX_EVENTS} values", path=path)
        # All scalars are text: as YAML has them, 1:2:3 and on is a number in quadratic time.
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - makes text, lists and dicts
    except InputError:
        raise
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError, ValueError) as error:
        found = " ".join(str(error).split())[:_MAX_MESSAGE]
        raise InputError(f"{path}: is not valid YAML: {found}", path=path) from None


def _check_depth(text: bytes, path: Path) -> None:
    """Refuse nesting that takes PyYAML quadratic time."""
    depth = 0
    for mark in _BRACKETS.findall(text):
        depth = max(0, depth + (1 if mark in b"[{" else -1))
        if depth > _MAX_DEPTH:
            raise InputError(f"{path}: nests more than {_MAX_DEPTH} brackets", path=path)
    if _MANY_INDICATORS.search(text):
        raise InputError(f"{path}: nests more than {_MAX_DEPTH} lists in a line", path=path)


class _Reader:
    """Reads the document into metadata; errors name the place."""

    def __init__(self, path: Path) -> None:
        self.path = path
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
        lists = [list(self._entries(graph.get(key), f"graph.{key}")) for key in ("nodes", "edges")]
        self._has_types = max(map(len, lists)) > 1
        for key, found in zip(("nodes", "edges"), lists, strict=True):
            if not self._has_types and not found:
                self._fail(f"graph.{key}", "lists 0 types of nodes or edges; expected one or more")
        return self._parts(top, graph, *lists)

    def _count(self, entry: Mapping[str, Any], place: str) -> int:
        found = entry.get("num")
        if not isinstance(found, str) or not re.fullmatch(r"[0-9]{1,18}", found):
            self._fail(f"{place}.num", f"{_show(found)} is not a number of nodes")
        return int(found)

    def _parts(
        self,
        top: Mapping[str, Any],
        graph: Mapping[str, Any],
        nodes: list[tuple[str, Mapping[str, Any]]],
        edges: list[tuple[str, Mapping[str, Any]]],
    ) -> Metadata:
        counts = {self._node_type(own, at): self._count(own, at) for at, own in nodes}
        if len(counts) < len(nodes):
            self._fail("graph.nodes", "has a type twice")
        files = {
            self._edge_type(own, at): self._file({"name": "edges", **own}, at) for at, own in edges
        }
        if len(files) < len(edges):
            self._fail("graph.edges", "has a type twice")
        of_nodes: dict[str, tuple[DataFile, ...]] = {}
        of_edges: dict[EdgeType, tuple[DataFile, ...]] = {}
        # Features may also be listed below graph, for sampling.
        for where, found in (("", top), ("graph.", graph)):
            for place, entry in self._entries(found.get("feature_data"), f"{where}feature_data"):
                domain = entry.get("domain")
                file = self._file(entry, place)
                if domain == "node":
                    name = self._node_type(entry, place, counts)
                    of_nodes[name] = (*of_nodes.get(name, ()), file)
                elif domain == "edge":
                    edge_type = self._edge_type(entry, place, files)
                    of_edges[edge_type] = (*of_edges.get(edge_type, ()), file)
                else:
                    self._fail(f"{place}.domain", f"{_show(domain)} is not 'node' or 'edge'")
        tasks = []
        for place, entry in self._entries(top.get("tasks"), "tasks"):
            splits: dict[str, dict[str, tuple[DataFile, ...]]] = {}
            for key, split in _SETS.items():
                parts = list(self._entries(entry.get(key), f"{place}.{key}"))
                if len(parts) > 1 and not self._has_types:
                    self._fail(f"{place}.{key}", "has several types, and the graph has one")
                for at, part in parts:
                    data = self._entries(part.get("data"), f"{at}.data")
                    name = self._node_type(part, at, counts)
                    splits.setdefault(split, {})[name] = tuple(
                        self._file(found, where) for where, found in data
                    )
            name = self._text(entry, "name")
            if name is not None and not isinstance(name, str):
                self._fail(f"{place}.name", f"{_show(name)} is not a text")
            tasks.append((name, splits))
        return Metadata(self.path, self._has_types, counts, files, of_nodes, of_edges, tuple(tasks))

    def _node_type(
        self, entry: Mapping[str, Any], place: str, known: Container[str] | None = None
    ) -> str:
        if not self._has_types:
            return NODE_TYPE
        found = self._text(entry, "type")
        if not isinstance(found, str):
            self._fail(f"{place}.type", f"{_show(found)} is no node type")
        if known is not None and found not in known:
            hint = ": seeds of edges cannot be a split" if ":" in found else ""
            self._fail(f"{place}.type", f"there is no node type {_show(found)}{hint}")
        return found

    def _edge_type(
        self, entry: Mapping[str, Any], place: str, known: Container[EdgeType] | None = None
    ) -> EdgeType:
        if not self._has_types:
            return EDGE_TYPE
        found = self._text(entry, "type")
        names = found.split(":") if isinstance(found, str) else []
        if len(names) != 3:
            self._fail(f"{place}.type", f"{_show(found)} is no source:relation:target")
        edge_type = (names[0], names[1], names[2])
        if known is not None and edge_type not in known:
            self._fail(f"{place}.type", f"there are no edges of type {_show(found)}")
        return edge_type

    def _file(self, entry: Mapping[str, Any], place: str) -> DataFile:
        texts = {key: self._text(entry, key) for key in ("name", "format", "path")}
        if texts["name"] is None:  # older files name no data of sets: seeds come first
            texts["name"] = ""
        for key, value in texts.items():
            if not isinstance(value, str):
                self._fail(f"{place}.{key}", f"{_show(value)} is not a text")
        try:
            os.fsencode(str(texts["path"])).decode()
        except UnicodeError:
            self._fail(f"{place}.path", f"{_show(texts['path'])} is no name of a file")
        relative = Path(str(texts["path"]))
        if "\0" in str(relative) or any(len(part) > _MAX_NAME for part in relative.parts):
            self._fail(f"{place}.path", f"{_show(texts['path'])} is no name of a file")
        if relative.is_absolute() or ".." in relative.parts:
            self._fail(
                f"{place}.path", f"{_show(str(relative))} leaves the directory of the data set"
            )
        return DataFile(
            f"{self.path}: {place}",
            str(texts["name"]),
            str(texts["format"]),
            self.path.parent / relative,
        )

    def _text(self, entry: Mapping[str, Any], key: str) -> Any:
        """Return a value, None for YAML's null, which is text here as all scalars are."""
        value = entry.get(key)
        return None if value in _NULLS else value

    def _entries(self, value: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if value is None or value in _NULLS:
            return
        if not isinstance(value, list):
            self._fail(place, f"expected a list, found {type(value).__name__}")
        for number, entry in enumerate(value):
            where = f"{place}[{number}]"
            yield where, self._mapping(entry, where)

    def _mapping(self, value: Any, place: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self._fail(place, f"expected a mapping, found {type(value).__name__}")
        found: dict[str, Any] = value
        return found

    def _fail(self, place: str, problem: str) -> NoReturn:
        raise InputError(f"{self.path}: {place}: {problem}", path=self.path)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
