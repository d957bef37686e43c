"""Sampling a superbatch and planning it, in a process of its own, with files under a memory limit.

`benchmarks.planning` starts this with a `Task` whose strategy is one of `WAYS`; it prints one
`Outcome`, as JSON. Where it is in a memory group, the process loads the topology and only then
limits the group: to what it holds, what planning reserves, and the slack. The page cache of the
files must fit in this, too.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import gnnstore
from gnnstore.budget.ledger import PLANNED, SLOTS, Ledger
from gnnstore.caching.belady import Belady, BeladyPlanner
from gnnstore.caching.scores import most_needed
from gnnstore.features.planned import PinnedRows
from gnnstore.formats.store.schema import NODE_TYPE
from gnnstore.graph.store import GraphStore
from gnnstore.pipeline.batch import Batch, EpochRun, Recorder
from gnnstore.pipeline.lookahead.producer import LookaheadJob, Producer, most_ids
from gnnstore.pipeline.lookahead.superbatch import DiskQuota, Superbatch, SuperbatchSize
from gnnstore.sampling.compact import Types
from gnnstore.sampling.neighbor import NeighborSampler, SamplingConfig
from gnnstore.sampling.row_space import RowSpace
from gnnstore.seeds.base import BatchKey
from gnnstore.seeds.nodes import InputNodes, NodesOfType
from gnnstore.tools.bench.harness import Task

# In memory; in files with a table of all nodes; this with a full memory cgroup; and in passes of a
# quarter of the table, with a full memory cgroup.
WAYS = ("memory", "files", "files-full", "passes-full")
PASSES = 4
# Prefix of a way without pinned rows; in other ways, the share of slots for pinned rows.
UNPINNED, PINNED_SHARE = "unpinned-", 0.25
# Nodes: more than a batch of any workload has.
LARGEST_BATCH = 1 << 19
# As many as a loader samples to find what to pin.
PIN_BATCHES = 32


@dataclass(frozen=True)
class Outcome:
    """Result of one way: seconds of all batches, elapsed and of the processors.

    Attributes
    ----------
    num_batches : int
        Of a superbatch.
    misses : list of int
        Rows that each superbatch misses: equal for all ways.
    limit_bytes, group_peak_bytes : int
        Of the whole process.
    """

    sampling: list[float]
    sampling_cpu: list[float]
    planning: list[float]
    planning_cpu: list[float]
    num_batches: int
    misses: list[int]
    limit_bytes: int
    group_peak_bytes: int


class Clock:
    """Appends the seconds of a block to two lists: elapsed, and spent by processors."""

    def __init__(self, seconds: list[float], cpu_seconds: list[float]) -> None:
        self._lists = seconds, cpu_seconds

    def __enter__(self) -> None:
        self._start = self._now()

    def __exit__(self, *_: object) -> None:
        for found, start, now in zip(self._lists, self._start, self._now(), strict=True):
            found.append(now - start)

    @staticmethod
    def _now() -> tuple[float, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), used.ru_utime + used.ru_stime


@dataclass(frozen=True, eq=False)
class Run:
    """A graph in memory, and the seeds of an epoch."""

    task: Task
    store: GraphStore
    sampler: NeighborSampler
    seeds: InputNodes

    @classmethod
    def of(cls, task: Task) -> Run:
        """Load the topology."""
        store, seeds = gnnstore.open(task.store), np.load(task.seeds)
        topology = store.topology("memory", task.num_threads)
        config = SamplingConfig(task.fanouts, seed=task.seed)
        sampler = topology.sampler(config, store.schema.index_dtype)
        return cls(
            task, store, sampler, InputNodes({NODE_TYPE: NodesOfType(len(seeds), seeds, None)})
        )

    def producer(self, directory: Path, epoch: int, *, table_bytes: int) -> Producer:
        """Return a producer of superbatches, in memory or in files of a directory."""
        task, schema = self.task, self.store.schema
        run = EpochRun(
            seed=task.seed,
            epoch=epoch,
            first=0,
            num_threads=task.num_threads,
            joins_in_threads=False,
            initializer=None,
            timeout_seconds=None,
            describe=lambda k: f"batch {k}",
            recorder=Recorder(),
        )
        job = LookaheadJob(
            Belady(),
            SuperbatchSize(task.batches, 0, not table_bytes, table_bytes=table_bytes),
            packs=False,
            spill_dir=directory,
            quota=DiskQuota(0),
            space=RowSpace.of_schema(schema),
            types=Types.from_schema(schema),
            index_dtype=schema.index_dtype,
            most_ids=most_ids(schema),
        )
        return Producer(job, self.seeds, self.sampler, run, purpose="a benchmark's")

    def sample(
        self, producer: Producer, pinned: PinnedRows | None = None, *, most: int | None = None
    ) -> Superbatch:
        """Sample the batches of an epoch, or the first ones, as a loader does."""
        size, run = self.task.batch_size, producer.run
        batches = [
            Batch(BatchKey(run.seed, run.epoch, k), np.arange(k * size, (k + 1) * size))
            for k in range(self.task.batches)
        ]
        return producer.sample(0, batches[:most], pinned)

    def pinned(self, num_slots: int) -> PinnedRows | None:
        """Return the rows that a loader would pin, by a sample of other batches."""
        num_pinned, num_nodes = int(PINNED_SHARE * num_slots), self.store.num_nodes
        producer = self.producer(Path(self.task.store).parent, 1 << 20, table_bytes=0)
        with closing(producer), closing(self.sample(producer, most=PIN_BATCHES)) as sampled:
            nodes = most_needed(sampled.trace, num_nodes, num_pinned, least=2)
        return PinnedRows.from_nodes(nodes, num_nodes, num_slots - len(nodes))


def perform(task: Task) -> Outcome:
    """Plan as the task describes."""
    run = Run.of(task)
    num_nodes = run.store.num_nodes
    num_slots = int(task.share * num_nodes)
    in_memory, passes = task.strategy.endswith("memory"), PASSES if "passes" in task.strategy else 1
    table_bytes = 0 if in_memory else 4 * -(-num_nodes // passes)
    limit_bytes, group = 0, task.memory_group
    if group is not None:
        reserved = Belady().reserve_spilled(
            num_nodes=num_nodes, largest_batch=LARGEST_BATCH, table_bytes=table_bytes
        )
        needed = Ledger(0, tuple(reserved)).peak({PLANNED: task.batches, SLOTS: num_slots})
        limit_bytes = group.held_bytes() + needed + task.slack_bytes
        group.limit(limit_bytes)
    pinned = None if task.strategy.startswith(UNPINNED) else run.pinned(num_slots)
    planner = BeladyPlanner(num_slots if pinned is None else pinned.first_slot)
    found = Outcome([], [], [], [], task.batches, [], limit_bytes, 0)
    for epoch in range(task.round):
        with ExitStack() as stack:
            directory = tempfile.TemporaryDirectory(prefix="plan-", dir=Path(task.store).parent)
            producer = run.producer(
                Path(stack.enter_context(directory)), epoch, table_bytes=table_bytes
            )
            stack.enter_context(closing(producer))
            with Clock(found.sampling, found.sampling_cpu):
                superbatch = run.sample(producer, pinned)
            stack.enter_context(closing(superbatch))
            with Clock(found.planning, found.planning_cpu):
                producer.plan(superbatch, planner)
            found.misses.append(superbatch.planned.num_misses)
            del superbatch
    return replace(found, group_peak_bytes=0 if group is None else group.peak_bytes())


def main() -> None:
    """Perform the task given as JSON."""
    json.dump(asdict(perform(Task.of_json(sys.argv[1]))), sys.stdout)


if __name__ == "__main__":
    main()
