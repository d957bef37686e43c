"""Rows that stay on a device: the same batches, and what is moved and read is what a twin says.

The device is the host's memory here; `test_devices` has one that is late.
"""

from __future__ import annotations

import copy
import gc
import os
import threading
import time
import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import gnnstore
from gnnstore import LinkNeighborLoader, NeighborLoader
from gnnstore.converters import from_pyg
from gnnstore.errors import BudgetError, UsageError
from gnnstore.loaders import device as devices
from gnnstore.units import format_size
from tests.support.batches import Batches, assert_goes_on, assert_same_batches, batches_of
from tests.support.effort import choose, paired
from tests.support.every_loader import (
    CASES,
    NODES,
    ONE_BY_STRATEGY,
    WAYS,
    OpenStores,
    make,
    write_stores,
)
from tests.support.twins.held import has_repeats, on_device

NUM_EPOCHS = choose(2, 3)
HELD: dict[str, Any] = {"device": "cpu", "device_cache": "4kB"}
ALL: dict[str, Any] = {"device": "cpu", "device_cache": "1GB"}
NONE = "device_cache='1GB' of NeighborLoader keeps nothing on the device: no attribute of nodes"
SHORT = ["nodes", "nodes, disjoint", "plain, weights", "links"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_stores(tmp_path_factory.mktemp("device_cache"))


@pytest.fixture(scope="module")
def opened(stores: tuple[Path, Path]) -> OpenStores:
    typed, plain = map(gnnstore.open, stores)
    return typed, plain


@pytest.fixture(scope="module")
def expected(stores: tuple[Path, Path]) -> dict[Any, Batches]:
    return {}


def cells() -> list[Any]:
    """Return cases with ways to read; in `make test` one by each strategy, in turn."""
    pairs = paired(choose(SHORT, CASES), choose(ONE_BY_STRATEGY, WAYS), 2)
    return [
        pytest.param(case, way, id=f"{case}: {'-'.join(map(str, way.values()))}")
        for case, way in pairs[: choose(len(ONE_BY_STRATEGY), None)]
    ]


def num_bytes(batches: Batches) -> int:
    """Return the bytes of all tensors."""

    def of(value: Any) -> int:
        if isinstance(value, dict):
            return sum(map(of, value.values()))
        return value.nbytes if isinstance(value, Tensor) else 0

    return sum(map(of, batches))


@pytest.mark.filterwarnings("ignore:edge_label_time of some seed edges")
@pytest.mark.parametrize(("case", "way"), cells())
def test_batches_are_equal_and_rows_moved_are_the_twins(
    opened: OpenStores, expected: dict[Any, Batches], case: str, way: dict[str, Any]
) -> None:
    options = {"batch_size": choose(14, 6)} if case in NODES else {}
    if case not in expected:
        plain = make(opened, case, strategy="memory", **options)
        expected[case] = batches_of(plain, NUM_EPOCHS)
    for held in choose([(HELD, ALL)[WAYS.index(way) % 2]], [HELD, ALL]):
        loader = make(opened, case, **options, **way | held)
        found = batches_of(loader, NUM_EPOCHS)
        assert_same_batches(found, expected[case])
        there, stats = on_device(loader, found), loader.stats()
        assert stats.rows_on_device == there.num_rows
        assert stats.bytes_to_device == num_bytes(found) - there.num_bytes
        assert stats.device_cache_bytes == loader._sources.chosen.num_bytes
        if held is ALL:
            assert not there.missed.total()
        else:
            assert 0 < stats.device_cache_bytes <= 4000
            assert 0 < there.num_rows < stats.nodes
        owners = loader._sources.chosen.tables.owners
        paths = loader._sources.placement.read_paths & owners.keys()
        if paths and not has_repeats(found):  # else a batch may read a row more than once
            missed = sum(there.missed[owners[path]] for path in paths)
            # A planned cache is filled once.
            found_rows = stats.rows_read + stats.rows_cached
            assert missed <= found_rows <= missed + stats.cache_rows


def test_what_is_printed_shows_the_device(stores: tuple[Path, Path]) -> None:
    loader = make(stores, "plain, weights", strategy="memory", reorder=1, **HELD)
    all(loader)
    stats = loader.stats()
    assert (
        f"; device: {format_size(stats.bytes_to_device)} copied, 3.84 kB of rows stay there, "
        f"{stats.rows_on_device} rows taken from these, {stats.rows_kept} rows from the batch "
        "before"
    ) in str(stats)
    assert "device" not in str(make(stores, "plain, weights").stats())


@pytest.mark.parametrize("fmt", ["coo", "csr"])
@pytest.mark.parametrize("num_threads", [0, 3])
def test_edges_as_a_matrix_and_threads(
    stores: tuple[Path, Path], fmt: str, num_threads: int
) -> None:
    options: dict[str, Any] = {"edge_format": fmt, "num_threads": num_threads, "batch_size": 14}
    expected = batches_of(make(stores, "nodes", **options))
    assert_same_batches(batches_of(make(stores, "nodes", **options, **HELD)), expected)


def test_element_types_and_axes(tmp_path: Path) -> None:
    """Rows of every width are bit-equal; nodes may be in a batch twice."""
    rng, num_nodes = torch.Generator().manual_seed(1), 61

    def drawn(*shape: int) -> Tensor:
        return torch.randint(-100, 100, (num_nodes, *shape), generator=rng)

    values: dict[str, Tensor] = {
        "x": drawn(37).bfloat16(),
        "h": drawn(67).to(torch.int8),
        "wide": drawn(35).abs().to(torch.uint16),
        "bits": drawn(8, 10) > 0,
        "colour": drawn(67).abs().to(torch.uint8),
        "pair_index": drawn(11).T,  # rows along the last axis
        "nothing": drawn(0),
        "y": drawn(),
    }
    edge_index = torch.randint(0, num_nodes, (2, 150), generator=rng)
    path = from_pyg(Data(edge_index=edge_index, **values), tmp_path / "s.gnn")
    for strategy in choose(("belady",), ("memory", "belady")):
        for twice in (False, True):
            options: dict[str, Any] = {"batch_size": 7, "replace": twice, "disjoint": twice}
            plain = NeighborLoader(path, [3, 3], strategy="memory", seed=1, **options)
            for size in choose((700,), (700, 10**6)):
                loader = NeighborLoader(
                    path,
                    [3, 3],
                    strategy=strategy,
                    seed=1,
                    device="cpu",
                    device_cache=size,
                    **options,
                )
                assert_same_batches(batches_of(loader), batches_of(plain))
                assert "pair_index" in " ".join(loader._sources.chosen.tables.owners)
                plain.set_epoch(0)
                assert loader.stats().rows_on_device > 0


def test_stores_of_narrow_rows_of_labels_or_of_nothing(tmp_path: Path) -> None:
    """Labels are compressed, and travel whole."""
    edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    stores = {"narrow": {"x": torch.rand(5, 2)}, "labels": {"y": torch.arange(5)}, "nothing": {}}
    for name, values in stores.items():
        path = from_pyg(Data(edge_index=edge_index, num_nodes=5, **values), tmp_path / name)
        for strategy in choose(("belady",), ("memory", "direct", "belady")):
            batches: Any = {"batch_sampler": [[0, 1], [], [4], [2, 3, 0]], "seed": 1}
            plain = NeighborLoader(path, [2], strategy="memory", **batches)
            with nullcontext() if name == "narrow" else pytest.warns(UserWarning, match=NONE):
                loader = NeighborLoader(path, [2], strategy=strategy, **batches, **ALL)
            assert_same_batches(batches_of(loader), batches_of(plain))
            assert loader.stats().device_cache_bytes == (40 if name == "narrow" else 0)


def test_batches_in_host_memory_are_within_the_budget(tmp_path: Path) -> None:
    """What is on the "device" counts until the consumer lets go of it, but for what all share."""
    edge_index = torch.randint(0, 40, (2, 300), generator=torch.Generator().manual_seed(1))
    data = Data(x=torch.rand(40, 30), edge_index=edge_index, weights=torch.rand(3))
    path = from_pyg(data, tmp_path / "s.gnn")
    options: dict[str, Any] = {"memory": "20MB", "num_threads": 0, "batch_size": 8}
    loader: Any = NeighborLoader(path, [3], strategy="memory", **options, **HELD)
    batches = iter(loader)
    kept = [next(batches), next(batches)]
    assert loader._gate.num_living == 2
    kept.clear()
    next(batches)
    assert loader._gate.num_living == 1
    all(batches)
    assert loader._gate.num_living == 0


def test_states_are_those_of_other_loaders(stores: tuple[Path, Path]) -> None:
    ways: list[dict[str, Any]] = [
        {"strategy": "memory"},
        {"strategy": "packed", "superbatch": 2},
    ]
    for way in ways[choose(1, 0) :]:
        maker = partial(make, stores, "nodes", batch_size=20, **way, **HELD)
        assert_goes_on(maker)


def test_rows_are_the_ones_needed_most(stores: tuple[Path, Path]) -> None:
    """Of all types together: the last that fits is needed as often as any that is left."""
    loader = make(stores, "nodes", strategy="memory", **HELD)
    chosen = loader._sources.chosen
    sampler = chosen.tables.space
    spec = loader._sources._again.args[0]
    counts = np.zeros(sampler.num_rows, np.uint8)
    replace(spec.presampler.over(sampler), held=None).run(loader._sources.topology, 1, counts)
    rows = chosen.held.rows_in(sampler)
    others = np.delete(counts, rows)
    assert counts[rows].min() >= others.max()
    assert chosen.num_bytes + chosen.tables.slot_bytes > 4000


def test_degrees_choose_if_the_cache_goes_by_them(stores: tuple[Path, Path]) -> None:
    loader = make(stores, "plain, weights", strategy="memory", cache="degree", **HELD)
    data = loader.data
    degree = np.bincount(data.to_pyg().edge_index[0].numpy(), minlength=50)
    held = loader._sources.chosen.held.nodes["node"]
    assert degree[held].min() >= np.delete(degree, held).max()
    with pytest.raises(UsageError, match="cache='often' is unknown"):
        make(stores, "plain, weights", strategy="memory", cache="often", **HELD)


def test_loaders_of_a_store_share_the_rows(stores: tuple[Path, Path]) -> None:
    """The first one chooses, each has the same, and they go with the last."""
    store = gnnstore.open(stores[1])
    options: dict[str, Any] = {"batch_size": 10, **HELD}
    first: Any = NeighborLoader(store, [3, 2], strategy="memory", **options)
    other: Any = LinkNeighborLoader(store, [4], strategy="belady", **options)
    assert first._sources.chosen is other._sources.chosen
    next(iter(first))
    all(other)
    assert first._placer.rows is other._placer.rows is not None
    copied = copy.deepcopy(first)
    next(iter(copied))
    assert copied._placer.rows is first._placer.rows
    left = weakref.ref(first._placer.rows)
    del first, other, copied
    gc.collect()
    assert left() is None


def test_rows_that_are_copied_late_are_missed_until_then(
    stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the background, a batch takes what is there; a failed copy leaves them missed."""
    monkeypatch.setattr(devices, "LONG_READ_BYTES", 1)
    monkeypatch.setattr(devices, "PIECE_BYTES", 1)
    plain = batches_of(make(stores, "nodes", strategy="memory"))
    copy_piece, num_copied, has_failed = devices._Filling._copy, 0, threading.Event()

    def some(self: Any, *piece: Any) -> None:
        nonlocal num_copied
        num_copied += 1
        if num_copied > 5:
            has_failed.set()
            raise ValueError("no more")
        copy_piece(self, *piece)

    monkeypatch.setattr(devices._Filling, "_copy", some)
    loader = make(stores, "nodes", strategy="memory", num_threads=0, **HELD)
    batches = iter(loader)
    found = [next(batches).to_dict()]
    has_failed.wait()
    rows = loader._placer.rows
    rows._stop_filling()
    assert sum(rows._fillings[-1].num_filled.values()) == 5
    found += [batch.to_dict() for batch in batches]
    monkeypatch.undo()
    assert_same_batches(found, plain)
    assert loader.stats().rows_on_device > 0
    # The next iteration copies the others, here at once.
    assert_same_batches(batches_of(loader), batches_of(make(stores, "nodes"), 2)[len(plain) :])
    assert rows.num_lacking == 0


def test_a_child_of_the_process_copies_what_is_left(
    stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that was copying is not in a process that was forked."""
    monkeypatch.setattr(devices, "LONG_READ_BYTES", 1)
    loader = make(stores, "nodes", strategy="memory", num_threads=0, **HELD)
    with monkeypatch.context() as patch:
        patch.setattr(devices, "_fill_in_background", lambda *_: None)
        all(loader)
    rows = loader._placer.rows
    assert rows.num_lacking > 0
    rows._pid -= 1  # as in a child
    all(loader)
    while rows.num_lacking:
        time.sleep(0.001)
    assert rows._pid == os.getpid()


def test_more_than_is_free_is_refused_when_iterations_begin(
    stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make(stores, "plain, weights", strategy="memory", **HELD)
    monkeypatch.setattr(devices, "available_bytes", lambda: 2000)
    with pytest.raises(BudgetError) as caught:
        next(iter(loader))
    words = str(caught.value)
    assert words.startswith("device_cache= on cpu does not fit, ")
    assert "has 2000 bytes (2 kB) of its memory that is free" in words
    assert "3.84 kB of rows of device_cache=" in words
    assert "to do: lower device_cache= by at least " in words
    monkeypatch.undo()
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader), batches_of(make(stores, "plain, weights")))


def test_on_the_cpu_rows_are_part_of_the_budget(stores: tuple[Path, Path]) -> None:
    for name in ("cpu", "cpu:0", torch.device("cpu", 0)):
        options = HELD | {"device": name}
        loader = make(stores, "plain, weights", strategy="direct", memory="20MB", **options)
        parts = {part.what: part.num_bytes for part in loader._sources.placement.parts}
        assert parts["rows of device_cache="] == 4000
    assert parts["numbers of the device's rows"] == 12 + 8 * (4000 // 240)
    assert "16 rows stay on the device, in 3.84 kB" in loader.stats().reason
