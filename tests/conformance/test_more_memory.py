"""More memory never gives less, and following refusals leads to a budget that is enough."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import BudgetError, NeighborLoader
from gnnstore.strategies.registry import STRATEGIES
from gnnstore.testing.graphs import GraphArrays
from tests.support.effort import choose, paired
from tests.support.stores import write_two_typed_store

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
    names = [
        loader_of(store, memory * MB).stats().strategy
        for memory in choose((22, 28, 37), range(22, 40, 3))
    ]
    assert {"static", "memory"} <= set(names)
    in_memory = [name == "memory" for name in names]
    assert in_memory == sorted(in_memory), names


READING = [s.name for s in STRATEGIES if s.reads_disk]


@pytest.mark.parametrize("strategy", choose(READING[1:2], READING))
def test_what_a_budget_allows_a_larger_one_does(store: Path, strategy: str) -> None:
    refused, allowed = [], []
    for memory in choose((20, 40, 80), (*range(10, 40, 3), *range(40, 100, 12))):
        try:
            loader_of(store, memory * MB, strategy=strategy)
        except BudgetError:
            refused.append(memory)
        else:
            allowed.append(memory)
    assert not refused or max(refused) < min(allowed), (refused, allowed)


@pytest.mark.parametrize(
    ("strategy", "topology"),
    paired(choose(READING[1:3], READING), ["auto", "disk"], 1),
)
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


@pytest.fixture(scope="module")
def small_stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return stores whose batches of a few seeds vary, of one type and of two."""
    directory, rng = tmp_path_factory.mktemp("small"), np.random.default_rng(1)
    edges = (3000 * rng.random((2, 30_000)) ** 2).astype(np.int64)
    values: dict[str, Any] = {"x": np.zeros((3000, 100), np.float32), "y": np.zeros(3000, np.int64)}
    plain = GraphArrays(3000, edges, values, {}).write(directory / "plain.gnn")
    return {"plain": plain, "typed": write_two_typed_store(directory / "typed.gnn").path}


@pytest.mark.parametrize(
    "strategy", choose(["auto", "belady"], ["auto", "memory", "mmap", "static", "belady"])
)
@pytest.mark.parametrize("kind", ["plain", "typed"])
@pytest.mark.filterwarnings("ignore:memory=")
def test_one_raise_is_enough_for_an_epoch(
    small_stores: dict[str, Path], kind: str, strategy: str
) -> None:
    """Each of the two budgets that a refusal of "auto" names has the strategy that it says."""
    nodes = ("paper", "train") if kind == "typed" else np.arange(0, 3000, 3)

    def loader_with(memory: int) -> NeighborLoader:
        return NeighborLoader(
            *(small_stores[kind], [8, 4], nodes),
            batch_size=16,
            shuffle=True,
            seed=2,
            strategy=strategy,
            memory=memory,
        )

    with pytest.raises(BudgetError) as caught:
        loader_with(1000)
    loader = loader_with(1000 + missing_of(caught.value))
    assert sum(1 for _ in loader) == len(loader)
    if strategy != "auto":
        assert loader.stats().strategy == strategy
        return
    assert loader.stats().strategy == "mmap"
    told = re.search(r"the slowest; others need at least ([\d.]+) (MB|kB) more$", str(caught.value))
    assert told is not None
    loader = loader_with(1000 + round(float(told[1]) * {"kB": 1e3, "MB": 1e6}[told[2]]))
    assert loader.stats().strategy != "mmap"
    assert sum(1 for _ in loader) == len(loader)
