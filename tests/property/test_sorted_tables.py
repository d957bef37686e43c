"""Edges that come sorted, written as they are read: the store is that of sorting them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from gnnstore.converters import ConvertOptions, from_tables, from_typed
from gnnstore.converters.edges import ordered
from tests.support.effort import choose
from tests.support.stores import assert_same_files

Ints = npt.NDArray[np.int64]

RULES = st.builds(
    ConvertOptions,
    self_loops=st.sampled_from(("keep", "drop", "add")),
    edge_ids=st.sampled_from((None, False)),
    time_attr=st.just(("time",)),
    weight_attr=st.just(("edge_weight",)),
)


def draw_ends(draw: st.DrawFn, num_sources: int, num_targets: int) -> tuple[Ints, Ints]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_edges = draw(st.integers(0, 60))
    sources = rng.integers(0, num_sources, num_edges)
    targets = rng.integers(0, draw(st.integers(1, num_targets)), num_edges)
    order = np.lexsort((sources, targets))
    return sources[order], targets[order]


def write_parts(draw: st.DrawFn, directory: Path, columns: dict[str, Any]) -> None:
    """Write a table as several files with row groups of a few rows."""
    table = pa.table(columns)
    directory.mkdir(parents=True)
    cuts = sorted(draw(st.lists(st.integers(0, table.num_rows), max_size=3)))
    bounds = [0, *cuts, table.num_rows]
    for number, (begin, end) in enumerate(pairwise(bounds)):
        path = directory / f"part-{number}.parquet"
        size = draw(st.integers(1, 20))
        parquet.write_table(table.slice(begin, end - begin), path, row_group_size=size)


def attributes_of(num_edges: int) -> dict[str, Any]:
    rows = np.arange(num_edges)
    found: dict[str, Any] = {"edge_weight": rows.astype(np.float32) / 7, "time": rows[::-1] * 3}
    if num_edges:  # lists of a table without rows have no length
        found["wide"] = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2 * num_edges)), 2)
    return found


@pytest.fixture(autouse=True)
def pieces_of_a_few_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered, "_PIECE_COLUMNS", 5)


@settings(max_examples=choose(2, 100), deadline=None)
@given(data=st.data(), options=RULES)
def test_a_table(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, options: ConvertOptions
) -> None:
    path = tmp_path_factory.mktemp("sorted")
    num_nodes = data.draw(st.integers(1, 30))
    sources, targets = data.draw(st.composite(draw_ends)(num_nodes, num_nodes))
    ids = np.arange(num_nodes)
    if data.draw(st.booleans()):
        ids = ids**2 + 3
    kind = data.draw(st.sampled_from((np.int64, np.uint32, np.uint64)))
    ends: dict[str, Any] = {"source": ids[sources].astype(kind), "target": ids[targets]}
    if data.draw(st.booleans()):
        ends["source"] = pa.array(ends["source"]).dictionary_encode()
    own = attributes_of(len(sources))
    data.draw(st.composite(write_parts)(path / "edges", ends | own))
    how: dict[str, Any] = {"edge_columns": list(own), "options": options}
    if not len(sources) or data.draw(st.booleans()):
        how["nodes"] = pa.table({"number": ids, "x": np.arange(num_nodes) / 2})
        how |= {"node_id": "number", "features": "x"}
    wanted = from_tables(path / "edges", path / "a.gnn", **how)
    assert_same_files(from_tables(path / "edges", path / "b.gnn", **how, sorted=True), wanted)


@settings(max_examples=choose(1, 40), deadline=None)
@given(data=st.data())
def test_types(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("sorted")
    counts = {"user": data.draw(st.integers(1, 25)), "item": data.draw(st.integers(1, 25))}
    (path / "in/nodes").mkdir(parents=True)
    for name, count in counts.items():
        table = pa.table({"id": np.arange(count) * 2, "x": np.arange(count) / 3})
        parquet.write_table(table, path / f"in/nodes/{name}.parquet")
    for source, relation, target in (("user", "buys", "item"), ("user", "follows", "user")):
        ends = data.draw(st.composite(draw_ends)(counts[source], counts[target]))
        columns = dict(zip(("source", "target"), (2 * ids for ids in ends), strict=True))
        columns |= attributes_of(len(ends[0]))
        directory = path / f"in/edges/{source}__{relation}__{target}"
        data.draw(st.composite(write_parts)(directory, columns))
    options = ConvertOptions(time_attr=("time",), weight_attr=("edge_weight",))
    wanted = from_typed(path / "in", path / "a.gnn", options=options)
    found = from_typed(path / "in", path / "b.gnn", options=options, sorted=True)
    assert_same_files(found, wanted)
