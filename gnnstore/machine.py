"""Memory that the processes of one machine share: arrays that are loaded whole lie there once.

The ranks of a training run would hold a copy of the same arrays each. Here they hold one: memory
without a name in any file system (`memfd_create`), whose descriptor is handed on through an
abstract Unix socket. The kernel lets one process bind a socket's name: that one fills the memory,
and hands it on to whoever connects. The others wait for it, or for its end, and then one of them
fills anew. Neither files, locks nor time limits are needed, and nothing is left by processes
that are killed: the kernel frees name and memory with the last that has them.

The name follows from the user and from what the memory contains, so that processes with the same
content share it, whoever started them, and others never meet.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.limits import obtainable_bytes
from gnnstore.errors import BudgetError
from gnnstore.threads import Thread, uninterrupted
from gnnstore.units import format_size

_log = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]

# Smaller arrays are copied for each process: a socket, two descriptors and a page each cost more.
LEAST_BYTES = 1 << 20
# Part of every name: processes meet only where they agree on all that follows.
_PROTOCOL = "gnnstore memory 1"
# In front of memory that is read while it is filled: the number of filled rows, and padding so that
# what follows is aligned as any buffer is.
_HEADER_BYTES = 64
# Reserved at a time; interrupts are handled in between.
_PIECE_BYTES = 64 << 20
# Numbers of Linux, since a Python that was built with old headers lacks some of the names.
_POPULATE_WRITE = 23  # of madvise, since Linux 5.14
_HUGE_PAGES = 14  # of madvise
_FOR_SEALS = 1 | 2  # MFD_CLOEXEC, MFD_ALLOW_SEALING
_ADD_SEALS, _GET_SEALS = 1033, 1034
_SEALS = 1 | 2 | 4  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
# What the system says if there is no memory left; all else is about sharing it.
_NO_ROOM = {errno.ENOMEM, errno.ENOSPC, errno.EFAULT, errno.EAGAIN}
_RETRY_SECONDS = 0.001
# Who waits looks this often whether the process that fills is stopped. One that is found so twice
# in a row is not about to go on: a job that is suspended as a whole goes on as a whole.
_LOOK_SECONDS = 5.0
# Between `bind` and `listen` are microseconds. Who is refused this often meets a process of another
# kind, which may never listen.
_MOST_REFUSALS = 5000
_BACKLOG = 4096  # as many as the kernel allows by default


@dataclass(eq=False)
class Growing:
    """Memory that is read while it is filled, from its begin on. Thread-safe."""

    array: Bytes
    num_filled: int = 0  # units that are there, as the filler counts them; never falls

    def publish(self, num_filled: int) -> None:
        """Let readers see what has been filled so far; called by the process that fills."""
        self.num_filled = num_filled


class Machine:
    """The place of arrays that are loaded whole: here, memory of this process alone.

    Safe to use from many threads at once. Arrays live for as long as views of them do.
    """

    num_ranks = 1  # processes that each count a share of the arrays
    private_bytes = 0  # of arrays that were to be shared, and could not be

    def share(self, key: str, num_bytes: int, fill: Callable[[Bytes], None]) -> Bytes:  # noqa: ARG002
        """Return memory that a function has filled, in this process or in another one.

        Parameters
        ----------
        key : str
            Names the content: the same key and number of bytes stand for the same bytes.
            It has the identity of the directory that an array lies in, the array's path, and its
            type and shape in memory; of what is chosen from an array, the choice too.
        num_bytes : int
            Size of the memory, perhaps zero.
        fill : callable
            Is called with the memory, writable and of unspecified contents, before this method
            returns: once, in this thread, and only if no other process has filled it or is about
            to. It writes every byte and asks for no memory of the machine itself. Its errors are
            raised here; nothing is kept then.

        Returns
        -------
        ndarray of uint8, shape [num_bytes]
            Filled to the end, aligned for any type. Read-only if it may be shared; callers do not
            write to it in any case.
        """
        array = _core.pool_empty(num_bytes)
        fill(array)
        return array

    def share_values(self, key: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:  # noqa: ARG002
        """Return an array of the same contents, type and shape: here, the array itself.

        For arrays that each process has computed, and may now have in common. A machine that is
        shared does so by `share`, whose `fill` copies; the array itself is then let go.
        """
        return values

    def share_growing(self, key: str, num_bytes: int, fill: Callable[[Growing], None]) -> Growing:  # noqa: ARG002
        """Return memory that is read while it is filled.

        Parameters
        ----------
        key : str
            As in `share`.
        num_bytes : int
            As in `share`.
        fill : callable
            Is called as in `share`, but may keep what it is given: this process fills the memory,
            then or later, in any thread, from its begin on, and calls `publish` as it goes.

        Returns
        -------
        Growing
            Perhaps empty, and filled by another process meanwhile. If that ends early, the rest is
            never filled: readers take what `num_filled` does not count from elsewhere.
        """
        growing = Growing(_core.pool_empty(num_bytes))
        fill(growing)
        return growing

    def agree(self, key: str, make: Callable[[], str]) -> str:  # noqa: ARG002
        """Return what the first process said that was asked, which lives: a line of up to 4 KB."""
        return make()


PRIVATE = Machine()


def share_of(num_bytes: int, num_ranks: int) -> int:
    """Return the part of some memory that each of the processes counts which share it."""
    return -(-num_bytes // num_ranks)


class _SharedGrowing(Growing):
    """Memory that another process may fill; in front of it is the number of what is there."""

    def __init__(self, array: Bytes, cell: npt.NDArray[np.int64]) -> None:
        self.array, self._cell = array, cell

    @property
    def num_filled(self) -> int:
        """See `Growing`; what it counts can be read."""
        return _core.load_acquire(self._cell)

    @num_filled.setter
    def num_filled(self, value: int) -> None:
        _core.store_release(self._cell, value)


class Unshared(Exception):  # noqa: N818 - it is handled here
    """Raised where memory cannot be shared, with the reason."""


class SharedMachine(Machine):
    """Memory of several processes, each of which counts a share of it."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.num_met = 0  # arrays that another process has filled
        self.filled_bytes = 0  # of arrays that this process has filled, and can hand on
        self.private_bytes = 0  # of arrays that could not be shared
        # For what these take beyond a share, in the budget of the loader that loads; None: no limit
        self.spare_bytes: int | None = None
        self._has_looked = False

    def share(self, key: str, num_bytes: int, fill: Callable[[Bytes], None]) -> Bytes:
        """See `Machine.share`."""
        if num_bytes < LEAST_BYTES:
            return super().share(key, num_bytes, fill)
        try:
            array, is_own = self._share(key, num_bytes, fill)
        except Unshared as reason:
            self._note(key, num_bytes, reason)
            return super().share(key, num_bytes, fill)
        self._count(num_bytes, is_own=is_own)
        return array

    def share_values(self, key: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See `Machine.share_values`."""
        content = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        found = self.share(key, content.nbytes, partial(np.copyto, src=content))
        return found.view(values.dtype).reshape(values.shape)

    def share_growing(self, key: str, num_bytes: int, fill: Callable[[Growing], None]) -> Growing:
        """See `Machine.share_growing`."""
        if num_bytes < LEAST_BYTES:
            return super().share_growing(key, num_bytes, fill)
        try:
            whole, is_own = self._share(key, _HEADER_BYTES + num_bytes, None)
        except Unshared as reason:
            self._note(key, num_bytes, reason)
            return super().share_growing(key, num_bytes, fill)
        found = _SharedGrowing(whole[_HEADER_BYTES:], whole[:8].view(np.int64))
        self._count(num_bytes, is_own=is_own)
        if is_own:
            fill(found)
        return found

    def agree(self, key: str, make: Callable[[], str]) -> str:
        """See `Machine.agree`."""
        made: list[str] = []

        def fill(array: Bytes) -> None:
            made.append(make())
            said = made[0].encode()
            array[: len(said)] = np.frombuffer(said, np.uint8)

        if key not in _agreed:
            try:
                _agreed[key], _ = self._share(key, mmap.PAGESIZE, fill, is_content=False)
            except Unshared as reason:
                _log.warning("ranks of this machine decide by themselves: %s", str(reason))
                return made[0] if made else make()
        return _agreed[key].tobytes().rstrip(b"\0").decode()

    def look_around(self) -> None:
        """Say once, at a first batch, if no other process has taken what is to be shared."""
        if self._has_looked:
            return
        self._has_looked = True
        if self.filled_bytes and not self.num_met and not _server.num_handed_on:
            _log.warning(
                "this rank has loaded %s for %d ranks of this machine, and no other has taken a "
                "part of it so far: if they have begun, they are in other network namespaces or "
                "have other options, and each holds a copy of its own beyond its memory=",
                *(format_size(self.filled_bytes), self.num_ranks),
            )

    def _share(
        self,
        key: str,
        num_bytes: int,
        fill: Callable[[Bytes], None] | None,
        *,
        is_content: bool = True,
    ) -> tuple[Bytes, bool]:
        """Return memory, and whether this process has made it; then writable without `fill`."""
        name = name_of(key)
        for _ in range(_MOST_REFUSALS):
            if (listener := _server.bind(name)) is not None:
                return _make(listener, key, num_bytes, fill, is_content=is_content), True
            if (file := _receive(name, key)) is not None:
                with file:
                    return np.frombuffer(_mapped(file, num_bytes), np.uint8), False
            time.sleep(_RETRY_SECONDS)
        raise Unshared("a process has its name and hands nothing on")

    def _count(self, num_bytes: int, *, is_own: bool) -> None:
        if is_own:
            self.filled_bytes += num_bytes
        else:
            self.num_met += 1

    def _note(self, key: str, num_bytes: int, reason: Unshared) -> None:
        """Count an array that cannot be shared, before it is loaded, and say so."""
        whole = self.private_bytes + num_bytes
        more = whole - share_of(whole, self.num_ranks)
        problem = None
        if num_bytes > (free := obtainable_bytes()):
            problem = f"{format_size(free)} are available"
        elif self.spare_bytes is not None and more > self.spare_bytes:
            problem = (
                f"arrays that could not be shared take {format_size(more)} more than a rank's "
                f"part, and {format_size(self.spare_bytes)} of memory= are left"
            )
        if problem is not None:
            raise BudgetError(
                f"there is no memory for {key}, {format_size(num_bytes)} that could not be shared "
                f"with other processes of this machine ({reason}): {problem}; mend the reason, "
                "raise memory=, or choose strategy='mmap' or a smaller cache"
            ) from reason
        self.private_bytes = whole
        _log.warning(
            "%s (%s) is not shared with other processes of this machine, and is loaded for this "
            "one alone: %s",
            *(key, format_size(num_bytes), str(reason)),  # without its frames, which have loaders
        )


_agreed: dict[str, Bytes] = {}  # as long as this process lives


def name_of(key: str) -> bytes:
    """Return the name of the socket through which memory with a key is handed on."""
    digest = hashlib.sha256(f"{_PROTOCOL}\0{key}".encode()).hexdigest()
    return f"\0gnnstore-{os.geteuid()}-{digest}".encode()


def _make(
    listener: socket.socket,
    key: str,
    num_bytes: int,
    fill: Callable[[Bytes], None] | None,
    *,
    is_content: bool,
) -> Bytes:
    """Return memory that is handed on once it is filled, or at once if it is filled later."""
    with _Closing(listener, is_content=is_content) as closing:
        file = closing.file = _memory()
        mapping = _reserved(file, key, num_bytes)
        array = np.frombuffer(mapping, np.uint8)
        if fill is not None:
            fill(array)
        weakref.finalize(mapping, _withdraw, listener).atexit = False
        uninterrupted(closing.hand_on)
    if fill is not None:
        array = array[:]
        array.flags.writeable = False
    return array


class _Closing:
    """Closes a socket and a file, unless the file is handed on: whoever waits looks again then."""

    def __init__(self, listener: socket.socket, *, is_content: bool) -> None:
        self.file: io.FileIO | None = None
        self._listener: socket.socket | None = listener
        self._is_content = is_content

    def hand_on(self) -> None:
        """Hand the file on from now on."""
        assert self._listener is not None  # noqa: S101 - once
        assert self.file is not None  # noqa: S101 - made before
        _server.add(self._listener, self.file, is_content=self._is_content)
        self._listener = self.file = None

    def __enter__(self) -> _Closing:
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


def _reserved(file: io.FileIO, key: str, num_bytes: int) -> mmap.mmap:
    """Return new memory, mapped and there: a later access never finds that there is none left."""
    # Before it is touched: the kernel kills who is beyond a cgroup's limit.
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
    return mapping


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
    """Wait for memory, and return it; None: nobody hands it on any more, or not yet."""
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


def _mapped(file: io.FileIO, num_bytes: int) -> mmap.mmap:
    try:
        found = os.fstat(file.fileno()).st_size
        seals = fcntl.fcntl(file.fileno(), _GET_SEALS)
        if found != num_bytes or seals & _SEALS != _SEALS:
            raise Unshared(f"a process hands on {found} bytes under its name, sealed as {seals}")
        mapping = mmap.mmap(file.fileno(), num_bytes, prot=mmap.PROT_READ)
    except OSError as error:
        raise _because("it cannot be mapped", error) from error
    _advise_huge_pages(mapping)
    return mapping


def _peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process at the other end, and its user."""
    size = struct.calcsize("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, user, _ = struct.unpack("3i", found)
    return pid, user


def _withdraw(listener: socket.socket) -> None:
    """Hand memory on no more: nobody in this process has it. Wakes the thread, which closes it."""
    with suppress(OSError):  # of a forked child, or never handed on
        listener.shutdown(socket.SHUT_RDWR)


class _Server:
    """Hands on the memory that this process has filled, in one thread.

    A forked child closes all sockets at once: while it had them, nobody would see the end of this
    process. The lock keeps forks out as long as there are sockets that it could not know.
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
        """Return a socket of a name, to which others connect; None if another one has it."""
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
        """Hand a file on to whoever has connected to a socket, and will."""
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
        # Another process may have the socket still, and its events would be those of a next one
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
        except OSError:  # who connected is gone; or there is no descriptor left, and it waits
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


_server = _Server()
