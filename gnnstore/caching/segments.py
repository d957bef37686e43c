"""Finds the rows that several batches of a segment miss, and orders them on disk.

Packing writes a row for each batch that misses it. Where the disk has no room for that, batches are
taken together in segments: a row that two or more batches of a segment miss is stored once for all
of them (DiskGNN, section 5.1). A batch then reads it from among rows of others, so rows that the
same batches need should be neighbours: they are ordered by MinHash (its algorithm 1). The key of a
row is the least place of its batches in each of two permutations of the segment's batches, and rows
of like sets of batches have like keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError
from gnnstore.random_words import mix

# Rows that are compared together: 2 bytes in each of three tables, 24 MB in all. The result does
# not depend on the number.
RANGE_ROWS = 1 << 22
# Most batches of a segment: they have 16-bit numbers in these tables.
MAX_BATCHES = 2**16 - 2
_NO_BATCH = 2**16 - 1

_HASHES = 2  # DiskGNN: "empirically using 2 hash functions provides good reordering quality"


@dataclass(frozen=True, eq=False)
class SharedRows:
    """The rows that two or more batches of one segment miss."""

    rows: npt.NDArray[Any]  # int32 or int64 [d]: ascending
    ranks: npt.NDArray[np.int32]  # int32 [d]: the place of each in the order on disk

    @classmethod
    def from_missed(cls, missed: Sequence[npt.NDArray[Any]], num_rows: int) -> Self:
        """Find and order the shared rows of a segment."""
        check_num_batches(len(missed))
        rows, keys = [], []
        permutations = [permutation(len(missed), k) for k in range(_HASHES)]
        for first, parts in ranges_of(missed, num_rows):
            counts = np.zeros(min(RANGE_ROWS, num_rows - first), np.uint16)
            for part in parts:
                counts[part] += 1
            shared = np.flatnonzero(counts > 1)
            rows.append((shared + first).astype(_dtype(missed)))
            keys.append(_least_places(parts, permutations, len(counts))[shared])
        ids = np.concatenate(rows) if rows else np.empty(0, _dtype(missed))
        if len(ids) >= 2**31:
            raise UsageError(
                f"{len(missed)} batches share {len(ids)} rows, but a segment has room for 2^31; "
                "make segments shorter"
            )
        ranks = np.empty(len(ids), np.int32)
        if len(ids):
            # Stable: rows of one key stay in the order of the table.
            order = np.argsort(np.concatenate(keys), kind="stable")
            ranks[order] = np.arange(len(ids), dtype=np.int32)
        return cls(ids, ranks)

    @property
    def num_rows(self) -> int:
        """Number of shared rows."""
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory."""
        return self.rows.nbytes + self.ranks.nbytes

    def in_order(self) -> npt.NDArray[Any]:
        """Return the rows in the order in which they lie on disk."""
        ordered = np.empty_like(self.rows)
        ordered[self.ranks] = self.rows
        return ordered

    def find(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return the rank of each of some rows, int32; -1 where it is not shared."""
        if self.num_rows == 0:
            return np.full(len(rows), -1, np.int32)
        places = np.searchsorted(self.rows, rows)
        np.minimum(places, self.num_rows - 1, out=places)
        return np.where(self.rows[places] == rows, self.ranks[places], np.int32(-1))


def segments_of(num_batches: int, segment: int) -> Iterator[range]:
    """Divide batches into segments of `segment` consecutive ones; the last may be shorter."""
    for first in range(0, num_batches, segment):
        yield range(first, min(first + segment, num_batches))


def check_num_batches(num_batches: int) -> None:
    """Refuse more batches than 16 bits can number."""
    if num_batches > MAX_BATCHES:
        raise UsageError(
            f"{num_batches} batches are to be compared, at most {MAX_BATCHES} can; plan fewer at "
            "a time with superbatch="
        )


def permutation(size: int, number: int) -> npt.NDArray[np.uint16]:
    """Return a permutation of `size` numbers, the same with every version of NumPy."""
    values = np.arange(1, size + 1, dtype=np.uint64) + np.uint64((number + 1) << 32)
    values *= np.uint64(0x9E3779B97F4A7C15)
    mix(values)
    places = np.empty(size, np.uint16)
    places[np.argsort(values, kind="stable")] = np.arange(size)
    return places


def ranges_of(
    missed: Sequence[npt.NDArray[Any]], num_rows: int
) -> Iterator[tuple[int, list[npt.NDArray[Any]]]]:
    """Yield the rows of some batches, a range of the table at a time."""
    for first in range(0, num_rows, RANGE_ROWS):
        parts = []
        for rows in missed:
            begin, end = np.searchsorted(rows, (first, first + RANGE_ROWS))
            parts.append(rows[begin:end] - first)
        yield first, parts


def _least_places(
    parts: Sequence[npt.NDArray[Any]], permutations: Sequence[npt.NDArray[np.uint16]], size: int
) -> npt.NDArray[np.uint32]:
    """Return the key of each row of a range: its least places, the first one in the upper bits."""
    keys = np.zeros(size, np.uint32)
    least = np.empty(size, np.uint16)
    for places in permutations:
        least.fill(_NO_BATCH)
        # From the last place to the first, so that the least is written last.
        for batch in np.argsort(places)[::-1]:
            least[parts[batch]] = places[batch]
        keys = keys << np.uint32(16) | least
    return keys


def _dtype(missed: Sequence[npt.NDArray[Any]]) -> np.dtype[Any]:
    return missed[0].dtype if missed else np.dtype(np.int64)


@dataclass(frozen=True, eq=False)
class Recurrences:
    """Counts of the rows that are missed again, by the two batches that miss them.

    One pass over the batches gives the rows that segments of every length store, which DiskGNN
    estimates from the first segment (section 5.1, algorithm 2).
    """

    num_distinct: int  # distinct rows that the S batches miss
    # int64 [S + 1, S + 1]: ``sums[a, b]``: misses of the batches before b whose row was last missed
    # by a batch before a.
    sums: npt.NDArray[np.int64]

    @classmethod
    def from_missed(cls, missed: Sequence[npt.NDArray[Any]], num_rows: int) -> Self:
        """Count the recurrences in some batches."""
        size = len(missed)
        check_num_batches(size)
        pairs = np.zeros((size, size), np.int64)
        num_distinct = 0
        for _, parts in ranges_of(missed, num_rows):
            # One more than the number of the batch that had the row last; 0: none.
            last = np.zeros(max((int(p[-1]) + 1 for p in parts if len(p)), default=0), np.uint16)
            for batch, part in enumerate(parts):
                counts = np.bincount(last[part], minlength=size + 1)
                num_distinct += int(counts[0])
                pairs[:, batch] += counts[1:]
                last[part] = batch + 1
        sums = np.zeros((size + 1, size + 1), np.int64)
        np.cumsum(np.cumsum(pairs, axis=0), axis=1, out=sums[1:, 1:])
        return cls(num_distinct, sums)

    @property
    def num_batches(self) -> int:
        """Number of batches, S."""
        return len(self.sums) - 1

    @property
    def num_missed(self) -> int:
        """Misses of all batches: the rows that are stored without segments."""
        return self.num_distinct + int(self.sums[-1, -1])

    def stored_rows(self, segment: int) -> int:
        """Return the number of rows that all segments of `segment` batches store."""
        sums = self.sums
        bounds = [part.start for part in segments_of(self.num_batches, segment)]
        spared = 0
        for a, b in pairwise([*bounds, self.num_batches]):
            spared += int(sums[b, b] - sums[a, b] - sums[b, a] + sums[a, a])
        return self.num_missed - spared


def search_segment(recurrences: Recurrences, fits: Callable[[int], bool]) -> int | None:
    """Return the shortest length of segments that fits, since longer ones scatter rows."""
    return next(filter(fits, range(1, max(1, recurrences.num_batches) + 1)), None)
