"""Workers run each test once, and a test that ends its process is said to have failed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

# Without what starts forks, which imports torch.
_CONFTEST = """
from tests.support.workers import Workers

Workers.pytest_collection = None

def pytest_configure(config):
    config.pluginmanager.register(Workers(2), "workers")
"""

_FILES = {
    "test_a.py": """
        import os, signal

        def test_before(): pass
        def test_killed(): os.kill(os.getpid(), signal.SIGKILL)
        def test_after(): pass
    """,
    "test_b.py": """
        import pytest
        from pathlib import Path

        @pytest.fixture(scope="session", autouse=True)
        def session():
            yield
            Path("ended").write_text("")

        def test_fails(): assert 1 == 2
        @pytest.mark.skip(reason="no")
        def test_skipped(): pass
    """,
    "test_c.py": "def test_passes(): print('said')",
}


def test_every_end_is_told(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    for name, text in _FILES.items():
        (tmp_path / name).write_text(re.sub(r"^ {8}", "", text, flags=re.MULTILINE))
    words = ["-rA", "-p", "no:cacheprovider", "--rootdir=."]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "."],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = set(re.findall(r"^(PASSED|FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE))
    assert found == {
        ("PASSED", "test_a.py::test_before"),
        ("FAILED", "test_a.py::test_killed"),
        ("FAILED", "test_b.py::test_fails"),
        ("PASSED", "test_c.py::test_passes"),
    }
    assert "2 failed, 2 passed, 1 skipped" in done.stdout
    assert "the process ended with status -9; what its file has left is not run" in done.stdout
    assert "assert 1 == 2" in done.stdout
    assert "said" in done.stdout  # what a test prints is kept with it
    assert (tmp_path / "ended").exists()
