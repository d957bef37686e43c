"""Packing keeps within `memory=`, where the kernel would kill: epochs together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import ConvertOptions, from_numpy
from tests.support.forks import ForkServer
from tests.support.limits import run_limited

ALLOWANCE_BYTES = 32 * 10**6
NUM_NODES, NUM_EDGES = 60_000, 600_000
EPOCH_BATCHES, FOUR_EPOCHS = 32, 90 * 10**6

LOAD = """
store, memory, epochs, options, group = sys.argv[1:]
begin(group)
loader = gnnstore.NeighborLoader(
    store, [10, 10], range(2000), batch_size=64, shuffle=True, seed=0, topology="memory",
    strategy="packed", memory=int(memory), num_threads=2, **json.loads(options),
)
for epoch in range(int(epochs)):
    for batch in loader:
        pass
stats = loader.stats()
finish(
    bytes_packing=stats.bytes_packing, bytes_spilled=stats.bytes_spilled,
    reason=stats.reason, superbatch=stats.superbatch,
)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, rng = tmp_path_factory.mktemp("packed"), np.random.default_rng(0)
    np.save(path / "x.npy", rng.random((NUM_NODES, 256), dtype=np.float32))
    np.save(path / "edge_index.npy", rng.integers(0, NUM_NODES, (2, NUM_EDGES)))
    return from_numpy(path, path / "s.gnn", options=ConvertOptions(edge_ids=False))


def load(
    forks: ForkServer,
    limited: tuple[Path, Path],
    store: Path,
    memory: int,
    epochs: int,
    **options: Any,
) -> dict[str, Any]:
    """Load epochs in a process that the kernel kills beyond the budget and the allowance."""
    given, most = (store, memory, epochs, json.dumps(options)), memory + ALLOWANCE_BYTES
    found = run_limited(forks, LOAD, *given, limited=limited, most=most)
    assert found["grown"] <= most, found["reason"]
    assert found["bytes_packing"] > 0
    return found


@pytest.mark.timeout(300)
def test_four_epochs_in_a_superbatch(
    forks: ForkServer, limited: tuple[Path, Path], store: Path, tmp_path: Path
) -> None:
    found = load(
        forks, limited, store, FOUR_EPOCHS, 5, superbatch=4 * EPOCH_BATCHES, spill_dir=str(tmp_path)
    )
    assert found["superbatch"] == 4 * EPOCH_BATCHES
    assert found["bytes_spilled"] > ALLOWANCE_BYTES
    assert not list(tmp_path.iterdir())
