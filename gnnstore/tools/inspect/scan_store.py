"""What `gnnstore inspect --stats` finds by reading a store once, in bounded memory.

Arrays are read in order, a few megabytes at a time, so statistics of a store far larger
than RAM cost one sequential pass and one byte a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import from_bfloat16_bits
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.schema import EdgeTypeSpec
from gnnstore.progress import Progress

_CHUNK_BYTES = 2**23
_PERCENTILES = (1, 25, 50, 75, 90, 99, 99.9)
# A label array with more values than this is no set of classes; a histogram says nothing.
_MAX_CLASSES = 1000


def scan_store(reader: StoreReader, progress: Progress) -> dict[str, Any]:
    """Return the degree distribution, and the values' range and labels of every attribute."""
    schema = reader.schema
    stats: dict[str, Any] = {"degrees": None, "values": {}, "labels": {}}
    if len(schema.edge_types) == 1 and len(schema.node_types) == 1:
        stats["degrees"] = scan_degrees(reader, schema.edge, progress)
    attributes = [spec for node in schema.node_types for spec in node.attributes.values()]
    attributes += [spec for edge in schema.edge_types for spec in edge.attributes.values()]
    for spec in attributes:
        scan_array(reader, spec, progress, stats)
    return stats


def scan_array(
    reader: StoreReader, spec: AttributeSpec, progress: Progress, stats: dict[str, Any]
) -> None:
    """Add one array's range of values to `stats`, and its histogram if it holds labels."""
    values = _ValueRange()
    classes: dict[int, int] | None = {} if _may_be_labels(spec) else None
    for chunk in _chunks(reader, spec, progress):
        values.add(chunk)
        if classes is not None:
            found, counts = np.unique(chunk, return_counts=True)
            for value, count in zip(found.tolist(), counts.tolist(), strict=True):
                classes[int(value)] = classes.get(int(value), 0) + count
            if len(classes) > _MAX_CLASSES:
                classes = None
    stats["values"][spec.path] = values.to_json()
    if classes:
        stats["labels"][spec.path] = {str(label): classes[label] for label in sorted(classes)}


def scan_degrees(reader: StoreReader, edge: EdgeTypeSpec, progress: Progress) -> dict[str, Any]:
    """Return the in-degree distribution and the number of isolated nodes.

    Raises
    ------
    InputError
        If `indptr` descends or `indices` holds an id outside the graph.
    """
    num_nodes = edge.indptr.num_rows - 1
    counts = _Counts()
    touched = np.zeros(num_nodes, dtype=np.bool_)  # has an edge, in or out
    last: npt.NDArray[Any] = np.empty(0, dtype=np.int64)
    first_node = 0
    for chunk in _chunks(reader, edge.indptr, progress):
        ends = np.concatenate([last, chunk])
        degrees = np.diff(ends)
        if degrees.size and degrees.min() < 0:
            raise _broken(reader, edge.indptr.path, "descends")
        counts.add(degrees)
        touched[first_node : first_node + len(degrees)] = degrees > 0
        first_node += len(degrees)
        last = chunk[-1:]
    no_in_edge = int(num_nodes - np.count_nonzero(touched))
    for chunk in _chunks(reader, edge.indices, progress):
        if chunk.size and (chunk.min() < 0 or chunk.max() >= num_nodes):
            raise _broken(reader, edge.indices.path, "holds an id outside the graph")
        touched[chunk] = True
    return {
        "num_nodes": num_nodes,
        "mean": edge.num_edges / num_nodes if num_nodes else 0.0,
        "in": counts.percentiles(),
        "no_in_edge": no_in_edge,
        "isolated": int(num_nodes - np.count_nonzero(touched)),
    }


def _broken(reader: StoreReader, path: str, what: str) -> InputError:
    return InputError(
        f"{reader.path / path}: {what}, so there are no degrees to show; "
        f"run 'gnnstore verify {reader.path} --level full'",
        path=reader.path / path,
    )


class _Counts:
    """How often each degree occurs, exactly: at most as many entries as distinct degrees."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, degrees: npt.NDArray[Any]) -> None:
        found, counts = np.unique(degrees, return_counts=True)
        for value, count in zip(found.tolist(), counts.tolist(), strict=True):
            self._counts[value] = self._counts.get(value, 0) + count

    def percentiles(self) -> dict[str, int]:
        """Return min, percentiles (the least degree that so many nodes do not exceed), max."""
        if not self._counts:
            return {}
        values = np.array(sorted(self._counts))
        reached = np.cumsum([self._counts[value] for value in values.tolist()])
        found = {"min": int(values[0])}
        for percent in _PERCENTILES:
            rank = np.searchsorted(reached, percent / 100 * reached[-1])
            found[f"p{percent:g}"] = int(values[min(int(rank), len(values) - 1)])
        return {**found, "max": int(values[-1])}


class _ValueRange:
    """Least, greatest and mean of the finite values, and how many are not."""

    def __init__(self) -> None:
        self._low: int | float | None = None
        self._high: int | float | None = None
        self._sum = 0.0
        self._count = self._nan = self._infinite = 0

    def add(self, chunk: npt.NDArray[Any]) -> None:
        if chunk.dtype.kind == "f":
            not_a_number = np.isnan(chunk)
            infinite = np.isinf(chunk)
            self._nan += int(np.count_nonzero(not_a_number))
            self._infinite += int(np.count_nonzero(infinite))
            chunk = chunk[~(not_a_number | infinite)]
        if chunk.size:
            low, high = chunk.min().item(), chunk.max().item()
            self._low = low if self._low is None else min(self._low, low)
            self._high = high if self._high is None else max(self._high, high)
            with np.errstate(over="ignore"):  # there is no mean then
                self._sum += float(chunk.sum(dtype=np.float64))
            self._count += chunk.size

    def to_json(self) -> dict[str, Any]:
        """Return the findings; None stands for what is not finite, or of no value at all."""
        return {
            "min": self._low,
            "max": self._high,
            "mean": self._sum / self._count if self._count and isfinite(self._sum) else None,
            "nan": self._nan,
            "infinite": self._infinite,
        }


def _may_be_labels(spec: AttributeSpec) -> bool:
    one_a_row = len(spec.shape) == 1 or spec.shape[1:] == (1,)
    return one_a_row and spec.dtype.startswith(("int", "uint", "bool"))


def _chunks(
    reader: StoreReader, spec: AttributeSpec, progress: Progress
) -> Iterator[npt.NDArray[Any]]:
    """Yield the rows of an array in order, as numbers, a few megabytes at a time."""
    with progress.phase(f"scan {spec.path}", spec.num_bytes, "bytes") as phase:
        if spec.layout == "cold":
            yield _numbers(spec, reader.cold(spec))
            phase.advance(spec.num_bytes)
            return
        for _, rows in reader.paged(spec).pieces(_CHUNK_BYTES):
            yield _numbers(spec, rows)
            phase.advance(rows.nbytes)


def _numbers(spec: AttributeSpec, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return from_bfloat16_bits(stored) if spec.dtype == "bfloat16" else stored
