"""`gnnstore assign`: the parts of a store's seeds, and stores of these parts."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gnnstore.converters.stores.closure import Closure
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import UsageError
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
    closure: str,
    output: str | None,
    memory: int | None,
    seed: int,
    threads: int | None,
    estimate: bool,
    overwrite: bool,
    resume: bool,
) -> None:
    """Estimate, or assign, write stores of the parts if they are asked for, and print a summary."""
    store = open_store(path)
    final = assignment_path(store, parts, name)
    if split is None and store.schema.is_homogeneous:
        split = "train"  # also where there is none, which is an error
    options = ConvertOptions(memory_bytes=memory, overwrite=overwrite, resume=resume)
    stores = _stores(closure, output, options, store=store.path, sizes=(parts, hops), split=split)
    if stores is not None and not estimate:
        stores.refuse_existing()
    elif not (overwrite or estimate):
        check_final(final, AssignmentManifest, overwrite=False)
    with session.progress() as progress, progress.phase("compare checksums"):
        # An assignment has checksums of its own.
        edges = store.schema.edge_types
        paths = [spec.path for edge in edges for spec in (edge.indptr, edge.indices)]
        others = (spec.path for spec in store.reader.manifest.arrays())
        paths += [path for path in others if path.startswith("splits/")]
        store.reader.check_arrays(*paths)
    named, given_nodes = named_nodes(store, split, "--split")
    seeds = resolve_input_nodes(store, given_nodes)
    num_threads = threads or len(os.sched_getaffinity(0))
    work = Assigning(store, seeds, parts, hops, seed, memory, num_threads)
    if estimate:
        _estimate(session, work, final, stores)
        return
    began = time.perf_counter()
    with session.progress() as progress:
        made = final
        if stores is None or overwrite or not _is_there(work, final, named):
            made = assign(work, final, input_nodes=named, overwrite=overwrite, progress=progress)
        unit = AssignmentReader.open(made)
        document: dict[str, Any] = {"store": str(store.path), "stores": []}
        if stores is not None:
            (own,) = seeds.parts.values()
            nodes = np.arange(len(own)) if own.nodes is None else own.nodes
            found = stores.write(nodes, unit.parts(), progress, assignment=unit.uuid)
            document["stores"] = list(map(str, found))
    document |= {"seconds": time.perf_counter() - began, **describe_assignment(unit)}
    path, more = str(store.path), [f"seeds_of={json.dumps(document['name'])}"]
    layout: list[Any] = [*ASSIGNMENT_TEXT, "Assigned in {seconds}."]
    commands = [("gnnstore", "inspect", document["path"])]
    if stores is not None:
        path, named, more = document["stores"][0], stores.split, []
        layout.insert(-1, "The stores of the parts are {stores.0} and so on.")
        commands.append(("gnnstore", "inspect", path))
    code = program(path, named, *more, num_neighbors=(10,) * hops)
    session.emit(document, layout, commands, code)


def _stores(
    closure: str,
    output: str | None,
    options: ConvertOptions,
    *,
    store: Path,
    sizes: tuple[int, int],
    split: str | None,
) -> Closure | None:
    """Return the stores of parts that are asked for."""
    if closure == "none":
        if output is not None or options.resume:
            given = "--resume" if output is None else f"--output {output}"
            raise UsageError(
                f"{given} goes with --closure full, which writes stores; an assignment lies in the "
                "store"
            )
        return None
    if output is None:
        raise UsageError(
            "--closure full writes a store for each part: name a directory for them, --output DIR"
        )
    return Closure.from_options(
        store, output, *sizes, None if split == "all" else split, options=options
    )


def _is_there(work: Assigning, final: Path, named: str) -> bool:
    """Whether an assignment is there as it would be made now."""
    if not AssignmentManifest.is_at(final):
        return False
    found = AssignmentReader.open(final).manifest
    return all(getattr(found, name) == value for name, value in work.facts(named).items())


def _estimate(session: Session, work: Assigning, final: Path, stores: Closure | None) -> None:
    """Print what assigning, and writing the stores of parts, would take."""
    with session.progress() as progress, progress.phase("estimate"):
        found = {"path": str(final), **asdict(work.estimate())}
    document = {"store": str(work.store.path), "estimate": found, "closure": None}
    layout = [
        (
            "Assigning would take about {estimate.seconds}, and {estimate.memory_bytes} beyond the "
            "topology, in {estimate.topology}. The neighbourhood of a seed has "
            "{estimate.nodes_per_seed:,.0f} nodes."
        )
    ]
    if stores is not None:
        document["closure"] = {
            "path": str(stores.output),
            "memory_bytes": stores.memory.peak(),
            "most_disk_bytes": stores.num_parts * work.store.reader.total_bytes,
        }
        layout.append(
            "The stores of the parts would take at most {closure.most_disk_bytes} in "
            "{closure.path}, and {closure.memory_bytes} of memory while they are written."
        )
    session.emit(document, layout, [session.without_estimate()])
