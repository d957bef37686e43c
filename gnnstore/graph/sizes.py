"""Memory that the tables and the topology of a store take, from its schema alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import Schema


@dataclass(frozen=True)
class TableSize:
    """A paged attribute: rows that can be read one by one."""

    path: str  # the attribute's path in the store
    num_rows: int  # number of rows
    row_bytes: int  # bytes of a row without padding
    of_nodes: bool = True  # whether rows belong to nodes; else to edges

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_rows * self.row_bytes


@dataclass(frozen=True)
class StoreSizes:
    """Bytes that the parts of a store take when they lie in memory."""

    topology_bytes: int  # `indptr`, `indices` and `edge_id`
    tables: tuple[TableSize, ...]  # paged attributes of nodes and edges
    # Attributes that are stored compressed and are therefore always read whole.
    compressed_bytes: int
    indptr_bytes: int  # bytes of `indptr`, part of `topology_bytes`
    indices_bytes: int  # bytes of `indices`, part of `topology_bytes`

    @property
    def rows_bytes(self) -> int:
        """Bytes of all paged attributes, without padding."""
        return sum(table.num_bytes for table in self.tables)

    @property
    def total_bytes(self) -> int:
        """Bytes of everything."""
        return self.topology_bytes + self.rows_bytes + self.compressed_bytes

    @classmethod
    def of(cls, schema: Schema) -> StoreSizes:
        """Return the sizes of a store, all of its types together."""
        of_nodes, of_edges = schema.node_attributes(), schema.edge_attributes()
        attributes = [*of_nodes, *of_edges, *schema.graph_arrays.values()]
        edges = schema.edge_types
        indptr_bytes = sum(edge.indptr.num_bytes for edge in edges)
        indices_bytes = sum(edge.indices.num_bytes for edge in edges)
        edge_id_bytes = sum(edge.edge_id.num_bytes for edge in edges if edge.edge_id)
        return cls(
            topology_bytes=indptr_bytes + indices_bytes + edge_id_bytes,
            tables=(*_tables(of_nodes, of_nodes=True), *_tables(of_edges, of_nodes=False)),
            compressed_bytes=sum(spec.num_bytes for spec in attributes if spec.layout == "cold"),
            indptr_bytes=indptr_bytes,
            indices_bytes=indices_bytes,
        )


def _tables(specs: Iterable[AttributeSpec], *, of_nodes: bool) -> list[TableSize]:
    return [
        TableSize(spec.path, spec.num_rows, spec.row_bytes, of_nodes)
        for spec in specs
        if spec.layout == "paged"
    ]
