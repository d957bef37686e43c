"""Seeds by part (PaGraph's partition): time, memory, and the rows that batches and ranks need.

Two graphs: one of communities, whose nodes have most of their in-neighbours in their own, and an
R-MAT graph with Graph500's parameters. Their training nodes are assigned to as many parts as there
are ranks (`gnnstore assign`), and an epoch is sampled with `seeds_of=` and without. Compared, over
all ranks:

- distinct rows of a batch, on average, and the sum over the batches of an epoch;
- distinct rows that a rank needs in an epoch, as a share of those that all need together;

and of assigning: seconds, and the most memory beyond the topology. Batches are sampled, and no rows
are read.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import gnnstore
from benchmarks.harness import directory_of, parser, report
from benchmarks.parts.workloads import make_store
from gnnstore.formats.assignments import ASSIGNMENTS, AssignmentWriter
from gnnstore.formats.store.units import units_directory
from gnnstore.partitions.assign import Assigning, assignment_path
from gnnstore.progress import NullProgress
from gnnstore.seeds.nodes import resolve_input_nodes
from gnnstore.testing.graphs import write_store

COMMUNITIES, INNER_SHARE, DEGREE, TRAIN_SHARE = 40, 0.95, 10, 0.1
FANOUTS, BATCH_SIZE, HOPS = [10, 10], 256, 2


def community_store(directory: Path, num_nodes: int) -> Path:
    """Return the store of a graph of communities, with ids that are drawn at random."""
    path = directory / f"communities-{num_nodes}.gnn"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    of = rng.integers(0, COMMUNITIES, num_nodes)
    order = np.argsort(of, kind="stable")
    firsts = np.searchsorted(of[order], np.arange(COMMUNITIES + 1))
    targets = np.repeat(np.arange(num_nodes), DEGREE)
    first, end = firsts[of[targets]], firsts[of[targets] + 1]
    inner = order[first + (rng.random(len(targets)) * (end - first)).astype(np.int64)]
    is_inner = rng.random(len(targets)) < INNER_SHARE
    sources = np.where(is_inner, inner, rng.integers(0, num_nodes, len(targets)))
    train = np.sort(rng.permutation(num_nodes)[: int(TRAIN_SHARE * num_nodes)])
    edges = np.stack([sources, targets])
    return write_store(path, edges, num_nodes=num_nodes, splits={"train": train})


def memory_of(field: str) -> int:
    """Return a size of this process, in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def assigned(path: Path, num_parts: int, *, repeats: int) -> dict[str, Any]:
    """Assign the training nodes, and return how long it took and the memory."""
    store = gnnstore.open(path)
    seeds = resolve_input_nodes(store, "train")
    work = Assigning(store, seeds, num_parts, HOPS, num_threads=len(os.sched_getaffinity(0)))
    topology, bulk_bytes = work.open()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before, seconds = memory_of("VmRSS"), []
    for _ in range(repeats):
        began, on_processors = time.perf_counter(), time.process_time()
        parts, part_nodes = work.run(topology, bulk_bytes, NullProgress())
        seconds.append((time.perf_counter() - began, time.process_time() - on_processors))
    peak = memory_of("VmHWM") - before
    final = assignment_path(store, num_parts, None)
    with (
        units_directory(ASSIGNMENTS, path, is_needed=True),
        AssignmentWriter(final, overwrite=True) as writer,
    ):
        writer.commit(parts, part_nodes=tuple(part_nodes), **work.facts("train"))
    least, processors = min(seconds)
    return {
        "seeds": len(seeds),
        "seconds": least,
        "processor_seconds": processors,
        "memory_bytes": peak,
    }


def ranks_of(path: Path, num_ranks: int, **options: Any) -> Iterator[gnnstore.NeighborLoader]:
    """Yield the loader of each rank."""
    for rank in range(num_ranks):
        yield gnnstore.NeighborLoader(
            path,
            FANOUTS,
            "train",
            batch_size=BATCH_SIZE,
            shuffle=True,
            seed=0,
            rank=rank,
            world_size=num_ranks,
            local_world_size=1,
            edge_ids=None,
            attributes=[],
            **options,
        )


def rows_of(path: Path, num_ranks: int, **options: Any) -> dict[str, float]:
    """Return the rows that batches and ranks need in an epoch."""
    num_nodes = gnnstore.open(path).num_nodes
    of_batches: list[int] = []
    of_ranks, of_all = [], np.zeros(num_nodes, np.bool_)
    for loader in ranks_of(path, num_ranks, **options):
        needed = np.zeros(num_nodes, np.bool_)
        for batch in loader:
            of_batches.append(len(batch.n_id))
            needed[batch.n_id.numpy()] = True
        of_ranks.append(int(needed.sum()))
        of_all |= needed
    return {
        "batch": fmean(of_batches),
        "epoch": sum(of_batches),
        "rank": fmean(of_ranks),
        "rank_share": fmean(of_ranks) / int(of_all.sum()),
    }


def compare(arguments: argparse.Namespace, directory: Path) -> None:
    """Assign both graphs, sample an epoch of each in both ways, and print."""
    directory.mkdir(parents=True, exist_ok=True)
    num_nodes, num_parts = arguments.nodes, arguments.ranks
    graphs = {
        f"{COMMUNITIES} communities, {num_nodes:,} nodes, {INNER_SHARE:.0%} inner edges": (
            community_store(directory, num_nodes)
        ),
        f"R-MAT 2^{arguments.scale}": make_store(directory, arguments.scale, feature_dim=0),
    }
    rows, found = [], {}
    for name, path in graphs.items():
        made = assigned(path, num_parts, repeats=arguments.repeats)
        dealt = rows_of(path, num_parts)
        parts = rows_of(path, num_parts, seeds_of=f"parts-{num_parts}")
        found[name] = {"assign": made, "dealt": dealt, "by_part": parts}
        text = (
            f"{made['seeds']:,} seeds to {num_parts} parts in {made['seconds']:.1f} s "
            f"({1e3 * made['seconds'] / made['seeds']:.3f} ms each), "
            f"{made['processor_seconds']:.1f} s of processors, "
            f"{made['memory_bytes'] / 1e6:.0f} MB beyond the topology"
        )
        rows.append((name, text))
        for what, of in (
            ("a batch", "batch"),
            ("an epoch, all ranks", "epoch"),
            ("a rank", "rank"),
        ):
            ratio = parts[of] / dealt[of]
            rows.append(
                (
                    f"  rows of {what}",
                    f"{parts[of]:,.0f} by part, {dealt[of]:,.0f} dealt: {ratio:.2f}",
                )
            )
        shares = f"{parts['rank_share']:.0%} by part, {dealt['rank_share']:.0%} dealt"
        rows.append(("  share of all needed rows that a rank needs", shares))
    title = f"seeds by part: {num_parts} ranks, batches of {BATCH_SIZE}, fan-outs {FANOUTS}"
    report(title, rows, as_json=arguments.json, graphs=found)


def main() -> None:
    """Read the options and compare."""
    options = parser(__doc__)
    options.set_defaults(repeats=1)
    options.add_argument("--scale", type=int, default=22, help="2^scale nodes of R-MAT (22)")
    options.add_argument("--nodes", type=int, default=400_000, help="of communities (400000)")
    options.add_argument("--ranks", type=int, default=8, help="and parts (8)")
    options.add_argument("--cache", type=Path, help="directory that keeps the stores")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.scale, arguments.nodes = 14, 20_000
    with directory_of(arguments) as directory:
        compare(arguments, directory)


if __name__ == "__main__":
    main()
