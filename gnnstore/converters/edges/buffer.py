"""The edges of an input in memory: checked, in the smallest type that holds their ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.node_ids import MAX_NODES, check_ids
from gnnstore.converters.edges.row_blocks import RowBlocks
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import id_dtype


class EdgeBuffer:
    """Edges in memory, in the order of the input."""

    def __init__(self, num_nodes: int | None = None) -> None:
        self.sources = RowBlocks(np.int32)
        self.targets = RowBlocks(np.int32)
        # Attribute rows of the edges; None before the first chunk.
        self.attributes: dict[str, RowBlocks] | None = None
        self.num_nodes: int | None = None  # N if known: ids must be below
        self.num_seen = 0  # edges of the input so far, including those that have left the buffer
        self.max_id = -1  # the largest id so far, -1 without edges
        if num_nodes is not None:
            self.set_num_nodes(num_nodes)

    def set_num_nodes(self, num_nodes: int) -> None:
        """Set N, so that the ids of later edges are checked."""
        if num_nodes > MAX_NODES:
            raise InputError(f"the input says {num_nodes} nodes; a graph has at most 2^48")
        self.num_nodes = num_nodes

    def expect(self, num_edges: int) -> None:
        """Announce the number of edges, where all fit in memory without attributes."""
        self.sources.expect(num_edges)
        self.targets.expect(num_edges)

    def check_ids(self, num_nodes: int) -> None:
        """Check the ids of the edges in the buffer against N, which was unknown before."""
        for ends, end in ((self.sources, "source"), (self.targets, "target")):
            position = 0
            for ids in ends:
                check_ids(ids, num_nodes, f"the edges: {end} node id", position)
                position += len(ids)

    @property
    def num_edges(self) -> int:
        """Edges in the buffer."""
        return self.sources.num_rows

    @property
    def attribute_bytes(self) -> int:
        """Bytes of all attributes of one edge."""
        return sum(rows.row_bytes for rows in (self.attributes or {}).values())

    @property
    def num_bytes(self) -> int:
        """Bytes of all edges in the buffer."""
        ends = 2 * self.sources.dtype.itemsize
        return (ends + self.attribute_bytes) * self.num_edges

    def append(
        self,
        sources: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        attributes: Mapping[str, npt.NDArray[Any]],
        where: str,
    ) -> None:
        """Take a chunk of edges."""
        self._check(sources, targets, where)
        self._take_attributes(attributes, len(sources), where)
        dtype = id_dtype(self.num_nodes if self.num_nodes is not None else self.max_id + 1)
        self.sources.append(sources, dtype)
        self.targets.append(targets, dtype)
        self.num_seen += len(sources)

    def pass_on(self, sources: npt.NDArray[Any], targets: npt.NDArray[Any], where: str) -> None:
        """Check and count a chunk of edges that is stored elsewhere; see `append`."""
        self._check(sources, targets, where)
        self.num_seen += len(sources)

    def _check(self, sources: npt.NDArray[Any], targets: npt.NDArray[Any], where: str) -> None:
        if sources.shape != targets.shape or sources.ndim != 1:
            raise InputError(
                f"{where}: {list(sources.shape)} sources and {list(targets.shape)} targets; "
                "an edge has one of each"
            )
        for ids, end in ((sources, "source"), (targets, "target")):
            top = check_ids(ids, self.num_nodes, f"{where}: {end} node id", self.num_seen)
            if top >= MAX_NODES:
                raise InputError(
                    f"{where}: {end} node id {top}: a graph has at most 2^48 nodes, numbered from "
                    "0. Renumber them; ids in a text edge list ('snap') are renumbered for you"
                )
            self.max_id = max(self.max_id, top)

    def _take_attributes(
        self, attributes: Mapping[str, npt.NDArray[Any]], num_edges: int, where: str
    ) -> None:
        if self.attributes is None:
            if attributes:
                self.expect(0)  # perhaps they do not fit
            self.attributes = {
                name: RowBlocks(rows.dtype, rows.shape[1:]) for name, rows in attributes.items()
            }
        if self.attributes.keys() != attributes.keys():
            raise InputError(
                f"{where}: edges come with the attributes {sorted(attributes)}, earlier ones with "
                f"{sorted(self.attributes)}; every edge needs the same"
            )
        for name, rows in attributes.items():
            if len(rows) != num_edges:
                raise InputError(
                    f"{where}: the edge attribute {name!r} has {len(rows)} rows for "
                    f"{num_edges} edges"
                )
            earlier = self.attributes[name]
            if rows.dtype != earlier.dtype or rows.shape[1:] != earlier.row_shape:
                raise InputError(
                    f"{where}: the edge attribute {name!r} has rows of {rows.dtype} "
                    f"{list(rows.shape[1:])}, earlier ones had {earlier.dtype} "
                    f"{list(earlier.row_shape)}"
                )
            earlier.append(rows)

    def drop(self, num_edges: int) -> None:
        """Free the first edges."""
        for rows in (self.sources, self.targets, *(self.attributes or {}).values()):
            rows.drop(num_edges)
