"""Trimming of a batch to the nodes and edges that a layer needs, where its edges are in CSR.

PyG's `trim_to_layer` cannot narrow a tensor in CSR. A batch numbers nodes and edges hop by hop, so
what a layer needs comes first, and its pointers, columns and values are views of the batch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gnnstore.errors import UsageError
from gnnstore.nn.adjacency import AdjT


def trim(  # noqa: PLR0917 - PyG's parameters, in PyG's order
    layer: int,
    num_sampled_nodes: Any,
    num_sampled_edges: Any,
    x: Any,
    adj_t: Any,
    edge_attr: Any = None,
    *,
    pairs: bool = False,
) -> tuple[Any, Any, Any]:
    """Trim a batch to what a layer needs, as PyG's `trim_to_layer` does for `edge_index`.

    Parameters
    ----------
    layer : int
        Number of the layer, from 0; layers are trimmed in turn.
    num_sampled_nodes, num_sampled_edges : list of int, or dict of these by type
        Those of the batch.
    x : tensor [n, ...], or dict of these by node type
        Input of the layer.
    adj_t : AdjT, or dict of these by edge type
        The batch's, or the result for the layer before.
    edge_attr : tensor [m, ...], or dict of these by edge type, optional
        Attributes of edges.
    pairs : bool
        Whether to return input and matrix for layers that take pairs, such as `SAGEConv`: they
        compute only the nodes that have edges in this layer, which are all that the next one needs.

    Returns
    -------
    x : tensor, or pair of tensors
        Rows of the nodes that are left; with `pairs`, the second has those of the targets only.
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
    if num_sampled_nodes is None or num_sampled_edges is None:
        raise UsageError(
            "only batches that were sampled hop by hop can be trimmed: they have "
            'num_sampled_nodes and num_sampled_edges, with subgraph_type="directional"'
        )
    if not isinstance(adj_t, Mapping):
        hops = _Hops(layer, num_sampled_edges)
        nodes = hops.nodes(num_sampled_nodes)
        x, edge_attr = x.narrow(0, 0, nodes), hops.edge_rows(edge_attr)
        if not pairs:
            return x, hops.narrow(adj_t, nodes, nodes), edge_attr
        targets = hops.targets(num_sampled_nodes)
        return (x, x.narrow(0, 0, targets)), hops.narrow(adj_t, targets, nodes), edge_attr
    if pairs:
        raise UsageError(
            "pairs=True is for graphs of one type: layers of several types make their own pairs"
        )
    num_hops = {kind: _Hops(layer, num_sampled_edges[kind]) for kind in adj_t}
    any_hops = next(iter(num_hops.values()))
    nodes_of = {name: any_hops.nodes(counts) for name, counts in num_sampled_nodes.items()}
    return (
        {name: rows.narrow(0, 0, nodes_of[name]) for name, rows in x.items()},
        {
            kind: num_hops[kind].narrow(adj, nodes_of[kind[2]], nodes_of[kind[0]])
            for kind, adj in adj_t.items()
        },
        None
        if edge_attr is None
        else {kind: num_hops[kind].edge_rows(rows) for kind, rows in edge_attr.items()},
    )


class _Hops:
    """The hops that a layer keeps, of edges of one type."""

    def __init__(self, layer: int, num_edges: Sequence[int]) -> None:
        self._left = len(num_edges) - layer
        if not 0 <= layer <= len(num_edges):
            raise UsageError(
                f"layer {layer} of a batch of {len(num_edges)} hops: layers count from 0, and "
                "each takes a hop"
            )
        self._sums = [sum(num_edges[:k]) for k in range(len(num_edges) + 1)]

    def nodes(self, num_nodes: Sequence[int]) -> int:
        """Return the number of nodes that are left."""
        return sum(num_nodes[: self._left + 1])

    def targets(self, num_nodes: Sequence[int]) -> int:
        """Return the number of nodes that may have edges; seeds are always among them."""
        return sum(num_nodes[: max(1, self._left)])

    def edge_rows(self, edge_attr: Tensor | None) -> Tensor | None:
        """Return the rows of the edges that are left."""
        return None if edge_attr is None else edge_attr.narrow(0, 0, self._sums[self._left])

    def narrow(self, adj_t: Any, num_targets: int, num_sources: int) -> AdjT:
        """Return the matrix of the nodes and edges that are left."""
        if not isinstance(adj_t, AdjT):
            raise UsageError(
                f"adj_t is a {type(adj_t).__name__}: trim takes a batch's adj_t, of a loader with "
                'edge_format="csr"; for edge_index use torch_geometric.utils.trim_to_layer'
            )
        if len(adj_t.col_indices()) not in self._sums[self._left :]:
            raise UsageError(
                f"adj_t has {len(adj_t.col_indices())} edges, and the batch's hops have "
                f"{self._sums[1:]} in all: trim before gcn_norm, layer by layer"
            )
        return adj_t.narrowed(num_targets, num_sources, self._sums[self._left], self._left)
