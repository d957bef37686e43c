"""Inference over all nodes: bytes over tables, next to the disk in order and PyG in memory.

Two layers of GraphSAGE over a random graph (R-MAT), with a budget of less than a fifth of the
tables that the layers take. In each turn: the disk's sequential bandwidth, reading and writing
(large direct blocks, the best of some numbers of threads); `gnnstore.inference`; and
`BasicGNN.inference` of PyTorch Geometric over features in memory, whose batches come from a loader
of the same store in memory. The bars: at most 2.5 times the layers' tables are read, at most their
size is written besides the results, and inference takes at most 1.25 times as long as the disk for
its bytes. The layers are computed meanwhile, and where they alone take longer than the disk, as two
layers on two processors do, no order of reads can reach the last bar; so their time is printed too.

Run `python -m benchmarks.inference --dir DIR`, on the disk in question.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor
from torch_geometric.nn.models import GraphSAGE

import gnnstore
from benchmarks.harness import Turn, measure, parser, report
from benchmarks.parts import sequential
from gnnstore.converters import from_rmat
from gnnstore.progress import NullProgress
from gnnstore.tools.bench.harness import drop_from_cache
from gnnstore.units import format_size, parse_size, spread

READ_BAR, WRITTEN_BAR, TIME_BAR = 2.5, 1.0, 1.25
WIDTHS = (128, 64, 16)
EDGE_FACTOR = 15
BATCH_SIZE = 4096  # of PyTorch Geometric's inference
THREADS = (2, 4, 8)


class Notes(NullProgress):
    """Adds up what is said of the layers."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        """Take the facts of a layer."""
        for name, value in (facts or {}).items():
            if not isinstance(value, str):
                self.sums[name] = self.sums.get(name, 0) + value


def best(run: Callable[[int], Turn]) -> int:
    """Return the number of threads with the highest rate of two turns each."""
    rates = dict.fromkeys(THREADS, 0.0)
    for _ in range(2):
        for choice in THREADS:
            rates[choice] = max(rates[choice], run(choice).rate)
    return max(rates, key=rates.__getitem__)


def run(arguments: argparse.Namespace, directory: Path) -> None:
    """Make the store, let disk, inference and PyTorch Geometric work in turns, and print."""
    path = arguments.store or from_rmat(
        directory / "a.gnn",
        scale=arguments.scale,
        edge_factor=EDGE_FACTOR,
        feature_dim=WIDTHS[0],
    )
    store = gnnstore.open(path)
    model = GraphSAGE(store.features.shape[1], WIDTHS[1], len(WIDTHS) - 1, WIDTHS[2]).eval()
    taken = 4 * store.num_nodes * (store.features.shape[1] + WIDTHS[1])
    given = 4 * store.num_nodes * sum(WIDTHS[1:])
    memory = parse_size(arguments.memory) if arguments.memory else int(0.186 * taken)
    table = max(path.glob("nodes/*/x/c.*"), key=lambda file: file.stat().st_size)
    some_bytes = min(table.stat().st_size, 1 << 30) >> 20 << 20

    def read(threads: int) -> Turn:
        drop_from_cache([table])
        return sequential.read(table, some_bytes, threads)

    def write(threads: int) -> Turn:
        return sequential.write(directory / "peer", some_bytes, threads)

    def infer() -> float:
        gnnstore.inference(model, store, directory / "out", memory=memory, progress=notes)
        return 1.0

    def infer_in_memory() -> float:
        expected.append(model.inference(loader))
        return 1.0

    expected: list[Tensor] = []
    readers, writers = best(read), best(write)
    seconds: dict[str, list[float]] = {"inference": [], "in order": [], "in memory": []}
    processors: dict[str, list[float]] = {"inference": [], "in memory": []}
    difference = 0.0
    for _ in range(arguments.repeats):
        notes = Notes()
        read_rate, write_rate = read(readers).rate, write(writers).rate
        drop_from_cache([path])
        turn = measure(infer)
        sums = notes.sums
        seconds["in order"].append(
            sums["bytes_read"] / read_rate + sums["bytes_written"] / write_rate
        )
        seconds["inference"].append(turn.seconds)
        processors["inference"].append(turn.cpu_seconds)
        if arguments.peer:
            loader = gnnstore.NeighborLoader(store, [-1], batch_size=BATCH_SIZE, strategy="memory")
            turn = measure(infer_in_memory)
            seconds["in memory"].append(turn.seconds)
            processors["in memory"].append(turn.cpu_seconds)
            found, other = gnnstore.open_embeddings(directory / "out").tensor(), expected.pop()
            difference = float((found - other).abs().max() / other.abs().max())
            del loader, found, other
        shutil.rmtree(directory / "out")
    sums = notes.sums
    running = sums["seconds_running"]  # of the last turn
    ratios = [a / b for a, b in zip(seconds["inference"], seconds["in order"], strict=True)]
    read_ratio = sums["bytes_read"] / taken
    written_ratio = (sums["bytes_written"] - given) / taken
    rows = [
        ("memory", format_size(memory)),
        ("tables that the layers take", format_size(taken)),
        ("read", f"{format_size(int(sums['bytes_read']))}, {judged(read_ratio, READ_BAR)}"),
        ("written", format_size(int(sums["bytes_written"]))),
        ("  besides the results", judged(written_ratio, WRITTEN_BAR)),
        ("blocks", str(int(sums["num_blocks"]))),
        ("inference, s", spread(seconds["inference"])),
        ("  in the layers, s", f"{running:.2f} ({running / seconds['inference'][-1]:.0%})"),
        ("  processors, s", spread(processors["inference"])),
        ("the disk for these bytes, s", spread(seconds["in order"])),
        ("inference / disk", f"{spread(ratios)}, {judged(median(ratios), TIME_BAR)}"),
        ("  the layers alone / disk", f"{running / seconds['in order'][-1]:.2f} x"),
        ("load of the machine", f"{os.getloadavg()[0]:.1f}"),
    ]
    if arguments.peer:
        rows += [
            ("PyG's inference in memory, s", spread(seconds["in memory"])),
            ("  processors, s", spread(processors["in memory"])),
            ("  largest difference", f"{difference:.1e} of the largest value"),
        ]
    report(
        f"two layers over {store.num_nodes:,} nodes and {store.num_edges:,} edges",
        rows,
        as_json=arguments.json,
        seconds=seconds,
        processors=processors,
        facts=sums,
        read_ratio=read_ratio,
        written_ratio=written_ratio,
        difference=difference,
    )


def judged(ratio: float, bar: float) -> str:
    """Return a ratio, and whether it is within a bar."""
    return f"{ratio:.2f} x ({'reached' if ratio <= bar else 'MISSED'}: {bar})"


def main() -> None:
    """Read the options and run."""
    options = parser(__doc__)
    options.set_defaults(repeats=3)
    options.add_argument("--dir", type=Path, help="where to write (temporary files)")
    options.add_argument("--store", type=Path, help="a store with x (default: one is made)")
    options.add_argument("--scale", type=int, default=21, help="2^SCALE nodes (21)")
    options.add_argument("--memory", help="for inference (18.6 %% of the tables)")
    options.add_argument(
        "--no-peer", dest="peer", action="store_false", help="without PyG's inference in memory"
    )
    arguments = options.parse_args()
    if arguments.quick:
        arguments.scale = min(arguments.scale, 17)
        arguments.repeats = min(arguments.repeats, 2)
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-", dir=arguments.dir) as directory:
        run(arguments, Path(directory))


if __name__ == "__main__":
    main()
