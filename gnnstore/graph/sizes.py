"""Memory that the tables and the topology of a store take, from its schema alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import Schema


@dataclass(frozen=True)
class TableSize:
    """A paged attribute: rows that can be read one by one.

    Attributes
    ----------
    path : str
        The attribute's path in the store.
    num_rows, row_bytes : int
        Rows, and bytes of each without padding.
    of_nodes : bool
        Whether rows belong to nodes; else to edges.
    """

    path: str
    num_rows: int
    row_bytes: int
    of_nodes: bool = True

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_rows * self.row_bytes


@dataclass(frozen=True)
class StoreSizes:
    """Bytes that the parts of a store take when they lie in memory.

    Attributes
    ----------
    topology_bytes : int
        `indptr`, `indices` and `edge_id`.
    indptr_bytes, indices_bytes : int
        Of these, `indptr` and `indices`.
    tables : tuple of TableSize
        Paged attributes of nodes and edges.
    compressed_bytes : int
        Attributes that are stored compressed and are therefore always read whole.
    """

    topology_bytes: int
    tables: tuple[TableSize, ...]
    compressed_bytes: int
    indptr_bytes: int
    indices_bytes: int

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
