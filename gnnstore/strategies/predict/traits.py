"""The facts about a strategy that sizes, predictions and pipelines go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

# Where rows lie, or the topology does.
Mode = Literal["memory", "mmap", "disk"]
TOPOLOGIES = ("auto", *get_args(Mode))


# The kind of the caches that strategies which plan share, unless they have one of their own.
PLANNED_CACHE = "planned"


@dataclass(frozen=True)
class StrategyTraits:
    """Properties of a strategy that users do not see.

    Attributes
    ----------
    name : str
        As users write it.
    mode : "memory", "mmap" or "disk"
        Where rows lie; on disk, an engine reads them.
    caches : bool
        Whether some rows are held that are chosen once, when the loader is made.
    policy : str
        Name of the cache policy whose plans are followed; empty where nothing is planned.
    packs : bool
        Whether rows that the planned cache misses are packed ahead.
    cache_kind : str
        Kind of the cache that its loaders share: by default that of planned caches where batches
        are planned; empty without one, and for static caches, of which loaders with the same
        settings share one.
    """

    name: str
    mode: Mode
    caches: bool = False
    policy: str = ""
    packs: bool = False
    cache_kind: str = ""

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


@dataclass(frozen=True)
class Candidate:
    """One way to use a strategy, of which an epoch can be predicted."""

    name: str  # as `gnnstore predict` shows it
    strategy: StrategyTraits
    # By what the rows of a static cache are chosen; None without one.
    score: Literal["degree", "frequency"] | None = None
    is_offline: bool = False  # whether epochs are packed before training, by `gnnstore pack`

    @property
    def title(self) -> str:
        """Name in a picture."""
        if self.is_offline:
            return f"a {self.name} of gnnstore pack"
        return f"{self.strategy.name} ({self.score})" if self.score else self.name
