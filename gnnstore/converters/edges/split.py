"""Splits the edges of a graph into those that messages pass by and those to predict.

The split of an edge is a symmetric hash of its two ends: all copies of an edge, and its reverse,
fall into the same split, for any order of the input, any memory and any machine.
Edges come here sorted, a piece at a time: once to count them, once to write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.columns import EdgeChunk, SortedEdges
from gnnstore.errors import InputError, UsageError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.random_words import hash_pairs
from gnnstore.units import format_count

NAMES = ("train", "valid", "test")
PIECE_EDGES = 2**17  # edges of a piece: each takes a hundred bytes while its split is computed
_PIECE_COLUMNS = 2**18
_SALT = 0x65646765_73706C69  # "edgespli": no other hash of pairs by the same seed has this salt


@dataclass(frozen=True)
class SplitRule:
    """The rule that decides the split of each edge."""

    fractions: tuple[float, ...]  # shares of train, valid and test
    seed: int = 0  # in [0, 2**64)
    messages: tuple[str, ...] = ("train",)  # splits whose edges messages pass by
    # Fixed negatives of each edge to predict: nodes drawn to replace its target.
    num_negatives: int = 0
    # Draw negatives that are edges of the graph, loops or the edge itself again, up to 16 times.
    strict_negatives: bool = False

    def __post_init__(self) -> None:
        shares = self.fractions
        is_sound = len(shares) == len(NAMES) and min(shares) >= 0 and sum(shares) <= 1 + 1e-9
        if not is_sound or not shares[0] or not any(shares[1:]):
            raise UsageError(
                f"fractions={','.join(f'{share:g}' for share in shares)}: expected the shares of "
                "train, valid and test with a sum of at most 1, above 0 for train, and for valid "
                "or test, as in 0.8,0.1,0.1"
            )
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"seed={self.seed} is not in [0, 2**64)")
        if self.num_negatives < 0:
            raise UsageError(f"num_negatives={self.num_negatives}: expected a number from 0 on")
        if self.strict_negatives and not self.num_negatives:
            raise UsageError("strict goes with num_negatives, of which there are none")

    def hashes(self, edges: SortedEdges) -> npt.NDArray[np.uint64]:
        """Return the hash of the two ends of each edge [k]."""
        low = np.minimum(edges.sources, edges.targets)
        high = np.maximum(edges.sources, edges.targets)
        return hash_pairs(self.seed ^ _SALT, low, high)

    def splits(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the number of each edge's split in `NAMES` [k]; 3: none."""
        bounds = np.cumsum(self.fractions)
        bounds[bounds > 1 - 1e-9] = 1
        limits = (bounds * 2.0**53).astype(np.uint64)  # of 53 bits, which a float has
        return np.searchsorted(limits, hashes >> np.uint64(11), side="right")


class SplitEdges:
    """The edges of a graph that messages pass by, as `BuiltEdges`, and the edges to predict."""

    def __init__(
        self,
        rule: SplitRule,
        edges: Callable[..., Iterator[SortedEdges]],
        num_nodes: int,
        edge_id_dtype: np.dtype[Any] | None,
    ) -> None:
        self.num_nodes = num_nodes
        self.edge_id_dtype = edge_id_dtype
        self.index_dtype = id_dtype(num_nodes)
        self._rule = rule
        self._edges = edges
        self._count()

    def _count(self) -> None:
        """Count the edges of each split, and detect whether the graph is undirected."""
        counts, ascending, descending = np.zeros((3, len(NAMES) + 1), np.int64)
        balance = 0
        for piece in self._edges(ends_only=True):
            hashes = self._rule.hashes(piece)
            splits = self._rule.splits(hashes)
            up, down = piece.sources < piece.targets, piece.sources > piece.targets
            # In an undirected graph both directions have the same hashes, equally often.
            balance += int(hashes[up].sum()) - int(hashes[down].sum())  # each modulo 2^64
            counts += np.bincount(splits, minlength=len(counts))
            ascending += np.bincount(splits[up], minlength=len(counts))
            descending += np.bincount(splits[down], minlength=len(counts))
        self.is_undirected = balance % 2**64 == 0 and bool((ascending == descending).all())
        by_name = dict(zip(NAMES, counts.tolist(), strict=False))
        self.num_edges = sum(by_name[name] for name in self._rule.messages)
        if self.is_undirected:
            counts -= descending
        self.sizes = {
            name: int(count)
            for name, count, share in zip(NAMES, counts, self._rule.fractions, strict=False)
            if share and name != "train"
        }
        sizes = {"train": self.num_edges, **self.sizes}
        if empty := [name for name, count in sizes.items() if not count]:
            raise InputError(
                f"none of the {format_count(sum(by_name.values()), 'edge')} fell into "
                f"{' and '.join(empty)}; give it a larger share, or 0 to leave it out"
            )

    def chunks(self) -> Iterator[EdgeChunk]:
        """Yield the edges that messages pass by in column order, and those to predict."""
        rule = self._rule
        messages = [NAMES.index(name) for name in rule.messages]
        num_done = next_column = 0
        for piece in self._edges():
            splits = rule.splits(rule.hashes(piece))
            passing = piece.take(np.isin(splits, messages))
            end = int(passing.targets[-1]) + 1 if len(passing.targets) else next_column
            for columns in _ranges(next_column, end):
                # The entry of a column counts the edges into those before it.
                indptr = num_done + np.searchsorted(passing.targets, columns)
                yield _chunk(passing.take(slice(0)), indptr)
            num_done, next_column = num_done + len(passing.targets), end
            if self.is_undirected:
                splits[piece.sources > piece.targets] = len(NAMES)
            to_predict = {name: piece.take(splits == NAMES.index(name)) for name in self.sizes}
            yield _chunk(passing, np.empty(0, np.int64), to_predict)
        for columns in _ranges(next_column, self.num_nodes + 1):
            yield _chunk(passing.take(slice(0)), np.full(len(columns), num_done))

    def close(self) -> None:
        """Do nothing: the caller closes the edges that are split here."""


def _ranges(first: int, last: int) -> Iterator[npt.NDArray[np.int64]]:
    for begin in range(first, last, _PIECE_COLUMNS):
        yield np.arange(begin, min(begin + _PIECE_COLUMNS, last))


def _chunk(
    edges: SortedEdges,
    indptr: npt.NDArray[np.int64],
    to_predict: Mapping[str, SortedEdges] | None = None,
) -> EdgeChunk:
    return EdgeChunk(
        edges.sources, edges.edge_id, edges.attributes, indptr, to_predict=to_predict or {}
    )
