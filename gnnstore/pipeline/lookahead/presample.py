"""Batches sampled before a run, to learn how large others may be and which nodes they need.

They are drawn with a key of their own, so that nothing of the run is used up, and seeds are
taken from the input nodes, so that no sampler or generator of the user's is touched.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import pool_exchange, pool_trim
from gnnstore.caching.scores import MAX_COUNTED_BATCHES
from gnnstore.caching.windows import match_bytes
from gnnstore.features.held import HeldRows
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.store.schema import EdgeType
from gnnstore.pipeline.batch import Batch
from gnnstore.pipeline.lookahead.producer import most_ids, sample_batches
from gnnstore.pipeline.shuffle import epoch_order
from gnnstore.progress import NullProgress, Progress
from gnnstore.sampling.compact import CompactSample
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.sampling.row_space import RowRange, RowSpace
from gnnstore.seeds.base import FIRST_EPOCH_OF_NO_RUN, BatchKey, SeedSource
from gnnstore.threads import Lookahead

if TYPE_CHECKING:
    from gnnstore.caching.plan import TraceBuilder
    from gnnstore.graph.store import GraphStore
    from gnnstore.graph.topology import Topology
    from gnnstore.sampling.neighbor import IndexDtype, Sample

# The share that is added to the largest batch of a few: on an R-MAT graph the largest of an epoch
# has 2 % more nodes than the mean with 1,024 seeds, and 27 % with 64.
MARGIN = 1 / 8
# The least share to add where there is no room for that and half a batch more, and the deviations
# of a larger sample to add. One of three million normal draws is 5 deviations above the mean, and
# of 16 draws the deviation is exact to 18 %. Sizes of batches have a longer tail than normal ones
# where few seeds are in them; but then they vary so much that it comes to more than there is room
# for.
_LEAST_MARGIN, _DEVIATIONS = 1 / 64, 5.0
MANY_BATCHES = 16
# The most to add where memory is short.
MOST_MARGIN = 0.4


def with_margin(largest: int, margin: float = MARGIN) -> int:
    """Return the most to expect of a batch, given the most that one of a sample has."""
    return largest + int(largest * margin)


def margin_of(sizes: Sequence[int]) -> float:
    """Return by which part batches may exceed the largest of a sample, from how it varies."""
    # The relative error of the deviation of n draws is one in the root of 2 (n - 1).
    deviation: float = stdev(sizes) * (1 + (2 * (len(sizes) - 1)) ** -0.5)
    most = fmean(sizes) + _DEVIATIONS * deviation
    return max(_LEAST_MARGIN, most / max(1, *sizes) - 1)


def _tell(sizes: Sequence[int]) -> bool:
    """Whether a sample is large enough to bound the size of other batches."""
    varies_little = len(sizes) >= _FEW_BATCHES and margin_of(sizes) <= MARGIN
    return varies_little or len(sizes) >= MANY_BATCHES


_EPOCH = FIRST_EPOCH_OF_NO_RUN
_SEED = 0

# Times of its bytes that a label takes while it is drawn, joined with others and numbered.
_MAKING_LABELS = 4

# Batches that show the size of one where sizes vary little; small batches need many.
_FEW_BATCHES = 4
# Visits of a node on average after which more batches add little. On small graphs and with full
# fan-outs this ends the sampling long before 255 batches.
ENOUGH_VISITS = 4
# Batches that are sampled from a mapped topology, which may come from disk: 60,000 page faults for
# a batch of 1,024 seeds and three hops of 10.
_MAPPED_BATCHES = 32


@dataclass(frozen=True)
class Presampled:
    """Sizes of the sampled batches, and the rows that they need."""

    num_batches: int  # number of sampled batches
    largest_bytes: int  # bytes of the largest, its attributes included; 0 if there were none
    largest_nodes: int = 0
    largest_ids_bytes: int = 0  # of a subgraph without attributes
    num_nodes: tuple[int, ...] = ()  # of each
    num_bytes: tuple[int, ...] = ()  # of each, attributes included
    # Bytes of the labels of a batch's seeds, beyond an id for each start node.
    largest_labels_bytes: int = 0
    # Bytes of a subgraph while it waits for its batch, its node ids not included.
    largest_kept_bytes: int = 0
    # Bytes of its record in packed epochs, as if all of its rows were in it.
    largest_record_bytes: int = 0
    # Rows that the batches need of each type, by their numbers; and their edges of each type.
    needed: Mapping[RowRange, int] = field(default_factory=dict)
    num_edges: Mapping[EdgeType, int] = field(default_factory=dict)

    @cached_property
    def margin(self) -> float:
        """Fraction by which other batches may exceed the largest; infinite if too few were seen."""
        if self.num_batches < MANY_BATCHES:
            return math.inf
        return max(margin_of(self.num_nodes), margin_of(self.num_bytes))

    @property
    def expected_bytes(self) -> int:
        """Bytes of the largest batch to expect."""
        margin = margin_of(self.num_bytes) if self.num_batches > 1 else MARGIN
        return with_margin(self.largest_bytes, min(max(MARGIN, margin), MOST_MARGIN))


@dataclass(frozen=True, eq=False)
class Presampler:
    """Sampling options of a loader, as far as they are known before an epoch."""

    config: SamplingConfig  # its seed does not matter
    seeds: SeedSource
    batch_size: int
    in_order: bool  # whether batches take seeds in their order; else any
    # Bytes of attribute values as they are stored of a node or an edge, by its type.
    value_bytes: Mapping[str | EdgeType, int]
    most_ids: tuple[int, int]  # all node ids, and all positions of edges, are below
    space: RowSpace  # rows that are counted, and traced
    edge_id_bytes: Mapping[EdgeType, int]  # of an edge's id in the input, where the store has them
    index_dtype: IndexDtype = "int64"  # of `n_id` and `edge_index`
    world_size: int = 1  # loaders that the batches of an epoch are dealt out to
    num_parts: int = 1  # parts of the seeds, of like sizes, that have batches of their own
    pins: bool = False  # whether a batch is copied to pinned memory
    matches: bool = False  # whether its nodes are looked for in the batch before
    held: HeldRows | None = None  # rows that stay on a device: they are not counted, nor traced
    # Whether as many batches are counted wherever the topology lies, so that counts are equal.
    counts_alike: bool = False
    # Displays the batches that are sampled.
    progress: Progress = field(default_factory=NullProgress)
    # Bytes that a node's rows take besides where they are decoded, by its type.
    decoded_bytes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_store(
        cls,
        store: GraphStore,
        config: SamplingConfig,
        seeds: SeedSource,
        batch_size: int,
        in_order: bool,
        *,
        world_size: int = 1,
        num_parts: int = 1,
        pins: bool = False,
        matches: bool = False,
        decodes: bool = True,  # else rows of int8 are decoded where there is other memory
        progress: Progress | None = None,
    ) -> Self:
        """Take the widths of rows and the type of ids from a store's schema."""
        schema = store.schema
        value_bytes = Counter[str | EdgeType]()
        decoded_bytes: dict[str, int] = {}
        for node in schema.node_types:
            specs = node.attributes.values()
            value_bytes[node.name] = store.assigned.row_bytes(node.name)
            value_bytes[node.name] += sum(spec.row_bytes for spec in specs)
            # Half of the rows as stored: the batch at the consumer has none, the other one all.
            shown = [spec.shown_row_bytes - spec.row_bytes // 2 for spec in specs if spec.scaled]
            decoded_bytes[node.name] = sum(shown) if decodes else 0
        for edge in schema.edge_types:
            value_bytes[edge.type] = sum(spec.row_bytes for spec in edge.attributes.values())
        return cls(
            config=config,
            seeds=seeds,
            batch_size=batch_size,
            in_order=in_order,
            value_bytes=value_bytes,
            decoded_bytes=decoded_bytes,
            most_ids=most_ids(schema),
            space=RowSpace.of_schema(schema),
            edge_id_bytes={
                edge.type: edge.edge_id.row_bytes for edge in schema.edge_types if edge.edge_id
            },
            index_dtype=schema.index_dtype,
            world_size=world_size,
            num_parts=num_parts,
            pins=pins,
            matches=matches,
            progress=progress or NullProgress(),
        )

    def over(self, space: RowSpace) -> Self:
        """Return the same with other rows that are counted and traced."""
        return replace(self, space=space)

    @property
    def epoch_batches(self) -> int:
        """Batches of an epoch that this loader yields."""
        size, (least, num_larger) = max(1, self.batch_size), divmod(len(self.seeds), self.num_parts)
        batches = self.num_parts * -(-least // size) + num_larger * (least % size == 0)
        return -(-batches // self.world_size)

    def run(
        self,
        topology: Topology,
        num_threads: int,
        counts: npt.NDArray[np.uint8] | None = None,
        spare_bytes: int | None = None,
        trace: TraceBuilder | None = None,
        *,
        num_batches: int | None = None,
        one_by_one: bool = False,
    ) -> Presampled:
        """Sample some batches, by default enough to bound the size of the others."""
        wants = ENOUGH_VISITS * self.space.num_rows if counts is not None else 0
        ends_early = num_batches is None and trace is None
        num_batches = num_batches or MANY_BATCHES
        if trace is not None:
            num_batches = trace.num_batches
        elif counts is not None:
            is_short = topology.is_slow and not self.counts_alike
            num_batches = _MAPPED_BATCHES if is_short else MAX_COUNTED_BATCHES
        sampler = topology.sampler(replace(self.config, seed=_SEED), self.index_dtype)
        if spare_bytes is not None:
            pool_exchange(True)
            pool_trim(0)  # what other loaders have left free
        # As in a run: 8 threads would otherwise have 16 batches of ids at a time.
        lookahead = Lookahead(2 * num_threads, spare_bytes)

        def sized(batch: Batch) -> tuple[Sample, int]:
            sample, labels = batch.sample, batch.labels
            assert sample is not None  # noqa: S101 - for the type checker
            assert labels is not None  # noqa: S101
            label_bytes = sum(array.nbytes for array in labels.arrays())
            return sample, max(0, label_bytes - 8 * sample.num_seeds)

        done = visits = 0
        sizes: list[tuple[int, int]] = []  # of each batch, nodes and bytes
        # The largest batch: its bytes, nodes, bytes of the subgraph, and of labels; and in files.
        most, waiting = [0, 0, 0, 0], [0, 0]
        needed, num_edges = Counter[RowRange](), Counter[EdgeType]()
        batches = (
            Batch(BatchKey(_SEED, _EPOCH, number), positions)
            for number, positions in enumerate(self._positions(num_batches))
        )
        subgraphs = sample_batches(
            self.seeds.over(topology),
            sampler,
            batches,
            lambda _, batch: sized(batch),
            num_threads=num_threads,
            lookahead=lookahead,
            bulk_bytes=None if spare_bytes is None else spare_bytes // 2,
            describe=lambda k: f"while sampling batch {k} beforehand",
            one_by_one=one_by_one,
        )
        phase = self.progress.phase("sample batches beforehand", num_batches, "batches")
        with closing(subgraphs), phase as shown:
            for subgraph, more_bytes in subgraphs:
                done += 1
                shown.advance()
                nodes = subgraph.nodes if self.held is None else self.held.missed(subgraph.nodes)
                rows = self.space.rows(nodes)
                visits += len(rows)
                for name, own in self.space.ranges.items():
                    needed[own] += len(nodes.get(name, ()))
                for kind, edges in subgraph.edges.items():
                    num_edges[kind] += len(edges.positions)
                ids_bytes = subgraph.num_bytes
                if ids_bytes > most[2]:
                    waiting = [*map(max, waiting, self._waiting_bytes(subgraph))]
                sizes.append((len(rows), self._bytes_of(subgraph) + _MAKING_LABELS * more_bytes))
                most = [*map(max, most, (sizes[-1][1], len(rows), ids_bytes, more_bytes))]
                # Else it stays at one at a time; the caller refuses by what two batches need.
                if spare_bytes is None or 2 * ids_bytes <= spare_bytes:
                    lookahead.observe(ids_bytes)
                if counts is not None:
                    _core.count_ids(rows, counts)
                if trace is not None:
                    trace.put(done - 1, rows)
                if ends_early and visits >= wants and _tell([size for _, size in sizes]):
                    break
        return Presampled(
            done,
            largest_bytes=most[0],
            largest_nodes=most[1],
            largest_ids_bytes=most[2],
            num_nodes=tuple(nodes for nodes, _ in sizes),
            num_bytes=tuple(num_bytes for _, num_bytes in sizes),
            largest_labels_bytes=most[3],
            largest_kept_bytes=waiting[0],
            largest_record_bytes=waiting[1],
            needed=needed,
            num_edges=num_edges,
        )

    def _positions(self, num_batches: int) -> Iterator[Any]:
        """Yield positions in the input nodes, of at most so many batches."""
        num_seeds = len(self.seeds)
        size = max(1, min(self.batch_size, num_seeds))
        if num_seeds == 0:
            return
        if self.in_order:
            # Evenly spread over the epoch: neighbouring ids often have like degrees.
            total = num_seeds // size
            for batch in np.unique(np.linspace(0, total - 1, min(num_batches, total)).astype(int)):
                yield range(int(batch) * size, (int(batch) + 1) * size)
        else:
            per_epoch = num_seeds // size
            for batch in range(num_batches):
                epoch, place = divmod(batch, per_epoch)
                if place == 0:
                    order = epoch_order(num_seeds, _SEED, _EPOCH - epoch)
                yield order[place * size : (place + 1) * size]

    def _bytes_of(self, subgraph: Sample) -> int:
        more_bytes = 8 * (subgraph.num_seeds + subgraph.num_edges)  # input_id and e_id
        decoded_bytes = sum(
            len(ids) * self.decoded_bytes.get(name, 0) for name, ids in subgraph.nodes.items()
        )
        num_bytes = subgraph.num_bytes + more_bytes + self._values_of(subgraph) + decoded_bytes
        each = match_bytes(id_dtype(self.most_ids[0] - 1).itemsize) if self.matches else 0
        num_bytes *= 2 if self.pins else 1
        return num_bytes + each * sum(map(len, subgraph.nodes.values()))

    def _values_of(self, subgraph: Sample) -> int:
        """Return the bytes of attributes as they are stored."""
        each = self.value_bytes
        of_nodes = sum(len(ids) * each[name] for name, ids in subgraph.nodes.items())
        of_edges = sum(len(own.positions) * each[kind] for kind, own in subgraph.edges.items())
        return of_nodes + of_edges

    def _waiting_bytes(self, subgraph: Sample) -> tuple[int, int]:
        """Return the bytes of a subgraph as it waits for its batch, and in packed epochs."""
        ids, positions = (id_dtype(most - 1) for most in self.most_ids)
        compact = CompactSample.from_sample(subgraph, ids, positions)
        # With several types, or rows that are left out, the trace does not have the ids.
        has_ids = len(subgraph.nodes) == 1 and self.held is None
        arrays = compact.shortened(with_ids=not has_ids)
        edge_ids = sum(
            len(own.positions) * self.edge_id_bytes.get(kind, 0)
            for kind, own in subgraph.edges.items()
        )
        record_bytes = compact.num_bytes + 8 * subgraph.num_seeds + self._values_of(subgraph)
        return sum(array.nbytes for array in arrays), record_bytes + edge_ids


def batch_shape(options: dict[str, Any]) -> tuple[int, bool]:
    """Return the seeds of a batch, and whether they come in their order."""
    batch_sampler = options.get("batch_sampler")
    batches = batch_sampler if batch_sampler is not None else options.get("sampler")
    in_order = batches is None and not options.get("shuffle")
    if batch_sampler is None and options.get("batch_size", 1) is not None:
        return int(options.get("batch_size", 1)), in_order
    if isinstance(batches, list | tuple):
        return max(
            (len(b) if isinstance(b, list | tuple) else 1 for b in batches), default=1
        ), False
    # Asking a sampler for a batch would draw from its generator.
    return int(getattr(batches, "batch_size", None) or 1), in_order
