"""Commands that sample batches, on stores of several types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore import LinkNeighborLoader, NeighborLoader
from gnnstore.errors import CorruptStoreError
from gnnstore.features import segments as segment_packing
from gnnstore.formats.packed import PackedReader
from gnnstore.tools.cli import main
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose
from tests.support.hetero import CITES, TEACHES, WRITES, WRITTEN_BY, hetero_store, make_hetero

DATA = make_hetero(widths={"paper": 60, "author": 25})
FANOUTS = {CITES: [3, 2], WRITES: [2, 2], WRITTEN_BY: [2, 1], TEACHES: [1, 1]}
FANOUTS[("author", "at", "institution")] = [0, 0]
BY_TYPE = ";".join(f"{'__'.join(k)}={','.join(map(str, v))}" for k, v in FANOUTS.items())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("typed")
    return hetero_store(directory / "s.gnn", DATA, time_attr=["time"], weight_attr=["w"]).path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json", "--quiet"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


PACKED: dict[str, tuple[list[str], dict[str, Any]]] = {
    "split": ([], {}),
    "several": (
        ["--input-nodes", "paper:train,author:all", "--num-neighbors", BY_TYPE],
        {"input_nodes": {"paper": "train", "author": None}, "num_neighbors": FANOUTS},
    ),
    "timed": (
        ["--time-attr", "time", "--temporal-strategy", "last", "--time-window", "90"],
        {"time_attr": "time", "temporal_strategy": "last", "time_window": 90},
    ),
    "weighted": (["--weight-attr", "w", "--disjoint"], {"weight_attr": "w", "disjoint": True}),
    "both ways": (["--subgraph-type", "bidirectional"], {"subgraph_type": "bidirectional"}),
    "all at once": (
        ["--weight-attr", "w", "--disjoint", "--subgraph-type", "bidirectional"],
        {"weight_attr": "w", "disjoint": True, "subgraph_type": "bidirectional"},
    ),
}


@pytest.mark.filterwarnings("ignore:.*is the reverse of")
@pytest.mark.parametrize("case", choose(["several", "all at once"], list(PACKED)))
def test_packed_epochs(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    words, options = PACKED[case]
    output = str(tmp_path / "packed")
    shared = ["--batch-size", "7", "--epochs", "2", "--seed", "3", "--superbatch", "2"]
    if "--num-neighbors" not in words:
        shared += ["--num-neighbors", "3,2"]
    run(capsys, "pack", str(path), "--output", output, "--cache-bytes", "2kB", *shared, *words)
    arguments: dict[str, Any] = {"num_neighbors": [3, 2], "input_nodes": ("paper", "train")}
    arguments |= {"batch_size": 7, "shuffle": True, "seed": 3, **options}
    expected = batches_of(NeighborLoader(path, strategy="memory", **arguments), 2)
    assert_same_batches(batches_of(NeighborLoader(path, packed=output, **arguments), 2), expected)
    alone = gnnstore.open_packed(output)
    assert_same_batches(batches_of(alone.loader(), 2), expected)
    # Slots of 240 bytes for papers and of 100 for authors: 8 if all were for papers.
    document = json.loads((Path(output) / "zarr.json").read_text())["attributes"]["gnnstore_plan"]
    assert len(document["slot_shares"]) == 2
    assert 8 <= document["num_slots"] <= 14
    assert main(["verify", output]) == 0
    with pytest.raises(ValueError, match="were not packed for a loader"):
        NeighborLoader(path, packed=output, **(arguments | {"num_neighbors": [4, 4]}))


def test_packed_times_of_seeds(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds of one type have the times of a file, and of several those of a file each."""
    files = {"paper": tmp_path / "p.npy", "author": tmp_path / "a.npy"}
    times = {name: np.arange(DATA[name].num_nodes) for name in files}
    for name, file in files.items():
        np.save(file, times[name])
    shared = ["--time-attr", "time", "--num-neighbors", "2", "--batch-size", "30"]
    for kinds, given in (
        (["author"], str(files["author"])),
        (["paper", "author"], ",".join(f"{name}={file}" for name, file in files.items())),
    ):
        nodes, output = ",".join(f"{name}:all" for name in kinds), str(tmp_path / kinds[0])
        words = ["--output", output, "--input-nodes", nodes, "--input-time", given]
        run(capsys, "pack", str(path), *words, *shared)
        of_type = {name: times[name] for name in kinds}
        inputs: dict[str, Any] = {"input_nodes": dict.fromkeys(kinds), "input_time": of_type}
        how: dict[str, Any] = {"time_attr": "time", "batch_size": 30, "shuffle": True, "seed": 0}
        expected = batches_of(NeighborLoader(path, [2], **inputs, **how))
        assert_same_batches(batches_of(gnnstore.open_packed(output).loader()), expected)
    words[-1] = str(files["paper"])
    assert main(["pack", str(path), *words, *shared, "--overwrite"]) == 2
    assert "--input-time paper=FILE.npy,author=FILE.npy" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:edge_label_time of some seed edges:UserWarning")
@pytest.mark.parametrize("mode", choose(["triplet"], ["binary", "triplet"]))
def test_packed_links(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    pairs, times = DATA[WRITES].edge_index[:, :40], DATA[WRITES].edge_time[:40]
    np.save(tmp_path / "pairs.npy", pairs.numpy())
    np.save(tmp_path / "times.npy", times.numpy())
    output = str(tmp_path / "packed")
    run(
        *(capsys, "pack", str(path), "--output", output),
        *("--links", f"author__writes__paper:{tmp_path / 'pairs.npy'}"),
        *("--negatives", f"{mode}:1", "--num-neighbors", "2", "--batch-size", "9"),
        *("--time-attr", "time", "--edge-label-time", str(tmp_path / "times.npy")),
    )
    options: dict[str, Any] = {
        "neg_sampling": mode,
        "batch_size": 9,
        "shuffle": True,
        "seed": 0,
        "time_attr": "time",
        "edge_label_time": times,
    }
    expected = batches_of(LinkNeighborLoader(path, [2], (WRITES, pairs), **options))
    packed = LinkNeighborLoader(path, [2], (WRITES, pairs), packed=output, **options)
    assert_same_batches(batches_of(packed), expected)
    assert_same_batches(batches_of(gnnstore.open_packed(output).loader()), expected)


def test_damaged_packed_rows_of_a_type(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of two types called `x` lie apart; damage is found in the type that has it."""
    output = tmp_path / "packed"
    run(
        *(capsys, "pack", str(path), "--output", str(output), "--cache-bytes", "0"),
        *("--num-neighbors", "3,2", "--batch-size", "30"),
    )
    names = sorted(own.name for own in (output / "rows").iterdir() if own.is_dir())
    assert names == ["author__x", "paper__x"]
    found = [own for own in (output / "rows" / "author__x").rglob("*") if own.is_file()]
    (file,) = (own for own in found if own.name != "zarr.json")
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(content)
    with pytest.raises(gnnstore.errors.CorruptStoreError, match="nodes/author/x"):
        list(gnnstore.open_packed(output).loader())


@pytest.mark.parametrize("segment", choose([2], [2, 9]))
def test_segments_of_several_types(
    path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    segment: int,
) -> None:
    """Each type has shared rows of its own; a segment's are cut into parts of a few rows."""
    monkeypatch.setattr(segment_packing, "_PART_BYTES", 1500)
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    words = ["--num-neighbors", "3,2", "--batch-size", "7", "--epochs", "2", "--seed", "3"]
    words += ["--cache-bytes", "1kB", "--input-nodes", "paper:train", "--superbatch", "9"]
    run(capsys, "pack", str(path), "--output", str(alone), *words)
    words += ["--segment", str(segment)]
    run(capsys, "pack", str(path), "--output", str(shared), *words)
    arguments: dict[str, Any] = {"num_neighbors": [3, 2], "input_nodes": ("paper", "train")}
    arguments |= {"batch_size": 7, "shuffle": True, "seed": 3}
    expected = batches_of(NeighborLoader(path, strategy="memory", **arguments), 2)
    assert_same_batches(batches_of(gnnstore.open_packed(shared).loader(), 2), expected)
    assert main(["verify", str(shared)]) == 0
    reader, apart = PackedReader.open(shared), PackedReader.open(alone)
    assert reader.segments is not None
    assert (reader.index[:, 3] < apart.index[:, 3]).any()
    counts = reader.segments[:, 6:]
    assert (counts > 6).any(axis=0).all()  # of authors, of papers: more than a part's
    assert (counts.sum(axis=1) == reader.segments[:, 2]).all()
    # Damage in rows that batches share is found, by type.
    column = reader.manifest.cached.index("nodes/author/x")
    begin = int(reader.segments[counts[:, column] > 0][0, 4 + column])
    (file,) = reader.rows["nodes/author/x"].file_paths
    content = bytearray(file.read_bytes())
    content[begin] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptStoreError, match=r"rows that batches share, are damaged.*author/x"):
        batches_of(gnnstore.open_packed(shared).loader(), 2)


def test_several_types_share_rows_where_disk_is_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"paper": 1500, "author": 1000}
    degrees = {CITES: 6, WRITES: 4, WRITTEN_BY: 4}
    data = make_hetero(counts=counts, degrees=degrees, widths={"paper": 300, "author": 120})
    path = str(hetero_store(tmp_path / "s.gnn", data).path)
    words = ["--num-neighbors", "5,5", "--batch-size", "64", "--seed", "3", "--cache-bytes", "0"]
    words += ["--input-nodes", "paper:train"]
    run(capsys, "pack", path, "--output", str(tmp_path / "a"), *words)
    most = PackedReader.open(tmp_path / "a").total_bytes * 2 // 3
    run(capsys, "pack", path, "--output", str(tmp_path / "b"), *words, "--disk", str(most))
    reader = PackedReader.open(tmp_path / "b")
    assert reader.manifest.segment > 1
    assert most / 2 < reader.total_bytes <= most
    loader = gnnstore.open_packed(tmp_path / "b").loader()
    assert_same_batches(
        batches_of(loader), batches_of(gnnstore.open_packed(tmp_path / "a").loader())
    )


def test_predictions(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--num-neighbors", BY_TYPE, "--batch-size", "7", "--strategies", "belady")
    document = run(capsys, "predict", str(path), *words, "--batches", "3")
    assert document["input_nodes"] == "paper:train"
    assert document["num_neighbors"]["__".join(CITES)] == [3, 2]
    assert [found["strategy"] for found in document["predictions"]["strategies"]] == ["belady"]
    assert document["row_bytes"] == 240  # of the widest type
    links = ("--batches", "1", "--links", "author__writes__paper")
    document = run(capsys, "predict", str(path), *words, *links)
    assert document["num_input_nodes"] == DATA[WRITES].num_edges


@pytest.mark.usefixtures("timed_in_forks")
def test_strategies_are_timed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--num-neighbors", "3,2", "--batch-size", "7", "--no-limit", "--loader-memory", "50MB")
    document = run(capsys, "bench", "load", str(path), *words, "--strategies", "numpy-mmap,belady")
    for found in document["strategies"]:
        assert found["problem"] is None
        assert found["rounds"][0]["nodes"] > 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--input-nodes", "venue:train"], "no node type 'venue'"),
        (["--input-nodes", "author:train"], "there is no split 'train'"),
        (["--input-nodes", "train"], "no node type 'train'; write TYPE:SPLIT, of the types "),
        (["--num-neighbors", "a__b__c=3,3"], "__b__c: there is no such edge type; there are "),
        (["--links", "paper"], "expected SOURCE__RELATION__TARGET, and :all"),
        (["--num-neighbors", "paper__cites__paper=3"], "Missing number of neighbors"),
        (["--num-neighbors", "paper__cites__paper=a"], "is not a list of fan-outs"),
        (["--time-attr", "edge_time"], "gnnstore add-order"),
        (
            ["--time-attr", "time", "--input-nodes", "institution"],
            "seeds of institution have",
        ),
    ],
)
def test_options_that_cannot_be(
    path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["predict", str(path), *words]) != 0
    assert message in capsys.readouterr().err


def test_no_type_has_a_training_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = make_hetero(counts={"author": 9, "institution": 3}, degrees={TEACHES: 2})
    data["author"].big = torch.rand(9, 50)
    path = hetero_store(tmp_path / "s.gnn", data).path
    assert main(["predict", str(path)]) == 2
    assert "0 node types have a split 'train'; name the seeds" in capsys.readouterr().err
