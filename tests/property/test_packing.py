"""Packed rows are NumPy's rows, bit for bit, and a table is read once, where it is needed."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gnnstore import _core
from gnnstore.caching.belady import BeladyPlanner
from gnnstore.caching.plan import Trace
from gnnstore.disk.engines import open_engine
from gnnstore.features.chunks import BLOCK_BYTES, PackedSuperbatch
from gnnstore.features.file_rows import FileRows
from gnnstore.features.pack import least_memory, pack
from gnnstore.features.source import RowRequest, of_one_type
from gnnstore.formats import PageGeometry
from tests.support.effort import choose, examples
from tests.support.packing import plan_of
from tests.support.twins.packing import needed_pages, packed_file, piece_crcs, sort_misses
from tests.support.twins.reads import some_rows, write_array

# The widths at which published systems compute the wrong page.
ROW_BYTES = (1, 2, 100, 400, 511, 512, 513, 1200, 4095, 4096, 4097, 12288)


def open_rows(
    directory: Path,
    rows: NDArray[Any],
    engine: str | None = None,
    gap_bytes: int | None = None,
    **options: Any,
) -> FileRows:
    array = write_array(directory, rows, **options)
    chosen = open_engine(array.file_paths[0], engine)
    if gap_bytes is not None:
        chosen = replace(chosen, tuning=replace(chosen.tuning, gap_bytes=gap_bytes))
    return FileRows.open(array, chosen)


def check(
    packed: PackedSuperbatch, path: str, rows: NDArray[Any], trace: Trace, slots: NDArray[np.int32]
) -> None:
    """Compare the file with the twin's, and what is read of it with the table."""
    raw = rows.reshape(len(rows), -1).view(np.uint8)
    content = packed.tables[path].file_path.read_bytes()
    assert content == packed_file(raw, trace.ids, trace.offsets, slots)
    chunk_bytes = packed.num_rows * raw.shape[1]
    offsets = packed.tables[path].chunks.offsets[:-1].tolist()
    assert packed.tables[path].chunks.crcs.tolist() == piece_crcs(
        content, offsets, chunk_bytes.tolist(), BLOCK_BYTES
    )
    for i in range(trace.num_batches):
        ids = trace.batch(i)
        own = slots[trace.offsets[i] : trace.offsets[i + 1]]
        # The neighbours of the output must stay as they are.
        buffer = np.full((len(ids) + 2, *rows.shape[1:]), 7, rows.dtype)
        expected = buffer.copy()
        expected[1:-1][own < 0] = rows[ids[own < 0]]
        counts = packed.rows(i)[path].read_into(RowRequest(ids, own), buffer[1:-1])
        assert buffer.tobytes() == expected.tobytes()
        num_distinct = len(np.unique(ids[own < 0]))
        assert counts.rows_read == num_distinct
        assert counts.bytes_useful == num_distinct * raw.shape[1]
        assert counts.bytes_read - counts.bytes_useful < 4096
        assert counts.reads == math.ceil(num_distinct * raw.shape[1] / (512 << 10))


@st.composite
def superbatches(draw: st.DrawFn, num_rows: int) -> tuple[Trace, NDArray[np.int32]]:
    """Draw a trace and slots: by a plan, none or all of them missed, or at random."""
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    sizes = draw(st.lists(st.integers(0, 5) | st.integers(0, 600), max_size=12))
    # Ids close together share pages, ids far apart leave gaps.
    span = draw(st.integers(1, num_rows))
    first = draw(st.integers(0, num_rows - span))
    batches = [(first + rng.integers(0, span, size)).astype(dtype) for size in sizes]
    if draw(st.booleans()):
        batches = [rng.permutation(np.unique(batch)) for batch in batches]
    trace = Trace.of(batches) if batches else Trace(np.empty(0, dtype), np.zeros(1, np.int64))
    kind = draw(st.sampled_from(["plan", "random", "all", "none"]))
    if kind == "plan":
        num_slots = draw(st.sampled_from([0, 1, 7, 100, 2 * num_rows]))
        return trace, BeladyPlanner(num_slots).plan(trace).slots
    choices = {"random": [-1, -5, 0, 3], "all": [-1], "none": [0]}[kind]
    return trace, rng.choice(np.array(choices, np.int32), trace.num_accesses)


@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_any_superbatch(engine: str, data: st.DataObject) -> None:
    row_bytes = data.draw(st.sampled_from(ROW_BYTES) | st.integers(1, 20_000))
    page_bytes = data.draw(st.sampled_from([512, 1024, 4096, 16384, 65536]))
    most = max(2, 4_000_000 // PageGeometry(row_bytes, page_bytes).page_stride_bytes)
    num_rows = data.draw(st.integers(1, 30) | st.integers(1, min(most, 20_000)))
    gap_bytes = data.draw(st.sampled_from([0, 511, 5000, 1 << 20]))
    trace, slots = data.draw(superbatches(num_rows))
    rows = some_rows(num_rows, row_bytes)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        table = open_rows(
            directory / "x",
            rows,
            engine,
            gap_bytes,
            page_bytes=page_bytes,
            shard_bytes=data.draw(st.sampled_from([1, 2**17, 2**30])),
        )
        tables = of_one_type({"x": table})
        misses = np.diff(np.append(0, np.cumsum(slots < 0))[trace.offsets])
        extra_bytes = data.draw(st.sampled_from([0, 1000, 100_000, 1 << 28]))
        memory_bytes = least_memory(tables, misses, trace.ids.itemsize) + extra_bytes
        with pack(
            tables,
            trace,
            plan_of(trace, slots),
            directory,
            memory_bytes=memory_bytes + 8 * int(misses.sum()),  # for those that repeat
            num_threads=data.draw(st.sampled_from([1, 2, 5])),
        ) as packed:
            check(packed, "x", rows, trace, slots)
            read_bytes = packed.counts["bytes_read"]
    # With nothing read along, what is read are the blocks with rows that are missed, once.
    blocks = needed_pages(
        trace.ids,
        slots,
        row_bytes=row_bytes,
        rows_per_page=table.array.geometry.rows_per_page,
        page_stride_bytes=table.array.geometry.page_stride_bytes,
    )
    if gap_bytes == 0 and page_bytes >= 4096:
        assert read_bytes == 4096 * blocks
    assert 4096 * blocks <= read_bytes


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_sorted_misses_equal_their_twin(data: st.DataObject) -> None:
    num_rows = data.draw(st.integers(1, 5000))
    trace, slots = data.draw(superbatches(num_rows))
    for i in range(trace.num_batches):
        ids, own = trace.batch(i), slots[trace.offsets[i] : trace.offsets[i + 1]]
        expected = sort_misses(ids, own)
        room = len(expected[0]) + data.draw(st.integers(0, 3))
        rows, positions = np.full(room, -7, ids.dtype), np.full(room, -7, np.int32)
        num_missed, *repeats = _core.sort_misses(ids, own, rows, positions, num_rows=num_rows)
        assert num_missed == len(expected[0])
        found = (rows[:num_missed], positions[:num_missed], *repeats)
        assert tuple(array.tolist() for array in found) == expected
        assert np.all(rows[num_missed:] == -7)
        assert np.all(positions[num_missed:] == -7)
        if num_missed:
            with pytest.raises(ValueError, match=f"more than {num_missed - 1} rows"):
                _core.sort_misses(
                    ids, own, rows[: num_missed - 1], positions[: num_missed - 1], num_rows=num_rows
                )


def test_little_memory_changes_nothing(tmp_path: Path, engine: str) -> None:
    """A row's length is no divisor of anything: rows are cut by buffers and reads."""
    rows = some_rows(6_000, 1201)
    table = open_rows(tmp_path / "x", rows, engine)
    tables = of_one_type({"x": table})
    rng = np.random.default_rng(3)
    trace = Trace.of([rng.permutation(6_000)[:4000] for _ in range(4)])
    slots = np.full(trace.num_accesses, -1, np.int32)
    least = least_memory(tables, np.full(4, 4000), 8)
    expected = packed_file(rows, trace.ids, trace.offsets, slots)
    writes = []
    pieces = {least: 4, **choose({}, {least + 6_000_000: 32, 1 << 28: 256})}
    for memory_bytes in pieces:
        with pack(
            tables, trace, plan_of(trace, slots), tmp_path, memory_bytes=memory_bytes, num_threads=3
        ) as packed:
            assert packed.tables["x"].file_path.read_bytes() == expected
            writes.append(packed.counts["writes"])
    # A batch's 4,804,000 bytes go out in pieces of 4, 32 and 256 KiB.
    assert writes == [4 * -(-4_804_000 // (kib << 10)) for kib in pieces.values()]


def test_a_gap_that_nobody_needs_is_not_read(tmp_path: Path) -> None:
    rows = some_rows(100_000, 512)
    table = open_rows(tmp_path / "x", rows, gap_bytes=8192)
    tables = of_one_type({"x": table})
    ids = np.array([5, 99_990, 50_000, 50_039, 50_100])  # blocks 6250 and 6254: a gap of 3
    trace = Trace.of([ids[:2], ids[2:]])
    slots = np.full(5, -1, np.int32)
    with pack(tables, trace, plan_of(trace, slots), tmp_path, memory_bytes=1 << 26) as packed:
        check(packed, "x", rows, trace, slots)
        assert (packed.counts["reads"], packed.counts["bytes_read"]) == (5, 5 * 4096)
    table = open_rows(tmp_path / "y", rows, gap_bytes=3 * 4096)
    tables = of_one_type({"x": table})
    with pack(tables, trace, plan_of(trace, slots), tmp_path, memory_bytes=1 << 26) as packed:
        assert (packed.counts["reads"], packed.counts["bytes_read"]) == (4, 8 * 4096)


def test_far_rows_of_a_sparse_table(tmp_path: Path, engine: str) -> None:
    """Offsets beyond 2^32, ids beyond 2^24, on a table that takes no room."""
    num_rows, row_bytes = (1 << 25) + 3, 512
    path = tmp_path / "table"
    with path.open("wb") as file:
        file.truncate(num_rows * row_bytes // 4096 * 4096 + 4096)
        for row in (1, 1 << 24, (1 << 24) + 1, num_rows - 1):
            file.seek(row * row_bytes)
            file.write(row.to_bytes(8, "little"))
    files = _core.FileSet([path], [path.stat().st_size])
    place = {"num_rows": num_rows, "row_bytes": row_bytes, "rows_per_page": 8}
    geometry: dict[str, Any] = {**place, "page_stride_bytes": 4096, "gap_bytes": 4096}
    _core.pack_rows(
        files,
        np.array([1, num_rows - 1, 1 << 24, (1 << 24) + 1]),
        np.array([0, 2]),
        np.array([2, 2]),
        [tmp_path / "packed"],
        [8192],
        np.zeros(2, np.int64),
        np.array([0, 4096]),
        np.zeros(2, np.uint32),
        np.zeros(2, np.int64),
        engine=engine,
        **geometry,
        num_windows=3,
        window_bytes=_core.min_pack_window_bytes(files, **geometry),
        buffer_bytes=4096,
        num_spare_buffers=1,
        piece_bytes=1024,
    )
    found = (tmp_path / "packed").read_bytes()
    firsts = [int.from_bytes(found[at : at + 8], "little") for at in (0, 512, 4096, 4608)]
    assert firsts == [1, num_rows - 1, 1 << 24, (1 << 24) + 1]
