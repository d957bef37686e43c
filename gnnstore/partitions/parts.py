"""Seeds by the parts of an assignment: batch n of an epoch is of part n mod K."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gnnstore.errors import UsageError
from gnnstore.formats.assignments import ASSIGNMENTS, AssignmentReader, open_assignment, part_sizes
from gnnstore.graph.store import GraphStore
from gnnstore.partitions.orders import Purpose, draws
from gnnstore.pipeline.order import EpochOrder, Position
from gnnstore.pipeline.ranks import KeyedOrder
from gnnstore.pipeline.shuffle import drawn_order
from gnnstore.sampling.row_space import RowSpace
from gnnstore.seeds.base import SeedSource
from gnnstore.seeds.nodes import InputNodes, crc_of_ids
from gnnstore.units import format_count

Int64Array = npt.NDArray[np.int64]

_LOG = logging.getLogger(__name__)

_CHUNK = 2**20  # seeds that are numbered at a time


@dataclass(frozen=True, eq=False)
class SeedParts:
    """The seeds of a loader, by the parts of an assignment."""

    unit: AssignmentReader
    members: tuple[Int64Array, ...]  # of each part, int64: positions among the seeds, ascending

    @classmethod
    def open(cls, store: GraphStore, name: str | os.PathLike[str], seeds: SeedSource) -> Self:
        """Open an assignment of these seeds."""
        if not isinstance(seeds, InputNodes):
            raise UsageError(
                f"seeds_of= and seeds of the kind {type(seeds).__name__}: parts are of seed nodes; "
                "leave seeds_of= out"
            )
        if not isinstance(name, str | os.PathLike):
            raise UsageError(
                f"seeds_of={name!r}: expected the name of an assignment, which 'gnnstore assign' "
                "makes, or its path"
            )
        store.fetch_unit(ASSIGNMENTS, name)
        unit = open_assignment(store.path, name, store_uuid=store.reader.uuid)
        manifest, space = unit.manifest, row_space(store)
        found = crc_of_seeds(space, seeds) if len(seeds) == unit.num_seeds else None
        if found != manifest.seeds_crc32c:
            raise UsageError(
                f"seeds_of={os.fspath(name)!r} has the parts of the "
                f"{format_count(unit.num_seeds, 'seed')} "
                f"{manifest.input_nodes!r}, and input_nodes names {len(seeds)} others"
                f"{'' if seeds.name is None else f', {seeds.name!r}'}; give these as input_nodes, "
                f"or make an assignment of the others: gnnstore assign {store.path} --split NAME"
            )
        parts = unit.parts()
        order = np.argsort(parts, kind="stable")
        ends = np.cumsum(part_sizes(unit.num_seeds, unit.num_parts))
        return cls(unit, tuple(np.split(order, ends[:-1])))

    @property
    def num_parts(self) -> int:
        """Number of parts, K."""
        return len(self.members)

    @property
    def num_bytes(self) -> int:
        """Bytes of the positions."""
        return sum(own.nbytes for own in self.members)

    def fingerprint(self) -> dict[str, Any]:
        """Return what batches depend on: the assignment's identity, not its name."""
        return {"seeds_of": {"uuid": self.unit.uuid, "parts": self.num_parts}}

    def order(self, keyed: EpochOrder) -> PartsOrder:
        """Return the order of a loader."""
        if not isinstance(keyed, KeyedOrder):
            raise UsageError(
                f"seeds_of= and the sampler {keyed.name}: parts decide which seeds are in a batch; "
                "leave out sampler= and batch_sampler=, and give shuffle=True"
            )
        if keyed.batch_size is None:
            raise UsageError("seeds_of= fills batches from parts, and batch_size=None makes none")
        num_parts, num_ranks = self.num_parts, keyed.shard.world_size
        if num_parts % num_ranks and num_ranks % num_parts:
            _LOG.warning(
                "%s: %d parts, and %d ranks, of which neither number divides the other: each rank "
                "has batches of more parts than it needs to; assign with --parts %d",
                *(self.unit.path, num_parts, num_ranks, num_ranks),
            )
        return PartsOrder(
            *(keyed.num_seeds, keyed.batch_size, keyed.shuffles, keyed.drop_last, keyed.shard),
            members=self.members,
        )


@dataclass(frozen=True, eq=False)
class PartsOrder(KeyedOrder):
    """Cuts the seeds of each part into batches, and takes one of each part in turn.

    Larger parts come first, and so do the ones with one batch more.
    """

    members: tuple[Int64Array, ...] = ()  # as in `SeedParts`

    @property
    def num_batches(self) -> int:
        """Batches of an epoch, of all ranks together."""
        size = self.batch_size or 1
        rest = 0 if self.drop_last else size - 1
        return sum((len(own) + rest) // size for own in self.members)

    def batches(self, start: Position, seed: int) -> Iterator[tuple[int, Int64Array, Position]]:
        """Yield the number, the positions [B] and the place after each batch from `start` on."""
        size, total, drop_last = self.batch_size or 1, self.num_batches, self.drop_last
        orders: list[Any] = [range(len(own)) for own in self.members]
        if self.shuffles:
            orders = [
                drawn_order(len(own), draws(seed, start.epoch, Purpose.PARTS, part))
                for part, own in enumerate(self.members)
            ]
        for number, done in self.shard.batches(start.batches, total, drop_last=drop_last):
            turn, part = divmod(number, len(self.members))
            places = orders[part][turn * size : (turn + 1) * size]
            yield number, self.members[part][places], Position(start.epoch, done)


def row_space(store: GraphStore) -> RowSpace:
    """Return the numbers of the nodes of all types of a store."""
    return RowSpace.from_counts({node.name: node.num_nodes for node in store.schema.node_types})


def seed_rows(space: RowSpace, seeds: InputNodes) -> Iterator[Int64Array]:
    """Yield the numbers of seeds in their order, in pieces."""
    for node_type, own in seeds.parts.items():
        first = space.range_of(node_type).first
        for begin in range(0, len(own), _CHUNK):
            end = min(begin + _CHUNK, len(own))
            nodes = np.arange(begin, end) if own.nodes is None else own.nodes[begin:end]
            yield nodes + first


def crc_of_seeds(space: RowSpace, seeds: InputNodes) -> int:
    """Return the crc32c of the numbers of seeds."""
    crc = 0
    for rows in seed_rows(space, seeds):
        crc = crc_of_ids(rows, crc)
    return crc
