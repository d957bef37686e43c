"""Where a budget just holds two batches: one thread, no batch waiting, and the same batches."""

from __future__ import annotations

import math
import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import NeighborLoader
from gnnstore.converters import ConvertOptions, from_rmat
from gnnstore.errors import BudgetError
from gnnstore.pipeline.lookahead.presample import Presampled
from gnnstore.pipeline.margins import MANY_BATCHES, margin_of, with_margin
from gnnstore.strategies import auto as optimizer
from gnnstore.strategies.builtin import STRATEGIES
from gnnstore.strategies.predict import sampled_epoch
from tests.support.batches import assert_same_batches, batches_of
from tests.support.disks import keep_usual_profile
from tests.support.effort import choose, paired

BATCHES = 6


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("store")
    return from_rmat(
        directory / "a.gnn", scale=15, feature_dim=128, options=ConvertOptions(edge_ids=False)
    )


def loader_of(store: Path, strategy: str, every: int = 8, **options: Any) -> NeighborLoader:
    return NeighborLoader(
        store,
        [10, 10],
        np.arange(0, 2**15, every),
        batch_size=256,
        shuffle=True,
        seed=3,
        strategy=strategy,
        **{"topology": "memory"} | options,
    )


def least_memory(store: Path, strategy: str, **options: Any) -> int:
    """Return a budget that does, from what smaller ones were told to be raised by."""
    memory = 20 * 10**6
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
    paired([s.name for s in STRATEGIES if s.plans], ["memory", "disk"], 1),
)
def test_one_thread_and_the_same_batches(store: Path, strategy: str, topology: str) -> None:
    expected = batches_of(islice(loader_of(store, "memory", num_threads=0), BATCHES))
    options: dict[str, Any] = {"topology": topology}
    least = least_memory(store, strategy, **options)
    with pytest.raises(BudgetError) as caught:
        loader_of(store, strategy, memory=least - 10**5, **options)
    assert caught.value.__context__ is None, "what was tried before says other numbers"
    loader = loader_of(store, strategy, memory=least, **options)
    assert loader.stats().num_threads == 1
    assert_same_batches(batches_of(islice(loader, BATCHES)), expected)

    # Whoever asks for threads gets them, and then it takes more.
    more = least_memory(store, strategy, num_threads=3, **options)
    assert more > least + 10**6
    loader = loader_of(store, strategy, memory=more, num_threads=3, **options)
    assert loader.stats().num_threads == 3
    assert_same_batches(batches_of(islice(loader, BATCHES)), expected)

    roomy = loader_of(store, strategy, memory=2 * more, **options)
    assert roomy.stats().num_threads > 1
    assert_same_batches(batches_of(islice(roomy, BATCHES)), expected)


def test_auto_looks_again_where_sampling_is_slow(
    store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sampled_epoch, "_SECONDS", 0.0)
    monkeypatch.setattr(optimizer, "SMALLEST_BYTES", 1)
    keep_usual_profile(store)
    memory = least_memory(store, "belady", every=2, disk="0B")
    loader = loader_of(store, "auto", every=2, memory=memory, disk="0B")
    predicted = re.findall(r"(\w+) [\d.]+ m?s", loader.stats().reason)
    assert "belady" in predicted or loader.stats().strategy == "belady"


@pytest.mark.parametrize("batch_size", choose([8, 32], [8, 32, 64]))
@pytest.mark.parametrize("seed", choose([1], [0, 1, 2]))
def test_an_epoch_that_begins_comes_to_its_end(store: Path, batch_size: int, seed: int) -> None:
    """Batches of few seeds differ by much more than an eighth; they are no surprise later."""

    def loader(memory: int) -> NeighborLoader:
        return NeighborLoader(
            store,
            [10, 10],
            np.arange(0, 2**15, 2**8 // batch_size),
            batch_size=batch_size,
            shuffle=True,
            seed=seed,
            strategy="belady",
            topology="memory",
            memory=memory,
        )

    memory = 16 * 10**6
    for _ in range(10):
        try:
            of_least = loader(memory)
            break
        except BudgetError as error:
            (missing,) = re.findall(r"(\d+) bytes? too few", str(error))
            memory += int(missing)
    assert sum(1 for _ in of_least) == 128


def test_how_much_larger_a_batch_may_be() -> None:
    rng = np.random.default_rng(0)
    assert margin_of([1000] * 4) == margin_of([0] * 4) == 1 / 64
    assert margin_of([500, 1000, 700, 900]) > 1
    assert with_margin(1000, margin_of([1000] * 4)) == 1015
    sizes = (1000 * rng.lognormal(0, 0.02, (300, MANY_BATCHES))).astype(int)
    most = [with_margin(max(some), margin_of(some)) for some in sizes.tolist()]
    later = (1000 * rng.lognormal(0, 0.02, (300, 5000))).astype(int).max(1)
    assert (later > most).mean() < 0.02
    assert max(most) < 1.2 * 1000

    seen = Presampled(MANY_BATCHES, 0, 1000, 0, (1000,) * 4, (50, 40, 60, 50))
    assert seen.margin == margin_of([50, 40, 60, 50]) > margin_of([1000] * 4)
    assert Presampled(MANY_BATCHES - 1, 0, 1000, 0, (1000,) * 4, (50,) * 4).margin == math.inf
