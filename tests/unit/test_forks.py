"""Processes that are forked off by one that has imported what they need."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forks import ForkServer, fork_server


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with fork_server(["colorsys"]) as server:
        yield server


def test_code_runs_as_python_runs_it(server: ForkServer, tmp_path: Path) -> None:
    code = """
import sys
print(__name__, sys.argv, "colorsys" in sys.modules, "wave" in sys.modules)
import atexit, os, wave
atexit.register(print, "at exit")
print(os.getcwd(), sorted(os.environ), sys.stdin.read() == "", file=sys.stderr)
"""
    for _ in range(2):  # the first leaves nothing behind
        done = server.run(code, tmp_path, 7, environment={"A": "1"})
        assert done.returncode == 0
        words = ["-c", str(tmp_path), "7"]
        assert done.stdout == f"__main__ {words} True False\nat exit\n"
        assert done.stderr.startswith(str(Path.cwd()))
        assert "'A'" in done.stderr
        assert "'PATH'" not in done.stderr
        assert done.stderr.endswith("True\n")


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("raise ValueError('so')", 1, "ValueError: so\n"),
        ("print(", 1, "SyntaxError: '(' was never closed\n"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
    ],
)
def test_how_it_ends(server: ForkServer, code: str, status: int, stderr: str) -> None:
    done = server.run(code)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.endswith(stderr) if stderr else done.stderr == ""


def test_a_talk(server: ForkServer) -> None:
    code = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    with server.start(code) as process:
        for word in ("one\n", "two\n"):
            process.stdin.write(word)
            process.stdin.flush()
            assert process.stdout.readline() == word.upper()
        with pytest.raises(RuntimeError, match=rf"wait for process {process.pid} before another"):
            server.start("pass")
        assert process.returncode is None
    assert process.returncode == 0


def test_memory_of_its_own(server: ForkServer) -> None:
    """What it writes to is charged to it when it begins, and not when it writes."""
    code = """
import re
from pathlib import Path
text = Path("/proc/self/smaps_rollup").read_text()
print(*(re.search(rf"{name}_Dirty: +([0-9]+)", text)[1] for name in ("Shared", "Private")))
"""
    shared, own = (
        [int(size) for size in server.run(code, own_memory=is_own).stdout.split()]
        for is_own in (False, True)
    )
    assert shared[0] > shared[1]
    assert own[0] < own[1] / 5  # what can only be read is shared still
    assert own[1] > 0.8 * sum(shared)


def test_what_it_reads_and_where_it_is(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = server.run("import os, sys; print(sys.stdin.read(), os.getcwd())", text="read")
    assert done.stdout == f"read {tmp_path}\n"
    assert server.run("pass", text="not read" * 10**5).returncode == 0


def test_one_that_never_ends_is_killed_with_the_test(server: ForkServer) -> None:
    process = server.start("import time; print('here', flush=True); time.sleep(1000)")

    def fail() -> None:
        with process:
            assert process.stdout.readline() == "here\n"
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert process.returncode == -signal.SIGKILL
    assert server.run("pass").returncode == 0


def test_the_server_ends_with_its_context() -> None:
    with fork_server(["colorsys"]) as server, server.start("import os; print(os.getppid())") as one:
        number = int(one.stdout.read())
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_a_module_that_is_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="has ended"), fork_server(["no_such_module"]):
        pass
    assert "No module named 'no_such_module'" in capfd.readouterr().err
