"""One strategy to be timed, in a process of its own: what it is told, and what it answers.

A process of its own, because a memory limit is one of a process, and because nothing that
one strategy has left in memory may help the next.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO

from gnnstore.disk.profile.cgroup import MemoryGroup

MAP_THREADS = 32
# Of the slack: what Python, the allocator and the kernel take besides what a loader counts.
ALLOWANCE_BYTES = 64 * 10**6
# What a worker prints for each batch.
BATCH_MARK = "."

_WORKER = "gnnstore.tools.bench.worker"
# Into its group before anything is loaded, so that all of the process is counted.
ENTER = 'echo $$ > "$0" && exec "$@"'
_LEAVING_SECONDS = 10.0


@dataclass(frozen=True)
class Task:
    """What the process is to do.

    Attributes
    ----------
    strategy : str
        One of `gnnstore.tools.bench.ways`.
    group, group_version : str, int
        The memory group that the process is in; "" for none, and no limit then.
    share, slack_bytes : float, int
        The limit, beside what the process held before: share of the features, and more.
    seeds : str
        File of the seed nodes, which every epoch shuffles.
    warm_up, batches : int
        Batches before the clock starts, and while it runs.
    round : int
        Number of the epoch, so that rounds draw different batches.
    fanouts, batch_size, seed
        As of a loader.
    num_threads : int
        Preparing threads of a loader; 0 for as many as it takes by itself.
    disk_bytes : int
        The most that packed rows may take; 0 for what the loader takes by itself.
    trace : str
        A file to be written with the stages of the batches on the clock; "" for none.
    plan : str
        A packed plan that a loader follows instead of the strategy; "" for none.
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
    fanouts: tuple[int, ...] = (10, 10, 10)
    batch_size: int = 1024
    seed: int = 0
    num_threads: int = 0
    disk_bytes: int = 0
    trace: str = ""
    plan: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of it; all amounts are of one batch unless said otherwise.

    Attributes
    ----------
    seconds, nodes, disk_bytes, major_faults : float
        The system counts what came from the disk, and waits for a page of a mapping.
    seconds_to_prepare : float
        Before the first batch, structure and labels aside: samples and cache.
    seconds_warming_up : float
        Of all batches before the clock starts.
    written_bytes : float
        What went to the disk, as the system counts it.
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
    worker: str = _WORKER,
    on_batch: Callable[[], None] = lambda: None,
) -> Outcome | str:
    """Run a task in a process of its own; return why it has no outcome if it has none.

    An interrupt ends the process too, and lets it clean up first.

    Parameters
    ----------
    group : MemoryGroup or None
        What the process enters before it starts.
    worker : str
        The module that performs it.
    on_batch : callable
        Called for each batch that is done.
    """
    command = [sys.executable, "-m", worker, json.dumps(asdict(task))]
    if group is not None:
        command = ["sh", "-c", ENTER, str(group.processes), *command]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        # A session of its own: Ctrl-C would come to it twice, from the terminal and from here.
        process = subprocess.Popen(  # noqa: S603 - this interpreter
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        answer = ""
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            for line in process.stdout:
                if line.strip() == BATCH_MARK:
                    on_batch()
                elif line.strip():
                    answer = line
            status = process.wait()
        finally:
            _end(process)
        return _outcome(status, answer, errors)


def _end(process: subprocess.Popen[str]) -> None:
    """Ask a process to end, unless it has, and then make it."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LEAVING_SECONDS)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _outcome(status: int, answer: str, errors: IO[str]) -> Outcome | str:
    if status == -signal.SIGKILL:
        return "killed by the kernel: it took more than the limit"
    if status == 0 and answer:
        document = json.loads(answer)
        return str(document["problem"]) if "problem" in document else Outcome(**document)
    errors.seek(0)
    return errors.read().strip().rpartition("\n")[2] or f"it ended with status {status}"
