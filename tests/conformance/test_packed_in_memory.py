"""Batches whose packed rows stay in memory, all or some of them, are those of any other loader."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import NeighborLoader
from gnnstore.converters import ConvertOptions, from_rmat
from gnnstore.errors import StorageError
from gnnstore.testing.faults import inject
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.loaders import override_sizes, superbatches_of

pytestmark = pytest.mark.timeout(120)

BATCHES = 16
# Packing takes 25 MB of it, and reading 8; with a small cache the rest is for packed rows.
MEMORY = "64MB"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("store")
    options = ConvertOptions(edge_ids=False)
    return from_rmat(directory / "a.gnn", scale=13, feature_dim=256, options=options)


@pytest.fixture(scope="module")
def expected(store: Path) -> Batches:
    """Two epochs."""
    loader = loader_of(store, strategy="memory")
    return batches_of(loader, 2)


def loader_of(store: Path, **options: Any) -> NeighborLoader:
    given: dict[str, Any] = {"strategy": "packed", "num_threads": 1} | options
    seeds = np.arange(0, 2**13, 8)
    return NeighborLoader(
        store, [4, 4], seeds, batch_size=64, shuffle=True, seed=1, topology="memory", **given
    )


def packed_bytes(directory: Path) -> int:
    """Return the bytes of the files of packed rows, some of which go just now."""
    found = 0
    for folder, _, names in os.walk(directory):
        for name in names if Path(folder).name.startswith("packed-") else ():
            with suppress(FileNotFoundError):
                found += (Path(folder) / name).stat().st_size
    return found


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("superbatch", [None, 8])
def test_without_disk(
    store: Path, tmp_path: Path, expected: Batches, num_threads: int, superbatch: int | None
) -> None:
    options: dict[str, Any] = {"memory": MEMORY, "cache_bytes": "1MB", "superbatch": superbatch}
    loader = loader_of(store, num_threads=num_threads, disk="0B", spill_dir=tmp_path, **options)
    assert superbatches_of(loader).job.size.chunk_memory_bytes > 0
    assert "of packed rows not written" in loader.stats().reason
    found: Batches = []
    most = 0
    for _ in range(2):
        for batch in loader:
            found.append(batch.to_dict())
            most = max(most, packed_bytes(tmp_path))
    assert_same_batches(found, expected)
    stats = loader.stats()
    assert stats.bytes_packing > 0, "in passes over the table"
    assert (stats.bytes_spilled, most) == (0, 0)


def test_a_cache_of_a_given_size_leaves_memory_to_packed_rows(
    store: Path, expected: Batches
) -> None:
    loader = loader_of(store, memory=MEMORY, disk="1GB", cache_bytes="1MB")
    assert superbatches_of(loader).job.size.chunk_memory_bytes > 0
    assert_same_batches(batches_of(loader, 2), expected)
    assert loader.stats().cache_rows < 1000


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_some_are_written(store: Path, tmp_path: Path, expected: Batches, share: float) -> None:
    options: dict[str, Any] = {"cache_bytes": "1MB", "superbatch": 8, "spill_dir": tmp_path}
    loader = loader_of(store, **options, num_threads=2)
    assert_same_batches(batches_of(loader, 2), expected)
    written = loader.stats().bytes_spilled
    each = written * 8 // (2 * BATCHES)
    override_sizes(loader, chunk_memory_bytes=int(share * each))
    before = loader.stats()
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader, 2), expected)
    after = loader.stats().since(before).bytes_spilled
    # The first superbatch of an epoch was packed before.
    assert 0 < after < (1 - share / 3) * written


def test_an_iteration_that_is_left_and_a_read_that_fails(store: Path, expected: Batches) -> None:
    loader = loader_of(
        store, memory=MEMORY, disk="0B", superbatch=8, cache_bytes="1MB", io_engine="pread"
    )
    assert len(list(islice(loader, 3))) == 3
    loader.set_epoch(0)
    with inject("pread", errno=errno.EIO, skip=4, times=10**6), pytest.raises(StorageError):
        list(loader)
    loader.set_epoch(0)
    assert_same_batches(batches_of(loader, 2), expected)
