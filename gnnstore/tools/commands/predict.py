"""`gnnstore predict`: predict epoch times by strategy, and misses by cache policy and size."""

from __future__ import annotations

from typing import Any

import click

from gnnstore.errors import UsageError
from gnnstore.strategies.builtin import auto
from gnnstore.tools.ui.help import Command
from gnnstore.tools.ui.options import (
    Parsed,
    batch_options,
    declared,
    parse_share_or_size,
    plot_option,
    refuse_given,
    session_options,
)
from gnnstore.tools.ui.session import Session

_HELP = """Predict epoch times and cache misses for training on STORE.

Predicts the epoch of each loader strategy within --memory and --disk: time, reads and bytes, memory
and disk, and the slowest stage. Marks the choice of strategy="auto". A disk that has not been
measured is measured first, for three seconds; an earlier measurement is checked.

Then samples the first batches of an epoch, as a loader would, and simulates cache policies on them:
static ones by out-degree and by frequency in sampled batches, which are filled beforehand, and all
others, which start empty. Of these, Belady's knows future batches and has the fewest misses.

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


def _parse_caches(text: str, name: str) -> tuple[float | int, ...]:
    return tuple(parse_share_or_size(part.strip(), name) for part in text.split(","))


@click.command(name="predict", cls=Command, help=_HELP)
@click.argument("store", type=click.Path())
@batch_options
@declared(
    f"""
  --memory MEMORY -> memory_bytes
      Memory budget of a loader, as its memory=. Default: what this machine has free.
  --disk SIZE -> disk_bytes
      Disk budget of a loader, as its disk=. Default: half of the free space.
  --strategies NAME,NAME,...
      Strategies to predict: some of {", ".join(found.choice for found in auto().candidates)};
      packed-epochs is what gnnstore pack makes. Default: all.
  --batches N>=1 -> num_batches = 128
      Batches that caches are simulated on: at most an epoch.
  --cache-bytes SIZE,SIZE,... -> caches
      Cache sizes: shares of the rows, or bytes. Default: 5%,10%,20%; more with --plot.
  --partitions nodes|edges
      Compare buffers of partitions, to train on nodes or on edges, instead of strategies.
  --embedding-dim N>=1
      With --partitions: columns of trainable float32 embeddings, with row-wise Adagrad.
  --seed N>=0 = 0  Seed of the batches.
  --threads N>=1  Threads that sample. Default: all processors.
""",
    strategies=Parsed(_parse_candidates),
    caches=Parsed(_parse_caches),
)
@plot_option("Plot misses and predicted times.")
@session_options
def command(
    session: Session,
    store: str,
    partitions: str | None,
    embedding_dim: int | None,
    **options: Any,
) -> int | None:
    """Sample, compare, plot, print, and return the exit status."""
    # On demand: torch and the kernels take longer to load than --help may.
    if partitions is not None:
        from gnnstore.tools.predict.partitions import predict_partitions  # noqa: PLC0415

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
            memory_bytes=options["memory_bytes"],
        )
        return None
    if embedding_dim is not None:
        raise UsageError("--embedding-dim: only with --partitions; add --partitions edges or nodes")
    from gnnstore.tools.predict.caches import predict_caches  # noqa: PLC0415

    return predict_caches(session, store, **options)
