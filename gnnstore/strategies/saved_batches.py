"""The batches of a packed plan, handed out in their order with nothing sampled or looked up.

Each epoch of a plan begins with an empty cache. An iteration that begins in the middle of one
first reads the batches before it, for the rows that they leave in the cache.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.disk.buffers import empty
from gnnstore.disk.counts import NO_READS
from gnnstore.errors import UsageError
from gnnstore.features.packed.record import SavedRecord
from gnnstore.features.packed.saved import NotPacked, SavedPlan, not_packed
from gnnstore.features.source import Rows
from gnnstore.features.tiers.planned import PlannedCache
from gnnstore.parallel import ordered_map
from gnnstore.pipeline.lookahead.superbatch import reselected
from gnnstore.pipeline.order.state import LoaderState, Position
from gnnstore.pipeline.prepared import PreparedBatch, prepared

if TYPE_CHECKING:
    from torch_geometric.sampler import SamplerOutput

    from gnnstore.features.tiers.planned import Lease


class SavedBatches:
    """Hands out the batches of a plan, iteration after iteration.

    Parameters
    ----------
    plan : SavedPlan
    """

    def __init__(self, plan: SavedPlan) -> None:
        self.plan = plan
        # An iteration has slots of its own: what another needs cannot be read from a table.
        self._free: list[PlannedCache] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return (SavedBatches, (self.plan,))

    @property
    def seed(self) -> int:
        """The seed that the plan was packed with."""
        return self.plan.reader.manifest.seed

    def check(self, fingerprint: Mapping[str, Any], seed: int | None) -> None:
        """Check that a loader would give the batches that were packed.

        Parameters
        ----------
        fingerprint : Mapping
            What the loader's batches depend on besides the seed.
        seed : int or None
            The loader's, if the user gave it one.

        Raises
        ------
        UsageError
            Naming each difference.
        """
        manifest = self.plan.reader.manifest
        state = LoaderState(Position(0), manifest.seed, dict(manifest.fingerprint))
        different = state.differences(fingerprint, seed)
        if different:
            raise UsageError(
                f"{self.plan.reader.path}: the plan (found) was not packed for a loader like this "
                f"one (expected): {'; '.join(different)}. Make the loader as the plan was packed, "
                "or pack a plan for this one with 'gnnstore pack'"
            )

    @contextmanager
    def run(
        self,
        numbered: Iterable[tuple[int, Any]],
        epoch: int,
        *,
        num_threads: int,
    ) -> Iterator[Iterator[SavedBatch]]:
        """Hand out the batches of one epoch, or of what is left of it.

        Parameters
        ----------
        numbered : iterable
            Number of each batch in its epoch, and something else.
        num_threads : int
            Threads that read the batches before the first; 0: the consumer's does.

        Yields
        ------
        iterator of SavedBatch
            To be recalled in any order.

        Raises
        ------
        UsageError
            If the epoch is not packed.
        """
        epochs = self.plan.reader.manifest.epochs
        if epoch >= epochs:
            raise UsageError(
                f"{self.plan.reader.path}: the plan has {epochs} epochs, 0 to {epochs - 1}, and "
                f"this is epoch {epoch}; begin again with loader.set_epoch(0), or pack more epochs"
            )
        cache = self._take_cache()
        lease = cache.begin()
        try:
            yield self._hand_out(iter(numbered), epoch, lease, num_threads)
        finally:
            lease.close()
            with self._lock:
                self._free.append(cache)

    def _take_cache(self) -> PlannedCache:
        with self._lock:
            if self._free:
                return self._free.pop()
        manifest = self.plan.reader.manifest
        tables = {spec.path: NotPacked(spec) for spec in manifest.cached_specs}
        return PlannedCache(tables, manifest.num_slots)

    def _hand_out(
        self,
        numbered: Iterator[tuple[int, Any]],
        epoch: int,
        lease: Lease,
        num_threads: int,
    ) -> Generator[SavedBatch, None, None]:
        skipped: int | None = None
        for batch, _ in numbered:
            if skipped is None:
                # Without slots nothing is left behind by the batches before.
                skipped = 0 if self.plan.reader.manifest.num_slots else batch
                before = [SavedBatch(self, lease, epoch, k, 0) for k in range(batch - skipped)]
                filled = ordered_map(
                    SavedBatch.fill,
                    before,
                    num_threads=num_threads,
                    lookahead=lambda: 2,
                    describe=lambda k: f"while reading batch {k} for what it leaves in the cache",
                )
                with closing(filled):
                    for _ in filled:
                        pass
            yield SavedBatch(self, lease, epoch, batch, skipped)


@dataclass(frozen=True, eq=False)
class SavedBatch:
    """A batch that is to be read.

    Attributes
    ----------
    batch : int
        Number in its epoch.
    skipped : int
        Batches of the epoch that do not go through the lease.
    """

    of: SavedBatches
    lease: Lease
    epoch: int
    batch: int
    skipped: int

    @property
    def number(self) -> int:
        """Number in all epochs."""
        return self.epoch * self.of.plan.reader.manifest.batches_per_epoch + self.batch

    def recall(self) -> PreparedBatch:
        """Return the batch as it was sampled; joining it gathers its rows by the plan.

        Raises
        ------
        StorageError, CorruptStoreError
            If it cannot be read back as it was.
        """
        start = time.perf_counter()
        record = self._record()
        try:
            dtype = self.of.plan.reader.manifest.schema.index_dtype
            subgraph = record.subgraph.expand(dtype, empty)
        except BaseException as error:
            self.lease.fail(self.batch - self.skipped, error)
            raise
        sampled = prepared(subgraph, _owned(record.input_id), time.perf_counter() - start)
        return replace(sampled, rows_of=lambda output: self._rows_of(record, output))

    def fill(self) -> None:
        """Read the batch for what it leaves in the cache."""
        self._gather(self._record())

    def _record(self) -> SavedRecord:
        try:
            return self.of.plan.record(self.number)
        except BaseException as error:
            self.lease.fail(self.batch - self.skipped, error)  # or later ones would wait
            raise

    def _gather(self, record: SavedRecord) -> dict[str, Rows]:
        missed = self.of.plan.rows(self.number, record)
        return self.lease.gather(self.batch - self.skipped, record.step, missed)

    def _rows_of(self, record: SavedRecord, output: SamplerOutput) -> dict[str, Rows]:
        manifest = self.of.plan.reader.manifest
        of_nodes = self._gather(record)
        of_edges: dict[str, Rows] = {}
        node_paths = {spec.path for spec in manifest.schema.node.attributes.values()}
        for spec, rows in zip(manifest.plain_specs, record.plain, strict=True):
            found = of_nodes if spec.path in node_paths else of_edges
            found[spec.path] = Rows(_owned(rows), NO_READS)
        edge_id = manifest.schema.edge.edge_id
        if record.edge_ids is not None and edge_id is not None:
            of_edges[edge_id.path] = Rows(_owned(record.edge_ids), NO_READS)
        found = _as_wanted(of_nodes, record.subgraph.n_id, output.node.numpy(), "nodes")
        if output.edge is not None:
            wanted = output.edge.numpy()
            found |= _as_wanted(of_edges, record.subgraph.edge_pos, wanted, "edges")
        return found


def _as_wanted(
    rows: dict[str, Rows], ids: npt.NDArray[Any], wanted: npt.NDArray[Any], what: str
) -> dict[str, Rows]:
    """Return rows for what `transform_sampler_output` has left of a batch."""
    if not rows or np.array_equal(wanted, ids):
        return rows
    found = reselected(rows, ids, wanted)
    if not found:
        raise not_packed(f"{what} for transform_sampler_output to add to a batch")
    return found


def _owned(view: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy: what is handed out must not keep the whole record in memory."""
    copied = empty(view.shape, view.dtype)
    np.copyto(copied, view)
    return copied
