"""Makes system calls fail on demand, to test what a program does then.

    with inject("pread", errno=errno.EIO, skip=3) as fault:
        train()
    assert fault.count == 1

The calls are those of the compiled core: it opens, reads and maps the stores, and commits them.
Calls of Python itself (for metadata, an output) do not fail.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gnnstore import _core
from gnnstore.errors import UsageError

SystemCall: TypeAlias = Literal[
    "open",
    "fstat",
    "statx",
    "pread",
    "pwrite",
    "fallocate",
    "mmap",
    "madvise",
    "fadvise",
    "renameat2",
    "thread",
    "io_uring_setup",
    "io_uring_register",
    "io_uring_enter",
    "io_uring_read",
]

# One table for the whole process, so one user at a time.
_in_use = threading.Lock()


@dataclass(frozen=True)
class Fault:
    """A failure of some calls of one kind.

    Either `errno` or `short_bytes` is given.

    "thread" is starting a thread of the core; "io_uring_read" is the result of a read that io_uring
    has finished; "mmap" maps files, and takes memory for arrays of 1 MiB and more.
    """

    call: SystemCall
    errno: int | None = None  # the error of the call, which is not made
    # Reads return, and writes write, so many bytes at most; 0: as behind the end of the file.
    short_bytes: int | None = None
    skip: int = 0  # calls that succeed first
    # Calls that fail after that; -1: all. Who rightly retries after EINTR does so for ever then.
    times: int = 1

    def __post_init__(self) -> None:
        if (self.errno is None) == (self.short_bytes is None) or self.errno == 0:
            raise UsageError(
                f"a fault of {self.call} needs either an errno, such as errno.EIO, or "
                f"short_bytes; got errno={self.errno} and short_bytes={self.short_bytes}"
            )


class Injection:
    """Faults that are, or were, active."""

    def __init__(self) -> None:
        self._final_count: int | None = None

    @property
    def count(self) -> int:
        """Number of calls of this process that have failed so far, by all faults together."""
        return _core.num_faults() if self._final_count is None else self._final_count

    def _end(self) -> None:
        self._final_count = _core.num_faults()
        _core.set_faults([])


def inject(
    call: SystemCall,
    *,
    errno: int | None = None,
    short_bytes: int | None = None,
    skip: int = 0,
    times: int = 1,
) -> AbstractContextManager[Injection]:
    """Make calls of one kind fail while a `with` block runs; see `Fault` and `inject_all`.

    A test that asserts its `count`, also after the block, cannot pass without a failure.
    """
    return inject_all(Fault(call, errno, short_bytes, skip, times))


@contextmanager
def inject_all(*faults: Fault) -> Iterator[Injection]:
    """Make several faults happen while a `with` block runs.

    They happen in every thread of the process, and in the processes that it forks. Each fault
    counts all calls of its kind on its own; if several are due at once, the first happens and the
    others wait for the next call.

    Blocks do not nest: give all faults in one.
    """
    if not _in_use.acquire(blocking=False):
        raise UsageError(
            "faults are in force already; give all of them to one inject_all(Fault(...), ...)"
        )
    try:
        _core.set_faults(
            [
                (fault.call, fault.skip, fault.times, fault.errno or 0, fault.short_bytes or 0)
                for fault in faults
            ]
        )
        injection = Injection()
        try:
            yield injection
        finally:
            injection._end()
    finally:
        _in_use.release()
