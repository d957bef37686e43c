"""Rows of several types keep within one `memory=`, where the kernel would kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData

from gnnstore.converters import from_pyg
from tests.support.effort import choose
from tests.support.forks import ForkServer
from tests.support.limits import run_limited

ALLOWANCE_BYTES = 32 * 10**6
# Features of 3 KiB (184 MB), 2 bytes (6 MB) and 512 bytes (21 MB); institutions have none.
NODES = {
    "paper": (60_000, 768, torch.float32),
    "author": (3_000_000, 1, torch.float16),
    "topic": (40_000, 128, torch.float32),
    "institution": (1000, 0, torch.float32),
}

LOAD = """
store, options, nodes, group = sys.argv[1:]
begin(group)
loader = gnnstore.NeighborLoader(
    store, [8, 4], ("paper", range(int(nodes))), batch_size=128, shuffle=True, seed=0,
    num_threads=2, **json.loads(options),
)
for epoch in range(2):
    for batch in loader:
        assert batch["author"].x.dtype == torch.float16
stats = loader.stats()
finish(
    reason=stats.reason, hit_rate=stats.hit_rate, bytes_gathered=stats.bytes_gathered,
    cache_rows=stats.cache_rows, read=sorted(loader._sources.placement.read_paths),
)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data, rng = HeteroData(), torch.Generator().manual_seed(0)
    for name, (count, width, dtype) in NODES.items():
        if width:
            data[name].x = torch.rand(count, width, generator=rng).to(dtype)
        else:
            data[name].num_nodes = count
        edges = torch.randint(0, NODES["paper"][0], (2, 300_000), generator=rng)
        edges[0] = torch.randint(0, count, (300_000,), generator=rng)
        data[name, "to", "paper"].edge_index = edges
    return from_pyg(data, tmp_path_factory.mktemp("typed") / "s.gnn")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "belady", "memory": 80 * 10**6},
        {"strategy": "packed", "memory": 110 * 10**6},
        {"strategy": "static", "memory": 80 * 10**6},
    ][: choose(1, 3)],
    ids=lambda options: options["strategy"],
)
def test_one_budget_for_all_types(
    forks: ForkServer, limited: tuple[Path, Path], store: Path, options: dict[str, Any]
) -> None:
    most = options["memory"] + ALLOWANCE_BYTES
    given = store, json.dumps(options), choose(3000, 6000)
    found = run_limited(forks, LOAD, *given, limited=limited, most=most)
    assert found["grown"] <= most, found["reason"]
    assert found["bytes_gathered"] > 3 * options["memory"]
    # The rows of 2 bytes are held; the others have slots of their widths. Ids of edges may be read
    # in passes.
    read = [path for path in found["read"] if path.startswith("nodes/")]
    assert read == ["nodes/paper/x", "nodes/topic/x"]
    assert found["cache_rows"] * 3072 > options["memory"] / 20
    assert found["hit_rate"] > 0
