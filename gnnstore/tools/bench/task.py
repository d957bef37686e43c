"""Tasks of processes that time a strategy, and the outcomes that they answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gnnstore.disk.profile.cgroup import MemoryGroup
from gnnstore.tools.bench.process import ask_process

MAP_THREADS = 32
# Of the slack: what Python, the allocator and the kernel take besides what a loader counts.
ALLOWANCE_BYTES = 64 * 10**6
# A worker prints it for each batch.
BATCH_MARK = "."

WORKER = "gnnstore.tools.bench.worker"


@dataclass(frozen=True)
class Task:
    """Order to a process: a strategy, its memory limit, and the batches to load."""

    strategy: str  # one of `gnnstore.tools.bench.ways`
    store: str  # path of the store
    # File of the seed nodes, or of the seed edges [2, L], which every epoch shuffles; "" for all
    # edges.
    seeds: str
    share: float  # the limit, beside what the process held before: share of the features, and more
    # The limit, beside what the process held before: share of the features, and more.
    slack_bytes: int
    warm_up: int = 0  # batches before the clock starts, and while it runs
    batches: int = 0  # batches before the clock starts, and while it runs
    group: str = ""  # the memory group that the process is in; "" for none, and no limit then
    # The memory group that the process is in; "" for none, and no limit then.
    group_version: int = 0
    round: int = 0  # number of the epoch, so that rounds draw different batches
    fanouts: tuple[int, ...] = (10, 10, 10)  # as of a loader
    batch_size: int = 1024  # as of a loader
    seed: int = 0  # as of a loader
    num_threads: int = 0  # preparing threads of a loader; 0 for as many as it takes by itself
    disk_bytes: int = 0  # the most that packed rows may take; 0 for what the loader takes by itself
    trace: str = ""  # file to be written with the stages of the batches on the clock; "" for none
    packed: str = ""  # packed epochs that a loader reads instead; "": none
    # Options of `LinkNeighborLoader`, of seed edges; None: the seeds are nodes.
    links: dict[str, Any] | None = None

    @classmethod
    def of_json(cls, text: str) -> Task:
        """Return the task that a process was given."""
        given: dict[str, Any] = json.loads(text)
        return cls(**{**given, "fanouts": tuple(given["fanouts"])})

    @property
    def memory_group(self) -> MemoryGroup | None:
        """The group that the process is in."""
        return MemoryGroup(Path(self.group), self.group_version) if self.group else None


@dataclass(frozen=True)
class Outcome:
    """Result of one timed run; amounts are those of one batch unless said otherwise."""

    seconds: float  # the system counts what came from the disk, and waits for a page of a mapping
    nodes: float  # the system counts what came from the disk, and waits for a page of a mapping
    # The system counts what came from the disk, and waits for a page of a mapping.
    disk_bytes: float
    # The system counts what came from the disk, and waits for a page of a mapping.
    major_faults: float
    # Before the first batch, structure and labels aside: samples and cache.
    seconds_to_prepare: float
    limit_bytes: int  # of the whole process
    group_peak_bytes: int  # of the whole process
    peak_rss_bytes: int  # of the whole process
    seconds_warming_up: float = 0.0  # of all batches before the clock starts
    written_bytes: float = 0.0  # bytes written to the disk, as the system counts them
    reads: float = 0.0  # of gnnstore's engines and cache; zero for others
    rows_read: float = 0.0  # of gnnstore's engines and cache; zero for others
    hit_rate: float = 0.0  # of gnnstore's engines and cache; zero for others
    cache_rows: int = 0  # of gnnstore's engines and cache; zero for others
    superbatch: int = 0
    # From the loader's statistics: the first three summed over its threads, reading being a part of
    # gathering; the last is how long the consumer was stalled.
    seconds_planning: float = 0.0
    # From the loader's statistics: the first three summed over its threads, reading being a part of
    # gathering; the last is how long the consumer was stalled.
    seconds_sampling: float = 0.0
    # From the loader's statistics: the first three summed over its threads, reading being a part of
    # gathering; the last is how long the consumer was stalled.
    seconds_gathering: float = 0.0
    # From the loader's statistics: the first three summed over its threads, reading being a part of
    # gathering; the last is how long the consumer was stalled.
    seconds_reading: float = 0.0
    # From the loader's statistics: the first three summed over its threads, reading being a part of
    # gathering; the last is how long the consumer was stalled.
    seconds_waiting: float = 0.0
    chosen: str = ""  # the strategy that the loader followed, and why
    reason: str = ""  # the strategy that the loader followed, and why


def run_task(
    task: Task,
    group: MemoryGroup | None,
    *,
    worker: str = WORKER,
    on_batch: Callable[[], None] = lambda: None,
) -> Outcome | str:
    """Perform a task in a process of its own; return why it has no outcome if it has none."""
    words = asdict(task)
    if group is not None:
        words |= {"group": str(group.path), "group_version": group.version}

    def line(text: str) -> None:
        if text == BATCH_MARK:
            on_batch()

    answer = ask_process(["-m", worker, json.dumps(words)], group, on_line=line)
    return answer if isinstance(answer, str) else Outcome(**answer)
