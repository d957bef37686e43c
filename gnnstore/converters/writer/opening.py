"""How a conversion begins: the output opened or taken up again, and what it will take said."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.inputs import PathLike, existing_directory
from gnnstore.converters.writer.estimates import Estimate, estimate
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.converters.writer.provenance import fingerprint
from gnnstore.converters.writer.workload import Workload, inspect_inputs
from gnnstore.errors import NoSpaceError, UsageError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.container.files import directory_bytes, free_bytes
from gnnstore.formats.container.journal import SPILL_DIRECTORY, foreign_spill_name
from gnnstore.formats.store.writer import StoreWriter
from gnnstore.progress import Progress
from gnnstore.units import format_size

_LOG = logging.getLogger(__name__)


def open_store(
    output: PathLike,
    options: ConvertOptions,
    provenance: Mapping[str, Any],
    graph: Mapping[str, Any],
) -> StoreWriter:
    """Begin a store, or go on with an interrupted one if the options say so.

    Parameters
    ----------
    provenance : Mapping
        What is converted, from what, with which options.
    graph : Mapping
        What else shapes the result, as JSON values.

    Raises
    ------
    UsageError
        If there is no telling whether an interrupted conversion was of the same data.
    StoreExistsError, UsageError, NotFoundError, StorageError
        See `StoreWriter`.
    """
    known = fingerprint(provenance)
    if known is None and options.resume:
        raise UsageError(
            f"a conversion by {provenance['kind']!r} cannot be resumed: nothing tells whether data "
            "in memory are those of the run that was interrupted; leave out resume=True (--resume)"
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
    """Return where runs of edges go that memory cannot hold; nothing is created.

    Raises
    ------
    NotFoundError, InputError
        If the directory that the options name is none.
    """
    building = store.temporary_path
    place = building / SPILL_DIRECTORY
    if options.spill_directory is not None:
        base = existing_directory(options.spill_directory, "the spill directory")
        place = base.absolute() / foreign_spill_name(building)
    store.journal.use_spill_directory(place)
    return place


def announce(
    store: StoreWriter,
    options: ConvertOptions,
    rules: EdgeRules,
    *,
    source: Mapping[str, Any],
    progress: Progress,
    workload: Workload | None = None,
) -> Estimate | None:
    """Say what the conversion will take, and refuse what the disk has no room for.

    Parameters
    ----------
    source : Mapping
        What is read: its `inputs` are looked at, unless `workload` says more.

    Returns
    -------
    Estimate or None
        None if the input says nothing.

    Raises
    ------
    NoSpaceError
        If not even the least that the store will take is free.
    """
    if workload is None:
        if "inputs" not in source:
            return None
        workload = inspect_inputs(Path(entry["path"]) for entry in source["inputs"])
    cast = options.feature_dtype
    expected = estimate(
        workload,
        rules,
        directory=store.temporary_path,
        memory_bytes=options.memory_bytes,
        feature_item_bytes=None if cast is None else STORAGE_DTYPES[cast].itemsize,
    )
    progress.note(str(expected), asdict(expected))
    done, free = directory_bytes(store.temporary_path), free_bytes(store.temporary_path)
    missing = expected.least_bytes - done - free
    if missing > 0:
        raise NoSpaceError(
            f"cannot convert: no space left for {store.path}, which takes at least "
            f"{format_size(expected.least_bytes)}: {format_size(free)} are free, "
            f"{format_size(missing)} are missing. Free some space or choose an output on another "
            "file system; nothing was left under the final name.",
            path=store.path,
        )
    return expected
