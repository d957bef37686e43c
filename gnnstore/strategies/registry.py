"""The strategies by name.

A new strategy is made and registered here, or in a module of its own. The command line lists them
in its --help, so none of their modules imports torch.
"""

from __future__ import annotations

from dataclasses import replace

from gnnstore.errors import check_choice
from gnnstore.strategies.base import Auto, Strategy
from gnnstore.strategies.in_memory import InMemoryStrategy
from gnnstore.strategies.lookahead import LookaheadStrategy
from gnnstore.strategies.static import StaticStrategy
from gnnstore.units import Registry

MEMORY = InMemoryStrategy(
    "memory",
    "memory",
    summary="all attributes and the graph's topology are read into memory once",
)
MMAP = InMemoryStrategy(
    "mmap",
    "mmap",
    summary=(
        "attributes are mapped; the operating system reads a page when a row on it is touched"
    ),
)
STATIC = StaticStrategy(
    "static",
    "disk",
    caches=True,
    takes_cache=True,
    summary=(
        "attributes stay on disk; a cache holds the rows that batches need most often, and the "
        "others are read one by one, bypassing the page cache"
    ),
)
DIRECT = replace(
    STATIC,
    name="direct",
    alias_of="static",
    caches=False,
    summary='`"static"` without a cache: rows are read one by one',
)
BELADY = LookaheadStrategy(
    "belady",
    "disk",
    policy="belady",
    summary=(
        "batches are sampled ahead, hundreds at a time; the cache holds the rows that are needed "
        "again soonest, and no cache of the same size has fewer misses"
    ),
)
PACKED = LookaheadStrategy(
    "packed",
    "disk",
    policy="belady",
    packs=True,
    takes_cache=True,
    packed_before="packed-epochs",
    summary=(
        'like `"belady"`, but the missed rows are gathered ahead of time, in one pass over the '
        "table, instead of one by one; needs disk space while it runs"
    ),
)

STRATEGIES: Registry[Strategy] = Registry((MEMORY, MMAP, DIRECT, STATIC, BELADY, PACKED))


def auto() -> Auto:
    """Return the choice among all registered strategies."""
    return Auto(strategies=tuple(STRATEGIES))


def find_strategy(name: str) -> Strategy | Auto:
    """Return the strategy, or the choice, of a name."""
    choice = auto()
    if name == choice.name:
        return choice
    if name in STRATEGIES:
        return STRATEGIES[name]
    known = {each: found for each, found in choice.by_choice.items() if not found.is_offline}
    check_choice("strategy", name, (choice.name, *known))
    return known[name]
