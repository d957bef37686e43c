"""Processes of one machine that do something side by side, each told when to go on."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from typing import Self

SECONDS = 60  # after which a process ends that waits for what never comes


class Rank:
    """A fork of this process that works, says words, and waits for its turns; a context manager."""

    def __init__(self, work: Callable[[Rank], object]) -> None:
        self._heard, says = os.pipe()
        hears, self._tells = os.pipe()
        self.pid = os.fork()
        self.status: int | None = None
        if self.pid:
            os.close(says)
            os.close(hears)
            return
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            os.close(self._heard)
            os.close(self._tells)
            self._heard, self._tells = hears, says
            work(self)
            status = 0
        except BaseException:
            traceback.print_exc()  # os._exit says nothing
        finally:
            os._exit(status)

    def say(self, word: str) -> None:
        """Send a word to the other side."""
        os.write(self._tells, word.encode().ljust(64))

    def hear(self) -> str:
        """Wait for a word of the other side; empty at its end."""
        return os.read(self._heard, 64).decode().strip()

    def kill(self) -> None:
        """End it as the kernel does where there is no memory left."""
        os.kill(self.pid, signal.SIGKILL)
        self._wait()

    def end(self) -> None:
        """Wait until it has ended well."""
        self._wait()
        assert self.status == 0

    def _wait(self) -> None:
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        os.close(self._tells)  # who waits for a word hears that there is none
        if error is not None and self.status is None:
            self.kill()
        self._wait()
        os.close(self._heard)
