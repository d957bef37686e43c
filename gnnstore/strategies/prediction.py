"""The parts of which strategies make up the time of an epoch: rates, resources, and stages.

An epoch has stages. Those that overlap take as long as the longest one, on the disk or on the
processors; the others add up.

The model depends on neither graphs nor strategies: it takes and returns plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gnnstore.disk.profile import DeviceProfile
from gnnstore.errors import BudgetError, DiskBudgetError, UsageError
from gnnstore.strategies.options import StrategyTraits
from gnnstore.strategies.workload import PAGE_BYTES, ReadTotals, Workload

# Epochs of a run, over which one-time costs are spread.
EPOCHS = 10

# Seconds of a processor of 3 GHz: to put a read into a queue and take its result, to take a page
# fault, to hand a batch from thread to thread and make it an object of PyG's.
_READ_SECONDS = 3e-6
_FAULT_SECONDS = 20e-6
_BATCH_SECONDS = 1e-3


@dataclass(frozen=True)
class HardwareRates:
    """Hardware rates that predictions use."""

    disk: DeviceProfile  # of the file system that holds the store
    # Bytes that each thread gathers a second from random places in memory, while all preparing
    # threads do, or as many as there are processors.
    gather_bytes_per_second: float
    num_threads: int  # threads that prepare batches
    num_cores: int  # processors
    num_faulting: int = 1  # threads that wait for a page of a mapping at once

    @property
    def workers(self) -> int:
        """Number of threads that compute at the same time."""
        return max(1, min(self.num_threads, self.num_cores))

    def faults_per_second(self) -> float:
        """Return the page faults that a mapping serves a second, with each thread waiting."""
        rates = self.disk.random_reads_per_second[PAGE_BYTES]
        depth = max([depth for depth in rates if depth <= self.num_faulting] or [min(rates)])
        return 1 / (1 / rates[depth] + _FAULT_SECONDS / min(depth, self.workers))

    def random_seconds(self, reads: ReadTotals) -> float:
        """Return the seconds that reads of single rows take."""
        return reads.seconds_on(self.disk)

    def pass_seconds(self, reads: ReadTotals) -> float:
        """Return the seconds of reading in order, with gaps: each costs as much as a read."""
        apart = reads.reads * self.disk.seconds_per_read
        return apart + self.disk.sequential_seconds(reads.num_bytes)


class EdgePass(NamedTuple):
    """A pass over tables of edges for each superbatch."""

    table_bytes: int = 0  # read of the tables
    kept_bytes: float = 0.0  # written for each batch, and read back


@dataclass(frozen=True)
class Resources:
    """The memory and disk space that a strategy would take, and how it divides them."""

    memory_bytes: int  # all memory
    num_slots: int = 0  # rows that it caches
    cached_bytes: int = 0  # bytes of these rows; for a mapping, of the page cache
    superbatch: int = 0  # batches that are planned at a time; 0 without plans
    keeps_in_memory: bool = True  # whether sampled subgraphs and plans wait in memory; else on disk
    disk_bytes: int = 0  # the most that it takes at once, without the store
    # Whether the first superbatch of the next epoch is made during the last of this one.
    overlaps: bool = True
    num_threads: int = 0  # threads that prepare batches, if memory limits them; 0: all
    num_unplanned: int = 0  # batches that read all of their rows while the first superbatch is made
    edges: EdgePass = field(default_factory=EdgePass)


@dataclass(frozen=True)
class Prediction:
    """The predicted epoch of one strategy."""

    strategy: StrategyTraits  # with the options that predictions compare
    resources: Resources
    seconds: float  # seconds of an epoch
    seconds_once: float  # seconds of one-time work, before or in the first epoch
    # Seconds of each stage by itself; "filling" and, for packed epochs, "packing" are done once.
    stages: Mapping[str, float]
    reads: ReadTotals  # reads of single rows or pages, of an epoch
    sequential_bytes: int = 0  # bytes that an epoch reads in order
    written_bytes: int = 0  # bytes that an epoch writes
    problem: str = ""  # why the strategy is impossible; empty if it is not
    ids_note: str = ""  # what ids of edges cost, if they are not free
    # The memory= or disk= that an impossible strategy needs, if more would help.
    needed_memory_bytes: int | None = None
    needed_disk_bytes: int | None = None

    @classmethod
    def impossible(cls, strategy: StrategyTraits, problem: str | UsageError) -> Prediction:
        """Return the prediction for an impossible strategy, with the reason or the refusal."""
        of_none = cls(strategy, Resources(0), math.nan, math.nan, {}, ReadTotals())
        found = replace(of_none, problem=str(problem))
        if isinstance(problem, DiskBudgetError):
            return replace(found, needed_disk_bytes=problem.needed_bytes)
        if isinstance(problem, BudgetError):
            return replace(found, needed_memory_bytes=problem.needed_bytes)
        return found

    @property
    def bottleneck(self) -> str:
        """The longest stage of an epoch; empty if the strategy is impossible."""
        is_before = self.strategy.is_offline
        named = [name for name in self.stages if not (is_before and name == "packing")]
        return max(named, key=lambda name: self.stages[name], default="")

    @property
    def is_feasible(self) -> bool:
        """Whether the strategy is possible."""
        return not self.problem

    @property
    def moved_bytes(self) -> int:
        """Bytes that an epoch reads and writes."""
        return self.reads.num_bytes + self.sequential_bytes + self.written_bytes

    @property
    def first_seconds(self) -> float:
        """Seconds of the first epoch; loading into memory comes before it."""
        is_made_before = self.strategy.mode == "memory" or self.strategy.is_offline
        return self.seconds if is_made_before else self.seconds + self.seconds_once

    @property
    def cost(self) -> float:
        """Seconds of an epoch and its share of one-time costs; infinite if it is impossible."""
        return self.seconds + self.seconds_once / EPOCHS if self.is_feasible else math.inf


@dataclass(frozen=True, eq=False)
class EpochCosts:
    """The seconds of the parts of an epoch that do not depend on the strategy."""

    workload: Workload
    machine: HardwareRates

    @property
    def sampling(self) -> float:
        """Seconds of sampling all batches."""
        return self.workload.seconds_sampling * self.workload.epoch_batches

    @property
    def reading_neighbors(self) -> float:
        """Seconds of sampling in which the disk has no time for anything else."""
        return self.sampling if self.workload.samples_from_disk else 0.0

    @property
    def assembling(self) -> float:
        """Seconds in which all threads copy the rows of an epoch into batches."""
        each = self.workload.batch_bytes / self.machine.gather_bytes_per_second + _BATCH_SECONDS
        return each * self.workload.epoch_batches / self.machine.workers

    def issuing(self, reads: ReadTotals) -> float:
        """Seconds in which all threads put reads into queues, and take their results."""
        return reads.reads * _READ_SECONDS / self.machine.workers

    def warming_up(self, num_slots: int) -> float:
        """Seconds of reading the rows that most batches need into a cache, or all of a table."""
        work, disk = self.workload, self.machine.disk
        num_rows = min(num_slots, work.num_rows)
        apart = self.machine.random_seconds(ReadTotals(num_rows, num_rows * work.row_bytes))
        return min(apart, disk.sequential_seconds(work.table_bytes))

    def one_by_one(
        self,
        strategy: StrategyTraits,
        resources: Resources,
        reads: ReadTotals,
        reading: float,
        *,
        issuing: float = 0.0,
        once: float = 0.0,
        filling: float = 0.0,
    ) -> Prediction:
        """Predict batches that are sampled, read and assembled one by one."""
        assembling = self.assembling + issuing
        stages = {"sampling": self.sampling, "reading rows": reading, "assembling": assembling}
        if filling:
            stages = {"filling": filling, **stages}
        computing = self.sampling + self.assembling + issuing
        seconds = max(self.reading_neighbors + reading, computing)
        return Prediction(strategy, resources, seconds, once + filling, stages, reads)
