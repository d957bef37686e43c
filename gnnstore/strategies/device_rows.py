"""The rows of a loader that stay on its device: how many fit, and which (PaGraph, DiskGNN).

They are chosen before anything else is sized, since what is left is less: rows that a device holds
are neither traced, planned, packed, cached in the host's memory nor read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import numpy.typing as npt

from gnnstore._core import release_memory
from gnnstore.budget.ledger import Reservation
from gnnstore.caching.scores import SCORE_DTYPES, count_out_degrees
from gnnstore.features.held import ChosenRows
from gnnstore.features.static import SlotIndex
from gnnstore.features.tables import CachedTables
from gnnstore.graph.topology import Topology
from gnnstore.pipeline.lookahead.presample import with_margin
from gnnstore.sampling.row_space import RowSpace
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.options import DeviceCache
from gnnstore.strategies.placement import Placement, read_tables

if TYPE_CHECKING:
    from gnnstore.formats.store.schema import Schema
    from gnnstore.formats.store.store import StoreReader

# Least bytes of a device's memory that "auto" leaves free.
_LEFT_FREE = 1 << 30
# Bytes of a piece in which rows are read to the device; two are on their way.
PIECE_BYTES = 2 << 20


# By the store's reader, as long as a loader uses them: later loaders have the same rows.
_chosen: WeakKeyDictionary[
    StoreReader, WeakValueDictionary[tuple[DeviceCache, frozenset[str]], ChosenRows]
] = WeakKeyDictionary()


def chosen_rows(loader: LoaderSpec, placement: Placement, topology: Topology) -> ChosenRows | None:
    """Return the rows that stay on a loader's device; None: it has no such rows."""
    settings = loader.options.device_cache
    if settings is None:
        return None
    schema = loader.store.schema
    paths = {spec.path for spec in read_tables(schema.node_attributes())} | placement.read_paths
    tables = CachedTables.from_schema(schema, paths)
    of = frozenset(tables.owners)
    if (found := loader.chosen.get(of)) is None:
        known = _chosen.setdefault(loader.store.reader, WeakValueDictionary())
        if (found := known.get((settings, of))) is None:
            # Choices that differ in the device's name alone may be for one device: their tables
            # are one object, by which they are found.
            for (other, names), own in known.items():
                if names == of and replace(other, device=settings.device) == settings:
                    tables = own.tables
            found = known[settings, of] = _choose(loader, placement, topology, settings, tables)
        loader.chosen[of] = found
    return found


def left_out(loader: LoaderSpec, chosen: ChosenRows | None) -> LoaderSpec:
    """Return a loader that samples beforehand what it needs of the rows that are left."""
    if chosen is None or loader.presampler.held is chosen.held:
        return loader
    return replace(loader, presampler=replace(loader.presampler, held=chosen.held))


def _choose(
    loader: LoaderSpec,
    placement: Placement,
    topology: Topology,
    settings: DeviceCache,
    tables: CachedTables,
) -> ChosenRows:
    space, spare = tables.space, placement.spare_bytes
    num_bytes = settings.num_bytes
    if num_bytes == 0:
        return ChosenRows.none(tables)
    is_all = num_bytes is not None and _bytes_of_all(tables) <= num_bytes
    # Without a choice any scores will do.
    scores: npt.NDArray[Any] = np.zeros(space.num_rows, np.uint8)
    counts = None
    if not is_all:
        if settings.score == "degree":
            scores = row_degrees(topology, space)
        else:
            counts = scores
            spare = None if spare is None else max(0, spare - counts.nbytes)
    presampler = replace(loader.presampler.over(space), held=None)
    seen = presampler.run(topology, loader.num_threads, counts, spare_bytes=spare)
    release_memory()  # the samples' buffers, which would stay until the first batch
    # What is copied counts twice in the host's memory, and once on the device.
    batch_bytes = seen.expected_bytes // (2 if presampler.pins else 1)
    found = ChosenRows.best(scores, tables, num_bytes or 0, batch_bytes)
    return replace(found, scores=scores) if num_bytes is None else found


def reservations(settings: DeviceCache | None, schema: Schema) -> list[Reservation]:
    """Return what rows that stay on a device take of the host's memory, at most."""
    if settings is None or settings.num_bytes == 0:
        return []
    tables = CachedTables.from_schema(
        schema, {spec.path for spec in read_tables(schema.node_attributes())}
    )
    num_bytes = _bytes_of_all(tables)
    if settings.num_bytes is not None:
        num_bytes = min(settings.num_bytes, num_bytes)
    index_bytes = sum(
        SlotIndex.bytes_for(own.num_rows, min(own.num_rows, num_bytes // max(1, width)))
        for own, width in tables.widths.items()
    )
    piece = min(num_bytes, PIECE_BYTES)
    phase = "filling the device"
    if settings.num_bytes is None:  # scores wait for the first step
        index_bytes += np.dtype(SCORE_DTYPES[settings.score]).itemsize * tables.space.num_rows
    found = [
        Reservation("numbers of the device's rows", index_bytes),
        Reservation(phase, 2 * piece, phase=phase),
    ]
    if settings.device == "cpu":
        found.append(Reservation("rows of device_cache=", num_bytes))
    return found


def _bytes_of_all(tables: CachedTables) -> int:
    return sum(spec.num_bytes for spec in tables.specs)


def auto_bytes(free_bytes: int, most_bytes: int) -> int:
    """Return the bytes for rows that stay on a device, after a step of training (PaGraph).

    What is free, but for a GiB, or for what later steps may take beyond the most that was taken.
    """
    return max(0, free_bytes - max(_LEFT_FREE, with_margin(most_bytes) - most_bytes))


def row_degrees(topology: Topology, space: RowSpace) -> npt.NDArray[np.uint32]:
    """Return the out-degree of each row's node, over edges of all types: uint32 [N]."""
    counts = np.zeros(space.num_rows, np.uint32)
    for (source, _, _), csc in topology.csc.items():
        if source in space.ranges:
            first, num_rows = space.ranges[source]
            count_out_degrees(csc.column_pieces(), counts[first : first + num_rows], csc.label)
    return counts
