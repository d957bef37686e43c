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
    num_rows: int  # rows, and bytes of each without padding
    row_bytes: int  # rows, and bytes of each without padding
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
    indptr_bytes: int  # of these, `indptr` and `indices`
    indices_bytes: int  # of these, `indptr` and `indices`

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
        """Measure a homogeneous store."""
        node, edge = schema.node, schema.edge
        structure = [edge.indptr, edge.indices, *([edge.edge_id] if edge.edge_id else [])]
        attributes = [
            *node.attributes.values(),
            *edge.attributes.values(),
            *schema.graph_arrays.values(),
        ]
        return cls(
            topology_bytes=sum(spec.num_bytes for spec in structure),
            tables=(
                *_tables(node.attributes.values(), of_nodes=True),
                *_tables(edge.attributes.values(), of_nodes=False),
            ),
            compressed_bytes=sum(spec.num_bytes for spec in attributes if spec.layout == "cold"),
            indptr_bytes=edge.indptr.num_bytes,
            indices_bytes=edge.indices.num_bytes,
        )


def _tables(specs: Iterable[AttributeSpec], *, of_nodes: bool) -> list[TableSize]:
    return [
        TableSize(spec.path, spec.num_rows, spec.row_bytes, of_nodes)
        for spec in specs
        if spec.layout == "paged"
    ]
