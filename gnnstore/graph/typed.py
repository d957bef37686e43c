"""What `store["paper"]` and `store["author", "writes", "paper"]` give: the data of one type."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch_geometric.data.feature_store import AttrView, TensorAttr

from gnnstore.errors import UsageError, limits_named
from gnnstore.formats import EdgeTypeSpec, NodeTypeSpec
from gnnstore.graph.arrays import NodeIds, Splits, Texts
from gnnstore.graph.decoded import refuse_scales
from gnnstore.graph.lazy import LazyTensor
from gnnstore.graph.pyg_data import EdgeIndex, not_there, spec_of, undeletable
from gnnstore.units import format_count

if TYPE_CHECKING:
    from gnnstore.formats.store.schema import EdgeType


class NodeData:
    """What a store has of the nodes of one type."""

    _store: Any
    _node: NodeTypeSpec

    @property
    def features(self) -> LazyTensor:
        """The node features, PyG's `x`, read when they are used: `store.features[ids]`."""
        return self._attribute("x")

    def _attribute(self, name: str) -> LazyTensor:
        node, store = self._node, self._store
        spec = spec_of(store.path, node.name, name, node.attributes)
        return store.attribute_of(spec)  # type: ignore[no-any-return]

    @property
    def labels(self) -> Tensor:
        """The node labels, PyG's `y`, whole; [N] or [N, tasks]. Do not write to it."""
        return self._attribute("y").tensor()

    @property
    def num_node_features(self) -> int:
        """Width of `x`; 0 where there is none."""
        return width(self._store.value_of(self._node, "x"))

    num_features = num_node_features

    @property
    def splits(self) -> Splits:
        """Node ids of each split, int64."""
        return Splits(self._store.reader, self._node)

    @property
    def original_ids(self) -> npt.NDArray[np.int64] | None:
        """Ids of the nodes in the original data, int64 [N]; None where they are the same."""
        spec = self._node.original_id
        return None if spec is None else self._store.reader.read(spec)

    @limits_named("look original ids up")
    def ids_of(self, original: Any) -> Any:
        """Return the nodes that have these ids or names in the original data.

        It reverses `original_ids`, and `original_names` of text.

        Parameters
        ----------
        original : Tensor, ndarray or list of integers, or of str, any shape
            Ids or names in the original data; they may repeat.

        Returns
        -------
        Tensor or ndarray of int64, of the same shape
            A tensor for a tensor.

        Raises
        ------
        InputError
            If they are neither integers nor text; naming ids or names that no node has.
        """
        return self._node_ids.find(original)

    @cached_property
    def _node_ids(self) -> NodeIds:
        node = self._node
        return NodeIds(self._store.reader, node.original_id, node.num_nodes, node.original_name)

    @property
    def whole_ids(self) -> npt.NDArray[Any] | None:
        """Ids of the nodes in the whole store, int32 or int64 [N], of a store that is a part."""
        part = self._store.schema.part
        return None if part is None else self._store.reader.read(part.whole_id)

    @property
    def original_names(self) -> Texts | None:
        """Names of the nodes in the original data, by id; None where they had none."""
        spec = self._node.original_name
        return None if spec is None else Texts(self._store.reader, spec)


class EdgeData:
    """What a store has of the edges of one type."""

    __slots__ = ()

    _store: Any
    _edge: EdgeTypeSpec

    @property
    def original_edge_ids(self) -> LazyTensor | None:
        """Ids of the edges in the original data, by position: `store.original_edge_ids[positions]`.

        They are read from disk. None where positions are the ids. Positions are what batches have
        as `e_id` in a reordered or split store, and in others with `edge_ids="store"`.
        """
        spec = self._edge.ids_in_input
        return None if spec is None else self._store.attribute_of(spec)

    @property
    def edge_index(self) -> LazyTensor:
        """Source and target of each edge, [2, E], in the order of the edges' ids."""
        return LazyTensor(EdgeIndex(self._store, self._edge))


def width(values: Any) -> int:
    """Return the number of features of a table, as PyG counts them."""
    if not isinstance(values, Tensor):
        return 0
    return values.shape[-1] if values.dim() > 1 else 1


def count_classes(y: Any) -> int:
    """Return the number of classes of labels, as PyG counts them."""
    if not isinstance(y, Tensor) or not y.numel():
        return 0
    if y.dim() and y.numel() > y.size(0):
        return y.size(-1)
    labels = (y.tensor() if isinstance(y, LazyTensor) else y).reshape(-1)
    if labels.is_floating_point():
        return len(labels[~labels.isnan()].unique())  # NaN: a node without a class
    return int(labels.numpy().max()) + 1  # torch has no max of uint16


class NodeView(NodeData, AttrView):  # type: ignore[misc]
    """The nodes of one type, and PyG's view of their attributes: `store["paper"].x[ids]`."""

    if TYPE_CHECKING:  # the names to which PyG gives types; others are of any type
        x: LazyTensor
        y: LazyTensor
        pos: LazyTensor
        time: LazyTensor
        train_mask: Tensor
        val_mask: Tensor
        test_mask: Tensor

    def __init__(self, store: Any, node: NodeTypeSpec) -> None:
        super().__init__(store, TensorAttr(node.name))
        self.__dict__["_node"] = node

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the type."""
        return self._node.num_nodes

    @property
    def num_classes(self) -> int:
        """Number of classes of `y`, as PyG counts them; 0 where there is none."""
        return count_classes(self._store.value_of(self._node, "y"))

    def __getattr__(self, name: Any) -> Any:
        """Return an attribute of the nodes, or a split as a mask."""
        if self._attr.is_set("attr_name"):
            return super().__getattr__(name)
        if isinstance(name, str) and name in self:
            return self._store.value_of(self._node, name)
        places = self._store.names_of(self._node)
        refuse_scales(self._node, name)
        names = {each for place in places for each in place} | set(dir(type(self)))
        raise not_there(f"nodes of type {self._node.name!r} have no", name, names)

    def __contains__(self, name: object) -> bool:
        return any(name in names for names in self._store.names_of(self._node))

    def __repr__(self) -> str:
        node = self._node
        attributes = tuple(node.attributes)
        return f"NodeView({node.name!r}, num_nodes={self.num_nodes}, attributes={attributes})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Let batches show a tensor with a row for each node; set PyG's fields of the view."""
        if name in self._attr.__dataclass_fields__:
            super().__setattr__(name, value)
        elif hasattr(type(self), name) or not self._store.assign(self._node, name, value):
            raise UsageError(
                f"{self._store.path}: {name!r} of {self._node.name!r} cannot be assigned to; what "
                "can be are tensors with a row for each of its "
                f"{format_count(self.num_nodes, 'node')}"
            )

    def __delattr__(self, name: str) -> None:
        """Forget what was assigned."""
        if not self._store.assigned.remove(self._node.name, name):
            if name in self:
                raise undeletable(self._store.path, name)
            raise AttributeError(f"nothing was assigned to {name!r} of {self._node.name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeView, (self._store, self._node)


class EdgeView(EdgeData):
    """The edges of one type; attributes in the order of edge ids, as PyG's `HeteroData` has them.

    Attributes are read when they are used: `store["author", "writes", "paper"].edge_attr[ids]`.
    """

    __slots__ = ("_edge", "_store")  # to assign to other names is an error

    def __init__(self, store: Any, edge: EdgeTypeSpec) -> None:
        self._store = store
        self._edge = edge

    @property
    def type(self) -> EdgeType:
        """Source type, relation, target type."""
        return self._edge.type

    @property
    def num_edges(self) -> int:
        """Number of edges of the type."""
        return self._edge.num_edges

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the attributes."""
        return tuple(self._edge.attributes)

    @property
    def times(self) -> tuple[str, ...]:
        """Time attributes by which the edges are ordered: what `time_attr=` of a loader can be."""
        return tuple(self._edge.orders)

    @property
    def weights(self) -> tuple[str, ...]:
        """Weight attributes with sums: what `weight_attr=` of a loader can be."""
        return tuple(self._edge.weight_sums)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of the edges."""
            if not name.startswith("_") and name in self._edge.attributes:
                return self._store.edges_of(self._edge, self._edge.attributes[name])
            if not name.startswith("_") and self._store.has_value(self._edge, name):
                return self._store.whole_value(self._edge, name)
            if name.startswith("_"):
                raise AttributeError(f"edges of a type have no {name!r}")
            names = {*self._edge.attributes, *self._edge.values, *self._edge.value_arrays}
            raise not_there(f"edges of type {self.type} have no", name, names | set(dir(EdgeView)))

    def __contains__(self, name: object) -> bool:
        is_attribute = name == "edge_index" or name in self._edge.attributes
        return is_attribute or self._store.has_value(self._edge, name)

    def __delattr__(self, name: str) -> None:
        """Refuse to forget what is on disk."""
        if name in self:
            raise undeletable(self._store.path, name)
        super().__delattr__(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return EdgeView, (self._store, self._edge)

    def __repr__(self) -> str:
        return f"EdgeView({self.type}, num_edges={self.num_edges}, attributes={self.attributes})"
