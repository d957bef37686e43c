"""Files that are written and read around the page cache, and what happens where that fails."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore import _core
from gnnstore.converters.inputs.files import open_npy
from gnnstore.converters.inputs.source import read_ahead
from gnnstore.errors import InputError, NoSpaceError
from gnnstore.formats.arrays.paged import PagedArrayWriter
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base import files
from gnnstore.formats.base.files import BLOCK_BYTES, ChecksummedFile
from gnnstore.tools.bench.harness import drop_from_cache

Pwrite = Callable[[int, Any, int], int]
PWRITE, PREADV = os.pwrite, os.preadv


def is_direct(descriptor: int) -> bool:
    with open(f"/proc/self/fdinfo/{descriptor}") as info:  # noqa: PTH123
        flags = next(line.split()[1] for line in info if line.startswith("flags"))
    return bool(int(flags, 8) & os.O_DIRECT)


def half(descriptor: int, data: Any, offset: int) -> int:
    return PWRITE(descriptor, data[: len(data) // 2 + 1000], offset)


def refused(descriptor: int, data: Any, offset: int) -> int:
    if is_direct(descriptor):
        raise OSError(errno.EINVAL, "no direct writes")
    return PWRITE(descriptor, data, offset)


def nothing(descriptor: int, data: Any, offset: int) -> int:
    return 0 if is_direct(descriptor) else PWRITE(descriptor, data, offset)


def content(num_bytes: int) -> npt.NDArray[np.uint8]:
    out = _core.pool_empty(num_bytes)
    out[:] = np.frombuffer(np.random.default_rng(0).bytes(num_bytes), np.uint8)
    return out


@pytest.mark.parametrize("pwrite", [PWRITE, half, refused, nothing])
def test_what_is_written_is_what_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pwrite: Pwrite
) -> None:
    monkeypatch.setattr(os, "pwrite", pwrite)
    data = content(5 * BLOCK_BYTES + 4096 + 17)
    file = ChecksummedFile(tmp_path / "f")
    # Aligned ones, one that is none, what follows it, and a rest.
    ends = [0, 2 * BLOCK_BYTES, 4 * BLOCK_BYTES, 4 * BLOCK_BYTES + 17, len(data) - 5, len(data)]
    for begin, end in itertools.pairwise(ends):
        file.write(data[begin:end])
    assert file.size_bytes == len(data)
    crcs = file.close()
    assert (tmp_path / "f").read_bytes() == data.tobytes()
    np.testing.assert_array_equal(crcs, _core.crc32c_blocks(data, BLOCK_BYTES))


def test_a_write_behind_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)  # around the page cache
    monkeypatch.setattr(files, "write_all", full)
    file = ChecksummedFile(tmp_path / "f")
    file.write(content(2 * BLOCK_BYTES))
    with pytest.raises(NoSpaceError, match="cannot write"):
        file.close()


def test_rows_may_change_as_soon_as_they_are_appended(tmp_path: Path) -> None:
    spec = AttributeSpec("x", "x", "paged", "float32", (20000, 128))
    rows = np.empty((500, 128), np.float32)
    with PagedArrayWriter(tmp_path, spec, 4096, None) as writer:
        for first in range(0, 20000, 500):
            rows[:] = np.arange(first, first + 500)[:, None]
            writer.append(rows)
            rows[:] = -1
    stored = np.fromfile(next(tmp_path.glob("c*")), np.float32, 20000 * 128).reshape(20000, 128)
    np.testing.assert_array_equal(stored, np.repeat(np.arange(20000)[:, None], 128, axis=1))


@pytest.mark.parametrize("way", ["direct", "cached", "refused"])
def test_arrays_are_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    values = content(7 * BLOCK_BYTES + 16).view(np.int32)
    path = tmp_path / "x.npy"
    np.save(path, values)
    if way != "cached":
        drop_from_cache([path])
    kinds: set[bool] = set()

    def preadv(descriptor: int, buffers: Any, *place: int) -> int:
        if len(place) == 1:
            kinds.add(is_direct(descriptor))
            if way == "refused" and is_direct(descriptor):
                raise OSError(errno.EINVAL, "no direct reads")
        elif way != "cached":
            raise BlockingIOError(errno.EAGAIN, "not in the page cache")
        return PREADV(descriptor, buffers, *place)

    monkeypatch.setattr(os, "preadv", preadv)
    source = open_npy(path)
    pieces = list(source.rows(3 * 2**18 + 5, 11))
    np.testing.assert_array_equal(np.concatenate(pieces), values[11:])
    assert kinds == {"direct": {True, False}, "cached": {False}, "refused": {True, False}}[way]
    # Ends of edges lie one row after the other, and are read side by side.
    np.save(path, values.reshape(2, -1))
    if way != "cached":
        drop_from_cache([path])
    columns = np.concatenate(list(open_npy(path).columns(2**19 + 3)), axis=1)
    np.testing.assert_array_equal(columns, values.reshape(2, -1))
    np.save(path, values)
    # The file is cut while it is read: the place is the same on every way.
    os.truncate(path, 128 + 4 * len(values) - 2 * BLOCK_BYTES)
    with pytest.raises(InputError, match="ends 1,048,644 bytes early"):
        list(source.rows(3 * 2**18 + 5, 11))


def not_cached(descriptor: int, buffers: Any, *place: int) -> int:
    if len(place) == 2:
        raise BlockingIOError(errno.EAGAIN, "not in the page cache")
    return PREADV(descriptor, buffers, *place)


def test_pieces_are_read_into_the_same_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool keeps one piece, whichever way it was read, and little when the reading ends."""
    path, num_bytes = tmp_path / "x.npy", 8 * BLOCK_BYTES
    np.save(path, np.zeros(num_bytes, np.uint8))
    _core.pool_trim()
    for preadv in (PREADV, not_cached):
        monkeypatch.setattr(os, "preadv", preadv)
        assert len(next(open_npy(path).rows(num_bytes))) == num_bytes
    assert num_bytes <= _core.pool_stats()["bytes_free"] < 1.5 * num_bytes
    for piece in read_ahead(open_npy(path).rows(num_bytes // 4)):
        assert len(piece) == num_bytes // 4
    del piece
    assert _core.pool_stats()["bytes_free"] <= num_bytes // 2


def test_ends_of_edges_are_read_by_way_of_a_small_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = content(16 * BLOCK_BYTES).view(np.int32).reshape(2, -1)
    np.save(tmp_path / "x.npy", values)
    monkeypatch.setattr(os, "preadv", not_cached)
    taken: list[int] = []
    real = _core.pool_empty

    def pool_empty(num_bytes: int) -> npt.NDArray[np.uint8]:
        taken.append(num_bytes)
        return real(num_bytes)

    monkeypatch.setattr(_core, "pool_empty", pool_empty)
    columns = next(open_npy(tmp_path / "x.npy").columns(values.shape[1]))
    np.testing.assert_array_equal(columns, values)
    assert taken
    assert max(taken) < 3 * BLOCK_BYTES
