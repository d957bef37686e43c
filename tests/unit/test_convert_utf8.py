"""Text that is not UTF-8 is refused by every converter that reads text, with its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from gnnstore.converters import from_snap, from_tables, from_triples, from_typed
from gnnstore.errors import InputError
from tests.support.effort import choose

ODD = b"g\xf6"  # in Latin-1


def column(*values: bytes, is_large: bool = False) -> pa.Array:
    """Return text that Arrow did not check."""
    kinds = (pa.large_binary(), pa.large_string()) if is_large else (pa.binary(), pa.string())
    return pa.Array.from_buffers(kinds[1], len(values), pa.array(values, kinds[0]).buffers())


def names(*values: bytes) -> dict[str, pa.Array]:
    """Return the same names as columns of all types of text."""
    plain = column(*values)
    indices = pa.array(range(len(values)), pa.int8())
    return {
        "string": plain,
        "large_string": column(*values, is_large=True),
        "dictionary": pa.DictionaryArray.from_arrays(indices, plain),
    }


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path)
    elif path.suffix == ".arrow":
        pa.feather.write_feather(table, path)
    elif path.suffix == ".arrows":
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    return path


def text(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


Case = tuple[Callable[[Path], Any], str]
ENDS = {"source": [0, 1], "target": [1, 0]}
CASES: dict[str, Case] = {
    "snap": (
        lambda at: from_snap(text(at / "e", b"a b\nb " + ODD), at / "o.gnn", string_ids=True),
        "line 2: column 2: ",
    ),
    "triples": (
        lambda at: from_triples(text(at / "e", b"a\tr\tb\n" + ODD + b"\tr\tb\n"), at / "o.gnn"),
        "line 2: column 1: ",
    ),
    "relation": (
        lambda at: from_triples(text(at / "e", b"a\tr\tb\nb\t" + ODD + b"\tb\n"), at / "o.gnn"),
        "line 2: column 2: ",
    ),
}


def split_of(at: Path, kind: str) -> None:
    nodes = pa.table({"s": names(b"train", ODD)[kind]})
    from_tables(pa.table(ENDS), at / "o.gnn", nodes=nodes, split="s")


def ends_of(at: Path, kind: str, ending: str) -> None:
    table = write(at / f"e{ending}", source=names(b"a", ODD)[kind], target=["a", "a"])
    from_tables(table, at / "o.gnn")


def nodes_of(at: Path, kind: str, ending: str) -> None:
    table = write(at / f"n{ending}", name=names(b"a", ODD)[kind])
    edges = pa.table({"source": ["a"], "target": ["a"]})
    from_tables(edges, at / "o.gnn", nodes=table, node_id="name")


def typed_of(at: Path, part: str, kind: str, ending: str) -> None:
    odd, fine = (names(b"a", own)[kind] for own in (ODD, b"b"))
    write(at / f"t/nodes/u{ending}", id=odd if part == "nodes" else fine)
    of_edges = {"source": odd if part == "edges" else fine, "target": fine}
    write(at / f"t/edges/u__to__u{ending}", **of_edges)
    from_typed(at / "t", at / "o.gnn")


def typed_text_of(at: Path, part: str) -> None:
    ends = b"a,b" if part == "nodes" else b"a," + ODD
    text(at / "t/nodes/u.csv", b"id,v\na,1\n" + (ODD if part == "nodes" else b"b") + b",2\n")
    text(at / "t/edges/u__to__u.csv", b"source,target\na,b\n" + ends + b"\n")
    from_typed(at / "t", at / "o.gnn")


for form in choose(("string", "dictionary"), ("string", "large_string", "dictionary")):
    CASES[f"split of {form}"] = (partial(split_of, kind=form), "the nodes: s: ")
    for end in (".parquet", ".arrow", ".arrows"):
        if (form, end) == ("dictionary", ".parquet"):
            continue  # which Arrow checks as it writes
        CASES[f"ends of {form} in {end}"] = (
            partial(ends_of, kind=form, ending=end),
            f"e{end}: source: row 1 ",
        )
        CASES[f"nodes of {form} in {end}"] = (
            partial(nodes_of, kind=form, ending=end),
            f"n{end}: name: row 1 ",
        )
        for own in ("nodes", "edges") if end != ".arrows" else ():
            CASES[f"typed {own} of {form} in {end}"] = (
                partial(typed_of, part=own, kind=form, ending=end),
                f"{'u' if own == 'nodes' else 'u__to__u'}{end}: ",
            )
CASES["typed nodes in text"] = (partial(typed_text_of, part="nodes"), "u.csv: line 3: column 1: ")
CASES["typed edges in text"] = (partial(typed_text_of, part="edges"), "csv: line 3: column 2: ")


@pytest.mark.parametrize("name", CASES)
def test_text_that_is_not_utf8(tmp_path: Path, name: str) -> None:
    convert, place = CASES[name]
    with pytest.raises(InputError, match=rf"{re.escape(place)}.*not UTF-8; convert .* to UTF-8"):
        convert(tmp_path)
    assert not (tmp_path / "o.gnn").exists()
