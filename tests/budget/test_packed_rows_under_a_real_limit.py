"""Packed rows of two superbatches in memory keep within `memory=`, where the kernel would kill."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from gnnstore.converters import ConvertOptions, from_numpy
from gnnstore.testing.forks import ForkServer

ALLOWANCE_BYTES = 32 * 10**6
NUM_NODES, NUM_EDGES, MEMORY = 60_000, 600_000, 190 * 10**6

LOAD = """
import json, os, re, sys
from pathlib import Path
import torch
import gnnstore
torch.zeros(1)
store, group, memory = sys.argv[1:]
def resident(field):
    return 1024 * int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
Path(group, "cgroup.procs").write_text(str(os.getpid()))
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
loader = gnnstore.NeighborLoader(
    store, [10, 10], range(2000), batch_size=64, shuffle=True, seed=0, topology="memory",
    strategy="packed", disk=0, memory=int(memory), cache_bytes="4MB", num_threads=2,
)
for epoch in range(2):
    for batch in loader:
        pass
stats = loader.stats()
kept = loader._sources.superbatches.job.size.chunk_memory_bytes
print(json.dumps({
    "grown": resident("VmHWM") - before, "bytes_packing": stats.bytes_packing, "kept": kept,
    "bytes_spilled": stats.bytes_spilled, "reason": stats.reason,
}))
"""


@pytest.mark.timeout(300)
def test_without_disk(forks: ForkServer, limited: tuple[Path, Path], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.random((NUM_NODES, 256), dtype=np.float32))
    np.save(tmp_path / "edge_index.npy", rng.integers(0, NUM_NODES, (2, NUM_EDGES)))
    store = from_numpy(tmp_path, tmp_path / "s.gnn", options=ConvertOptions(edge_ids=False))
    group, limit = limited
    limit.write_text(str(MEMORY + ALLOWANCE_BYTES))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    finished = forks.run(LOAD, store, group, MEMORY, environment=environment, own_memory=True)
    assert finished.returncode == 0, finished.stderr or "killed by the kernel"
    found = json.loads(finished.stdout)
    assert found["grown"] <= MEMORY + ALLOWANCE_BYTES, found["reason"]
    assert 2 * found["kept"] > ALLOWANCE_BYTES, "it would not fit if it were not reserved"
    assert found["bytes_packing"] > 0
    assert found["bytes_spilled"] == 0
