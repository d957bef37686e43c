"""The splits of a store's edges: edges to predict, their attributes, and negatives for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnstore.errors import NoSplitError
from gnnstore.formats import AttributeSpec, StoreReader
from gnnstore.formats.store.schema import EdgeSplitSpec, EdgeTypeSpec
from gnnstore.graph.arrays import ByName, check_nodes, stored
from gnnstore.graph.lazy import LazyTensor


class EdgeSplit:
    """The L edges of a split; its arrays are read when they are used."""

    def __init__(self, reader: StoreReader, spec: EdgeSplitSpec, counts: tuple[int, int]) -> None:
        def attribute(part: AttributeSpec | None) -> LazyTensor | None:
            return None if part is None else stored(reader, part)

        self._reader = reader
        self._spec = spec
        self._counts = counts  # nodes that are sources, and targets
        self.source = stored(reader, spec.source)  # source nodes, [L]
        self.target = stored(reader, spec.target)  # target nodes, [L]
        self.edge_ids = attribute(spec.edge_id)  # positions of the edges in the original input, [L]
        # Nodes [L, A] that replace the source of each edge.
        self.source_negatives = attribute(spec.source_negatives)
        # Nodes [L, A] that replace the target of each edge.
        self.target_negatives = attribute(spec.target_negatives)
        # Attributes of the edges, [L, ...].
        self.attributes = {name: stored(reader, own) for name, own in spec.attributes.items()}

    def __len__(self) -> int:
        return self._spec.num_edges

    @property
    def edge_index(self) -> torch.Tensor:
        """Sources and targets, int64 [2, L]."""
        return torch.from_numpy(self.ends(np.dtype(np.int64)))

    @property
    def negative_edges(self) -> torch.Tensor | None:
        """Negative edges that all edges share, int64 [2, K]; None if there are none."""
        source, target = self._spec.negative_source, self._spec.negative_target
        if source is None or target is None:
            return None
        return torch.from_numpy(self._pair(source, target, np.dtype(np.int64)))

    def ends(self, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return sources and targets, [2, L]."""
        return self._pair(self._spec.source, self._spec.target, dtype)

    def _pair(
        self, source: AttributeSpec, target: AttributeSpec, dtype: np.dtype[Any]
    ) -> npt.NDArray[Any]:
        found = np.empty((2, source.num_rows), dtype)
        for row, spec, count in zip(found, (source, target), self._counts, strict=True):
            ids = stored(self._reader, spec).read()
            check_nodes(self._reader, spec, ids, count)
            row[:] = ids
        return found

    def __repr__(self) -> str:
        return f"EdgeSplit({len(self)}, attributes={list(self.attributes)})"


class EdgeSplits(ByName[EdgeSplit, EdgeSplitSpec]):
    """Edge splits by name; "val" finds "valid".

    The training split is not among them where it is the edges of the graph.
    """

    def __init__(self, reader: StoreReader, edge: EdgeTypeSpec) -> None:
        super().__init__(reader, edge.splits)
        schema = reader.schema
        ends = (schema.node_of(edge.source), schema.node_of(edge.target))
        self._counts = (ends[0].num_nodes, ends[1].num_nodes)
        # Whether the edges of the graph are the training split: there are splits, and none is
        # called "train".
        self.has_message_train = bool(self._specs) and "train" not in self._specs

    def __getitem__(self, name: str) -> EdgeSplit:
        """Return a split."""
        spec = self.find(name)
        if spec is not None:
            return EdgeSplit(self._reader, spec, self._counts)
        help_ = "it has no edge splits; make a store that has, with 'gnnstore split-edges'"
        if self._specs:
            help_ = f"its edge splits: {', '.join(self._specs)}"
            help_ += "; its own edges are those to train on" * self.has_message_train
        raise NoSplitError(
            f"{self._reader.path}: there is no edge split {name!r}; {help_}",
            path=self._reader.path,
        )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {spec.num_edges}" for name, spec in self._specs.items())
        return f"EdgeSplits({sizes})"
