"""The assembly of a sampled subgraph into the `HeteroData` object that PyG's loader would yield.

All types of the graph are there, in its order, also those that no seed reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.sampler import HeteroSamplerOutput

from gnnstore.features.source import RowSource
from gnnstore.formats.store.schema import EdgeType, EdgeTypeSpec
from gnnstore.loaders.assemble.adjacency import CsrEdges, adjacency
from gnnstore.loaders.assemble.homogeneous import (
    Assembler,
    AttributeRows,
    BatchAssembler,
    BatchSchema,
    Gathering,
    Selection,
    checked_class,
    edge_index_of,
    id_path,
)
from gnnstore.nn.adjacency import AdjT
from gnnstore.sampling.hetero import with_reverse_edges
from gnnstore.sampling.neighbor import NodeType, Sample, each_type
from gnnstore.strategies.sources import Sources


class TypedParts(NamedTuple):
    """The parts of a batch other than attributes, by type; n nodes or m edges of each."""

    node: Mapping[NodeType, Tensor]  # [n]
    edge_index: Mapping[EdgeType, Tensor]  # [2, m]
    edge: Mapping[EdgeType, Tensor | None]  # [m]: positions in the columns; None: no attributes
    batch: Mapping[NodeType, Tensor] | None  # [n]
    num_sampled_nodes: Mapping[NodeType, list[int]] | None
    num_sampled_edges: Mapping[EdgeType, list[int]] | None
    orig_edge_index: Mapping[EdgeType, Tensor] | None = None  # [2, m]

    def matrix(self, kind: EdgeType, values: Tensor | None = None) -> AdjT:
        """Return the edges of a type in CSR."""
        source, _, target = kind
        size = (len(self.node[target]), len(self.node[source]))
        nodes, edges = self.num_sampled_nodes or {}, self.num_sampled_edges or {}
        hops = (nodes.get(source), edges.get(kind))
        return adjacency(self.edge_index[kind].numpy(), size, *hops, values, edge_type=kind)


class _EdgeRows(NamedTuple):
    """The attributes and ids of the edges of one type."""

    attributes: Mapping[str, AttributeRows]
    ids: RowSource | None  # None: positions are ids
    ids_path: str

    @classmethod
    def of(cls, edge: EdgeTypeSpec, sources: Sources) -> _EdgeRows:
        attributes = AttributeRows.all_of(edge.attributes, sources.tables)
        return cls(attributes, sources.edge_ids.get(edge.type), id_path(edge, sources))


class HeteroAssembler(Assembler):
    """Assembles the batches of one loader. Safe to use from many threads at once."""

    def __init__(
        self,
        store: BatchSchema,
        sources: Sources,
        data_class: type[HeteroData] | None,
        csr: CsrEdges | None = None,
        is_bidirectional: bool = False,
    ) -> None:
        super().__init__(store, sources, data_class, csr, is_bidirectional)
        self._shows_ids = sources.e_id is not None
        self._csr = csr
        self._is_bidirectional = is_bidirectional
        self._data_class = checked_class(data_class or HeteroData, HeteroData)
        schema = store.schema
        self._nodes = {
            node.name: AttributeRows.of_nodes(store, node, sources.tables)
            for node in schema.node_types
        }
        self._edges = {edge.type: _EdgeRows.of(edge, sources) for edge in schema.edge_types}
        self._graph_level = store.graph_attributes()
        self._explicit_num_nodes = {
            node.name for node in schema.node_types if node.explicit_num_nodes
        }

    def parts_of(self, sample: Sample) -> TypedParts:
        """Return the parts of a sample; they share its memory."""
        return _parts_of(sample, self._is_bidirectional)

    def output_of(self, sample: Sample, metadata: Any) -> HeteroSamplerOutput:
        """Return a sample as PyG's samplers do, but that `edge` holds positions in the columns."""
        return hetero_output(sample, metadata, self._is_bidirectional)

    def parts_from(self, output: HeteroSamplerOutput) -> TypedParts:
        """Return the parts of a sampler's output; types that are not in it have no edges."""
        none = torch.empty(0, dtype=torch.long)
        rows, cols, ids = output.row, output.col, output.edge or {}
        edge_index = {
            kind: edge_index_of(rows[kind], cols[kind]) if kind in rows else torch.stack([none] * 2)
            for kind in self._edges
        }
        original = None
        if output.orig_row is not None and output.orig_col is not None:
            original = {
                kind: torch.stack([row, output.orig_col[kind]])
                for kind, row in output.orig_row.items()
            }
        return TypedParts(
            {name: output.node.get(name, none).contiguous() for name in self._nodes},
            edge_index,
            {
                kind: found if found is None else found.contiguous()
                for kind in self._edges
                for found in [ids.get(kind, None if kind in rows else none)]
            },
            output.batch,
            output.num_sampled_nodes,
            output.num_sampled_edges,
            original,
        )

    def selections(self, sample: Sample, parts: TypedParts) -> Iterator[Selection]:
        """Yield for each type the ids of a sample, and those of parts made from it."""
        for name, attributes in self._nodes.items():
            paths = {each.path for each in attributes.values()}
            yield Selection(f"nodes of {name!r}", paths, sample.nodes[name], parts.node[name])
        for kind, own in self._edges.items():
            paths = {each.path for each in own.attributes.values()} | {own.ids_path}
            positions = sample.edges[kind].positions
            yield Selection(f"edges of {kind}", paths, positions, parts.edge[kind])

    def joined(self, parts: TypedParts, gathering: Gathering) -> HeteroData:
        """Return a subgraph with its attributes, but without the labels of its seeds."""
        data, csr = self._data_class(), self._csr
        # Before rows are gathered, while edges are in the processor's cache.
        matrices = {
            kind: parts.matrix(kind)
            for kind, own in self._edges.items()
            if csr is not None and csr.value not in own.attributes
        }
        for name, value in self._graph_level.items():
            data._global_store[name] = value
        for name, attributes in self._nodes.items():
            nodes = parts.node[name]
            values: dict[str, Any] = {**gathering.tensors(attributes, nodes.numpy())}
            if name in self._explicit_num_nodes:
                values["num_nodes"] = len(nodes)
            values.setdefault("n_id", nodes)
            # As in a `Data`, PyG writes these after the attributes.
            if parts.batch is not None:
                values["batch"] = parts.batch.get(name)
            if parts.num_sampled_nodes is not None:
                values["num_sampled_nodes"] = parts.num_sampled_nodes.get(name)
            _write(data[name], values)
        for kind, own in self._edges.items():
            values, positions = {}, parts.edge[kind]
            if csr is None:
                values["edge_index"] = parts.edge_index[kind]
            if positions is not None:
                values |= gathering.tensors(own.attributes, positions.numpy())
                if self._shows_ids:
                    e_id = gathering.edge_ids(own.ids_path, own.ids, positions)
                    values.setdefault("e_id", e_id)
            if csr is not None:
                adj_t = matrices.get(kind)
                values["adj_t"] = (
                    parts.matrix(kind, csr.take_values(values)) if adj_t is None else adj_t
                )
            if parts.num_sampled_edges is not None:
                values["num_sampled_edges"] = parts.num_sampled_edges.get(kind)
            if parts.orig_edge_index is not None:
                values["_orig_edge_index"] = parts.orig_edge_index.get(kind)
            _write(data[kind], values)
        return data


def _parts_of(sample: Sample, is_bidirectional: bool) -> TypedParts:
    sampled = sample.edges
    if is_bidirectional:
        sample = with_reverse_edges(sample)
    return TypedParts(
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


def hetero_output(
    sample: Sample, metadata: Any, is_bidirectional: bool = False
) -> HeteroSamplerOutput:
    """Return a sample as PyG's samplers do; its tensors are the sample's arrays."""
    parts = _parts_of(sample, is_bidirectional)
    return HeteroSamplerOutput(
        node=dict(parts.node),
        row={kind: index[0] for kind, index in parts.edge_index.items()},
        col={kind: index[1] for kind, index in parts.edge_index.items()},
        edge=dict(parts.edge),
        batch=None if parts.batch is None else dict(parts.batch),
        num_sampled_nodes=each_type(parts.num_sampled_nodes, list),
        num_sampled_edges=each_type(parts.num_sampled_edges, list),
        metadata=metadata,
    )


def assembler_for(
    store: BatchSchema,
    sources: Sources,
    data_class: Any,
    *,
    subgraph_type: str,
    csr: CsrEdges | None = None,
) -> Assembler:
    """Return the assembler of a graph's batches: of `HeteroData` if its types have names."""
    if store.schema.is_homogeneous:  # whose samples have the reverse edges
        return BatchAssembler(store, sources, data_class, csr)
    return HeteroAssembler(store, sources, data_class, csr, subgraph_type == "bidirectional")


def _write(store: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is not None:
            store[name] = value
