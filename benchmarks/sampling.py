"""Sampling neighbours from a topology in memory: gnnstore, random reads and its peers.

Workload W: an R-MAT graph with Graph500's parameters, 2^24 nodes and 15 edges a node, ids
permuted; batches of 1,024 random nodes, fan-out 10, 10, 10, with edge ids.

The bars are 9 ms a batch on one thread, and 1.7 times as fast on two. The yardstick is how fast a
plain loop reads single elements of `indices` at random: a batch needs at least one such read for
each of its edges. GraphBolt, and the samplers of PyG's own loader, torch-sparse and pyg-lib, are
timed too where they are installed (`make bench-peers`), one thread each, in a process of their own.
Run `python -m benchmarks.sampling`; with `--cache DIR` the graph is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import Timing, parser, report, time_in_turns
from benchmarks.parts.peers import Peer, missing, peers_of
from gnnstore import _core
from gnnstore.formats.store.store import Csc
from gnnstore.sampling.neighbor import NeighborSampler, Sample, SamplingConfig

GRAPH500 = (0.57, 0.19, 0.19, 0.05)
FANOUTS, SEEDS_PER_BATCH = (10, 10, 10), 1024
SAMPLERS = ("GraphBolt", "torch-sparse", "pyg-lib")
BAR_MILLISECONDS, BAR_TWO_THREADS = 9.0, 1.7
NUM_READS = 1 << 20
# A round of one thread and its round of two stand close together, so that other work on the
# machine disturbs both alike.
ROUND_BATCHES = 32
EDGES_PER_CHUNK = 1 << 22


def make_graph(scale: int, edge_factor: int, num_threads: int) -> Csc:
    """Draw the graph and sort its edges by target; ids are int32, as a store keeps them."""
    num_nodes, num_edges = 1 << scale, edge_factor << scale
    probabilities = np.tile(GRAPH500, (scale, 1))
    src, dst = np.empty(num_edges, np.int32), np.empty(num_edges, np.int32)
    for first in range(0, num_edges, EDGES_PER_CHUNK):
        count = min(EDGES_PER_CHUNK, num_edges - first)
        ends = _core.rmat_edges(first, count, scale, probabilities, 0, num_threads)
        for column, ids in zip((src, dst), ends, strict=True):
            permuted = _core.permute_ids(ids, scale, 0, num_threads=num_threads)
            column[first : first + count] = permuted
    indptr, indices, _ = _core.csc_from_coo(src, dst, num_nodes, num_threads, with_edge_id=False)
    return Csc(indptr, indices, num_nodes)


def on_huge_pages(path: Path) -> NDArray[Any]:
    """Read an array into a buffer of the library's pool, where a loader would have it."""
    stored = np.load(path, mmap_mode="r", allow_pickle=False)
    array: NDArray[Any] = _core.pool_empty(stored.nbytes).view(stored.dtype)
    array[:] = stored
    return array


def cached_graph(cache: Path | None, scale: int, edge_factor: int, num_threads: int) -> Csc:
    """Return the graph, from a directory if it has been made there before."""
    if cache is None:
        return make_graph(scale, edge_factor, num_threads)
    paths = [cache / f"rmat-{scale}-{edge_factor}-{name}.npy" for name in ("indptr", "indices")]
    if not all(path.exists() for path in paths):
        cache.mkdir(parents=True, exist_ok=True)
        csc = make_graph(scale, edge_factor, num_threads)
        for path, array in zip(paths, (csc.indptr, csc.indices), strict=True):
            np.save(path, array)
        return csc
    return Csc(on_huge_pages(paths[0]), on_huge_pages(paths[1]), 1 << scale)


def time_each(pieces: Iterable[Callable[[], object]]) -> Timing:
    """Time some pieces of work, one after the other."""
    seconds = []
    for work in pieces:
        start = perf_counter()
        result = work()
        seconds.append(perf_counter() - start)
        del result
    return Timing(tuple(seconds))


def main() -> None:
    """Time batches, threads, reads and peers, and print times and ratios."""
    options = parser(__doc__)
    options.set_defaults(repeats=15)
    options.add_argument("--scale", type=int, help="2^scale nodes (24; 18 if --quick)")
    options.add_argument("--edge-factor", type=int, default=15, help="edges a node (15)")
    options.add_argument("--batches", type=int, default=163, help="batches in all (163)")
    options.add_argument("--peer-batches", type=int, default=10, help="batches of a peer (10)")
    options.add_argument("--cache", type=Path, help="directory that keeps the graph")
    args = options.parse_args()
    scale = args.scale or (18 if args.quick else 24)
    torch.set_num_threads(1)

    csc = cached_graph(args.cache, scale, args.edge_factor, num_threads=2)
    rng = np.random.default_rng(1)
    seeds = rng.integers(0, csc.num_nodes, (args.batches, SEEDS_PER_BATCH))
    sampler = NeighborSampler(csc, SamplingConfig(FANOUTS))

    def sample(batch: int) -> Sample:
        return sampler.sample(seeds[batch], epoch=0, batch=batch)

    def sizes(batch: int) -> tuple[int, int]:
        subgraph = sample(batch)
        return len(subgraph.n_id), len(subgraph.edge_pos)

    num_nodes, num_edges = (float(n) for n in np.mean([sizes(b) for b in range(args.batches)], 0))

    # Every round reads elsewhere: a large third-level cache would serve what was read before.
    positions = iter(rng.integers(0, csc.num_edges, (args.repeats + 1, NUM_READS)))

    def sample_all(num_threads: int) -> None:
        with ThreadPoolExecutor(num_threads) as pool:
            for _ in pool.map(sizes, range(min(ROUND_BATCHES, args.batches))):
                pass

    one, two, reads = "a round, one thread", "a round, two threads", "random reads"
    timings = time_in_turns(
        {
            one: lambda: sample_all(1),
            two: lambda: sample_all(2),
            reads: lambda: _core.random_reads(csc.indices.view(np.int32), next(positions)),
        },
        args.repeats,
    )
    batches = time_each(partial(sample, batch) for batch in range(args.batches))

    per_second = NUM_READS / timings[reads].median
    yardstick = num_edges / per_second
    speedups = [a / b for a, b in zip(timings[one].seconds, timings[two].seconds, strict=True)]
    speedup = float(np.median(speedups))
    fast = "reached" if 1e3 * batches.median <= BAR_MILLISECONDS else "MISSED"
    scales = "reached" if speedup >= BAR_TWO_THREADS else "MISSED"
    spread = f"[{min(speedups):.2f}, {max(speedups):.2f}]"
    rows = [
        ("a batch", f"{num_nodes:,.0f} nodes, {num_edges:,.0f} edges"),
        ("gnnstore, one thread", f"{batches.milliseconds()} a batch"),
        ("two threads", f"{speedup:.2f} x one thread {spread}"),
        ("random 4-byte reads of indices", f"{per_second / 1e6:.1f} million a second"),
        ("as many reads as edges", f"{1e3 * yardstick:.2f} ms"),
        ("a batch, in units of these", f"{batches.median / yardstick:.2f}"),
    ]
    if scale == 24:
        rows.append((f"the bar of {BAR_MILLISECONDS:.0f} ms", fast))
        rows.append((f"the bar of {BAR_TWO_THREADS} x with two threads", scales))
    times = {"gnnstore, one thread": batches, **timings}
    arrays = {"indptr": csc.indptr, "indices": csc.indices, "seeds": seeds}
    for name in peers_of(*SAMPLERS):
        with Peer(name, "sample", arrays, fanouts=FANOUTS, batch_size=SEEDS_PER_BATCH) as peer:
            # Not the first batch: it warms up.
            _, *found = peer.batches(min(args.peer_batches + 1, args.batches))
        times[name] = Timing(tuple(batch[0] for batch in found))
        ratio = times[name].median / batches.median
        rows.append((name, f"{times[name].milliseconds()} a batch; {ratio:.1f} x gnnstore's time"))
    rows += missing(*SAMPLERS)
    title = f"sample from R-MAT, 2^{scale} nodes, {csc.num_edges:,} edges, in memory"
    report(
        title,
        rows,
        as_json=args.json,
        timings=times,
        nodes_per_batch=num_nodes,
        edges_per_batch=num_edges,
        milliseconds_per_batch=1e3 * batches.median,
        two_threads=speedup,
        reads_per_second=per_second,
        reads_ratio=batches.median / yardstick,
    )


if __name__ == "__main__":
    main()
