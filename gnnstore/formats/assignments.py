"""The part of each seed node: sets of seeds whose neighbourhoods overlap (PaGraph, section 3.2).

Parts have sizes that differ by one at most, the larger ones first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.base.files import Problem
from gnnstore.formats.container.manifest import CHECKSUMS_ARRAY, KINDS, Kind, Manifest
from gnnstore.formats.container.reader import SealedReader
from gnnstore.formats.container.writer import SealedWriter
from gnnstore.formats.store.units import find_unit

ASSIGNMENTS_DIRECTORY = "assignments"
ASSIGNMENT_FORMAT_VERSION = 1

PART_ARRAY = "part"

# Most parts: they are numbered in 16 bits, and one number means none while they are made.
MOST_PARTS = 2**16 - 1

Parts = npt.NDArray[np.uint16]


@dataclass(frozen=True, kw_only=True)
class AssignmentManifest(Manifest):
    """Identity, contents and files of an assignment."""

    FORMAT: ClassVar[str] = "gnnstore-assignment"
    VERSION: ClassVar[int] = ASSIGNMENT_FORMAT_VERSION
    WORD: ClassVar[str] = "seed assignment"
    VERB: ClassVar[str] = "assign"
    MAKE: ClassVar[str] = "make one with 'gnnstore assign'"

    store_uuid: str  # identity of the store whose nodes the seeds are
    input_nodes: str  # name of the seeds, such as "train" or "paper:train"
    num_seeds: Annotated[int, 1]  # T
    # The crc32c of the seeds' numbers, int64: ids, or with several node types as of `RowSpace`.
    seeds_crc32c: Annotated[int, 0, 2**32 - 1]
    num_parts: Annotated[int, 1, MOST_PARTS]  # K
    num_hops: Annotated[int, 1]  # L
    # The most in-neighbours of a node along each edge type that a neighbourhood has, drawn if
    # there are more.
    fanout: Annotated[int, 1]
    seed: Annotated[int, 0, 2**64 - 1]  # of these draws
    # Nodes of each part: its seeds and their neighbourhoods.
    part_nodes: tuple[Annotated[int, 1], ...]
    paged_arrays: tuple[AttributeSpec, ...] = field(metadata={"key": "arrays"})

    def arrays(self) -> tuple[AttributeSpec, ...]:
        """Return the one array."""
        return self.paged_arrays


class AssignmentReader(SealedReader[AssignmentManifest]):
    """An open, validated assignment."""

    MANIFEST: ClassVar[type[AssignmentManifest]] = AssignmentManifest

    def check(self) -> None:
        """Compare the array with the numbers of seeds and parts."""
        manifest = self.manifest
        self.name = self.path.name  # of this assignment in the store
        self.num_parts, self.num_seeds = manifest.num_parts, manifest.num_seeds
        expected: dict[str, tuple[tuple[str, ...], tuple[int | None, ...]]] = {
            PART_ARRAY: (("uint16",), (self.num_seeds,))
        }
        self.expect(manifest.paged_arrays, expected)
        if self.num_parts > self.num_seeds or len(manifest.part_nodes) != self.num_parts:
            raise self.corrupt(
                f"it has {self.num_seeds} seeds, {self.num_parts} parts, and the nodes of "
                f"{len(manifest.part_nodes)} parts, which contradict one another"
            )

    def parts(self) -> Parts:
        """Return the part of each seed [T], compared with its checksums."""
        self.check_arrays(PART_ARRAY)
        found = self._load()
        if (problem := self._problem(found)) is not None:
            raise self.corrupt(problem, PART_ARRAY)
        return found

    def meaningless(self) -> Iterator[Problem]:
        """Yield what is wrong with the parts."""
        if (problem := self._problem(self._load())) is not None:
            yield Problem(str(self.path / PART_ARRAY), problem)

    def _load(self) -> Parts:
        return self.paged(self.manifest.spec(PART_ARRAY)).load()

    def _problem(self, parts: Parts) -> str | None:
        if (most := int(parts.max())) >= self.num_parts:
            return f"seed {int(parts.argmax())} is of part {most}, and there are {self.num_parts}"
        found = np.bincount(parts, minlength=self.num_parts)
        wrong = np.flatnonzero(found != part_sizes(self.num_seeds, self.num_parts))
        if not len(wrong):
            return None
        return (
            f"part {wrong[0]} has {found[wrong[0]]} of {self.num_seeds} seeds, and "
            f"{self.num_parts} parts have sizes that differ by one at most, the larger ones first"
        )


def part_sizes(num_seeds: int, num_parts: int) -> npt.NDArray[np.int64]:
    """Return the number of seeds of each part, the larger ones first."""
    each, more = divmod(num_seeds, num_parts)
    return each + (np.arange(num_parts) < more)


class AssignmentWriter(SealedWriter):
    """Builds an assignment under a temporary name; `commit` gives it its own."""

    READER: ClassVar[type[AssignmentReader]] = AssignmentReader

    def row_dimension(self, array_path: str) -> str | None:
        """Return for checksums a name that the store does not use."""
        return "assignment_checksums" if array_path == CHECKSUMS_ARRAY else None

    def commit(self, parts: Parts, **fields: Any) -> Path:
        """Write the parts and the manifest, and rename the assignment into place."""
        with self.paged(
            PART_ARRAY, name=PART_ARRAY, row_shape=(), dtype="uint16", num_rows=len(parts)
        ) as array:
            array.append(parts)
        return self.seal(
            AssignmentManifest(num_seeds=len(parts), paged_arrays=(array.spec,), **fields)
        )


ASSIGNMENTS = KINDS.register(
    Kind(
        AssignmentManifest,
        AssignmentReader.open,
        frozenset({PART_ARRAY}),
        ASSIGNMENTS_DIRECTORY,
        has_output=False,
    )
)


def open_assignment(
    store: Path, name: str | os.PathLike[str], *, store_uuid: str
) -> AssignmentReader:
    """Open an assignment of a store's seeds."""
    reader = AssignmentReader.open(find_unit(ASSIGNMENTS, store, name))
    if (found := reader.manifest.store_uuid) != store_uuid:
        raise UsageError(
            f"{reader.path}: this is an assignment of another store ({found}); this one is "
            f"{store_uuid}. Name another, or make one with 'gnnstore assign {store}'"
        )
    return reader
