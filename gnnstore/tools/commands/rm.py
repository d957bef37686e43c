"""`gnnstore rm`: remove packed epochs or partitions of a store."""

from __future__ import annotations

import click

from gnnstore.errors import UsageError
from gnnstore.formats.container.files import directory_bytes
from gnnstore.formats.packed.reader import PACKED
from gnnstore.formats.partitions.reader import PARTITIONS
from gnnstore.formats.store.reader import StoreReader
from gnnstore.formats.store.units import remove_unit, unit_path
from gnnstore.tools.ui.help import Command
from gnnstore.tools.ui.options import declared, session_options
from gnnstore.tools.ui.session import Session

_HELP = """Remove packed epochs or a partitioning of STORE, and nothing else.

'gnnstore inspect STORE' lists both. Those written with --output are directories of their own:
remove them like any other.

\b
Examples:
  gnnstore rm papers100M.gnn --packed base
  gnnstore rm papers100M.gnn --partitions random-64
"""


@click.command(name="rm", cls=Command, help=_HELP)
@click.argument("store", type=click.Path())
@declared("""
  --packed NAME  Name of the packed epochs.
  --partitions NAME  Name of the partitioning.
""")
@session_options
def command(session: Session, store: str, packed: str | None, partitions: str | None) -> None:
    """Remove the unit and print its size."""
    if packed is not None and partitions is None:
        kind, option, name = PACKED, "packed", packed
    elif packed is None and partitions is not None:
        kind, option, name = PARTITIONS, "partitions", partitions
    else:
        raise UsageError("name one thing to remove: --packed, or --partitions")
    path = StoreReader.open(store).path
    size = directory_bytes(unit_path(kind, path, name))
    remove_unit(kind, path, name)
    session.emit(
        {"store": str(path), option: name, "removed_bytes": size},
        [f"Removed the {kind.name} '{{{option}}}' ({{removed_bytes}})."],
        [("gnnstore", "inspect", str(path))],
    )
