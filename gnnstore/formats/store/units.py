"""Sealed directories of a store, such as packed epochs: finding, making and removing one.

Units of one kind lie in a directory of the store, each under a name of its own.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gnnstore.errors import (
    NotFoundError,
    UsageError,
    storage_error,
)
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE, group_metadata
from gnnstore.formats.base.files import write_json
from gnnstore.formats.container.manifest import Kind
from gnnstore.formats.container.workdir import remove_final

# Prefix of metadata files that a killed process left unfinished in a directory for units.
_UNFINISHED = f".{METADATA_FILE}."
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def unit_path(kind: Kind, store: Path, name: str) -> Path:
    """Return the path of a unit of a store, which need not exist."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name of a {kind.name}; use up to 100 letters, digits, '_', '-' and "
            "'.', not beginning with '.' or '-'"
        )
    return store / kind.directory / name


def find_units(kind: Kind, store: Path) -> list[Path]:
    """Return the units of a kind in a store, by name."""
    directory = store / kind.directory
    try:
        found = sorted(directory.iterdir())
    except OSError:
        return []
    return [path for path in found if path.name[0] != "." and kind.manifest.is_at(path)]


def unit_names(kind: Kind, store: Path) -> str:
    """Return the names of a store's units for a message."""
    return ", ".join(repr(path.name) for path in find_units(kind, store)) or "none"


def find_unit(kind: Kind, store: Path, unit: str | os.PathLike[str]) -> Path:
    """Return the directory of a unit, given its name or path."""
    text = os.fspath(unit)
    named = store / kind.directory / text
    if text and "/" not in text and os.path.lexists(named / METADATA_FILE):
        return named
    if os.path.lexists(Path(text) / METADATA_FILE):
        return Path(text)
    manifest = kind.manifest
    raise NotFoundError(
        f"{store}: no {kind.name} {text!r}, and none at {text}; the store has "
        f"{unit_names(kind, store)}. "
        f"{manifest.MAKE[0].upper()}{manifest.MAKE[1:]}",
        path=named,
    )


def make_units_directory(kind: Kind, store: Path) -> None:
    """Make the directory for units of a store, a group without attributes, if there is none."""
    directory = store / kind.directory
    try:
        directory.mkdir(exist_ok=True)
        if not (directory / METADATA_FILE).exists():
            whole = directory / f"{_UNFINISHED}{uuid.uuid4().hex[:8]}"
            write_json(whole, group_metadata())
            whole.replace(directory / METADATA_FILE)
    except OSError as error:
        found = storage_error(error, f"make a directory for {kind.directory}", directory)
        if kind.has_output:
            found.message += f"; give --output to write the {kind.name} elsewhere"
        raise found from error


def drop_empty_units_directory(kind: Kind, store: Path) -> None:
    """Remove the directory for units if it holds no units and no leftovers."""
    directory = store / kind.directory
    with suppress(OSError):
        found = list(directory.iterdir())
        if all(p.name == METADATA_FILE or p.name.startswith(_UNFINISHED) for p in found):
            for path in found:
                path.unlink()
            directory.rmdir()


@contextmanager
def units_directory(kind: Kind, store: Path, *, is_needed: bool) -> Iterator[None]:
    """Make the directory for the units of a store; at the end, remove it if it is empty."""
    if is_needed:
        make_units_directory(kind, store)
    try:
        yield
    finally:
        if is_needed:
            drop_empty_units_directory(kind, store)


def remove_unit(kind: Kind, store: Path, name: str) -> None:
    """Remove a unit of a store. Loaders that have it open go on."""
    path = unit_path(kind, store, name)
    if not kind.manifest.is_at(path):
        names = unit_names(kind, store)
        raise NotFoundError(f"{store}: no {kind.name} {name!r}; the store has {names}", path=path)
    remove_final(path, kind.name)
    drop_empty_units_directory(kind, store)
