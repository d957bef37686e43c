"""Degree distributions of graphs, and the distance between two distributions.

An expanded graph has other degrees than its seed, and should have the same distribution up to
a factor. Two simple numbers compare the distributions: a Kolmogorov-Smirnov distance of degrees in
units of their mean, and the exponents of the tails.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.converters.stores.reorder import distinct

# The tail of a distribution: the nodes with the highest degrees.
TAIL_SHARE = 0.1


@dataclass(frozen=True)
class DegreeDistribution:
    """The number of nodes of each in-degree."""

    degrees: npt.NDArray[np.int64]  # int64, shape [d]: degrees that occur, ascending
    counts: npt.NDArray[np.int64]  # int64, shape [d]: nodes that have them; at least 1

    @classmethod
    def of_blocks(cls, blocks: Iterable[npt.NDArray[np.int64]]) -> DegreeDistribution:
        """Count the degrees of all nodes, given in blocks."""
        return cls(*distinct(blocks, np.int64))

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return int(self.counts.sum())

    @property
    def num_edges(self) -> int:
        """Number of edges, E."""
        return int((self.degrees * self.counts).sum())

    @property
    def mean(self) -> float:
        """E / N; 0 for no nodes."""
        return self.num_edges / max(1, self.num_nodes)

    @property
    def max(self) -> int:
        """The highest degree; 0 for no nodes."""
        return int(self.degrees[-1]) if len(self.degrees) else 0

    def survival(self) -> npt.NDArray[np.float64]:
        """Return, for each degree, the share of nodes that have it or a higher one."""
        return np.cumsum(self.counts[::-1])[::-1] / max(1, self.num_nodes)

    @property
    def zero_share(self) -> float:
        """The share of nodes without an in-neighbour; 0 for no nodes."""
        return int(self.counts[self.degrees == 0].sum()) / max(1, self.num_nodes)

    def curve(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the corners of the curve of shares of nodes below a degree.

        A degree d > 0 is spread over d -+ 1/2; between degrees that occur the curve is level.
        """
        degrees, counts = (own[self.degrees > 0] for own in (self.degrees, self.counts))
        after = self.zero_share + np.cumsum(counts) / max(1, self.num_nodes)
        before = after - counts / max(1, self.num_nodes)
        places = (degrees[:, None] + (-0.5, 0.5)).reshape(-1)
        heights = np.stack((before, after), 1).reshape(-1)
        return np.append(0.0, places), np.append(self.zero_share, heights)

    def tail_exponent(self) -> float | None:
        """Return the exponent a of a power law d^-a fitted to the highest tenth of degrees."""
        reaching = np.flatnonzero((self.survival() >= TAIL_SHARE) & (self.degrees >= 1))
        if not len(reaching) or reaching[-1] == len(self.degrees) - 1:
            return None
        degrees, counts = self.degrees[reaching[-1] :], self.counts[reaching[-1] :]
        logarithms = float((counts * np.log(degrees / (degrees[0] - 0.5))).sum())
        return 1 + float(counts.sum()) / logarithms

    def to_json(self) -> dict[str, Any]:
        """Return a summary of the distribution, as JSON values."""
        names = ("num_nodes", "num_edges", "mean", "max", "zero_share")
        return {
            **{name: getattr(self, name) for name in names},
            "tail_exponent": self.tail_exponent(),
        }


@dataclass(frozen=True)
class DegreeComparison:
    """The in-degrees of a graph before and after its expansion."""

    before: DegreeDistribution
    after: DegreeDistribution

    @property
    def distance(self) -> float:
        """Kolmogorov-Smirnov distance of the degrees in units of their mean, in [0, 1]."""
        sides = (self.before, self.after)
        if not all(own.mean for own in sides):
            return 0.0 if self.before.mean == self.after.mean else 1.0
        curves = [(own.curve()[0] / own.mean, own.curve()[1]) for own in sides]
        # Both curves are straight between their corners, so they are farthest apart at one.
        places = np.concatenate([own for own, _ in curves])
        first, second = (np.interp(places, *curve) for curve in curves)
        return float(np.abs(first - second).max())

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "node_factor": self.after.num_nodes / max(1, self.before.num_nodes),
            "edge_factor": self.after.num_edges / max(1, self.before.num_edges),
            "ks_distance": self.distance,
        }


def compare_degrees(before: PathLike, after: PathLike) -> DegreeComparison:
    """Compare the in-degrees of two stores."""
    found = (DegreeDistribution.of_blocks(StoreInput(p).degree_blocks()) for p in (before, after))
    return DegreeComparison(*found)
