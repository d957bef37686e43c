"""One way to load the batches of a workload, in a process of its own under a memory limit.

`benchmarks.out_of_core` starts this with a `Task`; it prints one `Outcome`, as JSON. The
process is in its memory group from the beginning, loads the graph's structure and the labels,
has the kernel drop the page cache of the store, and only then limits the group: to what it holds,
a share of the features and some slack. The feature rows come after that.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import gnnstore
from benchmarks.harness import drop_from_cache
from benchmarks.parts.cgroup import MemoryGroup
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, SEED
from gnnstore.formats import Csc, PagedArray
from gnnstore.io.resident import residents_of
from gnnstore.loaders.stats import peak_rss_bytes
from gnnstore.sampling import NeighborSampler, SamplingConfig

PLANNED = ("belady", "lru", "sieve", "packed")
STRATEGIES = (
    *("map", "mmap", "direct", "static-frequency", "static-degree"),
    *(*PLANNED, "memory", "pyg"),
)
MAP_THREADS = 32
# Of the slack: what Python, the allocator and the kernel take besides what a loader counts.
ALLOWANCE_BYTES = 64 * 10**6


@dataclass(frozen=True)
class Task:
    """What the process is to do.

    Attributes
    ----------
    strategy : str
        One of `STRATEGIES`.
    group, group_version : str, int
        The memory group that the process is in; "" for none, and no limit then.
    share, slack_bytes : float, int
        The limit, beside what the process held before: share of the features, and more.
    seeds : str
        File of the seed nodes, whole batches.
    warm_up, batches : int
        Batches before the clock starts, and while it runs.
    round : int
        Number of the epoch, so that rounds draw different batches.
    """

    strategy: str
    store: str
    seeds: str
    group: str
    group_version: int
    share: float
    slack_bytes: int
    warm_up: int
    batches: int
    round: int


@dataclass(frozen=True)
class Outcome:
    """What came of it; all amounts are of one batch unless said otherwise.

    Attributes
    ----------
    seconds, nodes, disk_bytes, major_faults : float
        The system counts what came from the disk, and waits for a page of a mapping.
    seconds_to_prepare : float
        Before the first batch, structure and labels aside: samples and cache.
    reads, rows_read, hit_rate, cache_rows : float
        Of gnnstore's engines and cache; zero for others.
    limit_bytes, group_peak_bytes, peak_rss_bytes : int
        Of the whole process.
    """

    seconds: float
    nodes: float
    disk_bytes: float
    major_faults: float
    seconds_to_prepare: float
    limit_bytes: int
    group_peak_bytes: int
    peak_rss_bytes: int
    reads: float = 0.0
    rows_read: float = 0.0
    hit_rate: float = 0.0
    cache_rows: int = 0
    superbatch: int = 0
    seconds_planning: float = 0.0
    seconds_sampling: float = 0.0
    seconds_waiting: float = 0.0


class Run:
    """The store with its structure in memory, and the limit."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.store = gnnstore.open(task.store)
        self.num_threads = len(os.sched_getaffinity(0))
        # Shared with the loaders, which would load both after the limit is set.
        shared = residents_of(self.store)
        self.csc: Csc = shared.csc(self.store, "memory", self.num_threads)
        self.seeds: NDArray[np.int64] = np.load(task.seeds)
        attributes = self.store.schema.node.attributes
        self.features: PagedArray = self.store.reader.paged(attributes["x"])
        self.labels = shared.rows(self.store, attributes["y"], "memory", self.num_threads)
        self.room_bytes = int(task.share * attributes["x"].num_bytes) + task.slack_bytes
        # By a loader's own account of what it holds; the group's limit goes by the system's.
        held_bytes = self.csc.num_bytes + self.labels.resident_bytes + self.seeds.nbytes
        self.memory_bytes = held_bytes + self.room_bytes - ALLOWANCE_BYTES
        self.limit_bytes = 0

    def limit(self) -> None:
        """Limit the memory group from now on to what it holds, and the room."""
        drop_from_cache([Path(self.task.store)])
        if self.task.group:
            group = MemoryGroup(Path(self.task.group), self.task.group_version)
            self.limit_bytes = group.held_bytes() + self.room_bytes
            group.limit(self.limit_bytes)

    def loader(self, **options: Any) -> gnnstore.NeighborLoader:
        """Return gnnstore's loader; its epoch is the round."""
        loader = gnnstore.NeighborLoader(
            self.store,
            list(FANOUTS),
            self.seeds,
            batch_size=BATCH_SIZE,
            seed=SEED,
            topology="memory",
            **options,
        )
        loader.set_epoch(self.task.round)
        return loader


def map_batches(run: Run) -> Iterator[int]:
    """Sample with gnnstore, gather with NumPy from a mapping, many threads at a time."""
    sampler = NeighborSampler(run.csc, SamplingConfig(FANOUTS, seed=SEED))
    features = run.features.view("random")  # MADV_RANDOM: no page is read that is not touched
    seeds = run.seeds.reshape(-1, BATCH_SIZE)
    with ThreadPoolExecutor(MAP_THREADS) as pool:
        number = 0
        while True:
            epoch, batch = run.task.round + number // len(seeds), number % len(seeds)
            n_id = sampler.sample(seeds[batch], epoch=epoch, batch=batch).n_id
            x = np.empty((len(n_id), features.shape[1]), features.dtype)
            bounds = np.linspace(0, len(n_id), MAP_THREADS + 1).astype(int)

            def take(part: int, n_id: Any = n_id, x: Any = x, bounds: Any = bounds) -> None:
                which = slice(bounds[part], bounds[part + 1])
                # "clip" has NumPy write to `out` directly; ids are in range.
                np.take(features, n_id[which], axis=0, out=x[which], mode="clip")

            list(pool.map(take, range(MAP_THREADS)))
            y = run.labels.gather(n_id).rows
            yield len(n_id)
            del x, y
            number += 1


def loader_batches(loader: Any) -> Iterator[int]:
    """Take batches, epoch after epoch, and drop them."""
    while True:
        for batch in loader:
            yield batch.num_nodes


def pyg_loader(run: Run) -> Any:
    """Return PyG's loader over the same mapping, its structure in memory."""
    from torch_geometric.data import Data  # noqa: PLC0415
    from torch_geometric.loader import NeighborLoader  # noqa: PLC0415

    csc = run.csc
    edge_index = np.empty((2, csc.num_edges), np.int64)
    edge_index[0] = csc.indices
    edge_index[1] = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mapping cannot be written to
        x = torch.from_numpy(run.features.view("random"))
        labels = run.labels.gather(np.arange(csc.num_nodes)).rows
        data = Data(x=x, y=torch.from_numpy(labels))
        data.edge_index = torch.from_numpy(edge_index)
        return NeighborLoader(
            data,
            list(FANOUTS),
            torch.from_numpy(run.seeds),
            batch_size=BATCH_SIZE,
            is_sorted=True,
        )


OPTIONS: dict[str, dict[str, Any]] = {
    "mmap": {"strategy": "mmap"},
    "direct": {"strategy": "direct"},
    "static-frequency": {"strategy": "static", "cache": "frequency"},
    "static-degree": {"strategy": "static", "cache": "degree"},
    **{name: {"strategy": name} for name in PLANNED},
    "memory": {"strategy": "memory"},
}


def prepare(run: Run) -> tuple[Iterator[int], Callable[[], Any]]:
    """Return the batches, as numbers of nodes, and what tells the loader's statistics."""
    strategy = run.task.strategy
    if strategy == "pyg":
        loader = pyg_loader(run)  # its copy of the structure is part of what it needs
        run.limit()
        return loader_batches(loader), lambda: None
    if strategy == "memory":
        loader = run.loader(**OPTIONS[strategy])
        return loader_batches(loader), loader.stats
    run.limit()
    if strategy == "map":
        return map_batches(run), lambda: None
    memory = {"memory": run.memory_bytes} if run.task.share else {}
    loader = run.loader(**OPTIONS[strategy], **memory)
    return loader_batches(loader), loader.stats


def disk_bytes() -> int:
    """Return what this process has had fetched from disks so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


def perform(task: Task) -> Outcome:
    """Do what the task says."""
    run = Run(task)
    start = perf_counter()
    batches, statistics = prepare(run)
    seconds_to_prepare = perf_counter() - start
    with closing(batches):  # type: ignore[type-var]
        for _ in range(task.warm_up):
            next(batches)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        num_bytes, earlier, start = disk_bytes(), statistics(), perf_counter()
        nodes = sum(next(batches) for _ in range(task.batches))
        seconds = perf_counter() - start
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults
        num_bytes, later = disk_bytes() - num_bytes, statistics()
    of_loader: dict[str, Any] = {}
    if later is not None:
        done = later.since(earlier)
        of_loader = {
            # Batches that are prepared ahead are read already: divide by what was gathered.
            "reads": done.reads / task.batches,
            "rows_read": done.rows_read / task.batches,
            "hit_rate": done.hit_rate,
            "cache_rows": later.cache_rows,
            "superbatch": later.superbatch,
            "seconds_planning": done.seconds_planning / task.batches,
            "seconds_sampling": done.seconds_sampling / task.batches,
            "seconds_waiting": done.seconds_waiting / task.batches,
        }
    group = MemoryGroup(Path(task.group), task.group_version) if task.group else None
    return Outcome(
        seconds=seconds / task.batches,
        nodes=nodes / task.batches,
        disk_bytes=num_bytes / task.batches,
        major_faults=faults / task.batches,
        seconds_to_prepare=seconds_to_prepare,
        limit_bytes=run.limit_bytes,
        group_peak_bytes=group.peak_bytes() if group else 0,
        peak_rss_bytes=peak_rss_bytes(),
        **of_loader,
    )


def main() -> None:
    """Perform the task given as JSON."""
    outcome = perform(Task(**json.loads(sys.argv[1])))
    json.dump(asdict(outcome), sys.stdout)


if __name__ == "__main__":
    main()
