"""Sorted runs of edges on disk, which wait there to be merged.

A run holds the edges of one part of the input, or their reverses, in the order of (target,
source, position). Its files:

- NAME.edges: records of 12 bytes (target, source, position in the part; ids below 2^32) or
  24 (the same as 64-bit numbers);
- NAME.index: every 256th record, to find records without reading the run; more of them where rows
  of attributes are long, since ranges are cut at them;
- NAME.attrK: the rows of the K-th attribute, in the same order.

Runs are cut into ranges, of which several fit in memory. All records of all runs have one order: by
(target, source), then by run, then by place in the run; and that is the order of the finished
columns. A boundary is a place in this order, given by a record out of the runs' indexes. So a range
between two boundaries has a known size in every graph: the in-neighbours of one node may be cut
between ranges, even a billion.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.edges.buffer import EdgeBuffer, RowBlocks
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.errors import storage_errors
from gnnstore.formats.base.files import open_regular, write_all
from gnnstore.formats.container.reads import read_exactly

NARROW_BYTES, WIDE_BYTES = 12, 24
# Records between two entries of an index: 3 KiB or 6 KiB, one read. And most bytes of their
# attributes.
INDEX_STEP, _INDEX_BYTES = 256, 2**14
_COPY_BYTES = 2**20  # bytes of a piece in which positions are compared and attribute rows sorted


@dataclass(frozen=True)
class EdgeRun:
    """A sorted run of edges in files."""

    stem: str  # path of its files, without their endings
    num_records: int  # edges in the run
    record_bytes: int  # 12 or 24
    first_position: int  # position in the input of the edge at position 0 of the part
    is_reverse: bool  # whether it holds the reverses of the part's edges
    in_place: bool  # whether its edges came sorted, and none is missing between them
    num_attributes: int  # attribute files
    index_step: int = 256  # records from an entry of the index to the next

    def path(self, ending: str) -> str:
        """Return the file with an ending: edges, index, attr0 and so on."""
        return f"{self.stem}.{ending}"

    def files(self) -> list[str]:
        """Return all its files."""
        attributes = [f"attr{number}" for number in range(self.num_attributes)]
        return [self.path(ending) for ending in ("edges", "index", *attributes)]

    def records(self, position: int, count: int) -> npt.NDArray[Any]:
        """Read consecutive records."""
        records = np.empty(count, record_dtype(self.record_bytes))
        self.read("edges", position * self.record_bytes, records.view(np.uint8))
        return records

    def read(self, ending: str, offset: int, out: npt.NDArray[np.uint8]) -> None:
        """Fill an array with bytes of a file."""
        read_exactly(self.path(ending), offset, out, "a sorted run of edges")

    def ends(self, position: int) -> tuple[int, int]:
        """Read the target and the source of a record."""
        record = self.records(position, 1)[0]
        return int(record["target"]), int(record["source"])


@dataclass(frozen=True)
class SpilledPart:
    """The runs of one part of the input, as a later attempt needs them."""

    num_edges: int  # edges of the input in the part
    max_id: int  # the largest id in the part
    # Name, NumPy type and row shape of each attribute.
    attributes: tuple[tuple[str, str, tuple[int, ...]], ...]
    runs: tuple[EdgeRun, ...]  # one; two if reverse edges are added
    crcs: tuple[int, ...]  # crc32c of each file, run by run

    def is_sound(self) -> bool:
        """Return whether all files have the checksums that they were written with."""
        files = [file for run in self.runs for file in run.files()]
        try:
            return self.crcs == tuple(
                int(_core.crc32c_file(file, max(1, Path(file).stat().st_size)).sum())
                for file in files
            )
        except OSError:
            return False

    def to_json(self) -> dict[str, Any]:
        """Return the part as a journal's record; see `Journal.record_run`."""
        return {
            "files": [file for run in self.runs for file in run.files()],
            "num_edges": self.num_edges,
            "max_id": self.max_id,
            "attributes": [[name, dtype, list(shape)] for name, dtype, shape in self.attributes],
            "runs": [vars(run) for run in self.runs],
            "crcs": list(self.crcs),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> SpilledPart:
        """Return the part that a journal's record describes."""
        return cls(
            record["num_edges"],
            record["max_id"],
            tuple((name, dtype, tuple(shape)) for name, dtype, shape in record["attributes"]),
            tuple(EdgeRun(**run) for run in record["runs"]),
            tuple(record["crcs"]),
        )


def record_dtype(record_bytes: int) -> np.dtype[Any]:
    """Return the type of a record."""
    word = "<u4" if record_bytes == NARROW_BYTES else "<u8"
    return np.dtype([("target", word), ("source", word), ("position", word)])


def record_bytes_for(max_id: int) -> int:
    """Return the size of records that hold ids up to `max_id`."""
    return NARROW_BYTES if max_id < 2**32 else WIDE_BYTES


def index_step_for(attribute_bytes: int) -> int:
    """Return the number of records from an entry of an index to the next, a power of two."""
    fitting = max(1, _INDEX_BYTES // max(1, attribute_bytes))
    return min(INDEX_STEP, 1 << fitting.bit_length() - 1)


def spill_bytes_per_edge(rules: EdgeRules, record_bytes: int, attribute_bytes: int) -> int:
    """Return the bytes of an edge of the input on disk, without the index."""
    return rules.copies * (record_bytes + attribute_bytes)


def write_part(
    stem: Path, buffer: EdgeBuffer, num_edges: int, rules: EdgeRules, num_threads: int
) -> SpilledPart:
    """Sort the first edges of a buffer and write them, durably; they stay in the buffer."""
    record_bytes = record_bytes_for(buffer.max_id)
    attributes = buffer.attributes or {}
    records = _core.pool_empty(num_edges * record_bytes)
    scratch = _core.pool_empty(num_edges * record_bytes)
    ends = buffer.sources.front(num_edges), buffer.targets.front(num_edges)
    # Equal edges with attributes are all needed, to compare these.
    is_unique = rules.undirected and not attributes
    runs, crcs = [], []
    index_step = index_step_for(buffer.attribute_bytes)
    for is_reverse in (False, True)[: rules.copies]:
        count = position = 0
        for sources, targets in zip(*ends[:: -1 if is_reverse else 1], strict=True):
            is_dropped = rules.self_loops == "drop"
            count += _core.pack_edges(
                sources, targets, records, record_bytes, count, position, is_dropped
            )
            position += len(sources)
        count = _core.sort_edges(records, scratch, record_bytes, count, is_unique, num_threads)
        sorted_records = records[: count * record_bytes].view(record_dtype(record_bytes))
        run = EdgeRun(
            stem=f"{stem}-reverse" if is_reverse else str(stem),
            num_records=count,
            record_bytes=record_bytes,
            first_position=buffer.num_seen - buffer.num_edges,
            is_reverse=is_reverse,
            in_place=_is_in_place(sorted_records["position"]),
            num_attributes=len(attributes),
            index_step=index_step,
        )
        crcs.append(_write(run.path("edges"), [sorted_records]))
        index = np.ascontiguousarray(sorted_records[::index_step])
        crcs.append(_write(run.path("index"), [index]))
        for k, rows in enumerate(attributes.values()):
            pieces = _in_order(rows, num_edges, sorted_records["position"])
            crcs.append(_write(run.path(f"attr{k}"), pieces))
        runs.append(run)
    described = tuple((n, rows.dtype.str, rows.row_shape) for n, rows in attributes.items())
    return SpilledPart(num_edges, buffer.max_id, described, tuple(runs), tuple(crcs))


def _is_in_place(positions: npt.NDArray[Any]) -> bool:
    step = _COPY_BYTES // 16  # the positions, and those that they are compared with
    return all(
        np.array_equal(part, np.arange(begin, begin + len(part)))
        for begin in range(0, len(positions), step)
        for part in [positions[begin : begin + step]]
    )


def _in_order(
    rows: RowBlocks, num_rows: int, order: npt.NDArray[Any]
) -> Iterator[npt.NDArray[Any]]:
    """Yield the first rows in another order, piece by piece."""
    blocks = rows.front(num_rows)
    ends = np.cumsum([len(block) for block in blocks])
    # Each row is taken from its block and put in its place, by indices of 8 bytes.
    step = max(1, _COPY_BYTES // (2 * rows.row_bytes + 4 * 8))
    for begin in range(0, len(order), step):
        places = order[begin : begin + step].astype(np.intp)
        taken = np.empty((len(places), *rows.row_shape), rows.dtype)
        first = 0
        for block, end in zip(blocks, ends.tolist(), strict=True):
            mine = np.flatnonzero((places >= first) & (places < end))
            taken[mine] = block[places[mine] - first]
            first = end
        yield taken


def _write(path: str, pieces: Iterable[npt.NDArray[Any]]) -> int:
    """Write a file, durably; return its crc32c."""
    crc = 0
    with storage_errors("write a sorted run of edges", path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        descriptor = open_regular(path, flags)
        with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor
            for piece in pieces:
                data = piece.reshape(-1).view(np.uint8)
                crc = _core.crc32c(data, crc)
                write_all(file, data.data)
            os.fsync(file.fileno())
    return crc


# ---- ranges

# Last records, in the search for a boundary, that are read in one piece.
WINDOW_RECORDS = 2**12


@dataclass(frozen=True)
class Boundary:
    """The first record of a range."""

    target: int  # target of the range's first record
    source: int  # source of the range's first record
    places: tuple[int, ...]  # for each run, its first record at or behind the boundary
    # False: no record lies at the boundary, it stands before all of the target's.
    is_record: bool = False
    repeats: bool = False  # whether a record before the boundary has the same ends

    @property
    def first_loop(self) -> int:
        """The first node whose self-loop would stand at or behind the boundary."""
        # In general, the record at the boundary is not the first with its ends; a self-loop to be
        # added would stand before it.
        behind = self.is_record and self.source >= self.target
        return self.target + 1 if behind else self.target


@dataclass(frozen=True)
class Range:
    """The records between two boundaries, in all runs."""

    begin: Boundary
    end: Boundary

    @property
    def num_records(self) -> int:
        """Records in the range."""
        return sum(self.end.places) - sum(self.begin.places)

    @property
    def present_loop(self) -> int:
        """The node whose self-loop is the record at the end, -1 if none is."""
        end = self.end
        return end.target if end.is_record and end.source == end.target else -1


def plan_ranges(
    runs: Sequence[EdgeRun], num_nodes: int, most: int, most_columns: int
) -> Iterator[Range]:
    """Yield ranges of at most so many records and columns that hold everything, in order."""
    begin = Boundary(0, 0, (0,) * len(runs))
    for end in _boundaries(runs, num_nodes, most):
        while end.target - begin.target > most_columns:
            target = begin.target + most_columns
            places = tuple(
                lower_bound(run, (target, 0), low, high)
                for run, low, high in zip(runs, begin.places, end.places, strict=True)
            )
            between = Boundary(target, 0, places)
            yield Range(begin, between)
            begin = between
        yield Range(begin, end)
        begin = end


def _boundaries(runs: Sequence[EdgeRun], num_nodes: int, max_records: int) -> Iterator[Boundary]:
    """Yield every boundary but the first."""
    total = sum(run.num_records for run in runs)
    if total > max_records:
        # Between two entries of the indexes that are `step` entries apart, each run may have
        # another `entry_records`, but one.
        least = max(run.index_step for run in runs)
        entry_records = max(least, max_records // (2 * len(runs)) // least * least)
        step = max(1, (max_records - len(runs) * (entry_records - 1)) // entry_records)
        entries = _read_indexes(runs, entry_records)
        low = (0,) * len(runs)
        for position in range(step, len(entries["run"]), step):
            boundary = _at_record(runs, entries, position, entry_records, low)
            yield boundary
            low = boundary.places
    yield Boundary(num_nodes, 0, tuple(run.num_records for run in runs))


def _read_indexes(runs: Sequence[EdgeRun], entry_records: int) -> dict[str, npt.NDArray[Any]]:
    """Return index entries of all runs, one for every `entry_records` records, in order."""
    columns: dict[str, list[npt.NDArray[Any]]] = defaultdict(list)
    for number, run in enumerate(runs):
        dtype = record_dtype(run.record_bytes)
        index = np.empty(-(-run.num_records // run.index_step), dtype)
        run.read("index", 0, index.view(np.uint8))
        index = index[:: entry_records // run.index_step]
        columns["target"].append(index["target"].astype(np.int64))
        columns["source"].append(index["source"].astype(np.int64))
        columns["run"].append(np.full(len(index), number, np.int32))
        columns["place"].append(np.arange(len(index), dtype=np.int64) * entry_records)
    entries = {name: np.concatenate(parts) for name, parts in columns.items()}
    order = np.lexsort((entries["run"], entries["source"], entries["target"]))
    return {name: values[order] for name, values in entries.items()}


def _at_record(
    runs: Sequence[EdgeRun],
    entries: dict[str, npt.NDArray[Any]],
    position: int,
    entry_records: int,
    low: tuple[int, ...],
) -> Boundary:
    """Return the boundary at an entry of the indexes, which is behind the places `low`."""
    ends = int(entries["target"][position]), int(entries["source"][position])
    number = int(entries["run"][position])
    places = []
    repeats = False
    for j, run in enumerate(runs):
        if j == number:
            place = int(entries["place"][position])
            repeats |= place > 0 and run.ends(place - 1) == ends
            places.append(place)
            continue
        first = lower_bound(run, ends, low[j], run.num_records, entry_records)
        if j < number:
            behind = lower_bound(run, (ends[0], ends[1] + 1), first, run.num_records, entry_records)
            repeats |= behind > first
            first = behind
        places.append(first)
    return Boundary(*ends, tuple(places), is_record=True, repeats=repeats)


def lower_bound(run: EdgeRun, ends: tuple[int, int], low: int, high: int, guess: int = 0) -> int:
    """Return the first of the records [low, high) at or behind (target, source), or `high`."""
    # Mostly the record is close behind `low`: look there before halving the run.
    while guess and low + guess < high:
        if run.ends(low + guess) >= ends:
            high = low + guess
            break
        low += guess + 1
        guess *= 2
    while high - low > WINDOW_RECORDS:
        middle = (low + high) // 2
        if run.ends(middle) < ends:
            low = middle + 1
        else:
            high = middle
    window = run.records(low, high - low)
    target, source = map(np.uint64, ends)
    begin = int(np.searchsorted(window["target"], target, "left"))
    end = int(np.searchsorted(window["target"], target, "right"))
    return low + begin + int(np.searchsorted(window["source"][begin:end], source, "left"))
