"""Packed epochs in place of a store's parts, within a loader's budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnnstore.budget.ledger import CACHED, SLOTS, STAGING, Ledger, Reservation
from gnnstore.budget.limits import MemoryBudget, affordable_threads
from gnnstore.disk.engines import Engine
from gnnstore.features.packed.saved import PackedFiles
from gnnstore.features.planned import SlotCache
from gnnstore.features.source import AbsentRows
from gnnstore.features.tables import CachedTables
from gnnstore.formats.packed.reader import PACKED, PackedReader
from gnnstore.formats.store.units import find_unit
from gnnstore.pipeline.saved import SavedSource, not_packed
from gnnstore.strategies.loader_spec import EdgeIds, LoaderSpec
from gnnstore.strategies.predict.traits import StrategyTraits
from gnnstore.strategies.sizes.placement import Placement
from gnnstore.strategies.sizes.prefetch import check_two_batches
from gnnstore.strategies.sources import Sources
from gnnstore.units import format_size

if TYPE_CHECKING:
    pass

# Rows that were packed, with any planned cache.
_PACKED = StrategyTraits("packed", "disk", packs=True)


class PackedSources(Sources):
    """The parts of packed epochs that a loader reads instead of a store."""

    def __init__(
        self,
        reader: PackedReader,
        memory: int | str | None = None,
        io_engine: str | None = None,
        *,
        seeds_bytes: int = 0,
        num_threads: int = 1,
        may_use_fewer: bool = False,
        edge_ids: EdgeIds | None = "input",
    ) -> None:
        self.e_id = edge_ids
        manifest = reader.manifest
        self.packed = PackedFiles.open(reader, io_engine)
        self.engine: Engine = self.packed.engine
        staging_bytes = self.packed.staging_bytes
        budget = MemoryBudget.of(memory)
        if may_use_fewer:
            num_threads = affordable_threads(budget.num_bytes, staging_bytes, num_threads)
        slot_bytes = CachedTables.of(manifest.schema, set(manifest.cached)).slot_bytes
        if self.packed.pools is not None:
            slot_bytes = self.packed.pools.slot_bytes
        cache_bytes = SlotCache.reserve(slot_bytes).bytes_of({SLOTS: manifest.num_slots})
        self.placement = Placement(
            strategy=_PACKED,
            topology="disk",
            modes={},
            ledger=Ledger(
                budget.num_bytes,
                (
                    Reservation(CACHED, cache_bytes),
                    Reservation("the index", reader.index.nbytes),
                    Reservation("seeds and their order", seeds_bytes),
                    Reservation(STAGING, num_threads * staging_bytes),
                ),
                f"reading the packed epochs {reader.path.name!r}",
                budget.source,
            ),
            budget_is_promise=budget.is_promise,
            reason=(
                f"packed before as {reader.path.name!r}: {manifest.epochs} epochs of "
                f"{manifest.batches_per_epoch} batches, {manifest.num_slots} rows cached "
                f"({format_size(cache_bytes)}); read by {self.engine.reason}"
            ),
        )
        if budget.is_promise:
            check_two_batches(
                self.placement.ledger,
                manifest.largest_batch_bytes,
                "lower num_threads=",
                "pack with a smaller --memory",
            )
        self.num_threads = num_threads
        self.edge_ids = {}  # a batch's edge ids are in its record
        schema = manifest.schema
        attributes = (*schema.node_attributes(), *schema.edge_attributes())
        self.tables = {spec.path: AbsentRows(spec, not_packed) for spec in attributes}

    @property
    def cached_by(self) -> str:
        """The policy that chose the cached rows; empty without a cache."""
        return self.packed.reader.manifest.cached_by if self.num_cached else ""

    @property
    def num_cached(self) -> int:
        """Nodes whose rows have room to be cached."""
        return self.packed.reader.manifest.num_slots

    def batches(self, *_: Any) -> SavedSource:
        """Return the packed batches; sampling options do not matter."""
        return SavedSource(self.packed)


def open_packed_sources(loader: LoaderSpec) -> PackedSources:
    """Open the packed epochs that a loader on a store asks for."""
    options = loader.options
    reader = PackedReader.open(find_unit(PACKED, loader.store.path, options.packed or ""))
    return PackedSources(
        reader,
        options.memory,
        options.io_engine,
        seeds_bytes=loader.seeds_bytes,
        num_threads=loader.num_threads,
        may_use_fewer=loader.may_use_fewer,
        edge_ids=options.edge_ids,
    )
