"""`open_packed`: packed epochs, to train on without a graph and features."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch_geometric.data import Data

from gnnstore.budget.ledger import CACHED, SLOTS, STAGING, Ledger, Reservation
from gnnstore.budget.limits import MemoryBudget, affordable_threads
from gnnstore.disk.engines import Engine
from gnnstore.errors import limits_named
from gnnstore.features.chunk_rows import AbsentRows
from gnnstore.features.packed_rows import PackedFiles
from gnnstore.features.planned import SlotCache
from gnnstore.features.tables import CachedTables
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.container.reader import reopened
from gnnstore.formats.packed import NUM_POSITIONS, PACKED, PackedReader
from gnnstore.formats.store.schema import EdgeTypeSpec, NodeTypeSpec, Schema
from gnnstore.formats.store.units import find_unit
from gnnstore.graph.arrays import whole_values
from gnnstore.graph.pyg_data import AssignedAttributes
from gnnstore.loaders.assemble import Assembler
from gnnstore.loaders.base import BatchLoader
from gnnstore.loaders.device import checked_device
from gnnstore.loaders.options import CsrEdges, checked_edge_ids, warn_of_narrow_edges
from gnnstore.pipeline.packed_batches import PackedBatches, not_packed
from gnnstore.pipeline.shuffle import order_bytes
from gnnstore.pipeline.states import OrderFields, checked
from gnnstore.seeds.labels import labels_of
from gnnstore.strategies.base import Sources
from gnnstore.strategies.loader_spec import EdgeIds, LoaderSpec
from gnnstore.strategies.options import StrategyTraits
from gnnstore.strategies.placement import Placement, check_two_batches
from gnnstore.units import format_size

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
        pins: bool = False,  # whether batches are copied to pinned memory
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
                manifest.largest_batch_bytes * (2 if pins else 1),
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

    def batches(self, *_: Any) -> PackedBatches:
        """Return the packed batches; sampling options do not matter."""
        return PackedBatches(self.packed)


def open_packed_sources(loader: LoaderSpec) -> PackedSources:
    """Open the packed epochs that a loader on a store asks for."""
    options = loader.options
    loader.store.fetch_unit(PACKED, options.packed or "")
    reader = PackedReader.open(find_unit(PACKED, loader.store.path, options.packed or ""))
    return PackedSources(
        reader,
        options.memory,
        options.io_engine,
        seeds_bytes=loader.seeds_bytes,
        num_threads=loader.num_threads,
        may_use_fewer=loader.may_use_fewer,
        pins=loader.presampler.pins,
        edge_ids=options.edge_ids,
    )


class PackedEpochs:
    """Packed epochs: their batches, with all attributes. Pickles as its path.

    Parameters
    ----------
    path : path-like
        The directory.

    Attributes
    ----------
    reader : PackedReader
        Manifest and files.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.reader = PackedReader.open(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (reopened, (PackedEpochs, str(self.path), self.reader.uuid))

    def __repr__(self) -> str:
        return (
            f"PackedEpochs({str(self.path)!r}, epochs={self.epochs}, "
            f"batches_per_epoch={self.reader.manifest.batches_per_epoch})"
        )

    @property
    def path(self) -> Path:
        """The directory."""
        return self.reader.path

    @property
    def epochs(self) -> int:
        """Number of packed epochs."""
        return self.reader.manifest.epochs

    @property
    def assigned(self) -> AssignedAttributes:
        """Nothing: attributes are assigned to stores."""
        return AssignedAttributes({})

    @property
    def schema(self) -> Schema:
        """Description of the store from which they were packed."""
        return self.reader.manifest.schema

    def graph_attributes(self) -> dict[str, Any]:
        """Return the graph-level attributes: JSON values, and tensors."""
        schema = self.schema
        return whole_values(schema.graph_attributes, schema.graph_arrays, self._read)

    def values_of(self, own: NodeTypeSpec | EdgeTypeSpec) -> dict[str, Any]:
        """Return what a type has as a whole: JSON values, and tensors."""
        return whole_values(own.values, own.value_arrays, self._read)

    def _read(self, spec: AttributeSpec) -> npt.NDArray[Any]:
        self.reader.check_arrays(spec.path)
        return self.reader.compressed(spec)

    def loader(
        self,
        *,
        num_threads: int | None = None,
        prefetch_batches: int | None = None,
        memory: int | str | None = None,
        io_engine: str | None = None,
        transform: Callable[[Data], Any] | None = None,
        custom_cls: type[Data] | None = None,
        edge_format: str = "coo",
        adj_value: str | None = None,
        edge_ids: EdgeIds | None = "input",
        device: str | torch.device | None = None,
        **kwargs: Any,
    ) -> PackedLoader:
        """Return a loader of the packed batches.

        Parameters
        ----------
        num_threads, prefetch_batches, memory, io_engine, transform, custom_cls, edge_format, \
adj_value, edge_ids, device
            As in `NeighborLoader`.
        **kwargs
            As in `torch.utils.data.DataLoader`, such as `pin_memory`; packing has fixed the options
            of the batches.

        Raises
        ------
        BudgetError, UsageError, StorageError
            As in `NeighborLoader` with `packed=`.
        """
        given = {name: value for name, value in locals().items() if name not in {"self", "kwargs"}}
        return PackedLoader(self, given, kwargs)


class PackedLoader(BatchLoader):
    """The batches of packed epochs, in their order; made by `PackedEpochs.loader`.

    Attributes
    ----------
    packed : PackedEpochs
    epoch : int
        Number of the epoch that the next iteration will be; counts up by itself.
    """

    @limits_named("prepare to load batches")
    def __init__(
        self, packed: PackedEpochs, given: Mapping[str, Any], options: dict[str, Any]
    ) -> None:
        self.packed = packed
        manifest = packed.reader.manifest
        found = manifest.fingerprint
        subgraph_type = checked(found, "subgraph_type", str)
        csr = CsrEdges.of(packed.schema, given["edge_format"], given["adj_value"], subgraph_type)
        if csr is None:
            warn_of_narrow_edges(packed.schema)
        num_seeds = checked(found, NUM_POSITIONS, int)
        order = {
            "batch_size": checked(found, "batch_size", int),
            "shuffle": checked(found, "shuffle", bool),
            "drop_last": checked(found, "drop_last", bool),
        }
        super().__init__(
            num_seeds,
            labels=labels_of(found),
            fingerprint=partial(_fingerprint, found),
            seed=manifest.seed,
            transform=given["transform"],
            transform_sampler_output=None,
            num_threads=given["num_threads"],
            prefetch_batches=given["prefetch_batches"],
            device=checked_device(given["device"]),
            options={**options, **order},
        )
        opened = PackedSources(
            packed.reader,
            given["memory"],
            given["io_engine"],
            seeds_bytes=order_bytes(num_seeds, shuffles=order["shuffle"]),
            num_threads=max(1, self._most_threads()),
            may_use_fewer=self._num_threads_given is None,
            pins=self._copies_batches(),
            edge_ids=checked_edge_ids(given["edge_ids"]),
        )
        assembler = Assembler(packed, opened, given["custom_cls"], csr, subgraph_type)
        self._read_from(opened, opened.batches(), assembler)

    def _origin(self) -> tuple[Path, Schema, str | None]:
        return self.packed.path, self.packed.schema, None


def _fingerprint(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that packed batches depend on, except seed and order."""
    return {name: value for name, value in found.items() if name not in OrderFields._fields}


@limits_named("open packed epochs")
def open_packed(path: str | os.PathLike[str]) -> PackedEpochs:
    """Open packed epochs; public as `gnnstore.open_packed`.

    Parameters
    ----------
    path : path-like
        The directory that `gnnstore pack` made, or a copy of it on any machine.

    Raises
    ------
    NotFoundError, UnsupportedVersionError, CorruptStoreError, StorageError
        See `PackedReader.open`.
    """
    return PackedEpochs(path)
