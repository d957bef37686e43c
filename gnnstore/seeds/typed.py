"""Seed nodes of graphs whose types have names, also of several types at a time.

Their positions follow one another, type after type in the order of the store.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.errors import UsageError
from gnnstore.graph.store import GraphStore
from gnnstore.seeds.base import BatchKey, SeedLabels, Seeds
from gnnstore.seeds.nodes import (
    InputNodes,
    NodeLabels,
    checked_positions,
    has_nodes_named,
    is_of_type,
    nodes_of_type,
    resolve_input_nodes,
    write_labels,
)


@dataclass(frozen=True, eq=False)
class TypedNodeLabels(SeedLabels):
    """Attributes of a batch that describe its seed nodes, on the parts of their types."""

    name: ClassVar[str] = "typed nodes"
    num_arrays: ClassVar[int] = 2

    of: Mapping[str, NodeLabels]  # by node type

    def label(self, batch: Any) -> None:
        """Write `input_id` and `batch_size` on each type, and `seed_time` if there is one."""
        for node_type, labels in self.of.items():
            write_labels(batch[node_type], labels.input_id, labels.seed_time)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return a table of contents in JSON, and all ids and times behind one another."""
        contents, parts = [], [np.empty(0, np.int64)]
        for node_type, labels in self.of.items():
            contents.append([node_type, len(labels.input_id), labels.seed_time is not None])
            parts.append(labels.input_id.numpy())
            if labels.seed_time is not None:
                parts.append(labels.seed_time.numpy())
        return [np.frombuffer(json.dumps(contents).encode(), np.uint8), np.concatenate(parts)]

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> TypedNodeLabels:
        """Return the labels of a table of contents and values."""
        contents, values = arrays
        rest, found = torch.from_numpy(values), {}
        for node_type, count, has_times in json.loads(contents.tobytes()):
            ids, rest = rest[:count], rest[count:]
            times = None
            if has_times:
                times, rest = rest[:count], rest[count:]
            found[node_type] = NodeLabels(ids, times)
        return cls(found)

    def metadata(self) -> tuple[Any, ...]:
        """Return PyG's (input_id, seed_time), by type if there are several; and the types."""
        ids = {name: labels.input_id for name, labels in self.of.items()}
        times = {
            name: labels.seed_time
            for name, labels in self.of.items()
            if labels.seed_time is not None
        }
        types = tuple(self.of)
        if len(types) == 1:
            return ids[types[0]], times.get(types[0]), types
        return ids, times or None, types

    @classmethod
    def from_metadata(cls, metadata: Any) -> TypedNodeLabels:
        """Return the labels of the tuple that `metadata` gave."""
        ids, times, types = metadata
        if not isinstance(ids, Mapping):
            return cls({types[0]: NodeLabels(ids, times)})
        return cls({name: NodeLabels(ids[name], (times or {}).get(name)) for name in types})


@dataclass(frozen=True, eq=False)
class TypedInputNodes:
    """The seed nodes of a loader, by position."""

    parts: Mapping[str, InputNodes]  # by node type, in the store's order
    name: str | None = None  # such as "paper:train"
    # First position and the end of each type.
    offsets: dict[str, tuple[int, int]] = field(init=False)

    labels: ClassVar[type[TypedNodeLabels]] = TypedNodeLabels

    def __post_init__(self) -> None:
        offsets, first = {}, 0
        for node_type, part in self.parts.items():
            offsets[node_type] = first, first + len(part)
            first += len(part)
        object.__setattr__(self, "offsets", offsets)

    def __len__(self) -> int:
        """Return the number of seed nodes of all types."""
        return sum(map(len, self.parts.values()))

    @property
    def num_bytes(self) -> int:
        """Bytes of the node ids, of what `input_id` shows, and of times."""
        return sum(part.num_bytes for part in self.parts.values())

    def fingerprint(self) -> dict[str, Any]:
        """Return the number of seeds, and checksums, of each type."""
        return {
            f"{what} of {node_type!r}": value
            for node_type, part in self.parts.items()
            for what, value in (("number", len(part)), *part.fingerprint().items())
        }

    def select(self, index: Any, key: BatchKey | None = None) -> Seeds[TypedNodeLabels]:  # noqa: ARG002
        """Return the seed nodes at some positions, whatever the key."""
        positions = checked_positions(index, len(self), "input_nodes")
        nodes, labels, times, places = {}, {}, {}, {}
        for node_type, (first, end) in self.offsets.items():
            own = positions
            if len(self.parts) > 1:
                places[node_type] = np.flatnonzero((positions >= first) & (positions < end))
                own = positions[places[node_type]] - first
            nodes[node_type], labels[node_type], own_times = self.parts[node_type].at(own)
            if own_times is not None:
                times[node_type] = own_times
        return Seeds(nodes, TypedNodeLabels(labels), times=times or None, places=places or None)


def resolve_typed_nodes(
    store: GraphStore, input_nodes: Any, input_id: Any = None, input_time: Any = None
) -> TypedInputNodes:
    """Turn whatever names nodes into seed nodes of their types."""
    given = _by_type(store, input_nodes)
    of_ids = _options_by_type("input_id", input_id, given, input_nodes)
    of_times = _options_by_type("input_time", input_time, given, input_nodes)
    parts = {
        node.name: nodes_of_type(
            store, node, given[node.name], of_ids.get(node.name), of_times.get(node.name)
        )
        for node in store.schema.node_types
        if node.name in given
    }
    if 0 < len(of_times) < len(parts):
        missing = [name for name in parts if name not in of_times]
        raise UsageError(f"input_time has no times of {missing}; give times of all input nodes")
    names = [f"{name}:{part.name}" for name, part in parts.items() if part.name is not None]
    return TypedInputNodes(parts, ",".join(names) if len(names) == len(parts) else None)


def seed_nodes(
    store: GraphStore, input_nodes: Any, input_id: Any = None, input_time: Any = None
) -> InputNodes | TypedInputNodes:
    """Turn whatever names nodes into the seed nodes of a loader."""
    resolve = resolve_input_nodes if store.schema.is_homogeneous else resolve_typed_nodes
    return resolve(store, input_nodes, input_id, input_time)


def _by_type(store: GraphStore, input_nodes: Any) -> dict[str, Any]:
    """Return the input nodes of each type, as they are given."""
    schema = store.schema
    if isinstance(input_nodes, Mapping):
        if not input_nodes:
            raise UsageError(f"input_nodes is empty; {_how_to_name(store)}")
        for node_type in input_nodes:
            schema.node_of(node_type)  # raises if it is not there
        return dict(input_nodes)
    if is_of_type(input_nodes):
        node_type, chosen = input_nodes
        schema.node_of(node_type)
        return {node_type: chosen}
    if isinstance(input_nodes, str):
        if input_nodes in {node.name for node in schema.node_types}:
            return {input_nodes: None}
        named = [node.name for node in schema.node_types if has_nodes_named(node, input_nodes)]
        if len(named) == 1:
            return {named[0]: input_nodes}
        if named:
            raise UsageError(
                f"input_nodes={input_nodes!r} names nodes of several types: "
                f"{', '.join(map(repr, named))}; name one, as in "
                f"input_nodes=({named[0]!r}, {input_nodes!r}), or give a dict of several"
            )
        raise UsageError(
            f"input_nodes={input_nodes!r} is no node type of the store, and no split or mask of "
            f"one; {_how_to_name(store)}"
        )
    raise UsageError(
        "input_nodes does not name a node type, and the store's types have names; "
        f"{_how_to_name(store)}"
    )


def _how_to_name(store: GraphStore) -> str:
    types = store.schema.node_types
    there = ", ".join(
        f"{node.name!r} (splits: {', '.join(node.splits) or 'none'})" for node in types
    )
    example = next(((n.name, s) for n in types for s in n.splits), (types[0].name, None))
    return f"give for example input_nodes={example!r}. There are the node types {there}"


def _options_by_type(
    name: str, values: Any, given: Mapping[str, Any], input_nodes: Any
) -> Mapping[str, Any]:
    """Return an option of the input nodes by node type."""
    if values is None:
        return {}
    if isinstance(values, Mapping):
        if unknown := [node_type for node_type in values if node_type not in given]:
            raise UsageError(f"{name} has values of {unknown}, which input_nodes does not list")
        return values
    if len(given) > 1 or isinstance(input_nodes, Mapping):
        raise UsageError(
            f"{name}: input_nodes lists node types, so give a dict by node type, as in "
            f"{name}={{{next(iter(given))!r}: ...}}"
        )
    return dict.fromkeys(given, values)
