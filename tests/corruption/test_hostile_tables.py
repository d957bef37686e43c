"""GraphBolt's metadata and labels, and names of nodes, that are made to take time or memory."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.converters import ConvertOptions, from_graphbolt, from_triples
from gnnstore.converters.edges import numbering
from gnnstore.converters.spill_files import SpillDirectory
from gnnstore.errors import BudgetError, GnnstoreError, InputError
from tests.support.effort import choose

METADATA = """
graph:
  nodes: [{num: 5}]
  edges: [{format: csv, path: edges.csv}]
tasks:
  - name: cls
    train_set: [{data: [{name: seeds, format: numpy, path: seeds.npy},
                        {name: labels, format: numpy, path: labels.npy}]}]
"""


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    pytest.importorskip("yaml")
    directory = tmp_path / "graphbolt"
    directory.mkdir()
    (directory / "metadata.yaml").write_text(METADATA)
    (directory / "edges.csv").write_text("0,1\n1,2\n")
    np.save(directory / "seeds.npy", np.array([0, 2]))
    np.save(directory / "labels.npy", np.array([7, 8]))
    return directory


def test_labels_count_in_the_budget(tmp_path: Path, data_set: Path) -> None:
    out = from_graphbolt(data_set, tmp_path / "a.gnn")
    assert gnnstore.open(out).labels.tolist() == [7, -1, 8, -1, -1]
    (data_set / "metadata.yaml").write_text(METADATA.replace("num: 5", "num: 100000000"))
    options = ConvertOptions(memory_bytes=2**26)
    with pytest.raises(BudgetError, match="labels of 100000000 nodes"):
        from_graphbolt(data_set, tmp_path / "b.gnn", options=options)
    np.save(data_set / "labels.npy", np.zeros((2, 50_000)))
    (data_set / "metadata.yaml").write_text(METADATA.replace("num: 5", "num: 100000"))
    with pytest.raises(BudgetError, match="labels of 100000 nodes"):
        from_graphbolt(data_set, tmp_path / "b.gnn", options=options)
    assert not (tmp_path / "b.gnn").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("num: 5", "num: [5]"),
        ("num: 5", "num: 1.5"),
        ("num: 5", "num: 2020-99-99"),
        ("num: 5", "num: 9" + 30 * "9"),
        ("path: edges.csv", 'path: "a\\0b"'),
        ("path: edges.csv", 'path: "\\ud800"'),
        ("path: edges.csv", f"path: {300 * 'a'}"),
        ("path: edges.csv", "path: {a: b}"),
        ("format: csv", "format: [csv]"),
        ("name: cls", "name: {a: 1}"),
        ("name: labels", "name: [labels]"),
        ("graph:", "? [a, b]\n: c\ngraph:"),
    ],
)
def test_odd_values_are_named(tmp_path: Path, data_set: Path, before: str, after: str) -> None:
    (data_set / "metadata.yaml").write_text(METADATA.replace(before, after))
    with pytest.raises(GnnstoreError):
        from_graphbolt(data_set, tmp_path / "a.gnn")
    assert not (tmp_path / "a.gnn").exists()


def test_aliases_and_depth_take_little(tmp_path: Path, data_set: Path) -> None:
    """What aliases share is not repeated in messages, and what is nested too deep is refused."""
    levels = ["a0: &a0 {k: 1}"]
    levels += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    text = METADATA.replace("num: 5", "num: *a11")
    for document in ("\n".join([*levels, text]), "? " * 3_000, *choose((), ("[" * 6_000,))):
        (data_set / "metadata.yaml").write_text(document)
        with pytest.raises(InputError) as caught:
            from_graphbolt(data_set, tmp_path / "a.gnn")
        assert len(str(caught.value)) < 1000


def test_long_names_are_read_in_small_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few of them there are, no more than some bytes are in memory at a time."""
    monkeypatch.setattr(numbering, "_ENTRY_BYTES", 2**18)
    largest: list[int] = []
    read = SpillDirectory.read

    def watched(self: Any, name: str, dtype: Any, first: int, count: int) -> Any:
        if name.endswith("names"):
            largest.append(count)
        return read(self, name, dtype, first, count)

    monkeypatch.setattr(SpillDirectory, "read", watched)
    names = [f"{i:05d}" + 5_000 * "x" for i in range(300)]
    lines = [f"{a}\tr\t{b}\n" for a, b in pairwise(names)]
    (tmp_path / "kg.tsv").write_text("".join(lines))
    options = ConvertOptions(memory_bytes=2**26)
    out = from_triples(tmp_path / "kg.tsv", tmp_path / "kg.gnn", options=options)
    assert list(gnnstore.open(out).original_names or ()) == names
    assert 0 < max(largest) < 2**19
