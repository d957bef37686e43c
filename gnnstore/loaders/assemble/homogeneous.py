"""The assembly of a sampled subgraph into the `Data` object that PyG's own loader would yield.

Only this folder and the labels of a batch's seeds decide on its contents: names, order and
element types. `hetero.py` builds on what is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput

from gnnstore._core import ReadCounts, empty
from gnnstore.errors import UsageError
from gnnstore.features.source import MemoryRows, Rows, RowSource, RowSpec
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import EdgeTypeSpec, NodeTypeSpec, Schema
from gnnstore.graph.assigned import AssignedAttributes
from gnnstore.loaders.assemble.adjacency import CsrEdges, adjacency
from gnnstore.nn.adjacency import AdjT
from gnnstore.pipeline.batch import Batch, BatchCost
from gnnstore.sampling.neighbor import Sample
from gnnstore.seeds.base import SeedLabels
from gnnstore.strategies.sources import Sources


def hold_nothing(_: object) -> None:
    """Do nothing: nobody counts the arrays of this batch."""


@dataclass(frozen=True)
class AttributeRows:
    """One attribute of nodes or edges: the source of its rows, and their form as a tensor."""

    path: str
    rows: RowSource
    spec: RowSpec
    is_bfloat16: bool  # whether the values are the bits of bfloat16, which NumPy does not know
    cat_dim: int  # the row axis in the source data

    @classmethod
    def all_of(
        cls, specs: Mapping[str, AttributeSpec], tables: Mapping[str, RowSource]
    ) -> dict[str, AttributeRows]:
        """Return the attributes of nodes or edges by name; tables are by path."""
        return {
            name: cls(
                spec.path,
                tables[spec.path],
                tables[spec.path].spec,
                spec.dtype == "bfloat16",
                spec.cat_dim,
            )
            for name, spec in specs.items()
        }

    @classmethod
    def of_nodes(
        cls, store: BatchSchema, node: NodeTypeSpec, tables: Mapping[str, RowSource]
    ) -> dict[str, AttributeRows]:
        """Return the attributes of a node type, those that were assigned to the store included."""
        found = cls.all_of(node.attributes, tables)
        for name, each in store.assigned.of(node.name).items():
            rows, is_bfloat16 = MemoryRows(each.array), each.dtype == "bfloat16"
            found[name] = cls(f"assigned/{node.name}/{name}", rows, rows.spec, is_bfloat16, 0)
        return found

    def gather(self, ids: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ReadCounts]:
        """Return the rows of some ids, and the reads that they cost."""
        out = empty((ids.size, *self.spec.shape), self.spec.dtype)
        return out, self.rows.read_rows(ids, out)


class Gathering:
    """The attributes of one batch: rows that its source provided, and others read by ids."""

    def __init__(
        self, rows: Mapping[str, Rows], hold: Callable[[npt.NDArray[Any]], None] = hold_nothing
    ) -> None:
        self._rows = rows
        self._hold = hold
        self._num_bytes, self._counts = 0, ReadCounts()

    def tensors(
        self, attributes: Mapping[str, AttributeRows], ids: npt.NDArray[Any]
    ) -> dict[str, Tensor]:
        """Return attributes by name, their rows in the order of the ids."""
        values: dict[str, Tensor] = {}
        for name, attribute in attributes.items():
            found, read = self._rows.get(attribute.path) or attribute.gather(ids)
            self._hold(found)
            tensor = torch.from_numpy(found)
            if attribute.is_bfloat16:
                tensor = tensor.view(torch.bfloat16)
            if attribute.cat_dim not in (0, -tensor.dim()):
                tensor = tensor.movedim(0, attribute.cat_dim).contiguous()
            values[name] = tensor
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


def id_path(edge: EdgeTypeSpec, sources: Sources) -> str:
    """Return the path of the ids that batches show; empty where these are positions."""
    return edge.edge_id.path if edge.edge_id is not None and sources.e_id == "input" else ""


class BatchSchema(Protocol):
    """The parts of a graph that batches show, except rows: of a store, or of packed epochs."""

    @property
    def schema(self) -> Schema:
        """Attributes, and the element type of ids."""

    @property
    def assigned(self) -> AssignedAttributes:
        """Attributes of nodes that the user has assigned."""

    def graph_attributes(self) -> dict[str, Any]:
        """Return the graph-level attributes."""


class Selection(NamedTuple):
    """The nodes or edges of one type in a sample, and in what `transform_sampler_output` left."""

    what: str  # in messages
    paths: set[str]  # of their attributes
    ids: npt.NDArray[Any]
    wanted: Tensor | None  # None: they have no attributes


class Assembler(ABC):
    """Assembles the batches of one loader. Safe to use from many threads at once."""

    def __init__(self, store: BatchSchema, sources: Sources, data_class: Any, *more: Any) -> None:
        self._arguments = (store, sources, data_class, *more)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process opens the store itself; nothing large is pickled.
        return (type(self), self._arguments)

    def assemble(
        self, batch: Batch, hold: Callable[[npt.NDArray[Any]], None] = hold_nothing
    ) -> None:
        """Set a batch's output to its sample with the attributes."""
        sample, labels = batch.sample, batch.labels
        if sample is None or labels is None:
            raise TypeError("a batch without a sample cannot be assembled")
        batch.output = self.join(self.parts_of(sample), labels, batch.rows, batch.cost, hold)

    @abstractmethod
    def parts_of(self, sample: Sample) -> Any:
        """Return the parts of a sample; they share its memory."""

    @abstractmethod
    def output_of(self, sample: Sample, metadata: Any) -> Any:
        """Return a sample as PyG's samplers do, but that `edge` holds positions in the columns."""

    @abstractmethod
    def parts_from(self, output: Any) -> Any:
        """Return the parts of a sampler's output."""

    @abstractmethod
    def selections(self, sample: Sample, parts: Any) -> Iterator[Selection]:
        """Yield for nodes and edges the ids of a sample, and those of parts made from it."""

    def join(
        self,
        parts: Any,
        labels: SeedLabels,
        rows: Mapping[str, Rows],
        cost: BatchCost,
        hold: Callable[[npt.NDArray[Any]], None] = hold_nothing,
    ) -> Any:
        """Return a subgraph with its attributes; those that are not in `rows` are read by ids."""
        gathering = Gathering(rows, hold)
        data = self.joined(parts, gathering)
        labels.label(data)
        gathering.note(cost)
        return data

    @abstractmethod
    def joined(self, parts: Any, gathering: Gathering) -> Any:
        """Return a subgraph with its attributes, but without the labels of its seeds."""


@dataclass(frozen=True)
class OutputAssembler:
    """The round trip through PyG's `SamplerOutput`, which `transform_sampler_output` may change."""

    assembler: Assembler
    # Returns the error for rows that the batch does not have; None: they are read.
    refusal: Callable[[str], Exception] | None = None

    def output(self, batch: Batch) -> Any:
        """Return a sample as PyG's samplers do, but that `edge` holds positions in the columns."""
        if batch.sample is None or batch.labels is None:
            raise TypeError("a batch without a sample has no output")
        return self.assembler.output_of(batch.sample, batch.labels.metadata())

    def assemble_output(self, batch: Batch, output: Any) -> None:
        """Set a batch's output; rows that were provided for it are chosen anew."""
        sample, labels = batch.sample, batch.labels
        if sample is None or labels is None:
            raise TypeError("a batch without a sample cannot be assembled")
        parts = self.assembler.parts_from(output)
        rows: dict[str, Rows] = {}
        for selection in self.assembler.selections(sample, parts):
            rows |= self._reselected(batch.rows, selection)
        labels = labels.from_metadata(output.metadata)
        batch.output = self.assembler.join(parts, labels, rows, batch.cost)

    def join(self, output: Any, labels: SeedLabels) -> Any:
        """Return the batch of an output."""
        parts = self.assembler.parts_from(output)
        return self.assembler.join(parts, labels, {}, BatchCost())

    def _reselected(self, rows: Mapping[str, Rows], selection: Selection) -> dict[str, Rows]:
        """Return the rows of the ids in a changed output."""
        what, paths, ids, wanted = selection
        own = {path: rows[path] for path in paths if path in rows}
        if wanted is None:
            return {}
        chosen = wanted.numpy()
        if not own or np.array_equal(chosen, ids):
            return own
        order = np.argsort(ids, kind="stable")
        places = np.minimum(np.searchsorted(ids, chosen, sorter=order), max(0, len(ids) - 1))
        places = order[places] if len(ids) else places
        if len(ids) and np.array_equal(ids[places], chosen):
            return {path: Rows(values[places], counts) for path, (values, counts) in own.items()}
        if self.refusal is not None:
            raise self.refusal(f"{what} for transform_sampler_output to add to a batch")
        return {}


def checked_class(data_class: Any, wanted: type) -> Any:
    """Refuse a class that makes no `Data` or `HeteroData`, before the first batch."""
    try:
        if issubclass(data_class, wanted):
            data_class()
            return data_class
        problem = "it is no subclass"
    except TypeError as error:  # also if it is not a class
        problem = str(error)
    raise UsageError(
        f"custom_cls={data_class!r}: expected torch_geometric.data.{wanted.__name__} or a subclass "
        f"that is made without arguments ({problem})"
    )


def edge_index_of(row: Tensor, col: Tensor) -> Tensor:
    """Return [2, E]: the array that holds both rows, or a new one."""
    base = row._base
    if (
        base is not None
        and base is col._base
        and base.shape == (2, row.numel())
        and (row.data_ptr(), col.data_ptr()) == (base[0].data_ptr(), base[1].data_ptr())
    ):
        return base
    return torch.stack([row, col])


class Parts(NamedTuple):
    """The parts of a batch other than attributes; n nodes, m edges."""

    node: Tensor  # [n]
    edge_index: Tensor  # [2, m]
    edge: Tensor | None  # [m]: positions in the columns; None: edges have no attributes
    batch: Tensor | None  # [n]
    num_sampled_nodes: list[int] | None
    num_sampled_edges: list[int] | None
    orig_edge_index: Tensor | None = None  # [2, m]

    def matrix(self, values: Tensor | None = None) -> AdjT:
        """Return the edges in CSR."""
        size = (len(self.node), len(self.node))
        hops = (self.num_sampled_nodes, self.num_sampled_edges)
        return adjacency(self.edge_index.numpy(), size, *hops, values)


class BatchAssembler(Assembler):
    """Assembles the batches of one loader. Safe to use from many threads at once."""

    def __init__(
        self,
        store: BatchSchema,
        sources: Sources,
        data_class: type[Data] | None,
        csr: CsrEdges | None = None,
    ) -> None:
        super().__init__(store, sources, data_class, csr)
        self._data_class = checked_class(data_class or Data, Data)
        self._csr = csr
        schema = store.schema
        self._node_attributes = AttributeRows.of_nodes(store, schema.node, sources.tables)
        self._edge_attributes = AttributeRows.all_of(schema.edge.attributes, sources.tables)
        self._edge_ids = sources.edge_ids.get(schema.edge.type)
        self._edge_id_path = id_path(schema.edge, sources)
        self._shows_ids = sources.e_id is not None
        self._graph_level = store.graph_attributes()
        self._explicit_num_nodes = schema.explicit_num_nodes

    def parts_of(self, sample: Sample) -> Parts:
        """Return the parts of a sample; they share its memory."""
        return Parts(
            torch.from_numpy(sample.n_id),
            torch.from_numpy(sample.edge_index),
            torch.from_numpy(sample.edge_pos),
            None if sample.batch is None else torch.from_numpy(sample.batch),
            sample.num_sampled_nodes,
            sample.num_sampled_edges,
        )

    def output_of(self, sample: Sample, metadata: Any) -> SamplerOutput:
        """Return a sample as PyG's samplers do, but that `edge` holds positions in the columns."""
        return sampler_output(sample, metadata)

    def parts_from(self, output: SamplerOutput) -> Parts:
        """Return the parts of a sampler's output."""
        original = None
        if output.orig_row is not None and output.orig_col is not None:
            original = torch.stack([output.orig_row, output.orig_col])
        return Parts(
            output.node.contiguous(),
            edge_index_of(output.row, output.col),
            None if output.edge is None else output.edge.contiguous(),
            output.batch,
            output.num_sampled_nodes,
            output.num_sampled_edges,
            original,
        )

    def selections(self, sample: Sample, parts: Parts) -> Iterator[Selection]:
        """Yield for nodes and edges the ids of a sample, and those of parts made from it."""
        paths = {each.path for each in self._node_attributes.values()}
        yield Selection("nodes", paths, sample.n_id, parts.node)
        paths = {each.path for each in self._edge_attributes.values()} | {self._edge_id_path}
        yield Selection("edges", paths, sample.edge_pos, parts.edge)

    def joined(self, parts: Parts, gathering: Gathering) -> Data:
        """Return a subgraph with its attributes, but without the labels of its seeds."""
        csr = self._csr
        # Before rows are gathered, while edges are in the processor's cache.
        adj_t = None if csr is None or csr.value else parts.matrix()
        nodes = parts.node.numpy()
        values: dict[str, Any] = {**gathering.tensors(self._node_attributes, nodes)}
        if csr is None:
            values["edge_index"] = parts.edge_index
        e_id = None
        if parts.edge is not None:
            values |= gathering.tensors(self._edge_attributes, parts.edge.numpy())
            if self._shows_ids:
                e_id = gathering.edge_ids(self._edge_id_path, self._edge_ids, parts.edge)
        if csr is not None:
            values["adj_t"] = parts.matrix(csr.take_values(values)) if adj_t is None else adj_t
        values.update(self._graph_level)
        if self._explicit_num_nodes:
            values["num_nodes"] = len(nodes)
        values.setdefault("n_id", parts.node)
        if e_id is not None:
            values.setdefault("e_id", e_id)
        # PyG writes these, and the labels, after the attributes, so an attribute of the same name
        # is overwritten, and dropped where the value is None. The user's `n_id` and `e_id` stay.
        values["batch"] = parts.batch
        values["num_sampled_nodes"] = parts.num_sampled_nodes
        values["num_sampled_edges"] = parts.num_sampled_edges
        data = self._data_class()
        for name, value in values.items():
            if value is not None:
                data[name] = value
        if parts.orig_edge_index is not None:
            data._orig_edge_index = parts.orig_edge_index
        return data


def sampler_output(sample: Sample, metadata: Any) -> SamplerOutput:
    """Return a sample as PyG's samplers do; its tensors are the sample's arrays."""
    edge_index = torch.from_numpy(sample.edge_index)
    return SamplerOutput(
        node=torch.from_numpy(sample.n_id),
        row=edge_index[0],
        col=edge_index[1],
        edge=torch.from_numpy(sample.edge_pos),
        batch=None if sample.batch is None else torch.from_numpy(sample.batch),
        num_sampled_nodes=sample.num_sampled_nodes,
        num_sampled_edges=sample.num_sampled_edges,
        metadata=metadata,
    )
