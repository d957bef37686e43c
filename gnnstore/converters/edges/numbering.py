"""Numbers nodes 0, ..., N - 1 by the ids or names that an input has, within a budget of memory.

Scattered ids are collected in one pass over the edges and replaced in the next. Names are numbered
in order of appearance. A dictionary holds them while it fits. Else they are divided by a hash into
parts on disk, each small enough for a dictionary of its own, which finds where each of its names
appears first. That position is an id of the node, and `IdCollector` numbers ids.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.inputs.name_blocks import NameBlock
from gnnstore.converters.inputs.source import ArraySource, GeneratedRows
from gnnstore.converters.spill_files import RangeSort, by_key
from gnnstore.errors import InputError
from gnnstore.formats.arrays.dtypes import id_dtype

# Most possible ids with one bit each (512 MiB), which beats sorting by far: marking an id costs a
# few nanoseconds, sorting it about a hundred. Social networks' ids lie below.
DENSE_LIMIT = 2**32
# Share of the memory for ids or names: the rest is needed to sort edges.
_SHARE = 0.5
# Bytes of an id while runs are merged: two copies, and one that is sorted.
_MERGE_BYTES = 24
_STEP_WORDS = 2**17


def find_ids(
    known: npt.NDArray[np.int64], ids: npt.NDArray[Any], where: str, problem: str
) -> npt.NDArray[np.int64]:
    """Return the places of ids [k] among sorted ones; raise if one is not there."""
    wanted = ids.astype(np.int64)  # compared with unsigned numbers, they would be rounded
    places = np.searchsorted(known, wanted)
    is_unknown = (wanted < 0) != (ids < 0)
    is_unknown |= known[np.minimum(places, len(known) - 1)] != wanted if len(known) else True
    if is_unknown.any():
        raise InputError(f"{where}: the id {ids[int(np.argmax(is_unknown))]} {problem}")
    return places


def may_be_ids(
    name: str, column: npt.NDArray[Any], has_all: Callable[[npt.NDArray[Any]], bool]
) -> bool:
    """Whether a column of integers [N] may have the ids of nodes.

    All differ, and its name ends in "id", or it `has_all` ids by which edges name nodes; these are
    looked for in the column as it is sorted.
    """
    ascending = np.sort(column)
    if (ascending[1:] == ascending[:-1]).any():
        return False
    return name.lower().endswith("id") or has_all(ascending)


class OneBasedIds:
    """Ids 1, ..., N; some may occur in no edge."""

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes

    def to_nodes(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the numbers of ids; any shape."""
        return ids - 1

    def original_ids(self) -> npt.NDArray[np.int64]:
        """Return the id of every node, ascending, shape [N]."""
        return np.arange(1, self.num_nodes + 1)

    @property
    def source(self) -> ArraySource:
        """The same ids, made piece by piece."""
        return GeneratedRows(
            "the rows of a matrix",
            (self.num_nodes,),
            np.int64,
            lambda first, last: np.arange(first + 1, last + 1),
        )


class IdCollector:
    """Collects distinct non-negative ids.

    Small ids are marked in a bitmap; from the first large id on, sorted runs are kept.
    """

    def __init__(self, dense_limit: int = DENSE_LIMIT, memory_bytes: int | None = None) -> None:
        self._max_id = -1
        self._memory_bytes = memory_bytes
        if memory_bytes is not None:
            # Growing the bitmap takes as much again for a moment.
            dense_limit = min(dense_limit, 4 * int(_SHARE * memory_bytes))
        self._dense_limit = dense_limit
        self._words: npt.NDArray[np.uint64] | None = np.zeros(0, np.uint64)
        self._merged: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._runs: list[npt.NDArray[np.int64]] = []

    def add(self, ids: npt.NDArray[np.int64]) -> None:
        """Add ids, shape [k]."""
        if not len(ids):
            return
        if self._words is not None:
            highest = int(ids.max())
            if highest < self._dense_limit:
                self._mark(self._words, np.ascontiguousarray(ids), highest)
                return
            self._merged = np.concatenate([np.empty(0, np.int64), *_members(self._words)])
            self._words = None
        self._runs.append(np.unique(ids))
        num_new = sum(map(len, self._runs))
        self._check_budget(len(self._merged) + num_new)
        if num_new > len(self._merged):
            self._merge()

    def _mark(self, words: npt.NDArray[np.uint64], ids: npt.NDArray[np.int64], top: int) -> None:
        if top // 64 >= len(words):
            grown = min(-(-self._dense_limit // 64), max(top // 64 + 1, 2 * len(words)))
            self._words = np.zeros(grown, np.uint64)
            self._words[: len(words)] = words
            words = self._words
        _core.bitmap_mark(words, ids)
        self._max_id = max(self._max_id, top)

    def _check_budget(self, num_ids: int) -> None:
        if self._memory_bytes is not None:
            memory = memory_ledger("numbering nodes by ids that vary widely", self._memory_bytes)
            ids = Reservation(f"{num_ids} distinct ids", _MERGE_BYTES * num_ids)
            sort_bytes = int(ids.fixed * (1 / _SHARE - 1))
            edges = Reservation("edges to sort at the same time", sort_bytes)
            memory.add(ids, edges).check(None, "number the nodes from 0 and pass num_nodes=")

    def _merge(self) -> None:
        self._merged = np.unique(np.concatenate([self._merged, *self._runs]))
        self._runs = []

    def build(self) -> _DenseMap | _SortedMap:
        """Return the map; the collector is empty afterwards."""
        if self._words is not None:
            words, self._words = self._words, None
            return _DenseMap(words, self._max_id)
        self._merge()
        return _SortedMap(self._merged)


def _members(words: npt.NDArray[np.uint64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the ids of a bitmap, ascending, piece by piece."""
    for first in range(0, len(words), _STEP_WORDS):
        bits = words[first : first + _STEP_WORDS].view(np.uint8)
        ids = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        yield ids + 64 * first


class _DenseMap:
    """Counts smaller ids in a bitmap of all possible ids."""

    def __init__(self, words: npt.NDArray[np.uint64], max_id: int) -> None:
        self._words = words[: max_id // 64 + 1]
        self._ranks, self.num_nodes = _core.bitmap_count(self._words)
        self.is_identity = max_id + 1 == self.num_nodes
        self.num_bytes = self._words.nbytes + self._ranks.nbytes
        self._item_bytes = id_dtype(self.num_nodes).itemsize

    def to_nodes(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        if self.is_identity:
            return ids
        flat = np.ascontiguousarray(ids).reshape(-1)
        numbers = _core.bitmap_rank(self._words, self._ranks, flat, self._item_bytes)
        return numbers.reshape(ids.shape)

    def original_ids(self) -> npt.NDArray[np.int64]:
        ids = np.empty(self.num_nodes, np.int64)
        place = 0
        for piece in _members(self._words):
            ids[place : place + len(piece)] = piece
            place += len(piece)
        return ids


class _SortedMap:
    """Finds numbers by bisection among the sorted ids."""

    def __init__(self, ids: npt.NDArray[np.int64]) -> None:
        self._ids = ids
        self.num_nodes = len(ids)
        self.is_identity = not len(ids) or int(ids[-1]) + 1 == len(ids)
        self.num_bytes = ids.nbytes

    def to_nodes(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return ids if self.is_identity else np.searchsorted(self._ids, ids)

    def original_ids(self) -> npt.NDArray[np.int64]:
        return self._ids


# Ids and node numbers, both ways.
IdMap = OneBasedIds | _DenseMap | _SortedMap


# Memory of a name in a dictionary without its text: objects of bytes and int, an entry.
_ENTRY_BYTES = 160
_NUM_PARTS = 256
# Names that are read at a time, and their bytes: of one part, and of each when all are merged.
_CHUNK = 2**16, 2**20
_MERGED = 256, 2**13
_LISTED = 2**12  # names in a list


ReadNames = Callable[[], Iterable[NameBlock]]  # each call starts anew


class NameNumbering:
    """Numbers names in order of appearance in several texts."""

    def __init__(
        self, directory: Path, memory_bytes: int | None = None, taken_bytes: int = 0
    ) -> None:
        self.num_nodes = self.name_bytes = self.memory_bytes = 0  # distinct names
        self._memory_bytes = memory_bytes
        self._memory = memory_ledger("numbering the names of nodes", memory_bytes)
        if taken_bytes:
            self._memory = self._memory.add(Reservation("names of other types", taken_bytes))
        self._numbers: dict[bytes, int] = {}
        self._spilled: _SpilledNames | None = None
        self._ids: _DenseMap | _SortedMap | None = None
        self._directory = directory

    def collect(self, *texts: ReadNames) -> None:
        """Collect all names of some texts, and number them."""
        if self._collect_in_memory(block for read in texts for block in read()):
            return
        self._numbers = {}
        self._spilled = _SpilledNames(self._directory)
        num_ends = 0
        for read in texts:
            self._spilled.begin_text()
            for block in read():
                self._spilled.add(block.names, block.first + num_ends)
                num_ends += block.codes.size
        collector = IdCollector(memory_bytes=self._memory_bytes)
        self.num_nodes, self.name_bytes = self._spilled.find_first(self._memory, collector)
        self._ids = collector.build()
        self.memory_bytes = self._ids.num_bytes

    def _collect_in_memory(self, blocks: Iterable[NameBlock]) -> bool:
        for block in blocks:
            for name in block.names:
                if self._numbers.setdefault(name, len(self._numbers)) == self.num_nodes:
                    self.num_nodes += 1
                    self.name_bytes += len(name)
            self.memory_bytes = _ENTRY_BYTES * self.num_nodes + self.name_bytes
            if self._memory.add(*_dictionary(self.num_nodes, self.name_bytes)).left() < 0:
                return False
        return True

    def begin(self, text: int) -> None:
        """Go to the begin of a text, whose blocks `numbers` is given in order."""
        if self._spilled is not None:
            self._spilled.go_to(text)

    def numbers(self, block: NameBlock) -> npt.NDArray[Any]:
        """Return the node of each field of the next rows, [k, C]; blocks come in order."""
        if self._spilled is not None and self._ids is not None:
            known = self._ids.to_nodes(self._spilled.take_first(block.names))
        else:
            numbers = map(self._numbers.__getitem__, block.names)
            known = np.fromiter(numbers, id_dtype(self.num_nodes), len(block.names))
        return known[block.codes]

    def names(self) -> Iterator[list[bytes]]:
        """Yield all names in the order of their numbers, in lists."""
        names = iter(self._numbers) if self._spilled is None else self._spilled.merged()
        while some := list(islice(names, _LISTED)):
            yield some

    def close(self) -> None:
        """Remove the files."""
        if self._spilled is not None:
            self._spilled.files.close()


def _dictionary(num_names: int, name_bytes: int) -> tuple[Reservation, Reservation]:
    """Return the memory of a dictionary of names, and of the edges to sort meanwhile."""
    num_bytes = _ENTRY_BYTES * num_names + name_bytes
    return (
        Reservation(f"{num_names} names or more", num_bytes),
        Reservation("edges to sort at the same time", int(num_bytes * (1 / _SHARE - 1))),
    )


class _SpilledNames:
    """Names in files, divided by a hash into parts: first all names, then the distinct ones."""

    def __init__(self, directory: Path) -> None:
        self.files = RangeSort(directory, "names of nodes")
        self._counts = np.zeros(_NUM_PARTS, np.int64)  # names of each part
        self._next_ids = np.zeros(_NUM_PARTS, np.int64)  # position of each part in the file of ids
        self._texts: list[npt.NDArray[np.int64]] = []  # names of each part before each text
        # Distinct names of each part and their bytes, before the next.
        self._ends: list[tuple[int, int]] = [(0, 0)]
        self._longest = 0  # bytes of the longest name

    def begin_text(self) -> None:
        """Begin a text to which `go_to` can return."""
        self._texts.append(self._counts.copy())

    def add(self, names: list[bytes], first: npt.NDArray[np.int64]) -> None:
        """Add names and the position at which each appears."""
        parts = _parts_of(names)
        self.files.add(parts, names=names, first=first)
        self._longest = max([self._longest, *map(len, names)])
        self._counts += np.bincount(parts, minlength=_NUM_PARTS)

    def find_first(self, memory: Ledger, collector: IdCollector) -> tuple[int, int]:
        """Find where each name appears first; return the number of names and their bytes."""
        longest = max(self._longest, _MERGED[1])
        merged = Reservation(f"names of up to {self._longest} bytes", _NUM_PARTS * longest)
        memory.add(merged).check(None, "check the separator of the names")
        for part in range(_NUM_PARTS):
            known: dict[bytes, int] = {}
            num_bytes = 0
            for names, first in self._records(f"{part:06d}", 0, 0, int(self._counts[part])):
                numbers = [
                    known.setdefault(*pair) for pair in zip(names, first.tolist(), strict=True)
                ]
                resolved = np.array(numbers, np.int64)
                num_bytes += sum(len(names[i]) for i in np.flatnonzero(resolved == first))
                memory.add(*_dictionary(len(known), num_bytes)).check()
                self.files.append("ids", resolved)
            firsts = np.fromiter(known.values(), np.int64, len(known))
            collector.add(firsts)
            self.files.append("distinct.names", b"".join(known))
            self.files.append("distinct.names.lengths", np.fromiter(map(len, known), np.int64))
            self.files.append("distinct.first", firsts)
            self._ends.append((self._ends[-1][0] + len(known), self._ends[-1][1] + num_bytes))
            endings = ("names", "names.lengths", "first")
            self.files.remove(*(f"{part:06d}.{ending}" for ending in endings))
        self.go_to(0)
        return self._ends[-1]

    def go_to(self, text: int) -> None:
        """Let `take_first` go on with the first names of a text."""
        self._next_ids = np.cumsum(self._counts) - self._counts + self._texts[text]

    def take_first(self, names: list[bytes]) -> npt.NDArray[np.int64]:
        """Return where each of the next names appears first."""
        first = np.empty(len(names), np.int64)
        for part, chosen in by_key(_parts_of(names)):
            first[chosen] = self.files.read("ids", np.int64, int(self._next_ids[part]), len(chosen))
            self._next_ids[part] += len(chosen)
        return first

    def merged(self) -> Iterator[bytes]:
        """Yield the distinct names in order of appearance."""
        parts = zip(self._ends[:-1], self._ends[1:], strict=True)
        for _, name in heapq.merge(*(self._distinct(begin, end) for begin, end in parts)):
            yield name

    def _distinct(
        self, begin: tuple[int, int], end: tuple[int, int]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield (first position, name) of a part, in order."""
        count = end[0] - begin[0]
        for names, first in self._records("distinct", *begin, count, _MERGED):
            yield from zip(first.tolist(), names, strict=True)

    # ---- records: a name, its length and its position, in three files

    def _records(
        self,
        stem: str,
        begin: int,
        begin_byte: int,
        count: int,
        most: tuple[int, int] = _CHUNK,
    ) -> Iterator[tuple[list[bytes], npt.NDArray[np.int64]]]:
        """Yield names and positions of records: a number, or of some bytes, or one at a time."""
        step, step_bytes = most
        at, end = begin, begin + count
        while at < end:
            ends = np.cumsum(
                self.files.read(f"{stem}.names.lengths", np.int64, at, min(step, end - at))
            )
            num_names = max(1, int(np.searchsorted(ends, step_bytes, side="right")))
            places = [0, *ends[:num_names].tolist()]
            first = self.files.read(f"{stem}.first", np.int64, at, num_names)
            text = self.files.read(f"{stem}.names", np.uint8, begin_byte, places[-1]).tobytes()
            yield [text[low:high] for low, high in pairwise(places)], first
            at, begin_byte = at + num_names, begin_byte + places[-1]


def _parts_of(names: list[bytes]) -> npt.NDArray[np.uint32]:
    return np.fromiter(map(zlib.crc32, names), np.uint32, len(names)) % _NUM_PARTS
