"""The facts about a strategy that sizes, predictions and pipelines use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gnnstore.caching.scores import Score

# The place of rows, or of the topology.
Mode = Literal["memory", "mmap", "disk"]
TOPOLOGIES = ("auto", *get_args(Mode))


# The kind of the caches that planning strategies share, unless they have one of their own.
PLANNED_CACHE = "planned"


@dataclass(frozen=True)
class StrategyTraits:
    """Properties of a strategy that users do not see."""

    name: str  # as users write it
    mode: Mode  # the place of rows; on disk, an engine reads them
    caches: bool = False  # whether some rows are cached that are chosen once, by a score
    policy: str = ""  # cache policy whose plans are followed; empty without plans
    packs: bool = False  # whether rows that the planned cache misses are packed ahead
    # Kind of the cache that its loaders share; empty without one, and for static caches, which only
    # loaders with the same settings share.
    cache_kind: str = ""
    score: Score | None = None  # the score of a predicted static cache
    # Name of the epochs that `gnnstore pack` makes for the strategy; empty if it cannot.
    packed_before: str = ""
    is_offline: bool = False  # whether the prediction is of these epochs

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
        """Name with the options that predictions compare, as in `gnnstore predict`."""
        if self.is_offline:
            return self.packed_before
        return f"{self.name}-{self.score}" if self.score else self.name
