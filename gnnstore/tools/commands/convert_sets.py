"""Kinds of `gnnstore convert` for collections of data sets other than OGB and SNAP."""

from __future__ import annotations

from typing import Any

import click

from gnnstore.tools.convert.options import common_options, convert
from gnnstore.tools.ui.options import session_options
from gnnstore.tools.ui.session import Session

_GRAPHBOLT_HELP = """Convert a homogeneous OnDiskDataset of DGL GraphBolt.

INPUT is the directory with metadata.yaml in it, and the .npy and CSV files which that names
(not GraphBolt's preprocessed/ below). Needs PyYAML: pip install 'gnnstore[graphbolt]'.

\b
Examples:
  gnnstore convert graphbolt datasets/ogbn-products-seeds products.gnn
"""


@click.command(name="graphbolt", help=_GRAPHBOLT_HELP)
@click.argument("input", type=click.Path())
@click.argument("output", type=click.Path())
@click.option("--task", metavar="NAME", help="Whose splits and labels to take; default: the only.")
@common_options
@session_options
def graphbolt(session: Session, output: str, **arguments: Any) -> None:
    """Run `from_graphbolt`."""
    convert(session, "from_graphbolt", output, **arguments)


_IGB_HELP = """Convert a homogeneous graph of the Illinois Graph Benchmark (IGB).

INPUT is the directory with paper/ and paper__cites__paper/ in it, or one with processed/.
Splits are those of IGB's loader: 60, 20 and 20 % of the labelled papers, by position.

\b
Examples:
  gnnstore convert igb igb/small small.gnn --self-loops add
  gnnstore convert igb igb/full igb260m.gnn --classes 2K --feature-dtype float16
"""


@click.command(name="igb", help=_IGB_HELP)
@click.argument("input", type=click.Path())
@click.argument("output", type=click.Path())
@click.option(
    "--classes",
    type=click.Choice(("19", "2K")),
    default="19",
    show_default=True,
    help="Which labels: of 19 classes, or of 2983.",
)
@common_options
@session_options
def igb(session: Session, output: str, **arguments: Any) -> None:
    """Run `from_igb`."""
    convert(session, "from_igb", output, **arguments)
