"""Batches of a graph of three node types: from disk with a tenth of the features, and in memory.

M is like MAG240M, at a size that `--papers` sets: papers with 768 float16 features, half as many
authors and a hundredth as many institutions without any; papers cite papers, authors write papers
and have institutions, and each edge type has its reverse. Unlike MAG240M's, edges have times and
weights, which batches have too: `packed` and `belady` read them in passes. As in MAG, a few papers
are cited most and have most authors: degrees follow a power law (`--skew`). Batches begin at 1,024
papers, with fan-outs of 10 and 5 for each edge type. Every strategy runs once a round, all on
the same batches: its second epoch is timed, with memory for the topology, a tenth of the features
and some slack.

- `packed`: at most 1.25 times what the disk takes for its bytes in order
- `belady`: at least 0.8 of the disk's random reads of 4 KiB a second. Rows near one another, of
  edges above all, are read at once, and that takes longer: next to the bar is the share of the time
  that the disk needs for as many reads of 4 KiB, and for the rest of the bytes in order
- `numpy-mmap`, NumPy with 32 threads over a mapping of the features, and all in memory, next to
  them

`numpy-mmap` runs as in `gnnstore bench load`: in a process of its own, in a memory cgroup, page
cache included, that allows a tenth of the features and the slack beyond what it holds, which are
the topology and what edges have; some batches are timed, since all cost the same. Only root may
make memory cgroups: without, the page cache serves most of its reads, as the report states.

`--peer` instead compares the loader in memory with PyG's `NeighborLoader` on the same graph as
`HeteroData`, if torch-sparse or pyg-lib can be imported here; the bar is 8 times its speed.

Run `python -m benchmarks.hetero --cache DIR`, with DIR on the disk in question, which keeps the
store (12 GB); `python -m benchmarks.hetero --peer --papers 200000` takes two minutes.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch_geometric.loader import NeighborLoader as PygNeighborLoader

import gnnstore
from benchmarks.harness import device_row, directory_of, parser, report, several
from benchmarks.loader import seconds_of
from gnnstore.converters import ConvertOptions, from_planted_types
from gnnstore.errors import UsageError
from gnnstore.graph.sizes import StoreSizes
from gnnstore.tools.bench.harness import (
    BASELINE,
    DeviceLimits,
    Task,
    drop_from_cache,
    measure_disk_of,
    require_group,
    run_task,
)
from gnnstore.units import spread

NUM_PAPERS, FEATURE_DIM, DEGREE = 6_500_000, 768, 8
FANOUTS, BATCH_SIZE, SEED, NUM_BATCHES = (10, 5), 1024, 0, 100
SHARE, SLACK_BYTES, SKEW = 0.1, 200_000_000, 2.0
MAP_BATCHES, MAP_WORKER = 8, "gnnstore.tools.bench.worker"
BAR_PACKED, BAR_BELADY, BAR_PYG = 1.25, 0.8, 8.0
STRATEGIES = ("packed", "belady", "numpy-mmap", "mmap", "memory")

Found = dict[str, Any]


def make_store(directory: Path, num_papers: int, skew: float) -> Path:
    """Return the store of M, converted unless the directory has it."""
    path = directory / f"planted-types-{num_papers}-{FEATURE_DIM}-{skew:g}.gnn"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        from_planted_types(
            path,
            num_papers=num_papers,
            feature_dim=FEATURE_DIM,
            author_dim=0,
            degree=DEGREE,
            skew=skew,
            options=ConvertOptions(feature_dtype="float16", reverse=("all",)),
        )
    return path


def seeds_of(store: gnnstore.GraphStore, num_batches: int) -> Any:
    """Draw papers for whole batches."""
    num_papers = store.schema.node_of("paper").num_nodes
    return np.random.default_rng(1).integers(0, num_papers, num_batches * BATCH_SIZE)


def second_epoch(path: Path, strategy: str, num_batches: int) -> Found:
    """Return seconds, bytes and reads of the second epoch of a strategy."""
    store = gnnstore.open(path)
    sizes = StoreSizes.from_schema(store.schema)
    options: Found = {}
    if strategy not in ("mmap", "memory"):
        options["memory"] = sizes.topology_bytes + int(SHARE * sizes.rows_bytes) + SLACK_BYTES
    drop_from_cache([path])
    loader = gnnstore.NeighborLoader(
        store,
        FANOUTS,
        ("paper", seeds_of(store, num_batches)),
        batch_size=BATCH_SIZE,
        shuffle=True,
        strategy=strategy,
        seed=SEED,
        **options,
    )
    seconds_of(loader)
    before = loader.stats()
    seconds = seconds_of(loader)
    stats = loader.stats().since(before)
    return {
        "seconds": seconds,
        "bytes": stats.bytes_read + stats.bytes_packing + stats.bytes_spilled,
        "reads": stats.reads,
    }


def mapped(path: Path, num_batches: int, number: int) -> Found:
    """Return the cost of some batches in a round of NumPy over a mapping, scaled to an epoch."""
    seeds = {"paper": seeds_of(gnnstore.open(path), num_batches)}
    with TemporaryDirectory() as directory:
        np.savez(Path(directory) / "seeds.npz", **seeds)
        task = Task(
            strategy=BASELINE,
            store=str(path),
            seeds=str(Path(directory) / "seeds.npz"),
            share=SHARE,
            slack_bytes=SLACK_BYTES,
            warm_up=MAP_BATCHES // 2,
            batches=MAP_BATCHES,
            round=number,
            fanouts=FANOUTS,
            batch_size=BATCH_SIZE,
            seed=SEED,
        )
        try:
            is_limited = require_group() > 0
        except UsageError:
            is_limited = False
        found = run_task(task, worker=MAP_WORKER, is_limited=is_limited)
    if isinstance(found, str):
        raise SystemExit(f"numpy-mmap: {found}")
    return {
        "seconds": found["seconds"] * num_batches,
        "bytes": int(found["disk_bytes"] * num_batches),
        "is_limited": is_limited,
    }


def from_disk(path: Path, arguments: argparse.Namespace) -> tuple[list[tuple[str, str]], Found]:
    """Run all strategies in turns, and return rows of the table and numbers."""
    rounds: dict[str, list[Found]] = {name: [] for name in arguments.strategies}
    devices: list[DeviceLimits] = []
    for number in range(arguments.repeats):
        devices.append(measure_disk_of(gnnstore.open(path)))
        for name, found in rounds.items():
            if name == BASELINE:
                found.append(mapped(path, arguments.batches, number))
            else:
                found.append(second_epoch(path, name, arguments.batches))
            gc.collect()
    rows = [device_row(devices)]
    for name, found in rounds.items():
        text = f"{spread(1e3 * f['seconds'] / arguments.batches for f in found)} ms a batch"
        if name == "packed":
            times = [
                f["seconds"] * d.bytes_per_second / f["bytes"]
                for f, d in zip(found, devices, strict=True)
            ]
            text += f", {found[0]['bytes'] / 1e9:.1f} GB an epoch; {spread(times)} times what the "
            text += f"disk takes in order, {_bar(median(times) <= BAR_PACKED, BAR_PACKED)}"
        elif name == "belady":
            shares = [
                f["reads"] / f["seconds"] / d.random_reads_per_second
                for f, d in zip(found, devices, strict=True)
            ]
            text += f"; {spread(shares)} of the disk's random reads, "
            text += _bar(median(shares) >= BAR_BELADY, BAR_BELADY)
            needed = [
                f["reads"] / d.random_reads_per_second / f["seconds"]
                + max(0, f["bytes"] - 4096 * f["reads"]) / d.bytes_per_second / f["seconds"]
                for f, d in zip(found, devices, strict=True)
            ]
            each = found[0]["bytes"] / max(1, found[0]["reads"])
            text += f" (of {each:.0f} bytes each, which take it {spread(needed)} of the time)"
        elif name == BASELINE and not all(f["is_limited"] for f in found):
            text += ", without a limit of memory"
        rows.append((name, text))
    return rows, {"rounds": rounds, "device": [d._asdict() for d in devices]}


def next_to_pyg(path: Path, arguments: argparse.Namespace) -> tuple[list[tuple[str, str]], Found]:
    """Time the loader in memory and PyG's on the same graph, in turns."""
    store = gnnstore.open(path)
    seeds = ("paper", seeds_of(store, arguments.batches))
    ours = gnnstore.NeighborLoader(
        store, FANOUTS, seeds, batch_size=BATCH_SIZE, strategy="memory", seed=SEED
    )
    found: dict[str, list[float]] = {"gnnstore": []}
    theirs = {}
    data = store.to_pyg()
    for workers in (0, 2):
        name = f"PyG, {workers} workers"
        theirs[name] = PygNeighborLoader(
            data,
            list(FANOUTS),
            (seeds[0], torch.from_numpy(seeds[1])),
            batch_size=BATCH_SIZE,
            num_workers=workers,
        )
        found[name] = []
    seconds_of(ours)
    for _ in range(arguments.repeats):
        found["gnnstore"].append(seconds_of(ours))
        for name, loader in theirs.items():
            found[name].append(seconds_of(loader))
    rows = [(name, f"{spread(1e3 * s / arguments.batches for s in t)} ms a batch")
            for name, t in found.items()]  # fmt: skip
    best = min((found[name] for name in theirs), key=median)
    times = [b / a for a, b in zip(found["gnnstore"], best, strict=True)]
    rows.append(
        ("speed", f"{spread(times)} times PyG's, {_bar(median(times) >= BAR_PYG, BAR_PYG)}")
    )
    return rows, {"seconds": found}


def _bar(reached: bool, bar: float) -> str:
    return f"the bar of {bar}: {'reached' if reached else 'MISSED'}"


def sizes_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield rows of the table that say how large the graph is."""
    schema = gnnstore.open(path).schema
    nodes = ", ".join(f"{node.num_nodes:,} {node.name}s" for node in schema.node_types)
    edges = sum(edge.num_edges for edge in schema.edge_types)
    yield "M", f"{nodes}; {edges:,} edges of {len(schema.edge_types)} types"


def main() -> None:
    """Read the options and run."""
    options = parser(__doc__)
    options.set_defaults(repeats=3)
    options.add_argument("--papers", type=int, default=NUM_PAPERS, help=f"({NUM_PAPERS})")
    options.add_argument("--skew", type=float, default=SKEW, help=f"of degrees ({SKEW:g})")
    options.add_argument("--batches", type=int, default=NUM_BATCHES, help=f"({NUM_BATCHES})")
    options.add_argument("--strategies", type=several(choices=STRATEGIES), default=STRATEGIES)
    options.add_argument("--peer", action="store_true", help="compare with PyG's loader in memory")
    options.add_argument("--cache", type=Path, help="directory that keeps the store")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.papers, arguments.batches, arguments.repeats = 20_000, 10, 1
    if arguments.peer and not any(map(importlib.util.find_spec, ("torch_sparse", "pyg_lib"))):
        raise SystemExit("PyG's loader samples with torch-sparse or pyg-lib; neither is installed")
    with directory_of(arguments) as directory:
        path = make_store(directory, arguments.papers, arguments.skew)
        run = next_to_pyg if arguments.peer else from_disk
        rows, numbers = run(path, arguments)
        rows = [*sizes_of(path), *rows]
    report("a graph of several types", rows, as_json=arguments.json, **numbers)


if __name__ == "__main__":
    main()
