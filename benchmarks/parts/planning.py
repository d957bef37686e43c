"""Sampling a superbatch and planning it, in a process of its own, with files under a memory limit.

`benchmarks.planning` starts this with a `Task` whose strategy is one of `WAYS`; it prints one
`Outcome`, as JSON. Where it is in a memory group, the process loads the topology and only then
limits the group: to what it holds, what planning reserves, and the slack. The page cache of the
files has no more than that.
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
from gnnstore.caching.policies.belady import Belady, BeladyPlanner
from gnnstore.caching.scores import most_needed
from gnnstore.features.pinned import PinnedRows
from gnnstore.graph.store import GraphStore
from gnnstore.pipeline.batch import EpochRun, Recorder
from gnnstore.pipeline.lookahead.driver import Coming, SamplingJob
from gnnstore.pipeline.lookahead.spools import SampledSuperbatch, Spools
from gnnstore.sampling import NeighborSampler, SamplingConfig
from gnnstore.seeds.nodes import InputNodes
from gnnstore.tools.bench.harness import Task

# In memory; in files with a table of all nodes, and in passes of a quarter of them; the same with
# a full memory group.
WAYS = ("memory", "files", "files-full", "passes-full")
PASSES = 4
# Begins the name of a way without pinned rows; with them, so many of the slots are theirs.
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
        csc = store.topology("memory", task.num_threads)
        config = SamplingConfig(task.fanouts, seed=task.seed)
        sampler = NeighborSampler(csc, config, store.schema.index_dtype)
        return cls(task, store, sampler, InputNodes(len(seeds), seeds, None))

    def pinned(self, spools: Spools, num_slots: int) -> PinnedRows | None:
        """Return the rows that a loader would pin, by a sample of other batches."""
        num_pinned, num_nodes = int(PINNED_SHARE * num_slots), self.store.num_nodes
        sampled = self.sample(spools, 1 << 20, most=PIN_BATCHES)
        with closing(sampled):
            nodes = most_needed(sampled.trace, num_nodes, num_pinned, least=2)
        return PinnedRows.of(nodes, num_nodes, num_slots - len(nodes))

    def sample(
        self,
        spools: Spools,
        epoch: int,
        pinned: PinnedRows | None = None,
        *,
        most: int | None = None,
    ) -> SampledSuperbatch:
        """Sample the batches of an epoch, or the first of them, as a loader does."""
        task = self.task
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
        size = task.batch_size
        chunk = [
            Coming(k, (k, np.arange(k * size, (k + 1) * size)), run) for k in range(task.batches)
        ]
        sampling = SamplingJob(run, self.seeds, self.sampler)
        return sampling.sample(chunk[:most], spools, pinned=pinned)


def in_memory_spools(run: Run) -> closing[Spools]:
    """Return spools that keep everything in memory."""
    num_nodes, num_edges = run.store.num_nodes, run.store.num_edges
    spools = Spools(
        Path(run.task.store).parent,
        num_nodes,
        num_edges,
        most_in_memory=run.task.batches,
        table_bytes=0,
        purpose="a benchmark's",
    )
    return closing(spools)


def perform(task: Task) -> Outcome:
    """Do what the task says."""
    run = Run.of(task)
    num_nodes, num_edges = run.store.num_nodes, run.store.num_edges
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
    with in_memory_spools(run) as others:
        is_pinned = not task.strategy.startswith(UNPINNED)
        pinned = run.pinned(others, num_slots) if is_pinned else None
    planner = BeladyPlanner(num_slots if pinned is None else pinned.first_slot)
    found = Outcome([], [], [], [], task.batches, [], limit_bytes, 0)
    for epoch in range(task.round):
        with ExitStack() as stack:
            directory = tempfile.TemporaryDirectory(prefix="plan-", dir=Path(task.store).parent)
            spools = Spools(
                Path(stack.enter_context(directory)),
                num_nodes,
                num_edges,
                most_in_memory=task.batches if in_memory else 0,
                table_bytes=table_bytes,
                purpose="a benchmark's",
            )
            stack.enter_context(closing(spools))
            with Clock(found.sampling, found.sampling_cpu):
                sampled = run.sample(spools, epoch, pinned)
            stack.enter_context(closing(sampled))
            with Clock(found.planning, found.planning_cpu):
                plan = spools.plan(planner, sampled.trace, "plan")
            found.misses.append(plan.num_misses)
            del plan, sampled
    return replace(found, group_peak_bytes=0 if group is None else group.peak_bytes())


def main() -> None:
    """Perform the task given as JSON."""
    json.dump(asdict(perform(Task.of_json(sys.argv[1]))), sys.stdout)


if __name__ == "__main__":
    main()
