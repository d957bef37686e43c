"""`gnnstore gc`: list the leftovers of interrupted conversions and runs, and remove them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gnnstore.errors import NotFoundError, StorageError, UsageError, storage_errors
from gnnstore.formats.container.manifest import KINDS
from gnnstore.formats.container.workdir import Leftover, find_leftovers, remove
from gnnstore.formats.store.schema import StoreManifest
from gnnstore.tools.ui.help import Command
from gnnstore.tools.ui.layout import Block
from gnnstore.tools.ui.options import session_options
from gnnstore.tools.ui.session import Session

_HELP = """List the leftovers of interrupted conversions and training, and remove them with --yes.

PATH is a directory of stores (default: the current one), or a store. A conversion of graph.gnn
builds the store next to it, as .graph.gnn.tmp-XXXXXXXX; packing and partitioning do so in the
directories plans and partitions of their store, and inference next to its output. Other directories
below PATH are not searched. Training keeps temporary files in .gnnstore-run-*, which this
command or the next run removes if the process was killed. Directories in use are left alone, and a
store that an interrupted --overwrite had set aside gets its name back.

\b
Examples:
  gnnstore gc
  gnnstore gc /data/stores
  gnnstore gc /data/stores --yes
"""


_LEFTOVERS = Block(
    "",
    {
        "path": "{path}",
        "state": "{state}",
        "size": "{num_bytes}",
        "action": "{action}",
        "age": "{age_seconds}",
    },
    "leftovers",
)


@click.command(name="gc", cls=Command, help=_HELP)
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path())
@click.option("--yes", is_flag=True, help="Remove the leftovers instead of listing them.")
@session_options
def command(session: Session, paths: tuple[str, ...], yes: bool) -> None:
    """List leftovers, or remove them."""
    found: list[dict[str, Any]] = []
    for path in dict.fromkeys(Path(path).absolute() for path in paths or (".",)):
        with storage_errors("look for leftovers", path):
            found += [
                _describe(leftover, _remove(leftover) if yes else "none")
                for leftover in _find(path)
            ]
    removed = sum(item["num_bytes"] for item in found if item["action"] == "removed")
    layout: list[Any] = [_LEFTOVERS, "Removed {removed_bytes}."]
    commands = []
    if not found:
        layout = ["No interrupted conversion or run left anything here."]
    elif not yes:
        layout.pop()
        if any(item["state"] != "running" for item in found):
            layout.append("Repeat the command of a resumable one with --resume, or remove all:")
            commands = [("gnnstore", "gc", *paths, "--yes")]
    session.emit({"leftovers": found, "removed_bytes": removed}, layout, commands)
    for item in found:
        if item["action"] == "failed":
            raise StorageError(
                f"cannot remove {item['path']}; check whose it is and what its directory permits",
                path=item["path"],
            )


def _find(path: Path) -> Iterator[Leftover]:
    """Yield the leftovers in a directory, or those of one store."""
    if path.is_dir() and not StoreManifest.is_at(path):
        yield from find_leftovers(path)
        for store in sorted(filter(StoreManifest.is_at, path.iterdir())):
            yield from _find_in_store(store)
        return
    if path.is_file():
        raise UsageError(f"{path}: is a file; name a store, or a directory of stores")
    is_there = path.exists()
    if is_there:
        yield from _find_in_store(path)
    for item in find_leftovers(path.parent) if path.parent.is_dir() else ():
        if item.final == path:
            is_there = True
            yield item
    if not is_there:
        raise NotFoundError(f"{path}: there is no such directory or store", path=path)


def _find_in_store(store: Path) -> Iterator[Leftover]:
    """Yield the leftovers of interrupted making or removal of packed epochs and partitions."""
    for kind in KINDS:
        directory = store / kind.directory
        if kind.directory and directory.is_dir() and not directory.is_symlink():
            yield from find_leftovers(directory)


def _remove(leftover: Leftover) -> str:
    """Remove a leftover, which is locked, and return the action taken."""
    if leftover.state == "running":
        return "none"
    if leftover.state == "set aside" and leftover.final is not None:
        leftover.path.rename(leftover.final)
        return "restored"
    remove(leftover.path)
    return "failed" if leftover.path.exists() else "removed"


def _describe(leftover: Leftover, action: str) -> dict[str, Any]:
    return {
        "path": str(leftover.path),
        "store": None if leftover.final is None else str(leftover.final),
        "state": leftover.state,
        "num_bytes": leftover.num_bytes,
        "age_seconds": leftover.age_seconds,
        "action": action,
    }
