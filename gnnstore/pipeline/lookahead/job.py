"""What all superbatches of a loader have in common, and what has been done for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gnnstore.disk.counts import NO_READS, ReadCounts
from gnnstore.pipeline.lookahead.packer import Room
from gnnstore.pipeline.lookahead.session import Course, FixedNodes, fills

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gnnstore.caching.policies.base import CachePolicy
    from gnnstore.features.tiers.planned import PlannedCache
    from gnnstore.pipeline.superbatch_size import SuperbatchSize
    from gnnstore.sampling.neighbor import IndexDtype


@dataclass
class Totals:
    """What superbatches have taken so far.

    Attributes
    ----------
    seconds_planning : float
        Of all that have been handed out.
    bytes_spilled : int
        Of their subgraphs and packed rows, on disk.
    filling : ReadCounts
        What filling the cache has taken.
    """

    seconds_planning: float = 0.0
    bytes_spilled: int = 0
    filling: ReadCounts = NO_READS


@dataclass(frozen=True, eq=False)
class SuperbatchJob:
    """How superbatches are made; the parameters of `Superbatches` say more."""

    cache: Callable[[], PlannedCache]
    policy: CachePolicy
    packs: bool
    size: SuperbatchSize
    tmpdir: Path
    room: Room
    num_nodes: int
    num_edges: int
    index_dtype: IndexDtype
    fixed: FixedNodes | None
    degrees: Callable[[], npt.NDArray[np.uint32] | None] = lambda: None
    totals: Totals = field(default_factory=Totals)

    def begin_course(self) -> Course:
        """Take the cache over, from whoever has it."""
        return Course.begin(self.cache(), self.policy, self.fixed)

    @property
    def fills(self) -> bool:
        """Whether a cache that is empty is filled before the first batch."""
        return self.fixed is not None or fills(
            self.policy, self.size, self.num_nodes, packs=self.packs
        )
