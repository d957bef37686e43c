"""Packing from sorted rows in files: range by range of the table, and what happens to the files."""

from __future__ import annotations

import errno
import gc
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore import _core
from gnnstore.caching.belady import BeladyPlanner
from gnnstore.caching.plan import Trace
from gnnstore.disk.engines import open_engine
from gnnstore.disk.spool import FileSpool
from gnnstore.errors import CorruptStoreError, NoSpaceError, StorageError
from gnnstore.features import misses as sorted_misses
from gnnstore.features import pack as packing
from gnnstore.features.chunks import PackedSuperbatch
from gnnstore.features.file_rows import FileRows
from gnnstore.features.misses import MissTable
from gnnstore.features.pack import least_memory, packed_bytes
from gnnstore.sampling.row_space import RowRange
from tests.support.effort import choose
from tests.support.faults import inject
from tests.support.files import flip
from tests.support.packing import PackingCase
from tests.support.traces import spill
from tests.support.twins.packing import packed_file, piece_crcs
from tests.support.twins.reads import write_array

NUM_ROWS, ROW_BYTES = 4000, 300
SIZES = (900, 0, 700, 800, 1)


class Case(PackingCase):
    """A table, and a superbatch on disk with repeated ids and an empty batch."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, NUM_ROWS, {"x": ROW_BYTES})
        self.known = Trace.of([self.rng.integers(0, NUM_ROWS, n, np.int32) for n in SIZES])
        self.expected = BeladyPlanner(300).plan(self.known)
        self.trace, self.plan = spill(self.known, BeladyPlanner(300), directory, NUM_ROWS)

    def pack(self, **options: Any) -> PackedSuperbatch:
        return self.packed(self.trace, self.plan, **options)

    def check(self, packed: PackedSuperbatch) -> None:
        known, slots = self.known, self.expected.slots
        content = packed_file(self.rows["x"], known.ids, known.offsets, slots)
        assert packed.tables["x"].file_path.read_bytes() == content
        for i in range(len(SIZES)):
            self.check_one(packed, i)

    def check_one(self, packed: PackedSuperbatch, i: int) -> None:
        self.check_batch(packed, i, self.known.batch(i), self.expected.batch_slots(i))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@settings(deadline=None, max_examples=choose(5, 60))
@given(data=st.data())
def test_any_ranges_write_the_same_file(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    num_rows = data.draw(st.integers(1, 3000))
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    stride = data.draw(st.sampled_from([1, 2, 7, 64, 5000]))
    batches = []
    for _ in range(data.draw(st.integers(1, 8))):
        # Some batches have rows of a part of the table only.
        first = data.draw(st.integers(0, num_rows - 1))
        part = np.arange(first, data.draw(st.integers(first + 1, num_rows)), dtype=dtype)
        batches.append(part[rng.random(len(part)) < data.draw(st.sampled_from([0, 0.01, 0.5, 1]))])
    sizes = np.array([len(batch) for batch in batches])
    least = int(np.minimum(sizes, stride).sum())
    max_rows = least + data.draw(st.sampled_from([0, 1, 50, 10**6]))
    row_bytes = data.draw(st.sampled_from([1, 100, 513, 5000]))
    rows = rng.integers(0, 256, (num_rows, row_bytes), dtype=np.uint8)
    offsets = np.append(0, np.cumsum(-(-sizes * row_bytes // 4096) * 4096))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        array = write_array(directory / "x", rows, shard_bytes=2**17)
        table = FileRows.open(array, open_engine(array.file_paths[0], "pread"))
        file = _core.SpillFile(directory / "ids")
        order = rng.permutation(len(batches))
        places = {int(i): file.append(batches[i], int(i)) for i in order}
        place = table.kernel_layout
        piece_bytes = data.draw(st.sampled_from([1000, 4096, 10_000, 1 << 30]))
        num_pieces = int((-(-sizes * row_bytes // piece_bytes)).sum())
        crcs = np.full(num_pieces, 5, np.uint32)
        counts = _core.pack_spilled_rows(
            table.files,
            file,
            np.array([places[i][0] for i in range(len(batches))]),
            sizes,
            np.array([places[i][1] for i in range(len(batches))], np.uint32),
            np.concatenate([batch[::stride] for batch in batches]),
            [directory / "packed"],
            [int(offsets[-1])],
            np.zeros(len(batches), np.int64),
            offsets[:-1],
            crcs,
            np.zeros(2, np.int64),
            stride=stride,
            max_rows=max_rows,
            engine="pread",
            **place,
            num_windows=data.draw(st.integers(1, 5)),
            window_bytes=-(-_core.min_pack_window_bytes(table.files, **place) // 4096) * 4096,
            buffer_bytes=4096 * data.draw(st.integers(1, 3)),
            num_spare_buffers=2,
            piece_bytes=piece_bytes,
            num_threads=data.draw(st.integers(1, 4)),
        )
        ids, missed = np.concatenate(batches), np.full(int(sizes.sum()), -1, np.int32)
        begins = np.append(0, np.cumsum(sizes))
        content = (directory / "packed").read_bytes()
        assert content == packed_file(rows, ids, begins, missed)
        assert crcs.tolist() == piece_crcs(
            content, offsets[:-1].tolist(), (sizes * row_bytes).tolist(), piece_bytes
        )
        assert counts["rows_packed"] == sizes.sum()
        assert counts["bytes_written"] == offsets[-1]
        file.close()


@pytest.mark.parametrize("stride", [1, 3, 1024])
def test_with_as_little_memory_as_will_do(
    case: Case, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    monkeypatch.setattr(sorted_misses, "STRIDE_ROWS", stride)
    kernel, max_rows = _core.pack_spilled_rows, []

    def noted(*given: Any, **options: Any) -> dict[str, int]:
        max_rows.append(options["max_rows"])
        return kernel(*given, **options)

    monkeypatch.setattr(_core, "pack_spilled_rows", noted)
    share = packing.choose_buffers

    def least_rows(table: Any, misses: Any, *given: Any) -> tuple[Any, int]:
        return share(table, misses, *given)[0], int(np.minimum(misses, stride).sum())

    monkeypatch.setattr(packing, "choose_buffers", least_rows)
    misses = case.plan.misses
    least = least_memory(case.tables, misses, 4, max(SIZES), spills=True)
    with case.pack(memory_bytes=least) as packed:
        case.check(packed)
        assert max_rows == [np.minimum(misses, stride).sum()]
        num_files = packed_bytes(case.tables, misses) + 4 * int(misses.sum())
        assert num_files <= packed.num_bytes <= num_files + 8 * (sum(SIZES) - int(misses.sum()))


def test_files_come_and_go(case: Case) -> None:
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    packed = case.pack()
    names = [name.split("/")[-1] for name in case.left() if "/" in name]
    assert names == ["0.rows", "positions"], "ids are of no use any more"
    assert packed.places.num_bytes < 100 * len(SIZES)
    packed.close()
    packed.close()
    assert case.left() == []
    case.check_one(packed, 0)  # as it is with the rows: files are open
    del packed
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("batch", [0, 2, 4])
def test_positions_that_were_damaged_are_not_used(case: Case, batch: int) -> None:
    with case.pack() as packed:
        (path,) = case.directory.rglob("positions")
        places = packed.places
        assert isinstance(places, FileSpool)
        flip(path, int(places.begins[batch, 0]), 0)
        for i in range(len(SIZES)):
            if i != batch:
                case.check_one(packed, i)
        with pytest.raises(CorruptStoreError, match=rf"positions: batch {batch} is not what"):
            case.check_one(packed, batch)
        with pytest.raises(CorruptStoreError, match=rf"batch {batch} is not what was written"):
            packed.read(batch, "x", RowRange(0, SIZES[batch]), np.zeros(0, np.uint8))
    assert case.left() == []


def test_positions_that_cannot_be_read(case: Case) -> None:
    with (
        case.pack() as packed,
        inject("pread", errno=errno.EIO),
        pytest.raises(
            StorageError, match=r"read the places of packed rows of batch 3: .*positions"
        ),
    ):
        case.check_one(packed, 3)


@pytest.mark.parametrize("max_strides", [1, 100])
@pytest.mark.parametrize("number", [0, 7, 63, -1])
def test_rows_that_were_damaged_are_not_packed(
    case: Case, monkeypatch: pytest.MonkeyPatch, number: int, max_strides: int
) -> None:
    """Of whatever bit: rows that still ascend are found out by their checksum."""
    monkeypatch.setattr(sorted_misses, "STRIDE_ROWS", 16)
    share, collect = packing.choose_buffers, sorted_misses.collect_misses

    def fewer(table: Any, misses: Any, *given: Any) -> tuple[Any, int]:
        least = int(np.minimum(misses, 16 * max_strides).sum())
        return share(table, misses, *given)[0], least

    monkeypatch.setattr(packing, "choose_buffers", fewer)
    for bit in (0, 3, 11, 31):

        def spoiled(*given: Any, bit: int = bit, **options: Any) -> MissTable:
            missed = collect(*given, **options)
            assert missed.file is not None
            begin, count = (int(of[2, 0]) for of in (missed.file.begins, missed.file.counts))
            flip(missed.file.path, begin + 4 * (number % count), bit)
            return missed

        monkeypatch.setattr(packing, "collect_misses", spoiled)
        with pytest.raises(CorruptStoreError, match=r"missed: batch 2 is not what was written"):
            case.pack()
        assert case.left() == []


@pytest.mark.parametrize("skip", range(5))
def test_a_disk_that_is_full_while_rows_are_sorted(case: Case, skip: int) -> None:
    with (
        inject("pwrite", errno=errno.ENOSPC, skip=skip, times=-1),
        pytest.raises(
            NoSpaceError,
            match=r"(missed|packed rows) of batch \d: no space left for .*run",
        ),
    ):
        case.pack(num_threads=1)
    assert case.left() == []
