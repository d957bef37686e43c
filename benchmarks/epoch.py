"""Training for whole epochs with each strategy, as memory holds less and less of the features.

A three-layer GraphSAGE on an R-MAT graph with planted communities, each strategy in a process of
its own: as in `benchmarks.out_of_core`, in a memory cgroup that allows what the process holds with
structure and labels loaded, a share of the features, some slack, and the memory of a training step.
`memory` runs without a limit, and the others' times are those over its own, in the same round.

Two epochs are trained, the first with all preparation, and a third is loaded without training.
Reported too: how long the first batch takes, and the first 40, and the share of the second epoch in
which the model waits. The bar, on 2^24 nodes: `packed` with a tenth of the features takes at most
1.1 times as long as `memory`.

A mapping, whose epochs are all alike, is trained on for one epoch only. `--plot FILE.svg` draws the
figure of the README.

Run `python -m benchmarks.epoch --scale 24 --cache DIR` as a user who may make memory cgroups
(root), with DIR on the disk in question, which keeps the store (11 GB).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import gnnstore
from benchmarks.harness import (
    add_limit_options,
    device_numbers,
    device_row,
    directory_of,
    limit_version,
    parser,
    report,
    several,
)
from benchmarks.parts.epoch_plot import draw_epochs
from benchmarks.parts.strategies import PEERS, WAYS
from benchmarks.parts.workloads import BATCH_SIZE, EDGE_FACTOR, FANOUTS, FEATURE_DIM, SEED
from gnnstore.converters import from_rmat
from gnnstore.pictures import check_picture
from gnnstore.tools.bench.harness import Task, measure_disk_of, run_task
from gnnstore.units import spread

BAR, BAR_SCALE = 1.1, 24
IN_MEMORY, HELD_TO_THE_BAR, SHARE_OF_THE_BAR = "memory", "packed", 0.1
DEFAULT = ("mmap", "static-degree", "packed")
ALL = tuple(name for name in WAYS if name not in {"numpy-mmap", *PEERS})
SHARES, ALL_SHARES = (1.0, 0.1), (1.0, 0.3, 0.1, 0.05)
NUM_EPOCHS, TEST_BATCHES = 2, 8
WORKER = "benchmarks.parts.training"

Found = dict[str, Any]
Case = tuple[str, float]


def make_store(directory: Path, scale: int) -> Path:
    """Return the store, converted unless the directory has it already."""
    path = directory / f"planted-{scale}-{EDGE_FACTOR}-{FEATURE_DIM}.gnn"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        from_rmat(path, scale=scale, edge_factor=EDGE_FACTOR, feature_dim=FEATURE_DIM)
    return path


def seeds_of(store: Path, split: str, num_batches: int, batch_size: int) -> str:
    """Return a file of whole batches of a split's nodes."""
    nodes = gnnstore.open(store).splits[split]
    ids = np.random.default_rng(1).permutation(np.asarray(nodes))[: num_batches * batch_size]
    path = store.with_name(f"{split}-{store.stem}.npy")
    np.save(path, ids)
    return str(path)


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """Yield strategies and shares of memory; a strategy without a limit once."""
    yield IN_MEMORY, 1.0
    for share in arguments.shares:
        yield from ((name, share) for name in arguments.strategies if WAYS[name].is_limited)


def run(task: Task, given: Found, *, is_limited: bool) -> Found | str:
    """Train in a process of its own; return why it did not if it did not."""
    way = WAYS[task.strategy]
    if way.is_even:
        given = given | {"num_epochs": 1}
    is_limited = is_limited and way.is_limited
    return run_task(task, json.dumps(given), worker=WORKER, is_limited=is_limited)


def row(name: str, share: float, rounds: list[Found], in_memory: list[Found]) -> tuple[str, str]:
    """Return the row of a table for a strategy with some memory."""
    pairs = list(zip(rounds, in_memory, strict=True))

    def over(k: int) -> list[float]:
        return [f["epochs"][k]["seconds"] / m["epochs"][k]["seconds"] for f, m in pairs]

    alone = [f["alone"]["seconds"] / m["epochs"][-1]["seconds"] for f, m in pairs]
    seconds = [f["epochs"][-1]["seconds"] for f in rounds]
    waiting = median(f["epochs"][-1]["waiting"] / f["epochs"][-1]["seconds"] for f in rounds)
    first, tried = (median(f["epochs"][0][key] for f in rounds) for key in ("first", "tried"))
    accuracy = median(f["accuracy"] for f in rounds)
    value = f"{spread(over(-1))} x {IN_MEMORY} ({median(seconds):.1f} s), the first epoch "
    value += f"{spread(over(0))} x; {waiting:.0%} waiting; loading alone {spread(alone)} x; "
    value += f"first batch after {first:.1f} s, 40 after {tried:.1f} s; accuracy {accuracy:.3f}"
    return (name if name == IN_MEMORY else f"{name}, {share:.0%} of the features"), value


def compare(arguments: argparse.Namespace, directory: Path, *, is_limited: bool) -> None:
    """Make the store, train in turns, and print."""
    store = make_store(directory, arguments.scale)
    num_batches, batch_size = arguments.batches, arguments.batch_size
    task = Task(
        strategy="",
        store=str(store),
        seeds=seeds_of(store, "train", num_batches, batch_size),
        share=1.0,
        slack_bytes=arguments.slack,
        fanouts=FANOUTS,
        batch_size=batch_size,
        seed=SEED,
    )
    given = {
        "hidden": arguments.hidden,
        "edge_format": arguments.edge_format,
        "tests": seeds_of(store, "test", TEST_BATCHES, batch_size),
        "num_epochs": NUM_EPOCHS,
    }
    found: dict[Case, list[Found]] = {}
    problems: dict[Case, str] = {}
    devices = []
    for _ in range(arguments.repeats):
        for case in cases(arguments):
            if case in problems:
                continue
            devices.append(measure_disk_of(gnnstore.open(store)))
            one = replace(task, strategy=case[0], share=case[1])
            answer = run(one, given, is_limited=is_limited)
            if isinstance(answer, str):
                problems[case] = answer
            else:
                found.setdefault(case, []).append(answer)
                seconds = [round(epoch["seconds"], 1) for epoch in answer["epochs"]]
                print(f"{case[0]}, {case[1]:.0%}: epochs of {seconds} s", file=sys.stderr)
    in_memory = found.pop((IN_MEMORY, 1.0), None)
    if in_memory is None:
        raise SystemExit(problems[IN_MEMORY, 1.0])
    rows = [device_row(devices), row(IN_MEMORY, 1.0, in_memory, in_memory)]
    rows += [row(*case, rounds, in_memory[: len(rounds)]) for case, rounds in found.items()]
    rows += [(f"{name}, {share:.0%}", problem) for (name, share), problem in problems.items()]
    if not is_limited:
        rows.append(("no limit", "the page cache serves reads"))
    held = found.get((HELD_TO_THE_BAR, SHARE_OF_THE_BAR))
    if held and is_limited and arguments.scale >= BAR_SCALE:
        pairs = zip(held, in_memory, strict=False)
        times = median(f["epochs"][-1]["seconds"] / m["epochs"][-1]["seconds"] for f, m in pairs)
        rows.append((f"the bar of {BAR} x", "reached" if times <= BAR else "MISSED"))
    document = report(
        f"training, epochs of {num_batches} batches of {batch_size}, 2^{arguments.scale} nodes, "
        f"edges in {arguments.edge_format.upper()}",
        rows,
        as_json=arguments.json,
        device=device_numbers(devices),
        num_nodes=1 << arguments.scale,
        num_batches=num_batches,
        batch_size=batch_size,
        feature_bytes=gnnstore.open(store).features.spec.num_bytes,
        is_limited=is_limited,
        in_memory=in_memory,
        outcomes=[
            {"strategy": name, "share": share, "rounds": rounds}
            for (name, share), rounds in found.items()
        ],
        problems={f"{name} {share}": problem for (name, share), problem in problems.items()},
    )
    if arguments.plot is not None:
        draw_epochs(document, arguments.plot)


def main() -> None:
    """Read the options, see whether a limit can be had, and compare."""
    options = parser(__doc__)
    options.set_defaults(repeats=1)
    options.add_argument("--scale", type=int, default=20, help="2^scale nodes (20)")
    options.add_argument("--batches", type=int, default=64, help="of an epoch (64)")
    options.add_argument("--batch-size", type=int, default=BATCH_SIZE, help=f"({BATCH_SIZE})")
    options.add_argument("--edge-format", choices=["coo", "csr"], default="coo", help="(coo)")
    options.add_argument("--hidden", type=int, default=64, help="width of the layers (64)")
    options.add_argument("--strategies", type=several(choices=ALL), default=[*DEFAULT])
    options.add_argument("--shares", type=several(float), default=[*SHARES], help="(1.0,0.1)")
    options.add_argument("--all", action="store_true", help="all strategies; 100, 30, 10 and 5 %%")
    options.add_argument("--plot", type=Path, help="picture to be drawn, .svg or .png")
    add_limit_options(options)
    arguments = options.parse_args()
    if arguments.all:
        arguments.strategies, arguments.shares = [*ALL], [*ALL_SHARES]
    if arguments.quick:
        arguments.scale, arguments.batches, arguments.batch_size = 14, 4, 128
        arguments.strategies, arguments.shares = [HELD_TO_THE_BAR], [SHARE_OF_THE_BAR]
    if arguments.plot is not None:
        check_picture(arguments.plot)
    is_limited = bool(limit_version(arguments))
    with directory_of(arguments) as directory:
        compare(arguments, directory, is_limited=is_limited)


if __name__ == "__main__":
    main()
