"""`gnnstore demo`: from nothing to a trained model, on a built-in graph."""

from __future__ import annotations

import click

from gnnstore.tools.ui.options import seed_option, session_options
from gnnstore.tools.ui.session import Session

_HELP = """Convert, inspect and train on a built-in graph, in about a minute.

Generates a random graph of 2^SCALE nodes with planted communities, converts it into a store, and
trains three models on it: GraphSAGE through gnnstore.NeighborLoader with the features on disk, a
network that does not use the graph, and GraphSAGE on features that were shuffled among the nodes.
The first should be far more accurate than the others.

\b
Examples:
  gnnstore demo
  gnnstore demo --dir /data/demo --scale 20
  gnnstore demo --json
"""


@click.command(name="demo", help=_HELP)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False),
    default="gnnstore-demo",
    help="Directory of the store; an earlier demo there is replaced.",
)
@click.option(
    "--scale",
    type=click.IntRange(10, 26),
    default=18,
    help="2^SCALE nodes; each step doubles size and time.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=3, help="Epochs to train each model.")
@seed_option("Seed of the graph, the sampling and the models.")
@session_options
def command(session: Session, directory: str, scale: int, epochs: int, seed: int) -> None:
    """Run the stages and print the report."""
    session.say("Loading torch ...")
    from gnnstore.tools.demo.run import run_demo  # noqa: PLC0415 - seconds, not for --help

    run_demo(session, directory, scale=scale, epochs=epochs, seed=seed)
