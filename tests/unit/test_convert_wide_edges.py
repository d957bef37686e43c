"""Long rows of attributes, and long texts, are converted within budgets that hold few of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.lib.format import open_memmap
from pyarrow import ipc, parquet

from gnnstore.converters import ConvertOptions, from_numpy, from_tables
from gnnstore.errors import BudgetError
from gnnstore.formats import StoreReader
from tests.support.effort import choose
from tests.support.limits import little_memory

MEMORY_BYTES = 20 * 10**6
MOST_BYTES = MEMORY_BYTES + 48 * 10**6  # with what the interpreter and the allocator take
WIDTH, NUM_EDGES, NUM_NODES = 25_000, 800, 500


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 800 edges with 100 kB of attributes each."""
    directory = tmp_path_factory.mktemp("wide")
    rng = np.random.default_rng(0)
    np.save(directory / "edge_index.npy", rng.integers(0, NUM_NODES, (2, NUM_EDGES)))
    np.save(directory / "num_nodes.npy", np.array(NUM_NODES))
    from_numpy(directory, directory / "imports.gnn")
    rows = np.repeat(np.arange(NUM_EDGES, dtype=np.float32)[:, None], WIDTH, axis=1)
    np.save(directory / "edge_attr.npy", rows)
    return directory


@pytest.mark.parametrize(
    "options",
    [
        ConvertOptions(memory_bytes=MEMORY_BYTES, self_loops="add"),
        *choose([], [ConvertOptions(memory_bytes=MEMORY_BYTES)]),
    ],
    ids=["loops", *choose([], ["plain"])],
)
def test_edges_with_long_rows_are_sorted_within_the_budget(
    arrays: Path, tmp_path: Path, options: ConvertOptions
) -> None:
    with little_memory(MOST_BYTES):
        made = from_numpy(arrays, tmp_path / "a.gnn", options=options)
    whole = ConvertOptions(self_loops=options.self_loops)
    expected = from_numpy(arrays, tmp_path / "b.gnn", options=whole)
    assert StoreReader.open(made).uuid == StoreReader.open(expected).uuid


def test_rows_that_the_budget_cannot_hold_are_refused_before_they_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "edge_index.npy", np.zeros((2, 60), np.int64))
    rows = open_memmap(tmp_path / "edge_attr.npy", "w+", np.float32, (60, 250_000))  # sparse
    del rows
    with (
        little_memory(2**22),
        pytest.raises(
            BudgetError, match=r"16.8 MB of buffers .* \S+ MB of some rows of attributes"
        ),
    ):
        from_numpy(tmp_path, tmp_path / "a.gnn", options=ConvertOptions(memory_bytes=MEMORY_BYTES))
    assert not list(tmp_path.glob("*gnn*"))


def names_of(num_rows: int, num_bytes: int) -> pa.Table:
    """Return edges between nodes with three long names, which a dictionary has once."""
    names = pa.array([mark * num_bytes for mark in "abc"])
    ends = (np.arange(num_rows) + step for step in (0, 1))
    columns = [pa.DictionaryArray.from_arrays(pa.array(end % 3), names) for end in ends]
    return pa.table(columns, names=["source", "target"])


@pytest.mark.parametrize("kind", choose(["arrow"], ["parquet", "arrow"]))
def test_each_row_has_a_copy_of_a_long_name_in_a_dictionary(tmp_path: Path, kind: str) -> None:
    path, table = tmp_path / f"edges.{kind}", names_of(400, 200_000)
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    options = ConvertOptions(memory_bytes=MEMORY_BYTES)
    with little_memory(MOST_BYTES):
        made = from_tables(path, tmp_path / "a.gnn", options=options)
    assert StoreReader.open(made).schema.node.num_nodes == 3


@pytest.mark.parametrize("kind", ["dictionary", *choose([], ["plain", "lists"]), "arrow"])
def test_values_that_the_budget_cannot_hold_are_refused(tmp_path: Path, kind: str) -> None:
    """One long row among short ones: 30 MB."""
    names = ["a"] * 20_000 + ["b" * 30_000_000] + ["c"] * 20_000
    table = pa.table({"source": names, "target": names[::-1]})
    if kind == "lists":
        rows = pa.FixedSizeListArray.from_arrays(
            pa.array(np.zeros(15_000_000, np.float32)), 7_500_000
        )
        ends = np.arange(2)
        table = pa.table({"source": ends, "target": ends, "w": rows})
    path = tmp_path / "edges.parquet"
    if kind == "arrow":
        with pa.OSFile(str(path), "wb") as file, ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)
    else:
        parquet.write_table(table, path, use_dictionary=kind == "dictionary")
    options, columns = ConvertOptions(memory_bytes=MEMORY_BYTES), ["w"] if kind == "lists" else []
    with (
        little_memory(MOST_BYTES),
        pytest.raises(BudgetError, match=r"does not fit, \d+ bytes too few"),
    ):
        from_tables(path, tmp_path / "a.gnn", edge_columns=columns, options=options)
    assert [own.name for own in tmp_path.iterdir()] == [path.name]
