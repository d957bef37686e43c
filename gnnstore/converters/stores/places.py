"""New numbers of nodes: by scores, the highest first, of which one is the rank of a community.

The numbers of N nodes are a permutation in memory, 4 bytes each below 2^31 nodes. They are found by
counting how many nodes have each score, in pieces, so that nothing is sorted as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.keyed_random import hash_pairs
from gnnstore.converters.stores.graph import ColumnBlock, StoreInput
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.progress import Progress

_PIECE_NODES = 2**20
_PIECE_EDGES = 2**20
_TRAINING, _OTHER = 2, 1  # ranks of the nodes of splits


def places_by(scores: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the number of each node among all, by descending scores."""
    num_nodes = len(scores[0])
    # One number for all scores, with the first score in the highest digits.
    bases = [int(own.max(initial=0)) + 1 for own in scores]
    if math.prod(bases) > 2**63:
        raise AssertionError("scores this large cannot be told apart by one number")

    def keys() -> Iterator[tuple[int, npt.NDArray[np.uint64]]]:
        for first in range(0, num_nodes, _PIECE_NODES):
            key = np.zeros(min(_PIECE_NODES, num_nodes - first), np.uint64)
            for own, base in zip(scores, bases, strict=True):
                key *= np.uint64(base)
                key += np.uint64(base - 1) - own[first : first + len(key)].astype(np.uint64)
            yield first, key

    values, counts = distinct((key for _, key in keys()), np.uint64)
    next_place = np.cumsum(counts) - counts
    places = np.empty(num_nodes, id_dtype(num_nodes))
    for first, key in keys():
        kind = np.searchsorted(values, key)
        order = np.argsort(kind, kind="stable")
        found, begins, sizes = np.unique(kind[order], return_index=True, return_counts=True)
        ranks = np.arange(len(key)) - np.repeat(begins, sizes)
        places[first + order] = np.repeat(next_place[found], sizes) + ranks
        next_place[found] += sizes
    return places


_Counted = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]


def distinct(pieces: Iterable[npt.NDArray[Any]], dtype: npt.DTypeLike) -> _Counted:
    """Return the distinct values of all pieces, ascending, and how often each occurs."""
    parts: list[_Counted] = [(np.empty(0, dtype), np.empty(0, np.int64))]
    for piece in pieces:
        parts.append(np.unique(piece, return_counts=True))
        # Parts halve in size at least, so that a value is merged a logarithmic number of times.
        while len(parts) > 1 and len(parts[-2][0]) < 2 * len(parts[-1][0]):
            parts[-2:] = [_merged(parts[-2:])]
    return _merged(parts)


def _merged(parts: list[_Counted]) -> _Counted:
    values, places = np.unique(np.concatenate([v for v, _ in parts]), return_inverse=True)
    counts = np.bincount(places, np.concatenate([c for _, c in parts]), len(values))
    return values, counts.astype(np.int64)


def out_degrees(graph: StoreInput, progress: Progress) -> npt.NDArray[np.uint32]:
    """Return the number of in-neighbour lists that contain each node."""
    degrees = np.zeros(graph.num_nodes, np.uint32)
    with progress.phase("count degrees", graph.num_edges, "edges") as phase:
        for piece in graph.edge_pieces(_PIECE_EDGES):
            _core.count_ids(piece.sources, degrees)
            phase.advance(len(piece.sources))
    return degrees


def ranks_at_rest(graph: StoreInput) -> npt.NDArray[np.uint8]:
    """Return the rank of nodes that are never drawn: training nodes first, isolated ones last."""
    ranks = np.zeros(graph.num_nodes, np.uint8)
    for name, spec in graph.nodes.splits.items():
        ids = graph.read(spec)
        ranks[ids] = np.maximum(ranks[ids], _TRAINING if name == "train" else _OTHER)
    ranks *= 2
    first = 0
    for degrees in graph.degree_blocks():
        ranks[first : first + len(degrees)] += degrees > 0
        first += len(degrees)
    return ranks


# Label propagation (Raghavan, Albert and Kumara, Physical Review E 76, 2007), as a stream: a node
# takes the community of most of its in-neighbours, block of nodes by block, in the store's order.
# Communities are limited in size (Ugander and Backstrom, WSDM 2013): else most nodes of a graph
# with hubs end up in one.
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
