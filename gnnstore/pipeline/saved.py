"""The batches of a packed plan, handed out in their order with nothing sampled or looked up.

Each epoch of a plan begins with an empty cache. An iteration that begins in the middle of one
first reads the batches before it, for the rows that they leave in the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore._core import ReadCounts, empty
from gnnstore.errors import UsageError
from gnnstore.features.packed.saved import SavedPlan
from gnnstore.features.planned import PlannedCache
from gnnstore.features.source import AbsentRows, Rows
from gnnstore.formats.packed.manifest import pack_command
from gnnstore.pipeline.batch import BatchSource, EpochRun, Planned, Sampled, Task, reselected
from gnnstore.pipeline.order.state import LoaderState, Position
from gnnstore.seeds.base import BatchKey
from gnnstore.seeds.kinds import labels_of
from gnnstore.threads import ordered_map

if TYPE_CHECKING:
    from torch_geometric.sampler import SamplerOutput

    from gnnstore.features.packed.record import SavedRecord
    from gnnstore.features.planned import Lease
    from gnnstore.sampling.neighbor import NeighborSampler


class SavedBatches(BatchSource):
    """Hands out the batches of a plan, iteration after iteration."""

    def __init__(self, plan: SavedPlan, seeds: str | None = None) -> None:
        self.plan = plan
        self._seeds = seeds
        manifest = plan.reader.manifest
        self.labels = labels_of(manifest.fingerprint)
        self.index_dtype = manifest.schema.index_dtype
        self.batches_per_epoch = manifest.batches_per_epoch
        nodes = {spec.path for spec in manifest.schema.node.attributes.values()}
        # By path, whether rows in a record are those of nodes.
        self.plain = [(spec.path, spec.path in nodes) for spec in manifest.plain_specs]
        edge_id = manifest.schema.edge.edge_id
        self.edge_id_path = "" if edge_id is None else edge_id.path
        # An iteration has slots of its own: what another needs cannot be read from a table.
        self._free: list[PlannedCache] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return (SavedBatches, (self.plan, self._seeds))

    @property
    def sampler(self) -> NeighborSampler:
        """Refuse: nothing is sampled any more."""
        raise not_packed("other batches to sample")

    def with_seed(self, seed: int) -> SavedBatches:
        """Refuse: the seed was decided when the plan was packed."""
        raise not_packed(f"batches of the seed {seed}")

    def task(self, index: Any, key: BatchKey) -> Task:  # noqa: ARG002
        """Refuse: a plan has no other batches than those that were packed."""
        raise not_packed(f"batch of the positions {index!r}")

    def agree(self, fingerprint: Mapping[str, Any], seed: int | None, world_size: int) -> int:
        """Check that a loader would give the batches that were packed; return their seed."""
        if world_size > 1:
            raise UsageError(
                "plan= and rank= exclude one another: a plan is followed from batch to batch, "
                "by one process; leave out one of them"
            )
        manifest = self.plan.reader.manifest
        state = LoaderState(Position(0), manifest.seed, dict(manifest.fingerprint))
        different = state.differences(fingerprint, seed)
        if different:
            command = pack_command(
                self.plan.reader.path,
                fingerprint,
                epochs=manifest.epochs,
                seed=manifest.seed if seed is None else seed,
                seeds=self._seeds,
            )
            raise UsageError(
                f"{self.plan.reader.path}: the plan (found) was not packed for a loader like this "
                f"one (expected): {'; '.join(different)}. Make the loader as the plan was packed, "
                f"or pack a plan for this one: {command}"
            )
        return manifest.seed

    @contextmanager
    def epoch(self, planned: Iterator[Planned], run: EpochRun) -> Iterator[Iterator[Task]]:
        """Hand out the batches of one epoch, or of what is left of it."""
        epoch = run.epoch
        epochs = self.plan.reader.manifest.epochs
        if epoch >= epochs:
            raise UsageError(
                f"{self.plan.reader.path}: the plan has {epochs} epochs, 0 to {epochs - 1}, and "
                f"this is epoch {epoch}; begin again with loader.set_epoch(0), or pack more epochs"
            )
        cache = self._take_cache()
        lease = cache.begin()
        try:
            yield self._hand_out(planned, run, lease)
        finally:
            lease.close()
            with self._lock:
                self._free.append(cache)

    def _take_cache(self) -> PlannedCache:
        with self._lock:
            if self._free:
                return self._free.pop()
        manifest = self.plan.reader.manifest
        tables = {spec.path: AbsentRows(spec, not_packed) for spec in manifest.cached_specs}
        return PlannedCache(tables, manifest.num_slots)

    def _hand_out(
        self, planned: Iterator[Planned], run: EpochRun, lease: Lease
    ) -> Generator[SavedTask, None, None]:
        skipped: int | None = None

        def task(batch: int, skipped: int) -> SavedTask:
            return SavedTask(self, lease, run.key(batch), skipped)

        for batch, _ in planned:
            if skipped is None:
                # Without slots nothing is left behind by the batches before.
                skipped = 0 if self.plan.reader.manifest.num_slots else batch
                filled = ordered_map(
                    SavedTask.fill,
                    [task(k, 0) for k in range(batch - skipped)],
                    num_threads=run.num_threads,
                    lookahead=lambda: 2,
                    describe=lambda k: f"while reading batch {k} for what it leaves in the cache",
                )
                with closing(filled):
                    for _ in filled:
                        pass
            yield task(batch, skipped)


class SavedTask(Task):
    """A batch that is to be read."""

    stage = "recalling"

    def __init__(self, of: SavedBatches, lease: Lease, key: BatchKey, skipped: int) -> None:
        self.key = key
        self._of = of
        self._lease = lease
        self._turn = key.batch - skipped
        self._number = key.epoch * of.batches_per_epoch + key.batch
        self._record: SavedRecord | None = None

    def sample(self) -> Sampled:
        """Return the sample as it was packed."""
        record = self._record = self._read()
        try:
            subgraph = record.subgraph.expand(self._of.index_dtype, empty)
            labels = self._of.labels.from_arrays([_owned(array) for array in record.seeds])
        except BaseException as error:
            self._lease.fail(self._turn, error)
            raise
        return Sampled(subgraph, labels)

    def rows(self, output: SamplerOutput) -> dict[str, Rows]:
        """Gather the rows of all attributes, and ids of edges, from the plan."""
        record, self._record = self._record, None
        if record is None:
            raise not_packed("rows of a batch that has them already")
        of, of_nodes, of_edges = self._of, self._gather(record), dict[str, Rows]()
        for (path, is_of_nodes), rows in zip(of.plain, record.plain, strict=True):
            (of_nodes if is_of_nodes else of_edges)[path] = Rows(_owned(rows), ReadCounts())
        if record.edge_ids is not None and of.edge_id_path:
            of_edges[of.edge_id_path] = Rows(_owned(record.edge_ids), ReadCounts())
        subgraph = record.subgraph
        found = reselected(of_nodes, subgraph.n_id, output.node.numpy(), not_packed)
        if output.edge is not None:
            wanted = output.edge.numpy()
            found |= reselected(of_edges, subgraph.edge_pos, wanted, not_packed, "edges")
        return found

    def finish(self, error: BaseException | None = None) -> None:
        """Give up its turn if an error came before that."""
        if error is not None and self._record is not None:
            self._lease.fail(self._turn, error)

    def fill(self) -> None:
        """Read the batch for what it leaves in the cache."""
        self._gather(self._read())

    def _read(self) -> SavedRecord:
        try:
            return self._of.plan.record(self._number)
        except BaseException as error:
            self._lease.fail(self._turn, error)  # or later ones would wait
            raise

    def _gather(self, record: SavedRecord) -> dict[str, Rows]:
        missed = self._of.plan.rows(self._number, record)
        return self._lease.gather(self._turn, record.step, missed)


def _owned(view: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy: what is handed out must not keep the whole record in memory."""
    copied = empty(view.shape, view.dtype)
    np.copyto(copied, view)
    return copied


def not_packed(what: str) -> UsageError:
    """Return that a plan has nothing but its batches."""
    return UsageError(
        f"a packed plan holds its batches and nothing else, so there are no {what}; use a loader "
        "on the store without plan= for that"
    )
