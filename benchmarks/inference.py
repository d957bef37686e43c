"""Inference over all nodes with a cheap layer, compared with the disk's sequential bandwidth.

A graph with few edges a node and wide rows, and one layer that takes the mean of the
in-neighbours. In each turn: the disk's sequential bandwidth, reading and writing (large direct
blocks, the best of some numbers of threads), and one layer over all nodes. The bar: reading and
writing the bytes of inference sequentially, those of rows packed for a while included, takes at
least 0.7 of the time that inference takes.

The store of 2 GiB is made first, in `--dir`: choose a directory on the disk in question.
Run `python -m benchmarks.inference --dir DIR`.
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

import numpy as np
import torch
from torch import Tensor

import gnnstore
from benchmarks.harness import Turn, parser, report
from benchmarks.parts import sequential
from gnnstore.disk.profile.page_cache import drop_from_cache
from gnnstore.progress import NullProgress
from gnnstore.testing.graphs import write_store
from gnnstore.tools.bench.harness import spread
from gnnstore.units import format_size, parse_size

BAR = 0.7
THREADS = (2, 4, 8)


class Notes(NullProgress):
    """Keeps what is said of the last layer."""

    facts: Mapping[str, Any]

    def note(self, text: str, facts: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002
        """Take the facts of a layer."""
        if facts:
            self.facts = dict(facts)


def mean(x: tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
    """Return the mean of a node's own row and those of its in-neighbours.

    One product and one sum: what a layer costs at least that looks at neighbours.
    """
    sources, targets = edge_index
    begins = torch.searchsorted(targets, torch.arange(len(x[1]) + 1))
    shares = 1 / (begins.diff() + 1)
    values = shares.repeat_interleave(begins.diff())
    matrix = torch.sparse_csr_tensor(begins, sources, values, (len(x[1]), len(x[0])))
    sums = torch.addmm(torch.zeros(1, 1), matrix, x[0], beta=0)
    return sums.addcmul_(x[1], shares.unsqueeze(1))


def make_store(path: Path, num_bytes: int, width: int, degree: int) -> Path:
    """Write a store whose edges come from anywhere."""
    num_nodes = num_bytes // (4 * width)
    rng = np.random.default_rng(0)
    edges = rng.integers(0, num_nodes, (2, degree * num_nodes))
    return write_store(path, edges, x=rng.random((num_nodes, width), dtype=np.float32))


def best(run: Callable[[int], Turn]) -> int:
    """Return the number of threads with the highest rate of two turns each."""
    rates = dict.fromkeys(THREADS, 0.0)
    for _ in range(2):
        for choice in THREADS:
            rates[choice] = max(rates[choice], run(choice).rate)
    return max(rates, key=rates.__getitem__)


def run(arguments: argparse.Namespace, directory: Path) -> None:
    """Make the store, let disk and inference work in turns, and print."""
    num_bytes = arguments.table_bytes
    store = make_store(directory / "a.gnn", num_bytes, arguments.width, arguments.degree)
    (table,) = store.glob("nodes/*/x/c.0.0")
    some_bytes = min(num_bytes, table.stat().st_size, 1 << 30) >> 20 << 20
    memory = parse_size(arguments.memory) if arguments.memory else num_bytes // 4

    def read(threads: int) -> Turn:
        drop_from_cache([table])
        return sequential.read(table, some_bytes, threads)

    def write(threads: int) -> Turn:
        return sequential.write(directory / "peer", some_bytes, threads)

    readers, writers = best(read), best(write)
    reads: list[Turn] = []
    writes: list[Turn] = []
    ratios: list[float] = []
    seconds: list[float] = []
    processors: list[float] = []
    notes = Notes()
    for _ in range(arguments.repeats):
        reads.append(read(readers))
        writes.append(write(writers))
        drop_from_cache([store])
        before = sum(os.times()[:2])
        gnnstore.inference([mean], store, directory / "out", memory=memory, progress=notes)
        processors.append(sum(os.times()[:2]) - before)
        facts = notes.facts
        in_order = facts["bytes_read"] / reads[-1].rate + facts["bytes_written"] / writes[-1].rate
        ratios.append(in_order / facts["seconds"])
        seconds.append(facts["seconds"])
        shutil.rmtree(directory / "out")
    facts = notes.facts
    verdict = "reached" if median(ratios) >= BAR else "MISSED"
    report(
        f"one layer over {format_size(num_bytes)} of rows",
        [
            ("memory", format_size(memory)),
            (f"in order: read, {readers} threads", rate(reads)),
            (f"in order: write, {writers} threads", rate(writes)),
            ("inference, s", spread(seconds)),
            ("  blocks", str(facts["num_blocks"])),
            ("  read", format_size(facts["bytes_read"])),
            ("  written", format_size(facts["bytes_written"])),
            ("    packed for a while", format_size(facts["bytes_packed"])),
            ("  waiting for rows, s", f"{facts['seconds_waiting']:.2f}"),
            ("  in the layer, s", f"{facts['seconds_running']:.2f}"),
            ("  waiting for writes, s", f"{facts['seconds_writing']:.2f}"),
            ("  processors, s", spread(processors, ".2f")),
            ("  load of the machine", f"{os.getloadavg()[0]:.1f}"),
            ("  in order / inference", spread(ratios)),
            (f"  the bar of {BAR}", verdict),
        ],
        as_json=arguments.json,
        ratios=ratios,
        seconds=seconds,
        processors=processors,
        facts=dict(facts),
        rates={"read": [t.rate for t in reads], "write": [t.rate for t in writes]},
    )


def rate(turns: list[Turn]) -> str:
    """Return the rates of turns for the table."""
    return f"{spread((turn.rate / 1e9 for turn in turns), '.2f')} GB/s"


def main() -> None:
    """Read the options and run."""
    options = parser(__doc__)
    options.add_argument("--dir", type=Path, help="where to write (temporary files)")
    options.add_argument("--table-bytes", type=int, default=2 << 30, help="of rows (2 GiB)")
    options.add_argument("--width", type=int, default=512, help="float32 a row (512)")
    options.add_argument("--degree", type=int, default=2, help="edges a node (2)")
    options.add_argument("--memory", help="for inference (a quarter of the rows)")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.table_bytes = min(arguments.table_bytes, 256 << 20)
        arguments.repeats = min(arguments.repeats, 2)
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-", dir=arguments.dir) as directory:
        run(arguments, Path(directory))


if __name__ == "__main__":
    main()
