"""`gnnstore pack`: sample, plan and pack whole epochs ahead of training."""

from __future__ import annotations

from typing import Any

import click

from gnnstore.caching.scores import SCORES
from gnnstore.strategies.builtin import PACKED
from gnnstore.strategies.predict.traits import TOPOLOGIES
from gnnstore.tools.ui.help import Command, section
from gnnstore.tools.ui.options import (
    MEMORY,
    SIZE,
    Parsed,
    batch_options,
    seed_option,
    session_options,
    threads_option,
)
from gnnstore.tools.ui.session import Session

_CACHE_BY = (PACKED.policy, *SCORES)
_OF_LINKS = ("src_weight", "dst_weight", "edge_label", "edge_label_time", "edge_label_attrs")
_OF_SEEDS = ("input_time", *_OF_LINKS)

_HELP = """Sample and pack epochs of STORE, so that training reads only large chunks.

Samples every batch of the epochs, decides which rows to cache (Belady), and writes the rows that
each batch misses contiguously, together with its subgraph and attributes. A loader with
packed=NAME, or gnnstore.open_packed(PATH) on another machine, then reads the epoch
sequentially. An estimate of space and time, and of the alternatives, is printed before anything is
written. If that exceeds --disk, rows that several batches miss are stored once per segment of
batches, and each batch reads the rows of its segment that it needs.

Finished work survives a full disk, Ctrl-C or a crash; --resume continues it.

\b
Examples:
  gnnstore pack papers100M.gnn --name base --epochs 10 --memory 8GB
  gnnstore pack papers100M.gnn --name base --epochs 10 --memory 8GB --resume
  gnnstore pack papers100M.gnn --output /fast/base --num-neighbors 15,10 \\
    --disk 2TB
  gnnstore pack papers100M.gnn --name base --estimate
  gnnstore pack citation2.gnn --name links --links train --negatives binary:1
  gnnstore pack mag.gnn --name base --input-nodes paper:train \\
    --num-neighbors 10,10
"""


@click.command(name="pack", cls=Command, help=_HELP)
@click.argument("store", type=click.Path())
@click.option("--name", help="Name of the packed epochs in the store.")
@click.option(
    "--output", type=click.Path(), help="Directory of the packed epochs, outside the store."
)
@batch_options
@click.option(
    "--epochs", type=click.IntRange(min=1), default=1, help="Epochs to pack, from epoch 0 on."
)
@section(
    "Budgets",
    click.option(
        "--memory",
        type=MEMORY,
        metavar="SIZE",
        help="Budget of packing, and of the cache and batches of training.",
    ),
    click.option(
        "--cache-bytes", type=SIZE, help="Size of the cache. Default: what --memory leaves."
    ),
    click.option(
        "--cache-by",
        "cache",
        type=click.Choice(_CACHE_BY),
        default=PACKED.policy,
        help="Policy that chooses the cached rows.",
    ),
    click.option(
        "--disk",
        "disk_bytes",
        type=SIZE,
        help="Disk budget of the packed epochs; if it is too small, batches share rows. Default: "
        "free space, and no sharing.",
    ),
    click.option(
        "--segment",
        type=click.IntRange(min=1),
        help="Batches that share rows on disk; 1: none do. Default: as few as --disk allows, 1 "
        "without --disk.",
    ),
)
@section(
    "Batches",
    seed_option("Seed of sampling and shuffling."),
    click.option("--shuffle/--no-shuffle", default=True, help="Shuffle the seeds in each epoch."),
    click.option("--drop-last", is_flag=True, help="Leave out a last batch that is not full."),
    click.option("--replace", is_flag=True, help="Sample neighbours with replacement."),
    click.option(
        "--subgraph-type",
        type=click.Choice(("directional", "bidirectional", "induced")),
        default="directional",
        help="Edges of a subgraph, as in PyG.",
    ),
    click.option("--disjoint", is_flag=True, help="One subgraph per seed."),
    click.option(
        "--input-time",
        type=click.Path(),
        metavar="FILE.npy",
        help="Times of the seed nodes, in place of their own.",
    ),
)
@section(
    "Links to start from",
    click.option(
        "--src-weight",
        type=click.Path(),
        metavar="FILE.npy",
        help="Weights [N] by which sources of negatives are drawn.",
    ),
    click.option(
        "--dst-weight",
        type=click.Path(),
        metavar="FILE.npy",
        help="Weights [N] by which targets of negatives are drawn.",
    ),
    click.option(
        "--edge-label",
        type=click.Path(),
        metavar="FILE.npy",
        help="Labels of the links, [L, ...]; of all edges, by edge id.",
    ),
    click.option(
        "--edge-label-time",
        type=click.Path(),
        metavar="FILE.npy",
        help="Times of the links, [L]; of all edges, by edge id.",
    ),
    click.option(
        "--edge-label-attrs",
        type=Parsed("names", lambda text, _: tuple(name.strip() for name in text.split(","))),
        metavar="NAME,NAME,...",
        help="Attributes of the links to add to each batch.",
    ),
)
@section(
    "Budgets",
    click.option(
        "--superbatch",
        type=click.IntRange(min=1),
        help="Batches planned at a time. Default: as memory allows.",
    ),
    click.option(
        "--topology",
        type=click.Choice(TOPOLOGIES),
        default="auto",
        help="Where the topology is held while packing.",
    ),
    click.option(
        "--spill-dir",
        type=click.Path(),
        help="Directory for subgraphs that exceed memory. Default: that of the store.",
    ),
    threads_option("Threads. Default: all processors."),
)
@click.option("--estimate", is_flag=True, help="Print the estimate and write nothing.")
@click.option(
    "--overwrite", is_flag=True, help="Replace packed epochs once the new ones are complete."
)
@click.option("--resume", is_flag=True, help="Continue an interrupted attempt.")
@session_options
def command(session: Session, store: str, **options: Any) -> None:
    """Estimate, pack, and print a summary."""
    # On demand: torch and the kernels take longer to load than --help may.
    from gnnstore.tools.predict.pack import pack_epochs  # noqa: PLC0415

    pack_epochs(session, store, of_seeds={name: options.pop(name) for name in _OF_SEEDS}, **options)
