"""Samples the in-neighbourhood of seed nodes, as PyTorch Geometric defines it.

The batch is a pure function of (graph, seeds, options, seed, epoch, batch number): draws are keyed
by these, by the hop and by the node, and are never taken from a stream. So threads, workers and
resumed runs agree, and a batch can be sampled long before it is needed. A hop expands what the hop
before found along each edge type, in the order of the store; the type's number there keys draws as
well. The kernel does the work; this module checks its arguments and explains its errors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, TypeVar, get_args

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
from gnnstore.formats.store.schema import EdgeType, Schema
from gnnstore.formats.store.store import Csc
from gnnstore.sampling.sampled_graph import (
    Int64Array,
    SampledTypes,
    reverse_of,
    times_of_seeds,
)
from gnnstore.units import format_count

SubgraphType = Literal["directional", "bidirectional", "induced"]
IndexDtype = Literal["int64", "int32"]
TemporalStrategy = Literal["uniform", "last"]

NodeType: TypeAlias = str

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

# The kernels' results: ids, trees and nodes by hop of each node type; local ids, positions and
# edges by hop of each edge type.
TypedArrays = tuple[
    list[tuple[npt.NDArray[Any], Int64Array | None, list[int]]],
    list[tuple[npt.NDArray[Any], Int64Array, list[int]]],
]

MAX_HOPS = 256  # most hops with several edge types, since the hop has 8 bits in the key of draws
_WORD = 2**64  # the key of a draw consists of unsigned 64-bit words


@dataclass(frozen=True)
class SamplingConfig:
    """The options of neighbour sampling."""

    # In-neighbours to choose for each node, one number a hop: -1 takes all, 0 none. For every edge
    # type, or by edge type.
    fanouts: tuple[int, ...] | Mapping[EdgeType, tuple[int, ...]]
    replace: bool = False  # choose with replacement
    # The edges of the subgraph: those that were chosen; these and their reverses, each once; or all
    # edges of the graph between the chosen nodes.
    subgraph_type: SubgraphType = "directional"
    disjoint: bool = False  # give each seed a tree of its own, which shares no node with the others
    seed: int = 0  # first word of the key of all draws, in [0, 2^64)
    # The time attribute, of nodes or of edges: edges later than their seed are not chosen.
    time_attr: str | None = None
    temporal_strategy: TemporalStrategy = "uniform"  # which of these: any, or the latest
    time_window: int | None = None  # w: edges of (t - w, t] only, t being the time of their seed
    weight_attr: str | None = None  # the edge attribute that choices are in proportion to

    def __post_init__(self) -> None:
        object.__setattr__(self, "fanouts", _checked_fanouts(self.fanouts))
        self._check_time()
        for name in ("time_attr", "weight_attr"):
            if not isinstance(attribute := getattr(self, name), str | None):
                raise UsageError(f"{name}={attribute!r}: expected the name of an attribute")
        check_choice("subgraph_type", self.subgraph_type, get_args(SubgraphType))
        if self.disjoint and self.subgraph_type == "induced":
            raise UsageError(
                "disjoint=True and subgraph_type='induced' exclude each other: edges between "
                "all sampled nodes would join the trees; choose one of the two"
            )
        for name in ("replace", "disjoint"):
            object.__setattr__(self, name, truth(name, getattr(self, name)))
        object.__setattr__(self, "seed", check_word("seed", self.seed))

    def _check_time(self) -> None:
        check_choice("temporal_strategy", self.temporal_strategy, get_args(TemporalStrategy))
        if self.time_attr is None:
            if self.time_window is not None or self.temporal_strategy != "uniform":
                raise UsageError(
                    "time_window and temporal_strategy need time_attr, the attribute with the times"
                )
            return
        if self.weight_attr is not None:
            raise UsageError(
                "time_attr and weight_attr exclude each other, as in PyTorch Geometric: choose one"
            )
        object.__setattr__(self, "disjoint", True)
        if self.time_window is not None:
            window = whole_number("time_window", self.time_window)
            if not 1 <= window < 2**63:
                raise UsageError(
                    f"time_window must be 1 or more, in the unit of {self.time_attr!r}, and below "
                    f"2^63; got {window}"
                )
            object.__setattr__(self, "time_window", window)

    @property
    def num_hops(self) -> int:
        """The number of hops."""
        fanouts = self.fanouts
        return len(next(iter(fanouts.values()), ()) if isinstance(fanouts, Mapping) else fanouts)

    def fanouts_of(self, edge_type: EdgeType) -> tuple[int, ...]:
        """Return the fan-outs of an edge type."""
        fanouts = self.fanouts
        if not isinstance(fanouts, Mapping):
            return fanouts
        if edge_type not in fanouts:
            raise UsageError(
                f"fanouts by edge type have none for {edge_type}; they have: "
                f"{', '.join(map(str, fanouts))}"
            )
        return fanouts[edge_type]

    def check_part(self, schema: Schema, path: object) -> None:
        """Refuse what needs more in-neighbours than a part of a store has."""
        if (part := schema.part) is None:
            return
        if self.num_hops > part.num_hops:
            raise UsageError(
                f"{path} is a part of a store, whose seeds have all their in-neighbours within "
                f"{format_count(part.num_hops, 'hop')}, and these are {self.num_hops} fan-outs: "
                "give at most "
                f"{part.num_hops}, or make parts with 'gnnstore assign --hops {self.num_hops}'"
            )
        if self.subgraph_type == "induced":
            raise UsageError(
                f"{path} is a part of a store, which does not have the in-neighbours of nodes "
                f"{format_count(part.num_hops, 'hop')} away, so that subgraph_type='induced' "
                "would miss edges; leave it out, or give the whole store"
            )

    def with_seed(self, seed: int) -> Self:
        """Return the same options under another seed."""
        return replace(self, seed=seed)


@dataclass(frozen=True, eq=False, slots=True)
class EdgeSample:
    """The m edges of one type in a subgraph."""

    # int32 or int64 [2, m]: local ids (places among the nodes of their type): sources in row 0,
    # targets in row 1, sorted by target.
    index: npt.NDArray[Any]
    positions: Int64Array  # int64 [m]: positions in the columns of the type


@dataclass(frozen=True, eq=False)
class Subgraph:
    """The n nodes and m edges of each type of a batch."""

    nodes: Mapping[NodeType, npt.NDArray[Any]]  # int32 or int64 [n]: ids
    edges: Mapping[EdgeType, Any]  # with positions, int32 or int64 [m]

    @property
    def n_id(self) -> npt.NDArray[Any]:
        """Ids of the nodes of the only type."""
        return only(self.nodes)

    @property
    def edge_pos(self) -> npt.NDArray[Any]:
        """Positions of the edges of the only type."""
        positions: npt.NDArray[Any] = only(self.edges).positions
        return positions

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(map(len, self.nodes.values()))

    @property
    def num_edges(self) -> int:
        """Edges of all types."""
        return sum(len(edges.positions) for edges in self.edges.values())


@dataclass(frozen=True, eq=False)
class Sample(Subgraph):
    """One batch's subgraph, as it was sampled; L hops."""

    edges: Mapping[EdgeType, EdgeSample]
    # int64 [n] by node type: the seed in whose tree a node is; None: the trees share nodes.
    trees: Mapping[NodeType, Int64Array] | None
    # Seeds and then the nodes found in each hop, L + 1; edges chosen in each hop, L; or None.
    hop_nodes: Mapping[NodeType, list[int]] | None
    hop_edges: Mapping[EdgeType, list[int]] | None
    num_seeds: int

    @property
    def edge_index(self) -> npt.NDArray[Any]:
        """Local ids of the edges of the only type."""
        return only(self.edges).index

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        trees = self.trees or {}
        return (
            sum(ids.nbytes for ids in self.nodes.values())
            + sum(edges.index.nbytes + edges.positions.nbytes for edges in self.edges.values())
            + sum(tree.nbytes for tree in trees.values())
        )


def each_type(by_type: Mapping[K, T] | None, function: Callable[[T], V]) -> dict[K, V] | None:
    """Return what a function makes of each type's value; None of None."""
    return None if by_type is None else {of: function(value) for of, value in by_type.items()}


def only(by_type: Mapping[Any, T]) -> T:
    """Return the value of the only type."""
    (value,) = by_type.values()
    return value


def with_reverse_edges(sample: Sample) -> Sample:
    """Return the bidirectional subgraph of a sample of several edge types, as PyG makes it.

    Each type is joined with the flipped edges of its reverse type, each edge once, sorted by
    target; a reverse type "rev_…" becomes the flipped result. Joined edges have no positions.
    """
    joined, none = dict(sample.edges), np.empty(0, np.int64)
    for edge_type, edges in sample.edges.items():
        reverse = reverse_of(edge_type, sample.edges)
        if reverse is None or edge_type[1].startswith("rev_"):
            continue
        index = _joined(edges.index, sample.edges[reverse].index)
        joined[edge_type] = EdgeSample(index, none)
        if reverse[1] == f"rev_{edge_type[1]}":
            joined[reverse] = EdgeSample(np.ascontiguousarray(index[::-1]), none)
    return replace(sample, edges=joined, hop_nodes=None, hop_edges=None)


def _joined(index: npt.NDArray[Any], reverse: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the union of edges and flipped reverses, sorted by target, then source."""
    both = np.concatenate([index, reverse[::-1]], axis=1)
    order = np.lexsort(both)
    both = both[:, order]
    is_new = np.ones(both.shape[1], np.bool_)
    is_new[1:] = (both[:, 1:] != both[:, :-1]).any(axis=0)
    return np.ascontiguousarray(both[:, is_new])


class BatchRequest(NamedTuple):
    """The arguments of `NeighborSampler.draw`."""

    seeds: Any  # ids of one node type, or by type
    epoch: int
    batch: int
    excluded: Any = None  # `Excluded`, or by edge type
    times: Any = None
    places: Any = None


def _checked_fanouts(
    fanouts: Sequence[int] | Mapping[EdgeType, Sequence[int]],
) -> tuple[int, ...] | dict[EdgeType, tuple[int, ...]]:
    if not isinstance(fanouts, Mapping):
        return _checked_hops(fanouts)
    checked = {edge_type: _checked_hops(hops) for edge_type, hops in fanouts.items()}
    if len({len(hops) for hops in checked.values()}) > 1:
        raise UsageError(
            "Number of hops must be the same across all edge types; got "
            + ", ".join(f"{len(hops)} for {edge_type}" for edge_type, hops in checked.items())
        )
    return checked


def _checked_hops(fanouts: Sequence[int]) -> tuple[int, ...]:
    try:
        checked = tuple(operator.index(fanout) for fanout in fanouts)
    except TypeError:
        raise UsageError(
            f"num_neighbors={fanouts!r} is not a list of fan-outs; give one integer per hop, such "
            "as [10, 10], -1 for all neighbours"
        ) from None
    for hop, fanout in enumerate(checked):
        if not -1 <= fanout < 2**31:
            raise UsageError(
                f"the fan-out of hop {hop} is {fanout}; "
                "it must be -1 (all in-neighbours) or a number in [0, 2^31)"
            )
    return checked


def check_word(name: str, value: int) -> int:
    """Return a number that is a word of the key of draws; raise if it is not."""
    if type(value) is int and 0 <= value < _WORD:  # the common case, checked fast
        return value
    if not 0 <= (number := whole_number(name, value)) < _WORD:
        raise UsageError(f"{name} must be in [0, 2^64); got {value}")
    return number


def as_seeds(seeds: Any) -> npt.NDArray[np.int64]:
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


class NeighborSampler:
    """Samples subgraphs of one graph with one configuration.

    Seeds are an array [B] if there is one node type, else arrays by node type. Holds no state
    between batches; any number of threads may sample at once, each in the thread that calls.
    """

    # Whether batches that are known ahead are best sampled together, in one thread; else one by
    # one, in many.
    samples_together: ClassVar[bool] = False

    def __init__(
        self, graph: SampledTypes | Csc, config: SamplingConfig, index_dtype: IndexDtype = "int64"
    ) -> None:
        types = SampledTypes.of_one_type(graph) if isinstance(graph, Csc) else graph
        check_choice("index_dtype", index_dtype, get_args(IndexDtype))
        most = max(0, *types.num_nodes.values(), *(csc.num_src for csc in types.edges.values()))
        if index_dtype == "int32" and most > 2**31:
            raise UsageError(
                f"the node ids of {types.label} ({most} nodes of a type) do not fit in int32; use "
                "index_dtype='int64'"
            )
        self.types = types
        self.num_nodes = sum(types.num_nodes.values())
        self.index_dtype: IndexDtype = index_dtype
        self._follow(config)

    def _follow(self, config: SamplingConfig) -> None:
        if len(self.types.edges) > 1 and config.num_hops > MAX_HOPS:
            raise UsageError(
                f"graphs of several edge types are sampled in {MAX_HOPS} hops at most; got "
                f"{config.num_hops} fan-outs"
            )
        self.config = config
        self.graph = self.types.kernel(config.fanouts_of, on_disk=self.samples_together)

    def with_config(self, config: SamplingConfig) -> Self:
        """Return a sampler of the same graph, times and weights with other options."""
        changed = copy(self)
        changed._follow(config)
        return changed

    def with_index_dtype(self, index_dtype: IndexDtype) -> Self:
        """Return a sampler of the same samples in another type, which all ids fit."""
        changed = copy(self)
        changed.index_dtype = index_dtype
        return changed

    def sample(self, seeds: Any, *, epoch: int, batch: int, **options: Any) -> Sample:
        """Sample the subgraph of some seed nodes; options as in `BatchRequest`."""
        return self.draw(BatchRequest(seeds, epoch, batch, **options))

    def draw(self, request: BatchRequest) -> Sample:
        """Sample the subgraph of a request."""
        seeds, options = self.kernel_arguments(request)
        with self.errors():
            arrays = self.graph.sample(seeds, **options)
        return self.as_sample(arrays, sum(len(ids) for ids, *_ in seeds))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the exceptions of a kernel into errors that explain them."""
        source = self.types.label
        try:
            yield
        except IndexError as error:
            raise InputError(
                f"cannot sample from {source}: {error}; seeds must be ids of its {self.num_nodes} "
                "nodes"
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

    def sample_many(
        self,
        requests: Iterable[BatchRequest],
        *,
        memory_bytes: int,  # noqa: ARG002 - for those that sample together
        num_threads: int = 1,  # noqa: ARG002
    ) -> Iterator[Sample]:
        """Sample batches that are known ahead, in order."""
        return map(self.draw, requests)

    def kernel_arguments(self, request: BatchRequest) -> tuple[list[Any], dict[str, Any]]:
        """Return the seeds of a request by node type, and the options of the kernels."""
        config, excluded = self.config, request.excluded
        if isinstance(excluded, Mapping):
            excluded = [excluded.get(edge_type) for edge_type in self.types.edges]
        elif excluded is not None:
            excluded = [excluded]
        return self._seed_arrays(request), {
            "seed": config.seed,
            "epoch": check_word("epoch", request.epoch),
            "batch": check_word("batch", request.batch),
            "replace": config.replace,
            "disjoint": config.disjoint,
            "induced": config.subgraph_type == "induced",
            "latest": config.temporal_strategy == "last",
            "window": config.time_window or 0,
            "index_dtype": self.index_dtype,
            "excluded": excluded,
        }

    def _seed_arrays(self, request: BatchRequest) -> list[Any]:
        """Return ids, places and times for each node type; the order of mappings numbers trees."""
        ids = {name: as_seeds(of) for name, of in self._by_node_type(request.seeds).items()}
        trees, first = {}, 0
        for name, own in ids.items():
            trees[name] = np.arange(first, first + len(own))
            first += len(own)
        if request.places is not None:
            by_type = self._by_node_type(request.places)
            trees = {name: np.ascontiguousarray(own, np.int64) for name, own in by_type.items()}
        none = np.empty(0, np.int64)
        arrays: list[Mapping[NodeType, Any]] = [ids, trees, dict.fromkeys(self.types.num_nodes)]
        if (time_attr := self.config.time_attr) is not None:
            given = {} if request.times is None else self._by_node_type(request.times)
            arrays[2] = times_of_seeds(ids, given, self.types.node_times, time_attr)
        return [tuple(of.get(name, none) for of in arrays) for name in self.types.num_nodes]

    def _by_node_type(self, values: Any) -> dict[NodeType, Any]:
        """Return seeds, or what belongs to them, by node type; else they are of the only type."""
        is_typed = isinstance(values, Mapping)
        return dict(values if is_typed else dict.fromkeys(self.types.num_nodes, values))

    def as_sample(self, arrays: TypedArrays, num_seeds: int) -> Sample:
        """Return the subgraph that a kernel has sampled; of one type with its reverse edges."""
        config = self.config
        nodes = dict(zip(self.types.num_nodes, arrays[0], strict=True))
        edges = dict(zip(self.types.edges, arrays[1], strict=True))
        if not edges:  # the kernels count hops by the fan-outs of edges
            none = [0] * config.num_hops
            nodes = {name: (n_id, tree, [*num, *none]) for name, (n_id, tree, num) in nodes.items()}
        if config.subgraph_type == "bidirectional" and len(nodes) == len(edges) == 1:
            (((n_id, *_),), ((of, (index, positions, hops)),)) = nodes.values(), edges.items()
            edges = {of: (*_core.add_reverse_edges(index, positions, len(n_id)), hops)}
        has_hops = config.subgraph_type == "directional"
        return Sample(
            {name: n_id for name, (n_id, _, _) in nodes.items()},
            {of: EdgeSample(index, positions) for of, (index, positions, _) in edges.items()},
            {name: tree for name, (_, tree, _) in nodes.items() if tree is not None}
            if config.disjoint
            else None,
            {name: num for name, (_, _, num) in nodes.items()} if has_hops else None,
            {of: num for of, (_, _, num) in edges.items()} if has_hops else None,
            num_seeds,
        )
