"""`gnnstore assign`: the parts of a store's seeds."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from typing import Any

from gnnstore.formats.assignments import AssignmentManifest, AssignmentReader
from gnnstore.formats.container.workdir import check_final
from gnnstore.graph.store import open as open_store
from gnnstore.partitions.assign import Assigning, assign, assignment_path
from gnnstore.seeds.nodes import resolve_input_nodes
from gnnstore.tools.batches import named_nodes
from gnnstore.tools.describe import ASSIGNMENT_TEXT, describe_assignment
from gnnstore.tools.layout import program
from gnnstore.tools.session import Session


def assign_seeds(
    session: Session,
    path: str,
    *,
    parts: int,
    hops: int,
    split: str | None,
    name: str | None,
    memory: int | None,
    seed: int,
    threads: int | None,
    estimate: bool,
    overwrite: bool,
) -> None:
    """Estimate, or assign and print a summary."""
    store = open_store(path)
    final = assignment_path(store, parts, name)
    if not (overwrite or estimate):
        check_final(final, AssignmentManifest, overwrite=False)
    with session.progress() as progress, progress.phase("compare checksums"):
        # An assignment has checksums of its own.
        edges = store.schema.edge_types
        paths = [spec.path for edge in edges for spec in (edge.indptr, edge.indices)]
        others = (spec.path for spec in store.reader.manifest.arrays())
        paths += [path for path in others if path.startswith("splits/")]
        store.reader.check_arrays(*paths)
    if split is None and store.schema.is_homogeneous:
        split = "train"  # also where there is none, which is an error
    named, given = named_nodes(store, split, "--split")
    seeds = resolve_input_nodes(store, given)
    num_threads = threads or len(os.sched_getaffinity(0))
    work = Assigning(store, seeds, parts, hops, seed, memory, num_threads)
    document: dict[str, Any] = {"store": str(store.path)}
    if estimate:
        with session.progress() as progress, progress.phase("estimate"):
            document["estimate"] = {"path": str(final), **asdict(work.estimate())}
        text = (
            "Assigning would take about {estimate.seconds}, and {estimate.memory_bytes} beyond the "
            "topology, in {estimate.topology}. The neighbourhood of a seed has "
            "{estimate.nodes_per_seed:,.0f} nodes."
        )
        session.emit(document, [text])
        return
    began = time.perf_counter()
    with session.progress() as progress:
        made = assign(work, final, input_nodes=named, overwrite=overwrite, progress=progress)
    document |= {
        "seconds": time.perf_counter() - began,
        **describe_assignment(AssignmentReader.open(made)),
    }
    code = program(
        str(store.path),
        named,
        f"seeds_of={json.dumps(document['name'])}",
        num_neighbors=(10,) * hops,
    )
    commands = [("gnnstore", "inspect", document["path"])]
    session.emit(document, [*ASSIGNMENT_TEXT, "Assigned in {seconds}."], commands, code)
