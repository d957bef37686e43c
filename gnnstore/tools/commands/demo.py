"""`gnnstore demo`: the whole way from nothing to a trained model, on a built-in graph."""

from __future__ import annotations

import click

from gnnstore.tools.ui.options import session_options
from gnnstore.tools.ui.session import Session

_HELP = """Convert, inspect and train on a built-in graph, in about a minute.

Makes a random graph of 2^SCALE nodes with planted communities, converts it into a store,
and trains three models on it: GraphSAGE through gnnstore.NeighborLoader with the features
left on disk, a network that sees no graph, and GraphSAGE on features that were shuffled
among the nodes. The first should be well ahead of the others.

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
    show_default=True,
    help="Where the store is made; an earlier demo there is replaced.",
)
@click.option(
    "--scale",
    type=click.IntRange(10, 26),
    default=18,
    show_default=True,
    help="2^SCALE nodes; each step doubles size and time.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@session_options
def command(session: Session, directory: str, scale: int, epochs: int, seed: int) -> None:
    """Run the stages and print the report."""
    session.say("Loading torch ...")
    from gnnstore.tools.demo.stages import run_demo  # noqa: PLC0415 - seconds, not for --help

    run_demo(session, directory, scale=scale, epochs=epochs, seed=seed)
