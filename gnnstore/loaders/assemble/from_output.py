"""The round trip through PyG's `SamplerOutput`, which `transform_sampler_output` may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import SamplerOutput

from gnnstore.features.source import Rows
from gnnstore.loaders.assemble.homogeneous import BatchAssembler, Parts
from gnnstore.pipeline.batch import Batch, BatchCost

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch_geometric.data import Data

    from gnnstore.sampling.neighbor import Sample
    from gnnstore.seeds.base import SeedLabels

_NOTHING: Mapping[str, Rows] = {}


@dataclass(frozen=True)
class OutputAssembler:
    """Makes `SamplerOutput` of samples, and batches of the output that the user returns."""

    assembler: BatchAssembler
    # Returns the error for rows that the batch does not have; None: they are read.
    refusal: Callable[[str], Exception] | None = None

    def output(self, batch: Batch) -> SamplerOutput:
        """Return a sample as PyG's samplers do, but that `edge` holds positions in the columns."""
        if batch.sample is None or batch.labels is None:
            raise TypeError("a batch without a sample has no output")
        return sampler_output(batch.sample, batch.labels.metadata())

    def assemble_output(self, batch: Batch, output: SamplerOutput) -> None:
        """Set a batch's output; rows that were provided for it are chosen anew."""
        sample, labels = batch.sample, batch.labels
        if sample is None or labels is None:
            raise TypeError("a batch without a sample cannot be assembled")
        edges = self.assembler.edge_paths
        of_nodes = {path: rows for path, rows in batch.rows.items() if path not in edges}
        of_edges = {path: rows for path, rows in batch.rows.items() if path in edges}
        rows = self._reselected(of_nodes, sample.n_id, output.node, "nodes")
        if output.edge is not None:
            rows |= self._reselected(of_edges, sample.edge_pos, output.edge, "edges")
        labels = labels.from_metadata(output.metadata)
        batch.output = self.join(output, labels, rows, batch.cost)

    def join(
        self,
        output: SamplerOutput,
        labels: SeedLabels,
        rows: Mapping[str, Rows] = _NOTHING,
        cost: BatchCost | None = None,
    ) -> Data:
        """Return the batch of an output."""
        parts = Parts(
            output.node,
            _edge_index(output.row, output.col),
            output.edge,
            output.batch,
            output.num_sampled_nodes,
            output.num_sampled_edges,
        )
        data = self.assembler.join(parts, labels, rows, cost or BatchCost())
        if output.orig_row is not None and output.orig_col is not None:
            data._orig_edge_index = torch.stack([output.orig_row, output.orig_col])
        return data

    def _reselected(
        self, rows: dict[str, Rows], ids: npt.NDArray[Any], wanted: Tensor, what: str
    ) -> dict[str, Rows]:
        """Return the rows of the ids in a changed output."""
        chosen = wanted.numpy()
        if not rows or np.array_equal(chosen, ids):
            return rows
        order = np.argsort(ids, kind="stable")
        places = np.minimum(np.searchsorted(ids, chosen, sorter=order), max(0, len(ids) - 1))
        places = order[places] if len(ids) else places
        if len(ids) and np.array_equal(ids[places], chosen):
            return {path: Rows(values[places], counts) for path, (values, counts) in rows.items()}
        if self.refusal is not None:
            raise self.refusal(f"{what} for transform_sampler_output to add to a batch")
        return {}


def sampler_output(sample: Sample, metadata: Any) -> SamplerOutput:
    """Return a sample as PyG's samplers do; its tensors are the sample's arrays."""
    edge_index = torch.from_numpy(sample.edge_index)
    return SamplerOutput(
        node=torch.from_numpy(sample.n_id),
        row=edge_index[0],
        col=edge_index[1],
        edge=torch.from_numpy(sample.edge_pos),
        batch=None if sample.batch is None else torch.from_numpy(sample.batch),
        num_sampled_nodes=sample.num_sampled_nodes,
        num_sampled_edges=sample.num_sampled_edges,
        metadata=metadata,
    )


def _edge_index(row: Tensor, col: Tensor) -> Tensor:
    """Return [2, E]: the array that holds both rows, or a new one."""
    base = row._base
    if (
        base is not None
        and base is col._base
        and base.shape == (2, row.numel())
        and (row.data_ptr(), col.data_ptr()) == (base[0].data_ptr(), base[1].data_ptr())
    ):
        return base
    return torch.stack([row, col])
