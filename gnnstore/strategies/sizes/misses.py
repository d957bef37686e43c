"""Misses of a planned cache by its size, from how soon a sample needs rows again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gnnstore.strategies.predict.workload import Workload

if TYPE_CHECKING:
    from gnnstore.caching.policies.base import CachePolicy
    from gnnstore.caching.reuse import InitialCache

# Fewer batches do not show which rows are needed often.
_LEAST_TOLD = 16
# Rows that fewer than one in this many batches needs are not pinned.
_RARELY = 32


@dataclass(frozen=True)
class Pins:
    """Rows that a cache may hold under any plan."""

    num_rows: int  # number of these rows
    planned_share: float  # share of a batch's rows that are not pinned


@dataclass(frozen=True)
class MissModel:
    """The rows of an epoch that a cache misses."""

    workload: Workload
    policy: CachePolicy
    by_degree: bool = False  # whether a fixed policy goes by out-degree; else by frequency
    _without: dict[int, Workload] = field(default_factory=dict, repr=False)  # by pinned rows

    @property
    def accesses(self) -> float:
        """Rows of an epoch."""
        return self.workload.batch_rows * self.workload.epoch_batches

    @property
    def least_uses(self) -> int:
        """Batches of the sample that need a row which is worth pinning."""
        return max(2, self.workload.sampled_batches // _RARELY)

    def misses(
        self,
        num_slots: int,
        num_batches: int,
        *,
        num_pinned: int = 0,
        initial: InitialCache = "last",
    ) -> float:
        """Return the rows that an epoch misses, planned by `num_batches` batches."""
        work = self.workload
        if self.policy.is_fixed:
            curve = work.degree if self.by_degree and work.degree is not None else work.frequency
            return work.epoch_batches * curve.misses(num_slots)
        if not num_pinned:
            return work.misses(self.policy, num_slots, num_batches, initial=initial)
        if num_pinned not in self._without:
            self._without[num_pinned] = work.without_highest(num_pinned, self.least_uses)
        others = self._without[num_pinned]
        return others.misses(self.policy, num_slots - num_pinned, num_batches, initial=initial)

    def pins(self, num_rows: int) -> Pins | None:
        """Return at most `num_rows` rows that most batches need; None if there are none."""
        work = self.workload
        if self.policy.is_fixed or work.sampled_batches < _LEAST_TOLD:
            return None
        num_pinned, uses = work.frequency.highest(num_rows, self.least_uses)
        if num_pinned == 0:
            return None
        return Pins(num_pinned, max(0.0, 1 - uses / work.batch_rows))
