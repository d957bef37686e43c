"""Sizes that the user has set: of a static cache, and of batches planned ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnnstore.caching.scores import Score


@dataclass(frozen=True)
class CacheSettings:
    """The loader's options `cache` and `cache_bytes`."""

    score: Score = "frequency"  # the score by which nodes are chosen
    # Memory for the cache, its index included; None: the rest of the budget.
    num_bytes: int | None = None


@dataclass(frozen=True)
class PlannedSettings:
    """The loader's options for a strategy that samples and plans ahead."""

    cache_bytes: int | None = None  # memory for the cached rows; None: what the budget leaves
    # Batches of a superbatch; None: as many as fit, an epoch at most, or a few epochs if rows are
    # packed.
    num_batches: int | None = None
    # Directory for packed rows, and for subgraphs that do not fit in memory; None: next to the
    # store.
    spill_dir: str | None = None
    # For packed rows, and for traces and plans that do not fit in memory; None: half of the free
    # space there.
    disk_bytes: int | None = None
