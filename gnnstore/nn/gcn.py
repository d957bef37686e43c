"""The norm of GCN for a matrix in CSR, with the numbers that PyG has for `edge_index`."""

from __future__ import annotations

import torch
from torch import Tensor

from gnnstore.errors import UsageError
from gnnstore.nn.adjacency import AdjT, Transpose


def gcn_norm(adj_t: AdjT) -> AdjT:
    """Add a self-loop to each node and norm by degrees, for ``GCNConv(..., normalize=False)``.

    The weight of an edge is divided by the roots of the degrees of both nodes, after each node has
    got one self-loop, of the weight of the one that it had or of 1: equation (2) of Kipf and
    Welling (ICLR 2017). PyG's own `gcn_norm` gives these numbers for `edge_index`, and others for a
    matrix of a graph that has self-loops.

    Parameters
    ----------
    adj_t : AdjT [n, n]
        Of a batch; trimmed before if at all, and then normed in each layer.

    Returns
    -------
    AdjT [n, n]
        A row's self-loop is its last entry; one that was there before has weight 0.

    Raises
    ------
    UsageError
        If the matrix is not square.
    """
    rows, columns = adj_t.size()
    if rows != columns:
        raise UsageError(
            f"gcn_norm of {rows} x {columns} nodes: GCN has one set of nodes; trim without pairs"
        )
    values = adj_t.values() if adj_t.has_values else None
    with torch.no_grad():
        ptr, index, weights, targets = _with_loops(
            adj_t.crow_indices(), adj_t.col_indices(), values, adj_t.dtype
        )
        degrees = weights.new_zeros(rows).index_add_(0, targets, weights)
        root = degrees.pow(-0.5).masked_fill_(degrees == 0, 0)
        transposes = []
        for each in adj_t.transposes[:1]:
            back, of, weights_back, sources = _with_loops(*each.arrays, adj_t.dtype)
            normed = weights_back * root[sources] * root[of]
            transposes.append(Transpose(back, of, normed))
        normed = weights * root[targets] * root[index]
    return AdjT(ptr, index, normed, size=(rows, rows), transposes=transposes)


def _with_loops(
    ptr: Tensor, index: Tensor, values: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return pointers, columns, weights and rows with a loop at the end of each row."""
    num_rows, num_edges, device = len(ptr) - 1, len(index), index.device
    nodes = torch.arange(num_rows, dtype=index.dtype, device=device)
    rows = nodes.repeat_interleave(ptr.diff(), output_size=num_edges)
    if values is None:
        values = torch.ones(num_edges, dtype=dtype, device=device)
    is_loop = rows == index
    # The last one is of no node; nothing here waits for a GPU.
    loops = values.new_ones(num_rows + 1).index_put_((rows.where(is_loop, num_rows),), values)
    ends = ptr[1:] + nodes
    places = torch.arange(num_edges, device=device) + rows
    with_loops = []
    for of_edges, of_loops in (
        (index, nodes),
        (values.masked_fill(is_loop, 0), loops[:num_rows]),
        (rows, nodes),
    ):
        joined = of_edges.new_empty(num_edges + num_rows)
        joined[places], joined[ends] = of_edges, of_loops
        with_loops.append(joined)
    columns, weights, rows = with_loops
    return torch.cat([ptr[:1], ends + 1]), columns, weights, rows
