"""The strategies that there are. A new one is made and registered here, or in a module of its own.

Importing them is cheap: the command line lists them in its --help. Modules that read stores take
seconds to import, so each kind of strategy imports its module when it is asked to do something.
"""

from __future__ import annotations

from dataclasses import replace

from gnnstore.errors import UsageError
from gnnstore.registry import Registry
from gnnstore.strategies.base import Auto, Kind, Strategy

# ruff: noqa: PLC0415


def _in_memory() -> Kind:
    from gnnstore.strategies import in_memory

    return in_memory


def _static() -> Kind:
    from gnnstore.strategies import static

    return static


def _lookahead() -> Kind:
    from gnnstore.strategies import lookahead

    return lookahead


MEMORY = Strategy(
    "memory",
    "memory",
    kind=_in_memory,
    summary="all attributes and the graph's topology are read into memory once",
)
MMAP = Strategy(
    "mmap",
    "mmap",
    kind=_in_memory,
    summary=(
        "attributes are mapped; the operating system reads a page when a row on it is touched"
    ),
)
STATIC = Strategy(
    "static",
    "disk",
    kind=_static,
    caches=True,
    takes_cache=True,
    scores=("degree", "frequency"),
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
    scores=(),
    summary='`"static"` without a cache: rows are read one by one',
)
BELADY = Strategy(
    "belady",
    "disk",
    kind=_lookahead,
    policy="belady",
    summary=(
        "batches are sampled ahead, hundreds at a time; the cache holds the rows that are needed "
        "again soonest, and no cache of the same size has fewer misses"
    ),
)
PACKED = Strategy(
    "packed",
    "disk",
    kind=_lookahead,
    policy="belady",
    packs=True,
    takes_cache=True,
    packed_before="plan",
    summary=(
        'like `"belady"`, but the missed rows are gathered ahead of time, in one pass over the '
        "table, instead of one by one; needs disk space while it runs"
    ),
)

STRATEGIES: Registry[Strategy] = Registry((MEMORY, MMAP, DIRECT, STATIC, BELADY, PACKED))


def auto() -> Auto:
    """Return the choice among all strategies that are registered."""
    return Auto(strategies=tuple(STRATEGIES))


def find_strategy(name: str) -> Strategy | Auto:
    """Return the strategy, or the choice, that a user names."""
    choice = auto()
    if name == choice.name:
        return choice
    if name in STRATEGIES:
        return STRATEGIES[name]
    names = f"choose one of {', '.join((choice.name, *STRATEGIES.names))}"
    raise UsageError(f"strategy={name!r} is unknown; {names}")
