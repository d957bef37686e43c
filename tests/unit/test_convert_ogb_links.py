"""OGB's link-property data sets: a store holds exactly what the files do."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import gnnstore
from gnnstore.converters import ConvertOptions, from_ogb
from gnnstore.converters.datasets.ogb.splits import open_link_splits
from gnnstore.errors import BudgetError, InputError, NotFoundError
from gnnstore.pipeline.check import verify
from tests.support.effort import choose
from tests.support.published import write_csv_gz

N, E, L = 60, 400, 24
Splits = dict[str, dict[str, npt.NDArray[Any]]]


class DataSet:
    """A small data set of one of OGB's forms: the edges of raw/, their attributes, the splits."""

    def __init__(self, form: str) -> None:
        rng = np.random.default_rng(7)
        edges = rng.integers(0, N, (E + 2 * L, 2))
        parts = dict(zip(("train", "valid", "test"), np.split(edges, [E, E + L]), strict=True))
        self.edges = parts["train"]
        self.attributes: dict[str, npt.NDArray[np.int64]] = {}
        relation = {name: rng.integers(0, 5, len(part)) for name, part in parts.items()}
        year = {name: rng.integers(1990, 2020, len(part)) for name, part in parts.items()}
        self.splits: Splits = {}
        for name, part in parts.items():
            source, target = part.T.copy()
            if form == "collab":
                split = {"edge": part, "weight": relation[name] + 1, "year": year[name]}
                if name != "train":
                    split["edge_neg"] = rng.integers(0, N, (100, 2))
            elif form == "citation2":
                split = {"source_node": source, "target_node": target}
                if name != "train":
                    split["target_node_neg"] = rng.integers(0, N, (L, 1000))
            else:
                split = {"head": source, "relation": relation[name], "tail": target}
                if name != "train":
                    split["head_neg"] = rng.integers(0, N, (L, 500))
                    split["tail_neg"] = rng.integers(0, N, (L, 500))
            self.splits[name] = split
        if form == "collab":
            self.attributes = {"edge_weight": relation["train"] + 1, "edge_year": year["train"]}
        if form == "wikikg2":
            self.attributes = {"edge_reltype": relation["train"]}
        # OGB's lists of edges to train on need not be in the order of the graph's.
        order = rng.permutation(E)
        self.splits["train"] = {key: value[order] for key, value in self.splits["train"].items()}

    def write(self, root: Path, layout: str = "csv", saved_as: str = "numpy") -> Path:
        raw, split = root / "raw", root / "split" / "time"
        raw.mkdir(parents=True)
        split.mkdir(parents=True)
        features = np.linspace(0, 1, N * 3, dtype=np.float32).reshape(N, 3)
        if layout == "csv":
            write_csv_gz(raw / "edge.csv.gz", self.edges)
            write_csv_gz(raw / "num-node-list.csv.gz", np.array([N]))
            write_csv_gz(raw / "num-edge-list.csv.gz", np.array([E]))
            write_csv_gz(raw / "node-feat.csv.gz", features)
            for name, values in self.attributes.items():
                write_csv_gz(raw / f"{name}.csv.gz", values)
        else:
            columns: Any = {name: values[:, None] for name, values in self.attributes.items()}
            np.savez_compressed(
                raw / "data.npz",
                edge_index=self.edges.T,
                num_nodes_list=np.array([N]),
                num_edges_list=np.array([E]),
                node_feat=features,
                **columns,
            )
        if saved_as == "one file":
            torch.save(self.splits, split / "split_dict.pt")
        for name, arrays in self.splits.items():
            if saved_as == "npz":
                content: Any = arrays
                np.savez(split / f"{name}.npz", **content)
            elif saved_as == "tensors":
                tensors = {key: torch.from_numpy(values) for key, values in arrays.items()}
                torch.save(tensors, split / f"{name}.pt")
            elif saved_as != "one file":
                is_archive = saved_as == "numpy"
                path = split / f"{name}.pt"
                torch.save(arrays, path, _use_new_zipfile_serialization=is_archive)
        return root


def check(store: gnnstore.GraphStore, data: DataSet, *, names: tuple[str, ...]) -> None:
    assert tuple(store.edge_splits) == names
    words = {"weight": "edge_weight", "year": "edge_year", "relation": "edge_reltype"}
    for name in names:
        given, split = data.splits[name], store.edge_splits[name]
        pairs = [("source_node", "target_node"), ("head", "tail")]
        columns = [[given[end] for end in pair] for pair in pairs if pair[0] in given]
        ends = np.stack(columns[0], axis=1) if columns else given["edge"]
        np.testing.assert_array_equal(split.edge_index.T, ends)
        for key, found in {
            "edge_neg": None if split.negative_edges is None else split.negative_edges.T,
            "head_neg": split.source_negatives,
            "tail_neg" if "tail_neg" in given else "target_node_neg": split.target_negatives,
        }.items():
            assert (found is None) == (key not in given)
            if found is not None:
                np.testing.assert_array_equal(found, given[key])
        expected = {words[key]: values for key, values in given.items() if key in words}
        assert split.attributes.keys() == expected.keys()
        for attribute, values in expected.items():
            own = store.edge_attribute(attribute)
            found = split.attributes[attribute]
            assert (found.dtype, found.shape[1:]) == (own.dtype, own.shape[1:])
            np.testing.assert_array_equal(found.read(), values[:, None])


FORMS = ("collab", "citation2", "wikikg2")


@pytest.mark.parametrize(
    ("form", "layout", "saved_as"),
    choose(
        [
            ("collab", "csv", "tensors"),
            ("citation2", "binary", "numpy"),
            ("wikikg2", "csv", "numpy"),
        ],
        [*product(FORMS, ["csv", "binary"], ["numpy", "tensors"])],
    ),
)
def test_a_data_set(tmp_path: Path, form: str, layout: str, saved_as: str) -> None:
    data = DataSet(form)
    root = data.write(tmp_path / "data", layout, saved_as)
    output = from_ogb(root, tmp_path / "a.gnn")
    store = gnnstore.open(output)
    np.testing.assert_array_equal(store.edge_index.tensor().T, data.edges)
    for name, values in data.attributes.items():
        attribute = getattr(store, name).tensor()
        assert attribute.dtype == torch.int64
        np.testing.assert_array_equal(attribute, values[:, None])
    assert not store.splits
    # The edges of the graph are those to train on, though in another order.
    assert store.edge_splits.has_message_train
    check(store, data, names=("valid", "test"))
    assert verify(output, level="full").ok
    spec = store.schema.edge.splits["test"].source
    assert spec.dtype == "int32"


@pytest.mark.parametrize("saved_as", [*choose([], ["before 1.6"]), "npz", "one file"])
def test_other_ways_to_save_the_splits(tmp_path: Path, saved_as: str) -> None:
    data = DataSet("wikikg2")
    root = data.write(tmp_path / "data", saved_as=saved_as)
    store = gnnstore.open(from_ogb(root / "raw", tmp_path / "a.gnn"))
    check(store, data, names=("valid", "test"))


@pytest.mark.parametrize("why", ["inverse", *choose([], ["subset", "weight"]), "other"])
def test_edges_to_train_on_that_are_not_the_graph(tmp_path: Path, why: str) -> None:
    data = DataSet("collab")
    if why == "subset":
        data.splits["train"] = {key: value[:-5] for key, value in data.splits["train"].items()}
    if why == "other":
        data.splits["train"]["edge"][0] = (data.splits["train"]["edge"][0] + 1) % N
    if why == "weight":
        data.splits["train"]["weight"][0] += 1
    root = data.write(tmp_path / "data")
    output = from_ogb(root, tmp_path / "a.gnn", add_inverse_edge=why == "inverse")
    store = gnnstore.open(output)
    assert store.num_edges > E if why == "inverse" else store.num_edges == E
    check(store, data, names=("train", "valid", "test"))
    loader = gnnstore.LinkNeighborLoader(
        store, [4], edge_label_index="train", edge_label_attrs=("edge_year",), batch_size=8
    )
    batch = next(iter(loader))
    train = data.splits["train"]
    found = batch.n_id[batch.edge_label_index].T.numpy()
    np.testing.assert_array_equal(found, train["edge"][:8])
    np.testing.assert_array_equal(batch.label_edge_year[:, 0], train["year"][:8])


def test_weights_to_train_on_that_are_no_whole_numbers(tmp_path: Path) -> None:
    data = DataSet("collab")
    weights = data.splits["train"]["weight"].astype(np.float64)
    weights[0] += 0.7  # the whole number of the graph, were it rounded down
    data.splits["train"]["weight"] = weights
    store = gnnstore.open(from_ogb(data.write(tmp_path / "data"), tmp_path / "a.gnn"))
    split = store.edge_splits["train"]
    np.testing.assert_array_equal(split.attributes["edge_weight"].read()[:, 0], weights)


@pytest.mark.long("tests/crash resumes conversions")
def test_an_interrupted_conversion_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataSet("citation2")
    root = data.write(tmp_path / "data")
    whole = gnnstore.open(from_ogb(root, tmp_path / "whole.gnn"))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr("gnnstore.formats.store.store.StoreWriter.commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            from_ogb(root, tmp_path / "a.gnn")
    output = from_ogb(root, tmp_path / "a.gnn", options=ConvertOptions(resume=True))
    assert gnnstore.open(output).reader.uuid == whole.reader.uuid
    check(gnnstore.open(output), data, names=("valid", "test"))


class Trap:
    """Of a class that no file of OGB's has."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("a pickle has run",))


@pytest.mark.parametrize(
    ("form", "name", "change", "message"),
    [
        ("collab", "valid", {"edge": np.zeros((L, 3), np.int64)}, "edge: has shape [24, 3], expec"),
        (
            "collab",
            "test",
            {"edge_neg": np.zeros(5, np.int64)},
            "edge_neg: has shape [5], expected",
        ),
        (
            "collab",
            "test",
            {"edge": np.full((L, 2), N)},
            "test.pt: edge: id 60 at position 0 is ou",
        ),
        ("collab", "test", {"edge": np.zeros((L, 2))}, "edge: is float64 [24]; expected integers"),
        (
            "collab",
            "test",
            {"year": np.zeros(L - 1)},
            "year: has 23 rows, but the graph has 24 edg",
        ),
        ("citation2", "valid", {"target_node": np.arange(L + 1)}, "target_node: has 25 rows, but"),
        ("citation2", "valid", {"target_node_neg": np.zeros((3, 9), int)}, "neg: has 3 rows, but"),
        (
            "citation2",
            "valid",
            {"target_node_neg": np.full((L, 9), -1)},
            "target_node_neg: id -1 at",
        ),
        (
            "wikikg2",
            "valid",
            {"head_neg": np.arange(L)},
            "head_neg: is int64 [24]; expected integer",
        ),
        (
            "wikikg2",
            "valid",
            {"tail": None},
            "valid.pt: expected arrays called edge, source_node and",
        ),
        (
            "wikikg2",
            "train",
            {"tail": Trap()},
            "the name __builtin__.print. Nothing else in a pickle",
        ),
        ("wikikg2", "train", {"head_type": ["disease"] * 3}, "found the opcode EMPTY_LIST"),
        (
            "wikikg2",
            "train",
            {"head": {"a": np.arange(3)}},
            "train.pt: head of train is not an array",
        ),
        ("collab", "valid", {"edge": np.zeros((0, 2), int)}, "the split 'valid' has no edges"),
    ],
)
def test_splits_that_are_wrong(  # noqa: PLR0917 - fixtures and parameters
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
    name: str,
    change: dict[str, Any],
    message: str,
) -> None:
    data = DataSet(form)
    root = data.write(tmp_path / "data")
    arrays = {**data.splits[name], **change}
    torch.save({key: value for key, value in arrays.items() if value is not None},
               root / "split" / "time" / f"{name}.pt")  # fmt: skip
    with pytest.raises(InputError) as caught:
        from_ogb(root, tmp_path / "a.gnn")
    assert message in str(caught.value)
    assert f"{name}.pt" in str(caught.value)
    assert capsys.readouterr().out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_memory_for_files_that_are_read_whole(tmp_path: Path) -> None:
    root = DataSet("citation2").write(tmp_path / "data")
    train, valid, test = (
        (root / "split" / "time" / f"{name}.pt").stat().st_size
        for name in ("train", "valid", "test")
    )
    _, taken = open_link_splits(root / "split" / "time", train + valid + 4 * test)
    assert taken == train + valid + test
    options = ConvertOptions(memory_bytes=train + valid + 4 * test - 1)
    with pytest.raises(
        BudgetError, match=r"(?s)1 byte too few.* of test\.pt, which is read whole"
    ) as said:
        from_ogb(root, tmp_path / "a.gnn", options=options)
    path = root / "split" / "time" / "test.pt"
    assert f"save the arrays of {path} with numpy.savez as test.npz" in str(said.value)


def test_files_that_are_missing_or_cut_off(tmp_path: Path) -> None:
    root = DataSet("wikikg2").write(tmp_path / "data")
    split = root / "split" / "time"
    whole = (split / "valid.pt").read_bytes()
    (split / "valid.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"valid.pt: expected a dict of arrays .*damaged archive"):
        from_ogb(root, tmp_path / "a.gnn")
    (split / "valid.pt").unlink()
    with pytest.raises(NotFoundError, match=r"time: valid.pt is not there, only train.pt, test.pt"):
        from_ogb(root, tmp_path / "a.gnn")
    (split / "valid.pt").write_bytes(whole)
    relations = root / "raw" / "edge_reltype.csv.gz"
    relations.write_bytes(relations.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"edge_reltype.csv.gz: .*gzip"):
        from_ogb(root, tmp_path / "a.gnn")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
