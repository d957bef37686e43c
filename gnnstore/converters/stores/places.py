"""New numbers of nodes: by scores, the highest first.

The numbers of N nodes are a permutation in memory, 4 bytes each below 2^31 nodes. They are found by
counting how many nodes have each score, in pieces, so that nothing is sorted as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.errors import CorruptStoreError
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

    values, counts = _distinct(key for _, key in keys())
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


def _distinct(
    pieces: Iterator[npt.NDArray[np.uint64]],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Return the distinct values of all pieces, ascending, and how often each occurs."""
    values, counts = np.empty(0, np.uint64), np.empty(0, np.int64)
    waiting: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = []

    def merge() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        parts = [(values, counts), *waiting]
        found, where = np.unique(np.concatenate([v for v, _ in parts]), return_inverse=True)
        weights = np.concatenate([c for _, c in parts])
        return found, np.bincount(where, weights, len(found)).astype(np.int64)

    for piece in pieces:
        waiting.append(np.unique(piece, return_counts=True))
        # Merged when the number of values has doubled, so that each is merged a logarithmic
        # number of times.
        if sum(len(own) for own, _ in waiting) > len(values):
            values, counts = merge()
            waiting = []
    return merge()


def checked_ids(ids: npt.NDArray[Any], num_nodes: int, where: str) -> npt.NDArray[Any]:
    """Return ids of a store; raise unless all are nodes."""
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= num_nodes):
        wrong = ids[(ids < 0) | (ids >= num_nodes)]
        raise CorruptStoreError(
            f"{where}: node id {wrong.flat[0]} is outside [0, {num_nodes}); run 'gnnstore verify'",
            path=where,
        )
    return ids


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
        where = str(graph.reader.path / spec.path)
        ids = checked_ids(graph.read(spec), graph.num_nodes, where)
        ranks[ids] = np.maximum(ranks[ids], _TRAINING if name == "train" else _OTHER)
    ranks *= 2
    first = 0
    for degrees in graph.degree_blocks():
        ranks[first : first + len(degrees)] += degrees > 0
        first += len(degrees)
    return ranks
