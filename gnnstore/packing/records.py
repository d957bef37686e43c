"""The record of a packed batch: everything but its packed rows, and its size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.features.packed.saved import SavedRecord
from gnnstore.features.packed.segments import BatchMisses

if TYPE_CHECKING:
    from gnnstore.caching.plan import CachePlan
    from gnnstore.features.packed.segments import DividedChunks, DividedMisses
    from gnnstore.features.source import Rows
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.formats.store.schema import Schema
    from gnnstore.sampling.compact import CompactSample
    from gnnstore.seeds.base import SeedLabels
    from gnnstore.strategies.base import OpenStore

_NOWHERE = np.empty(0, np.int32)
_NONE_MISSED = BatchMisses(_NOWHERE, _NOWHERE, _NOWHERE, _NOWHERE, _NOWHERE)
# Ids of input nodes, positions and edges in a batch.
_WIDE_BYTES = 8


@dataclass(frozen=True, eq=False)
class RecordMaker:
    """Makes the records of batches. Safe to use from many threads at once."""

    sources: OpenStore
    plain_nodes: tuple[AttributeSpec, ...]  # node attributes whose rows are in the records
    edges: tuple[AttributeSpec, ...]  # edge attributes whose rows are in the records
    schema: Schema

    def make(
        self,
        subgraph: CompactSample,
        labels: SeedLabels,
        plan: CachePlan,
        misses: DividedMisses | None,
        i: int,
        *,
        chunks: Sequence[DividedChunks],
        edge_rows: Mapping[str, Rows],
    ) -> SavedRecord:
        """Return the record of batch i of a superbatch."""
        places = _NONE_MISSED if misses is None else misses.batch(i)
        shared = None
        shared_crcs: tuple[npt.NDArray[np.uint32], ...] = ()
        if misses is not None and misses.segments:
            shared = (places.shared_positions, places.shared_ranks)
            shared_crcs = tuple(
                misses.batch_crcs(found, i, places.shared_ranks) for found in chunks
            )
        changes = plan.batch_changes(i)
        sources = self.sources
        ids_of = self._ids_of(subgraph)
        rows = [
            (edge_rows.get(spec.path) or sources.tables[spec.path].gather(ids_of[spec.path])).values
            for spec in (*self.plain_nodes, *self.edges)
        ]
        specs = {edge.type: edge.edge_id for edge in self.schema.edge_types}
        found_ids = []
        for edge_type, ids in sources.edge_ids.items():
            spec = specs[edge_type]
            known = None if spec is None else edge_rows.get(spec.path)
            found_ids.append(known or ids.gather(subgraph.edges[edge_type].positions))
        return SavedRecord(
            seeds=tuple(labels.arrays()),
            slots=plan.batch_slots(i),
            change_positions=changes[0],
            change_slots=changes[1],
            positions=places.positions,
            repeat_targets=places.repeat_targets,
            repeat_sources=places.repeat_sources,
            plain=tuple(rows),
            edge_ids=tuple(found.values for found in found_ids),
            subgraph=subgraph,
            shared=shared,
            chunk_crcs=tuple(found.checksums.of_chunk(i) for found in chunks),
            shared_crcs=shared_crcs,
        )

    def _ids_of(self, subgraph: CompactSample) -> dict[str, npt.NDArray[Any]]:
        """Return the node ids, or positions of edges, whose rows a batch has of each attribute."""
        found = {
            spec.path: subgraph.nodes[node.name]
            for node in self.schema.node_types
            for spec in node.attributes.values()
        }
        for edge in self.schema.edge_types:
            positions = subgraph.edges[edge.type].positions
            found |= {spec.path: positions for spec in edge.attributes.values()}
        return found

    def batch_bytes(self, subgraph: CompactSample) -> int:
        """Return the bytes of a batch with its attributes, as a loader hands it out."""
        id_bytes = np.dtype(self.schema.index_dtype).itemsize
        node_bytes = id_bytes + (0 if subgraph.trees is None else _WIDE_BYTES)
        edge_bytes = 2 * id_bytes + 2 * _WIDE_BYTES
        attributes = (*self.schema.node_attributes(), *self.edges)
        return (
            subgraph.num_nodes * node_bytes
            + subgraph.num_edges * edge_bytes
            + self._rows_bytes(subgraph, attributes)
            + _WIDE_BYTES * subgraph.num_seeds
        )

    def _rows_bytes(self, subgraph: CompactSample, specs: Iterable[AttributeSpec]) -> int:
        """Return the bytes of a batch's rows of some attributes."""
        ids_of = self._ids_of(subgraph)
        return sum(len(ids_of[spec.path]) * spec.row_bytes for spec in specs)
