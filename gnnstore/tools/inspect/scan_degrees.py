"""How many in-neighbours and out-neighbours nodes have: one pass over the graph's structure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.caching.scores import count_out_degrees
from gnnstore.converters.synthetic.degrees import DegreeDistribution
from gnnstore.errors import CorruptStoreError, UsageError
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.reader import StoreReader
from gnnstore.progress import Progress

_CHUNK_ROWS = 2**20


@dataclass(frozen=True)
class Degrees:
    """The two distributions of a graph."""

    inward: DegreeDistribution
    outward: DegreeDistribution


def scan_distributions(reader: StoreReader, progress: Progress) -> Degrees:
    """Count degrees, in a few megabytes and 4 bytes a node.

    Raises
    ------
    UsageError
        If the graph has several types of nodes or edges.
    CorruptStoreError
        If its structure is damaged.
    """
    schema = reader.schema
    if len(schema.edge_types) != 1 or len(schema.node_types) != 1:
        raise UsageError(
            f"{reader.path}: degrees are drawn of graphs with one type of nodes and of edges"
        )
    edge = schema.edge
    num_nodes = edge.indptr.num_rows - 1
    inward = DegreeDistribution.of_blocks(_in_degrees(reader, edge.indptr, progress))
    counts = count_out_degrees(_chunks(reader, edge.indices, progress), num_nodes, str(reader.path))
    outward = DegreeDistribution.of_blocks(
        counts[first : first + _CHUNK_ROWS].astype(np.int64)
        for first in range(0, num_nodes, _CHUNK_ROWS)
    )
    return Degrees(inward, outward)


def _in_degrees(
    reader: StoreReader, indptr: AttributeSpec, progress: Progress
) -> Iterator[npt.NDArray[np.int64]]:
    last: npt.NDArray[Any] = np.empty(0, np.int64)
    for chunk in _chunks(reader, indptr, progress):
        degrees = np.diff(np.concatenate([last, chunk]))
        if degrees.size and degrees.min() < 0:
            raise CorruptStoreError(
                f"{reader.path / indptr.path}: descends, so there are no degrees to show; run "
                f"'gnnstore verify {reader.path} --level full'",
                path=reader.path / indptr.path,
            )
        last = chunk[-1:]
        yield degrees.astype(np.int64)


def _chunks(
    reader: StoreReader, spec: AttributeSpec, progress: Progress
) -> Iterator[npt.NDArray[Any]]:
    with progress.phase(f"read {spec.path}", spec.num_bytes, "bytes") as phase:
        for _, rows in reader.paged(spec).pieces():
            yield rows
            phase.advance(rows.nbytes)
