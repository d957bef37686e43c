"""Pinned rows of a planned cache: the same batches, whoever else uses the cache meanwhile."""

from __future__ import annotations

import os
import pickle
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.pipeline.lookahead.producer import LookaheadJob, LookaheadProducer
from gnnstore.strategies.sizes.lookahead import BudgetSplit
from gnnstore.testing.graphs import random_graph
from tests.support.batches import assert_same_batches, batches_of

N = 4000
OPTIONS: dict[str, Any] = {"batch_size": 60, "shuffle": True, "seed": 3}
BATCHES = 40  # of an epoch
TRAIN = np.arange(0, BATCHES * 60)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(N, 60_000, seed=5, feature_dim=128, num_classes=7, skew=3.0)
    graph.attributes["h"] = np.random.default_rng(9).random((N, 30), dtype=np.float32)
    return graph.write(tmp_path_factory.mktemp("pinned") / "s.gnn")


def loader_of(store: Any, **options: Any) -> NeighborLoader:
    defaults: dict[str, Any] = {"strategy": "belady", "cache_bytes": "500kB", "superbatch": 10}
    return NeighborLoader(store, [5, 5], TRAIN, **(defaults | OPTIONS | options))


def without_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no loader pin rows that is made from now on."""
    monkeypatch.setattr(BudgetSplit, "_pins", lambda *_: False)


def job_of(loader: NeighborLoader) -> LookaheadJob:
    superbatches = loader._sources.superbatches
    assert superbatches is not None
    job: LookaheadJob = superbatches.job
    return job


@pytest.fixture(scope="module")
def expected(path: Path) -> list[dict[str, Any]]:
    """Two epochs."""
    options = {"strategy": "memory", "cache_bytes": None, "superbatch": None}
    return batches_of(loader_of(path, **options), 2)


BUDGET = {"memory": "25MB", "cache_bytes": None, "superbatch": BATCHES, "num_threads": 2}
WITHOUT_DISK = BUDGET | {"superbatch": None, "disk": "0B"}


@pytest.mark.parametrize(
    "options", [{"num_threads": 0}, {"num_threads": 2}, BUDGET, WITHOUT_DISK], ids=str
)
def test_batches_and_misses_are_the_same(
    path: Path,
    expected: list[dict[str, Any]],
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = loader_of(path, **options)
    size = job_of(loader).size
    assert 0 < size.num_pinned < size.num_slots
    assert size.planned_share < 0.9
    assert f"({size.num_pinned} of them pinned)" in loader.stats().reason
    assert loader.stats().cache_rows == size.num_slots
    assert_same_batches(batches_of(loader, 2), expected)
    cache = job_of(loader).cache()
    assert cache.holds_pinned
    assert cache.num_slots == size.num_slots

    without_pins(monkeypatch)
    others = loader_of(path, **options)
    assert job_of(others).size.num_pinned == 0
    assert_same_batches(batches_of(others, 2), expected)
    assert loader.stats().rows_read <= 1.05 * others.stats().rows_read


def test_files_of_a_superbatch(path: Path, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    """Subgraphs have their ids in files of their own, and the trace is gone once it is planned."""
    loader = loader_of(path, tmpdir=tmp_path, num_threads=0)
    size = job_of(loader).size
    object.__setattr__(size, "in_memory", False)
    object.__setattr__(size, "table_bytes", 1 << 16)
    taken = iter(loader)
    first = next(taken).to_dict()
    names = {file.name.split("-")[0] for file in tmp_path.rglob("*-*") if file.is_file()}
    assert names == {"batch", "plan"}
    assert_same_batches([first, *(batch.to_dict() for batch in taken)], expected[:BATCHES])


def test_resumed(path: Path, expected: list[dict[str, Any]]) -> None:
    loader = loader_of(path, num_threads=2)
    taken = iter(loader)
    for _ in range(13):
        next(taken)
    state = loader.state_dict()
    other = loader_of(path, num_threads=1)
    other.load_state_dict(state)
    assert_same_batches(batches_of(other), expected[13:BATCHES])


def test_a_pickled_loader_pins_the_same_rows(path: Path, expected: list[dict[str, Any]]) -> None:
    loader = loader_of(path)
    other = pickle.loads(pickle.dumps(loader))  # noqa: S301
    np.testing.assert_array_equal(job_of(other).size.pinned, job_of(loader).size.pinned)
    assert_same_batches(batches_of(other), expected[:BATCHES])


@pytest.mark.parametrize("num_threads", [0, 2])
def test_evaluation_in_the_middle_goes_with_the_same_pinned_rows(
    path: Path,
    expected: list[dict[str, Any]],
    num_threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, planned_again = gnnstore.open(path), []
    again = LookaheadProducer.plan_again

    def noted(self: LookaheadProducer, *args: Any) -> bool:
        planned_again.append(args)
        return again(self, *args)

    monkeypatch.setattr(LookaheadProducer, "plan_again", noted)
    training = loader_of(store, num_threads=num_threads)
    evaluation = loader_of(store, num_threads=num_threads, batch_size=90, shuffle=False)
    cache = job_of(training).cache()
    taken = iter(training)
    found = [batch.to_dict() for batch in islice(taken, 4)]
    plain = loader_of(
        path, strategy="memory", cache_bytes=None, superbatch=None, batch_size=90, shuffle=False
    )
    assert_same_batches(batches_of(evaluation), batches_of(plain))
    assert job_of(evaluation).cache() is cache
    assert evaluation.stats().rows_cached > 0
    found += [batch.to_dict() for batch in taken]
    assert_same_batches(found, expected[:BATCHES])
    assert planned_again
    assert cache.pinned is not None
    assert cache.pinned.is_of(job_of(training).size.pinned)
    assert not cache.pinned.is_of(job_of(evaluation).size.pinned)


@pytest.mark.parametrize("pins", [True, False])
@pytest.mark.parametrize("options", [{"num_threads": 1}, BUDGET, WITHOUT_DISK], ids=str)
def test_a_cache_that_is_replaced(
    path: Path,
    expected: list[dict[str, Any]],
    pins: bool,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches that were sampled without rows that are not pinned any more are planned with them."""
    store = gnnstore.open(path)
    loader = loader_of(store, **options)
    cache, size = job_of(loader).cache(), job_of(loader).size
    assert size.num_pinned
    taken = iter(loader)
    found = [batch.to_dict() for batch in islice(taken, 3)]
    if not pins:
        without_pins(monkeypatch)
    smaller = loader_of(store, cache_bytes="400kB", batch_size=90, num_threads=1)
    assert (job_of(smaller).size.num_pinned > 0) == pins
    for _ in smaller:
        pass
    other = job_of(loader).cache()
    assert other is not cache
    assert other.num_slots < cache.num_slots
    found += [batch.to_dict() for batch in taken]
    assert_same_batches(found, expected[:BATCHES])

    before = loader.stats()
    assert_same_batches(batches_of(loader), expected[BATCHES:])
    assert loader.stats().since(before).rows_cached > 0
    most = job_of(loader).most_planned(other.pinned)
    assert most == size.num_batches_repinned
    assert (most < size.num_batches) == size.plans_in_memory


def test_packed_rows_go_without_pinned_ones(path: Path, expected: list[dict[str, Any]]) -> None:
    store = gnnstore.open(path)
    belady = loader_of(store, num_threads=1)
    packed = loader_of(store, strategy="packed", num_threads=1)
    assert job_of(packed).size.num_pinned == 0
    taken = iter(belady)
    found = [batch.to_dict() for batch in islice(taken, 5)]
    assert_same_batches(batches_of(packed), expected[:BATCHES])
    assert job_of(packed).cache() is job_of(belady).cache()
    found += [batch.to_dict() for batch in taken]
    assert_same_batches(found, expected[:BATCHES])
    assert_same_batches(batches_of(packed), expected[BATCHES:])


def test_a_cache_that_nobody_has_warmed_up(path: Path, expected: list[dict[str, Any]]) -> None:
    """Whoever packs rows leaves the pinned ones to others."""
    store = gnnstore.open(path)
    belady = loader_of(store, num_threads=0)
    cache = job_of(belady).cache()
    packed = loader_of(store, strategy="packed", num_threads=0)
    assert_same_batches(batches_of(packed), expected[:BATCHES])
    assert job_of(packed).cache() is cache
    assert not cache.holds_pinned
    assert_same_batches(batches_of(belady), expected[:BATCHES])
    assert cache.holds_pinned


def test_a_fork(path: Path, expected: list[dict[str, Any]]) -> None:
    """The child has the pinned rows of its parent."""
    loader = loader_of(path, num_threads=0)
    assert_same_batches(batches_of(loader), expected[:BATCHES])
    nodes = [batch["n_id"].numpy() for batch in expected[BATCHES:]]
    features = [batch["x"].numpy() for batch in expected[BATCHES:]]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            for batch, of_batch, rows in zip(loader, nodes, features, strict=True):
                assert np.array_equal(batch.n_id.numpy(), of_batch)
                assert np.array_equal(batch.x.numpy(), rows)
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == 0
    assert_same_batches(batches_of(loader), expected[BATCHES:])
