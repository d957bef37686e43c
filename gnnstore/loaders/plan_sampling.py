"""The batches of a plan, sampled and planned as a loader with strategy "packed" does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError
from gnnstore.io.kept_subgraphs import KeptSubgraphs, SubgraphsInMemory, SubgraphsOnDisk
from gnnstore.io.run_directory import RunDirectory, default_parent
from gnnstore.loaders.ahead import sample_in_order
from gnnstore.loaders.options import read_options
from gnnstore.loaders.presampling import Presampler
from gnnstore.loaders.seeds import batches_in_order, epoch_permutation, resolve_input_nodes
from gnnstore.loaders.state import sampling_fingerprint
from gnnstore.loaders.tables import ReadRequest, open_tables
from gnnstore.planning.plan_size import size_plan
from gnnstore.planning.trace_builder import TraceBuilder
from gnnstore.sampling.compact import CompactSubgraph
from gnnstore.sampling.neighbor import SamplingConfig

if TYPE_CHECKING:
    from gnnstore.formats.schema import AttributeSpec
    from gnnstore.planning.belady import SuperbatchPlan, Trace
    from gnnstore.planning.planners import Planner
    from gnnstore.store import GraphStore

# Rolling packing must fit a budget of disk with every superbatch; here all are kept, and what
# they take is compared with the budget as a whole.
_NO_DISK_LIMIT = 2**62


@dataclass(frozen=True)
class PlanSettings:
    """What is to be packed.

    Attributes
    ----------
    config : SamplingConfig
        How to sample, the seed included.
    input_nodes : str or None
        A split; None: all nodes.
    batch_size, epochs : int
    shuffle, drop_last : bool
    memory, cache_bytes, superbatch, topology
        As of `NeighborLoader`, for packing and for the cache of training.
    disk_bytes : int or None
        The most that the plan may take; None: what is free.
    tmpdir : Path or None
        For subgraphs that `memory` has no room for; None: beside the store.
    num_threads : int
    """

    config: SamplingConfig
    input_nodes: str | None
    batch_size: int
    epochs: int
    shuffle: bool = True
    drop_last: bool = False
    memory: int | str | None = None
    cache_bytes: int | str | None = None
    superbatch: int | None = None
    topology: str = "auto"
    disk_bytes: int | None = None
    tmpdir: Path | None = None
    num_threads: int = 1

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise UsageError(
                f"epochs={self.epochs} of batches of {self.batch_size} input nodes: at least 1 of "
                "each is needed"
            )


@dataclass(eq=False)
class SampledSuperbatch:
    """Batches of one epoch, sampled and planned.

    Attributes
    ----------
    first : int
        Number of the first in all epochs together.
    """

    first: int
    kept: KeptSubgraphs
    trace: Trace
    plan: SuperbatchPlan
    input_ids: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.kept.num_bytes + self.trace.ids.nbytes + self.plan.num_bytes


class PlanSampler:
    """Samples and plans the batches of a plan, superbatch by superbatch.

    Parameters
    ----------
    store : GraphStore
    settings : PlanSettings

    Attributes
    ----------
    tables : Tables
        The store's parts, opened within the budget of memory.
    size : PlanSize
        What that leaves for superbatches, and for the cache of training.
    batches_per_epoch : int

    Raises
    ------
    BudgetError
        If `memory` has no room for two batches and their plans.
    GnnstoreError
        If the store or the input nodes cannot be used.
    """

    def __init__(self, store: GraphStore, settings: PlanSettings) -> None:
        self.store = store
        self.settings = settings
        self.seeds = resolve_input_nodes(store, settings.input_nodes)
        whole = self.seeds.num_seeds // settings.batch_size
        rest = 0 if settings.drop_last else int(self.seeds.num_seeds % settings.batch_size > 0)
        self.batches_per_epoch = whole + rest
        if self.batches_per_epoch == 0:
            raise UsageError(
                f"{store.path}: {self.seeds.num_seeds} input nodes make no batch of "
                f"{settings.batch_size}, so there is nothing to pack; choose other input nodes"
            )
        options = read_options(
            strategy="packed",
            topology=settings.topology,
            memory=settings.memory,
            io_engine=None,
            cache=None,
            cache_bytes=settings.cache_bytes,
            superbatch=settings.superbatch,
            tmpdir=settings.tmpdir,
            disk=_NO_DISK_LIMIT,
        )
        seeds_bytes = 8 * self.seeds.num_seeds * (4 if settings.shuffle else 2)
        self.tables = open_tables(
            ReadRequest(
                store,
                options,
                Presampler.of(
                    store, settings.config, self.seeds, settings.batch_size, not settings.shuffle
                ),
                seeds_bytes=seeds_bytes,
                num_threads=settings.num_threads,
                may_use_fewer=True,
            )
        )
        rolling = self.tables.placement.superbatch
        self._bulk_bytes = None if rolling is None else rolling.bulk_bytes
        # As many subgraphs as a loader would keep in memory.
        self._most_in_memory = 2 * rolling.num_batches if rolling and rolling.in_memory else 0
        specs = [s for s in store.schema.node.attributes.values() if self.is_read(s)]
        self.size = size_plan(
            self.tables.placement,
            row_bytes=sum(spec.num_bytes // max(1, spec.num_rows) for spec in specs),
            num_rows=store.num_nodes,
            seeds_bytes=seeds_bytes,
            num_batches=self.batches_per_epoch,
            cache_is_given=settings.cache_bytes is not None,
            superbatch_is_given=settings.superbatch is not None,
        )
        self._sampler = self.tables.structure.sampler(settings.config, store.schema.index_dtype)
        self._run: RunDirectory | None = None

    def is_read(self, spec: AttributeSpec) -> bool:
        """Whether rows of an attribute are read from disk, so that they are cached and packed."""
        return self.tables.placement.modes.get(spec.path) == "direct"

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What the batches depend on besides the seed, as of a loader."""
        settings = self.settings
        return {
            **sampling_fingerprint(self.store, settings.config, self.seeds),
            "batch_size": settings.batch_size,
            "drop_last": settings.drop_last,
            "shuffle": settings.shuffle,
            "sampler": None,
        }

    def superbatches(
        self, epoch: int, superbatch: int, planner: Planner, most: int | None = None
    ) -> Iterator[SampledSuperbatch]:
        """Sample and plan the batches of an epoch.

        Parameters
        ----------
        superbatch : int
            Batches at a time.
        most : int, optional
            Leave it at so many batches.

        Yields
        ------
        SampledSuperbatch
            To be closed by the caller.
        """
        settings = self.settings
        order: Any = range(self.seeds.num_seeds)
        if settings.shuffle:
            order = epoch_permutation(self.seeds.num_seeds, settings.config.seed, epoch)
        batches = batches_in_order(order, settings.batch_size, drop_last=settings.drop_last)
        wanted = list(islice(batches, most))
        for first in range(0, len(wanted), superbatch):
            yield self._sample(epoch, first, wanted[first : first + superbatch], planner)

    def _sample(
        self, epoch: int, first: int, batches: list[Any], planner: Planner
    ) -> SampledSuperbatch:
        csc = self.tables.structure.csc
        trace = TraceBuilder(len(batches), csc.num_nodes)
        input_ids: dict[int, npt.NDArray[np.int64]] = {}
        kept = self._keep(first, len(batches))

        def request(place: int, index: Any) -> tuple[npt.NDArray[np.int64], int, int]:
            nodes, input_ids[place] = self.seeds.select(index)
            return nodes, epoch, first + place

        def keep(place: int, subgraph: Any, _: float) -> None:
            compact = CompactSubgraph.of(subgraph, csc.num_nodes, csc.num_edges)
            trace.put(place, compact.n_id)
            kept.put(place, compact)

        try:
            sampled = sample_in_order(
                self._sampler,
                batches,
                request,
                keep,
                num_threads=self.settings.num_threads,
                lookahead=lambda: 2 * self.settings.num_threads,
                bulk_bytes=self._bulk_bytes,
                describe=lambda k: f"while sampling batch {first + k} of epoch {epoch}",
            )
            with closing(sampled):
                for _ in sampled:
                    pass
            built = trace.build()
            plan = planner.plan(built)
        except BaseException:
            kept.close()
            raise
        number = epoch * self.batches_per_epoch + first
        return SampledSuperbatch(number, kept, built, plan, input_ids)

    def _keep(self, first: int, num_batches: int) -> KeptSubgraphs:
        if num_batches <= self._most_in_memory:
            return SubgraphsInMemory()
        if self._run is None:
            parent = self.settings.tmpdir or default_parent(self.store.path)
            self._run = RunDirectory.create(parent, purpose="what a plan has sampled ahead")
        return SubgraphsOnDisk(self._run.path / f"batch-{first}")

    def close(self) -> None:
        """Remove what was written beside the plan. Idempotent."""
        if self._run is not None:
            self._run.close()
