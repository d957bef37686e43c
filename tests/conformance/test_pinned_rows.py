"""Pinned rows of planned slots: the same batches, whichever loader has the slots meanwhile."""

from __future__ import annotations

import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.strategies.superbatch_memory import MissModel
from gnnstore.testing.graphs import random_graph
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose, paired
from tests.support.forks import check_in_fork
from tests.support.loaders import slots_of, superbatches_of

N = 4000
OPTIONS: dict[str, Any] = {"batch_size": 60, "shuffle": True, "seed": 3}
BATCHES = choose(20, 40)  # of an epoch
TRAIN = np.arange(0, BATCHES * 60)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(N, 60_000, seed=5, feature_dim=128, num_classes=7, skew=3.0)
    graph.attributes["h"] = np.random.default_rng(9).random((N, 30), dtype=np.float32)
    return graph.write(tmp_path_factory.mktemp("pinned") / "s.gnn")


def loader_of(store: Any, **options: Any) -> NeighborLoader:
    defaults: dict[str, Any] = {"strategy": "belady", "cache_bytes": "500kB", "superbatch": 4}
    return NeighborLoader(store, [5, 5], TRAIN, **(defaults | OPTIONS | options))


def without_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no loader pin rows that is made from now on."""
    monkeypatch.setattr(MissModel, "pins", lambda *_: None)


@pytest.fixture(scope="module")
def expected(path: Path) -> Batches:
    """Two epochs."""
    options = {"strategy": "memory", "cache_bytes": None, "superbatch": None}
    return batches_of(loader_of(path, **options), 2)


BUDGET = {"memory": "26MB", "cache_bytes": None, "superbatch": None, "num_threads": 2}
WITHOUT_DISK = BUDGET | {"disk": "0B"}


@pytest.mark.parametrize(
    "options",
    [WITHOUT_DISK, *choose((), ({"num_threads": 0}, {"num_threads": 2}, BUDGET))],
    ids=str,
)
def test_batches_and_misses_are_the_same(
    path: Path, expected: Batches, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = gnnstore.open(path)
    loader = loader_of(store, **options)
    size = superbatches_of(loader).job.size
    assert 0 < size.num_pinned < size.num_slots
    assert f"({size.num_pinned} of them pinned)" in loader.stats().reason
    assert loader.stats().cache_rows == size.num_slots
    assert_same_batches(batches_of(loader, 2), expected)
    slots = slots_of(store)
    assert slots.holds_pinned
    assert slots.num_slots == size.num_slots
    assert slots.pinned is not None
    for batch in expected:  # what is left to be planned
        nodes = batch["n_id"].numpy()
        assert len(slots.pinned.drop(nodes)) < 0.9 * len(nodes)

    without_pins(monkeypatch)
    others = loader_of(path, **options)
    assert superbatches_of(others).job.size.num_pinned == 0
    assert_same_batches(batches_of(others, 2), expected)
    assert loader.stats().rows_read <= 1.05 * others.stats().rows_read


def test_files_of_a_superbatch(path: Path, expected: Batches, tmp_path: Path) -> None:
    """Subgraphs have their ids in files of their own, and the trace is gone once it is planned."""
    loader = loader_of(path, spill_dir=tmp_path, num_threads=0)
    size = superbatches_of(loader).job.size
    object.__setattr__(size, "in_memory", False)
    object.__setattr__(size, "table_bytes", 1 << 16)
    taken = iter(loader)
    first = next(taken).to_dict()
    names = {file.name.split("-")[0] for file in tmp_path.rglob("*-*") if file.is_file()}
    assert names == {"batch", "plan"}
    assert_same_batches([first, *(batch.to_dict() for batch in taken)], expected[:BATCHES])


def test_a_pickled_loader_pins_the_same_rows(path: Path, expected: Batches) -> None:
    loader = loader_of(path)
    other = pickle.loads(pickle.dumps(loader))  # noqa: S301
    np.testing.assert_array_equal(
        superbatches_of(other).job.size.pinned, superbatches_of(loader).job.size.pinned
    )
    for _ in islice(loader, 13):
        pass
    other.load_state_dict(loader.state_dict())
    assert_same_batches(batches_of(other), expected[13:BATCHES])


def test_evaluation_in_the_middle_leaves_the_pinned_rows(path: Path, expected: Batches) -> None:
    store = gnnstore.open(path)
    training = loader_of(store, num_threads=2)
    options: dict[str, Any] = {"batch_size": choose(50, 90), "shuffle": False}
    evaluation = loader_of(store, num_threads=2, **options)
    taken = iter(training)
    found = [batch.to_dict() for batch in islice(taken, 4)]
    slots = slots_of(store)
    assert slots.holds_pinned
    plain = loader_of(path, strategy="memory", cache_bytes=None, superbatch=None, **options)
    evaluated = [batches_of(plain) for _ in range(2)]
    assert_same_batches(batches_of(evaluation), evaluated[0])
    assert evaluation.stats().rows_cached == 0
    assert slots_of(store) is slots
    assert slots.holds_pinned
    found += [batch.to_dict() for batch in taken]
    assert_same_batches(found, expected[:BATCHES])
    alone = loader_of(path, num_threads=2)
    batches_of(alone)
    assert training.stats().rows_read == alone.stats().rows_read

    # Between two epochs it has slots, and pinned rows of its own.
    assert_same_batches(batches_of(evaluation), evaluated[1])
    assert evaluation.stats().rows_cached > 0
    own = slots_of(store).pinned
    assert own is not None
    wanted, others = (superbatches_of(each).job.size.pinned for each in (evaluation, training))
    assert wanted is not None
    assert others is not None
    assert own.nodes.tolist() == wanted.tolist() != others.tolist()
    assert not slots.holds_pinned
    assert_same_batches(batches_of(training), expected[BATCHES:])
    assert slots_of(store).holds_pinned


@pytest.mark.parametrize(
    ("options", "pins"),
    paired([{"num_threads": 1}, *choose((), (BUDGET, WITHOUT_DISK))], [False, True], 1),
    ids=str,
)
def test_another_loader_takes_the_slots(
    path: Path,
    expected: Batches,
    pins: bool,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches that were sampled ahead without pinned rows are planned with those there are then."""
    store = gnnstore.open(path)
    loader = loader_of(store, **options)
    assert superbatches_of(loader).job.size.num_pinned
    assert_same_batches(batches_of(loader), expected[:BATCHES])
    slots = slots_of(store)
    if not pins:
        without_pins(monkeypatch)
    smaller = loader_of(store, cache_bytes="400kB", batch_size=90, num_threads=1)
    assert pins or not superbatches_of(smaller).job.size.num_pinned
    for _ in smaller:
        pass
    other = slots_of(store)
    assert other.num_slots < superbatches_of(loader).job.size.num_slots
    assert other.holds_pinned == (superbatches_of(smaller).job.size.num_pinned > 0)
    assert slots.num_bytes < other.num_bytes
    for epoch in choose((1, 0), (1, 0, 1)):  # the next one is made ahead, or was not expected
        before = loader.stats()
        loader.set_epoch(epoch)
        assert_same_batches(batches_of(loader), expected[epoch * BATCHES :][:BATCHES])
        assert loader.stats().since(before).rows_cached > 0
        assert slots_of(store).num_slots == superbatches_of(loader).job.size.num_slots
        assert slots_of(store).holds_pinned
        for _ in smaller:
            pass


@pytest.mark.parametrize("num_threads", choose([1], [0, 1]))
def test_packed_rows_go_without_pinned_ones(
    path: Path, expected: Batches, num_threads: int
) -> None:
    store = gnnstore.open(path)
    belady = loader_of(store, num_threads=num_threads)
    packed = loader_of(store, strategy="packed", num_threads=num_threads)
    assert superbatches_of(packed).job.size.num_pinned == 0
    taken = iter(belady)
    found = [batch.to_dict() for batch in islice(taken, 5)]
    assert_same_batches(batches_of(packed), expected[:BATCHES])
    found += [batch.to_dict() for batch in taken]
    assert_same_batches(found, expected[:BATCHES])
    assert slots_of(store).holds_pinned
    assert_same_batches(batches_of(packed), expected[BATCHES:])
    assert slots_of(store).pinned is None
    assert_same_batches(batches_of(belady), expected[BATCHES:])
    assert slots_of(store).holds_pinned


@pytest.mark.long("forks with planned slots are tested in both")
def test_a_fork(path: Path, expected: Batches) -> None:
    """The child has the pinned rows of its parent."""
    loader = loader_of(path, num_threads=0)
    assert_same_batches(batches_of(loader), expected[:BATCHES])

    def check() -> None:
        for batch, wanted in zip(loader, expected[BATCHES:], strict=True):
            for name in ("n_id", "x"):
                assert np.array_equal(batch[name].numpy(), wanted[name].numpy())

    check_in_fork(check)
    assert_same_batches(batches_of(loader), expected[BATCHES:])
