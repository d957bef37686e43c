"""Runs the files of tests in several processes, forks of the one that has collected the tests.

To import torch and collect ten thousand tests takes half a minute of a processor, and several where
they are compiled for the first time: it is done once. Each process takes the next file when it has
done with one, so that what a file shares is made once, and what all files share once per process.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, BinaryIO

import pytest
from _pytest.config import create_terminal_writer

from tests.support.forks import start_servers

# The socket through which a process asks for forks, see `tests.support.forks`.
FORKS = pytest.StashKey[socket.socket]()

_NUMBER = struct.Struct("<i")


@dataclass
class _Worker:
    """A process that runs tests, as the one that started it sees it."""

    pid: int
    messages: int  # a file
    received: bytes = b""
    test: tuple[str, Any] | None = None  # the name and the place of what runs
    status: int | None = None  # None until it has ended

    def take(self) -> Iterator[tuple[str, Any]]:
        """Yield the messages that have come whole, which are lines of JSON."""
        *lines, self.received = self.received.split(b"\n")
        yield from map(json.loads, lines)


class Processes:
    """A plugin of pytest that replaces its loop over tests."""

    def __init__(self, count: int) -> None:
        self._count = count

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run the tests, and report them in this process."""
        options = session.config.option
        if options.collectonly or (
            session.testsfailed and not options.continue_on_collection_errors
        ):
            return None
        assert threading.active_count() == 1, threading.enumerate()
        config: Any = session.config
        config._tmp_path_factory.getbasetemp()  # one for all, which is removed in the end
        gc.collect()
        gc.freeze()
        files = [list(items) for _, items in groupby(session.items, lambda item: item.path)]
        server = None
        channels: list[socket.socket | None] = [None] * self._count
        if any("forks" in getattr(item, "fixturenames", ()) for item in session.items):
            server, found = start_servers(self._count)
            channels[:] = found
        turns, numbers = os.pipe()  # each process reads the number of the next file
        os.set_blocking(numbers, False)
        content = b"".join(map(_NUMBER.pack, range(len(files))))
        assert os.write(numbers, content) == len(content), "there are more files than fit a pipe"
        os.close(numbers)
        workers: list[_Worker] = []
        for _ in range(self._count):
            workers.append(_start(session, files, turns, workers, channels))
        for channel in filter(None, channels):
            channel.close()
        try:
            _listen(session, workers)
        finally:
            _stop(workers)
            if server is not None:
                server.terminate()  # it may still import, or wait for what a test has left
                server.wait()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        if left := len(os.read(turns, len(content) + 1)) // _NUMBER.size:
            _report_failure(session, f"{left} files of tests were not run: no process was left")
        os.close(turns)
        return True


def _listen(session: pytest.Session, workers: list[_Worker]) -> None:
    """Report what processes report until each has ended, or too much has failed."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.messages, selectors.EVENT_READ, worker)
        while selector.get_map() and not (session.shouldfail or session.shouldstop):
            events = selector.select(timeout=1)
            for key, _ in events:
                worker = key.data
                read = os.read(worker.messages, 1 << 20)
                worker.received += read
                for message in worker.take():
                    _report(session, worker, *message)
                if not read:
                    _end(session, selector, worker)
            if not events:
                _look_for_ends(session, selector)


def _stop(workers: list[_Worker]) -> None:
    """Interrupt the processes that have not ended, and wait for them."""
    running = [worker for worker in workers if worker.status is None]
    for worker in workers:
        os.close(worker.messages)
    for worker in running:
        os.kill(worker.pid, signal.SIGINT)
    for worker in running:
        os.waitpid(worker.pid, 0)


def _look_for_ends(session: pytest.Session, selector: selectors.BaseSelector) -> None:
    """Find processes that have ended although others, their forks, hold their pipes open."""
    for key in [*selector.get_map().values()]:
        worker = key.data
        if worker.status is not None:  # since the last time, and all that it sent is read
            _end(session, selector, worker)
        elif (ended := os.waitpid(worker.pid, os.WNOHANG))[0]:
            worker.status = os.waitstatus_to_exitcode(ended[1])


def _end(session: pytest.Session, selector: selectors.BaseSelector, worker: _Worker) -> None:
    """Listen no more to a process that ends; where it failed, its test did."""
    selector.unregister(worker.messages)
    if worker.status is None:
        worker.status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
    if worker.status and worker.test is not None:
        problem = f"the process ended with {worker.status}; the tests after it in its file"
        _report_failure(session, f"{problem} were not run", *worker.test)
    elif worker.status:
        _report_failure(session, f"a process ended with {worker.status} between tests")


def _report(session: pytest.Session, worker: _Worker, kind: str, content: Any) -> None:
    """Let the plugins of this process see what happened in another."""
    hook = session.config.hook
    if kind == "begin":
        worker.test = content
    elif kind == "report":
        if isinstance(content["longrepr"], list):  # where a test was skipped; JSON has no tuples
            content["longrepr"] = tuple(content["longrepr"])
        report = hook.pytest_report_from_serializable(config=session.config, data=content)
        hook.pytest_runtest_logreport(report=report)
    else:
        worker.test = None


def _report_failure(
    session: pytest.Session, problem: str, name: str = "processes", place: Any = ("", 0, "")
) -> None:
    """Fail the test of this name, or the run."""
    session.config.hook.pytest_runtest_logreport(
        report=pytest.TestReport(name, place, {}, "failed", problem, "call")
    )


def _start(
    session: pytest.Session,
    files: list[list[pytest.Item]],
    turns: int,
    started: Sequence[_Worker],
    channels: Sequence[socket.socket | None],
) -> _Worker:
    """Start a process that runs tests, after others."""
    number = len(started)
    receiver, sender = os.pipe()
    child = os.fork()
    if child:
        os.close(sender)
        return _Worker(child, receiver)
    status = 1
    try:
        for file in (receiver, *(worker.messages for worker in started)):
            os.close(file)  # or nobody would notice that the first process has closed it
        for other in {*range(len(channels))} - {number}:
            if (channel := channels[other]) is not None:
                channel.close()
        if (channel := channels[number]) is not None:
            session.config.stash[FORKS] = channel
        with os.fdopen(sender, "wb") as messages:
            _work(session, files, turns, messages)
        status = 0
    except BaseException:
        text = traceback.format_exc()
        if "KeyboardInterrupt" not in text:  # from this user or the other process
            print(text, file=sys.stderr)
    finally:
        os._exit(status)


class _Terminal:
    """What is written to the terminal beside reports, as stacks at a time limit, is captured."""

    def __init__(self, config: pytest.Config) -> None:
        self._tw = create_terminal_writer(config, sys.stderr)  # `Config.get_terminal_writer`


class _Reporter:
    """A plugin of a process that runs tests: sends its reports to the first process."""

    def __init__(self, config: pytest.Config, messages: BinaryIO) -> None:
        self._config = config
        self._messages = messages

    def send(self, kind: str, content: Any = None) -> None:
        try:
            self._messages.write(json.dumps((kind, content)).encode() + b"\n")
            self._messages.flush()
        except BrokenPipeError:  # where a test took the signal to stop for its own
            raise KeyboardInterrupt from None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self.send("report", hook.pytest_report_to_serializable(config=self._config, report=report))


def _work(
    session: pytest.Session, files: list[list[pytest.Item]], turns: int, messages: BinaryIO
) -> None:
    """Run files of tests while there are any."""
    config = session.config
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    capturing: Any = plugins.getplugin("capturemanager")
    if capturing is not None:  # into files of its own
        capturing.stop_global_capturing()
        capturing.start_global_capturing()
    plugins.register(_Terminal(config), "terminalreporter")
    reporter = _Reporter(config, messages)
    plugins.register(reporter)
    try:
        while number := os.read(turns, _NUMBER.size):
            items = files[_NUMBER.unpack(number)[0]]
            # After the last of a file, what belongs to the session stays.
            followers: Sequence[pytest.Item | pytest.Session] = [*items[1:], session]
            for item, following in zip(items, followers, strict=True):
                reporter.send("begin", (item.nodeid, item.location))
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                reporter.send("end")
                if session.shouldfail or session.shouldstop:
                    return
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # `_stop` sends one after the user's
        session._setupstate.teardown_exact(None)
