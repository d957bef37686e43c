"""Splits of nodes that are drawn while data are converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import converters
from gnnstore.converters import HeteroGraphWriter, from_rmat
from gnnstore.converters.writer.node_arrays import split_ends
from gnnstore.errors import NotFoundError, UsageError
from gnnstore.tools.cli import main

# Single options are arguments, too, which types do not say.
from_arrays: Any = converters.from_arrays
from_kronecker: Any = converters.from_kronecker
from_snap: Any = converters.from_snap


def splits_of(path: Path, node_type: str | None = None) -> dict[str, list[int]]:
    """Return the splits of a store, and check that no node is in two."""
    store: Any = gnnstore.open(path)
    found = (store if node_type is None else store[node_type]).splits
    lists = {name: ids.tolist() for name, ids in found.items()}
    together = [node for ids in lists.values() for node in ids]
    assert len(set(together)) == len(together)
    return lists


@pytest.mark.parametrize(
    ("fractions", "ends"),
    [
        ((0.8, 0.1, 0.1), [8, 9, 10]),
        ((0.6, 0.2, 0.2), [6, 8, 10]),
        ((1 / 3, 1 / 3, 1 / 3), [3, 7, 10]),
        ((0.75, 0.25, 0.0), [8, 10, 10]),
        ((0.7, 0.15, 0.15), [7, 9, 10]),
        ((0.1, 0.1, 0.2), [1, 2, 4]),
    ],
)
def test_rounded_shares_use_all_nodes(
    fractions: tuple[float, float, float], ends: list[int]
) -> None:
    assert list(split_ends(10, fractions)) == ends


def test_they_are_random_by_seed(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("".join(f"{i} {i + 1}\n" for i in range(99)))
    words = ["convert", "snap", str(tmp_path / "e.txt"), str(tmp_path / "a.gnn"), "-q"]
    assert main([*words, "--split-fractions", "0.5,0.25,0.25", "--seed", "7"]) == 0
    fractions = (0.5, 0.25, 0.25)
    found = [
        splits_of(
            from_snap(
                tmp_path / "e.txt", tmp_path / f"{i}.gnn", split_fractions=fractions, seed=seed
            )
        )
        for i, seed in enumerate((7, 8))
    ]
    assert found[0] == splits_of(tmp_path / "a.gnn") != found[1]
    assert {name: len(ids) for name, ids in found[0].items()} == {
        "train": 50,
        "valid": 25,
        "test": 25,
    }
    assert found[0]["train"] == sorted(found[0]["train"]) != list(range(50))


def test_next_to_given_splits_they_are_refused(tmp_path: Path) -> None:
    arrays = {"edge_index": [[0], [1]], "test_mask": np.array([True, False])}
    with pytest.raises(UsageError, match="has the split 'test', next to which none is drawn"):
        from_arrays(arrays, tmp_path / "o.gnn", split_fractions=(0.5, 0.5, 0))
    assert list(tmp_path.iterdir()) == []


def shop(output: Path, **options: Any) -> Path:
    edges = [(np.array([0, 1]), np.array([0, 1]))]
    given = converters.ConvertOptions(**options)
    with HeteroGraphWriter(output, {"user": 20, "item": 10}, kind="x", options=given) as writer:
        writer.read_edges(("user", "buys", "item"), edges, where="edges")
        return writer.commit()


def test_of_types(tmp_path: Path) -> None:
    half = (0.5, 0.5, 0.0)
    store = shop(tmp_path / "o.gnn", split_fractions={"item": half, "user": (0.1, 0.1, 0.8)})
    assert [len(ids) for ids in splits_of(store, "user").values()] == [2, 2, 16]
    assert [len(ids) for ids in splits_of(store, "item").values()] == [5, 5]
    for given, said in (
        (half, "nodes have types; there are 'user', 'item': write user=0.8,0.1,0.1 for one"),
        ({"shop": half}, "there is no node type 'shop'; there are 'user', 'item'"),
    ):
        with pytest.raises(UsageError, match=said):
            shop(tmp_path / "p.gnn", split_fractions=given)


@pytest.mark.parametrize("given", [(0.5, 0.6, 0.1), (0.5, 0.5), (-0.1, 0.1, 0.1), "a,b,c", 0.5])
def test_what_is_not_three_shares(tmp_path: Path, given: Any) -> None:
    with pytest.raises(UsageError, match="are not three shares that add up to at most 1"):
        from_arrays({"edge_index": [[0], [1]]}, tmp_path / "o.gnn", split_fractions=given)


def test_generated_graphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shares = (0.7, 0.2, 0.1)  # whose sum is rounded to less than 1
    options: dict[str, Any] = {"scale": 6, "feature_dim": 0}
    store = from_rmat(tmp_path / "r.gnn", split_fractions=shares, seed=3, **options)
    degrees = np.bincount(np.concatenate([gnnstore.open(store).to_pyg().edge_index[1]]))
    assert sum(map(len, splits_of(store).values())) == np.count_nonzero(degrees)
    arrays = {"edge_index": [[0, 9], [1, 2]], "num_nodes": [10]}
    small = from_arrays(arrays, tmp_path / "s.gnn")
    large = [
        splits_of(
            from_kronecker(
                small, tmp_path / f"{seed}.gnn", factor=2, split_fractions=shares, seed=seed
            )
        )
        for seed in (0, 1)
    ]
    assert large[0] != large[1]
    assert [len(ids) for ids in large[0].values()] == [14, 4, 2]
    words = ["convert", "planted-types", str(tmp_path / "t.gnn"), "--papers", "100"]
    assert main([*words, "--split-fractions", "paper=0.8,0.1,0.1"]) == 2
    assert "leave out --split-fractions, or the splits" in capsys.readouterr().err
    assert main([*words, "--split-fractions", "author=0.8,0.1,0.1"]) == 0
    assert len(splits_of(tmp_path / "t.gnn", "author")["train"]) == 40


def test_a_missing_split_names_the_ways_to_one(tmp_path: Path) -> None:
    store = from_arrays({"edge_index": [[0], [1]]}, tmp_path / "o.gnn")
    words = r"'train'; the store's splits: none.*input_nodes=.*train_mask.*--splits.*"
    with pytest.raises(NotFoundError, match=words + r"--split-fractions \[TYPE=\]"):
        gnnstore.NeighborLoader(store, [2], "train")
