"""Equal edges whose attributes differ, of which `undirected` would keep one and lose the others.

That one of a set of equal edges is kept is right where a list has both directions of each edge,
and wrong where edges are contacts, each with a time of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import InputError

Int64Array = npt.NDArray[np.int64]

_PIECE_BYTES = 2**21  # bytes of rows that are compared at a time


@dataclass(frozen=True)
class SortedEnds:
    """Consecutive edges in the order of target, source and id, with their rows of attributes."""

    sources: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    ids: npt.NDArray[Any]  # position e in the input; of the reverse of e, E + e
    rows: npt.NDArray[Any]  # the row of each edge in the arrays of attributes


class EqualEdges:
    """Counts the edges that would be dropped although an attribute differs from the kept edge's."""

    def __init__(self, num_input_edges: int, *, drops_loops: bool) -> None:
        self._num_input_edges = num_input_edges
        self._drops_loops = drops_loops
        self._num_different = 0
        self._first = ""

    def compare(
        self, edges: SortedEnds, attributes: Iterable[tuple[str, npt.NDArray[Any]]]
    ) -> None:
        """Compare the attributes of equal edges; a set of these is in one piece."""
        is_dropped = np.zeros(len(edges.sources), bool)
        is_dropped[1:] = edges.sources[1:] == edges.sources[:-1]
        is_dropped[1:] &= edges.targets[1:] == edges.targets[:-1]
        first = np.maximum.accumulate(np.where(is_dropped, 0, np.arange(len(is_dropped))))
        # The other direction of an edge has the same edges of the input.
        is_dropped &= edges.sources <= edges.targets
        is_loop = edges.sources == edges.targets
        is_dropped &= ~is_loop | (not self._drops_loops) & (edges.ids < self._num_input_edges)
        dropped = np.flatnonzero(is_dropped)
        if not len(dropped):
            return
        kept, is_different = first[dropped], np.zeros(len(dropped), bool)
        for name, values in attributes:
            differs = _differ(values, edges.rows[kept], edges.rows[dropped])
            if differs.any() and not self._first:
                at = int(np.argmax(differs))
                pair = kept[at], dropped[at]
                one, other = (int(edges.ids[place]) % self._num_input_edges for place in pair)
                ends = f"{edges.sources[pair[0]]} and {edges.targets[pair[0]]}"
                values_of = " and ".join(str(values[edges.rows[place]]) for place in pair)
                self._first = f"{one} and {other} between {ends}, with {name} {values_of}"
            is_different |= differs
        self._num_different += int(is_different.sum())

    def add(self, following: EqualEdges) -> None:
        """Add the counts of edges that follow."""
        self._num_different += following._num_different
        self._first = self._first or following._first

    def refuse(self) -> None:
        """Raise if there were some."""
        if self._num_different:
            raise InputError(
                f"undirected= keeps one of several edges between two nodes, and "
                f"{self._num_different} that it would drop differ from it in an attribute, the "
                f"first of them edges {self._first}; use add_inverse_edge=True, which keeps all "
                "edges and adds the reverse of each, or leave the attribute out"
            )


def _differ(
    values: npt.NDArray[Any], kept: npt.NDArray[Any], dropped: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Return which pairs of rows are not equal; NaN is equal to NaN."""
    differs = np.zeros(len(kept), bool)
    step = max(1, _PIECE_BYTES // max(1, values[:1].nbytes))
    for begin in range(0, len(kept), step):
        part = slice(begin, begin + step)
        one, other = values[kept[part]], values[dropped[part]]
        is_unequal = (one != other) & ((one == one) | (other == other))  # noqa: PLR0124 - NaN
        differs[part] = is_unequal.reshape(len(one), -1).any(axis=1)
    return differs
