"""Times that sampling obeys: those of an edge type's in-neighbours, of seeds and of negatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TimeColumns:
    """The times of an edge type's in-neighbours, and the order of each list by time."""

    # uint16 or uint32 [E]: entry start + j is the place in its list of the j-th edge by time.
    order: npt.NDArray[Any]
    times: Int64Array  # int64: of the edges [E], or of all source nodes [N]
    of_edges: bool


@dataclass(frozen=True, eq=False)
class NodeTimes:
    """The times of the nodes of one type, for draws of nodes that exist at a time."""

    times: Int64Array  # int64 [N]

    @cached_property
    def oldest(self) -> int:
        """The node of the least time; of several the one of the lowest id."""
        return int(np.argmin(self.times))

    def are_later(self, nodes: Int64Array, times: Int64Array) -> npt.NDArray[np.bool_]:
        """Return whether nodes are later than times [n]."""
        found: npt.NDArray[np.bool_] = self.times[nodes] > times
        return found

    def existing(
        self, draw: Callable[[int], Int64Array], times: Int64Array, max_redraws: int
    ) -> Int64Array:
        """Return nodes not later than times [n]: drawn by attempt, at last the oldest one."""
        nodes = draw(0)
        for attempt in range(1, max_redraws + 1):
            later = self.are_later(nodes, times)
            if not later.any():
                return nodes
            nodes = np.where(later, draw(attempt), nodes)
        return np.where(self.are_later(nodes, times), self.oldest, nodes)


def times_of_seeds(
    ids: Mapping[str, Int64Array],
    given: Mapping[str, Any] | None,
    node_times: Mapping[str, Int64Array],
    time_attr: str,
) -> dict[str, Int64Array]:
    """Return the times of seeds by type: those given, else those of the nodes."""
    found = {}
    for name, own in ids.items():
        if given is not None and name in given:
            times = np.asarray(given[name])
        elif name in node_times:
            known = node_times[name]
            # An id that is no node's is refused when it is sampled.
            times = np.take(known, own, mode="clip") if len(known) else np.zeros(len(own))
        elif len(own):
            raise UsageError(
                f"seeds of type {name!r} have no times, since these nodes have no {time_attr!r}; "
                "give them (input_time, or edge_label_time of links)"
            )
        else:
            times = np.empty(0)
        found[name] = np.ascontiguousarray(times, np.int64)
    return found
