"""Inference keeps to `memory=` where the kernel kills a process that does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gnnstore.converters import ConvertOptions, from_numpy
from tests.support.effort import choose
from tests.support.forks import ForkServer
from tests.support.limits import run_limited

pytest.importorskip("torch_geometric")

# What Python, torch and their first calls take besides.
ALLOWANCE_BYTES = 64 * 10**6

SCRIPT = """
from torch_geometric.nn import GATConv, GCNConv, SAGEConv
from gnnstore.progress import NullProgress
torch.set_num_threads(2)
torch.zeros(300, 300) @ torch.zeros(300, 300)
store, output, memory, kind, group = sys.argv[1:]
class Notes(NullProgress):
    blocks = 0
    def note(self, text, facts=None):
        if facts:
            self.blocks += facts["num_blocks"]
layers = {
    "sage": lambda: [SAGEConv(256, 64), torch.relu, SAGEConv(64, 32)],
    "gcn": lambda: [GCNConv(256, 64), torch.relu, GCNConv(64, 32)],
    "gat": lambda: [GATConv(256, 16, heads=8), torch.relu, GATConv(128, 32)],
}[kind]()
begin(group)
notes = Notes()
found = gnnstore.inference(layers, store, output, memory=int(memory), progress=notes)
finish(shape=found.shape, blocks=notes.blocks)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a graph of 120,000 nodes: 123 MB of features; many edges, some nodes hubs."""
    directory = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(0)
    num_nodes, num_edges = 120_000, choose(200_000, 1_000_000)
    np.save(directory / "x.npy", rng.random((num_nodes, 256), dtype=np.float32))
    sources = (num_nodes * rng.random(num_edges) ** 2).astype(np.int64)
    np.save(directory / "edge_index.npy", [sources, rng.integers(0, num_nodes, num_edges)])
    return from_numpy(directory, directory / "a.gnn", options=ConvertOptions(edge_ids=False))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "memory"),
    [("sage", 60 * 10**6), ("gat", 90 * 10**6), ("gcn", 60 * 10**6)][: choose(1, 3)],
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
    given, most = (store, tmp_path / "out", memory, kind), memory + ALLOWANCE_BYTES
    found = run_limited(forks, SCRIPT, *given, limited=limited, most=most)
    assert found["shape"] == [120_000, 32]
    assert found["blocks"] > 4
    assert found["grown"] <= most
