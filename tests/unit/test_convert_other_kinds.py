"""Files of another kind than a converter reads are named by their first bytes, everywhere."""

from __future__ import annotations

import gzip
import json
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore.converters import (
    from_graphbolt,
    from_igb,
    from_numpy,
    from_ogb,
    from_pyg,
    from_snap,
    from_tables,
    from_triples,
    from_typed,
)
from gnnstore.converters.inputs.files import RawLayout
from gnnstore.errors import InputError
from tests.support.effort import choose

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 123456789\n"
XML = b"<?xml version='1.0' encoding='utf-8'?>\n"
NETWORKX = r"which is not read; read it with networkx \({}\) and give from_pyg\(from_networkx\(g\)"
KINDS = {
    "lfs": (POINTER, "is a pointer of Git LFS, not the file itself; run git lfs pull"),
    "graphml": (XML + b"<graphml><graph/></graphml>", f"is GraphML, {NETWORKX}"),
    "gexf": (
        b"\xef\xbb\xbf" + XML + b'<!-- a -->\n<gexf version="1.2"></gexf>',
        f"is GEXF, {NETWORKX}",
    ),
    "xml": (XML + b"<rdf:RDF></rdf:RDF>", "is XML, which is not read"),
    "gml": (
        b'# of mine\nCreator "igraph"\nVersion 1\ngraph\n[\n  directed 1\n]',
        f"is GML, {NETWORKX}",
    ),
    "pajek": (
        b'% of mine\n*Vertices 2\n1 "a"\n2 "b"\n*Edges\n1 2\n',
        f"is a file of Pajek, {NETWORKX}",
    ),
    "dot": (b'strict digraph "my graph" {\n  a -> b;\n}\n', f"is DOT, {NETWORKX}"),
    "json": (b'{\n  "nodes": [{"id": 0}],\n  "links": []\n}\n', f"is JSON, {NETWORKX}"),
    "one line": (b'{"nodes": [], "links": []}', f"is JSON, {NETWORKX}"),
    "list": (b"[[0, 1],\n [1, 2]]\n", f"is JSON, {NETWORKX}"),
    "lines": (b'{"s": 0, "t": 1}\n{"s": 1, "t": 2}\n', r"is JSON lines, .* pandas.read_json\("),
    "matlab": (
        b"MATLAB 5.0 MAT-file, Platform: GLNXA64" + bytes(90),
        "is a file of MATLAB, .* scipy.io.loadmat",
    ),
    "sqlite": (b"", "is a database of SQLite, .* pandas.read_sql"),
    "pickle": (pickle.dumps({"a": 1}, 4), "is a pickle, in which code may hide"),
    "raw": (
        np.array([[0, 1], [1, 2]], "<u4").tobytes(),
        r"line 1: a NUL byte: the file is binary; raw edges: np.savez\(",
    ),
}


def write(path: Path, kind: str) -> str:
    """Write a file of a kind; return a pattern of what is to be said of it."""
    data, words = KINDS[kind]
    path.write_bytes(data)
    if kind == "sqlite":
        path.unlink()
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE edges (source INTEGER, target INTEGER)")
        connection.close()
    return words.format(".*") if "{}" in words else words


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_zipped", [False, True], ids=["plain", "gzipped"])
def test_text_edge_lists(tmp_path: Path, kind: str, is_zipped: bool) -> None:
    path = tmp_path / ("e.txt.gz" if is_zipped else "e.txt")
    words = write(path, kind)
    if is_zipped:
        path.write_bytes(gzip.compress(path.read_bytes()))
    for named in (False, True):
        with pytest.raises(InputError, match=f"^{path}: {words}"):
            from_snap(path, tmp_path / "o.gnn", string_ids=named)
    assert list(tmp_path.iterdir()) == [path]


def typed(directory: Path, path: Path, **nodes: Any) -> Path:
    """Move a file to the edges of a graph with types; return the directory."""
    (directory / "edges").mkdir(parents=True)
    place = directory / "edges" / f"a__b__a{path.suffix}"
    place.write_bytes(path.read_bytes())
    return directory


def numpy_with(path: Path, output: Path, **more: Any) -> Path:
    np.savez(path.with_name("g.npz"), edge_index=np.array([[0], [1]]))
    return from_numpy(path.with_name("g.npz"), output, **more)


def snap_with(path: Path, output: Path, **more: Any) -> Path:
    path.with_name("edges.txt").write_text("0 1\n")
    return from_snap(path.with_name("edges.txt"), output, **more)


def in_igb(path: Path, output: Path) -> Path:
    root = path.parent / "igb"
    for name in ("paper", "paper__cites__paper"):
        (root / name).mkdir(parents=True)
    np.save(root / "paper__cites__paper" / "edge_index.npy", np.array([[0, 1]]))
    (root / "paper" / "node_feat.npy").write_bytes(path.read_bytes())
    return from_igb(root, output)


def in_ogb(path: Path, output: Path) -> Path:
    raw = path.parent / "ogb" / "raw"
    raw.mkdir(parents=True)
    for name, text in (("num-node-list", "2\n"), ("num-edge-list", "1\n")):
        (raw / f"{name}.csv").write_text(text)
    (raw / "edge.csv").write_bytes(path.read_bytes())
    return from_ogb(raw.parent, output)


def in_graphbolt(path: Path, output: Path) -> Path:
    (path.parent / "bolt").mkdir()
    (path.parent / "bolt" / "metadata.yaml").write_bytes(path.read_bytes())
    return from_graphbolt(path.parent / "bolt", output)


READERS: dict[str, tuple[str, Callable[[Path, Path], Any]]] = {
    "triples": ("t.txt", from_triples),
    "an archive": ("a.npz", from_numpy),
    "a file of torch.save": ("a.pt", from_pyg),
    "a table": ("a.parquet", from_tables),
    "features": ("x.npy", lambda path, out: snap_with(path, out, features=path)),
    "features in text": ("x.csv", lambda path, out: numpy_with(path, out, features=path)),
    "labels": ("y.csv", lambda path, out: snap_with(path, out, labels=path)),
    "splits": ("s.npz", lambda path, out: snap_with(path, out, splits=path)),
    "raw features": (
        "x.bin",
        lambda path, out: numpy_with(
            path, out, features=path, features_raw=RawLayout("uint8", (-1, 1))
        ),
    ),
    "arrays by type": ("e.npy", lambda path, out: from_typed(typed(path.parent / "d", path), out)),
    "text by type": ("e.csv", lambda path, out: from_typed(typed(path.parent / "d", path), out)),
    "IGB": ("f.npy", in_igb),
    "OGB": ("e.csv", in_ogb),
    "GraphBolt": ("m.yaml", in_graphbolt),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["lfs", "sqlite"])
def test_every_reader(tmp_path: Path, reader: str, kind: str) -> None:
    name, read = READERS[reader]
    words = write(tmp_path / name, kind)
    with pytest.raises(InputError, match=f"^/.*: {words}"):
        read(tmp_path / name, tmp_path / "o.gnn")
    assert not (tmp_path / "o.gnn").exists()


def test_an_input_of_another_converter_names_it(tmp_path: Path) -> None:
    text, archive, saved = tmp_path / "edges.txt", tmp_path / "g.npz", tmp_path / "data.pt"
    text.write_text("0 1\n")
    np.savez(archive, edge_index=np.array([[0], [1]]))
    torch.save({"edge_index": torch.tensor([[0], [1]])}, saved)
    for convert, path, words in (
        (from_numpy, text, "is text; 'gnnstore convert snap' reads lists of edges"),
        (from_pyg, text, "is text; 'gnnstore convert snap' reads lists of edges"),
        (from_tables, text, "is neither Parquet, Arrow nor Feather; 'gnnstore convert snap' reads"),
        (
            from_numpy,
            saved,
            "is a file of torch.save; a Data in one is read by 'gnnstore convert pyg'",
        ),
        (from_pyg, archive, "is an archive of arrays .*, which 'gnnstore convert numpy' reads"),
    ):
        with pytest.raises(InputError, match=f"^{path}: {words}"):
            convert(path, tmp_path / "o.gnn")


@pytest.mark.parametrize(
    "names",
    [
        "{a} {b}",
        "[a]\t[b]",
        "<a>\t<b>",
        "graph\tnodes",
        *choose([], ["[[a]]\t[[b]]", "{a\tb}", "*a\t*b"]),
        '"a" "b"',
    ],
)
def test_names_may_begin_as_other_formats_do(tmp_path: Path, names: str) -> None:
    (tmp_path / "e.txt").write_text(f"{names}\n{names}\n")
    store = from_snap(tmp_path / "e.txt", tmp_path / "o.gnn", string_ids=True)
    assert gnnstore.open(store).num_edges == 2


def test_json_of_numbers_alone_is_named(tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text(json.dumps([0, 1]) + "\n" + json.dumps([1, 2]) + "\n")
    with pytest.raises(InputError, match="is JSON lines"):
        from_snap(tmp_path / "e.txt", tmp_path / "o.gnn", string_ids=True)
