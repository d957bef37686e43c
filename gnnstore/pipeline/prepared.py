"""A batch on its way to the training loop: a sample first, then joined with its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.sampler import SamplerOutput

from gnnstore.disk.counts import NO_READS, ReadCounts
from gnnstore.features.source import Rows
from gnnstore.sampling.neighbor import SampledSubgraph


@dataclass(frozen=True)
class PreparedBatch:
    """A batch and what it cost.

    Attributes
    ----------
    output : SamplerOutput or Data
        The subgraph alone, or joined with its attributes.
    counts : ReadCounts
        What reading the attributes took.
    rows_of : callable or None
        Gathers the rows of a subgraph's nodes, and edges, that a plan provides for, by the
        attribute's path; None: there is no plan.
    """

    output: Any
    num_nodes: int
    num_edges: int
    num_bytes: int
    seconds_sampling: float
    seconds_gathering: float = 0.0
    bytes_gathered: int = 0
    counts: ReadCounts = NO_READS
    rows_of: Callable[[SamplerOutput], Mapping[str, Rows]] | None = None


def prepared(
    subgraph: SampledSubgraph, input_id: npt.NDArray[np.int64], seconds_sampling: float
) -> PreparedBatch:
    """Return a subgraph as a batch without attributes; its output is a `SamplerOutput`."""
    arrays = [subgraph.n_id, subgraph.edge_index, subgraph.edge_pos, input_id]
    arrays += [] if subgraph.batch is None else [subgraph.batch]
    return PreparedBatch(
        output=_sampler_output(subgraph, input_id),
        num_nodes=len(subgraph.n_id),
        num_edges=len(subgraph.edge_pos),
        num_bytes=sum(array.nbytes for array in arrays),
        seconds_sampling=seconds_sampling,
    )


def _sampler_output(subgraph: SampledSubgraph, input_id: npt.NDArray[np.int64]) -> SamplerOutput:
    edge_index = torch.from_numpy(subgraph.edge_index)
    return SamplerOutput(
        node=torch.from_numpy(subgraph.n_id),
        row=edge_index[0],
        col=edge_index[1],
        edge=torch.from_numpy(subgraph.edge_pos),
        batch=None if subgraph.batch is None else torch.from_numpy(subgraph.batch),
        num_sampled_nodes=subgraph.num_sampled_nodes,
        num_sampled_edges=subgraph.num_sampled_edges,
        metadata=(torch.from_numpy(input_id), None),
    )
