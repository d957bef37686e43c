"""A strategy that stands in this file alone: it loads, is predicted, and is chosen.

Rows are mapped, and those that batches need first stay in memory. That takes a tier, memory that is
reserved for it, a prediction, and sources of its own. Had anything else to be changed for it, some
of these tests would fail.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gnnstore
from gnnstore import BudgetError, NeighborLoader
from gnnstore.disk.profile import save_profile
from gnnstore.plugins import (
    STRATEGIES,
    CacheKey,
    EpochCosts,
    LoaderSpec,
    OpenStore,
    Placement,
    Prediction,
    ReadCounts,
    ReadTotals,
    Reservation,
    Resources,
    RowSource,
    SampledEpoch,
    Strategy,
    Tier,
    check_two_batches,
    shared_tables,
)
from gnnstore.strategies import auto as optimizer
from gnnstore.testing import assert_resumes
from gnnstore.testing.graphs import random_graph
from gnnstore.tools.bench.ways import ways
from gnnstore.tools.cli import main
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.disks import usual_profile
from tests.support.graphs import WIDTH
from tests.support.references import OPTIONS

NUM_ROWS, ROW_BYTES = 200, WIDTH * 4


class FirstRows(Tier):
    """Keeps the rows of the first nodes that are asked for, in a dict."""

    def __init__(self, below: RowSource, num_rows: int) -> None:
        super().__init__(below)
        self.most, self.kept = num_rows, dict[int, npt.NDArray[Any]]()
        self._lock = threading.Lock()

    def read_rows(self, ids: npt.NDArray[Any], out: npt.NDArray[Any]) -> ReadCounts:
        values, found = out.reshape(len(out), -1), self.kept
        is_kept = np.array([i in found for i in ids.tolist()], np.bool_)
        rows = np.empty((np.count_nonzero(~is_kept), *out.shape[1:]), out.dtype)
        counts = self.below.read_rows(ids[~is_kept], rows)
        out[~is_kept] = rows
        for k in np.flatnonzero(is_kept):
            values[k] = found[int(ids[k])]
        with self._lock:
            for k in np.flatnonzero(~is_kept)[: max(0, self.most - len(found))]:
                found[int(ids[k])] = values[k].copy()
        return counts + ReadCounts(rows_cached=int(np.count_nonzero(is_kept)))


class FirstCome:
    """The first rows of all tables, by path."""

    def __init__(self, tables: dict[str, RowSource], num_rows: int) -> None:
        self._tables = {path: FirstRows(rows, num_rows) for path, rows in tables.items()}
        self.num_rows = num_rows

    @property
    def num_bytes(self) -> int:
        return sum(rows.most * rows.row_bytes for rows in self._tables.values())

    def retire(self) -> None:
        for rows in self._tables.values():
            rows.most, rows.kept = 0, {}

    def holds(self, path: str) -> bool:
        return path in self._tables

    def rows(self, path: str) -> RowSource:
        return self._tables[path]


class FirstComeSources(OpenStore):
    cached_by = "first come"

    def open_cache(self, loader: LoaderSpec) -> FirstCome:
        shared, specs = shared_tables(loader.store), loader.store.schema.node.attributes.values()
        cache = shared.cache(
            CacheKey[FirstCome]("first come", "mapped"),
            lambda: FirstCome(
                {spec.path: shared.rows(loader.store, spec, "mmap", 1) for spec in specs}, NUM_ROWS
            ),
        )
        shared.use(self, "first come", cache)
        return cache


class FirstComeStrategy(Strategy):
    """Rows come from a mapping, the first ones from memory."""

    def reserve(self, loader: LoaderSpec, placement: Placement) -> Placement:
        placement = self._placed(placement, NUM_ROWS * ROW_BYTES)
        loader.check_two_batches(placement)
        return placement.because(f"the first {NUM_ROWS} rows are kept")

    def _placed(self, placement: Placement, held_bytes: int) -> Placement:
        ledger = placement.ledger.add(Reservation("first rows", held_bytes))
        return replace(placement, ledger=ledger)

    def predict(self, epoch: SampledEpoch, _: LoaderSpec, placement: Placement) -> Prediction:
        work, machine = epoch.workload, epoch.machine
        held_bytes = NUM_ROWS * work.row_bytes
        placement = self._placed(placement, held_bytes)
        check_two_batches(placement.ledger, epoch.seen.largest_bytes)
        resources = Resources(placement.resident_bytes, NUM_ROWS, held_bytes)
        faults = round(work.batch_rows * work.epoch_batches * (1 - NUM_ROWS / work.num_rows))
        reads, seconds = ReadTotals(faults, 4096 * faults), faults / machine.faults_per_second()
        return EpochCosts(work, machine).one_by_one(self, resources, reads, seconds)

    def open(self, loader: LoaderSpec, placement: Placement) -> OpenStore:
        return FirstComeSources(loader, placement)


FIRST_COME = FirstComeStrategy(
    "first-come",
    "mmap",
    cache_kind="first come",
    summary="rows are mapped, and the first ones stay in memory",
)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with STRATEGIES.having(FIRST_COME):
        yield


def loader_of(store: Any, **options: Any) -> NeighborLoader:
    given = {"strategy": "first-come", **OPTIONS, **options}
    return NeighborLoader(store, [4, 4], "train", **given)


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("topology", ["auto", "mmap"])
def test_it_loads_the_same_batches(
    path: Path, expected: Batches, num_threads: int, topology: str
) -> None:
    loader = loader_of(path, num_threads=num_threads, topology=topology)
    assert_same_batches(batches_of(loader, 2), expected)
    stats = loader.stats()
    assert (stats.strategy, stats.cache, stats.cache_rows) == ("first-come", "first come", NUM_ROWS)
    assert stats.rows_cached > 0
    assert stats.reason.endswith("; the first 200 rows are kept")
    again = pickle.loads(pickle.dumps(loader))  # noqa: S301 - its own
    assert_same_batches(batches_of(again), batches_of(loader))


@pytest.mark.parametrize("other", ["first-come", "packed"])
def test_it_goes_on_where_another_stopped(path: Path, other: str) -> None:
    strategies = cycle(("first-come", other))
    assert_resumes(lambda: loader_of(path, strategy=next(strategies)))


def test_loaders_share_its_cache_and_give_it_up(path: Path) -> None:
    store, size = gnnstore.open(path), NUM_ROWS * ROW_BYTES
    shared = shared_tables(store)
    first, second = (loader_of(store, memory="90MB") for _ in range(2))
    assert first._sources.cache is second._sources.cache
    assert shared.cached_bytes == shared.own_bytes("first come") >= size
    other = loader_of(store, memory="90MB", strategy="static", cache_bytes="40kB")
    assert "of other caches" not in second._sources.placement.ledger.source
    assert "of other caches" in other._sources.placement.ledger.source
    del first, second, other
    assert loader_of(store, memory="90MB", strategy="direct").stats().cache_rows == 0
    assert shared.own_bytes("first come") == 0


def test_a_budget_without_room_is_refused(path: Path) -> None:
    with pytest.raises(BudgetError, match="first rows"):
        loader_of(path, memory="150kB", topology="mmap")


def test_it_is_predicted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--num-neighbors", "4,4", "--batch-size", "50", "--batches", "5", "--threads", "1"]
    assert main(["predict", str(path), *words, "--cache-bytes", "10%", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {one["strategy"]: one for one in document["predictions"]["strategies"]}
    assert found["first-come"]["problem"] is None
    assert found["first-come"]["random_reads"] > 0
    assert found["first-come"]["cached_bytes"] >= NUM_ROWS * ROW_BYTES
    assert main(["predict", str(path), *words, "--strategies", "first-come,direct"]) == 0
    assert "first-come" in capsys.readouterr().out
    assert ways()["first-come"].strategy == "first-come"


def test_it_is_chosen_where_it_is_the_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = random_graph(8000, 80_000, seed=5, feature_dim=3000, num_classes=7)
    path = wide.write(tmp_path / "wide.gnn")
    monkeypatch.setattr(optimizer, "SMALLEST_BYTES", 1)
    save_profile(usual_profile(path))
    real = FirstComeStrategy.predict
    monkeypatch.setattr(FirstComeStrategy, "predict", lambda *of: replace(real(*of), seconds=1e-6))
    options = {"strategy": "auto", "memory": "80MB", "batch_size": 16, "num_threads": 1}
    loader, plain = loader_of(path, **options), loader_of(path, **options | {"strategy": "mmap"})
    stats = loader.stats()
    assert (stats.strategy, stats.cache) == ("first-come", "first come")
    assert "strategy 'first-come' because it is predicted to take 1e-06 s an epoch" in stats.reason
    assert stats.predicted_epoch_seconds == 1e-6
    for found, expected in islice(zip(loader, plain, strict=True), 3):
        assert_same_batches([found.to_dict()], [expected.to_dict()])
