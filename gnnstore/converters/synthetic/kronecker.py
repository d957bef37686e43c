"""Kronecker expansion: a graph K times as large, made of a real one and distributed like it.

Every node becomes K, every edge (u, v) becomes edges between copies of u and of v, in blocks (i, j)
of copies. Copies of a node lie far apart: as neighbours, a hub's copies would share its page and
make caches look better than they are. Features get noise: else rows would compress, and cache, as
no real graph's do.

Each edge is copied into one of 2^b patterns of blocks. In a pattern each row and column of blocks
occurs equally often, up to one: were blocks drawn one by one, a third of the copies of a node of
degree 1 would have no edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.buffer import MAX_NODES
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.stores.graph import (
    CopiedRows,
    EdgePiece,
    StoreInput,
    copy_attribute,
    copy_graph,
    describe_edges,
    open_copy,
)
from gnnstore.converters.synthetic.rmat import check_numbers
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions, check_features, converter
from gnnstore.errors import UsageError
from gnnstore.formats.arrays.dtypes import (
    STORAGE_DTYPES,
    from_bfloat16_bits,
    id_dtype,
    to_bfloat16_bits,
)
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import NODE_TYPE
from gnnstore.progress import Progress
from gnnstore.random_words import draw_noise, draw_words, hash_pairs

# Edges that are made at a time; 2^16 or 2^20 is a fifth slower.
_CHUNK_EDGES = 2**18
_NOISE = 0x6B726F6E6F697365  # "kronoise": other generators have other words
# values of a chunk: intermediate results stay in a core's cache, twice as fast
_CHUNK_VALUES = 2**17
# Most rows from which deviations are taken, and rows of a block; the blocks are spread over all
# rows.
_SAMPLE_ROWS, _SAMPLE_BLOCK_ROWS = 2**16, 2**8
_MAX_NOISY_INTEGER_BYTES = 4
MAX_FACTOR = 256
# Least edges for each edge of the seed: fewer would need more patterns than are made here.
MIN_DEGREE_RATIO = 1 / 64

_PATTERNS = 0x7061747465726E  # "pattern"
_MAX_PATTERN_BITS, _MAX_BLOCKS = 14, 2**20  # b, and the blocks of all patterns together


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
        bool and 64-bit integers, which are not measurements, get no noise.
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
    num_nodes = _check(graph, factor, wanted)
    check_numbers(seed=seed, feature_noise=feature_noise)
    options = options or ConvertOptions()
    for name, spec in graph.nodes.attributes.items():
        stored = options.feature_dtype_of(NODE_TYPE, name)
        if stored is not None and spec.scaled is not None:
            raise UsageError(
                f"feature_dtype={f'{name}={stored}'!r}: the attribute has a scale per column in "
                f"{graph.reader.path}; leave it out, and it is carried as it is, with its scales"
            )
    check_features(
        options, {NODE_TYPE: [n for n in graph.nodes.attributes if features or n != "x"]}
    )
    parameters = {
        "factor": factor,
        "edge_factor": wanted,
        "feature_noise": feature_noise,
        "features": features,
        "seed": seed,
    }
    with open_copy(
        graph,
        output,
        parameters,
        kind="kronecker",
        options=options,
        num_nodes=num_nodes,
        index_dtype=graph.reader.schema.index_dtype if num_nodes < 2**31 else "int64",
        edge_ids=False,
        progress=progress,
        workload=graph.workload(factor, wanted, without=() if features else ("x",)),
    ) as writer:
        graph.check_carried(options.memory_bytes, ids=False)
        if not writer.has_edges:
            block = draw_factor(factor, wanted, seed)
            _write_edges(writer, graph, _EdgeExpander(graph.num_nodes, block, seed))
        _write_nodes(writer, graph, factor, feature_noise if features else None, seed)
        copy_graph(writer, graph)
        return writer.commit()


def _check(graph: StoreInput, factor: int, edge_factor: float) -> int:
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
    return num_nodes


def _write_edges(writer: GraphWriter, graph: StoreInput, expander: _EdgeExpander) -> None:
    expected = round(graph.num_edges * expander.factor.edge_factor)
    writer.expect_edges(expected)
    describe_edges(writer, graph.edges.attributes)
    with writer.progress.phase("expand edges", expected, "edges") as phase:
        for piece, parents, sources, targets in expander.expand(graph):
            rows = graph.edge_rows(piece.first, piece.first + len(piece.sources))
            writer.add_edges(sources, targets, {name: own[parents] for name, own in rows.items()})
            phase.advance(len(sources))
    writer.finish_edges()


class _EdgeExpander:
    """Turns edges of the seed into edges between copies.

    The pattern of an edge is a symmetric hash of its ends: both directions of an undirected edge
    get the same, one direction transposed.
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

    def expand(
        self, graph: StoreInput
    ) -> Iterator[tuple[EdgePiece, npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[Any]]]:
        """Yield pieces of the seed's edges, and by copy its edge in the piece and its ends."""
        step = max(1, int(_CHUNK_EDGES / max(1.0, self.factor.edge_factor)))
        dtype = self._rows.dtype
        for piece in graph.edge_pieces(step):
            low = np.minimum(piece.sources, piece.targets)
            high = np.maximum(piece.sources, piece.targets)
            hashes = hash_pairs(self._seed, low, high) >> self._shift
            patterns = hashes.astype(np.int64)
            patterns += (piece.sources > piece.targets) * np.int64(self.factor.num_patterns)
            patterns[low == high] = 2 * self.factor.num_patterns
            counts = self._counts[patterns]
            parents = np.repeat(np.arange(len(patterns)), counts)
            # Positions in the tables: consecutive from where each edge's pattern begins.
            places = np.repeat(self._begins[patterns] - (np.cumsum(counts) - counts), counts)
            places += np.arange(len(places))
            sources, targets = self._rows[places], self._columns[places]
            sources += piece.sources.astype(dtype)[parents]
            targets += piece.targets.astype(dtype)[parents]
            yield piece, parents, sources, targets


def _write_nodes(
    writer: GraphWriter, graph: StoreInput, num_copies: int, feature_noise: float | None, seed: int
) -> None:
    for name, spec in graph.nodes.attributes.items():
        noise = None
        if name == "x":
            if feature_noise is None:
                continue
            noise = _Noise(graph, spec, feature_noise, seed) if feature_noise > 0 else None
        source = CopiedRows(graph, spec, num_copies, None if noise is None else noise.added)
        if noise is not None and spec.scaled is not None:  # the noise is rounded, too
            spec = replace(spec, scaled=replace(spec.scaled, error=None))  # noqa: PLW2901
        copy_attribute(writer, graph, spec, source)
    first_ids = np.arange(num_copies, dtype=np.int64)[:, None] * graph.num_nodes
    for name in graph.nodes.splits:
        writer.set_split(name, (first_ids + graph.split(name)).reshape(-1))


class _Noise:
    """Noise of features: a function of (seed, row, column), for pieces of any size."""

    def __init__(self, graph: StoreInput, spec: AttributeSpec, share: float, seed: int) -> None:
        self._dtype = spec.dtype
        self._seed = seed
        # Multiples of a scale lie in -127, ..., 127, so that negating one never overflows.
        self._is_scaled = spec.scaled is not None
        kind, size = STORAGE_DTYPES[spec.dtype].kind, STORAGE_DTYPES[spec.dtype].itemsize
        self._is_exact = (
            kind == "b"
            or spec.row_bytes == 0
            or (kind in "iu" and size > _MAX_NOISY_INTEGER_BYTES and spec.dtype != "bfloat16")
        )
        if not self._is_exact:
            wide = np.float64 if kind == "f" and size == 8 else np.float32
            with np.errstate(over="ignore", invalid="ignore"):
                deviations = (share * self._column_deviations(graph, spec)).astype(wide)
            # Columns that spread too far to be squared get no noise.
            self._deviations: npt.NDArray[Any] = np.nan_to_num(deviations, posinf=0.0)

    def _column_deviations(self, graph: StoreInput, spec: AttributeSpec) -> npt.NDArray[np.float64]:
        """Return the deviations of each column's finite values, float64 [F]."""
        num_blocks = -(-spec.num_rows // _SAMPLE_BLOCK_ROWS)
        stride = max(1, num_blocks // (_SAMPLE_ROWS // _SAMPLE_BLOCK_ROWS))
        count = sums = squares = np.zeros(math.prod(spec.shape[1:]))
        origin: npt.NDArray[np.float64] | None = None
        for block in range(0, num_blocks, stride):
            first = block * _SAMPLE_BLOCK_ROWS
            last = min(first + _SAMPLE_BLOCK_ROWS, spec.num_rows)
            values = self._decoded(graph.rows(spec, first, last)).reshape(last - first, -1)
            finite = np.isfinite(values)
            if origin is None:  # sums around a value of the column lose fewer digits
                origin = np.where(finite[0], values[0], 0.0).astype(np.float64)
            centred = np.where(finite, values - origin, 0.0)
            count = count + finite.sum(axis=0)
            sums = sums + centred.sum(axis=0)
            squares = squares + (centred * centred).sum(axis=0)
        count = np.maximum(count, 1)
        return np.sqrt(np.maximum(0.0, squares / count - (sums / count) ** 2))

    def added(self, rows: npt.NDArray[Any], first: int) -> npt.NDArray[Any]:
        """Return rows [k, ...] with noise, in their own type."""
        if self._is_exact or not rows.size:
            return rows
        out = np.empty_like(rows)
        step = max(1, _CHUNK_VALUES * len(rows) // rows.size)
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            out[part] = self._added(rows[part], first + begin)
        return out

    def _added(self, rows: npt.NDArray[Any], first: int) -> npt.NDArray[Any]:
        flat = self._decoded(rows).reshape(len(rows), -1)
        noise = draw_noise(self._seed, _NOISE, first, (flat.shape[0], flat.shape[1]), 1.0)
        with np.errstate(over="ignore", invalid="ignore"):
            noisy = np.where(np.isfinite(flat), flat + noise * self._deviations, flat)
        return self._encoded(noisy, flat).reshape(rows.shape)

    def _decoded(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self._dtype == "bfloat16":
            return from_bfloat16_bits(rows)
        if rows.dtype.kind in "iu":
            return rows.astype(np.float64)
        return rows.astype(np.float32) if rows.dtype == np.float16 else rows

    def _encoded(self, noisy: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        dtype = STORAGE_DTYPES[self._dtype]
        if self._dtype != "bfloat16" and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            lowest = -limits.max if self._is_scaled else limits.min
            return np.asarray(np.clip(np.rint(noisy), lowest, limits.max)).astype(dtype)
        # bfloat16's largest value is float32's with the lower half of the bits cut off.
        largest = 3.3895313892515355e38 if self._dtype == "bfloat16" else np.finfo(dtype).max
        over = (np.abs(noisy) > largest) & np.isfinite(values)  # what was infinite stays so
        noisy[over] = np.copysign(largest, noisy[over])
        if self._dtype == "bfloat16":
            return to_bfloat16_bits(noisy)
        return noisy.astype(dtype, copy=False)


# ---- where edges go


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


def draw_factor(num_copies: int, edge_factor: float, seed: int) -> FactorGraph:
    """Draw patterns: of the diagonals j = i + shift (mod K) some whole ones, and a part of one.

    Where a pattern's part begins is spread evenly over rows and columns; shifts are random.
    """
    size = num_copies
    num = 2 ** min(_MAX_PATTERN_BITS, int(_MAX_BLOCKS / max(size, edge_factor)).bit_length() - 1)
    least, extra = divmod(round(edge_factor * num), num)
    counts = np.where(np.arange(num) < extra, least + 1, least)
    words = draw_words(seed, _PATTERNS, 0, num * (size + 1)).reshape(size + 1, num)
    spread = [np.arange(count) * size // max(1, count) for count in (extra, num - extra)]
    row, column = (np.concatenate(spread)[np.lexsort((own, counts == least))] for own in words[:2])
    shifts = np.zeros((size + 1, num), np.int32)  # 0: of the part of a diagonal, or of the last one
    shifts[1:size] = np.argsort(words[2:], axis=0) + 1
    pattern = np.repeat(np.arange(num, dtype=np.int32), counts)
    offsets = np.cumsum([0, *counts])
    # Diagonal 0 has the cells that are left over from whole ones.
    cells = np.arange(len(pattern)) - (offsets[:-1] + counts % size - size)[pattern]
    columns = column[pattern] + cells + shifts[cells // size, pattern]
    return FactorGraph(
        size,
        offsets,
        ((row[pattern] + cells) % size).astype(np.int32),
        (columns % size).astype(np.int32),
    )


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
