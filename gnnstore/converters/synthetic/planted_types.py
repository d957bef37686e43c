"""A synthetic graph of several types: papers, authors and institutions with planted classes.

Features of papers and authors hint at their classes, under noise that neighbours resolve, and edges
favour nodes of one class: a model that uses all types beats one that does not. Papers have times,
edges have times and weights, so that temporal and weighted loaders have something to obey.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import ArraySource, GeneratedRows, MemoryArray
from gnnstore.converters.synthetic.rmat import SyntheticNodes, check_numbers
from gnnstore.converters.typed.inputs import EdgeInput, NodeInput, write_graph
from gnnstore.converters.writer.options import ConvertOptions, converter
from gnnstore.errors import UsageError
from gnnstore.formats.store.schema import EdgeType
from gnnstore.progress import Progress
from gnnstore.random_words import draw_words, uniform

CITES = ("paper", "cites", "paper")
WRITES = ("author", "writes", "paper")
AFFILIATED = ("author", "affiliated_with", "institution")

_FIRST_TIME, _TIME_RANGE = 1_000_000_000, 300_000_000  # seconds since 1970: 2001 to 2011
_SHARES = {"train": 0.5, "valid": 0.25, "test": 0.25}
_CHUNK_EDGES = 2**17
# Second words of generators' keys, so that streams never meet; the numbers of types are added.
_NODES, _FEATURES, _EDGES = 0x7074_0000, 0x7074_1000, 0x7074_2000


@converter
def from_planted_types(
    output: PathLike,
    *,
    num_papers: int = 10_000,
    num_authors: int | None = None,
    num_institutions: int | None = None,
    feature_dim: int = 64,
    author_dim: int = 32,
    num_classes: int = 8,
    degree: int = 8,
    homophily: float = 0.8,
    feature_noise: float = 0.7,
    skew: float = 0.0,
    seed: int = 0,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Generate papers that cite one another, their authors, and the authors' institutions.

    Papers have `x`, `y` (their class), `time` (int64, seconds since 1970) and splits, authors have
    `x`, institutions are only counted. All edges have `edge_time` (int64) and `weight` (float32:
    most in [1, 2) between nodes of one class, in [0, 0.2) between others, one in a hundred 0).
    Everything is a function of the parameters alone.

    Parameters
    ----------
    num_papers, num_authors, num_institutions : int
        Nodes of each type. None: half as many authors as papers, a hundredth as many institutions.
    feature_dim, author_dim : int
        Width of the features of papers and of authors; 0 for none.
    num_classes : int
        C; there are at least C nodes of each type.
    degree : int
        Citations of a paper, on average; it has half as many authors, and an institution has
        `degree` times its share of the authors.
    homophily : float
        Share of edges that are drawn between nodes of one class; the others are drawn anyhow.
    feature_noise : float
        Standard deviation of the noise in each feature, around class means of length 1.
    skew : float
        How unevenly citations, authors and members fall on papers and institutions: the node of
        rank r, of n, is expected to have a share of edges proportional to (r / n)^(-skew / (1 +
        skew)). With 2, in-degrees of d or more are as frequent as d^(-3/2), as in citation graphs;
        0: evenly. Out-degrees are always as with 2.
    seed : int
        In [0, 2**64).
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    UsageError
        If a parameter is out of range.
    """
    if num_institutions is None:
        num_institutions = max(num_classes, num_papers // 100)
    counts = {
        "paper": num_papers,
        "author": num_papers // 2 if num_authors is None else num_authors,
        "institution": num_institutions,
    }
    parameters: dict[str, Any] = {
        "feature_dim": feature_dim,
        "author_dim": author_dim,
        "num_classes": num_classes,
        "degree": degree,
        "homophily": homophily,
        "feature_noise": feature_noise,
        **({"skew": skew} if skew else {}),
        "seed": seed,
    }
    check_numbers(**{**parameters, "skew": skew})
    for name, count in counts.items():
        if not 1 <= num_classes <= count < 2**32:
            raise UsageError(
                f"num_{name}s={count}: expected from num_classes={num_classes}, at least 1, to "
                "2^32 - 1"
            )
    nodes = {name: NodeInput(count) for name, count in counts.items()}
    for place, (name, width) in enumerate({"paper": feature_dim, "author": author_dim}.items()):
        if width:
            own = SyntheticNodes(0, num_classes, width, feature_noise, seed)
            nodes[name].attributes["x"] = own.features(
                counts[name],
                lambda first, last: np.arange(first, last) % num_classes,
                _FEATURES + place,
            )
    _add_papers(nodes["paper"], num_classes, seed)
    numbers = {
        CITES: degree * counts["paper"],
        WRITES: degree // 2 * counts["paper"],
        AFFILIATED: degree // 4 * counts["author"],
    }
    edges = {}
    for place, (edge_type, num_edges) in enumerate(numbers.items()):
        drawn = _Edges(
            edge_type, num_edges, counts, num_classes, homophily, skew, seed, _EDGES + place
        )
        edges[edge_type] = EdgeInput(drawn.pairs, str(edge_type), num_edges, drawn.attributes())
    return write_graph(
        output,
        nodes,
        edges,
        kind="planted-types",
        source={"parameters": {"num_nodes": counts, **parameters}},
        options=options,
        progress=progress,
    )


def _add_papers(papers: NodeInput, num_classes: int, seed: int) -> None:
    """Give papers their classes, times and splits."""
    times, draws = (uniform(draw_words(seed, _NODES + i, 0, papers.count)) for i in range(2))
    classes = np.arange(papers.count) % num_classes
    papers.attributes["y"] = MemoryArray("y", classes)
    seconds = _FIRST_TIME + (times * _TIME_RANGE).astype(np.int64)
    papers.attributes["time"] = MemoryArray("time", seconds)
    bound = 0.0
    for name, share in _SHARES.items():
        papers.splits[name] = np.flatnonzero((draws >= bound) & (draws < bound + share))
        bound += share


@dataclass(frozen=True)
class _Edges:
    """The edges of a type; each is a function of its number."""

    edge_type: EdgeType
    num_edges: int
    counts: dict[str, int]
    num_classes: int
    homophily: float
    skew: float
    seed: int
    purpose: int

    def _draws(self, first: int, last: int) -> npt.NDArray[np.float64]:
        words = draw_words(self.seed, self.purpose, first, 4 * (last - first))
        return uniform(words).reshape(-1, 4).T

    def _ends(
        self, draws: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        num_sources, num_targets = (self.counts[end] for end in self.edge_type[::2])
        targets = (draws[0] ** (1 + self.skew) * num_targets).astype(np.int64)
        if self.skew:  # ends of many edges lie anywhere
            spread = targets.astype(np.uint64) * np.uint64(_step(num_targets))
            targets = (spread % np.uint64(num_targets)).astype(np.int64)
        # Among the draws for the class, homophily chooses the target's.
        share = (draws[2] - self.homophily) / max(1 - self.homophily, 2.0**-53)
        other = (np.clip(share, 0, 1 - 2.0**-53) * self.num_classes).astype(np.int64)
        classes = np.where(draws[2] < self.homophily, targets % self.num_classes, other)
        members = (num_sources - classes + self.num_classes - 1) // self.num_classes
        ranks = (draws[1] * draws[1] * draws[1] * members).astype(np.int64)  # few have many edges
        least = num_sources // self.num_classes
        steps = np.where(members == least, _step(least), _step(least + 1))
        return ranks * steps % members * self.num_classes + classes, targets

    def pairs(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yield sources and targets."""
        for first in range(0, self.num_edges, _CHUNK_EDGES):
            yield self._ends(self._draws(first, min(first + _CHUNK_EDGES, self.num_edges)))

    def attributes(self) -> dict[str, ArraySource]:
        """Return times and weights."""
        return {
            "edge_time": GeneratedRows("edge_time", (self.num_edges,), np.int64, self._times),
            "weight": GeneratedRows("weight", (self.num_edges,), np.float32, self._weights),
        }

    def _times(self, first: int, last: int) -> npt.NDArray[Any]:
        draws = self._draws(first, last)[3] * 2.0**20 % 1.0
        times: npt.NDArray[np.int64] = _FIRST_TIME + (draws * _TIME_RANGE).astype(np.int64)
        return times

    def _weights(self, first: int, last: int) -> npt.NDArray[Any]:
        draws = self._draws(first, last)
        sources, targets = self._ends(draws)
        is_same = sources % self.num_classes == targets % self.num_classes
        weights = np.where(is_same, 1 + draws[3], 0.2 * draws[3])
        return np.where(draws[3] < 0.01, 0, weights).astype(np.float32)


def _step(count: int) -> int:
    """Return a factor that spreads 0, 1, 2, ... over all numbers below `count`."""
    step = int(count * 0.618) | 1
    while math.gcd(step, count) > 1:
        step += 2
    return step
