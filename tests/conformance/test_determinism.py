"""Batch k of epoch e under a seed is the same, whoever prepares it, from wherever, whenever."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.converters import from_rmat
from tests.support.batches import digest_of, digests
from tests.support.effort import choose
from tests.support.forks import ForkServer

pytestmark = pytest.mark.usefixtures("way_of_reading")

OPTIONS: dict[str, Any] = {"batch_size": 64, "shuffle": True, "seed": 17}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("determinism")
    return from_rmat(directory / "s.gnn", scale=11, feature_dim=20, seed=3)


@pytest.fixture(scope="module")
def expected(path: Path) -> list[str]:
    found = digests(NeighborLoader(path, [5, 5], "train", num_threads=0, **OPTIONS), 2)
    assert len(set(found)) == len(found) > 10
    return found


def test_a_budget_changes_nothing(path: Path, expected: list[str], way_of_reading: Any) -> None:
    memory = "40MB" if way_of_reading.reads_disk else "2MB"  # each thread takes 8 MB for reads
    assert digests(NeighborLoader(path, [5, 5], "train", memory=memory, **OPTIONS), 2) == expected


def test_two_iterators_at_once(path: Path, expected: list[str]) -> None:
    loader = NeighborLoader(path, [5, 5], "train", num_threads=2, **OPTIONS)
    first, second = iter(loader), iter(loader)
    pairs = list(zip(first, second, strict=True))
    found = [digest_of(a) for a, _ in pairs] + [digest_of(b) for _, b in pairs]
    assert found == expected


def test_other_loaders_at_the_same_time(path: Path, expected: list[str]) -> None:
    store = gnnstore.open(path)
    train = NeighborLoader(store, [5, 5], "train", num_threads=2, **OPTIONS)
    others = iter(NeighborLoader(store, [3, -1], num_threads=2, batch_size=7, seed=1))

    def found() -> Iterator[str]:
        for _ in range(2):
            for batch in train:
                next(others)
                yield digest_of(batch)

    assert list(found()) == expected
    others.close()  # type: ignore[attr-defined]


@pytest.mark.ways("memory")  # that others give the same is compared elsewhere
def test_the_options_matter(path: Path, expected: list[str]) -> None:
    changes: list[dict[str, Any]] = [{"seed": 18}, {"shuffle": False}, {"batch_size": 63}]
    for change in changes:
        found = digests(NeighborLoader(path, [5, 5], "train", **{**OPTIONS, **change}), 2)
        assert not set(found) & set(expected)
    found = digests(NeighborLoader(path, [5, 4], "train", **OPTIONS), 2)
    assert not set(found) & set(expected)


# --- other processes -----------------------------------------------------------------------


def loader_of(store: Any, strategy: str) -> NeighborLoader:
    return NeighborLoader(store, [5, 5], "train", num_threads=2, strategy=strategy, **OPTIONS)


@pytest.fixture(params=choose(["store", "loader"], ["path", "store", "loader"]))
def handed_over(request: pytest.FixtureRequest, path: Path, way_of_reading: Any) -> Any:
    """Return what another process gets; a loader is in use in this process too."""
    if request.param == "path":
        return path
    if request.param == "store":
        return gnnstore.open(path)
    loader = loader_of(path, way_of_reading.strategy)
    next(iter(loader))
    loader.set_epoch(0)
    return loader


def digests_of(given: Any, strategy: str) -> list[str]:
    """Return the digests of a loader, or of one of a store."""
    return digests(given if isinstance(given, NeighborLoader) else loader_of(given, strategy), 2)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process(expected: list[str], handed_over: Any, way_of_reading: Any) -> None:
    context = multiprocessing.get_context("fork")
    queue: Any = context.Queue()

    def work() -> None:
        torch.set_num_threads(1)  # torch's own threads do not survive a fork
        queue.put(digests_of(handed_over, way_of_reading.strategy))

    child = context.Process(target=work)
    child.start()
    try:
        assert queue.get(timeout=100) == expected
    finally:
        child.join(20)
        child.kill()
    assert child.exitcode == 0


UNRELATED = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("determinism", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print("\\n".join(module.digests_of(given, sys.argv[2])))
"""


@pytest.mark.ways("static")
def test_an_unrelated_process(
    forks: ForkServer, expected: list[str], handed_over: Any, way_of_reading: Any
) -> None:
    """It gets what is pickled, as a spawned one does."""
    ended = forks.run(UNRELATED, __file__, way_of_reading.strategy, given=handed_over)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == expected


def test_a_pickled_loader_is_small(path: Path, expected: list[str]) -> None:
    loader = NeighborLoader(path, [5, 5], "train", num_threads=2, **OPTIONS)
    pickled = pickle.dumps(loader)
    assert len(pickled) < 20_000 + 16 * len(loader.dataset), "seeds, but no features and no graph"  # type: ignore[arg-type]
    assert digests(pickle.loads(pickled), 2) == expected  # noqa: S301 - our own
