"""The graphs that benchmarks run on: made once, and kept in the directory of `--cache`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gnnstore.converters import ConvertOptions, from_rmat
from gnnstore.converters.synthetic.rmat import GRAPH500

FANOUTS, BATCH_SIZE, SEED = (10, 10, 10), 1024, 0
EDGE_FACTOR, FEATURE_DIM = 15, 128
FLAT = (0.45, 0.22, 0.22, 0.11)


@dataclass(frozen=True)
class Workload:
    """An R-MAT graph with 15 edges and 128 float32 a node, and the seeds of an epoch.

    Attributes
    ----------
    scale : int
        Logarithm of the number of nodes to the base 2.
    probabilities : tuple of float
        R-MAT's a, b, c, d.
    seeds_share : float
        Seed nodes of an epoch, among all.
    """

    name: str
    scale: int
    probabilities: tuple[float, float, float, float]
    seeds_share: float

    def seeds(self) -> NDArray[np.int64]:
        """Draw whole batches of seed nodes, at least one; a node may be drawn twice."""
        num_batches = max(1, int((1 << self.scale) * self.seeds_share) // BATCH_SIZE)
        return np.random.default_rng(1).integers(0, 1 << self.scale, num_batches * BATCH_SIZE)

    def store(self, directory: Path) -> Path:
        """Return the store, converted unless the directory has it already."""
        return make_store(directory, self.scale, probabilities=self.probabilities)


# W is skewed, F flat; w and f are the same at a size of seconds.
WORKLOADS = {
    "W": Workload("W", 24, GRAPH500, 0.01),
    "F": Workload("F", 23, FLAT, 0.02),
    "w": Workload("w", 18, GRAPH500, 0.02),
    "f": Workload("f", 18, FLAT, 0.02),
}


def make_store(
    directory: Path,
    scale: int,
    edge_factor: int = EDGE_FACTOR,
    feature_dim: int = FEATURE_DIM,
    probabilities: tuple[float, float, float, float] = GRAPH500,
    *,
    page_bytes: int | None = None,
) -> Path:
    """Return the store of an R-MAT graph, converted unless it is there already."""
    kind = "rmat" if probabilities == GRAPH500 else "rmat-flat"
    pages = "" if page_bytes is None else f"-pages-{page_bytes}"
    path = directory / f"{kind}-{scale}-{edge_factor}-{feature_dim}{pages}.gnn"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        from_rmat(
            path,
            scale=scale,
            edge_factor=edge_factor,
            feature_dim=feature_dim,
            homophily=None,
            probabilities=probabilities,
            options=ConvertOptions(page_bytes=page_bytes),
        )
    return path
