"""The batches of epochs to pack, sampled and planned as a loader with strategy "packed" does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnstore.caching.scores import SCORES
from gnnstore.errors import UsageError, check_choice
from gnnstore.features.tables import CachedTables
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
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.lookahead import make_job, policy_of
from gnnstore.strategies.registry import PACKED
from gnnstore.strategies.sampled_epoch import row_degrees, sample_workload
from gnnstore.strategies.superbatch_memory import MissModel, size_packing

if TYPE_CHECKING:
    from gnnstore.caching.policies import Planner
    from gnnstore.graph.store import GraphStore

# Enough to tell the sizes of records.
_BATCHES = 32

# The first by default: that of strategy "packed".
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
    topology: str = "auto"
    disk_bytes: int | None = None  # the most that the epochs may take; None: what is free
    # Batches that share rows on disk; 1: each has its own; None: as many as `disk_bytes` asks for
    # (see `estimate_packing`).
    segment: int | None = None
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

    @property
    def cached_by(self) -> str:
        """The policy that chooses the cached rows."""
        return self.cache or CACHED_BY[0]


class EpochSampler:
    """Samples and plans the batches of epochs to pack, superbatch by superbatch."""

    def __init__(self, store: GraphStore, settings: PackSettings) -> None:
        self.store = store
        self.settings = settings
        self.seeds: SeedSource = (
            resolve_input_nodes(store, settings.input_nodes)
            if settings.seeds is None
            else settings.seeds
        )
        self._order = KeyedOrder(
            len(self.seeds), settings.batch_size, settings.shuffle, settings.drop_last
        )
        self.batches_per_epoch = self._order.num_batches
        if self.batches_per_epoch == 0:
            raise UsageError(
                f"{store.path}: {len(self.seeds)} seeds make no batch of "
                f"{settings.batch_size}, so there is nothing to pack; choose others"
            )
        presampler = Presampler.of(
            store, settings.config, self.seeds, settings.batch_size, not settings.shuffle
        )
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
        )
        self._loader, self.sources = spec, open_sources(spec)
        placement = self.sources.placement
        self.tables = CachedTables.of(store.schema, placement.read_paths)
        rolling = placement.superbatch
        # Pools of the slots of cached rows, if they are of several widths.
        self.pools = None if rolling is None else rolling.pools
        # Memory that is left for superbatches, and for the cache of training.
        self.size = size_packing(
            placement,
            row_bytes=self.tables.slot_bytes if self.pools is None else self.pools.slot_bytes,
            num_rows=self.tables.space.num_rows,
            seeds_bytes=seeds_bytes,
            num_batches=self.batches_per_epoch,
            cache_is_given=settings.cache_bytes is not None,
            superbatch_is_given=settings.superbatch is not None,
        )
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
        settings = self.settings
        order = OrderFields(settings.batch_size, settings.drop_last, settings.shuffle)
        return {
            **sampling_fingerprint(self.store, settings.config, self.seeds),
            **order._asdict(),
        }

    def superbatches(
        self, epoch: int, superbatch: int, planner: Planner, *, reads_edges: bool = True
    ) -> Iterator[Superbatch]:
        """Sample and plan the batches of an epoch; numbers are those of all epochs together."""
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
        for first in range(0, len(wanted), superbatch):
            number = epoch * self.batches_per_epoch + first
            batches = wanted[first : first + superbatch]
            sampled = producer.sample(number, batches, reads_edges=reads_edges)
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
