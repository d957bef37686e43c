"""The record of a packed batch: everything but its packed rows, and its size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.features.packed.record import SavedRecord
from gnnstore.features.segments.packing import BatchMisses

if TYPE_CHECKING:
    from gnnstore.caching.plan import CachePlan
    from gnnstore.features.segments.packing import DividedChunks, DividedMisses
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.formats.store.schema import Schema
    from gnnstore.sampling.compact import CompactSample
    from gnnstore.seeds.base import SeedLabels
    from gnnstore.strategies.sources import OpenStore

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
        rows = [sources.nodes[spec.name].gather(subgraph.n_id).values for spec in self.plain_nodes]
        rows += [sources.edges[spec.name].gather(subgraph.edge_pos).values for spec in self.edges]
        edge_ids: npt.NDArray[Any] | None = None
        if sources.edge_ids is not None:
            edge_ids = sources.edge_ids.gather(subgraph.edge_pos).values
        return SavedRecord(
            seeds=tuple(labels.arrays()),
            slots=plan.batch_slots(i),
            change_positions=changes[0],
            change_slots=changes[1],
            positions=places.positions,
            repeat_targets=places.repeat_targets,
            repeat_sources=places.repeat_sources,
            plain=tuple(rows),
            edge_ids=edge_ids,
            subgraph=subgraph,
            shared=shared,
            chunk_crcs=tuple(found.checksums.of_chunk(i) for found in chunks),
            shared_crcs=shared_crcs,
        )

    def batch_bytes(self, subgraph: CompactSample) -> int:
        """Return the bytes of a batch with its attributes, as a loader hands it out."""
        num_nodes, num_edges = subgraph.num_nodes, subgraph.num_edges
        id_bytes = np.dtype(self.schema.index_dtype).itemsize
        node_bytes = id_bytes + _row_bytes(self.schema.node.attributes.values())
        node_bytes += 0 if subgraph.trees is None else _WIDE_BYTES
        edge_bytes = 2 * id_bytes + 2 * _WIDE_BYTES + _row_bytes(self.edges)
        return num_nodes * node_bytes + num_edges * edge_bytes + _WIDE_BYTES * subgraph.num_seeds

    def record_bytes(self, subgraph: CompactSample, num_changes: int, num_missed: int) -> int:
        """Return the approximate bytes of a batch's record on disk."""
        num_nodes, num_edges = subgraph.num_nodes, subgraph.num_edges
        edge_ids = self.sources.edge_ids
        edge_bytes = _row_bytes(self.edges) + (0 if edge_ids is None else edge_ids.row_bytes)
        return (
            subgraph.num_bytes
            + _WIDE_BYTES * subgraph.num_seeds
            + 4 * (num_nodes + 2 * num_changes + num_missed)
            + num_nodes * _row_bytes(self.plain_nodes)
            + num_edges * edge_bytes
        )


def _row_bytes(specs: Iterable[AttributeSpec]) -> int:
    return sum(spec.row_bytes for spec in specs)
