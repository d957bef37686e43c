"""Predicts the time of an epoch by each strategy from a sample and measurements of the disk.

An epoch has stages. Those that overlap take as long as the longest of them, on the disk or on the
processors; the others add up. While one superbatch is consumed the next is made, that of the next
epoch too, if the disk has room for both; only the very first one is waited for.

The model knows no graph: it takes plain numbers, and returns plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gnnstore.caching.policies.registry import POLICIES
from gnnstore.disk.profile.device_profile import DeviceProfile
from gnnstore.planning.reads import ReadTotals
from gnnstore.planning.traits import Candidate
from gnnstore.planning.workload import PAGE_BYTES, Workload

# Epochs of a run, over which one-time costs are spread.
_EPOCHS = 10

# Seconds of a processor, on one of 3 GHz: to put a read into a queue and take its result, to take
# a page fault, to plan a row (Belady, with its trace on disk), to hand a batch from thread to
# thread and make it an object of PyG's.
_READ_SECONDS = 3e-6
_FAULT_SECONDS = 20e-6
_PLAN_SECONDS = 60e-9
_BATCH_SECONDS = 1e-3
# On disk, for each row of a batch that is planned: its id, its slot, and an entry of the cache.
_SPILLED_ROW_BYTES = 16


@dataclass(frozen=True)
class Machine:
    """Hardware rates that predictions use.

    Attributes
    ----------
    disk : DeviceProfile
        Of the file system that holds the store.
    gather_bytes_per_second : float
        Of one thread that gathers rows from random places in memory.
    num_threads, num_cores : int
        Threads that prepare batches, and processors for them.
    num_faulting : int
        Threads that wait for a page of a mapping at once.
    """

    disk: DeviceProfile
    gather_bytes_per_second: float
    num_threads: int
    num_cores: int
    num_faulting: int = 1

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


@dataclass(frozen=True)
class Resources:
    """The memory and disk space that a strategy would take, and how it divides them.

    Attributes
    ----------
    memory_bytes : int
        In all.
    num_slots : int
        Rows that it caches.
    cached_bytes : int
        Bytes of them; for a mapping, of the page cache that it may have.
    superbatch : int
        Batches that are planned at a time; 0 where nothing is planned.
    keeps_in_memory : bool
        Whether sampled subgraphs and plans wait in memory; else on disk.
    disk_bytes : int
        The most that it takes at once, without the store.
    chunk_memory_bytes : int
        Packed rows of a superbatch that stay in memory.
    overlaps : bool
        Whether the first superbatch of the next epoch is made during the last of this one.
    num_threads : int
        Threads that prepare batches, where memory limits them; 0: all.
    num_unplanned : int
        Batches that read all of their rows while the first superbatch is made.
    """

    memory_bytes: int
    num_slots: int = 0
    cached_bytes: int = 0
    superbatch: int = 0
    keeps_in_memory: bool = True
    disk_bytes: int = 0
    chunk_memory_bytes: int = 0
    overlaps: bool = True
    num_threads: int = 0
    num_unplanned: int = 0


@dataclass(frozen=True)
class Prediction:
    """The predicted epoch of one strategy.

    Attributes
    ----------
    candidate : Candidate
        The strategy and its options.
    seconds, seconds_once : float
        Of an epoch, and of what is done once, before or in the first. NaN if it is impossible.
    stages : Mapping of str to float
        Seconds of each stage by itself; "filling" and, for a plan, "packing" are done once.
    bottleneck : str
        The longest stage of an epoch.
    reads : ReadTotals
        Reads of single rows or pages, of an epoch.
    sequential_bytes, written_bytes : int
        Read in order, and written, in an epoch.
    problem : str
        Why the strategy is impossible; empty if it is not.
    """

    candidate: Candidate
    seconds: float
    seconds_once: float
    stages: Mapping[str, float]
    bottleneck: str
    reads: ReadTotals
    sequential_bytes: int
    written_bytes: int
    resources: Resources
    problem: str = ""

    @classmethod
    def impossible(cls, candidate: Candidate, problem: str) -> Prediction:
        """Return the prediction of a strategy that is impossible."""
        nothing = ReadTotals()
        return cls(candidate, math.nan, math.nan, {}, "", nothing, 0, 0, Resources(0), problem)

    @property
    def choice(self) -> str:
        """Name of the candidate."""
        return self.candidate.name

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
        """Seconds of the first epoch. What is loaded into memory is so before it begins."""
        is_made_before = self.candidate.strategy.mode == "memory" or self.candidate.is_offline
        return self.seconds if is_made_before else self.seconds + self.seconds_once

    @property
    def cost(self) -> float:
        """Seconds of an epoch and its share of one-time costs; infinite if it is impossible."""
        return self.seconds + self.seconds_once / _EPOCHS if self.is_feasible else math.inf


def predict(
    candidate: Candidate, workload: Workload, machine: Machine, resources: Resources
) -> Prediction:
    """Predict an epoch.

    Parameters
    ----------
    candidate : Candidate
        One that is possible.
    resources : Resources
        See `gnnstore.strategies.optimizer`.
    """
    if resources.num_threads:
        machine = replace(machine, num_threads=resources.num_threads)
    model = _Model(candidate, workload, machine, resources)
    if candidate.is_offline:
        return model.from_plan()
    return model.planned() if candidate.strategy.plans else model.unplanned()


@dataclass(frozen=True, eq=False)
class _Model:
    candidate: Candidate
    workload: Workload
    machine: Machine
    resources: Resources

    @property
    def sampling(self) -> float:
        return self.workload.seconds_sampling * self.workload.epoch_batches

    @property
    def reading_neighbors(self) -> float:
        """Seconds of it in which the disk has no time for anything else."""
        return self.sampling if self.workload.samples_from_disk else 0.0

    @property
    def assembling(self) -> float:
        """Seconds in which all threads copy the rows of an epoch into batches."""
        each = self.workload.batch_bytes / self.machine.gather_bytes_per_second + _BATCH_SECONDS
        return each * self.workload.epoch_batches / self.machine.workers

    def unplanned(self) -> Prediction:
        """Predict batches that are sampled and assembled one by one."""
        work, slots = self.workload, self.resources.num_slots
        reads, once, reading = ReadTotals(), 0.0, 0.0
        issuing = 0.0
        mode, score = self.candidate.strategy.mode, self.candidate.score
        if mode == "mmap":
            num_pages = self.resources.cached_bytes // PAGE_BYTES
            per_batch = work.pages.lru_misses(num_pages, work.epoch_batches)
            faults = round(per_batch * work.epoch_batches)
            reads = ReadTotals(faults, faults * PAGE_BYTES)
            reading = faults / self.machine.faults_per_second()
            first = work.pages.lru_first_misses(num_pages, work.epoch_batches)
            once = first / self.machine.faults_per_second()
        elif mode == "memory":
            once = work.table_bytes / self.machine.disk.sequential_read_bytes_per_second
        else:
            if score is None:
                reads = work.direct_reads()
            else:
                reads = work.static_reads(slots, by_degree=score == "degree")
                once = self._warm_up_seconds(slots)
            reading = self.machine.random_seconds(reads)
            issuing = reads.reads * _READ_SECONDS / self.machine.workers
        computing = self.sampling + self.assembling + issuing
        stages = {
            "sampling": self.sampling,
            "reading rows": reading,
            "assembling": self.assembling + issuing,
        }
        if once and mode == "disk":
            stages = {"filling": once, **stages}
        seconds = max(self.reading_neighbors + reading, computing)
        return self._prediction(seconds, once, stages, reads)

    def planned(self) -> Prediction:
        """Predict batches that are sampled and planned a superbatch at a time."""
        found, epoch_batches = self._by_superbatches(), self.workload.epoch_batches
        if self.resources.superbatch <= epoch_batches:
            return found
        # Superbatches of several epochs come later; the first one has one.
        shorter = replace(self.resources, superbatch=epoch_batches)
        first = replace(self, resources=shorter)._by_superbatches()
        more = max(0.0, first.seconds - found.seconds)
        return replace(found, seconds_once=first.seconds_once + more)

    def _by_superbatches(self) -> Prediction:
        work, machine, slots = self.workload, self.machine, self.resources.num_slots
        strategy = self.candidate.strategy
        policy = POLICIES[strategy.policy]
        size = max(1, self.resources.superbatch)
        num = work.epoch_batches / size  # less than 1 where a superbatch has several epochs
        num_rows = work.batch_rows * work.epoch_batches
        planning = num_rows * _PLAN_SECONDS
        kept = 0
        if not self.resources.keeps_in_memory:
            kept = int(work.kept_bytes * work.epoch_batches + _SPILLED_ROW_BYTES * num_rows)
        writing = kept / machine.disk.sequential_write_bytes_per_second
        recalling = kept / machine.disk.sequential_read_bytes_per_second
        stages = {"sampling": self.sampling, "planning": planning}
        reads, in_order, written = ReadTotals(), kept, kept
        making_disk, making_computing = writing, self.sampling + planning
        if strategy.packs:
            misses = work.misses(policy, slots, size)
            not_written = num * self.resources.chunk_memory_bytes
            packed = max(0, int(misses * work.row_bytes - not_written))
            if self.resources.chunk_memory_bytes and not self.resources.disk_bytes:
                # Without disk, rows that memory has no room for are read one by one.
                reads, packed = ReadTotals(packed // max(1, work.row_bytes), packed), 0
            passes = num if num < 1 else math.ceil(num)
            scanned = int(passes * work.scan_bytes(policy, slots, size))
            packing = scanned / machine.disk.sequential_read_bytes_per_second
            packing += packed / machine.disk.sequential_write_bytes_per_second
            reading = packed / machine.disk.sequential_read_bytes_per_second
            reading += machine.random_seconds(reads)
            in_order, written = in_order + scanned + packed, written + packed
            stages |= {"packing": packing, "reading packed": reading}
            making_disk += packing
            issuing = reads.reads * _READ_SECONDS / machine.workers
        else:
            reads = work.planned_reads(policy, slots, size)
            reading = machine.random_seconds(reads)
            issuing = reads.reads * _READ_SECONDS / machine.workers
            stages |= {"reading rows": reading}
        stages |= {"assembling": self.assembling + issuing}
        # Subgraphs are written while others are sampled; packing needs the plan of all.
        making = max(self.sampling, writing) + planning + (making_disk - writing)
        following = max(reading + recalling, self.assembling + issuing)
        busiest = max(
            self.reading_neighbors + making_disk + reading + recalling,
            making_computing + self.assembling + issuing,
        )
        # Where rows are packed, the initial rows of the cache come with the others.
        fills = policy.looks_ahead and not strategy.packs
        once = self._warm_up_seconds(slots) if fills else 0.0
        if once:
            stages = {"filling": once, **stages}
        if self.resources.overlaps:
            seconds = max(making, following, busiest)
            once += making / math.ceil(num) + self._unplanned_seconds()
        else:
            seconds = self._overlapped(num, making, following, busiest)
        return self._prediction(seconds, once, stages, reads, in_order, written)

    def from_plan(self) -> Prediction:
        """Predict batches that were sampled and packed before training."""
        work, machine, slots = self.workload, self.machine, self.resources.num_slots
        policy = POLICIES[self.candidate.strategy.policy]
        size = max(1, min(self.resources.superbatch, work.epoch_batches))
        rolling = replace(self.resources, keeps_in_memory=True)
        packed = replace(self, resources=rolling).planned()
        recorded = int(work.ids_bytes * work.epoch_batches)
        # Each epoch of a plan begins with an empty cache, to be followed from any.
        rows = int(work.misses(policy, slots, size, initial="nothing") * work.row_bytes)
        in_order = recorded + rows
        reading = in_order / machine.disk.sequential_read_bytes_per_second
        stages = {
            "reading packed": reading,
            "assembling": self.assembling,
            "packing": sum(packed.stages[name] for name in ("sampling", "planning", "packing"))
            + recorded / machine.disk.sequential_write_bytes_per_second,
        }
        seconds = max(reading, self.assembling)
        # Packing is done for each epoch, but before training.
        once = stages["packing"] * _EPOCHS
        return self._prediction(seconds, once, stages, ReadTotals(), in_order, 0)

    def _unplanned_seconds(self) -> float:
        """Return the seconds of reading what is not planned: the disk has nothing else to do."""
        share = self.resources.num_unplanned / max(1, self.workload.epoch_batches)
        return share * self.machine.random_seconds(self.workload.direct_reads()) if share else 0.0

    def _warm_up_seconds(self, num_slots: int) -> float:
        return self.machine.random_seconds(self.workload.warm_up_reads(num_slots))

    @staticmethod
    def _overlapped(num: float, making: float, following: float, busiest: float) -> float:
        """Return the seconds of superbatches, each consumed while the next is made.

        Parameters
        ----------
        num : float
            Superbatches of an epoch.
        making, following : float
            Of the whole epoch.
        busiest : float
            Of the disk, or of the processors, in it.
        """
        if num <= 1:
            return making + following
        alone = (making + following) / num
        together = (1 - 1 / num) * max(making, following)
        return max(alone + together, busiest)

    def _prediction(  # noqa: PLR0917 - in the order of the fields
        self,
        seconds: float,
        once: float,
        stages: dict[str, float],
        reads: ReadTotals,
        in_order: int = 0,
        written: int = 0,
    ) -> Prediction:
        of_epoch = {
            n: s for n, s in stages.items() if not (n == "packing" and self.candidate.is_offline)
        }
        bottleneck = max(of_epoch, key=lambda name: of_epoch[name])
        return Prediction(
            self.candidate,
            seconds,
            once,
            stages,
            bottleneck,
            reads,
            in_order,
            written,
            self.resources,
        )
