"""Edges to predict, as a store keeps them: written, read, verified, described, loaded."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore.converters import ConvertOptions, split_edges
from gnnstore.converters.inputs.source import MemoryArray
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.errors import CorruptStoreError, InputError, NoSplitError, NotFoundError, UsageError
from gnnstore.formats import StoreReader
from gnnstore.pipeline.check import verify
from gnnstore.testing.graphs import write_store
from gnnstore.tools.cli import main
from tests.support.effort import choose
from tests.support.hostile import reseal

NUM_NODES = 10
VALID: dict[str, Any] = {
    "source": np.array([1, 2, 3]),
    "target": np.array([4, 5, 9]),
    "edge_id": np.array([7, 30, 8]),
    "source_negatives": np.array([[0, 1], [2, 3], [4, 5]]),
    "target_negatives": np.array([[6], [7], [9]]),
    "negative_edges": (np.array([0, 1, 2, 3]), np.array([5, 6, 7, 8])),
    "attributes": {"year": np.array([2017, 2018, 2019], np.int16), "edge_attr": np.eye(3)},
}


def write(path: Path, /, **splits: dict[str, Any]) -> Path:
    with GraphWriter(path, kind="test", num_nodes=NUM_NODES) as writer:
        writer.add_edges(np.arange(9), np.arange(1, 10), {"year": np.arange(9, dtype=np.int16)})
        for name, given in splits.items():
            writer.set_edge_split(name, **given)
        return writer.commit()


def split_of(**changes: Any) -> dict[str, Any]:
    return {**VALID, **changes}


def test_a_split_comes_back_as_it_was_written(tmp_path: Path) -> None:
    as_sources = {n: MemoryArray(n, v) for n, v in VALID.items() if isinstance(v, np.ndarray)}
    path = write(tmp_path / "a.gnn", val=VALID, test={**VALID, **as_sources})
    assert verify(path, "full").ok
    splits = gnnstore.open(path).edge_splits
    assert list(splits) == ["valid", "test"]
    for split in splits.values():
        assert len(split) == 3
        for name in ("source", "target", "source_negatives", "target_negatives"):
            assert getattr(split, name).read().dtype == np.int32
            np.testing.assert_array_equal(getattr(split, name), VALID[name])
        np.testing.assert_array_equal(split.edge_ids, VALID["edge_id"])
        np.testing.assert_array_equal(split.edge_index, [VALID["source"], VALID["target"]])
        np.testing.assert_array_equal(split.negative_edges, VALID["negative_edges"])
        for name, values in VALID["attributes"].items():
            np.testing.assert_array_equal(split.attributes[name], values)
            assert split.attributes[name].read().dtype == values.dtype


def test_what_a_split_has_not_is_none(tmp_path: Path) -> None:
    ends = {"source": VALID["source"], "target": VALID["target"]}
    split = gnnstore.open(write(tmp_path / "a.gnn", valid=ends)).edge_splits["val"]
    assert split.edge_ids is split.source_negatives is split.target_negatives is None
    assert split.negative_edges is None
    assert split.attributes == {}


def test_a_store_without_splits_does_not_mention_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gnn")
    root = json.loads((path / "zarr.json").read_text())
    assert "splits" not in root["attributes"]["gnnstore"]["schema"]["edge_types"][0]
    assert not gnnstore.open(path).edge_splits


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": np.array([1, 2, 10])}, "10 at position 2 is outside"),
        ({"target_negatives": np.array([[0], [-1], [0]])}, "-1 at position 1 is outside"),
        ({"negative_edges": (np.array([0]), np.array([5, 6]))}, "has 2 rows"),
        ({"target": np.array([4, 5])}, "has 2 rows"),
        ({"source_negatives": np.array([0, 1, 2])}, "expected integers with 2 axes"),
        ({"source": np.array([0.0, 1, 2])}, "expected integers with 1 axis"),
        ({"attributes": {"year": np.arange(2)}}, "has 2 rows"),
        ({"source": np.empty(0, int), "target": np.empty(0, int)}, "has no edges"),
    ],
)
def test_bad_splits_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        write(tmp_path / "a.gnn", valid=split_of(**changes))
    assert not list(tmp_path.iterdir())


def test_a_split_is_given_once_and_after_the_number_of_nodes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="was given already"):
        write(tmp_path / "a.gnn", valid=VALID, val=VALID)
    with (
        pytest.raises(UsageError, match="set the number of nodes before"),
        GraphWriter(tmp_path / "b.gnn", kind="test") as writer,
    ):
        writer.set_edge_split("valid", **VALID)


@pytest.mark.parametrize(
    "part", ["source", *choose([], ["target_negatives", "edge_id"]), "attrs/year"]
)
def test_verify_finds_flipped_bytes(tmp_path: Path, part: str) -> None:
    path = write(tmp_path / "a.gnn", valid=VALID)
    (shard,) = (path / "edge_splits/node__to__node/valid" / part).glob("c.0*")
    data = bytearray(shard.read_bytes())
    data[0] ^= 1
    shard.write_bytes(data)
    assert not verify(path, "full").ok


@pytest.mark.parametrize(
    ("part", "value"), [("source", 10), ("source_negatives", -1), ("negative_target", 99)]
)
def test_ids_that_are_no_nodes_are_corruption(tmp_path: Path, part: str, value: int) -> None:
    path = write(tmp_path / "a.gnn", valid=VALID)
    (shard,) = (path / "edge_splits/node__to__node/valid" / part).glob("c.0*")
    data = bytearray(shard.read_bytes())
    data[:4] = np.int32(value).tobytes()
    shard.write_bytes(data)
    reseal(path)
    problems = verify(path, "full").problems
    assert [f"is node {value}, outside [0, 10)" in problem.message for problem in problems] == [
        True
    ]
    split = gnnstore.open(path).edge_splits["valid"]
    if part != "source_negatives":
        with pytest.raises(CorruptStoreError, match="gnnstore verify"):
            _ = split.edge_index if part == "source" else split.negative_edges


@pytest.mark.parametrize("part", ["source", "edge_id", "negative_source"])
def test_a_schema_that_contradicts_itself_is_refused(tmp_path: Path, part: str) -> None:
    spec = StoreReader.open(write(tmp_path / "a.gnn", valid=VALID)).schema.edge.splits["valid"]
    wrong = replace(getattr(spec, part), shape=(2,))
    with pytest.raises(CorruptStoreError, match="expected"):
        replace(spec, **{part: wrong}).check("a")


def test_inspect_describes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.gnn", valid=VALID)
    assert main(["inspect", str(path), "--json"]) == 0
    (edge,) = json.loads(capsys.readouterr().out)["graph"]["edge_types"]
    assert edge["splits"] == {"valid": 3}
    assert edge["negatives"] == {
        "valid source_negatives": [3, 2],
        "valid target_negatives": [3, 1],
        "valid negative_source": [4],
        "valid negative_target": [4],
    }
    assert main(["inspect", str(path)]) == 0
    assert "valid 3" in capsys.readouterr().out


class TestLoading:
    def test_a_split_gives_the_batches_of_its_edges(self, tmp_path: Path) -> None:
        store = gnnstore.open(write(tmp_path / "a.gnn", valid=VALID))
        options: dict[str, Any] = {"batch_size": 2, "seed": 1, "neg_sampling": "binary"}
        named = gnnstore.LinkNeighborLoader(
            store, [2, 2], "val", edge_label_attrs=["year"], **options
        )
        plain = gnnstore.LinkNeighborLoader(
            store, [2, 2], store.edge_splits["valid"].edge_index, **options
        )
        years = []
        for ours, theirs in zip(named, plain, strict=True):
            for key in ("n_id", "edge_index", "edge_label_index", "edge_label", "input_id"):
                assert ours[key].tolist() == theirs[key].tolist()
            years += ours.label_year.tolist()
        assert years == [2017, 2018, 2019]
        assert named._seeds.num_bytes == plain._seeds.num_bytes
        seeds = pickle.loads(pickle.dumps(named._seeds))  # noqa: S301
        assert seeds.fingerprint() == named._seeds.fingerprint()
        assert seeds.split == "val"

    def test_train_is_the_graph_unless_there_is_one(self, tmp_path: Path) -> None:
        store = gnnstore.open(write(tmp_path / "a.gnn", valid=VALID))
        loader = gnnstore.LinkNeighborLoader(store, [], "train", edge_label_attrs=["year"])
        assert len(loader) == store.num_edges
        assert loader._seeds.edges is None
        store = gnnstore.open(write(tmp_path / "b.gnn", train=VALID))
        loader = gnnstore.LinkNeighborLoader(store, [], "train", edge_label_attrs=["edge_attr"])
        assert len(loader) == 3

    def test_labels_need_the_ids_of_all_edges(self, tmp_path: Path) -> None:
        edges = np.random.default_rng(0).integers(0, 50, (2, 200))
        edges[:, 10] = 7  # a self-loop
        path = write_store(tmp_path / "a.gnn", edges, options=ConvertOptions(self_loops="drop"))
        store = gnnstore.open(path)
        for name in ("edge_label", "input_id"):
            given: Any = {name: torch.zeros(store.num_edges, dtype=torch.int64)}
            with pytest.raises(InputError, match="others were left out of it"):
                gnnstore.LinkNeighborLoader(store, [], **given)
        shown = [batch.input_id for batch in gnnstore.LinkNeighborLoader(store, [])]
        ids = torch.cat(shown).numpy()
        found = store.topology("mmap").columns()
        np.testing.assert_array_equal(edges[0, ids], found.indices)

    def test_labels_of_a_split_graph_are_by_position(self, tmp_path: Path) -> None:
        edges = np.random.default_rng(0).integers(0, 50, (2, 200))
        whole = write_store(tmp_path / "whole.gnn", edges)
        store = gnnstore.open(split_edges(whole, tmp_path / "a.gnn", (0.5, 0.5, 0)))
        labels = torch.arange(store.num_edges) + 5
        loader = gnnstore.LinkNeighborLoader(store, [], "train", edge_label=labels)
        batches = list(loader)
        ids = torch.cat([batch.input_id for batch in batches])
        assert ids.equal(torch.arange(store.num_edges))
        assert torch.cat([batch.edge_label for batch in batches]).equal(labels)
        assert store.original_edge_ids is not None
        before = store.original_edge_ids[ids].numpy()
        np.testing.assert_array_equal(edges[0, before], store.topology("mmap").columns().indices)

    def test_errors_list_what_there_is(self, tmp_path: Path) -> None:
        store = gnnstore.open(write(tmp_path / "a.gnn", valid=VALID))
        with pytest.raises(NoSplitError, match="its edge splits: valid; its own edges are"):
            gnnstore.LinkNeighborLoader(store, [], "tset")
        with pytest.raises(NotFoundError, match="there are: year, edge_attr"):
            gnnstore.LinkNeighborLoader(store, [], "valid", edge_label_attrs=["month"])
        with pytest.raises(NoSplitError, match=r"it has no edge splits; .*split-edges"):
            gnnstore.LinkNeighborLoader(gnnstore.open(write(tmp_path / "b.gnn")), [], "train")
