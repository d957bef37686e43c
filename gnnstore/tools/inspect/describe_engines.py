"""Which engines can read rows on a file system: tried, not guessed from kernel versions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnnstore.disk.engines import ENVIRONMENT_VARIABLE, probe_engines
from gnnstore.errors import GnnstoreError
from gnnstore.formats import StoreReader

_FILE_BYTES = 4096


def describe_engines(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Try each engine on a file at `path`: a store's own, or one that is made for it.

    Returns
    -------
    dict
        "forced": what the environment variable says, or None; "probes": a list with "name",
        "is_available", "detail" and "remedy" for each engine, or None where there is no file
        to read and none can be made.
    """
    return {
        "forced": os.environ.get(ENVIRONMENT_VARIABLE) or None,
        "probes": _probe(Path(path)),
    }


def _probe(place: Path) -> list[dict[str, Any]] | None:
    try:
        with _file_in(place) as file:
            return [
                {
                    "name": probe.name,
                    "is_available": probe.is_available,
                    "detail": probe.detail,
                    "remedy": probe.remedy or None,
                }
                for probe in probe_engines(file)
            ]
    except OSError:  # also what reads and opens here raise
        return None


@contextmanager
def _file_in(place: Path) -> Iterator[Path]:
    file = place.resolve() if place.is_file() else _file_of_store(place)
    if file is not None:
        yield file
        return
    with tempfile.NamedTemporaryFile(dir=place, prefix=".gnnstore-info-") as made:
        made.write(bytes(_FILE_BYTES))
        made.flush()
        yield Path(made.name)


def _file_of_store(place: Path) -> Path | None:
    try:
        reader = StoreReader.open(place)
        paged = [spec for spec in reader.schema.arrays() if spec.layout == "paged"]
        files = [file for spec in paged for file in reader.paged(spec).file_paths]
    except GnnstoreError:  # no store, or a damaged one, which is not what is asked here
        return None
    return files[0] if files else None
