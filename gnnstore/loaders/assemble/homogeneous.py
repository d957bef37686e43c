"""From a sampled subgraph to the `Data` object that PyG's own loader would yield.

What stands in a batch, under which name, in which order and element type, is decided here
and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import SamplerOutput

from gnnstore.disk.buffers import empty
from gnnstore.disk.counts import NO_READS, ReadCounts
from gnnstore.features.source import Rows, RowSource
from gnnstore.formats.store.schema import AttributeSpec, Schema
from gnnstore.graph.store import as_tensor
from gnnstore.pipeline.prepared import PreparedBatch, prepared
from gnnstore.sampling.neighbor import SamplingConfig

if TYPE_CHECKING:
    from gnnstore.strategies.open import Tables

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
class _Attribute:
    """One attribute of nodes or edges: where its rows lie, how they become a tensor."""

    spec: AttributeSpec
    rows: RowSource

    def tensor(self, gathered: Rows) -> tuple[Tensor, ReadCounts]:
        """Return the rows of some ids, the row axis where the source data had it."""
        rows, counts = gathered
        values = as_tensor(rows, self.spec.dtype)
        if self.spec.cat_dim not in (0, -values.dim()):
            values = values.movedim(0, self.spec.cat_dim).contiguous()
        return values, counts


class Described(Protocol):
    """What batches show of a graph besides rows: a store, or what was packed of one."""

    @property
    def schema(self) -> Schema:
        """Attributes, and the element type of ids."""

    def graph_attributes(self) -> dict[str, Any]:
        """Return the graph-level attributes."""


class BatchBuilder:
    """Samples and assembles the batches of one loader. Safe to use from many threads at once.

    Parameters
    ----------
    store : GraphStore or Plan
        Homogeneous.
    config : SamplingConfig
        How to sample, the seed included.
    tables : Tables
        The store's parts, opened. Builders that differ in their config share them.
    data_class : type
        `Data` or a subclass, made without arguments.
    """

    def __init__(
        self,
        store: Described,
        config: SamplingConfig,
        tables: Tables,
        data_class: type[Data] = Data,
    ) -> None:
        self._arguments = (store, config, tables, data_class)
        self._data_class = data_class
        schema = store.schema
        self.tables = tables
        self.sampler = tables.structure.sampler(config, schema.index_dtype)
        self._node_attributes = {
            name: _Attribute(spec, tables.nodes[name])
            for name, spec in schema.node.attributes.items()
        }
        self._edge_attributes = {
            name: _Attribute(spec, tables.edges[name])
            for name, spec in schema.edge.attributes.items()
        }
        self._graph_level = store.graph_attributes()
        self._explicit_num_nodes = schema.explicit_num_nodes
        self._edge_id = schema.edge.edge_id

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process opens the store itself; nothing large is pickled.
        return (BatchBuilder, self._arguments)

    def with_config(self, config: SamplingConfig) -> BatchBuilder:
        """Return a builder that samples otherwise, over the same tables."""
        store, _, tables, data_class = self._arguments
        return BatchBuilder(store, config, tables, data_class)

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
        return prepared(subgraph, input_id, time.perf_counter() - start)

    def join(self, sampled: PreparedBatch) -> PreparedBatch:
        """Join a sampled subgraph with its attributes; the output is a `Data`."""
        start = time.perf_counter()
        rows = None if sampled.rows_of is None else sampled.rows_of(sampled.output)
        data, bytes_gathered, counts = self.assemble(sampled.output, rows)
        return replace(
            sampled,
            output=data,
            num_bytes=sampled.num_bytes + bytes_gathered,
            seconds_gathering=time.perf_counter() - start,
            bytes_gathered=bytes_gathered,
            counts=counts,
            rows_of=None,
        )

    def assemble(
        self, sampled: SamplerOutput, rows: Mapping[str, Rows] | None = None
    ) -> tuple[Data, int, ReadCounts]:
        """Gather the attributes of a subgraph.

        Parameters
        ----------
        sampled : SamplerOutput
            `edge` holds positions in the store's CSC order, or is None; `metadata` holds
            (input_id, seed_time).
        rows : mapping of str to Rows, optional
            Rows of its nodes and edges that are there already, by the attribute's path.

        Returns
        -------
        Data, int, ReadCounts
            The batch, the bytes gathered for it, and what reading them took.
        """
        values: dict[str, Any] = {}
        bytes_gathered, counts = 0, NO_READS

        def gather(attributes: dict[str, _Attribute], ids: npt.NDArray[Any]) -> None:
            nonlocal bytes_gathered, counts
            for name, attribute in attributes.items():
                known = None if rows is None else rows.get(attribute.spec.path)
                values[name], read = attribute.tensor(known or attribute.rows.gather(ids))
                bytes_gathered += values[name].nbytes
                counts += read

        nodes = sampled.node.numpy()
        gather(self._node_attributes, nodes)
        values["edge_index"] = _edge_index(sampled.row, sampled.col)
        e_id = None
        if sampled.edge is not None:
            gather(self._edge_attributes, sampled.edge.numpy())
            e_id = self._original_edge_ids(sampled.edge, rows or {})
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
        return data, bytes_gathered, counts

    def _original_edge_ids(self, positions: Tensor, rows: Mapping[str, Rows]) -> Tensor:
        known = None if self._edge_id is None else rows.get(self._edge_id.path)
        if known is None:
            if self.tables.edge_ids is None:
                return positions.to(torch.int64)
            known = self.tables.edge_ids.gather(positions.numpy())
        found = known.values
        if found.dtype != np.int64:
            wide = empty(found.shape, np.int64)
            np.copyto(wide, found)
            found = wide
        return torch.from_numpy(found)


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
