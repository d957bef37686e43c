"""The batches of epochs to pack, sampled and planned as a loader with strategy "packed" does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import SLOTS
from gnnstore.caching.policies import Fixed
from gnnstore.caching.scores import SCORES, Score
from gnnstore.errors import UsageError, check_choice
from gnnstore.features.held import HeldRows
from gnnstore.features.planned import SlotCache
from gnnstore.features.tables import CachedTables
from gnnstore.formats.packed import MAX_SLOTS, PackedPart
from gnnstore.loaders.options import read_options
from gnnstore.pipeline.batch import EpochRun, Recorder
from gnnstore.pipeline.lookahead.presample import Presampled, Presampler
from gnnstore.pipeline.lookahead.producer import Producer
from gnnstore.pipeline.lookahead.superbatch import Superbatch, SuperbatchSize
from gnnstore.pipeline.order import Position
from gnnstore.pipeline.ranks import KeyedOrder
from gnnstore.pipeline.shuffle import order_bytes
from gnnstore.pipeline.states import OrderFields, sampling_fingerprint
from gnnstore.progress import NullProgress
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.seeds.base import SeedSource
from gnnstore.seeds.nodes import resolve_input_nodes
from gnnstore.strategies.auto import open_sources
from gnnstore.strategies.device_rows import left_out, reservations, row_degrees
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.lookahead import make_job, policy_of
from gnnstore.strategies.options import DeviceCache
from gnnstore.strategies.placement import read_tables
from gnnstore.strategies.registry import PACKED
from gnnstore.strategies.sampled_epoch import sample_workload
from gnnstore.strategies.superbatch_memory import MissModel, size_packing
from gnnstore.units import format_count, parse_size

if TYPE_CHECKING:
    from gnnstore.caching.policies import Planner
    from gnnstore.graph.store import GraphStore

# Enough batches to estimate the sizes of records.
_BATCHES = 32

# Policies of cached rows; the first is the default, as in strategy "packed".
CACHED_BY = (PACKED.policy, *SCORES)


@dataclass(frozen=True)
class PackSettings:
    """The epochs, seeds and sampling options that are packed."""

    config: SamplingConfig  # sampling options, with the seed
    input_nodes: Any  # a split, or as in `NeighborLoader`; None: all nodes
    batch_size: int
    epochs: int
    seeds: SeedSource | None = None  # the source of seeds; None: `input_nodes`
    shuffle: bool = True
    drop_last: bool = False
    # Score or policy that chooses the cached rows: "degree" or "frequency", as in `NeighborLoader`,
    # or "belady", the default (None).
    cache: str | None = None
    # These four as in `NeighborLoader`, for packing and for the cache of training.
    memory: int | str | None = None
    cache_bytes: int | str | None = None
    superbatch: int | None = None
    device_cache: int | None = None  # memory of a device for rows that no batch misses
    topology: str = "auto"
    disk_bytes: int | None = None  # the most that the epochs may take; None: what is free
    # Batches that share rows on disk; 1: each has its own; None: as many as `disk_bytes` asks for
    # (see `estimate_packing`).
    segment: int | None = None
    # The part that is packed, i of n, with the same bytes on every machine; None: all.
    part: tuple[int, int] | None = None
    # For subgraphs that do not fit `memory`; None: next to the store.
    spill_dir: Path | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise UsageError(
                f"epochs={self.epochs} of batches of {self.batch_size} input nodes: at least 1 of "
                "each is needed"
            )
        check_choice("cache", self.cached_by, CACHED_BY)
        if self.part is None:
            return
        number, of = self.part
        who = f"part {number} of {of}"
        if not 0 <= number < of:
            raise UsageError(
                f"{who}: parts are numbered from 0; give one from 0/{of} to {of - 1}/{of}"
            )
        if not self.is_fixed:
            raise UsageError(
                f"{who}: with cache={self.cached_by} each batch depends on all before; choose "
                "cache=frequency or cache=degree"
            )
        if self.cache_bytes is None:
            raise UsageError(
                f"{who}: without cache_bytes= the memory of each machine would decide what is "
                "cached, and parts would differ; give cache_bytes=SIZE, the same for all"
            )
        if self.segment not in (None, 1):
            raise UsageError(
                f"{who}: rows that batches share depend on the memory of a machine; leave "
                f"segment={self.segment} out, or pack all in one"
            )

    @property
    def cached_by(self) -> str:
        """The policy that chooses the cached rows."""
        return self.cache or CACHED_BY[0]

    @property
    def is_fixed(self) -> bool:
        """Whether the cached rows are the same for all batches."""
        return self.cached_by in SCORES

    def seeds_in(self, store: GraphStore) -> SeedSource:
        """Return the source of seeds."""
        return resolve_input_nodes(store, self.input_nodes) if self.seeds is None else self.seeds

    def order_of(self, store: GraphStore, seeds: SeedSource) -> KeyedOrder:
        """Return the order of the batches; refuse seeds that make none, or too few for a part."""
        order = KeyedOrder(len(seeds), self.batch_size, self.shuffle, self.drop_last)
        if order.num_batches == 0:
            raise UsageError(
                f"{store.path}: {format_count(len(seeds), 'seed')}, without a whole "
                f"batch of {self.batch_size}, so there is nothing to pack; choose others"
            )
        total = self.epochs * order.num_batches
        if self.part is not None and self.part[1] > total:
            raise UsageError(
                f"part {self.part[0]} of {self.part[1]}: {format_count(total, 'batch')} in all, "
                f"fewer than parts; choose at most {format_count(total, 'part')}"
            )
        return order

    def fingerprint(self, store: GraphStore, seeds: SeedSource) -> dict[str, Any]:
        """Return the options that the batches depend on, except the seed, as in a state."""
        order = OrderFields(self.batch_size, self.drop_last, self.shuffle)
        return {**sampling_fingerprint(store, self.config, seeds), **order._asdict()}

    def cached_in(self, store: GraphStore) -> CachedTables | None:
        """Return the attributes that a part caches, with any memory; None without parts."""
        if self.part is None:
            return None
        found = read_tables(store.schema.node_attributes())
        return CachedTables.from_schema(store.schema, {spec.path for spec in found})

    def slots_of(self, tables: CachedTables) -> int:
        """Return the rows that a part caches at most, by the size of the cache and the schema."""
        assert self.cache_bytes is not None  # noqa: S101 - checked above
        if not tables.slot_bytes:
            return 0
        each = SlotCache.reserve(tables.slot_bytes).bytes_of({SLOTS: 1})
        most = min(tables.space.num_rows, MAX_SLOTS)
        return min(most, parse_size(self.cache_bytes, name="cache_bytes") // each)


class EpochSampler:
    """Samples and plans the batches of epochs to pack, superbatch by superbatch."""

    def __init__(self, store: GraphStore, settings: PackSettings) -> None:
        self.store = store
        self.settings = settings
        self.seeds = settings.seeds_in(store)
        self._order = settings.order_of(store, self.seeds)
        self.batches_per_epoch = self._order.num_batches
        cached = settings.cached_in(store)
        presampler = Presampler.from_store(
            store, settings.config, self.seeds, settings.batch_size, not settings.shuffle
        )
        presampler = replace(presampler, counts_alike=cached is not None)
        options = read_options(
            strategy=PACKED.name,
            topology=settings.topology,
            memory=settings.memory,
            io_engine=None,
            cache=None if settings.cached_by == PACKED.policy else settings.cached_by,
            cache_bytes=settings.cache_bytes,
            superbatch=settings.superbatch,
            spill_dir=settings.spill_dir,
        )
        if settings.device_cache:  # chosen by the score of the cached rows, if they have one
            score = cast("Score", settings.cached_by if settings.is_fixed else "frequency")
            # A unique name: rows are chosen by these seeds and fan-outs alone.
            name = f"packed epochs {id(self)}"
            held = DeviceCache(settings.device_cache, score, name)
            options = replace(options, device_cache=held)
        # Sized as `gnnstore predict` sizes packed epochs.
        options = replace(options, strategy=replace(PACKED, is_offline=True))
        seeds_bytes = self.seeds.num_bytes
        seeds_bytes += order_bytes(len(self.seeds), shuffles=settings.shuffle, num_orders=1)
        # The store's parts, opened within the budget of memory.
        spec = LoaderSpec(
            store,
            options,
            presampler,
            seeds_bytes=seeds_bytes,
            num_threads=settings.num_threads,
            may_use_fewer=True,
            of_device=tuple(reservations(options.device_cache, store.schema)),
            cached=None if cached is None else frozenset(cached.owners),
        )
        self.sources = open_sources(spec)
        self._loader = spec = left_out(spec, self.sources.chosen)
        placement, presampler = self.sources.placement, spec.presampler
        self.tables = spec.cached_tables(placement)
        self.held = self._held_rows()
        rolling = placement.superbatch
        # Pools of the slots of cached rows, if they are of several widths.
        self.pools = None if rolling is None else rolling.pools
        # Memory that is left for superbatches, and for the cache of training.
        self.size = size_packing(
            placement,
            row_bytes=self.tables.slot_bytes if self.pools is None else self.pools.slot_bytes,
            num_rows=self.tables.space.num_rows,
            seeds_bytes=seeds_bytes,
            num_batches=max(len(batches) for _, batches in self.epochs),
            cache_is_given=settings.cache_bytes is not None,
            superbatch_is_given=settings.superbatch is not None,
        )
        if cached is not None:
            self.size = self.size._replace(num_slots=settings.slots_of(cached))
        self._sampler = self.sources.topology.sampler(settings.config, store.schema.index_dtype)
        self._presampler = presampler.over(self.tables.space)
        self.policy = policy_of(spec, placement, self.sources.topology, self.sources.engine)
        # Keeps as many subgraphs in memory as a loader would.
        kept = rolling is not None and rolling.in_memory
        size = SuperbatchSize(
            2 * rolling.num_batches if rolling is not None and kept else 0, 0, kept
        )
        if rolling is not None:
            size = replace(size, table_bytes=rolling.table_bytes, bulk_bytes=rolling.bulk_bytes)
        topology = self.sources.topology
        # Rows are packed by the job, and not by the producer of superbatches.
        self._job = replace(make_job(spec, placement, topology, self.policy, size), packs=False)
        self._closing = ExitStack()

    def _held_rows(self) -> HeldRows | None:
        """Return the rows that a device is to hold; refuse a size that has no room for any."""
        asked, chosen = self.settings.device_cache, self.sources.chosen
        if not asked:
            return None
        if not self.tables.specs:
            raise UsageError(
                f"{self.store.path}: no attribute of nodes is read from disk with this memory, so "
                "that there are no rows for a device to hold; leave out --device-cache"
            )
        if chosen is None or not len(chosen.held.rows_in(self.tables.space)):
            raise UsageError(
                f"device_cache={asked} has no room for a row of {self.tables.slot_bytes} bytes; "
                "raise --device-cache, or leave it out"
            )
        return chosen.held

    @property
    def device_nodes(self) -> npt.NDArray[np.int64]:
        """The numbers of the rows that a device is to hold, ascending."""
        held, space = self.held, self.tables.space
        return np.empty(0, np.int64) if held is None else held.rows_in(space)

    @cached_property
    def sampled(self) -> tuple[MissModel | None, Presampled]:
        """Batches that were sampled for an estimate: how often rows are needed, and the largest."""
        sources, tables, placement = self.sources, self.tables, self.sources.placement
        topology, num_threads = sources.topology, self.settings.num_threads
        # Nothing is packed yet.
        spare_bytes = placement.ledger.left() if placement.budget_is_promise else None
        if sources.engine is None or not tables.specs:
            return None, self._presampler.run(
                topology, num_threads, spare_bytes=spare_bytes, num_batches=_BATCHES
            )
        seen, workload = sample_workload(
            self._loader,
            tables,
            topology,
            sources.engine,
            num_threads=num_threads,
            spare_bytes=spare_bytes,
            progress=NullProgress(),
        )
        if self.settings.cached_by == "degree":
            workload = workload.with_degrees(row_degrees(topology, tables.space))
        return MissModel(workload, self.policy, by_degree=workload.degree is not None), seen

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The options that the batches depend on, except the seed, as in a loader's state."""
        return self.settings.fingerprint(self.store, self.seeds)

    def part(self, cached_crc32c: int) -> PackedPart:
        """Return the part that is packed; without one, all."""
        total = self.settings.epochs * self.batches_per_epoch
        return PackedPart.divided(*(self.settings.part or (0, 1)), total, cached_crc32c)

    @property
    def epochs(self) -> list[tuple[int, range]]:
        """The epochs that are packed, and the batches of each."""
        each, part = self.batches_per_epoch, self.part(0)
        first, end = part.first_batch, part.first_batch + part.num_batches
        return [
            (epoch, range(max(first - epoch * each, 0), min(end - epoch * each, each)))
            for epoch in range(first // each, -(-end // each))
        ]

    def cached_nodes(self, num_slots: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows that are cached for all batches, ascending.

        Empty with Belady's policy.
        """
        if not isinstance(self.policy, Fixed):
            return np.empty(0, np.int64)
        return self.policy.nodes(num_slots)

    def superbatches(
        self,
        epoch: int,
        superbatch: int,
        planner: Planner,
        batches: range,
        *,
        reads_edges: bool = True,
    ) -> Iterator[Superbatch]:
        """Sample and plan batches of an epoch; numbers count all epochs together."""
        settings = self.settings
        run = EpochRun(
            settings.config.seed,
            epoch,
            first=0,
            num_threads=settings.num_threads,
            joins_in_threads=False,
            initializer=None,
            timeout_seconds=None,
            describe=lambda k: f"while sampling batch {k} of epoch {epoch}",
            recorder=Recorder(),
        )
        producer = Producer(
            self._job,
            self.seeds.over(self.sources.topology),
            self._sampler,
            run,
            purpose="the batches that 'gnnstore pack' has sampled",
        )
        self._closing.callback(producer.close)
        wanted = list(run.batches(self._order, Position(epoch)))
        for first in batches[::superbatch]:
            number = epoch * self.batches_per_epoch + first
            some = wanted[first : min(first + superbatch, batches.stop)]
            sampled = producer.sample(number, some, reads_edges=reads_edges)
            try:
                if sampled.error is not None:
                    raise sampled.error
                producer.plan(sampled, planner)
            except BaseException:
                sampled.close()
                raise
            yield sampled

    def close(self) -> None:
        """Remove the scratch files. Idempotent."""
        self._closing.close()
