"""Chooses the engine that reads from disk: the fastest of three that works here, or a given one.

"io_uring" keeps a deep queue full from one thread, at 2 us of processor time a read. Where a
container, an old kernel or an administrator forbids it, the threads of "pread" wait for one read
each (8 us), and calls of "mmap" copy from mapped files, through the page cache. An engine is tried
by reading with it: a kernel version does not show what a container forbids.
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from gnnstore import _core
from gnnstore.disk.profile import ReadTuning, filesystem_id, load_profile, tune_reads
from gnnstore.errors import UsageError, check_choice, storage_errors
from gnnstore.formats.base.files import open_binary

ENGINES = ("io_uring", "pread", "mmap")  # the fastest first
ENVIRONMENT_VARIABLE = "GNNSTORE_IO_ENGINE"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineProbe:
    """The result of trying an engine."""

    name: str
    is_available: bool
    detail: str  # how it works here ("io_uring, 128 deep, registered buffers"), or why it does not
    remedy: str = ""  # a way to make it work; empty if it does
    is_direct: bool = True  # whether reads bypass the page cache where the file system allows it


@dataclass(frozen=True)
class EngineChoice:
    """An engine and the reason for its choice, as in "pread because it was asked for".

    `is_direct` is false if direct reads were tried and refused.
    """

    name: str
    reason: str
    is_direct: bool = True


@dataclass(frozen=True, eq=False)
class Engine:
    """An open engine, shared by all readers with the same settings. Thread-safe."""

    choice: EngineChoice
    tuning: ReadTuning
    reader: _core.Reader

    @property
    def name(self) -> str:
        """Name of the engine, one of `ENGINES`."""
        return self.choice.name

    @property
    def reason(self) -> str:
        """The engine, the reason for its choice, and its queue depth, as a phrase."""
        depth, source = self.tuning.queue_depth, self.tuning.source
        return f"{self.choice.reason}, {depth} reads in flight ({source})"

    @property
    def staging_bytes(self) -> int:
        """Bytes of staging memory per reading thread."""
        return self.reader.staging_bytes


def probe_engines(path: Path) -> list[EngineProbe]:
    """Try each engine on a file."""
    return [_probe(name, path) for name in ENGINES]


def choose_engine(path: Path, forced: str | None = None) -> EngineChoice:
    """Return the given engine, else the first of `ENGINES` that works."""
    option, because = "io_engine", "it was asked for"
    if forced is None and (forced := os.environ.get(ENVIRONMENT_VARIABLE) or None):
        option, because = ENVIRONMENT_VARIABLE, f"{ENVIRONMENT_VARIABLE} asks for it"
    if forced is not None:
        check_choice(option, forced, ENGINES)
        probe = _probe(forced, path)
        if not probe.is_available:
            problem = f"is not available here: {probe.detail}. {probe.remedy}"
            raise UsageError(f"{option}={forced!r} {problem}")
        return EngineChoice(forced, f"{forced} because {because}", probe.is_direct)
    refused: list[EngineProbe] = []
    for name in ENGINES:
        probe = _probe(name, path)
        if probe.is_available:
            missing = " nor ".join(f"{one.name} ({one.detail})" for one in refused)
            why = f" because there is no {missing}" if refused else ", the fastest that works here"
            return EngineChoice(name, name + why, probe.is_direct)
        refused.append(probe)
    reasons = "; ".join(f"{one.name}: {one.detail}. {one.remedy}" for one in refused)
    raise UsageError(f"no engine can read {path}: {reasons}")


def _probe(name: str, path: Path) -> EngineProbe:
    # Some file systems open a file for direct reads and then refuse to read it.
    for is_direct in (True, False):
        try:
            detail = _core.probe_engine(name, path, is_direct)
        except OSError as error:
            if is_direct and error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                continue
            _check_readable(path)
            return EngineProbe(name, False, error.strerror or str(error), remedy_for(name, error))
        except MemoryError:
            return EngineProbe(name, False, "no memory for its reads", _OTHER_ENGINES)
        return EngineProbe(name, True, detail, is_direct=is_direct)
    raise AssertionError("the last try neither worked nor failed")


def _check_readable(path: Path) -> None:
    """Raise if the file cannot be read by any engine."""
    with (
        storage_errors("read", path),
        open_binary(path) as file,
    ):
        if not file.read(1):
            raise OSError(errno.EIO, "the file is empty, so no engine can be tried on it")


_OTHER_ENGINES = f"Ask for another one (io_engine=, {ENVIRONMENT_VARIABLE}), or for none by name"


_IO_URING_ERRORS = (errno.EPERM, errno.EACCES, errno.ENOMEM, errno.ENOSYS, errno.EINVAL)
_IO_URING_REMEDY = (
    "It needs Linux 5.6 or later, the setting kernel.io_uring_disabled=0, and a seccomp "
    "profile with io_uring_setup, io_uring_enter and io_uring_register (docker run --security-opt "
    "seccomp=PROFILE.json); before Linux 5.12 its rings count as locked memory (ulimit -l, docker "
    "run --ulimit memlock=BYTES). Allow it, or use the engine 'pread'"
)


def remedy_for(name: str, error: OSError) -> str:
    """Return advice for a failure of an engine itself, not of the file being read."""
    if name == "io_uring" and error.errno in _IO_URING_ERRORS:
        return _IO_URING_REMEDY
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "Allow more open files (ulimit -n)"
    if name != "io_uring" and error.errno == errno.EAGAIN:
        return "Allow more threads (ulimit -u, or the pids limit of the container)"
    return _OTHER_ENGINES


# Readers by engine and tuning. A process needs as many engines with their staging memory as
# it has threads that read, however many loaders it has.
_readers: WeakValueDictionary[tuple[str, ReadTuning], _core.Reader] = WeakValueDictionary()
_said: set[str] = set()


def open_engine(path: Path, forced: str | None = None) -> Engine:
    """Choose an engine and how it reads, by the measurements of the disk if there are any."""
    choice = choose_engine(path, forced)
    tuning = tune_reads(load_profile(path))
    engine = Engine(choice, tuning, _reader(choice.name, tuning))
    _say_once(logging.INFO, f"rows are read by {engine.reason}")
    because = _core.FileSet([path], [1], direct=choice.is_direct).buffered_because
    if not choice.is_direct:
        because = "it takes no direct reads, although it opens files for them"
    if choice.name != "mmap" and because:
        _say_once(
            logging.WARNING,
            f"reads on the file system {filesystem_id(path)} go through the page cache: {because}",
        )
    return engine


def _reader(name: str, tuning: ReadTuning) -> _core.Reader:
    """Return the reader with these settings."""
    reader = _readers.get((name, tuning))
    if reader is None:
        reader = _readers[name, tuning] = _core.Reader(
            name, queue_depth=tuning.queue_depth, max_read_bytes=tuning.max_read_bytes
        )
    return reader


def _say_once(level: int, message: str) -> None:
    if message not in _said:
        _said.add(message)
        _log.log(level, "%s", message)
