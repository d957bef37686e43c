"""`gnnstore predict`: predict epochs; `gnnstore pack`: sample and pack them ahead of training."""

from __future__ import annotations

from typing import Any

import click

from gnnstore.caching.scores import SCORES
from gnnstore.errors import UsageError
from gnnstore.strategies.options import TOPOLOGIES
from gnnstore.strategies.registry import PACKED, auto
from gnnstore.tools.options import (
    NAMES,
    Command,
    Parsed,
    batch_options,
    cache_option,
    declared,
    parse_share_or_size,
    plot_option,
    refuse_given,
    session_options,
)
from gnnstore.tools.session import Session
from gnnstore.units import parse_share, parse_size

_PREDICT_HELP = """Predict epoch times and cache misses for training on STORE.

Predicts the epoch of each loader strategy within --memory and --disk: time, reads and bytes, memory
and disk, and the slowest stage. Marks the choice of strategy="auto". A disk that has not been
measured is measured first, for three seconds; an earlier measurement is checked.

With --caches, also simulates cache policies on the first batches of an epoch: static ones by
out-degree and by frequency in sampled batches, which are filled beforehand, and all others, which
start empty. Belady's sees future batches and has the fewest misses of these.

With --partitions, compares orders of training by partitions of the graph instead (MariusGNN): how
many partitions --memory allows in the buffer, how often an epoch reads all rows, and how far its
order is from a shuffle of all edges. Loaders do this with partitions=.

\b
Examples:
  gnnstore predict papers100M.gnn --memory 16GB --disk 100GB
  gnnstore predict papers100M.gnn --num-neighbors 15,10 \\
    --cache-bytes 4GiB,16GiB --batches 200
  gnnstore predict papers100M.gnn --plot misses.png
  gnnstore predict freebase.gnn --partitions edges --memory 8GB \\
    --embedding-dim 100
"""


_OF_PARTITIONS = {"store", "partitions", "embedding_dim", "memory_bytes"}


def _parse_candidates(text: str, _: str) -> tuple[str, ...]:
    """Return the names of candidates in their usual order."""
    named, known = {part.strip() for part in text.split(",")}, auto().by_choice
    if unknown := sorted(named - known.keys()):
        raise UsageError(
            f"{', '.join(unknown)!r} is not a strategy that can be predicted; choose some of "
            f"{', '.join(known)}"
        )
    chosen = {known[name].choice for name in named}
    return tuple(name for name in known if name in chosen)


def _check_size(text: str, name: str) -> str:
    """Return a size as it is: with --ray it is not of this machine, whose container may be less."""
    if parse_share(text, name=name) is None:
        parse_size(text, name=name)
    return text


def _parse_part(text: str, _: str) -> tuple[int, int]:
    """Return the number of a part and of all parts."""
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and int(of)):
        raise UsageError(f"{text!r} is not a part; write I/N, such as 0/8 for the first of 8")
    return int(number), int(of)


def _parse_caches(text: str, name: str) -> tuple[float | int, ...]:
    return tuple(parse_share_or_size(part.strip(), name) for part in text.split(","))


@click.command(name="predict", cls=Command, help=_PREDICT_HELP)
@click.argument("store", type=click.Path())
@batch_options
@declared(
    f"""
  --memory BUDGET -> memory_bytes
      Memory budget of a loader, as its memory=: bytes, or a share of what topology and attributes
      take. Default: what this machine has free.
  --disk SIZE -> disk_bytes
      Disk budget of a loader, as its disk=. Default: half of the free space.
  --device-cache SIZE
      Memory of a device for rows that stay there, as a loader's device_cache=: the rest is
      predicted, and what is copied to the device.
  --strategies NAME,NAME,...
      Strategies to predict: some of {", ".join(found.choice for found in auto().candidates)};
      packed-epochs is what gnnstore pack makes. Default: all.
  --batches N>=1 -> num_batches = 128
      Batches to sample, on which caches are simulated: at most an epoch.
  --caches  Also simulate cache policies, and print what they read; --plot implies it.
  --cache-bytes SIZE,SIZE,...
      With --caches, which it implies: cache sizes, as shares of the rows or as bytes. Default:
      5%,10%,20%; more with --plot.
  --partitions nodes|edges
      Compare buffers of partitions, to train on nodes or on edges, instead of strategies.
  --embedding-dim N>=1
      With --partitions: columns of trainable float32 embeddings, with row-wise Adagrad.
  --seed N>=0 = 0  Seed of the batches.
  --threads N>=1  Threads that sample. Default: all processors.
""",
    strategies=Parsed(_parse_candidates),
    cache_bytes=Parsed(_parse_caches),
)
@plot_option("Plot misses and predicted times.")
@cache_option
@session_options
def predict_command(
    session: Session,
    store: str,
    partitions: str | None,
    embedding_dim: int | None,
    **options: Any,
) -> int | None:
    """Sample, compare, plot, print, and return the exit status."""
    # On demand: torch and the kernels take longer to load than --help may.
    if partitions is not None:
        from gnnstore.tools.partitions import predict_partitions  # noqa: PLC0415

        refuse_given(
            lambda name: name not in _OF_PARTITIONS,
            "has no meaning with --partitions, which compares buffers of partitions; leave out one "
            "of the two",
        )
        predict_partitions(
            session,
            store,
            for_edges=partitions == "edges",
            embedding_dim=embedding_dim,
            memory=options["memory_bytes"],
        )
        return None
    if embedding_dim is not None:
        raise UsageError("--embedding-dim: only with --partitions; add --partitions edges or nodes")
    from gnnstore.tools.predict import predict_caches  # noqa: PLC0415

    return predict_caches(session, store, **options)


_CACHE_BY = (PACKED.policy, *SCORES)
_OF_LINKS = ("src_weight", "dst_weight", "edge_label", "edge_label_time", "edge_label_attrs")
_OF_SEEDS = ("input_time", *_OF_LINKS)

_PACK_HELP = """Sample and pack epochs of STORE, so that training reads only large chunks.

Samples every batch of the epochs, decides which rows to cache (Belady), and writes the rows that
each batch misses contiguously, together with its subgraph and attributes. A loader with
packed=NAME, or gnnstore.open_packed(PATH) on another machine, then reads the epoch
sequentially. An estimate of space and time, and of the alternatives, is printed before anything is
written. If that exceeds --disk, rows that several batches miss are stored once per segment of
batches, and each batch reads the rows of its segment that it needs.

Finished work survives a full disk, Ctrl-C or a crash; --resume continues it.

With --cache-by frequency or degree the cached rows are the same for all batches. Then several ranks
may read the epochs, and --part packs them in parts, on any machines and in any order.

\b
Examples:
  gnnstore pack papers100M.gnn --name base --epochs 10 --memory 8GB
  gnnstore pack papers100M.gnn --name base --epochs 10 --memory 8GB --resume
  gnnstore pack papers100M.gnn --output /fast/base --num-neighbors 15,10 \\
    --disk 2TB
  gnnstore pack papers100M.gnn --name base --estimate
  gnnstore pack papers100M.gnn --output /nfs/base --part 3/64 \\
    --cache-by frequency --cache-bytes 8GB
  gnnstore pack citation2.gnn --name links --links train --negatives binary:1
  gnnstore pack mag.gnn --name base --input-nodes paper:train \\
    --num-neighbors 10,10
"""


@click.command(name="pack", cls=Command, help=_PACK_HELP)
@click.argument("store", type=click.Path())
@declared(
    """
  --name NAME  Name of the packed epochs in the store.
  --output PATH  Directory of the packed epochs, outside the store, or a URL in a bucket.
  --part I/N
      Pack the I-th of N parts of the batches, from 0, into a directory of --output. Needs
      --cache-by frequency or degree, and --cache-bytes.
  --ray N>=1
      Pack in N parts as tasks on a Ray cluster, each with --memory and --threads.
""",
    part=Parsed(_parse_part),
)
@batch_options
@declared(
    f"""
  --epochs N>=1 = 1  Epochs to pack, from epoch 0 on.
Budgets
  --memory SIZE|N% -> memory
      Budget of packing, and of the cache and batches of training: bytes, or a share of what
      topology and attributes take.
  --cache-bytes SIZE  Size of the cache. Default: what --memory leaves.
  --device-cache SIZE  Memory of a device for rows that stay there while training.
  --cache-by {"|".join(_CACHE_BY)} -> cache = {PACKED.policy}  Policy that chooses the cached rows.
  --disk SIZE -> disk_bytes
      Disk budget of the packed epochs; if it is too small, batches share rows. Default: free space,
      and no sharing.
  --segment N>=1
      Batches that share rows on disk; 1: none do. Default: as few as --disk allows, 1 without
      --disk.
Batches
  --seed N>=0 = 0  Seed of sampling and shuffling.
  --shuffle/--no-shuffle = True  Shuffle the seeds in each epoch.
  --drop-last  Leave out a last batch that is not full.
  --replace  Sample neighbours with replacement.
  --subgraph-type directional|bidirectional|induced = directional
      Edges of a subgraph, as in PyG.
  --disjoint  One subgraph per seed.
  --input-time FILE.npy
      Times of the seed nodes, in place of their own. If these have several types:
      TYPE=FILE.npy,TYPE=FILE.npy.
Links to start from
  --src-weight FILE.npy  Weights [N] by which sources of negatives are drawn.
  --dst-weight FILE.npy  Weights [N] by which targets of negatives are drawn.
  --edge-label FILE.npy  Labels of the links, [L, ...]; of all edges, by edge id.
  --edge-label-time FILE.npy  Times of the links, [L]; of all edges, by edge id.
  --edge-label-attrs NAME,NAME,...  Attributes of the links to add to each batch.
Budgets
  --superbatch N>=1  Batches planned at a time. Default: as memory allows.
  --topology {"|".join(TOPOLOGIES)} = auto  Where the topology is held while packing.
  --spill-dir PATH  Directory for subgraphs that exceed memory. Default: the directory of the store.
  --threads N>=1  Threads. Default: all processors.
""",
    edge_label_attrs=NAMES,
    memory=Parsed(_check_size),
)
@declared("""
  --estimate  Print the estimate and write nothing.
  --overwrite  Replace packed epochs once the new ones are complete.
  --resume  Continue an interrupted attempt.
""")
@cache_option
@session_options
def pack_command(session: Session, store: str, **options: Any) -> None:
    """Estimate, pack, and print a summary."""
    # On demand: torch and the kernels take longer to load than --help may.
    from gnnstore.tools.batches import pack_epochs  # noqa: PLC0415

    pack_epochs(session, store, of_seeds={name: options.pop(name) for name in _OF_SEEDS}, **options)
