"""With whole neighbourhoods nothing is random: PyG's own sampling back end must agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gnnstore.formats.store.store import Csc
from gnnstore.sampling.neighbor import NeighborSampler, SamplingConfig

pytest.importorskip("torch_sparse", reason="torch-sparse, which PyG samples with, is not installed")


@pytest.mark.parametrize("induced", [False, True])
@pytest.mark.parametrize("fanouts", [[], [-1], [-1, -1], [-1, -1, -1], [1000, 1000]])
def test_whole_neighbourhoods_are_torch_sparses(fanouts: list[int], induced: bool) -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        num_nodes, num_edges = int(rng.integers(1, 80)), int(rng.integers(0, 500))
        targets = np.sort((num_nodes * rng.random(num_edges) ** 2).astype(np.int64))
        indptr = np.searchsorted(targets, np.arange(num_nodes + 1)).astype(np.int64)
        indices = rng.integers(0, num_nodes, num_edges)
        seeds = rng.permutation(num_nodes)[: rng.integers(0, 9)].astype(np.int64)

        node, row, col, edge = torch.ops.torch_sparse.neighbor_sample(
            *map(torch.from_numpy, (indptr, indices, seeds)), fanouts, False, not induced
        )
        subgraph_type: Any = "induced" if induced else "directional"
        config = SamplingConfig(tuple(fanouts), subgraph_type=subgraph_type)
        sampler = NeighborSampler(Csc(indptr, indices, num_nodes), config)
        found = sampler.sample(seeds, epoch=0, batch=0)
        np.testing.assert_array_equal(found.n_id, node.numpy())
        np.testing.assert_array_equal(found.edge_index, torch.stack([row, col]).numpy())
        np.testing.assert_array_equal(found.edge_pos, edge.numpy())
