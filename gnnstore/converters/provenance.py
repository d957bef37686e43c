"""Where a store came from: kept in it, so that a result can be traced to its data."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gnnstore._version import __version__
from gnnstore.converters.options import ConvertOptions
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
    return {
        "kind": kind,
        **source,
        "options": options.to_json(),
        "gnnstore_version": __version__,
        "created": _now(),
    }


def _now() -> str:
    """Return the time, or that of SOURCE_DATE_EPOCH for builds that must be reproducible."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        seconds = int(given) if given else int(time.time())
        return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"the environment variable SOURCE_DATE_EPOCH={given!r} is not a number of seconds "
            "since 1970"
        ) from None
