"""Reads arrays once, in bounded memory: degrees, ranges of values, labels; rows of packed epochs.

Arrays are read in order, a few megabytes at a time, so that a store far larger than RAM takes one
sequential pass and 5 bytes per node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore.caching.scores import count_out_degrees
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.arrays.dtypes import from_bfloat16_bits
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.packed import PackedParts
from gnnstore.formats.store.store import StoreReader
from gnnstore.progress import Progress

_CHUNK_BYTES = 2**23
_CHUNK_NODES = 2**20
_PERCENTILES = (1, 25, 50, 75, 90, 99, 99.9)
# A label array with more values than this holds no classes; a histogram would be of no use.
_MAX_CLASSES = 1000
_TAIL_SHARE = 0.1  # the tail of a distribution: the nodes with the highest degrees


def scan_store(reader: StoreReader, progress: Progress) -> dict[str, Any]:
    """Return the degree distribution, and the values' range and labels of every attribute."""
    schema = reader.schema
    stats: dict[str, Any] = {"degrees": None, "values": {}, "labels": {}}
    if len(schema.edge_types) == 1 and len(schema.node_types) == 1:
        degrees = count_degrees(reader, progress)
        inward = degrees.inward
        stats["degrees"] = {
            "num_nodes": inward.num_nodes,
            "mean": inward.mean,
            "in": _percentiles(inward),
            "no_in_edge": round(inward.zero_share * inward.num_nodes),
            "isolated": degrees.num_isolated,
        }
    for spec in (*schema.node_attributes(), *schema.edge_attributes()):
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


@dataclass(frozen=True)
class DegreeDistribution:
    """The number of nodes of each in-degree."""

    degrees: npt.NDArray[np.int64]  # int64, shape [d]: degrees that occur, ascending
    counts: npt.NDArray[np.int64]  # int64, shape [d]: nodes that have them; at least 1

    @classmethod
    def of_blocks(cls, blocks: Iterable[npt.NDArray[np.int64]]) -> Self:
        """Count the degrees of all nodes, given in blocks."""
        found: Counter[int] = Counter()
        for block in blocks:
            degrees, counts = np.unique(block, return_counts=True)
            found.update(dict(zip(degrees.tolist(), counts.tolist(), strict=True)))
        table = np.array(sorted(found.items()), np.int64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1])

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return int(self.counts.sum())

    @property
    def num_edges(self) -> int:
        """Number of edges, E."""
        return int((self.degrees * self.counts).sum())

    @property
    def mean(self) -> float:
        """E / N; 0 for no nodes."""
        return self.num_edges / max(1, self.num_nodes)

    @property
    def max(self) -> int:
        """The highest degree; 0 for no nodes."""
        return int(self.degrees[-1]) if len(self.degrees) else 0

    def survival(self) -> npt.NDArray[np.float64]:
        """Return, for each degree, the share of nodes that have it or a higher one."""
        return np.cumsum(self.counts[::-1])[::-1] / max(1, self.num_nodes)

    @property
    def zero_share(self) -> float:
        """The share of nodes without an in-neighbour; 0 for no nodes."""
        return int(self.counts[self.degrees == 0].sum()) / max(1, self.num_nodes)

    def curve(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the corners of the curve of shares of nodes below a degree.

        A degree d > 0 is spread over d -+ 1/2; between degrees that occur the curve is level.
        """
        degrees, counts = (own[self.degrees > 0] for own in (self.degrees, self.counts))
        after = self.zero_share + np.cumsum(counts) / max(1, self.num_nodes)
        before = after - counts / max(1, self.num_nodes)
        places = (degrees[:, None] + (-0.5, 0.5)).reshape(-1)
        heights = np.stack((before, after), 1).reshape(-1)
        return np.append(0.0, places), np.append(self.zero_share, heights)

    def tail_exponent(self) -> float | None:
        """Return the exponent a of a power law d^-a fitted to the highest tenth of degrees."""
        reaching = np.flatnonzero((self.survival() >= _TAIL_SHARE) & (self.degrees >= 1))
        if not len(reaching) or reaching[-1] == len(self.degrees) - 1:
            return None
        degrees, counts = self.degrees[reaching[-1] :], self.counts[reaching[-1] :]
        logarithms = float((counts * np.log(degrees / (degrees[0] - 0.5))).sum())
        return 1 + float(counts.sum()) / logarithms

    def to_json(self) -> dict[str, Any]:
        """Return a summary of the distribution, as JSON values."""
        names = ("num_nodes", "num_edges", "mean", "max", "zero_share")
        return {
            **{name: getattr(self, name) for name in names},
            "tail_exponent": self.tail_exponent(),
        }


@dataclass(frozen=True)
class DegreeComparison:
    """The in-degrees of a graph before and after its expansion."""

    before: DegreeDistribution
    after: DegreeDistribution

    @property
    def distance(self) -> float:
        """Kolmogorov-Smirnov distance of the degrees in units of their mean, in [0, 1]."""
        sides = (self.before, self.after)
        if not all(own.mean for own in sides):
            return 0.0 if self.before.mean == self.after.mean else 1.0
        curves = [(own.curve()[0] / own.mean, own.curve()[1]) for own in sides]
        # Both curves are straight between their corners, so they are farthest apart at one.
        places = np.concatenate([own for own, _ in curves])
        first, second = (np.interp(places, *curve) for curve in curves)
        return float(np.abs(first - second).max())

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "node_factor": self.after.num_nodes / max(1, self.before.num_nodes),
            "edge_factor": self.after.num_edges / max(1, self.before.num_edges),
            "ks_distance": self.distance,
        }


def compare_degrees(before: PathLike, after: PathLike) -> DegreeComparison:
    """Compare the in-degrees of two stores."""
    found = (DegreeDistribution.of_blocks(StoreInput(p).degree_blocks()) for p in (before, after))
    return DegreeComparison(*found)


@dataclass(frozen=True)
class Degrees:
    """Degree distributions of a graph."""

    inward: DegreeDistribution
    outward: DegreeDistribution
    num_isolated: int  # nodes without edges


def count_degrees(reader: StoreReader, progress: Progress) -> Degrees:
    """Count degrees, in a few megabytes and 5 bytes per node."""
    edge, num_nodes = reader.schema.edge, reader.schema.node.num_nodes
    is_isolated = np.ones(num_nodes, np.bool_)
    inward = DegreeDistribution.of_blocks(_in_degrees(reader, is_isolated, progress))
    columns = _chunks(reader, edge.indices, progress)
    counts = count_out_degrees(columns, num_nodes, str(reader.path))
    is_isolated &= counts == 0
    outward = DegreeDistribution.of_blocks(
        counts[first : first + _CHUNK_NODES].astype(np.int64)
        for first in range(0, num_nodes, _CHUNK_NODES)
    )
    return Degrees(inward, outward, int(np.count_nonzero(is_isolated)))


def _in_degrees(
    reader: StoreReader, has_none: npt.NDArray[np.bool_], progress: Progress
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the in-degrees of all nodes in pieces, and note which are 0."""
    indptr = reader.schema.edge.indptr
    last: npt.NDArray[Any] = np.empty(0, np.int64)
    node = 0
    for chunk in _chunks(reader, indptr, progress):
        degrees = np.diff(np.concatenate([last, chunk]))
        if degrees.size and degrees.min() < 0:
            raise CorruptStoreError(
                f"{reader.path / indptr.path}: descends, so there are no degrees to show; run "
                f"'gnnstore verify {reader.path} --level full'",
                path=reader.path / indptr.path,
            )
        has_none[node : node + len(degrees)] = degrees == 0
        node += len(degrees)
        last = chunk[-1:]
        yield degrees.astype(np.int64)


def _percentiles(distribution: DegreeDistribution) -> dict[str, int]:
    """Return min, max, and for each percentile the highest degree of this share of nodes."""
    if not distribution.num_nodes:
        return {}
    degrees, reached = distribution.degrees, np.cumsum(distribution.counts)
    found = {"min": int(degrees[0])}
    for percent in _PERCENTILES:
        rank = np.searchsorted(reached, percent / 100 * reached[-1])
        found[f"p{percent:g}"] = int(degrees[min(int(rank), len(degrees) - 1)])
    return {**found, "max": int(degrees[-1])}


class _ValueRange:
    """Minimum, maximum and mean of the finite values, and the number of others."""

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
        """Return the results; None for values that are not finite, or if there are none."""
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
            yield _numbers(spec, reader.compressed(spec))
            phase.advance(spec.num_bytes)
            return
        for _, rows in reader.paged(spec).pieces(_CHUNK_BYTES):
            yield _numbers(spec, rows)
            phase.advance(rows.nbytes)


def _numbers(spec: AttributeSpec, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return from_bfloat16_bits(stored) if spec.dtype == "bfloat16" else stored


@dataclass(frozen=True, eq=False)
class PackedRowCounts:
    """Counts of packed epochs with S batches in all, B in each epoch."""

    needed: npt.NDArray[np.int64]  # [S]: rows of each batch
    missed: npt.NDArray[np.int64]  # [S]: those that miss the cache
    packed: npt.NDArray[np.int64]  # [S]: those in the batch's packed chunk
    # [B]: rows by reuse distance in batches; at 0, those that no earlier batch of the epoch needed
    ages: npt.NDArray[np.int64]
    batches_per_epoch: int
    num_slots: int  # capacity of the cache in rows

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        names = ("needed", "missed", "packed", "ages")
        return {name: getattr(self, name).tolist() for name in names}


def scan_packed(parts: PackedParts, progress: Progress) -> PackedRowCounts:
    """Count rows from records, in one pass and 4 bytes per node; reads no row."""
    from gnnstore.features.packed_epochs import PackedEpochFiles  # noqa: PLC0415 - on demand

    manifest = parts.manifest
    packed = PackedEpochFiles(parts)
    num_batches = manifest.total_batches
    needed, missed = np.zeros(num_batches, np.int64), np.zeros(num_batches, np.int64)
    ages = np.zeros(manifest.batches_per_epoch, np.int64)
    num_nodes = manifest.schema.edge.indptr.num_rows - 1
    last = np.empty(num_nodes, np.int32)
    with progress.phase("read the packed epochs", num_batches, "batches") as phase:
        for number in range(num_batches):
            place = number % manifest.batches_per_epoch
            if place == 0:
                last[:] = -1
            record = packed.files_of(number).record(number)
            nodes = record.subgraph.n_id
            needed[number] = len(nodes)
            missed[number] = np.count_nonzero(record.slots < 0)
            before = last[nodes]
            # Age 0 is "never", so that no row of an earlier batch can have it.
            age = np.where(before < 0, 0, place - before)
            ages += np.bincount(age, minlength=len(ages))
            last[nodes] = place
            phase.advance()
    num_packed = np.concatenate([part.index[:, 3] for part in parts.parts])
    return PackedRowCounts(
        needed, missed, num_packed, ages, manifest.batches_per_epoch, manifest.num_slots
    )
