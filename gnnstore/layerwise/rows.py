"""The rows of blocks: rows of targets, rows kept in memory, and rows packed for each block.

The in-neighbours of a block lie anywhere in the table, and reading them one by one is limited by a
disk's reads per second. So the table is read once in order for a group of blocks: rows to keep go
to memory, those that blocks need besides to a file, from which each block then reads its own.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnstore import _core
from gnnstore._core import ReadCounts
from gnnstore.disk.spool import guarded
from gnnstore.errors import storage_error
from gnnstore.features.source import Decoding, RowSource
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES, id_dtype
from gnnstore.graph.arrays import as_tensor
from gnnstore.layerwise.calls import Block
from gnnstore.layerwise.plan import LayerPlan
from gnnstore.threads import CancelledError, Flag, Workers

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Parts of the table that are in memory in a pass over it.
_NUM_PARTS = 3


def part_rows(plan: LayerPlan, part_bytes: int) -> int:
    """Return the number of rows in a part, the unit of reading."""
    call, kind = plan.call, plan.call.kind
    return max(1, part_bytes // max(kind.stored_bytes, kind.row_bytes, call.source_bytes))


def reading_bytes(plan: LayerPlan, part_bytes: int, num_readers: int) -> int:
    """Return the bytes for parts of a table in a pass over it, and for parts of blocks."""
    call, kind = plan.call, plan.call.kind
    converted = 0 if kind.is_as_stored else kind.stored_bytes + 2 * kind.row_bytes
    mapped = 0 if call.map_name is None else call.source_bytes
    reading = num_readers * (plan.packed_bytes + converted)
    in_pass = (_NUM_PARTS + 1) * kind.stored_bytes + converted + mapped + plan.packed_bytes
    return part_rows(plan, part_bytes) * (reading + in_pass)


class TableReader:
    """Reads rows of a layer's input in order, converted for the layer. Not thread-safe."""

    def __init__(
        self,
        source: RowSource,
        plan: LayerPlan,
        part_bytes: int,
        workers: Workers,
        decoding: Decoding | None,  # of rows of int8 whose columns have scales
    ) -> None:
        self.plan = plan
        self.workers = workers
        self.part_rows = part_rows(plan, part_bytes)
        self.num_rows = source.num_rows
        self.counts = ReadCounts()
        self._source = source
        self._decoding = decoding

    def read(self, first: int, x: Tensor) -> None:
        """Read the rows of consecutive nodes, some parts at the same time."""
        parts = [slice(at, at + self.part_rows) for at in range(0, len(x), self.part_rows)]
        tasks = [partial(self._read_part, first + part.start, x[part]) for part in parts]
        self.counts = sum(self.workers.run(tasks), self.counts)

    def _read_part(self, first: int, x: Tensor) -> ReadCounts:
        if self.plan.call.kind.is_as_stored:
            return self._source.read_range(first, as_bits(x))
        rows, counts = self._stored(first, len(x))
        x.copy_(self.converted(rows))
        return counts

    def _stored(self, first: int, number: int) -> tuple[npt.NDArray[Any], ReadCounts]:
        rows = self._source.spec.empty(number)
        return rows, self._source.read_range(first, rows)

    def converted(self, rows: npt.NDArray[Any]) -> Tensor:
        """Return stored rows in the layer's type."""
        kind = self.plan.call.kind
        if self._decoding is None:
            tensor = as_tensor(np.require(rows, requirements="W"), kind.stored)
        else:
            tensor = as_tensor(self._decoding.decode(rows), self._decoding.dtype)
        return tensor.view(-1, kind.width).to(kind.dtype)

    def parts(self, stop: Flag) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Read the table in order, some parts ahead: the first row's number, and rows as stored."""
        coming: deque[tuple[int, Any]] = deque()
        for first in range(0, self.num_rows, self.part_rows):
            if stop.is_set():
                raise CancelledError("blocks are no longer needed")
            number = min(self.part_rows, self.num_rows - first)
            coming.append((first, self.workers.submit(self._stored, first, number)))
            if len(coming) == _NUM_PARTS - 1:
                yield self._taken(*coming.popleft())
        while coming:
            yield self._taken(*coming.popleft())

    def _taken(self, first: int, part: Any) -> tuple[int, npt.NDArray[Any]]:
        rows, counts = part.result()
        self.counts += counts
        return first, rows


def as_bits(x: Tensor) -> npt.NDArray[Any]:
    """Return rows as integers of the same memory."""
    return x.view(_BITS[x.itemsize]).numpy()


class KeptRows:
    """Rows that stay in memory for a layer, as it sums them, in the order of their ids."""

    def __init__(
        self,
        nodes: npt.NDArray[np.int64],
        num_nodes: int,
        plan: LayerPlan,
        num_front: int,
        *,
        is_all: bool,  # no edge comes from another node
    ) -> None:
        self.is_all = is_all
        self._call = plan.call
        self._num_front = num_front  # rows of the largest block that come before the kept ones
        # Which nodes, and where each one's row is: see `_core.find_slots`.
        self.index = _core.index_nodes(nodes, num_nodes)
        self.nodes = nodes
        self.is_filled = not len(nodes)
        # Pages in front take memory once a block has filled them.
        shape = num_front + len(nodes), plan.call.source_width
        self._rows = torch.empty(shape, dtype=plan.call.kind.dtype)

    def fill(self, first: int, sources: Tensor) -> None:
        """Keep the rows that belong here, in order, as the layer sums them."""
        begin, end = np.searchsorted(self.nodes, [first, first + len(sources)])
        chosen = torch.from_numpy(self.nodes[begin:end] - first)
        torch.index_select(sources, 0, chosen, out=self._rows[self._num_front :][begin:end])

    def in_front(self, block: Block, others: Tensor) -> Block:
        """Return a block whose rows are its targets', others, and all that are kept."""
        own, num_rows = block.x, block.num_targets + len(others)
        x = self._rows[self._num_front - num_rows :]
        x[: block.num_targets] = self._call.as_sources(own)
        x[block.num_targets : num_rows] = others
        return replace(block, x=x, own=None if self._call.map_name is None else own)


class PackedRows:
    """The rows of the blocks of a group in a file, each block's in several runs; and their ids."""

    def __init__(
        self,
        table: TableReader,
        wanted: list[npt.NDArray[Any]],  # the ids of the rows of each block, ascending
        directory: Path,
        max_pending: int,
    ) -> None:
        self._table = table
        self._wanted = wanted
        # Rows are gathered up to this number before they are written.
        self._max_pending = max(max_pending, table.part_rows)
        self._pending: dict[int, list[npt.NDArray[Any]]] = defaultdict(list)
        self._num_pending = 0
        # The runs of each block: begin, words, checksum and number of rows. The first has the ids.
        self._runs: list[list[tuple[int, int, int, int]]] = [[] for _ in wanted]
        self.bytes_written = 0
        try:
            self._directory = Path(tempfile.mkdtemp(prefix="packed-", dir=directory))
            self.path = self._directory / "rows"
            self._file = _core.SpillFile(self.path)
        except OSError as error:
            raise storage_error(error, "make a file for packed rows", directory) from error

    def fill(self, kept: KeptRows | None, stop: Flag) -> None:
        """Read the table in order, and put its rows where they belong."""
        call = self._table.plan.call
        begins = [0] * len(self._wanted)
        for block, ids in enumerate(self._wanted):
            self._write(block, ids)
        is_wanted = kept is not None or any(map(len, self._wanted))
        for first, rows in self._table.parts(stop) if is_wanted else ():
            last, chosen = first + len(rows), rows
            if kept is not None or call.map_name is not None:
                sources = call.as_sources(self._table.converted(rows))
                if kept is not None:
                    kept.fill(first, sources)
                if call.map_name is not None:
                    chosen = as_bits(sources)
            for block, ids in enumerate(self._wanted):
                begin = begins[block]
                begins[block] = end = begin + int(np.searchsorted(ids[begin:], last))
                if end > begin:
                    if self._num_pending + end - begin > self._max_pending:
                        self.flush()
                    self._pending[block].append(chosen[ids[begin:end] - first])
                    self._num_pending += end - begin
        self.flush()
        self._wanted = []

    def flush(self) -> None:
        """Write the rows that were gathered."""
        for block, pieces in self._pending.items():
            rows = np.concatenate(pieces)
            for at in range(0, len(rows), self._table.part_rows):
                self._write(block, rows[at : at + self._table.part_rows])
        self._pending.clear()
        self._num_pending = 0

    def _write(self, block: int, rows: npt.NDArray[Any]) -> None:
        content = rows.reshape(-1).view(np.uint8)
        if missing := -len(content) % 4:
            content = np.concatenate([content, np.zeros(missing, np.uint8)])
        words = content.view(np.int32)
        write = partial(self._file.append, words, block)
        begin, crc = guarded(write, "write the packed rows", self.path)
        self._runs[block].append((begin, len(words), crc, len(rows)))
        self.bytes_written += words.nbytes

    def ids(self, block: int) -> npt.NDArray[Any]:
        """Return the ids of the rows of a block, ascending."""
        return self._content(block, self._runs[block][0]).view(id_dtype(self._table.num_rows))

    def read(self, block: int, sources: Tensor) -> int:
        """Read the rows of a block as its layer sums them; return the bytes read."""
        tasks, at = [], 0
        for run in self._runs[block][1:]:
            tasks.append(partial(self._read_run, block, run, sources[at : at + run[-1]]))
            at += run[-1]
        self._table.workers.run(tasks)
        return 4 * sum(num_words for _, num_words, _, _ in self._runs[block])

    def _read_run(self, block: int, run: tuple[int, int, int, int], out: Tensor) -> None:
        plan = self._table.plan
        content = self._content(block, run)[: len(out) * plan.packed_bytes]
        if plan.call.map_name is not None:
            as_bits(out)[:] = content.view(as_bits(out).dtype).reshape(out.shape)
        else:
            out.copy_(self._table.converted(content.view(STORAGE_DTYPES[plan.call.kind.stored])))

    def _content(self, block: int, run: tuple[int, int, int, int]) -> npt.NDArray[np.uint8]:
        begin, num_words, crc, _ = run
        read = partial(self._file.read_int32, begin, num_words, crc, block)
        return guarded(read, "read the packed rows", self.path).view(np.uint8)

    def close(self) -> None:
        """Remove the rows. Idempotent."""
        self._runs.clear()
        self._file.close()
        _core.remove_tree(self._directory)
