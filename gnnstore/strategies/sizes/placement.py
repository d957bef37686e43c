"""Where a loader's data should lie, decided from sizes and a budget before any of it is read.

The choice changes how fast batches come, never what is in them. It is made once, with a
reason in words, so that nobody has to guess which way a run went.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self, cast

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import MemoryBudget
from gnnstore.caching.scores import CachePlan
from gnnstore.errors import BudgetError, UsageError
from gnnstore.graph.sizes import StoreSizes, TableSize
from gnnstore.pipeline.superbatch_size import SuperbatchSize
from gnnstore.planning.traits import Mode, StrategyTraits
from gnnstore.units import format_at_least, format_size

Topology = Literal["memory", "mmap", "disk"]
TOPOLOGIES = ("auto", "memory", "mmap", "disk")

ASKED_FOR = "it was asked for"
# "auto" leaves an eighth of the budget to the batches that are being prepared.
_BATCH_SHARE = 8
# A label of 8 bytes costs a read as long as a row of 512 does. Rows up to this width are
# held in memory while all that is held so takes at most a quarter
# of what the budget has left: the cache of wide rows would spare fewer reads with it.
HELD_ROW_BYTES = 64
_HELD_SHARE = 4

_WHERE = {"memory": "in memory", "mmap": "mapped", "disk": "on disk"}
# Of what is left, for the in-neighbour lists that sampling needs most often.
_NEIGHBORS_SHARE = 4
_ALTERNATIVES = {
    ("memory", "memory"): " or choose strategy='mmap'",
    ("mmap", "memory"): " or choose topology='mmap'",
    ("mmap", "mmap"): "",
    ("disk", "memory"): ", lower num_threads=, or choose topology='mmap' or strategy='mmap'",
    ("disk", "mmap"): ", lower num_threads=, or choose strategy='mmap'",
    ("disk", "disk"): ", lower num_threads=, or choose topology='mmap'",
}


@dataclass(frozen=True)
class Placement:
    """The decision.

    Attributes
    ----------
    strategy : StrategyTraits
        How the rows of paged attributes are reached.
    topology : "memory", "mmap" or "disk"
        Where the graph's structure lies. On disk, in-neighbours are read by an engine.
    modes : Mapping of str to "memory", "mmap" or "disk"
        Where the rows of each paged attribute lie, by its path. Under strategies that read
        them, narrow ones are in memory as far as the budget allows.
    resident_bytes : int
        Memory that is held as long as the loader lives, but for staging and cache.
    staging_bytes : int
        Memory that reads go to before their rows are copied into a batch.
    budget_bytes : int
        Memory that may be used in all: `memory=`, or what was available.
    budget_is_promise : bool
        Whether the user set the budget, so that batches in flight must stay within it too.
    reason : str
        Why, in one sentence.
    neighbors_bytes : int
        Memory for in-neighbour lists where the others are on disk; part of `resident_bytes`.
    neighbors_on_disk_bytes : int
        What lists are left out of that for want of memory.
    cache : CachePlan, optional
        Rows that are held besides; set by `with_cache`.
    superbatch : SuperbatchSize, optional
        What a planned strategy holds besides; set by `with_superbatch`.
    predicted_seconds : float or None
        Of an epoch; None where nothing was predicted.
    """

    strategy: StrategyTraits
    topology: Topology
    modes: Mapping[str, Mode]
    resident_bytes: int
    staging_bytes: int
    budget_bytes: int
    budget_is_promise: bool
    reason: str
    neighbors_bytes: int = 0
    neighbors_on_disk_bytes: int = 0
    cache: CachePlan | None = None
    superbatch: SuperbatchSize | None = None
    predicted_seconds: float | None = None

    @property
    def ledger(self) -> Ledger:
        """What is held as long as the loader lives."""
        parts = [Reservation("topology, seeds and attributes", self.resident_bytes)]
        parts.append(Reservation("staging for reads", self.staging_bytes))
        if self.cache is not None:
            parts.append(Reservation("cached rows", self.cache.num_bytes))
        return Ledger(self.budget_bytes, tuple(parts), f"strategy {self.strategy.name!r}")

    @property
    def reads_disk(self) -> bool:
        """Whether rows are read by an engine, so that threads wait for the disk."""
        return self.strategy.reads_disk

    @property
    def left_bytes(self) -> int:
        """Bytes of the budget for batches in flight."""
        held = self.resident_bytes + self.staging_bytes
        held += 0 if self.cache is None else self.cache.num_bytes
        held += 0 if self.superbatch is None else self.superbatch.num_bytes
        return self.budget_bytes - held

    @property
    def spare_bytes(self) -> int | None:
        """Bytes for batches in flight; None where nobody set a budget."""
        return self.left_bytes if self.budget_is_promise else None

    def memory_for(self, missing_bytes: int) -> int:
        """Return by how much memory= must grow to leave so much more: some is for neighbours."""
        with_share = -(-missing_bytes * _NEIGHBORS_SHARE // (_NEIGHBORS_SHARE - 1))
        return min(with_share, missing_bytes + self.neighbors_on_disk_bytes)

    def with_cache(self, cache: CachePlan) -> Self:
        """Return the decision with the cache that was made for it."""
        return replace(self, cache=cache, reason=f"{self.reason}; {cache.describe()}")

    def with_superbatch(self, size: SuperbatchSize) -> Self:
        """Return the decision with the size of superbatches that was found for it."""
        return replace(
            self, superbatch=size, reason=f"{self.reason}; {size.describe(self.strategy.name)}"
        )

    def because(self, more: str) -> Self:
        """Return the decision with more to its reason."""
        return replace(self, reason=f"{self.reason}; {more}")


def place(
    sizes: StoreSizes,
    budget: MemoryBudget,
    *,
    strategy: StrategyTraits | Mapping[Mode, StrategyTraits],
    topology: str = "auto",
    seeds_bytes: int = 0,
    cached_bytes: int = 0,
    taken_bytes: int = 0,
    more_bytes: int = 0,
    shared_tables: Collection[str] = (),
    staging_bytes: Callable[[int], int] = lambda _: 0,
    instead_of_static: str = "",
    why: str = ASKED_FOR,
) -> Placement:
    """Decide where a store's parts lie while a loader runs.

    Parameters
    ----------
    sizes : StoreSizes
        What there is to place.
    budget : MemoryBudget
    strategy : StrategyTraits or mapping of str to StrategyTraits
        The strategy; or, for "auto", those to take by where rows lie: in memory where everything
        fits the budget, else on disk.
    topology : "auto", "memory", "mmap" or "disk"
        "auto": in memory where it fits the budget beside the rest; else on disk where rows are
        read from disk too, and mapped where they are mapped.
    seeds_bytes : int
        What the loader holds besides: its seed nodes and their order.
    cached_bytes : int
        What caches of other loaders on the same store hold: memory that a loader with such a cache
        shares, and one of another strategy does not have.
    taken_bytes : int
        What those of them take that such a loader has no part in: it is theirs of a budget that
        the user has set, which is one for all loaders on a store.
    more_bytes : int
        Memory that the budget is assumed to have besides.
    shared_tables : collection of str
        Paths of tables that other loaders hold in memory. Narrow ones are taken from there: they
        stay, and would come on top of the budget.
    staging_bytes : callable
        Returns what the engines' staging takes under a budget; called only if rows are read
        by them.
    instead_of_static : str
        Why "auto" is not to choose "static", if it is not: it takes "mmap" then.
    why : str
        Why it is this strategy, unless it is "auto".

    Raises
    ------
    UsageError
        If a choice is unknown, strategy "memory" is to leave the topology out, or "mmap" is to
        read it.
    BudgetError
        If what must lie in memory does not fit.
    """
    _check_topology(None if isinstance(strategy, Mapping) else strategy, topology)
    limit, source = budget.num_bytes + more_bytes, budget.source
    if not budget.is_measured:
        cached_bytes = 0  # what is free is known without the caches of others, and a promise is not
        limit -= taken_bytes
        source += f", less {format_size(taken_bytes)} of other caches" if taken_bytes else ""
    have = f"{format_size(limit)} {source}"
    usable = limit - limit // _BATCH_SHARE

    if isinstance(strategy, Mapping):
        total = format_size(sizes.total_bytes)
        mode: Mode = "mmap" if instead_of_static else "disk"
        if seeds_bytes + sizes.total_bytes > usable:
            why = f"the {total} of the store do not fit {have}"
        elif topology in {"mmap", "disk"}:
            why = f"the topology is to stay {_WHERE[topology]}"
        else:
            mode, why = "memory", f"all {total} of the store fit {have}"
        if mode == "mmap":
            why += f", and {instead_of_static}"
            topology = "mmap" if topology == "disk" else topology
        strategy = strategy[mode]

    mode = strategy.mode
    if mode == "disk":
        limit += cached_bytes
        usable = limit - limit // _BATCH_SHARE
    staging = staging_bytes(limit) if mode == "disk" else 0
    base = seeds_bytes + sizes.cold_bytes + (sizes.rows_bytes if mode == "memory" else 0)
    where = _place_topology(topology, mode, sizes, usable - base - staging)
    held_topology = {"memory": sizes.topology_bytes, "mmap": 0, "disk": sizes.indptr_bytes}
    resident = base + held_topology[where]

    modes = dict.fromkeys((table.path for table in sizes.tables), mode)
    if mode != "memory":
        narrow = [table for table in sizes.tables if table.row_bytes <= HELD_ROW_BYTES]
        held = {table.path: table.num_bytes for table in narrow if table.path in shared_tables}
        if mode == "disk":
            held = _held_tables(sizes, narrow, held, limit - resident - staging)
        modes |= dict.fromkeys(held, "memory")
        resident += sum(held.values())
    neighbors = neighbors_on_disk = 0
    if where == "disk":
        left = limit - resident - staging
        neighbors = max(0, min(sizes.indices_bytes, left // _NEIGHBORS_SHARE))
        neighbors_on_disk = sizes.indices_bytes - neighbors
        resident += neighbors

    if resident + staging >= limit:
        missing = resident + staging - limit + 1
        parts = _parts(sizes, mode, where, seeds_bytes, staging)
        raise BudgetError(
            f"strategy {strategy.name!r} with the topology {_WHERE[where]} needs "
            f"{resident + staging} bytes ({parts}) and room for batches, but has "
            f"{limit} bytes {source}: {missing} bytes too few; raise memory= by at least "
            f"{format_at_least(missing)}{_ALTERNATIVES[mode, where]}"
        )
    return Placement(
        strategy=strategy,
        topology=where,
        modes=modes,
        resident_bytes=resident,
        staging_bytes=staging,
        budget_bytes=limit,
        budget_is_promise=budget.is_promise,
        reason=(
            f"strategy {strategy.name!r} because {why}; topology {_WHERE[where]} "
            f"({format_size(sizes.topology_bytes)}); {format_size(resident)} held in memory"
        ),
        neighbors_bytes=neighbors,
        neighbors_on_disk_bytes=neighbors_on_disk,
    )


def _place_topology(topology: str, mode: Mode, sizes: StoreSizes, usable_bytes: int) -> Topology:
    if topology == "auto":
        if mode == "memory" or sizes.topology_bytes <= usable_bytes:
            topology = "memory"
        else:
            on_disk = mode == "disk" and sizes.indptr_bytes <= usable_bytes
            topology = "disk" if on_disk else "mmap"
    if topology == "disk" and sizes.indices_bytes == 0:
        topology = "memory"  # a graph without edges has no file that could be read
    return cast(Topology, topology)


def _check_topology(strategy: StrategyTraits | None, topology: str) -> None:
    if topology not in TOPOLOGIES:
        raise UsageError(f"topology={topology!r} is unknown; choose one of {', '.join(TOPOLOGIES)}")
    if strategy is None:
        return
    if strategy.mode == "memory" and topology in {"mmap", "disk"}:
        raise UsageError(
            f"strategy={strategy.name!r} holds everything in memory, the topology included; "
            f"leave out topology={topology!r}, or choose strategy='mmap'"
        )
    if strategy.mode == "mmap" and topology == "disk":
        raise UsageError(
            f"strategy={strategy.name!r} reads nothing by itself, the topology included; choose "
            "topology='mmap', or strategy='direct'"
        )


def _held_tables(
    sizes: StoreSizes, narrow: list[TableSize], held: Mapping[str, int], left_bytes: int
) -> dict[str, int]:
    """Return the tables to hold in memory although others are read, with their bytes."""
    held = dict(held)
    for table in sorted(narrow, key=lambda table: table.row_bytes):
        if table.path in held:
            continue
        if sum(held.values()) + table.num_bytes <= left_bytes // _HELD_SHARE:
            held[table.path] = table.num_bytes
    # A table without rows has no file that could be read.
    return held | {table.path: 0 for table in sizes.tables if table.num_rows == 0}


def _parts(sizes: StoreSizes, mode: Mode, topology: str, seeds_bytes: int, staging: int) -> str:
    parts = [(sizes.cold_bytes, "compressed attributes"), (seeds_bytes, "seeds and their order")]
    if topology == "memory":
        parts.insert(0, (sizes.topology_bytes, "topology"))
    if topology == "disk":
        parts.insert(0, (sizes.indptr_bytes, "the topology's indptr"))
    if mode == "memory":
        parts.insert(0, (sizes.rows_bytes, "attributes"))
    if staging:
        parts.append((staging, "staging for reads"))
    return " + ".join(f"{format_size(size)} of {what}" for size, what in parts)
