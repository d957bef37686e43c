"""Samples batches and measures this machine for predictions, within a limit of time."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gnnstore._core import release_memory
from gnnstore.caching.scores import MAX_COUNTED_BATCHES
from gnnstore.disk.measure import disk_profile
from gnnstore.features.mapped_rows import MAX_FAULT_THREADS, MIN_ROWS_PER_FAULT_THREAD
from gnnstore.features.memory_rows import MemoryRows
from gnnstore.features.tables import CachedTables
from gnnstore.graph.table_registry import shared_tables
from gnnstore.graph.topology import Topology
from gnnstore.pipeline.lookahead.presample import ENOUGH_VISITS, Presampled, Presampler
from gnnstore.progress import Progress
from gnnstore.strategies.device_rows import chosen_rows, left_out, row_degrees
from gnnstore.strategies.loader_spec import LoaderSpec, pass_size
from gnnstore.strategies.prediction import EdgePass, HardwareRates
from gnnstore.strategies.workload import SampledTrace, SpatialSampling, TableReads, Workload
from gnnstore.threads import for_each

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.sampling.row_space import RowSpace
    from gnnstore.strategies.placement import Placement

# Batches of a sample, by number and not by a clock: sizes are the same in every run. Sampling and
# counting them takes about 1.5 s for batches of 136,000 nodes: less than a tenth of an epoch that
# they make faster; of a mapped topology, 60,000 page faults for each.
PROFILE_BATCHES, _SLOW_BATCHES = 128, 32
_LEAST_SPARE_BYTES = 1 << 20
# The fewest batches that show how often rows are needed again.
_LEAST_BATCHES = 16
# Most edges that are counted for out-degrees: two seconds' work, if the graph is in memory.
MAX_COUNTED_EDGES = 1 << 28
# Batches for timing sampling from elsewhere: one by one, and together from disk.
_TIMED_ALONE, _TIMED_TOGETHER = 4, 64


@dataclass(frozen=True, eq=False)
class SampledEpoch:
    """A sample of an epoch's batches, and rates of the machine, for predictions."""

    presampler: Presampler
    engine: Engine
    tables: CachedTables
    topology: Topology  # the topology that batches were sampled from
    seen: Presampled  # the largest of some batches
    workload: Workload
    machine: HardwareRates
    spare_bytes: int  # the rest of the memory budget, with other loaders' caches
    # Seconds of sampling a batch from elsewhere than `topology`, if they have been needed.
    timed_sampling: dict[tuple[bool, bool, int], float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, loader: LoaderSpec, placement: Placement, progress: Progress
    ) -> SampledEpoch | None:
        """Measure, and sample; None if there is nothing to sample or to read."""
        engine, tables = loader.open_engine(placement.topology), loader.cached_tables(placement)
        if engine is None or not tables.specs or not len(loader.presampler.seeds):
            return None
        disk = disk_profile(loader.store.path, progress)
        num_threads = max(1, placement.staging_bytes // engine.staging_bytes)
        topology = loader.open_topology(placement, engine)
        loader = left_out(loader, chosen_rows(loader, placement, topology))
        presampler = loader.presampler.over(tables.space)
        # A cache that is shared later keeps its memory during this.
        spare = max(_LEAST_SPARE_BYTES, placement.left_bytes - loader.shared_cache_bytes())
        seen, workload = sample_workload(
            loader,
            tables,
            topology,
            engine,
            num_threads=num_threads,
            spare_bytes=spare if placement.budget_is_promise else None,
            progress=progress,
        )
        num_cores = len(os.sched_getaffinity(0))
        rate = gather_bandwidth(
            workload.row_bytes,
            workload.num_rows,
            workload.batch_rows,
            num_threads=min(num_threads, num_cores),
            spare_bytes=spare,
        )
        release_memory()
        faulting = int(workload.batch_rows) // MIN_ROWS_PER_FAULT_THREAD
        num_faulting = num_threads * max(1, min(MAX_FAULT_THREADS, faulting))
        machine = HardwareRates(disk, rate, num_threads, num_cores, num_faulting)
        return cls(presampler, engine, tables, topology, seen, workload, machine, spare)

    def sampled_for(self, loader: LoaderSpec, placement: Placement) -> SampledEpoch:
        """Return the epoch with the sampling of a strategy, which is timed if it was not."""
        topology, store = self.topology, loader.store
        is_read, alone = placement.topology == "disk", not placement.strategy.plans
        if is_read == topology.is_read and not (is_read and alone):
            return self
        # Groups of batches grow with memory, and are as fast with a little less.
        key = (is_read, alone, placement.left_bytes.bit_length())
        if key not in self.timed_sampling:
            if not is_read:
                topology = shared_tables(store).topology(
                    store, "mmap", self.machine.num_threads, loader.machine
                )
            elif not topology.is_read:
                topology = topology.on_disk(store.reader, self.engine)
            began = perf_counter()
            found = self.presampler.run(
                topology,
                self.machine.num_threads,
                spare_bytes=min(self.spare_bytes, placement.left_bytes),
                num_batches=_TIMED_ALONE if is_read and alone else _TIMED_TOGETHER,
                one_by_one=alone,
            )
            self.timed_sampling[key] = (perf_counter() - began) / max(1, found.num_batches)
            release_memory()
        seconds = self.timed_sampling[key]
        work = replace(self.workload, seconds_sampling=seconds, samples_from_disk=is_read)
        return replace(self, workload=work)

    def edge_pass(self, loader: LoaderSpec, placement: Placement, num_batches: int) -> EdgePass:
        """Return the pass over tables of edges for a superbatch of `num_batches` batches."""
        table_bytes, kept_bytes = 0, 0.0
        for kind, specs in loader.edges_read_ahead(placement).items():
            size = pass_size(specs)
            num_edges = self.seen.num_edges[kind] / self.seen.num_batches
            if size.is_worth_a_pass(int(num_edges * num_batches)):
                table_bytes += size.table_bytes
                kept_bytes += num_edges * size.kept_bytes
        return EdgePass(table_bytes, kept_bytes)

    def with_degrees(self) -> SampledEpoch:
        """Return the epoch with the out-degrees of nodes, unless counting them would take long."""
        # A cache by degree takes as much while it is made; this counting takes as much again.
        degrees = out_degrees(self.topology, self.tables.space, self.spare_bytes // 2)
        if degrees is None:
            return self
        return replace(self, workload=self.workload.with_degrees(degrees))


def sample_workload(
    loader: LoaderSpec,
    tables: CachedTables,
    topology: Topology,
    engine: Engine,
    *,
    num_threads: int,
    spare_bytes: int | None,
    progress: Progress,
    counts: npt.NDArray[np.uint8] | None = None,
) -> tuple[Presampled, Workload]:
    """Sample batches, and analyse them.

    If there are `counts`, the number of batches that need each row is added to them.
    """
    presampler, num_nodes = loader.presampler.over(tables.space), tables.space.num_rows
    arrays = [loader.store.reader.paged(spec) for spec in tables.specs]
    reads = TableReads.from_arrays(arrays, engine.tuning, tables.ranges)
    with progress.phase("sample"):
        began = perf_counter()
        seen = presampler.run(topology, num_threads, spare_bytes=spare_bytes)
        each = (perf_counter() - began) / max(1, seen.num_batches)
        batch_nodes = max(1, seen.largest_nodes)
        wanted = _SLOW_BATCHES if topology.is_slow else PROFILE_BATCHES
        wanted = min(wanted, ENOUGH_VISITS * num_nodes // batch_nodes)
        num_batches = min(max(wanted, _LEAST_BATCHES), MAX_COUNTED_BATCHES)
        spare = None if spare_bytes is None else spare_bytes // 2
        spatial = SpatialSampling.fit(num_batches * batch_nodes, num_nodes, reads.row_bytes, spare)
        if spare is not None:
            num_batches = min(num_batches, spatial.batches_in(spare, batch_nodes))
        trace = SampledTrace(num_batches, num_nodes, spatial)
        release_memory()
        began = perf_counter()
        sampled = presampler.run(topology, num_threads, counts, spare_bytes=spare, trace=trace)
        seconds = (perf_counter() - began) / max(1, sampled.num_batches)
        release_memory()
    if sampled.num_batches > seen.num_batches:
        seen = sampled
    with progress.phase("count the rows that are needed"):
        workload = Workload.learn(
            trace.build(),
            spatial,
            reads,
            num_rows=num_nodes,
            epoch_batches=presampler.epoch_batches,
            batch_bytes=float(seen.largest_bytes),
            ids_bytes=float(seen.largest_ids_bytes),
            kept_bytes=float(seen.largest_kept_bytes),
            seconds_sampling=min(each, seconds),
            kept_share=trace.kept_share,
        )
        workload = replace(workload, samples_from_disk=topology.is_read)
    release_memory()
    return seen, workload


def out_degrees(
    topology: Topology, space: RowSpace, memory_bytes: int
) -> npt.NDArray[np.uint32] | None:
    """Return the out-degree of each row's node; None if it would take much time or memory."""
    num_edges = sum(csc.num_edges for csc in topology.csc.values())
    if topology.is_slow or topology.is_read or num_edges > MAX_COUNTED_EDGES:
        return None
    if space.num_rows * np.dtype(np.uint32).itemsize > memory_bytes:
        return None
    return row_degrees(topology, space)


# Bytes of the table, and of the gathered rows: far more than caches of processors hold.
_MOST_BYTES, _LEAST_BYTES = 128 << 20, 1 << 20
_ID_BYTES = 8
# Bytes that each thread gathers between two looks at the clock, so that its start does not count.
_TIMED_BYTES = 32 << 20
_ROUNDS = 3


def gather_bandwidth(
    row_bytes: int, num_rows: int, batch_rows: float, *, num_threads: int, spare_bytes: int
) -> float:
    """Return the bytes a second that a thread gathers from random places, among several threads.

    A batch that does not fit the processor's cache takes two or three times as long as one that
    fits, and threads share the bandwidth of memory.
    """
    row_bytes = max(1, row_bytes)
    each_bytes = max(_LEAST_BYTES, min(_MOST_BYTES, spare_bytes // 8))
    wanted = max(1, int(min(batch_rows, each_bytes / num_threads / (row_bytes + _ID_BYTES))))
    # Ones: all zeros would lie on one page, which the kernel shares.
    table = np.ones((max(1, min(num_rows, each_bytes // row_bytes)), row_bytes), np.uint8)
    rows = MemoryRows.from_array(table)
    ids = np.random.default_rng(0).integers(0, len(table), (num_threads, wanted))
    found = np.ones((num_threads, wanted, row_bytes), np.uint8)  # faults in its pages
    repeats = -(-_TIMED_BYTES // (wanted * row_bytes))
    repeats = min(repeats, -(-(1 << 16) // wanted))

    def gather(thread: int) -> None:
        for _ in range(repeats):
            rows.read_rows(ids[thread], found[thread])

    best = float("inf")
    for _ in range(_ROUNDS):
        start = perf_counter()
        for_each(num_threads, num_threads, gather, "gnnstore-gather-rate")
        best = min(best, perf_counter() - start)
    return repeats * wanted * row_bytes / best
