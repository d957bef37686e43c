"""A store whose nodes are numbered anew: the same graph, in another order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import gnnstore
from gnnstore.converters import (
    ConvertOptions,
    from_snap,
    reorder,
    split_edges,
)
from gnnstore.converters.inputs import source
from gnnstore.converters.stores import graph as store_graph
from gnnstore.converters.stores import reorder as reordering
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import BudgetError, InputError, StoreExistsError, UsageError
from gnnstore.pipeline.check import verify
from gnnstore.testing.graphs import random_graph, write_store
from tests.support.effort import choose, is_long
from tests.support.graphs import pair_weights, read_store
from tests.support.stores import assert_same_files


def graph(path: Path, *, original: bool = True, **options: Any) -> Path:
    """Write a store with isolated nodes, parallel edges and every kind of array."""
    rng = np.random.default_rng(1)
    edges = (rng.random((2, 3000)) ** 2 * 250).astype(np.int64)
    weights, attributes = rng.random(3000), rng.random((3000, 3), dtype=np.float32)
    if options.get("undirected"):  # equal edges have equal attributes
        weights = pair_weights(edges).astype(np.float64)
        attributes = np.repeat(pair_weights(edges)[:, None], 3, axis=1)
    return write_store(
        path,
        edges,
        splits={"train": rng.permutation(300)[:40], "valid": np.arange(7)},
        original_ids=rng.permutation(900)[:300] if original else None,
        x=rng.normal(size=(300, 7)).astype(np.float32),
        y=rng.integers(0, 4, 300),
        train_mask=rng.random(300) < 0.3,
        edge_weight=weights,
        edge_attr=attributes,
        options=ConvertOptions(**options),
    )


def order_of(before: Path, after: Path) -> npt.NDArray[np.int64]:
    """Return the old id of each new node, from the maps of both stores."""
    old, new = gnnstore.open(before), gnnstore.open(after)
    assert new.original_ids is not None
    found: npt.NDArray[np.int64] = old.ids_of(new.original_ids)
    np.testing.assert_array_equal(np.sort(found), np.arange(old.num_nodes))
    return found


def assert_renumbered(before: Path, after: Path) -> npt.NDArray[np.int64]:
    """Check that two stores hold the same graph, and return the old id of each new node."""
    assert verify(after, "full").ok
    order = order_of(before, after)
    places = np.argsort(order)
    old, new = read_store(before), read_store(after)
    for name, values in old.attributes.items():
        np.testing.assert_array_equal(new.attributes[name], values[order], err_msg=name)
        assert new.attributes[name].dtype == values.dtype
    for name, ids in old.splits.items():
        np.testing.assert_array_equal(new.splits[name], places[ids], err_msg=name)
    by_old, by_new = np.argsort(old.edge_id), np.argsort(new.edge_id)
    np.testing.assert_array_equal(new.edge_id[by_new], old.edge_id[by_old])
    np.testing.assert_array_equal(new.edge_index[:, by_new], places[old.edge_index[:, by_old]])
    for name, values in old.edge_attributes.items():
        np.testing.assert_array_equal(new.edge_attributes[name][by_new], values[by_old])
    keys = new.edge_index[1] * np.int64(new.num_nodes) + new.edge_index[0]
    assert (np.diff(keys) >= 0).all()
    for name, array in old.graph_arrays.items():
        np.testing.assert_array_equal(new.graph_arrays[name], array)
    return order


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("options", [*choose([], [{}]), {"undirected": True}, {"edge_ids": False}])
def test_it_is_the_same_graph(
    tmp_path: Path, original: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = graph(tmp_path / "a.gnn", original=original, **options)
    monkeypatch.setattr(reordering, "_PIECE_EDGES", 90)
    monkeypatch.setattr(source, "_PIECE_BYTES", 1000)
    after = reorder(before, tmp_path / "b.gnn")
    order = assert_renumbered(before, after)
    degrees = np.bincount(read_store(before).edge_index[0], minlength=300)
    assert (np.diff(degrees[order]) <= 0).all()
    stores = [gnnstore.open(path) for path in (before, after)]
    assert stores[0].reader.uuid != stores[1].reader.uuid


def test_nodes_that_nobody_draws_come_last_and_isolated_ones_behind_them(tmp_path: Path) -> None:
    # 5 -> 0 <- 5, 3 -> 1; 2, 4, 6, 7 are drawn by nobody, of which 6 has an in-neighbour.
    before = write_store(
        tmp_path / "a.gnn",
        [[5, 5, 3, 5], [0, 0, 1, 6]],
        num_nodes=8,
        splits={"train": np.array([4]), "test": np.array([2])},
    )
    after = reorder(before, tmp_path / "b.gnn")
    found = gnnstore.open(after).original_ids
    assert found is not None
    assert found.tolist() == [5, 3, 4, 2, 0, 1, 6, 7]


def planted(path: Path) -> tuple[Path, npt.NDArray[np.int64]]:
    """Write a graph of 8 communities of 125 nodes, which are no ranges of ids."""
    rng = np.random.default_rng(5)
    community = rng.permutation(np.arange(1200) // 125)  # 200 nodes more are isolated
    members = [np.flatnonzero(community == k) for k in range(8)]
    edges = [rng.choice(own, (2, 3000 + 200 * k)) for k, own in enumerate(members)]
    noise = rng.choice(np.concatenate(members), (2, 300))
    return write_store(path, np.concatenate([*edges, noise], axis=1), num_nodes=1200), community


def test_communities_lie_together(tmp_path: Path) -> None:
    before, community = planted(tmp_path / "a.gnn")
    after = reorder(before, tmp_path / "b.gnn", "community")
    order = assert_renumbered(before, after)
    degrees = np.bincount(read_store(before).edge_index[0], minlength=1200)[order]
    assert (degrees[:1000] > 0).sum() == (degrees > 0).sum()
    drawn = community[order][: (degrees > 0).sum()]
    borders = np.count_nonzero(np.diff(drawn))
    assert borders < len(drawn) / 8  # 7/8 of all places, were they mixed
    # Of most neighbours in the order, one has the higher degree and lies in front.
    assert (np.diff(degrees) > 0).sum() < 20
    if not is_long():
        return
    again = reorder(before, tmp_path / "c.gnn", "community")
    assert_same_files(after, again)
    other = reorder(before, tmp_path / "d.gnn", "community", seed=1)
    assert_renumbered(before, other)


def test_frequency_goes_before_degree(tmp_path: Path) -> None:
    before = graph(tmp_path / "a.gnn")
    scores = np.random.default_rng(0).integers(0, 3, 300).astype(np.uint8)
    after = reorder(before, tmp_path / "b.gnn", "frequency", scores=scores)
    order = assert_renumbered(before, after)
    assert (np.diff(scores[order].astype(int)) <= 0).all()
    degrees = np.bincount(read_store(before).edge_index[0], minlength=300)
    for score in range(3):
        assert (np.diff(degrees[order[scores[order] == score]]) <= 0).all()


def test_edge_splits_names_and_scaled_features_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnstore.converters.stores.reorder._MAX_TEXT_BYTES", 100)
    monkeypatch.setattr(store_graph, "_TEXTS_AT_ONCE", 7)
    rng = np.random.default_rng(0)
    lines = [f"n{a} ü{'x' * int(b)}" for a, b in rng.integers(0, 40, (500, 2))]
    (tmp_path / "edges.txt").write_text("\n".join(lines) + "\n")
    before = from_snap(tmp_path / "edges.txt", tmp_path / "named.gnn", string_ids=True)
    after = reorder(before, tmp_path / "b.gnn")
    order = assert_renumbered(before, after)
    old, new = gnnstore.open(before), gnnstore.open(after)
    assert old.original_names is not None
    assert new.original_names is not None
    assert list(new.original_names) == [old.original_names[i] for i in order]

    scaled = random_graph(200, 3000, feature_dim=4).write(
        tmp_path / "scaled.gnn",
        options=ConvertOptions(feature_dtype="int8", feature_scale="column"),
    )
    assert_renumbered(scaled, reorder(scaled, tmp_path / "c.gnn"))

    whole = graph(tmp_path / "whole.gnn")
    split = split_edges(whole, tmp_path / "split.gnn", num_negatives=3)
    after = reorder(split, tmp_path / "d.gnn")
    places_ = torch.from_numpy(np.argsort(assert_renumbered(split, after)))
    for name, own in gnnstore.open(split).edge_splits.items():
        new_split = gnnstore.open(after).edge_splits[name]
        assert new_split.edge_index.equal(places_[own.edge_index])
        assert own.target_negatives is not None
        assert new_split.target_negatives is not None
        assert own.edge_ids is not None
        assert new_split.edge_ids is not None
        negatives = places_[torch.from_numpy(own.target_negatives.read().astype(np.int64))]
        np.testing.assert_array_equal(new_split.target_negatives.read(), negatives)
        np.testing.assert_array_equal(new_split.edge_ids.read(), own.edge_ids.read())
        for attribute, values in own.attributes.items():
            np.testing.assert_array_equal(new_split.attributes[attribute].read(), values.read())


def test_bfloat16_and_axes_stay(tmp_path: Path) -> None:
    from torch_geometric.data import Data  # noqa: PLC0415 - slow to import

    data = Data(
        x=torch.randn(30, 5).bfloat16(),
        edge_index=torch.randint(0, 30, (2, 100)),
        edge_attr=torch.randn(100, 2).bfloat16(),
        name="a graph",
        num_nodes=30,
    )
    before = gnnstore.converters.from_pyg(data, tmp_path / "a.gnn")
    after = reorder(before, tmp_path / "b.gnn")
    order = torch.from_numpy(order_of(before, after))
    store = gnnstore.open(after)
    new, ids = store.to_pyg(), store.original_edge_ids
    assert ids is not None
    assert new.x.equal(data.x[order])
    assert order[new.edge_index].equal(data.edge_index[:, ids.read()])
    assert new.edge_attr.equal(data.edge_attr[ids.read()])
    assert new.name == "a graph"


@pytest.mark.long("other tests ask for one order each")
def test_reordering_twice_leads_back_to_the_original_data(tmp_path: Path) -> None:
    first = graph(tmp_path / "a.gnn", original=False)
    scores = np.random.default_rng(3).integers(0, 200, 300).astype(np.uint8)
    second = reorder(first, tmp_path / "b.gnn", "frequency", scores=scores)
    third = reorder(second, tmp_path / "c.gnn")
    assert_renumbered(first, third)


def test_rows_in_files_are_those_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = graph(tmp_path / "a.gnn")
    expected = reorder(before, tmp_path / "b.gnn")
    monkeypatch.setattr(reordering, "_MAX_MEMORY_BYTES", 0)
    monkeypatch.setattr(reordering, "MAX_COMPRESSED_BYTES", 0)
    after = reorder(before, tmp_path / "c.gnn", options=ConvertOptions(memory_bytes=2**26))
    assert_renumbered(before, after)
    np.testing.assert_array_equal(
        gnnstore.open(after).original_ids, gnnstore.open(expected).original_ids
    )


def test_batches_of_whole_neighbourhoods_are_the_same_sets(tmp_path: Path) -> None:
    before = graph(tmp_path / "a.gnn")
    after = reorder(before, tmp_path / "b.gnn")
    old, new = gnnstore.open(before), gnnstore.open(after)
    loaders = [
        gnnstore.NeighborLoader(store, [-1, -1], input_nodes=seeds, batch_size=8)
        for store, seeds in ((old, "train"), (new, "train"))
    ]
    order = torch.from_numpy(order_of(before, after))
    for a, b in zip(*loaders, strict=True):
        seeds = order[b.n_id[: b.batch_size]]
        assert seeds.equal(a.n_id[: a.batch_size])
        assert b.input_id.equal(a.input_id)
        rank = torch.argsort(a.n_id), torch.argsort(order[b.n_id])
        assert a.n_id[rank[0]].equal(order[b.n_id][rank[1]])
        assert a.x[rank[0]].equal(b.x[rank[1]])
        assert a.y[rank[0]].equal(b.y[rank[1]])
        assert new.original_edge_ids is not None
        assert Counter(a.e_id.tolist()) == Counter(new.original_edge_ids[b.e_id].tolist())
        assert new.edge_index[:, b.e_id].equal(b.n_id[b.edge_index])  # positions in the new store


def test_ids_of(tmp_path: Path) -> None:
    plain = gnnstore.open(graph(tmp_path / "a.gnn", original=False))
    assert plain.ids_of([[3, 1]]).tolist() == [[3, 1]]
    with pytest.raises(InputError, match=r"original id -1, 300;"):
        plain.ids_of(torch.tensor([5, 300, -1]))
    mapped = gnnstore.open(graph(tmp_path / "b.gnn"))
    known = mapped.original_ids
    assert known is not None
    wanted = np.random.default_rng(0).integers(0, 300, (4, 50))
    np.testing.assert_array_equal(mapped.ids_of(known[wanted]), wanted)
    found = mapped.ids_of(torch.from_numpy(known[wanted]).int())
    assert found.equal(torch.from_numpy(wanted))
    assert len(mapped.ids_of([])) == 0
    missing = np.setdiff1d(np.arange(1000), known)
    with pytest.raises(InputError, match=f"{missing[0]}, {missing[1]}.* and 695 more"):
        mapped.ids_of(missing)
    for wrong in ([0.5], ["x"], [None], [2**70], [[1], [2, 3]]):
        with pytest.raises(InputError, match=r"are integers|look them up by integers"):
            mapped.ids_of(wrong)


def test_it_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = graph(tmp_path / "a.gnn")
    expected = reorder(before, tmp_path / "b.gnn")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GraphWriter, "set_original_ids", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reorder(before, tmp_path / "c.gnn")
    assert not (tmp_path / "c.gnn").exists()

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the edges are written again")

    monkeypatch.setattr(GraphWriter, "add_edges", never)
    reorder(before, tmp_path / "c.gnn", options=ConvertOptions(resume=True))
    assert_same_files(tmp_path / "c.gnn", expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gnn", "b.gnn", "c.gnn"]


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = graph(tmp_path / "a.gnn")
    output = tmp_path / "b.gnn"
    with pytest.raises(UsageError, match="choose another place"):
        reorder(before, before)
    with pytest.raises(UsageError, match="order='size' is unknown; choose one of degree"):
        reorder(before, output, "size")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="go with order='frequency'"):
        reorder(before, output, scores=np.zeros(300, np.uint8))
    with pytest.raises(UsageError, match="go with order='frequency'"):
        reorder(before, output, "frequency")
    with pytest.raises(UsageError, match="one for each node"):
        reorder(before, output, "frequency", scores=np.zeros(299, np.uint8))
    with pytest.raises(UsageError, match="undirected is not for reordering"):
        reorder(before, output, options=ConvertOptions(undirected=True))
    with pytest.raises(StoreExistsError):
        reorder(before, graph(tmp_path / "c.gnn"))
    with monkeypatch.context() as patch:
        patch.setattr(reordering, "_NODE_BYTES", 2**20)
        with pytest.raises(BudgetError, match="numbering the nodes"):
            reorder(before, output, options=ConvertOptions(memory_bytes=2**26))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gnn", "c.gnn"]


@pytest.mark.parametrize("memory_bytes", choose([10**6], [10**6, 5 * 10**6, 10**7]))
def test_the_memory_that_is_asked_for_is_enough(tmp_path: Path, memory_bytes: int) -> None:
    """At once, before any work, whatever it is that needs most."""
    rng = np.random.default_rng(0)
    store = write_store(
        tmp_path / "g.gnn",
        rng.integers(0, 20_000, (2, 300_000)),
        x=rng.random((20_000, 4), np.float32),
        edge_weight=rng.random(300_000),
    )
    with pytest.raises(BudgetError) as caught:
        reorder(store, tmp_path / "b.gnn", options=ConvertOptions(memory_bytes=memory_bytes))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.gnn"]
    enough = memory_bytes + (caught.value.missing_bytes or 0)
    reorder(store, tmp_path / "b.gnn", options=ConvertOptions(memory_bytes=enough))
