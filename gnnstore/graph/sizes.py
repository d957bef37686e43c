"""Memory that the tables and the topology of a store take, from its schema alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import EdgeType, Schema
from gnnstore.sampling.neighbor import SamplingConfig


@dataclass(frozen=True)
class TableSize:
    """A paged attribute: rows that can be read one by one."""

    path: str  # the attribute's path in the store
    num_rows: int  # number of rows
    row_bytes: int  # bytes of a row without padding
    of_nodes: bool = True  # whether rows belong to nodes; else to edges
    edge_type: EdgeType | None = None  # of the edges whose rows these are, by position

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_rows * self.row_bytes


@dataclass(frozen=True)
class StoreSizes:
    """Bytes that the parts of a store take when they lie in memory."""

    # `indptr` and `indices`; and what sampling by time or weight needs along edges.
    topology_bytes: int
    tables: tuple[TableSize, ...]  # paged attributes of nodes and edges
    # Attributes that are stored compressed and are therefore always read whole.
    compressed_bytes: int
    indptr_bytes: int  # bytes of `indptr`, part of `topology_bytes`
    indices_bytes: int  # bytes of `indices`, part of `topology_bytes`
    times_bytes: int = 0  # times of nodes, which sampling has in memory
    edge_ids: tuple[TableSize, ...] = ()  # ids of edges in the input, if batches show them
    has_types: bool = False  # whether nodes have several types

    @property
    def rows_bytes(self) -> int:
        """Bytes of all paged attributes, without padding."""
        return sum(table.num_bytes for table in self.tables)

    @property
    def edge_ids_bytes(self) -> int:
        """Bytes of the ids of edges."""
        return sum(table.num_bytes for table in self.edge_ids)

    @property
    def total_bytes(self) -> int:
        """Bytes of everything."""
        rows_bytes = self.rows_bytes + self.edge_ids_bytes
        return self.topology_bytes + self.times_bytes + rows_bytes + self.compressed_bytes

    @classmethod
    def of(
        cls,
        schema: Schema,
        config: SamplingConfig | None = None,
        *,
        whole: Schema | None = None,
        with_edge_ids: bool = True,
    ) -> StoreSizes:
        """Return the sizes of a store, all of its types together, as a loader needs it.

        `whole` has the times that sampling needs, if batches do not show them.
        """
        of_nodes = schema.node_attributes()
        edges = schema.edge_types
        of_edges = {edge.type: edge.own_attributes() for edge in edges}
        all_of_edges = [spec for specs in of_edges.values() for spec in specs]
        attributes = [*of_nodes, *all_of_edges, *schema.graph_arrays.values()]
        indptr_bytes = sum(edge.indptr.num_bytes for edge in edges)
        indices_bytes = sum(edge.indices.num_bytes for edge in edges)
        ids = {edge.type: edge.edge_id for edge in edges if edge.edge_id and with_edge_ids}
        rows = [edge.shared_row for edge in edges if edge.shared_row]
        rows = [spec for spec in rows if spec not in ids.values()]
        along, of_nodes_bytes = (0, 0) if config is None else _for_sampling(whole or schema, config)
        return cls(
            topology_bytes=indptr_bytes + indices_bytes + along,
            tables=(
                *_tables(of_nodes),
                *_tables_of_edges(of_edges),
                *_tables(rows, of_nodes=False),
            ),
            compressed_bytes=sum(spec.num_bytes for spec in attributes if spec.layout == "cold"),
            indptr_bytes=indptr_bytes,
            indices_bytes=indices_bytes,
            times_bytes=of_nodes_bytes,
            edge_ids=(*_tables_of_edges({kind: [spec] for kind, spec in ids.items()}),),
            has_types=len(schema.node_types) > 1,
        )


def _for_sampling(schema: Schema, config: SamplingConfig) -> tuple[int, int]:
    """Return the bytes that times and weights take along edges, and of nodes."""
    time, weight = config.time_attr, config.weight_attr
    along = [
        owners.get(name)
        for edge in schema.edge_types
        for owners, name in (
            (edge.orders, time),
            (edge.attributes, time),
            (edge.weight_sums, weight),
        )
        if name is not None
    ]
    of_nodes = [node.attributes.get(time) for node in schema.node_types if time is not None]
    sizes = [sum(s.num_bytes for s in specs if s is not None) for specs in (along, of_nodes)]
    return sizes[0], sizes[1]


def _tables(
    specs: Iterable[AttributeSpec], *, of_nodes: bool = True, edge_type: EdgeType | None = None
) -> list[TableSize]:
    return [
        TableSize(spec.path, spec.num_rows, spec.row_bytes, of_nodes, edge_type)
        for spec in specs
        if spec.layout == "paged"
    ]


def _tables_of_edges(specs: Mapping[EdgeType, Iterable[AttributeSpec]]) -> list[TableSize]:
    return [
        table
        for kind, own in specs.items()
        for table in _tables(own, of_nodes=False, edge_type=kind)
    ]
