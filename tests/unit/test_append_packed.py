"""Packing behind what a file holds: superbatch after superbatch in the same file."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from gnnstore.caching.plan import Trace
from gnnstore.errors import NoSpaceError
from gnnstore.features.misses import collect_misses
from gnnstore.features.pack import append_missed
from gnnstore.sampling.row_space import RowRange
from tests.support.faults import inject
from tests.support.packing import MEMORY_BYTES, PackingCase, plan_of
from tests.support.twins.packing import packed_file

NUM_ROWS = 3000


class Case(PackingCase):
    """A table, an empty file, and superbatches that miss half of their rows."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, NUM_ROWS, {"x": 1200}, engine=None)
        self.traces = [
            Trace.of([self.rng.permutation(NUM_ROWS)[:n] for n in sizes])
            for sizes in ([700, 300], [0], [1, 500, 20])
        ]
        self.slots = [
            self.rng.integers(-1, 1, t.num_accesses).astype(np.int32) for t in self.traces
        ]
        self.file = directory / "packed"
        self.file.touch()

    def append(self, number: int, begin: int) -> int:
        """Pack a superbatch and return where it ends."""
        ranges = [RowRange(0, NUM_ROWS)]
        missed = collect_misses(
            self.traces[number],
            plan_of(self.traces[number], self.slots[number]),
            ranges,
            memory_bytes=MEMORY_BYTES,
        )
        runs = append_missed(
            self.tables, missed, {"x": (self.file, begin)}, memory_bytes=MEMORY_BYTES
        )
        offsets = runs["x"].offsets
        assert offsets[0] == begin
        return int(offsets[-1])

    def expected(self, number: int) -> bytes:
        trace = self.traces[number]
        return packed_file(self.rows["x"], trace.ids, trace.offsets, self.slots[number])


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_what_an_attempt_left_is_written_over(case: Case) -> None:
    end = case.append(0, 0)
    with case.file.open("ab") as file:
        file.write(b"x" * 12_345)
    case.append(2, end)
    expected = case.expected(0) + case.expected(2)
    assert case.file.read_bytes()[: len(expected)] == expected


def test_what_was_there_outlives_a_failure(case: Case) -> None:
    end = case.append(0, 0)
    for fault in ("fallocate", "pwrite"):
        with (
            inject(fault, errno=errno.ENOSPC, times=-1),
            pytest.raises(NoSpaceError),
        ):
            case.append(2, end)
        assert case.file.read_bytes()[:end] == case.expected(0)
    case.append(2, end)
    assert case.file.read_bytes() == case.expected(0) + case.expected(2)
