"""The round trip through PyG's sampler outputs, which `transform_sampler_output` may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnstore.features.source import Rows
from gnnstore.pipeline.batch import Batch, BatchCost

if TYPE_CHECKING:
    from gnnstore.loaders.assemble.homogeneous import Assembler, Selection
    from gnnstore.seeds.base import SeedLabels

_NOTHING: Mapping[str, Rows] = {}


@dataclass(frozen=True)
class OutputAssembler:
    """Makes `SamplerOutput` of samples, and batches of the output that the user returns.

    With several types it is a `HeteroSamplerOutput`.
    """

    assembler: Assembler
    # Returns the error for rows that the batch does not have; None: they are read.
    refusal: Callable[[str], Exception] | None = None

    def output(self, batch: Batch) -> Any:
        """Return a sample as PyG's samplers do, but that `edge` holds positions in the columns."""
        if batch.sample is None or batch.labels is None:
            raise TypeError("a batch without a sample has no output")
        return self.assembler.output_of(batch.sample, batch.labels.metadata())

    def assemble_output(self, batch: Batch, output: Any) -> None:
        """Set a batch's output; rows that were provided for it are chosen anew."""
        sample, labels = batch.sample, batch.labels
        if sample is None or labels is None:
            raise TypeError("a batch without a sample cannot be assembled")
        parts = self.assembler.parts_from(output)
        rows: dict[str, Rows] = {}
        for selection in self.assembler.selections(sample, parts):
            rows |= self._reselected(batch.rows, selection)
        labels = labels.from_metadata(output.metadata)
        batch.output = self.assembler.join(parts, labels, rows, batch.cost)

    def join(self, output: Any, labels: SeedLabels) -> Any:
        """Return the batch of an output."""
        parts = self.assembler.parts_from(output)
        return self.assembler.join(parts, labels, _NOTHING, BatchCost())

    def _reselected(self, rows: Mapping[str, Rows], selection: Selection) -> dict[str, Rows]:
        """Return the rows of the ids in a changed output."""
        what, paths, ids, wanted = selection
        own = {path: rows[path] for path in paths if path in rows}
        if wanted is None:
            return {}
        chosen = wanted.numpy()
        if not own or np.array_equal(chosen, ids):
            return own
        order = np.argsort(ids, kind="stable")
        places = np.minimum(np.searchsorted(ids, chosen, sorter=order), max(0, len(ids) - 1))
        places = order[places] if len(ids) else places
        if len(ids) and np.array_equal(ids[places], chosen):
            return {path: Rows(values[places], counts) for path, (values, counts) in own.items()}
        if self.refusal is not None:
            raise self.refusal(f"{what} for transform_sampler_output to add to a batch")
        return {}
