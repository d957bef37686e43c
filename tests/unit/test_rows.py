"""Rows by id: memory and mapping give the same bytes, whatever the width of a row."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gnnstore
from gnnstore import _core
from gnnstore.features.mapped_rows import MIN_ROWS_PER_FAULT_THREAD, MappedRows
from gnnstore.features.memory_rows import MemoryRows
from gnnstore.features.source import RowSource, RowSpec
from gnnstore.features.tables import held_row_bytes, open_rows
from gnnstore.formats import AttributeSpec, PagedArray, StoreReader
from gnnstore.graph.table_registry import shared_tables
from gnnstore.testing.graphs import write_store
from tests.support.effort import choose, paired
from tests.support.stores import write_example_store

# One byte; not dividing a page; just below, at and above a page; several pages.
ROW_BYTES = [1, 2, 100, 400, 511, 512, 513, 1200, 4095, 4096, 4097, 12288]


def stored_array(directory: Path, values: npt.NDArray[Any]) -> PagedArray:
    """Store an attribute of nodes in pages."""
    path = write_store(directory / "s.gnn", np.zeros((2, 1), np.int64), x=values)
    reader = StoreReader.open(path)
    return reader.paged(reader.schema.node.attributes["x"])


@pytest.mark.parametrize(
    ("row_bytes", "shard_bytes"),
    paired(choose([1, 100, 513, 4096, 4097], ROW_BYTES), [None, 65536], 1),
)
def test_every_source_equals_numpy(tmp_path: Path, row_bytes: int, shard_bytes: int | None) -> None:
    stored = write_example_store(
        tmp_path / "s.gnn",
        num_nodes=301,
        feature_shape=(row_bytes,),
        feature_dtype="uint8",
        shard_bytes=shard_bytes,
    )
    expected = stored.arrays["nodes/node/x"]
    reader = StoreReader.open(stored.path)
    array = reader.paged(reader.schema.node.attributes["x"])
    rng = np.random.default_rng(0)
    sources: list[RowSource] = [
        MappedRows.map(array),
        MemoryRows.load(array, 2),
        MemoryRows.from_array(expected),
    ]
    for dtype in (np.int64, np.int32):
        # Unsorted, with repeats, with the last row, and more than one thread's share.
        many = 4 * MIN_ROWS_PER_FAULT_THREAD if row_bytes < choose(5000, 20_000) else 70
        for count in (0, 1, 7, *([many] if dtype == np.int64 else [])):
            ids = rng.integers(0, 301, count).astype(dtype)
            ids[-1:] = 300
            for rows in sources:
                assert (rows.num_rows, rows.row_bytes) == (301, row_bytes)
                found = rows.gather(ids).values
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected[ids])


@pytest.mark.parametrize(
    ("dtype", "values", "held_bytes"),
    [
        ("int64", (0, 127), 1),
        ("int64", (0, 128), 1),
        ("int64", (-1, 128), 2),
        ("int64", (0, 2**16 - 1), 2),
        ("int64", (-(2**31), 3), 4),
        ("int64", (0, 2**32), 8),
        ("uint64", (7, 2**64 - 1), 8),
        ("uint8", (0, 255), 1),
        *choose([], [("int64", (-1, 127), 1), ("int32", (5, 6), 1), ("uint16", (300, 301), 2)]),
        ("float64", (0, 1), 8),
    ],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_narrow_integers_are_held_in_as_few_bytes_as_they_need(
    tmp_path: Path, dtype: str, values: tuple[int, int], held_bytes: int, shape: tuple[int, ...]
) -> None:
    count = choose(5_000, 50_000)
    table = np.resize(np.array(values, dtype), (count, *shape))
    np.random.default_rng(0).shuffle(table)
    array = stored_array(tmp_path, table)
    rows = open_rows(array, "memory")
    assert rows.resident_bytes == table.size * held_bytes
    assert held_row_bytes(array) == table[0].size * held_bytes
    assert rows.spec == RowSpec(count, shape, table.dtype)
    for ids in (np.arange(0, count, 7), np.array([count - 1, 0, 0], np.int32), np.empty(0, int)):
        found = rows.gather(ids).values
        assert found.dtype == table.dtype
        np.testing.assert_array_equal(found, table[ids])
        raw = np.zeros((len(ids), rows.row_bytes), np.uint8)
        rows.read_rows(ids, raw)
        assert raw.tobytes() == table[ids].tobytes()
    with pytest.raises(IndexError, match=r"-1.*position 1"):
        rows.gather(np.array([0, -1]))


@pytest.mark.parametrize("bad", [-1, 300])
def test_an_id_outside_the_table_is_an_error(tmp_path: Path, bad: int) -> None:
    stored = write_example_store(tmp_path / "s.gnn", num_nodes=300)
    reader = StoreReader.open(stored.path)
    array = reader.paged(reader.schema.node.attributes["x"])
    for rows in (MappedRows.map(array), MemoryRows.load(array, 1)):
        with pytest.raises(IndexError, match=rf"{bad}.*position 2"):
            rows.gather(np.array([0, 299, bad]))


# --- sharing between loaders ---------------------------------------------------------------


def spec_of(store: gnnstore.GraphStore, name: str) -> AttributeSpec:
    return store.schema.node.attributes[name]


def test_tables_are_loaded_once_for_a_store_object(tmp_path: Path) -> None:
    stored = write_example_store(tmp_path / "s.gnn", num_nodes=300, feature_shape=(25,))
    store = gnnstore.open(stored.path)
    shared = shared_tables(store)
    assert shared_tables(store) is shared
    assert shared_tables(gnnstore.open(stored.path)) is not shared

    x = shared.rows(store, spec_of(store, "x"), "memory", 1)
    assert shared.rows(store, spec_of(store, "x"), "memory", 1) is x
    assert shared.rows(store, spec_of(store, "x"), "mmap", 1) is not x
    # Compressed attributes are in memory in either mode.
    y = shared.rows(store, spec_of(store, "y"), "mmap", 1)
    assert shared.rows(store, spec_of(store, "y"), "memory", 1) is y
    assert shared.resident_bytes == 300 * 100 + 300 * 8
    csc = shared.topology(store, "memory", 1).columns()
    assert shared.resident_bytes == 300 * 100 + 300 * 8 + csc.num_bytes


def test_tables_go_with_their_store(tmp_path: Path) -> None:
    stored = write_example_store(tmp_path / "s.gnn", num_nodes=3000, feature_shape=(250,))
    gc.collect()
    before = _core.pool_stats()["bytes_in_use"]
    store = gnnstore.open(stored.path)
    shared_tables(store).rows(store, spec_of(store, "x"), "memory", 1)
    assert _core.pool_stats()["bytes_in_use"] > before
    del store
    gc.collect()
    assert _core.pool_stats()["bytes_in_use"] == before
