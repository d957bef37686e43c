"""A store split for link prediction: as if it had been converted so, and its nodes as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.converters import ConvertOptions, from_snap, split_edges
from gnnstore.converters.edges import split
from gnnstore.converters.stores import graph as store_graph
from gnnstore.converters.stores import split as split_store
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import (
    InputError,
    NoSpaceError,
    StoreExistsError,
    UsageError,
)
from gnnstore.formats import StoreReader
from gnnstore.pipeline.check import verify
from gnnstore.testing.graphs import random_graph, write_store
from tests.support.effort import choose
from tests.support.graphs import pair_weights, read_store
from tests.support.stores import arrays_of, assert_same_files

FRACTIONS = (0.7, 0.2, 0.1)
ID_ARRAYS = ("/original_id", "/edge_id")


def graph(path: Path, **options: Any) -> Path:
    rng = np.random.default_rng(1)
    edges = rng.integers(0, 300, (2, choose(2000, 4000)))
    return write_store(
        path,
        edges,
        splits={"train": np.arange(9)},
        original_ids=np.arange(300)[::-1].copy(),
        x=rng.normal(size=(300, 7)).astype(np.float32),
        y=rng.integers(0, 4, 300),
        edge_weight=pair_weights(edges),
        edge_attr=np.stack([pair_weights(edges + i) for i in range(3)], axis=1),
        options=ConvertOptions(**options),
    )


@pytest.mark.parametrize("undirected", choose([True], [False, True]))
@pytest.mark.parametrize("edge_ids", choose([False], [None, False]))
def test_pieces_do_not_matter(
    tmp_path: Path, undirected: bool, edge_ids: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules: dict[str, Any] = {"undirected": undirected}
    whole = graph(tmp_path / "whole.gnn", **rules)
    converted = split_edges(whole, tmp_path / "a.gnn", FRACTIONS, seed=5)
    whole = graph(tmp_path / "again.gnn", **rules, edge_ids=edge_ids)
    monkeypatch.setattr(split, "_PIECE_COLUMNS", 7)
    monkeypatch.setattr(split_store, "PIECE_EDGES", 100)
    path = split_edges(whole, tmp_path / "b.gnn", FRACTIONS, seed=5)
    assert verify(path, "full").ok
    found, expected = arrays_of(path), arrays_of(converted)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        if edge_ids is None or not name.startswith("edge") or not name.endswith(ID_ARRAYS):
            np.testing.assert_array_equal(found[name], values, err_msg=name)
            assert found[name].dtype == values.dtype
    if edge_ids is False:  # positions in the store that was split
        names = [name for name in found if name.startswith("edge") and name.endswith(ID_ARRAYS)]
        assert len(names) == 3
        ids = np.concatenate([found[name] for name in names])
        assert len(np.unique(ids)) == len(ids)
        assert 0 <= ids.min() <= ids.max() < StoreReader.open(whole).schema.edge.num_edges


def test_test_messages_are_train_and_valid(tmp_path: Path) -> None:
    whole = graph(tmp_path / "whole.gnn", undirected=True)
    path = split_edges(whole, tmp_path / "a.gnn", FRACTIONS, test_messages=tmp_path / "b.gnn")
    train, test = gnnstore.open(path), gnnstore.open(tmp_path / "b.gnn")
    for name in ("valid", "test"):
        index = train.edge_splits[name].edge_index
        assert index.equal(test.edge_splits[name].edge_index)
        pairs = {tuple(pair) for pair in index.T.tolist()}
        both = pairs | {pair[::-1] for pair in pairs}
        assert not both & set(read_store(train.path).pairs())
        shown = both & set(read_store(test.path).pairs())
        assert shown == (both if name == "valid" else set())
    np.testing.assert_array_equal(test.features.read(), train.features.read())
    held = 2 * (train.edge_splits["valid"].edge_index.T.diff().ne(0).sum().item())
    loops = len(train.edge_splits["valid"]) - held // 2
    assert test.num_edges == train.num_edges + held + loops


def test_names_and_scaled_features_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    lines = [f"n{a} ü{b}" for a, b in rng.integers(0, 40, (500, 2))]
    (tmp_path / "edges.txt").write_text("\n".join(lines) + "\n")
    whole = from_snap(tmp_path / "edges.txt", tmp_path / "whole.gnn", string_ids=True)
    monkeypatch.setattr(store_graph, "_TEXTS_AT_ONCE", 7)
    split_edges(whole, tmp_path / "a.gnn")
    names = gnnstore.open(whole).original_names
    found = gnnstore.open(tmp_path / "a.gnn").original_names
    assert found is not None
    assert names is not None
    assert list(found) == list(names)
    scaled = random_graph(200, 3000, feature_dim=4).write(
        tmp_path / "scaled.gnn",
        options=ConvertOptions(feature_dtype="int8", feature_scale="column"),
    )
    split_edges(scaled, tmp_path / "b.gnn")
    before, after = read_store(scaled), read_store(tmp_path / "b.gnn")
    np.testing.assert_array_equal(after.scales["x"], before.scales["x"])
    np.testing.assert_array_equal(after.attributes["x"], before.attributes["x"])


@pytest.mark.long("tests/crash kills and resumes it")
def test_it_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = graph(tmp_path / "whole.gnn")
    expected = split_edges(whole, tmp_path / "e.gnn", FRACTIONS, test_messages=tmp_path / "e2.gnn")
    outputs: dict[str, Any] = {"output": tmp_path / "a.gnn", "test_messages": tmp_path / "a2.gnn"}
    calls = 0

    def interrupted(*arguments: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # the nodes of the second store
            raise KeyboardInterrupt
        original(*arguments, **options)

    original = store_graph.copy_nodes
    with monkeypatch.context() as patch:
        patch.setattr(split_store, "copy_nodes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            split_edges(whole, fractions=FRACTIONS, **outputs)
    assert not (tmp_path / "a.gnn").exists()
    assert not (tmp_path / "a2.gnn").exists()

    def never(*_: object) -> None:
        raise AssertionError("the edges are read again")

    monkeypatch.setattr(StoreInput, "edge_pieces", never)
    split_edges(whole, fractions=FRACTIONS, **outputs, options=ConvertOptions(resume=True))
    assert_same_files(tmp_path / "a.gnn", expected)
    assert_same_files(tmp_path / "a2.gnn", tmp_path / "e2.gnn")


def test_bad_input(tmp_path: Path) -> None:
    whole = graph(tmp_path / "whole.gnn")
    for fractions in ((0.9, 0.2, 0.1), (0.5, -0.1, 0.1), (0.5,)):
        with pytest.raises(UsageError, match="fractions="):
            split_edges(whole, tmp_path / "a.gnn", fractions)
    with pytest.raises(UsageError, match="choose another place"):
        split_edges(whole, whole)
    with pytest.raises(UsageError, match="choose two places"):
        split_edges(whole, tmp_path / "a.gnn", test_messages=tmp_path / "a.gnn")
    with pytest.raises(UsageError, match="needs edges in valid and in test"):
        split_edges(whole, tmp_path / "a.gnn", (0.5, 0.5, 0), test_messages=tmp_path / "b.gnn")
    with pytest.raises(UsageError, match="undirected is not for splitting"):
        split_edges(whole, tmp_path / "a.gnn", options=ConvertOptions(undirected=True))
    with pytest.raises(InputError, match="fell into valid"):
        split_edges(whole, tmp_path / "a.gnn", (0.5, 1e-12, 0.5))
    assert [path.name for path in tmp_path.iterdir()] == ["whole.gnn"]
    path = split_edges(whole, tmp_path / "a.gnn")
    with pytest.raises(UsageError, match="has edge splits already: valid, test"):
        split_edges(path, tmp_path / "b.gnn")
    with pytest.raises(StoreExistsError):
        split_edges(whole, path)


def test_an_attempt_that_ends_between_the_names_of_its_stores_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, commit = graph(tmp_path / "whole.gnn"), GraphWriter.commit

    def committed(self: GraphWriter) -> Path:
        if (tmp_path / "b.gnn").exists():
            raise NoSpaceError("the disk is full")
        return commit(self)

    with monkeypatch.context() as patch:
        patch.setattr(GraphWriter, "commit", committed)
        with pytest.raises(NoSpaceError):
            split_edges(whole, tmp_path / "a.gnn", test_messages=tmp_path / "b.gnn")
    options = ConvertOptions(resume=True)
    split_edges(whole, tmp_path / "a.gnn", test_messages=tmp_path / "b.gnn", options=options)
    split_edges(whole, tmp_path / "c.gnn", test_messages=tmp_path / "d.gnn")
    for one, other in (("a.gnn", "c.gnn"), ("b.gnn", "d.gnn")):
        assert_same_files(tmp_path / one, tmp_path / other)
    assert len(list(tmp_path.iterdir())) == 5
