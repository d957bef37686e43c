"""The environment of benchmarks' peers: what cannot be had is named, and the rest goes on."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.modules import import_file

PARTS = Path(__file__).parents[2] / "benchmarks" / "parts"
Found = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def peers() -> Any:
    return import_file(PARTS / "peers.py")


def _of(graphbolt: dict[str, str]) -> Found:
    return {
        "GraphBolt": graphbolt,
        "torch-sparse": {"version": "0.6.18, torch 2.2.1"},
        "pyg-lib": {"problem": "No module named 'pyg_lib'"},
    }


def test_versions_tried_for_graphbolt_are_named_and_the_rest_is_installed(peers: Any) -> None:
    asked = []

    def install(*words: str) -> str:
        asked.append(words)
        return "no wheel" if words[0] == "torch==2.2.0" else ""

    lines = peers.set_up(install, lambda: _of({"problem": "Cannot load Graphbolt C++ library"}))
    assert lines[0] == (
        "GraphBolt: cannot be had. Tried with torch 2.2.1: Cannot load Graphbolt C++ library; "
        "torch 2.2.0: no wheel; torch 2.1.2: Cannot load Graphbolt C++ library"
    )
    assert lines[1] == "torch-sparse: 0.6.18, torch 2.2.1"
    assert "not on PyPI" in lines[2]
    assert asked[-3] == ("torch", "numpy")
    assert "torch-sparse" in asked[-1]


def test_the_first_torch_that_serves_graphbolt_is_kept(peers: Any) -> None:
    asked = []

    def install(*words: str) -> str:
        asked.append(words)
        return "gcc failed" if "torch-sparse" in words else ""

    lines = peers.set_up(install, lambda: _of({"version": "2.1.0, torch 2.2.1"}))
    assert [words[0] for words in asked if words[0].startswith("torch==")] == ["torch==2.2.1"]
    assert lines[0] == "GraphBolt: 2.1.0, torch 2.2.1"
    assert lines[1] == "torch-sparse: cannot be had: gcc failed"


def test_a_peer_reads_arrays_in_place_and_its_failure_is_an_error(
    peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process answers a line a batch; what it says before it ends is in the error."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import json, sys\n"
        "import numpy as np\n"
        "entry = json.loads(sys.argv[1])['arrays']['seeds']\n"
        "found = np.fromfile(entry['files'][0][0], entry['dtype']).reshape(entry['shape'])\n"
        "print(json.dumps('ready'), flush=True)\n"
        "for _ in range(int(input())):\n"
        "    print(json.dumps([0.5, 0.25, int(found.sum())]), flush=True)\n"
        "sys.exit('out of seeds')\n"
    )
    monkeypatch.setattr(peers, "WORKER", worker)
    monkeypatch.setattr(peers, "python", lambda: sys.executable)
    with peers.Peer("GraphBolt", "sample", {"seeds": np.arange(4).reshape(2, 2)}) as peer:
        assert [*peer.batches(2)] == [[0.5, 0.25, 6]] * 2
        with pytest.raises(RuntimeError, match="GraphBolt: out of seeds"):
            peer._answer()


def test_what_this_python_can_import_is_told() -> None:
    done = subprocess.run(
        [sys.executable, str(PARTS / "peer.py")], capture_output=True, text=True, check=True
    )
    found = json.load(io.StringIO(done.stdout))
    assert set(found) == {"GraphBolt", "torch-sparse", "pyg-lib"}
    assert all(set(entry) in ({"version"}, {"problem"}) for entry in found.values())
