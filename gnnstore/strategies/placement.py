"""Decides on the places of a loader's data, from sizes and a budget, before any are read.

The choice changes how fast batches come, never their content. It is made once, with a reason in
words for the user.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, cast

from gnnstore.budget.ledger import CACHED, IN_FLIGHT, STAGING, Ledger, Part, Reservation, Wish
from gnnstore.budget.limits import STAGING_SHARE, MemoryBudget
from gnnstore.caching.scores import StaticCacheInfo
from gnnstore.errors import UsageError, check_choice
from gnnstore.features.tables import MAX_ROW_BYTES
from gnnstore.graph.sizes import StoreSizes, TableSize
from gnnstore.pipeline.lookahead.edge_rows import MAX_ROW_BYTES as MAX_PASS_ROW_BYTES
from gnnstore.pipeline.lookahead.edge_rows import PassSize
from gnnstore.pipeline.lookahead.superbatch import SuperbatchSize
from gnnstore.strategies.options import TOPOLOGIES, Mode, StrategyTraits
from gnnstore.threads import SMALLER_BATCHES
from gnnstore.units import format_size

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.formats.store.schema import EdgeType
    from gnnstore.strategies.prediction import Prediction

# While the consumer has a batch, the next one is read; other threads have samples, and wait until
# the consumer frees a batch. With memory for a batch for each thread, a waiting one and the
# consumer's, no thread waits; but batches get no more for this than a quarter of the memory. With
# room for two, half a batch is added: later ones may be larger than all sampled ones, on R-MAT by
# 27 % with 64 seeds.
_IN_FLIGHT_SHARE = 4
_LEAST, _LEAST_HALF_BATCHES = 2, 5


def with_batches(memory: Ledger) -> Ledger:
    """Return the ledger with batches in flight, by their bytes."""
    return memory.add(Reservation("batches in flight", 0, {IN_FLIGHT: 1}))


def check_two_batches(memory: Ledger, batch_bytes: int, *remedies: str) -> None:
    """Check that there is room for a batch and the one before it."""
    with_batches(memory).check({IN_FLIGHT: 2 * batch_bytes}, *(remedies or (SMALLER_BATCHES,)))


def has_two_batches(memory: Ledger, batch_bytes: int) -> bool:
    """Whether there is room for a batch and the one before it."""
    return with_batches(memory).left({IN_FLIGHT: 2 * batch_bytes}) >= 0


def prefetch_wish(left_bytes: int, batch_bytes: int, sample_bytes: int, num_threads: int) -> Wish:
    """Return the preferred bytes for batches in flight."""
    least = _LEAST * batch_bytes
    enough = max(_LEAST_HALF_BATCHES * batch_bytes // 2, least + num_threads * sample_bytes)
    most = (num_threads + 2) * batch_bytes
    return Wish(IN_FLIGHT, least, max(enough, min(left_bytes // _IN_FLIGHT_SHARE, most)))


ASKED_FOR = "it was asked for"
# One part in so many of the budget that "auto" leaves to batches in flight.
_BATCH_SHARE = 8
# Reading a label of 8 bytes takes as long as reading a row of 512. Rows up to this width are held
# in memory while they take at most a quarter of the rest of the budget: as a cache of wide rows,
# this memory would save fewer reads.
HELD_ROW_BYTES = MAX_ROW_BYTES
_HELD_SHARE = 4
# One part in so many of the rest in which ids of edges are held: a byte of them saves about as many
# reads as a byte of cached rows.
IDS_SHARE = 2

# One part in so many of the budget for a table that is held whole next to larger ones, with several
# node types.
_SMALL_SHARE = 100

_WHERE = {"memory": "in memory", "mmap": "mapped", "disk": "on disk"}
# Share of the rest for the in-neighbour lists that sampling needs most often.
_NEIGHBORS_SHARE = 4
_FEWER_THREADS = "lower num_threads="
_QUANTIZE = "keep x as int8 ('gnnstore quantize'), which batches have decoded"
_MAPPED_TOPOLOGY, _MAPPED = "choose topology='mmap'", "choose strategy='mmap'"
_ALTERNATIVES: dict[tuple[Mode, Mode], tuple[str, ...]] = {
    ("memory", "memory"): (_MAPPED,),
    ("mmap", "memory"): (_MAPPED_TOPOLOGY,),
    ("mmap", "mmap"): (),
    ("disk", "memory"): (_FEWER_THREADS, _MAPPED_TOPOLOGY, _MAPPED),
    ("disk", "mmap"): (_FEWER_THREADS, _MAPPED),
    ("disk", "disk"): (_FEWER_THREADS, _MAPPED_TOPOLOGY),
}


@dataclass(frozen=True)
class Placement:
    """The decision on the places of a loader's data."""

    strategy: StrategyTraits  # its mode is how rows of paged attributes are read
    topology: Mode  # the place of the graph's topology
    modes: Mapping[str, Mode]  # the place of each paged attribute's rows, by its path
    # The budget of memory: `memory=`, or the available memory; and the memory that is used as long
    # as the loader lives.
    ledger: Ledger
    # Whether the user set the budget, so that batches in flight must also fit.
    budget_is_promise: bool
    reason: str  # the reason, in one sentence
    neighbors_bytes: int = 0  # memory for in-neighbour lists if the others are on disk
    cache: StaticCacheInfo | None = None  # rows that are cached; set by `with_cache`
    # Other memory of a planned strategy; set by `with_superbatch`.
    superbatch: SuperbatchSize | None = None
    predicted: Prediction | None = None  # the predicted epoch; None without a prediction
    ids_note: str = ""  # what ids of edges cost, if they are not free

    @property
    def trial_bytes(self) -> int:
        """Bytes added to the budget to learn how much is needed; if any, nothing is loaded."""
        return self.ledger.trial_bytes

    @property
    def budget_bytes(self) -> int:
        """Memory that may be used in all."""
        return self.ledger.limit

    @property
    def staging_bytes(self) -> int:
        """Memory for reads before their rows are copied into a batch."""
        return self.ledger.fixed_of(STAGING)

    @property
    def resident_bytes(self) -> int:
        """Memory that is used as long as the loader lives, without staging and caches."""
        return sum(part.fixed for part in self.ledger.reservations) - self.ledger.fixed_of(
            STAGING, CACHED
        )

    @property
    def reads_disk(self) -> bool:
        """Whether rows are read by an engine, so that threads wait for the disk."""
        return self.strategy.reads_disk

    @property
    def read_paths(self) -> frozenset[str]:
        """Paths of the attributes with rows on disk."""
        return frozenset(path for path, mode in self.modes.items() if mode == "disk")

    @property
    def left_bytes(self) -> int:
        """Bytes of the budget for batches in flight."""
        return self.ledger.left() - (0 if self.superbatch is None else self.superbatch.num_bytes)

    @property
    def spare_bytes(self) -> int | None:
        """Bytes for batches in flight; None if the user set no budget."""
        return self.left_bytes if self.budget_is_promise else None

    @property
    def parts(self) -> list[Part]:
        """The parts of the memory that are not left to batches, the largest first."""
        if (size := self.superbatch) is None:
            return self.ledger.parts()
        return self.ledger.add(*size.reservations).parts(size.sizes)

    def with_limit(self, budget_bytes: int) -> Self:
        """Return the decision with another budget."""
        return replace(self, ledger=self.ledger.with_limit(budget_bytes))

    def with_staging(self, staging_bytes: int) -> Self:
        """Return the decision with other memory for staging."""
        parts = [part for part in self.ledger.reservations if part.what != STAGING]
        parts.append(Reservation(STAGING, staging_bytes))
        return replace(self, ledger=replace(self.ledger, reservations=tuple(parts)))

    def with_cache(self, cache: StaticCacheInfo) -> Self:
        """Return the decision with the cache that was made for it."""
        return replace(
            self,
            cache=cache,
            ledger=self.ledger.add(Reservation(CACHED, cache.num_bytes)),
            reason=f"{self.reason}; {cache.describe()}",
        )

    def with_superbatch(self, size: SuperbatchSize) -> Self:
        """Return the decision with the size of superbatches that was found for it."""
        return replace(
            self, superbatch=size, reason=f"{self.reason}; {size.describe(self.strategy.name)}"
        )

    def read_by(self, engine: Engine | None) -> Self:
        """Return the decision with the engine that reads, and its reason."""
        return self if engine is None else self.because(f"read by {engine.reason}")

    def because(self, more: str) -> Self:
        """Return the decision with an addition to its reason."""
        return replace(self, reason=f"{self.reason}; {more}")


def place(
    sizes: StoreSizes,
    budget: MemoryBudget,
    *,
    strategy: StrategyTraits | Mapping[Mode, StrategyTraits],
    topology: str = "auto",
    seeds_bytes: int = 0,
    of_device: Sequence[Reservation] = (),
    cached_bytes: int = 0,
    taken_bytes: int = 0,
    trial_bytes: int = 0,
    is_frugal: bool = False,
    holds_ids: bool = True,
    reads_edges_ahead: bool = False,
    shared_tables: Collection[str] = (),
    cached_tables: Collection[str] = (),
    staging_bytes: Callable[[int], int] = lambda _: 0,
    held_row_bytes: Callable[[str], int] | None = None,
    instead_of_static: str = "",
    why: str = ASKED_FOR,
) -> Placement:
    """Decide on the places of a store's parts while a loader runs."""
    check_choice("topology", topology, TOPOLOGIES)
    if not isinstance(strategy, Mapping):
        _check_topology(strategy, topology)
    limit, source = budget.num_bytes + trial_bytes, budget.source
    if not budget.is_measured:
        cached_bytes = 0  # measured free memory excludes other loaders' caches; a budget does not
        limit -= taken_bytes
        source += f", less {format_size(taken_bytes)} of other caches" if taken_bytes else ""
    have = f"{format_size(limit)} {source}"
    usable = limit - limit // _BATCH_SHARE

    if isinstance(strategy, Mapping):
        total = format_size(sizes.total_bytes)
        mode: Mode = "mmap" if instead_of_static else "disk"
        if seeds_bytes + sizes.total_bytes > usable:
            why = f"the {total} of the store do not fit {have}"
        elif "memory" not in strategy:
            why = f"the {total} of the store leave no room for two batches in {have}"
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
    base = (
        seeds_bytes
        + sum(part.fixed for part in of_device)
        + sizes.compressed_bytes
        + sizes.times_bytes
        + (sizes.rows_bytes + sizes.edge_ids_bytes if mode == "memory" else 0)
    )
    has_rows = any(table.num_rows for table in sizes.tables)
    reads = has_rows or _place_topology(topology, mode, sizes, usable - base) == "disk"
    staging = staging_bytes(limit) if mode == "disk" and reads else 0
    where = _place_topology(topology, mode, sizes, usable - base - staging)
    memory = Ledger(
        limit, (), f"strategy {strategy.choice!r}", source, trial_bytes=trial_bytes
    ).add(
        *_required(sizes, mode, where),
        Reservation("seeds and their order", seeds_bytes),
        *of_device,
    )

    # Ranks leave equal room for any number of threads, so that what they share has one size.
    most_staging = staging if sizes.num_ranks == 1 else max(staging, limit // STAGING_SHARE)

    def left_bytes() -> int:
        """Return the bytes left for parts that need not be in memory."""
        return 0 if is_frugal else memory.left() - most_staging

    modes, held_rows, ids_note = _place_rows(
        sizes,
        mode,
        shared_tables,
        limit=limit,
        left_bytes=left_bytes(),
        held_row_bytes=held_row_bytes,
        holds_ids=holds_ids,
        reads_edges_ahead=reads_edges_ahead,
        cached_tables=cached_tables,
    )
    memory = memory.add(*held_rows)
    most = sizes.indices_bytes if where == "disk" else 0
    neighbors = max(0, min(most, left_bytes() // _NEIGHBORS_SHARE))
    memory = memory.add(Reservation("in-neighbours", neighbors))
    held_bytes = memory.peak()
    memory = memory.add(Reservation(STAGING, staging))
    if memory.left() <= 0:
        fits_as_int8 = mode == "memory" and memory.left() + sizes.saved_by_int8 > 0
        remedies = (*_ALTERNATIVES[mode, where], *[_QUANTIZE] * fits_as_int8)
        raise memory.add(Reservation("batches", 1)).refusal(None, *remedies)
    return Placement(
        strategy=strategy,
        topology=where,
        modes=modes,
        ledger=memory,
        budget_is_promise=budget.is_promise,
        reason=(
            f"strategy {strategy.choice!r} because {why}; topology {_WHERE[where]} "
            f"({format_size(sizes.topology_bytes)}); {format_size(held_bytes)} held in memory"
            f"{ids_note and '; '}{ids_note}{_describe_ranks(sizes.num_ranks)}"
        ),
        neighbors_bytes=neighbors,
        ids_note=ids_note,
    )


def _describe_ranks(num_ranks: int) -> str:
    if num_ranks == 1:
        return ""
    return (
        f"; {num_ranks} ranks of this machine share what is held, and these sizes are the part "
        "that each counts"
    )


def _required(sizes: StoreSizes, mode: Mode, topology: Mode) -> list[Reservation]:
    """Return the parts of a store that must be in memory."""
    parts = {"memory": sizes.topology_bytes, "mmap": 0, "disk": sizes.indptr_bytes}
    return [
        Reservation("attributes", sizes.rows_bytes if mode == "memory" else 0),
        Reservation("ids of edges", sizes.edge_ids_bytes if mode == "memory" else 0),
        Reservation("indptr" if topology == "disk" else "topology", parts[topology]),
        Reservation("compressed attributes", sizes.compressed_bytes),
        Reservation("times of nodes", sizes.times_bytes),
    ]


def _place_topology(topology: str, mode: Mode, sizes: StoreSizes, usable_bytes: int) -> Mode:
    if topology == "auto":
        if mode == "memory" or sizes.topology_bytes <= usable_bytes:
            topology = "memory"
        else:
            on_disk = mode == "disk" and sizes.indptr_bytes <= usable_bytes
            topology = "disk" if on_disk else "mmap"
    if topology == "disk" and sizes.indices_bytes == 0:
        topology = "memory"  # a graph without edges has no file that could be read
    return cast(Mode, topology)


def _check_topology(strategy: StrategyTraits, topology: str) -> None:
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


def read_tables(attributes: Iterable[AttributeSpec]) -> list[AttributeSpec]:
    """Return the attributes that may be read from disk, perhaps none."""
    paged = [spec for spec in attributes if spec.layout == "paged" and spec.num_bytes]
    return [spec for spec in paged if spec.shown_row_bytes > HELD_ROW_BYTES] or paged


def _place_rows(
    sizes: StoreSizes,
    mode: Mode,
    shared_tables: Collection[str],
    *,
    limit: int,
    left_bytes: int,
    held_row_bytes: Callable[[str], int] | None,
    holds_ids: bool,
    reads_edges_ahead: bool,
    cached_tables: Collection[str],  # which are read from disk with any memory
) -> tuple[dict[str, Mode], list[Reservation], str]:
    """Return the places of rows and of ids of edges, their memory, and what ids cost in words."""
    modes = dict.fromkeys((table.path for table in (*sizes.tables, *sizes.edge_ids)), mode)
    if mode == "memory":
        return modes, [], ""
    most = left_bytes // _HELD_SHARE if mode == "disk" else None
    # A byte of cached rows saves more than one of edges' rows that a pass reads.
    holds_edges = not reads_edges_ahead or sizes.rows_bytes + sizes.edge_ids_bytes <= left_bytes
    may_hold = [
        table
        for table in sizes.tables
        if table.path not in cached_tables
        and (
            holds_edges
            or table.edge_type is None
            or not table.num_rows
            or table.path in shared_tables
        )
    ]
    # Rows that are decoded are features, however few bytes they have on disk.
    narrow = [
        table for table in may_hold if max(table.row_bytes, table.shown_row_bytes) <= HELD_ROW_BYTES
    ]
    if held_row_bytes is not None:
        # Measuring reads a whole table: not if less than an eighth of the table would fit.
        narrow = [
            replace(table, row_bytes=held_row_bytes(table.path))
            for table in narrow
            if table.path in shared_tables or table.num_bytes <= 8 * (most or 0)
        ]
    narrow.sort(key=lambda table: table.row_bytes)
    held = _hold(narrow, shared_tables, most or 0)
    small: dict[str, int] = {}
    if most is not None:
        # A table without rows has no file that could be read.
        held |= {table.path: 0 for table in may_hold if table.num_rows == 0}
        kept = {*held, *cached_tables}
        others = [table for table in sizes.tables if table.path not in kept]
        others.sort(key=lambda table: table.num_bytes)
        few = [table for table in others if table.num_bytes <= limit // _SMALL_SHARE]
        if sizes.has_types and (cached_tables or len(few) < len(others)):
            small = _hold(few, (), left_bytes - sum(held.values()))
    left_bytes -= sum(held.values()) + sum(small.values())
    shared = {
        table.path
        for table in sizes.edge_ids
        if table.path in shared_tables and table.num_bytes <= left_bytes
    }
    holds_ids = holds_ids and holds_edges and mode == "disk"
    by_size = sorted(sizes.edge_ids, key=lambda table: table.num_bytes)
    ids = _hold(by_size, shared, left_bytes // IDS_SHARE if holds_ids else 0)
    modes |= dict.fromkeys((*held, *small, *ids), "memory")
    reservations = [
        Reservation("narrow attributes", sum(held.values())),
        *(Reservation(f"all of {path}", of) for path, of in small.items()),
        Reservation("ids of edges", sum(ids.values())),
    ]
    pieces = [each.piece_bytes for each in _passes(sizes, modes)] if reads_edges_ahead else []
    reservations.append(Reservation("a piece of the rows of edges", max(pieces, default=0)))
    place = "mapped" if mode == "mmap" else "read from disk for each batch"
    place = "read in a pass for many batches" if reads_edges_ahead else place
    return modes, reservations, _describe_ids(sizes, sum(ids.values()), place, limit)


def _hold(tables: Sequence[TableSize], shared: Collection[str], most: int) -> dict[str, int]:
    """Return the tables to hold in memory, with their bytes: shared ones, then while they fit."""
    held = {table.path: table.num_bytes for table in tables if table.path in shared}
    for table in tables:
        if table.path not in held and sum(held.values()) + table.num_bytes <= most:
            held[table.path] = table.num_bytes
    return held


def _passes(sizes: StoreSizes, modes: Mapping[str, Mode]) -> list[PassSize]:
    """Return the sizes of tables of edges that are read in passes, of each type."""
    found: dict[EdgeType, list[TableSize]] = {}
    for table in (*sizes.edge_ids, *sizes.tables):
        is_narrow = 0 < table.row_bytes <= MAX_PASS_ROW_BYTES
        if table.edge_type is not None and is_narrow and modes[table.path] == "disk":
            found.setdefault(table.edge_type, []).append(table)
    return [
        PassSize(tables[0].num_rows, tuple(table.row_bytes for table in tables))
        for tables in found.values()
    ]


def _describe_ids(sizes: StoreSizes, held_bytes: int, place: str, limit: int) -> str:
    """Return a phrase on what ids of edges cost."""
    num_bytes, parts = sizes.edge_ids_bytes, []
    if not num_bytes:
        return ""
    if held_bytes:
        parts.append(f"{format_size(held_bytes)} in memory")
    if num_bytes > held_bytes:
        parts.append(f"{format_size(num_bytes - held_bytes)} {place}")
    note = f"ids of edges: {' and '.join(parts)} (none with edge_ids='store'"
    without = sizes.total_bytes - num_bytes
    if without <= limit - limit // _BATCH_SHARE < sizes.total_bytes:
        note += f", and the other {format_size(without)} fit in memory"
    return f"{note})"
