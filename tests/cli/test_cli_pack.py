"""`gnnstore pack` and `rm`; what `inspect`, `verify` and `gc` say of packed epochs."""

from __future__ import annotations

import errno
import json
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch_geometric")

import gnnstore
from gnnstore.budget import limits
from gnnstore.disk.profile import save_profile
from gnnstore.errors import StorageError
from gnnstore.packing import on_ray
from gnnstore.testing.graphs import random_graph
from gnnstore.tools import batches
from tests.support.disks import usual_profile
from tests.support.faults import inject
from tests.support.stores import assert_same_files

PACK = (
    "--num-neighbors",
    "4,4",
    "--batch-size",
    "50",
    "--superbatch",
    "3",
    "--cache-bytes",
    "100kB",
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(1000, 8000, seed=5, feature_dim=100, num_classes=7)
    return graph.write(tmp_path_factory.mktemp("pack") / "s.gnn")


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "s.gnn")


def test_packed_epochs_from_end_to_end(run: Any, store: Path, original: Path) -> None:
    done = run("pack", store, "--name", "base", *PACK, "--epochs", "2", "--seed", "7", "--json")
    assert done.status == 0
    document = done.document
    assert (document["name"], document["epochs"], document["batches_per_epoch"]) == ("base", 2, 12)
    assert (document["seed"], document["num_neighbors"], document["shuffle"]) == (7, [4, 4], True)
    packed = Path(document["path"])
    assert packed == store / "plans" / "base"
    estimate = document["estimate"]
    assert 0.7 < document["disk_bytes"] / estimate["total_bytes"] < 1.3
    assert estimate["seconds"] is None
    assert "packing takes about" in done.stderr

    options: dict[str, Any] = {"batch_size": 50, "shuffle": True, "seed": 7}
    loader = gnnstore.NeighborLoader(store, [4, 4], "train", packed="base", **options)
    assert sum(batch.batch_size for batch in loader) == 600

    (listed,) = run("inspect", store, "--json").document["packed"]
    assert (listed["name"], listed["problem"]) == ("base", None)
    assert "Packed epochs" in run("inspect", store).stdout
    assert run("verify", store).status == 0
    assert run("verify", packed, "--json").document["ok"]
    group = store / "plans" / "zarr.json"
    assert group.exists()

    removed = run("rm", store, "--packed", "base", "--json")
    assert removed.status == 0
    assert removed.document["removed_bytes"] > document["disk_bytes"]
    assert_same_files(store, original)
    assert sorted(p.name for p in store.iterdir()) == sorted(p.name for p in original.iterdir())
    assert run("inspect", store, "--json").document["packed"] == []


def test_packed_epochs_elsewhere(run: Any, store: Path, tmp_path: Path, original: Path) -> None:
    output = tmp_path / "elsewhere"
    done = run("pack", store, "--output", output, *PACK, "--input-nodes", "all", "--no-shuffle")
    assert done.status == 0
    assert "20 an epoch" in done.stdout
    assert str(output) in done.stdout
    assert not (store / "plans").exists()
    assert_same_files(store, original)
    assert run("inspect", output, "--json").document["name"] == "elsewhere"
    assert "20 an epoch" in run("inspect", output).stdout


def test_rows_for_a_device(run: Any, store: Path, tmp_path: Path) -> None:
    words = ("--num-neighbors", "3,2", "--batch-size", "40", "--output", tmp_path / "unit")
    done = run("pack", store, *words, "--device-cache", "4kB", "--cache-bytes", "2kB", "--json")
    assert done.status == 0, done.stderr
    assert done.document["device_rows"] > 0
    assert "rows on the device" in run("inspect", tmp_path / "unit").stdout
    assert run("verify", tmp_path / "unit", "--level", "full").status == 0


def test_what_is_refused(run: Any, store: Path, tmp_path: Path) -> None:
    for arguments, status, message in (
        ([], 2, "--name in the store, or an --output"),
        (["--name", "a", "--output", tmp_path / "b"], 2, "--name in the store, or an --output"),
        (["--name", "../a"], 2, "'../a' is not a name of a directory of packed epochs"),
        (["--name", "a", "--disk", "10kB"], 2, "raise --disk by at least"),
        (["--name", "a", "--memory", "1MB"], 2, "raise --memory by at least"),
        (["--name", "a", "--input-nodes", "nothing"], 3, "no split 'nothing'"),
        (["--name", "a", "--batch-size", "700", "--drop-last"], 2, "there is nothing to pack"),
        (["--name", "a", "--num-neighbors", "x"], 2, "not a list of fan-outs"),
        (["--output", tmp_path / "no" / "where"], 3, "does not exist"),
    ):
        done = run("pack", store, *PACK, *arguments)
        assert (done.status, message in done.stderr) == (status, True), (arguments, done.stderr)
        assert not (store / "plans").exists()


def test_a_budget_of_disk_that_asks_for_segments(run: Any, store: Path) -> None:
    ample = run("pack", store, "--name", "ample", *PACK, "--superbatch", "12", "--json").document
    assert (ample["segment"], ample["num_segments"]) == (1, 0)
    budget = int(0.8 * ample["disk_bytes"])
    arguments = (*PACK, "--superbatch", "12", "--disk", budget)
    done = run("pack", store, "--name", "tight", *arguments, "--json")
    assert done.status == 0
    document = done.document
    assert document["disk_bytes"] <= budget
    assert document["segment"] > 1
    assert document["num_segments"] == -(-12 // document["segment"])
    assert document["shared_rows"] > 0
    estimate = document["estimate"]
    assert estimate["segment"] == document["segment"]
    assert 0.8 < document["disk_bytes"] / estimate["total_bytes"] < 1.2
    assert "rows shared by" in done.stderr
    (listed,) = (
        packed
        for packed in run("inspect", store, "--json").document["packed"]
        if packed["name"] == "tight"
    )
    assert listed["segment"] == document["segment"]
    assert "segments of" in run("inspect", store / "plans" / "tight").stdout
    assert run("verify", store).status == 0
    options: dict[str, Any] = {"batch_size": 50, "shuffle": True, "seed": 0}
    loader = gnnstore.NeighborLoader(store, [4, 4], "train", packed="tight", **options)
    assert sum(batch.batch_size for batch in loader) == 600
    assert run("rm", store, "--packed", "tight").status == 0


def test_a_budget_of_disk_that_nothing_fits(run: Any, store: Path) -> None:
    done = run("pack", store, "--name", "base", *PACK, "--disk", "200kB")
    assert done.status == 2
    assert "even with rows shared by 3 batches at a time" in done.stderr
    assert not (store / "plans").exists()


def test_an_estimate_writes_nothing(run: Any, store: Path, original: Path) -> None:
    profile = usual_profile(
        store,
        sequential_read_bytes_per_second=1e6,
        sequential_write_bytes_per_second=1e6,
        random_reads_per_second={4096: {1: 1000.0}, 65536: {1: 500.0}},
    )
    save_profile(profile)
    done = run("pack", store, "--name", "base", *PACK, "--estimate", "--json")
    assert done.status == 0
    estimate = done.document["estimate"]
    moved = estimate["read_bytes"] + 2 * estimate["total_bytes"]
    assert estimate["seconds"] == pytest.approx(moved / 1e6)
    assert "on disk" in run("pack", store, "--name", "base", *PACK, "--estimate").stdout
    assert_same_files(store, original)


def test_a_name_that_is_taken(run: Any, store: Path) -> None:
    assert run("pack", store, "--name", "base", *PACK).status == 0
    done = run("pack", store, "--name", "base", *PACK)
    assert done.status == 2
    assert "or pass --overwrite" in done.stderr
    assert run("pack", store, "--name", "base", *PACK, "--overwrite", "--seed", "5").status == 0
    (packed,) = run("inspect", store, "--json").document["packed"]
    assert packed["seed"] == 5
    assert sorted(p.name for p in (store / "plans").iterdir()) == ["base", "zarr.json"]


def test_interrupted_and_resumed(run: Any, store: Path, tmp_path: Path) -> None:
    assert run("pack", store, "--output", tmp_path / "whole", *PACK).status == 0
    with inject("fallocate", errno=errno.ENOSPC, skip=2, times=-1):
        done = run("pack", store, "--name", "base", *PACK)
    assert done.status == 5
    assert "no space left" in done.stderr
    assert "--resume" in done.stderr
    (left,) = run("gc", store, "--json").document["leftovers"]
    assert left["state"] == "resumable"
    assert run("verify", store).status == 0
    assert run("inspect", store, "--json").document["packed"] == []
    done = run("pack", store, "--name", "base", *PACK, "--resume")
    assert done.status == 0
    assert "resuming with the " in done.stderr
    assert_same_files(store / "plans" / "base", tmp_path / "whole")
    assert run("gc", store, "--json").document["leftovers"] == []


def test_leftovers_are_removed(run: Any, store: Path, original: Path) -> None:
    with inject("fallocate", errno=errno.ENOSPC, skip=2, times=-1):
        run("pack", store, "--name", "base", *PACK)
    (found,) = run("gc", store.parent, "--yes", "--json").document["leftovers"]
    assert found["action"] == "removed"
    assert [p.name for p in (store / "plans").iterdir()] == ["zarr.json"]
    assert run("verify", store).status == 0


def test_removing_what_is_not_there(run: Any, store: Path) -> None:
    done = run("rm", store, "--packed", "base")
    assert (
        done.status,
        "no directory of packed epochs 'base'; the store has none" in done.stderr,
    ) == (3, True)
    assert run("rm", store, "--packed", "../../etc").status == 2
    assert run("rm", store.parent / "none.gnn", "--packed", "base").status == 3
    assert run("rm", store).status == 2


def test_packed_epochs_that_are_damaged(run: Any, store: Path) -> None:
    assert run("pack", store, "--name", "base", *PACK).status == 0
    path = store / "plans" / "base" / "zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["gnnstore_plan"]["seed"] = 99
    path.write_text(json.dumps(document, indent=1))
    assert run("verify", store).status == 1
    (packed,) = run("inspect", store, "--json").document["packed"]
    assert "altered" in packed["problem"]
    assert "damaged" in run("inspect", store).stdout
    assert run("rm", store, "--packed", "base").status == 0


def test_a_store_that_cannot_be_written(
    run: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    done = run("pack", store, "--name", "base", *PACK)
    assert done.status == 5
    assert "give --output" in done.stderr


def test_parts_from_end_to_end(run: Any, store: Path, tmp_path: Path) -> None:
    fixed = (*PACK, "--cache-by", "frequency", "--seed", "7")
    output = tmp_path / "new" / "parts"
    for number in (1, 0):
        done = run("pack", store, *fixed, "--output", output, "--part", f"{number}/2", "--json")
        assert done.status == 0, done.stderr
        document = done.document
        assert (document["part"], document["num_parts"], document["num_batches"]) == (number, 2, 6)
        assert document["path"] == str(output / f"part-0000{number}-of-00002")
    done = run("pack", store, *fixed, "--output", output, "--part", "1/2")
    assert (done.status, "is there already" in done.stderr) == (0, True)
    assert "6 batches in part 1 of 2" in done.stdout
    listed = run("inspect", output, "--json").document
    assert (listed["name"], listed["num_parts"], listed["num_batches"]) == ("parts", 2, 12)
    assert listed["path"] == str(output)
    assert run("verify", output, "--level", "full").status == 0
    loader = gnnstore.NeighborLoader(
        store, [4, 4], "train", packed=output, batch_size=50, shuffle=True, seed=7
    )
    assert sum(batch.batch_size for batch in loader) == 600
    with inject("fallocate", errno=errno.ENOSPC, skip=1, times=-1):
        run("pack", store, *fixed, "--output", tmp_path / "full", "--part", "1/2")
    (left,) = run("gc", tmp_path / "full", "--json").document["leftovers"]
    assert left["store"] == str(tmp_path / "full" / "part-00001-of-00002")
    assert run("gc", tmp_path / "full", "--yes", "--json").status == 0
    shutil.rmtree(output / "part-00001-of-00002")
    assert "part of 2 not there: 1" in run("inspect", output).stderr
    assert run("verify", output).status == 1


def test_parts_that_are_refused(
    run: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    output = tmp_path / "parts"
    cases: tuple[tuple[list[str], str], ...] = (
        (["--part", "1"], "'1' is not a part; write I/N"),
        (["--part", "2/2"], "part 2 of 2: parts are numbered from 0"),
        (["--part", "0/99"], ": 12 batches in all"),
        (["--part", "0/2", "--cache-by", "belady"], "choose --cache-by frequency"),
        (["--part", "0/2", "--segment", "4"], "leave --segment 4 out"),
        (["--part", "0/2", "--estimate"], "estimate the whole without --part"),
        (["--part", "0/2", "--name", "base"], "--name in the store, or an --output"),
        (["--part", "0/2", "--ray", "2"], "leave out one"),
        (["--ray", "2"], "--ray needs --memory SIZE"),
        (["--ray", "2", "--memory", "1GB"], "pip install 'gnnstore[ray]'"),
        (["--ray", "99", "--memory", "1GB"], ": 12 batches in all"),
    )
    for arguments, message in cases:
        words = ("--cache-by", "degree", "--output", output)
        done = run("pack", store, *PACK, *words, *arguments)
        assert (done.status, message in done.stderr) == (2, True), (arguments, done.stderr)
        assert not output.exists()
    assert "give --output" in run("pack", store, *PACK, "--name", "base", "--part", "0/2").stderr
    assert not (store / "plans").exists()


def test_tasks_that_do_not_see_what_they_need(
    run: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks run here, one after the other, in the place of a cluster."""
    seen: dict[str, Any] = {}

    def run_here(task: Any, num_tasks: int, *, on_done: Any, **given: Any) -> None:
        seen.update(given)
        monkeypatch.setattr(limits, "group_limit_bytes", lambda: None)  # as on the nodes
        task = pickle.loads(pickle.dumps(task))  # noqa: S301 - our own
        for number in range(num_tasks):
            on_done(number, seen.get("host") or task(number))

    monkeypatch.setattr(on_ray, "run_on_ray", run_here)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(limits, "group_limit_bytes", lambda: 200_000_000)  # here
    words = (*PACK, "--cache-by", "degree", "--ray", "2", "--memory", "300MB", "--threads", "1")
    done = run("pack", "s.gnn", *words, "--output", "parts", "--json")
    assert done.status == 0, done.stderr
    assert (done.document["num_parts"], done.document["num_batches"]) == (2, 12)
    assert done.document["path"] == str(tmp_path / "parts")
    assert {name: seen[name] for name in ("num_cpus", "memory_bytes")} == {
        "num_cpus": 1,
        "memory_bytes": 300_000_000,
    }
    assert gnnstore.open_packed("parts").epochs == 1
    seen["host"] = "node7"
    done = run("pack", "s.gnn", *words, "--output", "elsewhere")
    assert (done.status, "part 0 was written on node7, and is not visible" in done.stderr) == (
        3,
        True,
    )
    seen.clear()
    here = gnnstore.open("s.gnn")
    monkeypatch.setattr(batches, "open_store", lambda *_, **__: here)
    done = run("pack", "not-on-the-nodes.gnn", *words, "--output", "elsewhere")
    assert done.status == 3
    assert "not-on-the-nodes.gnn: the store is not visible on" in done.stderr


def test_a_node_that_died() -> None:
    class RayError(Exception):
        pass

    names = ("RayTaskError", "WorkerCrashedError", "OutOfMemoryError", "NodeDiedError")
    errors = {name: type(name, (RayError,), {}) for name in names}

    def get(_: Any) -> None:
        raise errors["NodeDiedError"]("node 7 died\nand more")

    ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=RayError, **errors))
    with pytest.raises(StorageError, match=r"was lost on the cluster \(node 7 died\); .* repeat"):
        on_ray._result(ray, None)
