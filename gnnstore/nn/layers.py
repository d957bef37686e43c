"""What models do with a batch in CSR between its layers: trimming, and the norm of GCN.

PyG's `trim_to_layer` cannot narrow a tensor in CSR. A batch numbers nodes and edges hop by hop, so
what a layer needs comes first, and its pointers, columns and values are views of the batch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gnnstore.errors import UsageError
from gnnstore.nn.adjacency import AdjT, Transpose
from gnnstore.units import format_count


def trim(  # noqa: PLR0917 - PyG's parameters, in PyG's order
    layer: int,
    num_sampled_nodes: Any = None,
    num_sampled_edges: Any = None,
    x: Any = None,
    adj_t: Any = None,
    edge_attr: Any = None,
    *,
    pairs: bool = False,
    num_sampled_nodes_per_hop: Any = None,
    num_sampled_edges_per_hop: Any = None,
    edge_index: Any = None,
) -> tuple[Any, Any, Any]:
    """Trim a batch to what a layer needs, as PyG's `trim_to_layer` does for `edge_index`.

    Parameters
    ----------
    layer : int
        Number of the layer, from 0; layers are trimmed in turn.
    num_sampled_nodes, num_sampled_edges : list of int, or dict of these by type
        The fields of the batch.
    x : tensor [n, ...], or dict of these by node type
        Input of the layer.
    adj_t : AdjT, or dict of these by edge type
        The batch's, or the result for the layer before.
    edge_attr : tensor [m, ...], or dict of these by edge type, optional
        Attributes of edges.
    pairs : bool
        Whether to return input and matrix for layers that take pairs, such as `SAGEConv`: they
        compute only the nodes that have edges in this layer, which are all that the next one needs.
    num_sampled_nodes_per_hop, num_sampled_edges_per_hop, edge_index
        PyG's names of `num_sampled_nodes`, `num_sampled_edges` and `adj_t`.

    Returns
    -------
    x : tensor, or pair of tensors
        Rows of the nodes that are left; with `pairs`, the second has rows of the targets only.
    adj_t : AdjT, or dict of these
        A row for each of these nodes; with `pairs`, for each of the targets.
    edge_attr : tensor or None
        Rows of the edges that are left.

    Raises
    ------
    UsageError
        If the batch was not sampled hop by hop, has no such layer, or its matrix was changed since.

    Examples
    --------
    >>> for i, conv in enumerate(convs):                               # doctest: +SKIP
    ...     x, adj_t, _ = trim(i, batch.num_sampled_nodes, batch.num_sampled_edges, x, adj_t)
    ...     x = conv(x, adj_t)
    """
    if num_sampled_nodes is None:
        num_sampled_nodes = num_sampled_nodes_per_hop
    if num_sampled_edges is None:
        num_sampled_edges = num_sampled_edges_per_hop
    adj_t = edge_index if adj_t is None else adj_t
    if num_sampled_nodes is None or num_sampled_edges is None:
        raise UsageError(
            "only batches that were sampled hop by hop can be trimmed: they have "
            'num_sampled_nodes and num_sampled_edges, with subgraph_type="directional"'
        )
    is_typed = isinstance(adj_t, Mapping)
    if not is_typed:  # the case of one type
        num_sampled_nodes, num_sampled_edges = {_N: num_sampled_nodes}, {_E: num_sampled_edges}
        x, adj_t = {_N: x}, {_E: adj_t}
        edge_attr = None if edge_attr is None else {_E: edge_attr}
    elif pairs:
        raise UsageError(
            "pairs=True is for graphs of one type: layers of several types make their own pairs"
        )
    num_hops = len(next(iter(num_sampled_edges.values())))
    left = num_hops - layer
    if not 0 <= layer <= num_hops:
        raise UsageError(
            f"layer {layer} of a batch of {num_hops} hops: layers count from 0, one for a hop"
        )
    nodes = {name: sum(counts[: left + 1]) for name, counts in num_sampled_nodes.items()}
    targets = nodes
    if pairs:  # those that may have edges; seeds are always among them
        targets = {name: sum(counts[: max(1, left)]) for name, counts in num_sampled_nodes.items()}
    edges = {kind: sum(num_sampled_edges[kind][:left]) for kind in adj_t}
    for kind, adj in adj_t.items():
        _check(adj, list(accumulate(num_sampled_edges[kind], initial=0)), left)
    x = {name: rows.narrow(0, 0, nodes[name]) for name, rows in x.items()}
    adj_t = {
        kind: adj.narrowed(targets[kind[2]], nodes[kind[0]], edges[kind], left)
        for kind, adj in adj_t.items()
    }
    if edge_attr is not None:
        edge_attr = {kind: rows.narrow(0, 0, edges[kind]) for kind, rows in edge_attr.items()}
    if is_typed:
        return x, adj_t, edge_attr
    rows, attr = x[_N], None if edge_attr is None else edge_attr[_E]
    return (rows, rows.narrow(0, 0, targets[_N])) if pairs else rows, adj_t[_E], attr


_N, _E = "", ("", "", "")


def _check(adj_t: Any, sums: list[int], left: int) -> None:
    if not isinstance(adj_t, AdjT):
        raise UsageError(
            f"adj_t is a {type(adj_t).__name__}: trim takes a batch's adj_t, of a loader with "
            'edge_format="csr"; for edge_index use torch_geometric.utils.trim_to_layer'
        )
    if adj_t.num_edges not in sums[left:]:
        raise UsageError(
            f"adj_t has {format_count(adj_t.num_edges, 'edge')}, and the batch's hops have "
            f"{sums[1:]} in all: trim before gcn_norm, layer by layer"
        )


def gcn_norm(adj_t: AdjT) -> AdjT:
    """Add a self-loop to each node and norm by degrees, for ``GCNConv(..., normalize=False)``.

    The weight of an edge is divided by the roots of the degrees of both nodes, after each node has
    got one self-loop, of the weight of the one that it had or of 1: equation (2) of Kipf and
    Welling (ICLR 2017). PyG's own `gcn_norm` gives these numbers for `edge_index`, and others for a
    matrix of a graph that has self-loops.

    Parameters
    ----------
    adj_t : AdjT [n, n]
        The matrix of a batch; trimmed before if at all, and then normed in each layer.

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
        ptr, index, weights, targets = _with_loops(adj_t._crow, adj_t._col, values, adj_t.dtype)
        degrees = weights.new_zeros(rows).index_add_(0, targets, weights)
        root = degrees.pow(-0.5).masked_fill_(degrees == 0, 0)
        transposes = []
        for each in adj_t.transposes[:1]:
            back, of, weights_back, sources = _with_loops(
                each._ptr, each._index, each.values, adj_t.dtype
            )
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
