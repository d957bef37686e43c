"""From a sampled subgraph to the `Data` object that PyG's own loader would yield.

What stands in a batch, under which name, in which order and element type, is decided here
and nowhere else.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput

from gnnstore.formats.schema import AttributeSpec
from gnnstore.io.buffers import empty
from gnnstore.io.resident import residents_of
from gnnstore.io.rows import MemoryRows, RowSource
from gnnstore.planning.placement import Placement
from gnnstore.sampling.neighbor import NeighborSampler, SampledSubgraph, SamplingConfig
from gnnstore.store import GraphStore, as_tensor

# PyG writes these after the attributes, so an attribute of the same name is overwritten,
# and dropped where the value is None. `n_id` and `e_id` of the user's stay.
_OVERWRITTEN = (
    "batch",
    "num_sampled_nodes",
    "num_sampled_edges",
    "input_id",
    "seed_time",
    "batch_size",
)


@dataclass(frozen=True)
class PreparedBatch:
    """A batch and what it cost.

    Attributes
    ----------
    output : SamplerOutput or Data
        The subgraph alone, or joined with its attributes.
    """

    output: Any
    num_nodes: int
    num_edges: int
    num_bytes: int
    seconds_sampling: float
    seconds_gathering: float
    bytes_gathered: int


@dataclass(frozen=True)
class _Attribute:
    """One attribute of nodes or edges: where its rows lie, how they become a tensor."""

    spec: AttributeSpec
    rows: RowSource

    def gather(self, ids: npt.NDArray[Any]) -> Tensor:
        """Return the rows of some ids, the row axis where the source data had it."""
        values = as_tensor(self.rows.gather(ids), self.spec.dtype)
        if self.spec.cat_dim not in (0, -values.dim()):
            values = values.movedim(0, self.spec.cat_dim).contiguous()
        return values


class BatchBuilder:
    """Samples and assembles the batches of one loader. Safe to use from many threads at once.

    Parameters
    ----------
    store : GraphStore
        A homogeneous store.
    config : SamplingConfig
        How to sample, the seed included.
    placement : Placement
        Where the store's parts lie.
    num_threads : int
        Threads that may load what must lie in memory.
    data_class : type
        `Data` or a subclass, made without arguments.
    """

    def __init__(
        self,
        store: GraphStore,
        config: SamplingConfig,
        placement: Placement,
        num_threads: int,
        data_class: type[Data] = Data,
    ) -> None:
        self._arguments = (store, config, placement, num_threads, data_class)
        self._data_class = data_class
        schema, shared = store.schema, residents_of(store)
        csc = shared.csc(store, placement.topology, num_threads)
        self.sampler = NeighborSampler(csc, config, index_dtype=schema.index_dtype)
        self.edge_ids = None if csc.edge_id is None else MemoryRows.from_array(csc.edge_id)

        def opened(specs: Any) -> dict[str, _Attribute]:
            return {
                name: _Attribute(spec, shared.rows(store, spec, placement.strategy, num_threads))
                for name, spec in specs.items()
            }

        self._node_attributes = opened(schema.node.attributes)
        self._edge_attributes = opened(schema.edge.attributes)
        self._graph_level = store.graph_attributes()
        self._explicit_num_nodes = schema.explicit_num_nodes

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process opens the store itself; nothing large is pickled.
        return (BatchBuilder, self._arguments)

    def with_config(self, config: SamplingConfig) -> BatchBuilder:
        """Return a builder that samples otherwise, over the same tables."""
        store, _, placement, num_threads, data_class = self._arguments
        return BatchBuilder(store, config, placement, num_threads, data_class)

    def sample(
        self,
        seeds: npt.NDArray[np.int64],
        input_id: npt.NDArray[np.int64],
        *,
        epoch: int,
        batch: int,
    ) -> PreparedBatch:
        """Sample a batch's subgraph; its output is a `SamplerOutput`.

        Parameters
        ----------
        seeds, input_id : ndarray of int64 [B]
            Seed nodes, and what `input_id` shows for each.
        epoch, batch : int
            Key of the draws, together with the seed.
        """
        start = time.perf_counter()
        subgraph = self.sampler.sample(seeds, epoch=epoch, batch=batch)
        seconds = time.perf_counter() - start
        arrays = [subgraph.n_id, subgraph.edge_index, subgraph.edge_pos, input_id]
        arrays += [] if subgraph.batch is None else [subgraph.batch]
        output = _sampler_output(subgraph, input_id)
        return PreparedBatch(
            output=output,
            num_nodes=len(subgraph.n_id),
            num_edges=len(subgraph.edge_pos),
            num_bytes=sum(array.nbytes for array in arrays),
            seconds_sampling=seconds,
            seconds_gathering=0.0,
            bytes_gathered=0,
        )

    def join(self, sampled: PreparedBatch) -> PreparedBatch:
        """Join a sampled subgraph with its attributes; the output is a `Data`."""
        start = time.perf_counter()
        data, bytes_gathered = self.assemble(sampled.output)
        return PreparedBatch(
            output=data,
            num_nodes=sampled.num_nodes,
            num_edges=sampled.num_edges,
            num_bytes=sampled.num_bytes + bytes_gathered,
            seconds_sampling=sampled.seconds_sampling,
            seconds_gathering=time.perf_counter() - start,
            bytes_gathered=bytes_gathered,
        )

    def assemble(self, sampled: SamplerOutput) -> tuple[Data, int]:
        """Gather the attributes of a subgraph.

        Parameters
        ----------
        sampled : SamplerOutput
            `edge` holds positions in the store's CSC order, or is None; `metadata` holds
            (input_id, seed_time).

        Returns
        -------
        Data, int
            The batch, and the bytes gathered for it.
        """
        values: dict[str, Any] = {}
        bytes_gathered = 0
        nodes = sampled.node.numpy()
        for name, attribute in self._node_attributes.items():
            values[name] = attribute.gather(nodes)
            bytes_gathered += values[name].nbytes
        values["edge_index"] = _edge_index(sampled.row, sampled.col)
        e_id = None
        if sampled.edge is not None:
            positions = sampled.edge.numpy()
            for name, attribute in self._edge_attributes.items():
                values[name] = attribute.gather(positions)
                bytes_gathered += values[name].nbytes
            e_id = self._original_edge_ids(sampled.edge)
            bytes_gathered += e_id.nbytes
        values.update(self._graph_level)
        if self._explicit_num_nodes:
            values["num_nodes"] = len(nodes)
        values.setdefault("n_id", sampled.node)
        if e_id is not None:
            values.setdefault("e_id", e_id)

        input_id, seed_time = sampled.metadata
        written = (
            sampled.batch,
            sampled.num_sampled_nodes,
            sampled.num_sampled_edges,
            input_id,
            seed_time,
            len(input_id),
        )
        values.update(zip(_OVERWRITTEN, written, strict=True))
        data = self._data_class()
        for name, value in values.items():
            if value is not None:
                data[name] = value
        if sampled.orig_row is not None and sampled.orig_col is not None:
            data._orig_edge_index = torch.stack([sampled.orig_row, sampled.orig_col])
        return data, bytes_gathered

    def _original_edge_ids(self, positions: Tensor) -> Tensor:
        if self.edge_ids is None:
            return positions.to(torch.int64)
        found = self.edge_ids.gather(positions.numpy())
        if found.dtype != np.int64:
            wide = empty(found.shape, np.int64)
            np.copyto(wide, found)
            found = wide
        return torch.from_numpy(found)


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


def _edge_index(row: Tensor, col: Tensor) -> Tensor:
    """Return [2, E]: the array that both are rows of, as the sampler left it, or a new one."""
    base = row._base
    if (
        base is not None
        and base is col._base
        and base.shape == (2, row.numel())
        and (row.data_ptr(), col.data_ptr()) == (base[0].data_ptr(), base[1].data_ptr())
    ):
        return base
    return torch.stack([row, col])
