"""The strategies that there are. A new one is made and registered here, or in a module of its own.

Importing them is cheap: the command line lists them in its --help. What reads stores takes seconds
to import, so each kind of strategy imports its module when it is asked to do something.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gnnstore.errors import UsageError
from gnnstore.registry import Registry
from gnnstore.strategies.base import Auto, Candidate, Strategy

if TYPE_CHECKING:
    from gnnstore.planning.cost_model import Prediction
    from gnnstore.strategies.loader_spec import LoaderSpec
    from gnnstore.strategies.sampled_epoch import SampledEpoch
    from gnnstore.strategies.sizes.placement import Placement, Placer
    from gnnstore.strategies.sources import DataSources

# ruff: noqa: PLC0415


class InMemory(Strategy):
    """Rows lie in memory, or in a mapping, where nobody has to read them."""

    def reserve(self, loader: LoaderSpec, place: Placer) -> Placement:
        """Reserve memory for two batches."""
        from gnnstore.strategies import in_memory

        return in_memory.reserve(loader, place)

    def predict(
        self,
        candidate: Candidate,
        epoch: SampledEpoch,
        loader: LoaderSpec,
        place: Placer,
        disk_bytes: int,
    ) -> Prediction:
        """Predict an epoch, with the memory that is left to a mapping's pages."""
        from gnnstore.strategies import in_memory

        return in_memory.predict_epoch(candidate, epoch, loader, place, disk_bytes)

    def open(self, loader: LoaderSpec, placement: Placement) -> DataSources:
        """Load or map the rows."""
        from gnnstore.strategies import in_memory

        return in_memory.open_rows(self, loader, placement)


class StaticCached(Strategy):
    """Rows are read from disk one by one, but for those in a cache that is filled once."""

    def reserve(self, loader: LoaderSpec, place: Placer) -> Placement:
        """Reserve memory for batches and a cache, and fill the cache."""
        from gnnstore.strategies import static

        return static.reserve(loader, place)

    def predict(
        self,
        candidate: Candidate,
        epoch: SampledEpoch,
        loader: LoaderSpec,
        place: Placer,
        disk_bytes: int,
    ) -> Prediction:
        """Predict an epoch, with a cache of what batches leave."""
        from gnnstore.strategies import static

        return static.predict_epoch(candidate, epoch, loader, place, disk_bytes)

    def open(self, loader: LoaderSpec, placement: Placement) -> DataSources:
        """Open the tables, below the cache."""
        from gnnstore.strategies import static

        return static.open_rows(self, loader, placement)


class LookingAhead(Strategy):
    """Batches are sampled and planned ahead; a cache policy decides which rows a cache holds."""

    def reserve(self, loader: LoaderSpec, place: Placer) -> Placement:
        """Reserve memory for superbatches, their plans, and the rows that they cache."""
        from gnnstore.strategies import lookahead

        return lookahead.reserve(self, loader, place)

    def predict(
        self,
        candidate: Candidate,
        epoch: SampledEpoch,
        loader: LoaderSpec,
        place: Placer,
        disk_bytes: int,
    ) -> Prediction:
        """Predict an epoch, its misses estimated from how often rows are needed again."""
        from gnnstore.strategies import lookahead

        return lookahead.predict_epoch(candidate, epoch, loader, place, disk_bytes)

    def open(self, loader: LoaderSpec, placement: Placement) -> DataSources:
        """Open the tables, and what samples and plans ahead."""
        from gnnstore.strategies import lookahead

        return lookahead.open_rows(self, loader, placement)


MEMORY = InMemory(
    "memory", "memory", summary="all attributes and the graph's structure are read into memory once"
)
MMAP = InMemory(
    "mmap",
    "mmap",
    summary=(
        "attributes are mapped; the operating system reads a page when a row on it is touched"
    ),
)
STATIC = StaticCached(
    "static",
    "disk",
    caches=True,
    takes_cache=True,
    scores=("degree", "frequency"),
    summary=(
        "attributes stay on disk; the rows that batches need most often are held in a cache, the "
        "others are read by an engine, row by row and around the page cache"
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
BELADY = LookingAhead(
    "belady",
    "disk",
    policy="belady",
    summary=(
        "batches are sampled ahead, hundreds at a time; the cache holds the rows that are needed "
        "again soonest, and no other cache of its size reads less"
    ),
)
PACKED = LookingAhead(
    "packed",
    "disk",
    policy="belady",
    packs=True,
    takes_cache=True,
    packed_before="plan",
    summary=(
        'as `"belady"`, and the rows that it misses are collected ahead, in one pass over the '
        "table, so that nothing is read row by row; takes disk space for a while"
    ),
)

STRATEGIES: Registry[Strategy] = Registry((MEMORY, MMAP, DIRECT, STATIC, BELADY, PACKED))


def auto() -> Auto:
    """Return the choice among all strategies that are registered."""
    return Auto(strategies=tuple(STRATEGIES))


def find_strategy(name: str) -> Strategy | Auto:
    """Return the strategy, or the choice, that a user names.

    Raises
    ------
    UsageError
        If there is none of that name.
    """
    choice = auto()
    if name == choice.name:
        return choice
    if name in STRATEGIES:
        return STRATEGIES[name]
    names = f"choose one of {', '.join((choice.name, *STRATEGIES.names))}"
    # On demand: its kernels take longer to load than --help may.
    from gnnstore.caching.policies.registry import POLICIES

    if name in POLICIES and POLICIES[name].is_simulated_only:
        raise UsageError(
            f"strategy={name!r} is none that loads: {name!r} is a cache to compare with, which "
            f"'gnnstore plan' simulates on the batches of a store; {names}"
        )
    raise UsageError(f"strategy={name!r} is unknown; {names}")
