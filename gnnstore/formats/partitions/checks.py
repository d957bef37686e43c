"""Checks the values of partitions: a permutation of the nodes, and each edge once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnstore.errors import GnnstoreError
from gnnstore.formats.container.files import Problem, RangeCrcs
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.partitions.manifest import (
    BUCKET_CRCS_ARRAY,
    BUCKET_PTR_ARRAY,
    EDGE_ARRAYS,
    ORDER_ARRAY,
    PARTITION_CRCS_ARRAY,
    PARTITIONS_DIRECTORY,
    PLACE_ARRAY,
    POSITION_ARRAY,
    SOURCE_ARRAY,
    TARGET_ARRAY,
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
    if problems := list(_check_order(reader)):
        yield from problems
        return
    found = EdgeSums()
    if problems := list(_check_edges(reader, found)):
        yield from problems
        return
    each = EdgeSums(found.seed)
    for first in range(0, reader.manifest.num_edges, _SCAN_EDGES):
        positions = np.arange(first, min(first + _SCAN_EDGES, reader.manifest.num_edges))
        each.add(positions, positions, positions)
    if each.sums[0] != found.sums[0]:
        yield Problem(str(reader.path / POSITION_ARRAY), "not every position is there once")
        return
    # The store around the partitions; elsewhere there is nothing to compare them with.
    store = reader.path.parent.parent
    is_inside = reader.path.parent.name == PARTITIONS_DIRECTORY and StoreManifest.is_at(store)
    if is_inside and (problems := list(_compare(reader, store, found))):
        yield from problems
        return
    yield from _check_crcs(reader)


class EdgeSums:
    """Sums by which edges in one order are compared with edges in another.

    Every position has a random weight, so that sums are equal only if at every position there is an
    edge with the same ends, but for a chance in 2^64.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = secrets.randbits(64) if seed is None else seed
        self.sums = np.zeros(3, np.uint64)

    def add(self, positions: Ids, sources: Ids, targets: Ids) -> None:
        """Count some edges."""
        words = positions.astype(np.uint64)
        words += np.uint64(self.seed)
        mix(words)
        parts = (words, words * sources.astype(np.uint64), words * targets.astype(np.uint64))
        self.sums += np.array([part.sum(dtype=np.uint64) for part in parts])


def _check_crcs(reader: Reader) -> Iterator[Problem]:
    manifest = reader.manifest
    rows = manifest.row_specs(), manifest.partition_bounds(), PARTITION_CRCS_ARRAY, "partition"
    bucket_ptr = reader.paged(manifest.spec(BUCKET_PTR_ARRAY)).load()
    edges = tuple(map(manifest.spec, EDGE_ARRAYS)), bucket_ptr, BUCKET_CRCS_ARRAY, "bucket"
    for specs, bounds, path, what in (rows, edges):
        stored = reader.paged(manifest.spec(path)).load()
        for column, spec in enumerate(specs):
            found = RangeCrcs(bounds)
            for _, piece in reader.paged(spec).pieces(_SCAN_BYTES):
                found.add(piece)
            wrong = np.flatnonzero(found.crcs != stored[:, column])
            if len(wrong):
                first = int(wrong[0])
                yield Problem(
                    str(reader.path / path),
                    f"{what} {first} of {spec.path} has the crc32c {found.crcs[first]:08x}, not "
                    f"{stored[first, column]:08x}",
                )


def _check_order(reader: Reader) -> Iterator[Problem]:
    manifest = reader.manifest
    num_nodes = manifest.num_nodes
    place = reader.paged(manifest.spec(PLACE_ARRAY)).view("random")
    for first, nodes in reader.paged(manifest.spec(ORDER_ARRAY)).pieces(_SCAN_BYTES):
        outside = np.flatnonzero((nodes < 0) | (nodes >= num_nodes))
        if len(outside):
            row = int(outside[0])
            yield Problem(
                str(reader.path / ORDER_ARRAY),
                f"row {first + row} is of node {int(nodes[row])}, outside [0, {num_nodes})",
            )
            return
        wrong = np.flatnonzero(place[nodes] != np.arange(first, first + len(nodes)))
        if len(wrong):
            row = int(wrong[0])
            node = int(nodes[row])
            yield Problem(
                str(reader.path / PLACE_ARRAY),
                f"node {node} is in row {first + row}, but is said to be in {int(place[node])}",
            )
            return


def _check_edges(reader: Reader, found: EdgeSums) -> Iterator[Problem]:
    manifest = reader.manifest
    num_partitions, rows = manifest.num_partitions, manifest.rows_per_partition
    arrays = {path: reader.paged(manifest.spec(path)) for path in EDGE_ARRAYS}
    order = reader.paged(manifest.spec(ORDER_ARRAY)).view("random")
    bucket_ptr = reader.paged(manifest.spec(BUCKET_PTR_ARRAY)).load()
    last = np.full((4, 1), -1, np.int64)
    for first in range(0, manifest.num_edges, _SCAN_EDGES):
        end = min(first + _SCAN_EDGES, manifest.num_edges)
        source, target, position = (
            array.read_slice(first, end).astype(np.int64) for array in arrays.values()
        )
        buckets = slice(*np.searchsorted(bucket_ptr, (first, end - 1), side="right") - (1, 0))
        bounds = np.clip(bucket_ptr[buckets.start : buckets.stop + 1], first, end)
        bucket = np.repeat(np.arange(buckets.start, buckets.stop), np.diff(bounds))
        to, origin = np.divmod(bucket, num_partitions)
        for path, values, limits in (
            (SOURCE_ARRAY, source, np.minimum(rows, manifest.num_nodes - origin * rows)),
            (TARGET_ARRAY, target, np.minimum(rows, manifest.num_nodes - to * rows)),
            (POSITION_ARRAY, position, np.full(len(position), manifest.num_edges)),
        ):
            outside = np.flatnonzero((values < 0) | (values >= limits))
            if len(outside):
                edge = int(outside[0])
                kind = "position" if path == POSITION_ARRAY else "row"
                yield Problem(
                    str(reader.path / path),
                    f"edge {first + edge} has {kind} {int(values[edge])}, outside [0, "
                    f"{int(limits[edge])})",
                )
                return
        keys = np.concatenate([last, np.stack([bucket, target, source, position])], axis=1)
        steps = np.diff(keys)
        # The first key that changes must grow; the last one, the position, always changes.
        decides = np.argmax(steps != 0, axis=0)
        falls = np.flatnonzero(steps[decides, np.arange(steps.shape[1])] <= 0)
        if len(falls):
            yield Problem(
                str(reader.path / POSITION_ARRAY),
                f"edge {first + int(falls[0])} does not stand in the order of its bucket",
            )
            return
        last = keys[:, -1:]
        found.add(position, order[origin * rows + source], order[to * rows + target])


def _compare(reader: Reader, store: Path, found: EdgeSums) -> Iterator[Problem]:
    manifest = reader.manifest
    try:
        around = StoreReader.open(store)
    except GnnstoreError as error:
        yield Problem(error.path or str(store), str(error))
        return
    if around.uuid != manifest.store_uuid:
        yield Problem(
            str(reader.path),
            f"these are partitions of the store {manifest.store_uuid}, but lie in {around.uuid}; "
            "remove them and partition again",
        )
        return
    edge = around.schema.edge
    indptr = around.paged(edge.indptr).view("sequential")
    expected = EdgeSums(found.seed)
    for first, sources in around.paged(edge.indices).pieces(_SCAN_BYTES):
        positions = np.arange(first, first + len(sources))
        targets = np.searchsorted(indptr, positions, side="right") - 1
        expected.add(positions, sources.astype(np.int64), targets)
    if (expected.sums != found.sums).any():
        yield Problem(
            str(reader.path / POSITION_ARRAY),
            "the edges are not those of the store, each once; partition again",
        )
