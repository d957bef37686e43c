"""Fixtures for the command line: run it in this process, and small stores to run it on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gnnstore.budget import limits
from gnnstore.tools.cli import main
from tests.support.stores import write_example_store


@dataclass(frozen=True)
class Finished:
    """A run of the command line: its exit status and what it printed."""

    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.stdout)
        return parsed


Run = Callable[..., Finished]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs `gnnstore ARGUMENTS...`; stdout and stderr are no terminal."""
    for name in ("GNNSTORE_DEBUG", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def run_main(*arguments: object) -> Finished:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Finished(status, captured.out, captured.err)

    return run_main


@pytest.fixture(scope="session")
def _example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example_store(tmp_path_factory.mktemp("cli") / "example.gnn").path


@pytest.fixture
def example(_example: Path) -> Path:
    """Return a small store that must not be changed."""
    return _example


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Return a small store that a test may break."""
    return write_example_store(tmp_path / "scratch.gnn").path


@pytest.fixture
def small_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let budgets be as small as small stores need."""
    monkeypatch.setattr(limits, "_LEAST_BYTES", 0)
