"""The small graph that expands a large one: derived from it, and balanced.

A Kronecker expansion puts K copies of every node into the place of each, and each edge of the
seed graph into block (i, j) of copies with probability P[i, j]. Belletti et al. (2019) take P
from the seed itself, reduced to K x K with its leading structure kept, so that the result is
structured on a larger scale as the seed is on a smaller one. Here

1. the nodes are divided into K groups of equal size with few edges between them, and P is
   how densely edges run from group to group: the communities of the seed, seen from afar;
2. P is balanced, so that all rows and all columns have the same sum. Otherwise the degrees
   would spread by the spread of the sums, and no longer be distributed as the seed's are;
3. P is cut into patterns, one of which each edge is copied into (see `kronecker.patterns`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gnnstore.converters.stores.graph import StoreInput
from gnnstore.converters.synthetic.kronecker.patterns import FactorGraph, draw_patterns, round_ratio
from gnnstore.errors import UsageError
from gnnstore.progress import Phase, Progress

MAX_FACTOR = 256
# Fewer edges for each edge of the seed would need more patterns than are made here.
MIN_DEGREE_RATIO = 1 / 64

_ROUNDS = 4  # passes over the nodes; twice as many find 1 % more edges within groups
_SAMPLE_DEGREE = 32  # neighbours of a node that are asked for their group
_MAX_STEP_NODES = 2**14
_ROOM = 1.1  # of a group, in units of its share of the nodes
_EVEN_SHARE = 0.02  # of the factor: no two groups are without any edge between them
_MAX_SCALINGS = 200


def derive_factor(
    graph: StoreInput, num_copies: int, edge_factor: float, seed: int, progress: Progress
) -> FactorGraph:
    """Derive the factor graph from a seed graph.

    Needs 2 bytes a node of the seed while it runs.
    """
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
    graph: StoreInput,
    groups: npt.NDArray[np.int16],
    num_groups: int,
    step: int,
    phase: Phase,
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
    """Scale rows and columns until each sums to `ratio`, with no entry above 1.

    The result is min(1, a_i X_ij b_j), where Sinkhorn's scaling alternates between the a and the b:
    of all matrices that meet the conditions, the closest to X in relative entropy.
    """
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
    balanced: npt.NDArray[np.float64] = found
    return balanced


def _row_scale(matrix: npt.NDArray[np.float64], ratio: float) -> npt.NDArray[np.float64]:
    """Return s [K, 1] such that the rows of min(1, s * matrix) sum to `ratio` < K."""
    ordered = -np.sort(-matrix, axis=1)
    # If the m largest entries of a row are cut to 1, the others must make up ratio - m.
    rest = np.cumsum(ordered[:, ::-1], axis=1)[:, ::-1]
    scale = (ratio - np.arange(matrix.shape[1])) / rest
    fits = scale * ordered <= 1
    chosen: npt.NDArray[np.float64]
    chosen = np.take_along_axis(scale, np.argmax(fits, axis=1)[:, None], axis=1)
    return chosen
