"""Runs the files of tests in several processes, forks of the one that has collected the tests.

To import torch and collect ten thousand tests takes half a minute of a processor, and several where
they are compiled for the first time: it is done once. Each process takes the next file when it has
done with one, so that what a file shares is made once, and what all files share once a process.
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

from tests.support.forks import start_servers

# What a process asks for forks through, see `tests.support.forks`.
FORKS = pytest.StashKey[socket.socket]()

_NUMBER = struct.Struct("<i")


@dataclass
class _Worker:
    """A process that runs tests, as the one that started it sees it."""

    pid: int
    messages: int  # a file
    received: bytes = b""
    test: tuple[str, Any] | None = None  # the name and the place of what runs
    has_ended: bool = False

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
        os.set_blocking(numbers, False)  # as many as do not fit a pipe are an error
        os.write(numbers, b"".join(map(_NUMBER.pack, range(len(files)))))
        os.close(numbers)
        workers = [_start(session, files, turns, number, channels) for number in range(self._count)]
        os.close(turns)
        for channel in filter(None, channels):
            channel.close()
        try:
            _listen(session, workers)
        finally:
            for worker in workers:
                os.close(worker.messages)
                if not worker.has_ended:
                    os.kill(worker.pid, signal.SIGINT)
                    os.waitpid(worker.pid, 0)
            if server is not None:
                server.wait()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True


def _listen(session: pytest.Session, workers: list[_Worker]) -> None:
    """Report what processes report until each has ended, or too much has failed."""
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.messages, selectors.EVENT_READ, worker)
        while selector.get_map() and not (session.shouldfail or session.shouldstop):
            for key, _ in selector.select():
                worker = key.data
                read = os.read(worker.messages, 1 << 20)
                worker.received += read
                for message in worker.take():
                    _report(session, worker, *message)
                if not read:
                    selector.unregister(worker.messages)
                    status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
                    worker.has_ended = True
                    if status:
                        _report_an_end(session, worker, status)


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


def _report_an_end(session: pytest.Session, worker: _Worker, status: int) -> None:
    """Fail the test that ran when a process ended; the rest of its file does not run."""
    name, place = worker.test or ("the end of a process", ("", 0, ""))
    problem = f"the process ended with {status}; the tests after it in its file were not run"
    session.config.hook.pytest_runtest_logreport(
        report=pytest.TestReport(name, place, {}, "failed", problem, "call")
    )


def _start(
    session: pytest.Session,
    files: list[list[pytest.Item]],
    turns: int,
    number: int,
    channels: Sequence[socket.socket | None],
) -> _Worker:
    """Start a process that runs tests."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child:
        os.close(sender)
        return _Worker(child, receiver)
    status = 1
    try:
        os.close(receiver)
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


class _Reporter:
    """A plugin of a process that runs tests: sends what the other one reports."""

    def __init__(self, config: pytest.Config, messages: BinaryIO) -> None:
        self._config = config
        self._messages = messages

    def send(self, kind: str, content: Any = None) -> None:
        self._messages.write(json.dumps((kind, content)).encode() + b"\n")
        self._messages.flush()

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
        session._setupstate.teardown_exact(None)
