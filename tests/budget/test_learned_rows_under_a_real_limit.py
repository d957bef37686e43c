"""Embeddings larger than memory are learned within the loader's budget, as the kernel enforces."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from gnnstore.converters import from_numpy
from gnnstore.converters.partitions.partition import partition
from tests.support.forks import ForkServer

ALLOWANCE_BYTES = 48 * 10**6
NUM_NODES, DIM, BUDGET_BYTES = 400_000, 128, 100 * 10**6

LEARN = """
import json, os, sys
from pathlib import Path
import torch
import gnnstore
store, group, table_path, budget = sys.argv[1:]
torch.zeros(1)
warm = torch.zeros(2, requires_grad=True)
warm.sum().backward()
Path(group, "cgroup.procs").write_text(str(os.getpid()))
policy = gnnstore.PartitionPolicy("two-level", capacity=4, logical=8)
table = gnnstore.EmbeddingTable.create(table_path, store, dim=128, partitions=policy, init="zeros")
optimizer = gnnstore.RowwiseAdagrad(table, lr=0.1)
loader = gnnstore.LinkNeighborLoader(
    store, [], batch_size=2000, shuffle=True, seed=0, neg_sampling="binary", num_threads=1,
    partitions=policy, tables=[table], memory=int(budget),
)
for batch in loader:
    source, target = table(batch.n_id)[batch.edge_label_index]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        (source * target).sum(-1), batch.edge_label
    )
    loss.backward()
    optimizer.step()
table.commit()
print(json.dumps({"slots": os.path.getsize(Path(table_path, "slots"))}))
table.close()
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(0)
    np.save(directory / "edge_index.npy", rng.integers(0, NUM_NODES, (2, 100_000)))
    np.save(directory / "x.npy", np.zeros((NUM_NODES, 1), np.float32))
    path = from_numpy(directory, directory / "a.gnn")
    partition(path, 16)
    return path


def test_a_table_of_twice_the_budget(
    store: Path, limited: tuple[Path, Path], tmp_path: Path, forks: ForkServer
) -> None:
    group, limit = limited
    limit.write_text(str(BUDGET_BYTES + ALLOWANCE_BYTES))
    table_bytes = NUM_NODES * (DIM + 1) * 4
    assert table_bytes > BUDGET_BYTES + ALLOWANCE_BYTES
    arguments = (store, group, tmp_path / "a.emb", BUDGET_BYTES)
    threads = os.environ | {"OMP_NUM_THREADS": "1"}
    done = forks.run(LEARN, *arguments, environment=threads, own_memory=True)
    assert done.returncode == 0, done.stderr or "killed by the kernel"
    assert json.loads(done.stdout)["slots"] > table_bytes / 2
