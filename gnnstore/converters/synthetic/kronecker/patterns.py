"""Probabilities of blocks, cut into patterns: sets of blocks that are drawn together.

Drawn one by one, the blocks of an edge would come by chance, and of the copies of a node of
degree 1 a third would have no edge at all. A *pattern* is one of 2^b sets in which each row
and column of blocks occurs as often as its probabilities sum to, rounded up or down, and all
2^b together hold each block exactly 2^b times its probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnstore.converters.keyed_random import draw_words

_PATTERNS = 0x7061747465726E  # "pattern"
_UNIT_BITS = 44  # probabilities are multiples of 2^-44 before they are rounded to 2^-b
_MIN_PATTERN_BITS, _MAX_PATTERN_BITS = 6, 14
_MAX_PATTERN_BLOCKS = 2**21  # of all patterns together: 16 MiB, and seconds to draw
_RATIO_TOLERANCE = 1e-4


@dataclass(frozen=True)
class FactorGraph:
    """K x K probabilities as patterns: sets of blocks, one of which each edge is copied into."""

    num_copies: int
    offsets: npt.NDArray[np.int64]  # int64, shape [2^b + 1]: the first block of each pattern
    # The blocks, int32, shape [offsets[-1]]: an edge (u, v) becomes (copy row of u, copy column of
    # v).
    rows: npt.NDArray[np.int32]
    columns: npt.NDArray[np.int32]

    @property
    def num_patterns(self) -> int:
        """Number of patterns, 2^b."""
        return len(self.offsets) - 1

    @property
    def edge_factor(self) -> float:
        """Expected number of edges for each edge of the seed."""
        return len(self.rows) / self.num_patterns

    def probabilities(self) -> npt.NDArray[np.float64]:
        """Return P, float64 [K, K]: the probability that an edge is copied into each block."""
        blocks = self.rows.astype(np.int64) * self.num_copies + self.columns
        counts = np.bincount(blocks, minlength=self.num_copies**2)
        return (counts / self.num_patterns).reshape(self.num_copies, self.num_copies)


def round_ratio(ratio: float, num_copies: int) -> tuple[int, float]:
    """Return b and a multiple of 2^-b that is as good as a ratio."""

    def error(bits: int) -> float:
        exact = (1 << bits) * ratio
        return abs(round(exact) / exact - 1)

    def is_poor(bits: int) -> bool:
        # Few patterns are alike, and most blocks occur in several.
        return bits < 8 or (1 << bits) * ratio < 4 * num_copies or error(bits) > _RATIO_TOLERANCE

    bits = _MIN_PATTERN_BITS
    room = int(_MAX_PATTERN_BLOCKS / (ratio * num_copies)).bit_length() - 1
    while bits < min(_MAX_PATTERN_BITS, room) and is_poor(bits):
        bits += 1
    return bits, round((1 << bits) * ratio) / (1 << bits)


def draw_patterns(
    probabilities: npt.NDArray[np.float64], ratio: float, bits: int, seed: int
) -> FactorGraph:
    """Cut probabilities into 2^bits patterns."""
    size = len(probabilities)
    counts = np.floor(probabilities * 2.0**_UNIT_BITS).astype(np.int64)
    total = round(ratio * 2**bits) << (_UNIT_BITS - bits)
    counts[:, 0] += total - counts.sum(axis=1)
    counts[0] += total - counts.sum(axis=0)
    splitter = _Splitter(size, seed)
    codes = np.flatnonzero(counts)
    left = counts.reshape(-1)[codes]
    for _ in range(_UNIT_BITS - bits):
        (codes, left), _ = splitter.halve(codes, left)
    patterns: list[npt.NDArray[np.int64]] = []
    waiting = [(codes, left, bits)]
    while waiting:
        codes, left, level = waiting.pop()
        if level == 0:
            patterns.append(codes)
            continue
        waiting.extend((*half, level - 1) for half in splitter.halve(codes, left))
    joined = np.concatenate(patterns)
    return FactorGraph(
        num_copies=size,
        offsets=np.cumsum([0, *(len(pattern) for pattern in patterns)]),
        rows=(joined // size).astype(np.int32),
        columns=(joined % size).astype(np.int32),
    )


_Counts = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


class _Splitter:
    """Halves bipartite multigraphs along Euler tours."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._block = 0

    def halve(self, codes: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> list[_Counts]:
        """Return two halves of a multigraph."""
        odd = np.flatnonzero(counts & 1)
        above = np.zeros(len(codes), bool)
        above[odd[self._tour(codes[odd])]] = True
        halves = []
        for extra in (above, (counts & 1).astype(bool) & ~above):
            half = (counts >> 1) + extra
            kept = half > 0
            halves.append((codes[kept], half[kept]))
        return halves

    def _tour(self, codes: npt.NDArray[np.int64]) -> list[int]:
        """Return the edges that one half gets of a bipartite graph without parallel edges.

        Nodes of odd degree are joined with one more node of the other side; all degrees are then
        even, so the graph is a union of closed tours.
        """
        size, num_edges = self._size, len(codes)
        if not num_edges:
            return []
        words = draw_words(self._seed, _PATTERNS, self._block, num_edges)
        self._block += -(-num_edges // 4)
        order = np.argsort(words, kind="stable")
        rows, columns = np.divmod(codes[order], size)
        odd_rows = np.flatnonzero(np.bincount(rows, minlength=size) & 1)
        odd_columns = np.flatnonzero(np.bincount(columns, minlength=size) & 1)
        # Rows are numbered from 0, columns from size + 1 on; the last of each is the extra one.
        ends = [
            *zip(rows.tolist(), (columns + size + 1).tolist(), strict=True),
            *((row, 2 * size + 1) for row in odd_rows.tolist()),
            *((size, column + size + 1) for column in odd_columns.tolist()),
        ]
        if len(odd_rows) & 1:  # then the columns of odd degree are odd in number, too
            ends.append((size, 2 * size + 1))
        at: list[list[tuple[int, int]]] = [[] for _ in range(2 * size + 2)]
        for edge, (row, column) in enumerate(ends):
            at[row].append((edge, column))
            at[column].append((edge, row))
        taken = bytearray(len(ends))
        down: list[int] = []
        for start in range(size + 1):
            node = start
            while at[node]:
                edge, other = at[node].pop()
                if not taken[edge]:
                    taken[edge] = 1
                    if node <= size:
                        down.append(edge)
                    node = other
        side = {edge for edge in down if edge < num_edges}
        if int(words[0]) & 1:  # which half is which is left to chance
            side = set(range(num_edges)) - side
        return [int(place) for place in order[sorted(side)]]
