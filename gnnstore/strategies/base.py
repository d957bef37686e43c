"""A strategy: it reserves memory for a loader, predicts an epoch, and opens the loader's data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

from gnnstore.caching.scores import SCORES
from gnnstore.disk.engines import Engine
from gnnstore.features.held import ChosenRows
from gnnstore.features.shared_rows import SharedRows
from gnnstore.features.source import RowSource
from gnnstore.graph.table_registry import shared_tables
from gnnstore.pipeline.batch import SamplingSource
from gnnstore.strategies.device_rows import chosen_rows, left_out
from gnnstore.strategies.loader_spec import EdgeIds, LoaderSpec
from gnnstore.strategies.options import Mode, StrategyTraits
from gnnstore.strategies.placement import Placement

if TYPE_CHECKING:
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.formats.store.schema import EdgeType
    from gnnstore.pipeline.stats import LoaderStats
    from gnnstore.sampling.neighbor import NeighborSampler, SamplingConfig
    from gnnstore.seeds.base import SeedSource
    from gnnstore.strategies.prediction import Prediction
    from gnnstore.strategies.sampled_epoch import SampledEpoch


@dataclass(frozen=True)
class Strategy(StrategyTraits, ABC):
    """A way to reach the rows of attributes."""

    summary: str = ""  # description in one line, for --help and the docs
    alias_of: str = ""  # the strategy of which it is a special case
    takes_cache: bool = False  # whether `cache=` may name a score for rows

    @property
    def candidates(self) -> tuple[Strategy, ...]:
        """The strategy with each of the options that predictions compare."""
        scored = [replace(self, score=score) for score in SCORES] if self.caches else [self]
        packed = [replace(self, is_offline=True)] if self.packed_before else []
        return (*scored, *packed)

    @abstractmethod
    def reserve(self, loader: LoaderSpec, placement: Placement) -> Placement:
        """Divide the memory of a loader, by samples of its batches.

        Parameters
        ----------
        placement : Placement
            Where the store's parts lie, with the ledger to which the strategy adds its own
            reservations.

        Raises
        ------
        BudgetError
            If two batches, or the strategy's other memory, do not fit.
        """

    @abstractmethod
    def predict(self, epoch: SampledEpoch, loader: LoaderSpec, placement: Placement) -> Prediction:
        """Predict an epoch, with the memory that `reserve` would give.

        Raises
        ------
        BudgetError
            As in `reserve`.
        """

    @abstractmethod
    def open(self, loader: LoaderSpec, placement: Placement) -> OpenStore:
        """Open a store's parts where they were placed, with the sizes that were reserved."""


@dataclass(frozen=True)
class Auto(StrategyTraits):
    """The choice among strategies that `strategy="auto"` leaves to predictions.

    A cache of other loaders is shared until another strategy is chosen.
    """

    name: str = "auto"
    mode: Mode = "disk"
    caches: bool = True
    strategies: tuple[Strategy, ...] = ()  # in the order in which they are predicted

    @property
    def candidates(self) -> tuple[Strategy, ...]:
        """All candidates for predictions, epochs of `gnnstore pack` included."""
        return tuple(found for strategy in self.strategies for found in strategy.candidates)

    @property
    def loadable(self) -> tuple[Strategy, ...]:
        """Return the candidates among which a loader chooses by predictions."""
        return tuple(s for s in self.candidates if s.mode != "memory" and not s.is_offline)

    @property
    def on_disk(self) -> Auto:
        """The choice among those that do not load everything into memory."""
        return replace(self, strategies=tuple(s for s in self.strategies if s.mode != "memory"))

    @property
    def by_choice(self) -> dict[str, Strategy]:
        """The candidates by name; "static" alone has the score that `cache=` has by default."""
        found: dict[str, Strategy] = {}
        for candidate in self.candidates:
            found |= {candidate.name: candidate} if candidate.score else {}
            found[candidate.choice] = candidate
        return found

    @property
    def by_mode(self) -> dict[Mode, Strategy]:
        """The strategies that are taken without predictions, by the place of rows."""
        found: dict[Mode, Strategy] = {}
        for strategy in self.strategies:
            if not strategy.alias_of and not strategy.plans:
                found.setdefault(strategy.mode, strategy)
        return found

    def fallback(self, mode: Mode) -> Strategy:
        """Return the candidate that is taken without predictions."""
        # The last one with a score: a cache is filled by it unless `cache=` names another.
        return self.by_mode[mode].candidates[-1]


class Sources:
    """The tables, topology and caches of a loader, opened within its budget.

    Pickles as the call that makes it, not as data: a copy in another process opens its own files.
    """

    placement: Placement  # the places of all parts, with the reason
    engine: Engine | None  # the engine that reads rows from disk, if any are read
    num_threads: int  # threads that may read at once, by their memory
    tables: Mapping[str, RowSource]  # rows of the attributes of nodes and edges, by path
    # Ids of the edges in the input, by position; of types that are not here, positions are ids.
    edge_ids: Mapping[EdgeType, RowSource]
    e_id: EdgeIds | None = "input"  # what batches show
    chosen: ChosenRows | None = None  # the rows that stay on the device
    _again: Callable[[], Sources]

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Keep the arguments, from which copies are made."""
        made = super().__new__(cls)
        made._again = partial(cls, *arguments, **named)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return (self._again, ())

    @property
    def cached_by(self) -> str:
        """Name of the score or strategy that chose the cached rows; empty without a cache."""
        return ""

    @property
    def num_cached(self) -> int:
        """Nodes whose rows are cached, or have room to be."""
        return 0

    def account(self, stats: LoaderStats) -> LoaderStats:
        """Return the statistics of a loader, with the reads and times of this source."""
        return replace(stats, cache_rows=self.num_cached)


class RowCache(Protocol):
    """A cache of rows of some tables."""

    @property
    def num_rows(self) -> int:
        """Nodes with cached rows."""

    def holds(self, path: str) -> bool:
        """Whether rows of this table are cached."""

    def rows(self, path: str) -> RowSource:
        """Return one of the tables, its cached rows included."""


class OpenStore(Sources):
    """The graph's topology and the rows of all attributes, open to be read.

    A copy in another process fills a cache of the same rows.
    """

    def __init__(self, loader: LoaderSpec, placement: Placement) -> None:
        self._index_dtype = loader.store.schema.index_dtype
        self.e_id = loader.options.edge_ids
        store, num_threads = loader.store, loader.num_threads
        engine = loader.open_engine(placement.topology) if placement.reads_disk else None
        self.placement, self.engine = placement, engine
        self.topology = loader.open_topology(placement, engine)
        self.chosen = chosen_rows(loader, placement, self.topology)
        if self.chosen is not None:
            loader = left_out(loader, self.chosen)
            if self.chosen.num_bytes:
                self.placement = placement = placement.because(self.chosen.describe())
        # Before tables are loaded, which takes a while.
        self.cache = cache = self.open_cache(loader)
        self.num_threads = num_threads
        if engine is not None:
            self.num_threads = placement.staging_bytes // engine.staging_bytes
        shared = shared_tables(store)

        def open_rows(spec: AttributeSpec) -> RowSource:
            if spec.path in elsewhere:
                array, rows = elsewhere[spec.path]
                return SharedRows(open_rows(array), open_rows(rows))
            if cache is not None and cache.holds(spec.path):
                return cache.rows(spec.path)
            mode = placement.modes.get(spec.path, "memory")  # others are stored compressed
            if mode == "disk" and engine is not None:
                return shared.rows_on_disk(store, spec, engine)
            with loader.progress.phase(f"load {spec.path}"):
                return shared.rows(
                    store,
                    spec,
                    "memory" if mode == "memory" else "mmap",
                    num_threads,
                    loader.machine,
                )

        schema = store.schema
        elsewhere = schema.shared_rows()
        attributes = (*schema.node_attributes(), *schema.edge_attributes())
        self.tables = {spec.path: open_rows(spec) for spec in attributes}
        self.edge_ids = {
            edge.type: open_rows(edge.edge_id)
            for edge in schema.edge_types
            if edge.edge_id is not None and self.e_id == "input"
        }

    def open_cache(self, loader: LoaderSpec) -> RowCache | None:  # noqa: ARG002 - for subclasses
        """Return the cache that rows of some tables are taken from."""
        return None

    @property
    def cached_by(self) -> str:
        """Name of the score or strategy that chose the cached rows; empty without a cache."""
        return (
            "" if self.cache is None or self.placement.cache is None else self.placement.cache.score
        )

    @property
    def num_cached(self) -> int:
        """Nodes whose rows are cached, or have room to be."""
        return 0 if self.cache is None else self.cache.num_rows

    def sampler(self, config: SamplingConfig) -> NeighborSampler:
        """Return a sampler of the graph."""
        return self.topology.sampler(config, self._index_dtype)

    def batches(self, seeds: SeedSource, config: SamplingConfig) -> SamplingSource:
        """Return the batches that start from some seeds, prepared as the strategy does."""
        return SamplingSource(self, seeds, config)

    def account(self, stats: LoaderStats) -> LoaderStats:
        """Return the statistics of a loader, with reads of the graph."""
        counts = self.topology.counts
        return replace(
            super().account(stats),
            topology_reads=counts.reads,
            topology_bytes_read=counts.bytes_read,
        )
