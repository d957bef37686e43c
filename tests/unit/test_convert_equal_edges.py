"""Edges that are equal but differ in an attribute are all kept, or refused: none is dropped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import gnnstore
from gnnstore.converters import (
    ConvertOptions,
    from_arrays,
    from_numpy,
    from_pyg,
    from_rmat,
    from_snap,
    from_tables,
    from_triples,
)
from gnnstore.converters.edges import builder as spill
from gnnstore.converters.edges.builder import EdgeBuilder
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.errors import InputError, UsageError
from tests.support.effort import choose
from tests.support.graphs import pair_weights

# Contacts of four people, each with its time; edge 3 is the reverse of edge 1, edges 0 and 4 equal.
EDGES = np.array([[0, 1, 2, 2, 0], [1, 2, 3, 1, 1]])
TIMES = np.array([7, 8, 9, 8, 11])
UNDIRECTED = ConvertOptions(undirected=True)
INVERSE = ConvertOptions(add_inverse_edge=True)


def test_contacts_are_refused_or_kept(tmp_path: Path) -> None:
    arrays = {"edge_index": EDGES, "edge_time": TIMES}
    with pytest.raises(InputError) as caught:
        from_arrays(arrays, tmp_path / "a.gnn", options=UNDIRECTED)
    assert "1 that it would drop differ from it in an attribute, the first of them" in str(
        caught.value
    )
    assert "edges 0 and 4 between 0 and 1, with edge_time 7 and 11; use add_inverse" in str(
        caught.value
    )
    assert not list(tmp_path.iterdir())
    store = gnnstore.open(from_arrays(arrays, tmp_path / "b.gnn", options=INVERSE))
    both = [[0, 1, 1, 2, 2, 3, 2, 1, 0, 1], [1, 0, 2, 1, 3, 2, 1, 2, 1, 0]]
    assert store.edge_index.tolist() == both
    assert store.edge_time.tolist() == np.repeat(TIMES, 2).tolist()


def test_edges_that_are_alike_are_joined(tmp_path: Path) -> None:
    """A list of both directions has no more edges than before; NaN is as NaN."""
    arrays = {"edge_index": EDGES[:, 1:4], "edge_w": np.array([[np.nan, 1], [2, 3], [np.nan, 1]])}
    store = gnnstore.open(from_arrays(arrays, tmp_path / "a.gnn", options=UNDIRECTED))
    assert store.num_edges == 4
    arrays["edge_w"][0, 1] = 5
    with pytest.raises(InputError, match=r"1 that it would .* edge_w \[nan  5\.\] and \[nan  1"):
        from_arrays(arrays, tmp_path / "b.gnn", options=UNDIRECTED)


def test_loops_that_are_dropped_may_differ(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"edge_index": [[0, 0, 0], [0, 0, 1]], "edge_w": [1, 2, 3]}
    with pytest.raises(InputError, match="1 that it would drop differ"):
        from_arrays(arrays, tmp_path / "a.gnn", options=UNDIRECTED)
    drop = ConvertOptions(undirected=True, self_loops="drop")
    store = gnnstore.open(from_arrays(arrays, tmp_path / "a.gnn", options=drop))
    assert store.edge_w.tolist() == [3, 3]


def test_edges_that_are_sorted_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also equal edges of which a long column is cut in between."""
    monkeypatch.setattr(spill, "MIN_SPILL_BYTES", 2**12)
    monkeypatch.setattr(spill, "_MIN_PIECE_EDGES", 1000)
    rng, count = np.random.default_rng(0), choose(3_000, 6_000)
    edges = np.stack((rng.integers(0, 2, count) + 30, rng.integers(0, 3, count)))
    weights = pair_weights(edges)

    def build(memory_bytes: int | None) -> Any:
        builder = EdgeBuilder(
            EdgeRules(undirected=True), tmp_path / "s", num_nodes=40, memory_bytes=memory_bytes
        )
        for begin in range(0, count, 1000):
            part = slice(begin, begin + 1000)
            builder.add(edges[0, part], edges[1, part], {"w": weights[part]}, "test")
        assert memory_bytes is None or builder._parts
        return builder.build(40)

    assert build(40_000).num_edges == build(None).num_edges == 12
    pair = np.flatnonzero((edges[0] == 30) & (edges[1] == 2))
    weights[pair[-5:]] += 1
    said = []
    for memory_bytes in (40_000, None):
        with pytest.raises(InputError, match="and 5 that it would drop differ") as caught:
            build(memory_bytes)
        said.append(str(caught.value))
    assert f"edges {pair[0]} and {pair[-5]} between 2 and 30, with w" in said[0]
    assert said[0] == said[1]


def of_numpy(folder: Path, output: Path, **options: Any) -> Path:
    np.savez(folder / "g.npz", edge_index=EDGES, edge_time=TIMES)
    return from_numpy(folder / "g.npz", output, **options)


def of_text(folder: Path, output: Path, **options: Any) -> Path:
    rows = zip(*EDGES, TIMES, strict=True)
    (folder / "e.txt").write_text("".join(f"{s} {t} {time}\n" for s, t, time in rows))
    return from_snap(folder / "e.txt", output, edge_columns={"edge_time": 3}, **options)


def of_table(folder: Path, output: Path, **options: Any) -> Path:
    table = pa.table({"source": EDGES[0], "target": EDGES[1], "edge_time": TIMES})
    return from_tables(table, output, edge_columns=["edge_time"], **options)


def of_pyg(folder: Path, output: Path, **options: Any) -> Path:
    data = Data(edge_index=torch.from_numpy(EDGES), edge_time=torch.from_numpy(TIMES), num_nodes=4)
    return from_pyg(data, output, **options)


@pytest.mark.parametrize("convert", [of_numpy, of_text, of_table, of_pyg])
def test_every_kind_adds_inverse_edges(tmp_path: Path, convert: Callable[..., Path]) -> None:
    store = gnnstore.open(convert(tmp_path, tmp_path / "a.gnn", add_inverse_edge=True))
    assert store.edge_index[:, :4].tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert store.edge_time.tolist() == np.repeat(TIMES, 2).tolist()
    with pytest.raises(InputError, match="edges 0 and 4 between 0 and 1, with edge_time 7 and 11"):
        convert(tmp_path, tmp_path / "b.gnn", undirected=True)


def test_other_kinds_add_inverse_edges(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\tr\tb\na\tq\tb\n")
    store = gnnstore.open(from_triples(tmp_path / "t.tsv", tmp_path / "t.gnn", options=INVERSE))
    assert (store.num_edges, store.edge_type.tolist()) == (4, [0, 0, 1, 1])
    with pytest.raises(InputError, match="edges 0 and 1 between 0 and 1, with edge_type 0 and 1"):
        from_triples(tmp_path / "t.tsv", tmp_path / "u.gnn", options=UNDIRECTED)
    options = ConvertOptions(add_inverse_edge=True)
    one, two = (
        gnnstore.open(from_rmat(tmp_path / f"{i}.gnn", scale=5, edge_factor=3, options=own))
        for i, own in enumerate((None, options))
    )
    assert two.num_edges == 2 * one.num_edges
    with pytest.raises(UsageError, match="add_inverse_edge and undirected both add reverse edges"):
        ConvertOptions(add_inverse_edge=True, undirected=True)
    data = HeteroData({"a": {"x": torch.eye(2)}})
    with pytest.raises(UsageError, match="add_inverse_edge is for graphs of one node type"):
        from_pyg(data, tmp_path / "c.gnn", options=options)
