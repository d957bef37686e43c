"""Edges that keep their ids in a sort that would number them by their positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from gnnstore.converters.edges.columns import BuiltEdges, EdgeChunk

# The attribute that holds ids while edges are sorted; no user's attribute has this name.
CARRIED_IDS = ""


class CarriedIds:
    """A finished adjacency whose edge ids came as an attribute, as `BuiltEdges`."""

    def __init__(self, built: BuiltEdges, edge_id_dtype: np.dtype[Any]) -> None:
        self.num_nodes = built.num_nodes
        self.num_edges = built.num_edges
        self.index_dtype = built.index_dtype
        self.edge_id_dtype: np.dtype[Any] | None = edge_id_dtype
        self._built = built

    def chunks(self) -> Iterator[EdgeChunk]:
        """Yield the edges in column order; see `BuiltEdges`."""
        for chunk in self._built.chunks():
            attributes = dict(chunk.attributes)
            yield replace(chunk, edge_id=attributes.pop(CARRIED_IDS), attributes=attributes)

    def close(self) -> None:
        """Remove temporary files."""
        self._built.close()
