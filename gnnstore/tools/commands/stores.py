"""Commands that write stores from stores, and how every converter is run."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnnstore.converters import split_edges
from gnnstore.converters.stores.graph import StoreArrays
from gnnstore.converters.stores.quantize import (
    changed_attributes,
    estimate_bytes,
    quantize,
    quantize_options,
)
from gnnstore.converters.stores.reorder import ORDERS, reorder
from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import UsageError
from gnnstore.formats.arrays.dtypes import STORAGE_DTYPES
from gnnstore.formats.store.store import StoreReader
from gnnstore.progress import Style
from gnnstore.tools.layout import Block
from gnnstore.tools.options import (
    Command,
    Parsed,
    batch_options,
    cache_option,
    declared,
    is_batch_option,
    refuse_given,
    session_options,
)
from gnnstore.tools.session import Session, interrupts_wait

if TYPE_CHECKING:
    from gnnstore.tools.options import BatchOptions


# Arguments of a command that make up `ConvertOptions`; the others belong to its converter.
COMMON = tuple(field.name for field in fields(ConvertOptions))

_M_MMAP_THRESHOLD = -3  # of mallopt(3)
_THRESHOLD_BYTES = 2**20

DEGREES = (
    Block(
        "Degrees",
        {
            "": "{key}",
            "nodes": "{num_nodes}",
            "edges": "{num_edges}",
            "mean": "{mean:,.2f}",
            "highest": "{max}",
            "none": "{zero_share}",
            "tail": "{tail_exponent:.2f}",
        },
        "degrees",
    ),
    (
        "{degrees.node_factor} times the nodes, {degrees.edge_factor} times the edges. Distance of "
        "the distributions (Kolmogorov-Smirnov, in-degrees in units of their mean): "
        "{degrees.ks_distance:.4f}"
    ),
)
# Fields of `ConvertOptions` that are about the output, and how progress is shown.
output_options = declared(
    """
Output and progress
  --page-bytes SIZE
      Page size of all arrays, a power of two. By default the size that leaves least of
      an array's pages empty, from 4 to 64 KiB.
  --memory MEMORY -> memory_bytes
      Memory budget for building the adjacency, such as 8GB.
  --overwrite  Replace an existing store once the new one is complete.
  --resume  Continue an interrupted conversion of the same data, if there is one.
  --progress auto|bar|lines|none -> style = auto  How to show progress on stderr.
""",
    ConvertOptions.__init__,
)


def convert(
    session: Session,
    run: Callable[..., Path],
    *,
    style: Style,
    plot_file: Path | None = None,
    **arguments: Any,
) -> None:
    """Run a converter of the library and print a summary."""
    own = inspect.signature(run).parameters
    given = {name: arguments.pop(name) for name in COMMON if name in arguments and name not in own}
    options = ConvertOptions(**given)
    if options.memory_bytes is not None:
        _return_large_blocks()
    with interrupts_wait():
        importlib.import_module("numcodecs.zstd")  # else imported in the middle of the work
    started = time.perf_counter()
    with session.progress(style=style) as progress:
        path = run(options=options, progress=progress, **arguments)
    seconds = time.perf_counter() - started
    with interrupts_wait():
        # On demand: they import the strategies, which takes longer than --help may.
        from gnnstore.tools import describe  # noqa: PLC0415
        from gnnstore.tools.layout import next_commands, program_of  # noqa: PLC0415
    store = describe.describe_store(StoreReader.open(path))
    speed = store["state"]["disk_bytes"] / max(seconds, 1e-9)
    document = {"store": store, "seconds": seconds, "written_bytes_per_second": speed}
    layout: list[Any] = [("store", describe.summary(store))]
    if run.__name__ == "from_kronecker":
        document |= _compare_degrees(arguments["seed_store"], path, plot_file)
        layout += DEGREES
    layout.append("Converted in {seconds} ({written_bytes_per_second} written).")
    session.emit(document, layout, next_commands(store["path"]), program_of(store))


def _return_large_blocks() -> None:
    """Let glibc return blocks of 1 MiB and more to the system as soon as they are freed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)


def _compare_degrees(before: str, after: Path, plot_file: Path | None) -> dict[str, Any]:
    from gnnstore.tools.scan import compare_degrees  # noqa: PLC0415 - on demand

    comparison = compare_degrees(before, after)
    document: dict[str, Any] = {"degrees": comparison.to_json()}
    if plot_file is not None:
        from gnnstore.tools.plots import draw_comparison  # noqa: PLC0415 - optional

        document["drawn_to"] = str(draw_comparison(comparison, plot_file))
    return document


_SPLIT_EDGES_HELP = """Split the edges of a store for link prediction.

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


@click.command(name="split-edges", cls=Command, help=_SPLIT_EDGES_HELP)
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
@cache_option
@session_options
def split_edges_command(session: Session, **arguments: Any) -> None:
    """Split the edges of a store; users see `_SPLIT_EDGES_HELP`."""
    convert(session, split_edges, **arguments)


_ADD_ORDER_HELP = """Prepare a store for temporal or weighted sampling.

For each time attribute (of nodes or edges, int64) the edges into a node get an order by time, and
for each weight attribute (of edges) sums. Loaders need these for time_attr= and weight_attr=. The
same options of `gnnstore convert` do it at once.

The store is replaced in one step. Its other files are not copied. Its uuid changes, so a store with
packed epochs or partitions is refused.

\b
Examples:
  gnnstore add-order mag.gnn --time-attr year
  gnnstore add-order reviews.gnn --time-attr time --weight-attr rating
"""


_EDGE_TYPES = (
    "{store}",
    Block(
        "",
        {
            "type": "{type.0} -> {type.2}",
            "relation": "{type.1}",
            "orders by time": "{orders}",
            "sums of weights": "{weight_sums}",
        },
        "edge_types",
    ),
)


@click.command(name="add-order", cls=Command, help=_ADD_ORDER_HELP)
@click.argument("store", type=click.Path())
@declared("""
  --time-attr NAME*
      Order edges by this attribute of nodes or edges, for loaders with time_attr=; repeat it for
      more.
  --weight-attr NAME*
      Sum this attribute of edges, for loaders with weight_attr=; repeat it for more.
  --memory MEMORY -> memory_bytes  Memory budget, such as 8GB.
""")
@session_options
def add_order_command(
    session: Session,
    store: str,
    time_attr: tuple[str, ...],
    weight_attr: tuple[str, ...],
    memory_bytes: int | None,
) -> None:
    """Add the arrays and say which there are."""
    from gnnstore.converters import add_order  # noqa: PLC0415 - the kernels load slowly

    started = time.perf_counter()
    with session.progress() as progress:
        path = add_order(
            store, time_attr, weight_attr, memory_bytes=memory_bytes, progress=progress
        )
    seconds = time.perf_counter() - started
    edges = StoreReader.open(path).schema.edge_types
    found = [
        {
            "type": list(edge.type),
            "orders": list(edge.orders),
            "weight_sums": list(edge.weight_sums),
        }
        for edge in edges
    ]
    document = {"store": str(path), "seconds": seconds, "edge_types": found}
    session.emit(document, _EDGE_TYPES, [("gnnstore", "inspect", str(path))])


_QUANTIZE_HELP = """Store the node features of a store as int8, with a scale per column.

OUT has all that STORE has, for every type. Its features take a quarter of the bytes of float32 on
disk, in caches and on the way to a device. Each column is stored in multiples of its scale, its
largest magnitude / 127; columns of integers from -127 to 127 stay as they are.

The error is measured: the root mean square of the difference from STORE, over the standard
deviation of the column. A column of more than 5 % is refused, and one in which most values that are
not 0 would become 0; --allow-error takes them. Try training before you delete STORE.

\b
Examples:
  gnnstore quantize graph.gnn small.gnn --estimate
  gnnstore quantize graph.gnn small.gnn
  gnnstore quantize mag.gnn small.gnn --feature-dtype paper:x=int8
"""


_QUANTIZED = (
    "{store}",
    Block(
        "",
        {
            "attribute": "{path}",
            "values": "{dtype}[ {shape:x}]",
            "now": "{value_bytes}",
            "then": "{quantized_bytes}",
        },
        "attributes",
    ),
    "The store has {store_bytes}, OUT would have about {result_bytes}.",
)


@click.command(name="quantize", cls=Command, help=_QUANTIZE_HELP)
@click.argument("store", type=click.Path())
@click.argument("output", metavar="[OUT]", type=click.Path(), required=False)
@declared(
    """
  --feature-dtype [TYPE:][NAME=]DTYPE*
      The attributes, as in emb=int8 or paper:x=int8; repeat it for more. Default: x of every node
      type that has it as floats.
  --allow-error
      Also take columns that differ from STORE by more than 5 % of their standard deviation.
  --estimate  Print sizes, and write nothing.
""",
    quantize,
)
@output_options
@cache_option
@session_options
def quantize_command(session: Session, *, estimate: bool, **arguments: Any) -> None:
    """Quantize a store; users see `_QUANTIZE_HELP`."""
    if not estimate and arguments["output"] is None:
        raise UsageError("OUT is missing: where the new store is to be; or give --estimate")
    if not estimate:
        return convert(session, quantize, **arguments)
    graph = StoreArrays(arguments["store"])
    options = quantize_options(graph, arguments["feature_dtype"])
    changed = changed_attributes(graph.reader.schema, options).values()
    attributes = [
        {
            "path": spec.path,
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "value_bytes": spec.num_bytes,
            "quantized_bytes": spec.num_bytes // STORAGE_DTYPES[spec.dtype].itemsize,
        }
        for spec in changed
    ]
    document = {
        "store": str(graph.reader.path),
        "attributes": attributes,
        "store_bytes": graph.reader.total_bytes,
        "result_bytes": estimate_bytes(graph, options),
    }
    stem = str(graph.reader.path).removesuffix(".gnn")
    return session.emit(document, _QUANTIZED, [session.without_estimate(f"{stem}-int8.gnn")])


_REORDER_HELP = """Renumber the nodes of a store, so that rows needed often lie together.

OUT is another store with everything that STORE has. Node ids change, in edges, splits and
batches: store.original_ids[node] is the id in the original data, and store.ids_of(original) maps
back. Edges are known by their positions in OUT; store.original_edge_ids[position] is the old id.

--order degree sorts nodes by descending out-degree, so that nodes without out-edges come last.
--order frequency samples batches, with the options of `gnnstore predict`, and puts the nodes that
most batches need first. --order community groups nodes that share in-neighbours, the most needed
communities first, and sorts each community by degree.

\b
Examples:
  gnnstore reorder graph.gnn --estimate
  gnnstore reorder graph.gnn ordered.gnn
  gnnstore reorder graph.gnn ordered.gnn --order frequency \\
    --num-neighbors 15,10 --input-nodes train
"""


@click.command(name="reorder", cls=Command, help=_REORDER_HELP)
@click.argument("store", type=click.Path())
@click.argument("output", metavar="[OUT]", type=click.Path(), required=False)
@declared(
    f"""
  --order {"|".join(ORDERS)} = degree  The order of nodes; see above.
  --estimate  Print savings and cost, and write nothing.
  --edge-ids/--no-edge-ids  Store the ids that edges have in STORE. Default: yes.
  --seed N>=0 = 0  With --order community: decides between equally good communities.
"""
)
@batch_options
@declared("  --spill-dir DIR  Directory for data that is sorted on disk. Default: next to OUT.")
@output_options
@cache_option
@session_options
def reorder_command(
    session: Session,
    *,
    batches: BatchOptions,
    estimate: bool,
    **arguments: Any,
) -> None:
    """Reorder a store; users see `_REORDER_HELP`."""
    if not estimate and arguments["output"] is None:
        raise UsageError("OUT is missing: where the new store is to be; or give --estimate")
    order = arguments["order"]
    if order != "frequency":
        refuse_given(is_batch_option, "only with --order frequency, which samples batches")
    if order != "community":
        refuse_given("seed".__eq__, "only with --order community")
    scores = None
    if order == "frequency":
        # On demand: torch and the kernels take longer to load than --help may.
        from gnnstore.tools.batches import count_batches  # noqa: PLC0415

        scores = count_batches(
            session,
            arguments["store"],
            batches,
            memory_bytes=arguments["memory_bytes"],
        )
    if estimate:
        from gnnstore.tools.batches import estimate_order  # noqa: PLC0415

        edge_ids = arguments["edge_ids"] is not False
        return estimate_order(session, arguments["store"], order, scores, edge_ids)
    return convert(session, reorder, scores=scores, **arguments)


_PARTITION_HELP = """Write a partitioned copy of the nodes and edges of STORE.

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
        raise click.BadParameter(f"{text!r} is not a number of partitions, nor 'auto'") from None


@click.command(name="partition", cls=Command, help=_PARTITION_HELP)
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
  --memory BUDGET -> memory_bytes
      Memory budget: bytes, or a share of what topology and attributes take. Default: what is
      available.
  --seed N>=0 = 0  Seed of the order of nodes.
  --estimate  Print sizes, disk and time, and write nothing.
  --overwrite  Replace partitions when the new ones are complete.
  --resume  Continue an interrupted attempt.
""")
@cache_option
@session_options
def partition_command(session: Session, store: str, **options: Any) -> None:
    """Partition the store and print a summary."""
    from gnnstore.tools.partitions import partition_store  # noqa: PLC0415 - not for --help

    partition_store(session, store, **options)


_ASSIGN_HELP = """Divide the seed nodes of STORE into parts whose neighbourhoods overlap (PaGraph).

With NeighborLoader(..., seeds_of=NAME), batch n of an epoch has seeds of part n mod K, so that each
of K ranks has the batches of one part. Where the graph has communities, such a batch has fewer
distinct nodes, and a rank needs fewer rows; on graphs with power-law degrees the difference is
small. Parts have equally many seeds, but for one.

Seed after seed, as the split lists them, joins the part whose seeds it has most of in its
neighbourhood of L hops, compared with the part's size. A neighbourhood has all in-neighbours of a
node if there are at most 64, and else as many, drawn by --seed. Give the hops of training; three or
more reach most of many graphs, and take long: see --estimate.

The assignment is assignments/NAME in the store, two bytes a seed. The rest of the store stays as it
is.

With --closure full, each part is also written as a store of its own, --output DIR/part-P.gnn, for
machines that have no room for the whole: its seeds, all nodes within L hops of a seed, and their
edges and rows. A loader on it has the batches that one on the whole store has for the same seeds,
with its own node ids; store.whole_ids leads back. Such stores are not for inference, links or
further conversions.

\b
Examples:
  gnnstore assign papers100M.gnn --parts 8 --hops 2
  gnnstore assign g.gnn --parts 8 --hops 2 --closure full --output parts
  gnnstore assign papers100M.gnn --parts 8 --hops 3 --estimate
  gnnstore assign mag.gnn --parts 4 --hops 2 --split paper:train
"""


@click.command(name="assign", cls=Command, help=_ASSIGN_HELP)
@click.argument("store", type=click.Path())
@click.option("--parts", type=int, required=True, metavar="K", help="Number of parts.")
@click.option("--hops", type=int, required=True, metavar="L", help="Hops of a neighbourhood.")
@declared("""
  --split SPLIT
      The seeds: a split, or "all" for every node. Default: train. If nodes have types: TYPE:SPLIT,
      or several of these with commas.
  --name NAME  Name of the assignment in the store. Default: such as parts-8.
  --closure none|full = none
      full: write each part as a store. An assignment that is there with these options is used.
  --output DIR  Directory of the stores of parts.
  --memory MEMORY  Memory budget. Default: what is available.
  --seed N>=0 = 0  Seed of drawn in-neighbours.
  --threads N>=1  Threads that sample. Default: all processors.
  --estimate  Assign a sample of the seeds, print time and memory of all, and write nothing.
  --overwrite  Replace an assignment, and stores of parts, when the new ones are complete.
  --resume  Go on with stores of parts that an interrupted attempt has left.
""")
@cache_option
@session_options
def assign_command(session: Session, store: str, **options: Any) -> None:
    """Assign the seeds and print a summary."""
    from gnnstore.tools.assign import assign_seeds  # noqa: PLC0415 - not for --help

    assign_seeds(session, store, **options)
