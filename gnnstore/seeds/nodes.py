"""The seed nodes that batches start from: resolved and checked before any work.

A wrong seed found in the middle of the night's third epoch costs the night; so whatever a
user gives as `input_nodes` is turned into node ids, and every id checked, when the loader
is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from gnnstore import _core
from gnnstore.errors import InputError
from gnnstore.formats.packed.manifest import KIND, SEED_ARRAYS
from gnnstore.formats.store.schema import NODE_TYPE, NodeTypeSpec
from gnnstore.graph.arrays import SPLIT_ALIASES, Splits
from gnnstore.graph.pyg_data import read_mask, split_masks
from gnnstore.graph.store import GraphStore
from gnnstore.seeds.base import BatchKey, SeedLabels, Seeds

Int64Array = npt.NDArray[np.int64]

_CRC_CHUNK = 2**20  # 8 MB at a time of what is not there as an array


@dataclass(frozen=True, eq=False)
class NodeLabels(SeedLabels):
    """Attributes of a batch that describe its seed nodes, as PyG's `NodeLoader` writes them."""

    name: ClassVar[str] = "nodes"
    num_arrays: ClassVar[int] = 1

    input_id: torch.Tensor
    seed_time: torch.Tensor | None = None

    @classmethod
    def fingerprint(cls) -> dict[str, Any]:
        """Return nothing: seeds are nodes where a fingerprint does not say otherwise."""
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
        return cls(torch.from_numpy(arrays[0]))

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
        return {KIND: cls.name, SEED_ARRAYS: cls.num_arrays}

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return `input_id` and `seed_time`."""
        assert self.seed_time is not None  # noqa: S101 - of this kind all have times
        return [self.input_id.numpy(), self.seed_time.numpy()]

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> TimedNodeLabels:
        """Return the labels of arrays of input ids and times."""
        return cls(torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]))


def write_labels(store: Any, input_id: torch.Tensor, seed_time: torch.Tensor | None = None) -> None:
    """Write the labels of seed nodes on a batch, or on the part of their type."""
    written = (("input_id", input_id), ("seed_time", seed_time), ("batch_size", len(input_id)))
    for name, value in written:
        if value is not None:
            store[name] = value
        elif name in store:  # an attribute of the user's, which PyG overwrites as well
            del store[name]


@dataclass(frozen=True, eq=False)
class InputNodes:
    """The seed nodes of a loader, by position."""

    num_seeds: int  # positions 0 to num_seeds - 1 can be asked for
    # int64 [num_seeds] or None: node ids; None: every node, position and id being the same.
    nodes: Int64Array | None
    # int64 [num_seeds] or None: values of `input_id` in batches; None: the positions.
    ids: Int64Array | None
    name: str | None = None  # the split, or "all" nodes
    node_type: str = NODE_TYPE
    times: Int64Array | None = None  # int64 [num_seeds]; None: none, or those of the nodes

    @cached_property
    def nodes_crc(self) -> int:
        """Checksum of the node ids, those that are no array included."""
        return _crc_of_all(self.nodes, self.num_seeds)

    @cached_property
    def ids_crc(self) -> int:
        """Checksum of what `input_id` shows."""
        if self.ids is self.nodes:
            return self.nodes_crc
        return _crc_of_all(self.ids, self.num_seeds)

    @property
    def labels(self) -> type[NodeLabels]:
        """Kind of the labels of its seeds."""
        return NodeLabels if self.times is None else TimedNodeLabels

    @property
    def num_bytes(self) -> int:
        """Bytes of the node ids, of what `input_id` shows, and of times."""
        return (16 if self.times is None else 24) * self.num_seeds

    def __len__(self) -> int:
        """Return the number of seed nodes."""
        return self.num_seeds

    def fingerprint(self) -> dict[str, Any]:
        """Return checksums of the node ids and of what `input_id` shows."""
        times = {} if self.times is None else {"crc32c of input_time": _crc(self.times)}
        return {
            "crc32c of input_nodes": f"{self.nodes_crc:08x}",
            "crc32c of input_id": f"{self.ids_crc:08x}",
            **times,
        }

    def select(self, index: Any, key: BatchKey | None = None) -> Seeds[NodeLabels]:  # noqa: ARG002
        """Return the seed nodes at some positions, whatever the key."""
        nodes, labels, times = self.at(checked_positions(index, self.num_seeds, "input_nodes"))
        return Seeds(
            {self.node_type: nodes},
            labels,
            times=None if times is None else {self.node_type: times},
        )

    def at(self, positions: Int64Array) -> tuple[Int64Array, NodeLabels, Int64Array | None]:
        """Return the nodes at some positions, with their labels and times."""
        nodes = positions if self.nodes is None else self.nodes[positions]
        ids = torch.from_numpy(positions if self.ids is None else self.ids[positions])
        if self.times is None:
            return nodes, NodeLabels(ids), None
        times = self.times[positions]
        return nodes, TimedNodeLabels(ids, torch.from_numpy(times)), times


def resolve_input_nodes(
    store: GraphStore, input_nodes: Any, input_id: Any = None, input_time: Any = None
) -> InputNodes:
    """Turn whatever names nodes of a graph of one type into seed nodes."""
    if is_of_type(input_nodes):
        node_type, input_nodes = input_nodes
        node = store.schema.node_of(node_type)
    else:
        node = store.schema.node
    return nodes_of_type(store, node, input_nodes, input_id, input_time)


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
) -> InputNodes:
    """Turn whatever names nodes of a type into seed nodes."""
    nodes, ids = _nodes_and_ids(store, node, input_nodes)
    num_seeds = node.num_nodes if nodes is None else len(nodes)
    if input_id is not None:
        ids = resolve_input_ids(input_id, num_seeds, "input nodes")
    name = input_nodes if isinstance(input_nodes, str) else None
    times = None
    if input_time is not None:
        times = resolve_times(input_time, num_seeds, "input_time", "input nodes")
    return InputNodes(
        num_seeds, nodes, ids, "all" if input_nodes is None else name, node.name, times
    )


def resolve_times(times: Any, num_seeds: int, name: str, what: str) -> Int64Array:
    """Return the times of seeds: int64 [num_seeds], a copy."""
    given = to_numpy(times)
    is_whole = given.dtype.kind in "iu" and (
        given.dtype != np.uint64 or not given.size or given.max() <= np.iinfo(np.int64).max
    )
    if not is_whole and given.size:
        nat = int(np.isnat(given).sum()) if given.dtype.kind in "mM" else 0
        more = f", {nat} of them NaT" if nat else ""
        raise InputError(
            f"{name} has times of {given.dtype}{more}; give whole numbers in the unit of the "
            "store's times, int64"
        )
    if given.size != num_seeds:
        raise InputError(
            f"{name} has {given.size} entries for {num_seeds} {what}; give a time for each"
        )
    return np.array(given, dtype=np.int64).reshape(-1)


def resolve_input_ids(input_id: Any, num_seeds: int, what: str) -> Int64Array:
    """Return the `input_id` that batches show for each seed: int64 [num_seeds], a copy."""
    given = to_numpy(input_id)
    if given.size and (given.dtype.kind not in "iu" or given.max() > np.iinfo(np.int64).max):
        raise InputError(f"input_id has values of {given.dtype}; give whole numbers of 64 bits")
    ids = np.array(given, dtype=np.int64).reshape(-1)
    if len(ids) != num_seeds:
        raise InputError(
            f"input_id has {len(ids)} entries for {num_seeds} {what}; "
            "give one for each, or leave it out"
        )
    return ids


def _nodes_and_ids(
    store: GraphStore, node: NodeTypeSpec, input_nodes: Any
) -> tuple[Int64Array | None, Int64Array | None]:
    if input_nodes is None:
        return None, None
    is_named = isinstance(input_nodes, str)
    values = _named(store, node, input_nodes) if is_named else to_numpy(input_nodes)
    if values.ndim != 1:
        raise InputError(
            f"input_nodes has shape {list(values.shape)}; give node ids or a mask, one-dimensional"
        )
    if values.dtype == np.bool_:
        if len(values) != node.num_nodes:
            raise InputError(
                f"the mask in input_nodes has {len(values)} entries for {node.num_nodes} nodes"
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
    where = "the graph" if node.name == NODE_TYPE else f"{node.name!r}"
    check_range(values, node.num_nodes, "node id", where, "nodes")
    # A copy: what the user does to the array later must not reach running batches.
    return values.astype(np.int64), None


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


def _crc(values: Int64Array) -> str:
    return f"{crc_of_ids(values):08x}"


def _crc_of_all(ids: Int64Array | None, num_seeds: int) -> int:
    if ids is not None:
        return crc_of_ids(ids)
    crc = 0
    for first in range(0, num_seeds, _CRC_CHUNK):
        crc = crc_of_ids(np.arange(first, min(first + _CRC_CHUNK, num_seeds)), crc)
    return crc


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """Return a tensor, an array or a sequence as an array; the memory may be shared."""
    try:
        if isinstance(values, torch.Tensor):
            return values.detach().cpu().numpy()
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
