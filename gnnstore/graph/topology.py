"""The topology of a graph for samplers: in memory, mapped, or read from disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from gnnstore._core import ReadCounts
from gnnstore.formats.store.store import Csc, load_csc
from gnnstore.graph.indices import IndexRows
from gnnstore.sampling.disk import DiskNeighborSampler
from gnnstore.sampling.neighbor import NeighborSampler
from gnnstore.sampling.sampled_graph import SampledTypes, StoredColumns

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.formats.store.schema import EdgeType, Schema
    from gnnstore.formats.store.store import StoreReader, TopologyMode
    from gnnstore.sampling.disk import CachedNeighbors, Fetch
    from gnnstore.sampling.neighbor import IndexDtype, SamplingConfig
    from gnnstore.sampling.sampled_graph import Column, ColumnSpecs


@dataclass(frozen=True, eq=False)
class Topology:
    """The in-neighbours of all nodes by edge type, in memory or with readers of the files."""

    schema: Schema
    csc: Mapping[EdgeType, Csc]  # if there are `rows`, only length and dtype of `indices` are used
    rows: Mapping[EdgeType, IndexRows] = field(default_factory=dict)
    # In-neighbour lists, which need not be read once they are in memory.
    neighbors: Mapping[EdgeType, CachedNeighbors] = field(default_factory=dict)
    stored: StoredColumns | None = None  # what sampling by time or weight needs
    # Opens arrays that an engine reads, and those that were opened, by path.
    open_rows: Callable[[AttributeSpec], IndexRows] | None = None
    columns_read: dict[str, IndexRows] = field(default_factory=dict)

    @classmethod
    def load(cls, reader: StoreReader, mode: TopologyMode, num_threads: int) -> Self:
        """Read a store's topology into memory, or map it."""
        edges = reader.schema.edge_types
        csc = {e.type: load_csc(reader, e, mode, num_threads) for e in edges}
        return cls(reader.schema, csc, stored=StoredColumns(reader, mode, num_threads))

    def on_disk(self, reader: StoreReader, engine: Engine) -> Self:
        """Return the topology with in-neighbours that an engine reads."""

        def open_rows(spec: AttributeSpec) -> IndexRows:
            return IndexRows.open(reader.paged(spec), engine)

        rows = {of: open_rows(self.schema.edge_of(of).indices) for of in self.csc}
        return replace(self, rows=rows, open_rows=open_rows, columns_read={})

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """The edge types, in the store's order."""
        return tuple(self.csc)

    def columns(self, edge_type: EdgeType | None = None) -> Csc:
        """Return the in-neighbours along the edges of a type, or of the only type."""
        schema = self.schema
        return self.csc[(schema.edge if edge_type is None else schema.edge_of(edge_type)).type]

    def num_nodes(self, node_type: str | None = None) -> int:
        """Return the number of nodes of a type, or of the only type."""
        schema = self.schema
        return (schema.node if node_type is None else schema.node_of(node_type)).num_nodes

    @property
    def is_read(self) -> bool:
        """Whether in-neighbours are read from disk, so that batches are best sampled together."""
        return bool(self.rows)

    @property
    def label(self) -> str:
        """The origin of the graph, for messages."""
        return next((csc.label for csc in self.csc.values()), "the graph")

    @property
    def is_slow(self) -> bool:
        """Whether sampling may have to wait for a disk."""
        return any(csc.mapped for csc in self.csc.values())

    @property
    def counts(self) -> ReadCounts:
        """Reads of in-neighbours, their order, times and weights so far."""
        read = (*self.rows.values(), *self.columns_read.values())
        return sum((rows.counts for rows in read), ReadCounts())

    def sampler(self, config: SamplingConfig, index_dtype: IndexDtype) -> NeighborSampler:
        """Return a sampler; its batches are the same wherever the topology lies."""
        types, specs = self._types(config)
        if not self.rows:
            return NeighborSampler(types, config, index_dtype)
        fetch: dict[tuple[EdgeType, Column], Fetch] = {
            (of, "indices"): rows.fetch for of, rows in self.rows.items()
        }
        for of, spec in specs.items():
            fetch[of] = self._rows_of(spec).fetch
        return DiskNeighborSampler(types, config, index_dtype, fetch, self.neighbors)

    def _types(self, config: SamplingConfig) -> tuple[SampledTypes, ColumnSpecs]:
        if self.stored is not None:
            return self.stored.types(self.csc, config.time_attr, config.weight_attr)
        counts = {node.name: node.num_nodes for node in self.schema.node_types}
        return SampledTypes(counts, self.csc, self.label), {}

    def _rows_of(self, spec: AttributeSpec) -> IndexRows:
        if spec.path not in self.columns_read:
            assert self.open_rows is not None  # noqa: S101 - given with the rows
            self.columns_read.setdefault(spec.path, self.open_rows(spec))
        return self.columns_read[spec.path]
