"""Bytes that the parts of a store take when they lie in memory, from its schema alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.machine import share_of

if TYPE_CHECKING:
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
    edge_type: EdgeType | None = None  # of the edges with these rows, by position
    num_ranks: int = 1  # processes that share the memory
    shown_row_bytes: int = 0  # bytes of a row in a batch, where rows may be decoded

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows that this process counts."""
        return share_of(self.num_rows * self.row_bytes, self.num_ranks)


@dataclass(frozen=True)
class StoreSizes:
    """Bytes that the parts of a store take when they lie in memory, or this process's part of them.

    Ranks of one machine that share the memory count a part each.
    """

    # `indptr` and `indices`; and what sampling by time or weight needs along edges.
    topology_bytes: int
    tables: tuple[TableSize, ...]  # paged attributes of nodes and edges
    # Attributes that are stored compressed and are therefore always read whole.
    compressed_bytes: int
    # Bytes of `indptr`, and of a part's ids in the whole store; part of `topology_bytes`.
    indptr_bytes: int
    indices_bytes: int  # bytes of `indices`, part of `topology_bytes`
    times_bytes: int = 0  # times of nodes, which sampling has in memory
    edge_ids: tuple[TableSize, ...] = ()  # ids of edges in the input, if batches show them
    has_types: bool = False  # whether nodes have several types
    num_ranks: int = 1  # processes that share the memory
    saved_by_int8: int = 0  # bytes of `x` that 'gnnstore quantize' would spare

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
    def from_schema(
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
        edges = schema.edge_types
        tables = _tables(schema.node_attributes(), of_nodes=True)
        for edge in edges:
            tables += _tables(edge.own_attributes(), edge_type=edge.type)
        ids = {edge.type: edge.edge_id for edge in edges if edge.edge_id and with_edge_ids}
        shared = [edge.shared_row for edge in edges if edge.shared_row]
        tables += _tables(spec for spec in shared if spec not in ids.values())
        attributes = [*schema.node_attributes(), *schema.whole_arrays()]
        attributes += [spec for edge in edges for spec in edge.own_attributes()]
        indptr_bytes = sum(edge.indptr.num_bytes for edge in edges)
        indptr_bytes += 0 if schema.part is None else schema.part.whole_id.num_bytes
        indices_bytes = sum(edge.indices.num_bytes for edge in edges)
        along, times_bytes = (0, 0) if config is None else _for_sampling(whole or schema, config)
        return cls(
            topology_bytes=indptr_bytes + indices_bytes + along,
            tables=tuple(tables),
            compressed_bytes=sum(spec.num_bytes for spec in attributes if spec.layout == "cold"),
            indptr_bytes=indptr_bytes,
            indices_bytes=indices_bytes,
            times_bytes=times_bytes,
            edge_ids=tuple(
                table for kind, spec in ids.items() for table in _tables([spec], edge_type=kind)
            ),
            has_types=len(schema.node_types) > 1,
            saved_by_int8=sum(map(saved_by_int8, schema.node_attributes())),
        )

    def shared_by(self, num_ranks: int) -> StoreSizes:
        """Return the part that each of some processes counts which share the memory."""

        def tables(whole: tuple[TableSize, ...]) -> tuple[TableSize, ...]:
            return tuple(replace(table, num_ranks=num_ranks) for table in whole)

        return replace(
            self,
            topology_bytes=share_of(self.topology_bytes, num_ranks),
            tables=tables(self.tables),
            compressed_bytes=share_of(self.compressed_bytes, num_ranks),
            indptr_bytes=share_of(self.indptr_bytes, num_ranks),
            indices_bytes=share_of(self.indices_bytes, num_ranks),
            times_bytes=share_of(self.times_bytes, num_ranks),
            edge_ids=tables(self.edge_ids),
            num_ranks=num_ranks,
            saved_by_int8=share_of(self.saved_by_int8, num_ranks),
        )


def saved_by_int8(spec: AttributeSpec) -> int:
    """Return the bytes of features that 'gnnstore quantize' would spare."""
    if spec.name != "x" or spec.layout != "paged" or "float" not in spec.dtype:
        return 0
    return spec.num_bytes - spec.num_bytes // STORAGE_DTYPES[spec.dtype].itemsize


def _for_sampling(schema: Schema, config: SamplingConfig) -> tuple[int, int]:
    """Return the bytes that times and weights take along edges, and of nodes."""
    time, weight = config.time_attr or "", config.weight_attr or ""
    along = [
        spec
        for edge in schema.edge_types
        for spec in (
            edge.orders.get(time),
            edge.attributes.get(time),
            edge.weight_sums.get(weight),
        )
    ]
    of_nodes = [node.attributes.get(time) for node in schema.node_types]
    sizes = [sum(s.num_bytes for s in specs if s is not None) for specs in (along, of_nodes)]
    return sizes[0], sizes[1]


def _tables(
    specs: Iterable[AttributeSpec], *, of_nodes: bool = False, edge_type: EdgeType | None = None
) -> list[TableSize]:
    return [
        TableSize(
            spec.path,
            spec.num_rows,
            spec.row_bytes,
            of_nodes,
            edge_type,
            shown_row_bytes=spec.shown_row_bytes,
        )
        for spec in specs
        if spec.layout == "paged"
    ]
