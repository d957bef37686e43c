"""What ends with an object: once, and never where it would be waited for by what it waits for."""

from __future__ import annotations

import atexit
import gc
import os
import threading
from typing import Any

import pytest

from gnnstore.threads import THREAD_NAME, Condition, Finalizer


class Owner:
    pass


def test_it_ends_once() -> None:
    ended: list[int] = []
    owner = Owner()
    end = Finalizer(owner, ended.append, 1)
    end()
    end()
    del owner
    assert ended == [1]
    assert not end.detach()


def test_it_ends_with_its_owner() -> None:
    ended: list[int] = []
    owner = Owner()
    end = Finalizer(owner, ended.append, 1)
    assert not ended
    del owner
    assert ended == [1]
    end()
    assert ended == [1]


def test_it_may_be_left_as_it_is() -> None:
    ended: list[int] = []
    owner = Owner()
    end = Finalizer(owner, ended.append, 1)
    assert end.detach()
    del owner
    end()
    assert not ended


@pytest.mark.parametrize(("name", "is_same"), [(f"{THREAD_NAME}_0", False), ("user", True)])
def test_the_thread_in_which_it_ends(name: str, is_same: bool) -> None:
    """A thread of gnnstore's, where the garbage collector finds it, is not kept waiting."""
    threads: list[threading.Thread] = []
    ended = threading.Event()

    def end() -> None:
        threads.append(threading.current_thread())
        ended.set()

    owner: Any = Owner()
    owner.itself = owner
    ending = Finalizer(owner, end)
    gc.disable()
    try:
        del owner
        finder = threading.Thread(target=gc.collect, name=name)
        finder.start()
        assert ended.wait(20)
        finder.join()
    finally:
        gc.enable()
    assert (threads == [finder]) == is_same
    assert not ending.detach()


def test_it_ends_in_another_thread_than_one_that_may_have_a_lock() -> None:
    """The collector finds it in the middle of this package's code, which the end may wait for."""
    threads: list[threading.Thread] = []
    ended = threading.Event()

    def end() -> None:
        threads.append(threading.current_thread())
        ended.set()

    owner: Any = Owner()
    owner.itself = owner
    Finalizer(owner, end)
    gc.disable()
    try:
        del owner
        Condition().wait_until(gc.collect)  # with its lock held
    finally:
        gc.enable()
    assert ended.wait(20)
    assert threads != [threading.current_thread()]


@pytest.mark.parametrize("is_told", [False, True])
def test_a_fork_ends_nothing_of_its_parents(monkeypatch: pytest.MonkeyPatch, is_told: bool) -> None:
    ended: list[int] = []
    owner = Owner()
    end = Finalizer(owner, ended.append, 1)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    if is_told:
        end()
    del owner
    assert not ended


def test_without_a_thread_it_ends_with_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[threading.Thread] = []
    at_exit: list[Any] = []
    owner: Any = Owner()
    Finalizer(owner, lambda: ended.append(threading.current_thread()))
    start = threading.Thread.start

    def only_the_first(thread: threading.Thread) -> None:
        if thread.name.endswith("end"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", only_the_first)
    monkeypatch.setattr(atexit, "register", at_exit.append)
    owner.itself = owner
    gc.disable()
    try:
        del owner
        finder = threading.Thread(target=gc.collect, name=f"{THREAD_NAME}_0")
        finder.start()
        finder.join()
    finally:
        gc.enable()
    assert not ended
    at_exit[0]()
    assert ended == [threading.current_thread()]
