"""The facts about a strategy that sizes and predictions use, and the sizes that users set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from gnnstore.caching.scores import Score

# The place of rows, or of the topology.
Mode = Literal["memory", "mmap", "disk"]
TOPOLOGIES = ("auto", *get_args(Mode))


@dataclass(frozen=True)
class StrategyTraits:
    """Properties of a strategy that users do not see."""

    name: str  # as users write it
    mode: Mode  # the place of rows; on disk, an engine reads them
    caches: bool = False  # whether some rows are cached that are chosen once, by a score
    policy: str = ""  # cache policy that makes the plans; empty without plans
    packs: bool = False  # whether rows that the planned cache misses are packed ahead
    score: Score | None = None  # the score of a predicted static cache
    # Name of the epochs that `gnnstore pack` makes for the strategy; empty if it cannot.
    packed_before: str = ""
    is_offline: bool = False  # whether the prediction is of these epochs

    @property
    def by_mode(self) -> Mapping[Mode, StrategyTraits] | None:
        """The strategies among which the place of rows decides; None if it is one of them."""
        return None

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


@dataclass(frozen=True)
class CacheSettings:
    """The loader's options `cache` and `cache_bytes`."""

    score: Score = "frequency"  # the score by which nodes are chosen
    # Memory for the cache, its index included; None: the rest of the budget.
    num_bytes: int | None = None


@dataclass(frozen=True)
class DeviceCache:
    """The loader's option `device_cache`."""

    num_bytes: int | None  # of rows that stay on the device; None: "auto"
    score: Score = "frequency"  # the score by which they are chosen
    # The type of the device: others have the same rows. With "auto" as it was given, for each
    # device has as many as its memory leaves room for. What is packed has a name of its own.
    device: str = "cpu"


@dataclass(frozen=True)
class PlannedSettings:
    """The loader's options for a strategy that samples and plans ahead."""

    cache_bytes: int | None = None  # memory for the cached rows; None: what the budget leaves
    # Batches of a superbatch; None: as many as fit, or a few epochs if rows are packed.
    num_batches: int | None = None
    spill_dir: str | None = None  # directory for temporary files; None: next to the store
    disk_bytes: int | None = None  # for temporary files; None: half of the free space there
