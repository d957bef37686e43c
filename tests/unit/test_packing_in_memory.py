"""Packed rows that stay in memory: the same rows, and nothing of them on disk."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.caching.plan import CachePlan, Trace
from gnnstore.caching.policies.belady import BeladyPlanner
from gnnstore.errors import BudgetError, StorageError
from gnnstore.features.packed.chunks import PackedSuperbatch
from gnnstore.features.packed.pack import least_memory, packed_bytes
from gnnstore.testing.faults import inject
from tests.support.packing import PackingCase

NUM_ROWS, BATCHES = 4000, 6
WIDTHS = {"wide": 512, "narrow": 100}  # copied around the processor's caches, and through them


class Case(PackingCase):
    """Two tables, and a superbatch whose batches repeat some ids."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, NUM_ROWS, WIDTHS)
        batches = [self.rng.permutation(NUM_ROWS)[:900] for _ in range(BATCHES)]
        self.trace = Trace.of([np.append(batch, batch[:5]) for batch in batches])
        self.plan: CachePlan = BeladyPlanner(200).plan(self.trace)

    @property
    def all_of_it(self) -> int:
        return packed_bytes(self.tables, self.plan.misses)

    def pack(self, **options: Any) -> PackedSuperbatch:
        return self.packed(self.trace, self.plan, **options)

    def check(self, packed: PackedSuperbatch) -> None:
        for i in range(BATCHES):
            self.check_batch(packed, i, self.trace.batch(i), self.plan.batch_slots(i))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("spills", [False, True])
def test_part_of_a_superbatch(case: Case, share: float, spills: bool) -> None:
    memory = int(share * case.all_of_it)
    options = {"chunk_memory_bytes": memory}
    if spills:  # which rows are missed is in files
        misses = case.plan.misses
        options["memory_bytes"] = least_memory(case.tables, misses, 8, spills=True)
        assert options["memory_bytes"] < least_memory(case.tables, misses, 8)
    with case.pack(**options) as packed:
        case.check(packed)
        written = packed_bytes(case.tables, case.plan.misses, 0, memory)
        kept_bytes = sum(len(table.chunks.kept) for table in packed.tables.values())
        assert kept_bytes <= memory
        assert kept_bytes + written == case.all_of_it
        assert packed.counts.bytes_written == written
        files = [table.file_path for table in packed.tables.values()]
        assert sum(path.stat().st_size for path in files) == written
        # Another chunk would not fit.
        assert (written == 0) == (share == 1.0)
        assert (kept_bytes == 0) == (share <= 0.01)
    assert case.left() == []


def test_each_block_of_the_table_is_read_once(case: Case) -> None:
    with case.pack(chunk_memory_bytes=case.all_of_it) as packed:
        tables = sum(rows.nbytes for rows in case.rows.values())
        assert packed.counts.bytes_read <= 1.1 * tables < case.all_of_it
        assert packed.counts.writes == 0


def test_without_disk(case: Case) -> None:
    with pytest.raises(BudgetError, match="of disk space"):
        case.pack(disk_bytes=0, chunk_memory_bytes=case.all_of_it - 1)
    with case.pack(disk_bytes=0, chunk_memory_bytes=case.all_of_it) as packed:
        case.check(packed)


def test_a_read_that_fails(case: Case) -> None:
    with (
        inject("pread", errno=errno.EIO, skip=1),
        pytest.raises(StorageError, match="pack rows of the array 'wide'"),
    ):
        case.pack(chunk_memory_bytes=case.all_of_it)
    assert case.left() == []
