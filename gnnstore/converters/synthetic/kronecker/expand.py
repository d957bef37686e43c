"""Kronecker expansion: a graph K times as large, made of a real one and distributed like it.

Papers on training from disk need graphs larger than any that is published, and make them from
those that are: Ginex and SmartSAGE expand ogbn-papers100M and others by the method of Belletti
et al. (2019). Every node becomes K, every edge (u, v) becomes edges between copies of u and
copies of v, and which copies they join is drawn from a K x K graph that is derived from the
seed graph (see `kronecker.factor`).

Copy i of node u is node i N + u. All copies of a node lie far apart, as related nodes of a
large graph do; as neighbours, the K copies of a hub would share its page and make caches look
better than they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.converter import converter
from gnnstore.converters.edges.node_ids import MAX_NODES
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.keyed_random import hash_pairs
from gnnstore.converters.stores.copy import copy_graph_attributes, describe_edges, texts_of
from gnnstore.converters.stores.graph import EdgePiece, StoreInput
from gnnstore.converters.synthetic.kronecker.factor import (
    FactorGraph,
    check_factor,
    derive_factor,
)
from gnnstore.converters.synthetic.kronecker.nodes import write_nodes
from gnnstore.converters.synthetic.synthetic_nodes import check_numbers
from gnnstore.converters.writer.casting import SCALES
from gnnstore.converters.writer.estimates import NodeTable, Workload
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import UsageError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.progress import Progress

# Edges that are made at a time; 2^16 or 2^20 is a fifth slower.
_CHUNK_EDGES = 2**18


@converter
def from_kronecker(
    seed_store: PathLike,
    output: PathLike,
    *,
    factor: int,
    edge_factor: float | None = None,
    feature_noise: float = 0.1,
    features: bool = True,
    seed: int = 0,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Expand a store: `factor` copies of each node, about `edge_factor` of each edge.

    Node i N + u of the result is copy i of node u of the seed store, of N nodes, so the store has
    no original ids. It carries u's attributes, the features `x` with noise, and lies in u's splits;
    edges carry the attributes of the copied edge. A self-loop stays one, at each copy. If (u, v)
    and (v, u) are both edges, so are their copies: the expansion of an undirected graph is
    undirected.

    Every copy of a node of degree d has between floor(r) d and ceil(r) d edges, with
    r = edge_factor / factor, and r d on average. The same parameters give the same store.

    Parameters
    ----------
    seed_store : path-like
        The store to expand.
    factor : int
        K, copies of each node, from 1 to 256.
    edge_factor : float, optional
        Edges for each edge of the seed, from K / 64 to K^2; met to within 0.01 % (0.2 %, if
        below K / 10). By default K, which keeps the mean degree.
    feature_noise : float
        Standard deviation of the normal noise that is added to `x`, as a share of each
        column's own standard deviation. Features of integers of up to 32 bits are rounded;
        bool and 64-bit integers, which are no measurements, get no noise.
    features : bool
        Whether to carry `x`.
    seed : int
        In [0, 2**64).
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    UsageError
        If a parameter is out of range, the store has edge splits, or the graph is heterogeneous.
    NotFoundError, CorruptStoreError, StorageError
        If the seed store cannot be read.

    References
    ----------
    Leskovec et al.: "Kronecker graphs: an approach to modeling networks", JMLR 11, 2010.

    Belletti et al.: "Scalable realistic recommendation datasets through fractal expansions",
    arXiv:1901.08910, 2019.
    """
    graph = StoreInput(seed_store, "gnnstore convert kronecker")
    wanted = float(factor) if edge_factor is None else float(edge_factor)
    num_nodes = _check(graph, output, factor, wanted, seed)
    check_numbers(feature_noise=feature_noise)
    options = options or ConvertOptions()
    if options.feature_scale and SCALES in graph.reader.schema.graph_arrays:
        raise UsageError(
            f"the features of {graph.reader.path} have a scale per column already; leave out "
            "feature_scale: they are carried as they are, scales included"
        )
    parameters = {
        "factor": factor,
        "edge_factor": wanted,
        "feature_noise": feature_noise,
        "features": features,
        "seed": seed,
    }
    seed_path = graph.reader.path
    inputs = [{"path": str(seed_path), "size_bytes": graph.reader.total_bytes}]
    with GraphWriter(
        output,
        kind="kronecker",
        source={"inputs": inputs, "seed_uuid": graph.reader.uuid, "parameters": parameters},
        options=options,
        num_nodes=num_nodes,
        index_dtype=graph.reader.schema.index_dtype if num_nodes < 2**31 else "int64",
        edge_ids=False,
        progress=progress,
        workload=_workload(graph, factor, wanted, features),
    ) as writer:
        if not writer.has_edges:
            block = derive_factor(graph, factor, wanted, seed, writer.progress)
            _write_edges(writer, graph, EdgeExpander(graph.num_nodes, block, seed))
        write_nodes(writer, graph, factor, feature_noise if features else None, seed)
        left_out = frozenset() if features else frozenset({SCALES})
        copy_graph_attributes(writer, graph, without=left_out)
        for name, text in graph.edges.value_names.items():
            writer.set_value_names(name, [one for some in texts_of(graph, text) for one in some])
        return writer.commit()


def _workload(graph: StoreInput, factor: int, edge_factor: float, features: bool) -> Workload:
    """Return the expected work; the exact number of edges is random."""
    x = graph.reader.schema.node.attributes.get("x") if features else None
    return Workload(
        num_nodes=graph.num_nodes * factor,
        num_edges=round(graph.reader.schema.edge.num_edges * edge_factor),
        node_tables=() if x is None else (NodeTable.of(x)._replace(num_rows=x.num_rows * factor),),
        is_exact=False,
    )


def _check(graph: StoreInput, output: PathLike, factor: int, edge_factor: float, seed: int) -> int:
    """Check the sizes and return the number of nodes."""
    num_nodes = graph.num_nodes * factor
    if num_nodes > MAX_NODES:
        raise UsageError(
            f"factor={factor} times the {graph.num_nodes} nodes of {graph.reader.path} are "
            f"{num_nodes}; a graph has at most 2^48"
        )
    check_factor(factor, edge_factor)
    if graph.edges.splits:
        raise UsageError(
            f"{graph.reader.path} has edge splits, {', '.join(graph.edges.splits)}, whose copies "
            "could be edges of the graph; expand the store that was split, and split the result"
        )
    check_numbers(seed=seed)
    if Path(output).resolve() == graph.reader.path.resolve():
        raise UsageError(
            f"{output} is the store to be expanded; choose another place for the result"
        )
    return num_nodes


def _write_edges(writer: GraphWriter, graph: StoreInput, expander: EdgeExpander) -> None:
    expected = round(graph.num_edges * expander.factor.edge_factor)
    writer.expect_edges(expected)
    describe_edges(writer, graph.edges.attributes)
    with writer.progress.phase("expand edges", expected, "edges") as phase:
        for first, last, parents, sources, targets in expander.expand(graph):
            rows = graph.edge_rows(first, last)
            writer.add_edges(sources, targets, {name: own[parents] for name, own in rows.items()})
            phase.advance(len(sources))
    writer.finish_edges()


# Positions of the first copied edge and of the one behind the last; by copy the copied edge,
# counted from the first, the source and the target.
EdgeCopies = tuple[int, int, npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[Any]]


class EdgeExpander:
    """Turns edges of the seed into edges between copies.

    The pattern of blocks of an edge is a symmetric hash of its two ends, so that both directions of
    an undirected edge get the same pattern, one direction transposed.
    """

    def __init__(self, num_nodes: int, factor: FactorGraph, seed: int) -> None:
        self.factor = factor
        self._seed = seed
        self._shift = np.uint64(64 - (factor.num_patterns.bit_length() - 1))
        # Three tables in one: the patterns, their transposes, and the pattern of self-loops.
        diagonal = np.arange(factor.num_copies, dtype=np.int32)
        rows = np.concatenate((factor.rows, factor.columns, diagonal))
        columns = np.concatenate((factor.columns, factor.rows, diagonal))
        counts = np.diff(factor.offsets)
        self._counts = np.concatenate((counts, counts, [factor.num_copies]))
        self._begins = np.cumsum(self._counts) - self._counts
        dtype = id_dtype(num_nodes * factor.num_copies)
        self._rows = rows.astype(dtype) * dtype.type(num_nodes)
        self._columns = columns.astype(dtype) * dtype.type(num_nodes)

    def expand(self, graph: StoreInput) -> Iterator[EdgeCopies]:
        """Yield the copies of all edges, in the order of the seed's."""
        step = max(1, int(_CHUNK_EDGES / max(1.0, self.factor.edge_factor)))
        ranks = _RankCounter()
        for piece in graph.edge_pieces(step):
            yield self._copies(piece, ranks.of(piece))

    def _copies(self, piece: EdgePiece, ranks: npt.NDArray[np.int64] | None) -> EdgeCopies:
        sources, targets = piece.sources, piece.targets
        patterns = self._patterns(sources, targets, ranks)
        counts = self._counts[patterns]
        parents = np.repeat(np.arange(len(sources)), counts)
        # Positions in the tables: consecutive from where each edge's pattern begins.
        places = np.repeat(self._begins[patterns] - (np.cumsum(counts) - counts), counts)
        places += np.arange(len(places))
        dtype = self._rows.dtype
        new_sources = self._rows[places]
        new_sources += sources.astype(dtype)[parents]
        new_targets = self._columns[places]
        new_targets += targets.astype(dtype)[parents]
        return piece.first, piece.first + len(sources), parents, new_sources, new_targets

    def _patterns(
        self,
        sources: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int64],
        ranks: npt.NDArray[np.int64] | None,
    ) -> npt.NDArray[np.int64]:
        low, high = np.minimum(sources, targets), np.maximum(sources, targets)
        patterns = (hash_pairs(self._seed, low, high, ranks) >> self._shift).astype(np.int64)
        patterns += (sources > targets) * np.int64(self.factor.num_patterns)
        patterns[sources == targets] = 2 * self.factor.num_patterns
        return patterns


class _RankCounter:
    """Numbers parallel edges, which are consecutive, also across pieces."""

    def __init__(self) -> None:
        self._last = (-1, -1)
        self._rank = 0

    def of(self, piece: EdgePiece) -> npt.NDArray[np.int64] | None:
        """Return each edge's rank among its parallel edges; None if all ranks are 0."""
        sources, targets = piece.sources, piece.targets
        goes_on = (int(sources[0]), int(targets[0])) == self._last
        equal = (sources[1:] == sources[:-1]) & (targets[1:] == targets[:-1])
        ranks = None
        if goes_on or equal.any():
            begins = np.flatnonzero(np.concatenate(([True], ~equal)))
            lengths = np.diff(np.append(begins, len(sources)))
            ranks = np.arange(len(sources)) - np.repeat(begins, lengths)
            if goes_on:
                ranks[: lengths[0]] += self._rank + 1
        self._last = (int(sources[-1]), int(targets[-1]))
        self._rank = 0 if ranks is None else int(ranks[-1])
        return ranks
