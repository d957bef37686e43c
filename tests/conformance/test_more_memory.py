"""More memory never gives less, and following refusals leads to a budget that is enough."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import BudgetError, NeighborLoader
from gnnstore.strategies.builtin import STRATEGIES
from gnnstore.testing.graphs import GraphArrays
from tests.support.effort import choose

MB = 10**6


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of 25 MB: a topology and narrow rows that may be in memory, and wide ones."""
    rng, num_nodes = np.random.default_rng(0), 10_000
    edges = (num_nodes * rng.random((2, 600_000)) ** 2).astype(np.int64)
    attributes: dict[str, Any] = {
        "x": np.zeros((num_nodes, 400), np.float32),
        "narrow": np.zeros((num_nodes, 60), np.int8),
        "y": np.zeros(num_nodes, np.int64),
    }
    graph = GraphArrays(num_nodes, edges, attributes, {"train": np.arange(num_nodes)})
    return graph.write(tmp_path_factory.mktemp("more") / "s.gnn")


def loader_of(store: Path, memory: int, **options: Any) -> NeighborLoader:
    # Two batches do not fit beside a store that only just does.
    return NeighborLoader(
        store, [10, 5], "train", batch_size=48, seed=0, num_threads=1, memory=memory, **options
    )


def missing_of(error: BudgetError) -> int:
    (missing,) = map(int, re.findall(r", (\d+) bytes? too few:\n", str(error)))
    assert error.missing_bytes == missing
    return missing


def test_auto_has_a_strategy_for_each_budget_from_some_on(store: Path) -> None:
    names = [loader_of(store, memory * MB).stats().strategy for memory in range(22, 40, 3)]
    assert {"static", "memory"} <= set(names)
    in_memory = [name == "memory" for name in names]
    assert in_memory == sorted(in_memory), names


@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES if s.reads_disk])
def test_what_a_budget_allows_a_larger_one_does(store: Path, strategy: str) -> None:
    refused, allowed = [], []
    step = choose(6, 3) * MB
    for memory in (*range(10 * MB, 40 * MB, step), *range(40 * MB, 100 * MB, 4 * step)):
        try:
            loader_of(store, memory, strategy=strategy)
        except BudgetError:
            refused.append(memory)
        else:
            allowed.append(memory)
    assert not refused or max(refused) < min(allowed), (refused, allowed)


@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES if s.reads_disk])
@pytest.mark.parametrize("topology", ["auto", "disk"])
def test_what_refusals_ask_for_is_enough_in_the_end(
    store: Path, strategy: str, topology: str
) -> None:
    memory, options = MB, {"strategy": strategy, "topology": topology}
    asked = []
    for _ in range(4):
        try:
            loader_of(store, memory, **options)
        except BudgetError as error:
            asked.append(missing_of(error))
            memory += asked[-1]
        else:
            break
    assert 0 < len(asked) <= 3
    with pytest.raises(BudgetError):
        loader_of(store, memory - 1 - sum(asked) // 50, **options)
