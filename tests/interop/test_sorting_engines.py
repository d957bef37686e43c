"""The examples that sort edges with another engine, where that is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gnnstore

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("engine", "example"),
    [
        ("duckdb", "sort_with_duckdb.py"),
        pytest.param(
            "ray",
            "sort_with_ray.py",
            marks=pytest.mark.long("takes a minute"),
        ),
    ],
)
@pytest.mark.timeout(600)
def test_edges_are_sorted_and_converted(engine: str, example: str, tmp_path: Path) -> None:
    pytest.importorskip(engine)
    output = tmp_path / "graph.gnn"
    command = [
        sys.executable,
        str(ROOT / f"examples/sort_with_{engine}.py"),
        "--output",
        str(output),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    store = gnnstore.open(output)
    assert store.num_edges == 20_000
    assert gnnstore.verify(output).ok
    assert [path.name for path in tmp_path.iterdir()] == ["graph.gnn"]
