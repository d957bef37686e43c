"""The facts about a strategy that sizes, predictions and pipelines go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gnnstore.caching.scores import Score

# Where rows lie, or the topology does.
Mode = Literal["memory", "mmap", "disk"]
TOPOLOGIES = ("auto", *get_args(Mode))


# The kind of the caches that strategies which plan share, unless they have one of their own.
PLANNED_CACHE = "planned"


@dataclass(frozen=True)
class StrategyTraits:
    """Properties of a strategy that users do not see."""

    name: str  # as users write it
    mode: Mode  # where rows lie; on disk, an engine reads them
    caches: bool = False  # whether some rows are held that are chosen once, by a score
    policy: str = ""  # cache policy whose plans are followed; empty where nothing is planned
    packs: bool = False  # whether rows that the planned cache misses are packed ahead
    # Kind of the cache that its loaders share; empty without one, and for static caches, of which
    # loaders with the same settings share one.
    cache_kind: str = ""
    score: Score | None = None  # the score of a static cache, where one is predicted
    # Name of its epochs that `gnnstore pack` packs before training; empty if it cannot.
    packed_before: str = ""
    is_offline: bool = False  # whether these are what is predicted

    def __post_init__(self) -> None:
        if self.plans and not self.cache_kind:
            object.__setattr__(self, "cache_kind", PLANNED_CACHE)

    @property
    def reads_disk(self) -> bool:
        """Whether an engine reads rows, so that threads wait for the disk."""
        return self.mode == "disk"

    @property
    def plans(self) -> bool:
        """Whether batches are sampled and planned ahead."""
        return bool(self.policy)

    @property
    def choice(self) -> str:
        """Name with the options by which predictions differ, as `gnnstore predict` shows it."""
        if self.is_offline:
            return self.packed_before
        return f"{self.name}-{self.score}" if self.score else self.name

    @property
    def title(self) -> str:
        """Name in a picture."""
        if self.is_offline:
            return f"a {self.choice} of gnnstore pack"
        return f"{self.name} ({self.score})" if self.score else self.name
