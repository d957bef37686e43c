"""The first superbatch of the next epoch, made while this one comes to its end.

It must be the one that would have been made later, whatever comes between two epochs; and if it
is not wanted, neither a thread nor a file may be left of it.
"""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import NeighborLoader
from gnnstore.errors import NoSpaceError
from gnnstore.features import pack as packing
from gnnstore.pipeline.batch import Batch, BatchPreparer
from gnnstore.pipeline.lookahead import superbatch as rolling
from gnnstore.pipeline.lookahead.producer import Producer
from gnnstore.sampling.compact import CompactSample
from gnnstore.strategies.registry import STRATEGIES
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose, paired
from tests.support.forks import ForkServer, check_in_fork
from tests.support.loaders import (
    nothing_collected,
    superbatches_of,
    threads_of_loaders,
    wait_for,
    wait_until_nothing_is_left,
)

pytestmark = pytest.mark.timeout(120)

Epochs = list[Batches]
PLANNED = [strategy.name for strategy in STRATEGIES if strategy.plans]
UNCACHED = [strategy.name for strategy in STRATEGIES if not strategy.caches]
BATCHES = 8
LONG = 4 * BATCHES + 3
OPTIONS: dict[str, Any] = {"batch_size": 25, "shuffle": True, "seed": 3}


@pytest.fixture(scope="module")
def expected(path: Path) -> Epochs:
    """Eight epochs."""
    plain = NeighborLoader(path, [4, 4], range(200), strategy="memory", **OPTIONS)
    epochs = [batches_of(plain) for _ in range(8)]
    assert [len(epoch) for epoch in epochs] == [BATCHES] * 8
    return epochs


def loader_of(path: Any, **options: Any) -> NeighborLoader:
    defaults: dict[str, Any] = {"strategy": "packed", "cache_bytes": "20kB", "num_threads": 2}
    return NeighborLoader(path, [4, 4], range(200), **(defaults | OPTIONS | options))


def wait_until_made() -> None:
    """Wait until what is being made for the next epoch is made."""
    wait_for(lambda: not threads_of_loaders())


class Counted:
    """How expected superbatches have been sampled, planned and packed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sampled = self.planned = self.packed = 0
        of = Producer
        sample, plan, pack = of.sample, of.plan, of._pack

        def counting_sample(*args: Any) -> Any:
            self.sampled += 1
            return sample(*args)

        def counting_plan(*args: Any, **options: Any) -> Any:
            self.planned += 1
            return plan(*args, **options)

        def counting_pack(producer: Producer, superbatch: Any) -> None:
            pack(producer, superbatch)
            self.packed += superbatch.packed is not None

        monkeypatch.setattr(of, "sample", counting_sample)
        monkeypatch.setattr(of, "plan", counting_plan)
        monkeypatch.setattr(of, "_pack", counting_pack)


# --- it is the one that is wanted ---------------------------------------------------------------


@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.parametrize("superbatch", choose([3, BATCHES], [3, 4, BATCHES]))
def test_epoch_after_epoch(
    path: Path,
    expected: Epochs,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    superbatch: int,
) -> None:
    counted = Counted(monkeypatch)
    loader = loader_of(path, strategy=strategy, superbatch=superbatch)
    for epoch in expected[:3]:
        assert_same_batches(batches_of(loader), epoch)
    wait_until_made()
    # None was made twice: those of three epochs, and the first of the fourth.
    each = -(-BATCHES // superbatch)
    assert counted.sampled == counted.planned == 3 * each + 1
    assert counted.packed == (3 * each + 1 if strategy == "packed" else 0)


def test_two_superbatches_must_fit_on_disk(path: Path, tmp_path: Path, expected: Epochs) -> None:
    loader = loader_of(path, spill_dir=tmp_path)
    list(loader)
    one = superbatches_of(loader).job.totals.bytes_spilled
    del loader
    small = loader_of(path, spill_dir=tmp_path, disk=one + one // 2, superbatch=BATCHES)
    for epoch in expected[: choose(1, 2)]:
        assert_same_batches(batches_of(small), epoch)
        wait_until_made()
        assert not list(tmp_path.iterdir())
    # Half an epoch at a time is packed while the other half is read.
    halves = loader_of(path, spill_dir=tmp_path, disk=one + one // 2)
    assert halves.stats().superbatch == BATCHES // 2
    for epoch in expected[: choose(1, 2)]:
        assert_same_batches(batches_of(halves), epoch)
        wait_until_made()
        assert list(tmp_path.iterdir())
    del halves
    large = loader_of(path, spill_dir=tmp_path, disk=3 * one)
    assert_same_batches(batches_of(large), expected[0])
    assert large.stats().superbatch == BATCHES
    wait_until_made()
    assert list(tmp_path.iterdir())


# --- what comes between ------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", choose(["packed"], PLANNED))
def test_validation_between_epochs(
    path: Path, expected: Epochs, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """It takes the slots, and what was planned for them is lost; after that no more in vain."""
    loader = loader_of(path, strategy=strategy)
    validation = loader_of(loader.data, strategy=strategy, shuffle=False)
    read, cached = [], []
    counted = Counted(monkeypatch)
    for epoch in expected[:4]:
        before = loader.stats().rows_read
        assert_same_batches(batches_of(loader), epoch)
        wait_until_made()
        read.append(loader.stats().rows_read - before)
        before = validation.stats().rows_cached
        list(validation)
        wait_until_made()
        cached.append(validation.stats().rows_cached - before)
    # Without a plan that fits, each row of each batch would have been read.
    rows = [sum(len(batch["n_id"]) for batch in epoch) for epoch in expected[:4]]
    assert all(own < 0.9 * all_ for own, all_ in zip(read, rows, strict=True))
    assert all(cached)
    # Both loaders were sampled four times, and the next of each once more; one epoch was planned,
    # and so sampled, in vain.
    assert counted.sampled == 11
    assert counted.planned == 9
    assert counted.packed == (9 if strategy == "packed" else 0)


# --- it fails, or nobody wants it ----------------------------------------------------------------


def test_a_disk_that_is_full_when_nobody_asked(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: Epochs
) -> None:
    """The epoch that is under way comes to its end; the next one says what is wrong."""
    calls = 0

    def pack(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise NoSpaceError("no space left", path=tmp_path)
        return packing.pack(*args, **options)

    loader = loader_of(path, spill_dir=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(rolling, "pack", pack)
        assert_same_batches(batches_of(loader), expected[0])
        wait_until_made()
        assert calls == 2
        with pytest.raises(NoSpaceError):
            list(loader)
        assert calls == 3
    assert not list(tmp_path.iterdir())
    assert not threads_of_loaders()
    loader.set_epoch(1)
    assert_same_batches(batches_of(loader), expected[1])


@pytest.mark.parametrize("left_after", [0, 1, 2])
@pytest.mark.parametrize("strategy", UNCACHED)
def test_a_forgotten_loader_is_gone(
    path: Path, tmp_path: Path, strategy: str, left_after: int
) -> None:
    """At once: not when the garbage collector finds it, which may be never."""
    options: dict[str, Any] = {}
    if STRATEGIES[strategy].plans:
        options = {"spill_dir": tmp_path, "cache_bytes": "20kB"}
    with nothing_collected():
        loader = NeighborLoader(
            path, [4, 4], range(200), strategy=strategy, num_threads=2, **OPTIONS, **options
        )
        for _ in islice(loader, left_after):  # an iteration that is not the last
            pass
        list(loader)
        parts = [loader, loader._source, loader._sources]
        if STRATEGIES[strategy].plans:
            parts.append(loader._sources.superbatches)
        alive = [weakref.ref(part) for part in parts]
        del loader, parts
        assert [part() for part in alive] == [None] * len(alive)
        assert not list(tmp_path.iterdir())
        assert not threads_of_loaders()


@pytest.mark.parametrize("strategy", UNCACHED)
def test_no_batch_is_left_of_an_iteration(
    path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Prepared ahead, some of them waiting for memory: all of it is there for the next one."""
    outputs: list[weakref.ref[Any]] = []
    prepare = BatchPreparer.prepare

    def noted(preparer: BatchPreparer, batch: Batch) -> Batch:
        prepared = prepare(preparer, batch)
        outputs.append(weakref.ref(prepared.output))
        return prepared

    monkeypatch.setattr(BatchPreparer, "prepare", noted)
    loader = NeighborLoader(
        path, [4, 4], range(200), strategy=strategy, memory="64MB", num_threads=2, **OPTIONS
    )
    with nothing_collected():
        for _ in range(choose(2, 5)):
            running: Any = iter(loader)
            assert len(list(islice(running, 2))) == 2
            running.close()
            assert [output() for output in outputs] == [None] * len(outputs)
            outputs.clear()


class Trainer:
    """Knows its loader and its iterator, which know it."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.loader = loader_of(path, transform=self.move, **options)
        self.batches = iter(self.loader)

    def move(self, data: Any) -> Any:
        return data


@pytest.mark.parametrize("strategy", ["memory", "packed"])
def test_a_trainer_in_a_cycle_is_collected(path: Path, tmp_path: Path, strategy: str) -> None:
    options: dict[str, Any] = {"strategy": strategy, "cache_bytes": None}
    if STRATEGIES[strategy].plans:
        options |= {"spill_dir": tmp_path, "cache_bytes": "20kB"}
    trainer = Trainer(path, **options)
    next(trainer.batches)
    alive = weakref.ref(trainer)
    del trainer

    def is_collected() -> bool:
        gc.collect()
        return alive() is None

    wait_for(is_collected)  # threads hold it until they have prepared what they had begun
    assert not threads_of_loaders()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("num_taken", "sample"), [(3, 6), (BATCHES, BATCHES + 2)])
def test_what_works_for_a_loader_may_find_it_forgotten(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_taken: int, sample: int
) -> None:
    """The garbage collector runs in any thread: if that waited for others, it would for ever.

    Here in one that samples ahead, for this iteration or for the next.
    """
    forgotten, found = threading.Event(), threading.Event()
    sampled = itertools.count(1)
    compact = CompactSample.from_sample

    def collect(*args: Any) -> CompactSample:
        if next(sampled) == sample:
            assert forgotten.wait(20)
            gc.collect()
            found.set()
        return compact(*args)

    loader = loader_of(path, spill_dir=tmp_path, superbatch=2)
    monkeypatch.setattr(CompactSample, "from_sample", collect)
    with nothing_collected():
        batches = iter(loader)
        for _ in range(num_taken):
            next(batches)
        cycle: list[Any] = [loader, batches]
        cycle.append(cycle)
        del loader, batches, cycle
        forgotten.set()
        assert found.wait(20)
    wait_until_nothing_is_left(tmp_path)


LEFT = """
import sys, time
from gnnstore import NeighborLoader

loader = NeighborLoader(
    sys.argv[1], [4, 4], range(200), batch_size=25, shuffle=True, seed=3, strategy="packed",
    cache_bytes="20kB", num_threads=2, spill_dir=sys.argv[2],
)
for number, batch in enumerate(loader):
    if number == 0:
        draw = loader._source.sampler.draw
        def slowly(request):
            time.sleep(0.5)
            return draw(request)
        loader._source.sampler.draw = slowly
print("done", flush=True)
"""


def test_the_interpreter_ends_meanwhile(path: Path, tmp_path: Path, forks: ForkServer) -> None:
    run = forks.run(LEFT, path, tmp_path, unloads=True)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr
    assert not run.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("phase", choose(["_pack"], ["plan", "_pack"]))
def test_slots_are_taken_while_the_next_epoch_is_made(
    path: Path, tmp_path: Path, expected: Epochs, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Between two epochs, by another loader: what is made for them is given up at once."""
    begun: list[Producer] = []
    make, has_begun = getattr(Producer, phase), threading.Event()

    def make_unless_stopped(maker: Producer, *args: Any) -> Any:
        if maker not in begun:
            begun.append(maker)
        if len(begun) == 2 and maker is begun[1]:  # of the next epoch
            has_begun.set()
            assert maker._is_stopped.wait(60)
        return make(maker, *args)

    monkeypatch.setattr(Producer, phase, make_unless_stopped)
    store = gnnstore.open(path)
    loader, other = (loader_of(store, spill_dir=tmp_path, superbatch=BATCHES) for _ in range(2))
    assert_same_batches(batches_of(loader), expected[0])
    assert has_begun.wait(60)
    files = set(tmp_path.iterdir())
    theirs: Any = iter(other)
    others = batches_of(islice(theirs, 1))
    assert not files & set(tmp_path.iterdir())
    others += batches_of(theirs)
    assert_same_batches(others, expected[0])
    assert other.stats().rows_cached > 0
    for epoch in expected[1:3]:
        assert_same_batches(batches_of(loader), epoch)


def test_who_loses_the_slots_gives_up_what_it_carries(
    path: Path, tmp_path: Path, expected: Epochs
) -> None:
    """Rows of later epochs, packed for slots that are no more, are freed at once."""
    store = gnnstore.open(path)
    loader, other = long_loader(store, spill_dir=tmp_path), loader_of(store, strategy="belady")
    for epoch in expected[:3]:
        assert_same_batches(batches_of(loader), epoch)
    wait_until_made()
    assert list(tmp_path.iterdir())
    next(iter(other))
    assert not list(tmp_path.iterdir())
    assert_same_batches(batches_of(loader), expected[3])


@pytest.mark.parametrize(
    ("superbatch", "goes_on"), choose([(LONG, True)], [(None, False), (None, True), (LONG, True)])
)
def test_a_fork_between_epochs(
    path: Path, tmp_path: Path, expected: Epochs, superbatch: int | None, goes_on: bool
) -> None:
    """The child has no such thread: it makes its own, and leaves the parent's files alone."""
    loader = loader_of(path, spill_dir=tmp_path, superbatch=superbatch)
    for epoch in expected[:3]:
        assert_same_batches(batches_of(loader), epoch)
    wait_until_made()
    files = set(tmp_path.rglob("*"))
    assert files

    def check() -> None:
        if goes_on:
            assert_same_nodes(loader, expected[3])
        loader.set_epoch(7)  # another than was expected
        assert_same_nodes(loader, expected[7])
        assert files <= set(tmp_path.rglob("*"))

    check_in_fork(check)
    for epoch in expected[3 : choose(4, 6)]:
        assert_same_batches(batches_of(loader), epoch)


# --- superbatches of several epochs --------------------------------------------------------------


def long_loader(path: Any, **options: Any) -> NeighborLoader:
    return loader_of(path, **({"superbatch": LONG} | options))


def assert_same_nodes(loader: NeighborLoader, expected: Batches) -> None:
    """Compare an epoch's nodes without torch, whose threads a fork has not."""
    for batch, nodes in zip(loader, expected, strict=True):
        assert np.array_equal(batch.n_id.numpy(), nodes["n_id"].numpy())


def test_epochs_share_superbatches(
    path: Path, expected: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As expected of them, at most, as there have been: 1, 1, 2, 3, and 4 to come."""
    counted = Counted(monkeypatch)
    loader = long_loader(path)
    assert loader.stats().superbatch == 4 * BATCHES
    sampled, packing = [], []
    for epoch in expected[:7]:
        before = loader.stats().bytes_packing
        assert_same_batches(batches_of(loader), epoch)
        wait_until_made()
        sampled.append(counted.sampled)
        packing.append(loader.stats().bytes_packing - before)
    assert sampled == [2, 3, 4, 4, 5, 5, 5]
    assert counted.planned == counted.packed == 5
    # Each epoch is told its share of the one pass that it has with others.
    assert packing[0] > 1.5 * packing[2] > 2 * packing[4] > 0
    assert abs(packing[2] - packing[3]) <= 1
    assert max(packing[4:]) - min(packing[4:]) <= 1


@pytest.mark.parametrize(
    ("strategy", "num_seeds", "superbatch"),
    [(*pair, each) for pair in paired(PLANNED, [0, 3, 50]) for each in (8, *choose((), (None,)))],
)
def test_epochs_of_few_batches(
    path: Path, strategy: str, num_seeds: int, superbatch: int | None
) -> None:
    plain = NeighborLoader(path, [4, 4], range(num_seeds), strategy="memory", **OPTIONS)
    loader = NeighborLoader(
        path, [4, 4], range(num_seeds), strategy=strategy, superbatch=superbatch, **OPTIONS
    )
    for _ in range(4):
        assert_same_batches(batches_of(loader), batches_of(plain))


def test_epochs_that_disk_has_no_room_for_are_refused(path: Path, tmp_path: Path) -> None:
    """Where they were asked for; the error says which option to lower."""
    loader = loader_of(path, spill_dir=tmp_path)
    list(loader)
    one = superbatches_of(loader).job.totals.bytes_spilled
    with pytest.raises(gnnstore.BudgetError, match="lower superbatch="):
        long_loader(path, spill_dir=tmp_path, disk=3 * one)


@pytest.mark.parametrize("superbatch", choose([LONG], [None, LONG]))
def test_whatever_comes_between_epochs(
    path: Path, tmp_path: Path, expected: Epochs, superbatch: int | None
) -> None:
    """An epoch that is left, another than expected, one that is resumed, validation."""
    loader = loader_of(path, spill_dir=tmp_path, prefetch_batches=1, superbatch=superbatch)
    for epoch in expected[:3]:
        assert_same_batches(batches_of(loader), epoch)
    loader.set_epoch(5)
    assert_same_batches(batches_of(loader), expected[5])
    loader.set_epoch(1)
    for epoch in expected[1:3]:
        assert_same_batches(batches_of(loader), epoch)
    running: Any = iter(loader)
    assert_same_batches(batches_of(islice(running, 3)), expected[3][:3])
    state = loader.state_dict()
    running.close()
    loader.load_state_dict(state)
    assert_same_batches(batches_of(loader), expected[3][3:])
    for batch in loader:
        assert_same_batches([batch.to_dict()], expected[4][:1])
        break
    del batch
    assert_same_batches(batches_of(loader), expected[5])
    validation = loader_of(loader.data, shuffle=False, spill_dir=tmp_path)
    list(validation)
    for epoch in expected[6:8]:
        assert_same_batches(batches_of(loader), epoch)
        list(validation)
    del running, validation, loader
    gc.collect()
    assert not threads_of_loaders()
    assert not list(tmp_path.iterdir())


def test_an_error_belongs_to_its_epoch(
    path: Path, expected: Epochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be sampled stops the epoch that it is of, not the one before."""
    loader = long_loader(path)
    sampler = loader._source.sampler
    draw = sampler.draw

    def failing(request: Any) -> Any:
        if (request.epoch, request.batch) == (3, 2):
            raise ValueError("a batch that cannot be sampled")
        return draw(request)

    monkeypatch.setattr(sampler, "draw", failing)
    for epoch in expected[:3]:
        assert_same_batches(batches_of(loader), epoch)
    found: list[Any] = []
    with pytest.raises(ValueError, match="cannot be sampled") as raised:
        found.extend(loader)
    assert "batch 2 of epoch 3" in str(raised.value.__notes__)
    assert_same_batches([batch.to_dict() for batch in found], expected[3][:2])
    monkeypatch.undo()
    assert_same_batches(batches_of(loader), expected[4])
