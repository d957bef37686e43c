"""Engines that work here, and rows for them to read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.twins.reads import why_unavailable


def available(engine: str, directory: Path) -> str:
    """Return the engine, or skip the test if it cannot read files of the directory."""
    if reason := why_unavailable(engine, directory):
        pytest.skip(f"{engine}: {reason}")
    return engine


def some_rows(num_rows: int, row_bytes: int) -> NDArray[np.uint8]:
    """Return random rows, the same for the same sizes."""
    rng = np.random.default_rng(num_rows * row_bytes)
    return rng.integers(0, 256, (num_rows, row_bytes), dtype=np.uint8)
