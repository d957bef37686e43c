"""The batches of packed epochs, handed out in their order with nothing sampled or looked up.

Where the cached rows are the same for all batches, any rank reads batches in any order. Otherwise
each packed epoch begins with an empty cache, and an iteration that begins in the middle of an epoch
first reads the earlier batches, for the rows that they leave in the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts, empty
from gnnstore.errors import UsageError
from gnnstore.features.chunk_rows import AbsentRows
from gnnstore.features.packed_epochs import PackedEpochFiles
from gnnstore.features.packed_rows import PackedFiles, PackedRecord
from gnnstore.features.planned import SlotCache, TurnLock
from gnnstore.features.source import AS_STORED, Decodings, Rows, RowsMemory, RowSource, TypedRows
from gnnstore.graph.pyg_data import FINGERPRINT
from gnnstore.pipeline.batch import Batch, BatchSource, EpochRun
from gnnstore.pipeline.order import Position
from gnnstore.pipeline.states import LoaderState
from gnnstore.sampling.neighbor import NeighborSampler
from gnnstore.seeds.base import SeedLabels
from gnnstore.seeds.labels import labels_of
from gnnstore.threads import ordered_map


class PackedBatches(BatchSource):
    """Hands out the batches of packed epochs, iteration after iteration."""

    def __init__(self, packed: PackedEpochFiles) -> None:
        self.packed = packed
        self.manifest = manifest = packed.manifest
        self.labels = labels_of(manifest.fingerprint)
        self.index_dtype = manifest.schema.index_dtype
        self.batches_per_epoch = manifest.batches_per_epoch
        self._plain_paths = (*manifest.plain, *manifest.edge_id_paths.values())
        # Iterations share no slots: a row that left a slot cannot be read from a table.
        self._free: list[SlotCache] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return (PackedBatches, (self.packed,))

    @property
    def sampler(self) -> NeighborSampler:
        """Refuse: nothing is sampled any more."""
        raise not_packed("other batches to sample")

    def with_seed(self, seed: int) -> PackedBatches:
        """Refuse: the seed was decided when the epochs were packed."""
        raise not_packed(f"batches of the seed {seed}")

    @property
    def refusal(self) -> Callable[[str], Exception]:
        """Makes the error for rows of nodes or edges that a batch lacks."""
        return not_packed

    def agree(self, fingerprint: Mapping[str, Any], seed: int | None, world_size: int) -> int:
        """Check that a loader would give the batches that were packed; return their seed."""
        manifest, label = self.manifest, self.packed.parts.label
        if world_size > 1 and manifest.part is None:
            raise UsageError(
                f"{label}: these epochs have a cache by {manifest.cached_by!r}, whose rows change "
                "from batch to batch, so that one process reads them all; leave out rank=, or pack "
                "them with --cache-by frequency, whose cached rows are the same for all batches"
            )
        state = LoaderState(Position(0), manifest.seed, dict(manifest.fingerprint))
        # Attributes that were assigned to the store are not packed, but looked up by `n_id`.
        packed = {k: v for k, v in fingerprint.items() if not k.startswith(FINGERPRINT)}
        different = state.differences(packed, seed)
        if different:
            raise UsageError(
                f"{label}: these epochs (found) were not packed for a loader "
                f"like this one (expected): {'; '.join(different)}. Make the loader as they were "
                f"packed, or pack epochs for this one with 'gnnstore pack'"
            )
        return manifest.seed

    @contextmanager
    def epoch(self, batches: Iterator[Batch], run: EpochRun) -> Iterator[Iterator[Batch]]:
        """Hand out the batches of one epoch, or of what is left of it."""
        epoch = run.epoch
        epochs = self.manifest.epochs
        if epoch >= epochs:
            raise UsageError(
                f"{self.packed.parts.label}: {epochs} epochs are packed, 0 to {epochs - 1}, and "
                f"this is epoch {epoch}; begin again with loader.set_epoch(0), or pack more epochs"
            )
        if self.manifest.part is not None:
            yield self._hand_out_any(batches, epoch * self.batches_per_epoch)
            return
        slots = self._take_slots()
        turns = slots.begin()
        try:
            yield self._hand_out(batches, run, slots, turns)
        finally:
            turns.cancel()
            with self._lock:
                self._free.append(slots)

    def _take_slots(self) -> SlotCache:
        with self._lock:
            if self._free:
                return self._free.pop()
        manifest, ranges = self.manifest, self.packed.ranges
        tables: dict[str, TypedRows[RowSource]] = {
            spec.path: TypedRows(AbsentRows(spec, not_packed), ranges[spec.path])
            for spec in manifest.cached_specs
        }
        return SlotCache(tables, manifest.num_slots, pools=self.packed.pools)

    @staticmethod
    def _hand_out_any(batches: Iterator[Batch], first: int) -> Iterator[Batch]:
        """Hand out batches that do not depend on one another."""
        for batch in batches:
            batch.place = RecordLocation(first + batch.key.batch)
            yield batch

    def _hand_out(
        self, batches: Iterator[Batch], run: EpochRun, slots: SlotCache, turns: TurnLock
    ) -> Generator[Batch, None, None]:
        skipped: int | None = None
        first = run.epoch * self.batches_per_epoch
        for batch in batches:
            number = batch.key.batch
            if skipped is None:
                # Without slots, earlier batches leave no rows behind.
                skipped = 0 if self.manifest.num_slots else number
                filled = ordered_map(
                    self._fill,
                    [(first + k, _Turn(slots, turns, k)) for k in range(number - skipped)],
                    num_threads=run.num_threads,
                    lookahead=lambda: 2,
                    describe=lambda k: f"while reading batch {k} for what it leaves in the cache",
                )
                with closing(filled):
                    for _ in filled:
                        pass
            batch.place = RecordLocation(first + number, _Turn(slots, turns, number - skipped))
            yield batch

    def stage_of(self, batch: Batch) -> str:  # noqa: ARG002
        """Return the name of preparing a batch, on a timeline."""
        return "recalling"

    def prepare(self, batch: Batch) -> None:
        """Read the packed sample."""
        place = batch.place
        if place is None:
            raise not_packed(f"batch of the positions {batch.index!r}")
        files = self.packed.files_of(place.number)
        record = files.record(place.number)
        batch.place = place._replace(record=record)
        batch.sample = record.subgraph.expand(self.index_dtype, empty)
        batch.labels = read_labels(files, self.labels, place.number, record)
        if self.packed.held is not None:
            batch.split = self.packed.held.split(batch.sample.nodes)

    def gather(self, batch: Batch) -> None:
        """Gather the rows of all attributes, and ids of edges, from the packed epochs."""
        place, record = batch.place, batch.place.record
        rows = self._rows(place, record, batch.rows_memory, batch.decodings)
        batch.place = place._replace(record=None, has_rows=True)
        plain = (*record.plain, *record.edge_ids)
        for path, kept in zip(self._plain_paths, plain, strict=True):
            rows[path] = Rows(_owned(kept, batch.rows_memory), ReadCounts())
        batch.rows = rows

    def release(self, batch: Batch, error: BaseException | None = None) -> None:
        """Give up its turn if an error came before that."""
        place, batch.place = batch.place, None
        if place is None or place.turn is None or place.has_rows or error is None:
            return
        place.turn.fail(error)

    def _fill(self, numbered: tuple[int, _Turn]) -> None:
        """Read a batch for what it leaves in the cache."""
        number, turn = numbered
        try:
            record = self.packed.files_of(number).record(number)
            self._rows(RecordLocation(number, turn), record)
        except BaseException as error:
            turn.fail(error)  # or later ones would wait
            raise

    def _rows(
        self,
        place: RecordLocation,
        record: PackedRecord,
        memory: RowsMemory = empty,
        decodings: Decodings = AS_STORED,
    ) -> dict[str, Rows]:
        if place.turn is None:
            return self.packed.gather(place.number, record, memory, decodings)
        files, (slots, turns, number) = self.packed.files_of(place.number), place.turn
        missed = files.rows(place.number, record)
        step = record.step(self.packed.space, self.packed.held)
        try:
            return slots.gather(turns, number, step, missed, memory, decodings)
        except (TypeError, IndexError) as error:  # kernels refuse places of rows
            raise files.forged(place.number, error) from error


class _Turn(NamedTuple):
    """The turn of a batch with rows that enter a cache."""

    slots: SlotCache
    turns: TurnLock
    number: int

    def fail(self, error: BaseException) -> None:
        """Give the turn up."""
        self.turns.fail(self.number, error)


class RecordLocation(NamedTuple):
    """The number of a batch in packed epochs, and what has been read of it."""

    number: int  # the number of its record, counted through all epochs
    turn: _Turn | None = None  # None: it depends on no other batch
    record: PackedRecord | None = None  # set while the record is read and its rows are not
    has_rows: bool = False  # whether its rows are read, so that its turn is over


def read_labels(
    packed: PackedFiles, labels: type[SeedLabels], number: int, record: PackedRecord
) -> SeedLabels:
    """Return the labels of a batch's seeds from its record; refuse a forged record."""
    try:
        read = labels.from_arrays([_owned(array) for array in record.seeds])
        if unknown := [name for name in read.node_types if name not in record.subgraph.nodes]:
            raise ValueError(f"seeds are of {unknown[0]!r}, which is not a node type")
        return read
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise packed.forged(number, error) from error


def _owned(view: npt.NDArray[Any], memory: RowsMemory = empty) -> npt.NDArray[Any]:
    """Return a copy: what is handed out must not keep the whole record in memory."""
    copied = memory(view.shape, view.dtype)
    np.copyto(copied, view)
    return copied


def not_packed(what: str) -> UsageError:
    """Return the error for data that packed epochs do not hold."""
    return UsageError(
        f"packed epochs hold their batches and nothing else, so there are no {what}; use a loader "
        "on the store without packed= for that"
    )
