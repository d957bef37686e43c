"""A run directory ends with its run, and what a dead run has left ends with the next one."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gnnstore import _core
from gnnstore.disk.spool import RunDirectory, default_parent, sweep_stale
from gnnstore.errors import NoSpaceError, StorageError
from gnnstore.formats.container.workdir import find_leftovers
from tests.support.effort import choose

NAME = ".gnnstore-run-0123abcd"
DAY_SECONDS = 24 * 3600


def fill(path: Path) -> None:
    (path / "below" / "more").mkdir(parents=True)
    (path / "below" / "more" / "file").write_bytes(bytes(1000))
    (path / "file").write_bytes(bytes(100))


def leave(parent: Path, name: str = NAME) -> Path:
    """Leave what a run leaves that is killed."""
    fill(parent / name)
    return parent / name


def make_old(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    for entry in [path, *path.rglob("*")]:
        os.utime(entry, (then, then))


def test_it_is_there_and_then_it_is_gone(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, purpose="sampled subgraphs") as run:
        assert run.path.parent == tmp_path
        assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
        fill(run.path)
        (run.path / "link").symlink_to(tmp_path)
        (run.path / "broken").symlink_to(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
    run.close()
    assert tmp_path.exists()


def test_a_forgotten_one_is_removed(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, purpose="tests")
    fill(run.path)
    del run
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def in_another_process(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    program = "import os, sys\nfrom pathlib import Path\n"
    program += "from gnnstore.disk.spool import RunDirectory, sweep_stale\n" + code
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_end_of_the_interpreter_removes_it(tmp_path: Path) -> None:
    """However it ends, each time in a fork of its own."""
    code = """
for end in sys.argv[2:]:
    if (child := os.fork()) == 0:
        break
    os.waitpid(child, 0)
else:
    sys.exit()
run = RunDirectory.create(Path(sys.argv[1]), purpose="tests")
(run.path / "file").write_text("here")
print(run.path.exists())
exec(end)
"""
    ends = ["", "raise KeyboardInterrupt", *choose([], ["raise SystemExit(3)", "1 / 0"])]
    assert in_another_process(code, tmp_path, *ends).stdout == "True\n" * len(ends)
    assert list(tmp_path.iterdir()) == []


def test_another_process_does_not_sweep_a_living_one(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, purpose="tests") as run:
        # However old it looks, and whoever sweeps: it is locked.
        make_old(run.path, 10 * DAY_SECONDS)
        done = in_another_process("print(sweep_stale(Path(sys.argv[1])))", tmp_path)
        assert done.stdout == "[]\n"
        assert sweep_stale(tmp_path) == []
        (found,) = find_leftovers(tmp_path)
        assert (found.path, found.state, found.final) == (run.path, "running", None)
        with RunDirectory.create(tmp_path, purpose="tests") as other:
            assert other.path != run.path
        assert run.path.exists()


def test_a_forked_child_does_not_remove_it(tmp_path: Path) -> None:
    code = """
run = RunDirectory.create(Path(sys.argv[1]), purpose="tests")
for ending in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        exec(ending)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert run.path.exists(), ending
    assert sweep_stale(run.path.parent) == []  # the child has not taken the lock along
print("kept")
"""
    endings = ["sys.exit(0)", "run.close()", *choose([], ["os._exit(0)", "del run"])]
    done = in_another_process(code, tmp_path, *endings)
    assert (done.stdout, done.stderr) == ("kept\n", "")
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_run_left_is_swept_by_the_next(tmp_path: Path) -> None:
    left = [leave(tmp_path), leave(tmp_path, NAME.replace("0123abcd", "ffffffff"))]
    states = {found.path: (found.state, found.num_bytes) for found in find_leftovers(tmp_path)}
    assert states == dict.fromkeys(left, ("stale", 1100))
    with RunDirectory.create(tmp_path, purpose="tests") as run:
        assert list(tmp_path.iterdir()) == [run.path]


@pytest.mark.parametrize(("home", "at"), [(Path, "mkdir"), (fcntl, "flock")])
def test_an_interrupt_while_it_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Any, at: str
) -> None:
    real = getattr(home, at)

    def interrupted(*given: Any, **options: Any) -> None:
        real(*given, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(home, at, interrupted)
        with pytest.raises(KeyboardInterrupt):
            RunDirectory.create(tmp_path, purpose="tests")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_it_is_removed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path, purpose="tests")
    fill(run.path)

    def interrupted(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("gnnstore._core.remove_tree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.close()
    assert list(tmp_path.iterdir()) == []


def test_what_others_made_is_left_alone(tmp_path: Path) -> None:
    for name in (".gnnstore-run-0123", ".gnnstore-run-0123456789", NAME.lstrip("."), "elsewhere"):
        leave(tmp_path, name)
    (tmp_path / NAME.replace("0123abcd", "11111111")).symlink_to(tmp_path / "elsewhere")
    (tmp_path / NAME.replace("0123abcd", "22222222")).write_text("a file")
    before = sorted(tmp_path.rglob("*"))
    assert sweep_stale(tmp_path) == []
    assert list(find_leftovers(tmp_path)) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    fill(precious)
    left = leave(tmp_path)
    (left / "link").symlink_to(precious)
    (left / "below" / "link").symlink_to(precious)
    before = sorted(precious.rglob("*"))
    assert sweep_stale(tmp_path) == [left]
    assert sorted(precious.rglob("*")) == before


def test_a_parent_that_is_not_there_is_named(tmp_path: Path) -> None:
    parent = tmp_path / "none"
    message = rf"cannot make a directory for tests \(any .* will do\): {parent}: No such file"
    with pytest.raises(StorageError, match=message):
        RunDirectory.create(parent, purpose="tests")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Not a directory"):
        RunDirectory.create(tmp_path / "file", purpose="tests")


@pytest.mark.parametrize("access", [True, False])
def test_runs_spill_beside_the_store_or_where_temporary_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, access: bool
) -> None:
    asked = []

    def answer(path: Path, mode: int) -> bool:
        asked.append((path, mode))
        return access

    monkeypatch.setattr(os, "access", answer)
    monkeypatch.setattr(tempfile, "tempdir", "/somewhere")
    expected = tmp_path if access else Path("/somewhere")
    assert default_parent(tmp_path / "a.gnn") == expected
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", failing(code))
        with pytest.raises(NoSpaceError, match=r"for tests .*Free some space or choose an"):
            RunDirectory.create(tmp_path, purpose="tests")
    assert list(tmp_path.iterdir()) == []


def test_many_make_and_sweep_at_once(tmp_path: Path) -> None:
    """Nobody loses a directory to another's sweep."""
    barrier = threading.Barrier(4)

    def work(_: int) -> None:
        barrier.wait()
        for _ in range(choose(15, 50)):
            with RunDirectory.create(tmp_path, purpose="tests") as run:
                (run.path / "file").write_text("here")
                assert run.path not in sweep_stale(tmp_path)
                assert (run.path / "file").read_text() == "here"

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_said_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDirectory.create(tmp_path, purpose="tests")
    fill(run.path)
    monkeypatch.setattr(_core, "remove_tree", lambda _: None)
    run.close()
    (left,) = tmp_path.iterdir()
    assert f"cannot remove {left} completely" in caplog.text
    monkeypatch.undo()
    assert [found.state for found in find_leftovers(tmp_path)] == ["stale"]
    assert sweep_stale(tmp_path) == [left]
