"""Communities of a graph: nodes that share in-neighbours, found in a few passes over the edges.

Label propagation (Raghavan, Albert and Kumara, Physical Review E 76, 2007), as a stream: each node
takes the community of most of its in-neighbours, block of nodes by block, in the store's order.
Communities are limited in size, as in distributed graph partitioning (Ugander and Backstrom, WSDM
2013): without a limit, most nodes of a graph with hubs end up in one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.keyed_random import hash_pairs
from gnnstore.converters.stores.graph import ColumnBlock, StoreInput
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.progress import Progress

_ROUNDS = 4
_SAMPLE_DEGREE = 32  # in-neighbours of a node whose communities are counted
_STEP_NODES = 2**14
# The most nodes of a community: a disk reads pages, so that larger ones would gain nothing.
_MAX_SHARE, _MAX_NODES = 1 / 64, 2**10  # the larger of the two
_MIN_NODES = 64  # smaller ones do not fill pages


def find_communities(graph: StoreInput, seed: int, progress: Progress) -> npt.NDArray[Any]:
    """Return the community of each node, [N] of the type of node ids: the id of some node."""
    num_nodes = graph.num_nodes
    labels = np.arange(num_nodes, dtype=id_dtype(num_nodes))
    sizes = np.ones(num_nodes, np.int32)
    limit = max(_MAX_NODES, int(_MAX_SHARE * num_nodes))
    # A step decides on some nodes at once, which must not all rush to one community.
    step = max(1, min(_STEP_NODES, num_nodes // 64))
    with progress.phase("find communities", _ROUNDS * num_nodes, "nodes") as phase:
        for _ in range(_ROUNDS):
            for block in graph.column_blocks(step, _SAMPLE_DEGREE):
                _choose(block, labels, sizes, limit, seed)
                phase.advance(len(block.degrees))
    return labels


def _choose(
    block: ColumnBlock,
    labels: npt.NDArray[Any],
    sizes: npt.NDArray[np.int32],
    limit: int,
    seed: int,
) -> None:
    """Let the nodes of a block choose their communities; `labels` and `sizes` change."""
    if not len(block.sources):
        return
    pairs = np.stack((block.targets - block.first, labels[block.sources]), axis=1)
    keys = pairs[:, 0] * np.int64(len(labels)) + pairs[:, 1]
    keys, votes = np.unique(keys, return_counts=True)
    nodes, wanted = np.divmod(keys, np.int64(len(labels)))
    own = wanted == labels[block.first + nodes]
    has_room = own | (sizes[wanted] < limit)
    nodes, wanted, votes, own = (a[has_room] for a in (nodes, wanted, votes, own))
    if not len(nodes):
        return
    # The community with most votes; of equals the node's own, then one by lot.
    lots = (hash_pairs(seed, wanted, wanted, None) >> np.uint64(40)).astype(np.int64)
    order = np.lexsort((lots, own, votes, nodes))
    best = order[np.append(np.flatnonzero(np.diff(nodes[order])), len(order) - 1)]
    nodes, wanted = block.first + nodes[best], wanted[best]
    np.subtract.at(sizes, labels[nodes], 1)
    np.add.at(sizes, wanted, 1)
    labels[nodes] = wanted


def rank_communities(
    labels: npt.NDArray[Any], degrees: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Return a rank for each node: higher where the nodes of its community are drawn more often."""
    sizes = np.bincount(labels, minlength=len(labels))
    small = sizes[labels] < _MIN_NODES
    joined = np.where(small, labels[0] if len(labels) else 0, labels)
    drawn = np.bincount(joined, degrees, len(labels))
    counts = np.bincount(joined, minlength=len(labels))
    present = np.flatnonzero(counts)
    ranks = np.zeros(len(labels), np.uint32)
    ranks[present[np.argsort(drawn[present] / counts[present], kind="stable")]] = np.arange(
        len(present), dtype=np.uint32
    )
    return ranks[joined]
