"""Samples batches to predict an epoch from, for as long as that is worth."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore._core import release_memory
from gnnstore.caching.scores import MAX_COUNTED_BATCHES, count_out_degrees
from gnnstore.errors import storage_error
from gnnstore.planning.workload import SampledTrace, SpatialSampling, TableReads, Workload
from gnnstore.progress import Progress

if TYPE_CHECKING:
    from gnnstore.disk.engines import Engine
    from gnnstore.formats.arrays.spec import AttributeSpec
    from gnnstore.graph.topology import Topology
    from gnnstore.pipeline.lookahead.presample import Presampled
    from gnnstore.strategies.loader_spec import LoaderSpec

# 255 batches of 136,000 nodes take two; an epoch that is worth predicting takes longer.
_SECONDS = 3.0
# As few say about how often rows are needed again, however long they take.
_LEAST_BATCHES = 16
# When every node has been needed so often on average, more batches say little more.
_ENOUGH_VISITS = 4
# Out-degrees of so many edges are counted in two seconds, where the graph is in memory.
_MAX_COUNTED_EDGES = 1 << 28


def sample_workload(
    loader: LoaderSpec,
    structure: Topology,
    reads: TableReads,
    *,
    num_threads: int,
    spare_bytes: int | None,
    progress: Progress,
) -> tuple[Presampled, Workload]:
    """Sample some batches, and look at them.

    Parameters
    ----------
    structure : Topology
        Of the graph, where the loader would have it.
    reads : TableReads
        The tables that are read from disk.
    num_threads : int
        Threads that sample.
    spare_bytes : int, optional
        Memory for batches.
    """
    presampler, num_nodes = loader.presampler, structure.csc.num_nodes
    with progress.phase("sample"):
        began = perf_counter()
        seen = presampler.run(structure, num_threads, spare_bytes=spare_bytes)
        each = (perf_counter() - began) / max(1, seen.num_batches)
        batch_nodes = max(1, seen.largest_nodes)
        wanted = min(int(_SECONDS / max(each, 1e-6)), _ENOUGH_VISITS * num_nodes // batch_nodes)
        num_batches = min(max(wanted, _LEAST_BATCHES), MAX_COUNTED_BATCHES)
        spare = None if spare_bytes is None else spare_bytes // 2
        spatial = SpatialSampling.fit(num_batches * batch_nodes, num_nodes, reads.row_bytes, spare)
        if spare is not None:
            num_batches = min(num_batches, spatial.batches_in(spare, batch_nodes))
        trace = SampledTrace(num_batches, num_nodes, spatial)
        release_memory()
        began = perf_counter()
        sampled = presampler.run(structure, num_threads, spare_bytes=spare, trace=trace)
        seconds = (perf_counter() - began) / max(1, sampled.num_batches)
        release_memory()
    if sampled.num_batches > seen.num_batches:
        seen = sampled
    with progress.phase("look at what is needed"):
        workload = Workload.learn(
            trace.build(),
            spatial,
            reads,
            num_rows=num_nodes,
            epoch_batches=presampler.epoch_batches,
            batch_bytes=float(seen.largest_bytes),
            ids_bytes=float(seen.largest_ids_bytes),
            seconds_sampling=min(each, seconds),
        )
    release_memory()
    return seen, workload


def out_degrees(structure: Topology, memory_bytes: int) -> npt.NDArray[np.uint32] | None:
    """Return the out-degree of each node; None if counting would take long, or much memory."""
    csc = structure.csc
    if structure.is_slow or structure.is_read or csc.num_edges > _MAX_COUNTED_EDGES:
        return None
    if csc.num_nodes * np.dtype(np.uint32).itemsize > memory_bytes:
        return None
    return count_out_degrees(csc.column_pieces(), csc.num_nodes, csc.source)


def reads_of(loader: LoaderSpec, specs: tuple[AttributeSpec, ...], engine: Engine) -> TableReads:
    """Return how the rows of some attributes are read.

    Raises
    ------
    StorageError
        If a file cannot be opened.
    """
    arrays = [loader.store.reader.paged(spec) for spec in specs]
    alignments = []
    for array in arrays:
        try:
            files = _core.FileSet(array.file_paths, array.body_bytes)
        except OSError as error:
            raise storage_error(error, "open", error.filename or array.file_paths[0]) from error
        alignments.append(files.alignment_bytes)
    layouts = tuple(array.layout for array in arrays)
    return TableReads(layouts, tuple(alignments), engine.tuning)
