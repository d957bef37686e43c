"""A batch as DENSE, the structure of MariusGNN for layers over segments (arXiv 2202.02365, §4).

Both structures draw the neighbours of a node once and use them in every deeper layer, so they hold
the same nodes and edges. PyTorch Geometric lists the seeds first, and a layer drops the end of each
list; DENSE lists the nodes that were found last first, and a layer drops the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from gnnstore.errors import UsageError


@dataclass(frozen=True, eq=False)
class DenseBatch:
    """The nodes of a batch by distance, farthest first, and a segment of neighbours for each.

    Block 0 holds the nodes that the last hop found, block k the seeds. Only nodes of blocks 1 to k
    have segments: a layer computes these from all, then `truncate` leaves them for the next layer.

    Attributes
    ----------
    node_ids : tensor of int64, shape [n]
        Ids of the nodes, block by block; a block is in the order of the batch.
    node_id_offsets : tuple of int, length k + 2
        Where the blocks begin in `node_ids`, and n.
    nbr_offsets : tensor of int64, shape [n - n_0 + 1]
        Where the segments of blocks 1 to k begin in `repr_map`, and m: nodes without neighbours
        have empty segments.
    repr_map : tensor of int64, shape [m]
        Positions of the sampled neighbours in `node_ids`.
    """

    node_ids: Tensor
    node_id_offsets: tuple[int, ...]
    nbr_offsets: Tensor
    repr_map: Tensor

    def blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return views of the rows of each block, of rows in the order of the *batch*.

        `torch.cat(dense.blocks(batch.x))` are the rows in the order of `node_ids`.

        Parameters
        ----------
        rows : tensor, shape [n, ...]
            A node attribute of the batch that this one was made of.
        """
        starts = self.node_id_offsets
        if len(rows) != starts[-1]:
            raise UsageError(
                f"blocks() takes a row for each of the {starts[-1]} nodes; got {len(rows)} rows"
            )
        sizes = [after - start for start, after in pairwise(starts)]
        return tuple(reversed(rows.split(sizes[::-1])))

    def truncate(self) -> DenseBatch:
        """Return the batch of the next layer: without block 0, and the segments of block 1.

        The tensors are views, but for `repr_map`, whose positions move. A batch of the seeds alone
        has no next layer.
        """
        if len(self.node_id_offsets) < 3:
            raise UsageError("truncate() of the seeds alone: a batch of k hops has k layers")
        dropped, computed = self.node_id_offsets[1], self.node_id_offsets[2]
        first = self.nbr_offsets[computed - dropped]
        return DenseBatch(
            self.node_ids[dropped:],
            tuple(offset - dropped for offset in self.node_id_offsets[1:]),
            self.nbr_offsets[computed - dropped :] - first,
            self.repr_map[int(first) :] - dropped,
        )


def batch_to_dense(batch: Any) -> DenseBatch:
    """Return a directional batch as DENSE; rows of attributes are not touched.

    Parameters
    ----------
    batch : torch_geometric.data.Data
        A batch of `NeighborLoader` or `LinkNeighborLoader`, with `subgraph_type="directional"`, on
        any device. A seed that is repeated stays so, with the neighbours that each copy has in the
        batch.

    Raises
    ------
    UsageError
        The batch does not say which hop found its nodes and edges, or its edges are not in the
        order of their targets.
    """
    nodes, edges = (
        getattr(batch, name, None) for name in ("num_sampled_nodes", "num_sampled_edges")
    )
    if nodes is None or edges is None:
        raise UsageError(
            "batch_to_dense needs num_sampled_nodes and num_sampled_edges, which only directional "
            "batches have; give the loader subgraph_type='directional'"
        )
    nodes, edges = [int(n) for n in nodes], [int(m) for m in edges]
    ids, (source, target) = batch.n_id, batch.edge_index
    degree = torch.bincount(target, minlength=len(ids))
    by_hop = []
    if sum(nodes) == len(ids) == len(degree):
        by_hop = [int(block.sum()) for block in degree.split(nodes)]
    if by_hop != [*edges, 0] or bool((target[1:] < target[:-1]).any()):
        raise UsageError(
            "batch_to_dense needs edges in the order of their targets, each hop's into the "
            f"nodes of the hop before: {nodes} nodes and {edges} edges. Take the batch before "
            "transforms that change its nodes or edges"
        )
    offsets = [0, *accumulate(reversed(nodes))]
    # Block h of the batch is the (k - h)-th from the end: its nodes move together.
    position = torch.cat(
        [
            torch.arange(offset, offset + size, device=ids.device)
            for offset, size in zip(offsets[-2::-1], nodes, strict=True)
        ]
    )
    segments = _backwards(degree[: len(ids) - nodes[-1]], nodes[:-1])
    return DenseBatch(
        _backwards(ids, nodes),
        tuple(offsets),
        torch.nn.functional.pad(segments.cumsum(0), (1, 0)),
        position[_backwards(source, edges)],
    )


def _backwards(values: Tensor, sizes: list[int]) -> Tensor:
    """Return the blocks of a tensor, the last first."""
    return torch.cat([values[:0], *reversed(values.split(sizes))])
