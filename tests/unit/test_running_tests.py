"""How the tests themselves are run: which cases of products, and in which processes."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.support.effort import cover


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


ENDS = """
import os, signal
def test_before(): pass
def test_ends(): os.kill(os.getpid(), signal.SIGKILL)
def test_after(): pass
"""
FAILS = """
import pytest
def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("why")
def test_passes(): pass
"""


def test_a_process_that_ends_fails_its_test(tmp_path: Path) -> None:
    for name, text in (("a", ENDS), ("b", FAILS), ("c", FAILS)):
        (tmp_path / f"test_{name}.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = ["-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--processes=2"]
    done = subprocess.run(
        [sys.executable, *words, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "3 failed, 3 passed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert "the process ended with -9; the tests after it in its file" in done.stdout
