"""The plans of a store: the directory that they lie in, and removing one."""

from __future__ import annotations

import json
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path

from gnnstore.errors import (
    CorruptStoreError,
    NotFoundError,
    StorageError,
    UsageError,
    storage_error,
    storage_errors,
)
from gnnstore.formats.arrays.zarr_metadata import METADATA_FILE, group_metadata
from gnnstore.formats.container.files import fsync_directory
from gnnstore.formats.container.leftovers import locked, remove
from gnnstore.formats.container.regular_files import check_directories, open_regular
from gnnstore.formats.packed.manifest import PLANS_DIRECTORY, PackedManifest, find_plans

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def plan_path(store: Path, name: str) -> Path:
    """Return where a plan of a store lies, or is to lie.

    Raises
    ------
    UsageError
        If that is no name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a plan; use up to 100 letters, digits, '_', '-' and '.', not "
            "beginning with '.' or '-'"
        )
    return store / PLANS_DIRECTORY / name


def make_plans_directory(store: Path) -> None:
    """Make the directory for the plans of a store, a group without attributes, if there is none.

    Raises
    ------
    CorruptStoreError
        If it is a symbolic link.
    StorageError
        If the store cannot be written.
    """
    directory = store / PLANS_DIRECTORY
    check_directories(store, PLANS_DIRECTORY)
    try:
        directory.mkdir(exist_ok=True)
        metadata = directory / METADATA_FILE
        if not os.path.lexists(metadata):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = open_regular(metadata, flags, error=CorruptStoreError, root=store)
            with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - a descriptor
                json.dump(group_metadata(), file, indent=1)
    except OSError as error:
        found = storage_error(error, "make a directory for plans", directory)
        found.message += "; give --output to pack the plan elsewhere"
        raise found from error


def drop_empty_plans_directory(store: Path) -> None:
    """Remove the directory for plans if it holds none, and nothing that was left of any."""
    directory = store / PLANS_DIRECTORY
    with suppress(OSError):
        if [path.name for path in directory.iterdir()] == [METADATA_FILE]:
            (directory / METADATA_FILE).unlink()
            directory.rmdir()


def remove_plan(store: Path, name: str) -> None:
    """Remove a plan of a store. Loaders that have it open go on.

    Raises
    ------
    UsageError
        If that is no name.
    NotFoundError
        If there is no such plan; the message lists those there are.
    CorruptStoreError
        If it is a symbolic link.
    StorageError
        If it cannot be removed.
    """
    path = plan_path(store, name)
    check_directories(store, f"{PLANS_DIRECTORY}/{name}")
    if not PackedManifest.is_at(path):
        names = ", ".join(repr(plan.name) for plan in find_plans(store)) or "none"
        raise NotFoundError(f"{store}: no plan {name!r}; its plans: {names}", path=path)
    # Under a name that 'gnnstore gc' knows, so that a plan is there whole or not at all.
    doomed = path.with_name(f".{name}.tmp-{uuid.uuid4().hex[:8]}")
    with storage_errors("remove the plan", path):
        path.rename(doomed)
        fsync_directory(path.parent)
    with locked(doomed):
        remove(doomed)
    if doomed.exists():
        raise StorageError(
            f"{doomed}: not all of the plan could be removed; check whose it is, and try "
            "'gnnstore gc --yes'",
            path=doomed,
        )
    drop_empty_plans_directory(store)
