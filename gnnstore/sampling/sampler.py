"""Samples in-neighbourhoods from graphs of any number of node types and edge types.

A hop expands what the hop before found over all edge types, along each edge type in the order of
the store. Draws are keyed by the edge type's number in the store as well, so that those of a type
do not depend on the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.errors import UsageError, check_choice
from gnnstore.formats.store.csc import Csc
from gnnstore.sampling.neighbor import (
    BatchRequest,
    EdgeSample,
    EdgeType,
    IndexDtype,
    Int64Array,
    NodeType,
    Sample,
    SamplingConfig,
    as_seeds,
    check_word,
    sampling_errors,
)
from gnnstore.sampling.temporal import TimeColumns, times_of_seeds

# The kernels' results: ids, trees and nodes by hop of each node type; local ids, positions and
# edges by hop of each edge type.
TypedArrays = tuple[
    list[tuple[npt.NDArray[Any], Int64Array | None, list[int]]],
    list[tuple[npt.NDArray[Any], Int64Array, list[int]]],
]

# What lies along in-neighbour lists, in the kernels' order; of the times only those of edges.
Column = Literal["indices", "order", "times", "weight_sums"]
COLUMNS: tuple[Column, ...] = get_args(Column)

MAX_HOPS = 256  # with several edge types, since the hop has 8 bits in the key of draws


@dataclass(frozen=True, eq=False)
class SampledTypes:
    """The types of a graph that batches are sampled from, in the order of the store."""

    num_nodes: Mapping[NodeType, int]
    edges: Mapping[EdgeType, Csc]
    label: str = "the graph"
    # What a configuration's attribute restricts or weighs: edge types without are as ever.
    times: Mapping[EdgeType, TimeColumns] = field(default_factory=dict)
    node_times: Mapping[NodeType, Int64Array] = field(default_factory=dict)  # int64 [N], for seeds
    # uint64 [E]: inclusive sums of integer weights in each column
    weight_sums: Mapping[EdgeType, npt.NDArray[np.uint64]] = field(default_factory=dict)

    @classmethod
    def of_one_type(cls, csc: Csc) -> Self:
        """Return a graph of one node type and one edge type."""
        return cls({csc.edge_type[2]: csc.num_nodes}, {csc.edge_type: csc}, csc.label)

    def column(self, edge_type: EdgeType, column: Column) -> npt.NDArray[Any]:
        """Return what a column of an edge type consists of."""
        if column == "indices":
            return self.edges[edge_type].indices
        if column == "weight_sums":
            return self.weight_sums[edge_type]
        times = self.times[edge_type]
        return times.order if column == "order" else times.times

    def kernel(self, config: SamplingConfig, *, on_disk: bool = False) -> _core.SampledGraph:
        """Return the graph with a configuration's fan-outs, as the kernels take it."""
        numbers = {name: number for number, name in enumerate(self.num_nodes)}
        names = numbers if len(numbers) > 1 else [""]
        return _core.SampledGraph(
            list(zip(names, self.num_nodes.values(), strict=True)),
            [self._columns(of, config, numbers, on_disk) for of in self.edges],
        )

    def _columns(
        self,
        of: EdgeType,
        config: SamplingConfig,
        numbers: Mapping[NodeType, int],
        on_disk: bool,
    ) -> _core.EdgeColumns:
        csc, times, sums = self.edges[of], self.times.get(of), self.weight_sums.get(of)
        options: dict[str, Any] = {}
        if times is not None:
            options |= {
                "timing": "edges" if times.of_edges else "sources",
                "order": None if on_disk else times.order,
                "order_dtype": times.order.dtype.name,
                "times": None if on_disk and times.of_edges else times.times,
            }
        if sums is not None:
            options |= {"weighted": True, "weight_sums": None if on_disk else sums}
        return _core.EdgeColumns(
            "" if len(self.edges) == 1 else str(of),
            numbers[of[0]],
            numbers[of[2]],
            list(self.edges).index(of),
            csc.indptr,
            None if on_disk else csc.indices,
            config.fanouts_of(of),
            num_src_nodes=csc.num_src,
            num_edges=csc.num_edges,
            indices_dtype=csc.indices.dtype.name,
            **options,
        )


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
        if len(types.edges) > 1 and config.num_hops > MAX_HOPS:
            raise UsageError(
                f"graphs of several edge types are sampled in {MAX_HOPS} hops at most; got "
                f"{config.num_hops} fan-outs"
            )
        self.types = types
        self.config = config
        self.num_nodes = sum(types.num_nodes.values())
        self.index_dtype: IndexDtype = index_dtype
        self.graph = types.kernel(config, on_disk=self.samples_together)

    def sample(self, seeds: Any, *, epoch: int, batch: int, **options: Any) -> Sample:
        """Sample the subgraph of some seed nodes; options are those of `BatchRequest`."""
        return self.draw(BatchRequest(seeds, epoch, batch, **options))

    def draw(self, request: BatchRequest) -> Sample:
        """Sample the subgraph of a request."""
        seeds, options = self.kernel_arguments(request)
        with sampling_errors(self.types.label, self.num_nodes):
            arrays = self.graph.sample(seeds, **options)
        return self.as_sample(arrays, sum(len(ids) for ids, *_ in seeds))

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
        seeds, epoch, batch, excluded, times, places = request
        config = self.config
        return self.seed_arrays(seeds, times, places), {
            "seed": config.seed,
            "epoch": check_word("epoch", epoch),
            "batch": check_word("batch", batch),
            "replace": config.replace,
            "disjoint": config.disjoint,
            "induced": config.subgraph_type == "induced",
            "latest": config.temporal_strategy == "last",
            "window": config.time_window or 0,
            "index_dtype": self.index_dtype,
            "excluded": self.excluded_arrays(excluded),
        }

    def seed_arrays(
        self, seeds: Any, times: Any, places: Any
    ) -> list[tuple[Int64Array, Int64Array, Int64Array | None]]:
        """Return ids, places and times for each node type; the order of mappings numbers trees."""
        names = self.types.num_nodes
        ids = {name: as_seeds(of) for name, of in self._by_node_type(seeds).items()}
        if places is None:
            first, trees = 0, {}
            for name, own in ids.items():
                trees[name] = np.arange(first, first + len(own))
                first += len(own)
        else:
            by_type = self._by_node_type(places)
            trees = {name: np.ascontiguousarray(own, np.int64) for name, own in by_type.items()}
        none = np.empty(0, np.int64)
        if (time_attr := self.config.time_attr) is None:
            return [(ids.get(name, none), trees.get(name, none), None) for name in names]
        given = None if times is None else self._by_node_type(times)
        own_times = times_of_seeds(ids, given, self.types.node_times, time_attr)
        return [tuple(of.get(name, none) for of in (ids, trees, own_times)) for name in names]  # type: ignore[misc]

    def _by_node_type(self, values: Any) -> dict[NodeType, Any]:
        """Return seeds, or what belongs to them, by node type; else they are of the only type."""
        if isinstance(values, Mapping):
            return dict(values)
        (name,) = self.types.num_nodes
        return {name: values}

    def excluded_arrays(self, excluded: Any) -> list[Any] | None:
        """Return excluded edges for each edge type."""
        if excluded is None or not isinstance(excluded, Mapping):
            return None if excluded is None else [excluded]
        return [excluded.get(edge_type) for edge_type in self.types.edges]

    def stream_dtype(self, stream: tuple[int, int]) -> np.dtype[Any]:
        """Return the type of the elements of a stream of `StagedBatch`."""
        edge_type, column = list(self.types.edges)[stream[0]], COLUMNS[stream[1]]
        return self.types.column(edge_type, column).dtype

    def as_sample(self, arrays: TypedArrays, num_seeds: int) -> Sample:
        """Return the subgraph that a kernel has sampled; of one type with its reverse edges."""
        config = self.config
        nodes = dict(zip(self.types.num_nodes, arrays[0], strict=True))
        edges = dict(zip(self.types.edges, arrays[1], strict=True))
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


def reverse_of(edge_type: EdgeType, edge_types: Iterable[EdgeType]) -> EdgeType | None:
    """Return the type of the reverses of a type's edges, as PyTorch Geometric finds it."""
    source, relation, target = edge_type
    if (named := (target, f"rev_{relation}", source)) in (edge_types := tuple(edge_types)):
        return named
    if source == target:
        return edge_type
    candidates = [other for other in edge_types if (other[0], other[2]) == (target, source)]
    return candidates[0] if len(candidates) == 1 else None


def with_reverse_edges(sample: Sample) -> Sample:
    """Return the bidirectional subgraph of a sample of several edge types.

    Each type is joined with the reverses of its reverse type's edges, each edge once, sorted by
    target. A reverse type that is named after it, "rev_…", becomes the flipped edges, in their
    order. Edges have no positions afterwards but those of types that have no reverse.
    """
    sampled = sample.edges
    joined: dict[EdgeType, EdgeSample] = dict(sampled)
    none = np.empty(0, np.int64)
    for edge_type in sampled:
        reverse = reverse_of(edge_type, sampled)
        if reverse is None or edge_type[1].startswith("rev_"):
            continue
        index = _joined(sampled[edge_type].index, sampled[reverse].index)
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
