"""The ways of `gnnstore bench load` to load batches, and peers' loaders.

`benchmarks.out_of_core` starts this with a `Task`, in a process of its own under a memory
limit; it prints one outcome, as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.parts.peers import Peer, files_of
from gnnstore.tools.bench import worker as load_worker
from gnnstore.tools.bench.harness import Way, ways
from gnnstore.tools.bench.worker import ALLOWANCE_BYTES, Run, loader_batches

PEERS = {"pyg": "torch-sparse", "graphbolt": "GraphBolt"}
WAYS = {**ways(), **dict.fromkeys(PEERS, Way(is_compared=False, is_even=True))}


def peer_batches(run: Run) -> Iterator[int]:
    """Yield the batches of a peer over a mapping of the features, its structure in memory.

    Its process is in the memory group as well, and its copy of the structure is part of what it
    needs; what it reads from the disk is not counted.
    """
    task = run.task
    columns = run.topology.columns()
    arrays = {"indptr": columns.indptr, "indices": columns.indices, "seeds": run.seeds}
    arrays |= {"x": files_of(run.features[0]), "y": run.store.labels.numpy()}
    options = {"fanouts": task.fanouts, "batch_size": task.batch_size, "is_mapped": True}
    with Peer(PEERS[task.strategy], "load", arrays, **options) as peer:
        run.limit()
        for _, _, num_nodes in peer.batches(task.warm_up + task.batches):
            yield num_nodes


def prepare(run: Run) -> load_worker.Prepared:
    """Return the batches of a strategy, under the limit."""
    if run.task.packed:
        run.limit()
        # Neither the structure nor the labels are the loader's: those are packed.
        memory = run.room_bytes - ALLOWANCE_BYTES
        followed = run.loader(packed=run.task.packed, topology="auto", memory=memory)
        return loader_batches(followed), followed
    if run.task.strategy in PEERS:
        return peer_batches(run), None
    return load_worker.prepare(run)


if __name__ == "__main__":
    sys.exit(load_worker.work(prepare))
