"""Begins a conversion: states its provenance, opens or resumes its output, estimates its cost.

The provenance is kept in the store, so that a result can be traced to its data.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gnnstore._version import __version__
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.inputs.opening import PathLike, existing_directory
from gnnstore.converters.writer.estimates import Workload, estimate, inspect_inputs
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import NoSpaceError, UsageError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE
from gnnstore.formats.container.files import capacity_bytes, directory_bytes, require_space
from gnnstore.formats.container.journal import SPILL_DIRECTORY, foreign_spill_name
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.schema import StoreManifest
from gnnstore.formats.store.writer import StoreWriter
from gnnstore.progress import Progress
from gnnstore.units import format_size


def provenance(kind: str, source: Mapping[str, Any], options: ConvertOptions) -> dict[str, Any]:
    """Return the description of a store's origin."""
    document = {
        "kind": kind,
        **source,
        "options": options.to_json(),
        "gnnstore_version": __version__,
    }
    created = _stated_time()
    # Not the clock: interrupted and uninterrupted conversions give the same bytes, and the file
    # system has the time of writing.
    return document if created is None else {**document, "created": created}


def fingerprint(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the facts that must be equal for a conversion to resume an interrupted one."""
    inputs = document.get("inputs")
    if inputs is None and "parameters" not in document:
        return None
    changed = [list(_states(Path(entry["path"]))) for entry in inputs or ()]
    return {**document, "inputs_changed": changed}


def _states(path: Path) -> Iterator[list[Any]]:
    """Yield [path, size in bytes, time of the last change in ns] of a file, or of all below."""
    paths = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in paths:
        if file.is_file():
            status = file.stat()
            yield [str(file), status.st_size, status.st_mtime_ns]


def _stated_time() -> str | None:
    """Return the time in SOURCE_DATE_EPOCH, if it is set."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if not given:
        return None
    try:
        return datetime.fromtimestamp(int(given), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"the environment variable SOURCE_DATE_EPOCH={given!r} is not a number of seconds "
            "since 1970"
        ) from None


_LOG = logging.getLogger(__name__)


def is_converted(path: Path, provenance: Mapping[str, Any]) -> bool:
    """Whether a store was converted from these inputs, as they are now."""
    if not StoreManifest.is_at(path):
        return False
    found = StoreReader.open(path).manifest.provenance
    finished = (path / METADATA_FILE).stat().st_mtime_ns
    changed = (fingerprint(provenance) or {}).get("inputs_changed", [])
    return dict(found) == json.loads(json.dumps(provenance)) and all(
        state[2] <= finished for states in changed for state in states
    )


def open_store(
    output: PathLike,
    options: ConvertOptions,
    provenance: Mapping[str, Any],
    graph: Mapping[str, Any],
) -> StoreWriter:
    """Begin a store, or resume an interrupted one if the options say so."""
    known = fingerprint(provenance)
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
    try:
        require_space(
            store.path,
            needed - directory_bytes(store.temporary_path),
            f"convert {num_nodes} nodes, whose pointers to edges alone take {format_size(needed)}, "
            "on disk and in memory where they are sampled",
            "check the number of nodes",
        )
    except NoSpaceError:
        if needed > capacity_bytes(store.path):
            store.abort()
        raise


def announce(
    store: StoreWriter,
    options: ConvertOptions,
    rules: EdgeRules,
    *,
    source: Mapping[str, Any],
    progress: Progress,
    workload: Workload | None = None,
) -> None:
    """Report the expected cost of a conversion; refuse it if the disk has no room."""
    if workload is None:
        if "inputs" not in source:
            return
        workload = inspect_inputs(Path(entry["path"]) for entry in source["inputs"])
    cast = options.feature_dtype
    expected = estimate(
        workload,
        rules,
        memory_bytes=options.memory_bytes,
        page_bytes=options.page_bytes,
        feature_item_bytes=None if cast is None else STORAGE_DTYPES[cast].itemsize,
    )
    progress.note(str(expected), asdict(expected))
    least_bytes = expected.least_bytes
    require_space(
        store.path,
        least_bytes - directory_bytes(store.temporary_path),
        f"write a store of at least {format_size(least_bytes)}",
        "choose an output on another file system; nothing was left under the final name.",
    )
