"""The batches of packed epochs, handed out in their order with nothing sampled or looked up.

Each packed epoch begins with an empty cache. An iteration that begins in the middle of one
first reads the batches before it, for the rows that they leave in the cache.
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
from gnnstore.features.packed_rows import PackedFiles, PackedRecord
from gnnstore.features.planned import SlotCache, TurnLock
from gnnstore.features.source import Rows, RowsMemory, RowSource, TypedRows
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

    def __init__(self, packed: PackedFiles) -> None:
        self.packed = packed
        manifest = packed.reader.manifest
        self.labels = labels_of(manifest.fingerprint)
        self.index_dtype = manifest.schema.index_dtype
        self.batches_per_epoch = manifest.batches_per_epoch
        self._plain_paths = (*manifest.plain, *manifest.edge_id_paths.values())
        # An iteration has slots of its own: what another needs cannot be read from a table.
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
        """Refuse other nodes and edges than those of a batch."""
        return not_packed

    def agree(self, fingerprint: Mapping[str, Any], seed: int | None, world_size: int) -> int:
        """Check that a loader would give the batches that were packed; return their seed."""
        if world_size > 1:
            raise UsageError(
                "packed= and rank= exclude one another: packed epochs are read batch by batch, "
                "by one process; leave out one of them"
            )
        manifest = self.packed.reader.manifest
        state = LoaderState(Position(0), manifest.seed, dict(manifest.fingerprint))
        # What was assigned to the store is not packed, and looked up by `n_id`.
        packed = {k: v for k, v in fingerprint.items() if not k.startswith(FINGERPRINT)}
        different = state.differences(packed, seed)
        if different:
            raise UsageError(
                f"{self.packed.reader.path}: these epochs (found) were not packed for a loader "
                f"like this one (expected): {'; '.join(different)}. Make the loader as they were "
                f"packed, or pack epochs for this one with 'gnnstore pack'"
            )
        return manifest.seed

    @contextmanager
    def epoch(self, batches: Iterator[Batch], run: EpochRun) -> Iterator[Iterator[Batch]]:
        """Hand out the batches of one epoch, or of what is left of it."""
        epoch = run.epoch
        epochs = self.packed.reader.manifest.epochs
        if epoch >= epochs:
            raise UsageError(
                f"{self.packed.reader.path}: {epochs} epochs are packed, 0 to {epochs - 1}, and "
                f"this is epoch {epoch}; begin again with loader.set_epoch(0), or pack more epochs"
            )
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
        manifest = self.packed.reader.manifest
        ranges = self.packed.ranges
        tables: dict[str, TypedRows[RowSource]] = {
            spec.path: TypedRows(AbsentRows(spec, not_packed), ranges[spec.path])
            for spec in manifest.cached_specs
        }
        return SlotCache(tables, manifest.num_slots, pools=self.packed.pools)

    def _hand_out(
        self, batches: Iterator[Batch], run: EpochRun, slots: SlotCache, turns: TurnLock
    ) -> Generator[Batch, None, None]:
        skipped: int | None = None
        first = run.epoch * self.batches_per_epoch
        for batch in batches:
            number = batch.key.batch
            if skipped is None:
                # Without slots nothing is left behind by the batches before.
                skipped = 0 if self.packed.reader.manifest.num_slots else number
                filled = ordered_map(
                    self._fill,
                    [RecordLocation(slots, turns, k, first + k) for k in range(number - skipped)],
                    num_threads=run.num_threads,
                    lookahead=lambda: 2,
                    describe=lambda k: f"while reading batch {k} for what it leaves in the cache",
                )
                with closing(filled):
                    for _ in filled:
                        pass
            batch.place = RecordLocation(slots, turns, number - skipped, first + number)
            yield batch

    def stage_of(self, batch: Batch) -> str:  # noqa: ARG002
        """Return the name of preparing a batch, on a timeline."""
        return "recalling"

    def prepare(self, batch: Batch) -> None:
        """Read the sample as it was packed."""
        place = batch.place
        if place is None:
            raise not_packed(f"batch of the positions {batch.index!r}")
        record = self.packed.record(place.number)
        batch.place = place._replace(record=record)
        batch.sample = record.subgraph.expand(self.index_dtype, empty)
        batch.labels = read_labels(self.packed, self.labels, place.number, record)

    def gather(self, batch: Batch) -> None:
        """Gather the rows of all attributes, and ids of edges, from the packed epochs."""
        place, record = batch.place, batch.place.record
        rows = self._rows(place, record, batch.rows_memory)
        batch.place = place._replace(record=None, has_rows=True)
        plain = (*record.plain, *record.edge_ids)
        for path, kept in zip(self._plain_paths, plain, strict=True):
            rows[path] = Rows(_owned(kept, batch.rows_memory), ReadCounts())
        batch.rows = rows

    def release(self, batch: Batch, error: BaseException | None = None) -> None:
        """Give up its turn if an error came before that."""
        place, batch.place = batch.place, None
        if place is not None and error is not None and not place.has_rows:
            place.turns.fail(place.turn, error)

    def _fill(self, place: RecordLocation) -> None:
        """Read a batch for what it leaves in the cache."""
        try:
            self._rows(place, self.packed.record(place.number))
        except BaseException as error:
            place.turns.fail(place.turn, error)  # or later ones would wait
            raise

    def _rows(
        self, place: RecordLocation, record: PackedRecord, memory: RowsMemory = empty
    ) -> dict[str, Rows]:
        missed = self.packed.rows(place.number, record)
        step = record.step(self.packed.space)
        try:
            return place.slots.gather(place.turns, place.turn, step, missed, memory)
        except (TypeError, IndexError) as error:  # kernels refuse places of rows
            raise self.packed.forged(place.number, error) from error


class RecordLocation(NamedTuple):
    """The place of a batch among packed epochs."""

    slots: SlotCache
    turns: TurnLock
    turn: int
    number: int  # of its record, in all epochs
    record: PackedRecord | None = None  # once it is read, until its rows are
    has_rows: bool = False  # so that its turn is over


def read_labels(
    packed: PackedFiles, labels: type[SeedLabels], number: int, record: PackedRecord
) -> SeedLabels:
    """Return what the record of a batch shows of its seeds; one that was forged is refused."""
    try:
        found = labels.from_arrays([_owned(array) for array in record.seeds])
        if unknown := [name for name in found.node_types if name not in record.subgraph.nodes]:
            raise ValueError(f"seeds are of {unknown[0]!r}, which is not a node type")
        return found
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise packed.forged(number, error) from error


def _owned(view: npt.NDArray[Any], memory: RowsMemory = empty) -> npt.NDArray[Any]:
    """Return a copy: what is handed out must not keep the whole record in memory."""
    copied = memory(view.shape, view.dtype)
    np.copyto(copied, view)
    return copied


def not_packed(what: str) -> UsageError:
    """Return that nothing but batches is packed."""
    return UsageError(
        f"packed epochs hold their batches and nothing else, so there are no {what}; use a loader "
        "on the store without packed= for that"
    )
