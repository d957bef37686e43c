"""Estimates of `gnnstore reorder`: frequencies of nodes, and the bytes that an order saves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.stores.graph import StoreInput
from gnnstore.converters.stores.reorder import out_degrees
from gnnstore.disk.profile import load_profile, tune_reads
from gnnstore.formats.store.reader import StoreReader
from gnnstore.graph.store import open as open_store
from gnnstore.pipeline.lookahead.presample import Presampler
from gnnstore.seeds.nodes import InputNodes
from gnnstore.tools.predict.seeds import choose_seeds, config_of
from gnnstore.tools.predict.trace import load_topology
from gnnstore.tools.ui.layout import Block
from gnnstore.tools.ui.session import Session

if TYPE_CHECKING:
    from gnnstore.tools.ui.options import SamplingOptions, SeedOptions

_PIECE_RUNS = 2**18


def count_batches(
    session: Session,
    path: str,
    sampling: SamplingOptions,
    batch_size: int,
    seeds_asked: SeedOptions,
    *,
    memory_bytes: int | None,
) -> npt.NDArray[np.uint8]:
    """Sample batches and count for each node those that need it: 1 for seeds, 255 at most."""
    store = open_store(path)
    store.schema.refuse_types(store.path, "gnnstore reorder")
    config = config_of(store, sampling)
    _, seeds = choose_seeds(store, config, seeds_asked)
    counts = np.zeros(store.num_nodes, np.uint8)
    with session.progress() as progress:
        topology = load_topology(store, progress, memory_bytes, counts.nbytes)
        with progress.phase("sample", unit="batches"):
            presampler = Presampler.of(store, config, seeds, batch_size, False)
            presampler.run(topology, len(os.sched_getaffinity(0)), counts)
    if isinstance(seeds, InputNodes):  # an epoch has every seed, even if these batches did not
        nodes = slice(None) if seeds.nodes is None else seeds.nodes
        counts[nodes] = np.maximum(counts[nodes], 1)
    return counts


def estimate_order(
    session: Session,
    path: str,
    order: str,
    scores: npt.NDArray[np.uint8] | None,
    edge_ids: bool,
) -> None:
    """Print the savings of an order, and the size of the new store."""
    reader = StoreReader.open(path)
    needed: npt.NDArray[Any] | None = scores
    if needed is None:
        with session.progress() as progress:
            needed = out_degrees(StoreInput(path, "gnnstore reorder"), progress)
    schema = reader.schema
    added = schema.edge.indices.num_bytes if edge_ids and schema.edge.ids_in_input is None else 0
    widest = max((spec.num_bytes for spec in schema.node.attributes.values()), default=0)
    document: dict[str, Any] = {
        "store": str(reader.path),
        "order": order,
        "node_order": _savings(reader, needed > 0),
        "result_bytes": reader.total_bytes + added + 8 * schema.node.num_nodes,
        "spill_bytes": widest + 8 * schema.node.num_nodes,
    }
    saves = "no attribute of nodes lies in pages, so that their order makes no difference"
    if document["node_order"] is not None:
        saves = (
            "{node_order.needed_share} of the rows are needed; a pass over {node_order.table} reads"
            " {node_order.read_bytes}; for the rows that are needed, side by side, it would read "
            "{node_order.ordered_bytes}: {node_order.saved_share:.0%} less"
        )
    facts = {
        "order": "by {order}",
        "saves": saves,
        "takes": "{result_bytes} for the store, and up to {spill_bytes} meanwhile",
    }
    session.emit(document, ["{store}", Block("", facts)])


def _savings(reader: StoreReader, needed: npt.NDArray[np.bool_]) -> dict[str, Any] | None:
    """Return what a pass over the widest table reads for the rows that batches need."""
    attributes = reader.schema.node.attributes.values()
    paged = [spec for spec in attributes if spec.layout == "paged"]
    if not paged or not len(needed):
        return None
    spec = max(paged, key=lambda spec: spec.num_bytes)
    geometry = reader.paged(spec).geometry
    stride, per_run = geometry.page_stride_bytes, geometry.rows_per_page
    step = _PIECE_RUNS * per_run
    runs = np.concatenate(
        [
            first // per_run
            + np.flatnonzero(np.logical_or.reduceat(part, np.arange(0, len(part), per_run)))
            for first in range(0, len(needed), step)
            for part in (needed[first : first + step],)
        ]
    )
    # Gaps that cost less than a read of their own are read, too.
    gaps = np.diff(runs) - 1
    gap_runs = tune_reads(load_profile(reader.path)).gap_bytes // stride
    read_bytes = (len(runs) + int(gaps[gaps <= gap_runs].sum())) * stride
    num_needed = int(np.count_nonzero(needed))
    ordered_bytes = geometry.num_runs(num_needed) * stride
    return {
        "table": spec.path,
        "table_bytes": geometry.num_runs(spec.num_rows) * stride,
        "read_bytes": read_bytes,
        "ordered_bytes": ordered_bytes,
        "saved_share": 1 - ordered_bytes / read_bytes if read_bytes else 0.0,
        "needed_share": num_needed / len(needed),
    }
