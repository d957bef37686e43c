"""Opens a store: a sealed directory whose arrays are those of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar

from gnnstore.errors import CorruptStoreError
from gnnstore.formats.arrays.paged_array import PagedArray, SharedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container.files import Problem
from gnnstore.formats.container.manifest import KINDS, Kind
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.store.checks import check_meaning
from gnnstore.formats.store.schema import Schema, SharedRows, StoreManifest


class StoreReader(SealedReader[StoreManifest]):
    """An open, validated store."""

    MANIFEST: ClassVar[type[StoreManifest]] = StoreManifest

    @property
    def schema(self) -> Schema:
        """Node types, edge types, attributes."""
        return self.manifest.schema

    def paged(self, spec: AttributeSpec) -> PagedArray:
        """Return a paged array; of a reverse type's attribute perhaps that of the other type."""
        shared = self._shared.get(spec.path)
        if shared is None:
            return super().paged(spec)
        array, rows = super().paged(shared.array), super().paged(shared.rows)
        return SharedArray(spec, array.layout, array.file_paths, array.check_place, rows=rows)

    @cached_property
    def _shared(self) -> dict[str, SharedRows]:
        return self.schema.shared_rows()

    def check(self) -> None:
        """Compare the ends of each `indptr` with the number of edges."""
        for edge in self.schema.edge_types:
            array = self.paged(edge.indptr)
            ends = [int(array.read_slice(row, row + 1)[0]) for row in (0, array.num_rows - 1)]
            if ends != [0, edge.num_edges]:
                raise CorruptStoreError(
                    f"{self.path}: {edge.indptr.path} runs from {ends[0]} to {ends[1]}, but there "
                    f"are {edge.num_edges} edges; run 'gnnstore verify'",
                    path=self.path / edge.indptr.path,
                )

    def meaningless(self) -> Iterator[Problem]:
        """Yield numbers that are no graph's."""
        return check_meaning(self)


STORE = KINDS.register(
    Kind(
        StoreManifest,
        StoreReader.open,
        frozenset({"nodes", "edges", "splits", "edge_splits", "maps", "graph"}),
    )
)
