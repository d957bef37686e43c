"""Partitions that come and go keep what was changed, whatever is slow or fails on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.embeddings.rows import PartitionBuffer
from gnnstore.errors import StorageError
from tests.support.effort import choose

P, WIDTH = 7, 3


class SlowDisk:
    """Partitions on a disk that takes a while, and fails when it is told to."""

    def __init__(self) -> None:
        self.rows = np.tile(np.arange(P, dtype=np.float32)[:, None] * 1000, WIDTH)
        self.fails = self.written = 0
        self._busy: set[int] = set()
        self._lock = threading.Lock()

    def load(self, partition: int, slot: npt.NDArray[np.float32]) -> None:
        with self._lock:
            assert partition not in self._busy, "read while it is written"
        time.sleep(0.0002)
        slot[:] = self.rows[partition]

    def store(self, partition: int, slot: npt.NDArray[np.float32]) -> None:
        with self._lock:
            self._busy.add(partition)
        try:
            for column in range(WIDTH):
                time.sleep(0.0002)
                if self.fails and column == 1:
                    self.fails -= 1
                    raise StorageError("the disk is full")
                self.rows[partition, column] = slot[column]
            self.written += 1
        finally:
            with self._lock:
                self._busy.discard(partition)


@settings(max_examples=choose(6, 200), deadline=None)
@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**32 - 1), st.booleans())
def test_rows_are_those_of_a_table_in_memory(
    capacity: int, num_spare: int, seed: int, failing: bool
) -> None:
    rng = np.random.default_rng(seed)
    disk = SlowDisk()
    expected = disk.rows.copy()
    buffer = PartitionBuffer(P, WIDTH, disk.load, disk.store)
    buffer.resize(capacity + num_spare)

    def attempt(action: Callable[..., None], *arguments: Any) -> None:
        """Try again what a disk that is full for a while refuses."""
        for _ in range(20):
            try:
                action(*arguments)
            except StorageError:
                continue
            return
        raise AssertionError("the disk has room again, and is not written to")

    def draw() -> npt.NDArray[np.int64]:
        return np.sort(rng.permutation(P)[:capacity])

    following = draw()
    for _ in range(12):
        if failing and rng.random() < 0.3:
            disk.fails = int(rng.integers(1, 4))
        state = following if rng.random() < 0.8 else draw()
        attempt(buffer.enter, state)
        np.testing.assert_array_equal(buffer.resident(), state)
        for partition in state.tolist():
            np.testing.assert_array_equal(buffer.slot(partition), expected[partition])
            if rng.random() < 0.7:
                buffer.slot(partition)[:] += 1
                expected[partition] += 1
                buffer.dirty[partition] = True
        following = draw()
        if rng.random() < 0.7:
            attempt(buffer.expect, following)
        if rng.random() < 0.3:
            partition = int(rng.integers(P))
            slot = buffer.find(partition)
            now = disk.rows[partition] if slot is None else slot
            np.testing.assert_array_equal(now, expected[partition])
        if rng.random() < 0.2:
            attempt(buffer.flush)
            np.testing.assert_array_equal(disk.rows, expected)
        if rng.random() < 0.2:
            attempt(buffer.cancel)
    attempt(buffer.cancel)
    attempt(buffer.flush)
    np.testing.assert_array_equal(disk.rows, expected)


def test_the_next_state_is_read_to_the_slots_of_the_last() -> None:
    """With as many spare slots as partitions change, all of them are read ahead."""
    disk = SlowDisk()
    buffer = PartitionBuffer(P, WIDTH, disk.load, disk.store)
    buffer.resize(3)
    for state, following in (((0, 1), (1, 2)), ((1, 2), (2, 3)), ((2, 3), (3, 4))):
        buffer.enter(np.array(state))
        for partition in state:
            buffer.dirty[partition] = True
        buffer.expect(np.array(following))
        assert following[1] in {swap.after for swap in buffer._swaps.values()}
    buffer.cancel()
    buffer.flush()
    assert disk.written == 4  # each that changed, once


def test_what_did_not_change_is_not_written() -> None:
    disk = SlowDisk()
    buffer = PartitionBuffer(P, WIDTH, disk.load, disk.store)
    buffer.resize(2)
    for state in ((0, 1), (2, 3), (0, 4)):
        buffer.enter(np.array(state))
        buffer.dirty[0] = buffer.slots[0] >= 0
    buffer.flush()
    buffer.cancel()
    assert disk.written == 2
