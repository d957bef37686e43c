"""A graph, or an attribute, as PyG has it: `Data`, tensors read when used, assigned ones."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, NotFoundError, UsageError, did_you_mean
from gnnstore.formats import AttributeSpec, EdgeTypeSpec, NodeTypeSpec, Schema, StoreReader
from gnnstore.formats.store.scales import Scales
from gnnstore.formats.store.values import decode_value
from gnnstore.graph.arrays import ArrayRows, NodeIds, Splits, as_tensor, whole_values
from gnnstore.graph.decoded import note_decoded
from gnnstore.graph.decoding import Choices, Decode, choices_of
from gnnstore.graph.lazy import LazySource, LazyTensor, Rows, require_memory

if TYPE_CHECKING:
    from gnnstore.formats.store.schema import EdgeType
    from gnnstore.formats.store.store import Csc


# The fields of a fingerprint that describe them.
FINGERPRINT = "crc32c of the assigned "


@dataclass(frozen=True, eq=False)
class Assigned(LazySource):
    """A copy of a tensor that was assigned."""

    # [N, ...], bfloat16 as its bits. NumPy's memory: when a tensor is sent to another process,
    # torch moves its memory, and frees that which an array would go on showing.
    array: npt.NDArray[Any]
    dtype: torch.dtype
    crc: int  # of the values
    name: str

    @classmethod
    def from_tensor(cls, values: Tensor, where: str) -> Self:
        """Copy a tensor; refuse one of which threads cannot read rows."""
        if isinstance(values, LazyTensor):
            values = values.tensor()
        if values.device.type != "cpu" or values.layout != torch.strided or values.requires_grad:
            raise UsageError(
                f"{where}: batches get rows of dense tensors in the memory of the CPU that need no "
                f"gradient; assign values.detach().cpu(), and what is learned is an EmbeddingTable"
            )
        bits = values.view(torch.int16) if values.dtype == torch.bfloat16 else values
        array = np.array(bits.resolve_conj().resolve_neg().numpy(), order="C")
        return cls(array, values.dtype, _core.crc32c(array.reshape(-1).view(np.uint8)), where)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.array, self.dtype, self.crc, self.name)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of the tensor."""
        return self.array.shape

    def read(self) -> Tensor:
        """Return a copy of all values."""
        return as_tensor(self.array.copy(), str(self.dtype).removeprefix("torch."))

    def take(self, rows: Rows) -> Tensor:
        """Return a copy of some rows."""
        return as_tensor(self.array[np.asarray(rows)], str(self.dtype).removeprefix("torch."))


def as_rows(value: Any) -> Tensor | None:
    """Return a tensor with rows; None of other values, and of texts, objects and dates."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        native = value.dtype.newbyteorder("=")
        value = torch.from_numpy(np.require(value, native, ["C_CONTIGUOUS", "WRITEABLE"]))
    return value if isinstance(value, Tensor) and value.dim() else None


@dataclass(frozen=True)
class AssignedAttributes:
    """Attributes by node type and name."""

    by_type: dict[str, dict[str, Assigned]]

    def of_type(self, node_type: str) -> dict[str, Assigned]:
        """Return the attributes of a node type."""
        return self.by_type.get(node_type, {})

    def assign(self, node_type: str, name: str, value: Any, num_nodes: int, where: str) -> bool:
        """Keep a value if it has a row for each node; return whether it has."""
        if (rows := as_rows(value)) is None or len(rows) != num_nodes:
            return False
        self.by_type.setdefault(node_type, {})[name] = Assigned.from_tensor(rows, where)
        return True

    def remove(self, node_type: str, name: str) -> bool:
        """Forget an attribute; return whether there was one."""
        return self.by_type.get(node_type, {}).pop(name, None) is not None

    def only(self, names: Container[str] | None) -> AssignedAttributes:
        """Return a copy, with some names alone."""
        return AssignedAttributes(
            {
                node_type: {n: each for n, each in own.items() if names is None or n in names}
                for node_type, own in self.by_type.items()
            }
        )

    def __iter__(self) -> Iterator[tuple[str, str, Assigned]]:
        """Yield node types, names and tensors."""
        for node_type, own in self.by_type.items():
            for name, each in own.items():
                yield node_type, name, each

    @property
    def num_bytes(self) -> int:
        """Bytes of all of them."""
        return sum(each.array.nbytes for _, _, each in self)

    def row_bytes(self, node_type: str) -> int:
        """Bytes that a node of a type brings into a batch."""
        own = [each.array for each in self.of_type(node_type).values()]
        return sum(array.nbytes // max(1, len(array)) for array in own)

    def fingerprint(self) -> dict[str, str]:
        """Return a checksum, the type and shape of each."""
        return {
            f"{FINGERPRINT}{node_type}.{name}": (
                f"{each.crc:08x} {str(each.dtype).removeprefix('torch.')} {list(each.shape)}"
            )
            for node_type, name, each in self
        }


# Names of masks in PyG's data sets.
_MASKS = {"valid": "val_mask"}


def read_graph(
    reader: StoreReader, schema: Schema, csc: Mapping[EdgeType, Csc]
) -> Data | HeteroData:
    """Return the graph of a store as a schema shows it, with its in-neighbours by edge type."""
    data: Any = Data() if schema.is_homogeneous else HeteroData()
    specs = [*schema.node_attributes(), *schema.edge_attributes()]
    num_edges = sum(edge.num_edges for edge in schema.edge_types)
    require_memory(str(reader.path), sum(map(_shown_bytes, specs)) + 3 * 8 * num_edges)

    def part_of(of: str | EdgeType) -> Any:
        return data if schema.is_homogeneous else data[of]

    for node in schema.node_types:
        part = part_of(node.name)
        for name, spec in node.attributes.items():
            part[name] = rows_of(reader, spec).read()
        if any(spec.scaled for spec in node.attributes.values()):
            note_decoded(part)
        for name, value in whole_values(node.values, node.value_arrays, reader.read).items():
            part[name] = value
    for edge in schema.edge_types:
        part = part_of(edge.type)
        part["edge_index"] = read_edge_index(reader, edge, csc[edge.type])
        for name, spec in edge.attributes.items():
            part[name] = EdgeRows.from_spec(reader, edge, spec).read()
        for name, value in whole_values(edge.values, edge.value_arrays, reader.read).items():
            part[name] = value
    for node in schema.node_types:
        part = part_of(node.name)
        for mask, split in split_masks(node).items():
            if mask not in part:
                part[mask] = read_mask(reader, node, split)
        if (
            schema.explicit_num_nodes or not node.attributes
            if schema.is_homogeneous
            else node.explicit_num_nodes
        ):
            part.num_nodes = node.num_nodes
    return data


def _shown_bytes(spec: AttributeSpec) -> int:
    return spec.num_rows * spec.shown_row_bytes


def split_masks(node: NodeTypeSpec) -> dict[str, str]:
    """Return the splits of nodes by the names that PyG's data sets give to their masks."""
    return {_MASKS.get(split, f"{split}_mask"): split for split in node.splits}


def split_ids(node: NodeTypeSpec) -> dict[str, str]:
    """Return the splits of nodes by the names of their ids: "train_idx", "val_idx"."""
    short = {"val_idx": "valid"} if "valid" in node.splits else {}
    return {f"{split}_idx": split for split in node.splits} | short


def read_mask(reader: StoreReader, node: NodeTypeSpec, split: str) -> Tensor:
    """Return a split of nodes as a mask."""
    require_memory(f"the mask of {split!r}", node.num_nodes)
    mask = torch.zeros(node.num_nodes, dtype=torch.bool, device="cpu")
    mask[Splits(reader, node)[split]] = True
    return mask


def read_edge_index(reader: StoreReader, edge: EdgeTypeSpec, csc: Csc) -> Tensor:
    """Return the ends of the edges of a type, [2, E], in the order of their ids."""
    arrays = 3 if edge.edge_id is None else 5  # ends, and the order, by which ends are copied
    require_memory(f"{reader.path}: edge_index", arrays * 8 * edge.num_edges)
    degrees = np.diff(csc.indptr)
    if degrees.min(initial=0) < 0:
        path = reader.path / edge.indptr.path
        raise CorruptStoreError(
            f"{path}: the pointer of column {int(np.argmin(degrees)) + 1} descends; run "
            "'gnnstore verify' on the store, and convert again",
            path=path,
        )
    found = np.empty((2, edge.num_edges), reader.schema.index_dtype)
    found[0] = csc.indices
    found[1] = np.repeat(np.arange(csc.num_nodes), degrees)
    edge_index, order = torch.from_numpy(found), order_of_ids(reader, edge)
    return edge_index if order is None else edge_index[:, order]


def order_of_ids(reader: StoreReader, edge: EdgeTypeSpec) -> Tensor | None:
    """Return the position of each edge by its id; None where positions are ids."""
    spec = edge.edge_id
    if spec is None:
        return None
    ids = reader.read(spec).astype(np.int64, copy=False)
    if not len(ids) or not 0 <= ids.min() <= ids.max() < len(ids):
        return None
    order = np.full(len(ids), -1, np.int64)
    order[ids] = np.arange(len(ids))
    return None if order.min() < 0 else torch.from_numpy(order)


def rows_of(reader: StoreReader, spec: AttributeSpec) -> ArrayRows:
    """Return an attribute of nodes, its rows along the axis that they had."""
    return ArrayRows(reader, spec, spec.cat_dim % len(spec.shape))


@dataclass(frozen=True)
class EdgeRows(ArrayRows):
    """An attribute of edges in the order of their ids."""

    edge: EdgeTypeSpec | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reader, self.spec, self.axis, self.edge)

    @classmethod
    def from_spec(cls, reader: StoreReader, edge: EdgeTypeSpec, spec: AttributeSpec) -> EdgeRows:
        """Return an attribute of edges, its rows along the axis that they had."""
        return cls(reader, spec, spec.cat_dim % len(spec.shape), edge)

    def read(self) -> Tensor:
        """Return all rows, after a check that there is memory for them twice, and their order."""
        require_memory(self.name, 2 * self.num_bytes + 16 * self.spec.num_rows)
        order = None if self.edge is None else order_of_ids(self.reader, self.edge)
        if order is None:
            return super().read()
        # By NumPy: torch cannot choose rows of unsigned numbers of more than 8 bits.
        rows = as_tensor(self.reader.read(self.spec)[order.numpy()], self.spec.dtype)
        return rows.movedim(0, self.axis) if self.axis else rows

    def take(self, rows: Rows) -> Tensor:
        """Return the rows of some edges, whose places are looked up."""
        if self._places is None:
            return super().take(rows)
        ids, at = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        return super().take(self._places.find_ascending(ids)[at])

    @cached_property
    def _places(self) -> NodeIds | None:
        """The place of each edge by its id; None: places are ids, or other edges were left out."""
        if self.edge is None or self.edge.edge_id is None:
            return None
        found = NodeIds(self.reader, self.edge.edge_id, self.edge.num_edges)
        return found if found.greatest < self.edge.num_edges else None


@dataclass(frozen=True)
class EdgeIndex(LazySource):
    """Source and target of each edge of a type, [2, E], in the order of their ids."""

    store: Any
    edge: EdgeTypeSpec
    name = "edge_index"

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """2, and the number of edges."""
        return 2, self.edge.num_edges

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """Type of an id."""
        return getattr(torch, self.store.schema.index_dtype)  # type: ignore[no-any-return]

    def read(self) -> Tensor:
        """Return all edges."""
        columns = self.store.topology("mmap").columns(self.edge.type)
        return read_edge_index(self.store.reader, self.edge, columns)


class StoreTensors:
    """The tensors of a store by their names, as PyG has them: base of `GraphStore`."""

    reader: StoreReader
    assigned: AssignedAttributes  # attributes of nodes that the user has assigned
    selected: tuple[str, ...] | None  # names of the attributes that are seen; None: all
    _choices: Choices  # the types in which attributes with scales are shown
    # Shared by all tensors of an attribute; by its description, and the axis of rows.
    _lazy: dict[tuple[AttributeSpec, int | str], ArrayRows]

    def select(self, attributes: Sequence[str] | None) -> Self:
        """Return the store as a loader sees it: as it is now, and with some attributes alone.

        Raises
        ------
        UsageError, NotFoundError
            If `attributes` is not a list of names; if neither nodes nor edges have one of a name.
        """
        names = () if attributes is None else attributes
        if not (isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)):
            raise UsageError(f"attributes={attributes!r}: expected a list of names, as ['y']")
        if attributes is None:
            return self._copy(assigned=self.assigned.only(None))
        attributes = tuple(dict.fromkeys(map(str, attributes)))
        schema = self.reader.schema
        there = dict.fromkeys(name for each in schema.node_types for name in each.attributes)
        there |= dict.fromkeys(name for each in schema.edge_types for name in each.attributes)
        there |= dict.fromkeys(name for _, name, _ in self.assigned)
        for name in attributes:
            if name not in there:
                raise NotFoundError(
                    f"attributes=: neither nodes nor edges of {self.reader.path} have an attribute "
                    f"{name!r}{did_you_mean(name, there)}; there are: "
                    f"{', '.join(there) or 'none'}",
                    path=self.reader.path,
                )
        return self._copy(assigned=self.assigned.only(attributes), selected=attributes)

    def decoded(self, decode: Decode) -> Self:
        """Return the store with attributes that have scales in other types, as `gnnstore.open`.

        Raises
        ------
        UsageError
            If the option names what there is not.
        """
        reader = self.reader
        choices = choices_of(decode, reader.schema, reader.scales, reader.path)
        return self._copy(_choices=choices) if choices != self._choices else self

    @property
    def column_scales(self) -> Mapping[str, Scales]:
        """The scales of attributes of int8, by path."""
        return self.reader.scales

    @property
    def stored_schema(self) -> Schema:
        """Description of what is stored of the attributes that are seen."""
        schema = self.reader.schema
        return schema if self.selected is None else schema.only(self.selected)

    def _copy(self, **changed: Any) -> Self:
        """Return the store with some of its fields changed, and the schema that follows."""
        found = object.__new__(type(self))
        found.__dict__.update(vars(self), **changed)
        found.__dict__["_schema"] = found.stored_schema.decoding(found._choices)
        return found

    def assign(self, node: NodeTypeSpec, name: str, value: Any) -> bool:
        """Let batches of later loaders show a tensor with a row for each node, under a name.

        Returns False for other values.
        """
        where = f"{self.reader.path}: {name!r}"
        if name in node.attributes or name in split_masks(node):
            if is_same(self.value_of(node, name), value):
                return True
            raise immutable(self.reader.path, f"{name!r} cannot be assigned to")
        return self.assigned.assign(node.name, name, value, node.num_nodes, where)

    def attribute_of(self, spec: AttributeSpec) -> LazyTensor:
        """Return an attribute by its description, rows first; what is kept of it is shared."""
        return LazyTensor(self._rows(spec))

    def values_of(self, own: NodeTypeSpec | EdgeTypeSpec) -> dict[str, Any]:
        """Return what a type has as a whole: JSON values, and tensors."""
        return whole_values(own.values, own.value_arrays, self.reader.read)

    @staticmethod
    def has_value(own: NodeTypeSpec | EdgeTypeSpec, name: object) -> bool:
        """Whether a type has a value of a name as a whole."""
        return name in own.values or name in own.value_arrays

    def whole_value(self, own: NodeTypeSpec | EdgeTypeSpec, name: str) -> Any:
        """Return one of the values of a type as a whole."""
        if name in own.values:
            return decode_value(own.values[name])
        return self.whole_array(own.value_arrays[name])

    def whole_array(self, spec: AttributeSpec) -> Tensor:
        """Return an array that is not an attribute of nodes or edges."""
        return as_tensor(self.reader.read(spec), spec.dtype)

    def value_of(self, node: NodeTypeSpec, name: str) -> Any:
        """Return what nodes have under a name: assigned, stored, or a split as mask or ids."""
        if (found := self.assigned.of_type(node.name).get(name)) is not None:
            return LazyTensor(found)
        if (spec := node.attributes.get(name)) is not None:
            return LazyTensor(self._rows(spec, spec.cat_dim % len(spec.shape)))
        if self.has_value(node, name):
            return self.whole_value(node, name)
        if (split := split_masks(node).get(name)) is not None:
            return read_mask(self.reader, node, split)
        split = split_ids(node).get(name)
        return None if split is None else Splits(self.reader, node)[split]

    def names_of(self, node: NodeTypeSpec) -> tuple[Collection[str], ...]:
        """Return the names for which `value_of` has a tensor."""
        own = self.assigned.of_type(node.name)
        values = (node.values, node.value_arrays)
        return own, node.attributes, *values, split_masks(node), split_ids(node)

    def edges_of(self, edge: EdgeTypeSpec, spec: AttributeSpec) -> LazyTensor:
        """Return an attribute of edges as PyG has it: in the order of their ids."""
        made = EdgeRows.from_spec(self.reader, edge, spec)
        return LazyTensor(self._lazy.setdefault((spec, "ids"), made))

    def _rows(self, spec: AttributeSpec, axis: int = 0) -> ArrayRows:
        return self._lazy.setdefault((spec, axis), ArrayRows(self.reader, spec, axis))


def spec_of(path: Path, kind: str, name: str, specs: Mapping[str, AttributeSpec]) -> AttributeSpec:
    """Return the description of an attribute; refuse a name that is not there."""
    spec = specs.get(name) if isinstance(name, str) else None
    if spec is None:
        there = f"{did_you_mean(name, specs)}; there are: {', '.join(specs) or 'none'}"
        raise NotFoundError(f"{path}: no {kind} attribute {name!r}{there}", path=path)
    return spec


def is_same(known: Any, value: Any) -> bool:
    """Whether a value is the store's own, as in `data.y = data.y`, or an equal number."""
    if isinstance(known, LazyTensor):
        return isinstance(value, LazyTensor) and known.source == value.source
    if isinstance(known, Tensor):
        is_same_type = isinstance(value, Tensor) and known.dtype == value.dtype
        return is_same_type and torch.equal(known, value)
    return type(known) is type(value) and bool(known == value)


def immutable(path: Path, problem: str = "a store is immutable") -> UsageError:
    """Return the error for a change of what is on disk."""
    return UsageError(
        f"{path}: {problem}; change batches with transform= of a loader, or convert the changed "
        "data into a new store ('gnnstore convert', or gnnstore.converters.from_pyg)"
    )


def undeletable(path: Path, name: str) -> UsageError:
    """Return the error for what is on disk and should not be in batches."""
    return UsageError(
        f"{path}: {name!r} cannot be deleted; for batches without it, name the attributes that "
        "they have: NeighborLoader(..., attributes=['y'])"
    )


def not_there(problem: str, name: object, names: Iterable[object]) -> AttributeError:
    """Return the error for an unknown name, with the name that was perhaps meant."""
    return AttributeError(f"{problem} {name!r}{did_you_mean(name, names)}")
