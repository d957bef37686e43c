"""What stores hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnnstore.formats.store.reader import StoreReader


def arrays_of(path: Path) -> dict[str, Any]:
    """Return all arrays of a store, by their paths in it."""
    reader = StoreReader.open(path)
    return {spec.path: reader.read(spec) for spec in reader.schema.arrays()}
