"""Loads the topology and labels of a store, limits memory, and loads batches under the limit.

The process is in its memory group from the beginning. It loads the graph's topology and the
narrow attributes, has the kernel drop the page cache of the store, and only then limits the
group: to what it holds, a share of the features and some slack. Feature rows come after that.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import gnnstore
from gnnstore.disk.profile.page_cache import drop_from_cache
from gnnstore.errors import UsageError
from gnnstore.formats.arrays.paged_array import PagedArray
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import Schema
from gnnstore.graph.shared import shared_tables
from gnnstore.loaders.link import resolve_links
from gnnstore.pipeline.batch import request_of
from gnnstore.pipeline.order.keyed import KeyedOrder
from gnnstore.pipeline.order.state import Position
from gnnstore.sampling.neighbor import BatchRequest, SamplingConfig
from gnnstore.seeds.base import BatchKey
from gnnstore.seeds.links import Links
from gnnstore.seeds.nodes import InputNodes, resolve_input_nodes
from gnnstore.strategies.sizes.placement import read_tables
from gnnstore.timeline import OFF, Timeline, recorded
from gnnstore.tools.bench.task import ALLOWANCE_BYTES, MAP_THREADS, Task


def split_tables(schema: Schema) -> tuple[list[AttributeSpec], list[AttributeSpec]]:
    """Return the attributes whose rows are read from disk, and those held in memory."""
    attributes = [*schema.node_attributes(), *schema.edge_attributes()]
    wide = read_tables(attributes)
    if not wide:
        raise UsageError(
            "no attribute of the store is stored in pages, so no rows are read from disk and "
            "there is nothing to compare; see 'gnnstore inspect'"
        )
    return wide, [spec for spec in attributes if spec not in wide]


class Run:
    """The store with its structure in memory, and the limit."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.store = gnnstore.open(task.store)
        self.num_threads = task.num_threads or len(os.sched_getaffinity(0))
        self.timeline: Timeline = OFF  # where stages are recorded that no loader records
        # Shared with the loaders, which would load both after the limit is set.
        shared = shared_tables(self.store)
        self.topology = shared.topology(self.store, "memory", self.num_threads)
        self.config = SamplingConfig(tuple(task.fanouts), seed=task.seed)
        # Nodes, or edges [2, L]; None: all edges.
        self.seeds = np.load(task.seeds) if task.seeds else None
        # These, with what is drawn beside them.
        self.source: InputNodes | Links = (
            resolve_input_nodes(self.store, self.seeds)
            if task.links is None
            else resolve_links(self.store, self.config, self.seeds, **task.links)
        )
        wide, narrow = split_tables(self.store.schema)
        # The tables that are read from disk.
        self.features = [self.store.reader.paged(spec) for spec in wide]
        self._of_nodes = {spec.path for spec in self.store.schema.node_attributes()}
        # Narrow attributes, in memory, by path.
        self.held = {
            spec.path: shared.rows(self.store, spec, "memory", self.num_threads) for spec in narrow
        }
        self.room_bytes = round(task.share * sum(spec.num_bytes for spec in wide))
        self.room_bytes += task.slack_bytes
        # By a loader's own account of what it holds; the group's limit goes by the system's. Narrow
        # attributes count as they are stored: if they are held in less, there is more room.
        resident = sum(rows.resident_bytes for rows in self.held.values())
        self.room_bytes += sum(spec.num_bytes for spec in narrow) - resident
        held_bytes = resident + self.topology.columns().num_bytes + self.source.num_bytes
        self.memory_bytes = held_bytes + self.room_bytes - ALLOWANCE_BYTES  # the budget of a loader
        self.limit_bytes = 0  # of the group; 0 without a limit

    def limit(self) -> None:
        """Limit the memory group from now on to what it holds, and the room."""
        drop_from_cache([Path(self.task.store)])
        if (group := self.task.memory_group) is not None:
            self.limit_bytes = group.held_bytes() + self.room_bytes
            group.limit(self.limit_bytes)

    def loader(self, **options: Any) -> gnnstore.NeighborLoader | gnnstore.LinkNeighborLoader:
        """Return gnnstore's loader; its epoch is the round."""
        task = self.task
        is_of_nodes = task.links is None
        loader = (gnnstore.NeighborLoader if is_of_nodes else gnnstore.LinkNeighborLoader)(
            self.store,
            list(task.fanouts),
            self.seeds,
            batch_size=task.batch_size,
            shuffle=True,
            # The last batch of all edges, for which no file was written, may be a short one.
            drop_last=not task.seeds,
            seed=task.seed,
            num_threads=task.num_threads or None,
            **{"topology": "memory"} | (task.links or {}) | options,
        )
        loader.set_epoch(task.round)
        return loader

    @contextmanager
    def recording(self, max_events: int) -> Iterator[None]:
        """Record the stages of `map_batches` in the file that the task names."""
        with recorded(self.task.trace, max_events) as timeline:
            self.timeline = timeline
            yield

    def requests(self) -> Iterator[BatchRequest]:
        """Yield what to sample for each batch, epoch after epoch, as the loader takes them."""
        task = self.task
        order = KeyedOrder(
            len(self.source), task.batch_size, shuffles=True, drop_last=not task.seeds
        )
        for epoch in itertools.count(task.round):
            for batch, positions, _ in order.batches(Position(epoch), task.seed):
                key = BatchKey(task.seed, epoch, batch)
                yield request_of(self.source.select(positions, key), key)

    def map_batches(self) -> Iterator[int]:
        """Sample with gnnstore, gather with NumPy from a mapping, many threads at a time.

        With 2 threads it is several times slower, and without MADV_RANDOM, which `random` stands
        for, no batch comes to an end in minutes.
        """
        sampler = self.topology.sampler(self.config, self.store.schema.index_dtype)
        tables = [(_Mapped(array), array.spec.path in self._of_nodes) for array in self.features]
        requests = self.requests()
        with ThreadPoolExecutor(MAP_THREADS) as pool:
            while True:
                with self.timeline.span("sampling"):
                    seeds, epoch, batch, excluded = next(requests)
                    subgraph = sampler.sample(seeds, epoch=epoch, batch=batch, excluded=excluded)
                with self.timeline.span("gathering"):
                    nodes, edges = subgraph.n_id, subgraph.edge_pos
                    rows = [
                        table.gather(nodes if is_of_nodes else edges, pool)
                        for table, is_of_nodes in tables
                    ]
                    rows += [
                        self.held[path].gather(nodes if path in self._of_nodes else edges).values
                        for path in self.held
                    ]
                yield len(nodes)
                del rows, subgraph, nodes, edges


class _Mapped:
    """Rows of a mapping, for NumPy to pick from."""

    def __init__(self, array: PagedArray) -> None:
        self._row_shape, self._dtype = array.row_shape, array.dtype
        geometry = array.geometry
        self._per_page = geometry.rows_per_page
        self._exact = array.view("random") if geometry.is_exact else None
        body = array.map("random")
        num_pages = len(body) // geometry.page_stride_bytes
        # Rows that leave a rest of their page empty: page by page, without copying any.
        self._pages = np.lib.stride_tricks.as_strided(
            body,
            (num_pages, self._per_page, geometry.row_bytes),
            (geometry.page_stride_bytes, geometry.row_bytes, 1),
            writeable=False,
        )

    def gather(self, ids: npt.NDArray[Any], pool: ThreadPoolExecutor) -> npt.NDArray[Any]:
        """Return rows by id, picked by all threads of the pool."""
        out = np.empty((len(ids), *self._row_shape), self._dtype)
        bounds = np.linspace(0, len(ids), MAP_THREADS + 1).astype(int)

        def take(part: int) -> None:
            which = slice(bounds[part], bounds[part + 1])
            if self._exact is not None:
                # "clip" has NumPy write to `out` directly; ids are in range.
                np.take(self._exact, ids[which], axis=0, out=out[which], mode="clip")
                return
            pages, places = np.divmod(ids[which], self._per_page)
            flat = out[which].reshape(len(pages), math.prod(self._row_shape))
            flat[:] = self._pages[pages, places].view(self._dtype)

        list(pool.map(take, range(MAP_THREADS)))
        return out


def loader_batches(loader: Any) -> Iterator[int]:
    """Take batches, epoch after epoch, and drop them."""
    while True:
        for batch in loader:
            yield batch.num_nodes
