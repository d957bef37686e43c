"""The way of a batch to a device: staging memory, the order of placing, and what ends it."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import gnnstore
from gnnstore.errors import ResourceError, UsageError
from gnnstore.features.static import FILLING_THREAD
from gnnstore.loaders import device as devices
from gnnstore.loaders.device import (
    BatchPlacer,
    StagingRing,
    TorchDevice,
    _Joining,
    copied,
    mapped,
)
from gnnstore.nn import AdjT
from gnnstore.pipeline.batch import Batch
from gnnstore.seeds.base import BatchKey
from gnnstore.strategies.device_rows import auto_bytes
from gnnstore.testing import assert_same_batches
from gnnstore.threads import CancelledError
from tests.support.effort import choose
from tests.support.stores import write_example_store

NAME = "privateuseone"


class Happening:
    """An event, which happens when a test says so."""

    def __init__(self, **_: Any) -> None:
        self.has_happened = False

    def record(self, stream: Any) -> None:
        pass

    def query(self) -> bool:
        return self.has_happened


class Module:
    """In place of `torch.cuda`."""

    Event = Happening

    def Stream(self, device: torch.device) -> Any:  # noqa: N802, ARG002
        return self

    def wait_event(self, event: Any) -> None:
        pass

    def current_device(self) -> int:
        return 1

    def device_count(self) -> int:
        return 2

    def current_stream(self, _: Any) -> Any:
        return self

    def device(self, _: Any) -> Any:
        return nullcontext()

    stream = device


class Device(TorchDevice):
    """A device whose tensors are on the CPU, for want of another one."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.events: list[Happening] = []

    def empty(self, shape: Iterable[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def moved(self, tensor: Tensor) -> Tensor:
        return tensor if tensor.is_meta else tensor.clone()

    def record(self) -> Happening:
        self.events.append(super().record())
        return self.events[-1]

    def mark(self) -> Happening:
        event: Happening = super().mark()
        event.has_happened = True
        return event

    def wait(self, event: Any, tensors: Iterable[Tensor]) -> None:
        pass


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Return the device of each loader that asks for one."""
    monkeypatch.setattr(torch, NAME, Module(), raising=False)
    monkeypatch.setattr(devices, "pinned_memory", lambda n: torch.empty(n, dtype=torch.uint8))
    found = Device(torch.device(NAME, 0))
    monkeypatch.setattr(TorchDevice, "of", lambda _: found)
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("device") / "s.gnn"
    write_example_store(path, num_nodes=60, num_edges=300)
    return path


def loader_of(path: Path, **options: Any) -> gnnstore.NeighborLoader:
    given: dict[str, Any] = {"batch_size": 8, "seed": 0, "device": NAME, **options}
    return gnnstore.NeighborLoader(path, [3, 3], **given)


# --- a device of torch's ---------------------------------------------------------------------


def test_a_device_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, NAME, Module(), raising=False)
    monkeypatch.setattr(devices, "_opened", {})
    found = TorchDevice.of(torch.device(NAME))
    assert found.device == torch.device(NAME, 1)
    assert TorchDevice.of(torch.device(NAME, 1)) is found
    assert TorchDevice.of(torch.device(NAME, 0)) is not found


def test_a_process_that_was_forked_from_one_with_the_device_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Module()
    monkeypatch.setattr(torch, NAME, module, raising=False)
    monkeypatch.setattr(devices, "_opened", {})
    words = "this process was forked from one that has used the device"
    found = TorchDevice.of(torch.device(NAME, 0))
    found.pid -= 1  # as in a child
    with pytest.raises(UsageError, match=words):
        TorchDevice.of(torch.device(NAME, 1))
    monkeypatch.setattr(devices, "_opened", {})
    monkeypatch.setattr(module, "_is_in_bad_fork", lambda: True, raising=False)
    with pytest.raises(UsageError, match=words):
        TorchDevice.of(torch.device(NAME))


def test_the_allocator_of_another_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Module()
    monkeypatch.setattr(torch, NAME, module, raising=False)
    monkeypatch.setattr(devices, "_opened", {})
    monkeypatch.setattr(module, "get_allocator_backend", lambda: "pluggable", raising=False)
    with pytest.raises(UsageError, match=r"another library's allocator .* leave the option out"):
        TorchDevice.of(torch.device(NAME))
    monkeypatch.setattr(module, "get_allocator_backend", lambda: "native")
    assert TorchDevice.of(torch.device(NAME, 0)).device == torch.device(NAME, 0)


def test_a_loader_finds_out_in_a_child_of_its_process(path: Path, device: Device) -> None:
    loader = loader_of(path, num_threads=0)
    batches = iter(loader)
    next(batches)
    device.pid -= 1
    asked: list[torch.device] = []

    def refuse(found: torch.device) -> Any:
        asked.append(found)
        raise UsageError("not here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchDevice, "of", refuse)
        with pytest.raises(UsageError, match="not here"):
            next(batches)
    assert asked == [torch.device(NAME)]


def test_memory_that_cannot_be_pinned_is_ordinary_and_told_once(
    path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> Any:
        raise RuntimeError("no more of it\nand a trace")

    monkeypatch.setattr(devices, "pinned_memory", refuse)
    copies, copy = list[bool](), Tensor.copy_

    def counted(to: Tensor, own: Tensor, non_blocking: bool) -> Tensor:
        copies.append(non_blocking)
        return copy(to, own)

    monkeypatch.setattr(Tensor, "copy_", counted)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = list(loader_of(path, num_threads=2))
    monkeypatch.undo()
    (warning,) = told
    assert str(warning.message) == (
        "device='privateuseone:0': memory cannot be pinned (no more of it), so that batches are "
        "copied from ordinary memory, which takes longer and is waited for; raise the limit on "
        "locked memory (ulimit -l, or the container's)"
    )
    assert copies
    assert not any(copies)
    expected = [batch.to_dict() for batch in loader_of(path, device=None)]
    assert_same_batches([batch.to_dict() for batch in found], expected)


# --- rows that stay ---------------------------------------------------------------------------


def test_auto_leaves_room_for_later_steps() -> None:
    gib = 1 << 30
    assert auto_bytes(10 * gib, 0) == 9 * gib
    assert auto_bytes(10 * gib, 8 * gib) == 9 * gib
    assert auto_bytes(10 * gib, 16 * gib) == 8 * gib  # an eighth more than the most so far
    assert auto_bytes(gib - 1, gib) == 0


@pytest.mark.parametrize("share", [*choose([], [1]), 2, 4])
def test_auto_takes_half_of_what_cannot_be_had_and_then_nothing(
    path: Path, device: Device, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    loader = loader_of(path, device_cache="auto", num_threads=0)
    row_bytes = loader._sources.chosen.tables.slot_bytes
    wanted = 40 * row_bytes
    monkeypatch.setattr(device, "free_bytes", lambda: (wanted, 0), raising=False)
    monkeypatch.setattr(device, "most_bytes", lambda: 0, raising=False)
    monkeypatch.setattr(devices, "auto_bytes", lambda free, most: free - most)
    make = device.empty

    def limited(shape: Iterable[int], dtype: torch.dtype) -> Tensor:
        if threading.current_thread().name == FILLING_THREAD:
            size = tuple(shape)
            if size[0] * size[1] > wanted // share:
                raise torch.OutOfMemoryError("no")
            return make(size, dtype)
        return make(shape, dtype)

    monkeypatch.setattr(device, "empty", limited)
    told: list[str] = []
    monkeypatch.setattr(warnings, "warn", lambda text, *_, **__: told.append(text))
    batches = iter(loader)
    found = [next(batches)]
    placer: Any = loader._placer
    assert placer.rows.chosen.scores is not None
    found += list(batches)
    while placer.rows.num_lacking or not (told or placer.rows.num_bytes):
        time.sleep(0.001)
    assert placer.rows.num_bytes == {1: wanted, 2: wanted // 2, 4: 0}[share]
    assert len(told) == (share == 4)
    assert not told or "neither" in told[0]
    found += list(loader)
    plain = loader_of(path, device=None)
    expected = [batch.to_dict() for _ in range(2) for batch in plain]
    assert_same_batches([batch.to_dict() for batch in found], expected)


def test_auto_needs_a_device_whose_memory_is_known(
    path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "free_bytes", lambda: None, raising=False)
    with pytest.raises(UsageError, match="does not say how much memory of 'privateuseone:0' is"):
        next(iter(loader_of(path, device_cache="auto")))


def test_rows_that_do_not_fit_after_all_are_an_error_that_names_them(
    path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "free_bytes", lambda: None, raising=False)
    loader = loader_of(path, device_cache="5kB")
    make = device.empty

    def refuse(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("no\nmore")

    monkeypatch.setattr(device, "empty", refuse)
    with pytest.raises(
        ResourceError, match=r"cannot keep \d+ rows on .*\(no\); lower device_cache="
    ):
        next(iter(loader))
    monkeypatch.setattr(device, "empty", make)
    loader.set_epoch(0)
    plain = loader_of(path, device=None)
    assert_same_batches([b.to_dict() for b in loader], [b.to_dict() for b in plain])


def test_names_of_one_device_share_rows_of_a_size(path: Path, device: Device) -> None:
    store = gnnstore.open(path)
    loaders = [loader_of(store, device=name, device_cache="5kB") for name in (NAME, f"{NAME}:0")]
    for loader in loaders:
        next(iter(loader))
    one, other = (cast("BatchPlacer", loader._placer) for loader in loaders)
    assert one.rows is other.rows is not None


def test_auto_is_of_one_device(path: Path, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one has as many rows as its own memory leaves room for."""
    monkeypatch.setattr(Device, "free_bytes", lambda _: (0, 0))
    store = gnnstore.open(path)
    first = loader_of(store, device_cache="auto")
    next(iter(first))
    now = Device(torch.device(NAME, 1))
    monkeypatch.setattr(TorchDevice, "of", lambda _: now)
    loader = loader_of(store, device_cache="auto")
    words = f'chosen by the memory of {NAME}:0, .* name it: device="{NAME}:1"'
    with pytest.raises(UsageError, match=words):
        next(iter(loader))
    next(iter(loader_of(store, device=f"{NAME}:1", device_cache="auto")))


def test_names_of_one_device_are_one_choice_of_auto(
    path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first has done counts for the other one, which was made before or comes later."""
    monkeypatch.setattr(Device, "free_bytes", lambda _: (9000, 0))
    monkeypatch.setattr(Device, "most_bytes", lambda _: 0)
    monkeypatch.setattr(devices, "auto_bytes", lambda free, most: free - most)
    store = gnnstore.open(path)
    options: dict[str, Any] = {"device_cache": "auto", "num_threads": 0}
    index = device.device.index
    first, other = (loader_of(store, device=name, **options) for name in (NAME, f"{NAME}:{index}"))
    all(first)
    rows = cast("BatchPlacer", first._placer).rows
    assert rows is not None
    while not rows.num_bytes or rows.num_lacking:
        time.sleep(0.001)
    before = other.stats()
    found = list(other)
    since = other.stats().since(before)
    for loader in (other, loader_of(store, device=f"{NAME}:{index}", **options)):
        next(iter(loader))
        assert cast("BatchPlacer", loader._placer).rows is rows
        chosen: Any = loader._sources.chosen
        assert chosen.num_bytes == rows.num_bytes > 0
        assert chosen.left_out is rows.chosen.left_out is not None
        assert chosen.scores is None
    assert since.rows_on_device > 0
    plain = [batch.to_dict() for batch in loader_of(path, device=None)]
    assert_same_batches([batch.to_dict() for batch in found], plain)


# --- staging memory --------------------------------------------------------------------------


def test_memory_is_used_again_once_its_event_has_happened(device: Device) -> None:
    ring = StagingRing(device)
    block = ring.take()
    rows = block.rows_memory((3, 5), np.float32)
    chunk, left = block.chunks[0], weakref.ref(block)
    event = Happening()
    ring.give_after(event, block)
    del block, rows
    other = ring.take()
    assert other.chunks == []
    assert left() is not None  # so is what its batch counts in the budget
    event.has_happened = True
    ring.reclaim()
    assert left() is None
    again = ring.take()
    assert again.chunks == [chunk]
    assert again.num_bytes == 256
    assert again.rows_memory((1,), np.int64).ctypes.data == chunk.memory.data_ptr()


def test_rows_lie_next_to_each_other_and_what_no_batch_needs_goes(device: Device) -> None:
    ring = StagingRing(device)
    block = ring.take()
    wide = block.rows_memory((100, 3), np.dtype("complex128"))
    narrow = block.rows_memory((7,), np.bool_)
    assert len(block.chunks) == 1
    assert block.num_bytes == 8192
    assert narrow.ctypes.data - wide.ctypes.data == 4864
    assert block.rows_bytes == 4800 + 7
    assert block.rows_memory((0, 3), np.float64).shape == (0, 3)
    block.rows_memory((5000,), np.int8)
    assert [chunk.num_bytes for chunk in block.chunks] == [8192, 8192]
    ring.give(block)
    block = ring.take()
    block.rows_memory((1,), np.int8)
    ring.give(block)
    block = ring.take()
    assert [chunk.num_bytes for chunk in block.chunks] == [8192]
    block.rows_memory((8193,), np.int8)
    assert block.num_bytes == 16384


def test_a_tensor_in_staging_memory_is_not_copied_again(device: Device) -> None:
    block = StagingRing(device).take()
    rows = torch.from_numpy(block.rows_memory((4, 2), np.uint16)).view(torch.bfloat16)
    rows.copy_(torch.arange(8).view(4, 2))
    own, is_pinned = block.copy_of(rows)
    assert is_pinned
    assert own.data_ptr() == rows.data_ptr()
    assert (own.dtype, own.shape) == (torch.bfloat16, (4, 2))
    # Of a kind of its own, so that torch notes the copies that still read it.
    assert own.untyped_storage()._cdata == block.chunks[0].memory.untyped_storage()._cdata
    turned, _ = block.copy_of(rows.T)
    assert turned.data_ptr() != rows.data_ptr()
    assert torch.equal(turned, rows.T)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.tensor(True),
        torch.tensor([[True], [False]]),
        torch.tensor([1 + 2j, 3j]),
        torch.arange(6, dtype=torch.uint8).view(2, 3),
        torch.arange(12).view(3, 4)[:, ::2],
        torch.ones(1, 3).expand(4, 3),
        torch.linspace(0, 1, 5, dtype=torch.float64).to(torch.bfloat16),
        torch.arange(5, dtype=torch.int16).view(torch.uint16),
    ],
    ids=str,
)
def test_all_types_of_tensors_are_copied(device: Device, tensor: Tensor) -> None:
    own, _ = StagingRing(device).take().copy_of(tensor)
    assert (own.dtype, own.shape) == (tensor.dtype, tensor.shape)
    assert own.tolist() == tensor.tolist()


# --- all of an output ------------------------------------------------------------------------


def test_every_tensor_of_an_output_is_moved_and_the_rest_stays() -> None:
    adj_t = AdjT(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), size=(1, 1))
    one = torch.ones(1)
    data = Data(x=one, adj_t=adj_t, some=[one, (one, 3)], n=[1, 2], pair=(1, 2), none=None)
    data._orig_edge_index = one
    typed = HeteroData({"a": {"x": one}, ("a", "to", "a"): {"edge_index": one}})
    typed.whole = {"k": one}
    seen = list[Tensor]()

    def twice(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor * 2

    found = mapped(data, twice)
    assert found._orig_edge_index.item() == found.x.item() == 2
    assert found.adj_t.values().item() == 2
    assert found.some[0].item() == found.some[1][0].item() == 2
    assert (found.pair, found.some[1][1]) == ((1, 2), 3)
    assert found.n is data.n
    assert isinstance(found.some[1], tuple)
    assert data.x is data._orig_edge_index is data.some[0] is one
    typed = mapped(typed, twice)
    assert typed["a"].x.item() == typed["a", "a"].edge_index.item() == typed.whole["k"].item() == 2
    assert len(seen) == 4 + 3 + 3


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError("none left"), KeyboardInterrupt()])
def test_an_error_keeps_no_memory_of_the_device(device: Device, error: BaseException) -> None:
    made = list[weakref.ref[Tensor]]()

    def empty(shape: Iterable[int], dtype: torch.dtype) -> Tensor:
        if len(made) == 2:
            raise error
        found = torch.empty(tuple(shape), dtype=dtype)
        made.append(weakref.ref(found))
        return found

    device.empty = empty  # type: ignore[method-assign]
    data = Data(x=torch.ones(1), some={"y": torch.ones(2)}, z=torch.ones(3))
    with pytest.raises((ResourceError, KeyboardInterrupt)) as caught:
        BatchPlacer(torch.device(NAME)).moved(data)
    assert caught.value.__traceback__ is not None
    assert [each() for each in made] == [None, None]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support:UserWarning")
def test_tensors_that_are_not_plain_are_moved_by_torch(device: Device) -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    odd = {
        "coo": (dense.to_sparse(), 2 * 2 * 8 + 2 * 4),
        "csr": (dense.to_sparse_csr(), 3 * 8 + 2 * 8 + 2 * 4),
        "csc": (dense.to_sparse_csc(), 3 * 8 + 2 * 8 + 2 * 4),
        "nested": (torch.nested.nested_tensor([[1.0], [2.0, 3.0]]), 3 * 4),
        "jagged": (
            torch.nested.nested_tensor([[1.0], [2.0, 3.0]], layout=torch.jagged),
            3 * 4 + 3 * 8,
        ),
        "there": (torch.ones(3, device="meta"), 0),
    }
    ring = StagingRing(device)
    block = ring.take()
    for name, (tensor, num_bytes) in odd.items():
        assert block.copy_of(tensor)[0] is tensor
        found, _, arrays, copied_bytes = copied(
            [tensor], ring, block, "a batch", _Joining(device, block)
        )
        assert found[0].layout == tensor.layout
        assert copied_bytes == num_bytes, name
        assert all(array.layout == torch.strided for array in arrays)
        assert arrays
    assert block.num_bytes == 0
    turned = torch.tensor([1 + 2j, 3j])
    for view in (turned.conj(), turned.conj().imag):
        assert block.copy_of(view)[0].tolist() == view.tolist()


# --- the order -------------------------------------------------------------------------------


def begun(num_batches: int) -> tuple[Any, list[Batch]]:
    placing = BatchPlacer(torch.device(NAME)).run()
    batches = [Batch(BatchKey(0, 0, number)) for number in range(num_batches)]
    for batch in batches:
        placing.expect(batch)
    return placing, batches


@pytest.mark.usefixtures("device")
def test_batches_are_placed_in_order_two_ahead_of_what_was_asked_for() -> None:
    placing, batches = begun(5)
    placed, changed = list[int](), threading.Condition()

    def place(batch: Batch) -> None:
        with placing.turn(batch), changed:
            placed.append(batch.key.batch)
            changed.notify_all()

    threads = [threading.Thread(target=place, args=(batch,)) for batch in batches[::-1]]
    for thread in threads:
        thread.start()
    for asked in range(4):
        with changed:
            assert changed.wait_for(lambda: len(placed) >= 2 + asked, 20)  # noqa: B023
            assert len(placed) == 2 + asked
        placing.ask()
    for thread in threads:
        thread.join()
    assert placed == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_batch_waits_for_what_was_asked_before_until_the_iteration_ends(
    is_closed: bool,
) -> None:
    placing, batches = begun(3)
    placing.ask()
    (event,) = placing._asked
    event.has_happened, has_asked = False, threading.Event()

    def query() -> bool:
        has_asked.set()
        return bool(event.has_happened)

    event.query = query
    for batch in batches[:2]:
        with placing.turn(batch):
            pass
    found = list[object]()

    def place() -> None:
        try:
            with placing.turn(batches[2]):
                found.append(event.has_happened)
        except CancelledError as error:
            found.append(error)

    thread = threading.Thread(target=place)
    thread.start()
    assert has_asked.wait(20)
    assert found == []
    if is_closed:
        placing.close()
    else:
        event.has_happened = True
    thread.join(20)
    assert isinstance(found[0], CancelledError) if is_closed else found == [True]


@pytest.mark.usefixtures("device")
def test_a_batch_that_is_not_wanted_any_more_waits_no_longer() -> None:
    placing, batches = begun(2)
    failed = list[BaseException]()

    def place() -> None:
        try:
            with placing.turn(batches[1]):
                pass
        except CancelledError as error:
            failed.append(error)

    thread = threading.Thread(target=place)
    thread.start()
    placing.close()
    thread.join(20)
    assert len(failed) == 1


@pytest.mark.usefixtures("device")
def test_no_batch_is_placed_after_one_that_failed() -> None:
    placing, batches = begun(2)
    with pytest.raises(ValueError, match="not this one"), placing.turn(batches[0]):
        raise ValueError("not this one")
    with pytest.raises(CancelledError), placing.turn(batches[1]):
        pytest.fail("it is placed")


@pytest.fixture(params=[0, 3], ids=["0 threads", "3 threads"])
def num_threads(request: Any) -> int:
    return int(request.param)


def test_batches_are_the_same_and_their_bytes_counted(
    path: Path, device: Device, num_threads: int
) -> None:
    loader, plain = loader_of(path, num_threads=num_threads), loader_of(path, device=None)
    found = [batch.to_dict() for batch in loader]
    assert_same_batches(found, [batch.to_dict() for batch in plain])
    each = {id(value): value for batch in found for value in batch.values()}
    tensors = [value for value in each.values() if isinstance(value, Tensor)]
    assert loader.stats().bytes_to_device == sum(tensor.nbytes for tensor in tensors) > 0
    assert plain.stats().bytes_to_device == 0
    assert len(device.events) == len(loader)


def test_what_all_batches_have_is_copied_once(
    path: Path, device: Device, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, count = torch.arange(1000), torch.ones(2)
    waited = list[list[Tensor]]()
    monkeypatch.setattr(device, "wait", lambda _, tensors: waited.append([*tensors]))
    loader, bare = loader_of(path, num_threads=num_threads), loader_of(path)
    loader._assembler._graph_level |= {"scales": shared, "more": [count]}
    for _ in range(2):
        assert len([*bare]) == 8
    found = [batch for _ in range(2) for batch in loader]
    scales, more = found[0].scales, found[0].more[0]
    assert scales is not shared
    assert torch.equal(scales, shared)
    assert all(batch.scales is scales and batch.more[0] is more for batch in found)
    assert all(any(each is scales for each in tensors) for tensors in waited[-8:])
    own = loader.stats().bytes_to_device - bare.stats().bytes_to_device
    assert own == shared.nbytes + count.nbytes


@pytest.mark.parametrize(
    "options", [{}, {"transform_sampler_output": lambda output: output}], ids=["", "joined late"]
)
def test_transform_has_the_batch_on_the_device(
    path: Path,
    device: Device,
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited = list[int]()

    def wait(_: Any, tensors: Iterable[Tensor]) -> None:
        waited.append(len([*tensors]))

    monkeypatch.setattr(device, "wait", wait)

    def transform(data: Any) -> Any:
        assert len(waited) == len(seen) + 1
        seen.append(data)
        return data

    seen = list[Any]()
    loader = loader_of(path, transform=transform, num_threads=2, **options)
    with loader.trace(tmp_path / "t.json"):
        assert len(list(loader)) == len(seen) == 8
    assert (tmp_path / "t.json").read_text().count('"placing"') == 8


@pytest.mark.usefixtures("device")
def test_little_staging_memory_is_kept_between_iterations() -> None:
    placing, (batch,) = begun(1)
    ring = placing._placer.ring()
    blocks = [ring.take() for _ in range(5)]
    for block in blocks:
        block.rows_memory((1,), np.int8)
        ring.give(block)
    assert len(ring._free) == 5
    with placing.staging(batch, id):
        batch.rows_memory((1,), np.int8)
        placing.close()
        assert len(ring._free) == 3
    assert len(ring._free) == 3


def test_batches_that_are_made_on_demand_are_placed(path: Path, device: Device) -> None:
    loader = loader_of(path)
    batch = loader([1, 2])
    assert len(device.events) == 1
    assert batch.batch_size == 2
    assert loader.filter_per_worker
    assert len(list(loader)) == 8


def test_memory_that_ends_names_batch_bytes_and_remedy(
    path: Path, device: Device, num_threads: int
) -> None:
    def empty(shape: Iterable[int], dtype: torch.dtype) -> Tensor:
        if len(device.events) == 3:
            raise torch.cuda.OutOfMemoryError("tried to allocate 3 bytes\nand more words")
        return torch.empty(tuple(shape), dtype=dtype)

    device.empty = empty  # type: ignore[method-assign]
    loader, found = loader_of(path, num_threads=num_threads), list[Any]()
    words = (
        r"cannot place batch 3 of epoch 0 on privateuseone:0: there is not enough memory for its "
        r"\d.* \(tried to allocate 3 bytes\); choose a smaller batch_size or fan-out, or leave more"
    )
    with pytest.raises(ResourceError, match=words):
        found.extend(iter(loader))
    del device.empty
    assert len(list(loader)) == 8  # what was left of it is free


@pytest.mark.usefixtures("device")
def test_a_batch_that_fails_ends_the_iteration(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(path, num_threads=3)
    assemble: Callable[..., None] = loader._assembler.assemble

    def fail(batch: Batch, *rest: Any) -> None:
        if batch.key.batch == 2:
            raise OSError("what is this")
        assemble(batch, *rest)

    monkeypatch.setattr(loader._assembler, "assemble", fail)
    found = list[Any]()
    with pytest.raises(OSError, match="what is this"):
        found.extend(iter(loader))
    assert len(found) == 2
    monkeypatch.setattr(loader._assembler, "assemble", assemble)
    assert len(list(loader)) == 8


def test_a_budget_counts_staging_memory_until_it_has_been_copied(
    path: Path, device: Device
) -> None:
    loader = loader_of(path, memory="100MB", num_threads=2, prefetch_batches=2)
    batches = iter(loader)
    next(batches)
    assert loader._gate is not None
    ring = loader._placer.ring()  # type: ignore[union-attr]
    del batches
    for event in device.events:
        event.has_happened = True
    ring.reclaim()
    assert loader._gate.num_living == 0
    assert len(list(loader)) == 8
