"""Where a loader's data should lie, decided from sizes and a budget before any of it is read.

The choice changes how fast batches come, never what is in them. It is made once, with a
reason in words, so that nobody has to guess which way a run went.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self, cast

from gnnstore.available import available_bytes
from gnnstore.errors import BudgetError, UsageError
from gnnstore.planning.sizes import StoreSizes
from gnnstore.planning.static_cache import CachePlan
from gnnstore.units import format_at_least, format_size, parse_size

Strategy = Literal["memory", "mmap", "direct", "static"]
Topology = Literal["memory", "mmap"]
Mode = Literal["memory", "mmap", "direct"]

STRATEGIES = ("auto", "memory", "mmap", "direct", "static")

# "auto" leaves an eighth of the budget to the batches that are being prepared.
_BATCH_SHARE = 8
# A label of 8 bytes costs a read as long as a row of 512 does. Rows up to this width are
# held in memory while all that is held so takes at most a quarter
# of what the budget has left: the cache of wide rows would spare fewer reads with it.
HELD_ROW_BYTES = 64
_HELD_SHARE = 4

_WHERE = {"memory": "in memory", "mmap": "mapped"}
_ALTERNATIVES = {
    ("memory", "memory"): " or choose strategy='mmap'",
    ("mmap", "memory"): " or choose topology='mmap'",
    ("mmap", "mmap"): "",
    ("direct", "memory"): ", lower num_threads=, or choose topology='mmap' or strategy='mmap'",
    ("direct", "mmap"): ", lower num_threads=, or choose strategy='mmap'",
}


@dataclass(frozen=True)
class Placement:
    """The decision.

    Attributes
    ----------
    strategy : "memory", "mmap", "direct" or "static"
        How the rows of paged attributes are reached.
    topology : "memory" or "mmap"
        Where the graph's structure lies.
    modes : Mapping of str to "memory", "mmap" or "direct"
        Where the rows of each paged attribute lie, by its path. Under "direct" and "static",
        narrow ones are in memory as far as the budget allows.
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
    cache : CachePlan, optional
        Rows that are held besides; set by `with_cache`.
    """

    strategy: Strategy
    topology: Topology
    modes: Mapping[str, Mode]
    resident_bytes: int
    staging_bytes: int
    budget_bytes: int
    budget_is_promise: bool
    reason: str
    cache: CachePlan | None = None

    @property
    def reads_disk(self) -> bool:
        """Whether rows are read by an engine, so that threads wait for the disk."""
        return self.strategy in {"direct", "static"}

    @property
    def left_bytes(self) -> int:
        """Bytes of the budget for batches in flight."""
        cached = 0 if self.cache is None else self.cache.num_bytes
        return self.budget_bytes - self.resident_bytes - self.staging_bytes - cached

    @property
    def spare_bytes(self) -> int | None:
        """Bytes for batches in flight; None where nobody set a budget."""
        return self.left_bytes if self.budget_is_promise else None

    def with_cache(self, cache: CachePlan) -> Self:
        """Return the decision with the cache that was made for it."""
        return replace(self, cache=cache, reason=f"{self.reason}; {cache.describe()}")

    def because(self, more: str) -> Self:
        """Return the decision with more to its reason."""
        return replace(self, reason=f"{self.reason}; {more}")


def place(
    sizes: StoreSizes,
    *,
    strategy: str = "auto",
    topology: str = "auto",
    memory: int | str | None = None,
    seeds_bytes: int = 0,
    shared_bytes: int = 0,
    cached_bytes: int = 0,
    staging_bytes: Callable[[int], int] = lambda _: 0,
    instead_of_static: str = "",
) -> Placement:
    """Decide where a store's parts lie while a loader runs.

    Parameters
    ----------
    sizes : StoreSizes
        What there is to place.
    strategy : "auto", "memory", "mmap", "direct" or "static"
        "auto": "memory" where everything fits the budget, else "static".
    topology : "auto", "memory" or "mmap"
        "auto": in memory where it fits the budget beside the rest.
    memory : int or str, optional
        The budget. By default what this process may still allocate.
    seeds_bytes : int
        What the loader holds besides: its seed nodes and their order.
    shared_bytes : int
        What other loaders on the same store already hold, which costs nothing to share.
    cached_bytes : int
        What their caches hold besides: memory that a loader with such a cache shares, and one
        of another strategy does not have.
    staging_bytes : callable
        Returns what the engines' staging takes under a budget; called only if rows are read
        by them.
    instead_of_static : str
        Why "auto" is not to choose "static", if it is not: it takes "mmap" then.

    Raises
    ------
    UsageError
        If a choice is unknown, or strategy "memory" is to leave the topology out.
    BudgetError
        If what must lie in memory does not fit.
    """
    _check_choice("strategy", strategy, STRATEGIES)
    _check_choice("topology", topology, ("auto", "memory", "mmap"))
    if strategy == "memory" and topology == "mmap":
        raise UsageError(
            "strategy='memory' holds everything in memory, the topology included; "
            "leave out topology='mmap', or choose strategy='mmap'"
        )
    if memory is None:
        budget, source = available_bytes() + shared_bytes, "of available memory"
    else:
        budget, source = parse_size(memory, name="memory"), "of the memory= budget"
        cached_bytes = 0
    have = f"{format_size(budget)} {source}"
    usable = budget - budget // _BATCH_SHARE

    why = "it was asked for"
    if strategy == "auto":
        total = format_size(sizes.total_bytes)
        strategy = "mmap" if instead_of_static else "static"
        if seeds_bytes + sizes.total_bytes > usable:
            why = f"the {total} of the store do not fit {have}"
        elif topology == "mmap":
            why = "the topology is to stay mapped"
        else:
            strategy, why = "memory", f"all {total} of the store fit {have}"
        if strategy == "mmap":
            why += f", and {instead_of_static}"

    mode: Mode = "direct" if strategy in {"direct", "static"} else cast(Mode, strategy)
    if mode == "direct":
        budget += cached_bytes
        usable = budget - budget // _BATCH_SHARE
    staging = staging_bytes(budget) if mode == "direct" else 0
    base = seeds_bytes + sizes.cold_bytes + (sizes.rows_bytes if mode == "memory" else 0)
    if topology == "auto":
        fits = mode == "memory" or base + staging + sizes.topology_bytes <= usable
        topology = "memory" if fits else "mmap"
    resident = base + (sizes.topology_bytes if topology == "memory" else 0)

    modes = dict.fromkeys((table.path for table in sizes.tables), mode)
    if mode == "direct":
        held = _held_tables(sizes, budget - resident - staging)
        modes |= dict.fromkeys(held, "memory")
        resident += sum(held.values())

    if resident + staging >= budget:
        missing = resident + staging - budget + 1
        parts = _parts(sizes, mode, topology, seeds_bytes, staging)
        raise BudgetError(
            f"strategy {strategy!r} with the topology {_WHERE[topology]} needs "
            f"{resident + staging} bytes ({parts}) and room for batches, but has "
            f"{budget} bytes {source}: {missing} bytes too few; raise memory= by at least "
            f"{format_at_least(missing)}{_ALTERNATIVES[mode, topology]}"
        )
    return Placement(
        strategy=cast(Strategy, strategy),
        topology=cast(Topology, topology),
        modes=modes,
        resident_bytes=resident,
        staging_bytes=staging,
        budget_bytes=budget,
        budget_is_promise=memory is not None,
        reason=(
            f"strategy {strategy!r} because {why}; topology {_WHERE[topology]} "
            f"({format_size(sizes.topology_bytes)}); {format_size(resident)} held in memory"
        ),
    )


def _held_tables(sizes: StoreSizes, left_bytes: int) -> dict[str, int]:
    """Return the tables to hold in memory although others are read, with their bytes."""
    held: dict[str, int] = {}
    narrow = [table for table in sizes.tables if table.row_bytes <= HELD_ROW_BYTES]
    for table in sorted(narrow, key=lambda table: table.row_bytes):
        if sum(held.values()) + table.num_bytes <= left_bytes // _HELD_SHARE:
            held[table.path] = table.num_bytes
    # A table without rows has no file that could be read.
    return held | {table.path: 0 for table in sizes.tables if table.num_rows == 0}


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name}={value!r} is unknown; choose one of {', '.join(choices)}")


def _parts(sizes: StoreSizes, mode: Mode, topology: str, seeds_bytes: int, staging: int) -> str:
    parts = [(sizes.cold_bytes, "compressed attributes"), (seeds_bytes, "seeds and their order")]
    if topology == "memory":
        parts.insert(0, (sizes.topology_bytes, "topology"))
    if mode == "memory":
        parts.insert(0, (sizes.rows_bytes, "attributes"))
    if staging:
        parts.append((staging, "staging for reads"))
    return " + ".join(f"{format_size(size)} of {what}" for size, what in parts)
