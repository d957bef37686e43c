"""A store's sampler, for PyG's loaders."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample

from gnnstore.features.source import RowSource
from gnnstore.formats.store.schema import EdgeType, Schema
from gnnstore.loaders.assemble import Parts
from gnnstore.sampling.neighbor import EdgeSample, NeighborSampler, Sample
from gnnstore.seeds.base import ON_DEMAND_EPOCH


class StoreSampler(BaseSampler):  # type: ignore[misc]
    """Samples neighbourhoods in a store, for `NodeLoader` and `LinkLoader` of PyG.

    Every call draws anew; in a worker process, torch's seed of that worker takes the place of the
    epoch.
    """

    def __init__(
        self, sampler: NeighborSampler, schema: Schema, edge_ids: Mapping[EdgeType, RowSource]
    ) -> None:
        super().__init__()
        self.sampler = sampler
        self._schema = schema
        self._edge_ids = edge_ids
        self._numbers = itertools.count()

    @property
    def num_neighbors(self) -> Any:
        """Fan-out of each hop; by edge type if they differ."""
        fanouts = self.sampler.config.fanouts
        if isinstance(fanouts, Mapping):
            return {edge_type: list(own) for edge_type, own in fanouts.items()}
        return list(fanouts)

    def sample_from_nodes(
        self, index: NodeSamplerInput, **_: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Return the sampled neighbourhood of some nodes."""
        seeds, times = index.node, index.time
        if not self._schema.is_homogeneous:
            seeds = {index.input_type: seeds}
            times = None if times is None else {index.input_type: times}
        return self._sample(seeds, times, (index.input_id, index.time))

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Return the sampled neighbourhood of the ends of some edges and of PyG's own negatives."""
        counts: Any = {node.name: node.num_nodes for node in self._schema.node_types}
        if self._schema.is_homogeneous:
            (counts,) = counts.values()
        disjoint = self.sampler.config.disjoint
        return edge_sample(index, self._sample, counts, disjoint, neg_sampling=neg_sampling)

    def _sample(
        self, seeds: Any, times: Any, metadata: Any = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        worker = get_worker_info()
        sample = self.sampler.sample(
            _arrays(seeds),
            epoch=ON_DEMAND_EPOCH if worker is None else worker.seed,
            batch=next(self._numbers),
            times=_arrays(times),
        )
        is_homogeneous = self._schema.is_homogeneous
        is_bidirectional = self.sampler.config.subgraph_type == "bidirectional"
        parts = Parts.of(
            self._with_ids(sample), joins_reverse=is_bidirectional and not is_homogeneous
        )
        return parts.output(metadata, is_homogeneous=is_homogeneous)

    def _with_ids(self, sample: Sample) -> Sample:
        edges = dict(sample.edges)
        for edge_type, ids in self._edge_ids.items():
            index, positions = edges[edge_type].index, edges[edge_type].positions
            edges[edge_type] = EdgeSample(index, ids.gather(positions).values)
        return replace(sample, edges=edges)


def _arrays(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _arrays(each) for name, each in values.items()}
    return values.numpy() if isinstance(values, torch.Tensor) else values
