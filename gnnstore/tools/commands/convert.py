"""`gnnstore convert KIND INPUT OUTPUT`: every converter of the library, from the shell."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from gnnstore import converters
from gnnstore.converters.inputs.files import RawLayout
from gnnstore.converters.writer.options import CONVERTERS, ConvertOptions, check_fractions
from gnnstore.errors import UsageError
from gnnstore.formats.store.schema import StoreManifest
from gnnstore.tools.commands.stores import convert, output_options
from gnnstore.tools.kinds import likely_kind
from gnnstore.tools.options import (
    Command,
    Group,
    Pairs,
    Parsed,
    declared,
    plot_option,
    session_options,
    together,
)
from gnnstore.tools.session import Session

_HELP = """Convert a graph into a store.

KIND names the format of the input. It is never guessed: without it, the command names the kind that
the input looks like. No code in a pickle runs. OUTPUT appears only when it is complete. An
interrupted conversion leaves no partial store: repeat the command with --resume to continue it, or
without to start again.

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
# The fields of `ConvertOptions` that are not in `output_options`.
_common_options = together(
    declared(
        """
Graph
  --undirected
      Add the reverse of every edge; drop duplicates. Refused where their attributes differ.
  --add-inverse-edge  Add the reverse after every edge, with its attributes; keep duplicates.
  --self-loops keep|drop|add  Edges from a node to itself.
  --edge-ids/--no-edge-ids
      Store the position of each edge in the input. Default: yes, but not for generated and expanded
      graphs.
  --index-dtype int64|int32
      Type of node ids in batches. Default: int64.
  --reverse RELATION*
      In graphs with types: add a type rev_RELATION with the edges reversed. Repeat it for more;
      all: of every type.
Features
  --feature-dtype [TYPE:][NAME=]DTYPE*
      Store x, or the node attribute NAME, of all node types or of one TYPE, as float16, bfloat16,
      int8 or another type, as in paper:x=float16; repeat it for more.
  --feature-scale column
      With --feature-dtype int8: one scale per column.
  --allow-error
      With --feature-scale: also take columns that differ from the input by more than 5 % of their
      standard deviation.
Temporal and weighted sampling
  --time-attr NAME*
      Order edges by this attribute of nodes or edges, for loaders with time_attr=; repeat it for
      more.
  --time-unit NAME=UNIT*
      Unit of times whose input states none: D (days), s, ms, us or ns since 1970; repeat it for
      more.
  --weight-attr NAME*
      Sum this attribute of edges, for loaders with weight_attr=; repeat it for more.
Output and progress
  --spill-dir DIR  Directory for edges that are sorted on disk. Default: the directory of OUTPUT.
""",
        ConvertOptions.__init__,
        feature_scale=click.Choice(("column",)),
    ),
    output_options,
)
# The same for converters without options of these names.
_SPLITS = {
    "--split-fractions": """
Splits
  --split-fractions [TYPE=]F,F,F*
      Draw the splits train, valid and test of the nodes at random, as in 0.8,0.1,0.1: all nodes are
      used if the shares add up to 1. Where nodes have types: for a TYPE; repeat it for more.
""",
    "--seed": """
Splits
  --seed N>=0  Seed of the splits that are drawn.
""",
}
_FEATURES = """
Features
  --features FILE*
      Node features [N, F]: .npy, FILE.npz:NAME, .csv or raw. To concatenate several files, repeat
      the option or give a quoted pattern.
  --features-raw TYPE,ROWS,WIDTH
      Type and shape of raw binary features; ROWS -1: as many as the file has.
  --features-ids FILE[:COLUMN]
      The id of each row of the features, if not in order: .npy, or a column of a .csv, which may be
      the file of the features. COLUMN is a name in the first line, or a number, counted from 1; the
      column called id needs none.
  --features-skip-header
      Skip the first line of each .csv of features: it names the columns.
"""
_CLASSES = "  --classes 19|2K  Labels of 19 or of 2983 classes."
_IGB = """
INPUT is the directory with paper/ and paper__cites__paper/ in it, or one with processed/. Splits
are as in IGB's loader: 60, 20 and 20 % of the labelled papers, by position.

\b
Examples:
"""
# Kind -> its help, the options that are its converter's parameters, and the converter's name.
_KINDS: dict[str, tuple[str, str, str]] = {
    "ogb": (
        """Convert an OGB node- or link-property data set, as its downloader leaves it on disk.

INPUT is the directory of the data set, with raw/ and split/ in it: gzipped CSV files, or the .npz
files of ogbn-papers100M; or the directory of MAG240M, whose papers and citations are converted. A
data set of several types, such as ogbn-mag, becomes a store with types. The ogb package is not
needed. Splits that torch.save wrote are unpickled with a list of allowed names, and read whole:
four times such a file counts in --memory. Splits of edges become edge splits, with their fixed
negatives.

\b
Examples:
  gnnstore convert ogb dataset/ogbn_arxiv arxiv.gnn --undirected
  gnnstore convert ogb dataset/ogbn_papers100M papers100M.gnn \\
    --feature-dtype float16
  gnnstore convert ogb dataset/mag240m_kddcup2021 mag240m.gnn --undirected
  gnnstore convert ogb dataset/ogbl_collab collab.gnn --add-inverse-edge
  gnnstore convert ogb dataset/ogbn_mag mag.gnn --reverse all \\
    --time-attr node_year
""",
        """
  --split NAME  Directory below split/. Default: the only one.
""",
        "from_ogb",
    ),
    "snap": (
        """Convert a text edge list: CSV, TSV, or as snap.stanford.edu serves them.

INPUT has a line "source target" for each edge, separated by a tab, spaces or a comma. Columns that
the first line calls source and target, or src and dst, are the ends wherever they stand; --source
and --target choose others. Lines that begin with # or % are skipped; the file may be gzipped. Ids
need not be contiguous: the store keeps the original ones. What Matrix Market, SNAP and KONECT files
say of themselves is checked.

\b
Examples:
  gnnstore convert snap com-friendster.ungraph.txt.gz friendster.gnn \\
    --undirected
  gnnstore convert snap edges.txt graph.gnn --features x.npy \\
    --labels y.npy --splits splits.npz
  gnnstore convert snap edges.csv graph.gnn --source src --target dst \\
    --edge-column time=timestamp --labels y.csv --labels-ids y.csv:node
  gnnstore convert snap edges.txt graph.gnn --features 'x-*.bin' \\
    --features-raw float32,-1,128
""",
        """
  --labels FILE  Node labels [N]: .npy or .csv.
  --labels-ids FILE[:COLUMN]  The id of each row of the labels, as --features-ids.
  --labels-skip-header  Skip the first line of each .csv of labels: it names the columns.
  --splits FILE.npz  Arrays train, valid and test.
  --num-nodes N>=0  Use ids below this as node numbers.
  --ignore-extra-columns -> extra_columns
      Read the first two columns and drop the rest, of which each line has as many.
  --source COLUMN
      Sources of edges, if not the first column: a number, counted from 1, or a name in the first
      line.
  --target COLUMN  Targets of edges, if not the second column.
  --skip-header/--no-header
      Skip the first line that is not a comment, since it names the columns, or take it as an edge.
      By default a line is skipped that has names for columns chosen by name or for the ends of
      integers, and one that only looks like a header is refused.
  --edge-weight COLUMN[:TYPE]
      Store this column, by number or name, as the edge attribute edge_weight. TYPE is int64,
      float32 or float64; by default int64, for fractions float32, or float64 where that rounds.
  --edge-column NAME=COLUMN[:TYPE]* -> edge_columns
      Store a column as the edge attribute NAME, such as time=4:int64; repeat it for more.
  --string-ids  Ids are names: number nodes in order of appearance and store the names.
  --quotes keep|strip
      Whether quotation marks around names belong to the names. Default: strip them between commas,
      and elsewhere if all names have them.
  --comment CHARACTERS
      Lines that begin with one of these are comments, such as '#'; '': none are. Default: # and %,
      with --string-ids only before the first edge.
"""
        + _FEATURES,
        "from_snap",
    ),
    "triples": (
        """Convert a knowledge graph: text with head, relation and tail in a line.

INPUT is the file of the triples to train on, which become the edges; or a directory with train,
valid and test, ending in .txt or .tsv, plain or .gz. Fields are separated by tabs, spaces or
commas; or the files are N-Triples. Entities and relations are numbered in order of appearance; the
store keeps their names. The relation of an edge is its attribute edge_type; other splits are kept
as edge splits.

\b
Examples:
  gnnstore convert triples FB15k-237/ fb15k-237.gnn
  gnnstore convert triples kg.tsv.gz kg.gnn --columns htr --integer-ids
""",
        """
  --valid FILE  Triples of the split valid.
  --test FILE  Triples of the split test.
  --columns hrt|htr|rht|rth|thr|trh  Order of head, relation and tail in a line.
  --integer-ids  Entities and relations are numbers already.
  --skip-header/--no-header
      Skip the first line of each file, since it names the columns, or take it as a triple. By
      default a line that only looks like a header is refused.
  --quotes keep|strip
      Whether quotation marks around names belong to the names. Default: strip them between commas,
      and elsewhere if all names have them.
  --openke
      Files of OpenKE, train2id.txt and so on: their number, then head, tail and relation.
""",
        "from_triples",
    ),
    "numpy": (
        """Convert arrays: one .npz file, or a directory of .npy files.

INPUT holds edge_index [2, E], or indptr [N + 1] and indices [E] (in-neighbours by column), and
optionally x, y, other node attributes, and train, valid and test.

\b
Examples:
  gnnstore convert numpy graph.npz graph.gnn
  gnnstore convert numpy csr.npz graph.gnn --layout csr
""",
        """
  --layout csc|csr
      indptr counts the in-neighbours of targets (csc) or the out-neighbours of sources.
"""
        + _FEATURES,
        "from_numpy",
    ),
    "table": (
        """Convert tables: Parquet, Arrow and Feather files.

EDGES has a row for each edge; NODES, if given, one for each node. Both are files, quoted patterns
or directories; repeat the option for more files. Columns of lists become rows of features. Nodes go
by integers or by names; the store keeps them. Needs pip install 'gnnstore[parquet]'.

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
        """
  --edges FILE*  The table of edges.
  --source COLUMN  Sources of edges.
  --target COLUMN  Targets of edges.
  --edge-column NAME[=COLUMN]* -> edge_columns
      Store a column as the edge attribute NAME; repeat it for more.
  --nodes FILE*  The table of nodes.
  --node-id COLUMN
      Ids or names of the nodes, by which edges go. Default: the numbers of rows.
  --features COLUMN*
      Features: a column of lists or of numbers, or several, which are joined.
  --label COLUMN  Labels.
  --split COLUMN
      Names of splits: text such as train, valid and test, or numbers, booleans and bytes, by their
      text.
  --node-column NAME[=COLUMN]* -> node_columns
      Store a column as the node attribute NAME; repeat it for more.
  --num-nodes N>=0  Without --nodes: use integer ids below this as node numbers.
  --sorted
      The rows of edges ascend by target, then source: write them as they are read.
""",
        "from_tables",
    ),
    "typed": (
        """Convert a graph with types: a directory with files for each type.

INPUT has edges/SOURCE__RELATION__TARGET and nodes/TYPE: files .parquet, .arrow, .feather, .npz,
.npy, .csv or .tsv (also .gz), or directories of such files; and KONECT's out.* as edges. Columns
and arrays become attributes. Edges have source and target, or edge_index. Nodes may have id,
integers or text, by which edges name them, and train, valid and test. The store keeps ids and
names.

\b
Examples:
  gnnstore convert typed shop/ shop.gnn --reverse all
  gnnstore convert typed reviews/ reviews.gnn --time-attr time \\
    --weight-attr weight
""",
        """
  --layout csc|csr
      indptr counts the edges to each target (csc) or from each source (csr).
  --node-id TYPE=COLUMN* -> node_id
      The column with the ids of a type, if not id; TYPE=: the numbers of rows are its ids.
  --sorted
      The edges of each type ascend by target, then source: write them as they are read.
""",
        "from_typed",
    ),
    "graphbolt": (
        """Convert an OnDiskDataset of DGL GraphBolt, homogeneous or with types.

INPUT is the directory with metadata.yaml and the .npy and CSV files that it names (not the
preprocessed/ below it).

\b
Examples:
  gnnstore convert graphbolt datasets/ogbn-products-seeds products.gnn
  gnnstore convert graphbolt datasets/ogb-lsc-mag240m-seeds mag240m.gnn
""",
        """
  --task NAME  Task whose splits and labels are taken. Default: the only one.
""",
        "from_graphbolt",
    ),
    "igb": (
        f"""Convert a homogeneous graph of the Illinois Graph Benchmark (IGB).
{_IGB}  gnnstore convert igb igb/small small.gnn --self-loops add
  gnnstore convert igb igb/full igb260m.gnn --classes 2K \\
    --feature-dtype float16
""",
        _CLASSES,
        "from_igb",
    ),
    "igbh": (
        f"""Convert a heterogeneous graph of the Illinois Graph Benchmark (IGBH).
{_IGB}  gnnstore convert igbh igb-heterogeneous/small small.gnn --reverse all
""",
        _CLASSES,
        "from_igbh",
    ),
    "mag240m": (
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
        "",
        "from_mag240m",
    ),
    "kronecker": (
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
        """
  --factor N  Copies of each node, up to 256.
  --edge-factor X
      Mean number of edges that an edge becomes, up to FACTOR^2. Default: FACTOR.
  --feature-noise X
      Standard deviation of the noise, in units of each column's.
  --no-features -> features  Leave x out.
  --seed N>=0  Seed of the graph.
""",
        "from_kronecker",
    ),
    "rmat": (
        """Generate a random graph (R-MAT) with planted communities.

The graph has 2^SCALE nodes and EDGE_FACTOR edges per node. Labels are communities, and features
are the mean of the community plus noise, so that a model that uses the graph beats one that
does not. The same options give the same graph on every machine. In Python,
gnnstore.converters.from_rmat has more options.

\b
Examples:
  gnnstore convert rmat random.gnn --scale 20
  gnnstore convert rmat large.gnn --scale 24 --edge-factor 15 \\
    --feature-dim 128 --plain
""",
        """
  --scale N  2^SCALE nodes.
  --edge-factor N  Mean number of edges per node.
  --feature-dim N  Width of x.
  --plain  Plain R-MAT, without communities.
  --split-fractions F,F,F
      Train, valid and test, as shares of the nodes with an in-neighbour.
  --seed N>=0  Seed of the graph.
""",
        "from_rmat",
    ),
    "planted-types": (
        """Generate a graph with types: papers, authors and institutions, with planted classes.

Papers have features, labels, times and splits, authors have features, institutions are counted.
Edges have edge_time and weight. The same options give the same graph on every machine. In Python,
gnnstore.converters.from_planted_types has more options.

\b
Examples:
  gnnstore convert planted-types mag.gnn --reverse all
  gnnstore convert planted-types large.gnn --papers 6500000 --feature-dim 768
""",
        """
  --papers N -> num_papers  Number of papers.
  --feature-dim N  Width of the papers' x.
  --classes N -> num_classes  Number of classes.
  --seed N>=0  Seed of the graph.
""",
        "from_planted_types",
    ),
    "pyg": (
        """Convert a Data or HeteroData of PyG that torch.save wrote.

INPUT is such a file, or the processed file of a data set of one graph (processed/data.pt). It is
unpickled with a list of allowed names, so that no code in it runs, and read whole: four times the
file counts in --memory. In Python, gnnstore.converters.from_pyg takes one in memory.

\b
Examples:
  gnnstore convert pyg data.pt graph.gnn
  gnnstore convert pyg Cora/processed/data.pt cora.gnn
""",
        "",
        "from_pyg",
    ),
}


_NETWORKX = "Read it with networkx and give from_pyg(from_networkx(g), OUTPUT), in Python."
_OF_NETWORKX = ("graphml", "gexf", "gml", "pajek", "net", "dot", "json", "jsonl")
# Names of formats and endings, by the message for them.
_OTHER_NAMES = {
    "'gnnstore convert snap' reads lists of edges in text (CSV, TSV, Matrix Market, SNAP, KONECT), "
    "'gnnstore convert typed' tables of nodes, too.": (
        *("csv", "tsv", "txt", "text", "edgelist", "edge-list", "edges", "mtx", "konect"),
    ),
    "'gnnstore convert table' reads Parquet, Arrow and Feather.": (
        *("parquet", "pq", "arrow", "feather", "tables", "pandas", "polars"),
    ),
    "'gnnstore convert numpy' reads arrays (.npz, .npy) and matrices of scipy.sparse.save_npz.": (
        *("npz", "npy", "arrays", "scipy"),
    ),
    "'gnnstore convert pyg' reads a Data of torch.save.": ("pt", "pth", "torch", "data"),
    "'gnnstore convert triples' reads triples in text.": ("kg", "openke", "nt", "ntriples"),
    "'gnnstore convert typed' reads files for each type of nodes and edges.": (
        *("hetero", "types"),
    ),
    "'gnnstore convert graphbolt' reads an OnDiskDataset of DGL GraphBolt.": ("dgl",),
    _NETWORKX: ("networkx", *_OF_NETWORKX),
}


class _Kinds(Group):
    """The kinds of this module, and those that plug-ins have registered."""

    noun = "kind"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return our own kinds, then others."""
        del ctx
        return [*sorted(_KINDS), *CONVERTERS.names]

    def advice(self, words: Sequence[str]) -> str:
        """Return the command for an input that stands where its kind should, or for a format."""
        first, *rest = words
        for advice, names in _OTHER_NAMES.items():
            if first.lower() in names:
                return advice
        path = Path(first)
        if not (path.exists() or "." in first or "/" in first):
            return ""
        if path.suffix.lower().strip(".") in _OF_NETWORKX:
            return _NETWORKX
        if StoreManifest.is_at(path):
            found = shlex.join(["gnnstore", "inspect", first])
            return f"It is a store already; see what is in it:\n  {found}"
        if (kind := likely_kind(path)) is None:
            return ""
        output = [] if self._has_output(kind, words) else [f"{path.name.partition('.')[0]}.gnn"]
        words = [first, *output, *rest]
        if kind == "table":
            columns = ["--source", "COLUMN", "--target", "COLUMN"]
            words = [*(output or rest[:1]), "--edges", first, *columns, *rest[not output :]]
        return (
            f"The kind comes before the input, which looks like one of kind {kind}:\n"
            f"  {shlex.join(['gnnstore', 'convert', kind, *words])}"
        )

    def _has_output(self, kind: str, words: Sequence[str]) -> bool:
        """Return whether there is an output among words that begin with the input of a kind."""
        command = self.get_command(click.get_current_context(), kind)
        if command is None:
            return False
        arguments = [each.name for each in command.params if isinstance(each, click.Argument)]
        parser = command.make_parser(click.Context(command))
        try:
            given, _, _ = parser.parse_args([*words[arguments == ["output"] :]])
        except click.UsageError:  # which the command itself is to report
            return any(not word.startswith("-") for word in words[1:2])
        return isinstance(given.get("output"), str)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a kind."""
        del ctx
        if cmd_name in _KINDS:
            text, options, name = _KINDS[cmd_name]
            return _command_of(cmd_name, text, options, getattr(converters, name))
        if cmd_name not in CONVERTERS:
            return None
        return _command_of(cmd_name, CONVERTERS[cmd_name].summary, "", CONVERTERS[cmd_name].convert)


@click.group(name="convert", cls=_Kinds, help=_HELP, subcommand_metavar="KIND ...")
def convert_command() -> None:
    """Hold the kinds; users see `_HELP`."""


def _column(text: str, _: str) -> tuple[str, str]:
    """Return the name of an attribute, and of its column, which may be the same."""
    name, _, column = text.partition("=")
    return name, column or name


def _fractions(text: str, option: str) -> tuple[str, tuple[float, ...]]:
    node_type, _, shares = text.rpartition("=")
    fractions = shares.split(",")
    try:
        return node_type, check_fractions(option, fractions)
    except UsageError as error:  # with the shares as they were typed
        raise UsageError(str(error).replace(f"={fractions}", f" {shares}")) from None


def _numbered_column(text: str, _: str) -> tuple[str, str]:
    name, mark, column = text.partition("=")
    if not mark:
        raise UsageError(f"{text!r} is not NAME=COLUMN; write it as in time=4")
    return name, column


def _ids_of_type(text: str, _: str) -> tuple[str, str]:
    name, mark, column = text.partition("=")
    if not mark:
        raise UsageError(f"{text!r} is not TYPE=COLUMN; write it as in user=uid, or user=")
    return name, column


# Types of options' values, by kind.
_RAW = {"features_raw": Parsed(lambda text, _: RawLayout.parse(text))}
_TYPES: dict[str, dict[str, Any]] = {
    "numpy": _RAW,
    "snap": {**_RAW, "edge_columns": Pairs(_numbered_column)},
    "table": {"edge_columns": Pairs(_column), "node_columns": Pairs(_column)},
    "typed": {"node_id": Pairs(_ids_of_type)},
}


def _command_of(kind: str, text: str, options: str, function: Callable[..., Path]) -> click.Command:
    """Return the command of a kind, whose words and options are the parameters of a converter."""
    words = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    words = [word for word in words if f"--{word} " not in options]
    splits = [
        declared(text, ConvertOptions.__init__, split_fractions=Pairs(_fractions))
        for flag, text in _SPLITS.items()
        if f"{flag} " not in options
    ]
    plot = [plot_option("Plot the degree distributions before and after.")]

    @click.command(name=kind, cls=Command, help=text)
    @together(*(click.argument(word, type=click.Path()) for word in words))
    @declared(options, function, **_TYPES.get(kind, {}))
    @together(*(plot if kind == "kronecker" else ()))
    @_common_options
    @together(*splits)
    @session_options
    def run(session: Session, **arguments: Any) -> None:
        if arguments.pop("plain", False):
            arguments["homophily"] = None
        if "extra_columns" in arguments:
            arguments["extra_columns"] = "ignore" if arguments["extra_columns"] else "refuse"
        convert(session, function, **arguments)

    made: click.Command = run
    return made
