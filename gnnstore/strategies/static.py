"""Reserves, predicts and opens rows on disk, with a static cache of the rows needed most."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore._core import release_memory
from gnnstore.budget.ledger import CACHED, IN_FLIGHT, Reservation
from gnnstore.caching.scores import (
    SCORE_DTYPES,
    CacheCost,
    StaticCacheInfo,
    select_nodes,
)
from gnnstore.features.static import (
    StaticCache,
    bytes_to_read,
    cache_cost,
)
from gnnstore.features.tables import CachedTables
from gnnstore.graph.cache_owner import CacheKey, shared_caches
from gnnstore.graph.table_registry import shared_tables
from gnnstore.machine import Machine
from gnnstore.pipeline.lookahead.presample import Presampled, with_margin
from gnnstore.strategies.base import OpenStore, Strategy
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.options import CacheSettings
from gnnstore.strategies.placement import Placement, check_two_batches, prefetch_wish, with_batches
from gnnstore.strategies.prediction import EpochCosts, HardwareRates, Prediction, Resources
from gnnstore.strategies.sampled_epoch import SampledEpoch, row_degrees
from gnnstore.strategies.workload import Workload
from gnnstore.threads import LONG_READ_BYTES
from gnnstore.units import format_size

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.graph.topology import Topology
    from gnnstore.pipeline.lookahead.presample import Presampler

_log = logging.getLogger(__name__)

# Without memory= the memory of the model is unknown.
_CACHE_SHARE = 2
# With types of several widths, the number of nodes is found by so many halvings.
_HALVINGS = 8


@dataclass(frozen=True, eq=False)
class CacheMaker:
    """The inputs for the cache of a loader."""

    loader: LoaderSpec
    topology: Topology
    engine: Engine
    settings: CacheSettings
    tables: CachedTables

    @classmethod
    def of(
        cls, loader: LoaderSpec, placement: Placement, topology: Topology, engine: Engine | None
    ) -> CacheMaker | None:
        """Return the maker of a loader's cache; None if the loader has none."""
        settings = loader.options.cache
        if settings is None and placement.strategy.caches:
            settings = CacheSettings()
        if settings is None or engine is None:
            return None
        return cls(loader, topology, engine, settings, loader.cached_tables(placement))

    @property
    def presampler(self) -> Presampler:
        """The loader's, which counts the rows of its tables."""
        return self.loader.presampler.over(self.tables.space)

    @property
    def machine(self) -> Machine:
        """The place of the cached rows."""
        return self.loader.place_of_cached(self.tables)

    @property
    def cost(self) -> CacheCost:
        """Memory that the cache takes, by its size."""
        ranks = self.machine.num_ranks
        return cache_cost(self.num_rows, self.tables.slot_bytes, self.settings.score, ranks)

    @property
    def num_rows(self) -> int:
        """Rows among which the cached ones are chosen."""
        return self.tables.space.num_rows

    @property
    def key(self) -> CacheKey[StaticCache]:
        """What loaders have in common that share the cache."""
        return self._key(self.machine.num_ranks)

    def _key(self, num_ranks: int) -> CacheKey[StaticCache]:
        paths = tuple(spec.path for spec in self.tables.specs)
        of = self.engine.name, paths, num_ranks
        return CacheKey(self.loader.static_kind(self.settings), of)

    def open(
        self,
        num_rows: int,
        counted: list[npt.NDArray[Any]] | None = None,
        *,
        fills: bool = False,
    ) -> StaticCache:
        """Return the cache, filling it with the best `num_rows` nodes if there is none yet.

        With `fills`, with as many as fit where these would if all were of the widest type.
        """
        store = self.loader.store
        shared, caches = shared_tables(store), shared_caches(store)

        def make() -> StaticCache:
            if self.machine.num_ranks > 1 and caches.close(self._key(1)):
                _log.warning(
                    "%s: the cache of an earlier loader without rank=, in memory of this process "
                    "alone, makes room for that of all ranks, and the earlier loader reads its "
                    "rows; make the loader with rank= first, and later ones share its cache",
                    store.path,
                )
            tables = self.tables.open(lambda of: shared.rows_on_disk(store, of, self.engine))
            name = f"{store.reader.uuid} cache by {self.settings.score}"
            cache = StaticCache(tables, self.num_rows, self.machine, name)
            scores = counted.pop() if counted else self.scores()
            nodes = self._best(scores, num_rows) if fills else select_nodes(scores, num_rows)
            scores = scores[nodes]
            cache.warm_up(nodes, scores)
            return cache

        return caches.cache(self.key, make)

    def _best(self, scores: npt.NDArray[Any], num_rows: int) -> npt.NDArray[np.int64]:
        """Return the best nodes that take the memory of about `num_rows` of the widest type."""
        cost, widths, widest = self.cost.whole, self.tables.widths, self.tables.slot_bytes
        given, most = num_rows, num_rows * widest // min(widths.values())
        nodes = select_nodes(scores, num_rows)
        for _ in range(_HALVINGS if most > num_rows else 0):
            middle = (num_rows + most + 1) // 2
            more = select_nodes(scores, middle)
            narrower = sum(
                (widest - width) * len(own.part(more)[1]) for own, width in widths.items()
            )
            if cost.bytes_of(len(more)) - narrower <= cost.bytes_of(given):
                nodes, num_rows = more, middle
            else:
                most = middle - 1
        return nodes

    def scores(self) -> npt.NDArray[Any]:
        """Return the score of each row: uint8 or uint32 [N]."""
        if self.settings.score == "degree":
            return row_degrees(self.topology, self.tables.space)
        counts = np.zeros(self.num_rows, np.uint8)
        self.presampler.run(self.topology, self.loader.num_threads, counts)
        return counts

    def why_none(self, left_bytes: int) -> str:
        """Return the reason for having no cache; empty if there can be one."""
        scores_bytes = self.num_rows * np.dtype(SCORE_DTYPES[self.settings.score]).itemsize
        num_bytes = self.settings.num_bytes
        if self.cost.node_bytes == 0:
            return "no attribute of nodes is read"
        cost = self.cost if num_bytes is None else self.cost.whole
        if cost.rows_in(left_bytes if num_bytes is None else num_bytes) == 0:
            return "a single row does not fit"
        if scores_bytes > left_bytes:
            return f"the scores of all nodes would take {format_size(scores_bytes)}"
        return ""


class StaticStrategy(Strategy):
    """Rows are read one by one, except for those in a static cache."""

    def reserve(self, loader: LoaderSpec, placement: Placement) -> Placement:
        """Divide the rest between batches in flight and a cache; fill the cache."""
        engine, caches = loader.open_engine(placement.topology), shared_caches(loader.store)
        placement = placement.read_by(engine)
        topology = loader.open_topology(placement, engine)
        maker = CacheMaker.of(loader, placement, topology, engine)
        cache = None if maker is None else caches.find_cache(maker.key)
        counted: list[npt.NDArray[Any]] = []
        note = ""
        if maker is not None and cache is None:
            if not placement.budget_is_promise:  # memory of other caches, which stay
                placement = placement.with_limit(placement.budget_bytes - caches.cached_bytes)
            note = maker.why_none(placement.left_bytes)
            if not note and maker.settings.score == "frequency":
                counted = [np.zeros(maker.num_rows, np.uint8)]

        seen = Presampled(0, 0)
        if placement.budget_is_promise or counted:
            spare = placement.spare_bytes
            if spare is not None:
                spare = max(0, spare - sum(scores.nbytes for scores in counted))
            presampler = loader.presampler if maker is None else maker.presampler
            found = presampler.run(
                topology, loader.num_threads, counted[0] if counted else None, spare_bytes=spare
            )
            if placement.budget_is_promise:
                release_memory()  # the samples' buffers, which would stay until the first batch
                seen = found
                check_two_batches(placement.ledger, seen.expected_bytes)
        if maker is None:
            return placement

        num_rows = cache_rows(
            *(placement, maker.settings, maker.cost, seen),
            num_threads=loader.num_threads,
            staging_bytes=maker.engine.staging_bytes,
        )
        if cache is not None:
            most = placement.left_bytes - 2 * seen.expected_bytes
            if placement.budget_is_promise and cache.num_bytes > most:
                cache.shrink(num_rows)
        elif note or num_rows == 0 or placement.is_trial:
            note = note or "batches leave no room for more"
        else:
            cache = maker.open(num_rows, counted, fills=True)
        sizes = (0, 0, note) if cache is None else (cache.num_rows, cache.num_bytes)
        return placement.with_cache(StaticCacheInfo(maker.settings.score, *sizes))

    def predict(self, epoch: SampledEpoch, loader: LoaderSpec, placement: Placement) -> Prediction:
        """Predict an epoch, with a cache in the memory left by batches."""
        work = epoch.workload
        seen = epoch.seen if placement.budget_is_promise else Presampled(0, 0)
        if placement.budget_is_promise:
            check_two_batches(placement.ledger, seen.expected_bytes)
        num_rows, taken = 0, placement.resident_bytes + placement.staging_bytes
        if self.score is not None:
            settings = loader.options.cache or CacheSettings()
            ranks = loader.place_of_cached(epoch.tables).num_ranks
            cost = cache_cost(work.num_rows, epoch.tables.slot_bytes, settings.score, ranks)
            if work.num_rows * SCORE_DTYPES[settings.score]().itemsize <= placement.left_bytes:
                num_rows = cache_rows(
                    *(placement, settings, cost, seen),
                    num_threads=epoch.machine.num_threads,
                    staging_bytes=epoch.engine.staging_bytes,
                )
            taken += cost.bytes_of(num_rows)
        resources = Resources(taken, num_rows, num_rows * work.row_bytes)
        return self.predict_with(work, epoch.machine, resources)

    def predict_with(
        self, workload: Workload, machine: HardwareRates, resources: Resources
    ) -> Prediction:
        """Predict an epoch with some resources."""
        costs, filling = EpochCosts(workload, machine), 0.0
        if self.score is None:
            reads = workload.direct_reads()
        else:
            by_degree = self.score == "degree"
            reads = workload.static_reads(resources.num_slots, by_degree=by_degree)
            filling = costs.warming_up(resources.num_slots)
        reading, issuing = machine.random_seconds(reads), costs.issuing(reads)
        return costs.one_by_one(self, resources, reads, reading, issuing=issuing, filling=filling)

    def open(self, loader: LoaderSpec, placement: Placement) -> OpenStore:
        """Open the tables, below the cache that was filled; fill it in another process."""
        return _CachedSources(loader, placement)


class _CachedSources(OpenStore):
    """The parts of a store, with rows in a static cache."""

    def open_cache(self, loader: LoaderSpec) -> StaticCache | None:
        """Return the cache; it is in use from now on, so that no other loader closes it."""
        cached = self.placement.cache
        maker = CacheMaker.of(loader, self.placement, self.topology, self.engine)
        if maker is None or cached is None or not cached.num_rows:
            return None
        cache = maker.open(cached.num_rows)
        shared_caches(loader.store).use(self, maker.key.kind, cache)
        return cache


def cache_rows(
    placement: Placement,
    settings: CacheSettings,
    cost: CacheCost,
    seen: Presampled,
    *,
    num_threads: int,
    staging_bytes: int = 0,
) -> int:
    """Return the number of nodes whose rows can be cached."""
    memory, batch_bytes = placement.ledger, seen.expected_bytes
    most = cost.rows_in(memory.left())
    if bytes_to_read(cost.num_nodes, cost.node_bytes, most) >= LONG_READ_BYTES:
        memory = memory.add(Reservation("filling the cache in the background", staging_bytes))
    if settings.num_bytes is not None:
        num_rows = cost.whole.rows_in(settings.num_bytes)
        cached = Reservation(CACHED, cost.bytes_of(num_rows))
        batches = {IN_FLIGHT: 2 * batch_bytes}
        with_batches(memory.add(cached)).check(batches, "lower cache_bytes=")
        return num_rows
    if not placement.budget_is_promise:
        return cost.rows_in(memory.left() // _CACHE_SHARE)
    sample_bytes = with_margin(seen.largest_ids_bytes)
    wish = prefetch_wish(memory.left(), batch_bytes, sample_bytes, num_threads)
    return cost.rows_in(memory.left() - with_batches(memory).solve(wish)[IN_FLIGHT])
