"""Assigns seeds to parts whose neighbourhoods overlap: what `gnnstore assign` does (PaGraph).

Seed after seed joins the part that maximises the score of section 3.2, with 1 added to what may be
0: with overlaps alone a sparse graph would fill the first part only. A part is open while it can be
as large as its share, so that sizes differ by one at most, for any order of the seeds. With its
neighbourhood of L hops a seed makes its part's set of nodes grow.

A neighbourhood is what the sampler draws with a large fan-out, so that types, and in-neighbours on
disk, are as in training. Threads sample groups of seeds ahead; the groups' numbers key the draws.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import STAGING, Ledger, Reservation
from gnnstore.budget.limits import MemoryBudget
from gnnstore.errors import InputError, UsageError, whole_number
from gnnstore.formats.assignments import (
    ASSIGNMENTS,
    MOST_PARTS,
    AssignmentWriter,
    Parts,
)
from gnnstore.formats.store.units import unit_path, units_directory
from gnnstore.graph.sizes import StoreSizes
from gnnstore.graph.store import GraphStore
from gnnstore.graph.table_registry import shared_tables
from gnnstore.graph.topology import Topology
from gnnstore.partitions.parts import crc_of_seeds, row_space, seed_rows
from gnnstore.pipeline.batch import Batch
from gnnstore.pipeline.lookahead.producer import sample_batches
from gnnstore.progress import NullProgress, Progress
from gnnstore.sampling.neighbor import SamplingConfig, check_word
from gnnstore.sampling.row_space import RowSpace
from gnnstore.seeds.base import BatchKey
from gnnstore.seeds.nodes import InputNodes
from gnnstore.units import format_count

Int64Array = npt.NDArray[np.int64]

# A node with up to so many in-neighbours of a type has all of them in a neighbourhood.
FANOUT = 64
# Seeds that are sampled together, and the most nodes that they may have.
_MOST_SEEDS, _MOST_NODES = 256, 2**18
# Memory of a node in neighbourhoods that wait: its id, tree and edge, and what sorts them.
_NODE_BYTES = 80
# Counts of what seeds that join parts together share with each; and up to how many parts their
# numbers, and the seeds' numbers, have 16 bits.
_MOST_COUNTS, _MOST_NARROW = 2**18, 2**15
# What sampling from disk needs at least.
_LEAST_BULK_BYTES = 2**24
# Groups that an estimate samples.
_FEW_GROUPS = 8


class Neighbourhoods(NamedTuple):
    """The nodes of some seeds' neighbourhoods, the seeds among them."""

    rows: Int64Array  # int64: node numbers, seed after seed
    bounds: Int64Array  # int64 [seeds + 1]: where each seed's nodes begin, and the end

    def between(self, first: int, last: int) -> Neighbourhoods:
        """Return the neighbourhoods of seeds first, ..., last - 1, or up to the end."""
        bounds = self.bounds[first : last + 1]
        return Neighbourhoods(self.rows[bounds[0] : bounds[-1]], bounds - bounds[0])


class PartsBuilder:
    """Parts that seeds join one after the other."""

    def __init__(self, num_parts: int, num_seeds: int, num_rows: int) -> None:
        self._num_parts = num_parts
        self.num_seeds = np.zeros(num_parts, np.int64)  # of each part
        self.num_nodes = np.zeros(num_parts, np.int64)  # of each part, with neighbourhoods
        # The part of each node that is a seed and has joined one; of others the number of parts.
        self._part_of = np.full(num_rows, num_parts, self._dtype(num_parts))
        self._nodes = np.zeros((num_parts, -(-num_rows // 64)), np.uint64)  # a bitmap of each part
        # How far each part is from its share of the seeds, times the number of parts; 0: closed.
        self._left = np.full(num_parts, num_seeds, np.int64)
        self._least, self._num_larger = divmod(num_seeds, num_parts)

    @staticmethod
    def _dtype(num_parts: int) -> np.dtype[Any]:
        """Return a type for the numbers of parts, and of as many seeds as join them at once."""
        return np.dtype(np.uint16 if num_parts < _MOST_NARROW else np.uint32)

    @classmethod
    def num_bytes(cls, num_parts: int, num_rows: int) -> tuple[int, int]:
        """Return the memory of the parts' nodes, and of each node's part."""
        return 8 * num_parts * -(-num_rows // 64), cls._dtype(num_parts).itemsize * num_rows

    def join(self, found: Neighbourhoods, seeds: Int64Array) -> Parts:
        """Let seeds join a part each, one after the other, and return the parts."""
        step = max(1, _MOST_COUNTS // (self._num_parts + 1))
        joined = [
            self._join(found.between(first, first + step), seeds[first : first + step])
            for first in range(0, len(seeds), step)
        ]
        return np.concatenate(joined)

    def _join(self, found: Neighbourhoods, seeds: Int64Array) -> Parts:
        """Let some seeds join a part each; look up at once what they have in each part by now."""
        count, num_seeds, nodes = self._num_parts, len(seeds), self._nodes
        # While these seeds have no part they have numbers, behind the numbers of parts and of none.
        self._part_of[seeds] = count + 1 + np.arange(num_seeds)
        parts = self._part_of[found.rows].astype(np.int64)
        owner = np.repeat(np.arange(num_seeds), np.diff(found.bounds))
        cells = owner * (count + 1) + np.minimum(parts, count)
        shared = np.bincount(cells, minlength=num_seeds * (count + 1)).reshape(num_seeds, -1)
        # The seeds that have an earlier one in their neighbourhoods.
        inner = np.flatnonzero(parts > count)
        earlier, later = parts[inner] - count - 1, owner[inner]
        inner = np.lexsort((later, earlier))
        earlier, later = earlier[inner], later[inner]
        firsts = np.searchsorted(earlier, np.arange(num_seeds + 1)).tolist()
        joined = np.empty(num_seeds, np.uint16)
        for place, (begin, end) in enumerate(pairwise(found.bounds.tolist())):
            part = self._best(shared[place, :count])
            self.num_nodes[part] += _core.bitmap_mark(nodes[part], found.rows[begin:end])
            self._take(part)
            joined[place] = part
            if firsts[place] < firsts[place + 1]:
                shared[later[firsts[place] : firsts[place + 1]], part] += 1
        self._part_of[seeds] = joined
        return joined

    def _best(self, shared: Int64Array) -> int:
        """Return the open part of the highest score; of several the smallest, and the first."""
        # Whole numbers divided once: equal scores are equal floats.
        scores = (shared + 1) * self._left / (self.num_nodes + 1)
        best = np.flatnonzero(scores == scores.max())
        if len(best) > 1:
            best = best[np.lexsort((self.num_nodes[best], self.num_seeds[best]))]
        return int(best[0])

    def _take(self, part: int) -> None:
        """Count a seed of a part, and close parts that are as large as they can be."""
        self.num_seeds[part] += 1
        self._left[part] -= self._num_parts
        if self.num_seeds[part] > self._least:
            self._left[part] = 0
            self._num_larger -= 1
            if not self._num_larger:
                self._left[self.num_seeds >= self._least] = 0

    def larger_first(self) -> tuple[Parts, list[int]]:
        """Return the new number of each part, and the nodes of the parts in the new order."""
        order = np.argsort(-self.num_seeds, kind="stable")
        numbers = np.empty(self._num_parts, np.uint16)
        numbers[order] = np.arange(self._num_parts)
        return numbers, self.num_nodes[order].tolist()


@dataclass(frozen=True)
class AssignmentEstimate:
    """What assigning would take."""

    seconds: float
    memory_bytes: int  # beyond the topology
    topology: str  # where it would lie: "memory" or "disk"
    nodes_per_seed: float  # of a neighbourhood, the mean of a sample


@dataclass(frozen=True, eq=False)
class Assigning:
    """The future parts of the seeds of a store."""

    store: GraphStore
    seeds: InputNodes
    num_parts: int
    num_hops: int
    seed: int = 0
    memory: int | str | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        num_parts = whole_number("parts", self.num_parts)
        num_hops = whole_number("hops", self.num_hops)
        check_word("seed", self.seed)
        path, named = self.store.path, self.seeds.name
        if not len(self.seeds):
            raise InputError(
                f"{path}: {named!r} has no nodes, so there is nothing to assign; name another split"
            )
        if not 1 <= num_parts <= MOST_PARTS:
            raise UsageError(
                f"parts={num_parts}: expected 1 to {MOST_PARTS}, such as the number of ranks"
            )
        if num_parts > len(self.seeds):
            raise UsageError(
                f"parts={num_parts}: {named!r} has {format_count(len(self.seeds), 'seed')}, and "
                f"each part has at least one; give at most parts={len(self.seeds)}"
            )
        if num_hops < 1:
            raise UsageError(f"hops={num_hops}: expected the hops of a batch, at least 1")
        self._refuse_repeated()

    def _refuse_repeated(self) -> None:
        """Refuse a seed that is listed twice, which would be of two parts."""
        marked = np.zeros(-(-self.space.num_rows // 64), np.uint64)
        for rows in seed_rows(self.space, self.seeds):
            _core.bitmap_mark(marked, rows)
        if _core.bitmap_count(marked)[1] == len(self.seeds):
            return
        for node_type, own in self.seeds.parts.items():
            if own.nodes is None:  # all nodes, each once
                continue
            order = np.argsort(own.nodes, kind="stable")
            again = np.flatnonzero(np.diff(own.nodes[order]) == 0)
            if len(again):
                first, second = order[again[0] : again[0] + 2]
                node, of = own.nodes[first], f" of {node_type!r}" if self.seeds.is_typed else ""
                raise InputError(
                    f"{self.store.path}: the seeds list node {node}{of} "
                    f"{np.count_nonzero(own.nodes == node)} times, at positions {first} and "
                    f"{second}, and a seed is of one part; list each node once"
                )

    @cached_property
    def space(self) -> RowSpace:
        """The numbers of the nodes."""
        return row_space(self.store)

    @property
    def _rows(self) -> Int64Array:
        """The numbers of the seeds."""
        return np.concatenate([*seed_rows(self.space, self.seeds)])

    @property
    def config(self) -> SamplingConfig:
        """The options of sampling: neighbourhoods share no node, as if sampled apart."""
        return SamplingConfig((FANOUT,) * self.num_hops, disjoint=True, seed=self.seed)

    @property
    def _most_nodes(self) -> int:
        """The most nodes of a neighbourhood."""
        num_types = max(1, len(self.store.schema.edge_types))
        most, hop = 1, 1
        for _ in range(self.num_hops):
            hop *= FANOUT * num_types
            most += hop
            if most >= self.space.num_rows:
                return self.space.num_rows
        return most

    @property
    def group_size(self) -> int:
        """Seeds that are sampled together. It keys draws: no option of this machine changes it."""
        return max(1, min(_MOST_SEEDS, _MOST_NODES // self._most_nodes))

    @cached_property
    def sizes(self) -> tuple[Ledger, int]:
        """Memory in use without the topology, and the threads for which there is room."""
        budget = MemoryBudget.of(self.memory)
        option = "memory=" if budget.is_promise else ""
        nodes, part_of = PartsBuilder.num_bytes(self.num_parts, self.space.num_rows)
        ledger = Ledger(
            budget.num_bytes,
            (),
            f"assigning to {format_count(self.num_parts, 'part')}",
            budget.source,
            option,
        ).add(
            Reservation(f"the nodes of {format_count(self.num_parts, 'part')}, as bitmaps", nodes),
            Reservation("the part of each node", part_of),
            Reservation("seeds and their parts", self.seeds.num_bytes + 10 * len(self.seeds)),
        )
        each = _NODE_BYTES * self.group_size * self._most_nodes
        num_threads = min(self.num_threads, -(-len(self.seeds) // self.group_size))
        while num_threads > 1 and ledger.left() < (num_threads + 2) * each:
            num_threads -= 1
        waiting = min(num_threads + 2, -(-len(self.seeds) // self.group_size)) * each
        return ledger.add(Reservation("neighbourhoods that wait", waiting)), num_threads

    def facts(self, input_nodes: str) -> dict[str, Any]:
        """Return what the parts follow from, as an assignment's manifest has it."""
        return {
            "store_uuid": self.store.reader.uuid,
            "input_nodes": input_nodes,
            "seeds_crc32c": crc_of_seeds(self.space, self.seeds),
            "num_parts": self.num_parts,
            "num_hops": self.num_hops,
            "fanout": FANOUT,
            "seed": self.seed,
        }

    def open(self) -> tuple[Topology, int]:
        """Return the topology, in memory or on disk, and memory for sampling it there."""
        store, (ledger, num_threads) = self.store, self.sizes
        sizes, shared = StoreSizes.from_schema(store.schema), shared_tables(store)
        remedies = ("assign to fewer parts", "give fewer hops")
        if ledger.left() >= sizes.topology_bytes or not sizes.indices_bytes:
            ledger.add(Reservation("topology", sizes.topology_bytes)).check(None, *remedies)
            return shared.topology(store, "memory", num_threads), 0
        arrays = [edge.indices for edge in store.schema.edge_types if edge.num_edges]
        path = store.reader.paged(arrays[0]).file_paths[0]
        engine = shared.engine(path, None)
        ledger = ledger.add(
            Reservation("indptr", sizes.indptr_bytes), Reservation(STAGING, engine.staging_bytes)
        )
        ledger.add(Reservation("in-neighbours that are read", _LEAST_BULK_BYTES)).check(
            None, *remedies
        )
        topology = shared.topology(store, "disk", num_threads).on_disk(store.reader, engine)
        spare = ledger.left() - _LEAST_BULK_BYTES
        neighbors = shared.neighbors(topology, spare // 2, spare)
        return replace(topology, neighbors=neighbors), _LEAST_BULK_BYTES + spare // 4

    def neighbourhoods(
        self, topology: Topology, bulk_bytes: int, groups: range | list[int]
    ) -> Iterator[Neighbourhoods]:
        """Yield the neighbourhoods of groups of seeds."""
        size, num_threads = self.group_size, self.sizes[1]
        batches = (
            Batch(
                BatchKey(self.seed, 0, group),
                np.arange(group * size, min((group + 1) * size, len(self.seeds))),
            )
            for group in groups
        )
        found = sample_batches(
            self.seeds.over(topology),
            topology.sampler(self.config, self.store.schema.index_dtype),
            batches,
            lambda _, batch: self._by_seed(batch),
            num_threads=num_threads,
            lookahead=lambda: num_threads + 1,
            describe=lambda k: f"while sampling group {groups[k]} of the seeds",
            bulk_bytes=bulk_bytes or None,
        )
        with closing(found):
            yield from found

    def _by_seed(self, batch: Batch) -> Neighbourhoods:
        """Return the nodes of a group, sorted by the seed in whose neighbourhood they are."""
        sample = batch.sample
        assert sample is not None and sample.trees is not None  # noqa: S101, PT018
        names = [name for name in self.space.ranges if len(sample.nodes[name])]
        trees = np.concatenate([sample.trees[name] for name in names]).astype(np.uint8)
        rows = np.concatenate(
            [sample.nodes[name].astype(np.int64) + self.space.ranges[name].first for name in names]
        )
        counts = np.bincount(trees, minlength=len(batch.index))
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        batch.sample = None
        return Neighbourhoods(rows[np.argsort(trees, kind="stable")], bounds)

    def run(
        self, topology: Topology, bulk_bytes: int, progress: Progress
    ) -> tuple[Parts, list[int]]:
        """Return the part of each seed, and the nodes of each part."""
        builder = PartsBuilder(self.num_parts, len(self.seeds), self.space.num_rows)
        parts = np.empty(len(self.seeds), np.uint16)
        rows, size, done = self._rows, self.group_size, 0
        groups = range(-(-len(self.seeds) // size))
        with progress.phase("assign", len(parts), "seeds") as phase:
            for found in self.neighbourhoods(topology, bulk_bytes, groups):
                end = min(done + size, len(parts))
                parts[done:end] = builder.join(found, rows[done:end])
                phase.advance(end - done)
                done = end
        numbers, part_nodes = builder.larger_first()
        return numbers[parts], part_nodes

    def estimate(self) -> AssignmentEstimate:
        """Assign some groups of seeds, and return what all would take."""
        topology, bulk_bytes = self.open()
        num_groups = -(-len(self.seeds) // self.group_size)
        few = min(num_groups, _FEW_GROUPS)
        groups = sorted({place * num_groups // few for place in range(few)})
        builder = PartsBuilder(self.num_parts, len(self.seeds), self.space.num_rows)
        rows, size = self._rows, self.group_size
        num_seeds = num_nodes = 0
        began = time.perf_counter()
        found = self.neighbourhoods(topology, bulk_bytes, groups)
        for group, own in zip(groups, found, strict=True):
            builder.join(own, rows[group * size : (group + 1) * size])
            num_seeds, num_nodes = num_seeds + len(own.bounds) - 1, num_nodes + len(own.rows)
        each = (time.perf_counter() - began) / num_seeds
        return AssignmentEstimate(
            each * len(self.seeds),
            self.sizes[0].peak(),
            "disk" if topology.is_read else "memory",
            num_nodes / num_seeds,
        )


def assignment_path(store: GraphStore, num_parts: int, name: str | None) -> Path:
    """Return the path of an assignment of a store."""
    return unit_path(ASSIGNMENTS, store.path, f"parts-{num_parts}" if name is None else name)


def assign(
    work: Assigning,
    final: Path,
    *,
    input_nodes: str,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Assign the seeds, and write the assignment into their store."""
    progress, store = progress or NullProgress(), work.store
    with (
        units_directory(ASSIGNMENTS, store.path, is_needed=True),
        AssignmentWriter(final, overwrite=overwrite) as writer,
    ):
        with progress.phase("load the topology"):
            topology, bulk_bytes = work.open()
        parts, part_nodes = work.run(topology, bulk_bytes, progress)
        return writer.commit(parts, part_nodes=tuple(part_nodes), **work.facts(input_nodes))
