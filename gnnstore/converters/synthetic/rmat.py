"""Synthetic graphs of any size: R-MAT, with communities that a GNN can find.

A plain R-MAT (stochastic Kronecker) graph has the skewed degrees of real ones, but nothing
to learn. Here the leading levels of the recursion, which choose a node's community, favour
edges within it, and the others are as in Graph500. A node's features hint at its
community, under noise that only its neighbours can resolve.

Every value is a function of (seed, node), drawn from a counter-based generator and computed
with exact arithmetic, so that any chunking, on any machine, gives the same bytes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import GeneratedRows, num_threads
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, write_graph
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions, check_fractions, converter
from gnnstore.errors import UsageError, whole_number
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE
from gnnstore.progress import Progress
from gnnstore.random_words import draw_noise, draw_words

GRAPH500 = (0.57, 0.19, 0.19, 0.05)
_CHUNK_EDGES = 2**20
# The second word of the generator's key is the purpose, so that streams never meet.
_NOISE = 0x6E6F697365  # "noise"
_SPLIT = 0x73706C6974  # "split"
_CHUNK_BYTES = 2**20  # bytes of a chunk: intermediate results stay in a core's cache, twice as fast
# What is wrong with a parameter that is below or above some numbers.
_LIMITS: dict[str, tuple[float, float, str]] = {
    "seed": (0, 2**64 - 1, "is not in [0, 2**64)"),
    "scale": (0, 40, "is not in [0, 40]"),
    "homophily": (0, 1, "is not in [0, 1]"),
    "feature_noise": (0, sys.float_info.max, "is not a standard deviation"),
    "skew": (0, 10, "is not in [0, 10]"),
}
_FRACTIONS = ("homophily", "feature_noise", "skew")  # the others are whole numbers


def check_numbers(**given: Any) -> None:
    """Refuse numbers out of range; those without limits of their own must not be negative."""
    for name, value in given.items():
        if isinstance(value, list):
            continue
        if name not in _FRACTIONS:
            whole_number(name, value)
        elif not isinstance(value, int | float | np.number):
            raise UsageError(f"{name}={value!r} is not a number")
        low, high, problem = _LIMITS.get(name, (0, math.inf, "is negative"))
        if not low <= value <= high:  # also refuses NaN
            raise UsageError(f"{name}={value} {problem}")


@dataclass(frozen=True)
class SyntheticNodes:
    """Communities, features and splits of the 2**scale nodes of a synthetic graph."""

    scale: int  # logarithm of the number of nodes N to the base 2
    num_communities: int  # C, a power of two
    feature_dim: int
    # Standard deviation of the noise in each feature; class means have length 1.
    feature_noise: float
    seed: int  # in [0, 2**64)

    @property
    def community_bits(self) -> int:
        """Leading bits of an unpermuted id that are the community."""
        return self.num_communities.bit_length() - 1

    def labels(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return the communities of nodes first, ..., last - 1."""
        nodes = np.arange(first, last, dtype=np.int64)
        plain = _core.permute_ids(nodes, self.scale, self.seed, inverse=True)
        return np.right_shift(plain, self.scale - self.community_bits)

    def class_means(self) -> npt.NDArray[np.float32]:
        """Return the class means [C, F]: rows of length 1, orthogonal if C divides F."""
        classes = np.arange(self.num_communities)[:, None]
        shared = classes & np.arange(self.feature_dim)[None, :]
        parity = np.zeros_like(shared)
        while shared.any():
            parity ^= shared & 1
            shared >>= 1
        length = np.float32(1 / math.sqrt(self.feature_dim))
        return np.where(parity == 1, -length, length)

    def features(
        self,
        count: int,
        labels: Callable[[int, int], npt.NDArray[np.int64]],
        purpose: int = _NOISE,
    ) -> GeneratedRows:
        """Return features [count, F], the class mean and noise, of nodes with some labels."""
        means, width = self.class_means(), self.feature_dim
        step = max(1, _CHUNK_BYTES // (4 * width))

        def rows(first: int, last: int) -> npt.NDArray[np.float32]:
            found = np.empty((last - first, width), np.float32)
            for begin in range(first, last, step):
                end = min(begin + step, last)
                shape = (end - begin, width)
                noise = draw_noise(self.seed, purpose, begin, shape, self.feature_noise)
                np.add(noise, means[labels(begin, end)], out=found[begin - first : end - first])
            return found

        return GeneratedRows("x", (count, width), np.float32, rows)

    def splits(
        self, candidates: npt.NDArray[np.int64], fractions: tuple[float, float, float]
    ) -> dict[str, npt.NDArray[np.int64]]:
        """Assign nodes to the splits at random."""
        draws = draw_words(self.seed, _SPLIT, 0, 1 << self.scale)[candidates] / 2.0**64
        bounds = np.cumsum(fractions)
        bounds[bounds > 1 - 1e-9] = 1  # or the sum may be rounded to less
        split = np.searchsorted(bounds, draws, side="right")
        return {name: candidates[split == i] for i, name in enumerate(("train", "valid", "test"))}


@converter
def from_rmat(
    output: PathLike,
    *,
    scale: int = 16,
    edge_factor: int = 16,
    feature_dim: int = 64,
    num_communities: int = 8,
    homophily: float | None = 0.8,
    feature_noise: float = 0.7,
    split_fractions: tuple[float, float, float] = (0.5, 0.25, 0.25),
    probabilities: tuple[float, float, float, float] = GRAPH500,
    seed: int = 0,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Generate a graph of 2**scale nodes and edge_factor * 2**scale edges.

    Node labels `y` are communities of equal size. Splits are drawn from the nodes that have
    an in-neighbour (R-MAT leaves many isolated). Everything is a function of the
    parameters alone.

    Parameters
    ----------
    scale : int
        Logarithm of the number of nodes to the base 2, up to 40.
    edge_factor : int
        Edges per node, on average. Some will be equal, and some self-loops.
    feature_dim : int
        F; 0 for a graph without features.
    num_communities : int
        C, a power of two, at most the number of nodes.
    homophily : float, optional
        Share of edges that join two nodes of one community, in [0, 1]; 1 / C would be
        chance. None: plain R-MAT, with `probabilities` on every level.
    feature_noise : float
        Standard deviation of the noise in each feature, around class means of length 1.
    split_fractions : tuple of float
        Shares of train, valid and test among the nodes that have an in-neighbour.
    probabilities : tuple of float
        R-MAT's a, b, c, d of the levels that do not choose communities.
    seed : int
        In [0, 2**64).
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    UsageError
        If a parameter is out of range.

    References
    ----------
    Chakrabarti, Zhan, Faloutsos: "R-MAT: a recursive model for graph mining", SDM 2004.
    """
    parameters = {
        "scale": scale,
        "edge_factor": edge_factor,
        "feature_dim": feature_dim,
        "num_communities": num_communities,
        "homophily": homophily,
        "feature_noise": feature_noise,
        "split_fractions": list(split_fractions),
        "probabilities": list(probabilities),
        "seed": seed,
    }
    check_numbers(**{**parameters, "homophily": homophily or 0})
    split_fractions = check_fractions("split_fractions", split_fractions)
    right_sum = len(probabilities) == 4 and abs(sum(probabilities) - 1) <= 1e-6
    if not right_sum or min(probabilities) < 0:
        raise UsageError(
            f"probabilities={probabilities} are not four probabilities that add up to 1"
        )
    num_nodes = 1 << scale
    if not 0 < num_communities <= num_nodes or num_communities & (num_communities - 1):
        raise UsageError(
            f"num_communities={num_communities} is not a power of two from 1 to {num_nodes}, the "
            "number of nodes"
        )
    nodes = SyntheticNodes(scale, num_communities, feature_dim, feature_noise, seed)
    levels = np.tile(np.array(probabilities, np.float64), (scale, 1))  # a, b, c, d of each
    if homophily is not None and nodes.community_bits:
        agree = homophily ** (1 / nodes.community_bits)
        levels[: nodes.community_bits] = np.array([agree, 1 - agree, 1 - agree, agree]) / 2
    num_edges = edge_factor << scale

    def pairs() -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        threads = num_threads()
        for first in range(0, num_edges, _CHUNK_EDGES):
            count = min(_CHUNK_EDGES, num_edges - first)
            ends = _core.rmat_edges(first, count, scale, levels, seed, num_threads=threads)
            sources, targets = (
                _core.permute_ids(ids, scale, seed, num_threads=threads) for ids in ends
            )
            yield sources, targets

    def add_splits(writer: GraphWriter) -> None:
        connected = np.concatenate([degrees > 0 for degrees in writer.degrees()])
        candidates = np.flatnonzero(connected)
        for name, ids in nodes.splits(candidates, split_fractions).items():
            writer.set_split(name, ids)

    node = NodeInput(num_nodes)
    node.attributes["y"] = GeneratedRows("y", (num_nodes,), np.int64, nodes.labels)
    if feature_dim:
        node.attributes["x"] = nodes.features(num_nodes, nodes.labels)
    return write_graph(
        output,
        {NODE_TYPE: node},
        {EDGE_TYPE: EdgeInput(pairs, "the edges", num_edges)},
        kind="rmat",
        source={"parameters": parameters},
        options=options,
        progress=progress,
        edge_ids=False,
        write_splits=add_splits,
    )
