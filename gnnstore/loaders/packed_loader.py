"""`open_packed`: packed epochs, to train on without a graph and features."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt
import torch
from torch_geometric.data import Data

from gnnstore.budget.ledger import CACHED, SLOTS, STAGING, Ledger, Reservation
from gnnstore.budget.limits import MemoryBudget, affordable_threads, available_bytes, memory_of
from gnnstore.disk.engines import Engine
from gnnstore.errors import NotFoundError, limits_named
from gnnstore.features.chunk_rows import AbsentRows
from gnnstore.features.held import ChosenRows
from gnnstore.features.packed_epochs import PackedEpochFiles
from gnnstore.features.planned import SlotCache
from gnnstore.features.tables import CachedTables
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.packed import (
    NUM_POSITIONS,
    PACKED,
    PackedManifest,
    PackedParts,
    has_parts,
)
from gnnstore.formats.store.scales import Scales
from gnnstore.formats.store.schema import EdgeTypeSpec, NodeTypeSpec, Schema
from gnnstore.formats.store.units import find_unit
from gnnstore.graph.arrays import whole_values
from gnnstore.graph.decoding import Choices, Decode, choices_of
from gnnstore.graph.pyg_data import AssignedAttributes
from gnnstore.loaders.assemble import Assembler
from gnnstore.loaders.base import BatchLoader
from gnnstore.loaders.device import checked_device
from gnnstore.loaders.options import (
    CsrEdges,
    checked_edge_ids,
    checked_torch,
    local_machine,
    warn_of_narrow_edges,
    without_decided,
)
from gnnstore.machine import PRIVATE, Machine, SharedMachine, share_of
from gnnstore.pipeline.packed_batches import PackedBatches, not_packed
from gnnstore.pipeline.ranks import RankShard
from gnnstore.pipeline.shuffle import order_bytes
from gnnstore.pipeline.states import OrderFields, checked
from gnnstore.progress import open_progress
from gnnstore.remote.objects import is_elsewhere
from gnnstore.remote.streams import open_elsewhere
from gnnstore.seeds.labels import labels_of
from gnnstore.strategies.base import Sources
from gnnstore.strategies.device_rows import PIECE_BYTES
from gnnstore.strategies.loader_spec import EdgeIds, LoaderSpec
from gnnstore.strategies.options import StrategyTraits
from gnnstore.strategies.placement import Placement, check_two_batches
from gnnstore.units import format_count, format_size

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from gnnstore.graph.store import GraphStore

# The strategy of packed epochs, under any cache policy.
_PACKED = StrategyTraits("packed", "disk", packs=True)


class PackedSources(Sources):
    """The parts of packed epochs that a loader reads instead of a store."""

    def __init__(
        self,
        parts: PackedParts,
        memory: int | str | None = None,
        io_engine: str | None = None,
        *,
        machine: Machine = PRIVATE,
        seeds_bytes: int = 0,
        num_threads: int = 1,
        may_use_fewer: bool = False,
        pins: bool = False,  # whether batches are copied to pinned memory
        edge_ids: EdgeIds | None = "input",
        has_device: bool = False,  # whether a device holds its rows; else the host's memory does
    ) -> None:
        self.e_id = edge_ids
        manifest, ranks = parts.manifest, machine.num_ranks
        memory = memory_of(memory, manifest.schema.bytes_in_memory)
        name = parts.label.rstrip("/").rpartition("/")[2]
        self.packed = PackedEpochFiles(parts, io_engine, machine)
        is_remote = self.packed.is_remote
        self.engine: Engine | None = None if is_remote else self.packed.engine
        staging_bytes = self.packed.staging_bytes
        if ranks > 1 and memory in {None, "auto"}:
            budget = MemoryBudget.of_rank(memory, available_bytes(), ranks)
        else:
            budget = MemoryBudget.of(memory)
        if may_use_fewer:
            num_threads = affordable_threads(budget.num_bytes, staging_bytes, num_threads)
        slot_bytes = CachedTables.from_schema(manifest.schema, set(manifest.cached)).slot_bytes
        of_device = self._choose(parts, has_device=has_device)
        if self.packed.pools is not None:
            slot_bytes = self.packed.pools.slot_bytes
        cache_bytes = SlotCache.reserve(slot_bytes).bytes_of({SLOTS: manifest.num_slots})
        if manifest.part is not None:
            cache_bytes = share_of(self.packed.cached_bytes, ranks)
        self.placement = Placement(
            strategy=_PACKED,
            topology="disk",
            modes={},
            ledger=Ledger(
                budget.num_bytes,
                (
                    Reservation(CACHED, cache_bytes),
                    Reservation("the index", parts.index_bytes),
                    Reservation("seeds and their order", seeds_bytes),
                    Reservation(STAGING, num_threads * staging_bytes),
                    *of_device,
                ),
                f"reading the packed epochs {name!r}",
                budget.source,
            ),
            budget_is_promise=budget.is_promise,
            reason=(
                f"packed before as {name!r}: {manifest.epochs} epochs of "
                f"{format_count(manifest.batches_per_epoch, 'batch')}, "
                f"{format_count(manifest.num_slots, 'row')} cached "
                f"({format_size(cache_bytes)}); read "
                + ("from the bucket" if self.engine is None else f"by {self.engine.reason}")
            ),
        )
        if budget.is_promise:
            check_two_batches(
                self.placement.ledger,
                parts.largest_batch_bytes * (2 if pins else 1),
                "lower num_threads=",
                "pack with a smaller --memory",
            )
        if isinstance(machine, SharedMachine):  # before rows that cannot be shared are loaded
            machine.spare_bytes = self.placement.spare_bytes
        before = machine.private_bytes
        if self.packed.cached is not None and (private := machine.private_bytes - before):
            unshared = Reservation("rows that are not shared", private - share_of(private, ranks))
            ledger = self.placement.ledger.add(unshared)
            self.placement = replace(self.placement, ledger=ledger)
        self.num_threads = num_threads
        self.edge_ids = {}  # a batch's edge ids are in its record
        schema = manifest.schema
        attributes = (*schema.node_attributes(), *schema.edge_attributes())
        self.tables = {spec.path: AbsentRows(spec, not_packed) for spec in attributes}
        self.tables |= self.packed.device_tables

    def _choose(self, parts: PackedParts, *, has_device: bool) -> list[Reservation]:
        """Set the rows that the device holds; return the host's memory for them."""
        held, manifest = self.packed.held, parts.manifest
        if held is None:
            return []
        tables = CachedTables.from_schema(manifest.schema, set(manifest.cached))
        widths = {name: tables.widths[own] for name, own in tables.space.ranges.items()}
        num_bytes = sum(widths[name] * len(nodes) for name, nodes in held.nodes.items())
        most = parts.largest_batch_bytes
        self.chosen = ChosenRows(held, tables, num_bytes, most, left_out=held)
        reservations = [
            Reservation("numbers of the device's rows", held.num_bytes),
            Reservation("filling the device", 2 * min(num_bytes, PIECE_BYTES)),
        ]
        if not has_device:
            reservations.append(Reservation("rows for a device", num_bytes))
        return reservations

    @property
    def cached_by(self) -> str:
        """The policy that chose the cached rows; empty without a cache."""
        return self.packed.manifest.cached_by if self.num_cached else ""

    @property
    def num_cached(self) -> int:
        """Nodes whose rows have room to be cached."""
        return self.packed.manifest.num_slots

    def batches(self, *_: Any) -> PackedBatches:
        """Return the packed batches; sampling options do not matter."""
        return PackedBatches(self.packed)


def open_packed_sources(loader: LoaderSpec, *, has_device: bool = False) -> PackedSources:
    """Open the packed epochs that a loader on a store asks for."""
    options = loader.options
    return PackedSources(
        parts_named(loader.store, options.packed),
        options.memory,
        options.io_engine,
        machine=loader.machine,
        seeds_bytes=loader.seeds_bytes,
        num_threads=loader.num_threads,
        may_use_fewer=loader.may_use_fewer,
        pins=loader.presampler.pins,
        edge_ids=options.edge_ids,
        has_device=has_device,
    )


def device_of(manifest: PackedManifest, device: torch.device | None) -> torch.device | None:
    """Return the device of batches; without one the CPU holds a device's packed rows.

    None: batches are not placed.
    """
    return torch.device("cpu") if device is None and manifest.device is not None else device


def parts_named(store: GraphStore, packed: Any) -> PackedParts:
    """Return the packed epochs that `packed=` names, opened before or not."""
    if isinstance(packed, PackedEpochs):
        return packed.reader
    if is_elsewhere(packed):
        return _opened(packed, None)
    store.fetch_unit(PACKED, packed)
    try:
        return PackedParts.open(find_unit(PACKED, store.path, packed))
    except NotFoundError:
        if not has_parts(Path(packed)):
            raise
    return PackedParts.open(packed)


def _opened(place: Any, cache_dir: str | os.PathLike[str] | None) -> PackedParts:
    with open_progress() as progress:
        return open_elsewhere(place, cache_dir, progress)


class PackedEpochs:
    """Packed epochs: their batches, with all attributes. Pickles as its path or URL.

    Attributes
    ----------
    reader : PackedParts
        Manifest and files, of all parts.
    """

    def __init__(self, parts: PackedParts, choices: Choices | None = None) -> None:
        self.reader = parts
        self._choices = choices or {}

    def decoded(self, decode: Decode) -> PackedEpochs:
        """Return the epochs with attributes that have scales in other types, as `open_packed`."""
        reader = self.reader
        schema, scales = reader.manifest.schema, self.column_scales
        return PackedEpochs(reader, choices_of(decode, schema, scales, reader.label))

    @property
    def column_scales(self) -> Mapping[str, Scales]:
        """The scales of attributes of int8, by path."""
        return self.reader.parts[0].scales

    def __repr__(self) -> str:
        return (
            f"PackedEpochs({self.reader.label!r}, epochs={self.epochs}, "
            f"batches_per_epoch={self.reader.manifest.batches_per_epoch})"
        )

    @property
    def path(self) -> Path:
        """The directory; of epochs in a bucket, the copy of their index is elsewhere."""
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
        return self.reader.manifest.schema.decoding(self._choices)

    def graph_attributes(self) -> dict[str, Any]:
        """Return the graph-level attributes: JSON values, and tensors."""
        schema = self.schema
        return whole_values(schema.graph_attributes, schema.graph_arrays, self._read)

    def values_of(self, own: NodeTypeSpec | EdgeTypeSpec) -> dict[str, Any]:
        """Return what a type has as a whole: JSON values, and tensors."""
        return whole_values(own.values, own.value_arrays, self._read)

    def _read(self, spec: AttributeSpec) -> npt.NDArray[Any]:
        first = self.reader.parts[0]
        first.check_arrays(spec.path)
        return first.compressed(spec)

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
        rank: int | None = None,
        world_size: int | None = None,
        local_world_size: int | None = None,
        decode: Decode | Literal["opened"] = "opened",
        **kwargs: Any,
    ) -> PackedLoader:
        """Return a loader of the packed batches.

        Parameters
        ----------
        num_threads, prefetch_batches, memory, io_engine, transform, custom_cls, edge_format, \
adj_value, edge_ids, device, rank, world_size, local_world_size, decode
            As in `NeighborLoader`; ranks read epochs whose cached rows are the same for all
            batches (packed with ``--cache-by frequency`` or ``degree``).
        **kwargs
            As in `torch.utils.data.DataLoader`, such as `pin_memory`; packing has fixed the options
            of the batches.

        Raises
        ------
        BudgetError, UsageError, StorageError
            As in `NeighborLoader` with `packed=`.
        """
        given = {name: value for name, value in locals().items() if name not in {"self", "kwargs"}}
        kwargs = without_decided(kwargs)
        decode = given.pop("decode")
        return PackedLoader(self if decode == "opened" else self.decoded(decode), given, kwargs)


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
        options = checked_torch(type(self), given, options)
        self.packed = packed
        manifest = packed.reader.manifest
        found = manifest.fingerprint
        subgraph_type = checked(found, "subgraph_type", str)
        csr = CsrEdges.from_options(
            packed.schema, given["edge_format"], given["adj_value"], subgraph_type
        )
        if csr is None:
            warn_of_narrow_edges(packed.schema)
        num_seeds = checked(found, NUM_POSITIONS, int)
        order = {
            "batch_size": checked(found, "batch_size", int),
            "shuffle": checked(found, "shuffle", bool),
            "drop_last": checked(found, "drop_last", bool),
        }
        ranks = {name: given[name] for name in ("rank", "world_size", "local_world_size")}
        machine = local_machine(**ranks) or PRIVATE
        device = device_of(manifest, checked_device(given["device"]))
        super().__init__(
            num_seeds,
            labels=labels_of(found),
            fingerprint=partial(_fingerprint, found),
            shard=RankShard.from_options(
                given["rank"], given["world_size"], manifest.seed, options
            ),
            seed=manifest.seed,
            transform=given["transform"],
            transform_sampler_output=None,
            num_threads=given["num_threads"],
            prefetch_batches=given["prefetch_batches"],
            device=device,
            options={**options, **order},
        )
        self._machine = machine
        opened = PackedSources(
            packed.reader,
            given["memory"],
            given["io_engine"],
            machine=machine,
            seeds_bytes=order_bytes(num_seeds, shuffles=order["shuffle"]),
            num_threads=max(1, self._most_threads()),
            may_use_fewer=self._num_threads_given is None,
            pins=self._copies_batches(),
            edge_ids=checked_edge_ids(given["edge_ids"]),
            has_device=device is not None and device.type != "cpu",
        )
        assembler = Assembler(packed, opened, given["custom_cls"], csr, subgraph_type)
        self._read_from(opened, opened.batches(), assembler)

    def _origin(self) -> tuple[Path, Schema, str | None]:
        return self.packed.path, self.packed.schema, None


def _fingerprint(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that packed batches depend on, except seed and order."""
    return {name: value for name, value in found.items() if name not in OrderFields._fields}


@limits_named("open packed epochs")
def open_packed(
    path: str | os.PathLike[str] | ObjectStore,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    decode: Decode = "input",
) -> PackedEpochs:
    """Open packed epochs; public as `gnnstore.open_packed`.

    From epochs in a bucket, the index and the rows that are cached for all batches are copied to a
    disk of this machine. A batch is then one request for its record and one for each table, and is
    compared with its checksums.

    Parameters
    ----------
    path : path-like, str or store of obstore
        The directory that `gnnstore pack` made, one with all parts, or a copy of it on any machine;
        its URL; or a store of obstore whose prefix is the directory.
    cache_dir : path-like, optional
        Directory on a disk of this machine for copies, as in `gnnstore.open`. What is on a path is
        copied whole, if this is given.
    decode : str, dict or None
        As in `gnnstore.open`: the types of node attributes of int8 whose columns have scales.

    Raises
    ------
    NotFoundError, UnsupportedVersionError, CorruptStoreError, StorageError
        See `PackedReader.open`; NotFoundError also where a part is missing.
    UsageError
        If the parts are not of one run, or the batches of epochs in a bucket share rows; if
        `decode` names what there is not.
    """
    if cache_dir is None and isinstance(path, str | os.PathLike) and not is_elsewhere(path):
        return PackedEpochs(PackedParts.open(path)).decoded(decode)
    return PackedEpochs(_opened(path, cache_dir)).decoded(decode)
