"""Performs one task of `gnnstore bench load` in the process that it is started in.

Prints a mark for each batch, and then one JSON object: amounts of a batch, or why there are none.
The process is in its memory group from the beginning. It loads the topology and narrow attributes,
has the kernel drop the page cache of the store, and only then limits the group: to the memory in
use, a share of the features and some slack. Feature rows are read after that.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

import gnnstore
from gnnstore.errors import GnnstoreError
from gnnstore.formats.arrays.paged import PagedArray
from gnnstore.graph.table_registry import shared_tables
from gnnstore.loaders.link import resolve_links
from gnnstore.loaders.options import fanouts_of
from gnnstore.pipeline.batch import request_of
from gnnstore.pipeline.order import Position
from gnnstore.pipeline.ranks import KeyedOrder
from gnnstore.pipeline.stats import LoaderStats
from gnnstore.progress import peak_rss_bytes
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.seeds.base import BatchKey
from gnnstore.seeds.nodes import resolve_input_nodes
from gnnstore.timeline import OFF, Recording, Timeline, recorded
from gnnstore.tools.bench.harness import (
    BATCH_MARK,
    STAGES,
    Task,
    Way,
    drop_from_cache,
    split_tables,
    ways,
)
from gnnstore.tools.session import INTERRUPTED

MAP_THREADS = 32
# Part of the slack: memory of Python, the allocator and the kernel that a loader does not count.
ALLOWANCE_BYTES = 64 * 10**6
_MAX_EVENTS = 2**14  # they count as memory of the process: 7 MB, enough for 2000 batches
_STAGE_OF = {name: name for name in STAGES[:4]}
_STAGE_OF |= {"recalling": "assembling", "gathering": "assembling"}

# Batches as numbers of nodes; and the loader, if there is one.
Prepared = tuple[Iterator[int], Any]


class Run:
    """The store with its structure in memory, and the limit."""

    def __init__(self, task: Task) -> None:
        self.task, self.store = task, gnnstore.open(task.store)
        self.num_threads = task.num_threads or len(os.sched_getaffinity(0))
        self.timeline: Timeline = OFF  # records stages that no loader records
        # Shared with the loaders, which would load both after the limit is set otherwise.
        shared = shared_tables(self.store)
        self.topology = shared.topology(self.store, "memory", self.num_threads)
        fanouts = fanouts_of(task.fanouts, self.store.schema)
        self.config = SamplingConfig(fanouts, seed=task.seed, **task.sampling)
        self.seeds: Any = _seeds_of(task)
        # The seeds, with the values drawn for them.
        self.source = (
            resolve_input_nodes(self.store, self.seeds)
            if task.links is None
            else resolve_links(self.store, self.config, self.seeds, **task.links)
        ).over(self.topology)
        wide, narrow = split_tables(self.store.schema)
        self.features = [self.store.reader.paged(spec) for spec in wide]  # read from disk
        self.held = {s.path: shared.rows(self.store, s, "memory", self.num_threads) for s in narrow}
        # A loader's own count of its memory; the group's limit uses the system's count. Narrow
        # attributes count as they are stored: if they take less in memory, there is more room.
        resident = sum(rows.resident_bytes for rows in self.held.values())
        room_bytes = task.share * sum(spec.num_bytes for spec in wide) + task.slack_bytes
        self.room_bytes = round(room_bytes) + sum(spec.num_bytes for spec in narrow) - resident
        held_bytes = resident + self.source.num_bytes
        held_bytes += sum(csc.num_bytes for csc in self.topology.csc.values())
        self.memory_bytes = held_bytes + self.room_bytes - ALLOWANCE_BYTES  # the budget of a loader
        self.limit_bytes = 0  # limit of the group; 0 without a limit

    def limit(self) -> None:
        """Limit the memory group from now on to its present memory and the room."""
        drop_from_cache([Path(self.task.store)])
        if (group := self.task.memory_group) is not None:
            self.limit_bytes = group.held_bytes() + self.room_bytes
            group.limit(self.limit_bytes)

    def loader(self, **options: Any) -> gnnstore.NeighborLoader | gnnstore.LinkNeighborLoader:
        """Return gnnstore's loader; its epoch is the round."""
        task = self.task
        kind = gnnstore.NeighborLoader if task.links is None else gnnstore.LinkNeighborLoader
        loader = kind(
            self.store,
            self.config.fanouts,
            self.seeds,
            batch_size=task.batch_size,
            shuffle=True,
            drop_last=not task.seeds,  # all edges, which no file divides into full batches
            seed=task.seed,
            num_threads=task.num_threads or None,
            **{"topology": "memory"} | task.sampling | (task.links or {}) | options,
        )
        loader.set_epoch(task.round)
        return loader

    def map_batches(self) -> Iterator[int]:
        """Sample with gnnstore, gather with NumPy from a mapping, many threads at a time.

        With 2 threads it is several times slower, and without MADV_RANDOM no batch ends in minutes.
        """
        task = self.task
        sampler = self.topology.sampler(self.config, self.store.schema.index_dtype)
        order = KeyedOrder(len(self.source), task.batch_size, True, drop_last=not task.seeds)
        owners = self.store.schema.owners()
        requests = (
            request_of(self.source.select(positions, key), key)
            for epoch in itertools.count(task.round)
            for batch, positions, _ in order.batches(Position(epoch), task.seed)
            for key in [BatchKey(task.seed, epoch, batch)]
        )
        with ThreadPoolExecutor(MAP_THREADS) as pool:
            tables: dict[str, Callable[[npt.NDArray[Any]], object]] = {
                array.spec.path: mapped(array, pool) for array in self.features
            }
            tables |= {path: rows.gather for path, rows in self.held.items()}
            while True:
                with self.timeline.span("sampling"):
                    sample = sampler.draw(next(requests))
                with self.timeline.span("gathering"):
                    ids: dict[Any, npt.NDArray[Any]] = {**sample.nodes}
                    ids |= {of: edges.positions for of, edges in sample.edges.items()}
                    rows = [gather(ids[owners[path]]) for path, gather in tables.items()]
                yield sample.num_nodes
                del rows, sample, ids


def _seeds_of(task: Task) -> Any:
    """Return the seeds of a task as a loader takes them."""
    found: Any = np.load(task.seeds) if task.seeds else None
    if isinstance(found, Mapping):
        return dict(found)
    return (task.edge_type, found) if task.edge_type else found


def mapped(
    array: PagedArray, pool: ThreadPoolExecutor
) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """Return a function that picks rows of a mapping by id with all threads of a pool."""
    geometry, body = array.geometry, array.map("random")
    shape = (len(body) // geometry.page_stride_bytes, geometry.rows_per_page)
    strides = (geometry.page_stride_bytes, geometry.row_bytes)
    # Rows as single items, page by page, without copying any.
    pages = np.ndarray(shape, f"V{geometry.row_bytes}", body, strides=strides)

    def gather(ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
        out = np.empty(len(ids), pages.dtype)
        bounds = np.linspace(0, len(ids), MAP_THREADS + 1).astype(int)

        def take(part: int) -> None:
            which = slice(bounds[part], bounds[part + 1])
            if geometry.is_exact:  # "clip" has NumPy write to `out` directly; ids are in range
                np.take(pages.reshape(-1), ids[which], out=out[which], mode="clip")
            else:
                out[which] = pages[np.divmod(ids[which], shape[1])]

        list(pool.map(take, range(MAP_THREADS)))
        return out.view(array.dtype).reshape(len(ids), *array.row_shape)

    return gather


def loader_batches(loader: Any) -> Iterator[int]:
    """Take batches, epoch after epoch, and drop them."""
    while True:
        for batch in loader:
            yield batch.num_nodes


def prepare(run: Run) -> Prepared:
    """Return the batches of a strategy, under the limit."""
    way = ways()[run.task.strategy]
    options: dict[str, Any] = {}
    if way.is_limited:
        run.limit()
        if not way.strategy:
            return run.map_batches(), None
        options = {"memory": run.memory_bytes}
        options |= {"disk": run.task.disk_bytes} if run.task.disk_bytes and way.packs else {}
    loader = run.loader(strategy=way.strategy, **options)
    return loader_batches(loader), loader


def perform(task: Task, prepare: Callable[[Run], Prepared] = prepare) -> dict[str, Any]:
    """Load the batches of a task; amounts are per batch on the clock unless stated otherwise."""
    run, start = Run(task), perf_counter()
    batches, loader = prepare(run)
    seconds_to_prepare = perf_counter() - start

    def load(count: int) -> tuple[float, int]:
        start, nodes = perf_counter(), 0
        for _ in range(count):
            nodes += next(batches)
            print(BATCH_MARK, flush=True)
        return perf_counter() - start, nodes

    def read() -> tuple[LoaderStats, int]:
        return LoaderStats("", "", "", 0, 0) if loader is None else loader.stats(), disk_bytes()

    with closing(batches), TemporaryDirectory(prefix="gnnstore-bench-") as scratch:  # type: ignore[type-var]
        seconds_warming_up, _ = load(task.warm_up)
        earlier, before = read()
        trace = recorded if loader is None else loader.trace
        with trace(Path(scratch, "trace.json"), max_events=_MAX_EVENTS) as run.timeline:
            seconds, nodes = load(task.batches)
            later, after = read()
        recording = run.timeline.recording()
    group, done = task.memory_group, later.since(earlier)
    way = ways().get(later.strategy or task.strategy, Way())
    # Batches that are prepared ahead have been read already: divide by the gathered ones.
    amounts = {"seconds": seconds, "nodes": nodes, "reads": done.reads}
    amounts["disk_bytes"] = after - before
    stages = stages_of(recording, seconds, faults_are_reads=way.reads_by_faults)
    return {
        **{name: amount / task.batches for name, amount in amounts.items()},
        "stages": {name: each / task.batches for name, each in stages.items()},
        "hit_rate": done.hit_rate,
        "cache_rows": later.cache_rows,
        "superbatch": later.superbatch,
        "chosen": later.strategy,
        "reason": later.reason,
        # Total seconds: before the first batch, and before the clock starts.
        "seconds_to_prepare": seconds_to_prepare,
        "seconds_warming_up": seconds_warming_up,
        # The whole process: its limit and its peaks.
        "limit_bytes": run.limit_bytes,
        "group_peak_bytes": group.peak_bytes() if group else 0,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def stages_of(recording: Recording, seconds: float, *, faults_are_reads: bool) -> dict[str, float]:
    """Divide the time of batches among `STAGES`, each moment evenly among what runs in it."""
    spans = [event for event in recording.events if event[3] in _STAGE_OF]
    times = np.array([event[:2] for event in spans], np.int64).reshape(-1, 2)
    begins, ends = np.clip((times.T - recording.begin_ns) * 1e-9, 0, seconds)
    moments = np.unique([begins, ends])
    begun, ended = (np.searchsorted(np.sort(t), moments[:-1], "right") for t in (begins, ends))
    # A span's share is the integral of 1 / (spans that run): the difference of two readings.
    each = np.append(0, np.cumsum(np.diff(moments) / np.maximum(1, begun - ended)))
    shares = each[np.searchsorted(moments, ends)] - each[np.searchsorted(moments, begins)]
    found = dict.fromkeys(STAGES, 0.0)
    for span, share, length in zip(spans, shares.tolist(), (ends - begins).tolist(), strict=True):
        reading = 0.0
        if span[3] == "gathering" and length > 0:
            waited = span[4].get("ms_reading", 0.0) * 1e-3 / length
            reading = share * (1.0 if faults_are_reads else min(1.0, waited))
        found["reading"] += reading
        found[_STAGE_OF[span[3]]] += share - reading
    found["other"] = max(0.0, seconds - sum(found.values()))
    return found


def disk_bytes() -> int:
    """Return the bytes that this process has read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines).get("read_bytes", 0))


def work(prepare: Callable[[Run], Prepared] = prepare) -> int:
    """Perform the task given as JSON, print its outcome, and return the exit status."""
    # `ask_process` ends this process with SIGINT, in a session of its own; a user's Ctrl-C does not
    # get here. It must not be ignored, even if it is ignored in the background of a script.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        answer = perform(Task.of_json(sys.argv[1]), prepare)
    except (GnnstoreError, MemoryError, OSError) as error:
        answer = {"problem": str(error) or type(error).__name__}
    except KeyboardInterrupt:
        return INTERRUPTED
    print(f"\n{json.dumps(answer)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(work())
