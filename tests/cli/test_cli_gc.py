"""`gnnstore gc`: lists what interrupted work left, removes it when told, and no more."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import from_rmat
from gnnstore.disk.spool import RunDirectory
from gnnstore.formats import StoreWriter
from gnnstore.formats.base.files import directory_bytes
from gnnstore.formats.container import workdir
from gnnstore.formats.tables import MANIFEST_FILE, SLOTS_FILE
from gnnstore.tools.commands import upkeep


def leave(directory: Path, name: str = "a.gnn") -> Path:
    """Leave what a conversion leaves that is killed after an array."""
    writer = StoreWriter(directory / name, fingerprint={"kind": "test"})
    with writer.paged("graph/a", name="a", row_shape=(), dtype="int64", num_rows=5000) as array:
        array.append(np.arange(5000))
    writer.abort(keep=True)
    return writer.temporary_path


def test_nothing_is_left(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("gc")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout == "No interrupted conversion or run left anything here.\n"


def test_it_lists_and_removes_only_when_told(run: Any, tmp_path: Path) -> None:
    left = leave(tmp_path)
    size = directory_bytes(left)
    os.utime(left, (1, 1))
    done = run("gc", tmp_path, "--json")
    (found,) = done.document["leftovers"]
    assert found["path"] == str(left)
    assert found["store"] == str(tmp_path / "a.gnn")
    assert (found["state"], found["num_bytes"], found["action"]) == ("resumable", size, "none")
    assert 0 <= found["age_seconds"] < 60  # the newest file counts
    assert done.document["removed_bytes"] == 0
    text = run("gc", tmp_path).stdout
    assert str(left) in text
    assert "Repeat the command of a resumable one with --resume" in text
    assert (
        ": repeat the command with --resume, or remove" in run("verify", tmp_path / "a.gnn").stderr
    )
    assert f"gnnstore gc {tmp_path} --yes\n" in text
    assert left.exists()
    done = run("gc", tmp_path, "--yes", "--json")
    assert done.document["leftovers"][0]["action"] == "removed"
    assert done.document["removed_bytes"] == size
    assert list(tmp_path.iterdir()) == []


def test_a_store_names_its_own_leftovers(run: Any, tmp_path: Path) -> None:
    output = from_rmat(tmp_path / "a.gnn", scale=4)
    ours, other = leave_beside(output), leave(tmp_path, "b.gnn")
    assert run("gc", output, "--yes").status == 0
    assert not ours.exists()
    assert other.exists()
    assert output.exists()
    assert run("gc", tmp_path / "b.gnn", "--yes").status == 0
    assert not other.exists()
    assert run("gc", tmp_path / "b.gnn").status == 3
    assert run("gc", tmp_path / "none").status == 3


def test_what_cannot_be_resumed_is_removed_only(run: Any, tmp_path: Path) -> None:
    (tmp_path / ".a.gnn.tmp-0123abcd").mkdir()
    text = run("gc", tmp_path).stdout
    assert "unfinished" in text
    assert f"gnnstore gc {tmp_path} --yes\n" in text
    assert "--resume" not in text


def test_what_is_removed_is_locked(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a conversion that goes on with it would lose its work."""
    half, removed = leave(tmp_path, "b.gnn"), []

    def remove(path: Path) -> None:
        with workdir.locked(path) as free:
            assert not free
        removed.append(path)
        shutil.rmtree(path)

    monkeypatch.setattr(upkeep, "remove", remove)
    assert run("gc", tmp_path / "b.gnn", "--yes").status == 0
    assert removed == [half]


def leave_beside(output: Path) -> Path:
    left = leave(output.parent, "c.gnn")
    return left.rename(output.parent / f".{output.name}.tmp-0123abcd")


@pytest.mark.parametrize("name", ["none", "none/none.gnn"])
def test_what_is_not_there(run: Any, tmp_path: Path, name: str) -> None:
    done = run("gc", tmp_path / name)
    assert (done.status, f"{name}: there is no such directory or store" in done.stderr) == (3, True)


def test_a_file_is_no_place_for_leftovers(run: Any, tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("")
    done = run("gc", tmp_path / "a.npz")
    assert (done.status, "is a file; name a store" in done.stderr) == (2, True)


def test_what_cannot_be_removed_is_named(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = leave(tmp_path)
    monkeypatch.setattr("gnnstore._core.remove_tree", lambda *_, **__: None)
    done = run("gc", tmp_path, "--yes")
    assert done.status == 5
    assert f"cannot remove {left}; check whose it is" in done.stderr
    assert left.exists()


def test_a_table_whose_creation_was_killed_is_found(run: Any, tmp_path: Path) -> None:
    names = {SLOTS_FILE, MANIFEST_FILE, f"{MANIFEST_FILE}.tmp"}
    left = tmp_path / ".t.emb.tmp-0123abcd"
    left.mkdir()
    for name in names:
        (left / name).write_bytes(b"x")
    (found,) = run("gc", tmp_path, "--json").document["leftovers"]
    assert (found["path"], found["state"]) == (str(left), "unfinished")
    assert run("gc", tmp_path, "--yes").status == 0
    assert list(tmp_path.iterdir()) == []


def test_a_running_conversion_is_left_alone(run: Any, tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.gnn") as writer:
        done = run("gc", tmp_path, "--yes", "--json")
        (found,) = done.document["leftovers"]
        assert (found["state"], found["action"]) == ("running", "none")
        assert writer.temporary_path.exists()


def test_a_store_that_was_set_aside_comes_back(run: Any, tmp_path: Path) -> None:
    output = from_rmat(tmp_path / "a.gnn", scale=4)
    aside = output.rename(tmp_path / ".a.gnn.old-0123abcd")
    (found,) = run("gc", tmp_path, "--json").document["leftovers"]
    assert found["state"] == "set aside"
    (found,) = run("gc", tmp_path, "--yes", "--json").document["leftovers"]
    assert found["action"] == "restored"
    assert output.exists()
    assert not aside.exists()


def test_what_a_killed_run_left_is_found(run: Any, tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, purpose="tests") as alive:
        left = tmp_path / f"{alive.path.name[:-8]}0123abcd"
        shutil.copytree(alive.path, left)
        (left / "subgraphs.values").write_bytes(bytes(5000))
        found = run("gc", tmp_path, "--json").document["leftovers"]
        states = {item["path"]: (item["state"], item["store"], item["action"]) for item in found}
        assert states == {
            str(left): ("stale", None, "none"),
            str(alive.path): ("running", None, "none"),
        }
        size = directory_bytes(left)
        done = run("gc", tmp_path, "--yes", "--json")
        assert done.document["removed_bytes"] == size == 5000
        assert list(tmp_path.iterdir()) == [alive.path]
    assert run("gc", tmp_path).stdout == "No interrupted conversion or run left anything here.\n"
