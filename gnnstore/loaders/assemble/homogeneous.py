"""The assembly of a sampled subgraph into the `Data` object that PyG's own loader would yield.

Only this module and the labels of a batch's seeds decide on its contents: names, order and
element types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput

from gnnstore.loaders.assemble.adjacency import adjacency
from gnnstore.loaders.assemble.base import (
    Assembler,
    AttributeRows,
    Selection,
    checked_class,
    edge_index_of,
    id_path,
)

if TYPE_CHECKING:
    from gnnstore.loaders.assemble.adjacency import CsrEdges
    from gnnstore.loaders.assemble.base import BatchSchema, Gathering
    from gnnstore.nn.adjacency import AdjT
    from gnnstore.sampling.neighbor import Sample
    from gnnstore.strategies.sources import Sources


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
            output.node,
            edge_index_of(output.row, output.col),
            output.edge,
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
