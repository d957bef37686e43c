"""`gnnstore rm`: remove a packed plan of a store."""

from __future__ import annotations

import click

from gnnstore.formats.container.files import directory_bytes
from gnnstore.formats.packed.directory import plan_path, remove_plan
from gnnstore.formats.store.reader import StoreReader
from gnnstore.tools.ui.options import session_options
from gnnstore.tools.ui.session import Session
from gnnstore.units import format_size

_HELP = """Remove a packed plan of STORE, and nothing else.

'gnnstore inspect STORE' lists the plans. A plan that was packed with --output is a directory of
its own: remove it like any other.

\b
Examples:
  gnnstore rm papers100M.gnn --plan base
"""


@click.command(name="rm", help=_HELP)
@click.argument("store", type=click.Path())
@click.option("--plan", "name", required=True, metavar="NAME", help="Name of the plan.")
@session_options
def command(session: Session, store: str, name: str) -> None:
    """Remove the plan and print its size."""
    path = StoreReader.open(store).path
    size = directory_bytes(plan_path(path, name))
    remove_plan(path, name)
    session.emit(
        {"store": str(path), "plan": name, "removed_bytes": size},
        lambda console: console.print(f"Removed the plan {name!r} ({format_size(size)})."),
    )
