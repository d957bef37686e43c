"""Rows that batches share: divided from their own, written in their order, and read from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import _core
from gnnstore.caching.plan import Trace
from gnnstore.caching.segments import SharedRows
from gnnstore.disk.engines import open_engine
from gnnstore.features import segments as segment_packing
from gnnstore.features.chunks import BLOCK_BYTES, chunk_bytes
from gnnstore.features.file_rows import FileRows
from gnnstore.features.misses import collect_misses
from gnnstore.features.segments import append_divided, divide_misses
from gnnstore.features.source import of_one_type
from gnnstore.sampling.row_space import RowRange
from tests.support.effort import choose
from tests.support.packing import plan_of
from tests.support.twins.packing import piece_crcs
from tests.support.twins.reads import write_array

NUM_ROWS, MEMORY_BYTES = 900, 1 << 26
SIZES = (200, 0, 300, 1, 250, 250, 100)


@pytest.mark.parametrize("segment", [2, 3, 7])
@pytest.mark.parametrize("row_bytes", choose([1, 511, 4096], [1, 100, 511, 4096, 4097]))
@pytest.mark.parametrize("part_rows", [7, 10_000])
def test_what_is_written_and_where(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    segment: int,
    row_bytes: int,
    part_rows: int,
) -> None:
    monkeypatch.setattr(segment_packing, "_PART_BYTES", part_rows * row_bytes)
    monkeypatch.setattr(segment_packing, "_MAX_PARTS_PER_BATCH", 100)
    rng = np.random.default_rng(row_bytes)
    rows = rng.integers(0, 256, (NUM_ROWS, row_bytes), dtype=np.uint8)
    array = write_array(tmp_path / "x", rows)
    table = FileRows.open(array, open_engine(array.file_paths[0]))
    # With repeated rows, and some that are hits.
    trace = Trace.of([rng.integers(0, NUM_ROWS, size) for size in SIZES])
    slots = rng.integers(-2, 1, trace.num_accesses).astype(np.int32)
    missed = [
        np.unique(trace.batch(i)[slots[trace.offsets[i] : trace.offsets[i + 1]] < 0])
        for i in range(len(SIZES))
    ]
    divided = divide_misses(
        collect_misses(
            trace, plan_of(trace, slots), [RowRange(0, NUM_ROWS)], memory_bytes=MEMORY_BYTES
        ),
        segment,
        row_bytes=row_bytes,
    )
    file = tmp_path / "packed"
    file.write_bytes(b"before" * 1000 + bytes(-6000 % 4096))
    begin = file.stat().st_size
    files = {"x": (file, begin)}
    chunks = append_divided(of_one_type({"x": table}), divided, files, memory_bytes=MEMORY_BYTES)[
        "x"
    ]
    offsets = chunks.offsets
    content = np.frombuffer(file.read_bytes(), np.uint8)
    assert offsets[0] == begin
    assert offsets[-1] == len(content)
    assert (offsets % 4096 == 0).all()
    opened = _core.FileSet([file], [len(content)], direct=table.files.is_direct)
    stride_bytes = int(chunk_bytes(np.array([min(part_rows, 10_000)]), row_bytes)[0])
    for place in divided.segments:
        shared = SharedRows.from_missed(missed[place.first : place.end], NUM_ROWS)
        assert (sum(place.num_rows), place.part_rows) == (shared.num_rows, part_rows)
        first = int(offsets[len(SIZES) + place.first_part[0]])
        in_order = rows[shared.in_order()]
        crcs = [_core.crc32c_portable(row) for row in in_order]
        assert chunks.shared_crcs[place.first_row[0] :][: place.num_rows[0]].tolist() == crcs
        for i in range(place.first, place.end):
            own = divided.batch(i)
            groups = np.array(crcs, "<u4")[own.shared_ranks]
            assert divided.batch_crcs(chunks, i, own.shared_ranks).tolist() == [
                _core.crc32c_portable(np.ascontiguousarray(groups[k : k + 64]).view(np.uint8))
                for k in range(0, len(groups), 64)
            ]
            sizes = [int(divided.own[i]) * row_bytes]
            assert chunks.of_chunk(i).tolist() == piece_crcs(
                content.tobytes(), [int(offsets[i])], sizes, BLOCK_BYTES
            )
            out = np.zeros((SIZES[i], row_bytes), np.uint8)
            chunk = content[offsets[i] :][: int(divided.own[i]) * row_bytes]
            out[own.positions] = chunk.reshape(-1, row_bytes)
            assert (np.diff(own.shared_ranks) > 0).all()
            ids = np.zeros(SIZES[i], np.int32)
            is_left = np.zeros(SIZES[i], np.int32)
            ids[own.shared_positions], is_left[own.shared_positions] = own.shared_ranks, -1
            if len(own.shared_ranks):
                table.engine.reader.gather_rows(
                    opened,
                    ids,
                    out.reshape(-1),
                    num_rows=place.num_rows[0],
                    row_bytes=row_bytes,
                    rows_per_page=place.part_rows,
                    page_stride_bytes=stride_bytes,
                    begin_bytes=first,
                    gap_bytes=4096,
                    slots=is_left,
                )
            out[own.repeat_targets] = out[own.repeat_sources]
            is_missed = slots[trace.offsets[i] : trace.offsets[i + 1]] < 0
            assert np.array_equal(out[is_missed], rows[trace.batch(i)[is_missed]])
            assert not out[~is_missed].any()
            # Own rows are those that no other batch of the segment misses.
            others = [missed[k] for k in range(place.first, place.end) if k != i]
            alone = np.setdiff1d(missed[i], np.concatenate([missed[i][:0], *others]))
            assert np.array_equal(trace.batch(i)[own.positions], alone)
    assert [place.first for place in divided.segments] == list(range(0, len(SIZES), segment))


def test_without_segments_nothing_is_divided() -> None:
    trace = Trace.of([np.arange(10), np.arange(10)])
    slots = np.full(20, -1, np.int32)
    missed = collect_misses(
        trace, plan_of(trace, slots), [RowRange(0, 10)], memory_bytes=MEMORY_BYTES
    )
    divided = divide_misses(missed, 1, row_bytes=4)
    assert divided.missed is missed
    assert (divided.segments, divided.own.tolist()) == ((), [10, 10])
    assert divided.batch(1).positions.tolist() == list(range(10))
    assert len(divided.batch(1).shared_ranks) == 0


@pytest.mark.parametrize("begin", [-1, 2**63 - 1])
def test_beginnings_that_make_no_sense(tmp_path: Path, begin: int) -> None:
    array = write_array(tmp_path / "x", np.zeros((100, 8), np.uint8))
    table = FileRows.open(array, open_engine(array.file_paths[0]))
    geometry: dict[str, Any] = {"row_bytes": 8, "rows_per_page": 512, "page_stride_bytes": 4096}
    with pytest.raises(ValueError, match="begin_bytes is out of range"):
        table.engine.reader.gather_rows(
            table.files,
            np.zeros(1, np.int32),
            np.zeros(8, np.uint8),
            num_rows=100,
            begin_bytes=begin,
            **geometry,
        )
