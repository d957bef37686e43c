"""Embeddings larger than memory are learned within the loader's budget, as the kernel enforces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gnnstore.converters import from_numpy
from gnnstore.converters.stores.partition import partition
from tests.support.forks import ForkServer
from tests.support.limits import run_limited

ALLOWANCE_BYTES = 48 * 10**6
NUM_NODES, DIM, BUDGET_BYTES = 300_000, 128, 100 * 10**6

LEARN = """
store, table_path, budget, group = sys.argv[1:]
warm = torch.zeros(2, requires_grad=True)
warm.sum().backward()
begin(group)
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
finish(slots=os.path.getsize(Path(table_path, "slots")))
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
    table_bytes, most = NUM_NODES * (DIM + 1) * 4, BUDGET_BYTES + ALLOWANCE_BYTES
    assert table_bytes > most
    given = (store, tmp_path / "a.emb", BUDGET_BYTES)
    found = run_limited(forks, LEARN, *given, limited=limited, most=most)
    assert found["slots"] > table_bytes / 2
