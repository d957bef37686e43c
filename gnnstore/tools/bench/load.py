"""Times the strategies on a store for `gnnstore bench load`, and prints and plots the times."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from gnnstore.graph.store import open as open_store
from gnnstore.pipeline.order.epoch import epoch_order
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.seeds.links import Links
from gnnstore.seeds.nodes import InputNodes
from gnnstore.tools.bench.render import render_load
from gnnstore.tools.bench.rounds import Contender, describe, play, require_group
from gnnstore.tools.bench.setup import split_tables
from gnnstore.tools.bench.task import Task
from gnnstore.tools.bench.ways import ways
from gnnstore.tools.plots.load import draw_load
from gnnstore.tools.plots.pictures import draw_into
from gnnstore.tools.predict.seeds import choose_seeds
from gnnstore.tools.ui import exits
from gnnstore.tools.ui.options import SeedOptions
from gnnstore.tools.ui.session import Session

_SAMPLE_BATCHES, _WARM_UP = 24, 6


def bench_load(
    session: Session,
    path: str,
    *,
    fanouts: tuple[int, ...],
    batch_size: int,
    seeds_asked: SeedOptions,
    strategies: Sequence[str],
    memory: float | int,
    slack_bytes: int,
    disk_bytes: int | None,
    num_batches: int | None,
    whole_epochs: bool,
    repeats: int,
    seed: int,
    num_threads: int | None,
    no_limit: bool,
    plot_file: Path | None,
) -> int:
    """Time, draw, print, and return the exit status."""
    started = perf_counter()
    store = open_store(path)
    config = SamplingConfig(fanouts, seed=seed)
    names, seeds = choose_seeds(store, config, seeds_asked)
    feature_bytes = sum(spec.num_bytes for spec in split_tables(store.schema)[0])
    share = memory if isinstance(memory, float) else memory / feature_bytes
    version = 0 if no_limit else require_group()
    with tempfile.TemporaryDirectory(prefix="gnnstore-bench-") as temporary:
        scratch = Path(temporary)
        file = scratch / "seeds.npy"
        epoch_batches = _write_seeds(file, seeds, batch_size, num_batches, seed)
        task = Task(
            strategy="",
            store=str(store.path),
            seeds=str(file) if file.exists() else "",
            links=None if seeds_asked.links is None else seeds_asked.of_links,
            share=share,
            slack_bytes=slack_bytes,
            batches=epoch_batches,
            fanouts=fanouts,
            batch_size=batch_size,
            seed=seed,
            num_threads=num_threads or 0,
            disk_bytes=disk_bytes or 0,
            trace=str(scratch / "trace.json"),
        )
        contenders = [
            _contender(task, way, whole_epochs=whole_epochs) for way in dict.fromkeys(strategies)
        ]
        with session.progress() as progress:
            devices = play(
                contenders, store, repeats=repeats, is_limited=not no_limit, progress=progress
            )
    document = describe(
        store,
        contenders,
        devices,
        names=names,
        num_seeds=len(seeds),
        epoch_batches=epoch_batches,
        cgroup_version=version,
    )
    document["seconds"] = perf_counter() - started
    is_timed = any(contender.rounds for contender in contenders)
    draw_into(document, plot_file if is_timed else None, draw_load)
    session.emit(document, lambda console: render_load(console, document))
    if document["problems"]:
        return exits.STORAGE
    return exits.OK if is_timed else exits.USAGE


def _write_seeds(
    file: Path, seeds: InputNodes | Links, batch_size: int, num_batches: int | None, seed: int
) -> int:
    """Write the seeds of an epoch in a loader's shuffled order; return the number of batches.

    All edges of the graph are not written: a loader knows them without a copy.
    """
    # Full batches, unless there is not even one, so that all of them weigh the same.
    whole = len(seeds) // batch_size
    count = max(1, whole if num_batches is None else min(whole, num_batches))
    if isinstance(seeds, Links) and seeds.edges is None and count == whole:
        return count
    positions = epoch_order(len(seeds), seed, 0)[: count * batch_size]
    if isinstance(seeds, Links):
        np.save(file, np.stack(seeds.ends(positions)))
    else:
        np.save(file, seeds.select(positions).nodes)
    return count


def _contender(epoch: Task, strategy: str, *, whole_epochs: bool) -> Contender:
    """Return a way with the batches to time: an epoch, or a sample where all cost the same."""
    way, task = ways()[strategy], replace(epoch, strategy=strategy)
    if way.is_made_ahead:
        task = replace(task, warm_up=task.batches)
    elif way.is_even and not whole_epochs:
        batches = min(task.batches, _SAMPLE_BATCHES)
        task = replace(task, warm_up=min(task.batches - batches, _WARM_UP), batches=batches)
    return Contender(way, task)
