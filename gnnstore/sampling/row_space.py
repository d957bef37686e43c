"""The numbers of the rows that batches need: one numbering over the rows of all node types.

Caches, plans and packed rows use it. Type follows type, so that the rows of a type are contiguous
in a batch, in a trace, and among sorted rows. With one node type, rows are numbered as nodes are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.store.schema import Schema


class RowRange(NamedTuple):
    """The rows of one node type."""

    first: int  # number of the row of node 0
    num_rows: int

    def within(self, rows: npt.NDArray[Any]) -> slice:
        """Return the places of the type's rows among a batch's (types ascend) or sorted."""
        places = range(len(rows))
        begin = bisect_left(places, self.first, key=rows.__getitem__) if self.first else 0
        end = self.first + self.num_rows
        return slice(begin, bisect_left(places, end, lo=begin, key=rows.__getitem__))

    def part(self, rows: npt.NDArray[Any]) -> tuple[slice, npt.NDArray[Any]]:
        """Return the places of the type's rows among others, and its node ids there."""
        places = self.within(rows)
        return places, rows[places] - self.first if self.first else rows[places]


@dataclass(frozen=True)
class RowSpace:
    """The numbers of the rows of some node types. Row numbers are int32 while they fit."""

    ranges: Mapping[str, RowRange]  # by node type, ascending and without gaps
    num_rows: int

    @classmethod
    def from_counts(cls, num_nodes: Mapping[str, int]) -> Self:
        """Return a space of node types with these counts, in the order of the mapping."""
        ranges, first = {}, 0
        for name, count in num_nodes.items():
            ranges[name] = RowRange(first, count)
            first += count
        return cls(ranges, first)

    @classmethod
    def of_schema(cls, schema: Schema, paths: Container[str] | None = None) -> Self:
        """Return the space of the node types that have attributes (at `paths`); else of all."""
        types = [
            each
            for each in schema.node_types
            if any(paths is None or spec.path in paths for spec in each.attributes.values())
        ]
        return cls.from_counts({each.name: each.num_nodes for each in types or schema.node_types})

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of row numbers: int32 or int64."""
        return id_dtype(self.num_rows - 1)

    def rows(self, nodes: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the row numbers of a batch's nodes: with one node type their ids, a view."""
        if len(self.ranges) == 1:
            (name,) = self.ranges
            return nodes[name]
        parts = [
            np.add(ids, rows.first, dtype=self.dtype, casting="unsafe")
            for name, rows in self.ranges.items()
            if len(ids := nodes.get(name, ()))
        ]
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def nodes(self, rows: npt.NDArray[Any]) -> Iterator[tuple[str, slice, npt.NDArray[Any]]]:
        """Yield for each type its places among a batch's rows, and its node ids there."""
        for name, own in self.ranges.items():
            yield name, *own.part(rows)

    def range_of(self, node_type: str) -> RowRange:
        """Return the rows of a node type."""
        try:
            return self.ranges[node_type]
        except KeyError:
            raise UsageError(
                f"nodes of type {node_type!r} have no rows on disk; {list(self.ranges)} have"
            ) from None
