"""Begins a conversion: states its provenance, opens or resumes its output, announces its cost."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnnstore._version import __version__
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.inputs.opening import PathLike, existing_directory
from gnnstore.converters.writer.estimates import Workload, estimate, inspect_inputs
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import UsageError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.container.files import directory_bytes, require_space
from gnnstore.formats.container.journal import SPILL_DIRECTORY, foreign_spill_name
from gnnstore.formats.store.writer import StoreWriter
from gnnstore.progress import Progress
from gnnstore.units import format_size

_LOG = logging.getLogger(__name__)


def provenance(kind: str, source: Mapping[str, Any], options: ConvertOptions) -> dict[str, Any]:
    """Return the description of a store's origin: no clock, so that a resumed one is the same."""
    return {
        "kind": kind,
        **source,
        "options": options.to_json(),
        "gnnstore_version": __version__,
    }


def _fingerprint(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the facts that must be equal for a conversion to resume an interrupted one."""
    inputs = document.get("inputs")
    if inputs is None and "parameters" not in document:
        return None
    changed = []
    for entry in inputs or ():
        path = Path(entry["path"])
        files = filter(Path.is_file, sorted(path.rglob("*")) if path.is_dir() else [path])
        states = [(file, file.stat()) for file in files]
        changed.append([[str(file), own.st_size, own.st_mtime_ns] for file, own in states])
    return {**document, "inputs_changed": changed}


def open_store(
    output: PathLike,
    options: ConvertOptions,
    provenance: Mapping[str, Any],
    graph: Mapping[str, Any],
) -> StoreWriter:
    """Begin a store, or resume an interrupted one if the options say so."""
    known = _fingerprint(provenance)
    if known is None and options.resume:
        raise UsageError(
            f"a conversion by {provenance['kind']!r} cannot be resumed: nothing tells whether data "
            "in memory are those of the run that was interrupted; leave out resume=True"
        )
    return StoreWriter(
        output,
        overwrite=options.overwrite,
        page_bytes=options.page_bytes,
        on_event=_LOG.warning,
        fingerprint=None if known is None else {**known, "graph": graph},
        resume=options.resume,
    )


def place_spill(store: StoreWriter, options: ConvertOptions) -> Path:
    """Return the directory for temporary files of edges; nothing is created."""
    building = store.temporary_path
    place = building / SPILL_DIRECTORY
    if options.spill_dir is not None:
        base = existing_directory(options.spill_dir, "the spill directory")
        place = base.absolute() / foreign_spill_name(building)
    store.journal.use_spill_directory(place)
    return place


def check_pointers(store: StoreWriter, num_nodes: int) -> None:
    """Refuse a number of nodes if the disk has no room for their column pointers."""
    needed = 8 * (num_nodes + 1)
    require_space(
        store.path,
        needed - directory_bytes(store.temporary_path),
        f"convert {num_nodes} nodes, whose pointers to edges alone take {format_size(needed)}, "
        "on disk and in memory where they are sampled",
        "check the number of nodes",
    )


def announce(
    store: StoreWriter,
    options: ConvertOptions,
    rules: EdgeRules,
    *,
    inputs: list[dict[str, Any]] | None,
    workload: Workload | None,
    progress: Progress,
) -> None:
    """Report the expected cost of a conversion; refuse it if the disk has no room."""
    if workload is None:
        if inputs is None:
            return
        workload = inspect_inputs(Path(entry["path"]) for entry in inputs)
    cast = options.feature_dtype
    expected = estimate(
        workload,
        rules,
        memory_bytes=options.memory_bytes,
        page_bytes=options.page_bytes,
        feature_item_bytes=None if cast is None else STORAGE_DTYPES[cast].itemsize,
    )
    progress.note(str(expected), asdict(expected))
    require_space(
        store.path,
        expected.least_bytes - directory_bytes(store.temporary_path),
        f"write a store of at least {format_size(expected.least_bytes)}",
        "choose an output on another file system; nothing was left under the final name.",
    )
