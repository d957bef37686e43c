"""How the tests themselves are run: which cases of products, and in which processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from tests.support.effort import choose, cover


@pytest.mark.parametrize("sizes", [(5,), (2, 2), (7, 3), (2, 3, 2), (4, 1, 5, 2)], ids=str)
def test_a_cover_has_every_value(sizes: tuple[int, ...]) -> None:
    cases = list(product(*map(range, sizes)))
    chosen = [cases[number] for number in cover(cases)]
    varying = [size for size in sizes if size > 1]
    times = 1 + (len(varying) > 2)
    for place, size in enumerate(sizes):
        found = [case[place] for case in chosen]
        assert all(found.count(value) >= times for value in range(size))
    assert len(chosen) <= 2 * times * max(sizes)
    assert len(chosen) < len(cases) or len(varying) < 2


LACKS_AN_ENGINE = """
import pytest
from tests import conftest
conftest._unavailable = lambda: {"pread": "why"}
pytest_collection_modifyitems = conftest.pytest_collection_modifyitems
"""
OF_ENGINES = """
import pytest
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("engine", ["mmap", "pread"])
def test_engines(engine, number):
    if engine == "pread":
        pytest.skip("why")
"""


@pytest.mark.long("each run imports torch")
def test_a_cover_tries_each_value_with_an_engine_that_works(tmp_path: Path) -> None:
    status, output = run(tmp_path, LACKS_AN_ENGINE, [OF_ENGINES])
    assert status == 0
    assert "6 passed, 6 skipped" in output, output


PLUGIN = """
from tests.support.processes import Processes
def pytest_configure(config): config.pluginmanager.register(Processes({}))
"""
# Leaves a fork of its own behind, which has all that was open.
ENDS = """
import os, pathlib, signal
def test_before(): pass
def test_ends():
    if (fork := os.fork()) == 0:
        signal.pause()
    pathlib.Path(__file__).with_name("fork").write_text(str(fork))
    os.kill(os.getpid(), signal.SIGKILL)
def test_after(): pass
"""
OUTCOMES = """
import pytest, threading, time
def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("why")
def test_passes(): pass
@pytest.mark.xfail
def test_fails_as_expected(): assert 1 == 2
@pytest.fixture
def broken(): raise OSError("no fixture")
def test_has_no_fixture(broken): pass
@pytest.fixture
def breaks():
    yield
    raise OSError("no end")
def test_has_no_end(breaks): pass
@pytest.mark.timeout(0.2)
def test_takes_too_long():
    thread = threading.Thread(target=time.sleep, args=(0.5,), name="a thread")
    thread.start()
    thread.join()
"""
FAILS = """
import pathlib, time
def test_fails():
    while not pathlib.Path(__file__).with_name("begun").exists():
        time.sleep(0.01)
    assert 1 == 2
"""
# Takes the signal that stops a process for its own.
GOES_ON = """
import pathlib, pytest, time
HERE = pathlib.Path(__file__)
@pytest.fixture(scope="session", autouse=True)
def tidied():
    yield
    HERE.with_name("tidied").touch()
def test_goes_on():
    try:
        HERE.with_name("begun").touch()
        time.sleep(60)
    except KeyboardInterrupt:
        pass
def test_begins(): time.sleep(60)
"""


def run(directory: Path, plugin: str, texts: Sequence[str], *options: str) -> tuple[int, str]:
    """Run files of tests beside a conftest.py; return the status and the output."""
    (directory / "conftest.py").write_text(plugin)
    (directory / "pytest.ini").write_text("[pytest]\n")
    for number, text in enumerate(texts):
        (directory / f"test_{number}.py").write_text(text)
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "pytest_timeout", *options]
    output = directory / "output"
    with output.open("w") as file:
        done = subprocess.run(
            [sys.executable, *words, str(directory)],
            cwd=Path(__file__).parents[2],
            stdout=file,
            stderr=file,
            check=False,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
    return done.returncode, output.read_text()


@pytest.mark.parametrize("count", choose([1], [1, 2]))
def test_all_that_happens_is_reported(tmp_path: Path, count: int) -> None:
    """A process that ends fails its test; where none is left, there are files that did not run."""
    try:
        status, output = run(tmp_path, PLUGIN.format(count), [OUTCOMES, ENDS, OUTCOMES])
    finally:
        os.kill(int((tmp_path / "fork").read_text()), signal.SIGKILL)
    assert status == 1
    counts = {
        1: "4 failed, 3 passed, 1 skipped, 1 xfailed, 2 errors",
        2: "5 failed, 5 passed, 2 skipped, 2 xfailed, 4 errors",
    }
    assert counts[count] in output, output
    assert "the process ended with -9; the tests after it in its file were not run" in output
    assert ("1 files of tests were not run: no process was left" in output) == (count == 1)
    assert "Failed: Timeout (>0.2s) from pytest-timeout" in output
    assert "Stack of a thread" in output


def test_processes_stop_at_the_first_failure(tmp_path: Path) -> None:
    status, output = run(tmp_path, PLUGIN.format(2), [FAILS, GOES_ON], "-x")
    assert status == 1
    assert "1 failed in" in output, output
    assert "stopping after 1 failures" in output
    assert "Traceback" not in output
    assert (tmp_path / "tidied").exists()
