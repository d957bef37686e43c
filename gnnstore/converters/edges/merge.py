"""Merging sorted runs into the finished adjacency, range by range, on several threads.

Where the edges must be merged to know how many are left (reverse edges may meet their duplicates, a
self-loop may be missing), they are merged once to count and once to write: that reads twice what a
copy in between would write and read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.converters.edges.columns import EdgeChunk
from gnnstore.converters.edges.equal import EqualEdges, SortedEnds
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.edges.runs import EdgeRun, Range, SpilledPart, lower_bound, plan_ranges
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.arrays.journal import Journal
from gnnstore.threads import ordered_map

T = TypeVar("T")
Int64Array = npt.NDArray[np.int64]

# Most records of a range: larger ones are read no faster.
MAX_RANGE_RECORDS = 2**23
# Least records of a range, unless they take more than these bytes: a boundary costs a look at every
# run, which would be most of the work.
MIN_RANGE_RECORDS, _MIN_RANGE_BYTES = 2**9, 2**15
# Share of a range's memory for columns without edges, where edges are few since their rows are
# long.
_COLUMN_SHARE, _COLUMN_BYTES = 8, 16


def rows_at_once(num_threads: int) -> int:
    """Return the number of rows of attributes in memory, where a range has one record."""
    return 2 * _ranges_at_once(num_threads)


def _ranges_at_once(num_threads: int) -> int:
    return num_threads + 3  # in work, waiting, in use, and in the pool


class _Merged(NamedTuple):
    """The finished edges of a range; ids of added self-loops count from the range's first."""

    sources: npt.NDArray[Any]
    edge_ids: npt.NDArray[Any] | None
    origins: npt.NDArray[np.int32] | None
    column_counts: npt.NDArray[np.int64]
    num_added: int


class SpilledEdges:
    """A finished adjacency in sorted runs on disk, as `BuiltEdges`."""

    def __init__(
        self,
        parts: list[SpilledPart],
        rules: EdgeRules,
        num_nodes: int,
        *,
        attributes: Iterable[tuple[str, str, tuple[int, ...]]] = (),
        memory_bytes: int,
        num_threads: int,
        directory: Path,
        journal: Journal | None,
    ) -> None:
        self.num_nodes = num_nodes
        self.num_input_edges = sum(part.num_edges for part in parts)
        self._rules = rules
        self._directory = directory
        self._journal = journal
        self._num_threads = num_threads
        # Arrays without rows hold the type and row shape of each attribute.
        self._schema = {
            name: np.empty((0, *shape), dtype)
            for name, dtype, shape in (parts[0].attributes if parts else attributes)
        }
        runs = [run for part in parts for run in part.runs]
        # Among equal edges the input's come before all reverse ones.
        self._runs = sorted(runs, key=lambda run: run.is_reverse)
        self._record_bytes = np.array([run.record_bytes for run in self._runs], np.int64)
        first_ids = [r.first_position + self.num_input_edges * r.is_reverse for r in self._runs]
        self._first_ids = np.array(first_ids, np.int64)
        self.index_dtype = id_dtype(num_nodes)
        self._max_records = self._plan_range(memory_bytes)
        self._count_edges()

    def _plan_range(self, memory_bytes: int) -> int:
        """Return the number of records that a range may have."""
        row_bytes = sum(
            rows.dtype.itemsize * math.prod(rows.shape[1:]) for rows in self._schema.values()
        )
        # The record, source, id, place, and the column's count and pointer; attributes as
        # they are read and as they are handed over. The pool adds up to an eighth.
        each = int(self._record_bytes.max(initial=0)) + 8 + 8 + _COLUMN_BYTES
        if self._schema or self._rules.self_loops == "add":
            each += 4 + 8 + 2 * row_bytes
        self._range_bytes = memory_bytes // _ranges_at_once(self._num_threads)
        least = max(1, min(MIN_RANGE_RECORDS, _MIN_RANGE_BYTES // each))
        return max(least, min(MAX_RANGE_RECORDS, self._range_bytes * 8 // 9 // each))

    def _count_edges(self) -> None:
        rules = self._rules
        self.num_edges = sum(run.num_records for run in self._runs)
        self._num_added = 0
        in_place: bool | None = None
        if rules.undirected or rules.self_loops == "add":
            in_place = self._count()
        elif rules.keep_ids:
            in_place = self._runs_are_in_place()
        total = self.num_input_edges * rules.copies + self._num_added
        id_type = np.dtype(np.int32 if total <= np.iinfo(np.int32).max else np.int64)
        self.edge_id_dtype = id_type if rules.keep_ids and not in_place else None

    def _count(self) -> bool:
        """Merge without writing: set the counts; return whether every edge is in its place."""
        in_place = self._rules.keep_ids
        edges = added = 0
        total_ids = self.num_input_edges * self._rules.copies
        compares = self._rules.undirected and bool(self._schema)
        drops_loops = self._rules.self_loops == "drop"
        equal = EqualEdges(self.num_input_edges, drops_loops=drops_loops)

        def merge(piece: Range) -> tuple[int, int, npt.NDArray[Any] | None, EqualEdges]:
            compared = EqualEdges(self.num_input_edges, drops_loops=drops_loops)
            if compares:
                self._compare(piece, compared)
            if not in_place:
                with self._damage_named():
                    counts = _core.count_edge_runs(*self._load(piece), **self._where(piece))
                    return *counts, None, compared
            merged = self._merge(piece, 8, with_origins=False)
            return len(merged.sources), merged.num_added, merged.edge_ids, compared

        for num_edges, num_added, ids, compared in self._in_order(merge):
            equal.add(compared)
            if in_place and ids is not None:
                ids[ids >= total_ids] += added
                in_place = np.array_equal(ids, np.arange(edges, edges + num_edges))
            edges += num_edges
            added += num_added
        equal.refuse()
        self.num_edges, self._num_added = edges, added
        return in_place

    def _compare(self, piece: Range, equal: EqualEdges) -> None:
        """Compare the attributes of equal edges of a range, and of the one before it."""
        begin = piece.begin
        runs = list(zip(self._runs, begin.places, piece.end.places, self._first_ids, strict=True))
        places = runs
        if begin.repeats:  # the edge that is kept lies before the range
            ends = begin.target, begin.source
            found = (
                (run, lower_bound(run, ends, 0, first), first, at) for run, first, _, at in runs
            )
            kept = next((run, low, low + 1, at) for run, low, first, at in found if low < first)
            places = [kept, *runs]
        records = [(run.records(first, last - first), at) for run, first, last, at in places]
        targets, sources = (
            np.concatenate([part[end].astype(np.int64) for part, _ in records])
            for end in ("target", "source")
        )
        ids = np.concatenate([part["position"].astype(np.int64) + at for part, at in records])
        order = np.lexsort((ids, sources, targets))

        def attributes() -> Iterator[tuple[str, npt.NDArray[Any]]]:
            for number, (name, empty) in enumerate(self._schema.items()):
                rows = np.empty((len(order), *empty.shape[1:]), empty.dtype)
                self._read_rows(
                    number, [(run, first, last) for run, first, last, _ in places], rows
                )
                yield name, rows

        equal.compare(SortedEnds(sources[order], targets[order], ids[order], order), attributes())

    def _read_rows(
        self, number: int, places: Iterable[tuple[EdgeRun, int, int]], rows: npt.NDArray[Any]
    ) -> None:
        """Fill the rows of an attribute that some runs have in places."""
        if not rows.size:
            return
        flat = rows.reshape(-1).view(np.uint8)
        row_bytes = len(flat) // len(rows)
        done = 0
        for run, begin, end in places:
            out = flat[done : done + (end - begin) * row_bytes]
            if len(out):
                run.read(f"attr{number}", begin * row_bytes, out)
            done += len(out)

    def _runs_are_in_place(self) -> bool:
        """Whether the input was sorted, and edges were dropped at its end only."""
        latest, count = (-1, -1), 0
        for run in self._runs:
            if run.num_records == 0:
                continue
            if run.first_position != count or not run.in_place:
                return False
            first, last = (run.ends(place) for place in (0, run.num_records - 1))
            if first < latest:
                return False
            latest, count = last, count + run.num_records
        return True

    # ---- one range

    def _load(
        self, piece: Range
    ) -> tuple[npt.NDArray[np.uint8], Int64Array, Int64Array, Int64Array]:
        """Return the records of all runs, and by run their number, size and first id."""
        begins, ends = (np.array(b.places, np.int64) for b in (piece.begin, piece.end))
        sizes = (ends - begins) * self._record_bytes
        records = _core.pool_empty(int(sizes.sum()))
        place = 0
        for run, begin, size in zip(self._runs, begins.tolist(), sizes.tolist(), strict=True):
            if size:
                run.read("edges", begin * run.record_bytes, records[place : place + size])
            place += size
        return records, ends - begins, self._record_bytes, self._first_ids

    def _where(self, piece: Range) -> dict[str, Any]:
        columns = min(piece.end.target + 1, self.num_nodes) - piece.begin.target
        where = {
            "first_column": piece.begin.target,
            "num_columns": columns,
            "num_nodes": self.num_nodes,
            "unique": self._rules.undirected,
            "skip_first": piece.begin.repeats,
        }
        if self._rules.self_loops == "add":
            where["first_loop"] = piece.begin.first_loop
            where["end_loop"] = piece.end.first_loop
            where["present_loop"] = piece.present_loop
        return where

    def _merge(self, piece: Range, edge_id_bytes: int, *, with_origins: bool) -> _Merged:
        with self._damage_named():
            sources, ids, origins, columns, num_edges, num_added = _core.merge_edge_runs(
                *self._load(piece),
                **self._where(piece),
                first_loop_id=self.num_input_edges * self._rules.copies,
                id_bytes=self.index_dtype.itemsize,
                edge_id_bytes=edge_id_bytes,
                with_origin=with_origins,
            )
        return _Merged(
            sources[:num_edges],
            None if ids is None else ids[:num_edges],
            None if origins is None else origins[:num_edges],
            columns,
            num_added,
        )

    def _attribute_rows(
        self, number: int, piece: Range, origins: npt.NDArray[np.int32]
    ) -> npt.NDArray[Any]:
        """Return the rows of an attribute; zeros for self-loops that were added."""
        empty = list(self._schema.values())[number]
        rows = np.empty((piece.num_records, *empty.shape[1:]), empty.dtype)
        if not rows.size:
            return np.zeros((len(origins), *empty.shape[1:]), empty.dtype)
        places = zip(self._runs, piece.begin.places, piece.end.places, strict=True)
        self._read_rows(number, places, rows)
        taken: npt.NDArray[Any] = rows[origins]
        if self._rules.self_loops == "add":
            taken[origins < 0] = 0
        return taken

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise CorruptStoreError(
                f"{self._directory}: a sorted run of edges is damaged ({error}). Convert again "
                "without resume=True",
                path=self._directory,
            ) from error

    # ---- all ranges

    def _in_order(self, work: Callable[[Range], T]) -> Iterator[T]:
        """Yield `work(range)` for every range, in order; threads work ahead."""
        columns = max(self._max_records, self._range_bytes // (_COLUMN_SHARE * _COLUMN_BYTES))
        ranges = plan_ranges(self._runs, self.num_nodes, self._max_records, columns)
        merged = ordered_map(
            work,
            ranges,
            num_threads=self._num_threads,
            lookahead=lambda: self._num_threads + 1,
            describe="while merging range {} of the sorted edges".format,
        )
        try:
            with closing(merged) as done:
                for result in done:
                    yield result
                    del result  # so that only the consumer holds it
                    _core.pool_trim(self._range_bytes)
        finally:
            _core.pool_trim()

    def chunks(self) -> Iterator[EdgeChunk]:
        """Yield all edges in column order: a chunk for each range."""
        id_bytes = 0 if self.edge_id_dtype is None else self.edge_id_dtype.itemsize
        adds_loops = self._rules.self_loops == "add"
        first_added = self.num_input_edges * self._rules.copies
        edges, added, is_first = 0, 0, True

        def merge(piece: Range) -> tuple[Range, _Merged, dict[str, npt.NDArray[Any]]]:
            part = self._merge(piece, id_bytes, with_origins=adds_loops or bool(self._schema))
            rows = {
                name: self._attribute_rows(number, piece, part.origins)
                for number, name in enumerate(self._schema)
                if part.origins is not None
            }
            return piece, part, rows

        for piece, part, rows in self._in_order(merge):
            ids, origins = part.edge_ids, part.origins
            if ids is not None and part.num_added:
                ids[ids >= first_added] += added
            added += part.num_added
            # Columns before the last one of the range are complete.
            indptr = np.cumsum(part.column_counts[: piece.end.target - piece.begin.target])
            indptr += edges
            if is_first:
                indptr, is_first = np.concatenate([np.zeros(1, np.int64), indptr]), False
            is_added = origins < 0 if origins is not None and adds_loops else None
            yield EdgeChunk(part.sources, ids, rows, indptr, is_added)
            edges += len(part.sources)

    def close(self) -> None:
        """Delete the runs."""
        if self._journal is not None:
            self._journal.forget_runs()
        for run in self._runs:
            for file in run.files():
                Path(file).unlink(missing_ok=True)
