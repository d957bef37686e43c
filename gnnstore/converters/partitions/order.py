"""The assignment of nodes to partitions.

Nodes go by a keyed permutation, training nodes first if asked for; or by the order of the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

import numpy as np
import numpy.typing as npt

from gnnstore.converters.keyed_random import draw_words
from gnnstore.errors import UsageError
from gnnstore.formats.partitions.manifest import MOST_PARTITIONS, MOST_ROWS

_PURPOSE = int.from_bytes(b"node-row", "big")
_PIECE = 2**18  # a multiple of four: a block of random words


def node_order(
    num_nodes: int, seed: int, is_first: npt.NDArray[np.bool_] | None, nodes_at_once: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the nodes in an order that depends on the seed alone, piece by piece."""
    num_pieces = max(1, -(-num_nodes // nodes_at_once))
    for wanted in (None,) if is_first is None else (True, False):
        for piece in range(num_pieces):
            low, last = piece * 2**64 // num_pieces, (piece + 1) * 2**64 // num_pieces - 1
            keys, nodes = [], []
            for first in range(0, num_nodes, _PIECE):
                end = min(first + _PIECE, num_nodes)
                words = draw_words(seed, _PURPOSE, first // 4, end - first)
                chosen = (words >= np.uint64(low)) & (words <= np.uint64(last))
                if is_first is not None:
                    chosen &= is_first[first:end] == wanted
                here = np.flatnonzero(chosen)
                keys.append(words[here])
                nodes.append(here + first)
            order = np.argsort(np.concatenate(keys), kind="stable")
            if len(order):
                yield np.concatenate(nodes)[order]


def as_they_are(num_nodes: int, nodes_at_once: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the nodes by their ids, piece by piece."""
    for first in range(0, num_nodes, nodes_at_once):
        yield np.arange(first, min(first + nodes_at_once, num_nodes))


def rows_per_partition(num_nodes: int, num_partitions: int, rows_per_page: list[int]) -> int:
    """Return the rows of each partition but the last, which may have fewer."""
    if num_partitions < 2 or num_partitions > min(num_nodes, MOST_PARTITIONS):
        raise UsageError(
            f"{num_partitions} partitions: expected 2 to {min(num_nodes, MOST_PARTITIONS)} for "
            f"{num_nodes} nodes"
            + ("; a graph of fewer than two nodes has no partitions" if num_nodes < 2 else "")
        )
    rows = -(-num_nodes // num_partitions)
    if rows > MOST_ROWS:
        least = -(-num_nodes // MOST_ROWS)
        raise UsageError(
            f"{num_partitions} partitions of {num_nodes} nodes have {rows} rows each, more than "
            f"{MOST_ROWS}; take {least} or more"
        )
    if rows * (num_partitions - 1) >= num_nodes:
        nearest = [-(-num_nodes // rows), -(-num_nodes // (rows - 1))]
        working = " or ".join(str(count) for count in nearest if count <= MOST_PARTITIONS)
        raise UsageError(
            f"{num_partitions} partitions: {num_nodes} nodes fill only {nearest[0]} partitions of "
            f"{rows}; take {working}"
        )
    pages = lcm(*rows_per_page)
    whole = -(-rows // pages) * pages
    left = num_nodes - whole * (num_partitions - 1)
    return whole if 2 * left >= whole and whole <= MOST_ROWS else rows
