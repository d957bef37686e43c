"""The small graph that expands a large one: derived from it, and balanced.

Each edge of the seed graph goes into block (i, j) of copies with probability P[i, j].

1. The nodes are divided into K groups of equal size with few edges between them, and P is how
   densely edges run from group to group (Belletti et al., 2019).
2. P is balanced: all rows and columns get the same sum. Else degrees would spread by that of the
   sums, and no longer be distributed as the seed's are.
3. P is cut into 2^b patterns, one of which each edge is copied into. (Were blocks drawn one by one,
   a third of the copies of a node of degree 1 would have no edge.) In a pattern each row and column
   of blocks occurs as often as its probabilities sum to, rounded up or down, and all patterns
   together hold each block exactly 2^b times its probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnstore.converters.stores.graph import StoreInput
from gnnstore.errors import UsageError
from gnnstore.progress import Phase, Progress
from gnnstore.random_words import draw_words

MAX_FACTOR = 256
# Fewer edges for each edge of the seed would need more patterns than are made here.
MIN_DEGREE_RATIO = 1 / 64

_ROUNDS = 4  # passes over the nodes; twice as many find 1 % more edges within groups
_SAMPLE_DEGREE = 32  # neighbours of a node that are asked for their group
_MAX_STEP_NODES = 2**14
_ROOM = 1.1  # of a group, in units of its share of the nodes
_EVEN_SHARE = 0.02  # of the factor: no two groups are without any edge between them
_MAX_SCALINGS = 200
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


def derive_factor(
    graph: StoreInput, num_copies: int, edge_factor: float, seed: int, progress: Progress
) -> FactorGraph:
    """Derive the factor graph from a seed graph; needs 2 bytes a node of the seed."""
    densities = np.ones((num_copies, num_copies))
    if num_copies > 1 and graph.num_edges:
        densities = group_densities(graph, num_copies, progress)
    bits, ratio = round_ratio(edge_factor / num_copies, num_copies)
    return draw_patterns(balance(densities, ratio), ratio, bits, seed)


def check_factor(num_copies: int, edge_factor: float) -> None:
    """Raise a `UsageError` if no factor graph has these sizes."""
    if not 1 <= num_copies <= MAX_FACTOR:
        raise UsageError(
            f"factor={num_copies} is not from 1 to {MAX_FACTOR}; for more, expand the result again"
        )
    if not num_copies * MIN_DEGREE_RATIO <= edge_factor <= num_copies**2:
        raise UsageError(
            f"edge_factor={edge_factor:g} cannot be had with factor={num_copies}: each edge has "
            f"{num_copies}^2 = {num_copies**2} places to be copied to, and at least "
            f"{num_copies * MIN_DEGREE_RATIO:g} of them are needed (1/64 of the seed's degrees); "
            f"{num_copies} keeps the mean degree"
        )


# ---- densities between groups


def group_densities(
    graph: StoreInput, num_groups: int, progress: Progress
) -> npt.NDArray[np.float64]:
    """Return the number of edges between groups of nodes, float64 [K, K], symmetric."""
    groups = np.full(graph.num_nodes, num_groups, np.int16)  # num_groups: in none yet
    # A step decides on some nodes at once; were they many, all would rush to one group.
    step = max(1, min(_MAX_STEP_NODES, graph.num_nodes // (8 * num_groups)))
    with progress.phase("find groups", _ROUNDS * graph.num_nodes, "nodes") as phase:
        for _ in range(_ROUNDS):
            _regroup(graph, groups, num_groups, step, phase)
    counts = np.zeros((num_groups, num_groups))
    with progress.phase("count edges between groups", graph.num_nodes, "nodes") as phase:
        for block in graph.column_blocks(_MAX_STEP_NODES, _SAMPLE_DEGREE):
            pairs = groups[block.sources] * np.int64(num_groups) + groups[block.targets]
            found = np.bincount(pairs, weights=block.weights, minlength=num_groups**2)
            counts += found.reshape(num_groups, num_groups)
            phase.advance(len(block.degrees))
    return counts + counts.T


def _regroup(
    graph: StoreInput, groups: npt.NDArray[np.int16], num_groups: int, step: int, phase: Phase
) -> None:
    """Let every node choose its group once; `groups` changes."""
    sizes = np.zeros(num_groups, np.int64)  # as far as this pass has come
    room = _ROOM * graph.num_nodes / num_groups
    for block in graph.column_blocks(step, _SAMPLE_DEGREE):
        nodes = slice(block.first, block.first + len(block.degrees))
        pairs = (block.targets - block.first) * (num_groups + 1) + groups[block.sources]
        votes = np.bincount(pairs, minlength=len(block.degrees) * (num_groups + 1))
        votes = votes.reshape(-1, num_groups + 1)[:, :num_groups]
        # Half a vote for each group sends nodes without a neighbour in a group to where room is.
        scores = (votes + 0.5) * np.maximum(0.0, 1 - sizes / room)
        chosen = np.argmax(scores, axis=1)
        # Full groups all score 0: distribute such nodes.
        lost = np.flatnonzero(scores[np.arange(len(chosen)), chosen] == 0)
        chosen[lost] = (block.first + lost) % num_groups
        groups[nodes] = chosen
        sizes += np.bincount(chosen, minlength=num_groups)
        phase.advance(len(block.degrees))


# ---- balance


def balance(densities: npt.NDArray[np.float64], ratio: float) -> npt.NDArray[np.float64]:
    """Scale rows and columns, as Sinkhorn does, until each sums to `ratio` without an entry > 1."""
    size = len(densities)
    even = np.full((size, size), ratio / size)
    mean = densities.mean()
    if ratio >= size or size == 1 or mean <= 0:
        return even
    scaled = (1 - _EVEN_SHARE) * densities / mean + _EVEN_SHARE
    rows, columns = np.ones((size, 1)), np.ones((1, size))
    for _ in range(_MAX_SCALINGS):
        rows = _row_scale(scaled * columns, ratio)
        columns = _row_scale((scaled * rows).T, ratio).T
        found = np.minimum(1.0, scaled * rows * columns)
        error = float(np.abs(found.sum(axis=1) - ratio).max())
        if error <= 1e-12 * size:
            break
    # A little of the even matrix moves every entry away from 0 and 1; more, if the sums cannot be
    # put right below without an entry leaving [0, 1].
    slack = min(ratio / size, 1 - ratio / size)
    share = min(1.0, max(_EVEN_SHARE, 4 * size * error / slack))
    found = (1 - share) * found + share * even
    found[:, 0] += ratio - found.sum(axis=1)
    found[0] += ratio - found.sum(axis=0)
    return np.asarray(found)


def _row_scale(matrix: npt.NDArray[np.float64], ratio: float) -> npt.NDArray[np.float64]:
    """Return s [K, 1] such that the rows of min(1, s * matrix) sum to `ratio` < K."""
    ordered = -np.sort(-matrix, axis=1)
    # If the m largest entries of a row are cut to 1, the others must make up ratio - m.
    rest = np.cumsum(ordered[:, ::-1], axis=1)[:, ::-1]
    scale = (ratio - np.arange(matrix.shape[1])) / rest
    fits = scale * ordered <= 1
    return np.asarray(np.take_along_axis(scale, np.argmax(fits, axis=1)[:, None], axis=1))


# ---- patterns


def round_ratio(ratio: float, num_copies: int) -> tuple[int, float]:
    """Return b and a multiple of 2^-b that is as good as a ratio."""

    def error(bits: int) -> float:
        exact = (1 << bits) * ratio
        return abs(round(exact) / exact - 1)

    def is_poor(bits: int) -> bool:
        # Few patterns are alike, and most blocks occur in several.
        return bits < 8 or (1 << bits) * ratio < 4 * num_copies or error(bits) > _RATIO_TOLERANCE

    room = int(_MAX_PATTERN_BLOCKS / (ratio * num_copies)).bit_length() - 1
    bits = _MIN_PATTERN_BITS
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

        Nodes of odd degree are joined with one more node of the other side: then all are on tours.
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
