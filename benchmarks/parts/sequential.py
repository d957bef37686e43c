"""A disk's bandwidth in order: large direct reads and writes by threads that each do the next."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.harness import Turn, measure

BLOCK_BYTES = 1 << 20


def read(path: Path, num_bytes: int, num_threads: int) -> Turn:
    """Read the beginning of a file, in whole blocks; counts bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def one(buffer: mmap.mmap, offset: int) -> None:
        if os.preadv(descriptor, [buffer], offset) != BLOCK_BYTES:
            raise SystemExit(f"{path}: a read came short")

    return _all_blocks(descriptor, num_bytes, num_threads, one)


def write(path: Path, num_bytes: int, num_threads: int) -> Turn:
    """Write a new file whose room is set aside, in whole blocks; counts bytes. It is removed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT)
    path.unlink()
    os.posix_fallocate(descriptor, 0, num_bytes)

    def one(buffer: mmap.mmap, offset: int) -> None:
        if os.pwrite(descriptor, buffer, offset) != BLOCK_BYTES:
            raise SystemExit(f"{path}: a write came short")

    return _all_blocks(descriptor, num_bytes, num_threads, one)


def _all_blocks(
    descriptor: int, num_bytes: int, num_threads: int, one: Callable[[mmap.mmap, int], None]
) -> Turn:
    num_blocks = num_bytes // BLOCK_BYTES
    offsets = iter(range(0, num_blocks * BLOCK_BYTES, BLOCK_BYTES))
    lock = threading.Lock()

    def work(_: int) -> None:
        with mmap.mmap(-1, BLOCK_BYTES) as buffer:
            buffer.write(os.urandom(BLOCK_BYTES))
            while True:
                with lock:
                    offset = next(offsets, None)
                if offset is None:
                    return
                one(buffer, offset)

    def run() -> float:
        with ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(work, range(num_threads)))
        return num_blocks * BLOCK_BYTES

    try:
        return measure(run)
    finally:
        os.close(descriptor)
