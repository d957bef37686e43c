"""Building an adjacency that memory cannot hold: as long as it fits there, then on disk.

Nobody has to know beforehand how many edges will come. They are kept in memory until they
could no longer be sorted there; then they are written as the first sorted runs, and so is
what follows, a budget's worth at a time. In the end the runs are merged.

Runs are durable before they are entered in the journal, and what is in the journal is not
taken again: an attempt that goes on skips as many edges of its input.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.limits import available_bytes
from gnnstore.converters.edges.builder import (
    BuiltEdges,
    EdgeBuilder,
    InMemoryEdgeBuilder,
    num_build_threads,
)
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.edges.spill.merge import SpilledEdges
from gnnstore.converters.edges.spill.runs import (
    SpilledPart,
    record_bytes_for,
    spill_bytes_per_edge,
    write_part,
)
from gnnstore.errors import BudgetError, InputError, NoSpaceError, storage_error
from gnnstore.formats.container.files import free_bytes
from gnnstore.formats.container.journal import Journal
from gnnstore.units import format_size

# Below, the buffers of the arrays that are written are most of the budget already.
MIN_SPILL_BYTES = 2**24
# What comes in larger pieces is taken piece by piece: the budget is checked in between.
_MIN_PIECE_EDGES, _MAX_PIECE_EDGES = 2**12, 2**20
# The rest is for chunks on their way in and out, and for what the pool rounds up.
_SHARE = 0.8


def make_edge_builder(
    rules: EdgeRules,
    *,
    num_nodes: int | None,
    memory_bytes: int | None,
    spill_directory: Path | None,
    journal: Journal | None = None,
) -> EdgeBuilder:
    """Return what collects and sorts the edges of a conversion.

    Parameters
    ----------
    rules : EdgeRules
        What to add, drop and keep.
    num_nodes : int, optional
        N, if it is known already.
    memory_bytes : int, optional
        The most memory to use; by default what is available.
    spill_directory : Path, optional
        Where to sort what does not fit; need not exist. None: only in memory.
    journal : Journal, optional
        Knows the runs of an earlier attempt, and is told new ones.
    """
    if spill_directory is None:
        return InMemoryEdgeBuilder(rules, num_nodes=num_nodes, memory_bytes=memory_bytes)
    return SpillingEdgeBuilder(
        rules,
        spill_directory,
        num_nodes=num_nodes,
        memory_bytes=memory_bytes,
        journal=journal,
    )


class SpillingEdgeBuilder:
    """Sorts edges in memory while they fit, else in sorted runs on disk.

    Parameters
    ----------
    rules : EdgeRules
        What to add, drop and keep.
    directory : Path
        Where runs go; made when the first one is written.
    num_nodes : int, optional
        N, if it is known already: ids are then checked as they come.
    memory_bytes : int, optional
        The most to use; by default what is available now.
    journal : Journal, optional
        Knows the runs of an earlier attempt, whose edges are skipped, and is told new ones.
    """

    def __init__(
        self,
        rules: EdgeRules,
        directory: Path,
        *,
        num_nodes: int | None = None,
        memory_bytes: int | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._rules = rules
        self._directory = directory
        self._journal = journal
        self._memory = InMemoryEdgeBuilder(rules, num_nodes=num_nodes, memory_bytes=memory_bytes)
        self._buffer = self._memory.buffer
        self._memory_bytes = available_bytes() if memory_bytes is None else memory_bytes
        self._parts: list[SpilledPart] = []
        self._expected = 0
        fitting = self._memory_bytes // 512
        self._piece_edges = max(_MIN_PIECE_EDGES, min(_MAX_PIECE_EDGES, fitting))
        if journal is not None:
            parts = map(SpilledPart.from_json, journal.runs())
            # What lies behind a damaged one would leave a gap in the input.
            self._parts = list(takewhile(SpilledPart.is_sound, parts))
        self._skip = sum(part.num_edges for part in self._parts)
        self._buffer.max_id = max((part.max_id for part in self._parts), default=-1)

    @property
    def is_spilling(self) -> bool:
        """Whether edges lie on disk."""
        return bool(self._parts)

    def set_num_nodes(self, num_nodes: int) -> None:
        """Check the ids of the edges to come.

        Raises
        ------
        InputError
            If no graph has so many.
        """
        self._memory.set_num_nodes(num_nodes)

    def reserve(self, num_bytes: int) -> None:
        """Leave so much of the memory to others."""
        self._memory.reserve(num_bytes)
        self._memory_bytes -= num_bytes

    def expect(self, num_edges: int) -> None:
        """Learn how many edges will come, to refuse at once what the disk has no room for.

        Raises
        ------
        NoSpaceError
            If they fit neither in memory nor on disk.
        BudgetError
            If the budget is too small even to sort on disk.
        """
        self._expected = num_edges
        if self._parts:
            return
        try:
            self._memory.expect(num_edges)
        except BudgetError as error:
            self._check_can_spill(error)
            self._check_space(num_edges)

    def add(
        self,
        sources: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        attributes: Mapping[str, npt.NDArray[Any]],
        where: str,
    ) -> None:
        """Take a chunk of edges.

        Raises
        ------
        InputError
            See `EdgeBuffer.append`.
        NoSpaceError, StorageError
            If edges have to go to the disk, and cannot.
        BudgetError
            If the budget is too small even to sort on disk.
        """
        length = len(sources) if sources.shape == targets.shape else 0
        step = self._piece_edges
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
        if self._skip:
            known = min(self._skip, len(sources))
            self._skip -= known
            self._buffer.num_seen += known
            sources, targets = sources[known:], targets[known:]
            attributes = {name: rows[known:] for name, rows in attributes.items()}
        if self._parts:
            self._buffer.append(sources, targets, attributes, where)
            if self._sort_bytes() > _SHARE * self._memory_bytes:
                self._spill()
            return
        try:
            self._memory.add(sources, targets, attributes, where)
        except BudgetError as error:
            self._check_can_spill(error)
            self._spill()

    def _sort_bytes(self) -> int:
        """Return what the edges in memory take while they are sorted."""
        records = 2 * record_bytes_for(self._buffer.max_id) * self._buffer.num_edges
        return self._buffer.num_bytes + records * 9 // 8

    def _spill(self) -> None:
        """Write all edges that are in memory as sorted runs."""
        buffer = self._buffer
        self._check_space(max(buffer.num_edges, self._expected - buffer.num_seen))
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, "create the spill directory", self._directory) from error
        # The first time, memory is nearly full, and what is there goes in several parts. What
        # they leave is not counted: blocks of the buffer are freed as a whole.
        left = max(int(0.9 * self._memory_bytes) - buffer.num_bytes, self._memory_bytes // 8)
        fitting = left * 8 // 9 // (2 * record_bytes_for(buffer.max_id))
        while buffer.num_edges:
            num_edges = max(1, min(buffer.num_edges, fitting))
            name = f"{len(self._parts):06d}-{secrets.token_hex(4)}"
            part = write_part(
                self._directory / name, buffer, num_edges, self._rules, num_build_threads()
            )
            if self._journal is not None:
                self._journal.record_run(part.to_json())
            self._parts.append(part)
            buffer.drop(num_edges)
            _core.pool_trim()

    def _check_can_spill(self, error: BudgetError) -> None:
        if self._memory_bytes < MIN_SPILL_BYTES:
            raise BudgetError(
                f"{error}. Sorting on disk instead takes {format_size(MIN_SPILL_BYTES)} of memory"
            ) from None

    def _check_space(self, num_edges: int) -> None:
        """Refuse at once what would fill the disk hours later."""
        place = self._directory
        while not place.exists():
            place = place.parent
        rules, buffer = self._rules, self._buffer
        num_nodes = buffer.num_nodes or buffer.max_id + 1
        row_bytes = buffer.attribute_bytes
        record_bytes = record_bytes_for(num_nodes - 1)
        needed = num_edges * spill_bytes_per_edge(rules, record_bytes, row_bytes)
        free = free_bytes(place)
        if needed > free:
            raise NoSpaceError(
                f"cannot sort {num_edges} edges on disk, which takes {format_size(needed)} of "
                f"temporary space: {format_size(free)} are free for {self._directory}. Free "
                f"{format_size(needed - free)}, choose a directory on another disk (--spill-dir, "
                "spill_directory=), or allow more memory (--memory, memory_bytes=)",
                path=self._directory,
            )

    def finish(self, num_nodes: int | None) -> BuiltEdges:
        """Sort the edges into columns; the builder is empty afterwards.

        Raises
        ------
        InputError
            If an id is not below `num_nodes`.
        NoSpaceError, StorageError
            If edges have to go to the disk, and cannot.
        """
        buffer = self._buffer
        if not self._parts:
            try:
                return self._memory.finish(num_nodes)
            except BudgetError as error:
                self._check_can_spill(error)
        count = buffer.max_id + 1 if num_nodes is None else num_nodes
        if buffer.max_id >= count:
            raise InputError(
                f"the edges: node id {buffer.max_id} is outside [0, {count}): there are {count} "
                "nodes"
            )
        if self._skip:
            raise InputError(
                f"the input has {buffer.num_seen} edges, but had at least "
                f"{buffer.num_seen + self._skip} when this conversion was interrupted; convert "
                "again without --resume (resume=True)"
            )
        self._spill()
        return SpilledEdges(
            self._parts,
            self._rules,
            count,
            memory_bytes=int(_SHARE * self._memory_bytes),
            num_threads=num_build_threads(),
            directory=self._directory,
            journal=self._journal,
        )
