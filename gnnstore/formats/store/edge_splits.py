"""The schema of an edge split: edges to predict, which need not be among the edges of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from gnnstore.errors import CorruptStoreError
from gnnstore.formats.arrays.spec import AttributeSpec

ID_DTYPES = ("int32", "int64")
# The arrays of source nodes, of target nodes, and of other numbers, with their axes.
_SOURCES = {"source": 1, "source_negatives": 2, "negative_source": 1}
_TARGETS = {"target": 1, "target_negatives": 2, "negative_target": 1}
_PARTS = {**_SOURCES, **_TARGETS, "edge_id": 1}


@dataclass(frozen=True)
class EdgeSplitSpec:
    """The L edges of a split, by their ends; L is at least 1."""

    OMITTED: ClassVar[frozenset[str]] = frozenset(_PARTS) - {"source", "target"}

    source: AttributeSpec  # source nodes, [L]
    target: AttributeSpec  # target nodes, [L]
    edge_id: AttributeSpec | None = None  # positions in the original input, [L]
    source_negatives: AttributeSpec | None = None  # nodes [L, A] in place of each source
    target_negatives: AttributeSpec | None = None  # nodes [L, A] in place of each target
    # Sources and targets of negative edges [K] that all edges of the split share.
    negative_source: AttributeSpec | None = None
    negative_target: AttributeSpec | None = None
    # Attributes of the edges, [L, ...].
    attributes: Mapping[str, AttributeSpec] = field(default_factory=dict)

    @property
    def num_edges(self) -> int:
        """L, the number of edges."""
        return self.source.num_rows

    @property
    def _parts(self) -> dict[str, AttributeSpec]:
        found = {name: getattr(self, name) for name in _PARTS}
        return {name: spec for name, spec in found.items() if spec is not None}

    @property
    def sources(self) -> dict[str, AttributeSpec]:
        """The arrays of source nodes, by name."""
        return {name: spec for name, spec in self._parts.items() if name in _SOURCES}

    @property
    def targets(self) -> dict[str, AttributeSpec]:
        """The arrays of target nodes, by name."""
        return {name: spec for name, spec in self._parts.items() if name in _TARGETS}

    @property
    def negatives(self) -> dict[str, AttributeSpec]:
        """The arrays of fixed negatives, by name."""
        return {name: spec for name, spec in self._parts.items() if "negative" in name}

    def arrays(self) -> tuple[AttributeSpec, ...]:
        """Return every array of the split, in a fixed order."""
        return (*self._parts.values(), *self.attributes.values())

    def check(self, file: str) -> None:
        """Raise if the lengths of the arrays, or their types, contradict one another."""
        shared = self.negative_source, self.negative_target
        num_shared = max((spec.num_rows for spec in shared if spec), default=None)
        for name, spec in self._parts.items():
            num_rows = num_shared if spec in shared else self.num_edges
            spec.expect(file, (num_rows, *[None] * (_PARTS[name] - 1)), ID_DTYPES)
        for spec in self.attributes.values():
            spec.expect(file, (self.num_edges, ...))
        if (shared[0] is None) != (shared[1] is None) or any(
            0 in spec.shape for spec in self._parts.values()
        ):
            raise CorruptStoreError(
                f"{file}: the split of {self.source.path!r} has an empty array, or negative edges "
                "without sources or targets",
                path=file,
            )
