"""Checks the values of partitions: a permutation of the nodes, and each edge of the store once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnstore.errors import GnnstoreError
from gnnstore.formats.container.files import Problem
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.partitions.manifest import (
    BUCKET_PTR_ARRAY,
    EDGE_ARRAYS,
    ORDER_ARRAY,
    PARTITIONS_DIRECTORY,
    PLACE_ARRAY,
    POSITION_ARRAY,
    PartitionsManifest,
)
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.schema import StoreManifest
from gnnstore.random_words import mix

Reader = SealedReader[PartitionsManifest]
Ids = npt.NDArray[np.int64]

_SCAN_BYTES = 8 * 2**20
_SCAN_EDGES = 2**20


def check_meaning(reader: Reader) -> Iterator[Problem]:
    """Yield values that are no partitions of a graph, or not of the store around them."""
    try:
        problem = _order_problem(reader) or _edge_problem(reader)
    except GnnstoreError as error:  # of the store around them
        problem = Problem(error.path or str(reader.path), str(error))
    if problem is not None:
        yield problem


def _order_problem(reader: Reader) -> Problem | None:
    num_nodes = reader.manifest.num_nodes
    place = reader.paged(reader.manifest.spec(PLACE_ARRAY)).view("random")
    for first, nodes in reader.paged(reader.manifest.spec(ORDER_ARRAY)).pieces(_SCAN_BYTES):
        is_inside = (nodes >= 0) & (nodes < num_nodes)
        rows = np.arange(first, first + len(nodes))
        wrong = np.flatnonzero(~is_inside | (place[np.where(is_inside, nodes, 0)] != rows))
        if len(wrong):
            row = int(wrong[0])
            return Problem(
                str(reader.path / ORDER_ARRAY),
                f"row {first + row} is said to be of node {int(nodes[row])}, which has another "
                f"row, or is outside [0, {num_nodes})",
            )
    return None


def _edge_problem(reader: Reader) -> Problem | None:
    """Compare the edges with those of the store around the partitions, if there is one.

    Every position has a random weight, so that sums are equal only if at every position there is an
    edge with the same ends, but for a chance in 2^64.
    """
    manifest = reader.manifest
    num_partitions, rows = manifest.num_partitions, manifest.rows_per_partition
    arrays = [reader.paged(manifest.spec(path)) for path in EDGE_ARRAYS]
    order = reader.paged(manifest.spec(ORDER_ARRAY)).view("random")
    bucket_ptr = reader.paged(manifest.spec(BUCKET_PTR_ARRAY)).load()
    seed, found = secrets.randbits(64), np.zeros(3, np.uint64)
    for first in range(0, manifest.num_edges, _SCAN_EDGES):
        end = min(first + _SCAN_EDGES, manifest.num_edges)
        edges = np.arange(first, end)
        bucket = np.searchsorted(bucket_ptr, edges, side="right") - 1
        source, target, position = (
            array.read_slice(first, end).astype(np.int64) for array in arrays
        )
        to, origin = np.divmod(bucket, num_partitions)
        for path, values, limits in (
            (EDGE_ARRAYS[0], source, np.minimum(rows, manifest.num_nodes - origin * rows)),
            (EDGE_ARRAYS[1], target, np.minimum(rows, manifest.num_nodes - to * rows)),
            (EDGE_ARRAYS[2], position, np.full(len(edges), manifest.num_edges)),
        ):
            outside = np.flatnonzero((values < 0) | (values >= limits))
            if len(outside):
                edge = int(outside[0])
                return Problem(
                    str(reader.path / path),
                    f"edge {first + edge} has {int(values[edge])}, outside [0, "
                    f"{int(limits[edge])})",
                )
        found += _sums(seed, position, order[origin * rows + source], order[to * rows + target])
    store = reader.path.parent.parent
    if reader.path.parent.name != PARTITIONS_DIRECTORY or not StoreManifest.is_at(store):
        return None
    return _compare(reader, store, seed, found)


def _compare(
    reader: Reader, store: Path, seed: int, found: npt.NDArray[np.uint64]
) -> Problem | None:
    around = StoreReader.open(store)
    indptr = around.paged(around.schema.edge.indptr).view("sequential")
    expected = np.zeros(3, np.uint64)
    for first, sources in around.paged(around.schema.edge.indices).pieces(_SCAN_BYTES):
        positions = np.arange(first, first + len(sources))
        targets = np.searchsorted(indptr, positions, side="right") - 1
        expected += _sums(seed, positions, sources, targets)
    if (expected == found).all():
        return None
    return Problem(
        str(reader.path / POSITION_ARRAY),
        "the edges are not those of the store, each once; partition again",
    )


def _sums(seed: int, positions: Ids, sources: Ids, targets: Ids) -> npt.NDArray[np.uint64]:
    words = positions.astype(np.uint64)
    words += np.uint64(seed)
    mix(words)
    parts = (words, words * sources.astype(np.uint64), words * targets.astype(np.uint64))
    return np.array([part.sum(dtype=np.uint64) for part in parts])
