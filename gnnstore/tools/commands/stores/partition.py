"""`gnnstore partition`: write a store's nodes and edges in partitions."""

from __future__ import annotations

from typing import Any

import click

from gnnstore.tools.ui.help import Command
from gnnstore.tools.ui.options import Parsed, declared, session_options
from gnnstore.tools.ui.session import Session

_HELP = """Write a partitioned copy of the nodes and edges of STORE.

Loaders with partitions= train on some partitions at a time, and read each as a whole: its rows, and
the buckets of edges between it and others. Nodes are assigned to partitions at random. With
--train-first, the nodes of a split fill the first partitions, so that node classification reads few
others. With --order none, partitions are ranges of node ids: if `gnnstore reorder --order
community` made the store, they hold many neighbours together. The copy is partitions/NAME in the
store, and takes somewhat more space than the node attributes and edges. The rest of the store
stays as it is.

Finished work survives a full disk, Ctrl-C or a crash; --resume continues it.

\b
Examples:
  gnnstore partition papers100M.gnn --memory 8GB
  gnnstore partition papers100M.gnn -p 256 --name fine --estimate
  gnnstore partition papers100M.gnn -p 64 --train-first --memory 8GB
  gnnstore partition communities.gnn -p 64 --order none
  gnnstore partition papers100M.gnn -p 64 --output /fast/papers-64
"""


def _parse_partitions(text: str, _: str) -> int | None:
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number of partitions, nor 'auto'") from None


@click.command(name="partition", cls=Command, help=_HELP)
@click.argument("store", type=click.Path())
@declared(
    """
  -p, --num-partitions auto|N
      Number of partitions. Default: auto, the most that the disk can read at its full rate.
""",
    num_partitions=Parsed(_parse_partitions),
)
@click.option(
    "--train-first",
    is_flag=False,
    flag_value="train",
    metavar="[SPLIT]",
    help="Put the nodes of a split into the first partitions. Without a value: train.",
)
@declared("""
  --order random|none = random
      How nodes are spread over partitions; none: as they are in the store.
  --name NAME  Name of the partitions in the store. Default: such as random-64.
  --output PATH  Directory of the partitions, outside the store.
  --memory MEMORY -> memory_bytes  Memory budget. Default: what is available.
  --seed N>=0 = 0  Seed of the order of nodes.
  --estimate  Print sizes, disk and time, and write nothing.
  --overwrite  Replace partitions when the new ones are complete.
  --resume  Continue an interrupted attempt.
""")
@session_options
def command(session: Session, store: str, **options: Any) -> None:
    """Partition the store and print a summary."""
    from gnnstore.tools.partition import partition_store  # noqa: PLC0415 - not for --help

    partition_store(session, store, **options)
