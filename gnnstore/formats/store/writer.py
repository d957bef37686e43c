"""Writes a store: the arrays of a graph, then one atomic commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gnnstore.errors import InputError
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container import names
from gnnstore.formats.container.writer import SealedWriter
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.schema import SHARED_ATTRIBUTES, Schema, StoreManifest, TextSpec

# Set in each batch, after the attributes.
RESERVED_NAMES = frozenset(
    {
        *("edge_index", "num_nodes", "batch", "num_sampled_nodes", "num_sampled_edges"),
        *("input_id", "batch_size"),
    }
)


class StoreWriter(SealedWriter):
    """Builds a store under a temporary name; `commit` gives it its own."""

    READER: ClassVar[type[StoreReader]] = StoreReader

    def row_dimension(self, array_path: str) -> str | None:
        """Return the type of nodes or "edge" for their attributes; None for other arrays."""
        group, *parts = array_path.split("/")
        if group == "nodes" or (group == "maps" and parts[1:] == ["original_id"]):
            return names.decode(parts[0])
        if group == "edge_splits":  # negatives that edges share are in rows of their own
            return "edge" if parts[2] not in ("negative_source", "negative_target") else None
        is_of_edges = group == "edges" and parts[1] not in ("indptr", "value_names")
        return "edge" if is_of_edges else None

    def check_spec(self, spec: AttributeSpec) -> None:
        """Refuse attributes that batches cannot have."""
        super().check_spec(spec)
        group, *parts = spec.path.split("/")
        is_attribute = group == "nodes" or (group == "edges" and "attrs" in parts)
        if is_attribute and spec.name in RESERVED_NAMES:
            raise InputError(
                f"the attribute {spec.name!r} has the name of something that every batch has of "
                "its own, so that no batch would show it; rename it, or leave it out"
            )

    def texts(
        self, directory: str, texts: Iterable[list[bytes]], num_texts: int, num_bytes: int
    ) -> TextSpec:
        """Write texts as their bytes, one after the other, and their offsets."""
        letters, offsets = (
            self.paged(
                f"{directory}/{part}", name=part, row_shape=(), dtype=dtype, num_rows=num_rows
            )
            for part, dtype, num_rows in (
                ("bytes", "uint8", num_bytes),
                ("offsets", "int64", num_texts + 1),
            )
        )
        position = 0
        offsets.append(np.zeros(1, np.int64))
        for some in texts:
            ends = position + np.cumsum(np.fromiter(map(len, some), np.int64, len(some)))
            position = int(ends[-1])
            letters.append(np.frombuffer(b"".join(some), np.uint8))
            offsets.append(ends)
        letters.close()
        offsets.close()
        return TextSpec(letters.spec, offsets.spec)

    def commit(self, schema: Schema, provenance: Mapping[str, Any]) -> Path:
        """Finish every array, write the manifest, and rename the store into place."""
        schema.checked(str(self.path))
        features = (SHARED_ATTRIBUTES,) if schema.shared_rows() else ()
        return self.seal(
            StoreManifest(
                schema=schema,
                provenance=provenance,
                reader_features=features,
            )
        )
