"""The assembly of a sampled subgraph into the `Data` object that PyG's own loader would yield.

Only this module and the labels of a batch's seeds decide on its contents: names, order and
element types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data

from gnnstore._core import ReadCounts, empty
from gnnstore.errors import UsageError
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import Schema
from gnnstore.loaders.assemble.adjacency import adjacency

if TYPE_CHECKING:
    from gnnstore.features.source import Rows, RowSource, RowSpec
    from gnnstore.loaders.assemble.adjacency import CsrEdges
    from gnnstore.nn.adjacency import AdjT
    from gnnstore.pipeline.batch import Batch, BatchCost
    from gnnstore.seeds.base import SeedLabels
    from gnnstore.strategies.sources import Sources


def _hold_nothing(_: object) -> None:
    pass


class Parts(NamedTuple):
    """The parts of a batch other than attributes; n nodes, m edges."""

    node: Tensor  # [n]
    edge_index: Tensor  # [2, m]
    edge: Tensor | None  # [m]: positions in the columns; None: edges have no attributes
    batch: Tensor | None  # [n]
    num_sampled_nodes: list[int] | None
    num_sampled_edges: list[int] | None

    def matrix(self, values: Tensor | None = None) -> AdjT:
        """Return the edges in CSR."""
        size = (len(self.node), len(self.node))
        hops = (self.num_sampled_nodes, self.num_sampled_edges)
        return adjacency(self.edge_index.numpy(), size, *hops, values)


class BatchSchema(Protocol):
    """The parts of a graph that batches show, except rows: of a store, or of packed epochs."""

    @property
    def schema(self) -> Schema:
        """Attributes, and the element type of ids."""

    def graph_attributes(self) -> dict[str, Any]:
        """Return the graph-level attributes."""


@dataclass(frozen=True)
class _Attribute:
    """One attribute of nodes or edges: the source of its rows, and their form as a tensor."""

    path: str
    rows: RowSource
    spec: RowSpec
    is_bfloat16: bool  # whether the values are the bits of bfloat16, which NumPy does not know
    cat_dim: int  # the row axis in the source data

    @classmethod
    def all_of(
        cls, specs: Mapping[str, AttributeSpec], tables: Mapping[str, RowSource]
    ) -> dict[str, _Attribute]:
        """Return the attributes of nodes or edges by name."""
        return {
            name: cls(
                spec.path, tables[name], tables[name].spec, spec.dtype == "bfloat16", spec.cat_dim
            )
            for name, spec in specs.items()
        }

    def gather(self, ids: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ReadCounts]:
        """Return the rows of some ids, and the reads that they cost."""
        out = empty((ids.size, *self.spec.shape), self.spec.dtype)
        return out, self.rows.read_rows(ids, out)


class BatchAssembler:
    """Assembles the batches of one loader. Safe to use from many threads at once."""

    def __init__(
        self,
        store: BatchSchema,
        sources: Sources,
        data_class: type[Data] = Data,
        csr: CsrEdges | None = None,
    ) -> None:
        self._arguments = (store, sources, data_class, csr)
        self._data_class = _checked(data_class)
        self._csr = csr
        schema = store.schema
        self._node_attributes = _Attribute.all_of(schema.node.attributes, sources.nodes)
        self._edge_attributes = _Attribute.all_of(schema.edge.attributes, sources.edges)
        self._edge_ids = sources.edge_ids
        self._edge_id_path = "" if schema.edge.edge_id is None else schema.edge.edge_id.path
        self._graph_level = store.graph_attributes()
        self._explicit_num_nodes = schema.explicit_num_nodes

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process opens the store itself; nothing large is pickled.
        return (BatchAssembler, self._arguments)

    def assemble(
        self, batch: Batch, hold: Callable[[npt.NDArray[Any]], None] = _hold_nothing
    ) -> None:
        """Set a batch's output to its sample with the attributes."""
        sample, labels = batch.sample, batch.labels
        if sample is None or labels is None:
            raise TypeError("a batch without a sample cannot be assembled")
        parts = Parts(
            torch.from_numpy(sample.n_id),
            torch.from_numpy(sample.edge_index),
            torch.from_numpy(sample.edge_pos),
            None if sample.batch is None else torch.from_numpy(sample.batch),
            sample.num_sampled_nodes,
            sample.num_sampled_edges,
        )
        batch.output = self.join(parts, labels, batch.rows, batch.cost, hold)

    def join(
        self,
        parts: Parts,
        labels: SeedLabels,
        rows: Mapping[str, Rows],
        cost: BatchCost,
        hold: Callable[[npt.NDArray[Any]], None] = _hold_nothing,
    ) -> Data:
        """Return a subgraph with its attributes; those that are not in `rows` are read by ids."""
        values: dict[str, Any] = {}
        bytes_gathered, counts = 0, ReadCounts()

        def gather(attributes: dict[str, _Attribute], ids: npt.NDArray[Any]) -> None:
            nonlocal bytes_gathered, counts
            for name, attribute in attributes.items():
                found, read = rows.get(attribute.path) or attribute.gather(ids)
                hold(found)
                tensor = torch.from_numpy(found)
                if attribute.is_bfloat16:
                    tensor = tensor.view(torch.bfloat16)
                if attribute.cat_dim not in (0, -tensor.dim()):
                    tensor = tensor.movedim(0, attribute.cat_dim).contiguous()
                values[name] = tensor
                bytes_gathered += tensor.nbytes
                counts += read

        csr = self._csr
        # Before rows are gathered, while edges are in the processor's cache.
        adj_t = None if csr is None or csr.value else parts.matrix()
        nodes = parts.node.numpy()
        gather(self._node_attributes, nodes)
        if csr is None:
            values["edge_index"] = parts.edge_index
        e_id = None
        if parts.edge is not None:
            gather(self._edge_attributes, parts.edge.numpy())
            e_id = self._original_edge_ids(parts.edge, rows)
            bytes_gathered += e_id.nbytes
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
        labels.label(data)
        cost.bytes_gathered, cost.counts = bytes_gathered, counts
        return data

    @property
    def edge_paths(self) -> set[str]:
        """The tables of edges, their ids among them."""
        return {each.path for each in self._edge_attributes.values()} | {self._edge_id_path}

    def _original_edge_ids(self, positions: Tensor, rows: Mapping[str, Rows]) -> Tensor:
        known = rows.get(self._edge_id_path)
        if known is None:
            if self._edge_ids is None:
                return positions.to(torch.int64)
            known = self._edge_ids.gather(positions.numpy())
        found = known.values
        if found.dtype != np.int64:
            wide = empty(found.shape, np.int64)
            np.copyto(wide, found)
            found = wide
        return torch.from_numpy(found)


def _checked(data_class: Any) -> type[Data]:
    """Refuse a class that makes no `Data`, before the first batch."""
    try:
        if issubclass(data_class, Data):
            data_class()
            found: type[Data] = data_class
            return found
        problem = "it is no subclass"
    except TypeError as error:  # also if it is not a class
        problem = str(error)
    raise UsageError(
        f"custom_cls={data_class!r}: expected torch_geometric.data.Data or a subclass that is made "
        f"without arguments ({problem})"
    )
