"""Learning embeddings by partitions, compared with a table that is whole in memory.

DistMult on an R-MAT graph with two edges for each node: rows of 100 floats, batches of 10,000 edges
in chunks that share 50 negatives for each end. By partitions, a quarter of the rows is in memory,
with some more that are read ahead or written behind. Epochs of the ways are trained in turns:

- with row-wise Adagrad by partitions and in memory: seconds of an epoch, and how much the process
  grows beyond what it had;
- with Adagrad by partitions: bytes that are read and written; row-wise Adagrad moves about half
  as many;
- a commit after the epoch, compared with writing as many bytes to the same disk.

The bars of the project, on 2^24 nodes: an epoch takes at most 1.25 times as long as in memory;
row-wise Adagrad moves at most 0.51 of the bytes; a commit takes at most 2 seconds and its writing.
Run `python -m benchmarks.embeddings --scale 24 --cache DIR` with DIR on the disk in question.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch_geometric.data import Data

import gnnstore
from benchmarks.harness import add_partition_options, directory_of, parser, report
from benchmarks.parts import sequential
from examples.train_knowledge_graph import DistMult, train
from gnnstore.converters import from_rmat
from gnnstore.converters.stores.partition import partition
from gnnstore.formats.table_directory import TableDirectory
from gnnstore.units import spread

DIM, NEGATIVES, CHUNK, EDGE_FACTOR, SHARE, LR = 100, 50, 1000, 2, 0.25, 0.1
WRITING_THREADS = 2

Found = dict[str, float]


def make_store(directory: Path, scale: int, num_partitions: int) -> gnnstore.GraphStore:
    """Return a partitioned store."""
    path = directory / f"edges{scale}.gnn"
    if not path.exists():
        from_rmat(path, scale=scale, edge_factor=EDGE_FACTOR, feature_dim=0, homophily=None)
    if not (path / "partitions" / f"random-{num_partitions}").exists():
        partition(path, num_partitions)
    return gnnstore.open(path)


def one_relation(batch: Data) -> Data:
    """Give all edges the same relation."""
    batch.label_edge_type = torch.zeros(len(batch.src_index), dtype=torch.long)
    return batch


class Moved:
    """Bytes of partitions that tables read and write meanwhile."""

    def __enter__(self) -> Moved:
        self.read = self.written = 0
        read, write = TableDirectory.read, TableDirectory.write

        def counted_read(directory: TableDirectory, k: int, out: Any) -> bool:
            found = read(directory, k, out)
            self.read += out.nbytes * found
            return found

        def counted_write(directory: TableDirectory, k: int, data: Any) -> None:
            write(directory, k, data)
            self.written += data.nbytes

        self._patches: list[Any] = [
            patch.object(TableDirectory, "read", counted_read),
            patch.object(TableDirectory, "write", counted_write),
        ]
        for each in self._patches:
            each.start()
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._patches:
            each.stop()


def resident(name: str) -> int:
    """Return a size of this process in bytes, as the kernel reports it."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(f"{name}:")[2].split()[0])


class Way:
    """A table, its loader and its optimizers, of which an epoch can be trained again."""

    def __init__(
        self,
        store: gnnstore.GraphStore,
        path: Path,
        optimizer: str,
        policy: gnnstore.PartitionPolicy | None,
        arguments: argparse.Namespace,
    ) -> None:
        torch.manual_seed(0)
        self.path = path
        self.table = gnnstore.EmbeddingTable.create(
            path, store, dim=DIM, partitions=policy, optimizer=optimizer, overwrite=True
        )
        by_partitions: dict[str, Any] = (
            {} if policy is None else {"partitions": policy, "tables": [self.table]}
        )
        self.loader = gnnstore.LinkNeighborLoader(
            store,
            [],
            neg_sampling={"mode": "triplet", "amount": NEGATIVES},
            neg_side="both",
            negative_chunks=max(1, arguments.batch_size // CHUNK),
            batch_size=arguments.batch_size,
            shuffle=True,
            seed=0,
            transform=one_relation,
            memory=arguments.memory,
            **by_partitions,
        )
        self.chunks = max(1, arguments.batch_size // CHUNK)
        self.model = DistMult(1, DIM)
        rule = gnnstore.Adagrad if optimizer == "adagrad" else gnnstore.RowwiseAdagrad
        self.optimizers = [
            torch.optim.Adagrad(self.model.parameters(), lr=LR),
            rule(self.table, lr=LR),
        ]

    def epoch(self) -> Found:
        """Train an epoch, and commit."""
        gc.collect()
        swapped = self.loader.stats().seconds_swapping
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
        with Moved() as moved:
            start = time.perf_counter()
            train(self.model, self.table, self.loader, self.optimizers, self.chunks)
            seconds = time.perf_counter() - start
        with Moved() as last:
            start = time.perf_counter()
            self.table.commit(self.loader.state_dict())
            commit = time.perf_counter() - start
        return {
            "seconds": seconds,
            "read": moved.read,
            "written": moved.written,
            "swapping": self.loader.stats().seconds_swapping - swapped,
            "peak": resident("VmHWM"),
            "commit_seconds": commit,
            "commit_bytes": last.written,
        }


def run(arguments: argparse.Namespace) -> None:
    """Train all ways in turns, and print."""
    policy = gnnstore.PartitionPolicy(
        "two-level", capacity=SHARE, logical=arguments.logical or "auto", order=arguments.order
    )
    with directory_of(arguments) as directory:
        store = make_store(directory, arguments.scale, arguments.partitions)
        makers: dict[str, Callable[[], Way]] = {
            "row-wise": lambda: Way(
                store, directory / "row.emb", "rowwise_adagrad", policy, arguments
            ),
            "adagrad": lambda: Way(store, directory / "full.emb", "adagrad", policy, arguments),
            "in memory": lambda: Way(
                store, directory / "memory.emb", "rowwise_adagrad", None, arguments
            ),
        }
        found: dict[str, list[Found]] = {}
        if arguments.no_adagrad:
            del makers["adagrad"]
        for name, make in makers.items():  # the first, in which rows are made, is not counted
            before = resident("VmRSS")
            way = make()
            first = way.epoch()
            grown = first["peak"] - before
            found[name] = [way.epoch() | {"grown": grown} for _ in range(arguments.repeats)]
            way.table.close()
            del way
        num_bytes = int(median(e["commit_bytes"] for e in found["row-wise"])) or 2**20
        whole = max(1, num_bytes // sequential.BLOCK_BYTES) * sequential.BLOCK_BYTES
        disk = sequential.write(directory / "written", whole, WRITING_THREADS)
    table_bytes = store.num_nodes * (DIM + 1) * 4
    moved = {
        name: median(e["read"] + e["written"] for e in epochs) for name, epochs in found.items()
    }
    slow, fast = ([e["seconds"] for e in found[name]] for name in ("row-wise", "in memory"))
    of = found["row-wise"]
    halved = "not measured"
    if "adagrad" in moved:
        halved = f"{moved['row-wise'] / moved['adagrad']:.3f} (at most 0.51)"
    rows = f"{store.num_nodes:,} rows, {table_bytes / 1e6:,.0f} MB with their state"
    swapping = median(e["swapping"] for e in of)
    commits = spread(e["commit_seconds"] for e in of)
    growth = {name: epochs[0]["grown"] / 1e6 for name, epochs in found.items()}
    report(
        "benchmarks.embeddings",
        [
            ("table", f"{rows}; {store.num_edges:,} edges"),
            ("an epoch by partitions", f"{spread(slow)} s, swapping {swapping:.2f} s"),
            ("an epoch in memory", f"{spread(fast)} s"),
            ("by partitions / in memory", f"{median(slow) / median(fast):.2f} (at most 1.25)"),
            ("moved in an epoch", f"{moved['row-wise'] / table_bytes:.2f} tables"),
            ("row-wise / full Adagrad, moved", halved),
            ("commit", f"{commits} s for {num_bytes / 1e6:,.0f} MB"),
            ("writing as much", f"{disk.seconds:.2f} s"),
            ("growth, by partitions", f"{growth['row-wise']:,.0f} MB"),
            ("growth, in memory", f"{growth['in memory']:,.0f} MB"),
        ],
        as_json=arguments.json,
        epochs=found,
        table_bytes=table_bytes,
        disk_write_seconds=disk.seconds,
    )


def main() -> None:
    """Read the command line and run."""
    options = parser(__doc__)
    options.add_argument("--scale", type=int, help="2^SCALE nodes (20; 13 with --quick)")
    add_partition_options(options, batch_size=10_000)
    options.add_argument("--logical", type=int, help="logical groups; by default the fewest")
    options.add_argument("--no-adagrad", action="store_true", help="leave out that way")
    options.add_argument("--order", choices=("even", "beta"), default="beta", help="(beta)")
    arguments = options.parse_args()
    arguments.scale = arguments.scale or (13 if arguments.quick else 20)
    run(arguments)


if __name__ == "__main__":
    main()
