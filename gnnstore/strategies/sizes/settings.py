"""Sizes that the user has decided: of a static cache, and of what is sampled and planned ahead."""

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
    # Batches of a superbatch; None: as many as there is room for, an epoch at most, or a few epochs
    # where rows are packed.
    num_batches: int | None = None
    # Where subgraphs are written to that do not fit in memory, and packed rows; None: beside the
    # store.
    tmpdir: str | None = None
    # For packed rows, and traces and plans that memory is too small for; None: half of what is free
    # there.
    disk_bytes: int | None = None
