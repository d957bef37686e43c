"""The base of loaders that sample from a store, `NeighborLoader` and `LinkNeighborLoader`.

Each of these adds PyG's signature, and the seeds that its options name.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample

from gnnstore.errors import UsageError
from gnnstore.features.source import RowSource
from gnnstore.formats.store.schema import EdgeType, Schema
from gnnstore.graph.store import GraphStore
from gnnstore.graph.table_registry import shared_tables
from gnnstore.loaders.assemble import Assembler, Parts
from gnnstore.loaders.base import BatchLoader
from gnnstore.loaders.options import (
    LoaderOptions,
    call,
    fanouts_of,
    local_machine,
    warn_of_no_rows,
)
from gnnstore.loaders.packed_loader import (
    PackedEpochs,
    device_of,
    open_packed_sources,
    parts_named,
)
from gnnstore.machine import PRIVATE
from gnnstore.partitions.parts import SeedParts
from gnnstore.partitions.policy import ResidentTable, Slots
from gnnstore.partitions.seeds import PartitionOrder
from gnnstore.partitions.sources import PartitionSources
from gnnstore.pipeline.lookahead.presample import Presampler, batch_shape
from gnnstore.pipeline.order import Position
from gnnstore.pipeline.ranks import RankShard
from gnnstore.pipeline.shuffle import order_bytes
from gnnstore.pipeline.states import sampling_fingerprint
from gnnstore.sampling.neighbor import EdgeSample, NeighborSampler, Sample, SamplingConfig
from gnnstore.seeds.base import ON_DEMAND_EPOCH, SeedSource
from gnnstore.strategies.auto import open_sources
from gnnstore.strategies.device_rows import reservations
from gnnstore.strategies.loader_spec import LoaderSpec


def _option(name: str) -> Any:
    """Return a property of a sampler that is an option of sampling, under PyG's name."""

    def change(sampler: StoreSampler, value: Any) -> None:
        sampler.change(name, value)

    return property(lambda sampler: getattr(sampler.sampler.config, name), change)


class StoreSampler(BaseSampler):  # type: ignore[misc]
    """Samples neighbourhoods in a store, for `NodeLoader` and `LinkLoader` of PyG.

    Every call draws anew; in a worker process, torch's seed of that worker takes the place of the
    epoch. PyG's Lightning modules look for options in the signature, and set them on a copy.
    """

    def __init__(
        self,
        drawing: NeighborSampler,
        schema: Schema,
        edge_ids: Mapping[EdgeType, RowSource],
        *,
        num_neighbors: Any = None,
        replace: bool | None = None,
        subgraph_type: Any = None,
        disjoint: bool | None = None,
        temporal_strategy: str | None = None,
    ) -> None:
        super().__init__()
        self.sampler = drawing
        self._schema = schema
        self._edge_ids = edge_ids
        self._numbers = itertools.count()
        given = {
            "num_neighbors": num_neighbors,
            "replace": replace,
            "subgraph_type": subgraph_type,
            "disjoint": disjoint,
            "temporal_strategy": temporal_strategy,
        }
        for name, value in given.items():
            if value is not None:
                setattr(self, name, value)

    replace, disjoint = _option("replace"), _option("disjoint")
    subgraph_type, temporal_strategy = _option("subgraph_type"), _option("temporal_strategy")

    @property
    def num_neighbors(self) -> Any:
        """Fan-out of each hop; by edge type if they differ."""
        fanouts = self.sampler.config.fanouts
        if isinstance(fanouts, Mapping):
            return {edge_type: list(own) for edge_type, own in fanouts.items()}
        return list(fanouts)

    @num_neighbors.setter
    def num_neighbors(self, value: Any) -> None:
        self.change("fanouts", fanouts_of(value, self._schema))

    def change(self, name: str, value: Any) -> None:
        """Sample with another value of an option from now on."""
        config = self.sampler.config
        if name == "temporal_strategy" and config.time_attr is None:
            return  # as in PyG
        value = value.value if isinstance(value, Enum) else value
        self.sampler = self.sampler.with_config(replace(config, **{name: value}))

    def sample_from_nodes(
        self, index: NodeSamplerInput, **_: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Return the sampled neighbourhood of some nodes."""
        seeds, times = index.node, index.time
        if not self._schema.is_homogeneous:
            seeds = {index.input_type: seeds}
            times = None if times is None else {index.input_type: times}
        return self._sample(seeds, times, (index.input_id, index.time))

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Return the sampled neighbourhood of the ends of some edges and of PyG's own negatives."""
        counts: Any = {node.name: node.num_nodes for node in self._schema.node_types}
        if self._schema.is_homogeneous:
            (counts,) = counts.values()
        disjoint = self.sampler.config.disjoint
        return edge_sample(index, self._sample, counts, disjoint, neg_sampling=neg_sampling)

    def _sample(
        self, seeds: Any, times: Any, metadata: Any = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        worker = get_worker_info()
        sample = self.sampler.sample(
            _arrays(seeds),
            epoch=ON_DEMAND_EPOCH if worker is None else worker.seed,
            batch=next(self._numbers),
            times=_arrays(times),
        )
        is_homogeneous = self._schema.is_homogeneous
        is_bidirectional = self.sampler.config.subgraph_type == "bidirectional"
        parts = Parts.from_sample(
            self._with_ids(sample), joins_reverse=is_bidirectional and not is_homogeneous
        )
        return parts.output(metadata, is_homogeneous=is_homogeneous)

    def _with_ids(self, sample: Sample) -> Sample:
        edges = dict(sample.edges)
        for edge_type, ids in self._edge_ids.items():
            index, positions = edges[edge_type].index, edges[edge_type].positions
            edges[edge_type] = EdgeSample(index, ids.gather(positions).values)
        return replace(sample, edges=edges)


def _arrays(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _arrays(each) for name, each in values.items()}
    return values.numpy() if isinstance(values, torch.Tensor) else values


_log = logging.getLogger(__name__)

# The base sets these to the values that were decided on.
_OF_THE_BASE = {"seed", "num_threads", "prefetch_batches", "transform", "transform_sampler_output"}


class SampledLoader(BatchLoader):
    """Base of the loaders that sample from a store.

    Parameters
    ----------
    options : LoaderOptions
        Options of the loader.
    seeds : SeedSource
        The source of seeds.
    **kept
        Options that replace the user's values, such as the copies that `seeds` made: they make the
        same loader again. The user's own arrays are not kept.

    Attributes
    ----------
    data : GraphStore
        And every other option under the name of its parameter, for PyG's users and for frameworks
        that build a loader anew from the attributes of another.
    """

    data: GraphStore
    tables: Sequence[ResidentTable]

    def __init__(self, options: LoaderOptions, seeds: SeedSource, **kept: Any) -> None:
        store, config, given, of_torch = options.seen, options.config, options.given, options.torch
        shard = RankShard.from_options(
            given.get("rank"), given.get("world_size"), given.get("seed"), of_torch
        )
        machine = call(local_machine, given)
        tables, parts = tuple(given.get("tables") or ()), None
        if given.get("partitions") is not None:
            parts = PartitionSources(
                options.store,
                given["partitions"],
                seeds,
                config,
                memory=given.get("memory"),
                io_engine=given.get("io_engine"),
                tables=tables,
                edge_ids=options.read.edge_ids,
                matches=options.reorder > 0,
            )
        by: PartitionSources | SeedParts | None = parts
        if given.get("seeds_of") is not None:
            by = SeedParts.open(options.store, given["seeds_of"], seeds)
        read, device = options.read, options.device
        if read.packed is not None:
            epochs = parts_named(options.store, read.packed)
            read = replace(read, packed=PackedEpochs(epochs))
            device = device_of(epochs.manifest, device)
            if epochs.manifest.device is not None and given.get("transform_sampler_output"):
                raise UsageError(
                    "transform_sampler_output= with packed epochs that have rows for a device: "
                    "these are not in the batch that it changes; leave one of them out"
                )
        windows = {}  # nothing of what leaves batches where they are, as in older states
        if options.reorder > 1:
            windows = {"reorder": options.reorder, "world_size": shard.world_size}
        super().__init__(
            len(seeds),
            labels=seeds.labels,
            fingerprint=partial(_fingerprint, store, config, seeds, by, windows),
            seed=given.get("seed"),
            transform=given.get("transform"),
            transform_sampler_output=given.get("transform_sampler_output"),
            num_threads=given.get("num_threads"),
            prefetch_batches=given.get("prefetch_batches"),
            device=device,
            reorder=options.reorder,
            options=of_torch,
            shard=shard,
            own_order=None if by is None else by.order,
            progress=given.get("progress"),
        )
        self._seeds: Any = seeds
        self._machine = machine or PRIVATE
        attributes = {**given, **kept, "data": options.store, "tables": tables}
        per_worker = given.get("filter_per_worker")
        attributes["filter_per_worker"] = True if per_worker is None else per_worker
        for name in attributes.keys() - _OF_THE_BASE:
            setattr(self, name, attributes[name])

        assembler = partial(
            Assembler,
            store,
            data_class=given.get("custom_cls"),
            csr=options.csr,
            subgraph_type=config.subgraph_type,
        )
        if parts is not None:
            _log.info("%s: %s", store.path, parts.placement.reason)
            self._read_from(parts, parts.batches(config), assembler(parts))
            return
        progress = self._recorder.progress
        has_device = device is not None and device.type != "cpu"
        presampler = Presampler.from_store(
            store,
            config,
            seeds,
            *batch_shape(of_torch),
            world_size=shard.world_size,
            num_parts=by.num_parts if isinstance(by, SeedParts) else 1,
            pins=self._copies_batches(),
            matches=options.reorder > 0,
            decodes=not has_device,
            progress=progress,
        )
        spec = partial(
            LoaderSpec,
            store,
            read,
            presampler,
            seeds_bytes=seeds.num_bytes
            + (by.num_bytes if isinstance(by, SeedParts) else 0)
            + order_bytes(len(seeds), shuffles=self._order.shuffles)
            + sum(table.reserve(None).fixed for table in tables)
            + store.assigned.num_bytes,
            num_threads=max(1, self._most_threads()),
            may_use_fewer=self._num_threads_given is None,
            knows_epochs=self._order.is_keyed and self._order.shuffles and self._most_threads() > 0,
            progress=progress,
            of_device=tuple(reservations(options.read.device_cache, store.schema)),
        )
        open_parts: Callable[[LoaderSpec], Any] = open_sources
        if read.packed is not None:
            open_parts = partial(open_packed_sources, has_device=has_device)
        with shared_tables(options.store).machine_for(machine) as self._machine:
            loader = spec(machine=self._machine)
            loader.note_other_options()
            with progress.waiting():
                opened = open_parts(loader)
        _log.info("%s: %s", store.path, opened.placement.reason)
        warn_of_no_rows(self, opened.chosen)
        self._read_from(
            opened,
            opened.batches(seeds, config),
            assembler(opened),
            epoch_batches=presampler.epoch_batches,
        )

    def _origin(self) -> tuple[Path, Schema, str | None]:
        return self.data.path, self.data.schema, self._seeds.name

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `BatchLoader.load_state_dict`; tables must be at the commit of this state."""
        for table in self.tables:
            table.check_position(state)
        super().load_state_dict(state)

    def _get_iterator(self) -> Generator[Any, None, None]:  # type: ignore[override]
        batches = super()._get_iterator()
        # Only now: before, it is the position where the last iteration stopped.
        start = self._cursor.position(self.epoch)
        return self._followed(start, batches) if self.tables else batches

    def _followed(
        self, start: Position, batches: Generator[Any, None, None]
    ) -> Generator[Any, None, None]:
        """Yield batches, with the tables at the state of each before it is handed out."""
        tables, now = self.tables, -1
        with closing(batches):
            try:
                for number, batch in enumerate(batches, start.batches):
                    now = self._enter(number, start.epoch, now)
                    position = self.state_dict()
                    for table in tables:
                        table.note_position(self, position)
                    yield batch
                    del batch  # recycles its buffers
                position = self.state_dict()  # the next epoch's
                for table in tables:
                    table.note_position(self, position)
            finally:
                for table in tables:
                    table.leave(self)

    def _enter(self, number: int, epoch: int, now: int) -> int:
        """Load the rows of a batch's state; begin to read the next state's."""
        tables, order = self.tables, self._order
        if not isinstance(order, PartitionOrder):
            for table in tables:
                table.enter(None, None)
            return now
        states = order.states_of(self._draw_seed(), epoch)
        state, shape = states.state_of(number), order.shape
        partitions = states.schedule.partitions(state)
        for table in tables:
            # Also in the middle of a state: another loader may have used the table since.
            is_new = table.enter(partitions, Slots(shape.capacity, shape.num_spare))
            if (is_new or state != now) and (following := states.left(int(states.ends[state]))):
                table.expect(states.schedule.partitions(following[0]))
        return state


def _fingerprint(
    store: GraphStore,
    config: SamplingConfig,
    seeds: SeedSource,
    by: PartitionSources | SeedParts | None,
    windows: dict[str, int],
) -> dict[str, Any]:
    found = sampling_fingerprint(store, config, seeds) | windows
    return found if by is None else found | by.fingerprint()
