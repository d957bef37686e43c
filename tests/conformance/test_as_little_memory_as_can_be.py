"""Where a budget just holds two batches: one thread, no batch waiting, and the same batches."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import NeighborLoader
from gnnstore.converters import ConvertOptions, from_rmat
from gnnstore.errors import BudgetError
from gnnstore.strategies.registry import STRATEGIES
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose, is_long, paired

BATCHES = choose(3, 6)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("store")
    return from_rmat(
        directory / "a.gnn", scale=14, feature_dim=128, options=ConvertOptions(edge_ids=False)
    )


def loader_of(store: Path, strategy: str, **options: Any) -> NeighborLoader:
    return NeighborLoader(
        store,
        [10, 10],
        np.arange(0, 2**14, 8),
        batch_size=128,
        shuffle=True,
        seed=3,
        strategy=strategy,
        **{"topology": "memory"} | options,
    )


def least_memory(store: Path, strategy: str, **options: Any) -> int:
    """Return a budget that does, from what smaller ones were told to be raised by."""
    memory = 4 * 10**6
    for _ in range(8):
        try:
            loader_of(store, strategy, memory=memory, **options)
        except BudgetError as error:
            (missing,) = re.findall(r"(\d+) bytes? too few", str(error))
            memory += int(missing)
        else:
            return memory
    raise AssertionError(f"{memory} bytes are still too few")


@pytest.mark.parametrize(
    ("strategy", "topology"),
    paired([s.name for s in STRATEGIES if s.plans], ["memory", "disk"], 1)[: choose(1, None)],
)
def test_one_thread_and_the_same_batches(store: Path, strategy: str, topology: str) -> None:
    expected = batches_of(islice(loader_of(store, "memory", num_threads=0), BATCHES))
    options: dict[str, Any] = {"topology": topology}
    least = least_memory(store, strategy, **options)
    with pytest.raises(BudgetError) as caught:
        loader_of(store, strategy, memory=least - least // 10, **options)
    assert caught.value.__context__ is None, "what was tried before says other numbers"
    loader = loader_of(store, strategy, memory=least, **options)
    assert loader.stats().num_threads == 1
    assert_same_batches(batches_of(islice(loader, BATCHES)), expected)

    if not is_long():
        return
    # Whoever asks for threads gets them, and then it takes more.
    more = least_memory(store, strategy, num_threads=3, **options)
    assert more > least + 10**6
    loader = loader_of(store, strategy, memory=more, num_threads=3, **options)
    assert loader.stats().num_threads == 3
    assert_same_batches(batches_of(islice(loader, BATCHES)), expected)

    assert loader_of(store, strategy, memory=2 * more, **options).stats().num_threads > 1


@pytest.mark.long("in both, one raise is enough for an epoch in `test_more_memory`")
@pytest.mark.parametrize("batch_size", choose([8], [8, 32, 64]))
@pytest.mark.parametrize("seed", choose([1], [0, 1, 2]))
def test_an_epoch_that_begins_comes_to_its_end(store: Path, batch_size: int, seed: int) -> None:
    """Batches of few seeds differ by much more than an eighth; they are no surprise later."""

    def loader(memory: int) -> NeighborLoader:
        return NeighborLoader(
            store,
            [10, 10],
            np.arange(0, 2**14, 2**7 // batch_size),
            batch_size=batch_size,
            shuffle=True,
            seed=seed,
            strategy="belady",
            topology="memory",
            memory=memory,
        )

    memory = 8 * 10**6
    for _ in range(10):
        try:
            of_least = loader(memory)
            break
        except BudgetError as error:
            (missing,) = re.findall(r"(\d+) bytes? too few", str(error))
            memory += int(missing)
    assert sum(1 for _ in of_least) == 128
