"""`memory=` is a promise: kept where the kernel kills a process that breaks it.

Each script starts, imports what it needs, and then moves itself into a memory cgroup of its
own, so that the limit counts what happens from then on: the budget, page cache included, and
a fixed allowance for what Python and the allocator take besides.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gnnstore.converters import from_numpy

ALLOWANCE_BYTES = 48 * 10**6
ROOT = Path("/sys/fs/cgroup")

ENTER = """
import os, sys
from pathlib import Path
def enter(group):
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
"""

LOAD = """
import torch
from gnnstore import NeighborLoader
torch.zeros(1)
store, group, memory, strategy = sys.argv[1:]
enter(group)
loader = NeighborLoader(
    store, [10, 10], "train", batch_size=256, shuffle=True, seed=0,
    memory=int(memory), strategy=strategy, num_threads=2,
)
seen = 0
for epoch in range(2):
    for batch in loader:
        seen += batch.num_nodes
print(loader.stats().strategy, loader.stats().bytes_gathered)
"""

CONVERT = """
import numpy as np
from gnnstore.converters import ConvertOptions, from_numpy
source, output, group, memory = sys.argv[1:]
np.linalg.norm(np.zeros(3))
enter(group)
from_numpy(source, output, options=ConvertOptions(undirected=True, memory_bytes=int(memory)))
print("converted")
"""


@pytest.fixture
def limited() -> Iterator[tuple[Path, Path]]:
    """Make a memory cgroup; yield it and the file that takes its limit."""
    for parent, limit in (
        (ROOT / "memory", "memory.limit_in_bytes"),  # version 1
        (ROOT, "memory.max"),
    ):
        group = parent / f"gnnstore-test-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
        except OSError:
            continue
        if not (group / limit).exists():
            group.rmdir()
            continue
        yield group, group / limit
        group.rmdir()
        return
    pytest.skip("no memory cgroup can be made here (it needs root or delegation)")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrays of 400,000 nodes: 410 MB of features, 3 million edges."""
    directory = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(0)
    num_nodes = 400_000
    np.save(directory / "x.npy", rng.random((num_nodes, 256), dtype=np.float32))
    np.save(directory / "edge_index.npy", rng.integers(0, num_nodes, (2, 3_000_000)))
    np.save(directory / "train.npy", rng.permutation(num_nodes)[:20_000])
    return directory


@pytest.fixture(scope="module")
def store(source: Path) -> Path:
    return from_numpy(source, source / "a.gnn")


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENTER + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("memory", "strategy"), [(150 * 10**6, "mmap"), (80 * 10**6, "auto")])
def test_loader(store: Path, limited: tuple[Path, Path], memory: int, strategy: str) -> None:
    group, limit = limited
    limit.write_text(str(memory + ALLOWANCE_BYTES))
    finished = run(LOAD, store, group, memory, strategy)
    assert finished.returncode == 0, finished.stderr or "killed by the kernel"
    used, num_bytes = finished.stdout.split()
    assert used == "mmap"
    assert int(num_bytes) > 10 * memory  # many times the budget went through it


@pytest.mark.timeout(600)
def test_loader_with_everything_in_memory(store: Path, limited: tuple[Path, Path]) -> None:
    group, limit = limited
    memory = 600 * 10**6
    limit.write_text(str(memory + ALLOWANCE_BYTES))
    finished = run(LOAD, store, group, memory, "memory")
    assert finished.returncode == 0, finished.stderr or "killed by the kernel"
    assert finished.stdout.startswith("memory")


@pytest.mark.timeout(600)
def test_converter(source: Path, limited: tuple[Path, Path], tmp_path: Path) -> None:
    group, limit = limited
    memory = 160 * 10**6
    limit.write_text(str(memory + ALLOWANCE_BYTES))
    finished = run(CONVERT, source, tmp_path / "b.gnn", group, memory)
    assert finished.returncode == 0, finished.stderr or "killed by the kernel"
    assert finished.stdout == "converted\n"


@pytest.mark.timeout(600)
def test_the_limit_is_real(source: Path, limited: tuple[Path, Path]) -> None:
    """The same cgroup kills a process that takes more: the tests above can fail."""
    group, limit = limited
    limit.write_text(str(100 * 10**6))
    finished = run("enter(sys.argv[1]); print(len(bytearray(300_000_000)))", group)
    assert finished.returncode != 0
