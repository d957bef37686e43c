"""`gnnstore pack`: sample, plan and pack whole epochs ahead of training."""

from __future__ import annotations

from typing import Any

import click

from gnnstore.strategies.builtin import PACKED, STATIC
from gnnstore.tools.ui.batch_options import batch_options
from gnnstore.tools.ui.options import MEMORY, SIZE, session_options
from gnnstore.tools.ui.session import Session

_CACHED_BY = (PACKED.policy, *STATIC.scores)
# As of a loader; not imported, since that costs more than --help may.
_COMPRESS = ("none", "lz4", "zstd", "auto")
_TOPOLOGIES = ("auto", "memory", "mmap", "disk")

_HELP = """Sample and pack epochs of STORE, so that training reads nothing but large runs.

Samples every batch of the epochs, decides which rows to cache (Belady), and writes the rows that
each batch misses one behind the other, together with its subgraph and all else that it shows. A
loader with plan=NAME, or gnnstore.open_plan(PATH) on another machine, then reads in order what
training needs. Says what it will take before anything is written, beside the alternatives.
Where --disk has no room for that, rows that several batches miss are written once for a segment
of so many batches as it takes, and read from among others.

What is finished survives a full disk, Ctrl-C or a crash; --resume goes on there.

\b
Examples:
  gnnstore pack papers100M.gnn --name base --epochs 10 --memory 8GB
  gnnstore pack papers100M.gnn --name base --epochs 10 --memory 8GB --resume
  gnnstore pack papers100M.gnn --output /fast/base --num-neighbors 15,10 --disk 2TB
  gnnstore pack papers100M.gnn --name base --dry-run
"""


@click.command(name="pack", help=_HELP)
@click.argument("store", type=click.Path())
@click.option("--name", help="Name of the plan in the store.")
@click.option("--output", type=click.Path(), help="A directory to make instead, anywhere.")
@batch_options
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Epochs to pack, from epoch 0 on.",
)
@click.option(
    "--memory",
    type=MEMORY,
    metavar="SIZE",
    help="Budget for packing, and for the cache and batches of training.",
)
@click.option("--cache", "cache_bytes", type=SIZE, help="Cached rows; default: what memory leaves.")
@click.option(
    "--cached-by",
    "cache",
    type=click.Choice(_CACHED_BY),
    default="belady",
    show_default=True,
    help="What decides which rows are cached.",
)
@click.option(
    "--disk",
    "disk_bytes",
    type=SIZE,
    help="The most that the plan may take; batches share rows where that is too little.",
)
@click.option(
    "--segment",
    type=click.IntRange(min=1),
    help="Batches that share rows on disk; default: what --disk asks for, 1 without it.",
)
@click.option(
    "--compress",
    type=click.Choice(_COMPRESS),
    default="none",
    show_default=True,
    help="Compress packed rows; auto: if a sample says that it pays.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--shuffle/--no-shuffle",
    default=True,
    help="Whether each epoch has an order of its own; by default it has.",
)
@click.option("--drop-last", is_flag=True, help="Leave out a last batch that is not full.")
@click.option("--replace", is_flag=True, help="Sample neighbours with replacement.")
@click.option(
    "--subgraph-type",
    type=click.Choice(("directional", "bidirectional", "induced")),
    default="directional",
    show_default=True,
)
@click.option("--disjoint", is_flag=True, help="One subgraph per seed.")
@click.option(
    "--superbatch",
    type=click.IntRange(min=1),
    help="Batches planned at a time; default: what memory allows.",
)
@click.option(
    "--topology",
    type=click.Choice(_TOPOLOGIES),
    default="auto",
    show_default=True,
    help="Where the graph lies while it is packed.",
)
@click.option(
    "--tmpdir",
    type=click.Path(),
    help="For subgraphs that memory has no room for; default: beside the store.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads; default: all processors.")
@click.option("--dry-run", is_flag=True, help="Say what it would take, and write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace a plan, once the new one is complete.")
@click.option("--resume", is_flag=True, help="Go on where an interrupted attempt stopped.")
@session_options
def command(session: Session, store: str, **options: Any) -> None:
    """Estimate, pack, and print what was made."""
    # On demand: torch and the kernels take longer to load than --help may.
    from gnnstore.tools.plan.pack import pack_plan  # noqa: PLC0415

    pack_plan(session, store, **options)
