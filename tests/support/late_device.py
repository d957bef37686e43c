"""A torch device on CPUs, for tests: "late", whose work begins only when something waits for it.

As on a GPU, work is queued on streams, each thread has its current ones, and memory that is freed
is given to whoever asks next on the stream that it came from. Here nothing is lucky: queued work
runs when a stream, an event or the host waits for it, memory is filled with 0xA5 before it is given
out and once it is freed, and torch's own sanitizer is told of each kernel, event and wait, and
finds what is read or written without an order (`races`), whatever happened to run first.

The module is what `torch.cuda` is for CUDA. `install` makes it `torch.late`, once in a process,
whose `torch.accelerator` it becomes: tests call it in a process of its own.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.cuda import _sanitizer
from torch.utils import backend_registration

NAME = "late"
NUM_DEVICES = 2
FILL = 0xA5  # of memory that nobody has written to
NUM_ASKED = 4  # an event may be asked so often whether it has happened before anything runs

aten = torch.ops.aten
_CPU = torch.device("cpu")
_FACTORIES = re.compile("new_.*|.*_like")  # they take a tensor's shape, and do not read it
_TORCH = (str(Path(torch.__file__).parent), __file__)  # what stands for torch
_UNREAD = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

# What is queued and what has been freed, of all threads.
_lock = threading.RLock()
_numbers = count(1)
_local = threading.local()
_started_in: list[int] = []  # the process that used the device first


# --- what tests look at ----------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """A copy from the host to a device."""

    num_bytes: int
    device: torch.device
    is_pinned: bool  # whether it reads the host's memory when it runs, not when it is called
    is_asynchronous: bool


races: list[str] = []  # what had no order
copies: list[Copy] = []
limit_bytes: int | None = None  # of memory of one device; more is refused
_used, _most = [0] * NUM_DEVICES, [0] * NUM_DEVICES


def reset() -> None:
    """Forget what was seen."""
    races.clear()
    copies.clear()
    _most[:] = _used


# The sanitizer looks for lines of code twice a kernel; `_caller` finds the one that matters.
_sanitizer.traceback = SimpleNamespace(  # type: ignore[assignment, attr-defined]
    walk_stack=lambda _: None, StackSummary=SimpleNamespace(extract=lambda *_, **__: [])
)
_handler = _sanitizer.EventHandler()


class _NoNames(dict[int, list[str]]):
    def __missing__(self, number: int) -> list[str]:
        return []


def _caller() -> tuple[str, int]:
    """Return the line that called torch."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _order(name: str, stream: Stream, reads: Sequence[_Memory], writes: Sequence[_Memory]) -> None:
    """Tell the sanitizer of a kernel that is queued."""
    written = {each.number for each in writes}
    read = {each.number for each in reads} - written
    what: Any = (name, *_caller())
    names = _NoNames()
    for error in _handler._handle_kernel_launch(stream.number, read, written, set(), what, names):
        now, before = error.current_access, error.previous_access  # type: ignore[attr-defined]
        (kernel, *place), (kernel_before, *place_before) = now.operator, before.operator
        races.append(
            f"{kernel} at {place} on stream {now.stream} is {now.type} what {kernel_before} at "
            f"{place_before} on stream {before.stream} was {before.type}: nothing orders them"
        )
    for each in (*reads, *writes):
        each.streams.add(stream)


# --- streams and events ----------------------------------------------------------------------


class Stream:
    """Work that is done in order, once something waits for it."""

    def __init__(self, device: Any = None) -> None:
        _refuse_fork()
        self.device, self.number = _resolved(device), next(_numbers)
        self._work: deque[Callable[[], object]] = deque()
        self._num_done = 0
        with _lock:
            _handler._handle_stream_creation(self.number)

    @property
    def end(self) -> int:
        """The number of pieces of work that were ever queued."""
        return self._num_done + len(self._work)

    def is_done(self, end: int) -> bool:
        """Whether the first pieces of work have been done."""
        return self._num_done >= end

    def add(self, work: Callable[[], object]) -> None:
        """Queue a piece of work."""
        self._work.append(work)

    def run(self, end: int) -> None:
        """Do the first pieces of work, unless that has been done."""
        with _lock, torch.inference_mode(False), torch.no_grad():
            while not self.is_done(end):
                self._work.popleft()()
                self._num_done += 1

    def wait_event(self, event: Event) -> None:
        """Let what is queued from now on wait for an event."""
        with _lock:
            if event.mark is not None:
                _handler._handle_event_wait(event.number, self.number)
                stream, end = event.mark
                self.add(lambda: stream.run(end))

    def wait_stream(self, stream: Stream) -> None:
        """Let what is queued from now on wait for what another stream has queued."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that happens once what is queued has been done."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Wait until all work is done."""
        with _lock:
            _free_all()
            self.run(self.end)
            _handler._handle_stream_synchronization(self.number)

    def query(self) -> bool:
        """Whether all work is done."""
        return not self._work


class Event:
    """A place among the work of a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = next(_numbers)
        self.mark: tuple[Stream, int] | None = None
        self._num_asked = 0
        with _lock:
            _handler._handle_event_creation(self.number)

    def record(self, stream: Stream | None = None) -> None:
        """Happen once what a stream has queued has been done."""
        stream = stream or current_stream()
        with _lock:
            _free_all()
            self.mark = stream, stream.end
            _handler._handle_event_record(self.number, stream.number)

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for it."""
        (stream or current_stream()).wait_event(self)

    def synchronize(self) -> None:
        """Wait until it has happened."""
        with _lock:
            if self.mark is not None:
                stream, end = self.mark
                stream.run(end)
                _handler._handle_event_synchronization(self.number)

    def query(self) -> bool:
        """Whether it has happened, as it does in the end for who asks again and again."""
        self._num_asked += 1
        if self._num_asked > NUM_ASKED:
            self.synchronize()
        return self.mark is None or self.mark[0].is_done(self.mark[1])


def _resolved(device: Any = None) -> torch.device:
    """Return a device with its number."""
    if isinstance(device, str):
        device = torch.device(device)
    index = device.index if isinstance(device, torch.device) else device
    index = current_device() if index is None else index
    if not 0 <= index < NUM_DEVICES:
        raise RuntimeError(f"there is no device {index}")
    return torch.device("privateuseone", index)


def current_device() -> int:
    """Return the number of this thread's device."""
    return getattr(_local, "device", 0)


def set_device(device: Any) -> None:
    """Choose this thread's device."""
    _local.device = _resolved(device).index


@contextmanager
def device(chosen: Any) -> Iterator[None]:
    """Make a device this thread's."""
    before = current_device()
    set_device(chosen)
    try:
        yield
    finally:
        _local.device = before


def device_count() -> int:
    """Return the number of devices."""
    return NUM_DEVICES


def is_available() -> bool:
    """Whether there is such a device."""
    return True


def is_initialized() -> bool:
    """Whether this process uses it."""
    return bool(_started_in)


def _is_in_bad_fork() -> bool:
    return bool(_started_in) and _started_in[0] != os.getpid()


def _refuse_fork() -> None:
    if _is_in_bad_fork():
        raise RuntimeError("cannot use a late device in a forked process")
    if not _started_in:
        _started_in.append(os.getpid())


def manual_seed_all(seed: int) -> None:
    """Do nothing: there are no random numbers here."""


_defaults: dict[int, Stream] = {}


def default_stream(device: Any = None) -> Stream:
    """Return the stream that threads begin with."""
    index = _resolved(device).index
    with _lock:
        if index not in _defaults:
            _defaults[index] = Stream(index)
    return _defaults[index]


def _current() -> dict[int, Stream]:
    found: dict[int, Stream] = vars(_local).setdefault("streams", {})
    return found


def current_stream(device: Any = None) -> Stream:
    """Return this thread's stream of a device."""
    index = _resolved(device).index
    return _current().get(index, default_stream(index))


@contextmanager
def stream(chosen: Stream | None) -> Iterator[None]:
    """Make a stream this thread's, and its device, too."""
    if chosen is None:
        yield
        return
    index = chosen.device.index
    before = current_stream(index)
    with device(index):
        _current()[index] = chosen
        try:
            yield
        finally:
            _current()[index] = before


def synchronize(device: Any = None) -> None:
    """Wait until all work on a device is done."""
    index = _resolved(device).index
    with _lock:
        _free_all()
        for each in [*_streams_in_use, current_stream(index)]:
            if each.device.index == index:
                each.run(each.end)
        _handler._handle_device_synchronization()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return free bytes, and all bytes."""
    all_bytes = limit_bytes or 16 << 30
    return all_bytes - _used[_resolved(device).index], all_bytes


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of tensors."""
    with _lock:
        _free_all()
        return _used[_resolved(device).index]


def max_memory_allocated(device: Any = None) -> int:
    """Return the most bytes of tensors since `reset`."""
    return _most[_resolved(device).index]


# --- memory ----------------------------------------------------------------------------------

_freed: deque[_Memory] = deque()
_streams_in_use: set[Stream] = set()


class _Memory:
    """The memory of a tensor and its views."""

    def __init__(self, raw: Tensor, device: torch.device) -> None:
        self.number, self.device = next(_numbers), device
        self.num_bytes = raw.untyped_storage().nbytes()
        self.stream = current_stream(device)  # whose next tensor gets it
        self.streams: set[Stream] = set()  # that read it or write to it
        self.recorded = {self.stream}
        self._raw = raw

    def fill(self) -> None:
        """Write over all of it."""
        torch.empty(0, dtype=torch.uint8).set_(self._raw.untyped_storage()).fill_(FILL)

    def free(self) -> None:
        """Give it to the next tensor of its stream, which waits for those recorded only."""
        home = self.stream
        for other in self.recorded - {home}:
            home.wait_event(other.record_event())
        is_in_use = self.streams - self.recorded
        _order("the next tensor", home, [], [self])
        _handler._handle_memory_deallocation(self.number)
        home.add(self.fill)
        _used[self.device.index] -= self.num_bytes
        if is_in_use:  # by a stream that may be later than this one
            home.run(home.end)


class _Handle:
    """What the tensors of a memory hold."""

    def __init__(self, memory: _Memory) -> None:
        self.memory = memory

    def __del__(self, freed: deque[_Memory] = _freed) -> None:
        freed.append(self.memory)  # the lock may be taken, by this thread or another


def _free_all() -> None:
    while _freed:
        _freed.popleft().free()


def _allocate(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype | None, device: Any
) -> LateTensor:
    _refuse_fork()
    device = _resolved(device)
    with _lock, torch.inference_mode(False):
        _free_all()
        dtype = dtype or torch.get_default_dtype()
        raw = torch.empty_strided(tuple(size), tuple(stride), dtype=dtype, device=_CPU)
        memory = _Memory(raw, device)
        used = _used[device.index] + memory.num_bytes
        if limit_bytes is not None and used > limit_bytes:
            raise torch.OutOfMemoryError(
                f"Tried to allocate {memory.num_bytes} bytes: {used} are more than {limit_bytes}"
            )
        _used[device.index], _most[device.index] = used, max(used, _most[device.index])
        memory.fill()
        _streams_in_use.add(memory.stream)
    return LateTensor(raw, _Handle(memory))


_pinned: list[Tensor] = []


def pinned(num_bytes: int) -> Tensor:
    """Return memory of the host that copies read, or write, when they run."""
    block = torch.empty(num_bytes, dtype=torch.uint8, device=_CPU)
    _pinned.append(block)
    return block


def is_pinned(tensor: Tensor) -> bool:
    """Whether a tensor of the host is in such memory."""
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    for block in _pinned:
        first = block.data_ptr()
        if first <= start and end <= first + block.nbytes and start < end:
            if tensor.untyped_storage()._cdata != block.untyped_storage()._cdata:
                races.append(
                    f"{_caller()} copies from another tensor over pinned memory, and torch does "
                    "not know that the block is read"
                )
            return True
    return False


# --- tensors and kernels ---------------------------------------------------------------------


class LateTensor(Tensor):
    """A tensor on a late device; `raw` will have its values once its streams' work is done."""

    raw: Tensor
    handle: _Handle

    @staticmethod
    def __new__(cls, raw: Tensor, handle: _Handle) -> LateTensor:
        made: LateTensor = Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=handle.memory.device,
        )
        made.raw, made.handle = raw, handle
        return made

    def __init__(self, raw: Tensor, handle: _Handle) -> None:
        pass

    def __repr__(self) -> str:  # type: ignore[override]
        return f"LateTensor({tuple(self.shape)}, {self.dtype}, '{self.device}')"

    def record_stream(self, stream: Any) -> None:
        """Let its memory be used by others only after what a stream has queued when it is freed."""
        if not isinstance(stream, Stream):
            raise TypeError(f"{stream!r} is not a stream of a late device")
        self.handle.memory.recorded.add(stream)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's is untyped
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Queue a kernel on this thread's stream of the tensors' device."""
        kwargs = kwargs or {}
        if func is aten._to_copy.default:
            return _converted(*args, **kwargs)
        if func is aten.copy_.default:
            return _copied(*args, **kwargs)
        if func is aten.is_pinned.default:
            return False
        if func._can_decompose():  # in `inference_mode` torch leaves that to devices
            return func.decompose(*args, **kwargs)
        return _call(func, args, kwargs)


def _memories(tensors: Sequence[LateTensor]) -> list[_Memory]:
    return [each.handle.memory for each in tensors]


def _launch(
    name: str,
    work: Callable[[], object],
    *,
    reads: Sequence[LateTensor] = (),
    writes: Sequence[LateTensor] = (),
    waits: bool = False,
) -> None:
    """Queue a kernel; the work has the tensors' values, and not the tensors themselves."""
    found = current_stream((*reads, *writes)[0].device)
    with _lock:
        _free_all()
        _streams_in_use.add(found)
        _order(name, found, _memories(reads), _memories(writes))
        found.add(work)
        if waits:
            found.synchronize()


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call any function of torch's: views at once, what has a value for the host after waiting."""
    reads: list[LateTensor] = []
    writes: list[LateTensor] = []
    for argument, value in _sanitizer.zip_arguments(func._schema, args, kwargs):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        for each in _leaves(value):
            if isinstance(each, LateTensor):
                (writes if is_written else reads).append(each)
            elif isinstance(each, Tensor) and each.dim():
                raise RuntimeError(f"{func} of tensors on {each.device} and on a late device")
    tensors = (*writes, *reads)
    if len({each.device for each in tensors}) > 1:
        raise RuntimeError(f"{func} of tensors on several late devices")
    given, options = _changed(args, _raw_of), _changed(kwargs, _raw_of)
    if func.is_view:
        handle = tensors[0].handle
        return _changed(func(*given, **options), lambda raw: LateTensor(raw, handle))
    name = func.overloadpacket.__name__
    if _FACTORIES.fullmatch(name):
        reads = []
    returns = [str(each.type) for each in func._schema.returns]
    if set(_UNREAD) & set(func.tags) or any("Tensor" not in each for each in returns):
        _launch(name, lambda: None, reads=reads, writes=writes, waits=True)
        return _changed(func(*given, **options), lambda value: _from_host(value, tensors[0].device))
    if writes:
        _launch(name, lambda: func(*given, **options), reads=reads, writes=writes)
        return (writes[0] if len(writes) == 1 else tuple(writes)) if returns else None
    made = _changed(
        func(*_changed(args, _meta_of), **_changed(kwargs, _meta_of)),
        lambda meta: _allocate(meta.size(), meta.stride(), meta.dtype, tensors[0].device),
    )
    outputs = [each.raw for each in _leaves(made)]

    def work() -> None:
        for output, value in zip(outputs, _leaves(func(*given, **options)), strict=True):
            output.copy_(value)

    _launch(name, work, reads=reads, writes=_leaves(made))
    return made


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value]


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return arguments or results with a function of each tensor and device."""
    if isinstance(value, Tensor | torch.device):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_changed(each, change) for each in value])
    if isinstance(value, dict):
        return {name: _changed(each, change) for name, each in value.items()}
    return value


def _raw_of(value: Any) -> Any:
    if isinstance(value, torch.device):
        return _CPU
    return value.raw if isinstance(value, LateTensor) else value


def _meta_of(value: Any) -> Any:
    meta = torch.device("meta")
    if isinstance(value, torch.device):
        return meta
    if not isinstance(value, LateTensor):
        return value
    raw = value.raw
    return torch.empty_strided(raw.size(), raw.stride(), dtype=raw.dtype, device=meta)


def _from_host(value: Tensor, device: torch.device) -> LateTensor:
    made = _allocate(value.size(), value.stride(), value.dtype, device)
    _launch("copy", lambda raw=made.raw: raw.copy_(value), writes=[made])  # type: ignore[misc]
    return made


def _converted(
    tensor: LateTensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    non_blocking: bool = False,
    **_: Any,
) -> Tensor:
    """Copy to another element type or device."""
    if device is None or device.type != "cpu":
        device = tensor.device if device is None else _resolved(device)
        if device != tensor.device:
            raise NotImplementedError("a copy from one late device to another")
        return _call(aten._to_copy.default, (tensor,), {"dtype": dtype})  # type: ignore[no-any-return]
    made = torch.empty(tensor.size(), dtype=dtype or tensor.dtype, device=_CPU)
    return _copied(made, tensor, non_blocking)


def _copied(to: Tensor, tensor: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy values from the host, to it, or on the device."""
    if not isinstance(to, LateTensor):
        assert isinstance(tensor, LateTensor)
        raw = tensor.raw
        waits = not (non_blocking and is_pinned(to))
        _launch("copy to the host", lambda: to.copy_(raw), reads=[tensor], waits=waits)
        return to
    raw = to.raw
    if isinstance(tensor, LateTensor):
        values = tensor.raw
        _launch("copy", lambda: raw.copy_(values), reads=[tensor], writes=[to])
        return to
    is_read_late = is_pinned(tensor)
    values = tensor if is_read_late else tensor.clone()
    copies.append(Copy(to.nbytes, to.device, is_read_late, non_blocking))
    _launch("copy from the host", lambda: raw.copy_(values), writes=[to], waits=not non_blocking)
    return to


def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> Tensor:
    strides = torch.empty(tuple(size), dtype=torch.uint8, device="meta").stride()
    return _allocate(size, strides, dtype, device)


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> Tensor:
    return _allocate(size, stride, dtype, device)


def install() -> torch.device:
    """Make this module `torch.late`, and return the first device."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, sys.modules[__name__])
    torch.library.impl("aten::empty.memory_format", "privateuseone")(_empty)
    torch.library.impl("aten::empty_strided", "privateuseone")(_empty_strided)
    return torch.device(NAME, 0)
