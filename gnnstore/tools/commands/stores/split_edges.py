"""`gnnstore split-edges STORE OUT`: edges to train on and edges to predict."""

from __future__ import annotations

from typing import Any

import click

from gnnstore.converters import split_edges
from gnnstore.tools.commands.convert import output_options
from gnnstore.tools.convert import convert
from gnnstore.tools.ui.help import Command
from gnnstore.tools.ui.options import declared, session_options
from gnnstore.tools.ui.session import Session

_HELP = """Split the edges of a store for link prediction.

OUT has the nodes of STORE with their attributes. Its graph consists of the training edges, along
which messages pass. The edges of valid and test are stored with it as edge splits, which
gnnstore.LinkNeighborLoader(OUT, ..., edge_label_index="valid") takes by name.

The split of an edge follows from a hash of its unordered endpoints: all copies of an edge, and its
reverse, are in the same split. A graph counts as undirected if every edge and its reverse occur
equally often. Then valid and test hold one direction of each edge, with source <= target, and the
graph has both directions of the training edges. For other graphs, splits hold the edges as they
are.

\b
Examples:
  gnnstore split-edges graph.gnn links.gnn
  gnnstore split-edges graph.gnn links.gnn --fractions 0.9,0.05,0.05 --seed 1
  gnnstore split-edges graph.gnn links.gnn --test-messages test.gnn
"""


@click.command(name="split-edges", cls=Command, help=_HELP)
@click.argument("store", type=click.Path())
@click.argument("output", metavar="OUT", type=click.Path())
@declared(
    """
  --fractions F,F,F
      Fractions of train, valid and test; edges beyond their sum are not written to OUT.
  --seed N>=0  Seed of the hash that assigns edges to splits.
  --test-messages OUT2
      Write a second store for the evaluation on test: its graph is train and valid.
  --edge-negatives N>=0 -> num_negatives
      Fixed negatives of each edge of valid and test: nodes that replace its target.
  --strict-negatives -> strict  Redraw negatives that are edges of the graph.
""",
    split_edges,
)
@output_options
@session_options
def command(session: Session, **arguments: Any) -> None:
    """Split the edges of a store; users see `_HELP`."""
    convert(session, split_edges, **arguments)
