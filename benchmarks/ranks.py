"""Ranks of one machine: their memory, the time to load a store, and the time of an epoch.

The ranks are processes that load an R-MAT graph with 128 float32 a node, with `memory`, and with
`static` with one `cache_bytes=`. They begin to load together, from a barrier after their imports,
and each prepares its batches in one thread. Compared, in turns and within one run:

- the proportional set size (PSS) of all ranks against one rank's, and the part of it that lies in
  shared memory;
- the time until all ranks have loaded, against one rank's;
- the time of an epoch of two ranks that share, against two that do not (`local_world_size=1`);
- the share of rows that the shared cache has, against one process with the whole cache.

Where the kernel gives shared memory huge pages (`shmem_enabled`), these are used; the report
states whether it does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import gnnstore
from benchmarks.harness import directory_of, parser, report, several
from benchmarks.parts.workloads import make_store
from gnnstore.graph.sizes import StoreSizes
from gnnstore.units import format_size

MIB = 1 << 20
FANOUTS, BATCH_SIZE = [10, 5], 512
NUM_SEEDS = 100 * BATCH_SIZE
# Bytes of a further rank: Python, torch, PyTorch Geometric, and its batches.
RANK_BYTES = 350 * MIB

RANK = """
import json, re, sys, time
import numpy as np
import torch, torch_geometric.loader
import gnnstore

path, seeds, fanouts, batch_size, rank, size, options = json.loads(sys.argv[1])
gnnstore.NeighborLoader
torch.zeros(1)

def say(**found):
    print(json.dumps(found), flush=True)
    sys.stdin.readline()

def pss(field):
    text = open("/proc/self/smaps_rollup").read()
    return 1024 * int(re.search(rf"^{field}: +(\\d+)", text, re.MULTILINE)[1])

say(idle=pss("Pss"))
start = time.perf_counter()
loader = gnnstore.NeighborLoader(
    path, fanouts, np.load(seeds), batch_size=batch_size, shuffle=True, seed=0, num_threads=1,
    rank=rank, world_size=size, **options,
)
say(seconds=time.perf_counter() - start)
for epoch in range(2):  # the first one meets pages that it has not mapped yet
    before, start = loader.stats(), time.perf_counter()
    for batch in loader:
        pass
    seconds = time.perf_counter() - start
    del batch
    stats = loader.stats()
    cached, read = stats.rows_cached - before.rows_cached, stats.rows_read - before.rows_read
    say(seconds=seconds, hits=cached / max(1, cached + read))
say(pss=pss("Pss"), shared=pss("Pss_Shmem"))
"""


class Ranks:
    """Processes that take the same steps, each when all have ended the last one."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def step(self) -> list[dict[str, float]]:
        """Return each rank's report of the step that it has taken; the next one begins at `go`."""
        found = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit("a rank has ended early")
            found.append(json.loads(line))
        return found

    def go(self) -> None:
        """Let all ranks take the next step."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()


@contextmanager
def ranks(
    path: Path, seeds: Path, num_ranks: int, options: dict[str, Any], *, shares: bool = True
) -> Iterator[Ranks]:
    """Start ranks, as torchrun does."""
    local = {"local_world_size": num_ranks if shares else 1}
    with ExitStack() as stack:
        processes = []
        for rank in range(num_ranks):
            given = [str(path), str(seeds), FANOUTS, BATCH_SIZE, rank, num_ranks, options | local]
            command = [sys.executable, "-c", RANK, json.dumps(given)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            processes.append(stack.enter_context(subprocess.Popen(command, text=True, **pipes)))
        yield Ranks(processes)


def measure(*arguments: Any, **options: Any) -> dict[str, float]:
    """Return the numbers of one run of some ranks."""
    with ranks(*arguments, **options) as started:
        idle = started.step()
        started.go()
        loaded = started.step()
        started.go()
        started.step()
        started.go()
        epoch = started.step()
        started.go()
        memory = started.step()
        started.go()
    return {
        "idle_bytes": idle[0]["idle"],
        "loading_seconds": max(each["seconds"] for each in loaded),
        "epoch_seconds": max(each["seconds"] for each in epoch),
        "hits": statistics.fmean(each["hits"] for each in epoch),
        "pss_bytes": sum(each["pss"] for each in memory),
        "shared_bytes": sum(each["shared"] for each in memory),
    }


def told(name: str, cells: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Print the last run of a cell, since all take minutes."""
    run = cells[name][-1]
    times = f"loaded in {run['loading_seconds']:.2f} s, an epoch {run['epoch_seconds']:.2f} s"
    print(f"{name}, run {len(cells[name])}: {times}", file=sys.stderr, flush=True)


def compare(arguments: argparse.Namespace, directory: Path) -> None:
    """Measure every number of ranks, and print."""
    path = make_store(directory, arguments.scale)
    schema = gnnstore.open(path).schema
    sizes = StoreSizes.from_schema(schema)
    seeds = directory / "seeds-ranks.npy"
    np.save(seeds, np.random.default_rng(1).integers(0, schema.node.num_nodes, NUM_SEEDS))
    cache_bytes = sizes.rows_bytes // 4
    ways: dict[str, dict[str, Any]] = {
        "memory": {"strategy": "memory", "memory": "16GB"},
        "static": {"strategy": "static", "memory": "16GB", "cache_bytes": cache_bytes},
    }
    held = {"memory": sizes.total_bytes, "static": sizes.topology_bytes + cache_bytes}
    cells: dict[str, list[dict[str, float]]] = {}
    for _ in range(arguments.repeats):
        for way, options in ways.items():
            for count in (1, *arguments.ranks):
                name = f"{way}, {count} ranks"
                cells.setdefault(name, []).append(measure(path, seeds, count, options))
                told(name, cells)
        separate = measure(path, seeds, 2, ways["memory"], shares=False)
        cells.setdefault("memory, 2 copies", []).append(separate)
        told("memory, 2 copies", cells)
    medians = {
        name: {what: statistics.median(run[what] for run in found) for what in found[0]}
        for name, found in cells.items()
    }
    pages = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    rows = [
        ("huge pages for shared memory", pages.read_text().strip() if pages.exists() else "none"),
        ("an idle interpreter", format_size(round(medians["memory, 1 ranks"]["idle_bytes"]))),
    ]
    for name, found in medians.items():
        way, count = name.split(", ")
        alone = medians[f"{way}, 1 ranks"]
        text = f"PSS {format_size(round(found['pss_bytes']))}"
        if not name.endswith("copies"):
            most = alone["pss_bytes"] + (int(count.split()[0]) - 1) * RANK_BYTES
            in_memory = found["shared_bytes"] / held[way]
            text += (
                f" of at most {format_size(round(most))}, {in_memory:.2f} of what is held shared"
            )
        text += f"; loaded in {found['loading_seconds']:.2f} s"
        text += f" ({found['loading_seconds'] / alone['loading_seconds']:.2f} x one rank's)"
        text += f"; an epoch {found['epoch_seconds']:.2f} s, hits {found['hits']:.3f}"
        rows.append((name, text))
    ratio = [
        shared["epoch_seconds"] / own["epoch_seconds"]
        for shared, own in zip(cells["memory, 2 ranks"], cells["memory, 2 copies"], strict=True)
    ]
    spread = f"{statistics.median(ratio):.2f} [{min(ratio):.2f}, {max(ratio):.2f}]"
    rows.append(("an epoch of 2 ranks that share, to copies", spread))
    title = f"ranks of one machine, R-MAT 2^{arguments.scale}, batches of {BATCH_SIZE}"
    report(title, rows, as_json=arguments.json, cells=cells)


def main() -> None:
    """Read the options and compare."""
    options = parser(__doc__)
    options.set_defaults(repeats=3)
    options.add_argument("--scale", type=int, default=20, help="2^scale nodes (20)")
    options.add_argument("--ranks", type=several(int), default=[2, 4], help="(2,4)")
    options.add_argument("--cache", type=Path, help="directory that keeps the store")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.scale, arguments.repeats = 16, 1
    if 2 not in arguments.ranks:
        raise SystemExit("--ranks needs 2, which is compared with two copies")
    with directory_of(arguments) as directory:
        compare(arguments, directory)


if __name__ == "__main__":
    main()
