"""An open store: arrays by name, and PyG's two store protocols.

`gnnstore.open(path)` returns a `GraphStore`. It is cheap to open and to pickle (it pickles
as its path), and it reads an array only when it is used. A store in a bucket is one on this
machine's disk once it has been copied there.
"""

from __future__ import annotations

import os
import reprlib
import threading
import weakref
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, get_args, overload

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, HeteroData, TensorAttr
from torch_geometric.data import GraphStore as PygGraphStore
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from gnnstore.errors import (
    UsageError,
    check_choice,
    limits_named,
)
from gnnstore.formats import AttributeSpec, EdgeTypeSpec, NodeTypeSpec, Schema, StoreReader
from gnnstore.formats.container.manifest import Kind
from gnnstore.formats.container.reader import reopened
from gnnstore.formats.store.schema import EdgeType
from gnnstore.formats.store.store import STORE, TopologyMode
from gnnstore.formats.store.values import decode_value
from gnnstore.graph.arrays import ArrayRows, EdgeSplits, Texts, whole_values
from gnnstore.graph.decoded import refuse_scales
from gnnstore.graph.decoding import Choices, Decode
from gnnstore.graph.lazy import LazyTensor
from gnnstore.graph.pyg_data import (
    AssignedAttributes,
    StoreTensors,
    as_rows,
    immutable,
    is_same,
    not_there,
    read_graph,
    spec_of,
    undeletable,
)
from gnnstore.graph.topology import Topology
from gnnstore.graph.typed import EdgeData, EdgeView, NodeData, NodeView, count_classes, width
from gnnstore.machine import PRIVATE, Machine
from gnnstore.progress import open_progress
from gnnstore.remote.objects import is_elsewhere
from gnnstore.remote.staging import Origin, copy_of, origin_of, stage, stage_unit

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_FIELDS = ("reader", "assigned", "selected")  # fields of a store, which no class has


class GraphStore(StoreTensors, NodeData, EdgeData, FeatureStore, PygGraphStore):  # type: ignore[misc]
    """A graph on disk: nodes, edges, features by id, labels, splits.

    Also a PyG `FeatureStore` and `GraphStore`, so `(store, store)` can be handed to any code
    that takes PyG's remote backends. Immutable; safe to use from several threads; pickles as its
    path, so it crosses into worker processes at no cost, forked or spawned. If another store has
    taken its place, unpickling, and reading what was not open yet, raise a StorageError.

    Parameters
    ----------
    path : path-like
        The store's directory.
    """

    _origin: Origin | None = None  # where this copy came from, if it is one

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.reader = StoreReader.open(path)
        self._topologies: dict[TopologyMode, Topology] = {}
        self._lazy: dict[tuple[AttributeSpec, int | str], ArrayRows] = {}
        self.assigned = AssignedAttributes({})  # attributes of nodes that the user has assigned
        self.selected: tuple[str, ...] | None = None  # names of the attributes that are seen
        self._choices: Choices = {}  # the types in which attributes with scales are shown
        self._schema = self.reader.schema
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        plain: tuple[Any, ...] = reopened, (GraphStore, str(self.path), self.reader.uuid)
        if self._origin is not None:
            plain = _copied_again, (self._origin, self.reader.uuid)
        if self.selected is None and not any(self.assigned) and not self._choices:
            return plain
        return _restored, (*plain, self.assigned, self.selected, dict(self._choices))

    def __repr__(self) -> str:
        if not self.schema.is_homogeneous:
            nodes = {node.name: node.num_nodes for node in self.schema.node_types}
            edges = {"__".join(edge.type): edge.num_edges for edge in self.schema.edge_types}
            return f"GraphStore({str(self.path)!r}, num_nodes={nodes}, num_edges={edges})"
        return (
            f"GraphStore({str(self.path)!r}, num_nodes={self.num_nodes}, "
            f"num_edges={self.num_edges}, node_attributes={list(self.schema.node.attributes)})"
        )

    __str__ = __repr__

    @property
    def path(self) -> Path:
        """The store's directory."""
        return self.reader.path

    @property
    def schema(self) -> Schema:
        """Description of the store's contents, as plain data."""
        return self._schema

    @property
    def node_types(self) -> tuple[str, ...]:
        """The node types, in the store's order; ("node",) in a graph without types."""
        return tuple(node.name for node in self.schema.node_types)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """The edge types, in the store's order; (("node", "to", "node"),) without types."""
        return tuple(edge.type for edge in self.schema.edge_types)

    def metadata(self) -> tuple[list[str], list[EdgeType]]:
        """Return node types and edge types, as `HeteroData.metadata()` does for `to_hetero`."""
        return list(self.node_types), list(self.edge_types)

    @overload
    def __getitem__(self, key: str) -> NodeView: ...
    @overload
    def __getitem__(self, key: Any) -> Any: ...

    def __getitem__(self, key: Any) -> Any:
        """Return the data of a node type or edge type; else what PyG's `FeatureStore` returns.

        `store["paper"]` is a `NodeView`, `store["author", "writes", "paper"]` an `EdgeView`, and
        `store["paper", "x"][ids]` a tensor.
        """
        if isinstance(key, str):
            if key in self.node_types:
                return NodeView(self, self.schema.node_of(key))
            if self.schema.is_homogeneous:
                return getattr(self, key)
            raise not_there(f"{self.path} has no node type", key, self.node_types)
        is_tuple = isinstance(key, tuple) and bool(key)
        if is_tuple and isinstance(key[0], str) and not self._is_of_nodes(key):
            return EdgeView(self, self.schema.edge_of(self._edge_type_of(key)))
        fields = TensorAttr.__dataclass_fields__
        if is_tuple:
            is_key = len(key) <= len(fields) and isinstance(key[0], str | None)
        else:
            is_key = isinstance(key, TensorAttr) or (
                isinstance(key, dict) and key.keys() <= fields.keys()
            )
        if not is_key:
            of = self.node_types[0]
            raise UsageError(
                f"{self.path}: store[...] takes the name of a type or of an attribute, or both, as "
                f"in store[{of!r}, 'x'][ids], and not {reprlib.repr(key)}"
            )
        return super().__getitem__(key)

    def _is_of_nodes(self, key: tuple[Any, ...]) -> bool:
        """Whether a key of PyG's `FeatureStore` begins with a node type and its attribute."""
        if key in self.edge_types:
            return False
        node = next((each for each in self.schema.node_types if each.name == key[0]), None)
        return node is not None and (
            len(key) == 1 or key[1] in (*node.attributes, *self.assigned.of_type(node.name))
        )

    def _edge_type_of(self, key: tuple[Any, ...]) -> EdgeType:
        """Return an edge type, which may be given by its ends alone where no other joins them."""
        ends = [each for each in self.edge_types if key in (each, (each[0], each[2]))]
        if len(ends) == 1:
            return ends[0]
        if ends:
            raise AttributeError(
                f"{self.path} has several edge types of {key}; name one in full: "
                f"{', '.join(map(str, ends))}"
            )
        pairs = {(each[0], each[2]) for each in self.edge_types}
        known: Any = pairs if len(key) == 2 else self.edge_types
        attributes = {(n.name, name) for n in self.schema.node_types for name in n.attributes}
        raise not_there(
            f"{self.path} has neither an edge type nor an attribute of nodes",
            key,
            (*known, *attributes),
        )

    def node_items(self) -> list[tuple[str, NodeView]]:
        """Return the node types with their data, as `HeteroData.node_items()` does."""
        return [(node.name, NodeView(self, node)) for node in self.schema.node_types]

    def edge_items(self) -> list[tuple[EdgeType, EdgeView]]:
        """Return the edge types with their data, as `HeteroData.edge_items()` does."""
        return [(edge.type, EdgeView(self, edge)) for edge in self.schema.edge_types]

    def _by_type(self, name: str) -> dict[str | EdgeType, Any]:
        """Return what types have under a name, or as a number of theirs, as `num_nodes`."""
        views: list[tuple[Any, Any]] = [*self.node_items(), *self.edge_items()]
        return {
            of: getattr(view, name)
            for of, view in views
            if name in view or (name.startswith("num_") and hasattr(type(view), name))
        }

    @property
    def num_nodes(self) -> int:
        """Number of nodes of a graph without types; see `store["paper"].num_nodes`."""
        return self.schema.node.num_nodes

    @property
    def num_edges(self) -> int:
        """Number of edges; 0 where a store has nodes only, as embeddings have."""
        return sum(edge.num_edges for edge in self.schema.edge_types)

    @property
    def _store(self) -> Self:
        return self

    @property
    def _node(self) -> NodeTypeSpec:  # type: ignore[override]
        return self.schema.node

    @property
    def _edge(self) -> EdgeTypeSpec:  # type: ignore[override]
        return self.schema.edge

    @property
    def edge_splits(self) -> EdgeSplits:
        """Edges to predict of each split."""
        return EdgeSplits(self.reader, self.schema.edge)

    @property
    def relation_names(self) -> Texts | None:
        """Names of the values of the edge attribute `edge_type`; None where they have none."""
        spec = self.schema.edge.value_names.get("edge_type")
        return None if spec is None else Texts(self.reader, spec)

    def node_attribute(self, name: str) -> LazyTensor:
        """Return a node attribute, [N, ...].

        Raises
        ------
        NotFoundError
            If there is none of this name; the message lists those there are.
        """
        return self._attribute(name)

    def edge_attribute(self, name: str) -> LazyTensor:
        """Return an edge attribute in the order of the CSC's `indices`, not of `edge_index`.

        It is [E, ...]. In the order of `edge_index`, the edges' ids, is `store.edge_attr`, and
        others under their own names.

        Raises
        ------
        NotFoundError
            If there is none of this name.
        """
        return self.attribute_of(spec_of(self.path, "edge", name, self.schema.edge.attributes))

    def graph_attributes(self) -> dict[str, Any]:
        """Return the graph-level attributes: JSON values, and tensors."""
        schema = self.schema
        return whole_values(schema.graph_attributes, schema.graph_arrays, self.reader.read)

    def topology(
        self, mode: TopologyMode = "memory", num_threads: int = 1, machine: Machine | None = None
    ) -> Topology:
        """Return the adjacency, in RAM or mapped; made once per mode and shared.

        `topology.columns()` has the arrays; `topology.columns(edge_type)` an edge type's.

        Parameters
        ----------
        mode : "memory", "mmap" or "disk"
            Read into RAM; a view of the files; or that with `indptr` in RAM.
        num_threads : int
            Threads that read.
        machine : Machine, optional
            The place of arrays in RAM; what lies in memory of another kind, private or shared, is
            read anew. By default where they are, at first in private memory.
        """
        check_choice("mode", mode, get_args(TopologyMode))
        with self._lock:
            found = self._topologies.get(mode)
            place = machine or PRIVATE
            is_other = found is not None and (place.num_ranks > 1) != (found.num_ranks > 1)
            if found is None or (machine is not None and is_other):
                found = Topology.load(self.reader, mode, num_threads, place)
                self._topologies[mode] = found
            return found

    def fetch_unit(self, kind: Kind, name: str | os.PathLike[str] | None) -> None:
        """Copy packed epochs or partitions from where this copy of a store came from."""
        if self._origin is not None:
            with open_progress() as progress:
                stage_unit(self._origin, kind, self.path, name, progress)

    def free_topology(self) -> bool:
        """Free the adjacency in RAM unless something uses it; return whether it is gone."""
        with self._lock:
            if (found := self._topologies.pop("memory", None)) is None:
                return False
            used, found = weakref.ref(found), None
            if (still := used()) is not None:
                self._topologies["memory"] = still
            return still is None

    def topology_at_hand(self) -> Topology:
        """Return the adjacency in RAM if it has been read, else mapped."""
        return self._topologies.get("memory") or self.topology("mmap")

    # PyG's Data, read when it is used.

    if not TYPE_CHECKING:  # so that misspelt names are still found

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of nodes, edges or the graph under its name, as PyG's `Data`."""
            if not name.startswith("_") and name != "reader":
                schema = self.schema
                if schema.is_homogeneous:
                    if (found := self.value_of(schema.node, name)) is not None:
                        return found
                    for edge in schema.edge_types:
                        if name in edge.attributes:
                            return self.edges_of(edge, edge.attributes[name])
                        if self.has_value(edge, name):
                            return self.whole_value(edge, name)
                if name in schema.graph_attributes:
                    return decode_value(schema.graph_attributes[name])
                if name in schema.graph_arrays:
                    return self.whole_array(schema.graph_arrays[name])
                owners = [node.name for node in schema.node_types if name in node.attributes]
                if owners:
                    raise AttributeError(
                        f"the nodes of several types have attributes of their own: write "
                        f"store[{owners[0]!r}].{name}"
                    )
                is_dict = not schema.is_homogeneous and name.endswith("_dict")
                if is_dict and (by_type := self._by_type(name.removesuffix("_dict"))):
                    return by_type
                for node in schema.node_types:
                    refuse_scales(node, name)
                raise not_there("a GraphStore has no attribute", name, self._names())
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _names(self) -> set[str]:
        """Return the names that attributes can be asked for by."""
        schema = self.schema
        found = {*schema.graph_attributes, *schema.graph_arrays}
        of_nodes = {
            name for node in schema.node_types for own in self.names_of(node) for name in own
        }
        of_edges = {name for edge in schema.edge_types for name in (*edge.attributes, *edge.values)}
        if schema.is_homogeneous:
            found |= of_nodes | of_edges
        else:
            found |= {f"{name}_dict" for name in (*of_nodes, *of_edges, "edge_index", "num_nodes")}
        return found | {name for name in dir(type(self)) if not name.startswith("_")}

    def __contains__(self, name: object) -> bool:
        """Whether there is such an attribute of nodes, edges or the graph, as in PyG's `Data`.

        In a graph with types: whether there is such a type, or an attribute of the graph.
        """
        schema = self.schema
        graph = (*schema.graph_attributes, *schema.graph_arrays)
        if not schema.is_homogeneous:
            return name in (*self.node_types, *self.edge_types, *graph)
        if not isinstance(name, str) or name.startswith("_"):
            return False
        of_edges = (p for edge in schema.edge_types for p in (edge.attributes, edge.values))
        places = (graph, ("edge_index",), *of_edges, *self.names_of(schema.node))
        return any(name in place for place in places)

    def __iter__(self) -> NoReturn:
        """Refuse iteration, by which code of PyG's takes apart pairs of stores and data sets."""
        raise UsageError(
            f"{self.path}: a store cannot be iterated over; give (store, store) where a feature "
            "store and a graph store are expected, and store.to_pyg() where a Data is"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse new values of what is on disk, which no loader would see."""
        if "_schema" not in self.__dict__ or name.startswith("_"):
            super().__setattr__(name, value)
            return
        is_own = hasattr(type(self), name) and not _is_property(type(self), name)
        if is_own or name in _FIELDS:
            raise UsageError(
                f"{self.path}: {name!r} is a name of the store's own; assign to another name"
            )
        node = self.schema.node if self.schema.is_homogeneous else None
        is_assigned = node is not None and name in self.assigned.of_type(node.name)
        if not is_assigned and (name in self or _is_property(type(self), name)):
            if not is_same(getattr(self, name), value):
                raise immutable(self.path, f"{name!r} cannot be assigned to")
        elif self._is_of_edges(name, value):
            raise immutable(self.path, f"{name!r}: attributes of edges cannot be assigned")
        elif node is not None and self.assign(node, name, value):
            self.__dict__.pop(name, None)
        else:
            if node is not None:
                self.assigned.remove(node.name, name)
            super().__setattr__(name, value)

    def _is_of_edges(self, name: str, value: Any) -> bool:
        """Whether a value has a row for each edge; if it may be of nodes, the name decides."""
        rows = as_rows(value)
        if rows is None or len(rows) != self.num_edges:
            return False
        is_of_nodes = self.schema.is_homogeneous and len(rows) == self.num_nodes
        return not is_of_nodes or name.startswith("edge_")

    def to(self, device: int | str | torch.device, *_: str, non_blocking: bool = False) -> Self:  # noqa: ARG002
        """Return the store for the CPU, to which its tensors are read; it is on disk.

        Raises
        ------
        UsageError
            For another device; batches are moved there.
        """
        if torch.device(device).type != "cpu":
            raise UsageError(
                f"{self.path}: a store stays on disk and cannot be moved to {device}; move each "
                "batch (batch.to(device)), or the whole graph where it fits: "
                "store.to_pyg().to(device)"
            )
        return self

    def __delattr__(self, name: str) -> None:
        """Refuse to forget what is on disk."""
        if self.schema.is_homogeneous and self.assigned.remove(self.schema.node.name, name):
            return
        if name in self:
            raise undeletable(self.path, name)
        super().__delattr__(name)

    @property
    def num_edge_features(self) -> int:
        """Width of `edge_attr`; 0 where there is none."""
        return width(getattr(self, "edge_attr", None) if self.schema.edge_types else None)

    @property
    def num_classes(self) -> int:
        """Number of classes of `y`, as PyG counts them; 0 where there is none."""
        schema = self.schema
        if schema.is_homogeneous:
            return count_classes(getattr(self, "y", None))
        labelled = [node.name for node in schema.node_types if "y" in self[node.name]]
        if len(labelled) > 1:
            raise UsageError(
                f"{self.path}: nodes of several types have y: write "
                f"store[{labelled[0]!r}].num_classes"
            )
        return self[labelled[0]].num_classes if labelled else 0

    def to_pyg(self) -> Data | HeteroData:
        """Read the whole graph into a `Data`, or a `HeteroData` if it has types.

        Attributes, edges and values of the graph are as in the object it was made from, the
        edges in the order of their ids. Splits without a mask become masks, as in
        `train_mask` and `val_mask`.

        Raises
        ------
        BudgetError
            If it does not fit available memory.
        """
        data = read_graph(self.reader, self.schema, self.topology("mmap").csc)
        for name, value in self.graph_attributes().items():
            data[name] = value
        for node_type, name, each in self.assigned:
            (data if self.schema.is_homogeneous else data[node_type])[name] = each.read()
        return data

    # PyG's FeatureStore. A homogeneous store has no group and edge type names there (None).

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return PyG's description of each node attribute."""
        return [
            TensorAttr(group_name=None if self.schema.is_homogeneous else node.name, attr_name=name)
            for node in self.schema.node_types
            for name in (*node.attributes, *self.assigned.of_type(node.name))
        ]

    def _node_attribute_of(self, attr: TensorAttr) -> Tensor:
        by_name = {node.name: node for node in self.schema.node_types}
        node = self.schema.node if attr.group_name is None else by_name.get(attr.group_name)
        if node is not None and attr.attr_name in (own := self.assigned.of_type(node.name)):
            return LazyTensor(own[attr.attr_name])
        if node is not None and attr.attr_name in node.value_arrays:  # scales, perhaps
            return self.whole_array(node.value_arrays[attr.attr_name])
        if node is None or attr.attr_name not in node.attributes:
            if node is not None:
                refuse_scales(node, attr.attr_name, KeyError)
            raise KeyError(f"no tensor {attr.attr_name!r} of {attr.group_name!r} in {self.path}")
        return self.attribute_of(node.attributes[attr.attr_name])

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        index = attr.index if attr.is_set("index") else None
        found = self._node_attribute_of(attr)
        if index is not None:
            return found[index]
        return found.tensor() if isinstance(found, LazyTensor) else found

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        return tuple(self._node_attribute_of(attr).shape)

    def _immutable(self, *_: Any) -> bool:
        raise immutable(self.path)

    _put_tensor = _remove_tensor = _put_edge_index = _remove_edge_index = _immutable

    # PyG's GraphStore.

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Return PyG's description of each edge type: CSC, sorted."""
        counts = {node.name: node.num_nodes for node in self.schema.node_types}
        return [
            EdgeAttr(
                edge_type=None if self.schema.is_homogeneous else edge.type,
                layout=EdgeLayout.CSC,
                is_sorted=True,
                size=(counts[edge.source], counts[edge.target]),
            )
            for edge in self.schema.edge_types
        ]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        if edge_attr.layout is not EdgeLayout.CSC:
            return None
        if edge_attr.edge_type not in (None, *(edge.type for edge in self.schema.edge_types)):
            return None
        csc = self.topology("memory").columns(edge_attr.edge_type)
        # PyG expects int64 for both. Copies where indices are narrower, and where other processes
        # have the memory: torch has no tensors that cannot be written to.
        row, colptr = (np.require(each, np.int64, "W") for each in (csc.indices, csc.indptr))
        return torch.from_numpy(row), torch.from_numpy(colptr)


def _restored(
    reopen: Callable[..., GraphStore],
    arguments: tuple[Any, ...],
    assigned: AssignedAttributes,
    selected: tuple[str, ...] | None,
    choices: Choices,
) -> GraphStore:
    """Return a pickled store with what was assigned to it, and the attributes that it shows."""
    store = reopen(*arguments)
    store.__dict__.update(assigned=assigned, _choices=choices)
    return store.select(selected)


def _copied_again(origin: Origin, uuid: str) -> GraphStore:
    """Return a pickled store by the copy on this machine, which is made if there is none."""
    if (found := copy_of(uuid, origin.cache_dir)) is not None:
        return reopened(partial(_from, origin), str(found), uuid)
    return reopened(partial(open, cache_dir=origin.cache_dir), origin.place, uuid)


def _from(origin: Origin | None, copy: str | os.PathLike[str]) -> GraphStore:
    """Open a copy, and remember where it came from."""
    store = GraphStore(copy)
    store._origin = origin
    return store


def _is_property(of: type, name: str) -> bool:
    return isinstance(getattr(of, name, None), property | cached_property)


@limits_named("open the store")
def open(  # noqa: A001 - gnnstore.open is the point
    path: str | os.PathLike[str] | ObjectStore,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    decode: Decode = "input",
) -> GraphStore:
    """Open a store; public as `gnnstore.open`.

    A store that lies elsewhere is first copied to a disk of this machine, once for all processes,
    and every block is compared with its checksum.

    Parameters
    ----------
    path : path-like, str or store of obstore
        The store's directory, as `gnnstore convert` made it; its URL (s3://, gs://, az:// or
        https://); or a store of obstore whose prefix is the directory.
    cache_dir : path-like, optional
        Directory on a disk of this machine for copies, which stay there. By default a path is read
        where it is, and others are copied to gnnstore-UID in the directory of temporary files.
    decode : "input", "float16", "bfloat16", "float32" or None, or a dict of these
        The type in which node attributes of int8 whose columns have scales come out: "input" is the
        input's own. None: int8, with the scales of `x` as `x_scale`. A dict has the types of some
        attributes by name, such as "x", or by type and name, as "paper:x".

    Raises
    ------
    NotFoundError, UnsupportedVersionError, CorruptStoreError, StorageError
        See `StoreReader.open`. If bytes that arrive are not those that were written, they are used
        for nothing.
    NoSpaceError
        If the copy has no room.
    UsageError
        If the URL, `cache_dir` or `decode` cannot be used; the message names what to change.
    """
    if cache_dir is None and isinstance(path, str | os.PathLike) and not is_elsewhere(path):
        return GraphStore(path).decoded(decode)
    with open_progress() as progress:
        copy = stage(path, cache_dir, kind=STORE, progress=progress)
    return _from(origin_of(path, cache_dir), copy).decoded(decode)
