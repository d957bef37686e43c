"""Runs test files in several processes: `pytest --workers 3`.

The tests are collected once, and the processes are forks of the one that has done so: to import
torch and to collect ten thousand tests takes a processor half a minute, which each worker of
pytest-xdist would spend anew. A worker asks for a file at a time, and ends as pytest does.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest

from tests.support.forks import ForkServer, fork_servers


@dataclass
class Worker:
    """A process, and what it is at."""

    pid: int
    number: int
    ended: int  # a descriptor that can be read once the process has ended
    connection: Connection | None  # None once it is closed
    running: tuple[str, Any] | None = None  # name and location of the test


class Workers:
    """A plug-in of pytest, in the process that forks workers and in each of these."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.number: int | None = None  # of this process, if it is a worker
        self._ours: Connection | None = None  # to the process that has forked this one
        self._forks = ExitStack()
        self._servers: dict[int, ForkServer] = {}  # by worker
        self._files: list[list[pytest.Item]] = []
        self._left: Iterator[int] = iter(())

    def pytest_collection(self) -> None:
        """Let the process that tests have forks of import torch meanwhile."""
        servers = self._forks.enter_context(fork_servers(self.count))
        self._servers = dict(enumerate(servers))

    def pytest_unconfigure(self) -> None:
        """End it."""
        self._forks.close()

    def forks(self) -> ForkServer | None:
        """Return what starts forks for this worker."""
        return None if self.number is None else self._servers.get(self.number)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Fork, and hand out files until there are no more."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        self._files = [list(items) for _, items in itertools.groupby(session.items, _file_of)]
        self._left = iter(range(len(self._files)))
        workers: list[Worker] = []
        output = session.config.pluginmanager.getplugin("capturemanager")
        output.stop_global_capturing()  # its files would be those of all
        # Or each collection of a worker would copy all that modules are.
        gc.collect()
        gc.freeze()
        # A thread would be missing in the forks, with all the locks that it holds.
        assert threading.active_count() == 1, threading.enumerate()
        try:
            for number in range(min(self.count, len(self._files))):
                if (worker := self._fork(number)) is None:
                    return self._work(session)
                workers.append(worker)
            while workers:
                open_ones = [worker.connection for worker in workers if worker.connection]
                ended = wait([*open_ones, *(worker.ended for worker in workers)])
                for worker in [*workers]:
                    self._listen(session, worker)
                    if worker.ended not in ended:
                        continue
                    workers.remove(worker)
                    if not self._bury(session, worker):
                        continue
                    self._servers.pop(worker.number, None)  # in the middle of something
                    if (another := self._fork(worker.number)) is None:
                        return self._work(session)
                    workers.append(another)
                if session.shouldfail or session.shouldstop:
                    raise session.Failed(session.shouldfail or session.shouldstop)
        finally:
            if self.number is None:
                for worker in workers:
                    with suppress(ProcessLookupError):
                        os.kill(worker.pid, signal.SIGKILL)
                    os.waitpid(worker.pid, 0)
                output.start_global_capturing()
        return True

    def _fork(self, number: int) -> Worker | None:
        """Return a new worker; None in the worker itself."""
        theirs, ours = Pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            ours.close()
            return Worker(pid, number, os.pidfd_open(pid), theirs)
        theirs.close()
        self.number, self._ours = number, ours
        return None

    def _work(self, session: pytest.Session) -> bool:
        """Run the tests of files as long as there are any."""
        assert self._ours is not None
        # Only the process that forked this one prints.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        session.config.pluginmanager.getplugin("capturemanager").start_global_capturing()
        items = self._next_file()
        while items:
            following: Sequence[pytest.Item] = ()
            for item, after in itertools.zip_longest(items, items[1:]):
                if after is None:
                    following = self._next_file()
                self._ours.send(("run", (item.nodeid, item.location)))
                nextitem = after or next(iter(following), None)  # whose fixtures stay
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
                self._ours.send(("end", (item.nodeid, item.location)))
            items = following
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """End a worker: its parent has all that it has found, and to tidy up takes seconds."""
        if self.number is not None:
            sys.stderr.flush()
            os._exit(exitstatus)

    def _next_file(self) -> Sequence[pytest.Item]:
        assert self._ours is not None
        self._ours.send(("ask", None))
        number: int | None = self._ours.recv()
        return () if number is None else self._files[number]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell of what a worker has run."""
        if self._ours is not None:
            self._ours.send(("report", report._to_json()))

    def _listen(self, session: pytest.Session, worker: Worker) -> None:
        """Answer a worker, and pass on what it says."""
        hook = session.config.hook
        while worker.connection is not None and worker.connection.poll():
            try:
                what, value = worker.connection.recv()
                if what == "ask":
                    worker.connection.send(next(self._left, None))
            except (EOFError, BrokenPipeError):
                worker.connection.close()
                worker.connection = None
                return
            if what == "run":
                worker.running = value
            elif what == "report":
                hook.pytest_runtest_logreport(report=pytest.TestReport._from_json(value))
            elif what == "end":
                worker.running = None
                hook.pytest_runtest_logfinish(nodeid=value[0], location=value[1])

    def _bury(self, session: pytest.Session, worker: Worker) -> bool:
        """Wait for the end of a worker; whether it had not come to the end of its work."""
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        os.close(worker.ended)
        if worker.running is None:
            if status not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
                session.shouldfail = f"worker {worker.number} ended with status {status}"
            return False
        name, location = worker.running
        why = f"the process ended with status {status}; what its file has left is not run"
        report = pytest.TestReport(name, location, {}, "failed", why, "call")
        session.config.hook.pytest_runtest_logreport(report=report)
        return True


def _file_of(item: pytest.Item) -> Any:
    return item.path
