"""The partitions that a loader reads, within its budget, and the batches sampled from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import STAGING, Ledger, Reservation
from gnnstore.budget.limits import MemoryBudget, memory_of
from gnnstore.errors import BudgetError, UsageError
from gnnstore.features.chunk_rows import AbsentRows
from gnnstore.features.held import ChosenRows
from gnnstore.features.memory_rows import MemoryRows
from gnnstore.features.source import RowSource
from gnnstore.features.tables import CachedTables
from gnnstore.formats.partitions import (
    BUCKET_PTR_ARRAY,
    PARTITIONS,
    PartitionsReader,
    open_partitions,
)
from gnnstore.formats.store.schema import EDGE_TYPE, NODE_TYPE
from gnnstore.graph.sizes import StoreSizes
from gnnstore.graph.table_registry import shared_tables
from gnnstore.partitions.buffer import (
    PartitionFiles,
    PartitionSlots,
    StateBuffer,
    StateToRead,
    building_threads,
)
from gnnstore.partitions.policy import BufferShape, Contents, EdgesRead, PartitionPolicy, Slots
from gnnstore.partitions.seeds import PartitionOrder, by_state
from gnnstore.pipeline.batch import Batch, BatchSource, EpochRun, request_of
from gnnstore.pipeline.ranks import KeyedOrder
from gnnstore.sampling.neighbor import EdgeSample, NeighborSampler, Sample, SamplingConfig, only
from gnnstore.strategies.base import Sources
from gnnstore.strategies.options import StrategyTraits
from gnnstore.strategies.placement import Placement

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.graph.store import GraphStore
    from gnnstore.partitions.buffer import ResidentState, StatesAhead
    from gnnstore.partitions.policy import ResidentTable
    from gnnstore.pipeline.order import EpochOrder
    from gnnstore.pipeline.stats import LoaderStats
    from gnnstore.sampling.neighbor import IndexDtype
    from gnnstore.strategies.loader_spec import EdgeIds

_TRAITS = StrategyTraits("partitions", "memory")  # threads that prepare batches do not read
# One part in so many of the memory in which edge attributes and ids stay, which are read edge by
# edge.
_HELD_SHARE = 4


class PartitionSources(Sources):
    """The parts of a store's partitions that a loader reads."""

    def __init__(
        self,
        store: GraphStore,
        policy: PartitionPolicy,
        seeds: Any,
        config: SamplingConfig,
        *,
        memory: int | str | None = None,
        io_engine: str | None = None,
        tables: Sequence[ResidentTable] = (),
        edge_ids: EdgeIds | None = "input",
        matches: bool = False,  # whether a device uses rows of the batch before again
    ) -> None:
        self.store, self._memory = store, memory
        if matches:
            paths = {spec.path for spec in store.schema.node.attributes.values()}
            self.chosen = ChosenRows.none(CachedTables.from_schema(store.schema, paths))
        self.e_id = edge_ids
        store.fetch_unit(PARTITIONS, policy.name)
        self.unit = unit = open_partitions(
            store.path, policy.name, store_uuid=store.reader.manifest.uuid
        )
        unit.check_arrays(BUCKET_PTR_ARRAY)  # counts the edges that each state trains
        for table in tables:
            table.attach(unit.uuid)
        self._tables = tuple(tables)
        self.seeds = by_state(seeds, unit, policy.assignment)
        samples = bool(config.fanouts) or config.subgraph_type == "induced"
        self._edges: EdgesRead = "graph" if samples else self.seeds.edges_read()
        path = unit.paged(unit.order_spec).file_paths[0]
        self.engine: Engine = shared_tables(store).engine(path, io_engine)
        self.shape, self.placement = self._sized(policy)
        if policy.kind == "sequential":
            in_all = self.shape.capacity == unit.num_partitions
            self.seeds.check_in_first(unit.num_partitions if in_all else unit.num_train_partitions)
        self.num_threads = sys.maxsize  # threads need no memory of their own
        self._open_edges()

    # --- memory --------------------------------------------------------------------------------

    def _sized(self, policy: PartitionPolicy) -> tuple[BufferShape, Placement]:
        """Return the first shape that fits, and the memory that it takes."""
        unit, whole = self.unit, self.store.reader.schema.bytes_in_memory
        budget = MemoryBudget.of(memory_of(self._memory, whole))
        limit, source = budget.num_bytes, budget.source
        if policy.memory is not None:
            own = MemoryBudget.of(memory_of(policy.memory, whole))
            limit, source = min((own.num_bytes, own.source), (limit, source))
        shapes = policy.shapes(
            unit.num_partitions,
            num_train=unit.num_train_partitions,
            contents=self._contents(),
            memory_bytes=limit if policy.memory is not None or budget.is_promise else None,
            for_edges=self.seeds.are_edges,
        )
        refusals: list[BudgetError] = []
        for shape in shapes:
            ledger = self._ledger(shape, limit, source)
            try:
                lower = "lower capacity=, or " * (shape.capacity > 2)
                ledger.check(None, f"{lower}partition the store into more partitions")
            except BudgetError as error:
                refusals.append(error)
                continue
            return shape, Placement(
                strategy=_TRAITS,
                topology="memory",
                modes={},
                ledger=ledger.with_limit(budget.num_bytes),
                budget_is_promise=budget.is_promise,
                reason=f"{shape.describe()}; {unit.name!r} is read by {self.engine.reason}",
            )
        raise min(refusals, key=lambda error: error.missing_bytes or 0)

    def _contents(self) -> Contents:
        unit = self.unit
        return Contents(
            unit.num_nodes,
            PartitionSlots.row_bytes_of(unit),
            unit.num_edges,
            unit.position_spec.row_bytes,
            edges=self._edges,
            num_building=building_threads(),
            fixed_bytes=self.engine.staging_bytes,
        )

    def _ledger(self, shape: BufferShape, limit: int, source: str) -> Ledger:
        """Return the memory that is held as long as the loader lives."""
        unit, num_slots = self.unit, shape.capacity + shape.num_spare
        most = _most_edges(unit, shape.capacity)
        sizes = shape.num_partitions, shape.capacity, unit.rows_per_partition
        parts = [
            *self._contents().reserve(*sizes, num_slots, most),
            Reservation(
                "compressed attributes", StoreSizes.from_schema(self.store.schema).compressed_bytes
            ),
            Reservation("seeds and their order", self.seeds.bytes_with(most)),
            Reservation("assigned attributes", self.store.assigned.num_bytes),
            Reservation(STAGING, self.engine.staging_bytes),
            *(table.reserve(Slots(shape.capacity, shape.num_spare)) for table in self._tables),
        ]
        who = f"a loader with {shape.capacity} of {shape.num_partitions} partitions in memory"
        return Ledger(limit, tuple(parts), who, source)

    # --- what a loader takes from here -----------------------------------------------------------

    def _open_edges(self) -> None:
        """Open the edge attributes that batches show, by position: in memory if they are small."""
        store, shared = self.store, shared_tables(self.store)
        schema = store.schema
        left = self.placement.left_bytes // _HELD_SHARE
        tables: dict[str, RowSource] = {
            spec.path: AbsentRows(spec, only_epochs) for spec in schema.node.attributes.values()
        }
        ids = schema.edge.edge_id if self.e_id == "input" else None
        for spec in (*([] if ids is None else [ids]), *schema.edge.attributes.values()):
            is_held = spec.layout == "cold" or spec.num_bytes <= left
            if is_held and spec.layout != "cold":
                left -= spec.num_bytes
                what = "ids of edges" if spec is ids else "edge attributes"
                ledger = self.placement.ledger.add(Reservation(what, spec.num_bytes))
                self.placement = replace(self.placement, ledger=ledger)
            tables[spec.path] = shared.rows(store, spec, "memory" if is_held else "mmap", 1)
        self.edge_ids = {} if ids is None else {schema.edge.type: tables.pop(ids.path)}
        self.tables = tables

    @property
    def paths(self) -> Mapping[str, str]:
        """Path in the store of each node attribute by its name."""
        return {n: spec.path for n, spec in self.store.schema.node.attributes.items()}

    @property
    def index_dtype(self) -> IndexDtype:
        """Element type of ids in batches."""
        return self.store.schema.index_dtype

    @cached_property
    def buffer(self) -> StateBuffer:
        """The memory for partitions, made when the first is read."""
        return StateBuffer(
            PartitionFiles(self.unit, self.engine),
            self.shape.capacity + self.shape.num_spare,
            edges=self._edges,
            num_threads=building_threads(),
        )

    def fingerprint(self) -> dict[str, Any]:
        """Return the facts that batches depend on: the partitions, and the resolved policy."""
        return {"partitions": {"uuid": self.unit.uuid, **self.shape.fingerprint()}}

    def order(self, keyed: EpochOrder) -> PartitionOrder:
        """Return the order of a loader."""
        if not isinstance(keyed, KeyedOrder):
            raise UsageError(
                f"partitions= and the sampler {keyed.name}: seeds follow the partitions in "
                "memory; leave out sampler= and batch_sampler=, and give shuffle=True"
            )
        size = keyed.batch_size or 1
        self._order = PartitionOrder(self.shape, self.seeds, size, keyed.shuffles, keyed.drop_last)
        return self._order

    def batches(self, config: SamplingConfig) -> PartitionSource:
        """Return the batches of the loader, in its order."""
        return PartitionSource(self, self._order, config)

    def account(self, stats: LoaderStats) -> LoaderStats:
        """Return the statistics of a loader, with the partitions that were read."""
        totals, counts = self.buffer.totals, self.buffer.files.counts
        return replace(
            stats.plus_reads(counts),
            partitions_read=totals.partitions,
            states=totals.states,
            seconds_swapping=totals.seconds_waiting,
        )


def _most_edges(unit: PartitionsReader, capacity: int) -> int:
    """Return the most edges that there can be between `capacity` partitions."""
    sizes = np.diff(unit.bucket_ptr).reshape(unit.num_partitions, -1)
    if capacity == unit.num_partitions:
        return unit.num_edges
    into = np.sort(sizes, axis=1)[:, -capacity:].sum(axis=1)
    return int(np.sort(into)[-capacity:].sum())


class PartitionSource(BatchSource):
    """The batches of a loader by partitions."""

    def __init__(self, of: PartitionSources, order: PartitionOrder, config: SamplingConfig) -> None:
        self.of, self.order, self.config = of, order, config

    @property
    def refusal(self) -> Callable[[str], Exception]:
        """Refuse to read other nodes than a batch's."""
        return only_epochs

    @property
    def sampler(self) -> NeighborSampler:
        """Refuse to sample other seeds: only the graph of a state is in memory."""
        raise only_epochs("other seeds to sample from")

    def with_seed(self, seed: int) -> PartitionSource:
        """Return a source that samples under another seed."""
        return PartitionSource(self.of, self.order, self.config.with_seed(seed))

    @contextmanager
    def epoch(self, batches: Iterator[Batch], run: EpochRun) -> Iterator[Iterator[Batch]]:
        """Yield the batches of a run; the next state is read while batches of one are prepared."""
        epoch, seeds = self.order.states_of(run.seed, run.epoch), self.of.seeds
        states = []
        for number in epoch.left(run.first):
            partitions = epoch.schedule.partitions(number)
            trained = seeds.trained(epoch.assigned, number, partitions)
            states.append(StateToRead(number, partitions, trained))

        def prepare(state: ResidentState) -> tuple[Any, Any]:
            positions = seeds.positions(epoch.assigned, state.number, state)
            return positions, epoch.order_of(state.number)

        def following() -> npt.NDArray[np.int64]:
            return self.order.shape.schedule(run.seed, run.epoch + 1).partitions(0)

        in_thread = bool(run.num_threads)
        with (
            self.of.buffer.run(
                states, in_thread=in_thread, following=following, prepare=prepare
            ) as ahead,
            closing(_BatchesOfStates(self, batches, run, ahead)) as placed,
        ):
            yield placed

    def prepare(self, batch: Batch) -> None:
        """Sample from the partitions in memory, by the store's ids and positions."""
        place = batch.place
        if place is None:
            raise only_epochs(f"a batch of the positions {batch.index!r}")
        state, sampler = place.state, place.sampler
        seeds = self.of.seeds.select(place.seeds, batch.key, state)
        if sampler is None or state.graph is None:
            nodes = only(seeds.nodes)
            sample = _seeds_alone(nodes, self.config, self.of.index_dtype)
        else:
            sample = sampler.draw(request_of(seeds, batch.key))
            positions = MemoryRows.from_array(state.graph.positions).gather(sample.edge_pos).values
            of_store = EdgeSample(sample.edge_index, positions.astype(np.int64, copy=False))
            sample = replace(sample, edges=dict.fromkeys(sample.edges, of_store))
        batch.place = place._replace(local=sample.n_id)
        nodes = state.store_ids(sample.n_id).astype(self.of.index_dtype, copy=False)
        batch.sample = replace(sample, nodes=dict.fromkeys(sample.nodes, nodes))
        batch.labels = seeds.labels

    def gather(self, batch: Batch) -> None:
        """Copy the rows of the nodes from the partitions in memory."""
        place, paths, local = batch.place, self.of.paths, batch.place.local
        if batch.split:
            local = local[batch.split[NODE_TYPE].missed]
        rows = place.state.gather(local, batch.rows_memory)
        batch.rows = {paths[name]: found for name, found in rows.items()}

    def release(self, batch: Batch, error: BaseException | None = None) -> None:  # noqa: ARG002
        """Release the batch's state."""
        place, batch.place = batch.place, None
        if place is not None:
            place.state.end_batch()


class InMemory(NamedTuple):
    """The place of a batch: the state from which it is sampled."""

    state: ResidentState
    sampler: NeighborSampler | None
    seeds: npt.NDArray[Any]  # positions of the batch's seeds among the state's
    local: npt.NDArray[Any] | None = None  # ids in the state of the sampled nodes


class _BatchesOfStates(Iterator[Batch]):
    """The batches of a run, one state after the other."""

    def __init__(
        self,
        of: PartitionSource,
        batches: Iterator[Batch],
        run: EpochRun,
        ahead: StatesAhead,
    ) -> None:
        self._of, self._given, self._run, self._ahead = of, batches, run, ahead
        self._left = 0
        self._batches = self._all()

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        """Hand out no more; a generator that is not closed would keep this and the buffer alive."""
        self._batches.close()

    def is_ready(self) -> bool:
        """Whether the next batch's state is in memory."""
        return self._left > 0 or not self._ahead.is_waited_for

    def _all(self) -> Generator[Batch, None, None]:
        of, run = self._of, self._run
        epoch = of.order.states_of(run.seed, run.epoch)
        state: ResidentState | None = None
        try:
            for batch in self._given:
                place = batch.index
                if state is None or state.number != place.state:
                    with run.recorder.stage("partitions", epoch=run.epoch, state=place.state):
                        state = self._ahead.next()
                    positions, order = state.prepared
                    sampler = None
                    if state.graph is not None:
                        columns, dtype = state.graph.columns, of.of.index_dtype
                        sampler = NeighborSampler(columns, of.config, dtype)
                    self._left = int(epoch.ends[place.state]) - batch.key.batch
                state.begin_batch()
                self._left -= 1
                if self._left == 0:
                    state.close()
                seeds = positions[order[place.begin : place.end]]
                batch.place = InMemory(state, sampler, seeds)
                yield batch
        finally:
            if state is not None:
                state.close()


def only_epochs(what: str) -> UsageError:
    """Return the error for a use other than the batches of an epoch."""
    return UsageError(
        f"partitions= does not go with {what}: nodes are in memory in the course of an epoch "
        "only, a few partitions at a time; iterate over the loader, or make one without partitions="
    )


def _seeds_alone(
    seeds: npt.NDArray[np.int64], config: SamplingConfig, index_dtype: IndexDtype
) -> Sample:
    """Return the sample of no hops, which needs no graph."""
    is_directional = config.subgraph_type == "directional"
    return Sample(
        {NODE_TYPE: seeds.astype(index_dtype)},
        {EDGE_TYPE: EdgeSample(np.empty((2, 0), index_dtype), np.empty(0, np.int64))},
        {NODE_TYPE: np.arange(len(seeds))} if config.disjoint else None,
        {NODE_TYPE: [len(seeds)]} if is_directional else None,
        {EDGE_TYPE: []} if is_directional else None,
        len(seeds),
    )
