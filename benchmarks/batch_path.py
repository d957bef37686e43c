"""The way of a batch: functions, classes and modules of gnnstore that it enters, by kind of loader.

Batches 5 to 8 of a second epoch are loaded with a profiler in every thread (`sys.setprofile`), and
what is called meanwhile is counted: in the threads that prepare batches and in those that make the
next superbatch too. This is what a reader needs to follow a batch from its seeds to `Data`,
without compiled kernels and what runs once beforehand.

One rule for all: distinct functions, nested ones too, without comprehensions, lambdas and methods
that `dataclass` generates; and the classes in whose bodies these functions stand.

A superbatch has four batches here, so that while one is followed the next is sampled, planned and
packed, and a state of partitions a few, so that one is left. The consumer pauses for each batch as
a model does. Threads differ from run to run in what they have done before batch 5, so the calls of
all `--repeats` are put together.
Run `python -m benchmarks.batch_path`; with `--functions` it lists what is called in each module.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.harness import parser, report, several
from gnnstore import LinkNeighborLoader, NeighborLoader, PartitionPolicy
from gnnstore.converters import from_planted_types, from_rmat
from gnnstore.converters.stores.partition import partition
from gnnstore.tools import cli

FANOUTS, SEED, CACHE_BYTES = (5, 5), 0, 100_000
FIRST, LAST, SUPERBATCH = 5, 8, 4
NUM_PARTITIONS, CAPACITY = 8, 4
PAUSE_SECONDS = 0.05

Names = set[tuple[str, str]]  # module and qualified name


@dataclass
class Stores:
    """The stores that loaders read, made when one first asks for them."""

    directory: Path
    made: dict[str, Path] = field(default_factory=dict)

    def of(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the path of a store."""
        if name not in self.made:
            self.made[name] = self.directory / name
            make(self.made[name])
        return self.made[name]

    def rmat(self) -> Path:
        """Return a graph of one type."""
        return self.of("rmat.gnn", lambda path: from_rmat(path, scale=12, feature_dim=64))

    def typed(self) -> Path:
        """Return a graph of three node types."""
        return self.of("typed.gnn", lambda path: from_planted_types(path, num_papers=4096))

    def partitioned(self) -> Path:
        """Return the graph of one type in partitions."""

        def make(path: Path) -> None:
            partition(from_rmat(path, scale=12, feature_dim=64), NUM_PARTITIONS)

        return self.of("partitioned.gnn", make)

    def packed(self) -> Path:
        """Return two packed epochs of `nodes`, made by the command of this package."""
        options = {
            "--num-neighbors": ",".join(map(str, FANOUTS)),
            "--batch-size": 64,
            "--input-nodes": "train",
            "--epochs": 2,
            "--seed": SEED,
            "--cache-bytes": CACHE_BYTES,
            "--superbatch": SUPERBATCH,
        }
        words = [str(word) for pair in options.items() for word in pair]

        def make(path: Path) -> None:
            with redirect_stdout(StringIO()):
                cli.main(["pack", str(self.rmat()), "--quiet", "--output", str(path), *words])

        return self.of("packed", make)


COMMON: dict[str, Any] = {
    "num_neighbors": list(FANOUTS),
    "shuffle": True,
    "seed": SEED,
    "num_threads": 2,
}
CACHED: dict[str, Any] = {"cache_bytes": CACHE_BYTES}
PLANNED: dict[str, Any] = {**CACHED, "superbatch": SUPERBATCH}


def nodes(store: Path, **options: Any) -> NeighborLoader:
    """Return a loader of the training nodes."""
    return NeighborLoader(store, input_nodes="train", batch_size=64, **COMMON, **options)


def typed_nodes(store: Path, **options: Any) -> NeighborLoader:
    """Return a loader of the training nodes of one type."""
    train = ("paper", "train")
    return NeighborLoader(store, input_nodes=train, batch_size=64, **COMMON, **options)


def links(store: Path, **options: Any) -> LinkNeighborLoader:
    """Return a loader of all edges with negatives, as link prediction trains."""
    training: dict[str, Any] = {"neg_sampling": "binary", "exclude_edges": "reverse"}
    return LinkNeighborLoader(store, batch_size=1024, **training, **COMMON, **options)


WAYS: dict[str, Callable[[Stores], Any]] = {
    "memory": lambda of: nodes(of.rmat(), strategy="memory"),
    "static": lambda of: nodes(of.rmat(), strategy="static", **CACHED),
    "mmap": lambda of: nodes(of.rmat(), strategy="mmap"),
    "packed epochs": lambda of: nodes(of.rmat(), packed=of.packed()),
    "belady": lambda of: nodes(of.rmat(), strategy="belady", **PLANNED),
    "packed": lambda of: nodes(of.rmat(), strategy="packed", **PLANNED),
    "links in memory": lambda of: links(of.rmat(), strategy="memory"),
    "links packed": lambda of: links(of.rmat(), strategy="packed", **PLANNED),
    "types packed": lambda of: typed_nodes(of.typed(), strategy="packed", **PLANNED),
    "partitions": lambda of: nodes(
        of.partitioned(), partitions=PartitionPolicy("dispersed", capacity=CAPACITY)
    ),
}


class Profile:
    """Notes the functions of gnnstore that are called, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.functions: Names = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take a call."""
        if not self.is_on or event != "call":
            return
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        # Methods that `dataclass` wrote are in no file; comprehensions and lambdas have no name.
        is_written = code.co_filename != "<string>" and not code.co_name.startswith("<")
        if is_written and module.partition(".")[0] == "gnnstore":
            self.functions.add((module, code.co_qualname))


def classes_of(functions: Names) -> Names:
    """Return the classes in which functions are written."""
    owners = {(module, name.rpartition(".")[0]) for module, name in functions}
    return {(module, owner) for module, owner in owners if owner and not owner.endswith("<locals>")}


def modules_of(functions: Names) -> list[str]:
    """Return the modules in which functions are written."""
    return sorted({module for module, _ in functions})


def trace(make: Callable[[Stores], Any], stores: Stores) -> Names:
    """Return the functions that some batches of a second epoch of a loader enter."""
    profile = Profile()
    gc.disable()  # what it calls belongs to no batch
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        loader = make(stores)
        for _ in loader:
            pass
        batches = iter(loader)
        for number in range(1, LAST + 1):
            profile.is_on = number >= FIRST
            next(batches)
            time.sleep(PAUSE_SECONDS)
        profile.is_on = False
        for _ in batches:
            pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        gc.enable()
    return profile.functions


def by_folder(modules: Iterable[str]) -> list[str]:
    """Return a line for each package, with its modules."""
    lines = []
    for folder, names in groupby(sorted(modules), key=lambda name: name.rpartition(".")[0]):
        lines.append(f"{folder or 'gnnstore'}: {', '.join(n.rpartition('.')[2] for n in names)}")
    return lines


def by_module(functions: Names) -> list[str]:
    """Return a line for each module, with its functions that were called."""
    return [
        f"{module}: {', '.join(name.replace('.<locals>', '') for _, name in names)}"
        for module, names in groupby(sorted(functions), key=lambda function: function[0])
    ]


def main() -> None:
    """Trace each kind of loader, and print what its batches enter."""
    options = parser(__doc__)
    options.set_defaults(repeats=5)
    options.add_argument(
        "--functions", action="store_true", help="print the functions of each module too"
    )
    options.add_argument("--ways", type=several(choices=WAYS), default=[*WAYS], help="(all)")
    arguments = options.parse_args()
    repeats = min(arguments.repeats, 2) if arguments.quick else arguments.repeats
    entered: dict[str, Names] = {}
    rows: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-") as temporary:
        stores = Stores(Path(temporary))
        for name in arguments.ways:
            runs = [trace(WAYS[name], stores) for _ in range(repeats)]
            functions = entered[name] = set().union(*runs)
            classes, modules = classes_of(functions), modules_of(functions)
            counts = f"{len(functions)} functions, {len(classes)} classes, {len(modules)} modules"
            rows.append((name, counts))
            lines = by_module(functions) if arguments.functions else by_folder(modules)
            rows += [("", line) for line in lines]
    report(
        f"what batches {FIRST} to {LAST} of a second epoch enter in gnnstore",
        rows,
        as_json=arguments.json,
        num_functions={name: len(functions) for name, functions in entered.items()},
        num_classes={name: len(classes_of(functions)) for name, functions in entered.items()},
        modules={name: modules_of(functions) for name, functions in entered.items()},
    )


if __name__ == "__main__":
    main()
