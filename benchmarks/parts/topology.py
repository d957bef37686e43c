"""One way to sample from a topology on disk, in a process of its own under a memory limit.

`benchmarks.disk_sampling` starts this with a `Task` whose strategy is one of `WAYS` and whose
share is one of the topology; it prints one `Outcome`, as JSON. The process is in its memory group
from the beginning, imports what it needs and loads the seeds, and only then limits the group: to
what it holds, a share of the topology and some slack.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

import gnnstore
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, SEED
from gnnstore.disk.engines import open_engine
from gnnstore.graph.topology import IndexRows, bytes_for_all, open_neighbor_cache
from gnnstore.sampling.disk import DiskNeighborSampler
from gnnstore.sampling.neighbor import BatchRequest, NeighborSampler, Sample, SamplingConfig
from gnnstore.tools.bench.harness import Task, drop_from_cache
from gnnstore.tools.bench.worker import disk_bytes

WAYS = ("map", "map-8", "disk", "bulk", "memory")
# More would need more memory for their batches than the slack.
MAP_THREADS = 8
# Batches whose contents are compared between ways, which sample more or fewer.
COMPARED = 2
# Bytes of the slack for Python and the batches of "disk" under way; "bulk" has the rest.
ALLOWANCE_BYTES = 100 * 10**6


@dataclass(frozen=True)
class Outcome:
    """Result of one way; amounts are for one batch where nothing else is stated.

    Attributes
    ----------
    seconds, edges, disk_bytes, major_faults : float
        The system counts what came from the disk, and waits for a page of a mapping.
    checksum : int
        Of the nodes and edge positions of the first batches: equal for all ways.
    seconds_to_prepare, cache_bytes
        Of the neighbour cache.
    limit_bytes, group_peak_bytes : int
        Of the whole process.
    """

    seconds: float
    edges: float
    disk_bytes: float
    major_faults: float
    checksum: int
    seconds_to_prepare: float
    cache_bytes: int
    limit_bytes: int
    group_peak_bytes: int


Batches = Callable[[Iterable[int]], Iterator[Sample]]


class Run:
    """The store, and the limit."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.store = gnnstore.open(task.store)
        self.seeds: NDArray[np.int64] = np.load(task.seeds).reshape(-1, BATCH_SIZE)
        self.config = SamplingConfig(FANOUTS, seed=SEED)
        self.num_threads = len(os.sched_getaffinity(0))
        edge = self.store.schema.edge
        self.share_bytes = int(task.share * (edge.indptr.num_bytes + edge.indices.num_bytes))
        self.limit_bytes = 0
        self.disk_sampler: DiskNeighborSampler | None = None

    def limit(self) -> None:
        """Limit the memory group from now on to what it holds, and the room."""
        drop_from_cache([Path(self.task.store)])
        if (group := self.task.memory_group) is not None:
            self.limit_bytes = group.held_bytes() + self.share_bytes + self.task.slack_bytes
            group.limit(self.limit_bytes)

    def one_by_one(self, sampler: NeighborSampler, num_threads: int) -> Batches:
        """Return what samples batches side by side, each by one thread."""

        def sample(number: int) -> Sample:
            return sampler.sample(self.seeds[number], epoch=self.task.round, batch=number)

        def batches(numbers: Iterable[int]) -> Iterator[Sample]:
            with ThreadPoolExecutor(num_threads) as pool:
                yield from pool.map(sample, numbers)

        return batches

    def open_disk(self, cache_share: float) -> tuple[DiskNeighborSampler, int]:
        """Return a sampler with `indptr` in memory, and the bytes that its share leaves."""
        edge = self.store.schema.edge
        mapped = self.store.topology("mmap").columns()
        indptr = self.store.reader.paged(edge.indptr).load(self.num_threads)
        csc = replace(mapped, indptr=indptr, mapped=())
        array = self.store.reader.paged(edge.indices)
        rows = IndexRows.open(array, open_engine(array.file_paths[0]))
        left = min(max(0, self.share_bytes - indptr.nbytes), bytes_for_all(csc))
        cache_bytes = int(cache_share * left)
        cache = open_neighbor_cache(csc, rows, cache_bytes)
        index_dtype = self.store.schema.index_dtype
        caches = {edge.type: cache} if cache else {}
        sampler = DiskNeighborSampler(
            csc, self.config, index_dtype, {(edge.type, "indices"): rows.fetch}, caches
        )
        self.disk_sampler = sampler
        return sampler, left - cache_bytes


def prepare(run: Run) -> Batches:
    """Return what samples the batches of some numbers, in order."""
    way, index_dtype = run.task.strategy, run.store.schema.index_dtype
    if way == "memory":
        topology = run.store.topology("memory", run.num_threads)
        return run.one_by_one(topology.sampler(run.config, index_dtype), run.num_threads)
    run.limit()
    if way in ("map", "map-8"):
        sampler = run.store.topology("mmap").sampler(run.config, index_dtype)
        return run.one_by_one(sampler, MAP_THREADS if way == "map-8" else run.num_threads)
    if way == "disk":
        return run.one_by_one(run.open_disk(1.0)[0], run.num_threads)
    disk, left_bytes = run.open_disk(0.0)
    memory_bytes = left_bytes + run.task.slack_bytes - ALLOWANCE_BYTES

    def together(numbers: Iterable[int]) -> Iterator[Sample]:
        requests = (BatchRequest(run.seeds[number], run.task.round, number) for number in numbers)
        return disk.sample_many(requests, memory_bytes=memory_bytes, num_threads=run.num_threads)

    return together


def major_faults() -> int:
    """Return the page faults of this process that waited for a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def perform(task: Task) -> Outcome:
    """Sample as the task describes."""
    run = Run(task)
    start = perf_counter()
    batches = prepare(run)
    seconds_to_prepare = perf_counter() - start
    last = len(run.seeds)
    for _ in batches(range(max(0, last - task.warm_up), last)):
        pass
    before, faults, start = disk_bytes(), major_faults(), perf_counter()
    edges, checksum = 0, 0
    num_batches = min(task.batches, last)
    for number, subgraph in enumerate(batches(range(num_batches))):
        edges += len(subgraph.edge_pos)
        if number < COMPARED:
            checksum += int(subgraph.edge_pos.sum()) + int(subgraph.n_id.sum())
    seconds = perf_counter() - start
    group = task.memory_group
    (cache,) = run.disk_sampler.caches if run.disk_sampler else (None,)
    return Outcome(
        seconds=seconds / num_batches,
        edges=edges / num_batches,
        disk_bytes=(disk_bytes() - before) / num_batches,
        major_faults=(major_faults() - faults) / num_batches,
        checksum=checksum,
        seconds_to_prepare=seconds_to_prepare,
        cache_bytes=cache.num_bytes if cache else 0,
        limit_bytes=run.limit_bytes,
        group_peak_bytes=group.peak_bytes() if group else 0,
    )


def main() -> None:
    """Perform the task given as JSON."""
    json.dump(asdict(perform(Task.of_json(sys.argv[1]))), sys.stdout)


if __name__ == "__main__":
    main()
