"""The store that many of these tests read, and its batches; other files have a `path` of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.graphs import graph_with_hubs
from tests.support.references import BATCHES, EPOCHS, batches_in_memory


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a store of a graph with hubs."""
    return graph_with_hubs().write(tmp_path_factory.mktemp("hubs") / "s.gnn")


@pytest.fixture(scope="module")
def expected(path: Path) -> list[dict[str, Any]]:
    """Return the batches of two epochs, sampled and read in memory."""
    found = batches_in_memory(path)
    assert len(found) == EPOCHS * BATCHES
    return found
