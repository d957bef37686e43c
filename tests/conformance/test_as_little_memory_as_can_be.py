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
from gnnstore.loaders.presampling import Presampled
from gnnstore.planning.in_flight import expected_bytes, margin_of
from gnnstore.testing.batches import as_dicts, same

BATCHES = 6


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("store")
    return from_rmat(
        directory / "a.gnn", scale=16, feature_dim=128, options=ConvertOptions(edge_ids=False)
    )


def loader_of(store: Path, strategy: str, **options: Any) -> NeighborLoader:
    return NeighborLoader(
        store,
        [10, 10],
        np.arange(0, 2**16, 8),
        batch_size=512,
        shuffle=True,
        seed=3,
        strategy=strategy,
        topology="memory",
        **options,
    )


def least_memory(store: Path, strategy: str, **options: Any) -> int:
    """Return a budget that does, from what smaller ones were told to be raised by."""
    memory = 20 * 10**6
    for _ in range(8):
        try:
            loader_of(store, strategy, memory=memory, **options)
        except BudgetError as error:
            (missing,) = re.findall(r"(\d+) bytes too few", str(error))
            memory += int(missing)
        else:
            return memory
    raise AssertionError(f"{memory} bytes are still too few")


@pytest.mark.parametrize("strategy", ["belady", "packed", "lru"])
def test_one_thread_and_the_same_batches(store: Path, strategy: str) -> None:
    expected = as_dicts(islice(loader_of(store, "memory", num_threads=0), BATCHES))
    least = least_memory(store, strategy)
    with pytest.raises(BudgetError):
        loader_of(store, strategy, memory=least - 10**5)
    loader = loader_of(store, strategy, memory=least)
    assert loader.stats().num_threads == 1
    assert same(as_dicts(islice(loader, BATCHES)), expected)

    # Whoever asks for threads gets them, and then it takes more.
    more = least_memory(store, strategy, num_threads=3)
    assert more > least + 10**6
    loader = loader_of(store, strategy, memory=more, num_threads=3)
    assert loader.stats().num_threads == 3
    assert same(as_dicts(islice(loader, BATCHES)), expected)

    roomy = loader_of(store, strategy, memory=2 * more)
    assert roomy.stats().num_threads > 1
    assert same(as_dicts(islice(roomy, BATCHES)), expected)


def test_how_much_larger_a_batch_may_be() -> None:
    assert margin_of([1000] * 4) == 1 / 64
    assert margin_of([1000] * 3) == 1 / 8
    assert margin_of([500, 1000, 700, 900]) == 1 / 8
    assert margin_of([]) == margin_of([0] * 5) == 1 / 8
    sizes = [980, 1000, 990, 985, 995] * 4
    assert 0.02 < margin_of(sizes) < 0.05
    assert margin_of(sizes[:5]) > margin_of(sizes)
    assert expected_bytes(1000, margin_of([1000] * 4)) == 1015
    assert Presampled(4, 0, 1000, 0, (1000,) * 4).least_margin == 1 / 64
    draws = np.random.default_rng(0).normal(1000, 10, 100_000).astype(int).tolist()
    assert expected_bytes(max(draws[:16]), margin_of(draws[:16])) >= sorted(draws)[-10]
