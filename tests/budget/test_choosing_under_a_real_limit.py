"""Choosing a strategy, and running the one that is asked for, within what is left of memory.

As `gnnstore bench load` measures: structure and labels are in memory, and then a cgroup is limited
to what the process holds, 2 % of the features and some room. All that a loader takes from then on
has to fit, what it samples to choose by included.
"""

from __future__ import annotations

import json
import os
import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.caching.belady import BELADY
from gnnstore.converters import ConvertOptions, from_numpy
from gnnstore.disk.profile import tune_reads
from gnnstore.formats.arrays.pages import PageGeometry, ShardLayout
from gnnstore.graph.cache_owner import shared_caches
from gnnstore.graph.table_registry import shared_tables
from gnnstore.strategies.sampled_epoch import sample_workload
from gnnstore.strategies.workload import SampledTrace, SpatialSampling, TableReads, Workload
from gnnstore.tools.bench.harness import Task, memory_group
from gnnstore.tools.bench.worker import ALLOWANCE_BYTES
from tests.support.disks import keep_usual_profile
from tests.support.effort import choose
from tests.support.forks import ForkServer

# Of `load_task.ALLOWANCE_BYTES` a loader needs less; what is over budget must not hide in the rest.
SPARED_BYTES = 24 * 10**6
NUM_NODES, NUM_SEEDS = 1_500_000, 150_000
NUM_BATCHES = choose(10, 20)

RUN = """
import itertools, json, os, sys
from pathlib import Path
words = json.loads(sys.argv[1])
task = words["task"]
Path(task["group"], "cgroup.procs").write_text(str(os.getpid()))
import torch
from gnnstore.errors import BudgetError
from gnnstore.tools.bench.harness import MemoryGroup, Task
from gnnstore.tools.bench.worker import Run
torch.zeros(1)
run = Run(Task(**task | {"fanouts": tuple(task["fanouts"])}))
run.limit()
group = MemoryGroup(Path(task["group"]))
group.limit(run.limit_bytes - words["spared"])
found = {"batches": 0}
try:
    loader = run.loader(memory=run.memory_bytes, strategy=task["strategy"], disk=10**9)
except BudgetError as error:
    found["refused"] = str(error)
else:
    for batch in itertools.islice(loader, words["batches"]):
        found["batches"] += 1
    stats = loader.stats()
    found |= {"strategy": stats.strategy, "cache_rows": stats.cache_rows, "reads": stats.reads}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of 102 MB and labels of 96 MB, more of them than a loader would keep by itself."""
    directory = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(0)
    np.save(directory / "x.npy", rng.random((NUM_NODES, 17), dtype=np.float32))
    np.save(directory / "y.npy", rng.integers(0, 2**40, (NUM_NODES, 8)))  # in 8 bytes each
    # Skewed, so that a cache by degree is worth a look.
    sources = (NUM_NODES * rng.random(4_500_000) ** 2).astype(np.int64)
    np.save(directory / "edge_index.npy", [sources, rng.integers(0, NUM_NODES, len(sources))])
    store = from_numpy(directory, directory / "a.gnn", options=ConvertOptions(edge_ids=False))
    np.save(directory / "seeds.npy", rng.permutation(NUM_NODES)[:NUM_SEEDS])
    return store


@pytest.fixture(autouse=True)
def profile(store: Path) -> None:
    """Measure nothing: what a budget has room for would depend on how deep queues are to be."""
    keep_usual_profile(store)


def run(forks: ForkServer, store: Path, strategy: str, room_bytes: int) -> dict[str, Any]:
    """Load batches where 2 % of the features, and the room, are left to a loader."""
    with memory_group() as group:
        if group is None:
            pytest.skip("no memory cgroup can be made here (it needs root or delegation)")
        task = Task(
            strategy=strategy,
            store=str(store),
            seeds=str(store.parent / "seeds.npy"),
            group=str(group.path),
            share=0.02,
            slack_bytes=ALLOWANCE_BYTES + room_bytes,
            warm_up=0,
            batches=0,
            round=0,
            fanouts=(5, 5),
            num_threads=2,
        )
        words = {"task": asdict(task), "spared": SPARED_BYTES, "batches": NUM_BATCHES}
        done = forks.run(
            RUN,
            json.dumps(words),
            environment=os.environ | {"OMP_NUM_THREADS": "1"},
            own_memory=True,
        )
    assert done.returncode == 0, done.stderr or "killed by the kernel"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("strategy", "room"), [("auto", 60), ("packed", 80), ("belady", 60)][: choose(1, 3)]
)
def test_labels_that_are_in_memory_count(
    forks: ForkServer, store: Path, strategy: str, room: int
) -> None:
    """A loader would not keep so many beside its cache; the cgroup counts those that are there."""
    found = run(forks, store, strategy, room * 10**6)
    assert found["batches"] == NUM_BATCHES
    assert found["reads"] > 0
    assert found["cache_rows"] > 0
    assert strategy in {"auto", found["strategy"]}


@pytest.mark.timeout(600)
def test_packing_says_what_it_needs(forks: ForkServer, store: Path) -> None:
    found = run(forks, store, "packed", 25 * 10**6)
    assert found["batches"] == 0
    assert re.search(r"(?s)\d+ bytes? too few.*raise memory= by at least", found["refused"])


def test_choosing_beside_the_cache_of_another_loader(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sampled with is what that cache leaves, although the loader will share it."""
    memory, given, opened = 170 * 10**6, [], gnnstore.open(store)

    def sampling(*arguments: Any, spare_bytes: int, **options: Any) -> Any:
        held = shared_tables(opened).resident_bytes + shared_caches(opened).cached_bytes
        given.append((spare_bytes, held))
        return sample_workload(*arguments, spare_bytes=spare_bytes, **options)

    monkeypatch.setattr("gnnstore.strategies.sampled_epoch.sample_workload", sampling)
    seeds = np.load(store.parent / "seeds.npy")
    loaders = [
        gnnstore.NeighborLoader(
            opened, [5, 5], seeds, batch_size=256, memory=memory, strategy=strategy, num_threads=1
        )
        for strategy in ("static", "auto")
    ]
    assert loaders[0].stats().cache_rows * (68 + 64) > memory / 4
    ((spare, held),) = given
    assert held + spare <= memory


def learn(num_batches: int, spatial: SpatialSampling, num_rows: int, batch_rows: int) -> Workload:
    """Learn from batches of rows from all over a table."""
    layout = ShardLayout(PageGeometry(512, 4096), num_rows, num_rows, 1)
    trace, draws = SampledTrace(num_batches, num_rows, spatial), np.random.default_rng(0)
    for i in range(num_batches):
        trace.put(i, draws.integers(0, num_rows, batch_rows))
    return Workload.learn(
        trace.build(),
        spatial,
        TableReads((layout,), (512,), tune_reads(None)),
        num_rows=num_rows,
        epoch_batches=num_batches,
        batch_bytes=1e6,
        ids_bytes=1e4,
        kept_bytes=1e4,
        seconds_sampling=0.01,
    )


def peak_bytes() -> int:
    """Return the most that arrays have taken since tracing began."""
    return tracemalloc.get_traced_memory()[1]


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("num_rows", [50_000, 4_000_000])
def test_learning_takes_what_it_is_given(num_rows: int) -> None:
    """Of a small graph too, of which half of the blocks would be too few to tell anything."""
    memory_bytes, batch_rows = 8 * 10**6, 20_000
    spatial = SpatialSampling.fit(64 * batch_rows, num_rows, 512, memory_bytes)
    num_batches = min(64, spatial.batches_in(memory_bytes, batch_rows))
    work = learn(num_batches, spatial, num_rows, batch_rows)
    for reads in (work.direct_reads(), work.planned_reads(BELADY, 1000, num_batches)):
        assert reads.reads > 0
    assert memory_bytes / 8 < peak_bytes() <= memory_bytes


@pytest.mark.usefixtures("traced")
def test_a_histogram_of_degrees_takes_no_copy_of_them() -> None:
    num_rows = 4_000_000
    work = learn(4, SpatialSampling(6, 0), num_rows, 1000)
    degrees = np.ones(num_rows, np.uint32)
    tracemalloc.reset_peak()
    before = peak_bytes()
    with_degrees = work.with_degrees(degrees)
    assert with_degrees.degree is not None
    assert with_degrees.degree.rows.sum() == num_rows
    assert peak_bytes() - before < degrees.nbytes / 2
