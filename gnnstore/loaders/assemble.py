"""The assembly of a sample and its rows into the `Data` or `HeteroData` that PyG's loader yields.

Only this module and the labels of a batch's seeds decide on its contents: names, order and element
types. A batch has all types of the graph, in its order, also types without a sampled node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from gnnstore import _core
from gnnstore._core import ReadCounts, empty
from gnnstore.errors import InputError, UsageError
from gnnstore.features.held import Split
from gnnstore.features.memory_rows import MemoryRows
from gnnstore.features.source import Decoding, Decodings, RowRequest, Rows, RowsMemory, RowSource
from gnnstore.formats import EDGE_TYPE, NODE_TYPE
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.scales import Scales
from gnnstore.formats.store.schema import EdgeType, EdgeTypeSpec, NodeTypeSpec, Schema
from gnnstore.graph.decoded import note_decoded
from gnnstore.graph.pyg_data import AssignedAttributes
from gnnstore.loaders.device import MissedRows, ScaledRows
from gnnstore.loaders.options import CsrEdges
from gnnstore.loaders.pinning import tensors_of
from gnnstore.nn.adjacency import AdjT, adjacency
from gnnstore.pipeline.batch import Batch, BatchCost
from gnnstore.sampling.neighbor import (
    EdgeSample,
    NodeType,
    Sample,
    each_type,
    only,
    with_reverse_edges,
)
from gnnstore.seeds.base import SeedLabels
from gnnstore.strategies.base import Sources
from gnnstore.units import format_count

_LOG = logging.getLogger(__name__)
# Called with the large arrays of a batch.
_Hold = Callable[[npt.NDArray[Any]], None]
# The split of a batch whose rows all come from the host's memory.
_WHOLE: Mapping[NodeType, Split] = {}


@dataclass(frozen=True)
class AttributeRows:
    """One attribute of nodes or edges: the source of its rows, and their form as a tensor."""

    path: str
    rows: RowSource
    # Whether values, unless still int8, are the bits of bfloat16, a type that NumPy lacks.
    is_bfloat16: bool
    cat_dim: int  # the row axis in the source data
    decoding: Decoding | None = None  # how int8 rows become numbers; None: they stay as stored

    @classmethod
    def all_of(
        cls,
        specs: Mapping[str, AttributeSpec],
        tables: Mapping[str, RowSource],
        scales: Mapping[str, Scales],
    ) -> dict[str, AttributeRows]:
        """Return the attributes of nodes or edges by name; tables and scales are by path."""
        return {
            name: cls(
                spec.path,
                tables[spec.path],
                spec.shown_dtype == "bfloat16",
                spec.cat_dim,
                Decoding.from_attribute(spec, scales),
            )
            for name, spec in specs.items()
        }

    @classmethod
    def of_nodes(
        cls, store: BatchSchema, node: NodeTypeSpec, tables: Mapping[str, RowSource]
    ) -> dict[str, AttributeRows]:
        """Return the attributes of a node type, those that were assigned to the store included."""
        found = cls.all_of(node.attributes, tables, store.column_scales)
        for name, value in store.assigned.of_type(node.name).items():
            rows, is_bfloat16 = MemoryRows(value.array), value.dtype == torch.bfloat16
            found[name] = cls(f"assigned/{node.name}/{name}", rows, is_bfloat16, 0)
        return found

    @cached_property
    def on_device(self) -> tuple[Tensor, torch.dtype] | None:
        """The scales with an axis for rows, and the type, by which a device decodes rows."""
        if self.decoding is None:
            return None
        scales = torch.from_numpy(self.decoding.scales)
        axis = self.cat_dim % (scales.dim() + 1)
        return scales.unsqueeze(axis), getattr(torch, self.decoding.dtype)


class Gathering:
    """The attributes of one batch: rows that its source provided, and others read by ids."""

    def __init__(
        self,
        rows: Mapping[str, Rows],
        hold: _Hold | None = None,
        memory: RowsMemory = empty,
        held: Container[str] = (),  # paths of tables with rows on a device
        *,
        decodes: bool = True,  # else a device does
    ) -> None:
        self._rows, self._held, self._decodes = rows, held, decodes
        self._hold, self._memory = hold, memory
        self._num_bytes, self._working_bytes, self._counts = 0, 0, ReadCounts()

    def tensors(
        self,
        attributes: Mapping[str, AttributeRows],
        ids: npt.NDArray[Any],
        split: Split | None = None,
    ) -> dict[str, Any]:
        """Return attributes by name, rows in the order of the ids; or a split's missed rows."""
        values: dict[str, Any] = {}
        for name, attribute in attributes.items():
            part = split if attribute.path in self._held else None
            wanted = ids if part is None else ids[part.missed]
            decoding = attribute.decoding if self._decodes else None
            known = self._rows.get(attribute.path)
            if known is None:
                known = attribute.rows.rows_of(RowRequest(wanted), decoding, self._memory)
            array, read = known
            if decoding is not None and array.dtype == attribute.rows.spec.dtype:
                array = decoding.decode(array, self._memory)
            if decoding is not None:
                self._working_bytes += len(array) * attribute.rows.spec.row_bytes
            if self._hold is not None:
                self._hold(array)
            tensor = torch.from_numpy(array)
            if attribute.is_bfloat16 and array.dtype != np.int8:
                tensor = tensor.view(torch.bfloat16)
            rows: Any = tensor
            if part is not None:
                rows = MissedRows(tensor, part, attribute.path, attribute.cat_dim)
            elif attribute.cat_dim not in (0, -tensor.dim()):
                rows = tensor.movedim(0, attribute.cat_dim).contiguous()
            if not self._decodes and attribute.on_device is not None:
                rows = ScaledRows(rows, *attribute.on_device)
            values[name] = rows
            self._num_bytes += tensor.nbytes
            self._counts += read
        return values

    def edge_ids(self, path: str, source: RowSource | None, positions: Tensor) -> Tensor:
        """Return the ids of edges at some positions, int64; without a source, the positions."""
        known = self._rows.get(path)
        if known is None and source is None:
            found = positions.to(torch.int64)
        else:
            ids, read = known or source.gather(positions.numpy())  # type: ignore[union-attr]
            self._counts += read
            if ids.dtype != np.int64:
                wide = empty(ids.shape, np.int64)
                np.copyto(wide, ids)
                ids = wide
            found = torch.from_numpy(ids)
        self._num_bytes += found.nbytes
        return found

    def note(self, cost: BatchCost) -> None:
        """Note what gathering took."""
        cost.bytes_gathered, cost.counts = self._num_bytes, self._counts
        cost.working_bytes = self._working_bytes


class BatchSchema(Protocol):
    """The parts of a graph that batches show, except rows: of a store, or of packed epochs."""

    @property
    def schema(self) -> Schema:
        """Attributes, and the element type of ids."""

    @property
    def assigned(self) -> AssignedAttributes:
        """Attributes of nodes that the user has assigned."""

    @property
    def column_scales(self) -> Mapping[str, Scales]:
        """The scales of attributes of int8, by path."""

    def graph_attributes(self) -> dict[str, Any]:
        """Return the graph-level attributes."""

    def values_of(self, own: NodeTypeSpec | EdgeTypeSpec) -> dict[str, Any]:
        """Return the values that belong to a type, and not to its nodes or edges."""


class Parts(NamedTuple):
    """The parts of a batch other than attributes, by type; n nodes or m edges of each."""

    node: Mapping[NodeType, Tensor]  # [n]
    edge_index: Mapping[EdgeType, Tensor]  # [2, m]
    edge: Mapping[EdgeType, Tensor | None]  # [m]: positions in the columns; None: no attributes
    batch: Mapping[NodeType, Tensor] | None  # [n]
    num_sampled_nodes: Mapping[NodeType, list[int]] | None
    num_sampled_edges: Mapping[EdgeType, list[int]] | None
    orig_edge_index: Mapping[EdgeType, Tensor] | None = None  # [2, m]

    @classmethod
    def from_sample(cls, sample: Sample, *, joins_reverse: bool) -> Parts:
        """Return the parts of a sample; they share its memory."""
        sampled = sample.edges
        if joins_reverse:
            sample = with_reverse_edges(sample)
        if not sampled and sample.nodes.keys() == {NODE_TYPE}:  # a `Data` has edges, if none
            hops = each_type(sample.hop_nodes, lambda num: [0] * (len(num) - 1))
            none = EdgeSample(np.empty((2, 0), np.int64), np.empty(0, np.int64))
            sampled = {EDGE_TYPE: none}
            hop_edges = None if hops is None else {EDGE_TYPE: hops[NODE_TYPE]}
            sample = replace(sample, edges=sampled, hop_edges=hop_edges)
        return cls(
            {name: torch.from_numpy(ids) for name, ids in sample.nodes.items()},
            {kind: torch.from_numpy(each.index) for kind, each in sample.edges.items()},
            {  # edges that were joined with their reverses have no ids
                kind: torch.from_numpy(each.positions) if each is sampled[kind] else None
                for kind, each in sample.edges.items()
            },
            each_type(sample.trees, torch.from_numpy),
            sample.hop_nodes,
            sample.hop_edges,
        )

    def output(self, metadata: Any, *, is_homogeneous: bool) -> SamplerOutput | HeteroSamplerOutput:
        """Return the output of PyG's samplers, except that `edge` holds positions in columns."""
        values: dict[str, Any] = {
            "node": self.node,
            "row": {kind: index[0] for kind, index in self.edge_index.items()},
            "col": {kind: index[1] for kind, index in self.edge_index.items()},
            "edge": self.edge,
            "batch": self.batch,
            "num_sampled_nodes": each_type(self.num_sampled_nodes, list),
            "num_sampled_edges": each_type(self.num_sampled_edges, list),
        }
        make = only if is_homogeneous else dict
        values = {name: None if value is None else make(value) for name, value in values.items()}
        return (SamplerOutput if is_homogeneous else HeteroSamplerOutput)(
            **values, metadata=metadata
        )


class Assembler:
    """Assembles the batches of one loader. Safe to use from many threads at once."""

    def __init__(
        self,
        store: BatchSchema,
        sources: Sources,
        data_class: Any = None,
        csr: CsrEdges | None = None,
        subgraph_type: str = "directional",
    ) -> None:
        self._arguments = (store, sources, data_class, csr, subgraph_type)
        schema = store.schema
        _refuse_labels_of_no_nodes(schema)
        self._is_homogeneous = schema.is_homogeneous
        base = Data if self._is_homogeneous else HeteroData
        self._data_class = checked_class(data_class or base, base)
        # The samples of graphs of one type have the reverse edges.
        self._joins_reverse = subgraph_type == "bidirectional" and not self._is_homogeneous
        self._shows_ids = sources.e_id is not None
        self._held = () if sources.chosen is None else sources.chosen.tables.owners
        self._csr = csr
        self._nodes = {
            node.name: AttributeRows.of_nodes(store, node, sources.tables)
            for node in schema.node_types
        }
        self._edges = {
            edge.type: AttributeRows.all_of(edge.attributes, sources.tables, {})
            for edge in schema.edge_types
        }
        # Ids of edges, and the paths of these; without, positions are ids.
        self._edge_ids = {
            edge.type: (
                edge.edge_id.path if edge.edge_id is not None and sources.e_id == "input" else "",
                sources.edge_ids.get(edge.type),
            )
            for edge in schema.edge_types
        }
        if self._is_homogeneous and not self._edges:
            self._edges[EDGE_TYPE], self._edge_ids[EDGE_TYPE] = {}, ("", None)
        self._decoded = {  # node types with rows that come decoded
            name for name, own in self._nodes.items() if any(each.decoding for each in own.values())
        }
        self._graph_level = store.graph_attributes()
        self._of_type = _whole_values(store)
        of_all = schema.explicit_num_nodes
        self._explicit_num_nodes = {
            node.name
            for node in schema.node_types
            if (of_all if self._is_homogeneous else node.explicit_num_nodes)
        }

    @cached_property
    def decodings(self) -> Decodings:
        """How rows of nodes are decoded, unless a device does it."""
        attributes = (each for own in self._nodes.values() for each in own.values())
        return {each.path: each.decoding for each in attributes if each.decoding is not None}

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process opens the store itself; nothing large is pickled.
        return (type(self), self._arguments)

    def shared_tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that all batches have: values of the graph or of a type, and scales."""
        scales = [
            each.on_device for attributes in self._nodes.values() for each in attributes.values()
        ]
        return tensors_of([self._graph_level, *self._of_type.values(), *filter(None, scales)])

    def assemble(self, batch: Batch, hold: _Hold | None = None) -> None:
        """Set a batch's output to its sample with the attributes."""
        sample, labels = batch.sample, batch.labels
        assert sample is not None and labels is not None  # noqa: S101, PT018 - it is prepared
        parts = Parts.from_sample(sample, joins_reverse=self._joins_reverse)
        memory, splits, is_on_host = batch.rows_memory, batch.split or {}, batch.staged is None
        batch.output = self.join(
            parts,
            labels,
            batch.rows,
            batch.cost,
            hold,
            memory,
            splits,
            decodes=is_on_host,
        )

    def output_of(self, sample: Sample, metadata: Any) -> Any:
        """Return a sample as PyG's samplers do, except that `edge` holds positions in columns."""
        parts = Parts.from_sample(sample, joins_reverse=self._joins_reverse)
        return parts.output(metadata, is_homogeneous=self._is_homogeneous)

    def parts_from(self, output: Any) -> Parts:
        """Return the parts of a sampler's output; types that are not in it have no edges."""
        node_types, edge_types = tuple(self._nodes), tuple(self._edges)

        def by_type(value: Any, types: tuple[Any, ...]) -> Any:
            if not self._is_homogeneous:
                return value
            return None if value is None else dict.fromkeys(types, value)

        none = torch.empty(0, dtype=torch.long, device="cpu")
        nodes, edges = by_type(output.node, node_types), by_type(output.edge, edge_types) or {}
        rows, cols = by_type(output.row, edge_types), by_type(output.col, edge_types)
        original = None
        if output.orig_row is not None and output.orig_col is not None:
            columns = by_type(output.orig_col, edge_types)
            original = {
                kind: torch.stack([row, columns[kind]])
                for kind, row in by_type(output.orig_row, edge_types).items()
            }
        ids = {kind: edges.get(kind, None if kind in rows else none) for kind in edge_types}
        return Parts(
            {name: nodes.get(name, none).contiguous() for name in node_types},
            {
                kind: edge_index_of(rows[kind], cols[kind])
                if kind in rows
                else torch.stack([none] * 2)
                for kind in edge_types
            },
            {kind: None if found is None else found.contiguous() for kind, found in ids.items()},
            by_type(output.batch, node_types),
            by_type(output.num_sampled_nodes, node_types),
            by_type(output.num_sampled_edges, edge_types),
            original,
        )

    def selections(self, sample: Sample, parts: Parts) -> Iterator[tuple[Any, ...]]:
        """Yield for each type its name in words, attribute paths, ids in a sample and in parts."""
        for name, attributes in self._nodes.items():
            what = "nodes" if self._is_homogeneous else f"nodes of {name!r}"
            paths = {each.path for each in attributes.values()}
            yield what, paths, sample.nodes[name], parts.node[name]
        for kind in sample.edges:
            attributes = self._edges[kind]
            what = "edges" if self._is_homogeneous else f"edges of {kind}"
            paths = {each.path for each in attributes.values()} | {self._edge_ids[kind][0]}
            yield what, paths, sample.edges[kind].positions, parts.edge[kind]

    def join(  # noqa: PLR0917
        self,
        parts: Parts,
        labels: SeedLabels,
        rows: Mapping[str, Rows],
        cost: BatchCost,
        hold: _Hold | None = None,
        memory: RowsMemory = empty,
        splits: Mapping[NodeType, Split] = _WHOLE,
        *,
        decodes: bool = True,
    ) -> Any:
        """Return a subgraph with its attributes; attributes not in `rows` are read by ids."""
        gathering = Gathering(rows, hold, memory, self._held, decodes=decodes)
        csr = self._csr
        # Before rows are gathered, while edges are in the processor's cache.
        matrices = {
            kind: self._matrix(parts, kind)
            for kind, attributes in self._edges.items()
            if csr is not None and csr.value not in attributes
        }
        nodes: dict[NodeType, dict[str, Any]] = {
            name: self._of_type[name]
            | gathering.tensors(attributes, parts.node[name].numpy(), splits.get(name))
            for name, attributes in self._nodes.items()
        }
        edges, ids = {}, {}
        for kind, attributes in self._edges.items():
            values: dict[str, Any] = {**self._of_type.get(kind, {})}
            if csr is None:
                values["edge_index"] = parts.edge_index[kind]
            if (positions := parts.edge[kind]) is not None:
                values |= gathering.tensors(attributes, positions.numpy())
                if self._shows_ids:
                    ids[kind] = gathering.edge_ids(*self._edge_ids[kind], positions)
            if csr is not None:
                adj_t = matrices.get(kind)
                values["adj_t"] = (
                    self._matrix(parts, kind, csr.take_values(values)) if adj_t is None else adj_t
                )
            edges[kind] = values
        data = self._data_class()
        if self._is_homogeneous:
            ((name, values),), ((kind, of_edges),) = nodes.items(), edges.items()
            values |= {**of_edges, **self._graph_level}
            self._write(data, values, parts, name, kind, ids.get(kind))
        else:
            for key, value in self._graph_level.items():
                data._global_store[key] = value
            for name, values in nodes.items():
                self._write(data[name], values, parts, name)
            for kind, values in edges.items():
                self._write(data[kind], values, parts, None, kind, ids.get(kind))
        labels.label(data)
        gathering.note(cost)
        return data

    def _write(  # noqa: PLR0917
        self,
        store: Any,
        values: dict[str, Any],
        parts: Parts,
        name: NodeType | None,
        kind: EdgeType | None = None,
        e_id: Tensor | None = None,
    ) -> None:
        """Write attributes on a `Data` or a type's store, then what PyG writes last.

        The user's `n_id` and `e_id` stay. Attributes without a value are dropped.
        """
        if name is not None:
            if name in self._explicit_num_nodes:
                values["num_nodes"] = len(parts.node[name])
            values.setdefault("n_id", parts.node[name])
        if e_id is not None:
            values.setdefault("e_id", e_id)
        last: tuple[tuple[str, Any, Any], ...] = (
            ("batch", parts.batch, name),
            ("num_sampled_nodes", parts.num_sampled_nodes, name),
            ("num_sampled_edges", parts.num_sampled_edges, kind),
        )
        for key, by_type, of in last:
            if of is not None and (by_type is not None or self._is_homogeneous):
                values[key] = None if by_type is None else by_type.get(of)
        for key, value in values.items():
            if value is not None:
                store[key] = value
        if name in self._decoded:
            note_decoded(store)
        if kind is not None and parts.orig_edge_index is not None:
            if self._is_homogeneous:
                store._orig_edge_index = parts.orig_edge_index[kind]
            elif kind in parts.orig_edge_index:
                store["_orig_edge_index"] = parts.orig_edge_index[kind]

    def _matrix(self, parts: Parts, kind: EdgeType, values: Tensor | None = None) -> AdjT:
        source, _, target = kind
        size = (len(parts.node[target]), len(parts.node[source]))
        nodes, edges = parts.num_sampled_nodes or {}, parts.num_sampled_edges or {}
        return adjacency(
            parts.edge_index[kind].numpy(),
            size,
            nodes.get(source),
            edges.get(kind),
            values,
            edge_type=None if self._is_homogeneous else kind,
        )


def _refuse_labels_of_no_nodes(schema: Schema) -> None:
    """Refuse labels of another length than nodes: a batch would have all labels of the graph.

    A `y` of one row is a label of the graph.
    """
    for node in schema.node_types:
        arrays = schema.graph_arrays if schema.is_homogeneous else node.value_arrays
        y = arrays.get("y")
        if y is not None and y.num_rows not in (1, node.num_nodes):
            what = "nodes" if schema.is_homogeneous else f"nodes of {node.name!r}"
            raise InputError(
                f"y has {format_count(y.num_rows, 'row')}, and there are {node.num_nodes} {what}; "
                "convert the graph anew with a label for each node, or under another name than 'y'"
            )


def _whole_values(store: BatchSchema) -> dict[str | EdgeType, dict[str, Any]]:
    """Return the values of types, without lists that have an entry for each node or edge."""
    schema = store.schema
    found: dict[str | EdgeType, dict[str, Any]] = {}
    left: list[str] = []
    types: list[tuple[str | EdgeType, NodeTypeSpec | EdgeTypeSpec, int]] = [
        (node.name, node, node.num_nodes) for node in schema.node_types
    ]
    types += [(edge.type, edge, edge.num_edges) for edge in schema.edge_types]
    for key, own, num_rows in types:
        values = store.values_of(own)
        lists = {name for name, value in values.items() if isinstance(value, list | tuple)}
        long = [name for name in values if name in lists and len(values[name]) == num_rows]
        found[key] = {name: value for name, value in values.items() if name not in long}
        left += long
    if left:
        _LOG.warning(
            "batches are without %s, lists as long as the graph: look values up in the store's, by "
            "n_id of nodes or e_id of edges",
            ", ".join(left),
        )
    return found


@dataclass(frozen=True)
class OutputAssembler:
    """The round trip through PyG's `SamplerOutput`, which `transform_sampler_output` may change."""

    assembler: Assembler
    # Returns the error for rows that the batch does not have; None: they are read.
    refusal: Callable[[str], Exception] | None = None

    def output(self, batch: Batch) -> Any:
        """Return a sample as PyG's samplers do, except that `edge` holds positions in columns."""
        sample, labels = batch.sample, batch.labels
        assert sample is not None and labels is not None  # noqa: S101, PT018 - it is prepared
        return self.assembler.output_of(sample, labels.metadata())

    def assemble_output(self, batch: Batch, output: Any) -> None:
        """Set a batch's output, with the rows that its changed ids select."""
        sample, labels = batch.sample, batch.labels
        assert sample is not None and labels is not None  # noqa: S101, PT018 - it is prepared
        parts = self.assembler.parts_from(output)
        rows: dict[str, Rows] = {}
        for selection in self.assembler.selections(sample, parts):
            rows |= self._reselected(batch.rows, *selection)
        labels = labels.from_metadata(output.metadata)
        batch.output = self.assembler.join(parts, labels, rows, batch.cost)

    def join(self, output: Any, labels: SeedLabels) -> Any:
        """Return the batch of an output."""
        parts = self.assembler.parts_from(output)
        return self.assembler.join(parts, labels, {}, BatchCost())

    def _reselected(
        self,
        rows: Mapping[str, Rows],
        what: str,
        paths: set[str],
        ids: npt.NDArray[Any],
        wanted: Tensor | None,  # None: they have no attributes
    ) -> dict[str, Rows]:
        """Return the provided rows of the ids in a changed output."""
        provided = {path: rows[path] for path in paths if path in rows}
        if wanted is None:
            return {}
        chosen = wanted.numpy()
        if not provided or np.array_equal(chosen, ids):
            return provided
        places = _core.places_of(chosen, ids)
        if (places >= 0).all():
            return {path: Rows(values[places], reads) for path, (values, reads) in provided.items()}
        if self.refusal is not None:
            raise self.refusal(f"{what} for transform_sampler_output to add to a batch")
        return {}


def checked_class(data_class: Any, wanted: type) -> Any:
    """Refuse a value that is not a class of `Data` or `HeteroData`, before the first batch."""
    problem = "it is not a subclass"
    if isinstance(data_class, type) and issubclass(data_class, wanted):
        try:
            data_class()
        except TypeError as error:
            problem = str(error)
        else:
            return data_class
    raise UsageError(
        f"custom_cls={data_class!r}: expected torch_geometric.data.{wanted.__name__} or a "
        f"subclass that is made without arguments: {problem}"
    )


def edge_index_of(row: Tensor, col: Tensor) -> Tensor:
    """Return `row` and `col` as one tensor [2, E]: their common base, or a new one."""
    base = row._base
    if (
        base is not None
        and base is col._base
        and base.shape == (2, row.numel())
        and (row.data_ptr(), col.data_ptr()) == (base[0].data_ptr(), base[1].data_ptr())
    ):
        return base
    return torch.stack([row, col])
