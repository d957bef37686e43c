"""Directories that others have taken the place of: what is open stays what it was, or says so."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore.converters import ConvertOptions, from_numpy
from gnnstore.converters.stores.partition import partition
from gnnstore.errors import StorageError
from gnnstore.formats import StoreReader, StoreWriter
from gnnstore.strategies.registry import STRATEGIES

REPLACED = "another store was put in place of the one that was opened"


def write(path: Path, version: int) -> Path:
    """Write a store whose every value is its version, over another one."""
    arrays = path.parent / "arrays.npz"
    np.savez(
        arrays,
        edge_index=np.random.default_rng(version).integers(0, 300, (2, 2000)),
        x=np.full((300, 40), version, np.float32),
        y=np.full(300, version),
        train=np.arange(100),
    )
    from_numpy(arrays, path, options=ConvertOptions(overwrite=True))
    return path


def loader_of(store: Any, strategy: str) -> Any:
    return gnnstore.NeighborLoader(
        store, [3], "train", batch_size=50, seed=0, strategy=strategy, num_threads=0
    )


@pytest.mark.parametrize("strategy", [each.name for each in STRATEGIES])
def test_no_batch_mixes_two_stores(tmp_path: Path, strategy: str) -> None:
    path = write(tmp_path / "g.gnn", 1)
    store = gnnstore.open(path)
    before = loader_of(store, strategy)
    write(path, 2)
    for batch in before:
        assert batch.x.eq(1).all()
        assert batch.y.eq(1).all()
    del before, batch  # loaders on a store share what they have opened
    with pytest.raises(StorageError, match=REPLACED):
        list(loader_of(store, strategy))


READS: dict[str, Callable[[gnnstore.GraphStore], object]] = {
    "labels": lambda store: store.labels,
    "features by id": lambda store: store.features[:3],
    "all features": lambda store: store.features.read(),
    "a split": lambda store: store.splits["train"],
    "edges": lambda store: store.edge_index.tensor(),
}


def test_each_part_that_is_read_later(tmp_path: Path) -> None:
    path = write(tmp_path / "g.gnn", 1)
    store = gnnstore.open(path)
    pickled = pickle.dumps(store)
    write(path, 2)
    for read in READS.values():
        with pytest.raises(StorageError, match=REPLACED):
            read(store)
    with pytest.raises(StorageError, match=r"of the one that was pickled \(.*; open it again"):
        pickle.loads(pickled)  # noqa: S301 - our own


def test_work_with_the_former_is_not_kept(tmp_path: Path) -> None:
    """It is of no use with the store that is there now: --resume would be refused."""
    path = write(tmp_path / "g.gnn", 1)
    former = StoreReader.open(path)

    def work() -> None:
        with StoreWriter(tmp_path / "out.gnn", fingerprint={"store": former.uuid}) as writer:
            shape: dict[str, Any] = {"row_shape": (), "dtype": "int64", "num_rows": 50_000}
            with writer.paged("graph/a", name="a", **shape) as array:
                array.append(np.arange(50_000))
            assert writer.journal.has_work
            write(path, 2)
            former.read(former.schema.node.attributes["x"])

    with pytest.raises(StorageError) as refused:
        work()
    assert str(refused.value) == f"{path}: {REPLACED}; open it again"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["arrays.npz", "g.gnn"]


def test_partitions(tmp_path: Path) -> None:
    """Else seeds would be taken from where others are now."""
    path = write(tmp_path / "g.gnn", 1)
    partition(path, 8, name="q", seed=1)
    policy = gnnstore.PartitionPolicy("dispersed", capacity=4, name="q")
    given: dict[str, Any] = {"batch_size": 32, "seed": 0, "partitions": policy}
    untouched, begun = (gnnstore.NeighborLoader(path, [], "train", **given) for _ in range(2))
    batches = iter(begun)
    handed_out = [next(batches)]
    partition(path, 8, name="q", seed=2, overwrite=True)
    with pytest.raises(StorageError, match=r"another .* was put in place of the one"):
        list(untouched)
    train = torch.as_tensor(np.arange(100))
    handed_out += batches
    assert all(b.n_id[: b.batch_size].equal(train[b.input_id]) for b in handed_out)
