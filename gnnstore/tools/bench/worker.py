"""Performs one task of `gnnstore bench load` in the process that it is started in.

Prints a mark for each batch, and then one JSON object: the `Outcome`, or why there is
none as {"problem": ...}.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from gnnstore.budget.ledger import OF_FREE_MEMORY, Ledger, Reservation
from gnnstore.budget.limits import available_bytes
from gnnstore.errors import GnnstoreError
from gnnstore.pipeline.stats import LoaderStats
from gnnstore.progress import peak_rss_bytes
from gnnstore.tools.bench.setup import Run, loader_batches
from gnnstore.tools.bench.task import BATCH_MARK, Outcome, Task
from gnnstore.tools.bench.ways import ways
from gnnstore.tools.ui.exits import INTERRUPTED

# Recorded events count as memory of the process: 7 MB, enough for 2000 batches.
_MAX_EVENTS = 2**14

# Batches as numbers of nodes; and the loader, if there is one.
Prepared = tuple[Iterator[int], Any]


def prepare(run: Run) -> Prepared:
    """Return the batches of a strategy, under the limit."""
    way = ways()[run.task.strategy]
    if not way.is_limited:
        needed = sum(array.spec.num_bytes for array in run.features)
        memory = Ledger(
            available_bytes(), (), f"strategy {run.task.strategy!r}", OF_FREE_MEMORY, ""
        )
        memory.add(Reservation("features", needed)).check(None, "leave it out of the comparison")
        loader = run.loader(**way.options)
        return loader_batches(loader), loader
    run.limit()
    if not way.options:
        return run.map_batches(), None
    disk = {"disk": run.task.disk_bytes} if run.task.disk_bytes and way.packs else {}
    loader = run.loader(**way.options, **disk, memory=run.memory_bytes)
    return loader_batches(loader), loader


def perform(task: Task, prepare: Callable[[Run], Prepared] = prepare) -> Outcome:
    """Do what the task says."""
    run = Run(task)
    start = perf_counter()
    batches, loader = prepare(run)
    seconds_to_prepare = perf_counter() - start
    with ExitStack() as stack:
        stack.enter_context(closing(batches))  # type: ignore[type-var]
        start = perf_counter()
        for _ in range(task.warm_up):
            next(batches)
            print(BATCH_MARK, flush=True)
        seconds_warming_up = perf_counter() - start
        before, earlier = DiskUse(), None if loader is None else loader.stats()
        stack.enter_context(_recording(run, loader))
        start, nodes = perf_counter(), 0
        for _ in range(task.batches):
            nodes += next(batches)
            print(BATCH_MARK, flush=True)
        seconds = perf_counter() - start
        used, later = DiskUse(), None if loader is None else loader.stats()
    group = task.memory_group
    return Outcome(
        seconds=seconds / task.batches,
        nodes=nodes / task.batches,
        disk_bytes=(used.read_bytes - before.read_bytes) / task.batches,
        written_bytes=(used.written_bytes - before.written_bytes) / task.batches,
        major_faults=(used.major_faults - before.major_faults) / task.batches,
        seconds_to_prepare=seconds_to_prepare,
        seconds_warming_up=seconds_warming_up,
        limit_bytes=run.limit_bytes,
        group_peak_bytes=group.peak_bytes() if group else 0,
        peak_rss_bytes=peak_rss_bytes(),
        **_of_loader(earlier, later, task.batches),
    )


def _recording(run: Run, loader: Any) -> Any:
    """Return the context in which stages are recorded, if they are to be."""
    if not run.task.trace:
        return nullcontext()
    if loader is not None:
        return loader.trace(run.task.trace, max_events=_MAX_EVENTS)
    return run.recording(_MAX_EVENTS)


def _of_loader(
    earlier: LoaderStats | None, later: LoaderStats | None, batches: int
) -> dict[str, Any]:
    if earlier is None or later is None:
        return {}
    done = later.since(earlier)
    # Batches that are prepared ahead are read already: divide by what was gathered.
    each = [f"seconds_{name}" for name in ("sampling", "gathering", "reading", "planning")]
    each += ["seconds_waiting", "reads", "rows_read"]
    return {
        **{name: getattr(done, name) / batches for name in each},
        "hit_rate": done.hit_rate,
        "cache_rows": later.cache_rows,
        "superbatch": later.superbatch,
        "chosen": later.strategy,
        "reason": later.reason,
    }


class DiskUse:
    """Bytes that this process has read and written so far, and faults that waited for a disk."""

    def __init__(self) -> None:
        self.major_faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        lines = Path("/proc/self/io").read_text().splitlines()
        counts = {name: int(count) for name, _, count in (line.partition(":") for line in lines)}
        self.read_bytes = counts.get("read_bytes", 0)
        self.written_bytes = counts.get("write_bytes", 0)


def work(prepare: Callable[[Run], Prepared] = prepare) -> int:
    """Perform the task given as JSON, print its outcome, and return the exit status."""
    # It is how `ask_process` ends this one, in a session of its own; a user's Ctrl-C does not get
    # here. Where that is ignored, as in the background of a script, this must not be.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        answer = asdict(perform(Task.of_json(sys.argv[1]), prepare))
    except (GnnstoreError, MemoryError, OSError) as error:
        answer = {"problem": str(error) or type(error).__name__}
    except KeyboardInterrupt:
        return INTERRUPTED
    print()
    json.dump(answer, sys.stdout)
    print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(work())
