"""What loaders with `device=` must show: checks for a process of their own, and faults they find.

`main` runs checks by name and prints what each came to. With `device="late"` (`late_device`) they
also see the order of what is queued, every copy and all memory; on a GPU, values alone.
"""

from __future__ import annotations

import _thread
import gc
import json
import re
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from itertools import product as product_of
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Data

import gnnstore
from gnnstore import LinkNeighborLoader, NeighborLoader, PartitionPolicy
from gnnstore.converters import from_pyg
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import GnnstoreError
from gnnstore.loaders import device as product
from gnnstore.nn import AdjT
from gnnstore.testing import assert_resumes
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.communities import (
    BATCH_SIZE,
    NUM_BATCHES,
    NUM_COMMUNITIES,
    SEEDS,
    in_windows,
    write_communities,
)
from tests.support.csr import looped_graph
from tests.support.effort import choose, is_long, paired
from tests.support.every_loader import CASES, NODES, ONE_BY_STRATEGY, WAYS, make, write_stores
from tests.support.forks import check_in_fork
from tests.support.packing import pack
from tests.support.twins.held import on_device

Nested = dict[str, Any]
# Where what is kept between epochs may be of the epoch before.
NUM_EPOCHS = choose(2, 3)


# Units with rows for a device, and the batches in them.
UNITS: dict[str, Nested] = {"held": {"superbatch": 2}, "segments": {"superbatch": 4, "segment": 2}}
OF_UNITS: Nested = {"num_neighbors": [3, 2], "input_nodes": range(30), "batch_size": 9}


@dataclass
class Here:
    """The stores, the device, and what the batches without one are."""

    directory: Path
    device: torch.device
    expected: dict[Any, Batches] = field(default_factory=dict)

    @property
    def stores(self) -> tuple[Path, Path]:
        """The stores of every kind of loader, of several types and of one."""
        return self.directory / "typed.gnn", self.directory / "plain.gnn"

    @property
    def path(self) -> Path:
        """The store that has packed epochs and partitions."""
        return self.directory / "csr.gnn"

    @property
    def module(self) -> Any:
        """What torch has for devices of this type."""
        return getattr(torch, self.device.type)

    @property
    def late(self) -> Any:
        """The device that sees all; None on a GPU."""
        return self.module if self.device.type == "late" else None


def write_inputs(directory: Path) -> None:
    """Write the stores that checks read."""
    write_stores(directory)
    path = looped_graph().write(directory / "csr.gnn")
    pack(path, [4, 4], cache_bytes="2kB", superbatch=2)
    pack(path, [4, 4], output=directory / "packed")
    partition(path, 4, name="spread", seed=3)
    partition(path, 10, name="first", train_first="train", seed=3)
    held: Nested = {"device_cache": 4000, "cache_bytes": "2kB", "epochs": NUM_EPOCHS}
    for name, form in UNITS.items():
        seeds, unit = OF_UNITS["input_nodes"], directory / name
        given = held | form | {"batch_size": OF_UNITS["batch_size"]}
        pack(directory / "plain.gnn", OF_UNITS["num_neighbors"], seeds, output=unit, **given)
    write_communities(directory / "communities.gnn")


# --- a consumer ------------------------------------------------------------------------------


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a batch as a dict, with its tensors changed."""
    if isinstance(value, dict):
        return {key: mapped(each, change) for key, each in value.items()}
    return change(value) if isinstance(value, Tensor) else value


def clone(tensor: Tensor) -> Tensor:
    """Return a copy; an `AdjT` of one."""
    return tensor.clone()


def on_host(tensor: Tensor) -> Tensor:
    """Wait for a tensor's values."""
    return tensor.cpu()


def arrays_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors that have the memory of a batch."""
    if isinstance(value, dict):
        for each in value.values():
            yield from arrays_of(each)
    elif isinstance(value, AdjT):
        yield from value.arrays()
    elif isinstance(value, Tensor):
        yield value


def bytes_of(batches: Batches) -> int:
    """Return the bytes of batches' tensors."""
    return sum(array.nbytes for batch in batches for array in arrays_of(batch))


def computed(here: Here, batch: Any) -> Nested:
    """Compute with all tensors of a batch, and write to rows, as layers do that work in place."""
    values = batch.to_dict()
    for array in arrays_of(values):
        assert array.device == here.device, f"{array.device} is not {here.device}"
        assert not array.is_inference()
    found: Nested = mapped(values, clone)
    for array in arrays_of(values):
        if array.dim() > 1 and array.is_floating_point():
            array.zero_()
    return found


def consumed(here: Here, loader: Any, num_epochs: int = 1, *, waits_after: int = 4) -> Batches:
    """Return what a consumer computes on a stream of its own, dropping each batch at once.

    It waits for the device after some batches only, as a loop does that prints its loss.
    """
    stream, found = here.module.Stream(device=here.device), []
    with here.module.stream(stream):
        for _ in range(num_epochs):
            for batch in loader:
                found.append(computed(here, batch))
                del batch
                if len(found) % waits_after == 0:
                    stream.synchronize()
    stream.synchronize()
    return [mapped(values, on_host) for values in found]


def assert_copied_once(here: Here, loader: Any, batches: Batches) -> None:
    """Check that copies were of these batches alone, and asynchronous; rows that stay, once."""
    stats = loader.stats()
    moved, there = stats.bytes_to_device, on_device(loader, batches)
    assert moved == bytes_of(batches) - there.num_bytes
    assert (stats.rows_on_device, stats.rows_kept) == (there.num_rows, there.num_kept)
    if here.late is not None:
        other = stats.device_cache_bytes + there.numbers_bytes
        assert sum(copy.num_bytes for copy in here.late.copies) == moved + other
        assert all(copy.is_pinned and copy.is_asynchronous for copy in here.late.copies)
        assert {copy.device for copy in here.late.copies} <= {here.device}


def assert_equal(
    here: Here, make_loader: Callable[..., Any], key: Any = None, num_epochs: int = choose(1, 2)
) -> None:
    """Check that batches on the device equal those in the host's memory."""
    expected = here.expected.get(key)
    if key is None or expected is None:
        expected = here.expected[key] = batches_of(make_loader(), num_epochs)
    if here.late is not None:
        here.late.reset()
    loader = make_loader(device=here.device)
    found = consumed(here, loader, num_epochs)
    if here.late is not None:
        assert here.late.races == [], "\n".join(here.late.races[:3])
    assert_same_batches(found, expected)
    assert_copied_once(here, loader, expected)


def assert_in_windows(
    here: Here, make_loader: Callable[..., Any], reorder: int, num_epochs: int = NUM_EPOCHS
) -> Any:
    """Check batches in the order of windows, which keeps as many rows as the plain one or more."""
    plain = batches_of(make_loader(), num_epochs)
    num_batches = len(plain) // num_epochs
    epochs = [plain[first:][:num_batches] for first in range(0, len(plain), num_batches)]
    expected = [batch for epoch in epochs for batch in in_windows(epoch, reorder)]
    if here.late is not None:
        here.late.reset()
    loader = make_loader(device=here.device, reorder=reorder)
    found = consumed(here, loader, num_epochs)
    if here.late is not None:
        assert here.late.races == [], "\n".join(here.late.races[:3])
    assert_same_batches(found, expected)
    assert_copied_once(here, loader, expected)
    return loader


# --- checks ----------------------------------------------------------------------------------

Check = Callable[[Here], None]
CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    """Register a check by a name."""

    def register(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return register


def _register_every_way() -> None:
    for number, (case, way) in enumerate(
        # In `make test` one way by each strategy; more cases are tried with a device in
        # `test_device_cache` and `test_matched`.
        paired(choose(CASES[::3], CASES), choose(ONE_BY_STRATEGY, WAYS), 1)
    ):
        # Bidirectional edges as a matrix are refused, with a device and without.
        formats = ("coo",) if case == "nodes, bidirectional" else ("coo", "csr")
        for edge_format in choose(formats[number % len(formats) :][:1], formats):

            def equal(here: Here, case: str = case, of: str = edge_format, way: Any = way) -> None:
                def loader(**options: Any) -> Any:
                    if case in NODES:
                        options["batch_size"] = choose(14, 6)
                    return make(here.stores, case, edge_format=of, **way | options)

                assert_equal(here, loader, (case, of))

            words = "-".join(map(str, way.values()))
            CHECKS[f"{case}: {words}, {edge_format}"] = equal


_register_every_way()

OF_PATH: dict[str, Nested] = {
    "packed epochs": {"packed": "base"},
    "partitions": {"partitions": PartitionPolicy("dispersed", capacity=2, name="spread")},
    "partitions in turn": {"partitions": PartitionPolicy("sequential", capacity=8, name="first")},
    "no threads": {"strategy": "memory", "num_threads": 0},
    "three threads": {"strategy": "packed", "superbatch": 2, "num_threads": 3},
    "rows that stay": {"strategy": "memory", "num_threads": 0, "device_cache": "4kB"},
    "all rows stay": {"strategy": "belady", "superbatch": 2, "device_cache": "1GB"},
    "kept rows": {"strategy": "memory", "num_threads": 0, "reorder": 1},
    "kept rows, planned": {"strategy": "belady", "superbatch": 2, "reorder": 1},
    "kept rows beside others": {
        "strategy": "packed",
        "superbatch": 2,
        "num_threads": 3,
        "device_cache": "2kB",
        "reorder": 1,
    },
    "kept rows of partitions": {
        "partitions": PartitionPolicy("dispersed", capacity=2, name="spread"),
        "reorder": 1,
    },
}


def loader_of(here: Here, **options: Any) -> Any:
    """Return a loader of the store that has packed epochs and partitions."""
    given: Nested = {"batch_size": 50, "shuffle": True, "seed": 3} | options
    if "device" not in given:
        given.pop("device_cache", None)
        given.pop("reorder", None)
    return NeighborLoader(here.path, given.pop("fanouts", [4, 4]), "train", **given)


def _register_ways_of_path() -> None:
    for number, (name, options) in enumerate(OF_PATH.items(), 1):
        formats = ("coo", None), ("csr", "edge_weight")
        for edge_format, value in choose(formats[number % 2 :][:1], formats):
            given = {**options, "edge_format": edge_format, "adj_value": value}

            def equal(here: Here, given: Nested = given) -> None:
                assert_equal(here, lambda **device: loader_of(here, **given, **device))

            CHECKS[f"{name}, {edge_format}"] = equal


_register_ways_of_path()


@check("packed epochs without the store")
def _packed(here: Here) -> None:
    packed = gnnstore.open_packed(here.directory / "packed")
    assert_equal(here, packed.loader)


@check("links by partitions")
def _links(here: Here) -> None:
    policy = PartitionPolicy(capacity=2, name="spread")

    def loader(**device: Any) -> Any:
        return LinkNeighborLoader(
            here.path, [3, 2], partitions=policy, batch_size=300, seed=3, **device
        )

    assert_equal(here, loader)


@check("rows of several types that stay")
def _typed(here: Here) -> None:
    for case, way in (("nodes, disjoint", "memory"), *choose((), (("links", "packed"),))):

        def loader(case: str = case, way: str = way, **options: Any) -> Any:
            if "device" in options:
                options["device_cache"] = "6kB"
            return make(here.stores, case, strategy=way, batch_size=choose(14, 6), **options)

        assert_equal(here, loader, None, 2)


@check("rows that stay once a step has been done")
def _by_step(here: Here) -> None:
    for way in ({"strategy": "memory", "num_threads": 0}, {"strategy": "belady", "superbatch": 2}):
        loader = loader_of(here, device=here.device, device_cache="auto", **way)
        with torch.no_grad():  # as validation before training
            found = consumed(here, loader)
        rows = loader._placer.rows
        assert rows.num_bytes == 0
        found += consumed(here, loader)
        while not rows.num_bytes or rows.num_lacking:
            time.sleep(0.001)
        found += consumed(here, loader)
        before = loader.stats()
        assert before.device_cache_bytes == rows.chosen.num_bytes > 0
        found += consumed(here, loader)
        since = loader.stats().since(before)
        assert since.rows_on_device == since.nodes
        if here.late is not None:
            assert here.late.races == []
        assert_same_batches(found, batches_of(loader_of(here), 4))


@check("windows of batches")
def _windows(here: Here) -> None:
    """Give the greedy order, in windows of several lengths; rows moved are the twin's."""
    ways: list[Nested] = [
        {"strategy": "belady", "superbatch": 6, "cache_bytes": "2kB", "num_threads": 0},
        {"strategy": "packed", "superbatch": 6, "num_threads": 3, "device_cache": "2kB"},
    ]
    for way, reorder in product_of(ways, choose((3,), (2, 3, 9))):
        assert_in_windows(here, partial(loader_of, here, **way), reorder)


@check("windows of communities")
def _communities(here: Here) -> None:
    """Move as many rows in windows of K as by turns, and fewer in windows of 4 K."""

    def loader(**options: Any) -> Any:
        options.setdefault("num_threads", 0)
        given: Nested = {"batch_size": BATCH_SIZE, "seed": 3, "cache_bytes": "2kB"}
        given |= {"strategy": "belady"} | options
        if "device" not in given:
            given.pop("reorder", None)
        return NeighborLoader(here.directory / "communities.gnn", [4, 4], SEEDS, **given)

    plain = loader(superbatch=NUM_BATCHES)
    all(plain)
    moved: dict[int, int] = {}
    for reorder in (1, *choose((), (NUM_COMMUNITIES,)), 4 * NUM_COMMUNITIES):
        size = NUM_BATCHES if reorder == 1 else 4 * NUM_COMMUNITIES
        made = partial(loader, superbatch=size)
        stats = assert_in_windows(here, made, reorder, choose(1, NUM_EPOCHS)).stats()
        moved[reorder] = stats.nodes - stats.rows_kept
        if reorder == 1:  # in one superbatch Belady's cache misses no more
            assert stats.rows_read <= choose(1, NUM_EPOCHS) * plain.stats().rows_read
    assert moved.get(NUM_COMMUNITIES, moved[1]) == moved[1]
    assert moved[4 * NUM_COMMUNITIES] <= 0.75 * moved[1]


def of_units(here: Here, **options: Any) -> Any:
    """Return a loader of the batches of units that have rows for a device."""
    return NeighborLoader(here.stores[1], shuffle=True, seed=3, **OF_UNITS, **options)


@check("rows for a device in packed epochs")
def _packed_rows(here: Here) -> None:
    """From the unit alone and with its store, without threads and with some."""
    here.expected["units"] = batches_of(of_units(here), NUM_EPOCHS)
    ways = list(product_of(UNITS, (0, 3), (False, True)))  # whether its store is there
    for unit, num_threads, is_beside in choose([ways[0], ways[-1]], ways):
        path = here.directory / unit
        make_loader: Callable[..., Any] = (
            partial(of_units, here, packed=path) if is_beside else gnnstore.open_packed(path).loader
        )
        loader = partial(make_loader, num_threads=num_threads)
        assert_equal(here, loader, "units", NUM_EPOCHS)


@check("resuming with rows for a device in packed epochs")
def _resuming_packed_rows(here: Here) -> None:
    """In the unit, and from there without it."""
    unit, expected = here.directory / "held", batches_of(of_units(here), 2)
    loader = gnnstore.open_packed(unit).loader(device=here.device)
    for batch in islice(loader, 2):
        del batch
    state = json.loads(json.dumps(loader.state_dict()))
    for again in (
        gnnstore.open_packed(unit).loader(device=here.device, num_threads=0),
        of_units(here, device=here.device, strategy="packed", superbatch=2, reorder=1),
    ):
        again.load_state_dict(state)
        assert_same_batches(consumed(here, again, 2), expected[2:])
    if is_long():
        assert_resumes(lambda: gnnstore.open_packed(unit).loader(device=here.device))


@check("resuming")
def _resuming(here: Here) -> None:
    ways: list[Nested] = [
        {"strategy": "belady", "superbatch": 2, "cache_bytes": "2kB"},
        {"packed": "base"},
        {"strategy": "memory", "num_threads": 0},
        {"strategy": "packed", "superbatch": 2, "reorder": 1},
    ]
    expected = batches_of(loader_of(here), 2)
    for way, other in [*zip(ways, [*ways[1:], ways[0]], strict=True)][:: choose(2, 1)]:
        loader = loader_of(here, device=here.device, **way)
        for batch in islice(loader, 2):
            del batch
        resumed = loader_of(here, device=here.device, **other)
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert_same_batches(consumed(here, resumed, 2), expected[2:])
        if is_long():
            assert_resumes(lambda way=way: loader_of(here, device=here.device, **way))  # type: ignore[misc]


@check("resuming in a window")
def _resuming_in_windows(here: Here) -> None:
    """Go on where the first batch after a stop has no other before it."""
    way: Nested = {"strategy": "belady", "superbatch": 3, "reorder": 3, "device": here.device}
    plain = batches_of(loader_of(here), 2)
    expected = in_windows(plain[: len(plain) // 2], 3) + in_windows(plain[len(plain) // 2 :], 3)
    loader = loader_of(here, **way)
    for batch in islice(loader, 2):
        del batch
    resumed = loader_of(here, **way | {"strategy": "packed", "superbatch": 6, "num_threads": 0})
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert_same_batches(consumed(here, resumed, 2), expected[2:])
    if is_long():
        assert_resumes(lambda: loader_of(here, **way))


@check("odd element types")
def _odd(here: Here) -> None:
    rng, num_nodes = torch.Generator().manual_seed(1), 61

    def drawn(*shape: int) -> Tensor:
        return torch.randint(-100, 100, (num_nodes, *shape), generator=rng)

    data = Data(
        x=drawn(37).bfloat16(),
        h=drawn(67).to(torch.int8),
        scale=drawn().half(),
        wide=drawn(5).abs().to(torch.uint16),
        bits=drawn(4, 3) > 0,
        colour=drawn(3).abs().to(torch.uint8),
        nothing=torch.zeros(num_nodes, 0),
        y=drawn(),
        edge_index=torch.randint(0, num_nodes, (2, 150), generator=rng),
        edge_mark=torch.rand(150, generator=rng) < 0.5,
    )
    store: Any = gnnstore.open(from_pyg(data, here.directory / "odd.gnn"))
    store.phase = torch.complex(drawn(2).float(), drawn(2).float())
    for replace in (False, True):  # and nodes twice in a batch

        def loader(replace: bool = replace, **device: Any) -> Any:
            return NeighborLoader(
                store, [3, 3], batch_size=7, replace=replace, disjoint=replace, seed=1, **device
            )

        assert_equal(here, loader)


@check("labels alone, and batches of nothing")
def _bare(here: Here) -> None:
    edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    data = Data(y=torch.arange(5), edge_index=edge_index, num_nodes=5)
    path = from_pyg(data, here.directory / "bare.gnn")
    options: Nested = {"batch_sampler": [[0, 1], [], [4], [2, 3, 0]], "seed": 1}
    assert_equal(here, lambda **device: NeighborLoader(path, [2], **options, **device))


@check("the batch as it is handed out")
def _moved(here: Here) -> None:
    """Copy nothing that is there, and transform it there, in the consumer's thread."""
    seen: list[Any] = []

    def transform(batch: Any) -> Any:
        seen.append((batch.x.device, threading.get_ident()))
        batch.x = batch.x * 2
        return batch

    options: Nested = {"device": here.device, "edge_format": "csr", "adj_value": "edge_weight"}
    loader = loader_of(here, transform=transform, **options)
    batch = next(iter(loader))
    arrays = [*arrays_of(batch.to_dict())]
    assert seen == [(here.device, threading.get_ident())]
    again = [*arrays_of(batch.to(here.device, non_blocking=True).to_dict())]
    assert all(one is other for one, other in zip(arrays, again, strict=True))
    assert batch.adj_t.to(here.device.type) is batch.adj_t
    expected = next(iter(loader_of(here))).x * 2
    assert torch.equal(batch.x.cpu(), expected)
    trip = loader_of(here, transform_sampler_output=lambda output: output, device=here.device)
    assert_same_batches(consumed(here, trip), batches_of(loader_of(here)))
    found = mapped(loader_of(here, device=here.device)([3, 4]).to_dict(), on_host)
    assert_same_batches([found], [loader_of(here)([3, 4]).to_dict()])


@check("a consumer in inference_mode")
def _inference(here: Here) -> None:
    expected = batches_of(loader_of(here), 2)
    for num_threads in (0, 2):
        loader = loader_of(here, device=here.device, num_threads=num_threads)
        with torch.inference_mode():
            stream = here.module.Stream(device=here.device)
            with here.module.stream(stream):
                found = [mapped(batch.to_dict(), clone) for batch in loader]
            stream.synchronize()
            found = [mapped(values, on_host) for values in found]
        assert_same_batches(found + consumed(here, loader), expected)


@check("batches are few on the device")
def _peak(here: Here) -> None:
    """At most five batches, whatever runs ahead; and the memory goes with the loader."""
    _check_peak(here, 5)


@check("batches and kept rows are few on the device")
def _peak_with_kept(here: Here) -> None:
    """One more than without."""
    _check_peak(here, 6, reorder=1)


def _check_peak(here: Here, most: int, **options: Any) -> None:
    largest = max(bytes_of([batch]) for batch in batches_of(loader_of(here, batch_size=20)))
    held = here.module.memory_allocated(here.device)
    options |= {"device": here.device, "batch_size": 20, "num_threads": 4, "prefetch_batches": 8}
    loader = loader_of(here, **options)
    if here.late is not None:
        here.late.reset()
    else:
        here.module.reset_peak_memory_stats(here.device)
    for batch in loader:
        del batch
    spare = 0 if here.late is not None else 4 << 20  # blocks of torch's
    assert here.module.max_memory_allocated(here.device) - held <= most * largest + spare
    del loader
    gc.collect()
    here.module.synchronize(here.device)
    assert here.module.memory_allocated(here.device) <= held


@check("memory of rows that stay")
def _peak_of_rows(here: Here) -> None:
    """Next to them, batches are as few; and the memory goes with the last loader."""
    options: Nested = {"device": here.device, "batch_size": 20, "device_cache": "4kB"}
    largest = max(map(bytes_of, ([batch] for batch in batches_of(loader_of(here, batch_size=20)))))
    held = here.module.memory_allocated(here.device)
    loader = loader_of(here, num_threads=4, prefetch_batches=8, **options)
    if here.late is not None:
        here.late.reset()
    for batch in loader:
        del batch
    there = loader.stats().device_cache_bytes
    if here.late is not None:
        most = here.module.max_memory_allocated(here.device) - held
        assert most <= there + 5 * largest
    del loader
    gc.collect()
    here.module.synchronize(here.device)
    assert here.module.memory_allocated(here.device) <= held


@check("a failing batch")
def _failing(here: Here) -> None:
    """Raise the error of that batch; those behind it, which wait for their turn, end."""
    for num_threads in (0, 1, 4):
        loader = loader_of(here, device=here.device, num_threads=num_threads, prefetch_batches=6)
        assemble, failed = loader._assembler.assemble, list[Any]()

        def fail(batch: Any, *rest: Any, assemble: Any = assemble, failed: Any = failed) -> None:
            if batch.key.batch == 2 and not failed:
                failed.append(batch)
                raise ValueError("the third batch")
            assemble(batch, *rest)

        object.__setattr__(loader._assembler, "assemble", fail)
        batches = iter(loader)
        for batch in islice(batches, 2):
            del batch
        with pytest.raises(ValueError, match="the third batch"):
            next(batches)
        loader.set_epoch(0)
        assert_same_batches(consumed(here, loader), batches_of(loader_of(here)))


@check("Ctrl-C while batches wait for their turn")
def _interrupted(here: Here) -> None:
    loader = loader_of(here, device=here.device, num_threads=3)
    # Python drops an interrupt that comes within the callback of a weak reference.
    assert any(_is_interrupted(loader) for _ in range(3))
    loader.set_epoch(0)
    assert_same_batches(consumed(here, loader), batches_of(loader_of(here)))


def _is_interrupted(loader: Any) -> bool:
    submit, entered, goes_on = product.TorchDevice.submit, threading.Event(), threading.Event()
    numbers = count()

    def slow(self: Any, work: Callable[[], Any]) -> Any:
        if next(numbers) == 1:
            entered.set()
            goes_on.wait()
        return submit(self, work)

    def interrupt() -> None:
        entered.wait()
        _thread.interrupt_main()
        goes_on.set()

    thread = threading.Thread(target=interrupt)
    product.TorchDevice.submit = slow  # type: ignore[method-assign]
    thread.start()
    try:
        all(loader)
    except KeyboardInterrupt:
        return True
    finally:
        product.TorchDevice.submit = submit  # type: ignore[method-assign]
        thread.join()
    return False


@check("loops that are left early")
def _left(here: Here) -> None:
    expected = batches_of(loader_of(here))
    loader = loader_of(here, device=here.device, num_threads=3)
    for num_batches in (1, 3, 2):
        loader.set_epoch(0)
        found = consumed(here, islice(loader, num_batches))
        assert_same_batches(found, expected[:num_batches])


# Of the late device alone: a machine has one GPU at least.


@check("the current device")
def _chosen(here: Here) -> None:
    """Take the one of the first iteration, and keep it: each call names it."""
    module, first, second = here.module, here.device, torch.device(here.device.type, 1)
    if module.device_count() < 2:
        return
    expected = batches_of(loader_of(here), 2)
    loader = loader_of(here, device=here.device.type)
    module.set_device(1)
    try:
        batches = iter(loader)
        found = [mapped(next(batches).to_dict(), on_host)]
        module.set_device(0)
        found += consumed(Here(here.directory, second), batches)
        found += consumed(Here(here.directory, second), loader)
        assert_same_batches(found, expected)
        other = loader_of(here, device=first)
        other_batches = iter(other)
        loader.set_epoch(0)
        for batch, theirs in zip(loader, other_batches, strict=True):
            assert (batch.x.device, theirs.x.device) == (second, first)
            assert torch.equal(batch.x.cpu(), theirs.x.cpu())
    finally:
        module.set_device(0)


@check("a forked child")
def _forked(here: Here) -> None:
    loader = loader_of(here, device=here.device, num_threads=0)
    next(iter(loader))

    def child() -> None:
        with pytest.raises(GnnstoreError, match="fork"):
            next(iter(loader))

    check_in_fork(child)


@check("pinned memory that cannot be had")
def _unpinned(here: Here) -> None:
    def refuse(num_bytes: int) -> Tensor:
        raise RuntimeError("CUDA error: operation not supported")

    before, product.pinned_memory = product.pinned_memory, refuse
    try:
        expected = batches_of(loader_of(here), 2)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            loader = loader_of(here, device=here.device, num_threads=2)
            found = consumed(here, loader, 2)
            found += consumed(here, loader_of(here, device=here.device, num_threads=0))
        assert_same_batches(found, expected + expected[: len(expected) // 2])
        assert len([each for each in said if "pinned" in str(each.message)]) == 1
        if here.late is not None:
            assert here.late.races == []
            assert not any(copy.is_pinned or copy.is_asynchronous for copy in here.late.copies)
    finally:
        product.pinned_memory = before
        product.TorchDevice.of(here.device).pins = True


@check("memory that ends")
def _ends(here: Here) -> None:
    if here.late is None:
        return
    for num_threads in (0, 2):
        loader = loader_of(here, device=here.device, num_threads=num_threads)
        batches = iter(loader)
        del loader
        next(batches)
        here.late.limit_bytes = 1
        try:
            with pytest.raises((GnnstoreError, RuntimeError)) as caught:
                all(batches)
        finally:
            here.late.limit_bytes = None
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert re.search(r"batch \d+ of epoch 0", text), text
        assert re.search(r"\d+ (bytes|[kMG]B|[KMG]iB)", text), text
        assert "batch_size" in text, text


# --- alone in a process ----------------------------------------------------------------------


class _Recorder(TorchFunctionMode):
    """In place of `torch.cuda`, in the thread that prepares batches: tensors stay on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.copy_:
            self.calls.append(("copy_", kwargs.get("non_blocking", False)))
        device = kwargs.get("device")
        if isinstance(device, torch.device) and device.type == "cuda":
            self.calls.append((func.__name__, device))
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


class _Calls:
    """What `torch.cuda` is in place of: it notes what it is called for, and does nothing."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self.calls = calls
        self.device_type = torch.device("cuda", 1)

    def device_count(self) -> int:
        return 2

    def _is_in_bad_fork(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, *args, *kwargs.values()))
            return _Called(self, name)

        return call


class _Called:
    """A stream, an event or a context."""

    def __init__(self, module: _Calls, name: str) -> None:
        self.device = module.device_type
        self._module, self._name = module, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self._module.calls.append((f"{self._name}.{name}",))


def recorded(here: Here) -> None:
    """Check the calls of `torch.cuda`: none at construction, then each with its device."""
    expected = batches_of(loader_of(here))
    mode = _Recorder()
    torch.cuda = _Calls(mode.calls)  # type: ignore[assignment]
    product.pinned_memory = lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8)

    def record(_: Tensor, stream: Any) -> None:  # torch's refuses what is not a stream
        mode.calls.append(("record_stream", stream.device))

    Tensor.record_stream = record  # type: ignore[assignment, method-assign]
    loader = loader_of(here, device="cuda:1", num_threads=0)
    assert mode.calls == []
    with mode:
        found = batches_of(loader)
    assert_same_batches(found, expected)
    by_name: dict[str, list[tuple[Any, ...]]] = {}
    for name, *given in mode.calls:
        by_name.setdefault(name, []).append(tuple(given))
    first = torch.device("cuda", 1)
    for name in ("Stream", "current_stream", "device"):
        assert set(by_name.get(name, [(first,)])) == {(first,)}, (name, by_name[name])
    assert set(by_name["empty"]) == {(first,)}
    assert set(by_name["copy_"]) == {(True,)}
    assert set(by_name["record_stream"]) == {(first,)}
    assert by_name["current_stream.wait_event"]
    assert "current_device" not in by_name
    assert "synchronize" not in by_name


def constructed(here: Here) -> None:
    """Check that loaders of all kinds are made without a device being touched."""
    assert here.late is not None
    for options in ({}, *OF_PATH.values()):
        loader_of(here, device=here.device, **options)
    gnnstore.open_packed(here.directory / "packed").loader(device=here.device)
    LinkNeighborLoader(here.path, [3], batch_size=9, device=here.device.type)
    assert not here.late.is_initialized()


ALONE: dict[str, Check] = {"recorded": recorded, "constructed": constructed}


# --- faults that checks must find ------------------------------------------------------------


def _waiting(stream_of: Callable[[Any, Any], Any], *, waits: bool, records: bool) -> Any:
    """Return a `TorchDevice.wait` that leaves something out, or takes another stream."""

    def wait(self: Any, event: Any, tensors: Any) -> None:
        module = getattr(torch, self.device.type)
        stream = stream_of(module, self.device)
        if waits:
            stream.wait_event(event)
        for tensor in tensors if records else ():
            tensor.record_stream(stream)

    return wait


def _keeping_the_users(self: Any, missed: Any, joined: Any = product._Joining.joined) -> Tensor:
    """Join the rows of an attribute, and keep the user's own where all are missed."""
    found: Tensor = joined(self, missed)
    if len(missed.split.missed) == missed.split.num_rows and missed.path in self.kept:
        self.kept[missed.path] = product.as_words(found)
    return found


def _current(module: Any, device: torch.device) -> Any:
    return module.current_stream(device)


# Where each is in the product, and what takes its place.
FAULTS: dict[str, tuple[Any, str, Any]] = {
    "none": (product.TorchDevice, "wait", _waiting(_current, waits=True, records=True)),
    "no wait": (product.TorchDevice, "wait", _waiting(_current, waits=False, records=True)),
    "no record_stream": (
        product.TorchDevice,
        "wait",
        _waiting(_current, waits=True, records=False),
    ),
    "a wait on the default stream": (
        product.TorchDevice,
        "wait",
        _waiting(lambda module, device: module.default_stream(device), waits=True, records=True),
    ),
    "a block reused early": (product.TorchDevice, "has_happened", lambda *_: True),
    "kept rows that are the user's": (product._Joining, "joined", _keeping_the_users),
}


def _fill_what_is_given_back(byte: int) -> None:
    """Write over staging memory as soon as another batch may take it."""
    give = product.StagingRing.give

    def filled(self: product.StagingRing, block: product.StagingBlock) -> None:
        for chunk in block.chunks:
            chunk.memory.fill_(byte)
        give(self, block)

    product.StagingRing.give = filled  # type: ignore[method-assign]


def run(here: Here, name: str) -> str:
    """Run a check, and return its failure, or nothing."""
    if here.late is not None:
        here.late.reset()
    try:
        (CHECKS | ALONE)[name](here)
    except BaseException:
        return traceback.format_exc()
    finally:
        gc.collect()  # the collector is off: what it frees may wait for threads
    return ""


def main(directory: Path, device: str, names: list[str], fault: str | None) -> None:
    """Run checks, with a fault of the product or without, and print their failures as JSON."""
    gc.disable()
    if device == "late":
        from tests.support import late_device  # noqa: PLC0415 - it changes torch

        chosen, product.pinned_memory = late_device.install(), late_device.pinned
        _fill_what_is_given_back(late_device.FILL)
    else:
        chosen = torch.device(device, 0)
    if fault is not None:
        owner, name, value = FAULTS[fault]
        setattr(owner, name, value)
    here = Here(directory, chosen)
    print(json.dumps({name: run(here, name) for name in names}))
