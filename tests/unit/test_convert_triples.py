"""`convert triples`: text of head, relation and tail becomes a store that knows all their names."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnstore
from gnnstore.converters import ConvertOptions, from_triples, split_edges
from gnnstore.converters.inputs.text_tables import TextTable
from gnnstore.errors import BudgetError, CorruptStoreError, InputError, NotFoundError, UsageError
from gnnstore.formats.store import checks
from gnnstore.pipeline.check import verify
from tests.support.effort import choose

Triple = tuple[str, str, str]


def random_triples(count: int, seed: int, *, first: int = 0) -> list[Triple]:
    rng = np.random.default_rng(seed)
    entities = [f"/m/{'é' * (i % 3)}{i:03}" for i in range(first, first + 60)]
    relations = ["/film/actor", "_hypernym", "born in", "P31"]
    return [
        (entities[h], relations[r], entities[t])
        for h, r, t in zip(*(rng.integers(0, n, count) for n in (60, 4, 60)), strict=True)
    ]


def write(path: Path, triples: Sequence[Triple], columns: str = "hrt", mark: str = "\t") -> Path:
    order = ["hrt".index(letter) for letter in columns]
    text = "".join(mark.join(triple[i] for i in order) + "\n" for triple in triples)
    data = text.encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def triples_of(store: gnnstore.GraphStore, split: str | None = None) -> list[Triple]:
    """Return the triples of the edges, in the order of their ids, or of a split, as texts."""
    names, relations = store.original_names, store.relation_names
    assert names is not None
    assert relations is not None
    if split is None:
        index, types = store.edge_index.tensor(), store.edge_type.tensor()
    else:
        index = store.edge_splits[split].edge_index
        types = store.edge_splits[split].attributes["edge_type"].tensor()
    assert str(types.dtype) == "torch.int64"
    return [
        (names[h], relations[r], names[t])
        for (h, t), r in zip(index.T.tolist(), types.tolist(), strict=True)
    ]


SPLITS = {
    "train": random_triples(500, 1),
    "valid": random_triples(40, 2, first=30),
    "test": random_triples(30, 3, first=60),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, triples in SPLITS.items():
        write(tmp_path / "kg" / f"{name}.txt", triples)
    return tmp_path / "kg"


def check(output: Path, ends: str = "ht") -> gnnstore.GraphStore:
    store = gnnstore.open(output)
    assert triples_of(store) == SPLITS["train"]
    assert list(store.edge_splits) == ["valid", "test"]
    for name in ("valid", "test"):
        assert triples_of(store, name) == SPLITS[name]
    order = ["hrt".index(end) for end in ends]
    seen = [triple[i] for triples in SPLITS.values() for triple in triples for i in order]
    assert list(store.original_names or ()) == list(dict.fromkeys(seen))
    seen = [relation for triples in SPLITS.values() for _, relation, _ in triples]
    assert list(store.relation_names or ()) == list(dict.fromkeys(seen))
    assert verify(output, level="full").ok
    assert not list(output.parent.rglob("*.names"))
    return store


@pytest.mark.parametrize("where", [*choose([], ["memory"]), "disk"])
def test_a_directory(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    defaults = {"block_bytes": 2**12, "memory_bytes": None}
    monkeypatch.setattr(TextTable.__init__, "__kwdefaults__", defaults)
    if where == "disk":
        monkeypatch.setattr("gnnstore.converters.edges.numbering._ENTRY_BYTES", 2**18)
        monkeypatch.setattr(
            "gnnstore.converters.edges.numbering._SpilledNames._records.__defaults__", ((3, 9),)
        )
        monkeypatch.setattr("gnnstore.converters.edges.numbering._CHUNK", (3, 2**20))
    options = ConvertOptions(memory_bytes=2**26)
    check(from_triples(directory, tmp_path / "a.gnn", options=options))


@pytest.mark.parametrize("columns", choose(["hrt", "trh"], ["hrt", "htr", "rth", "trh"]))
@pytest.mark.parametrize("mark", ["\t", ","])
def test_files_in_any_order_of_columns(tmp_path: Path, columns: str, mark: str) -> None:
    files: dict[str, Any] = {
        name: write(tmp_path / f"{name}.tsv.gz", triples, columns, mark)
        for name, triples in SPLITS.items()
    }
    train = files.pop("train")
    output = from_triples(train, tmp_path / "a.gnn", columns=columns, **files)
    check(output, columns.replace("r", ""))


def test_a_loader_shows_relations(tmp_path: Path, directory: Path) -> None:
    store = gnnstore.open(from_triples(directory, tmp_path / "a.gnn"))
    for split in ("train", "valid"):
        loader = gnnstore.LinkNeighborLoader(
            store, [5], edge_label_index=split, batch_size=16, edge_label_attrs=("edge_type",)
        )
        batch = next(iter(loader))
        assert batch.edge_type.shape == batch.edge_index.shape[1:]
        assert batch.label_edge_type.shape == (16,)
        ends = batch.n_id[batch.edge_label_index].T.tolist()
        assert store.original_names is not None
        assert store.relation_names is not None
        found = [
            (store.original_names[h], store.relation_names[r], store.original_names[t])
            for (h, t), r in zip(ends, batch.label_edge_type.tolist(), strict=True)
        ]
        assert set(found) <= set(SPLITS[split])
        assert split == "train" or found == SPLITS[split][:16]


def test_names_stay_where_edges_are_split(tmp_path: Path, directory: Path) -> None:
    whole = gnnstore.open(from_triples(directory / "train.txt", tmp_path / "a.gnn"))
    store = gnnstore.open(split_edges(whole.path, tmp_path / "b.gnn"))
    assert list(store.relation_names or ()) == list(whole.relation_names or ())
    found = triples_of(store) + triples_of(store, "valid") + triples_of(store, "test")
    assert sorted(found) == sorted(SPLITS["train"])


@pytest.mark.parametrize("offset", [0, 7])
def test_ids_that_are_numbers(tmp_path: Path, offset: int) -> None:
    (tmp_path / "train.txt").write_text(f"{1 + offset} 5 {offset}\n{2 + offset} 0 {1 + offset}\n")
    (tmp_path / "test.txt").write_text(f"{offset} 9 {3 + offset}\n")
    output = from_triples(tmp_path, tmp_path / "a.gnn", integer_ids=True)
    store = gnnstore.open(output)
    assert store.edge_index.tensor().tolist() == [[1, 2], [0, 1]]
    assert store.edge_type.tensor().tolist() == [5, 0]
    test = store.edge_splits["test"]
    assert test.edge_index.tolist() == [[0], [3]]
    assert test.attributes["edge_type"].read().tolist() == [9]
    assert (store.original_names, store.relation_names) == (None, None)
    if offset:
        assert store.original_ids is not None
        assert store.original_ids.tolist() == [7, 8, 9, 10]
    else:
        assert store.original_ids is None
    assert verify(output, level="full").ok


# Which characters there are takes a second to find out.
CHARACTERS = choose(
    st.sampled_from("aÄß漢0٣²'\"_-.;#%«¿"), st.characters(codec="utf-8", categories=["L", "N", "P"])
)


@settings(max_examples=choose(5, 40), deadline=None)
@given(
    triples=st.lists(
        st.tuples(*[st.text(CHARACTERS, min_size=1)] * 3),
        min_size=1,
        max_size=12,
    ),
    columns=st.sampled_from(["hrt", "thr", "rht"]),
)
def test_any_names_come_back(
    tmp_path_factory: pytest.TempPathFactory, triples: list[Triple], columns: str
) -> None:
    if "," in "".join(map("".join, triples)):
        return  # decides that commas separate
    folder = tmp_path_factory.mktemp("kg")
    path = write(folder / "a.txt", triples, columns)
    how: dict[str, Any] = {"skip_header": False, "quotes": "keep"}
    store = gnnstore.open(from_triples(path, folder / "a.gnn", columns=columns, **how))
    assert triples_of(store) == triples


@pytest.mark.long("tests/crash resumes conversions")
@pytest.mark.parametrize("at", choose(["splits"], ["edges", "splits", "commit"]))
def test_an_interrupted_conversion_is_resumed(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    whole = from_triples(directory, tmp_path / "whole.gnn")
    name = {
        "edges": "gnnstore.converters.writer.edge_writer.write_adjacency",
        "splits": "gnnstore.converters.writer.graph_writer.write_edge_split",
        "commit": "gnnstore.formats.store.store.StoreWriter.commit",
    }[at]

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    output = tmp_path / "a.gnn"
    with monkeypatch.context() as context:
        context.setattr(name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            from_triples(directory, output)
    assert not output.exists()
    store = check(from_triples(directory, output, options=ConvertOptions(resume=True)))
    assert store.reader.uuid == gnnstore.open(whole).reader.uuid
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gnn", "kg", "whole.gnn"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tr\tb\na\tr\n", r"train.txt: line 2: found 2 fields, expected 3, in 'a\tr'"),
        ("a r b\nx y z w\n", "line 2: found 4 fields, expected 3, in 'x y z w'"),
        ("a\tr\tb\na\t\tb\n", "line 2: column 2 is empty: a name is missing"),
        ("a\tr\tb\n\nb\tr\ta\n", "line 2: the line is blank where a row was expected"),
        ("", "train.txt: has no triples"),
    ],
)
def test_lines_that_are_no_triples(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.txt").write_text(text)
    with pytest.raises(InputError) as caught:
        from_triples(tmp_path, tmp_path / "a.gnn")
    assert message.replace(r"\t", "\\t") in str(caught.value)
    assert not (tmp_path / "a.gnn").exists()


def refused(kind: type[Exception], match: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(kind, match=match):
        from_triples(*arguments, **options)


def test_bad_input(tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "a.gnn"
    train = directory / "train.txt"
    refused(UsageError, "columns='hr' is not an order", directory, output, columns="hr")
    refused(UsageError, "is a directory, whose files", directory, output, valid=train)
    refused(NotFoundError, "the file of triples: .* does not exist", tmp_path / "none", output)
    refused(NotFoundError, "test triples: .* does not", train, output, test=tmp_path / "none")
    refused(InputError, r"line 1: column 1: '/m/\S+' is not an integer, expected an id. If",
            directory, output, integer_ids=True)  # fmt: skip
    (directory / "valid.txt").unlink()
    (directory / "val.tsv").write_bytes(b"")
    refused(InputError, "val.tsv: has no triples; leave the file out", directory, output)
    (directory / "val.tsv").unlink()
    packed = gzip.compress(train.read_bytes())
    (directory / "valid.txt.gz").write_bytes(packed[:-900])
    refused(InputError, "valid.txt.gz: the gzip stream", directory, output)
    (directory / "valid.txt.gz").unlink()
    monkeypatch.setattr("gnnstore.converters.datasets.triples._ENTRY_BYTES", 2**30)
    options = ConvertOptions(memory_bytes=2**26)
    refused(BudgetError, "check the order of head, relation", directory, output, options=options)
    train.unlink()
    refused(NotFoundError, r"none of train.txt, .* is there; there is test.txt", directory, output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kg"]


def test_damaged_names_of_relations_are_found(tmp_path: Path, directory: Path) -> None:
    output = from_triples(directory, tmp_path / "a.gnn")
    types = output / "edges/node__to__node/attrs/edge_type/c.0"
    with types.open("r+b") as file:
        file.write((4).to_bytes(8, "little"))
    assert not verify(output, level="full").ok
    problems = list(checks.check_meaning(gnnstore.open(output).reader))
    assert "edge_type: entry 0 is value 4, outside [0, 4)" in str(problems[0])


def test_names_of_no_attribute_are_refused(tmp_path: Path, directory: Path) -> None:
    schema = gnnstore.open(from_triples(directory, tmp_path / "a.gnn")).schema
    object.__setattr__(schema.edge, "attributes", {})
    object.__setattr__(schema.edge, "splits", {})
    with pytest.raises(CorruptStoreError, match=r"names of the values of 'edge_type', but no such"):
        schema.checked("a.gnn")


def test_tabs_separate_names_with_commas(tmp_path: Path) -> None:
    triples = [("Smith, John", "born in", "Paris, France"), ("Rome", "in", "Europe")]
    for some in (triples, triples[::-1]):
        path = write(tmp_path / "t.tsv", some)
        options = ConvertOptions(overwrite=True)
        out = from_triples(path, tmp_path / "o.gnn", skip_header=False, options=options)
        assert sorted(triples_of(gnnstore.open(out))) == sorted(triples)
