"""`memory=` is a promise: kept where the kernel kills a process that breaks it.

Each script starts, imports what it needs, and then moves itself into a memory cgroup of its
own, so that the limit counts what happens from then on: the budget, page cache included, and
a fixed allowance for what Python and the allocator take besides.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from gnnstore.converters import ConvertOptions, from_numpy, partition, reorder
from gnnstore.converters.edges.columns import estimate_peak_bytes
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.formats import PartitionsReader, StoreReader
from tests.support.disks import keep_usual_profile
from tests.support.effort import choose, is_long
from tests.support.forks import ForkServer
from tests.support.twins.reads import available

ALLOWANCE_BYTES = 48 * 10**6
NUM_NODES = choose(200_000, 300_000)
NUM_COPIED_EDGES = 1_200_000
TIMES_THE_BUDGET = choose(2, 5)  # what goes through a loader
AHEAD: dict[str, Any] = choose(
    {"prefetch_batches": 1}, {}
)  # mapped rows are costly where memory is short
NUM_LINES = choose(2_000_000, 4_000_000)

Lines: TypeAlias = tuple[Path, int]  # a text of edges, and what its numbers are below

ENTER = """
import os, sys
from pathlib import Path
def enter(group):
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
"""

READ = """
import itertools, json, re
import torch
from gnnstore import NeighborLoader
torch.zeros(1)
store, group, options = sys.argv[1:]
def resident(field):
    return 1024 * int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
enter(group)
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
options = {"topology": "memory", "num_threads": 2} | json.loads(options)
most = options.pop("most_batches", None)
loader = NeighborLoader(
    store, [10, 10], "train", batch_size=256, shuffle=True, seed=0, **options
)
seen = 0
for epoch in range(2):
    for batch in itertools.islice(loader, most):
        seen += batch.num_nodes
stats = loader.stats()
print(json.dumps({
    "strategy": stats.strategy, "bytes_gathered": stats.bytes_gathered, "reads": stats.reads,
    "rows_read": stats.rows_read, "hit_rate": stats.hit_rate, "cache_rows": stats.cache_rows,
    "grown": resident("VmHWM") - before, "topology": stats.topology,
    "superbatch": stats.superbatch, "bytes_spilled": stats.bytes_spilled,
    "topology_bytes_read": stats.topology_bytes_read, "reason": stats.reason,
}))
"""

CONVERT = """
import numpy as np
from gnnstore.converters import ConvertOptions, from_numpy
source, output, group, memory = sys.argv[1:]
np.linalg.norm(np.zeros(3))
enter(group)
from_numpy(source, output, options=ConvertOptions(undirected=True, memory_bytes=int(memory)))
"""


SPLIT = """
import json
import numcodecs.zstd
import numpy as np
from gnnstore.converters import split_edges
source, output, group, memory = sys.argv[1:]
np.linalg.norm(np.zeros(3))
enter(group)
shares = (0.8, 0.1, 0.1)
split_edges(source, output, shares, num_negatives=2, strict=True)
print("split")
"""

REORDER = """
import numcodecs.zstd
import numpy as np
from gnnstore.converters import ConvertOptions, reorder
store, output, group, memory = sys.argv[1:]
np.linalg.norm(np.zeros(3))
enter(group)
reorder(store, output, "community", options=ConvertOptions(memory_bytes=int(memory)))
print("reordered")
"""

PARTITION = """
import numpy as np
from gnnstore.converters import partition
store, output, group, memory = sys.argv[1:]
np.linalg.norm(np.zeros(3))
enter(group)
partition(store, 16, output=output, memory_bytes=int(memory), train_first="train")
print("partitioned")
"""

CONVERT_TEXT = """
import pyarrow.csv
import numpy as np
from gnnstore.tools.cli import main
import gnnstore.tools.commands.convert, rich.progress, numpy.random
source, output, group, *words = sys.argv[1:]
np.linalg.norm(np.zeros(3))
enter(group)
sys.exit(main(["convert", "snap", source, output, "-q", *words]))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrays of a graph with a kilobyte of features and ten edges a node."""
    directory = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(0)
    np.save(directory / "x.npy", rng.random((NUM_NODES, 256), dtype=np.float32))
    np.save(directory / "edge_index.npy", rng.integers(0, NUM_NODES, (2, 10 * NUM_NODES)))
    np.save(directory / "train.npy", rng.permutation(NUM_NODES)[:20_000])
    return directory


@pytest.fixture(scope="module")
def store(source: Path) -> Path:
    return from_numpy(source, source / "a.gnn")


@pytest.fixture(scope="module")
def copied_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a graph of 123 MB of features and 1.2 million edges, five times what copies get."""
    directory = tmp_path_factory.mktemp("copied")
    rng, num_nodes = np.random.default_rng(0), 120_000
    np.save(directory / "x.npy", rng.random((num_nodes, 256), dtype=np.float32))
    np.save(directory / "edge_index.npy", rng.integers(0, num_nodes, (2, NUM_COPIED_EDGES)))
    np.save(directory / "train.npy", rng.permutation(num_nodes)[:8_000])
    return from_numpy(directory, directory / "a.gnn")


@pytest.fixture(scope="module")
def linked_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a graph of 300,000 nodes with 77 MB of features and 32 MB of edges, some nodes hubs.

    Without ids of the input's edges, which are mapped where the edges themselves are not: pages
    of a mapping count as resident, although they can be taken back.
    """
    directory = tmp_path_factory.mktemp("linked")
    rng = np.random.default_rng(0)
    num_nodes, num_edges = 300_000, 8_000_000
    np.save(directory / "x.npy", rng.random((num_nodes, 64), dtype=np.float32))
    sources = (num_nodes * rng.random(num_edges) ** 3).astype(np.int64)
    np.save(directory / "edge_index.npy", [sources, rng.integers(0, num_nodes, num_edges)])
    np.save(directory / "train.npy", rng.permutation(num_nodes)[:20_000])
    return from_numpy(directory, directory / "b.gnn", options=ConvertOptions(edge_ids=False))


@pytest.fixture(scope="module")
def lines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """Write lines of short numbers or long."""
    path = tmp_path_factory.mktemp("lines") / "edges.txt"
    ends = np.random.default_rng(0).integers(0, request.param, (NUM_LINES, 2))
    csv.write_csv(
        pa.table({"source": ends[:, 0], "target": ends[:, 1]}),
        path,
        csv.WriteOptions(include_header=False, delimiter=" "),
    )
    return path, request.param


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENTER + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def write_within(
    limited: tuple[Path, Path], script: str, source: Path, output: Path, memory: int
) -> Path:
    """Run a script that writes `output` within `memory` bytes, in a process of little more."""
    group, limit = limited
    limit.write_text(str(memory + ALLOWANCE_BYTES))
    finished = run(script, source, output, group, memory)
    assert finished.returncode == 0, finished.stderr or "killed by the kernel"
    return output


def read(
    forks: ForkServer, store: Path, limited: tuple[Path, Path], options: dict[str, Any]
) -> dict[str, Any]:
    """Run a loader in a process of little more than its budget, and return what it says."""
    group, limit = limited
    limit.write_text(str(options["memory"] + ALLOWANCE_BYTES))
    # What is read at a time, and what "auto" takes, depend on the disk.
    keep_usual_profile(store)
    # Of the test, and not of when this was imported: where measurements are kept is part of it.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = store, group, json.dumps(options)
    finished = forks.run(ENTER + READ, *arguments, environment=environment, own_memory=True)
    assert finished.returncode == 0, finished.stderr or "killed by the kernel"
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {
                "strategy": "mmap",
                "memory": choose(100, 150) * 10**6,
                "most_batches": choose(7, 20),
                **AHEAD,
            },
            {"mmap"},
        ),
        # Which of the two it takes depends on how fast the machine samples and plans.
        (
            {"strategy": "auto", "memory": 80 * 10**6, "most_batches": 12},
            {"direct", "belady"},
        ),
        ({"strategy": "memory", "memory": 600 * 10**6, "most_batches": 5}, {"memory"}),
    ][: choose(1, 3)],  # what "auto" chooses by is in `test_choosing_under_a_real_limit`
    ids=["mmap", "auto", "memory"][: choose(1, 3)],
)
def test_loader(
    forks: ForkServer,
    store: Path,
    limited: tuple[Path, Path],
    options: dict[str, Any],
    expected: set[str],
) -> None:
    found = read(forks, store, limited, {"topology": "auto"} | options)
    assert found["strategy"] in expected
    # Several times the budget went through it, where that does not hold all.
    assert (
        found["strategy"] == "memory"
        or found["bytes_gathered"] > TIMES_THE_BUDGET * options["memory"]
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "options",
    [
        # A few million reads take long: no more than what many times the budget needs.
        {
            "strategy": "direct",
            "memory": 120 * 10**6,
            "io_engine": "io_uring",
            "most_batches": choose(7, 16),
        },
        {
            "strategy": "static",
            "memory": 130 * 10**6,
            "cache": "frequency",
            "most_batches": choose(7, 16),
        },
        {"strategy": "direct", "memory": 120 * 10**6, "io_engine": "pread", "most_batches": 16},
        {"strategy": "static", "memory": 200 * 10**6, "cache": "degree", "most_batches": 26},
    ][: choose(2, 4)],
    ids=lambda options: "-".join(str(value) for value in list(options.values())[:3]),
)
def test_reads_from_disk(
    forks: ForkServer, store: Path, limited: tuple[Path, Path], options: dict[str, Any]
) -> None:
    """Page cache or not: the engines' buffers, the batches and the cache are all counted."""
    available(options.get("io_engine", "pread"), store.parent)
    found = read(forks, store, limited, options)
    assert found["strategy"] == options["strategy"]
    assert found["bytes_gathered"] > TIMES_THE_BUDGET * options["memory"]
    assert found["reads"] > 0
    assert found["grown"] <= options["memory"] + ALLOWANCE_BYTES
    if options["strategy"] == "static":
        # The budget is used: what the structure and the batches leave is mostly cache.
        assert found["cache_rows"] * 1024 > options["memory"] / 5
        assert found["hit_rate"] > 0.9 * found["cache_rows"] / NUM_NODES
    else:
        assert (found["cache_rows"], found["hit_rate"]) == (0, 0)


# Belady's is with its topology on disk, too, and packing is in a file of its own.
@pytest.mark.long("two of these caches are tested under a limit in both")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "options",
    [
        # Many reads a batch, so a few superbatches of few batches will do.
        {"strategy": "packed", "memory": 150 * 10**6, "most_batches": 30},
        {"strategy": "belady", "memory": 100 * 10**6, "most_batches": 20},
        {"strategy": "packed", "memory": 250 * 10**6, "num_threads": 4, "most_batches": 30},
        {"strategy": "belady", "memory": 250 * 10**6, "most_batches": 30},
    ],
    ids=lambda options: f"{options['strategy']}-{options['memory'] // 10**6}MB",
)
def test_planned_caches(
    forks: ForkServer, store: Path, limited: tuple[Path, Path], options: dict[str, Any]
) -> None:
    """Traces, plans, what makes them, sampled subgraphs, packing: all of it beside the rows."""
    found = grown_within_budget(forks, store, limited, options)
    assert found["superbatch"] >= 2
    assert found["bytes_spilled"] > 0 or options["strategy"] != "packed"
    assert found["cache_rows"] > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "belady", "memory": 80 * 10**6, "most_batches": choose(14, 25)},
        {"strategy": "packed", "memory": 120 * 10**6, "most_batches": 40},
        {"strategy": "static", "memory": 80 * 10**6, "most_batches": 25},
    ][: choose(1, 3)],
    ids=lambda options: f"{options['strategy']}-{options['memory'] // 10**6}MB",
)
def test_topology_on_disk(
    forks: ForkServer, linked_store: Path, limited: tuple[Path, Path], options: dict[str, Any]
) -> None:
    """The neighbour cache while it is chosen and after, and what batches are sampled in."""
    found = grown_within_budget(forks, linked_store, limited, options | {"topology": "disk"})
    assert found["topology"] == "disk"
    assert found["topology_bytes_read"] > 10**6
    assert found["cache_rows"] > 0


@pytest.mark.timeout(600)
def test_pinned_rows(forks: ForkServer, linked_store: Path, limited: tuple[Path, Path]) -> None:
    """Pinned rows, their index, and filling the cache with them; plans in memory."""
    options = {"strategy": "belady", "memory": 130 * 10**6, "disk": "0B"}
    options |= {"most_batches": choose(28, 40)}
    found = grown_within_budget(forks, linked_store, limited, options)
    assert "of them pinned" in found["reason"]
    assert found["hit_rate"] > 0.5


def grown_within_budget(
    forks: ForkServer, store: Path, limited: tuple[Path, Path], options: dict[str, Any]
) -> dict[str, Any]:
    """Run a loader under a limit, check how far it has grown, and return what it says."""
    found = read(forks, store, limited, options)
    assert found["strategy"] == options["strategy"]
    assert found["bytes_gathered"] > 2 * options["memory"]
    assert found["grown"] <= options["memory"] + ALLOWANCE_BYTES
    return found


@pytest.mark.timeout(600)
def test_converter(source: Path, limited: tuple[Path, Path], tmp_path: Path) -> None:
    """To sort the edges in memory would take 125 MB."""
    made = write_within(limited, CONVERT, source, tmp_path / "b.gnn", 40 * 10**6)
    assert StoreReader.open(made).schema.node.num_nodes


@pytest.mark.long("the test before is in both")
@pytest.mark.timeout(600)
def test_converting_four_times_the_budget(limited: tuple[Path, Path], tmp_path: Path) -> None:
    """Sorting edges in memory takes four times as much; on disk it is the same store."""
    source = tmp_path / "edges"
    source.mkdir()
    num_nodes, num_edges = 700_000, 8_000_000
    rng = np.random.default_rng(0)
    np.save(source / "edge_index.npy", rng.integers(0, num_nodes, (2, num_edges)))
    np.save(source / "num_nodes.npy", np.array(num_nodes))
    rules = EdgeRules(undirected=True)
    memory = estimate_peak_bytes(rules, num_edges, num_nodes, 0) // 4
    whole = from_numpy(source, tmp_path / "a.gnn", options=ConvertOptions(undirected=True))
    made = write_within(limited, CONVERT, source, tmp_path / "b.gnn", memory)
    # The uuid is derived from the checksums of all bytes.
    assert StoreReader.open(made).uuid == StoreReader.open(whole).uuid


@pytest.mark.timeout(600)
def test_partitioning_five_times_the_budget(
    copied_store: Path, limited: tuple[Path, Path], tmp_path: Path
) -> None:
    """Edges and rows are put in order on disk; the result is that with all memory there is."""
    made = write_within(limited, PARTITION, copied_store, tmp_path / "small", 52 * 10**6)
    whole = partition(copied_store, 16, output=tmp_path / "whole", train_first="train")
    assert PartitionsReader.open(made).uuid == PartitionsReader.open(whole).uuid


@pytest.mark.timeout(600)
def test_reordering_five_times_the_budget(
    copied_store: Path, limited: tuple[Path, Path], tmp_path: Path
) -> None:
    """Edges and rows are put in order on disk; the result is that with all memory there is."""
    made = write_within(limited, REORDER, copied_store, tmp_path / "small.gnn", 24 * 10**6)
    assert StoreReader.open(made).schema.edge.num_edges == NUM_COPIED_EDGES
    if is_long():  # to look for communities takes seconds
        whole = reorder(copied_store, tmp_path / "whole.gnn", "community")
        assert StoreReader.open(made).uuid == StoreReader.open(whole).uuid


@pytest.mark.timeout(600)
def test_splitting_edges(copied_store: Path, limited: tuple[Path, Path], tmp_path: Path) -> None:
    """Features are read in order."""
    made = write_within(limited, SPLIT, copied_store, tmp_path / "b.gnn", 24 * 10**6)
    edges = StoreReader.open(made).schema.edge
    num_held = sum(split.num_edges for split in edges.splits.values())
    assert 0.15 * NUM_COPIED_EDGES < num_held < 0.25 * NUM_COPIED_EDGES


@pytest.mark.timeout(600)
def test_an_archive_that_expands_beyond_the_budget(
    limited: tuple[Path, Path], tmp_path: Path
) -> None:
    """Pointers of 112 MB, features of 112 MB in Fortran order, and little of an archive each."""
    num_nodes, num_edges = 14_000_000, 700_000
    indptr = np.full(num_nodes + 1, num_edges)
    indptr[:num_nodes] = np.arange(num_nodes) * num_edges // num_nodes
    source = tmp_path / "a.npz"
    x = np.zeros((num_nodes, 2), np.float32, order="F")
    # As `np.savez_compressed`, in a quarter of the time.
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in (("indptr", indptr), ("indices", np.arange(num_edges)), ("x", x)):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array)
    del indptr, x
    made = write_within(limited, CONVERT, source, tmp_path / "a.gnn", 60 * 10**6)
    assert StoreReader.open(made).schema.node.num_nodes == num_nodes


@pytest.mark.timeout(600)
# In the long form every two of them together.
@pytest.mark.parametrize(
    ("lines", "memory", "renumber"),
    [(90, 40, True), (1_000_000, 100, True), (90, 100, False), (1_000_000, 40, False)][
        : choose(1, 4)
    ],
    indirect=["lines"],
)
def test_text(
    limited: tuple[Path, Path], tmp_path: Path, lines: Lines, memory: int, renumber: bool
) -> None:
    """What blocks of text become while they are parsed is counted, short numbers or long.

    With 90 nodes a line has 5 bytes, and takes the most memory for its size: what these take
    while they are parsed was 200 MB, whatever the budget, before it was part of that.
    """
    source, highest = lines
    words = [] if renumber else ["--num-nodes", highest]
    group, limit = limited
    limit.write_text(str(memory * 10**6 + ALLOWANCE_BYTES))
    finished = run(
        CONVERT_TEXT, source, tmp_path / "t.gnn", group, "--memory", f"{memory}MB", *words
    )
    assert finished.returncode == 0, finished.stderr or "killed by the kernel"
    assert StoreReader.open(tmp_path / "t.gnn").schema.edge.num_edges == NUM_LINES


@pytest.mark.timeout(600)
def test_the_limit_is_real(forks: ForkServer, limited: tuple[Path, Path]) -> None:
    """The same cgroup kills a process that takes more: the tests above can fail."""
    group, limit = limited
    limit.write_text(str(100 * 10**6))
    takes = "enter(sys.argv[1]); print(len(bytearray(300_000_000)))"
    assert run(takes, group).returncode != 0
    assert forks.run(ENTER + takes, group, own_memory=True).returncode == -signal.SIGKILL
