"""Partitions that are damaged, small ones too: told by file and partition, never other batches."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore import _core
from gnnstore.converters import partition
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.partitions import PartitionsReader
from gnnstore.testing.graphs import random_graph
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose, paired
from tests.support.files import flip
from tests.support.hostile import reseal

ROWS = r"the rows of partition \d have the crc32c \w{8}, but \w{8} was written"
EDGES = r"the edges from partition \d to partition \d have the crc32c \w{8}, but"
# The errors for a flipped bit of each array, and the arrays that they name.
ARRAYS = {
    "order": f"order: {ROWS}",
    "place": r"place/c\.0: bytes 0-\d+ are damaged",
    "partition_crc32c": f"/(order|nodes/[xy]): {ROWS}",
    "nodes/x": f"nodes/x: {ROWS}",
    "nodes/y": f"nodes/y: {ROWS}",
    "edges/bucket_ptr": r"bucket_ptr(: its buckets run|/c\.0: bytes 0-\d+ are damaged)",
    "edges/bucket_crc32c": f"edges/(source|target|position): {EDGES}",
    "edges/source": f"edges/source: {EDGES}",
    "edges/target": f"edges/target: {EDGES}",
    "edges/position": f"edges/position: {EDGES}",
}
LOADERS: dict[str, Any] = {
    "nodes": lambda store, name: gnnstore.NeighborLoader(
        store,
        [3, 2],
        batch_size=32,
        shuffle=True,
        seed=0,
        partitions=gnnstore.PartitionPolicy("dispersed", capacity=2, name=name),
    ),
    "links": lambda store, name: gnnstore.LinkNeighborLoader(
        store,
        [3],
        batch_size=128,
        shuffle=True,
        seed=0,
        partitions=gnnstore.PartitionPolicy("two-level", capacity=2, name=name),
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(300, 1500, seed=3, feature_dim=5, num_classes=4, edge_feature_dim=2)
    store = graph.write(tmp_path_factory.mktemp("partitions") / "s.gnn")
    partition(store, 4, name="p")
    return store


@pytest.fixture(scope="module")
def sound(made: Path) -> dict[str, list[Any]]:
    store = gnnstore.open(made)
    return {kind: batches_of(make(store, "p")) for kind, make in LOADERS.items()}


def train(make: Callable[[], Any], batches: list[dict[str, Any]]) -> str | None:
    """Add the batches before an error to a list, and return what the error says."""
    try:
        for batch in make():
            batches.append(batch.to_dict())  # noqa: PERF401 - those before the error
    except CorruptStoreError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("array", "kind"),
    # Edges that are all edges have their ends in the buckets.
    [pair for pair in paired(ARRAYS, reversed(LOADERS)) if pair != ("place", "links")],
)
def test_a_flipped_bit(
    made: Path, sound: dict[str, list[Any]], tmp_path: Path, array: str, kind: str
) -> None:
    """The batches before the error are those of sound partitions."""
    unit = PartitionsReader.open(made / "partitions/p")
    spec = next(spec for spec in unit.manifest.arrays() if spec.path == array)
    stored = unit.paged(spec)
    name, geometry = stored.file_paths[0].relative_to(unit.path), stored.geometry
    store, copy, rng = gnnstore.open(made), tmp_path / "copy", np.random.default_rng(0)
    num_errors = 0
    rows = (0, spec.num_rows - 1, *rng.integers(0, spec.num_rows, choose(1, 3)).tolist())
    for row in rows:
        shutil.copytree(unit.path, copy)
        flip(copy / name, geometry.offset(row), int(rng.integers(8 * geometry.row_bytes)))
        found: list[dict[str, Any]] = []
        message = train(partial(LOADERS[kind], store, str(copy)), found)
        if message is None:
            assert len(found) == len(sound[kind])
        else:
            assert re.search(ARRAYS[array], message), message
            num_errors += 1
        assert_same_batches(found, sound[kind][: len(found)])
        shutil.rmtree(copy)
    # Of the edges, nodes are trained on those between the partitions of their states.
    is_whole = "edges" not in array or kind == "links"
    assert num_errors == len(rows) if is_whole else 0 < num_errors <= len(rows)


@pytest.mark.parametrize("array", ["source", "target", "position"])
@pytest.mark.parametrize("num_neighbors", [[], [2]])
def test_edges_that_cannot_be_with_the_right_checksums(
    made: Path, tmp_path: Path, array: str, num_neighbors: list[int]
) -> None:
    copy = shutil.copytree(made / "partitions/p", tmp_path / "copy")
    unit = PartitionsReader.open(copy)
    edges = np.memmap(copy / f"edges/{array}/c.0", np.int32, "r+", shape=(unit.num_edges,))
    edges[0] = unit.num_edges
    crcs = np.memmap(copy / "edges/bucket_crc32c/c.0.0", np.uint32, "r+", shape=(1, 3))
    bucket = np.asarray(edges[: unit.bucket_ptr[1]]).view(np.uint8)
    crcs[0, ["source", "target", "position"].index(array)] = _core.crc32c(bucket)
    reseal(copy)
    loader = gnnstore.LinkNeighborLoader(
        gnnstore.open(made),
        num_neighbors,
        batch_size=128,
        edge_label_attrs=("edge_attr",),
        partitions=gnnstore.PartitionPolicy("two-level", capacity=2, name=str(copy)),
    )
    with pytest.raises(CorruptStoreError, match="out of range"):
        list(loader)
