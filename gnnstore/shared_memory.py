"""Memory without a name in any file system, handed on from the process that fills it to others.

The memory (`memfd_create`) goes as a descriptor through an abstract Unix socket. The kernel lets
one process bind a socket's name: that one fills the memory, and hands it on to all that connect.
The others wait for it, or for its end, and then one of them fills anew. Neither files, locks nor
time limits are needed, and nothing is left by processes that are killed: the kernel frees name and
memory with the last that has them. The name follows from the user and from a key.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import logging
import mmap
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore.budget.limits import obtainable_bytes
from gnnstore.errors import BudgetError
from gnnstore.threads import Thread, uninterrupted
from gnnstore.units import format_size

_log = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]
S = TypeVar("S")

# Least bytes of an array that is shared: a socket, two descriptors and a page each cost more than a
# copy for each process.
LEAST_BYTES = 1 << 20
# Part of every name: processes meet only where they agree on all that follows.
_PROTOCOL = "gnnstore memory 2"
# Bytes that are reserved at a time; interrupts are handled in between.
_PIECE_BYTES = 64 << 20
# Numbers of Linux, since a Python that was built with old headers lacks some of the names.
_POPULATE_WRITE = 23  # of madvise, since Linux 5.14
_HUGE_PAGES = 14  # of madvise
_FOR_SEALS = 1 | 2  # MFD_CLOEXEC, MFD_ALLOW_SEALING
_ADD_SEALS, _GET_SEALS = 1033, 1034
_SEALS = 1 | 2 | 4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
# Errors of the system where memory is short; others are about sharing it.
_NO_ROOM = {errno.ENOMEM, errno.ENOSPC, errno.EFAULT, errno.EAGAIN}
_RETRY_SECONDS = 0.001
# Seconds between looks whether the process that fills is stopped. One that is found so twice in a
# row is not about to go on: a job that is suspended as a whole goes on as a whole.
_LOOK_SECONDS = 5.0
# Refusals of a connection after which the other is taken for a process of another kind, which may
# never listen: between `bind` and `listen` are microseconds.
_MOST_REFUSALS = 5000
_BACKLOG = 4096  # as many as the kernel allows by default


class Unshared(Exception):  # noqa: N818 - it is handled here
    """Raised where memory cannot be shared, with the reason."""


def name_of(key: str) -> bytes:
    """Return the name of the socket through which memory with a key is handed on."""
    digest = hashlib.sha256(f"{_PROTOCOL}\0{key}".encode()).hexdigest()
    return f"\0gnnstore-{os.geteuid()}-{digest}".encode()


def exchange(
    key: str,
    make: Callable[[socket.socket], S],
    take: Callable[[bytes, io.FileIO], S],
) -> tuple[S, bool]:
    """Return what this process makes with the name's socket, or takes; and whether it takes."""
    name = name_of(key)
    for _ in range(_MOST_REFUSALS):
        if (listener := server.bind(name)) is not None:
            return make(listener), False
        if (file := _receive(name, key)) is not None:
            with file:
                return take(name, file), True
        time.sleep(_RETRY_SECONDS)
    raise Unshared("a process has its name and hands nothing on")


def make(
    listener: socket.socket,
    key: str,
    size: Callable[[], int],
    fill: Callable[[Bytes], None] | None,
    *,
    is_content: bool,
) -> Bytes:
    """Return memory that is handed on when it is filled, or at once if it will be filled later."""
    with Handing(listener, is_content=is_content) as closing:
        num_bytes = size()
        file = closing.file = _memory()
        array = _reserved(file, key, num_bytes)
        if fill is not None:
            fill(array)
        until_unused(array, listener)
        uninterrupted(closing.hand_on)
    return array


def until_unused(array: Bytes, listener: socket.socket) -> None:
    """Keep a name for as long as this process has views of the memory."""
    weakref.finalize(array, _withdraw, listener).atexit = False


class Handing:
    """Closes a socket and a file, unless the file is handed on: those that wait look again then."""

    def __init__(self, listener: socket.socket, *, is_content: bool) -> None:
        self.file: io.FileIO | None = None
        self._listener: socket.socket | None = listener
        self._is_content = is_content

    def hand_on(self) -> None:
        """Hand the file on from now on."""
        assert self._listener is not None  # noqa: S101 - once
        assert self.file is not None  # noqa: S101 - made before
        server.add(self._listener, self.file, is_content=self._is_content)
        self._listener = self.file = None

    def __enter__(self) -> Handing:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, self.file):
            if each is not None:
                each.close()


def _because(what: str, error: OSError) -> Unshared:
    """Return the reason why memory is not shared."""
    more = ""
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        more = "; raise the limit of open files, ulimit -n"
    return Unshared(f"{what}: {error.strerror or error}{more}")


def _memory() -> io.FileIO:
    try:
        number = os.memfd_create("gnnstore", _FOR_SEALS)
    except AttributeError as error:
        raise Unshared("this Python was built without os.memfd_create") from error
    except OSError as error:
        raise _because("the system makes no memory to share", error) from error
    return io.FileIO(number, "r+")


def _reserved(file: io.FileIO, key: str, num_bytes: int) -> Bytes:
    """Return new memory, mapped and there: a later access never finds that there is none left."""
    # Before it is touched: the kernel kills a process beyond a cgroup's limit.
    if num_bytes >= LEAST_BYTES and num_bytes > (free := obtainable_bytes()):
        raise _no_room(key, num_bytes, f"{format_size(free)} are available")
    try:
        os.ftruncate(file.fileno(), num_bytes)
        fcntl.fcntl(file.fileno(), _ADD_SEALS, _SEALS)
        mapping = mmap.mmap(file.fileno(), num_bytes)
        _advise_huge_pages(mapping)
        try:
            for first in range(0, num_bytes, _PIECE_BYTES):
                mapping.madvise(_POPULATE_WRITE, first, min(_PIECE_BYTES, num_bytes - first))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            os.posix_fallocate(file.fileno(), 0, num_bytes)  # Linux before 5.14
    except OSError as error:
        if num_bytes < LEAST_BYTES or error.errno not in _NO_ROOM:
            raise _because("the system makes no memory to share", error) from error
        raise _no_room(key, num_bytes, f"the system refuses it ({error.strerror})") from error
    return np.frombuffer(mapping, np.uint8)


def _no_room(key: str, num_bytes: int, reason: str) -> BudgetError:
    return BudgetError(
        f"there is no memory for {key}, {format_size(num_bytes)} that the processes of this "
        f"machine share: {reason}; choose strategy='mmap' or a smaller cache, or raise the "
        "container's limit"
    )


def _advise_huge_pages(mapping: mmap.mmap) -> None:
    with suppress(OSError):  # a kernel without them
        mapping.madvise(_HUGE_PAGES)


def _receive(name: bytes, key: str) -> io.FileIO | None:
    """Wait for memory, and return it; None: no process hands it on any more, or not yet."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(None)  # another library may have set one for all sockets
            client.connect(name)
            pid, user = _peer_of(client)
            if user != os.geteuid():
                raise Unshared(f"a process of another user ({user}) has its name")
            data, files = _wait(client, pid, key)
    except (ConnectionRefusedError, ConnectionResetError):
        return None
    except OSError as error:
        raise _because("it cannot be asked for", error) from error
    if data and not files:
        full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        raise _because("it came without its descriptor", full)
    return io.FileIO(files[0]) if files else None


def _wait(client: socket.socket, pid: int, key: str) -> tuple[bytes, list[int]]:
    """Return what the process at the other end sends, unless that process is stopped."""
    client.settimeout(_LOOK_SECONDS)
    num_looks = num_stopped = 0
    while True:
        with suppress(TimeoutError):
            data, files, _, _ = socket.recv_fds(client, 1, 1, socket.MSG_CMSG_CLOEXEC)
            return data, files
        if not num_looks:
            _log.info("waiting for %s, which process %d is about to fill", key, pid)
        num_looks += 1
        num_stopped = num_stopped + 1 if _is_stopped(pid) else 0
        if num_stopped > 1:
            raise Unshared(f"process {pid}, which has its name, is stopped")


def _is_stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:  # it has ended, or is of another namespace
        return False
    return state in {b"T", b"t"}


def mapped(file: io.FileIO, num_bytes: int | None = None, *, may_write: bool = False) -> Bytes:
    """Return the memory of a file, of as many bytes as there should be, or as there are."""
    try:
        found = os.fstat(file.fileno()).st_size
        seals = fcntl.fcntl(file.fileno(), _GET_SEALS)
        if found != (num_bytes or found) or seals & _SEALS != _SEALS:
            raise Unshared(f"a process hands on {found} bytes under its name, sealed as {seals}")
        prot = mmap.PROT_READ | mmap.PROT_WRITE if may_write else mmap.PROT_READ
        mapping = mmap.mmap(file.fileno(), found, prot=prot)
    except OSError as error:
        raise _because("it cannot be mapped", error) from error
    _advise_huge_pages(mapping)
    return np.frombuffer(mapping, np.uint8)


def _peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process at the other end, and its user."""
    size = struct.calcsize("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, user, _ = struct.unpack("3i", found)
    return pid, user


def _withdraw(listener: socket.socket) -> None:
    """Stop handing on memory that this process has freed: wake the thread, which closes it."""
    with suppress(OSError):  # of a forked child, or never handed on
        listener.shutdown(socket.SHUT_RDWR)


class Server:
    """Hands on the memory that this process has filled, in one thread.

    A forked child closes all sockets at once: while it had them, none would see the end of this
    process. The lock keeps forks out as long as there are sockets that a child would not close.
    """

    def __init__(self) -> None:
        self.num_handed_on = 0  # arrays, each as often as another process has taken it
        self._lock = threading.Lock()
        self._bound: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        # By the socket's descriptor; with whether it is content of a store.
        self._served: dict[int, tuple[socket.socket, io.FileIO, bool]] = {}
        self._changes: select.epoll | None = None  # while the thread runs
        os.register_at_fork(
            before=self._lock.acquire,
            after_in_parent=self._lock.release,
            after_in_child=self._forget,
        )

    def bind(self, name: bytes) -> socket.socket | None:
        """Return a socket of a name, to which others connect; None if the name is taken."""
        with self._lock:
            try:
                listener = socket.socket(socket.AF_UNIX)
            except OSError as error:
                raise _because("no socket can be opened", error) from error
            self._bound.add(listener)
            try:
                listener.bind(name)
                listener.listen(_BACKLOG)
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    raise _because("no socket can be bound", error) from error
                return None
            return listener

    def add(self, listener: socket.socket, file: io.FileIO, *, is_content: bool) -> None:
        """Hand a file on to each that has connected to a socket, and will."""
        with self._lock:
            listener.setblocking(False)
            try:
                changes = self._changes or select.epoll()
            except OSError as error:
                raise _because("no socket can be watched", error) from error
            if self._changes is None:
                named = {"name": "gnnstore-share", "daemon": True}
                thread = Thread(target=self._run, args=(changes,), **named)
                try:
                    thread.start()
                except RuntimeError as error:
                    changes.close()
                    raise Unshared("no more threads can be started") from error
                self._changes = changes
            try:
                changes.register(listener, select.EPOLLIN)
            except OSError as error:
                raise _because("no socket can be watched", error) from error
            self._served[listener.fileno()] = listener, file, is_content

    def _run(self, changes: select.epoll) -> None:
        try:
            while True:
                for number, event in changes.poll():
                    with self._lock:
                        self._answer(changes, number, event)
                with self._lock:
                    if not self._served:
                        self._end(changes)
                        return
        finally:
            with self._lock:
                self._end(changes)

    def _answer(self, changes: select.epoll, number: int, event: int) -> None:
        if number not in self._served:
            return
        listener, file, is_content = self._served[number]
        if not event & select.EPOLLHUP:
            self._hand_on(listener, file, is_content=is_content)
            return
        del self._served[number]
        # Another process may have the socket still, and its events would belong to a next one
        # with the same number.
        changes.unregister(listener)
        listener.close()
        file.close()

    def _end(self, changes: select.epoll) -> None:
        """Serve no more: after an error, others fill anew, and the next name has a new thread."""
        if self._changes is not changes:
            return
        for listener, file, _ in self._served.values():
            listener.close()
            file.close()
        changes.close()
        self._served, self._changes = {}, None

    def _hand_on(self, listener: socket.socket, file: io.FileIO, *, is_content: bool) -> None:
        try:
            connection, _ = listener.accept()
            with connection:
                if _peer_of(connection)[1] == os.geteuid():
                    socket.send_fds(connection, [b"\0"], [file.fileno()])
                    self.num_handed_on += is_content
        except OSError:  # the other process is gone; or descriptors are short, and it waits
            time.sleep(_RETRY_SECONDS)

    def _forget(self) -> None:
        for listener in self._bound:
            listener.close()
        for _, file, _ in self._served.values():
            file.close()
        if self._changes is not None:
            self._changes.close()
        self._served, self._changes, self.num_handed_on = {}, None, 0
        self._lock.release()


server = Server()
