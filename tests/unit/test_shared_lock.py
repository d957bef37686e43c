"""A lock that many threads share or one has alone, and superbatches that are made by its turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from gnnstore.threads import CancelledError, SharedLock


class Held(threading.Thread):
    """Holds a lock in a thread of its own, until it is told to let go."""

    def __init__(self, enter: Callable[..., AbstractContextManager[Any]], **options: Any) -> None:
        super().__init__(daemon=True)
        self._enter, self._options = enter, options
        self.has_it, self._done = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with self._enter(**self._options):
                self.has_it.set()
                self._done.wait(10)
        except CancelledError as error:
            self.error = error

    def let_go(self) -> None:
        self._done.set()
        self.join(10)
        assert not self.is_alive()


def test_many_share_it() -> None:
    lock = SharedLock()
    sharing = [Held(lock.shared) for _ in range(3)]
    assert all(each.has_it.wait(10) for each in sharing)
    for each in sharing:
        each.let_go()


def test_one_has_it_alone_and_before_others_that_would_share_it() -> None:
    lock = SharedLock()
    first = Held(lock.shared)
    assert first.has_it.wait(10)
    alone = Held(lock.alone)
    while not lock.is_alone:
        time.sleep(0.001)
    later = Held(lock.shared)
    assert not alone.has_it.wait(0.15)
    assert not later.has_it.is_set(), "whoever wants it alone would never have it"
    first.let_go()
    assert alone.has_it.wait(10)
    other = Held(lock.alone)
    assert not later.has_it.wait(0.15)
    assert not other.has_it.is_set()
    alone.let_go()
    assert later.has_it.wait(10) or other.has_it.wait(10)
    for each in (later, other):
        each._done.set()
    for each in (later, other):
        each.let_go()
        assert each.has_it.is_set()


def test_it_is_had_alone_unless_somebody_has_it() -> None:
    lock = SharedLock()
    sharing = Held(lock.shared)
    assert sharing.has_it.wait(10)
    waiting = Held(lock.alone_unless_taken)
    assert not waiting.has_it.wait(0.15), "those that share it are waited for"
    with lock.alone_unless_taken() as is_held:
        assert not is_held
    sharing.let_go()
    assert waiting.has_it.wait(10)
    with lock.alone_unless_taken() as is_held:
        assert not is_held
    waiting.let_go()
    with lock.alone_unless_taken() as is_held:
        assert is_held


@pytest.mark.parametrize("way", ["shared", "alone"])
def test_who_is_not_wanted_any_more_does_not_wait(way: str) -> None:
    lock = SharedLock()
    is_wanted = True

    def check() -> None:
        if not is_wanted:
            raise CancelledError("not wanted")

    with lock.alone():
        waiting = Held(getattr(lock, way), check=check)
        assert not waiting.has_it.wait(0.1)
        is_wanted = False
        waiting.join(10)
    assert isinstance(waiting.error, CancelledError)
    with lock.alone_unless_taken() as is_held:
        assert is_held, "it was let go of"


def test_an_interrupted_wait_lets_go_of_it() -> None:
    lock = SharedLock()
    sharing = Held(lock.shared)
    assert sharing.has_it.wait(10)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), lock.alone(interrupted):
        pytest.fail("others share it")
    other = Held(lock.shared)
    assert other.has_it.wait(10)
    other.let_go()
    sharing.let_go()
