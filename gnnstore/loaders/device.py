"""Batches on a device of torch's: memory to copy from, copies in the background, their order.

Rows are gathered straight into a block of staging memory, which the device reads by itself, and the
rest of a batch is copied there. The thread that has prepared a batch also places it: it begins a
copy for each tensor on a stream of its own (`copied`). In the consumer's thread the current stream
waits for these (`TorchDevice.wait`), and the processor does not. Rows that stay on the device
(`DeviceRows`) are joined there with those that were copied.

A new thread has device 0 and the default stream, so each call here names its device and its stream.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy as copy_shallow
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data.data import BaseData

from gnnstore._core import empty
from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import available_bytes
from gnnstore.errors import ResourceError, UsageError
from gnnstore.features.held import ChosenRows, HeldRows, Nodes, Split, kept
from gnnstore.features.source import RowSource
from gnnstore.features.static import FILLING_THREAD
from gnnstore.loaders.pinning import tensors_of
from gnnstore.nn.adjacency import AdjT
from gnnstore.pipeline.batch import Batch, Link, Recorder
from gnnstore.strategies.base import Sources
from gnnstore.strategies.device_rows import PIECE_BYTES, auto_bytes
from gnnstore.threads import (
    LONG_READ_BYTES,
    SMALLER_BATCHES,
    CancelledError,
    Condition,
    Flag,
    Pending,
    run_in_background,
)
from gnnstore.units import format_at_least, format_count, format_size

R = TypeVar("R")
_log = logging.getLogger(__name__)

# Names in `torch.cuda` and `torch.xpu` that are used here; AMD's devices are of the type "cuda".
_CALLS = (
    *("Stream", "Event", "stream", "current_stream"),
    *("device", "current_device", "device_count"),
)
_ALIGNMENT_BYTES = 256
_ROWS = ("crow_indices", "col_indices", "values")
_COLUMNS = ("ccol_indices", "row_indices", "values")
_ARRAYS = {  # by layout
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _ROWS,
    torch.sparse_bsr: _ROWS,
    torch.sparse_csc: _COLUMNS,
    torch.sparse_bsc: _COLUMNS,
    torch.jagged: ("values", "offsets"),
}
# Batches whose staging memory is kept between iterations.
_KEPT = 3
_WITHOUT_TENSORS = (str, int, float, bytes)
# Batches that are placed before the consumer has asked for them.
_AHEAD = 2
# Batches that a device holds at most: placed ones, the consumer's, and memory to join one; and with
# `reorder=` the kept rows of one.
_BATCHES_THERE, _WITH_KEPT = 5, 6
# Rows move as numbers of the widest of these types.
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
# A thread polls an event of the device this often: a wait in the driver could not be ended, and
# timeouts, interrupts and the interpreter's end would wait with it.
_POLL_SECONDS = 0.0005


def checked_device(device: Any, *, holds_rows: bool = False) -> torch.device | None:
    """Return the option `device`, or refuse it; None for the CPU, unless rows stay there.

    The device itself is not used: the loader may iterate after a fork, and "cuda" is another device
    in each rank.
    """
    if device is None:
        return None
    if not isinstance(device, str | torch.device):
        number = isinstance(device, int) and not isinstance(device, bool)
        what = f'the name of a device, such as "cuda:{device if number else 1}", or a torch.device'
        raise UsageError(f"device={device!r}: expected {what}")
    try:
        found = torch.device(device)
    except RuntimeError:
        found = None
    # Numbers that are too large come back as others.
    if found is None or (isinstance(device, str) and str(found) != device):
        raise UsageError(
            f'device={device!r} is not the name of a device; write "cuda", "cuda:1", "xpu" or "cpu"'
        )
    if found.type == "cpu":
        if found.index:
            raise UsageError(f'device={str(found)!r}: there is one CPU; write "cpu"')
        return torch.device("cpu") if holds_rows else None
    module = getattr(torch, found.type, None)
    if missing := [name for name in _CALLS if not hasattr(module, name)]:
        raise UsageError(
            f"device={str(found)!r}: loaders place batches where copies run on streams, as on "
            f'"cuda" and "xpu", and torch.{found.type} has no {missing[0]}; leave the option out, '
            f"and copy batches with batch.to({found.type!r})"
        )
    count = module.device_count()  # type: ignore[union-attr]
    if count == 0:
        raise UsageError(
            f"device={str(found)!r}: torch {torch.__version__} finds no device of the type "
            f"{found.type!r} on this machine; leave the option out, or install its driver and a "
            "torch that is built for it"
        )
    if found.index is not None and not 0 <= found.index < count:
        last = "" if count == 1 else f' to "{found.type}:{count - 1}"'
        raise UsageError(
            f"device={str(found)!r}: torch finds {format_count(count, 'device')} of this type, "
            f'"{found.type}:0"{last}; choose one of these'
        )
    return found


def pinned_memory(num_bytes: int) -> Tensor:
    """Return bytes that devices read by themselves; RuntimeError where there are none."""
    return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)


class TorchDevice:
    """A device, by the calls of `torch.cuda` or of a module like it; one for all loaders."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pid = os.getpid()
        self.pins = True  # until memory cannot be pinned
        self._module: Any = getattr(torch, device.type)
        self._stream = self._module.Stream(device=device)

    @classmethod
    def of(cls, device: torch.device) -> TorchDevice:
        """Return a device; without a number, the calling thread's current one."""
        if device.type == "cpu":
            return HostDevice(device)
        module: Any = getattr(torch, device.type)
        is_forked = getattr(module, "_is_in_bad_fork", lambda: False)()
        if getattr(module, "get_allocator_backend", str)() == "pluggable":
            raise UsageError(
                f"device={str(device)!r}: torch allocates memory by another library's allocator "
                "(CUDAPluggableAllocator, as RMM's), which may give a batch's memory away while it "
                "is read; use torch's own allocator, or leave the option out, and copy batches "
                "with batch.to(device)"
            )
        with _opening:
            known = (opened for opened in _opened.values() if opened.device.type == device.type)
            if is_forked or any(opened.pid != os.getpid() for opened in known):
                raise UsageError(
                    f"device={str(device)!r}: this process was forked from one that has used the "
                    "device, and cannot use it itself; begin to iterate after the fork only, or "
                    'start the process with multiprocessing.get_context("spawn")'
                )
            if device.index is None:
                device = torch.device(device.type, module.current_device())
            if device not in _opened:
                _opened[device] = cls(device)
            return _opened[device]

    def empty(self, shape: Iterable[int], dtype: torch.dtype) -> Tensor:
        """Return a new tensor on the device."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def moved(self, tensor: Tensor) -> Tensor:
        """Return a tensor of any kind on the device, once it is copied."""
        return tensor.to(self.device)

    def staging(self, num_bytes: int) -> Tensor:
        """Return memory to copy from, uint8: pinned, or ordinary where that is refused."""
        if self.pins:
            try:
                with self._module.device(self.device), torch.inference_mode(False):
                    return pinned_memory(num_bytes)
            except RuntimeError as error:
                self._warn(error)
        return torch.from_numpy(empty((num_bytes,), np.uint8))

    def _warn(self, error: RuntimeError) -> None:
        with _opening:
            was, self.pins = self.pins, False
        if was:
            (reason, *_) = str(error).splitlines() or [""]
            warnings.warn(
                f"device={str(self.device)!r}: memory cannot be pinned ({reason}), so that batches "
                "are copied from ordinary memory, which takes longer and is waited for; raise the "
                "limit on locked memory (ulimit -l, or the container's)",
                UserWarning,
                stacklevel=2,
            )

    def submit(self, work: Callable[[], R]) -> R:
        """Do work whose copies run on the side stream, where its tensors are made too."""
        module = self._module
        # A tensor that is made in a user's `inference_mode` could not be trained with.
        with (
            module.device(self.device),
            module.stream(self._stream),
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            return work()

    def record(self) -> Any:
        """Return an event behind all that has been submitted."""
        return self._recorded(self._stream)

    def mark(self) -> Any:
        """Return an event behind all work that the calling thread has submitted."""
        return self._recorded(self._module.current_stream(self.device))

    def _recorded(self, stream: Any) -> Any:
        event = self._module.Event()
        event.record(stream)
        return event

    def has_happened(self, event: Any) -> bool:
        """Return whether the device has done all that comes before an event."""
        with self._module.device(self.device):
            return bool(event.query())

    def wait(self, event: Any, tensors: Iterable[Tensor]) -> None:
        """Let the calling thread's current stream wait for an event, and keep tensors for it."""
        stream = self._module.current_stream(self.device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)

    def free_bytes(self) -> tuple[int, int] | None:
        """Return the bytes that are free, and what torch keeps; None where torch cannot say."""
        module = self._module
        if not hasattr(module, "mem_get_info"):  # as of torch.xpu before 2.6
            return None
        free, _ = module.mem_get_info(self.device)
        used = module.memory_allocated(self.device)
        reserved = module.memory_reserved(self.device) if hasattr(module, "memory_reserved") else 0
        return free, max(0, reserved - used)

    def most_bytes(self) -> int:
        """Return the most bytes that tensors of this process have taken."""
        return int(self._module.max_memory_allocated(self.device))


class HostDevice(TorchDevice):
    """The host's memory in a device's place: each step is done at once."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.pid, self.pins = device, os.getpid(), False

    def submit(self, work: Callable[[], R]) -> R:
        """Do work."""
        with torch.inference_mode(False), torch.no_grad():
            return work()

    def record(self) -> None:
        """Do nothing: what has been submitted is done."""

    def mark(self) -> None:
        """Do nothing, as `record`."""

    def has_happened(self, event: Any) -> bool:  # noqa: ARG002
        """Return that all is done."""
        return True

    def wait(self, event: Any, tensors: Iterable[Tensor]) -> None:
        """Do nothing: what has been submitted is done."""

    def free_bytes(self) -> tuple[int, int]:
        """Return the bytes that are free."""
        return available_bytes(), 0


def _too_little_memory(what: str, size: str, error: Exception, lower: str) -> ResourceError:
    (reason, *_) = str(error).splitlines() or [""]
    return ResourceError(
        f"cannot {what}: there is not enough memory for {size} ({reason}); {lower}, or leave more "
        "of the device's memory free"
    )


_opened: dict[torch.device, TorchDevice] = {}
_opening = threading.Lock()


class _Chunk:
    """A piece of staging memory."""

    def __init__(self, device: TorchDevice, num_bytes: int) -> None:
        self.memory = device.staging(num_bytes)
        self.is_pinned = device.pins
        self.array: npt.NDArray[np.uint8] = self.memory.numpy()
        self.num_bytes, self.num_used = num_bytes, 0

    def place_of(self, tensor: Tensor) -> int | None:
        """Return where a tensor lies in this memory; None: elsewhere."""
        place = tensor.data_ptr() - self.memory.data_ptr()
        is_here = 0 <= place <= self.num_bytes - tensor.nbytes
        return place if is_here and tensor.is_contiguous() else None

    def view(self, place: int, tensor: Tensor) -> Tensor:
        """Return a tensor in this memory, with the shape and dtype of another."""
        piece = self.memory[place : place + tensor.nbytes]
        return piece.view(tensor.dtype).view(tensor.shape)


class StagingBlock:
    """The memory from which one batch is copied to a device."""

    def __init__(self, device: TorchDevice, chunks: list[_Chunk]) -> None:
        self._device, self.chunks = device, chunks
        self.rows_bytes = 0  # of rows gathered here
        self.hold: Callable[[Any], None] = lambda _: None  # for as long as something is there

    @property
    def num_bytes(self) -> int:
        """Bytes of memory, used or not."""
        return sum(chunk.num_bytes for chunk in self.chunks)

    def rows_memory(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array in this memory, its contents unspecified."""
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if not num_bytes:
            return empty(shape, dtype)
        self.rows_bytes += num_bytes
        chunk, begin = self._taken(num_bytes)
        return chunk.array[begin : begin + num_bytes].view(dtype).reshape(shape)

    def copy_of(self, tensor: Tensor) -> tuple[Tensor, bool]:
        """Return a tensor in this memory, copied unless it is here, and whether that is pinned.

        A tensor that is not plain is returned unchanged.
        """
        if not _is_plain(tensor) or not tensor.nbytes:
            return tensor, False
        tensor = tensor.resolve_conj().resolve_neg()
        for chunk in self.chunks:
            if (place := chunk.place_of(tensor)) is not None:
                return chunk.view(place, tensor), chunk.is_pinned
        chunk, place = self._taken(tensor.nbytes)
        # By NumPy: torch would start threads of its own in each of ours.
        values = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        np.copyto(chunk.array[place : place + tensor.nbytes], values)
        return chunk.view(place, tensor), chunk.is_pinned

    def _taken(self, num_bytes: int) -> tuple[_Chunk, int]:
        size = -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        roomy = (chunk for chunk in self.chunks if chunk.num_used + size <= chunk.num_bytes)
        if (chunk := next(roomy, None)) is None:
            # Unused chunks, which are too small, go first. Torch rounds up to a power of two.
            self.chunks = [chunk for chunk in self.chunks if chunk.num_used]
            chunk = _Chunk(self._device, 1 << (size - 1).bit_length())
            self.chunks.append(chunk)
        begin, chunk.num_used = chunk.num_used, chunk.num_used + size
        return chunk, begin


class StagingRing:
    """The staging memory of a loader, which its batches take in turn. Thread-safe.

    A batch takes memory whose copies have ended, or new memory: it waits for no other batch.
    """

    def __init__(self, device: TorchDevice, shared: Mapping[int, Tensor] | None = None) -> None:
        self.device = device
        self.shared = {} if shared is None else shared  # tensors that all batches have, by id
        self.on_device: dict[int, Tensor] = {}  # their copies, which the first batch makes
        self._lock = threading.Lock()
        self._free: list[list[_Chunk]] = []
        self._copying: deque[tuple[Any, StagingBlock]] = deque()

    def take(self) -> StagingBlock:
        """Return memory for a batch."""
        self.reclaim()
        with self._lock:
            chunks = self._free.pop() if self._free else []
        return StagingBlock(self.device, chunks)

    def give(self, block: StagingBlock) -> None:
        """Take memory back from which nothing is copied."""
        # Chunks that the batch did not use are freed.
        chunks = [chunk for chunk in block.chunks if chunk.num_used]
        for chunk in chunks:
            chunk.num_used = 0
        with self._lock:
            self._free.append(chunks)

    def give_after(self, event: Any, block: StagingBlock) -> None:
        """Take memory back once an event has happened."""
        with self._lock:
            self._copying.append((event, block))

    def trim(self) -> None:
        """Free memory that nothing is copied from, except for a few batches."""
        with self._lock:
            del self._free[_KEPT:]

    def reclaim(self) -> None:
        """Take back the memory whose copies have ended; its batches leave the budget with it."""
        while True:
            with self._lock:
                if not self._copying or not self.device.has_happened(self._copying[0][0]):
                    return
                _, block = self._copying.popleft()
            self.give(block)
            del block


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor's memory is the host's, and one array."""
    is_array = tensor.layout == torch.strided and not tensor.is_nested
    return is_array and tensor.device.type == "cpu"


def _arrays_of(tensor: Tensor) -> list[Tensor]:
    """Return the arrays of a tensor: indices and values if it is sparse or nested."""
    names = _ARRAYS.get(tensor.layout, ("values",) if tensor.is_nested else ())
    return [getattr(tensor, name)() for name in names] or [tensor]


class Places(NamedTuple):
    """A split as tensors: int32, or int64 where torch requires it."""

    kept: Tensor  # of missed and matched rows
    hits: Tensor
    slots: Tensor
    places: Tensor  # of matched rows among the kept ones of the batch before

    @classmethod
    def of(cls, split: Split, block: StagingBlock) -> Places:
        """Copy the numbers of a split to staging memory."""
        numbers = split.kept, split.hits, split.slots, split.places
        return cls(*(block.copy_of(torch.from_numpy(array))[0] for array in numbers))


@dataclass(frozen=True, eq=False)
class MissedRows:
    """The rows that a device does not have, in place of an attribute of a batch."""

    rows: Tensor  # [m, ...]
    split: Split
    path: str  # of their table
    cat_dim: int  # the row axis in a batch
    places: Places | None = None  # the split in staging memory, as the rows are


@dataclass(frozen=True, eq=False)
class ScaledRows:
    """Rows of int8 that are decoded on a device, in place of an attribute of a batch."""

    rows: Tensor | MissedRows
    scales: Tensor  # of the columns, float32, with an axis for the rows; all batches have it
    dtype: torch.dtype  # of what rows stand for


def as_words(rows: Tensor) -> Tensor:
    """Return rows as integers of the widest type that fits their bytes, [n, words]: a view.

    So rows of all dtypes are indexed alike: torch cannot index some dtypes.
    """
    num_values = math.prod(rows.shape[1:])
    num_bytes = num_values * rows.element_size()
    word = next(dtype for dtype in _WORDS if num_bytes % dtype.itemsize == 0)
    if not rows.numel():  # whose strides may be of any kind
        return rows.new_empty((len(rows), num_bytes // word.itemsize), dtype=word)
    return rows.view(len(rows), num_values).view(torch.uint8).view(word)


@dataclass(frozen=True, eq=False)
class _Filling:
    """Rows that stay on a device, and the number that is copied."""

    device: TorchDevice
    held: HeldRows
    tables: Mapping[str, Mapping[str, RowSource]]  # of each type, by path
    rows: dict[str, Tensor]  # [C, words] each, by path
    num_filled: dict[str, int]  # slots of each type whose rows are there

    @classmethod
    def of(cls, held: HeldRows, other: _Filling) -> Self:
        """Return a filling with other rows of the same tables."""
        return cls(other.device, held, other.tables, {}, dict.fromkeys(held.indexes, 0))

    @property
    def num_lacking(self) -> int:
        """Rows that are not there yet."""
        nodes_of = self.held.nodes.items()
        return sum(len(nodes) - self.num_filled[name] for name, nodes in nodes_of)

    def make_room(self) -> None:
        """Make the memory of the rows."""
        for name, nodes in self.held.nodes.items():
            for path, table in self.tables[name].items():
                room = self.device.empty((len(nodes), table.row_bytes), torch.uint8)
                self.rows[path] = as_words(room)

    def fill(self, stop: Flag, advance: Callable[[int], None] = lambda _: None) -> None:
        """Copy the rows that are not there yet, until `stop` is set."""
        ring, before = StagingRing(self.device), None
        for name, nodes in self.held.nodes.items():
            tables = self.tables[name]
            row_bytes = sum(table.row_bytes for table in tables.values())
            step = max(1, PIECE_BYTES // max(1, row_bytes))
            for first in range(self.num_filled[name], len(nodes), step):
                if stop.is_set():
                    return
                ids = nodes[first : first + step]
                block = ring.take()
                pieces = {
                    path: torch.from_numpy(table.gather(ids, block.rows_memory).values)
                    for path, table in tables.items()
                }
                self.device.submit(partial(self._copy, first, block, pieces))
                event = self.device.record()
                ring.give_after(event, block)
                # What is joined from now on comes after these copies.
                self.num_filled[name] = first + len(ids)
                advance(len(ids))
                while before is not None and not self.device.has_happened(before):
                    time.sleep(_POLL_SECONDS)
                before = event

    def _copy(self, first: int, block: StagingBlock, pieces: Mapping[str, Tensor]) -> None:
        for path, piece in pieces.items():
            staged, is_pinned = block.copy_of(piece)
            rows = self.rows[path][first : first + len(staged)]
            rows.copy_(as_words(staged), non_blocking=is_pinned)


def _fill_in_background(filling: _Filling, stop: Flag) -> None:
    try:
        filling.fill(stop)
    except Exception as error:
        # Batches read the rows that are not there, and raise what is wrong with them.
        _log.debug("rows are not copied to %s any further: %s", filling.device.device, error)


def _size_in_background(
    fillings: list[_Filling], chosen: ChosenRows, num_bytes: int, stop: Flag
) -> None:
    """Choose rows that fit in a number of bytes, or in half, and copy them."""
    scores, chosen.scores = chosen.scores, None
    assert scores is not None  # noqa: S101 - for the type checker
    device = fillings[-1].device
    for wanted in (num_bytes, num_bytes // 2):
        found = ChosenRows.best(scores, chosen.tables, wanted)
        filling = _Filling.of(found.held, fillings[-1])
        try:
            device.submit(filling.make_room)
        except torch.cuda.OutOfMemoryError:
            filling.rows.clear()
            continue
        fillings.append(filling)
        chosen.held, chosen.num_bytes = found.held, found.num_bytes
        _fill_in_background(filling, stop)
        if not filling.num_lacking:
            chosen.left_out = found.left_out
        return
    warnings.warn(
        f'device_cache="auto": neither {format_size(num_bytes)} nor half of that could be had on '
        f"{device.device}, although it was free after a step of training, so that no rows stay "
        "there; give a number of bytes",
        UserWarning,
        stacklevel=2,
    )


class DeviceRows:
    """The rows that stay on a device. Thread-safe.

    They are copied on the stream on which batches are joined, and so before these.
    """

    def __init__(self, sources: Sources, chosen: ChosenRows, device: TorchDevice) -> None:
        self.chosen, self._device = chosen, device
        tables: dict[str, dict[str, RowSource]] = {name: {} for name in chosen.held.indexes}
        for path, name in chosen.tables.owners.items():
            tables[name][path] = sources.tables[path]
        # The last filling is in use; "auto" adds one while batches are joined.
        filling = _Filling(device, chosen.held, tables, {}, dict.fromkeys(tables, 0))
        self._fillings = [filling]
        self._lock = threading.Lock()
        self._end_filling: Callable[[], object] | None = None
        self._pid = os.getpid()  # whose thread that ends

    @property
    def rows(self) -> Mapping[str, Tensor]:
        """The rows of each table, [C, words], by its path."""
        return self._fillings[-1].rows

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that they take on the device."""
        return sum(rows.nbytes for rows in self.rows.values())

    @property
    def num_lacking(self) -> int:
        """Rows that are not there yet."""
        return self._fillings[-1].num_lacking

    def split(self, nodes: Nodes, before: Nodes | None = None) -> dict[str, Split]:
        """Return where the rows of a batch come from, by what is there."""
        filling = self._fillings[-1]
        return filling.held.split(nodes, before, filling.num_filled)

    def begin(self, recorder: Recorder, *, waits: bool, num_batches: int) -> None:
        """Copy the rows, with room for `num_batches` batches; unless `waits`, in the background."""
        with self._lock:
            if self._pid != os.getpid():  # a child that was forked has no such thread
                self._pid, self._end_filling = os.getpid(), None
            if not self.rows:
                self._make_room(num_batches)
            if not self.num_lacking:
                return
            if waits or self.chosen.num_bytes < LONG_READ_BYTES:
                self._stop_filling()
                filling = self._fillings[-1]
                name, total = "copy rows to the device", filling.num_lacking
                with recorder.phase(name, total, "rows") as advance:
                    filling.fill(Flag(), advance)
                self.chosen.left_out = filling.held
            elif self._end_filling is None:
                work = partial(_fill_in_background, self._fillings[-1])
                self._end_filling = run_in_background(self, work, FILLING_THREAD)

    def note_step(self) -> None:
        """Choose as many rows as a step of training has left room for, once, and copy them."""
        if self.chosen.scores is None or self._end_filling is not None:
            return
        with self._lock:
            if self._end_filling is None:
                free = self._free_bytes()
                num_bytes = auto_bytes(0 if free is None else free[0], self._device.most_bytes())
                work = partial(_size_in_background, self._fillings, self.chosen, num_bytes)
                self._end_filling = run_in_background(self, work, FILLING_THREAD)

    def _free_bytes(self) -> tuple[int, int] | None:
        """Return the device's free bytes; refuse "auto" if torch cannot say."""
        free = self._device.free_bytes()
        if free is None and self.chosen.scores is not None:
            device = self._device.device
            raise UsageError(
                f'device_cache="auto": torch {torch.__version__} does not say how much memory of '
                f"{str(device)!r} is free; give a number of bytes"
            )
        return free

    def _stop_filling(self) -> None:
        end, self._end_filling = self._end_filling, None
        if end is not None:
            end()

    def _make_room(self, num_batches: int) -> None:
        chosen, device, lower = self.chosen, self._device.device, "lower device_cache="
        free = self._free_bytes()
        if not chosen.num_bytes:
            return
        if free is not None:
            ledger = Ledger(
                sum(free),
                (
                    Reservation("rows of device_cache=", chosen.num_bytes),
                    Reservation("batches", num_batches * chosen.batch_bytes),
                ),
                f"device_cache= on {device}",
                "of its memory that is free",
                "",
            )
            missing = format_at_least(max(0, -ledger.left()))
            ledger.check(None, f"{lower} by at least {missing}", SMALLER_BATCHES)
        filling = self._fillings[-1]
        try:
            self._device.submit(filling.make_room)
        except BaseException as error:
            filling.rows.clear()
            traceback.clear_frames(error.__traceback__)
            if not isinstance(error, torch.cuda.OutOfMemoryError):  # of any device
                raise
            what = f"keep {format_count(chosen.held.num_rows, 'row')} on {device}"
            size = f"their {format_size(chosen.num_bytes)}"
            raise _too_little_memory(what, size, error, lower) from error


# Rows by the id of the tables that they were chosen from, and device, while a loader uses them.
_held: WeakValueDictionary[tuple[int, torch.device], DeviceRows] = WeakValueDictionary()


class BatchPlacer:
    """Places the batches of a loader on a device. Pickles as what it was made with.

    Attributes
    ----------
    matches : bool
        Whether rows of the batch before are used again.
    sources : Sources, optional
        The loader's, with the choice of rows that stay on the device.
    rows : DeviceRows, optional
        These rows, since the first iteration has begun.
    """

    def __init__(
        self, device: torch.device, *, matches: bool = False, sources: Sources | None = None
    ) -> None:
        self._given, self.matches, self.sources = device, matches, sources
        self.rows: DeviceRows | None = None
        self._ring: StagingRing | None = None
        self._shared: dict[int, Tensor] = {}  # in host memory, by id

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(BatchPlacer, self._given, matches=self.matches, sources=self.sources)
        return (make, ())

    def ring(self) -> StagingRing:
        """Return the staging memory; the first call, in the consumer's thread, fixes the device."""
        if self._ring is None or self._ring.device.pid != os.getpid():
            self._ring = StagingRing(TorchDevice.of(self._given), self._shared)
        return self._ring

    def begin(self, recorder: Recorder) -> None:
        """Copy the rows that stay on the device, in the consumer's thread."""
        device, sources = self.ring().device, self.sources
        if sources is None or (chosen := sources.chosen) is None:
            return
        if self.rows is None:
            if chosen.scores is not None and chosen.device is None:
                chosen.device = device.device
            if chosen.device not in (None, device.device):
                raise UsageError(
                    'device_cache="auto": rows were chosen by the memory of '
                    f"{chosen.device}, the current device until now, and batches would be placed "
                    f'on {device.device}; name it: device="{device.device}"'
                )
            key = id(chosen.tables), device.device
            with _opening:
                if (rows := _held.get(key)) is None:
                    rows = _held[key] = DeviceRows(sources, chosen, device)
                chosen.become(rows.chosen)
            self.rows = rows
        strategy = sources.placement.strategy
        waits = strategy.plans or strategy.packs
        num_batches = _WITH_KEPT if self.matches else _BATCHES_THERE
        self.rows.begin(recorder, waits=waits, num_batches=num_batches)

    def trim(self) -> None:
        """Keep little staging memory between iterations."""
        if self._ring is not None:
            self._ring.trim()

    def run(self, shared: Iterable[Tensor] = ()) -> Placing:
        """Return the order of an iteration that begins; all batches have the shared tensors."""
        self._shared.update((id(tensor), tensor) for tensor in shared)
        return Placing(self)

    def moved(self, output: Any) -> Any:
        """Return an output on the device, for which the calling thread's stream waits."""
        ring = self.ring()
        block = ring.take()
        joining = _Joining(ring.device, block)
        output, event, tensors, _ = copied(output, ring, block, "a batch", joining)
        ring.device.wait(event, tensors)
        return output


class _Joining:
    """The rows of one batch, joined on a device from those that are there and those copied."""

    def __init__(
        self,
        device: TorchDevice,
        block: StagingBlock,
        held: Mapping[str, Tensor] | None = None,  # rows of tables, as words, by path
        before: Mapping[str, Tensor] | None = None,  # the rows that were kept; None: none are
    ) -> None:
        self._device, self._block = device, block
        self._held, self._before = held or {}, before
        self.kept: dict[str, Tensor] = {}  # by path, for the next batch
        self._places: dict[int, Places] = {}  # on the device, by split
        self.num_bytes = 0  # of rows that were there

    def forget(self) -> None:
        """Let go of rows of this batch and of the one before."""
        self.kept, self._before = {}, None

    def moved(self, tensor: Tensor, form: Callable[[Tensor], Tensor] = lambda same: same) -> Tensor:
        """Return a copy of a tensor on the device, in another form if `form` is given."""
        staged, is_pinned = self._block.copy_of(tensor)
        staged = form(staged)
        placed = self._device.empty(staged.shape, staged.dtype)
        if staged.nbytes:
            placed.copy_(staged, non_blocking=is_pinned)
        return placed

    def rows_of(self, value: Tensor | MissedRows) -> Tensor:
        """Return the rows of an attribute, copied or joined."""
        return self.joined(value) if isinstance(value, MissedRows) else self.moved(value)

    def joined(self, missed: MissedRows) -> Tensor:
        """Return all rows of an attribute."""
        split, there = missed.split, self._held.get(missed.path)
        places, empty_of = self._places_of(missed), self._device.empty
        found = empty_of((split.num_rows, *missed.rows.shape[1:]), missed.rows.dtype)
        into, kept = as_words(found), self._kept(missed, places)
        if there is not None and not len(kept):
            torch.index_select(there, 0, places.slots, out=into)
        else:
            into.index_copy_(0, places.kept, kept)
            if there is not None and len(split.hits):
                into.index_copy_(0, places.hits, there.index_select(0, places.slots))
        self.num_bytes += found.nbytes - missed.rows.nbytes
        if missed.cat_dim in (0, -found.dim()):
            return found
        along = found.movedim(0, missed.cat_dim)
        return empty_of(along.shape, along.dtype).copy_(along)

    def _kept(self, missed: MissedRows, places: Places) -> Tensor:
        """Return the missed rows, and behind them the rows that the batch before kept."""
        if self._before is None:
            return self.moved(missed.rows, as_words)
        staged, is_pinned = self._block.copy_of(missed.rows)
        rows, num_matched = as_words(staged), len(missed.split.matched)
        kept = self._device.empty((len(rows) + num_matched, rows.shape[1]), rows.dtype)
        if staged.nbytes:
            kept[: len(rows)].copy_(rows, non_blocking=is_pinned)
        if num_matched:
            before = self._before[missed.path]
            kept[len(rows) :].copy_(before.index_select(0, places.places))
        self.kept[missed.path] = kept
        return kept

    def _places_of(self, missed: MissedRows) -> Places:
        key = id(missed.split)
        if key not in self._places:
            assert missed.places is not None  # noqa: S101 - for the type checker
            places = Places(*map(self.moved, missed.places))
            # Torch writes rows by int64 numbers only.
            self._places[key] = places._replace(kept=places.kept.long(), hits=places.hits.long())
        return self._places[key]


def copied(
    output: Any, ring: StagingRing, block: StagingBlock, name: str, joining: _Joining
) -> tuple[Any, Any, list[Tensor], int]:
    """Begin to copy an output; return it with its event, the device's tensors, and copied bytes."""
    device, tensors, are_there = ring.device, list[Tensor](), list[Tensor]()

    # A function that referred to itself would keep all of this until the garbage is collected.
    def shared(tensor: Tensor) -> Tensor | None:
        if (known := ring.on_device.get(id(tensor))) is not None:
            are_there.extend(_arrays_of(known))
        elif id(tensor) in ring.shared:
            known = ring.on_device[id(tensor)] = device.moved(tensor)
            tensors.extend(_arrays_of(known))
        return known

    def decoded(scaled: ScaledRows) -> Tensor:
        scales = shared(scaled.scales)
        assert scales is not None  # noqa: S101 - for the type checker
        rows = joining.rows_of(scaled.rows)  # which nobody else sees
        found = device.empty(rows.shape, scaled.dtype)
        # One product in float32, and one rounding, as on the host.
        torch.mul(rows, scales, out=found)
        joining.num_bytes += found.nbytes - rows.nbytes
        return found

    def copy(tensor: Any) -> Tensor:
        if isinstance(tensor, ScaledRows):
            tensors.append(decoded(tensor))
            return tensors[-1]
        if isinstance(tensor, MissedRows):
            tensors.append(joining.joined(tensor))
            return tensors[-1]
        if (known := shared(tensor)) is not None:
            return known
        if not _is_plain(tensor):
            found = device.moved(tensor)
            (are_there if found is tensor else tensors).extend(_arrays_of(found))
            return found
        found = joining.moved(tensor)
        tensors.append(found)
        return found

    try:
        placed = device.submit(partial(mapped, output, copy))
    except BaseException as error:
        # An error keeps its frames alive, which must not keep the device's memory.
        tensors.clear()
        joining.forget()
        traceback.clear_frames(error.__traceback__)
        if not isinstance(error, torch.cuda.OutOfMemoryError):  # of any device
            raise
        num_bytes = sum(tensor.nbytes for tensor in tensors_of(output) if _is_plain(tensor))
        what, size = f"place {name} on {device.device}", f"its {format_size(num_bytes)}"
        raise _too_little_memory(what, size, error, SMALLER_BATCHES) from error
    finally:
        event = device.record()
        ring.give_after(event, block)
    num_bytes = sum(tensor.nbytes for tensor in tensors) - joining.num_bytes
    return placed, event, tensors + are_there, num_bytes


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return an output with a function of each tensor in its place; the output stays as it is.

    Missed rows, and those to decode, are in place of a tensor.
    """
    if value is None or isinstance(value, _WITHOUT_TENSORS):
        return value
    if isinstance(value, AdjT):
        return value.mapped(function)
    if isinstance(value, Tensor | MissedRows | ScaledRows):
        return function(value)
    if isinstance(value, BaseData):
        value = copy_shallow(value)
        for store in value.stores:
            for key, each in [*store.items()]:
                store[key] = mapped(each, function)
            for key, each in [*vars(store).items()]:
                if isinstance(each, Tensor):  # `_orig_edge_index`
                    setattr(store, key, function(each))
    elif isinstance(value, Mapping):
        value = {key: mapped(each, function) for key, each in value.items()}
    elif isinstance(value, list | tuple):
        if all(isinstance(each, _WITHOUT_TENSORS) for each in value):
            return value
        values = [mapped(each, function) for each in value]
        make = type(value)
        value = make(*values) if hasattr(value, "_fields") else make(values)
    return value


class Placing:
    """The batches of an iteration in the order in which they are placed.

    Batch k is placed after batch k - 1, once the consumer has asked for batch k - 2 and the device
    has done all work that was submitted before that. So the device has three batches at most, and
    the batches that the consumer keeps.
    """

    def __init__(self, placer: BatchPlacer) -> None:
        self._placer = placer
        self._changed = Condition()
        self._coming: deque[Batch] = deque()
        self._asked: deque[Any] = deque()  # events, for batches from the third on
        self._num_placed = self._num_asked = 0
        self._is_closed = False
        self._last: Pending[Nodes] | None = None  # what the batch before leaves to the next one
        self._kept: Mapping[str, Tensor] = {}  # rows of the batch that was placed last, by path

    def begin(self, recorder: Recorder) -> None:
        """Copy the rows that stay on the device, in the consumer's thread."""
        self._placer.begin(recorder)

    def split(self, batch: Batch) -> None:
        """Decide where the rows of a sampled batch come from, unless its plan has decided."""
        rows, sample, link = self._placer.rows, batch.sample, batch.link
        if rows is None or sample is None:
            return
        if (found := batch.split) is None:
            found = rows.split(sample.nodes, None if link is None else link.nodes_before())
        batch.split = {name: own for name, own in found.items() if link or not own.is_whole}
        if link is not None:
            link.kept.make(kept, sample.nodes, found)
        batch.cost.rows_on_device = sum(len(own.hits) for own in found.values())
        batch.cost.rows_kept = sum(len(own.matched) for own in found.values())

    def expect(self, batch: Batch) -> None:
        """Place a batch after all that were expected before."""
        self._coming.append(batch)
        if self._placer.matches and self._placer.rows is not None:
            batch.link = Link(self._last)
            self._last = batch.link.kept

    def ask(self) -> None:
        """Note that the consumer, who calls this, asks for the next batch."""
        ring, rows = self._placer.ring(), self._placer.rows
        self._asked.append(ring.device.mark())
        self._num_asked += 1
        # Once a batch has been trained on, it shows what is left of the device's memory.
        if rows is not None and self._num_asked > 1 and torch.is_grad_enabled():
            rows.note_step()
        self._changed.notify_all()
        ring.reclaim()

    @contextmanager
    def staging(self, batch: Batch, hold: Callable[[Any], None]) -> Iterator[None]:
        """Gather rows of a batch straight into staging memory."""
        ring = self._placer.ring()
        block = batch.staged = ring.take()
        hold(block)
        block.hold = hold
        batch.rows_memory = block.rows_memory
        try:
            yield
        finally:
            if batch.staged is not None:  # an error came before anything was copied
                batch.staged, batch.rows_memory = None, empty
                if not self._is_closed:
                    ring.give(block)

    def stage(self, batch: Batch) -> None:
        """Copy the rest of a batch's output to its staging memory."""
        block, shared = batch.staged, self._placer.ring().shared
        places = {id(split): Places.of(split, block) for split in (batch.split or {}).values()}

        def staged_rows(value: Any) -> Any:
            if isinstance(value, MissedRows):
                rows, _ = block.copy_of(value.rows)
                return replace(value, rows=rows, places=places[id(value.split)])
            return value if id(value) in shared else block.copy_of(value)[0]

        def staged(value: Any) -> Any:
            if isinstance(value, ScaledRows):
                return replace(value, rows=staged_rows(value.rows))
            return staged_rows(value)

        batch.output = mapped(batch.output, staged)

    @contextmanager
    def turn(self, batch: Batch) -> Iterator[None]:
        """Wait until a batch may be placed; the next one may when this ends."""

        def refuse_closed() -> None:
            if self._is_closed:
                raise CancelledError(f"batch {batch.key.batch} is not wanted any more")

        def look() -> bool | None:
            refuse_closed()
            is_asked = self._num_placed < _AHEAD or len(self._asked) > 0
            return True if is_asked and self._coming[0] is batch else None

        self._changed.wait_until(look)
        try:
            if self._num_placed >= _AHEAD:
                device, event = self._placer.ring().device, self._asked.popleft()
                while not device.has_happened(event):
                    refuse_closed()
                    time.sleep(_POLL_SECONDS)
            yield
        except BaseException:
            self._is_closed = True  # the next batch might be joined from rows of this one
            raise
        finally:
            with self._changed.lock:
                self._coming.popleft()
                self._num_placed += 1
                self._changed.notify_all()

    def place(self, batch: Batch) -> None:
        """Begin to copy a batch's output to the device, and set it to what comes of that."""
        key, cost, block = batch.key, batch.cost, batch.staged
        batch.staged, batch.rows_memory = None, empty
        name, placer = f"batch {key.batch} of epoch {key.epoch}", self._placer
        ring, held = placer.ring(), None if placer.rows is None else placer.rows.rows
        joining = _Joining(ring.device, block, held, self._kept if placer.matches else None)
        self._kept = {}
        batch.output, event, tensors, num_bytes = copied(batch.output, ring, block, name, joining)
        self._kept, batch.split, batch.link = joining.kept, None, None
        if isinstance(ring.device, HostDevice):  # a batch is in the host's memory until it is freed
            shared = {
                each.data_ptr() for own in ring.on_device.values() for each in _arrays_of(own)
            }
            for tensor in (*tensors, *joining.kept.values()):
                if tensor.data_ptr() not in shared:
                    block.hold(tensor.untyped_storage())
        batch.placed = event, tensors
        cost.bytes_to_device = num_bytes
        cost.num_bytes += block.num_bytes - block.rows_bytes

    def hand_over(self, batch: Batch) -> None:
        """Let what the calling thread does next on the device wait for a batch."""
        placed, batch.placed = batch.placed, None
        self._placer.ring().device.wait(*placed)

    def close(self) -> None:
        """Place no more; batches that wait fail. Idempotent."""
        self._is_closed, self._kept = True, {}
        self._changed.notify_all()
        self._placer.trim()
