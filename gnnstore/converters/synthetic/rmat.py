"""Synthetic graphs of any size: R-MAT, with communities that a GNN can find.

A plain R-MAT (stochastic Kronecker) graph has the skewed degrees of real ones, but nothing
to learn. Here the leading levels of the recursion, which choose a node's community, favour
edges within it, and the others are those of Graph500. A node's features hint at its
community, under noise that only its neighbours can resolve.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.converter import converter
from gnnstore.converters.inputs.derived import GeneratedRows
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.read_ahead import num_threads
from gnnstore.converters.synthetic.synthetic_nodes import SyntheticNodes, check_numbers
from gnnstore.converters.writer.estimates import NodeTable, Workload
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions, check_features
from gnnstore.errors import UsageError, whole_number
from gnnstore.progress import Progress

GRAPH500 = (0.57, 0.19, 0.19, 0.05)
MAX_SCALE = 40
_CHUNK_EDGES = 2**20


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
    _check_size(scale, edge_factor, feature_dim, seed)
    _check_communities(num_communities, 1 << scale, homophily, feature_noise)
    _check_shares(split_fractions, probabilities)
    remedy = "leave it out, or set feature_dim="
    check_features(options, has_features=feature_dim > 0, remedy=remedy)
    nodes = SyntheticNodes(scale, num_communities, feature_dim, feature_noise, seed)
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
    with GraphWriter(
        output,
        kind="rmat",
        source={"parameters": parameters},
        options=options,
        num_nodes=1 << scale,
        edge_ids=False,
        progress=progress,
        workload=Workload(
            num_nodes=1 << scale,
            num_edges=edge_factor << scale,
            node_tables=(NodeTable(1 << scale, feature_dim, 4),),
        ),
    ) as writer:
        levels = level_probabilities(scale, nodes.community_bits, homophily, probabilities)
        if not writer.has_edges:
            _add_edges(writer, scale, edge_factor << scale, levels, seed)
        degrees_seen: list[npt.NDArray[np.bool_]] = []
        writer.finish_edges(lambda degrees: degrees_seen.append(degrees > 0))
        connected = np.flatnonzero(np.concatenate(degrees_seen))
        for name, ids in nodes.splits(connected, split_fractions).items():
            writer.set_split(name, ids)
        labels = GeneratedRows("y", (1 << scale,), np.int64, nodes.labels)
        writer.set_node_attribute("y", labels)
        if feature_dim:
            writer.set_node_attribute("x", nodes.features(1 << scale, nodes.labels))
        return writer.commit()


def level_probabilities(
    scale: int,
    community_bits: int,
    homophily: float | None,
    probabilities: tuple[float, float, float, float],
) -> npt.NDArray[np.float64]:
    """Return R-MAT's probabilities a, b, c, d of each level, [scale, 4]."""
    levels = np.tile(np.array(probabilities, np.float64), (scale, 1))
    if homophily is not None and community_bits:
        agree = homophily ** (1 / community_bits)
        levels[:community_bits] = (agree / 2, (1 - agree) / 2, (1 - agree) / 2, agree / 2)
    return levels


def _add_edges(
    writer: GraphWriter,
    scale: int,
    num_edges: int,
    levels: npt.NDArray[np.float64],
    seed: int,
) -> None:
    writer.expect_edges(num_edges)
    threads = num_threads()
    with writer.progress.phase("draw edges", num_edges, "edges") as phase:
        for first in range(0, num_edges, _CHUNK_EDGES):
            count = min(_CHUNK_EDGES, num_edges - first)
            ends = _core.rmat_edges(first, count, scale, levels, seed, num_threads=threads)
            sources, targets = (
                _core.permute_ids(ids, scale, seed, num_threads=threads) for ids in ends
            )
            writer.add_edges(sources, targets)
            phase.advance(count)


def _check_size(scale: int, edge_factor: int, feature_dim: int, seed: int) -> None:
    whole_number("scale", scale)
    whole_number("edge_factor", edge_factor)
    whole_number("feature_dim", feature_dim)
    if not 0 <= scale <= MAX_SCALE:
        raise UsageError(f"scale={scale} is not in [0, {MAX_SCALE}]")
    check_numbers(edge_factor=edge_factor, feature_dim=feature_dim, seed=seed)


def _check_communities(
    num_communities: int, num_nodes: int, homophily: float | None, feature_noise: float
) -> None:
    whole_number("num_communities", num_communities)
    power_of_two = num_communities > 0 and num_communities & (num_communities - 1) == 0
    if not power_of_two or num_communities > num_nodes:
        raise UsageError(
            f"num_communities={num_communities} is not a power of two from 1 to {num_nodes}, the "
            "number of nodes"
        )
    check_numbers(homophily=homophily or 0, feature_noise=feature_noise)


def _check_shares(split_fractions: tuple[float, ...], probabilities: tuple[float, ...]) -> None:
    if len(split_fractions) != 3 or min(split_fractions) < 0 or sum(split_fractions) > 1 + 1e-9:
        raise UsageError(
            f"split_fractions={split_fractions} are not three shares that add up to at most 1"
        )
    right_sum = len(probabilities) == 4 and abs(sum(probabilities) - 1) <= 1e-6
    if not right_sum or min(probabilities) < 0:
        raise UsageError(
            f"probabilities={probabilities} are not four probabilities that add up to 1"
        )
