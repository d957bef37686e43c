"""Sizes that the user has decided: of a static cache, and of what is sampled and planned ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnnstore.caching.scores import Score


@dataclass(frozen=True)
class CacheSettings:
    """The loader's options `cache` and `cache_bytes`.

    Attributes
    ----------
    score : "degree" or "frequency"
        The score by which nodes are chosen.
    num_bytes : int or None
        Memory for the cache, its index included; None: the rest of the budget.
    """

    score: Score = "frequency"
    num_bytes: int | None = None


@dataclass(frozen=True)
class PlannedSettings:
    """The loader's options for a strategy that samples and plans ahead.

    Attributes
    ----------
    cache_bytes : int or None
        Memory for the cached rows; None: what the budget leaves.
    num_batches : int or None
        Batches of a superbatch; None: as many as there is room for, an epoch at most, or a few
        epochs where rows are packed.
    tmpdir : str or None
        Where subgraphs are written to that do not fit in memory, and packed rows; None: beside
        the store.
    disk_bytes : int or None
        For packed rows, and traces and plans that memory is too small for; None: half of what is
        free there.
    """

    cache_bytes: int | None = None
    num_batches: int | None = None
    tmpdir: str | None = None
    disk_bytes: int | None = None
