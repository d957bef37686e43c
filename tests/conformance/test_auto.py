"""`strategy="auto"`: what it takes, what it says, what it costs, and that batches stay the same."""

from __future__ import annotations

import logging
import math
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.budget import limits
from gnnstore.disk import measure as first_measurement
from gnnstore.disk.profile import (
    DeviceProfile,
    filesystem_id,
    profile_path,
    save_profile,
)
from gnnstore.errors import BudgetError, StorageError, UsageError
from gnnstore.strategies import auto as optimizer
from gnnstore.strategies.auto import choices_for
from gnnstore.strategies.base import Auto
from gnnstore.strategies.loader_spec import LoaderSpec, place_for
from gnnstore.strategies.lookahead import LookaheadStrategy
from gnnstore.strategies.prediction import Prediction
from gnnstore.strategies.registry import STATIC, STRATEGIES, auto
from tests.support.disks import usual_profile
from tests.support.effort import choose, is_long
from tests.support.stores import write_example_store

pytest.importorskip("torch_geometric")

NUM_NODES, NUM_SEEDS = 8000, 240  # 15 batches
OPTIONS: dict[str, Any] = {"batch_size": 16, "seed": 3, "num_threads": 1, "shuffle": True}
# Room for an engine's buffers and batches, and for a part of the rows only.
MEMORY = 80_000_000
READING_ROWS = {s.name for s in STRATEGIES if s.mode != "memory" and not s.packs}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("auto")
    return write_example_store(
        directory / "g.gnn", num_nodes=NUM_NODES, num_edges=80_000, feature_shape=(3000,)
    ).path


@pytest.fixture(autouse=True)
def no_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure nothing, and keep what a test measures to itself; take small stores seriously."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(first_measurement, "_kept", {})
    monkeypatch.setattr(optimizer, "SMALLEST_BYTES", 1 << 20)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is to be measured")

    monkeypatch.setattr(first_measurement, "measure_disk", refuse)


def profile_of(
    place: Path, *, reads_a_second: float = 100_000, bytes_a_second: float = 1e9
) -> DeviceProfile:
    return usual_profile(
        place,
        sequential_read_bytes_per_second=bytes_a_second,
        sequential_write_bytes_per_second=bytes_a_second,
        random_reads_per_second={
            4096: {1: reads_a_second / 10, 128: reads_a_second},
            65536: {1: reads_a_second / 20, 128: min(reads_a_second, bytes_a_second / 65536)},
        },
    )


def loader_of(path: Path, **options: Any) -> gnnstore.NeighborLoader:
    return gnnstore.NeighborLoader(str(path), [3, 2], range(NUM_SEEDS), **{**OPTIONS, **options})


def batches_of(loader: gnnstore.NeighborLoader, num_batches: int = 20) -> list[Any]:
    batches = iter(loader)
    return [
        (batch.n_id.numpy(), batch.edge_index.numpy(), batch.x.numpy())
        for batch, _ in zip(batches, range(num_batches), strict=False)
    ]


def test_what_fits_is_loaded_and_nothing_is_measured(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nothing is to be predicted")

    monkeypatch.setattr(optimizer.StrategyOptimizer, "for_loader", refuse)
    stats = loader_of(path).stats()
    assert stats.strategy == "memory"
    assert stats.predicted_epoch_seconds is None
    assert "predicted" not in str(stats)


def test_small_tables_are_not_worth_a_prediction(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizer, "SMALLEST_BYTES", 1 << 30)
    stats = loader_of(path, memory=MEMORY).stats()
    assert stats.strategy == "static"
    assert "of the store do not fit 80 MB of the memory= budget" in stats.reason


@pytest.mark.parametrize(
    ("reads_a_second", "bytes_a_second", "expected"),
    [(50, 1e10, {s.name for s in STRATEGIES if s.packs}), (1e7, 2e7, READING_ROWS)],
)
def test_it_takes_what_the_disk_is_good_at(
    path: Path, reads_a_second: float, bytes_a_second: float, expected: set[str]
) -> None:
    profile = profile_of(path, reads_a_second=reads_a_second, bytes_a_second=bytes_a_second)
    save_profile(profile)
    loader = loader_of(path, memory=MEMORY, disk="4GB")
    stats = loader.stats()
    assert stats.strategy.split("-")[0] in expected, stats.reason
    assert f"strategy '{stats.strategy}' because it is predicted to take " in stats.reason
    assert stats.predicted_epoch_seconds is not None
    assert stats.predicted_epoch_seconds > 0
    assert stats.predicted_first_epoch_seconds is not None
    assert stats.predicted_first_epoch_seconds >= stats.predicted_epoch_seconds
    assert stats.predicted_epoch_bytes is not None
    assert stats.predicted_epoch_bytes > 0
    assert stats.epoch_batches == len(loader)
    assert math.isnan(stats.waiting_epoch_seconds)
    for _ in loader:
        pass
    later = loader.stats()
    assert later.waiting_epoch_seconds == pytest.approx(later.seconds_waiting)
    each, first = stats.predicted_epoch_seconds, stats.predicted_first_epoch_seconds
    assert f"predicted {each:.2f} s an epoch ({first:.2f} s the first), waited " in str(later)
    words = [optimizer.describe_seconds(seconds) for seconds in (each, first)]
    told = f"{words[0]} an epoch, the first {words[1]}"
    assert (told in stats.reason) == (words[0] != words[1])
    assert later.since(stats).predicted_epoch_seconds == stats.predicted_epoch_seconds


def test_the_reason_names_the_next_best(path: Path) -> None:
    save_profile(profile_of(path, reads_a_second=50, bytes_a_second=1e10))
    reason = loader_of(path, memory=MEMORY, disk="4GB").stats().reason
    first = reason.split(";")[0]
    assert first.endswith(")")
    others = first.split("(")[1].rstrip(")").split(", ")
    assert len(others) == 2
    assert {other.split()[0] for other in others} <= READING_ROWS


@pytest.mark.long("the strategies it takes give the same batches in both")
def test_batches_are_the_same(path: Path) -> None:
    save_profile(profile_of(path, reads_a_second=50, bytes_a_second=1e9))
    expected = batches_of(loader_of(path, strategy="memory"))
    loader = loader_of(path, memory=MEMORY, disk="4GB")
    assert loader.stats().strategy != "memory"
    for ours, theirs in zip(batches_of(loader), expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert np.array_equal(one, other)


def test_it_keeps_within_the_disk_budget(path: Path, tmp_path: Path) -> None:
    save_profile(profile_of(path, reads_a_second=50, bytes_a_second=1e10))
    assert loader_of(path, memory=MEMORY, disk=0).stats().strategy != "packed"
    elsewhere = loader_of(path, memory=MEMORY, disk="4GB", spill_dir=tmp_path / "run")
    assert elsewhere.stats().strategy == "packed"
    with pytest.raises(UsageError, match="disk='lots' is not a size"):
        loader_of(path, disk="lots")


def test_what_proves_not_to_fit_is_not_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_profile(profile_of(path, reads_a_second=50, bytes_a_second=1e10))
    real = LookaheadStrategy.reserve

    def refuse(strategy: LookaheadStrategy, loader: Any, placement: Any) -> Any:
        if strategy.packs:
            raise BudgetError("too little")
        return real(strategy, loader, placement)

    monkeypatch.setattr(LookaheadStrategy, "reserve", refuse)
    stats = loader_of(path, memory=MEMORY, disk="4GB").stats()
    assert stats.strategy.split("-")[0] in READING_ROWS
    assert "it is predicted to take" in stats.reason


def test_other_options_decide_with_it(path: Path) -> None:
    save_profile(profile_of(path, reads_a_second=50, bytes_a_second=1e10))
    stats = loader_of(path, memory=MEMORY, cache="degree").stats()
    assert (stats.strategy, stats.cache) == ("static", "degree")
    stats = loader_of(path, memory=MEMORY, io_engine="pread", disk="4GB").stats()
    assert (stats.strategy, stats.io_engine) == ("packed", "pread")
    assert loader_of(path, memory=MEMORY, topology="disk").stats().topology == "disk"
    with pytest.raises(UsageError, match="has no use for superbatch=4"):
        loader_of(path, superbatch=4)


def test_decisions_are_pickled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_profile(profile_of(path, reads_a_second=50, bytes_a_second=1e10))
    loader = loader_of(path, memory=MEMORY, disk="4GB")

    def refuse(*_: Any) -> None:
        raise AssertionError("it was decided")

    monkeypatch.setattr(optimizer.StrategyOptimizer, "for_loader", refuse)
    copy = pickle.loads(pickle.dumps(loader))  # noqa: S301 - our own
    assert copy.stats().strategy == loader.stats().strategy == "packed"
    assert copy.stats().predicted_epoch_seconds == loader.stats().predicted_epoch_seconds
    if is_long():
        for ours, theirs in zip(batches_of(copy, 3), batches_of(loader, 3), strict=True):
            assert np.array_equal(ours[2], theirs[2])


# --- the disk's measurements --------------------------------------------------------------------


def measuring(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the paths that are measured from now on."""
    measured: list[Path] = []

    def measure(place: Path, **_: Any) -> Any:
        measured.append(place)
        return SimpleNamespace(profile=profile_of(place))

    monkeypatch.setattr(first_measurement, "measure_disk", measure)
    return measured


def test_a_disk_is_measured_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measuring(monkeypatch)
    for _ in range(2):
        stats = loader_of(path, memory=MEMORY, disk=0, io_engine="pread").stats()
    assert measured == [path]
    assert profile_path(filesystem_id(path)).exists()
    assert stats.io_engine == "pread"
    assert "profile of 2026-01-02" in stats.reason


def test_measurements_of_another_disk_are_not_used(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_profile(profile_of(path))
    file = profile_path(filesystem_id(path))
    file.write_text(file.read_text().replace(filesystem_id(path), "ext4-of-another"))
    measured = measuring(monkeypatch)
    loader_of(path, memory=MEMORY)
    assert measured == [path]
    assert "the measurements of the disk are not used" in caplog.text
    assert filesystem_id(path) in file.read_text()


def test_a_cache_directory_that_cannot_be_written_to(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    measured = measuring(monkeypatch)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            loader_of(path, memory=MEMORY)
    assert measured == [path], "kept in the process"
    assert "they are kept for the rest of this process" in caplog.text


def test_a_disk_that_cannot_be_measured(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StorageError("read-only")

    monkeypatch.setattr(first_measurement, "measure_disk", refuse)
    with caplog.at_level(logging.INFO):
        stats = loader_of(path, memory=MEMORY).stats()
    assert stats.predicted_epoch_seconds is not None
    assert stats.predicted_epoch_seconds > 0
    assert "rates of flash are assumed" in caplog.text


# --- budgets that make no sense -----------------------------------------------------------------


def test_a_container_that_allows_less_than_the_budget(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "group_limit_bytes", lambda: 30_000_000)
    for strategy in ("auto", "static", "memory"):
        with pytest.raises(BudgetError, match=r"has 30000000 bytes .* before the cgroup"):
            loader_of(path, strategy=strategy, memory=MEMORY)
    loader_of(path, memory=29_000_000, strategy="mmap")


def test_less_than_the_least(path: Path) -> None:
    with pytest.raises(BudgetError, match="raise memory= by at least") as caught:
        loader_of(path, memory=1000)
    assert "bytes too few" in str(caught.value)


def test_a_budget_for_a_mapping_alone_says_what_is_missing(path: Path) -> None:
    save_profile(profile_of(path))
    with pytest.warns(UserWarning, match="leaves strategy 'mmap' only") as caught:
        loader = loader_of(path, memory=10_000_000)
    (warning,) = caught
    assert warning.filename == __file__
    stats = loader.stats()
    assert stats.strategy == "mmap"
    told = re.search(r"others need at least ([\d.]+) MB more", stats.reason)
    assert told is not None
    assert told[0] in str(warning.message)
    more = 10_000_000 + round(float(told[1]) * 1e6)
    assert loader_of(path, memory=more).stats().strategy != "mmap"


# --- what is predicted is what would run --------------------------------------------------------


@pytest.mark.parametrize(
    "choice", [c.choice for c in auto().loadable if c.score or c.plans][:: choose(2, 1)]
)
@pytest.mark.parametrize("memory", [MEMORY, 90_000_000])
def test_a_strategy_gets_what_was_predicted_for_it(
    path: Path, choice: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_profile(profile_of(path))
    predictions: list[Prediction] = []

    def only(request: Any, auto: Auto) -> Iterator[optimizer.Chosen]:
        candidate = auto.by_choice[choice]
        found = optimizer.StrategyOptimizer.for_loader(request, place_for(request, STATIC))
        assert found is not None
        predictions.extend(found.with_degrees().predictions((candidate,)))
        yield optimizer.Chosen(optimizer.with_candidate(request.options, candidate))

    monkeypatch.setattr(optimizer, "choices_for", only)
    stats = loader_of(path, memory=memory, disk="4GB").stats()
    (prediction,) = predictions
    assert prediction.problem == ""
    assert prediction.resources.num_slots == pytest.approx(stats.cache_rows, rel=0.1)
    assert prediction.resources.superbatch == pytest.approx(stats.superbatch, rel=0.25)


def requests_of(
    path: Path, monkeypatch: pytest.MonkeyPatch, *topologies: str
) -> dict[str, LoaderSpec]:
    """Return what loaders ask of a store that differ in where they have its topology."""
    requests: dict[str, LoaderSpec] = {}

    def catch(request: LoaderSpec, auto: Auto) -> Iterator[optimizer.Chosen]:
        requests[request.options.topology] = request
        return choices_for(request, auto)

    with monkeypatch.context() as patched:
        patched.setattr(optimizer, "choices_for", catch)
        for topology in topologies:
            loader_of(path, memory=MEMORY, topology=topology)
    return requests


@pytest.mark.long("what is taken is asked in both")
def test_pages_of_a_mapped_topology_take_those_of_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping of both has as many pages for rows as one beside a topology in memory."""
    save_profile(profile_of(path))
    mapped: dict[str, int] = {}
    for topology, request in requests_of(path, monkeypatch, "memory", "mmap").items():
        found = optimizer.StrategyOptimizer.for_loader(request, place_for(request, STATIC))
        assert found is not None
        (prediction,) = found.predictions([auto().by_choice["mmap"]])
        mapped[topology] = prediction.resources.cached_bytes
    # A small table of a loader that is gone may still count as held.
    assert mapped["mmap"] == pytest.approx(mapped["memory"], rel=0.02)
    assert mapped["memory"] > 0


@pytest.mark.long("what is taken is asked in both")
def test_sampling_is_timed_as_a_strategy_would_sample(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, or from disk: batch by batch, or many together; each way is timed once."""
    save_profile(profile_of(path))
    requests = requests_of(path, monkeypatch, "memory", "disk")
    candidates = [auto().by_choice[name] for name in ("direct", "static-frequency", "belady")]
    for elsewhere, here in (("disk", "memory"), ("memory", "disk")):
        request = requests[here]
        found = optimizer.StrategyOptimizer.for_loader(request, place_for(request, STATIC))
        assert found is not None
        times = {p.strategy.choice: p.stages["sampling"] for p in found.predictions(candidates)}
        assert times["direct"] == times["static-frequency"]
        assert (times["direct"] == times["belady"]) == (here == "memory")

        moved = replace(found, loader=requests[elsewhere])
        there, again = (moved.predictions(candidates) for _ in range(2))
        assert [p.stages["sampling"] for p in there] == [p.stages["sampling"] for p in again]
        for prediction in there:
            assert prediction.problem == ""
            sampling = prediction.stages["sampling"]
            assert sampling != times[prediction.strategy.choice]
            if elsewhere == "disk":
                assert prediction.seconds >= sampling + prediction.stages["reading rows"]
