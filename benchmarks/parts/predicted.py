"""One cell of `benchmarks.predictions`, in a process of its own under a memory limit.

`benchmarks.predictions` starts this with a `Cell`. Without a choice it prints what is predicted
for each strategy, and what "auto" would take; with one, the seconds of an epoch by it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from statistics import fmean
from time import perf_counter
from typing import Any
from unittest import mock

from gnnstore.features import static
from gnnstore.strategies import auto as tables
from gnnstore.strategies.auto import Chosen, StrategyOptimizer, choices_for, with_candidate
from gnnstore.strategies.base import Auto
from gnnstore.strategies.loader_spec import place_for
from gnnstore.tools.bench.harness import Task
from gnnstore.tools.bench.worker import Run

WARM_UP, SOME_BATCHES = 8, 24


@contextmanager
def answering(choices: Callable[[Any, Auto], Iterator[Chosen]]) -> Iterator[None]:
    """Make "auto" take what a function returns for its request."""
    with mock.patch.object(tables, "choices_for", choices):
        yield


def only(choice: str) -> Callable[[Any, Auto], Iterator[Chosen]]:
    """Return what has "auto" take one choice."""

    def choices(request: Any, auto: Auto) -> Iterator[Chosen]:
        yield Chosen(with_candidate(request.options, auto.by_choice[choice]), "it is measured")

    return choices


def foretell(run: Run) -> dict[str, Any]:
    """Return all predictions, and what "auto" takes."""
    found: list[dict[str, Any]] = []
    began, seconds = perf_counter(), 0.0

    def choices(request: Any, auto: Auto) -> Iterator[Chosen]:
        nonlocal seconds
        # Before a cache is filled: both would not fit.
        found.extend(predictions_of(request, auto))
        start = perf_counter()
        for chosen in choices_for(request, auto):
            seconds = perf_counter() - start
            yield chosen

    with answering(choices):
        loader = run.loader(memory=run.memory_bytes, disk=run.task.disk_bytes)
    stats = loader.stats()
    auto = f"static-{stats.cache}" if stats.strategy == "static" else stats.strategy
    return {
        "auto": auto,
        "reason": stats.reason,
        "seconds_choosing": seconds,
        "seconds_in_all": perf_counter() - began,
        "predictions": found,
    }


def predictions_of(request: Any, auto: Auto) -> list[dict[str, Any]]:
    """Return what is predicted for each strategy; nothing where everything fits in memory."""
    placement = place_for(request, auto)
    optimizer = StrategyOptimizer.for_loader(request, placement) if placement.reads_disk else None
    predictions = [] if optimizer is None else optimizer.with_degrees().predictions(auto.candidates)
    return [
        {
            "choice": predicted.strategy.choice,
            "seconds": predicted.seconds,
            "seconds_once": predicted.seconds_once,
            "bottleneck": predicted.bottleneck,
            "stages": dict(predicted.stages),
            "slots": predicted.resources.num_slots,
            "superbatch": predicted.resources.superbatch,
            "problem": predicted.problem,
        }
        for predicted in predictions
    ]


def clock(run: Run) -> dict[str, Any]:
    """Return the seconds of the second epoch, and by how many the first one took longer.

    Where a superbatch has several epochs, it is the mean of the epochs of the first full one.
    Where whole superbatches, or batches that are alike, fit into an epoch many times, it is the
    time of a few, measured once caches that are filled in the background are full, times their
    number.
    """
    start = perf_counter()
    with answering(only(run.task.strategy)):
        loader = run.loader(memory=run.memory_bytes, disk=run.task.disk_bytes)
    prepared = perf_counter() - start
    num_batches = len(loader)
    # Every batch takes the same once the page cache is full, unless superbatches are planned.
    step = loader.stats().superbatch or 1
    warm_up, timed = (max(step, -(-least // step) * step) for least in (WARM_UP, SOME_BATCHES))
    if num_batches >= warm_up + timed + step:
        with closing(iter(loader)) as batches:  # type: ignore[type-var]
            start = perf_counter()
            for _ in islice(batches, warm_up):
                pass
            for thread in threading.enumerate():
                if thread.name == static.FILLING_THREAD:
                    thread.join()
            first = perf_counter() - start
            start = perf_counter()
            for _ in islice(batches, timed):
                pass
            seconds = (perf_counter() - start) / timed * num_batches
        more = first - seconds / num_batches * warm_up
    else:
        # Superbatches have 1, 1, 2, 3, ... epochs, up to as many as there is room for.
        at_once = max(1, step // num_batches)
        epochs = []
        for _ in range(1 + at_once * (at_once - 1) // 2 + at_once):
            start = perf_counter()
            for _batch in loader:
                pass
            epochs.append(perf_counter() - start)
        seconds = fmean(epochs[-at_once:])
        more = epochs[0] - seconds
    stats = loader.stats()
    return {
        "seconds": seconds,
        "seconds_once": prepared + max(0.0, more),
        "strategy": stats.strategy,
        "cache_rows": stats.cache_rows,
        "superbatch": stats.superbatch,
    }


def main() -> None:
    """Clock the strategy of the task, given as JSON, or predict all strategies if it names none."""
    run = Run(Task.of_json(sys.argv[1]))
    run.limit()
    json.dump(clock(run) if run.task.strategy else foretell(run), sys.stdout)


if __name__ == "__main__":
    main()
