"""The manifest of a store, and its schema: node and edge types, and where their arrays lie.

The schema is plain data. Converters build one, the manifest carries it as JSON, and
everything that reads a store starts from it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from gnnstore.errors import CorruptStoreError, InputError, UsageError, did_you_mean
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.spec import AttributeSpec, DecodedDtype, Scaled
from gnnstore.formats.base.strict_json import Fields
from gnnstore.formats.container.manifest import Manifest
from gnnstore.units import format_count

ID_DTYPES = ("int32", "int64")
# The arrays of source nodes, of target nodes, and of other numbers, with their axes.
_SOURCES = {"source": 1, "source_negatives": 2, "negative_source": 1}
_TARGETS = {"target": 1, "target_negatives": 2, "negative_target": 1}
_PARTS = {**_SOURCES, **_TARGETS, "edge_id": 1}


@dataclass(frozen=True)
class EdgeSplitSpec:
    """The L edges of a split, by their ends; L is at least 1."""

    OMITTED: ClassVar[frozenset[str]] = frozenset(_PARTS) - {"source", "target"}

    source: AttributeSpec  # source nodes, [L]
    target: AttributeSpec  # target nodes, [L]
    edge_id: AttributeSpec | None = None  # positions in the original input, [L]
    source_negatives: AttributeSpec | None = None  # nodes [L, A] in place of each source
    target_negatives: AttributeSpec | None = None  # nodes [L, A] in place of each target
    # Sources and targets of negative edges [K] that all edges of the split share.
    negative_source: AttributeSpec | None = None
    negative_target: AttributeSpec | None = None
    # Attributes of the edges, [L, ...].
    attributes: Mapping[str, AttributeSpec] = field(default_factory=dict)

    @property
    def num_edges(self) -> int:
        """L, the number of edges."""
        return self.source.num_rows

    @property
    def _parts(self) -> dict[str, AttributeSpec]:
        found = {name: getattr(self, name) for name in _PARTS}
        return {name: spec for name, spec in found.items() if spec is not None}

    @property
    def sources(self) -> dict[str, AttributeSpec]:
        """The arrays of source nodes, by name."""
        return {name: spec for name, spec in self._parts.items() if name in _SOURCES}

    @property
    def targets(self) -> dict[str, AttributeSpec]:
        """The arrays of target nodes, by name."""
        return {name: spec for name, spec in self._parts.items() if name in _TARGETS}

    @property
    def negatives(self) -> dict[str, AttributeSpec]:
        """The arrays of fixed negatives, by name."""
        return {name: spec for name, spec in self._parts.items() if "negative" in name}

    def arrays(self) -> tuple[AttributeSpec, ...]:
        """Return every array of the split, in a fixed order."""
        return (*self._parts.values(), *self.attributes.values())

    def check(self, file: str) -> None:
        """Raise if the lengths of the arrays, or their types, contradict one another."""
        shared = self.negative_source, self.negative_target
        num_shared = max((spec.num_rows for spec in shared if spec), default=None)
        for name, spec in self._parts.items():
            num_rows = num_shared if spec in shared else self.num_edges
            spec.expect(file, (num_rows, *[None] * (_PARTS[name] - 1)), ID_DTYPES)
        for spec in self.attributes.values():
            spec.expect(file, (self.num_edges, ...))
        if (shared[0] is None) != (shared[1] is None) or any(
            0 in spec.shape for spec in self._parts.values()
        ):
            raise CorruptStoreError(
                f"{file}: the split of {self.source.path!r} has an empty array, or negative edges "
                "without sources or targets",
                path=file,
            )


FORMAT_VERSION = 1
SHARED_ATTRIBUTES = "shared-attributes"  # reverse types may share another type's
SCALES_SUFFIX = "_scale"
SCALED_ATTRIBUTES = "scaled-attributes"  # rows of int8 may be multiples of scales
WHOLE_IDS = "whole-ids"  # a store may be a part of another, whose ids key draws
NODE_TYPE = "node"
EDGE_TYPE = ("node", "to", "node")

T = TypeVar("T")


def scales_name(name: str) -> str:
    """Return the name of an attribute's scales, where batches show them."""
    return f"{name}{SCALES_SUFFIX}"


def _with_units(
    attributes: Mapping[str, AttributeSpec], units: Mapping[str, str]
) -> dict[str, AttributeSpec]:
    return {
        name: replace(spec, time_unit=units[name]) if name in units else spec
        for name, spec in attributes.items()
    }


def name_of_scales(owner: str, name: str) -> InputError:
    """Return the error for an owner that has something of the name of an attribute's scales."""
    own = scales_name(name)
    return InputError(
        f"{owner}: {own!r} is what batches call the scales of {name!r} where rows are not decoded; "
        f"convert with what has that name renamed, as 'own_{own}', or left out"
    )


IndexDtype = Literal["int64", "int32"]
EdgeType = tuple[str, str, str]  # source, relation, target


@dataclass(frozen=True)
class TextSpec:
    """Texts, one behind the other, and their offsets."""

    bytes: AttributeSpec  # UTF-8, uint8 [B]
    offsets: AttributeSpec  # int64 [N + 1]; text i is bytes[offsets[i]:offsets[i + 1]]

    def check(self, num_texts: int, file: str) -> None:
        """Raise unless the arrays are of the bytes of some texts."""
        self.bytes.expect(file, (None,), ("uint8",))
        self.offsets.expect(file, (num_texts + 1,), ("int64",))


@dataclass(frozen=True)
class NodeTypeSpec:
    """The nodes of one type: their number, attributes [N, ...], splits, original ids [N].

    Nodes whose original ids are texts have names [N] instead.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset(
        {"original_name", "explicit_num_nodes", "values", "value_arrays"}
    )

    name: str
    num_nodes: int
    attributes: Mapping[str, AttributeSpec] = field(default_factory=dict)
    splits: Mapping[str, AttributeSpec] = field(default_factory=dict)
    original_id: AttributeSpec | None = None
    original_name: TextSpec | None = None
    # In stores of several types: whether batches carry `num_nodes` of this type.
    explicit_num_nodes: bool = False
    # What the type has as a whole, not by node: values that JSON can hold, and arrays.
    values: Mapping[str, Any] = field(default_factory=dict)
    value_arrays: Mapping[str, AttributeSpec] = field(default_factory=dict)

    def check(self, file: str) -> None:
        """Raise if what nodes have is not of all of them."""
        for spec in (*self.attributes.values(), self.original_id):
            if spec is not None:
                spec.expect(file, (self.num_nodes, ...))
        if self.original_name is not None:
            self.original_name.check(self.num_nodes, file)

    def with_time_units(self, units: Mapping[str, str]) -> NodeTypeSpec:
        """Return the type with the units of some attributes, by name."""
        return replace(self, attributes=_with_units(self.attributes, units))

    def only(self, names: Container[str]) -> NodeTypeSpec:
        """Return the type with some attributes alone."""
        found = {name: spec for name, spec in self.attributes.items() if name in names}
        return replace(self, attributes=found)


@dataclass(frozen=True)
class EdgeTypeSpec:
    """The edges of one type in CSC form: columns are targets, `indices` their in-neighbours.

    Splits are of edges to predict. Where there are some and none is called "train", the edges of
    the graph are the training split.
    """

    # Fields that few stores have.
    OMITTED: ClassVar[frozenset[str]] = frozenset(
        {"splits", "value_names", "orders", "weight_sums", "original_id", "shared", "shared_row"}
        | {"values", "value_arrays"}
    )

    source: str
    relation: str
    target: str
    num_edges: int
    indptr: AttributeSpec
    indices: AttributeSpec
    edge_id: AttributeSpec | None = None
    attributes: Mapping[str, AttributeSpec] = field(default_factory=dict)
    splits: Mapping[str, EdgeSplitSpec] = field(default_factory=dict)
    value_names: Mapping[str, TextSpec] = field(default_factory=dict)
    # By time attribute: uint16 or uint32 [E]; in each column, the places of its edges by time.
    orders: Mapping[str, AttributeSpec] = field(default_factory=dict)
    # By weight attribute: uint64 [E]; in each column, the inclusive sums of the integer weights.
    weight_sums: Mapping[str, AttributeSpec] = field(default_factory=dict)
    # Ids in the original data of edges that are numbered by their positions here, [E].
    original_id: AttributeSpec | None = None
    # In a reverse type: the paths of the other type's arrays in which attributes have their rows,
    # by name; and int32 or int64 [E], the row of each edge there, perhaps `edge_id`.
    # What `attributes` has under these names has no files.
    shared: Mapping[str, str] = field(default_factory=dict)
    shared_row: AttributeSpec | None = None
    # What the type has as a whole, not by edge: values that JSON can hold, and arrays.
    values: Mapping[str, Any] = field(default_factory=dict)
    value_arrays: Mapping[str, AttributeSpec] = field(default_factory=dict)

    @property
    def type(self) -> EdgeType:
        """PyG's edge type: (source, relation, target)."""
        return (self.source, self.relation, self.target)

    @property
    def ids_in_input(self) -> AttributeSpec | None:
        """Ids of the edges in the original data; None where positions are the ids."""
        return self.original_id or self.edge_id

    def arrays(self) -> tuple[AttributeSpec, ...]:
        """Return the arrays of the adjacency, of the splits and of names, in a fixed order."""
        ids = [spec for spec in (self.edge_id, self.original_id) if spec]
        splits = (spec for split in self.splits.values() for spec in split.arrays())
        texts = (part for text in self.value_names.values() for part in (text.bytes, text.offsets))
        by_column = (*self.orders.values(), *self.weight_sums.values())
        attributes = self.own_attributes()
        attributes += [row for row in (self.shared_row,) if row and row not in ids]
        return (self.indptr, self.indices, *ids, *attributes, *splits, *texts, *by_column)

    def own_attributes(self) -> list[AttributeSpec]:
        """Return the attributes whose rows are the type's own."""
        return [spec for name, spec in self.attributes.items() if name not in self.shared]

    def with_time_units(self, units: Mapping[str, str]) -> EdgeTypeSpec:
        """Return the type with the units of some attributes, in splits too, by name."""
        splits = {
            name: replace(own, attributes=_with_units(own.attributes, units))
            for name, own in self.splits.items()
        }
        return replace(self, attributes=_with_units(self.attributes, units), splits=splits)

    def only(self, names: Container[str]) -> EdgeTypeSpec:
        """Return the type with some attributes alone."""
        shared = {name: path for name, path in self.shared.items() if name in names}
        return replace(
            self,
            attributes={name: spec for name, spec in self.attributes.items() if name in names},
            shared=shared,
            shared_row=self.shared_row if shared else None,
        )

    def check_shared(self, unshared: Mapping[str, AttributeSpec], file: str) -> None:
        """Raise if attributes with the rows of another type's arrays are not like these."""
        for name, path in self.shared.items():
            own, array = self.attributes.get(name), unshared.get(path)
            alike = own and array and own == replace(array, name=own.name, path=own.path)
            if not alike or self.shared_row is None:
                raise CorruptStoreError(
                    f"{file}: the attribute {name!r} of {self.type} shares the rows of {path!r}, "
                    "which is not the same attribute of another edge type",
                    path=file,
                )

    def check_splits(self, file: str) -> None:
        """Raise if splits, or the names of an attribute's values, contradict the rest."""
        for split in self.splits.values():
            split.check(file)
        for name, text in self.value_names.items():
            if not self.named_values(name):
                raise CorruptStoreError(
                    f"{file}: there are names of the values of {name!r}, but no such edge "
                    "attribute of integers",
                    path=file,
                )
            text.check(max(0, text.offsets.num_rows - 1), file)

    def named_values(self, name: str) -> list[AttributeSpec]:
        """Return the arrays of an integer attribute: of the edges, and of each split."""
        owners = (self.attributes, *(split.attributes for split in self.splits.values()))
        found = [own[name] for own in owners if name in own]
        return [spec for spec in found if STORAGE_DTYPES[spec.dtype].kind in "iu"]


@dataclass(frozen=True)
class PartSpec:
    """The part of another store that a store is: some seeds, and all within L hops of them.

    A node within L - 1 hops has all its in-neighbours, others have none.
    """

    store_uuid: str  # of the whole store
    num_nodes: Annotated[int, 1]  # of the whole store
    part: Annotated[int, 0]  # number of the part
    num_parts: Annotated[int, 1]
    num_hops: Annotated[int, 1]  # L
    split: str  # of the seeds
    # Ids in the whole store, int32 or int64 [N], ascending: they key the draws of sampling.
    whole_id: AttributeSpec

    def check(self, counts: Mapping[str, int], file: str) -> None:
        """Raise if the ids are not of some nodes of the whole store; `counts` are by type."""
        if counts.keys() != {NODE_TYPE}:
            raise CorruptStoreError(f"{file}: a part of a store whose nodes have types", path=file)
        num_nodes = counts[NODE_TYPE]
        self.whole_id.expect(file, (num_nodes,), ID_DTYPES)
        is_paged = self.whole_id.layout == "paged"
        if self.part >= self.num_parts or num_nodes > self.num_nodes or not is_paged:
            raise CorruptStoreError(
                f"{file}: part {self.part} of {self.num_parts} has {num_nodes} of "
                f"{self.num_nodes} nodes, with {self.whole_id.layout} ids in the whole store, "
                "which contradict one another",
                path=file,
            )


class SharedRows(NamedTuple):
    """Where the rows of an attribute are that has none of its own."""

    array: AttributeSpec  # the other type's
    rows: AttributeSpec  # int32 or int64 [E]: the row of each edge there


@dataclass(frozen=True)
class Schema:
    """The contents of a store."""

    OMITTED: ClassVar[frozenset[str]] = frozenset({"part"})

    node_types: tuple[NodeTypeSpec, ...]
    edge_types: tuple[EdgeTypeSpec, ...]
    # Graph-level values that JSON can hold.
    graph_attributes: Mapping[str, Any] = field(default_factory=dict)
    graph_arrays: Mapping[str, AttributeSpec] = field(default_factory=dict)  # graph-level tensors
    # Type of `edge_index` and `n_id` in batches, as in the source data.
    index_dtype: IndexDtype = "int64"
    # Whether the source data carried `num_nodes` as a value of its own, in which case PyG's batches
    # carry it too.
    explicit_num_nodes: bool = False
    part: PartSpec | None = None  # of another store, of a graph without types

    @property
    def node(self) -> NodeTypeSpec:
        """The only node type; code that calls this refuses stores of several."""
        return _only("node", self.node_types, [node.name for node in self.node_types])

    @property
    def edge(self) -> EdgeTypeSpec:
        """The only edge type; code that calls this refuses stores of several."""
        return _only("edge", self.edge_types, [edge.type for edge in self.edge_types])

    @property
    def is_homogeneous(self) -> bool:
        """Whether nodes and edges have no types, so that batches are `Data`, not `HeteroData`."""
        nodes, edges = (
            {node.name for node in self.node_types},
            {edge.type for edge in self.edge_types},
        )
        return nodes <= {NODE_TYPE} and edges <= {EDGE_TYPE}

    def refuse_types(self, label: object, what: str = "this") -> None:
        """Raise a `UsageError` that names the types, where `what` cannot use them."""
        if not self.is_homogeneous:
            nodes = ", ".join(node.name for node in self.node_types)
            edges = ", ".join("__".join(edge.type) for edge in self.edge_types)
            raise UsageError(
                f"{label}: the store has node types ({nodes}) and edge types ({edges}), and {what} "
                "works on graphs without types only: give it a store of one node type 'node' and "
                "one edge type"
            )

    def refuse_part(self, label: object, what: str) -> None:
        """Raise a `UsageError` if the store is a part of another, which `what` cannot use."""
        if self.part is not None:
            raise UsageError(
                f"{label} is part {self.part.part} of {self.part.num_parts} of the store "
                f"{self.part.store_uuid}: only its seeds have all their in-neighbours within "
                f"{format_count(self.part.num_hops, 'hop')}, and draws follow the ids of that "
                f"store, while {what} needs a graph of its own; give it the whole store"
            )

    def node_of(self, node_type: str) -> NodeTypeSpec:
        """Return the node type of a name; raise a `UsageError` with all names if there is none."""
        return _of("node", {node.name: node for node in self.node_types}, node_type)

    def edge_of(self, edge_type: EdgeType) -> EdgeTypeSpec:
        """Return an edge type; raise a `UsageError` with all types if there is none."""
        return _of("edge", {edge.type: edge for edge in self.edge_types}, edge_type)

    def node_attributes(self) -> list[AttributeSpec]:
        """Return the attributes of the nodes of all types."""
        return [spec for node in self.node_types for spec in node.attributes.values()]

    def edge_attributes(self) -> list[AttributeSpec]:
        """Return the attributes of the edges of all types."""
        return [spec for edge in self.edge_types for spec in edge.attributes.values()]

    @property
    def bytes_in_memory(self) -> int:
        """Bytes of the topology and attributes, of which a budget may be a share."""
        specs = [spec for edge in self.edge_types for spec in (edge.indptr, edge.indices)]
        specs += [spec for edge in self.edge_types for spec in edge.own_attributes()]
        return sum(spec.num_bytes for spec in (*specs, *self.node_attributes()))

    def owners(self) -> dict[str, str | EdgeType]:
        """Return the node type or edge type of each attribute, by its path."""
        found: dict[str, str | EdgeType] = {}
        for node in self.node_types:
            found |= {spec.path: node.name for spec in node.attributes.values()}
        for edge in self.edge_types:
            found |= {spec.path: edge.type for spec in edge.attributes.values()}
        return found

    def only(self, names: Container[str]) -> Schema:
        """Return the schema with some attributes of nodes and edges alone."""
        return replace(
            self,
            node_types=tuple(each.only(names) for each in self.node_types),
            edge_types=tuple(each.only(names) for each in self.edge_types),
        )

    def shared_rows(self) -> dict[str, SharedRows]:
        """Return where attributes of reverse types have their rows, if these are shared; by path.

        The rows of others lie at their own paths.
        """
        specs = {spec.path: spec for spec in self.edge_attributes()}
        return {
            edge.attributes[name].path: SharedRows(specs[path], edge.shared_row)
            for edge in self.edge_types
            for name, path in edge.shared.items()
            if edge.shared_row is not None
        }

    def scaled_attributes(self) -> list[tuple[AttributeSpec, Scaled]]:
        """Return the node attributes whose columns have scales, and these."""
        return [(spec, spec.scaled) for spec in self.node_attributes() if spec.scaled]

    @property
    def scaled_features(self) -> list[str]:
        """The reader feature by which `scaled` alone marks scales, if that matters here."""
        has_old_form = self.with_graph_scales(()) is not self
        return [SCALED_ATTRIBUTES] if self.scaled_attributes() or has_old_form else []

    def with_graph_scales(self, reader_features: Sequence[str]) -> Schema:
        """Return the schema with scales at their attributes that are graph-level arrays.

        So they were written at first, in graphs without types, without a reader feature.
        """
        if SCALED_ATTRIBUTES in reader_features or not self.is_homogeneous:
            return self
        arrays, found = dict(self.graph_arrays), {}
        for spec in self.node_attributes():
            scales = arrays.get(name := scales_name(spec.name))
            if scales is None or spec.scaled is not None:
                continue
            kinds = spec.dtype, scales.dtype, scales.layout
            if kinds == ("int8", "float32", "cold") and scales.shape == spec.shape[1:]:
                found[spec.name] = replace(spec, scaled=Scaled(arrays.pop(name), "float32"))
        if not found:
            return self
        node = replace(self.node, attributes={**self.node.attributes, **found})
        return replace(self, node_types=(node,), graph_arrays=arrays)

    def refuse_taken_names(self, label: object) -> None:
        """Raise an `InputError` if batches show something else by the name of scales."""
        for spec, owner in self.taken_names():
            raise name_of_scales(f"{label}: {owner}", spec.name)

    def taken_names(self) -> list[tuple[AttributeSpec, str]]:
        """Return attributes with scales, and who else has something of the name of these."""
        taken: dict[str, str] = {}
        if is_homogeneous := self.is_homogeneous:
            of_edges = (name for edge in self.edge_types for name in edge.attributes)
            taken = dict.fromkeys((*self.graph_attributes, *self.graph_arrays), "the graph")
            taken |= dict.fromkeys(of_edges, "edges")
        found = []
        for node in self.node_types:
            own = (*node.attributes, *node.values, *node.value_arrays)
            nodes = "nodes" if is_homogeneous else f"nodes of {node.name!r}"
            names = taken | dict.fromkeys(own, nodes)
            found += [
                (spec, names[name])
                for spec in node.attributes.values()
                if spec.scaled is not None and (name := scales_name(spec.name)) in names
            ]
        return found

    def decoding(self, choices: Mapping[str, DecodedDtype | None]) -> Schema:
        """Return the schema with the types that batches show scaled attributes in, by their paths.

        None: rows stay int8, and the scales of NAME are NAME_scale, which nodes have as a whole.
        """
        node_types = []
        for node in self.node_types:
            attributes, arrays = dict(node.attributes), dict(node.value_arrays)
            for name, spec in node.attributes.items():
                if spec.scaled is None or spec.path not in choices:
                    continue
                dtype, scales = choices[spec.path], spec.scaled.scales
                scaled = None if dtype is None else Scaled(scales, dtype)
                attributes[name] = replace(spec, scaled=scaled)
                if scaled is None:
                    arrays[scales_name(name)] = scales
            node_types.append(replace(node, attributes=attributes, value_arrays=arrays))
        return replace(self, node_types=tuple(node_types))

    def arrays(self) -> tuple[AttributeSpec, ...]:
        """Return every array of the store, in a fixed order."""
        found: list[AttributeSpec] = []
        for node in self.node_types:
            found += [*node.attributes.values(), *node.splits.values()]
            found += [node.original_id] if node.original_id else []
            if node.original_name is not None:
                found += [node.original_name.bytes, node.original_name.offsets]
        for edge in self.edge_types:
            found += edge.arrays()
        found += [] if self.part is None else [self.part.whole_id]
        return (*found, *self.whole_arrays())

    def whole_arrays(self) -> tuple[AttributeSpec, ...]:
        """Return the arrays that all batches share: of the graph, of types, and scales."""
        by_type = [node.value_arrays for node in self.node_types]
        by_type += [edge.value_arrays for edge in self.edge_types]
        scales = [scaled.scales for _, scaled in self.scaled_attributes()]
        of_types = [spec for own in by_type for spec in own.values()]
        return (*self.graph_arrays.values(), *of_types, *scales)

    @classmethod
    def from_json(cls, fields: Fields) -> Schema:
        """Check a parsed schema field by field."""
        return cls(**fields.values(cls)).checked(fields.path)

    def checked(self, file: str) -> Schema:
        """Return the schema if its facts agree with one another."""
        paths = [spec.path for spec in self.arrays()]
        if len(set(paths)) != len(paths):
            raise CorruptStoreError(f"{file}: two arrays of the schema share a path", path=file)
        counts = {node.name: node.num_nodes for node in self.node_types}
        if len(counts) != len(self.node_types):
            raise CorruptStoreError(f"{file}: two node types share a name", path=file)
        for node in self.node_types:
            node.check(file)
        self._check_scales(file)
        unshared = {spec.path: spec for edge in self.edge_types for spec in edge.own_attributes()}
        for edge in self.edge_types:
            missing = {edge.source, edge.target} - counts.keys()
            if missing:
                raise CorruptStoreError(
                    f"{file}: edge type {edge.type} names unknown node types {sorted(missing)}",
                    path=file,
                )
            edge.check_shared(unshared, file)
            edge.indptr.expect(file, (counts[edge.target] + 1,), ("int64",))
            for specs, dtypes in (
                ((edge.indices, edge.edge_id, edge.original_id, edge.shared_row), ID_DTYPES),
                (edge.orders.values(), ("uint16", "uint32")),
                (edge.weight_sums.values(), ("uint64",)),
            ):
                for own in filter(None, specs):
                    own.expect(file, (edge.num_edges,), dtypes)
            for spec in edge.attributes.values():
                spec.expect(file, (edge.num_edges, ...))
            edge.check_splits(file)
        if self.part is not None:
            self.part.check(counts, file)
        return self

    def _check_scales(self, file: str) -> None:
        for spec, scaled in self.scaled_attributes():
            scaled.check(spec, file)
        if bad := [spec.path for spec in self.edge_attributes() if spec.scaled]:
            raise CorruptStoreError(
                f"{file}: the edge attribute {bad[0]!r} has scales, which only nodes' may have",
                path=file,
            )


def _only(kind: str, types: tuple[T, ...], names: Sequence[object]) -> T:
    if len(types) == 1:
        return types[0]
    raise UsageError(
        f"the store has {len(types)} {kind} types ({', '.join(map(str, names))}) where exactly one "
        "was expected; name a type, as in store['paper'], or give a graph without types"
    )


def _of(kind: str, types: Mapping[Any, T], asked: object) -> T:
    if asked in types:
        return types[asked]
    names = ", ".join(map(repr, types)) or "none"
    meant = did_you_mean(asked, types)
    raise UsageError(f"the store has no {kind} type {asked!r}{meant}; there are: {names}")


@dataclass(frozen=True, kw_only=True)
class StoreManifest(Manifest):
    """Identity, contents and files of a store."""

    FORMAT: ClassVar[str] = "gnnstore"
    READER_FEATURES: ClassVar[frozenset[str]] = frozenset(
        {SHARED_ATTRIBUTES, SCALED_ATTRIBUTES, WHOLE_IDS}
    )
    VERSION: ClassVar[int] = FORMAT_VERSION
    WORD: ClassVar[str] = "store"
    VERB: ClassVar[str] = "convert"
    MAKE: ClassVar[str] = "make one with 'gnnstore convert' (see 'gnnstore convert --help')"

    provenance: Mapping[str, Any] = field(default_factory=dict)  # origin of the data
    schema: Schema  # node types, edge types, attributes

    @classmethod
    def parse(cls, own: Fields) -> Mapping[str, Any]:
        """Check the fields of a store, and return them as arguments of the class."""
        found = own.values(cls, Manifest)
        schema = found["schema"].with_graph_scales(own.texts("reader_features"))
        return {**found, "schema": schema}

    def arrays(self) -> tuple[AttributeSpec, ...]:
        """Return every array of the schema."""
        return self.schema.arrays()
