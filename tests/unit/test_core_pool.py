"""The buffer pool: buffers come back when nobody holds them, and not a moment earlier."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gnnstore import _core
from tests.support.effort import choose

MIB = 2**20
HUGE_PAGE = 2 * MIB


@pytest.fixture(autouse=True)
def empty_pool() -> Iterator[None]:
    """Begin with nothing free, and end with the limit that a process starts with."""
    gc.collect()  # loaders of other tests, whose buffers would come back in the middle of one
    _core.pool_trim()
    yield
    _core.pool_set_limit(2**30)
    _core.pool_exchange(False)
    _core.pool_trim()


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, 4097, MIB - 1, MIB, 3 * MIB + 1, 100 * MIB])
def test_buffers_are_writable_and_aligned(num_bytes: int) -> None:
    in_use = _core.pool_stats()["bytes_in_use"]
    buffer = _core.pool_empty(num_bytes)
    assert buffer.dtype == np.uint8
    assert buffer.shape == (num_bytes,)
    if num_bytes:
        buffer[[0, -1]] = 255
        assert buffer.ctypes.data % (HUGE_PAGE if num_bytes >= MIB else 64) == 0
    taken = _core.pool_stats()["bytes_in_use"] - in_use
    assert num_bytes <= taken <= max(4096, num_bytes * 9 / 8 + HUGE_PAGE)


def test_a_buffer_comes_back_when_its_last_view_dies() -> None:
    before = _core.pool_stats()
    buffer = _core.pool_empty(8 * MIB)
    tensor = torch.from_numpy(buffer.view(np.float32).reshape(2048, 1024))
    column = tensor[:, 3]
    address = buffer.ctypes.data
    del buffer, tensor
    held = _core.pool_stats()
    assert held["buffers_in_use"] == before["buffers_in_use"] + 1
    assert _core.pool_empty(8 * MIB).ctypes.data != address  # still held: not handed out
    column.fill_(1.0)
    del column
    after = _core.pool_stats()
    assert after["buffers_in_use"] == before["buffers_in_use"]
    assert after["bytes_in_use"] == before["bytes_in_use"]


def test_free_memory_is_bounded() -> None:
    _core.pool_set_limit(10 * MIB)
    small = _core.pool_empty(4 * MIB)
    large = _core.pool_empty(20 * MIB)
    del small
    assert _core.pool_stats()["bytes_free"] == 4 * MIB
    del large  # more than may be kept: goes to the system and pushes nothing out
    assert _core.pool_stats()["bytes_free"] == 4 * MIB
    buffers = [_core.pool_empty(4 * MIB) for _ in range(5)]
    del buffers
    assert _core.pool_stats()["bytes_free"] == 10 * MIB
    _core.pool_trim(5 * MIB)
    assert _core.pool_stats()["bytes_free"] == 4 * MIB
    _core.pool_set_limit(0)
    assert _core.pool_stats()["bytes_free"] == 0


def test_a_buffer_is_trimmed_by_what_is_too_much() -> None:
    """The memory of its last pages goes; the rest is still there when it is used again."""
    buffer = _core.pool_empty(8 * MIB)
    buffer[:] = 7
    del buffer
    _core.pool_trim(5 * MIB)
    before = _core.pool_stats()
    assert before["bytes_free"] == 4 * MIB
    buffer = _core.pool_empty(8 * MIB)
    assert (buffer[: 4 * MIB] == 7).all()
    assert not buffer[4 * MIB :].any()
    after = _core.pool_stats()
    assert (after["hits"] - before["hits"], after["misses"]) == (1, before["misses"])
    assert after["bytes_in_use"] - before["bytes_in_use"] == 8 * MIB


def test_where_memory_is_short_a_free_buffer_grows() -> None:
    """Batches differ in size: one serves after the other, in memory for the largest so far."""
    _core.pool_exchange(True)
    before = _core.pool_stats()
    for size in (50, 54, 51, 57, 40):
        _core.pool_empty(size * MIB)
    after = _core.pool_stats()
    assert after["misses"] - before["misses"] == 1
    assert after["bytes_free"] == 58 * MIB
    buffer = _core.pool_empty(20 * MIB)  # for which that is too much
    assert _core.pool_stats()["bytes_in_use"] - before["bytes_in_use"] == 20 * MIB
    del buffer
    _core.pool_empty(100 * MIB)  # takes the place of both
    assert _core.pool_stats()["bytes_free"] == 100 * MIB


def test_no_memory_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        _core.pool_empty(2**55)  # more than the address space


def test_threads_never_share_a_buffer() -> None:
    wrong = []

    def work(mark: int) -> None:
        rng = np.random.default_rng(mark)
        for _ in range(300):
            buffer = _core.pool_empty(int(rng.integers(1, 64 * 1024)))
            buffer[:] = mark
            if not np.all(buffer == mark):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


FORK = f"""
import os, threading
from gnnstore import _core

stop = False
def churn():
    while not stop:
        _core.pool_empty(1 << 21)

thread = threading.Thread(target=churn)
thread.start()
held = _core.pool_empty(1 << 22)
held[:] = 5
for _ in range({choose(5, 30)}):
    child = os.fork()
    if child == 0:
        for _ in range(10):
            _core.pool_empty(1 << 21)[:] = 1
        os._exit(0 if held.min() == 5 and _core.pool_stats()["buffers_in_use"] >= 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
stop = True
thread.join()
"""

EXIT = """
import threading, time
from gnnstore import _core

kept = _core.pool_empty(1 << 22)      # dies with the interpreter
def churn():
    while True:
        _core.pool_empty(1 << 21)

threading.Thread(target=churn, daemon=True).start()
time.sleep(0.1)
"""


@pytest.mark.parametrize("script", [FORK, EXIT], ids=["fork", "interpreter exit"])
def test_in_a_process_of_its_own(script: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
