"""Effects of the order of nodes: bytes of a packed epoch, reads of a static cache, sampling.

Four graphs, each as it was made and numbered by degree, by frequency and by community: an R-MAT
graph with Graph500's parameters, half of whose nodes are isolated, the same without these, a flat
one, and a Kronecker expansion of a real graph, where `--graph FILE.npz` names one. All have rows of
512 bytes, and batches of the same share of the nodes as on W and F in `docs/benchmarks.md`;
the same seeds and fan-outs on all four orders of a graph, so that batches are similar, but not the
same: which neighbours a node draws depends on its number.

A cache holds a tenth of the rows. For each order: an epoch with `strategy="packed"`, the second of
a loader, and one with `static`, in turns; what a pass reads of the table, what is read and written
in all, and how long it takes; and sampling and gathering alone, with everything in memory on one
thread. Ratios are to the same graph as it was made.

Run `python -m benchmarks.node_order --cache DIR` with DIR on the disk in question.
"""

from __future__ import annotations

import argparse
import gc
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

import gnnstore
from benchmarks.harness import directory_of, parser, report, several
from benchmarks.parts.workloads import FANOUTS, FEATURE_DIM, FLAT, make_store
from gnnstore.converters import ConvertOptions, GraphWriter, from_kronecker, from_numpy, reorder
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.errors import BudgetError
from gnnstore.graph.store import GraphStore
from gnnstore.pipeline.lookahead.presample import Presampler
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.seeds.nodes import resolve_input_nodes
from gnnstore.units import spread

ORDERS = ("none", "degree", "frequency", "community")
CACHED = 0.1
# Of W: batches of an epoch, and the seeds of one among all nodes; of F the share is twice that.
NUM_BATCHES, SEEDS_SHARE = 163, 1024 / 2**24
QUICK_BATCHES = 8
LEAST_BATCH = 16
SLACK_BYTES = 48 << 20
OPTIONS = ConvertOptions(edge_ids=False)
OVERWRITE = ConvertOptions(overwrite=True)
PIECE_NODES = 2**16


@dataclass(frozen=True)
class Graph:
    """A graph to be numbered.

    Attributes
    ----------
    make : callable
        Returns its store, in a directory.
    seeds_share : float
        Seeds of a batch, among all nodes.
    """

    name: str
    make: Callable[[Path], Path]
    seeds_share: float


def write_features(writer: GraphWriter, num_nodes: int) -> None:
    """Write rows of 512 bytes; what they hold does not matter here."""
    rows = np.random.default_rng(0).random((PIECE_NODES, FEATURE_DIM), np.float32)
    with writer.node_rows(
        "x", num_rows=num_nodes, row_shape=(FEATURE_DIM,), dtype="float32"
    ) as sink:
        for first in range(0, num_nodes, PIECE_NODES):
            sink.append(rows[: num_nodes - first])


def without_isolated(source: Path, path: Path) -> Path:
    """Write a graph without the nodes that have no edge, in the order that they have."""
    if path.exists():
        return path
    graph = StoreInput(source)
    used = np.zeros(graph.num_nodes, np.bool_)
    for piece in graph.edge_pieces(PIECE_NODES):
        used[piece.sources] = used[piece.targets] = True
    ids = np.cumsum(used) - 1
    num_nodes = int(ids[-1]) + 1
    with GraphWriter(path, kind="compact", num_nodes=num_nodes, edge_ids=False) as writer:
        for piece in graph.edge_pieces(PIECE_NODES):
            writer.add_edges(ids[piece.sources], ids[piece.targets])
        write_features(writer, num_nodes)
        return writer.commit()


def expanded(source: Path, factor: int, path: Path) -> Path:
    """Expand a real graph, with features of the width that all graphs have here."""
    if path.exists():
        return path
    seed, large = path.with_name("seed.gnn"), path.with_name("large.gnn")
    from_numpy(source, seed, options=ConvertOptions(undirected=True, overwrite=True))
    from_kronecker(seed, large, factor=factor, features=False, options=OVERWRITE)
    graph = StoreInput(large)
    with GraphWriter(path, kind="wide", num_nodes=graph.num_nodes, edge_ids=False) as writer:
        for piece in graph.edge_pieces(PIECE_NODES):
            writer.add_edges(piece.sources, piece.targets)
        write_features(writer, graph.num_nodes)
        found = writer.commit()
    for left in (seed, large):
        shutil.rmtree(left)
    return found


def graphs(arguments: argparse.Namespace) -> Iterator[Graph]:
    """Yield the graphs, W first."""
    scale = arguments.scale

    def skewed(directory: Path) -> Path:
        return make_store(directory, scale)

    yield Graph("W", skewed, SEEDS_SHARE)
    yield Graph(
        "W without isolated nodes",
        lambda d: without_isolated(skewed(d), d / f"compact-{scale}.gnn"),
        2 * SEEDS_SHARE,
    )
    yield Graph("F", lambda d: make_store(d, scale, probabilities=FLAT), 2 * SEEDS_SHARE)
    if arguments.graph is not None:
        yield Graph(
            arguments.graph.stem,
            lambda d: expanded(
                arguments.graph, arguments.factor, d / f"kronecker-{arguments.factor}.gnn"
            ),
            2 * SEEDS_SHARE,
        )


class Epochs:
    """The same seeds on a graph in one of its orders.

    Parameters
    ----------
    seeds : ndarray of int64
        As the graph that was made numbers them.
    """

    def __init__(self, path: Path, seeds: npt.NDArray[np.int64], batch_size: int) -> None:
        self.store: GraphStore = gnnstore.open(path)
        self.seeds = self.store.ids_of(seeds)
        self.batch_size = batch_size
        self._loader: Any = None

    def loader(self, strategy: str, memory: int | None = None, num_threads: int = 2) -> Any:
        """Return a loader of all seeds."""
        return gnnstore.NeighborLoader(
            self.store,
            list(FANOUTS),
            input_nodes=self.seeds,
            batch_size=self.batch_size,
            shuffle=True,
            strategy=strategy,
            memory=memory,
            num_threads=num_threads,
            seed=0,
        )

    def memory(self, strategy: str) -> int:
        """Return a budget with which the cache holds its share of the rows."""
        spec = self.store.features.spec
        wanted = int(CACHED * spec.num_rows)
        topology = 4 * self.store.num_edges + 16 * self.store.num_nodes
        memory = topology + wanted * spec.row_bytes + SLACK_BYTES
        for _ in range(8):
            try:
                self._loader = self.loader(strategy, memory)
                cached = self._loader.stats().cache_rows
            except BudgetError:
                memory += SLACK_BYTES
                continue
            if abs(cached - wanted) <= wanted // 50:
                break
            memory += (wanted - cached) * spec.row_bytes
            self.end()
        self.end()
        return memory

    def begin(self, strategy: str, memory: int | None, num_threads: int = 2) -> None:
        """Make a loader, and load its first epoch."""
        self._loader = self.loader(strategy, memory, num_threads)
        self.epoch()

    def end(self) -> None:
        """Delete the loader: loaders of a store share its memory."""
        self._loader = None
        gc.collect()

    def epoch(self) -> dict[str, float]:
        """Load an epoch."""
        return self._run(self._loader)

    @staticmethod
    def _run(loader: Any) -> dict[str, float]:
        before, start = loader.stats(), perf_counter()
        for _ in loader:
            pass
        seconds, done = perf_counter() - start, loader.stats().since(before)
        return {
            "seconds": seconds,
            "pass": done.bytes_packing,
            "moved": done.bytes_packing + 2 * done.bytes_read,  # what is packed is written as well
            "read": done.bytes_read,
            "reads": done.reads,
            "sampling": done.seconds_sampling,
            "gathering": done.seconds_gathering,
        }


def in_order(graph: Path, order: str, epochs: Epochs) -> Path:
    """Return the graph in one of the orders, written unless it is there."""
    if order == "none":
        return graph
    path = graph.with_name(f"{graph.stem}-{order}.gnn")
    if path.exists():
        return path
    scores = None
    if order == "frequency":
        store = epochs.store
        scores = np.zeros(store.num_nodes, np.uint8)
        seeds = resolve_input_nodes(store, epochs.seeds)
        config = SamplingConfig(FANOUTS)
        presampler = Presampler.from_store(store, config, seeds, epochs.batch_size, False)
        presampler.run(store.topology(), 2, scores)
        scores[epochs.seeds] = np.maximum(scores[epochs.seeds], 1)
    return reorder(graph, path, order, scores=scores, options=OPTIONS)  # type: ignore[arg-type]


def measure_graph(graph: Graph, directory: Path, repeats: int, num_batches: int) -> dict[str, Any]:
    """Measure all orders of a graph in turns."""
    path = graph.make(directory)
    num_nodes = gnnstore.open(path).num_nodes
    batch_size = max(LEAST_BATCH, round(graph.seeds_share * num_nodes))
    seeds = np.random.default_rng(1).integers(0, num_nodes, num_batches * batch_size)
    made = Epochs(path, seeds, batch_size)
    orders = {order: Epochs(in_order(path, order, made), seeds, batch_size) for order in ORDERS}
    memory = {strategy: made.memory(strategy) for strategy in ("packed", "static")}
    found: dict[str, dict[str, list[dict[str, float]]]] = {order: {} for order in ORDERS}
    for strategy in ("packed", "static", "memory"):
        for epochs in orders.values():
            epochs.begin(strategy, memory.get(strategy), 2 if strategy in memory else 1)
        for _ in range(repeats):
            for order, epochs in orders.items():
                found[order].setdefault(strategy, []).append(epochs.epoch())
        for epochs in orders.values():
            epochs.end()
    return {
        "num_nodes": num_nodes,
        "table_bytes": made.store.features.spec.num_bytes,
        "batch_size": batch_size,
        "memory_bytes": memory,
        "orders": found,
    }


def rows_of(name: str, measured: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of a table for a graph."""
    base = measured["orders"]["none"]
    table = measured["table_bytes"]
    for order, own in measured["orders"].items():

        def over(strategy: str, key: str, own: Any = own) -> str:
            pairs = zip(own[strategy], base[strategy], strict=True)
            return spread(one[key] / max(1e-9, other[key]) for one, other in pairs)

        share = median(one["pass"] for one in own["packed"]) / table
        value = f"packed: passes read {share:.2f} x the table, {over('packed', 'pass')}; moves "
        value += f"{over('packed', 'moved')}; time {over('packed', 'seconds')}. static: reads "
        value += f"{over('static', 'reads')}, bytes {over('static', 'read')}, time "
        value += f"{over('static', 'seconds')}. In memory: sampling {over('memory', 'sampling')}, "
        value += f"gathering {over('memory', 'gathering')}"
        yield f"{name}, {order}", value


def main() -> None:
    """Parse the options, measure and print."""
    options = parser(__doc__)
    options.add_argument("--cache", type=Path, help="directory that keeps the stores")
    options.add_argument("--scale", type=int, default=20, help="logarithm of the nodes (20)")
    options.add_argument("--graph", type=Path, help="a real graph to expand, .npz")
    options.add_argument("--factor", type=int, default=32, help="of the expansion (32)")
    options.add_argument("--graphs", type=several(), help="names of some of the graphs")
    options.set_defaults(repeats=3)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.scale, arguments.repeats, arguments.graphs = 13, 1, ["W"]
    num_batches = QUICK_BATCHES if arguments.quick else NUM_BATCHES
    measured = {}
    with directory_of(arguments) as directory:
        for graph in graphs(arguments):
            if arguments.graphs is None or graph.name in arguments.graphs:
                measured[graph.name] = measure_graph(
                    graph, directory, arguments.repeats, num_batches
                )
    report(
        "node order",
        [row for name, found in measured.items() for row in rows_of(name, found)],
        as_json=arguments.json,
        graphs=measured,
    )


if __name__ == "__main__":
    main()
