"""Sizes and predictions stay what they were: a grid of budgets, compared with what is recorded.

Where a loader has the topology, how many rows it caches and how many batches it plans at a time
follow from the budgets, the graph and the measurements of the disk alone, once processors and
clocks are made to say the same always. So do the predictions of `gnnstore predict` and the
estimates of `gnnstore pack`. `record_frozen.py` records what is in
`tests/data/frozen/sizes.json`: only where sizes are meant to change, and then the difference that
a test prints is the list of changes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import BudgetError, NeighborLoader
from gnnstore.budget import limits
from gnnstore.disk import measure as first_measurement
from gnnstore.disk.profile import save_profile
from gnnstore.strategies import auto as optimizer
from gnnstore.strategies.predict import sampled_epoch
from gnnstore.strategies.predict.workload import TableReads
from gnnstore.testing.graphs import GraphArrays
from gnnstore.tools.cli import main
from tests.support.disks import usual_profile
from tests.support.effort import choose, paired
from tests.support.packed import pack

FROZEN = Path(__file__).parents[1] / "data" / "frozen" / "sizes.json"
SHOWN = (
    *("strategy", "topology", "cache", "cache_rows", "superbatch", "num_threads"),
    *("prefetch_batches", "predicted_epoch_seconds"),
)
MEASURED = {"sampling_seconds", "planning_seconds"}

Case = dict[str, Any]
Found = dict[str, str]


def fix_the_machine(patch: pytest.MonkeyPatch, directory: Path, graph: str) -> None:
    """Have disk, memory, processors and clocks say the same always, on any machine.

    The one place here that knows where they are asked.
    """
    patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
    patch.setenv("GNNSTORE_IO_ENGINE", "pread")
    patch.setattr(first_measurement, "_kept", {})
    save_profile(usual_profile(directory, **DISKS[graph]))
    patch.setattr(optimizer, "SMALLEST_BYTES", 1 << 20)
    patch.setattr(sampled_epoch, "gather_bandwidth", lambda *_, **__: 2e9)
    patch.setattr(limits, "available_bytes", lambda: 60_000_000)
    patch.setattr(limits, "group_limit_bytes", lambda: None)
    patch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})

    # A quarter of a second between any two looks at the clock by which sampling is timed.
    ticks = count()
    patch.setattr(sampled_epoch, "perf_counter", lambda: next(ticks) / 4)

    reads_of = TableReads.of

    def reads_of_sectors(*arguments: Any) -> Any:
        reads = reads_of(*arguments)
        return replace(reads, alignments=(512,) * len(reads.alignments))

    patch.setattr(TableReads, "of", reads_of_sectors)


# --- graphs and cases ------------------------------------------------------------------------


def _graph(num_nodes: int, num_edges: int, **attributes: Any) -> GraphArrays:
    rng = np.random.default_rng(0)
    edges = (num_nodes * rng.random((2, num_edges)) ** 2).astype(np.int64)
    splits = {"train": np.arange(0, num_nodes, 4)}
    return GraphArrays(num_nodes, edges, attributes, splits)


def wide() -> GraphArrays:
    """Return a graph whose rows take nearly all of it: 84 MB."""
    num_nodes = 20_000
    x = np.zeros((num_nodes, 1024), np.float32)
    return _graph(num_nodes, 200_000, x=x, y=np.arange(num_nodes))


def narrow() -> GraphArrays:
    """Return a graph whose topology takes as much as its rows, with attributes of edges: 22 MB."""
    return _graph(
        40_000,
        400_000,
        x=np.zeros((40_000, 40), np.float32),
        h=np.zeros((40_000, 90), np.int8),
        edge_attr=np.zeros((400_000, 20), np.int8),
    )


GRAPHS: dict[str, Callable[[], GraphArrays]] = {"wide": wide, "narrow": narrow}
# The first lies where single rows come slowly, beside reads in order.
_SLOW = {4096: {1: 4000.0, 64: 20_000.0}, 65536: {1: 800.0, 64: 1200.0}}
DISKS: dict[str, dict[str, Any]] = {"wide": {"random_reads_per_second": _SLOW}, "narrow": {}}
MEMORY = (
    *("8MB", "12MB", "17MB", "21MB", "27MB", "34MB", "45MB", "75MB", "150MB"),
    *("auto", None),
)
DISK, LITTLE_DISK = "2GB", "3MB"
CACHE = {"cache_bytes": "4MB"}
AHEAD: tuple[Case, ...] = (
    {},
    {"disk": LITTLE_DISK},
    {"topology": "disk"},
    {"superbatch": 6},
    {**CACHE, "superbatch": 6, "topology": "mmap"},
    {"num_threads": None},
)
AUTO: tuple[Case, ...] = (
    {},
    {"disk": LITTLE_DISK},
    {"topology": "disk", "num_threads": None},
    {"cache": "degree"},
)
LOADERS: tuple[Case, ...] = (
    {"strategy": "memory"},
    *({"strategy": "mmap", "topology": where} for where in ("auto", "mmap")),
    *({"strategy": "direct", "topology": where} for where in ("auto", "mmap", "disk")),
    {"strategy": "static"},
    {"strategy": "static", "cache": "degree"},
    {"strategy": "static", "topology": "disk", "num_threads": None},
    {"strategy": "static", "topology": "mmap", **CACHE},
    *({"strategy": "belady", **options} for options in AHEAD),
    *({"strategy": "packed", **options} for options in AHEAD),
    {"strategy": "packed", "cache": "degree"},
    *({"strategy": "auto", **options} for options in AUTO),
    {"packed": "base"},
)
FANOUTS = (5, 5)
SAMPLED: Case = {"batch_size": 64, "shuffle": True, "seed": 1}
COMMAND = ("--num-neighbors", "5,5", "--batch-size", 64, "--seed", 1, "--threads", 2, "--json")
COMMANDS: tuple[tuple[Any, ...], ...] = (
    *(
        ("predict", "--memory", memory, "--disk", disk, "--batches", 20)
        for memory, disk in (("16MB", DISK), ("34MB", DISK), ("60MB", LITTLE_DISK), ("150MB", DISK))
    ),
    *(
        ("pack", "--estimate", "--name", "other", "--memory", memory, *more)
        for memory, *more in (
            ("24MB",),
            ("48MB", "--cache-bytes", "5MB"),
            ("70MB",),
            ("70MB", "--epochs", 5, "--superbatch", 10),
            ("100MB", "--cache-bytes", "5MB", "--cache-by", "degree"),
            ("100MB", "--disk", "30MB", "--epochs", 2),
            ("100MB", "--disk", "1MB"),
        )
    ),
)


def _named(case: Case) -> str:
    return ", ".join(f"{name}={value}" for name, value in case.items())


def _written(words: tuple[Any, ...]) -> str:
    return " ".join(map(str, words))


# --- what is found ---------------------------------------------------------------------------


def _rounded(value: Any) -> Any:
    """Return a number to six digits, so that the order of a sum does not matter."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def loader_sizes(store: Path, case: Case, budgets: Sequence[str | None] = MEMORY) -> Found:
    """Return for each budget of memory what a loader takes, or why it cannot."""
    found = {}
    uses_disk = case.get("strategy") in {"belady", "packed", "auto"}
    options = {"num_threads": 2, **({"disk": DISK} if uses_disk else {}), **SAMPLED, **case}
    for memory in budgets:
        try:
            stats = NeighborLoader(store, list(FANOUTS), "train", memory=memory, **options).stats()
        except BudgetError as error:
            text = f"BudgetError: {error}".replace(str(store), "STORE")
        else:
            values = {name: _rounded(getattr(stats, name)) for name in SHOWN}
            text = " ".join(f"{name}={value}" for name, value in values.items() if value)
        found[f"memory={memory}"] = text
    return found


def command_numbers(store: Path, words: tuple[Any, ...]) -> Found:
    """Return the numbers that a command prints, by name, or its error."""
    output, errors = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        status = main([str(word) for word in (words[0], store, *words[1:], *COMMAND)])
    if status:
        return {f"exit status {status}": errors.getvalue().replace(str(store), "STORE")}
    document: dict[str, Any] = json.loads(output.getvalue())
    del document["store"]
    return dict(_lines(document, ""))


def _lines(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield what a document holds: a line for each value, and for each entry of a list."""
    if isinstance(value, dict):
        for inner, entry in _unmeasured(value).items():
            yield from _lines(entry, f"{name}.{inner}" if name else inner)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for position, entry in enumerate(value):
            yield f"{name}.{position}", _text(entry)
    else:
        yield name, str(_rounded(value))


def _unmeasured(values: dict[str, Any]) -> dict[str, Any]:
    """Return values without those that a clock tells that runs on."""
    return {name: values[name] for name in values if name not in MEASURED}


def _text(value: Any) -> str:
    """Return values and their names on one line."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{name}: {_text(entry)}" for name, entry in _unmeasured(value).items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return str(_rounded(value))


def _store(graph: str, directory: Path) -> Path:
    """Return the store of a graph, with packed epochs."""
    store = GRAPHS[graph]().write(directory / f"{graph}.gnn")
    sizes: Case = {**CACHE, "memory": "500MB", "superbatch": 10}
    pack(store, FANOUTS, "train", epochs=1, **sizes, **SAMPLED)
    return store


def record(directory: Path) -> dict[str, Found]:
    """Return what is to be recorded."""
    recorded: dict[str, Found] = {}
    for graph in GRAPHS:
        store = _store(graph, directory)
        with pytest.MonkeyPatch.context() as patch:
            fix_the_machine(patch, directory, graph)
            for case in LOADERS:
                recorded[f"{graph}: {_named(case)}"] = loader_sizes(store, case)
            for words in COMMANDS:
                recorded[f"{graph}: {_written(words)}"] = command_numbers(store, words)
    return recorded


# --- and now as it was -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def frozen() -> dict[str, Found]:
    found: dict[str, Found] = json.loads(FROZEN.read_text())
    return found


@pytest.fixture(scope="module", params=GRAPHS)
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _store(request.param, tmp_path_factory.mktemp("frozen"))


@pytest.fixture
def machine(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_the_machine(monkeypatch, tmp_path, graph.stem)


def differences(found: Found, recorded: Found) -> str:
    """Return what differs, an entry a line, as it was and as it is."""
    lines = []
    for name in dict.fromkeys((*recorded, *found)):
        was, is_now = recorded.get(name, "nothing"), found.get(name, "nothing")
        if was != is_now:
            lines.append(f"{name}\n  recorded: {was}\n  found:    {is_now}")
    return "\n".join(lines)


@pytest.mark.filterwarnings("ignore:.*leaves strategy 'mmap' only")
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("case", LOADERS, ids=_named)
def test_loaders_take_what_is_recorded(graph: Path, frozen: dict[str, Found], case: Case) -> None:
    # The short form tries one or two budgets for each case, others on the other graph.
    first = LOADERS.index(case) + len(MEMORY) // 2 * [*GRAPHS].index(graph.stem)
    budgets = choose(MEMORY[first % 10 :: 10], MEMORY)
    recorded = frozen[f"{graph.stem}: {_named(case)}"]
    recorded = {name: recorded[name] for name in (f"memory={memory}" for memory in budgets)}
    if difference := differences(loader_sizes(graph, case, budgets), recorded):
        pytest.fail(f"{graph.stem}, {_named(case)}:\n{difference}", pytrace=False)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("words", "graph"), paired(COMMANDS, GRAPHS, 1), ids=str, indirect=["graph"]
)
def test_commands_say_what_is_recorded(
    graph: Path, frozen: dict[str, Found], words: tuple[Any, ...]
) -> None:
    recorded = frozen[f"{graph.stem}: {_written(words)}"]
    if difference := differences(command_numbers(graph, words), recorded):
        pytest.fail(f"{graph.stem}, gnnstore {_written(words)}:\n{difference}", pytrace=False)


def test_all_that_is_recorded_is_compared(frozen: dict[str, Found]) -> None:
    cases = [*map(_named, LOADERS), *map(_written, COMMANDS)]
    assert list(frozen) == [f"{graph}: {case}" for graph in GRAPHS for case in cases]
