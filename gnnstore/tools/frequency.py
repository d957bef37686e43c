"""Count the batches that need each node, for `gnnstore reorder --by frequency`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gnnstore.budget.limits import MemoryBudget
from gnnstore.graph.sizes import StoreSizes
from gnnstore.graph.store import open as open_store
from gnnstore.graph.topology import Topology
from gnnstore.pipeline.lookahead.presample import Presampler
from gnnstore.pipeline.seeds.nodes import InputNodes
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.strategies.builtin import MMAP
from gnnstore.strategies.sizes.placement import place
from gnnstore.tools.plan.seeds import choose_seeds
from gnnstore.tools.ui.session import Session

if TYPE_CHECKING:
    from gnnstore.tools.ui.options import SeedOptions


def count_batches(
    session: Session,
    path: str,
    fanouts: tuple[int, ...],
    batch_size: int,
    seeds_asked: SeedOptions,
) -> npt.NDArray[np.uint8]:
    """Sample batches and return how many of them need each node, up to 255; at least 1 for seeds.

    Raises
    ------
    GnnstoreError
        If the store or the split is not there.
    """
    store = open_store(path)
    config = SamplingConfig(fanouts)
    _, seeds = choose_seeds(store, config, seeds_asked)
    counts = np.zeros(store.num_nodes, np.uint8)
    with session.progress() as progress:
        with progress.phase("read the topology"):
            sizes = StoreSizes.of(store.schema)
            csc = store.topology(place(sizes, MemoryBudget.of(None), strategy=MMAP).topology)
        with progress.phase("sample", unit="batches"):
            presampler = Presampler.of(store, config, seeds, batch_size, False)
            presampler.run(Topology(csc), len(os.sched_getaffinity(0)), counts)
    if isinstance(seeds, InputNodes):  # an epoch has each of them, if these batches did not
        nodes = slice(None) if seeds.nodes is None else seeds.nodes
        counts[nodes] = np.maximum(counts[nodes], 1)
    return counts
