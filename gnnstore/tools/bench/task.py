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
    """Order to a process: a strategy, its memory limit, and the batches to load.

    Attributes
    ----------
    strategy : str
        One of `gnnstore.tools.bench.ways`.
    store : str
        Path of the store.
    seeds : str
        File of the seed nodes, or of the seed edges [2, L], which every epoch shuffles; "" for all
        edges.
    links : dict or None
        Options of `LinkNeighborLoader`, of seed edges; None: the seeds are nodes.
    share, slack_bytes : float, int
        The limit, beside what the process held before: share of the features, and more.
    warm_up, batches : int
        Batches before the clock starts, and while it runs.
    group, group_version : str, int
        The memory group that the process is in; "" for none, and no limit then.
    round : int
        Number of the epoch, so that rounds draw different batches.
    fanouts, batch_size, seed
        As of a loader.
    num_threads : int
        Preparing threads of a loader; 0 for as many as it takes by itself.
    disk_bytes : int
        The most that packed rows may take; 0 for what the loader takes by itself.
    trace : str
        File to be written with the stages of the batches on the clock; "" for none.
    plan : str
        Packed plan that a loader follows instead of the strategy; "" for none.
    """

    strategy: str
    store: str
    seeds: str
    share: float
    slack_bytes: int
    warm_up: int = 0
    batches: int = 0
    group: str = ""
    group_version: int = 0
    round: int = 0
    fanouts: tuple[int, ...] = (10, 10, 10)
    batch_size: int = 1024
    seed: int = 0
    num_threads: int = 0
    disk_bytes: int = 0
    trace: str = ""
    plan: str = ""
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
    """Result of one timed run; amounts are those of one batch unless said otherwise.

    Attributes
    ----------
    seconds, nodes, disk_bytes, major_faults : float
        The system counts what came from the disk, and waits for a page of a mapping.
    seconds_to_prepare : float
        Before the first batch, structure and labels aside: samples and cache.
    seconds_warming_up : float
        Of all batches before the clock starts.
    written_bytes : float
        Bytes written to the disk, as the system counts them.
    reads, rows_read, hit_rate, cache_rows : float
        Of gnnstore's engines and cache; zero for others.
    limit_bytes, group_peak_bytes, peak_rss_bytes : int
        Of the whole process.
    seconds_sampling, seconds_gathering, seconds_reading, seconds_planning, seconds_waiting : float
        From the loader's statistics: the first three summed over its threads, reading being
        a part of gathering; the last is how long the consumer was stalled.
    chosen, reason : str
        The strategy that the loader followed, and why.
    """

    seconds: float
    nodes: float
    disk_bytes: float
    major_faults: float
    seconds_to_prepare: float
    limit_bytes: int
    group_peak_bytes: int
    peak_rss_bytes: int
    seconds_warming_up: float = 0.0
    written_bytes: float = 0.0
    reads: float = 0.0
    rows_read: float = 0.0
    hit_rate: float = 0.0
    cache_rows: int = 0
    superbatch: int = 0
    seconds_planning: float = 0.0
    seconds_sampling: float = 0.0
    seconds_gathering: float = 0.0
    seconds_reading: float = 0.0
    seconds_waiting: float = 0.0
    chosen: str = ""
    reason: str = ""


def run_task(
    task: Task,
    group: MemoryGroup | None,
    *,
    worker: str = WORKER,
    on_batch: Callable[[], None] = lambda: None,
) -> Outcome | str:
    """Perform a task in a process of its own; return why it has no outcome if it has none.

    Parameters
    ----------
    group : MemoryGroup or None
        Group that the process enters; it keeps the limit.
    worker : str
        The module that performs it.
    on_batch : callable
        Called for each batch that is done.
    """
    words = asdict(task)
    if group is not None:
        words |= {"group": str(group.path), "group_version": group.version}

    def line(text: str) -> None:
        if text == BATCH_MARK:
            on_batch()

    answer = ask_process(["-m", worker, json.dumps(words)], group, on_line=line)
    return answer if isinstance(answer, str) else Outcome(**answer)
