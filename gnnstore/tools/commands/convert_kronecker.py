"""`gnnstore convert kronecker`: the expansion of a store, and what it did to the degrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gnnstore.tools.convert.options import common_options, convert
from gnnstore.tools.ui.options import session_options
from gnnstore.tools.ui.session import Session

_KRONECKER_HELP = """Expand a store: FACTOR times the nodes, as many times the edges as you like.

Every node of SEED_STORE becomes FACTOR nodes with its labels, splits and features (plus
noise), and every edge becomes edges between copies of its ends. Which copies these join is
drawn from a small graph that is derived from the communities of SEED_STORE (Belletti et al.
2019). The shape of the degree distribution is kept; a comparison is printed. The same
options give the same store.

\b
Examples:
  gnnstore convert kronecker papers100M.gnn large.gnn --factor 4 --edge-factor 8.8
  gnnstore convert kronecker cora.gnn cora16.gnn --factor 16 --plot degrees.png
"""


@click.command(name="kronecker", help=_KRONECKER_HELP)
@click.argument("seed_store", type=click.Path())
@click.argument("output", type=click.Path())
@click.option("--factor", type=int, required=True, help="Copies of each node, up to 256.")
@click.option(
    "--edge-factor",
    type=float,
    help="Edges for each edge, on average, up to FACTOR^2; default: FACTOR.",
)
@click.option(
    "--feature-noise",
    type=float,
    default=0.1,
    show_default=True,
    help="Standard deviation of the noise, in units of each column's own.",
)
@click.option("--no-features", is_flag=True, help="Leave x out.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False),
    metavar="FILE.png",
    help="Draw the degrees before and after.",
)
@common_options
@session_options
def kronecker(
    session: Session,
    seed_store: str,
    output: str,
    no_features: bool,
    plot: str | None,
    **arguments: Any,
) -> None:
    """Run `from_kronecker` and compare the degrees."""
    # On demand: rich and matplotlib take longer to load than --help may.
    from gnnstore.tools.convert.degree_report import DegreeReport  # noqa: PLC0415
    from gnnstore.tools.plots.pictures import check_picture  # noqa: PLC0415

    plot_file = None if plot is None else Path(plot)
    if plot_file is not None:
        check_picture(plot_file)
    convert(
        session,
        "from_kronecker",
        output,
        report=lambda path: DegreeReport(seed_store, path, plot_file),
        seed_store=seed_store,
        features=not no_features,
        **arguments,
    )
