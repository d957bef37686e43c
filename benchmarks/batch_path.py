"""The way of a batch: which modules of gnnstore it enters, by strategy.

Batches 5 to 8 of a second epoch are loaded with a profiler in every thread (`sys.setprofile`), and
each module of gnnstore whose functions are called meanwhile is counted: in the threads that prepare
batches and in those that make the next superbatch too. These are the modules that a reader needs to
follow a batch from its seeds to `Data`, without compiled kernels and what runs once beforehand.

A superbatch has four batches here, so that while one is followed the next is sampled, planned and
packed. The consumer pauses for each batch as a model does. Threads differ from run to run in what
they have done before batch 5, so the modules of all `--repeats` are put together.
Run `python -m benchmarks.batch_path`; with `--functions` it lists what is called in each module.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.harness import parser, report, several
from gnnstore import NeighborLoader
from gnnstore.converters import from_rmat
from gnnstore.strategies.builtin import STRATEGIES

FANOUTS, BATCH_SIZE, SEED, CACHE_BYTES = (5, 5), 64, 0, 100_000
FIRST, LAST, SUPERBATCH = 5, 8, 4
PAUSE_SECONDS = 0.05
WAYS: dict[str, dict[str, Any]] = {
    **{
        each.name: {
            "strategy": each.name,
            **({"cache_bytes": CACHE_BYTES} if each.caches or each.plans else {}),
            **({"superbatch": SUPERBATCH} if each.plans else {}),
        }
        for each in STRATEGIES
        if not each.alias_of
    },
    "packed epochs": {},
}


class Profile:
    """Notes the functions that are called, by module, while it is told to."""

    def __init__(self) -> None:
        self.is_on = False
        self.functions: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take a call."""
        if self.is_on and event == "call":
            module = frame.f_globals.get("__name__", "")
            self.functions.add((module, frame.f_code.co_qualname))


def trace(store: Path, **options: Any) -> set[tuple[str, str]]:
    """Return the functions of gnnstore that some batches of a second epoch enter, by module."""
    profile = Profile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        loader = NeighborLoader(
            store,
            list(FANOUTS),
            "train",
            batch_size=BATCH_SIZE,
            shuffle=True,
            seed=SEED,
            num_threads=2,
            **options,
        )
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
    return {(m, name) for m, name in profile.functions if m.partition(".")[0] == "gnnstore"}


def pack(store: Path, output: Path) -> Path:
    """Return two packed epochs, made by the command of this package."""
    command = [sys.executable, "-m", "gnnstore", "pack", str(store), "--quiet"]
    arguments = {
        "--output": output,
        "--num-neighbors": ",".join(map(str, FANOUTS)),
        "--batch-size": BATCH_SIZE,
        "--input-nodes": "train",
        "--epochs": 2,
        "--seed": SEED,
        "--cache-bytes": CACHE_BYTES,
        "--superbatch": SUPERBATCH,
    }
    words = [str(word) for pair in arguments.items() for word in pair]
    subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL)
    return output


def by_folder(modules: Iterable[str]) -> list[str]:
    """Return a line for each package, with its modules."""
    lines = []
    for folder, names in groupby(sorted(modules), key=lambda name: name.rpartition(".")[0]):
        lines.append(f"{folder or 'gnnstore'}: {', '.join(n.rpartition('.')[2] for n in names)}")
    return lines


def by_module(functions: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each module, with its functions that were called."""
    return [
        f"{module}: {', '.join(name.replace('.<locals>', '') for _, name in names)}"
        for module, names in groupby(sorted(functions), key=lambda function: function[0])
    ]


def main() -> None:
    """Trace each strategy, and print the modules."""
    options = parser(__doc__)
    options.set_defaults(repeats=5)
    options.add_argument(
        "--functions", action="store_true", help="print the functions of each module too"
    )
    options.add_argument("--strategies", type=several(choices=WAYS), default=[*WAYS], help="(all)")
    arguments = options.parse_args()
    repeats = min(arguments.repeats, 2) if arguments.quick else arguments.repeats
    entered: dict[str, list[str]] = {}
    rows: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="gnnstore-benchmark-") as temporary:
        store = from_rmat(Path(temporary) / "rmat.gnn", scale=12, feature_dim=64)
        for name in arguments.strategies:
            given = WAYS[name]
            if name == "packed epochs":
                given = {"packed": pack(store, Path(temporary) / "packed")}
            found = [trace(store, **given) for _ in range(repeats)]
            functions = set().union(*found)
            entered[name] = sorted({module for module, _ in functions})
            counts = [len({module for module, _ in one}) for one in found]
            spread = f"{min(counts)} to {max(counts)} in one run"
            rows.append((name, f"{len(entered[name])} modules ({spread})"))
            lines = by_module(functions) if arguments.functions else by_folder(entered[name])
            rows += [("", line) for line in lines]
    report(
        f"modules of gnnstore that batches {FIRST} to {LAST} of a second epoch enter",
        rows,
        as_json=arguments.json,
        num_modules={name: len(modules) for name, modules in entered.items()},
        modules=entered,
    )


if __name__ == "__main__":
    main()
