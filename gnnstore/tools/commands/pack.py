"""`gnnstore pack`: sample, plan and pack whole epochs ahead of training."""

from __future__ import annotations

from typing import Any

import click

from gnnstore.caching.scores import SCORES
from gnnstore.strategies.builtin import PACKED
from gnnstore.strategies.options import TOPOLOGIES
from gnnstore.tools.ui.help import Command
from gnnstore.tools.ui.options import NAMES, batch_options, declared, session_options
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
@declared("""
  --name NAME  Name of the packed epochs in the store.
  --output PATH  Directory of the packed epochs, outside the store.
""")
@batch_options
@declared(
    f"""
  --epochs N>=1 = 1  Epochs to pack, from epoch 0 on.
Budgets
  --memory MEMORY  Budget of packing, and of the cache and batches of training.
  --cache-bytes SIZE  Size of the cache. Default: what --memory leaves.
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
  --input-time FILE.npy  Times of the seed nodes, in place of their own.
Links to start from
  --src-weight FILE.npy  Weights [N] by which sources of negatives are drawn.
  --dst-weight FILE.npy  Weights [N] by which targets of negatives are drawn.
  --edge-label FILE.npy  Labels of the links, [L, ...]; of all edges, by edge id.
  --edge-label-time FILE.npy  Times of the links, [L]; of all edges, by edge id.
  --edge-label-attrs NAME,NAME,...  Attributes of the links to add to each batch.
Budgets
  --superbatch N>=1  Batches planned at a time. Default: as memory allows.
  --topology {"|".join(TOPOLOGIES)} = auto  Where the topology is held while packing.
  --spill-dir PATH  Directory for subgraphs that exceed memory. Default: that of the store.
  --threads N>=1  Threads. Default: all processors.
""",
    edge_label_attrs=NAMES,
)
@declared("""
  --estimate  Print the estimate and write nothing.
  --overwrite  Replace packed epochs once the new ones are complete.
  --resume  Continue an interrupted attempt.
""")
@session_options
def command(session: Session, store: str, **options: Any) -> None:
    """Estimate, pack, and print a summary."""
    # On demand: torch and the kernels take longer to load than --help may.
    from gnnstore.tools.predict.pack import pack_epochs  # noqa: PLC0415

    pack_epochs(session, store, of_seeds={name: options.pop(name) for name in _OF_SEEDS}, **options)
