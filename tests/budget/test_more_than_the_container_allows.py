"""A budget above the container's limit is refused by everyone who takes one."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gnnstore.budget import limits
from gnnstore.tools.cli import main
from tests.support.forks import ForkServer
from tests.support.stores import write_example_store

LIMIT_BYTES = 2 * 10**9
TOO_MUCH = "2.5GB"

SCRIPT = """
import json, os, sys
from pathlib import Path
group, store, output = sys.argv[1:]
Path(group, "cgroup.procs").write_text(str(os.getpid()))
sys.path.insert(0, str(Path(TESTS)))
from test_more_than_the_container_allows import refusals
print(json.dumps(refusals(store, output)))
"""


def refusals(store: str, output: str) -> dict[str, str]:
    """Give everyone too large a budget, and return what they say."""
    import gnnstore  # noqa: PLC0415
    from gnnstore.converters import ConvertOptions  # noqa: PLC0415

    batches: dict[str, Any] = {"num_neighbors": [2], "batch_size": 2}
    commands = {
        "convert": ("convert", "snap", output, f"{output}.gnn"),
        "pack": ("pack", store, "--name", "b", "--num-neighbors", "2", "--batch-size", "2"),
        "partition": ("partition", store, "-p", "2"),
        "predict": ("predict", store, "--num-neighbors", "2", "--batch-size", "2"),
        "bench load": ("bench", "load", store, "--no-limit"),
    }
    asked: dict[str, Callable[[], object]] = {
        "loader": lambda: gnnstore.NeighborLoader(store, memory=TOO_MUCH, **batches),
        "loader of packed epochs": lambda: gnnstore.NeighborLoader(
            store, memory=TOO_MUCH, packed="a", seed=0, shuffle=True, **batches
        ),
        "inference": lambda: gnnstore.inference([abs], store, memory=TOO_MUCH),
        "options": lambda: ConvertOptions(memory_bytes=2_500_000_000),
        **{
            name: partial(main, [*words, option, TOO_MUCH])
            for name, words in commands.items()
            for option in ["--loader-memory" if words[0] == "bench" else "--memory"]
        },
    }
    said = {}
    for name, ask in asked.items():
        try:
            said[name] = f"not refused: {ask()}"
        except gnnstore.BudgetError as error:
            said[name] = str(error)
    return said


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Write a store with packed epochs."""
    path = write_example_store(tmp_path / "a.gnn").path
    words = ("--name", "a", "--num-neighbors", "2", "--batch-size", "2", "--quiet")
    assert main(["pack", str(path), *words]) == 0
    return path


def test_in_a_container_that_is_asserted(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "group_limit_bytes", lambda: LIMIT_BYTES)
    check(refusals(str(store), str(store.parent / "edges.txt")), capsys.readouterr().err)


def test_in_a_container(store: Path, limited: tuple[Path, Path], forks: ForkServer) -> None:
    group, limit = limited
    limit.write_text(str(LIMIT_BYTES))
    script = SCRIPT.replace("TESTS", repr(str(Path(__file__).parent)))
    done = forks.run(script, group, store, f"{store}.txt")
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout), done.stderr)


def check(said: dict[str, str], printed: str) -> None:
    for name in ("loader", "loader of packed epochs", "inference", "options"):
        assert "memory" in said[name]
        assert "needs 2500000000 bytes" in said[name], name
        assert "before the cgroup of this process" in said[name], name
    for name in ("convert", "pack", "partition", "predict", "bench load"):
        assert said[name] == "not refused: 2", name  # the status of the command
    refused = "memory='2.5GB' does not fit, 50000"  # pages of a group are whole ones
    assert printed.count(refused) == 5, printed
