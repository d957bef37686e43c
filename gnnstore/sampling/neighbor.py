"""Samples the in-neighbourhood of seed nodes, as PyTorch Geometric defines it.

The batch is a pure function of (graph, seeds, options, seed, epoch, batch number): draws are keyed
by these, by the hop and by the node, and are never taken from a stream. So threads, workers and
resumed runs agree, and a batch can be sampled long before it is needed. The kernel does the work;
this module checks its arguments and explains its errors.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import (
    CorruptStoreError,
    InputError,
    UsageError,
    check_choice,
    truth,
    whole_number,
)
from gnnstore.formats.store.csc import Csc

SubgraphType = Literal["directional", "bidirectional", "induced"]
IndexDtype = Literal["int64", "int32"]

# The kernels' results: n_id, edge_index, edge_pos, batch, num_sampled_nodes, num_sampled_edges.
SampledArrays = tuple[
    npt.NDArray[Any],
    npt.NDArray[Any],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64] | None,
    list[int],
    list[int],
]

# Edges as ranges of positions in the graph's `indices`: target nodes, first positions, and those
# after the last, int64 [n] each, ascending; `EdgeFinder.excluding` gives them.
Excluded = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]

_WORD = 2**64  # the key of a draw consists of unsigned 64-bit words


@dataclass(frozen=True)
class SamplingConfig:
    """The options of neighbour sampling."""

    # In-neighbours to choose for each node, one number a hop: -1 takes all, 0 none.
    fanouts: tuple[int, ...]
    replace: bool = False  # choose with replacement
    # The edges of the subgraph: those that were chosen; these and their reverses, each once; or all
    # edges of the graph between the chosen nodes.
    subgraph_type: SubgraphType = "directional"
    disjoint: bool = False  # give each seed a tree of its own, which shares no node with the others
    seed: int = 0  # first word of the key of all draws, in [0, 2^64)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fanouts", _checked_fanouts(self.fanouts))
        check_choice("subgraph_type", self.subgraph_type, get_args(SubgraphType))
        if self.disjoint and self.subgraph_type == "induced":
            raise UsageError(
                "disjoint=True and subgraph_type='induced' exclude each other: edges between "
                "all sampled nodes would join the trees; choose one of the two"
            )
        for name in ("replace", "disjoint"):
            object.__setattr__(self, name, truth(name, getattr(self, name)))
        object.__setattr__(self, "seed", check_word("seed", self.seed))

    def with_seed(self, seed: int) -> Self:
        """Return the same options under another seed."""
        return replace(self, seed=seed)


@dataclass(frozen=True, eq=False)
class Sample:
    """One batch's subgraph; B seeds, n nodes, m edges, L hops. The arrays belong to the caller."""

    n_id: npt.NDArray[Any]  # int32 or int64, shape [n]: node ids
    # int32 or int64, shape [2, m]: local ids (positions in `n_id`): sources in row 0, targets in
    # row 1, sorted by target.
    edge_index: npt.NDArray[Any]
    edge_pos: npt.NDArray[np.int64]  # int64, shape [m]: positions of the edges in the CSC arrays
    # int64, shape [n], or None: index of the seed in whose tree a node is, if the trees are
    # disjoint.
    batch: npt.NDArray[np.int64] | None
    num_sampled_nodes: list[int] | None  # B, then the nodes found in each hop
    num_sampled_edges: list[int] | None  # the edges chosen in each hop
    num_seeds: int

    @property
    def nodes(self) -> dict[str | None, npt.NDArray[Any]]:
        """Node ids by node type; None is that of a homogeneous graph."""
        return {None: self.n_id}

    @property
    def edges(self) -> dict[tuple[str, str, str] | None, npt.NDArray[np.int64]]:
        """Positions of the edges by edge type; None is that of a homogeneous graph."""
        return {None: self.edge_pos}

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        arrays = (self.n_id, self.edge_index, self.edge_pos, self.batch)
        return sum(0 if array is None else array.nbytes for array in arrays)


class BatchRequest(NamedTuple):
    """The arguments of `NeighborSampler.sample`."""

    seeds: npt.ArrayLike
    epoch: int
    batch: int
    excluded: Excluded | None = None


class NeighborSampler:
    """Samples subgraphs of one graph with one configuration.

    Holds no state between batches; any number of threads may call `sample` at once, each call
    running in the thread that makes it.
    """

    # Whether batches that are known ahead are best sampled together, in one thread that asks for
    # all; else one by one, in many.
    samples_together: ClassVar[bool] = False

    def __init__(self, csc: Csc, config: SamplingConfig, index_dtype: IndexDtype = "int64") -> None:
        check_choice("index_dtype", index_dtype, get_args(IndexDtype))
        if index_dtype == "int32" and max(csc.num_nodes, csc.num_src) > 2**31:
            raise UsageError(
                f"the node ids of {csc.label} ({csc.num_nodes} nodes) do not fit in int32; "
                "use index_dtype='int64'"
            )
        self.csc = csc
        self.config = config
        self.num_nodes = csc.num_nodes
        self.index_dtype: IndexDtype = index_dtype

    def sample(
        self, seeds: npt.ArrayLike, *, epoch: int, batch: int, excluded: Excluded | None = None
    ) -> Sample:
        """Sample the subgraph of some seed nodes."""
        check_word("epoch", epoch)
        check_word("batch", batch)
        seed_ids = as_seeds(seeds)
        csc, config = self.csc, self.config
        if csc.mapped:
            csc.check_mapped_files()
        with sampling_errors(csc.label, self.num_nodes):
            arrays = _core.sample_neighbors(
                csc.indptr,
                csc.indices,
                seed_ids,
                config.fanouts,
                seed=config.seed,
                epoch=epoch,
                batch=batch,
                num_src_nodes=csc.num_src,
                replace=config.replace,
                disjoint=config.disjoint,
                induced=config.subgraph_type == "induced",
                index_dtype=self.index_dtype,
                excluded=excluded,
            )
        return as_subgraph(arrays, config, len(seed_ids))

    def sample_many(
        self,
        requests: Iterable[BatchRequest],
        *,
        memory_bytes: int,  # noqa: ARG002 - for those that sample together
        num_threads: int = 1,  # noqa: ARG002
    ) -> Iterator[Sample]:
        """Sample batches that are known ahead; yield the result of `sample` for each, in order."""
        for seeds, epoch, batch, excluded in requests:
            yield self.sample(seeds, epoch=epoch, batch=batch, excluded=excluded)


@contextmanager
def sampling_errors(source: str, num_nodes: int) -> Iterator[None]:
    """Turn the exceptions of a sampling kernel into errors that explain them."""
    try:
        yield
    except IndexError as error:
        raise InputError(
            f"cannot sample from {source}: {error}; seeds must be ids of its {num_nodes} nodes"
        ) from error
    except OverflowError as error:
        raise UsageError(
            f"cannot sample from {source}: {error}; use fewer seeds or smaller fan-outs"
        ) from error
    except ValueError as error:
        raise CorruptStoreError(
            f"cannot sample from {source}: {error}. "
            "Its topology is damaged; run 'gnnstore verify' on it, or convert the graph again",
            path=source,
        ) from error


def as_subgraph(arrays: SampledArrays, config: SamplingConfig, num_seeds: int) -> Sample:
    """Return the subgraph that a kernel has sampled, with reverse edges if they are asked for."""
    n_id, edge_index, edge_pos, tree, num_nodes, num_edges = arrays
    if config.subgraph_type == "bidirectional":
        edge_index, edge_pos = _core.add_reverse_edges(edge_index, edge_pos, len(n_id))
    is_directional = config.subgraph_type == "directional"
    return Sample(
        n_id=n_id,
        edge_index=edge_index,
        edge_pos=edge_pos,
        batch=tree,
        num_sampled_nodes=num_nodes if is_directional else None,
        num_sampled_edges=num_edges if is_directional else None,
        num_seeds=num_seeds,
    )


def seeds_alone(
    seeds: npt.NDArray[np.int64], config: SamplingConfig, index_dtype: IndexDtype
) -> Sample:
    """Return the sample of no hops, which needs no graph."""
    is_directional = config.subgraph_type == "directional"
    return Sample(
        n_id=seeds.astype(index_dtype),
        edge_index=np.empty((2, 0), index_dtype),
        edge_pos=np.empty(0, np.int64),
        batch=np.arange(len(seeds)) if config.disjoint else None,
        num_sampled_nodes=[len(seeds)] if is_directional else None,
        num_sampled_edges=[] if is_directional else None,
        num_seeds=len(seeds),
    )


def _checked_fanouts(fanouts: Sequence[int]) -> tuple[int, ...]:
    try:
        checked = tuple(operator.index(fanout) for fanout in fanouts)
    except TypeError:
        raise UsageError(f"fanouts must be a sequence of integers; got {fanouts!r}") from None
    for hop, fanout in enumerate(checked):
        if not -1 <= fanout < 2**31:
            raise UsageError(
                f"the fan-out of hop {hop} is {fanout}; "
                "it must be -1 (all in-neighbours) or a number in [0, 2^31)"
            )
    return checked


def check_word(name: str, value: int) -> int:
    """Return a number that is a word of the key of draws; raise if it is none."""
    if type(value) is int and 0 <= value < _WORD:  # as those of each batch are
        return value
    if not 0 <= (number := whole_number(name, value)) < _WORD:
        raise UsageError(f"{name} must be in [0, 2^64); got {value}")
    return number


def as_seeds(seeds: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return seeds in the form of the kernels: int64 [B], contiguous."""
    array = np.asarray(seeds)
    if array.size == 0:
        array = array.astype(np.int64)  # an empty list arrives as float64
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.dtype == np.uint64:
        raise UsageError(
            "seeds must be a vector of integer node ids; "
            f"got an array of {array.dtype} of shape {array.shape}"
        )
    return np.ascontiguousarray(array, dtype=np.int64)
