"""Memory that processes share: filled once, whoever of them ends when, and nothing is left."""

from __future__ import annotations

import errno
import gc
import logging
import mmap
import os
import re
import select
import signal
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore import machine, shared_memory
from gnnstore.errors import BudgetError
from gnnstore.machine import PRIVATE, Growing, SharedMachine
from gnnstore.shared_memory import LEAST_BYTES, Bytes, name_of
from tests.support.effort import choose
from tests.support.ranks import Rank

NUM_BYTES = 2 * LEAST_BYTES + 12_345
CONTENT = np.arange(NUM_BYTES, dtype=np.uint32).astype(np.uint8)
TIMES = choose(1, 30)


@pytest.fixture
def key() -> Iterator[str]:
    """Return a key of this test; nothing with its name is left when it has ended."""
    key = f"test/{uuid.uuid4()}"
    yield key
    gc.collect()
    assert not is_bound(key)
    assert list(Path("/dev/shm").glob("*gnnstore*")) == []  # noqa: S108 - it is not written to


def is_bound(key: str) -> bool:
    """Whether a process has a key's name, which a thread gives up a moment after the memory."""
    with socket.socket(socket.AF_UNIX) as probe:
        for _ in range(2000):
            try:
                probe.bind(name_of(key))
            except OSError:
                time.sleep(0.001)
            else:
                return False
    return True


def fill(array: Bytes) -> None:
    array[:] = CONTENT


def never(_: object) -> NoReturn:
    raise AssertionError("another process has filled it")


def share(key: str, fill: Callable[[Bytes], None] = fill) -> Bytes:
    array = SharedMachine(2).share(key, NUM_BYTES, fill)
    assert np.array_equal(array, CONTENT)
    assert not array.flags.writeable
    return array


def hold(key: str, fill: Callable[[Bytes], None] = fill) -> Callable[[Rank], None]:
    """Return the work of a rank that shares an array, says so, and has it until it is told."""

    def work(rank: Rank) -> None:
        array = share(key, fill)
        rank.say("there")
        rank.hear()
        assert np.array_equal(array, CONTENT)

    return work


def stuck(key: str, num_written: int) -> Callable[[Rank], None]:
    """Return the work of a rank that never comes to the end of filling."""

    def work(rank: Rank) -> None:
        def fill(array: Bytes) -> None:
            array[:num_written] = CONTENT[:num_written]
            rank.say("filling")
            rank.hear()

        share(key, fill)

    return work


def waits(key: str, fill: Callable[[Bytes], None] = never) -> Callable[[Rank], None]:
    """Return the work of a rank that says that it asks for what another one fills."""

    def work(rank: Rank) -> None:
        rank.say("asking")
        hold(key, fill)(rank)

    return work


def test_private_memory() -> None:
    assert np.array_equal(PRIVATE.share("key", NUM_BYTES, fill), CONTENT)
    assert SharedMachine(2).share("key", 5, lambda array: array.fill(3)).tolist() == [3] * 5
    assert PRIVATE.agree("key", lambda: "mine") == "mine"


def test_processes_have_one_copy(key: str) -> None:
    """Shared memory of all together is that of one."""

    def work(rank: Rank) -> None:
        share(key, never)
        rank.say(re.findall(r"Pss_Shmem: +(\d+)", Path("/proc/self/smaps_rollup").read_text())[0])
        rank.hear()

    whole = share(key)
    before = shared_memory.server.num_handed_on
    with ExitStack() as stack:
        ranks = [stack.enter_context(Rank(work)) for _ in range(choose(2, 64))]
        # Each counts the pages by the processes that had them at that time.
        assert max(int(rank.hear()) for rank in ranks[-1:]) * 1024 < NUM_BYTES / 2
        for rank in ranks:
            rank.say("end")
    assert shared_memory.server.num_handed_on == before + len(ranks)
    del whole


@pytest.mark.parametrize("num_written", [*choose([], [0]), NUM_BYTES // 2])
def test_the_filler_is_killed_while_others_wait(key: str, num_written: int) -> None:
    for _ in range(TIMES):
        with Rank(stuck(key, num_written)) as filler:
            assert filler.hear() == "filling"
            with Rank(waits(key, fill)) as first, Rank(waits(key, fill)) as second:
                assert [first.hear(), second.hear()] == ["asking"] * 2
                filler.kill()
                assert [first.hear(), second.hear()] == ["there"] * 2


def test_the_filler_is_killed_when_others_have_it(key: str) -> None:
    for _ in range(TIMES):
        with Rank(hold(key)) as filler:
            assert filler.hear() == "there"
            with Rank(hold(key, never)) as reader:
                assert reader.hear() == "there"
                filler.kill()
                with Rank(hold(key)) as newcomer:
                    assert newcomer.hear() == "there"
                reader.say("look again")
                reader.end()


def test_a_reader_is_killed(key: str) -> None:
    for _ in range(TIMES):
        with Rank(stuck(key, 0)) as filler, Rank(waits(key)) as reader:
            assert [filler.hear(), reader.hear()] == ["filling", "asking"]
            reader.kill()
            filler.kill()
        with Rank(hold(key)) as filler:
            assert filler.hear() == "there"
            with Rank(hold(key, never)) as reader, Rank(hold(key, never)) as other:
                assert [reader.hear(), other.hear()] == ["there"] * 2
                reader.kill()
                other.say("look again")
                other.end()


def test_a_child_of_the_filler_keeps_nobody_waiting(key: str) -> None:
    """It is forked while memory is filled, or handed on, and lives longer than the filler."""

    def work(rank: Rank, *, is_late: bool) -> None:
        def fork() -> None:
            if (child := os.fork()) == 0:
                signal.alarm(10)
                signal.pause()
            rank.say(str(child))
            rank.hear()

        def fill(array: Bytes) -> None:
            array[:] = CONTENT
            if not is_late:
                fork()

        array = share(key, fill)
        fork()
        del array

    for is_late in choose((True,), (False, True)):
        with Rank(lambda rank, is_late=is_late: work(rank, is_late=is_late)) as filler:  # type: ignore[misc]
            child = int(filler.hear())
            with Rank(waits(key, fill)) as other:
                other.hear()
                if is_late:
                    assert other.hear() == "there"
                filler.kill()
                with Rank(hold(key)) as newcomer:
                    assert newcomer.hear() == "there"
            os.kill(child, signal.SIGKILL)


def test_an_error_or_interrupt_while_filling_gives_the_name_up(key: str) -> None:
    def fail(array: Bytes) -> NoReturn:
        array[0] = 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        share(key, fail)
    share(key)


def test_who_connects_and_says_nothing_holds_nobody_up(key: str) -> None:
    array = share(key)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(name_of(key))
        with Rank(hold(key, never)) as rank:
            assert rank.hear() == "there"
    assert np.array_equal(share(key, never), array)  # in this process, too


def test_memory_goes_with_its_last_user(key: str) -> None:
    array = share(key)
    view = array[5:]
    del array
    share(key, never)
    del view
    assert not is_bound(key)
    share(key)


def test_it_grows_while_it_is_read(key: str) -> None:
    """And where a filler has ended early, a reader goes on, for newcomers too."""

    def work(rank: Rank) -> None:
        def fill(growing: Growing) -> None:
            for number in (1000, 2000):
                growing.array[:number] = CONTENT[:number]
                growing.publish(number)
                rank.say("there")
                rank.hear()

        SharedMachine(2).share_growing(key, NUM_BYTES, fill)

    def come(rank: Rank) -> None:
        found = SharedMachine(2).share_growing(key, NUM_BYTES, never)
        assert not found.take_over()
        rank.say(str(found.num_filled))
        rank.hear()
        assert np.array_equal(found.array, CONTENT)

    with Rank(work) as filler:
        filler.hear()
        found, other = (SharedMachine(2).share_growing(key, NUM_BYTES, never) for _ in range(2))
        assert (found.num_filled, len(found.array)) == (1000, NUM_BYTES)
        assert np.array_equal(found.array[:1000], CONTENT[:1000])
        assert not found.array.flags.writeable
        filler.say("go on")
        filler.hear()
        assert found.num_filled == 2000
        assert not found.take_over()
        filler.kill()
        assert found.num_filled == 2000
    assert found.take_over()
    assert not other.take_over()
    with Rank(come) as newcomer:
        assert newcomer.hear() == "2000"
        found.array[2000:] = CONTENT[2000:]
        found.publish(NUM_BYTES)
        assert other.num_filled == NUM_BYTES
        newcomer.say("look again")
        newcomer.end()
    assert np.array_equal(other.array, CONTENT)
    for made in (PRIVATE, SharedMachine(2)):
        small = made.share_growing(key, 10, lambda growing: growing.publish(3))
        assert (small.num_filled, small.take_over()) == (3, True)


def test_a_choice_is_that_of_the_first(key: str) -> None:
    """Of any length, and as long as a process has it."""
    dtypes = np.int64, np.uint8, np.uint32
    arrays = np.arange(3), np.arange(5, dtype=np.uint8), np.arange(0, dtype=np.uint32)

    def work(rank: Rank) -> None:
        kept = SharedMachine(2).choose(key, dtypes, lambda: arrays)
        rank.say("there")
        rank.hear()
        assert [each.tolist() for each in kept] == [each.tolist() for each in arrays]

    with Rank(work) as first:
        first.hear()
        found = SharedMachine(2).choose(key, dtypes, lambda: never(key))
        for one, other in zip(found, arrays, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
            assert not one.flags.writeable
        assert found[0].ctypes.data % 64 == found[1].ctypes.data % 64 == 0
    longer: list[npt.NDArray[Any]] = [
        np.arange(9),
        *arrays[1:],
    ]  # of who comes when nobody hands it on any more
    chosen = SharedMachine(2).choose(key, dtypes, lambda: longer)
    assert [len(each) for each in chosen] == [9, 5, 0]
    assert PRIVATE.choose(key, dtypes, lambda: longer)[0] is longer[0]


def test_processes_agree_on_what_the_first_says(key: str) -> None:
    def work(rank: Rank) -> None:
        rank.say(SharedMachine(2).agree(key, lambda: "the first"))
        rank.hear()

    with Rank(work) as first:
        assert first.hear() == "the first"
        second, before = SharedMachine(2), shared_memory.server.num_handed_on
        assert second.agree(key, lambda: "the second") == "the first"
        assert (second.num_met, shared_memory.server.num_handed_on) == (0, before)
    assert SharedMachine(3).agree(key, lambda: "the third") == "the first"
    del machine._agreed[key]


def test_other_content_is_never_taken(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of another size; sealed in another way it could be cut under a reader."""
    array = share(key)
    shared = SharedMachine(2)
    found = shared.share(key, NUM_BYTES + 1, lambda array: array.fill(7))
    assert (found == 7).all()
    assert shared.private_bytes == NUM_BYTES + 1
    said = rf"{key} \(2.11 MB\) is not shared .*: a process hands on {NUM_BYTES} bytes under its"
    assert re.search(said, caplog.text)
    del array


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_has_the_name(key: str, caplog: pytest.LogCaptureFixture) -> None:
    def work(rank: Rank) -> None:
        name = name_of(key)
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name)
            rank.say("bound")
            rank.hear()
            listener.listen()
            rank.say("listening")
            rank.hear()

    with Rank(work) as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_memory, "_MOST_REFUSALS", 3)
        other.hear()
        assert SharedMachine(2).share(key, NUM_BYTES, fill).flags.writeable
        assert "a process has its name and hands nothing on" in caplog.text
        other.say("listen")
        other.hear()
        assert SharedMachine(2).share(key, NUM_BYTES, fill).flags.writeable
        assert "a process of another user (65534) has its name" in caplog.text


def test_a_system_that_makes_no_memory_to_share(
    key: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with caplog.at_level(logging.WARNING):
        found = SharedMachine(2).share(key, NUM_BYTES, fill)
    assert np.array_equal(found, CONTENT)
    assert "the system makes no memory to share: Operation not permitted" in caplog.text


@pytest.mark.parametrize("name", ["os.memfd_create", "fcntl.F_ADD_SEALS"])
def test_a_python_built_with_old_headers(
    key: str, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(name)
    found = SharedMachine(2).share(key, NUM_BYTES, fill)
    assert np.array_equal(found, CONTENT)
    said = "this Python was built without os.memfd_create" in caplog.text
    assert said == (name == "os.memfd_create")


@pytest.mark.parametrize(
    ("where", "name"),
    [(mmap, "mmap"), (socket, "recv_fds"), (socket, "socket"), (select, "epoll")],
)
def test_a_process_without_descriptors(
    key: str,
    where: object,
    name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has a private copy, wherever it fails: as it makes memory or takes it; never two."""
    filled: list[weakref.ref[Any]] = []

    def fill_alone(array: Any) -> None:
        assert [each for each in filled if each() is not None] == []
        filled.append(weakref.ref(array))
        fill(array)

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    array = None if name == "epoll" else share(key)
    with monkeypatch.context() as patch:
        if name == "epoll":
            patch.setattr(shared_memory.server, "_changes", None)
        patch.setattr(where, name, refuse)
        shared = SharedMachine(2)
        found = shared.share(key, NUM_BYTES, fill_alone)
    assert len(filled) == (2 if name == "epoll" else 1)
    assert np.array_equal(found, CONTENT)
    assert shared.private_bytes == NUM_BYTES
    assert "Too many open files; raise the limit of open files, ulimit -n" in caplog.text
    del array


def test_memory_that_comes_without_its_descriptor(
    key: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = share(key)
    monkeypatch.setattr(socket, "recv_fds", lambda *_: (b"\0", [], socket.MSG_CTRUNC, None))
    assert np.array_equal(SharedMachine(2).share(key, NUM_BYTES, fill), CONTENT)
    assert "it came without its descriptor: Too many open files; raise" in caplog.text
    del array


def test_a_time_limit_of_all_sockets_is_not_that_of_waiting(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a filler that goes on, neither: it is looked after, and waited for."""
    monkeypatch.setattr(shared_memory, "_LOOK_SECONDS", 0.001)

    def work(rank: Rank) -> None:
        def fill(array: Bytes) -> None:
            rank.say("filling")
            rank.hear()
            array[:] = CONTENT

        share(key, fill)
        rank.hear()

    socket.setdefaulttimeout(0.001)
    try:
        with Rank(work) as filler:
            filler.hear()
            looks: list[bool] = []

            def look(pid: int) -> bool:
                looks.append(pid == filler.pid)
                if len(looks) == 3:
                    filler.say("go on")
                return False

            monkeypatch.setattr(shared_memory, "_is_stopped", look)
            share(key, never)
            assert all(looks)
            assert len(looks) >= 3
    finally:
        socket.setdefaulttimeout(None)


def test_a_filler_that_is_stopped(
    key: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_LOOK_SECONDS", 0.01)
    with Rank(stuck(key, 0)) as filler, caplog.at_level(logging.INFO):
        filler.hear()
        os.kill(filler.pid, signal.SIGSTOP)
        assert SharedMachine(2).share(key, NUM_BYTES, fill).flags.writeable
        filler.kill()
    waits, alone = caplog.messages
    assert waits == f"waiting for {key}, which process {filler.pid} is about to fill"
    assert alone.endswith(f"process {filler.pid}, which has its name, is stopped")


def test_a_socket_that_another_process_has_still(key: str) -> None:
    """Memory under the next name is handed on all the same."""
    following = f"{key}/next"
    array = share(key)
    (number,) = shared_memory.server._served
    kept = os.dup(number)
    try:
        del array
        while shared_memory.server._served:  # until the thread has closed its own descriptor
            time.sleep(0.001)
        array = share(following)
        for _ in range(20):
            share(following, never)
        del array
        assert not is_bound(following)
    finally:
        os.close(kept)


def test_an_error_of_the_thread_that_hands_on_ends_all_it_serves(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise MemoryError

    array = share(key)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(shared_memory.server, "_answer", fail)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(name_of(key))
            with pytest.raises(ConnectionResetError):
                client.recv(1)
    again = share(key)
    assert np.array_equal(share(key, never), array)
    del again


def test_what_cannot_be_shared_is_counted_before_it_is_loaded(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    shared = SharedMachine(2)
    shared.spare_bytes = NUM_BYTES // 2
    with pytest.raises(BudgetError, match=r"take 1.05 MB more than a rank's part, and 1.05 MB of"):
        shared.share(key, NUM_BYTES + 4, never)
    shared.share(key, NUM_BYTES - 1, fill=lambda array: array.fill(1))
    monkeypatch.setattr(machine, "obtainable_bytes", lambda: 1_000_000)
    with pytest.raises(BudgetError, match=rf"{key}, 2.11 MB that could not .*: 1 MB are available"):
        SharedMachine(2).share(key, NUM_BYTES, never)
    assert SharedMachine(2).agree(key, lambda: "mine") == "mine"  # a page of memory


def test_less_memory_than_is_to_be_shared(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "obtainable_bytes", lambda: 1_000_000)
    with pytest.raises(BudgetError, match=rf"no memory for {key}, 2.11 MB .*: 1 MB are available"):
        SharedMachine(2).share(key, NUM_BYTES, never)


def test_a_kernel_without_populate(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_POPULATE_WRITE", 999)
    first = share(key)
    assert np.array_equal(share(key, never), first)
