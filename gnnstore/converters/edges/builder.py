"""Collecting the edges of a conversion and sorting them: in memory while they fit, else on disk.

The number of edges need not be known beforehand. Edges stay in memory until they could no longer
be sorted there; then they are written as the first sorted runs, and so are those that follow, a
budget's worth at a time. In the end the runs are merged.

Runs are durable before they are entered in the journal; an attempt that resumes skips as many edges
of its input as the runs in the journal hold.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.edges.buckets import BucketFiller, begin_buckets, fill_buckets
from gnnstore.converters.edges.buffer import EdgeBuffer
from gnnstore.converters.edges.columns import (
    BuiltEdges,
    estimate_peak_bytes,
    longest_sort,
    sort_edges,
    sort_scratch,
)
from gnnstore.converters.edges.merge import SpilledEdges, rows_at_once
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.edges.runs import (
    SpilledPart,
    record_bytes_for,
    spill_bytes_per_edge,
    write_part,
)
from gnnstore.converters.inputs.source import num_threads
from gnnstore.errors import InputError, storage_errors
from gnnstore.formats.arrays.journal import Journal
from gnnstore.formats.base.files import require_space
from gnnstore.units import format_count

# Least budget for sorting on disk: in less, the buffers of written arrays take most of it.
MIN_SPILL_BYTES = 2**24
_SMALL_ROWS_BYTES = 2**20  # bytes of attribute rows for which the buffers have room
# Least and most edges of a piece in which larger inputs are added: the budget is checked in
# between.
_MIN_PIECE_EDGES, _MAX_PIECE_EDGES = 2**12, 2**20
# Share of the memory for edges; the rest is for chunks in flight, and for the pool's rounding.
_SHARE = 0.8
# One part in so many of the memory for the attributes of a piece.
_PIECE_SHARE = 16


class EdgeBuilder:
    """Collects edges in any order, and sorts them into columns."""

    def __init__(
        self,
        rules: EdgeRules,
        directory: Path | None = None,
        *,
        num_nodes: int | None = None,
        memory_bytes: int | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.buffer = EdgeBuffer(num_nodes)  # the edges that are in memory
        self._rules = rules
        self._directory = directory
        self._spill_directory = directory or Path()  # without one, edges stay in memory
        self._journal = journal
        self._memory = memory_ledger("building the adjacency", memory_bytes)
        self._parts: list[SpilledPart] = []
        self._filler: BucketFiller | None = None
        self._expected = 0
        self._row_bytes = 0  # of all attributes of an edge, as far as they are known
        fitting = self._free_bytes // 512
        self._piece_edges = max(_MIN_PIECE_EDGES, min(_MAX_PIECE_EDGES, fitting))
        if journal is not None:
            parts = map(SpilledPart.from_json, journal.runs())
            # Runs behind a damaged one cannot be used: there would be a gap in the input.
            self._parts = list(takewhile(SpilledPart.is_sound, parts))
        self._skip = sum(part.num_edges for part in self._parts)
        self.buffer.max_id = max((part.max_id for part in self._parts), default=-1)

    @property
    def has_runs(self) -> bool:
        """Whether sorted runs are on disk, perhaps of an attempt that was interrupted."""
        return bool(self._parts)

    def reserve(self, num_bytes: int) -> None:
        """Reserve memory for other uses."""
        self._memory = self._memory.add(Reservation("what is read and numbered", num_bytes))

    @property
    def _free_bytes(self) -> int:
        return max(0, self._memory.left())

    def expect(
        self,
        num_edges: int,
        some_targets: Iterable[npt.NDArray[Any]] | None = None,
        row_bytes: int = 0,
    ) -> None:
        """Check that memory or the disk has room for edges, with attributes of `row_bytes` each."""
        self._expected = num_edges
        self._row_bytes = max(self._row_bytes, row_bytes)
        if self._parts:
            return
        num_nodes = self.buffer.num_nodes
        if not self._fits(num_edges, num_nodes or 0, more_may_come=some_targets is None):
            self._check_space(num_edges)
        elif (
            some_targets is not None
            and num_nodes is not None
            and not self.buffer.num_seen
            and self._rules.self_loops != "add"
            and self._needs(num_edges, num_nodes, num_edges).left() >= 0
        ):
            self._filler = begin_buckets(self._rules, num_edges, num_nodes, some_targets)

    def add(
        self,
        sources: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        attributes: Mapping[str, npt.NDArray[Any]],
        where: str,
    ) -> None:
        """Add a chunk of edges [k] with attribute rows [k, ...]; `where` names the input."""
        length = len(sources) if sources.shape == targets.shape else 0
        self._row_bytes = sum(rows[:1].nbytes for rows in attributes.values()) or self._row_bytes
        fitting = self._free_bytes // (_PIECE_SHARE * max(1, self._row_bytes))
        step = max(1, min(self._piece_edges, fitting))
        if length <= step or any(len(rows) != length for rows in attributes.values()):
            return self._take(sources, targets, attributes, where)  # or refuse it as a whole
        for begin in range(0, length, step):
            part = slice(begin, begin + step)
            rows = {name: values[part] for name, values in attributes.items()}
            self._take(sources[part], targets[part], rows, where)
        return None

    def _take(
        self,
        sources: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        attributes: Mapping[str, npt.NDArray[Any]],
        where: str,
    ) -> None:
        buffer = self.buffer
        if self._filler is not None:
            buffer.count(sources, targets, where)
            self._filler.add(sources, targets)
            return
        if self._skip:
            known = min(self._skip, len(sources))
            self._skip -= known
            buffer.num_seen += known
            sources, targets = sources[known:], targets[known:]
            attributes = {name: rows[known:] for name, rows in attributes.items()}
        buffer.append(sources, targets, attributes, where)
        if self._parts:
            is_full = self._sort_bytes() > _SHARE * self._free_bytes
        else:
            is_full = not self._fits(buffer.num_edges, buffer.max_id + 1, more_may_come=True)
        if is_full:
            self._spill()

    # ---- budgets

    def _needs(self, num_edges: int, num_nodes: int, edges_at_once: int = 0) -> Ledger:
        """Return the memory ledger with the reservations for sorting `num_edges` edges."""
        peak = estimate_peak_bytes(self._rules, num_edges, num_nodes, self._row_bytes)
        edges = Reservation(
            f"ids, columns and attributes of {format_count(num_edges, 'edge')}", peak
        )
        return self._memory.add(edges, sort_scratch(num_nodes, edges_at_once))

    def _fits(
        self, num_edges: int, num_nodes: int, edges_at_once: int = 0, *, more_may_come: bool = False
    ) -> bool:
        """Return whether edges can be sorted in memory; if not, they can be on disk."""
        needs = self._needs(num_edges, num_nodes, edges_at_once)
        if needs.left() >= 0:
            return True
        if self._directory is None:
            raise needs.refusal(None, "convert on a larger machine")
        rows = rows_at_once(num_threads()) * self._row_bytes - _SMALL_ROWS_BYTES
        on_disk = self._memory.add(
            Reservation("buffers to sort edges on disk", MIN_SPILL_BYTES),
            Reservation("some rows of attributes", max(0, rows)),
        )
        if on_disk.left() < 0:
            # The error of the cheaper way; but in memory, later edges or attributes might not fit.
            raise (on_disk if more_may_come else max(needs, on_disk, key=Ledger.left)).refusal()
        return False

    def _columns_fit(self, num_nodes: int) -> bool:
        """Return whether the edges can be sorted in memory, their longest column included."""
        num_edges = self.buffer.num_edges
        most = num_edges * self._rules.copies
        if self._needs(num_edges, num_nodes, most).left() >= 0:
            return True  # without counting
        return self._fits(num_edges, num_nodes, longest_sort(self.buffer, self._rules, num_nodes))

    def _sort_bytes(self) -> int:
        """Return the memory in which the buffer's edges are sorted into a run."""
        records = 2 * record_bytes_for(self.buffer.max_id) * self.buffer.num_edges
        return self.buffer.num_bytes + records * 9 // 8

    def _check_space(self, num_edges: int) -> None:
        """Check that the disk has room for the sorted runs of `num_edges` edges."""
        num_nodes = self.buffer.num_nodes or self.buffer.max_id + 1
        needed = num_edges * spill_bytes_per_edge(
            self._rules, record_bytes_for(num_nodes - 1), self._row_bytes
        )
        require_space(
            self._spill_directory,
            needed,
            f"sort {num_edges} edges on disk",
            "choose a directory on another disk (spill_dir=)",
            "allow more memory (memory_bytes=)",
        )

    # ---- on disk

    def _spill(self) -> None:
        """Write all edges that are in memory as sorted runs."""
        buffer, directory = self.buffer, self._spill_directory
        self._check_space(max(buffer.num_edges, self._expected - buffer.num_seen))
        with storage_errors("create the spill directory", directory):
            directory.mkdir(parents=True, exist_ok=True)
        # The first time, memory is nearly full, and the edges go in several parts. Memory that
        # they free is not counted: blocks of the buffer are freed as a whole.
        limit = self._free_bytes
        left = max(int(0.9 * limit) - buffer.num_bytes, limit // 8)
        fitting = left * 8 // 9 // (2 * record_bytes_for(buffer.max_id))
        while buffer.num_edges:
            num_edges = max(1, min(buffer.num_edges, fitting))
            name = f"{len(self._parts):06d}-{secrets.token_hex(4)}"
            part = write_part(directory / name, buffer, num_edges, self._rules, num_threads())
            if self._journal is not None:
                self._journal.record_run(part.to_json())
            self._parts.append(part)
            buffer.drop(num_edges)
            _core.pool_trim()

    def build(self, num_nodes: int | None) -> BuiltEdges:
        """Sort the edges into columns; the builder is empty afterwards."""
        buffer = self.buffer
        count = buffer.max_id + 1 if num_nodes is None else num_nodes
        if buffer.max_id >= count:
            raise InputError(
                f"the edges: node id {buffer.max_id} is outside [0, {count}): there are {count} "
                "nodes"
            )
        if self._filler is not None:
            filler, self._filler = self._filler, None
            return filler.build({}, buffer.num_seen)
        if not self._parts and self._columns_fit(count):
            edges = fill_buckets(buffer, self._rules, count)
            return sort_edges(buffer, self._rules, count) if edges is None else edges
        if self._skip:
            raise InputError(
                f"the input has {format_count(buffer.num_seen, 'edge')}, but had at least "
                f"{buffer.num_seen + self._skip} when this conversion was interrupted; convert "
                "again without resume=True"
            )
        self._spill()
        attributes = buffer.attributes or {}  # which no part holds, where there are no edges
        return SpilledEdges(
            self._parts,
            self._rules,
            count,
            attributes=[(name, r.dtype.str, r.row_shape) for name, r in attributes.items()],
            memory_bytes=int(_SHARE * self._free_bytes),
            num_threads=num_threads(),
            directory=self._spill_directory,
            journal=self._journal,
        )
