"""`gnnstore partition`; what `inspect`, `verify`, `gc` and `rm` say of partitions."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gnnstore.converters import partition
from gnnstore.errors import CorruptStoreError
from gnnstore.formats import PartitionsReader
from gnnstore.testing.graphs import random_graph
from tests.support.disks import keep_usual_profile
from tests.support.hostile import reseal
from tests.support.stores import assert_same_files


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(1000, 8000, seed=5, feature_dim=100, num_classes=7)
    return graph.write(tmp_path_factory.mktemp("partition") / "s.gnn")


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "s.gnn")


def test_partitions_from_end_to_end(run: Any, store: Path, original: Path) -> None:
    words = ("-p", "8", "--train-first", "--seed", "7", "--memory", "100MB", "--json")
    done = run("partition", store, *words)
    assert done.status == 0, done.stderr
    document = done.document
    path = store / "partitions" / "train-first-8"
    assert Path(document["path"]) == path
    assert (document["num_partitions"], document["seed"]) == (8, 7)
    assert (document["order"], document["train_split"]) == ("train-first", "train")
    assert document["num_train_partitions"] == 5
    estimate = document["estimate"]
    assert 0.7 < document["disk_bytes"] / estimate["disk_bytes"] < 1.4
    assert estimate["temporary_bytes"] == 0
    assert "partitioning takes about" in done.stderr

    (listed,) = run("inspect", store, "--json").document["partitions"]
    assert (listed["name"], listed["problem"]) == ("train-first-8", None)
    assert "train-first: train in the first 5" in run("inspect", path).stdout
    for asked in ([store, "--partitions", "train-first-8"], [path]):
        shown = run("inspect", *asked, "--json").document
        assert shown["largest_bucket"] == listed["largest_bucket"] >= 8000 / 64
    assert run("verify", store, "--level", "full").status == 0
    assert run("verify", path, "--level", "full").status == 0

    again = run("partition", store, "-p", "8", "--train-first")
    assert again.status == 2
    assert "choose another output, or pass --overwrite" in again.stderr

    removed = run("rm", store, "--partitions", "train-first-8", "--json")
    assert removed.status == 0
    assert removed.document["partitions"] == "train-first-8"
    assert removed.document["removed_bytes"] > document["disk_bytes"]
    assert_same_files(store, original)


def test_an_estimate_writes_nothing(
    run: Any, store: Path, original: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keep_usual_profile(store)
    done = run("partition", store, "--estimate", "--json")
    assert done.status == 0, done.stderr
    estimate = done.document["estimate"]
    assert estimate["num_partitions"] == 2
    assert "in pieces of" in estimate["reason"]
    assert estimate["seconds"] > 0
    assert "Partitioning would take about" in run("partition", store, "-p4", "--estimate").stdout
    assert_same_files(store, original)
    assert not (store / "partitions").exists()
    made = run("partition", store, "--json").document
    assert (made["num_partitions"], made["name"]) == (2, "random-2")


def test_partitions_are_ranges_of_ids(run: Any, store: Path) -> None:
    made = run("partition", store, "-p", "4", "--order", "none", "--json").document
    assert (made["name"], made["order"], made["num_train_partitions"]) == ("none-4", "none", 0)
    assert run("verify", store, "--level", "full").status == 0
    both = run("partition", store, "-p", "4", "--order", "none", "--train-first")
    assert both.status == 2
    assert "leave out one" in both.stderr


def test_partitions_elsewhere(run: Any, store: Path, original: Path, tmp_path: Path) -> None:
    output = tmp_path / "elsewhere"
    assert run("partition", store, "-p", "3", "--output", output).status == 0
    assert_same_files(store, original)
    assert run("inspect", output, "--json").document["name"] == "elsewhere"
    assert run("verify", output, "--level", "full").status == 0


def test_a_number_of_partitions_that_is_chosen(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power of two of which none is empty; of one node there are none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = random_graph(11, 40, feature_dim=2).write(tmp_path / "small.gnn")
    keep_usual_profile(store)
    monkeypatch.setattr("gnnstore.tools.partitions.most_partitions", lambda *_: 8)
    done = run("partition", store, "-p", "auto", "--estimate")
    assert done.status == 0, done.stderr
    assert "4 partitions of 3 nodes" in done.stdout
    assert "4 partitions: the most, as a power of two" in done.stdout
    single = random_graph(1, 3).write(tmp_path / "single.gnn")
    done = run("partition", single, "-p", "auto")
    assert (done.status, f"{single} has 1 node: nothing to divide" in done.stderr) == (2, True)


def test_what_is_refused(run: Any, store: Path, tmp_path: Path) -> None:
    for arguments, status, message in (
        (["-p", "1"], 2, "1 partition: expected 2 to 1000"),
        (["-p", "1001"], 2, "1,001 partitions: expected 2 to 1000"),
        (["-p", "300"], 2, "fill 250 partitions of 4; take 250"),
        (["-p", "many"], 2, "'many' is not a number of partitions"),
        (["-p", "4", "--train-first", "labelled"], 2, "its splits: 'train', 'valid', 'test'"),
        (["-p", "4", "--name", "../a"], 2, "'../a' is not a name of a partitioning"),
        (["-p", "4", "--name", ""], 2, "'' is not a name of a partitioning"),
        (["-p", "4", "--name", "a", "--output", tmp_path / "b"], 2, "a --name in the store, or"),
        (["-p", "4", "--memory", "1MB"], 2, "raise --memory by at least"),
        (["-p", "4", "--output", tmp_path / "no" / "where"], 3, "does not exist"),
        (["-p", "4", "--seed", str(2**64)], 2, "--seed "),
    ):
        done = run("partition", store, *arguments)
        assert (done.status, message in done.stderr) == (status, True), (arguments, done.stderr)
        assert not (store / "partitions").exists()
    assert run("rm", store, "--partitions", "none").status == 3
    assert run("rm", store).status == 2
    assert run("inspect", store, "--partitions", "none").status == 3


def test_a_store_that_cannot_be_written(
    run: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.mkdir

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        if path.is_relative_to(store):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        real(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    done = run("partition", store, "-p", "4")
    assert done.status == 5
    assert "give --output to write the partitioning elsewhere" in done.stderr


def test_leftovers_are_swept(run: Any, store: Path) -> None:
    assert run("partition", store, "-p", "4", "--name", "a").status == 0
    place = store / "partitions"
    (place / "a").rename(place / ".a.tmp-0123abcd")
    (left,) = run("gc", store, "--json").document["leftovers"]
    assert (left["state"], left["store"]) == ("unfinished", str(place / "a"))
    assert run("gc", store, "--yes").status == 0
    assert [path.name for path in place.iterdir()] == ["zarr.json"]


def corrupt(unit: Path, array: str, change: Any) -> None:
    """Change the numbers of an array, where they lie."""
    reader = PartitionsReader.open(unit)
    spec = next(spec for spec in reader.manifest.arrays() if spec.path == array)
    values = reader.read(spec).copy()
    change(values)
    file = unit / array / "c.0"
    data = bytearray(file.read_bytes())
    data[: values.nbytes] = values.tobytes()
    file.write_bytes(data)


def exchange_rows(values: Any) -> None:
    """Give the last edge another source, behind which nothing is out of order."""
    values[-1] = values[-1] + 1 if values[-1] < 248 else 248


def swap(values: Any) -> None:
    values[[0, 1]] = values[[1, 0]]


@pytest.mark.parametrize(
    ("array", "change", "message"),
    [
        ("order", swap, "row 0 is said to be of node"),
        ("order", lambda values: values.__setitem__(3, 5000), "outside [0, 1000)"),
        ("place", swap, "which has another row"),
        ("edges/source", lambda v: v.__setitem__(7, 250), "edge 7 has 250, outside [0, 250)"),
        ("edges/target", lambda v: v.__setitem__(7, -1), "edge 7 has -1"),
        ("edges/target", lambda v: v.__setitem__(0, 249), "the edges are not the store's"),
        ("edges/position", lambda v: v.__setitem__(0, v[1]), "the edges are not the store's"),
        ("edges/position", lambda v: v.__setitem__(0, 8000), "edge 0 has 8000"),
        ("edges/source", exchange_rows, "the edges are not the store's, each once; partiti"),
        ("edges/bucket_ptr", lambda v: v.__setitem__(1, 9000), "ascending places from 0 to 8000"),
    ],
)
def test_numbers_that_are_wrong_are_found(
    original: Path, tmp_path: Path, array: str, change: Any, message: str
) -> None:
    """Though their checksums were right."""
    store = shutil.copytree(original, tmp_path / "s.gnn")
    unit = partition(store, 4)
    corrupt(unit, array, change)
    try:
        found = [str(problem) for problem in PartitionsReader.open(unit).problems()]
    except CorruptStoreError as error:
        found = [str(error)]
    assert [message in problem for problem in found] == [True], found


@pytest.mark.parametrize("array", ["order", "edges/source", "nodes/x"])
def test_damaged_and_truncated_files_are_named(run: Any, store: Path, array: str) -> None:
    assert run("partition", store, "-p", "4", "--name", "a").status == 0
    (file,) = (store / "partitions" / "a" / array).glob("c.0*")
    whole = file.read_bytes()
    file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    done = run("verify", store)
    assert (done.status, str(file) in done.stdout) == (1, True)
    file.write_bytes(whole[:-1])
    done = run("verify", store, "--level", "header")
    assert (done.status, f"{file}: the file has" in done.stdout) == (1, True)
    (listed,) = run("inspect", store, "--json").document["partitions"]
    assert "the file has" in listed["problem"]
    assert "a is damaged, see 'gnnstore verify': " in run("inspect", store).stdout


def test_partitions_of_another_store_are_found(run: Any, store: Path, tmp_path: Path) -> None:
    assert run("partition", store, "-p", "4", "--name", "a").status == 0
    other = random_graph(1000, 8000, seed=6).write(tmp_path / "other.gnn")
    shutil.copytree(store / "partitions", other / "partitions")
    done = run("verify", other, "--level", "full")
    assert done.status == 1
    assert "it belongs to the store" in done.stdout
    (other / "zarr.json").write_text('{"attributes": {"gnnstore": {}}}')
    (problem,) = PartitionsReader.open(other / "partitions" / "a").problems()
    assert problem.path == str(other / "zarr.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(rows_per_partition=200), "rows for 1000 nodes in 4 partitions, none"),
        (lambda m: m["arrays"].pop(), "it lists the arrays ["),
        (
            lambda m: next(a for a in m["arrays"] if a["path"] == "order").update(dtype="uint32"),
            "the array 'order' is paged uint32 [1000]; expected paged int32 or int64 [1000]",
        ),
        (
            lambda m: m["nodes"].update(z=m["nodes"].pop("x")),
            "'nodes/x' is not the node attribute 'z'",
        ),
    ],
)
def test_manifests_that_make_no_sense(
    original: Path, tmp_path: Path, change: Any, message: str
) -> None:
    unit = partition(original, 4, output=tmp_path / "unit")
    if "array 'order'" in message:
        metadata = unit / "order" / "zarr.json"
        metadata.write_text(metadata.read_text().replace("int32", "uint32"))
    reseal(unit, change)
    with pytest.raises(CorruptStoreError) as caught:
        PartitionsReader.open(unit)
    assert message in str(caught.value)
