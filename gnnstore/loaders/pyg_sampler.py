"""A store's sampler, for PyG's loaders."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample

from gnnstore.loaders.assemble.from_output import sampler_output
from gnnstore.seeds.base import ON_DEMAND_EPOCH

if TYPE_CHECKING:
    from gnnstore.features.source import RowSource
    from gnnstore.sampling.neighbor import NeighborSampler


class StoreSampler(BaseSampler):  # type: ignore[misc]
    """Samples neighbourhoods in a store, for `NodeLoader` and `LinkLoader` of PyG.

    Every call draws anew; in a worker process, torch's seed of that worker takes the place of the
    epoch.
    """

    def __init__(self, sampler: NeighborSampler, edge_ids: RowSource | None = None) -> None:
        super().__init__()
        self.sampler = sampler
        self._edge_ids = edge_ids
        self._numbers = itertools.count()

    @property
    def num_neighbors(self) -> list[int]:
        """Fan-out of each hop."""
        return list(self.sampler.config.fanouts)

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
        """Return the sampled neighbourhood of some nodes."""
        worker = get_worker_info()
        subgraph = self.sampler.sample(
            index.node.numpy(),
            epoch=ON_DEMAND_EPOCH if worker is None else worker.seed,
            batch=next(self._numbers),
        )
        if self._edge_ids is not None:
            positions = self._edge_ids.gather(subgraph.edge_pos).values
            subgraph = subgraph.with_only(edge_pos=positions)
        return sampler_output(subgraph, (index.input_id, index.time))

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput:
        """Return the sampled neighbourhood of the ends of some edges and of PyG's own negatives."""

        def sample(seeds: torch.Tensor, _: Any) -> SamplerOutput:
            return self.sample_from_nodes(NodeSamplerInput(None, seeds))

        num_nodes = self.sampler.num_nodes
        return edge_sample(
            index, sample, num_nodes, self.sampler.config.disjoint, neg_sampling=neg_sampling
        )
