"""Where a store came from: kept in it, so that a result can be traced to its data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gnnstore._version import __version__
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import UsageError


def provenance(kind: str, source: Mapping[str, Any], options: ConvertOptions) -> dict[str, Any]:
    """Return what a store says about its origin.

    Parameters
    ----------
    kind : str
        The converter's name.
    source : Mapping
        What it read (`inputs`: paths and sizes in bytes) and its own parameters.
    options : ConvertOptions
        The common options.
    """
    document = {
        "kind": kind,
        **source,
        "options": options.to_json(),
        "gnnstore_version": __version__,
    }
    created = _stated_time()
    # The clock is not asked: a conversion that was interrupted and one that was not give the
    # same bytes, and when a file was written is in the file system.
    return document if created is None else {**document, "created": created}


def fingerprint(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what must be equal for a conversion to go on where another one stopped.

    Parameters
    ----------
    document : Mapping
        The provenance.

    Returns
    -------
    dict or None
        The provenance, and when each input last changed. None if what is converted lies in
        memory: nothing says whether it would be the same another time.
    """
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
    """Return the time that SOURCE_DATE_EPOCH states, if it does."""
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
