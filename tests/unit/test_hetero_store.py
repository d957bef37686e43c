"""Stores of several types: what `from_pyg` writes of a `HeteroData`, and what a store returns."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.data.feature_store import AttrView

import gnnstore
from gnnstore.converters import ConvertOptions, HeteroGraphWriter, from_pyg
from gnnstore.converters.edges import builder
from gnnstore.errors import InputError, NoSplitError, UsageError
from gnnstore.formats import StoreReader
from gnnstore.graph.lazy import LazyTensor
from tests.support.effort import choose
from tests.support.hetero import (
    AT,
    CITES,
    TEACHES,
    WRITES,
    WRITTEN_BY,
    hetero_store,
    make_hetero,
)
from tests.support.stores import assert_same_files


def assert_equal_data(found: HeteroData, expected: HeteroData) -> None:
    """Check that two graphs have the same types and attributes, in the same order."""
    assert found.metadata() == expected.metadata()
    for ours, theirs in zip(found.stores, expected.stores, strict=True):
        names = list(theirs.keys())
        assert sorted(ours.keys()) == sorted(names)
        for name in names:
            if isinstance(theirs[name], torch.Tensor):
                assert torch.equal(ours[name], theirs[name]), name
                assert ours[name].dtype == theirs[name].dtype
            else:
                assert ours[name] == theirs[name]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    """Return the store of `make_hetero()`, which no test changes."""
    return hetero_store(tmp_path_factory.mktemp("example") / "a.gnn")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "counts",
    [
        {"paper": 40, "author": 30, "institution": 5},
        {"author": 0, "paper": 7, "institution": 0},
        *choose(
            [],
            [
                {"institution": 9, "author": 1, "paper": 1},
                {"paper": 5, "author": 30, "institution": 60},
            ],
        ),
    ],
)
def test_to_pyg_is_the_source(tmp_path: Path, seed: int, counts: dict[str, int]) -> None:
    data = make_hetero(seed, counts=counts)
    store = hetero_store(tmp_path / "a.gnn", data)
    assert not list(store.reader.meaningless())
    assert_equal_data(store.to_pyg(), data)
    # The columns themselves, once more without to_pyg.
    for edge_type in store.edge_types:
        csc = store.topology().columns(edge_type)
        assert (csc.num_src, csc.num_nodes) == (counts[edge_type[0]], counts[edge_type[2]])
        targets = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
        pairs = data[edge_type].edge_index.numpy()
        assert sorted(zip(csc.indices, targets, strict=True)) == sorted(map(tuple, pairs.T))


@pytest.mark.parametrize(
    "wanted", [("writes", "cites"), ("paper__cites__paper",), *choose([], [("all",)])]
)
def test_reverse_types(tmp_path: Path, wanted: tuple[str, ...]) -> None:
    data = make_hetero(degrees={CITES: 5, WRITES: 3, AT: 4})
    store = hetero_store(tmp_path / "a.gnn", data, reverse=wanted)
    reverse = {
        "all": ["rev_cites", "rev_writes", "rev_at"],
        "writes": ["rev_writes", "rev_cites"],
    }.get(wanted[0], ["rev_cites"])
    assert [edge_type[1] for edge_type in store.edge_types[3:]] == reverse
    expected = make_hetero(degrees={CITES: 5, WRITES: 3, AT: 4})
    for edge_type in store.edge_types[3:]:
        forward = (edge_type[2], edge_type[1].removeprefix("rev_"), edge_type[0])
        for name, value in data[forward].items():
            expected[edge_type][name] = value.flip(0) if name == "edge_index" else value
    assert_equal_data(store.to_pyg(), expected)
    assert not list(store.reader.meaningless())


def test_all_leaves_out_what_has_a_reverse(tmp_path: Path) -> None:
    store = hetero_store(tmp_path / "a.gnn", reverse="all")
    assert [edge_type[1] for edge_type in store.edge_types] == [
        *("cites", "writes", "rev_writes", "teaches", "at", "rev_cites", "rev_teaches", "rev_at")
    ]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("cite", r"no such relation \(did you mean 'cites'\?\); there are: paper__cites__paper, "),
        ("writes", r"has edges of type \('paper', 'rev_writes', 'author'\) already; leave it out"),
    ],
)
def test_reverse_types_that_cannot_be(tmp_path: Path, wanted: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        hetero_store(tmp_path / "a.gnn", reverse=wanted)
    assert not list(tmp_path.iterdir())


def test_types_of_a_store(tmp_path: Path) -> None:
    data = make_hetero()
    store = hetero_store(tmp_path / "a.gnn", data, time_attr=["edge_time"], weight_attr=["w"])
    assert store.node_types == ("paper", "author", "institution")
    assert store.edge_types == (CITES, WRITES, WRITTEN_BY, TEACHES, AT)
    assert store.metadata() == data.metadata()
    papers = store["paper"]
    ids = torch.tensor([3, 3, 0])
    for rows in (papers.x[ids], store["paper", "x"][ids], store["paper", "x", ids]):
        assert torch.equal(rows, data["paper"].x[ids])
    assert torch.equal(papers.features[ids], data["paper"].x[ids])
    assert (papers.num_nodes, store["institution"].num_nodes) == (60, 6)
    assert np.array_equal(papers.labels, data["paper"].y)
    assert np.array_equal(papers.splits["val"], data["paper"].val_mask.nonzero().flatten())
    assert papers.original_ids is None
    assert papers.original_names is None
    assert papers.ids_of([1]).tolist() == [1]
    cites = store["paper", "cites", "paper"]
    assert torch.equal(cites.edge_index.tensor(), data[CITES].edge_index)
    assert torch.equal(cites.edge_attr[torch.tensor([5, 0])], data[CITES].edge_attr[[5, 0]])
    assert (cites.num_edges, cites.times, cites.weights) == (300, ("edge_time",), ("w",))
    assert "edge_attr" in cites
    assert "y" not in cites
    assert ("paper" in store, CITES in store, "venue" in store) == (True, True, False)
    assert "num_nodes={'paper': 60, 'author': 35, 'institution': 6}" in repr(store)
    assert repr(store["author"]).startswith("NodeView('author', num_nodes=35, attributes=(")
    again = pickle.loads(pickle.dumps(cites))  # noqa: S301
    assert torch.equal(again.edge_index.tensor(), data[CITES].edge_index)
    assert pickle.loads(pickle.dumps(papers)).num_nodes == 60  # noqa: S301


def test_data_of_all_types_by_name(example: gnnstore.GraphStore) -> None:
    data, store = make_hetero(), example
    for name in ("x", "edge_index", "edge_attr"):
        by_type, expected = getattr(store, f"{name}_dict"), getattr(data, f"{name}_dict")
        assert by_type.keys() == expected.keys()
        for of, values in by_type.items():
            assert isinstance(values, LazyTensor)
            assert torch.equal(values.tensor(), expected[of])
    assert store.num_nodes_dict == data.num_nodes_dict
    for ours, theirs in ((store.node_items(), data.node_items()),):
        assert [of for of, _ in ours] == [of for of, _ in theirs]
        for (_, own), (_, like) in zip(ours, theirs, strict=True):
            assert own.num_features == own.num_node_features == like.num_features
    assert [(of, edges.num_edges) for of, edges in store.edge_items()] == [
        (of, edges.num_edges) for of, edges in data.edge_items()
    ]
    assert store["author", "paper"].type == WRITES
    assert isinstance(store["paper", "x"], AttrView)
    with pytest.raises(UsageError, match=r"'x' cannot be deleted; .*attributes=\['y'\]"):
        del store["paper"].x
    with pytest.raises(UsageError, match=r"'edge_attr' cannot be deleted; .*attributes=\['y'\]"):
        del store[CITES].edge_attr
    store["paper"].x2 = torch.arange(60)
    assert store["paper"].x2[torch.tensor([7])].tolist() == [7]
    del store["paper"].x2


@pytest.mark.parametrize(
    ("ask", "meant"),
    [
        (lambda store: store["papr"], "'paper'"),
        (lambda store: store["paper"].train_msk, "'train_mask'"),
        (lambda store: store["paper"].num_feature, "'num_features'"),
        (lambda store: store[CITES].edge_atr, "'edge_attr'"),
        (lambda store: store["author", "papr"], r"\('author', 'paper'\)"),
        (lambda store: store["paper", "cite", "paper"], r"\('paper', 'cites', 'paper'\)"),
        (lambda store: store.x_dct, "'x_dict'"),
        (lambda store: store.metadat, "'metadata'"),
    ],
)
def test_a_misspelt_name_is_not_a_view(example: gnnstore.GraphStore, ask: Any, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"did you mean {meant}"):
        ask(example)


def test_edge_types_by_their_ends_alone(tmp_path: Path) -> None:
    """An attribute of the name comes first; two types with the same ends are named in full."""
    data = HeteroData()
    data["a"].x, data["a"].b, data["b"].x = torch.rand(3, 2), torch.arange(3), torch.rand(2, 2)
    data["a", "to", "b"].edge_index = torch.tensor([[0, 2], [1, 0]])
    for relation in ("likes", "knows"):
        data["b", relation, "a"].edge_index = torch.tensor([[0], [1]])
    store = gnnstore.open(from_pyg(data, tmp_path / "a.gnn"))
    assert store["a", "b"][torch.tensor([2])].tolist() == [2]
    with pytest.raises(AttributeError, match=r"several edge types.*'likes'.*'knows'"):
        _ = store["b", "a"]


def test_what_a_type_does_not_have(example: gnnstore.GraphStore) -> None:
    store = example
    with pytest.raises(gnnstore.NotFoundError, match="no institution attribute 'x'; there are"):
        _ = store["institution"].features
    with pytest.raises(NoSplitError, match="no split 'train'; the store's splits: none"):
        _ = store["author"].splits["train"]
    with pytest.raises(AttributeError, match=r"attributes of their own: write store\['paper'\]\.x"):
        _ = store.x
    with pytest.raises(AttributeError, match=r"\('author', 'at', 'institution'\) have no 'x'"):
        _ = store[AT].x
    with pytest.raises(UsageError, match=r"3 node types \(paper, author, institution\)"):
        _ = store.num_nodes
    assert store.name == "example"


def test_pygs_protocols_round_trip(example: gnnstore.GraphStore, tmp_path: Path) -> None:
    data, store = make_hetero(), example
    again = gnnstore.open(from_pyg((store, store), tmp_path / "b.gnn"))
    assert again.edge_types == store.edge_types
    for edge_type in store.edge_types:
        ours, theirs = (s.topology().columns(edge_type) for s in (store, again))
        assert np.array_equal(ours.indices, theirs.indices)
        assert np.array_equal(ours.indptr, theirs.indptr)
    for name in ("paper", "author"):
        assert torch.equal(again[name].x[torch.arange(5)], data[name].x[:5])


@pytest.mark.filterwarnings("ignore:There exist type names")
def test_types_whose_names_could_collide(tmp_path: Path) -> None:
    """No two types share a directory; and `x` of each type is its own."""
    data = HeteroData()
    names = ["a", "a_", "_a", "a__b", "b", "_b", "%5F", "a/b", "é", "x" * 150, "zarr.json"]
    for value, name in enumerate(names):
        data[name].x = torch.full((2, 3), float(value))
    few = choose(names[:2], names)  # all of which but the first could be what joins two others
    pairs = list(dict.fromkeys([*itertools.product(few, few), *itertools.pairwise(names)]))
    num_types = 0
    for number, (source, target) in enumerate(pairs):
        for relation in ("to", "b__c")[: 1 + (max(map(len, (source, target))) < 5)]:
            num_types += 1
            edge_index = torch.tensor([[number & 1], [number >> 1 & 1]])
            data[source, relation, target].edge_index = edge_index
    store = hetero_store(tmp_path / "a.gnn", data)
    assert len(store.edge_types) == num_types
    assert_equal_data(store.to_pyg(), data)


def test_as_many_nodes_as_edges(tmp_path: Path) -> None:
    data = HeteroData()
    for name in ("a", "b"):
        data[name].x = torch.rand(4, 4)
        data[name].weight = torch.rand(4)
    data["a", "to", "b"].edge_index = torch.tensor([[3, 2, 1, 0], [0, 0, 3, 3]])
    data["a", "to", "b"].weight = torch.rand(4)
    assert_equal_data(hetero_store(tmp_path / "a.gnn", data).to_pyg(), data)


@pytest.mark.parametrize(
    ("end", "value", "message"),
    [
        (
            0,
            35,
            r"edges of type \('author', 'writes', 'paper'\): id of the source \('author'\) 35",
        ),
        (
            1,
            60,
            r"id of the target \('paper'\) 60 at position 7 is outside \[0, 60\) of 60 nodes",
        ),
        (1, -1, r"id of the target \('paper'\) -1 at position 7 is outside"),
    ],
)
def test_edges_out_of_range(tmp_path: Path, end: int, value: int, message: str) -> None:
    data = make_hetero()
    data[WRITES].edge_index[end, 7] = value
    with pytest.raises(InputError, match=message):
        hetero_store(tmp_path / "a.gnn", data)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("of", "name", "value", "message"),
    [
        (
            "paper",
            "y",
            torch.rand(3),
            r"data\['paper'\]\.y: has shape \[3\], and there are 60 nodes;",
        ),
        (
            WRITES,
            "edge_attr",
            torch.rand(7, 2),
            r"data\[\('author', 'writes', 'paper'\)\]\.edge_attr: has shape \[7, 2\], and",
        ),
        ("paper", "foo", float("nan"), r"data\['paper'\]\.foo: a float like this cannot be stored"),
        (WRITES, "edge_index", torch.zeros(3, 1).long(), r"has shape \[3, 1\], expected \[2, E\]"),
        ("venue", "x", None, r"data\['venue'\] has no number of nodes"),
    ],
)
def test_attributes_that_cannot_be_stored(
    tmp_path: Path, of: Any, name: str, value: Any, message: str
) -> None:
    data = make_hetero()
    store = data[of]
    if value is not None:
        store[name] = value
    with pytest.raises(InputError, match=message):
        hetero_store(tmp_path / "a.gnn", data)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options",
    [
        {"undirected": True},
        {"self_loops": "add"},
    ],
)
def test_rules_for_one_type(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="is for graphs of one node type and one edge type"):
        hetero_store(tmp_path / "a.gnn", **options)
    assert not list(tmp_path.iterdir())


def test_features_of_each_type_are_cast(tmp_path: Path) -> None:
    data = make_hetero()
    store = hetero_store(tmp_path / "a.gnn", data, feature_dtype="float16")
    for name in ("paper", "author"):
        assert torch.equal(store[name].x[torch.arange(9)], data[name].x[:9].half())


def test_a_small_budget_gives_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edges that do not fit are sorted on disk, with the same bytes."""
    monkeypatch.setattr(builder, "MIN_SPILL_BYTES", 2**18)
    counts = {"a": 3000, "b": 7}
    degrees = {("a", "to", "b"): 3_000, ("b", "to", "a"): choose(1, 10)}
    data = make_hetero(counts=counts, degrees=degrees, widths={})
    options = {"time_attr": ["edge_time"], "weight_attr": ["w"], "reverse": "all"}
    given: dict[str, Any] = {"autospec": True, "side_effect": builder.EdgeBuilder._spill}
    with mock.patch.object(builder.EdgeBuilder, "_spill", **given) as spill:
        small = hetero_store(tmp_path / "a.gnn", data, **options, memory_bytes=2**20)
    assert spill.called
    large = hetero_store(tmp_path / "b.gnn", data, **options)
    assert_same_files(small.path, large.path)


def test_the_writer_by_type(tmp_path: Path) -> None:
    counts = {"user": 3, "item": 5}
    buys = ("user", "buys", "item")
    with HeteroGraphWriter(
        tmp_path / "a.gnn", counts, kind="test", options=ConvertOptions(reverse=("buys",))
    ) as writer:
        writer.set_node_attribute("user", "x", np.ones((3, 2), np.float32))
        writer.set_split("user", "val", np.array([2, 0]))
        writer.set_original_ids("item", np.array([50, 40, 30, 20, 10]))
        chunks = [(np.array([0, 2]), np.array([4, 4])), (np.array([1]), np.array([0]))]
        writer.read_edges(buys, iter(chunks), where="my edges")
        with pytest.raises(InputError, match=r"edges of type \('user', 'buys', 'item'\) were giv"):
            writer.read_edges(buys, chunks, where="my edges")
        with pytest.raises(InputError, match=r"there is no node type 'shop'; there are: 'user', "):
            writer.read_edges(("user", "at", "shop"), chunks, where="my edges")
        with pytest.raises(InputError, match="no node type 'shop'"):
            writer.set_node_attribute("shop", "x", np.ones((3, 2)))
        path = writer.commit()
    store = gnnstore.open(path)
    original = store["item"].original_ids
    assert original is not None
    assert original.tolist() == [50, 40, 30, 20, 10]
    assert store["item"].ids_of([10]).tolist() == [4]
    assert store["user"].splits["valid"].tolist() == [2, 0]
    assert store[buys].edge_index.tolist() == [[0, 2, 1], [4, 4, 0]]
    assert store["item", "rev_buys", "user"].edge_index.tolist() == [[4, 4, 0], [0, 2, 1]]
    data = store.to_pyg()
    assert (data["item"].num_nodes, "num_nodes" in data["item"]) == (5, True)
    assert "num_nodes" not in data["user"]


def test_no_types_at_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a graph without a node type cannot be stored"):
        HeteroGraphWriter(tmp_path / "a.gnn", {}, kind="test")


def test_an_older_reader_ignores_what_it_does_not_know(
    example: gnnstore.GraphStore, tmp_path: Path
) -> None:
    """Orders and sums change neither version nor features, and no array that was there before."""
    plain = example.reader
    more = hetero_store(tmp_path / "b.gnn", time_attr=["time"], weight_attr=["w"]).reader
    assert more.manifest.reader_features == plain.manifest.reader_features == ()
    before = {entry.path: entry.size_bytes for entry in plain.manifest.files}
    after = {entry.path: entry.size_bytes for entry in more.manifest.files}
    assert before.items() <= after.items()
    new = {path.split("/")[2] for path in after.keys() - before.keys()}
    assert new == {"order", "weight_sums"}
    for path in before:
        assert (more.path / path).read_bytes() == (plain.path / path).read_bytes()
    assert isinstance(StoreReader.open(more.path), StoreReader)


def test_a_finished_type_is_not_read_again(tmp_path: Path) -> None:
    """An interrupt in the second type's edges: the first type's are taken as they are."""
    data = make_hetero(degrees={CITES: 5, WRITES: 3})

    def pairs(edge_type: Any, ends: str) -> Any:
        if ends == "none":
            raise AssertionError("read again")
        yield tuple(data[edge_type].edge_index.numpy())
        if ends == "interrupt":
            raise KeyboardInterrupt

    def convert(output: Path, first: str, second: str, **options: Any) -> Path:
        counts = {name: data[name].num_nodes for name in data.node_types}
        with HeteroGraphWriter(
            output,
            counts,
            kind="test",
            source={"parameters": {}},
            options=ConvertOptions(reverse=("cites",), **options),
        ) as writer:
            writer.read_edges(CITES, pairs(CITES, first), where="first")
            writer.read_edges(WRITES, pairs(WRITES, second), where="second")
            return writer.commit()

    whole = convert(tmp_path / "whole.gnn", "whole", "whole")
    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "a.gnn", "whole", "interrupt")
    convert(tmp_path / "a.gnn", "none", "whole", resume=True)
    assert_same_files(tmp_path / "a.gnn", whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gnn", "whole.gnn"]
