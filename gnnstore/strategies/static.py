"""Reserves, predicts and opens rows on disk, with a static cache of the rows needed most."""

from __future__ import annotations

import hashlib
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
    filled_up,
    num_that_fit,
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
from gnnstore.machine import Arrays, Machine
from gnnstore.pipeline.lookahead.presample import Presampled, with_margin
from gnnstore.pipeline.states import sampling_fingerprint
from gnnstore.strategies.base import OpenStore, Strategy
from gnnstore.strategies.device_rows import chosen_rows, left_out, row_degrees
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.options import CacheSettings
from gnnstore.strategies.placement import Placement, check_two_batches, prefetch_wish, with_batches
from gnnstore.strategies.prediction import EpochCosts, HardwareRates, Prediction, Resources
from gnnstore.strategies.sampled_epoch import MAX_COUNTED_EDGES, SampledEpoch
from gnnstore.strategies.workload import Workload
from gnnstore.threads import LONG_READ_BYTES
from gnnstore.units import format_size

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.graph.topology import Topology
    from gnnstore.pipeline.lookahead.presample import Presampler

_log = logging.getLogger(__name__)

# One part in so many of free memory for a cache without memory=: the model's needs are unknown.
_CACHE_SHARE = 2
# Bytes of rows that are read in the time in which an edge is counted.
_BYTES_FOR_AN_EDGE = 8


@dataclass(frozen=True, eq=False)
class CacheChoice:
    """The rows of a cache that is to be made, and the memory that batches take beside it."""

    num_rows: int  # as many would fit if all were of the widest type
    expected_bytes: int  # of the largest batch in flight
    nodes: npt.NDArray[np.int64]  # ascending
    scores: npt.NDArray[Any]  # of these nodes

    def fits(self, placement: Placement, cost: CacheCost) -> bool:
        """Whether a placement has room for the cache, and for two batches if it promises that."""
        batches = 2 * self.expected_bytes if placement.budget_is_promise else 0
        return cost.bytes_of(self.num_rows) + batches <= placement.left_bytes


@dataclass(frozen=True, eq=False)
class CacheMaker:
    """The inputs for the cache of a loader."""

    loader: LoaderSpec
    topology: Topology
    engine: Engine
    settings: CacheSettings
    tables: CachedTables

    @classmethod
    def for_loader(
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

    def choose(self, placement: Placement) -> CacheChoice:
        """Return what the first rank has chosen that has such a loader, if it fits, or choose anew.

        One rank samples for all so, and ranks with a thread more or less have the same cache.
        """

        def make() -> Arrays:
            own = self._choose(placement)
            return np.array([own.num_rows, own.expected_bytes]), own.nodes, own.scores

        room = placement.budget_bytes, placement.topology
        key, dtypes = f"{self.choice_key} in {room}", (np.int64, *self._dtypes)
        sizes, nodes, scores = self.machine.choose(key, dtypes, make)
        choice = CacheChoice(int(sizes[0]), int(sizes[1]), nodes, scores)
        if choice.fits(placement, self.cost):
            return choice
        _log.warning(
            "%s: the cache that the first rank of this machine chose, of %d rows, does not fit "
            "here, and this rank makes one of its own",
            *(self.loader.store.path, len(nodes)),
        )
        return self._choose(placement)

    @property
    def _dtypes(self) -> tuple[type, type]:
        return np.int64, SCORE_DTYPES[self.settings.score]

    @property
    def choice_key(self) -> str:
        """Return all that a choice of rows depends on, but for their number."""
        sampler, store = self.presampler, self.loader.store
        batches = sampling_fingerprint(store, sampler.config, sampler.seeds)
        shape = sampler.batch_size, sampler.in_order, sampler.pins
        paths = [spec.path for spec in self.tables.specs]
        held = self.loader.options.device_cache
        facts = f"{self.settings}{paths}{batches}{shape}{'' if held is None else held}"
        digest = hashlib.sha256(facts.encode()).hexdigest()[:16]
        return f"{store.reader.uuid} choice of rows by {self.settings.score} for {digest}"

    def _choose(self, placement: Placement) -> CacheChoice:
        counts = self.counts()
        num_rows, expected_bytes = self.size(placement, counts)
        if not num_rows:
            return CacheChoice(0, expected_bytes, np.empty(0, np.int64), np.empty(0, np.uint8))
        scores = self.scores() if counts is None else counts
        nodes = self._fitting(scores, num_rows)
        return CacheChoice(num_rows, expected_bytes, nodes, scores[nodes])

    def counts(self) -> npt.NDArray[np.uint8] | None:
        """Return room for the counts that score rows, if sampling does."""
        return np.zeros(self.num_rows, np.uint8) if self.settings.score == "frequency" else None

    def size(
        self, placement: Placement, counts: npt.NDArray[np.uint8] | None = None
    ) -> tuple[int, int]:
        """Return the number of rows that can be cached, and the bytes of the largest batch."""
        seen = Presampled(0, 0)
        if placement.budget_is_promise or counts is not None:
            seen = presampled(self.loader, self.presampler, self.topology, placement, counts)
        num_rows = cache_rows(
            *(placement, self.settings, self.cost, seen),
            num_threads=self.loader.num_threads,
            staging_bytes=self.engine.staging_bytes,
        )
        return num_rows, seen.expected_bytes

    def open(self, num_rows: int, choice: CacheChoice | None = None) -> StaticCache:
        """Return the cache; if there is none yet, fill it as chosen, or with the best rows."""
        store, machine = self.loader.store, self.machine
        shared, caches = shared_tables(store), shared_caches(store)
        name = f"{store.reader.uuid} cache by {self.settings.score}"

        def best() -> Arrays:
            scores = self.scores()
            nodes = self._best(scores, num_rows)
            return nodes, scores[nodes]

        def make() -> StaticCache:
            if machine.num_ranks > 1 and caches.close(self._key(1)):
                _log.warning(
                    "%s: the cache of an earlier loader without rank=, in memory of this process "
                    "alone, makes room for the cache of all ranks; the earlier loader reads its "
                    "rows; make the loader with rank= first, and later ones share its cache",
                    store.path,
                )
            tables = self.tables.open(lambda of: shared.rows_on_disk(store, of, self.engine))
            cache = StaticCache(tables, self.num_rows, machine, name)
            if choice is not None:
                nodes, scores = choice.nodes, choice.scores
            else:
                key = f"{name}: {num_rows} rows of {self.choice_key}"
                nodes, scores = machine.choose(key, self._dtypes, best)
            cache.warm_up(nodes, scores)
            return cache

        return caches.cache(self.key, make)

    def _fitting(self, scores: npt.NDArray[Any], num_rows: int) -> npt.NDArray[np.int64]:
        """Return the best nodes that take the memory of `num_rows` of the widest type, at most."""
        widest, node_bytes = self.tables.slot_bytes, self.cost.node_bytes
        row_bytes = {
            own: node_bytes - (widest - width) for own, width in self.tables.widths.items()
        }
        num_bytes = num_rows * node_bytes
        found = num_that_fit(scores, row_bytes, num_bytes)
        if found < self.num_rows and self._is_short(scores, found + 1):
            scores = self._filled_up(scores, num_rows)
            found = num_that_fit(scores, row_bytes, num_bytes)
        return select_nodes(scores, found)

    def _best(self, scores: npt.NDArray[Any], num_rows: int) -> npt.NDArray[np.int64]:
        """Return the best `num_rows` nodes, or fewer where no more have a score."""
        if self._is_short(scores, num_rows):
            scores = self._filled_up(scores, num_rows)
        return select_nodes(scores, num_rows)

    def _is_short(self, scores: npt.NDArray[Any], num_rows: int) -> bool:
        """Whether sampling has needed fewer than `num_rows` rows."""
        return self.settings.score == "frequency" and int(np.count_nonzero(scores)) < num_rows

    def _filled_up(self, counts: npt.NDArray[np.uint8], num_rows: int) -> npt.NDArray[Any]:
        """Return scores for a cache of `num_rows` rows, made in the memory that these will take."""
        left_bytes = num_rows * self.tables.slot_bytes - counts.nbytes
        num_edges = sum(csc.num_edges for csc in self.topology.csc.values())
        # No longer than reading so many rows takes, or two seconds.
        is_quick = num_edges <= max(MAX_COUNTED_EDGES, left_bytes // _BYTES_FOR_AN_EDGE)
        degrees_bytes = self.num_rows * np.dtype(SCORE_DTYPES["degree"]).itemsize
        if not is_quick or degrees_bytes > left_bytes:
            return counts
        return filled_up(counts, self._degrees)

    def _degrees(self) -> npt.NDArray[np.uint32]:
        """Return the out-degree of each row's node, 0 for rows that a device has."""
        degrees = row_degrees(self.topology, self.tables.space)
        if (held := self.loader.presampler.held) is not None:
            degrees[held.rows_in(self.tables.space)] = 0
        return degrees

    def scores(self) -> npt.NDArray[Any]:
        """Return the score of each row: uint8 or uint32 [N]."""
        if self.settings.score == "degree":
            return self._degrees()
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
        loader = left_out(loader, chosen_rows(loader, placement, topology))
        maker = CacheMaker.for_loader(loader, placement, topology, engine)
        cache = None if maker is None else caches.find_cache(maker.key)
        if maker is None:
            if placement.budget_is_promise:
                presampled(loader, loader.presampler, topology, placement)
            return placement
        note = ""
        if cache is None:
            if not placement.budget_is_promise:  # memory of other caches, which stay
                placement = placement.with_limit(placement.budget_bytes - caches.cached_bytes)
            note = maker.why_none(placement.left_bytes)
        if cache is None and not note and placement.trial_bytes == 0:
            choice = maker.choose(placement)
            if choice.num_rows:
                cache = maker.open(choice.num_rows, choice)
        else:
            counts = maker.counts() if cache is None and not note else None
            num_rows, expected_bytes = maker.size(placement, counts)
            most = placement.left_bytes - 2 * expected_bytes
            if cache is not None and placement.budget_is_promise and cache.num_bytes > most:
                cache.shrink(num_rows, maker.cost.rows_in(most), maker.choice_key)
        note = note or "batches leave no room for more"
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
        maker = CacheMaker.for_loader(loader, self.placement, self.topology, self.engine)
        if maker is None or cached is None or not cached.num_rows:
            return None
        cache = maker.open(cached.num_rows)
        shared_caches(loader.store).use(self, maker.key.kind, cache)
        return cache


def presampled(
    loader: LoaderSpec,
    presampler: Presampler,
    topology: Topology,
    placement: Placement,
    counts: npt.NDArray[np.uint8] | None = None,
) -> Presampled:
    """Sample batches, count the rows that they need, and check a promised budget for two batches.

    Without a promise the sizes of batches do not matter, and are none.
    """
    spare = placement.spare_bytes
    if spare is not None and counts is not None:
        spare = max(0, spare - counts.nbytes)
    found = presampler.run(topology, loader.num_threads, counts, spare_bytes=spare)
    if not placement.budget_is_promise:
        return Presampled(0, 0)
    release_memory()  # the samples' buffers, which would stay until the first batch
    check_two_batches(placement.ledger, found.expected_bytes)
    return found


def cache_rows(
    placement: Placement,
    settings: CacheSettings,
    cost: CacheCost,
    seen: Presampled,
    *,
    num_threads: int,
    staging_bytes: int = 0,
) -> int:
    """Return the number of nodes for which the cache has room."""
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
