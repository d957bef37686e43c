"""A partition buffer keeps within `memory=` where the kernel kills a process that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import ConvertOptions, from_numpy
from gnnstore.converters.stores.partition import partition
from tests.support.effort import choose
from tests.support.forks import ForkServer
from tests.support.limits import run_limited

ALLOWANCE_BYTES = 48 * 10**6
NUM_NODES, NUM_EDGES, MEMORY = choose(
    (60_000, 800_000, 60 * 10**6), (150_000, 2_000_000, 90 * 10**6)
)

TRAIN = """
store, options, group = sys.argv[1:]
begin(group)
options = json.loads(options)
policy = gnnstore.PartitionPolicy(**options.pop("policy"))
options |= {"shuffle": True, "seed": 0, "partitions": policy}
if options.pop("links"):
    loader = gnnstore.LinkNeighborLoader(store, [5], batch_size=2048, **options)
else:
    loader = gnnstore.NeighborLoader(store, [10, 10], None, batch_size=1024, **options)
for batch in loader:
    pass
stats = loader.stats()
finish(states=stats.states)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a skewed graph with 512 bytes of features a node, and edges of hubs."""
    directory = tmp_path_factory.mktemp("skewed")
    rng = np.random.default_rng(0)
    np.save(directory / "x.npy", rng.random((NUM_NODES, 128), dtype=np.float32))
    ends = (NUM_NODES * rng.random((2, NUM_EDGES)) ** 3).astype(np.int64)
    np.save(directory / "edge_index.npy", ends)
    path = from_numpy(directory, directory / "s.gnn", options=ConvertOptions(edge_ids=False))
    partition(path, 16, seed=0)
    return path


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "links", choose([True], [False, True]), ids=lambda links: "links" if links else "nodes"
)
def test_a_skewed_graph(
    forks: ForkServer, store: Path, limited: tuple[Path, Path], links: bool
) -> None:
    policy: dict[str, Any] = {"kind": "two-level" if links else "dispersed", "capacity": 4}
    options = {"memory": MEMORY, "num_threads": 2, "policy": policy, "links": links}
    most = MEMORY + ALLOWANCE_BYTES
    found = run_limited(forks, TRAIN, store, json.dumps(options), limited=limited, most=most)
    assert found["states"] > 3
    assert found["grown"] <= most
