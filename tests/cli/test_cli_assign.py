"""`gnnstore assign`; what `inspect`, `verify`, `gc` and `rm` say of assignments."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import GraphWriter
from gnnstore.formats import StoreReader
from gnnstore.formats.assignments import AssignmentReader
from gnnstore.graph.sizes import StoreSizes
from gnnstore.partitions.assign import PartsBuilder
from gnnstore.testing.graphs import random_graph, write_store
from tests.support.hetero import hetero_store
from tests.support.hostile import reseal
from tests.support.stores import assert_same_files


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(400, 2000, seed=5, feature_dim=3, num_classes=7)
    return graph.write(tmp_path_factory.mktemp("assign") / "s.gnn")


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "s.gnn")


def test_an_assignment_from_end_to_end(run: Any, store: Path, original: Path) -> None:
    asked = ("--parts", "7", "--hops", "2")
    estimate = run("assign", store, *asked, "--estimate", "--json").document["estimate"]
    assert estimate["path"] == str(store / "assignments" / "parts-7")
    assert 20 < estimate["nodes_per_seed"] < 40
    assert estimate["topology"] == "memory"
    assert estimate["memory_bytes"] > 400 * 2 + 7 * 400 / 8
    assert "Assigning would take about" in run("assign", store, *asked, "--estimate").stdout
    assert_same_files(store, original)

    done = run("assign", store, *asked, "--seed", "7", "--json")
    assert done.status == 0, done.stderr
    document = done.document
    path = store / "assignments" / "parts-7"
    assert (document["path"], document["num_seeds"]) == (str(path), 240)
    assert document["part_seeds"] == {"least": 34, "most": 35}
    assert (document["num_hops"], document["seed"], document["input_nodes"]) == (2, 7, "train")
    assert 34 < document["part_nodes"]["least"] <= document["part_nodes"]["most"] <= 400
    sizes = np.bincount(AssignmentReader.open(path).parts())
    assert sizes.tolist() == [35, 35, 34, 34, 34, 34, 34][: len(sizes)]

    (listed,) = run("inspect", store, "--json").document["assignments"]
    assert (listed["name"], listed["problem"]) == ("parts-7", None)
    assert "parts-7" in run("inspect", store).stdout
    for words in ([store, "--assignment", "parts-7"], [path]):
        shown = run("inspect", *words, "--json").document
        assert shown["part_nodes"] == document["part_nodes"]
    assert "7, of at most 35 seeds" in run("inspect", path).stdout
    assert run("inspect", path, "--stats").status == 2
    for place in (store, path):
        assert run("verify", place, "--level", "full").status == 0
    again = run("assign", store, *asked)
    assert (again.status, "pass --overwrite" in again.stderr) == (2, True)
    assert run("assign", store, *asked, "--seed", "7", "--overwrite").status == 0
    assert AssignmentReader.open(path).uuid == document["uuid"]

    removed = run("rm", store, "--assignment", "parts-7", "--json")
    assert (removed.status, removed.document["assignment"]) == (0, "parts-7")
    assert_same_files(store, original)


def test_seeds_of_several_types(run: Any, tmp_path: Path) -> None:
    store = hetero_store(tmp_path / "typed.gnn").path
    named = "author:all,paper:train"
    words = ("--parts", "3", "--hops", "2", "--split", named, "--name", "both")
    done = run("assign", store, *words)
    assert done.status == 0, done.stderr
    assert 'seeds_of="both"' in done.stdout
    found = run("inspect", store, "--assignment", "both", "--json").document
    trained = run("assign", store, "--parts", "1", "--hops", "1", "--json").document
    assert (found["input_nodes"], trained["input_nodes"]) == (named, "paper:train")
    assert found["num_seeds"] == trained["num_seeds"] + 35
    assert run("verify", store, "--level", "full").status == 0


def test_what_is_refused(run: Any, store: Path, tmp_path: Path) -> None:
    for words, status, message in (
        (["--parts", "0"], 2, "--parts 0: expected 1 to 65535"),
        (["--parts", "65536"], 2, "--parts 65536: expected 1 to 65535"),
        (["--parts", "241"], 2, "'train' has 240 seeds, and each part has at least one; give"),
        (["--hops", "0"], 2, "--hops 0: expected the hops of a batch, at least 1"),
        (["--seed", str(2**64)], 2, "seed must be in [0, 2^64)"),
        (["--split", "labelled"], 3, "'labelled'"),
        (["--name", "../a"], 2, "'../a' is not a name of a seed assignment"),
        (["--memory", "1MB"], 2, "neighbourhoods that wait"),
        (["--memory", "1MB", "--estimate"], 2, "raise --memory by at least"),
    ):
        done = run("assign", store, "--parts", "2", "--hops", "1", *words)
        assert (done.status, message in done.stderr) == (status, True), (words, done.stderr)
        assert not (store / "assignments").exists()
    assert run("assign", store).status == 2
    assert run("rm", store, "--assignment", "none").status == 3
    both = run("rm", store, "--assignment", "a", "--packed", "b")
    assert (both.status, "name one thing to remove" in both.stderr) == (2, True)
    assert run("inspect", store, "--assignment", "none").status == 3
    edges = np.array([[0, 1, 2], [1, 2, 3]])
    splits = {"train": np.array([], np.int64)}
    small = write_store(tmp_path / "small.gnn", edges, num_nodes=4, splits=splits)
    done = run("assign", small, "--parts", "1", "--hops", "1")
    assert (done.status, "'train' has no nodes, so there is" in done.stderr) == (1, True)
    assert run("assign", small, "--parts", "1", "--hops", "1", "--split", "all").status == 0


def test_stores_of_the_parts(run: Any, store: Path, tmp_path: Path) -> None:
    """An assignment that is there is used; each store is sound, and is like any other."""
    output = tmp_path / "parts"
    words = ("assign", store, "--parts", "3", "--hops", "2")
    full = (*words, "--closure", "full", "--output", output, "--json")
    estimate = run(*full, "--estimate").document["closure"]
    assert estimate["path"] == str(output)
    assert estimate["memory_bytes"] > 2 * 3 * 400 / 8 + 8 * 400
    assert not output.exists()

    first = run(*words, "--json").document
    done = run(*full)
    assert done.status == 0, done.stderr
    assert done.document["uuid"] == first["uuid"]
    made = [output / f"part-{part}.gnn" for part in range(3)]
    assert done.document["stores"] == list(map(str, made))
    assert "the splits 'valid', 'test' are left out of the parts" in done.stderr
    for path, size in zip(made, (80, 80, 80), strict=True):
        assert run("verify", path, "--level", "full").status == 0
        document = run("inspect", path, "--json").document
        assert document["graph"]["node_types"][0]["splits"] == {"train": size}
    shown = run("inspect", made[1]).stdout
    assert re.search(r"part +1 of 3, with 2 hops\n +of the store +[0-9a-f-]{36}\n", shown)

    before = [path.stat().st_mtime_ns for path in made]
    again = run(*full)
    assert (again.status, f"{made[0]} exists" in again.stderr) == (2, True)
    shutil.rmtree(made[1])
    assert run(*full, "--resume").status == 0
    after = [path.stat().st_mtime_ns for path in made]
    assert [after[0], after[2]] == [before[0], before[2]]
    uuids = [StoreReader.open(path).uuid for path in made]
    assert run(*full, "--overwrite").status == 0
    assert [StoreReader.open(path).uuid for path in made] == uuids
    other = run(*full[:-1], "--seed", "9", "--resume")
    assert (other.status, "parts-3 exists" in other.stderr) == (2, True)

    # Parts of an assignment to more parts do not stay among those of one to fewer.
    fewer = ("assign", store, "--parts", "1", *full[4:])
    shutil.rmtree(made[0])
    for more in ([], ["--resume"]):
        kept = run(*fewer, *more)
        said = f"{made[1]} exists, which is not among the 1 part; choose another output, or pass"
        assert (kept.status, said in kept.stderr) == (2, True), kept.stderr
    (output / "part-7.gnn").mkdir()
    kept = run(*fewer, "--overwrite")
    assert (kept.status, "part-7.gnn exists, which is not among" in kept.stderr) == (2, True)
    assert {path.name for path in output.iterdir()} >= {"part-1.gnn", "part-2.gnn", "part-7.gnn"}
    (output / "part-7.gnn").rmdir()
    assert run(*fewer, "--overwrite").status == 0
    assert [path.name for path in output.iterdir()] == ["part-0.gnn"]


def test_an_interruption_of_stores_of_parts(
    run: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is finished stays, what is begun can be resumed, and the result is the same."""
    full = ("assign", store, "--parts", "2", "--hops", "1", "--closure", "full", "--output")
    assert run(*full, tmp_path / "sound").status == 0
    sound = [StoreReader.open(tmp_path / "sound" / f"part-{part}.gnn").uuid for part in (0, 1)]

    def interrupt(writer: GraphWriter, *given: Any, **options: Any) -> None:
        if options["part"] == 1:
            raise KeyboardInterrupt
        set_part(writer, *given, **options)

    set_part, output = GraphWriter.set_part, tmp_path / "parts"
    with monkeypatch.context() as patch:
        patch.setattr(GraphWriter, "set_part", interrupt)
        assert run(*full, output).status == 130
    assert (output / "part-0.gnn").exists()
    assert not (output / "part-1.gnn").exists()
    assert run(*full, output, "--resume").status == 0
    assert [StoreReader.open(output / f"part-{part}.gnn").uuid for part in (0, 1)] == sound
    assert sorted(path.name for path in output.iterdir()) == ["part-0.gnn", "part-1.gnn"]


def test_stores_of_parts_that_are_refused(run: Any, store: Path, tmp_path: Path) -> None:
    typed = hetero_store(tmp_path / "typed.gnn").path
    (tmp_path / "file").write_text("")
    full = ("--closure", "full", "--output")
    split = ("--split", "paper:train")
    for given, words, status, message in (
        (typed, [*full, tmp_path / "p", *split], 2, "works on graphs without types only"),
        (store, ["--closure", "full"], 2, "name a directory for them, --output DIR"),
        (store, ["--output", tmp_path / "p"], 2, "goes with --closure full"),
        (store, ["--resume"], 2, "--resume goes with --closure full"),
        (store, [*full, store / "parts"], 2, "is the store that is read, or in it"),
        (store, [*full, tmp_path / "file"], 2, "file is not a directory"),
        (store, [*full, tmp_path / "p", "--memory", "50MB"], 2, "writing 2 parts"),
        (store, [*full, tmp_path / "p", "--memory", "50MB"], 2, "of the --memory budget"),
        (store, [*full, tmp_path / "p", "--memory", "50MB"], 2, "to do: raise --memory by at"),
    ):
        done = run("assign", given, "--parts", "2", "--hops", "1", *words)
        assert (done.status, message in done.stderr) == (status, True), (words, done.stderr)
        assert not (tmp_path / "p").exists()
        assert not (store / "assignments").exists()
        assert "fewer parts" not in done.stderr  # which would not help
    words = ["--hops", "1", *full, tmp_path / "p", "--memory", "67.12MB"]
    many = run("assign", store, "--parts", "240", *words)
    assert (many.status, "or assign to fewer parts" in many.stderr) == (2, True), many.stderr


def test_a_topology_that_does_not_fit(
    run: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read from disk, and the assignment is the same."""
    words = ("assign", store, "--parts", "3", "--hops", "2", "--json", "--memory", "100MB")
    first = run(*words).document
    sizes = replace(StoreSizes.from_schema(StoreReader.open(store).schema), topology_bytes=2**30)
    monkeypatch.setattr(StoreSizes, "from_schema", lambda *_: sizes)
    assert run(*words, "--estimate").document["estimate"]["topology"] == "disk"
    done = run(*words, "--overwrite")
    assert (done.status, done.document["uuid"]) == (0, first["uuid"])
    few = run(*words[:-1], "30MB", "--overwrite")
    assert (few.status, "in-neighbours that are read" in few.stderr) == (2, True)


def test_an_interruption_leaves_nothing(
    run: Any, store: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PartsBuilder, "join", interrupt)
    assert run("assign", store, "--parts", "2", "--hops", "1").status == 130
    assert_same_files(store, original)


def test_damage_is_found(run: Any, store: Path) -> None:
    assert run("assign", store, "--parts", "4", "--hops", "1").status == 0
    unit = store / "assignments" / "parts-4"
    file = unit / "part" / "c.0"
    sound = file.read_bytes()
    file.write_bytes(b"\1" + sound[1:])
    found = run("verify", store, "--json").document
    assert [problem["path"] for problem in found["problems"]] == [str(file)]
    for value, message in ((9, "is of part 9, and there are 4"), (1, "part 0 has ")):
        parts = AssignmentReader.open(unit)
        at = parts.paged(parts.manifest.spec("part")).load().tolist().index(0)
        file.write_bytes(sound[: 2 * at] + bytes([value, 0]) + sound[2 * at + 2 :])
        reseal(unit)
        assert run("verify", unit).status == 0
        (problem,) = run("verify", unit, "--level", "full", "--json").document["problems"]
        assert message in problem["message"]
        file.write_bytes(sound)
        reseal(unit)
    reseal(unit, lambda own: own.update(num_parts=3))
    (listed,) = run("inspect", store, "--json").document["assignments"]
    assert "contradict one another" in listed["problem"]
