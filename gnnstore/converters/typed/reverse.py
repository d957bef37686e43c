"""Reverse edge types, with the ids and attributes of the types that they reverse.

Of (s, r, d) the reverse edge type is (d, rev_r, s). Narrow attributes are copied: the edges of a
list lie in one page, and the number of a row that is elsewhere would take about as much. Rows of
wider ones are shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.buffer import columns_of_edges
from gnnstore.converters.edges.columns import CARRIED_IDS
from gnnstore.converters.writer.adjacency import finished_array
from gnnstore.errors import UsageError, did_you_mean
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base.names import edge_directory, encode
from gnnstore.formats.store.schema import EdgeType, EdgeTypeSpec
from gnnstore.formats.store.store import StoreWriter

_PREFIX = "rev_"
_POINTER_BYTES = 2**20
_CHUNK_EDGES = 2**18
_MOST_COPIED_BYTES = 64  # most bytes of a row that is copied


def reverse_of(edge_type: EdgeType) -> EdgeType:
    """Return the reverse of an edge type."""
    source, relation, target = edge_type
    return (target, _PREFIX + relation, source)


def reverse_types(wanted: Sequence[str], edge_types: Sequence[EdgeType]) -> list[EdgeType]:
    """Return the edge types that `ConvertOptions.reverse` names; refuse names of none.

    "all" leaves out types whose reverse is there, and types that are the reverse of another.
    """
    there = set(edge_types)
    backward = {reverse_of(edge_type) for edge_type in edge_types}
    found: dict[EdgeType, None] = {}
    for name in wanted:
        if name == "all":
            own = [e for e in edge_types if e not in backward and reverse_of(e) not in there]
        else:
            own = [e for e in edge_types if name in (e[1], "__".join(e))]
            if not own:
                raise UsageError(
                    f"reverse={name!r}: there is no such relation"
                    f"{did_you_mean(name, [e[1] for e in edge_types])}; there are: "
                    f"{', '.join('__'.join(e) for e in edge_types) or 'none'}"
                )
            for edge_type in own:
                if reverse_of(edge_type) in there:
                    raise UsageError(
                        f"reverse={name!r}: the input has edges of type {reverse_of(edge_type)} "
                        "already; leave it out"
                    )
        found.update(dict.fromkeys(own))
    return list(found)


def reverse_widths(widths: Sequence[int], num_edges: int, edge_ids: bool | None) -> tuple[int, ...]:
    """Return the bytes of an edge's attributes that a reverse type stores, and its positions.

    Wide ones are shared, by positions; ids are stored even where the edges have none.
    """
    copied = tuple(width for width in widths if width <= _MOST_COPIED_BYTES)
    num_added = (len(copied) < len(widths)) + (edge_ids is False)
    return copied + num_added * (id_dtype(num_edges).itemsize,)


class ReversedEdges:
    """The edges of a type that lies in a store, from targets to sources."""

    def __init__(self, store: StoreWriter, forward: EdgeTypeSpec) -> None:
        self._store = store
        self._forward = forward
        self._shared = {
            name: spec
            for name, spec in forward.attributes.items()
            if spec.row_bytes > _MOST_COPIED_BYTES
        }
        ids = forward.edge_id
        # The name under which positions come, if attributes are shared and ids are not positions.
        self._position = ""
        if self._shared and ids is not None:
            self._position = "position"
            while self._position in forward.attributes:
                self._position += "_"
        self.id_dtype = id_dtype(forward.num_edges) if ids is None else np.dtype(ids.dtype)

    def chunks(
        self,
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], dict[str, npt.NDArray[Any]]]]:
        """Yield sources, targets and attributes, with the ids as `CARRIED_IDS`."""
        edge = self._forward
        copied = {name: own for name, own in edge.attributes.items() if name not in self._shared}
        for first, columns in self._columns():
            last = first + len(columns)
            rows = {name: self._read(spec, first, last) for name, spec in copied.items()}
            ids = positions = np.arange(first, last)
            if edge.edge_id is not None:
                ids = self._read(edge.edge_id, first, last)
            rows[CARRIED_IDS] = ids.astype(self.id_dtype, copy=False)
            if self._position:
                rows[self._position] = positions.astype(id_dtype(edge.num_edges))
            yield columns, self._read(edge.indices, first, last), rows

    def _read(self, spec: AttributeSpec, first: int, last: int) -> npt.NDArray[Any]:
        return finished_array(self._store, spec).read_slice(first, last)

    def _columns(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yield the first of some edges, and the targets of all; once for no edges."""
        column, latest = 0, np.empty(0, np.int64)
        if not self._forward.num_edges:
            yield 0, latest
        for _, piece in finished_array(self._store, self._forward.indptr).pieces(_POINTER_BYTES):
            pointers = np.concatenate([latest, piece])
            yield from columns_of_edges(column, pointers, _CHUNK_EDGES)
            column, latest = column + len(pointers) - 1, pointers[-1:]

    def sharing(self, written: EdgeTypeSpec) -> EdgeTypeSpec:
        """Return the reverse type as it was written, with the attributes that are shared."""
        if not self._shared:
            return written
        own = dict(written.attributes)
        rows = own.pop(self._position, written.edge_id)
        for name, spec in self._shared.items():
            path = f"{edge_directory(*written.type)}/attrs/{encode(name)}"
            own[name] = replace(spec, path=path)
        return replace(
            written,
            attributes={name: own[name] for name in self._forward.attributes},
            shared={name: spec.path for name, spec in self._shared.items()},
            shared_row=rows,
        )
