"""Memory that a loader takes, compared with the budget that `memory=` allows.

Each cell is a process of its own that loads batches of W with a budget and a strategy, the topology
where that budget has room, and reports the growth of its peak resident memory since the libraries
were loaded. The promise: the budget, and 48 MB for Python, the allocator and other needs of
sampling. Two batches of 1,024 seeds do not fit in the smallest budget, so there they have 256.

Run `python -m benchmarks.budgets --cache DIR`, with DIR where the other benchmarks keep W.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import directory_of, parser, report, several
from benchmarks.parts.workloads import BATCH_SIZE, FANOUTS, SEED, WORKLOADS
from gnnstore.strategies.registry import STRATEGIES
from gnnstore.tools.bench.harness import ask_process
from gnnstore.units import format_size, parse_size

BUDGETS = ("0.3GB", "1GB", "4GB")
# Others hold everything in memory, or leave it to the system.
READING = tuple(strategy.name for strategy in STRATEGIES if strategy.reads_disk)
BESIDES_BYTES = 48 * 10**6

LOAD = """
import json, sys
import numpy as np
import torch, torch_geometric.loader
import gnnstore
from gnnstore.progress import peak_rss_bytes

store, seeds, fanouts, batch_size, batches, options = json.loads(sys.argv[1])
gnnstore.NeighborLoader
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak begins anew

def peak_bytes():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])

before = peak_bytes()
loader = gnnstore.NeighborLoader(
    store, fanouts, np.load(seeds), batch_size=batch_size, seed=0, **options
)
for number, batch in enumerate(loader, start=1):
    if number == batches:
        break
stats = loader.stats()
print(json.dumps({
    "growth_bytes": peak_bytes() - before,
    "topology": stats.topology,
    "cache_rows": stats.cache_rows,
    "superbatch": stats.superbatch,
}))
"""


def measure(
    store: Path, seeds: Path, batch_size: int, batches: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the answer of a process, or the reason why there is none."""
    task = json.dumps([str(store), str(seeds), FANOUTS, batch_size, batches, options])
    answer = ask_process(["-c", LOAD, task])
    return {"error": answer} if isinstance(answer, str) else answer


def describe(outcome: dict[str, Any], budget_bytes: int) -> str:
    """Return a cell of the table."""
    if "error" in outcome:
        return str(outcome["error"])
    growth = outcome["growth_bytes"]
    verdict = "kept" if growth <= budget_bytes + BESIDES_BYTES else "BROKEN"
    plans = f", {outcome['superbatch']} batches planned" if outcome["superbatch"] else ""
    return (
        f"{format_size(growth)}: {verdict}; topology {outcome['topology']}, "
        f"{outcome['cache_rows']:,} rows cached{plans}"
    )


def compare(arguments: argparse.Namespace, directory: Path) -> None:
    """Measure every cell, and print."""
    workload = WORKLOADS[arguments.workload]
    store = workload.store(directory)
    seeds = directory / f"seeds-{store.stem}.npy"
    np.save(seeds, workload.seeds())
    rows, outcomes = [], {}
    for budget in arguments.budgets:
        batch_size = BATCH_SIZE if parse_size(budget) >= 10**9 else BATCH_SIZE // 4
        for strategy in arguments.strategies:
            options = {"strategy": strategy, "memory": budget}
            outcome = measure(store, seeds, batch_size, arguments.batches, options)
            outcomes[f"{strategy} {budget}"] = outcome
            rows.append((f"{budget}, {strategy}", describe(outcome, parse_size(budget))))
            print(*rows[-1], sep=": ", file=sys.stderr)
    title = f"peak memory of loading {arguments.batches} batches of {workload.name}, seed {SEED}"
    report(title, rows, as_json=arguments.json, outcomes=outcomes)


def main() -> None:
    """Read the options and compare."""
    options = parser(__doc__)
    options.add_argument("--workload", choices=sorted(WORKLOADS), default="W", help="(W)")
    options.add_argument("--budgets", type=several(), default=[*BUDGETS], help="(0.3GB,1GB,4GB)")
    options.add_argument("--strategies", type=several(choices=READING), default=[*READING])
    options.add_argument("--batches", type=int, default=40, help="(40)")
    options.add_argument("--cache", type=Path, help="directory that keeps the store")
    arguments = options.parse_args()
    with directory_of(arguments) as directory:
        compare(arguments, directory)


if __name__ == "__main__":
    main()
