"""`gnnstore convert KIND INPUT OUTPUT`: every converter of the library, from the shell."""

from __future__ import annotations

from typing import Any

import click

from gnnstore.errors import UsageError
from gnnstore.tools.commands.convert_kronecker import kronecker
from gnnstore.tools.commands.convert_sets import graphbolt, igb
from gnnstore.tools.convert.feature_options import feature_options
from gnnstore.tools.convert.options import common_options, convert
from gnnstore.tools.ui.options import session_options
from gnnstore.tools.ui.session import Session

_HELP = """Convert a graph into a store.

KIND says what INPUT is; nothing is guessed from a name, and nothing is ever unpickled. The
output appears under its name only when it is complete. An interrupted conversion leaves no
half store: repeat the command with --resume to go on, or without it to start anew.

\b
Examples:
  gnnstore convert ogb dataset/ogbn_arxiv arxiv.gnn --undirected
  gnnstore convert snap com-friendster.ungraph.txt.gz friendster.gnn --undirected
  gnnstore convert numpy graph.npz graph.gnn --feature-dtype float16
  gnnstore convert rmat random.gnn --scale 20
  gnnstore convert rmat random.gnn --scale 20 --resume
"""


@click.group(name="convert", help=_HELP)
def command() -> None:
    """Hold the kinds; the text users see is `_HELP`."""


command.add_command(graphbolt)
command.add_command(igb)
command.add_command(kronecker)


_OGB_HELP = """Convert an OGB node-property data set, as its downloader leaves it on disk.

INPUT is the data set's directory, with raw/ and split/ in it: gzipped CSV files, or the
.npz files of ogbn-papers100M; or MAG240M's, of which papers and citations are taken. The
ogb package is not needed.

\b
Examples:
  gnnstore convert ogb dataset/ogbn_arxiv arxiv.gnn --undirected
  gnnstore convert ogb dataset/ogbn_products products.gnn --add-inverse-edge
  gnnstore convert ogb dataset/ogbn_papers100M papers100M.gnn --feature-dtype float16
  gnnstore convert ogb dataset/mag240m_kddcup2021 mag240m.gnn --undirected
"""


@command.command(name="ogb", help=_OGB_HELP)
@click.argument("input", type=click.Path())
@click.argument("output", type=click.Path())
@click.option(
    "--add-inverse-edge",
    is_flag=True,
    help="Follow every edge by its reverse, as OGB's loader does where it says so.",
)
@click.option("--split", metavar="NAME", help="Which directory of split/; default: the only one.")
@common_options
@session_options
def ogb(session: Session, output: str, **arguments: Any) -> None:
    """Run `from_ogb`."""
    convert(session, "from_ogb", output, **arguments)


_SNAP_HELP = """Convert a text edge list, as snap.stanford.edu serves them.

INPUT has a line "source target" for each edge, with a tab, spaces or a comma between;
lines that begin with # or % are skipped, and it may be gzipped. Ids need not be
contiguous: the store keeps a map back to them.

\b
Examples:
  gnnstore convert snap com-friendster.ungraph.txt.gz friendster.gnn --undirected
  gnnstore convert snap edges.txt graph.gnn --features x.npy --labels y.npy --splits splits.npz
  gnnstore convert snap edges.txt graph.gnn --features 'x-*.bin' --features-raw float32,-1,128
"""


@command.command(name="snap", help=_SNAP_HELP)
@click.argument("input", type=click.Path())
@click.argument("output", type=click.Path())
@feature_options
@click.option("--labels", type=click.Path(), metavar="FILE", help="Node labels [N]: .npy or .csv.")
@click.option(
    "--splits", type=click.Path(), metavar="FILE.npz", help="Arrays train, valid and test."
)
@click.option(
    "--num-nodes", type=click.IntRange(min=0), help="Take ids as node numbers below this."
)
@click.option(
    "--ignore-extra-columns", is_flag=True, help="Read the first two columns and drop the rest."
)
@click.option("--skip-header", is_flag=True, help="Skip the first line: it names the columns.")
@click.option(
    "--edge-weight",
    type=click.IntRange(min=3),
    metavar="COLUMN",
    help="Keep this column, counted from 1, as the edge attribute edge_weight.",
)
@click.option(
    "--string-ids",
    is_flag=True,
    help="Ids are names: number nodes in order of appearance, and keep the names.",
)
@common_options
@session_options
def snap(session: Session, output: str, ignore_extra_columns: bool, **arguments: Any) -> None:
    """Run `from_snap`."""
    arguments["extra_columns"] = "ignore" if ignore_extra_columns else "refuse"
    convert(session, "from_snap", output, **arguments)


_NUMPY_HELP = """Convert arrays: one .npz file, or a directory of .npy files.

INPUT holds edge_index [2, E], or indptr [N + 1] and indices [E] (in-neighbours by column),
and, as you like, x, y, other node attributes, and train, valid and test.

\b
Examples:
  gnnstore convert numpy graph.npz graph.gnn
  gnnstore convert numpy arrays/ graph.gnn --undirected --feature-dtype bfloat16
  gnnstore convert numpy csr.npz graph.gnn --layout csr
"""


@command.command(name="numpy", help=_NUMPY_HELP)
@click.argument("input", type=click.Path())
@click.argument("output", type=click.Path())
@click.option(
    "--layout",
    type=click.Choice(("csc", "csr")),
    default="csc",
    show_default=True,
    help="What indptr counts: in-neighbours of targets (csc) or out-neighbours of sources.",
)
@feature_options
@common_options
@session_options
def numpy(session: Session, output: str, **arguments: Any) -> None:
    """Run `from_numpy`."""
    convert(session, "from_numpy", output, **arguments)


_RMAT_HELP = """Make a random graph (R-MAT) with planted communities.

The graph has 2^SCALE nodes and EDGE_FACTOR edges a node. Labels are communities, features
are their community's mean plus noise, so that a model that sees the graph beats one that
does not. The same options give the same graph on every machine.

\b
Examples:
  gnnstore convert rmat random.gnn --scale 20
  gnnstore convert rmat large.gnn --scale 24 --edge-factor 15 --feature-dim 128 --plain
"""


@command.command(name="rmat", help=_RMAT_HELP)
@click.argument("output", type=click.Path())
@click.option("--scale", type=int, default=16, show_default=True, help="2^SCALE nodes.")
@click.option(
    "--edge-factor", type=int, default=16, show_default=True, help="Edges a node, on average."
)
@click.option("--feature-dim", type=int, default=64, show_default=True, help="Width of x.")
@click.option(
    "--communities",
    "num_communities",
    type=int,
    default=8,
    show_default=True,
    help="Classes; a power of two.",
)
@click.option(
    "--homophily",
    type=float,
    default=0.8,
    show_default=True,
    help="Share of edges within a community.",
)
@click.option("--plain", is_flag=True, help="Plain R-MAT: edges take no notice of communities.")
@click.option(
    "--feature-noise",
    type=float,
    default=0.7,
    show_default=True,
    help="Standard deviation around means of length 1.",
)
@click.option(
    "--split-fractions",
    type=float,
    nargs=3,
    default=(0.5, 0.25, 0.25),
    show_default=True,
    help="Train, valid and test, of the nodes with an in-neighbour.",
)
@click.option(
    "--probabilities",
    type=float,
    nargs=4,
    default=(0.57, 0.19, 0.19, 0.05),
    show_default=True,
    help="R-MAT's a, b, c, d; default: Graph500's.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@common_options
@session_options
def rmat(session: Session, output: str, plain: bool, homophily: float, **arguments: Any) -> None:
    """Run `from_rmat`."""
    convert(session, "from_rmat", output, homophily=None if plain else homophily, **arguments)


_PYG_HELP = """Explain how to convert a torch_geometric.data.Data, which is done in Python.

torch.save writes a pickle, and reading a pickle runs whatever code is in it, so there is no
file for this command to take.

\b
Examples:
  gnnstore convert pyg
"""
_PYG_ADVICE = """a Data object is converted in Python, because the file that torch.save \
writes is a pickle, and reading it would run the code in it:

    import gnnstore
    gnnstore.converters.from_pyg(data, "graph.gnn")

Arrays of your own can be saved with numpy.savez and converted with 'gnnstore convert numpy'."""


@command.command(
    name="pyg",
    help=_PYG_HELP,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
@session_options
def pyg(_session: Session) -> None:
    """Say what to do instead."""
    raise UsageError(_PYG_ADVICE)
