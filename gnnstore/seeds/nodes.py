"""The seed nodes that batches start from: resolved and checked before any work.

A wrong seed found in the middle of the night's third epoch costs the night; so all that a
user gives as `input_nodes` is turned into node ids, and every id checked, when the loader
is made.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from gnnstore import _core
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.store.schema import NODE_TYPE, NodeTypeSpec, Schema
from gnnstore.graph.arrays import SPLIT_ALIASES, Splits
from gnnstore.graph.pyg_data import read_mask, split_masks
from gnnstore.graph.store import GraphStore
from gnnstore.graph.topology import Topology
from gnnstore.sampling.neighbor import only
from gnnstore.sampling.sampled_graph import unit_of_times
from gnnstore.seeds.base import BatchKey, SeedLabels, Seeds
from gnnstore.units import format_count

Int64Array = npt.NDArray[np.int64]

_CRC_CHUNK = 2**20  # positions in a piece of 8 MB


@dataclass(frozen=True, eq=False)
class NodesOfType:
    """The seed nodes of one type."""

    num_seeds: int
    # int64 [num_seeds] or None: node ids; None: every node, position and id being the same.
    nodes: Int64Array | None
    # int64 [num_seeds] or None: values of `input_id` in batches; None: the positions.
    ids: Int64Array | None
    name: str | None = None  # the split, or "all" nodes
    times: Int64Array | None = None  # int64 [num_seeds]; None: none, or the nodes'

    def __len__(self) -> int:
        return self.num_seeds

    @cached_property
    def checksums(self) -> dict[str, str]:
        """Checksums of the node ids, of what `input_id` shows, and of times."""
        nodes = _crc_of_all(self.nodes, self.num_seeds)
        ids = nodes if self.ids is self.nodes else _crc_of_all(self.ids, self.num_seeds)
        times = {} if self.times is None else {"crc32c of input_time": crc_of_ids(self.times)}
        crcs = {"crc32c of input_nodes": nodes, "crc32c of input_id": ids, **times}
        return {name: f"{crc:08x}" for name, crc in crcs.items()}

    def at(self, positions: Int64Array) -> tuple[Int64Array, NodeLabels, Int64Array | None]:
        """Return the nodes at some positions, with their labels and times."""
        nodes = positions if self.nodes is None else self.nodes[positions]
        ids = torch.from_numpy(positions if self.ids is None else self.ids[positions])
        if self.times is None:
            return nodes, NodeLabels(ids), None
        times = self.times[positions]
        return nodes, TimedNodeLabels(ids, torch.from_numpy(times)), times


@dataclass(frozen=True, eq=False)
class InputNodes:
    """The seed nodes of a loader, by position: type after type, in the order of the store."""

    parts: Mapping[str, NodesOfType]  # by node type
    is_typed: bool = False  # whether types have names
    name: str | None = None  # such as "train", or "paper:train"
    offsets: dict[str, tuple[int, int]] = field(init=False)  # first position and end of each type

    def __post_init__(self) -> None:
        ends = list(accumulate(map(len, self.parts.values()), initial=0))
        object.__setattr__(self, "offsets", dict(zip(self.parts, pairwise(ends), strict=True)))

    @property
    def nodes(self) -> Int64Array | None:
        """Node ids of the only type; None: every node."""
        return only(self.parts).nodes

    @property
    def labels(self) -> type[SeedLabels]:
        """Kind of the labels of its seeds."""
        if self.is_typed:
            return TypedNodeLabels
        return NodeLabels if only(self.parts).times is None else TimedNodeLabels

    @property
    def num_bytes(self) -> int:
        """Bytes of the node ids, of what `input_id` shows, and of times."""
        return sum((16 if p.times is None else 24) * len(p) for p in self.parts.values())

    def __len__(self) -> int:
        """Return the number of seed nodes of all types."""
        return sum(map(len, self.parts.values()))

    def fingerprint(self) -> dict[str, Any]:
        """Return checksums; of types with names, the number of seeds and checksums of each."""
        if not self.is_typed:
            return dict(only(self.parts).checksums)
        return {
            f"{what} of {node_type!r}": value
            for node_type, part in self.parts.items()
            for what, value in (("number", len(part)), *part.checksums.items())
        }

    def over(self, topology: Topology) -> InputNodes:  # noqa: ARG002
        """Return the same seeds, which are nodes of any topology."""
        return self

    def select(self, index: Any, key: BatchKey | None = None) -> Seeds[SeedLabels]:  # noqa: ARG002
        """Return the seed nodes at some positions; the key does not matter."""
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
        of_all = TypedNodeLabels(labels) if self.is_typed else only(labels)
        return Seeds(nodes, of_all, times=times or None, places=places or None)


def resolve_input_nodes(
    store: GraphStore, input_nodes: Any, input_id: Any = None, input_time: Any = None
) -> InputNodes:
    """Convert a mask, ids or the name of a split to the seed nodes of a loader."""
    schema = store.schema
    if schema.is_homogeneous:
        if is_of_type(input_nodes) and not has_nodes_named(schema.node, input_nodes[0]):
            node_type, input_nodes = input_nodes
            schema.node_of(node_type)  # raises if it is not there
        part = nodes_of_type(store, schema.node, input_nodes, input_id, input_time)
        _refuse_mirrors(store, part)
        return InputNodes({schema.node.name: part}, name=part.name)
    given = _by_type(store, input_nodes)
    of_ids = _options_by_type("input_id", input_id, given, input_nodes)
    of_times = _options_by_type("input_time", input_time, given, input_nodes)
    parts = {
        node.name: nodes_of_type(
            store, node, given[node.name], of_ids.get(node.name), of_times.get(node.name)
        )
        for node in schema.node_types
        if node.name in given
    }
    if 0 < len(of_times) < len(parts):
        missing = [name for name in parts if name not in of_times]
        raise UsageError(f"input_time has no times of {missing}; give times of all input nodes")
    names = [f"{name}:{part.name}" for name, part in parts.items() if part.name is not None]
    return InputNodes(parts, True, ",".join(names) if len(names) == len(parts) else None)


def _refuse_mirrors(store: GraphStore, given: NodesOfType) -> None:
    """Refuse nodes of a part that are not its seeds: they lack in-neighbours."""
    if (part := store.schema.part) is None or given.name == part.split:
        return
    are_seeds = np.zeros(store.num_nodes, np.bool_)
    are_seeds[store.splits[part.split]] = True
    others = ~(are_seeds if given.nodes is None else are_seeds[given.nodes])
    if others.any():
        place = int(np.argmax(others))
        node = place if given.nodes is None else int(given.nodes[place])
        raise UsageError(
            f"{store.path} is part {part.part} of {part.num_parts} of a store, and "
            f"{np.count_nonzero(others)} of the input_nodes, such as node {node}, are not among "
            "its seeds, which alone have all their in-neighbours within "
            f"{format_count(part.num_hops, 'hop')}; "
            f"give input_nodes={part.split!r}, or some of these"
        )


def is_of_type(input_nodes: Any) -> bool:
    """Whether input nodes are given with their type."""
    is_pair = isinstance(input_nodes, tuple | list) and len(input_nodes) == 2
    return is_pair and isinstance(input_nodes[0], str)


def nodes_of_type(
    store: GraphStore,
    node: NodeTypeSpec,
    input_nodes: Any,
    input_id: Any = None,
    input_time: Any = None,
) -> NodesOfType:
    """Convert a mask, ids or the name of a split of a type to seed nodes."""
    nodes, ids = _nodes_and_ids(store, node, input_nodes)
    num_seeds = node.num_nodes if nodes is None else len(nodes)
    if input_id is not None:
        ids = whole_numbers(input_id, "input_id", num_seeds, "input nodes")
    name = input_nodes if isinstance(input_nodes, str) else None
    times = None
    if input_time is not None:
        times = whole_numbers(input_time, "input_time", num_seeds, "input nodes")
    return NodesOfType(num_seeds, nodes, ids, "all" if input_nodes is None else name, times)


def in_unit_of_store(schema: Schema, time_attr: str | None, values: Any, name: str) -> Any:
    """Return times of seeds, of which datetime64 become whole numbers in the unit of the store.

    A finer unit rounds down: a seed sees nothing later than its time.
    """
    if isinstance(values, Mapping):
        return {of: in_unit_of_store(schema, time_attr, v, name) for of, v in values.items()}
    times = None if values is None or time_attr is None else to_numpy(values)
    if times is None or times.dtype.kind != "M":
        return values
    unit = unit_of_times(schema, str(time_attr))
    if unit is None:
        raise InputError(
            f"{name} has values of {times.dtype}, and the store records no unit of {time_attr!r}; "
            "give whole numbers in its unit, or convert again with "
            f"time_unit={{{time_attr!r}: 's'}}"
        )
    if np.isnat(times).any():
        raise InputError(
            f"{name}: entry {int(np.argmax(np.isnat(times)))} is NaT; decide on a time for it"
        )
    wanted = np.dtype(f"M8[{unit}]")
    found = times.astype(wanted)
    if np.can_cast(times.dtype, wanted, "safe") and (found.astype(times.dtype) != times).any():
        place = int(np.argmax(found.astype(times.dtype) != times))
        raise InputError(f"{name}: {times[place]} does not fit int64 in {unit}, the store's unit")
    return found.astype(np.int64)


def whole_numbers(values: Any, name: str, count: int, what: str) -> Int64Array:
    """Return an option with a number for each seed: int64 [count], a copy."""
    given = to_numpy(values)
    is_whole = given.dtype.kind in "iu" and given.max(initial=0) <= np.iinfo(np.int64).max
    if given.size and not is_whole:
        raise InputError(
            f"{name} has values of {given.dtype}; give whole numbers of 64 bits, times in the unit "
            "of the store's"
        )
    if given.size != count:
        raise InputError(
            f"{name} has {format_count(given.size, 'entry')} for {count} {what}; give one for each"
        )
    return np.array(given, dtype=np.int64).reshape(-1)


def _by_type(store: GraphStore, input_nodes: Any) -> dict[str, Any]:
    """Return the input nodes of each type, as they are given."""
    schema = store.schema
    if is_of_type(input_nodes):
        input_nodes = dict([input_nodes])
    if isinstance(input_nodes, Mapping) and input_nodes:
        for node_type in input_nodes:
            schema.node_of(node_type)  # raises if it is not there
        return dict(input_nodes)
    if isinstance(input_nodes, str):
        if input_nodes in {node.name for node in schema.node_types}:
            return {input_nodes: None}
        named = [node.name for node in schema.node_types if has_nodes_named(node, input_nodes)]
        if len(named) == 1:
            return {named[0]: input_nodes}
        raise UsageError(
            f"input_nodes={input_nodes!r} is not a node type of the store, and the name of a split "
            "or "
            f"mask in {', '.join(map(repr, named)) or 'no type'}; {_how_to_name(store)}"
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


def _nodes_and_ids(
    store: GraphStore, node: NodeTypeSpec, input_nodes: Any
) -> tuple[Int64Array | None, Int64Array | None]:
    if input_nodes is None:
        return None, None
    is_named = isinstance(input_nodes, str)
    if isinstance(input_nodes, Mapping):
        raise UsageError(
            f"input_nodes has entries for {', '.join(map(repr, input_nodes))}, and the store's "
            "nodes have no types; give node ids, a mask, or the name of a split"
        )
    is_list = isinstance(input_nodes, tuple | list)
    if is_list and any(isinstance(each, str) for each in input_nodes):
        raise UsageError(
            f"input_nodes={input_nodes!r}: expected one name of a split; join several with "
            "torch.cat([store.splits['train'], store.splits['valid']])"
        )
    values = _named(store, node, input_nodes) if is_named else to_numpy(input_nodes)
    if values.ndim != 1:
        raise InputError(
            f"input_nodes has shape {list(values.shape)}; give node ids or a mask, one-dimensional"
        )
    if values.dtype == np.bool_:
        if len(values) != node.num_nodes:
            raise InputError(
                f"the mask in input_nodes has {format_count(len(values), 'entry')} for "
                f"{format_count(node.num_nodes, 'node')}"
            )
        nodes = np.flatnonzero(values).astype(np.int64)
        return nodes, nodes
    if values.size == 0:
        return np.empty(0, np.int64), None
    if values.dtype.kind not in "iu":
        raise InputError(
            f"input_nodes has the element type {values.dtype}; give node ids (integers) or a "
            "mask (booleans)"
        )
    if not is_named and 2 < len(values) == node.num_nodes and _are_flags(values):
        raise InputError(
            f"input_nodes has {len(values)} zeros and ones, one for each node: as ids they name "
            "nodes 0 and 1 alone. Give a mask of booleans: mask.bool(), or mask.astype(bool) of "
            "an array"
        )
    where = "the graph" if node.name == NODE_TYPE else f"{node.name!r}"
    check_range(values, node.num_nodes, "node id", where, "nodes")
    # A copy: what the user does to the array later must not reach running batches.
    return values.astype(np.int64), None


def _are_flags(values: npt.NDArray[Any]) -> bool:
    return bool(values.min() >= 0 and values.max() <= 1)


def has_nodes_named(node: NodeTypeSpec, name: str) -> bool:
    """Whether a node type has a split of a name, or a mask."""
    spec = node.attributes.get(name)
    is_mask = (spec is not None and spec.dtype == "bool") or name in split_masks(node)
    return is_mask or name in node.splits or SPLIT_ALIASES.get(name) in node.splits


def _named(store: GraphStore, node: NodeTypeSpec, name: str) -> npt.NDArray[Any]:
    """Return the ids of a split; or a mask, an attribute of the nodes or of a split by its name."""
    splits, spec = Splits(store.reader, node), node.attributes.get(name)
    if name not in splits:
        if spec is not None and spec.dtype == "bool":
            return store.reader.read(spec)
        if (split := split_masks(node).get(name)) is not None:
            return read_mask(store.reader, node, split).numpy()
    return splits[name].numpy()


def _crc_of_all(ids: Int64Array | None, num_seeds: int) -> int:
    if ids is not None:
        return crc_of_ids(ids)
    crc = 0
    for first in range(0, num_seeds, _CRC_CHUNK):
        crc = crc_of_ids(np.arange(first, min(first + _CRC_CHUNK, num_seeds)), crc)
    return crc


@dataclass(frozen=True, eq=False)
class NodeLabels(SeedLabels):
    """Attributes of a batch that describe its seed nodes, as PyG's `NodeLoader` writes them."""

    name: ClassVar[str] = "nodes"
    num_arrays: ClassVar[int] = 1

    input_id: torch.Tensor
    seed_time: torch.Tensor | None = None

    @classmethod
    def fingerprint(cls) -> dict[str, Any]:
        """Return nothing: a fingerprint without another kind is of nodes."""
        return {}

    def label(self, batch: Any) -> None:
        """Write `input_id` and `batch_size`, and `seed_time` if there is one."""
        write_labels(batch, self.input_id, self.seed_time)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return `input_id`."""
        return [self.input_id.numpy()]

    def metadata(self) -> tuple[Any, ...]:
        """Return (input_id, seed_time)."""
        return self.input_id, self.seed_time

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> NodeLabels:
        """Return the labels of an array of input ids."""
        return cls(_vector(arrays[0]))

    @classmethod
    def from_metadata(cls, metadata: Any) -> NodeLabels:
        """Return the labels of a pair of input ids and times."""
        input_id, seed_time = metadata
        return cls(input_id, seed_time)


@dataclass(frozen=True, eq=False)
class TimedNodeLabels(NodeLabels):
    """The same with times of the seed nodes, `seed_time`."""

    name: ClassVar[str] = "timed nodes"
    num_arrays: ClassVar[int] = 2

    @classmethod
    def fingerprint(cls) -> dict[str, Any]:
        """Return the kind, for the fingerprint of a loader."""
        return super(NodeLabels, cls).fingerprint()

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return `input_id` and `seed_time`."""
        assert self.seed_time is not None  # noqa: S101 - of this kind all have times
        return [self.input_id.numpy(), self.seed_time.numpy()]

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> TimedNodeLabels:
        """Return the labels of arrays of input ids and times."""
        return cls(_vector(arrays[0]), _vector(arrays[1]))


def _vector(values: npt.NDArray[Any]) -> torch.Tensor:
    """Return ids or times of seeds that packed epochs have; ValueError: they are none."""
    if values.ndim != 1 or values.dtype != np.int64:
        raise ValueError(f"ids or times of seeds are {values.dtype} {list(values.shape)}")
    return torch.from_numpy(values)


def write_labels(store: Any, input_id: torch.Tensor, seed_time: torch.Tensor | None = None) -> None:
    """Write the labels of seed nodes on a batch, or on the part of their type."""
    written = (("input_id", input_id), ("seed_time", seed_time), ("batch_size", len(input_id)))
    for name, value in written:
        if value is not None:
            store[name] = value
        elif name in store:  # an attribute of the user's, which PyG overwrites as well
            del store[name]


@dataclass(frozen=True, eq=False)
class TypedNodeLabels(SeedLabels):
    """Attributes of a batch that describe its seed nodes, on the parts of their types."""

    name: ClassVar[str] = "typed nodes"
    num_arrays: ClassVar[int] = 2

    of: Mapping[str, NodeLabels]  # by node type

    @property
    def node_types(self) -> Collection[str]:
        """Types of the seed nodes."""
        return self.of.keys()

    def label(self, batch: Any) -> None:
        """Write `input_id` and `batch_size` on each type, and `seed_time` if there is one."""
        for node_type, labels in self.of.items():
            write_labels(batch[node_type], labels.input_id, labels.seed_time)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return a table of contents in JSON, and all ids and times behind one another."""
        contents, parts = [], [np.empty(0, np.int64)]
        for node_type, labels in self.of.items():
            contents.append([node_type, len(labels.input_id), labels.seed_time is not None])
            parts += [of.numpy() for of in labels.metadata() if of is not None]
        return [np.frombuffer(json.dumps(contents).encode(), np.uint8), np.concatenate(parts)]

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> TypedNodeLabels:
        """Return the labels of a table of contents and values."""
        contents, values = arrays
        rest, found = _vector(values), {}
        for node_type, count, has_times in json.loads(contents.tobytes()):
            if not 0 <= count * (1 + has_times) <= len(rest):
                raise ValueError(
                    f"{count} seeds are of {node_type!r}, and {len(rest)} numbers left"
                )
            ids, times, rest = rest.tensor_split([count, count * (1 + has_times)])
            found[node_type] = NodeLabels(ids, times if has_times else None)
        if len(rest):
            raise ValueError(f"{len(rest)} numbers too many describe seeds")
        return cls(found)

    def metadata(self) -> tuple[Any, ...]:
        """Return PyG's (input_id, seed_time), by type if there are several; and the types."""
        types = tuple(self.of)
        ids = {name: labels.input_id for name, labels in self.of.items()}
        of_times = {name: labels.seed_time for name, labels in self.of.items()}
        times = {name: time for name, time in of_times.items() if time is not None}
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


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """Return a tensor, an array or a sequence as an array; the memory may be shared."""
    try:
        if isinstance(values, torch.Tensor):
            if values.is_meta:
                raise TypeError("it is on the meta device, which has no values")
            return values.detach().cpu().numpy()
        if np.ma.is_masked(values):
            count = int(np.ma.getmaskarray(values).sum())
            raise ValueError(f"{count} entries are masked; choose .compressed() or .filled(...)")
        if isinstance(values, range):  # which NumPy would walk
            return np.arange(values.start, values.stop, values.step, dtype=np.int64)
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        kind = getattr(values, "dtype", type(values).__name__)
        raise InputError(f"found {kind} where an array of numbers was expected: {error}") from None


def checked_positions(index: Any, num_positions: int, where: str) -> Int64Array:
    """Return the index of a batch as positions [B]."""
    positions = np.atleast_1d(to_numpy(index))
    if positions.size == 0:
        positions = positions.astype(np.int64)
    if positions.ndim != 1 or positions.dtype.kind not in "iu":
        raise InputError(
            f"a batch's index must be positions in {where}, integers [B]; "
            f"got {positions.dtype} {list(positions.shape)}"
        )
    check_range(positions, num_positions, "position", where, "entries")
    return positions.astype(np.int64, copy=False)


def check_range(values: npt.NDArray[Any], bound: int, what: str, where: str, unit: str) -> None:
    """Raise an `InputError` that names the first value outside of 0 to bound - 1."""
    if values.size == 0 or (values.min() >= 0 and values.max() < bound):
        return
    place = int(np.flatnonzero((values < 0) | (values >= bound))[0])
    raise InputError(
        f"{what} {values[place]} at position {place} of {values.size} is outside {where}, "
        f"which has {bound} {unit} (0 to {bound - 1})"
    )


def crc_of_ids(ids: npt.NDArray[Any], crc: int = 0) -> int:
    """Return the crc32c of ids as int64 in little-endian order, after those before them."""
    contiguous = np.ascontiguousarray(ids, dtype="<i8")
    return _core.crc32c(contiguous.reshape(-1).view(np.uint8), crc)


def crc_of_positions(index: Any, crc: int = 0) -> int:
    """Return the crc32c of a batch's positions after those before it."""
    positions = np.atleast_1d(to_numpy(index))
    if positions.dtype.kind not in "iu":
        raise TypeError(f"positions of type {positions.dtype}")
    return crc_of_ids(positions, crc_of_ids(np.array([positions.size]), crc))
