"""Inference keeps to `memory=` where the kernel kills a process that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import ConvertOptions, from_numpy
from tests.support.forks import ForkServer

pytest.importorskip("torch_geometric")

# What Python, torch and their first calls take besides.
ALLOWANCE_BYTES = 64 * 10**6

SCRIPT = """
import json, os, re, sys
from pathlib import Path
import torch
from torch_geometric.nn import GATConv, GCNConv, SAGEConv
import gnnstore
from gnnstore.progress import NullProgress
torch.set_num_threads(2)
torch.zeros(300, 300) @ torch.zeros(300, 300)
store, output, group, memory, kind = sys.argv[1:]
def resident(field):
    return 1024 * int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
class Notes(NullProgress):
    blocks = packed = 0
    def note(self, text, facts=None):
        if facts:
            self.blocks += facts["num_blocks"]
            self.packed += facts["bytes_packed"]
layers = {
    "sage": lambda: [SAGEConv(256, 64), torch.relu, SAGEConv(64, 32)],
    "gcn": lambda: [GCNConv(256, 64), torch.relu, GCNConv(64, 32)],
    "gat": lambda: [GATConv(256, 16, heads=8), torch.relu, GATConv(128, 32)],
}[kind]()
Path(group, "cgroup.procs").write_text(str(os.getpid()))
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
notes = Notes()
found = gnnstore.inference(layers, store, output, memory=int(memory), progress=notes, num_threads=2)
print(json.dumps({
    "grown": resident("VmHWM") - before, "shape": found.shape,
    "blocks": notes.blocks, "packed": notes.packed,
}))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a graph of 120,000 nodes: 123 MB of features, 1 million edges, some nodes hubs."""
    directory = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(0)
    num_nodes, num_edges = 120_000, 1_000_000
    np.save(directory / "x.npy", rng.random((num_nodes, 256), dtype=np.float32))
    sources = (num_nodes * rng.random(num_edges) ** 2).astype(np.int64)
    np.save(directory / "edge_index.npy", [sources, rng.integers(0, num_nodes, num_edges)])
    return from_numpy(directory, directory / "a.gnn", options=ConvertOptions(edge_ids=False))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "memory"), [("sage", 60 * 10**6), ("gcn", 60 * 10**6), ("gat", 90 * 10**6)]
)
def test_half_of_the_features(
    store: Path,
    limited: tuple[Path, Path],
    tmp_path: Path,
    forks: ForkServer,
    *,
    kind: str,
    memory: int,
) -> None:
    group, limit = limited
    limit.write_text(str(memory + ALLOWANCE_BYTES))
    finished = forks.run(SCRIPT, store, tmp_path / "out", group, memory, kind, own_memory=True)
    assert finished.returncode == 0, finished.stderr or "killed by the kernel"
    found: dict[str, Any] = json.loads(finished.stdout)
    assert found["shape"] == [120_000, 32]
    assert found["blocks"] > 4
    assert found["grown"] <= memory + ALLOWANCE_BYTES
