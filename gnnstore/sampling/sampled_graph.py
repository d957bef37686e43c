"""The arrays of an open graph that samplers read, by node type and edge type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.formats.store.csc import Csc
from gnnstore.formats.store.schema import EdgeType
from gnnstore.sampling.temporal import TimeColumns

# What lies along in-neighbour lists, in the kernels' order; of the times only those of edges.
Column = Literal["indices", "order", "times", "weight_sums"]
COLUMNS: tuple[Column, ...] = get_args(Column)

FanoutsOf = Callable[[EdgeType], tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class SampledTypes:
    """The types of a graph that batches are sampled from, in the order of the store."""

    num_nodes: Mapping[str, int]
    edges: Mapping[EdgeType, Csc]
    label: str = "the graph"
    # What a configuration's attribute restricts or weighs: edge types without are as ever.
    times: Mapping[EdgeType, TimeColumns] = field(default_factory=dict)
    # int64 [N], for seeds
    node_times: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
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

    def kernel(self, fanouts_of: FanoutsOf, *, on_disk: bool = False) -> _core.SampledGraph:
        """Return the graph with the fan-outs of each edge type, as the kernels take it."""
        numbers = {name: number for number, name in enumerate(self.num_nodes)}
        names = numbers if len(numbers) > 1 else [""]
        return _core.SampledGraph(
            list(zip(names, self.num_nodes.values(), strict=True)),
            [self._columns(of, fanouts_of(of), numbers, on_disk) for of in self.edges],
        )

    def _columns(
        self,
        of: EdgeType,
        fanouts: tuple[int, ...],
        numbers: Mapping[str, int],
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
            fanouts,
            num_src_nodes=csc.num_src,
            num_edges=csc.num_edges,
            indices_dtype=csc.indices.dtype.name,
            **options,
        )
