"""`gnnstore convert KIND INPUT OUTPUT`: every converter of the library, from the shell."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any, get_args

import click

from gnnstore.converters.converter import CONVERTERS
from gnnstore.converters.inputs.files import RawLayout
from gnnstore.errors import UsageError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.progress import Style
from gnnstore.tools.convert import convert
from gnnstore.tools.ui.help import Command, Decorator, Group, section, together
from gnnstore.tools.ui.options import (
    MEMORY,
    SHARES,
    SIZE,
    Parsed,
    gone_option,
    order_options,
    plot_option,
    seed_option,
    session_options,
)
from gnnstore.tools.ui.session import Session

_HELP = """Convert a graph into a store.

KIND names the format of the input; it is never guessed from a name, and no code in a pickle
runs. OUTPUT appears only when it is complete. An interrupted conversion leaves no partial store:
repeat the command with --resume to continue it, or without to start again.

\b
Examples:
  gnnstore convert ogb dataset/ogbn_arxiv arxiv.gnn --undirected
  gnnstore convert snap com-friendster.ungraph.txt.gz friendster.gnn \\
    --undirected
  gnnstore convert triples FB15k-237/ fb15k-237.gnn
  gnnstore convert numpy graph.npz graph.gnn --feature-dtype float16
  gnnstore convert table users.gnn --edges follows.parquet --source who \\
    --target whom
  gnnstore convert typed shop/ shop.gnn --reverse all
  gnnstore convert rmat random.gnn --scale 20
  gnnstore convert rmat random.gnn --scale 20 --resume
"""


class _Kinds(Group):
    """The kinds of this module, and those that plug-ins have registered."""

    noun = "kind"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return our own kinds, then others."""
        return [*super().list_commands(ctx), *CONVERTERS.names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a kind."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in CONVERTERS:
            return own
        found = CONVERTERS[cmd_name]
        return _make_kind(cmd_name, found.summary, function=found.convert)


@click.group(name="convert", cls=_Kinds, help=_HELP, subcommand_metavar="KIND ...")
def command() -> None:
    """Hold the kinds; users see `_HELP`."""


class _Styles(click.Choice[str]):
    """The styles of progress; a former style has an error that names its replacement."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "json":
            self.fail(
                "progress as JSON is gone; choose lines, or call a function of gnnstore.converters "
                "with progress=, an object of your own (see gnnstore.progress.Progress)",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


# Fields of `ConvertOptions` that are about the output, and how progress is shown.
output_options = section(
    "Output and progress",
    click.option(
        "--page-bytes",
        type=SIZE,
        help="Page size of all arrays, a power of two. By default that of each array which leaves "
        "least of its pages empty, from 4 to 64 KiB.",
    ),
    click.option(
        "--memory",
        "memory_bytes",
        type=MEMORY,
        metavar="SIZE",
        help="Memory budget for building the adjacency, such as 8GB.",
    ),
    click.option(
        "--overwrite", is_flag=True, help="Replace an existing store once the new one is complete."
    ),
    click.option(
        "--resume",
        is_flag=True,
        help="Continue an interrupted conversion of the same data, if there is one.",
    ),
    click.option(
        "--progress",
        "style",
        type=_Styles(get_args(Style)),
        default="auto",
        help="How to show progress on stderr.",
    ),
)


def _gone(option: str, command_name: str) -> Decorator:
    """Return an option of an earlier version, which names the command to use."""
    return gone_option(
        option,
        f"{option} is no option of gnnstore convert any more; convert first, and then run "
        f"gnnstore {command_name} STORE OUT",
    )


# The other fields of `ConvertOptions`.
_common_options = together(
    section(
        "Graph",
        click.option(
            "--undirected", is_flag=True, help="Add the reverse of every edge; drop duplicates."
        ),
        click.option(
            "--self-loops",
            type=click.Choice(("keep", "drop", "add")),
            default="keep",
            help="Edges from a node to itself.",
        ),
        click.option(
            "--edge-ids/--no-edge-ids",
            default=None,
            help="Store the position of each edge in the input. Default: yes, but not for "
            "generated and expanded graphs.",
        ),
        click.option(
            "--index-dtype",
            type=click.Choice(("int64", "int32")),
            help="Type of node ids in batches. Default: that of the input, else int64.",
        ),
        click.option(
            "--reverse",
            multiple=True,
            metavar="RELATION",
            help="Of graphs with types: add a type rev_RELATION with the edges reversed. Repeat "
            "it for more; all: of every type.",
        ),
    ),
    section(
        "Features",
        click.option(
            "--feature-dtype",
            type=click.Choice(tuple(STORAGE_DTYPES)),
            metavar="TYPE",
            help="Store x as this type, such as float16 or bfloat16.",
        ),
        click.option(
            "--feature-scale",
            type=click.Choice(("column",)),
            help="With --feature-dtype int8: one scale per column, stored as x_scale.",
        ),
    ),
    section("Temporal and weighted sampling", order_options),
    section(
        "Output and progress",
        click.option(
            "--spill-dir",
            type=click.Path(),
            metavar="DIR",
            help="Directory for edges that are sorted on disk. Default: that of OUTPUT.",
        ),
    ),
    output_options,
    _gone("--node-order", "reorder"),
    _gone("--edge-split", "split-edges"),
    _gone("--edge-split-seed", "split-edges --seed"),
    _gone("--edge-negatives", "split-edges --edge-negatives"),
)


def _none_if_empty(
    _ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...] | None:
    return value or None


# Features in files of their own.
_feature_options = section(
    "Features",
    click.option(
        "--features",
        multiple=True,
        type=click.Path(),
        callback=_none_if_empty,
        metavar="FILE",
        help="Node features [N, F]: .npy, FILE.npz:NAME, .csv or raw. To concatenate several "
        "files, repeat the option or give a quoted pattern.",
    ),
    click.option(
        "--features-raw",
        type=Parsed("layout", lambda text, _: RawLayout.parse(text)),
        metavar="TYPE,ROWS,WIDTH",
        help="Type and shape of raw binary features; ROWS -1: as many as the file has.",
    ),
    click.option(
        "--features-ids",
        type=click.Path(),
        metavar="FILE",
        help="The id of each row of the features, if not in order: .npy or .csv; or the .csv of "
        "features itself, if it has a column of ids.",
    ),
    click.option(
        "--features-skip-header",
        is_flag=True,
        help="Skip the first line of each .csv of features: it names the columns.",
    ),
)


def _named_column(text: str) -> tuple[str, str]:
    name, mark, column = text.partition("=")
    if not mark:
        raise UsageError(f"{text!r} is no NAME=COLUMN; write it as in time=4")
    return name, column


def _unique(option: str, pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return pairs as a dictionary; refuse a name that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise UsageError(f"{option}: a name is there twice; give each once")
    return found


def _negate(_ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    return not value


def _add_kind(
    kind: str,
    help_text: str,
    *options: Decorator,
    source: str | None = "input",
    function: str | None = None,
) -> None:
    """Add a kind whose options are the arguments of a converter, `from_KIND`."""
    made = _make_kind(kind, help_text, *options, source=source, function=function or f"from_{kind}")
    command.add_command(made)


def _make_kind(
    kind: str,
    help_text: str,
    *options: Decorator,
    source: str | None = "input",
    function: str | Callable[..., Path],
) -> click.Command:
    @click.command(name=kind, cls=Command, help=help_text)
    @together(
        *([click.argument(source, type=click.Path())] if source else []),
        click.argument("output", type=click.Path()),
        *options,
    )
    @_common_options
    @session_options
    def run(session: Session, **arguments: Any) -> None:
        convert(session, function, **arguments)

    made: click.Command = run
    return made


_add_kind(
    "ogb",
    """Convert an OGB node- or link-property data set, as its downloader leaves it on disk.

INPUT is the directory of the data set, with raw/ and split/ in it: gzipped CSV files, or the
.npz files of ogbn-papers100M; or that of MAG240M, whose papers and citations are converted. A
data set of several types, such as ogbn-mag, becomes a store with types. The ogb package is not
needed. Splits that torch.save wrote are unpickled with a list of allowed names,
and read whole: four times such a file counts in --memory. Splits of edges become edge splits, with
their fixed negatives.

\b
Examples:
  gnnstore convert ogb dataset/ogbn_arxiv arxiv.gnn --undirected
  gnnstore convert ogb dataset/ogbn_products products.gnn --add-inverse-edge
  gnnstore convert ogb dataset/ogbn_papers100M papers100M.gnn \\
    --feature-dtype float16
  gnnstore convert ogb dataset/mag240m_kddcup2021 mag240m.gnn --undirected
  gnnstore convert ogb dataset/ogbl_collab collab.gnn --add-inverse-edge
  gnnstore convert ogb dataset/ogbn_mag mag.gnn --reverse all \\
    --time-attr node_year
""",
    click.option(
        "--add-inverse-edge",
        is_flag=True,
        help="Add the reverse after every edge, as OGB's loader does for some data sets.",
    ),
    click.option("--split", metavar="NAME", help="Directory below split/. Default: the only one."),
)

_add_kind(
    "snap",
    """Convert a text edge list: CSV, TSV, or as snap.stanford.edu serves them.

INPUT has a line "source target" for each edge, separated by a tab, spaces or a comma; --source and
--target choose other columns. Lines that begin with # or % are skipped; the file may be gzipped.
Ids need not be contiguous: the store keeps the original ones. What Matrix Market, SNAP and KONECT
files say of themselves is checked.

\b
Examples:
  gnnstore convert snap com-friendster.ungraph.txt.gz friendster.gnn \\
    --undirected
  gnnstore convert snap edges.txt graph.gnn --features x.npy \\
    --labels y.npy --splits splits.npz
  gnnstore convert snap edges.csv graph.gnn --source src --target dst \\
    --edge-column time=timestamp --labels labels.csv --labels-ids labels.csv
  gnnstore convert snap edges.txt graph.gnn --features 'x-*.bin' \\
    --features-raw float32,-1,128
""",
    _feature_options,
    click.option(
        "--labels", type=click.Path(), metavar="FILE", help="Node labels [N]: .npy or .csv."
    ),
    click.option(
        "--labels-ids",
        type=click.Path(),
        metavar="FILE",
        help="The id of each row of the labels, as --features-ids.",
    ),
    click.option(
        "--labels-skip-header",
        is_flag=True,
        help="Skip the first line of each .csv of labels: it names the columns.",
    ),
    click.option(
        "--splits", type=click.Path(), metavar="FILE.npz", help="Arrays train, valid and test."
    ),
    click.option(
        "--num-nodes", type=click.IntRange(min=0), help="Use ids below this as node numbers."
    ),
    click.option(
        "--ignore-extra-columns",
        "extra_columns",
        is_flag=True,
        callback=lambda _ctx, _param, value: "ignore" if value else "refuse",
        help="Read the first two columns and drop the rest.",
    ),
    click.option(
        "--source",
        metavar="COLUMN",
        help="Sources of edges, if not the first column: a number, counted from 1, or a name in "
        "the first line.",
    ),
    click.option("--target", metavar="COLUMN", help="Targets of edges, if not the second column."),
    click.option(
        "--skip-header",
        is_flag=True,
        help="Skip the first line that is not a comment: it names the columns.",
    ),
    click.option(
        "--edge-weight",
        metavar="COLUMN[:TYPE]",
        help="Store this column, by number or name, as the edge attribute edge_weight. TYPE is "
        "int64, float32 or float64; by default int64, or float32 for fractions.",
    ),
    click.option(
        "--edge-column",
        "edge_columns",
        type=Parsed("column", lambda text, _: _named_column(text)),
        multiple=True,
        callback=lambda _ctx, _param, pairs: _unique("--edge-column", pairs),
        metavar="NAME=COLUMN[:TYPE]",
        help="Store a column as the edge attribute NAME, such as time=4:int64; repeat it for more.",
    ),
    click.option(
        "--string-ids",
        is_flag=True,
        help="Ids are names: number nodes in order of appearance and store the names.",
    ),
    click.option(
        "--comment",
        metavar="CHARACTERS",
        help="Lines that begin with one of these are comments, such as '#'; '': none are. Default: "
        "# and %, with --string-ids only before the first edge.",
    ),
)

_add_kind(
    "triples",
    """Convert a knowledge graph: text with head, relation and tail in a line.

INPUT is the file of the triples to train on, which become the edges; or a directory with train,
valid and test, ending in .txt or .tsv, plain or .gz. Fields are separated by tabs, spaces or
commas. Entities and relations are numbered in order of appearance; the store keeps their names.
The relation of an edge is its attribute edge_type; other splits are kept as edge splits.

\b
Examples:
  gnnstore convert triples FB15k-237/ fb15k-237.gnn
  gnnstore convert triples train.txt kg.gnn --valid valid.txt --test test.txt
  gnnstore convert triples kg.tsv.gz kg.gnn --columns htr --integer-ids
""",
    click.option("--valid", type=click.Path(), metavar="FILE", help="Triples of the split valid."),
    click.option("--test", type=click.Path(), metavar="FILE", help="Triples of the split test."),
    click.option(
        "--columns",
        type=click.Choice(tuple(map("".join, permutations("hrt")))),
        default="hrt",
        help="Order of head, relation and tail in a line.",
    ),
    click.option("--integer-ids", is_flag=True, help="Entities and relations are numbers already."),
    click.option(
        "--skip-header",
        is_flag=True,
        help="Skip the first line of each file: it names the columns.",
    ),
    click.option(
        "--openke",
        is_flag=True,
        help="Files of OpenKE, train2id.txt and so on: their number, then head, tail and relation.",
    ),
)

_add_kind(
    "numpy",
    """Convert arrays: one .npz file, or a directory of .npy files.

INPUT holds edge_index [2, E], or indptr [N + 1] and indices [E] (in-neighbours by column), and
optionally x, y, other node attributes, and train, valid and test.

\b
Examples:
  gnnstore convert numpy graph.npz graph.gnn
  gnnstore convert numpy arrays/ graph.gnn --undirected \\
    --feature-dtype bfloat16
  gnnstore convert numpy csr.npz graph.gnn --layout csr
""",
    click.option(
        "--layout",
        type=click.Choice(("csc", "csr")),
        default="csc",
        help="indptr counts the in-neighbours of targets (csc) or the out-neighbours of sources.",
    ),
    _feature_options,
)


def _columns(option: str, what: str) -> Decorator:
    return click.option(
        option,
        f"{option[2:].replace('-', '_')}s",
        type=Parsed("column", lambda text, _: (text.partition("=")[0], text.split("=", 1)[-1])),
        multiple=True,
        callback=lambda _ctx, _param, pairs: _unique(option, pairs),
        metavar="NAME[=COLUMN]",
        help=f"Store a column as the {what} attribute NAME; repeat it for more.",
    )


_add_kind(
    "table",
    """Convert tables: Parquet, Arrow and Feather files.

EDGES has a row for each edge; NODES, if given, one for each node. Both are files, quoted patterns
or directories; repeat the option for more files. Columns of lists become rows of features. Nodes go
by integers or by names; the store keeps them.

\b
Examples:
  gnnstore convert table graph.gnn --edges edges.parquet --source src \\
    --target dst
  gnnstore convert table graph.gnn --edges 'edges/*.parquet' \\
    --nodes nodes.parquet --features x --label y --split split
  gnnstore convert table users.gnn --edges follows.arrow \\
    --edge-column time --nodes users.feather --node-id name --features age \\
    --features height
""",
    click.option(
        "--edges",
        multiple=True,
        required=True,
        type=click.Path(),
        metavar="FILE",
        help="The table of edges.",
    ),
    click.option("--source", default="source", metavar="COLUMN", help="Sources of edges."),
    click.option("--target", default="target", metavar="COLUMN", help="Targets of edges."),
    _columns("--edge-column", "edge"),
    click.option(
        "--nodes",
        multiple=True,
        type=click.Path(),
        callback=_none_if_empty,
        metavar="FILE",
        help="The table of nodes.",
    ),
    click.option(
        "--node-id",
        metavar="COLUMN",
        help="Ids or names of the nodes, by which edges go. Default: the numbers of rows.",
    ),
    click.option(
        "--features",
        multiple=True,
        callback=_none_if_empty,
        metavar="COLUMN",
        help="Features: a column of lists, or several of numbers, which are joined.",
    ),
    click.option("--label", metavar="COLUMN", help="Labels."),
    click.option(
        "--split", metavar="COLUMN", help="Names of splits: text such as train, valid and test."
    ),
    _columns("--node-column", "node"),
    click.option(
        "--num-nodes",
        type=click.IntRange(min=0),
        help="Without --nodes: use integer ids below this as node numbers.",
    ),
    source=None,
    function="from_tables",
)

_add_kind(
    "typed",
    """Convert a graph with types: a directory with files for each type.

INPUT has edges/SOURCE__RELATION__TARGET and nodes/TYPE: files .parquet, .arrow, .feather, .npz,
.npy, .csv or .tsv (also .gz), or directories of them; and KONECT's out.* as edges. Columns and
arrays become attributes. Edges have source and target, or edge_index. Nodes may have id, by which
edges name them, and train, valid and test.

\b
Examples:
  gnnstore convert typed shop/ shop.gnn --reverse all
  gnnstore convert typed reviews/ reviews.gnn --time-attr time \\
    --weight-attr weight
""",
)

_add_kind(
    "graphbolt",
    """Convert an OnDiskDataset of DGL GraphBolt, homogeneous or with types.

INPUT is the directory with metadata.yaml and the .npy and CSV files that it names (not the
preprocessed/ below it). Needs PyYAML: pip install 'gnnstore[graphbolt]'.

\b
Examples:
  gnnstore convert graphbolt datasets/ogbn-products-seeds products.gnn
  gnnstore convert graphbolt datasets/ogb-lsc-mag240m-seeds mag240m.gnn
""",
    click.option(
        "--task",
        metavar="NAME",
        help="Task whose splits and labels are taken. Default: the only one.",
    ),
)

_classes_option = click.option(
    "--classes",
    type=click.Choice(("19", "2K")),
    default="19",
    help="Labels of 19 or of 2983 classes.",
)

_add_kind(
    "igb",
    """Convert a homogeneous graph of the Illinois Graph Benchmark (IGB).

INPUT is the directory with paper/ and paper__cites__paper/ in it, or one with processed/. Splits
are those of IGB's loader: 60, 20 and 20 % of the labelled papers, by position.

\b
Examples:
  gnnstore convert igb igb/small small.gnn --self-loops add
  gnnstore convert igb igb/full igb260m.gnn --classes 2K \\
    --feature-dtype float16
""",
    _classes_option,
)

_add_kind(
    "igbh",
    """Convert a heterogeneous graph of the Illinois Graph Benchmark (IGBH).

INPUT is the directory with paper/ and paper__cites__paper/ in it, or one with processed/. Splits
are those of IGB's loader: 60, 20 and 20 % of the labelled papers, by position.

\b
Examples:
  gnnstore convert igbh igb-heterogeneous/small small.gnn --reverse all
  gnnstore convert igbh igb-heterogeneous/full full.gnn --classes 2K \\
    --feature-dtype float16
""",
    _classes_option,
)

_add_kind(
    "mag240m",
    """Convert MAG240M whole: papers, authors, institutions, and three types of edges.

INPUT is the directory mag240m_kddcup2021. The numbers of authors and institutions are read from
meta.pt, in which nothing but numbers is unpickled. (gnnstore convert ogb takes the papers alone.)

\b
Examples:
  gnnstore convert mag240m dataset/mag240m_kddcup2021 mag240m.gnn \\
    --reverse all
  gnnstore convert mag240m dataset/mag240m_kddcup2021 mag240m.gnn \\
    --time-attr node_year --reverse writes --reverse affiliated_with
""",
)

_add_kind(
    "kronecker",
    """Expand a store: FACTOR times the nodes, and any number of times the edges.

Every node of SEED_STORE becomes FACTOR nodes with its labels, splits and features (plus noise),
and every edge becomes edges between copies of its endpoints. Which copies are joined is drawn from
a small graph derived from the communities of SEED_STORE (Belletti et al. 2019). The degree
distribution keeps its shape; a comparison is printed. The same options give the same store.

\b
Examples:
  gnnstore convert kronecker papers100M.gnn large.gnn --factor 4 \\
    --edge-factor 8.8
  gnnstore convert kronecker cora.gnn cora16.gnn --factor 16 \\
    --plot degrees.png
""",
    click.option("--factor", type=int, required=True, help="Copies of each node, up to 256."),
    click.option(
        "--edge-factor",
        type=float,
        help="Mean number of edges that an edge becomes, up to FACTOR^2. Default: FACTOR.",
    ),
    click.option(
        "--feature-noise",
        type=float,
        default=0.1,
        help="Standard deviation of the noise, in units of that of each column.",
    ),
    click.option("--no-features", "features", is_flag=True, callback=_negate, help="Leave x out."),
    seed_option("Seed of the graph."),
    plot_option("Plot the degree distributions before and after."),
    source="seed_store",
)


def _plain_has_no_homophily(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.params["homophily"] = None


_add_kind(
    "rmat",
    """Generate a random graph (R-MAT) with planted communities.

The graph has 2^SCALE nodes and EDGE_FACTOR edges per node. Labels are communities, and features
are the mean of the community plus noise, so that a model that uses the graph beats one that
does not. The same options give the same graph on every machine.

\b
Examples:
  gnnstore convert rmat random.gnn --scale 20
  gnnstore convert rmat large.gnn --scale 24 --edge-factor 15 \\
    --feature-dim 128 --plain
""",
    click.option("--scale", type=int, default=16, help="2^SCALE nodes."),
    click.option("--edge-factor", type=int, default=16, help="Mean number of edges per node."),
    click.option("--feature-dim", type=int, default=64, help="Width of x."),
    click.option(
        "--communities",
        "num_communities",
        type=int,
        default=8,
        help="Number of classes; a power of two.",
    ),
    click.option(
        "--homophily",
        type=float,
        default=0.8,
        is_eager=True,  # before --plain
        help="Share of edges within a community.",
    ),
    click.option(
        "--plain",
        is_flag=True,
        expose_value=False,
        callback=_plain_has_no_homophily,
        help="Plain R-MAT, without communities.",
    ),
    click.option(
        "--feature-noise",
        type=float,
        default=0.7,
        help="Standard deviation around means of length 1.",
    ),
    click.option(
        "--split-fractions",
        type=SHARES,
        metavar="F,F,F",
        default="0.5,0.25,0.25",
        help="Train, valid and test, as shares of the nodes with an in-neighbour.",
    ),
    click.option(
        "--probabilities",
        type=SHARES,
        metavar="P,P,P,P",
        default="0.57,0.19,0.19,0.05",
        help="a, b, c and d of R-MAT, by default those of Graph500.",
    ),
    seed_option("Seed of the graph."),
    source=None,
)

_add_kind(
    "planted-types",
    """Generate a graph with types: papers, authors and institutions, with planted classes.

Papers have features, labels, times and splits, authors have features, institutions are counted.
Edges have edge_time and weight. The same options give the same graph on every machine.

\b
Examples:
  gnnstore convert planted-types mag.gnn --reverse all
  gnnstore convert planted-types mag.gnn --time-attr time --weight-attr weight
  gnnstore convert planted-types large.gnn --papers 6500000 --feature-dim 768
""",
    click.option("--papers", "num_papers", type=int, default=10_000, help="Number of papers."),
    click.option("--authors", "num_authors", type=int, help="Default: half as many as papers."),
    click.option(
        "--institutions", "num_institutions", type=int, help="Default: a hundredth of the papers."
    ),
    click.option("--feature-dim", type=int, default=64, help="Width of the papers' x."),
    click.option("--author-dim", type=int, default=32, help="Width of the authors' x."),
    click.option("--classes", "num_classes", type=int, default=8, help="Number of classes."),
    click.option("--degree", type=int, default=8, help="Mean number of citations of a paper."),
    click.option(
        "--homophily", type=float, default=0.8, help="Share of edges drawn within a class."
    ),
    click.option(
        "--feature-noise",
        type=float,
        default=0.7,
        help="Standard deviation around means of length 1.",
    ),
    click.option(
        "--skew",
        type=float,
        default=0.0,
        help="How unevenly edges fall on papers and institutions: 2, as citations; 0: evenly.",
    ),
    seed_option("Seed of the graph."),
    source=None,
    function="from_planted_types",
)


_ANY_WORDS = {"ignore_unknown_options": True, "allow_extra_args": True}

_add_kind(
    "pyg",
    """Convert a torch_geometric.data.Data that torch.save wrote.

INPUT is such a file, or the processed file of a data set of one graph (processed/data.pt). It is
unpickled with a list of allowed names, so that no code in it runs, and read whole: four times the
file counts in --memory. In Python, gnnstore.converters.from_pyg takes a Data in memory.

\b
Examples:
  gnnstore convert pyg data.pt graph.gnn
  gnnstore convert pyg Cora/processed/data.pt cora.gnn
""",
    source="data",
)


@command.command(name="planted-kg", hidden=True, context_settings=_ANY_WORDS)
@session_options
def planted_kg(_session: Session) -> None:
    """Print the advice, for users of an earlier version."""
    raise UsageError(
        "planted knowledge graphs are made in Python, in the source tree, by from_planted_kg of "
        "benchmarks.parts.planted_kg; docs/howto-knowledge-graphs.md makes a graph to learn from"
    )
