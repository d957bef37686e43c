"""Samples the batches on which caches are compared; scores nodes for static caches."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.limits import MemoryBudget
from gnnstore.caching.plan import Trace, TraceBuilder
from gnnstore.caching.scores import Score
from gnnstore.graph.sizes import StoreSizes
from gnnstore.graph.topology import Topology
from gnnstore.pipeline.batch import Batch
from gnnstore.pipeline.lookahead.presample import Presampler
from gnnstore.pipeline.lookahead.producer import sample_batches
from gnnstore.pipeline.order import Position
from gnnstore.pipeline.samplers import KeyedOrder
from gnnstore.sampling.compact import RowSpace
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.seeds.base import BatchKey, SeedSource
from gnnstore.strategies.builtin import MMAP
from gnnstore.strategies.placement import place
from gnnstore.strategies.sampled_epoch import row_degrees

if TYPE_CHECKING:
    from gnnstore.graph.store import GraphStore
    from gnnstore.graph.topology import Topology
    from gnnstore.progress import Progress


@dataclass(frozen=True, eq=False)
class TracedEpoch:
    """The first batches of an epoch."""

    epoch_batches: int  # batches of the whole epoch
    trace: Trace  # nodes of the sampled batches
    # By score name, uint8 or uint32 [N]: scores of nodes for static caches; "frequency" comes from
    # other batches than these.
    scores: dict[Score, npt.NDArray[Any]]
    seconds: float  # duration of sampling


def load_topology(
    store: GraphStore, progress: Progress, memory: int | None = None, held_bytes: int = 0
) -> Topology:
    """Read the topology; map it if the budget, without the bytes in use, is too small."""
    sizes, budget = StoreSizes.of(store.schema), MemoryBudget.of(memory)
    with progress.phase("read the topology"):
        placement = place(sizes, budget, strategy=MMAP, seeds_bytes=held_bytes)
        return store.topology(placement.topology)


def sample_epoch(
    store: GraphStore,
    config: SamplingConfig,
    seeds: SeedSource,
    space: RowSpace,
    *,
    batch_size: int,
    num_batches: int,
    num_threads: int,
    progress: Progress,
) -> TracedEpoch:
    """Sample the first batches of the first epoch of a loader with `shuffle=True`."""
    order = KeyedOrder(len(seeds), batch_size, shuffles=True, drop_last=False)
    num_batches = min(num_batches, order.num_batches)
    topology = load_topology(store, progress)
    began = time.perf_counter()
    trace = TraceBuilder(num_batches, space.num_rows)

    def keep(place: int, batch: Batch) -> None:
        if batch.sample is not None:
            trace.put(place, space.rows(batch.sample.nodes))

    with progress.phase("sample", num_batches, "batches") as phase:
        sampler = topology.sampler(config, store.schema.index_dtype)
        batches = islice(order.batches(Position(0), config.seed), num_batches)
        sampled = sample_batches(
            seeds,
            sampler,
            (Batch(BatchKey(config.seed, 0, number), index) for number, index, _ in batches),
            keep,
            num_threads=num_threads,
            lookahead=lambda: 2 * num_threads,
            describe=lambda k: f"while sampling batch {k}",
        )
        with closing(sampled):
            for _ in sampled:
                phase.advance()
    seconds = time.perf_counter() - began

    scores: dict[Score, npt.NDArray[Any]] = {}
    with progress.phase("score nodes"):
        scores["degree"] = row_degrees(topology, space)
        scores["frequency"] = np.zeros(space.num_rows, np.uint8)
        presampler = Presampler.of(store, config, seeds, batch_size, False).over(space)
        presampler.run(topology, num_threads, scores["frequency"])
    return TracedEpoch(order.num_batches, trace.build(), scores, seconds)
