"""Cutting sorted runs into ranges, of which several fit in memory.

All records of all runs have one order: by (target, source), then by run, then by place in the
run; and that is the order of the finished columns. A boundary is a place in this order, given
by a record out of the runs' indexes. So a range between two boundaries has a known size in every
graph: the in-neighbours of one node may be cut between ranges, even a billion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.edges.on_disk.runs import INDEX_STEP, EdgeRun, read_run, record_dtype

# In the search for a boundary, this many last records are read in one piece.
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
    is_first: bool = False

    @property
    def num_records(self) -> int:
        """Records in the range."""
        return sum(self.end.places) - sum(self.begin.places)

    @property
    def present_loop(self) -> int:
        """The node whose self-loop is the record at the end, -1 if none is."""
        end = self.end
        return end.target if end.is_record and end.source == end.target else -1


def plan_ranges(runs: Sequence[EdgeRun], num_nodes: int, most: int) -> Iterator[Range]:
    """Yield ranges of at most so many records and columns that hold everything, in order."""
    begin = Boundary(0, 0, (0,) * len(runs))
    is_first = True
    for end in _boundaries(runs, num_nodes, most):
        while end.target - begin.target > most:
            target = begin.target + most
            places = tuple(
                _lower_bound(run, (target, 0), low, high)
                for run, low, high in zip(runs, begin.places, end.places, strict=True)
            )
            between = Boundary(target, 0, places)
            yield Range(begin, between, is_first)
            begin, is_first = between, False
        yield Range(begin, end, is_first)
        begin, is_first = end, False


def _boundaries(runs: Sequence[EdgeRun], num_nodes: int, max_records: int) -> Iterator[Boundary]:
    """Yield every boundary but the first."""
    total = sum(run.num_records for run in runs)
    if total > max_records:
        # Between two entries of the indexes that are `step` entries apart, each run may have
        # another `entry_records`.
        entry_records = max(INDEX_STEP, max_records // (2 * len(runs)) // INDEX_STEP * INDEX_STEP)
        step = max(1, max_records // entry_records - len(runs))
        entries = _read_indexes(runs, entry_records)
        low = (0,) * len(runs)
        for position in range(step, len(entries["run"]), step):
            boundary = _at_record(runs, entries, position, entry_records, low)
            yield boundary
            low = boundary.places
    yield Boundary(num_nodes, 0, tuple(run.num_records for run in runs))


def _read_indexes(runs: Sequence[EdgeRun], entry_records: int) -> dict[str, npt.NDArray[Any]]:
    """Return index entries of all runs, one for every `entry_records` records, in order."""
    found: dict[str, list[npt.NDArray[Any]]] = {
        "target": [], "source": [], "run": [], "place": []
    }  # fmt: skip
    for number, run in enumerate(runs):
        dtype = record_dtype(run.record_bytes)
        index = np.empty(-(-run.num_records // INDEX_STEP), dtype)
        read_run(run.path("index"), 0, index.view(np.uint8))
        index = index[:: entry_records // INDEX_STEP]
        found["target"].append(index["target"].astype(np.int64))
        found["source"].append(index["source"].astype(np.int64))
        found["run"].append(np.full(len(index), number, np.int32))
        found["place"].append(np.arange(len(index), dtype=np.int64) * entry_records)
    entries = {name: np.concatenate(parts) for name, parts in found.items()}
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
            places.append(int(entries["place"][position]))
            continue
        first = _lower_bound(run, ends, low[j], run.num_records, entry_records)
        if j < number:
            behind = _lower_bound(
                run, (ends[0], ends[1] + 1), first, run.num_records, entry_records
            )
            repeats |= behind > first
            first = behind
        places.append(first)
    return Boundary(*ends, tuple(places), is_record=True, repeats=repeats)


def _lower_bound(run: EdgeRun, ends: tuple[int, int], low: int, high: int, guess: int = 0) -> int:
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
